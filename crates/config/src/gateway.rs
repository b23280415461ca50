//! Services that weir itself gives to the guests of a network: its own addresses, DHCP, router advertisements, and NAT.

use std::collections::HashSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net};
use serde::{Deserialize, Serialize};
use toml::Spanned;
use toml::de::DeValue;
use weir_limits as limits;

use super::error::Problem;
use super::keys::{Key, NEEDS_A_RESTART, Rows, Value, keys};
use super::section::{
    Fault, FromToml, Located, REFUSED, Section, each, from_toml_string, report_repeated,
};
use super::values::{InterfaceName, LeaseTime, PortName, ValueError, serde_as_text};

mod dhcp;
#[cfg(test)]
mod tests;

pub use dhcp::{BootClient, BootConfig, BootFile, Route};

keys! {
    /// The keys of `[network.NAME]` about weir's services, as in the file.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct GatewayKeys {
        /// weir's own addresses, each with the prefix length of its subnet.
        address: Option<OneOrMore<OwnAddress>> = None, [fixed(NEEDS_A_RESTART)];
        /// Whether weir gives addresses of the IPv4 subnet to guests.
        dhcp: Option<bool> = None, [fixed(NEEDS_A_RESTART)];
        /// Whether guests go out by the host, which has weir's addresses.
        nat: Option<bool> = None, [fixed(NEEDS_A_RESTART)];
        /// The host's interface in the network, which `nat` makes.
        interface: Option<InterfaceName> = None, [fixed(NEEDS_A_RESTART)];
        /// Ports of the host that are guests'.
        forward: Elements<Forward> = Elements::default(), [fixed(NEEDS_A_RESTART)];
        /// The addresses that DHCP leases.
        range: Option<AddressRange> = None, [fixed(NEEDS_A_RESTART)];
        /// The default router of the guests.
        router: Option<Ipv4Text> = None, [fixed(NEEDS_A_RESTART)];
        /// Further routes of the guests.
        routes: Elements<Route> = Elements::default(), [fixed(NEEDS_A_RESTART)];
        /// Whether guests are told of IPv6 prefixes.
        ra: Option<bool> = None, [fixed(NEEDS_A_RESTART)];
        /// Whether weir gives addresses of the IPv6 subnet to guests.
        dhcp6: Option<bool> = None, [fixed(NEEDS_A_RESTART)];
        /// The DNS servers that guests are told of.
        dns: Option<OneOrMore<ServerText>> = None, [fixed(NEEDS_A_RESTART)];
        /// The domain of guests' names.
        domain: Option<DomainName> = None, [fixed(NEEDS_A_RESTART)];
        /// The duration of a lease that is not renewed.
        lease_time: Option<LeaseTime> = None, [fixed(NEEDS_A_RESTART)];
        /// Fixed addresses, each for one interface.
        fixed: Elements<FixedAddress> = Elements::default(), [fixed(NEEDS_A_RESTART)];
        /// The TFTP server of guests that boot over the network.
        boot_server: Option<Ipv4Text> = None, [fixed(NEEDS_A_RESTART)];
        /// The files that such guests load, each for one kind of firmware.
        boot_file: Elements<BootFile> = Elements::default(), [fixed(NEEDS_A_RESTART)];
    }
}

/// The services that weir gives to the guests of one network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayConfig {
    /// weir's own addresses, each with the prefix length of its subnet; at most one is an IPv4 address.
    pub addresses: Vec<OwnAddress>,
    /// The DHCP server, if there is one.
    pub dhcp: Option<DhcpConfig>,
    /// Router advertisements announce the IPv6 prefixes, from which guests form their addresses.
    pub ra: bool,
    /// DHCPv6 gives guests addresses of the first IPv6 subnet, and they form none.
    pub dhcp6: bool,
    /// Fixed addresses, each for one interface, in the order of the file.
    pub fixed: Vec<FixedAddress>,
    /// DNS servers that DHCP and router advertisements announce.
    pub dns: Vec<IpAddr>,
    /// NAT through the host, if there is any.
    pub nat: Option<NatConfig>,
}

impl GatewayConfig {
    /// The keys of the gateway. A key without a value is not set.
    pub(super) fn keys(&self) -> GatewayKeys {
        let Self { addresses, dhcp, ra, dhcp6, fixed, dns, nat } = self;
        let (has_dhcp, has_nat) = (dhcp.is_some(), nat.is_some());
        let (dhcp, nat) = (dhcp.as_ref(), nat.as_ref());
        GatewayKeys {
            address: OneOrMore::of(addresses.iter().copied()),
            dhcp: Some(has_dhcp),
            nat: Some(has_nat),
            interface: nat.map(|nat| nat.interface.clone()),
            forward: Elements::of(nat.map_or(&[], |nat| &nat.forward)),
            range: dhcp.map(|dhcp| dhcp.range),
            router: dhcp.and_then(|dhcp| dhcp.router).map(Ipv4Text),
            routes: Elements::of(dhcp.map_or(&[], |dhcp| &dhcp.routes)),
            ra: Some(*ra),
            dhcp6: Some(*dhcp6),
            dns: OneOrMore::of(dns.iter().copied().map(ServerText)),
            domain: dhcp.and_then(|dhcp| dhcp.domain.clone()),
            lease_time: dhcp.map(|dhcp| dhcp.lease_time),
            fixed: Elements::of(fixed),
            boot_server: dhcp.and_then(|dhcp| dhcp.boot.server).map(Ipv4Text),
            boot_file: Elements::of(dhcp.map_or(&[], |dhcp| &dhcp.boot.files)),
        }
    }

    /// weir's own IPv4 address, with its subnet.
    pub fn ipv4(&self) -> Option<Ipv4Net> {
        ipv4_of(self.addresses.iter().copied())
    }

    /// The default router, and gateways of other routes that are no guests with fixed addresses.
    pub fn routers_elsewhere(&self) -> impl Iterator<Item = Ipv4Addr> {
        let is_guest = |address: Ipv4Addr| self.fixed.iter().any(|it| it.address == address);
        let dhcp = self.dhcp.iter();
        let gateways = dhcp.clone().flat_map(|dhcp| &dhcp.routes).map(|route| route.gateway);
        let router = dhcp.filter_map(|dhcp| dhcp.router);
        router.chain(gateways.filter(move |it| !is_guest(*it)))
    }

    /// The fixed IPv4 address of an interface, if it has one.
    pub fn fixed_of(&self, vif: &PortName) -> Option<Ipv4Addr> {
        fixed_ipv4(&self.fixed, vif)
    }

    /// True if weir is a DNS server of the guests.
    pub fn answers_names(&self) -> bool {
        self.addresses.iter().any(|own| self.dns.contains(&own.get().addr()))
    }

    /// The domain of guests' names.
    pub fn domain(&self) -> &str {
        let configured = self.dhcp.as_ref().and_then(|dhcp| dhcp.domain.as_ref());
        configured.map_or(DomainName::DEFAULT, DomainName::as_str)
    }

    /// True if weir asks the host's resolver for other names: only for guests that have a default router.
    pub fn asks_resolver(&self) -> bool {
        let has_router = self.dhcp.as_ref().is_some_and(|dhcp| dhcp.router.is_some());
        self.answers_names() && (self.nat.is_some() || has_router)
    }
}

/// The settings of the DHCP server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DhcpConfig {
    /// The addresses that the server leases.
    pub range: AddressRange,
    /// The default router of the guests.
    pub router: Option<Ipv4Addr>,
    /// Further routes of the guests, in the order of the file.
    pub routes: Vec<Route>,
    /// The domain of guests' names.
    pub domain: Option<DomainName>,
    /// The duration of a lease that is not renewed.
    pub lease_time: LeaseTime,
    /// The boot file, and where it is, for guests that boot over the network.
    pub boot: BootConfig,
}

/// NAT of a network through the host. The host has weir's addresses in the network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NatConfig {
    /// The host's interface in the network, which weir makes.
    pub interface: InterfaceName,
    /// Host ports that are forwarded to guests, in the order of the file.
    pub forward: Vec<Forward>,
}

/// A host port that is forwarded to a guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forward {
    /// The protocol of both ports.
    pub protocol: ForwardProtocol,
    /// The host's port.
    pub port: u16,
    /// The guest's interface, which has a fixed address.
    pub vif: PortName,
    /// The guest's port.
    pub vif_port: u16,
}

/// The protocol of a forwarded port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ForwardProtocol {
    /// TCP connections.
    Tcp,
    /// UDP datagrams.
    Udp,
}

impl fmt::Display for ForwardProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        })
    }
}

impl Forward {
    const EXPECTED: &str =
        "a protocol, a port of the host, an interface and its port, such as \"tcp 2222 web0:22\"";
}

impl FromStr for Forward {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let refused = || ValueError::Quantity { value: text.into(), expected: Self::EXPECTED };
        let mut words = text.split_whitespace();
        let all = (words.next(), words.next(), words.next(), words.next());
        let (Some(protocol), Some(port), Some(guest), None) = all else { return Err(refused()) };
        let protocol = match protocol {
            "tcp" => ForwardProtocol::Tcp,
            "udp" => ForwardProtocol::Udp,
            _ => return Err(refused()),
        };
        let number = |text: &str| text.parse().ok().filter(|port| *port != 0).ok_or_else(refused);
        let (vif, vif_port) = guest.rsplit_once(':').ok_or_else(refused)?;
        let (port, vif_port) = (number(port)?, number(vif_port)?);
        Ok(Self { protocol, port, vif: vif.parse()?, vif_port })
    }
}

impl fmt::Display for Forward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}:{}", self.protocol, self.port, self.vif, self.vif_port)
    }
}

from_toml_string! {
    OwnAddress = OwnAddress::EXPECTED;
    AddressRange = AddressRange::EXPECTED;
    Ipv4Text = Ipv4Text::EXPECTED;
    ServerText = ServerText::EXPECTED;
    DomainName = DomainName::EXPECTED;
    FixedAddress = FixedAddress::EXPECTED;
    Route = Route::EXPECTED;
    BootFile = BootFile::EXPECTED;
    Forward = Forward::EXPECTED;
}

/// One value, or several in brackets, each with its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OneOrMore<T>(Vec<Located<T>>);

impl<T: Clone> OneOrMore<T> {
    /// Values that come from no text, or `None` if there are none.
    fn of(values: impl Iterator<Item = T>) -> Option<Self> {
        let all: Vec<_> = values.map(|value| Located::nowhere(&value)).collect();
        (!all.is_empty()).then_some(Self(all))
    }
}

impl<T: fmt::Display> fmt::Display for OneOrMore<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<_> = self.0.iter().map(|one| one.value.to_string()).collect();
        f.write_str(&texts.join(", "))
    }
}

impl<T: FromToml> FromToml for OneOrMore<T> {
    fn from_toml(value: &Spanned<DeValue<'_>>) -> Result<Self, Fault> {
        let located = |item: &Spanned<DeValue<'_>>| {
            Ok(Located { value: T::from_toml(item)?, span: item.span() })
        };
        match value.get_ref() {
            DeValue::Array(items) => each(items.iter().map(located)).map(Self),
            _ => Ok(Self(vec![located(value)?])),
        }
    }
}

/// A value, or a list of them, each with its place. In a list, each wrong element is reported, and
/// the others are taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Elements<T>(Vec<Located<T>>);

impl<T> Default for Elements<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Clone> Elements<T> {
    /// Values that come from no text.
    fn of(values: &[T]) -> Self {
        Self(values.iter().map(Located::nowhere).collect())
    }
}

impl<T: FromToml + Clone + PartialEq + fmt::Display> Value for Elements<T> {
    fn read(&mut self, key: &Key, section: &mut Section<'_>, problems: &mut Vec<Problem>) {
        if section.has(key.name) {
            self.0 = section.list(key.name, problems);
        }
    }

    fn show(&self, key: Key, rows: &mut Rows) {
        let texts: Vec<_> = self.0.iter().map(|one| one.value.to_string()).collect();
        rows.push((key, Some(texts.join(", ")).filter(|text| !text.is_empty())));
    }
}

/// Makes a type around `$inner` that is written as `$inner` is, if `$is_good`.
macro_rules! checked_text {
    ($name:ident($inner:ty), $is_good:expr, $expected:literal) => {
        impl $name {
            const EXPECTED: &str = $expected;
        }

        impl FromStr for $name {
            type Err = ValueError;
            fn from_str(text: &str) -> Result<Self, ValueError> {
                let parsed = text.parse::<$inner>().ok().filter($is_good);
                let (value, expected) = (text, Self::EXPECTED);
                parsed
                    .map(Self)
                    .ok_or_else(|| ValueError::Quantity { value: value.into(), expected })
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

/// An address that weir has in a network, with the prefix length of its subnet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OwnAddress(IpNet);

impl OwnAddress {
    /// The address and its subnet.
    pub const fn get(self) -> IpNet {
        self.0
    }
}

checked_text! {
    OwnAddress(IpNet),
    |net| {
        let address = net.addr();
        let is_station = match net {
            // No station has the first or the last address of a subnet (RFC 1122 §3.2.1.3).
            IpNet::V4(net) => {
                (1..=30).contains(&net.prefix_len())
                    && net.addr() != net.network()
                    && net.addr() != net.broadcast()
                    && !net.addr().is_broadcast()
                    && net.addr().octets()[0] != 0
            }
            // A link-local address means nothing without a link. The first address of a subnet stands for any of
            // its routers (RFC 4291 §2.6.1).
            IpNet::V6(net) => {
                (1..=126).contains(&net.prefix_len())
                    && net.addr() != net.network()
                    && !net.addr().is_unicast_link_local()
                    && net.addr().to_ipv4_mapped().is_none()
            }
        };
        is_station
            && !address.is_multicast()
            && !address.is_unspecified()
            && !address.is_loopback()
    },
    "a station's address and the length of its subnet's prefix, such as \"192.168.77.1/24\""
}

/// The host's addresses on a TAP: one up to [`limits::OWN_ADDRESSES_MAX`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostAddresses(Vec<OwnAddress>);

serde_as_text!(HostAddresses);

impl HostAddresses {
    /// The addresses, each with its subnet.
    pub fn as_slice(&self) -> &[OwnAddress] {
        &self.0
    }
}

impl TryFrom<Vec<OwnAddress>> for HostAddresses {
    type Error = ValueError;
    fn try_from(all: Vec<OwnAddress>) -> Result<Self, ValueError> {
        let different = all.iter().collect::<HashSet<_>>().len();
        if different < all.len() || !(1..=limits::OWN_ADDRESSES_MAX).contains(&different) {
            let value = format!("{different} different addresses");
            let max = limits::OWN_ADDRESSES_MAX as u64;
            return Err(ValueError::OutOfRange { min: 1, max, value });
        }
        Ok(Self(all))
    }
}

impl FromStr for HostAddresses {
    type Err = ValueError;
    /// Reads addresses with commas between them.
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let all = text.split(',').map(|address| address.trim().parse::<OwnAddress>());
        all.collect::<Result<Vec<_>, _>>()?.try_into()
    }
}

impl fmt::Display for HostAddresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<_> = self.0.iter().map(OwnAddress::to_string).collect();
        f.write_str(&all.join(", "))
    }
}

impl FromToml for HostAddresses {
    fn from_toml(value: &Spanned<DeValue<'_>>) -> Result<Self, Fault> {
        let all = match value.get_ref() {
            DeValue::Array(items) => each(items.iter().map(OwnAddress::from_toml))?,
            _ => vec![OwnAddress::from_toml(value)?],
        };
        all.try_into().map_err(|error| Fault::new(value, error))
    }
}

/// A range of addresses that includes both ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressRange {
    /// The lowest address.
    pub first: Ipv4Addr,
    /// The highest address.
    pub last: Ipv4Addr,
}

impl AddressRange {
    const EXPECTED: &str =
        "the first and the last address, such as \"192.168.77.100-192.168.77.199\"";

    /// All addresses that stations of a subnet can have.
    pub fn of(subnet: Ipv4Net) -> Self {
        let (network, broadcast) = (subnet.network().to_bits(), subnet.broadcast().to_bits());
        Self { first: Ipv4Addr::from_bits(network + 1), last: Ipv4Addr::from_bits(broadcast - 1) }
    }

    /// True if the range includes `address`.
    pub fn contains(&self, address: Ipv4Addr) -> bool {
        (self.first..=self.last).contains(&address)
    }
}

impl FromStr for AddressRange {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let parsed = text
            .split_once('-')
            .and_then(|(first, last)| Some((first.trim().parse().ok()?, last.trim().parse().ok()?)))
            .filter(|(first, last): &(Ipv4Addr, Ipv4Addr)| first <= last);
        match parsed {
            Some((first, last)) => Ok(Self { first, last }),
            None => {
                let expected = Self::EXPECTED;
                Err(ValueError::Quantity { value: text.into(), expected })
            }
        }
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

/// An IPv4 address that a router can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ipv4Text(Ipv4Addr);

checked_text! {
    Ipv4Text(Ipv4Addr),
    |ip| !ip.is_multicast() && !ip.is_broadcast() && !ip.is_unspecified(),
    "an IPv4 address in quotes, such as \"192.168.77.1\""
}

/// The address of a DNS server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ServerText(IpAddr);

checked_text! {
    ServerText(IpAddr),
    |ip| {
        // A link-local address means nothing without a link.
        let link_local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        let broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
        let nobody = ip.is_multicast() || ip.is_unspecified() || ip.is_loopback();
        !nobody && !link_local && !broadcast
    },
    "an address in quotes, such as \"9.9.9.9\""
}

/// A domain (RFC 1035 §2.3.1, with digits first as RFC 1123 §2.1 allows), in lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DomainName(String);

impl DomainName {
    /// The default domain of guests' names. It is reserved for private use.
    const DEFAULT: &str = "internal";
    const EXPECTED: &str = "a domain in quotes, such as \"internal\"";

    /// The text, without a dot at its end.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for DomainName {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let is_label = |label: &str| {
            (1..=63).contains(&label.len())
                && !label.starts_with('-')
                && !label.ends_with('-')
                && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        };
        // The bound leaves room for a guest's name and a dot before the domain.
        let good = text.len() <= limits::DOMAIN_LEN_MAX && text.split('.').all(is_label);
        match good {
            true => Ok(Self(text.to_ascii_lowercase())),
            false => Err(ValueError::Quantity { value: text.into(), expected: Self::EXPECTED }),
        }
    }
}

impl fmt::Display for DomainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

fn fixed_ipv4<'f>(
    all: impl IntoIterator<Item = &'f FixedAddress>,
    of: &PortName,
) -> Option<Ipv4Addr> {
    all.into_iter().filter(|it| it.vif == *of).find_map(|it| match it.address {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    })
}

/// A fixed address of one interface, which may have one of each IP version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FixedAddress {
    /// The interface, which need not exist yet.
    pub vif: PortName,
    /// Its address.
    pub address: IpAddr,
}

impl FixedAddress {
    const EXPECTED: &str = "an interface and its address, such as \"web0 192.168.77.10\"";
}

impl FromStr for FixedAddress {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let refused = || ValueError::Quantity { value: text.into(), expected: Self::EXPECTED };
        let mut words = text.split_whitespace();
        let (Some(vif), Some(address), None) = (words.next(), words.next(), words.next()) else {
            return Err(refused());
        };
        Ok(Self { vif: vif.parse()?, address: address.parse().map_err(|_| refused())? })
    }
}

impl fmt::Display for FixedAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.vif, self.address)
    }
}

fn ipv4_of(addresses: impl Iterator<Item = OwnAddress>) -> Option<Ipv4Net> {
    addresses.map(OwnAddress::get).find_map(|net| match net {
        IpNet::V4(net) => Some(net),
        IpNet::V6(_) => None,
    })
}

/// Keys that need `dhcp`.
const OF_DHCP: [&str; 7] =
    ["range", "router", "routes", "domain", "lease_time", "boot_server", "boot_file"];

/// The beginning of the default name of the host's interface in a network; the network's name follows.
const INTERFACE_PREFIX: &str = "weir-";

/// The longest prefix of a subnet for DHCPv6: there are many more addresses than leases.
const DHCP6_LEN_MAX: u8 = 112;

/// Keys that need `nat`.
const OF_NAT: [&str; 2] = ["interface", "forward"];

/// The values of `nat` and of the keys that need it.
struct NatKeys {
    nat: Option<Located<bool>>,
    interface: Option<InterfaceName>,
    forward: Vec<Located<Forward>>,
}

impl NatKeys {
    /// Reports keys that mean nothing without `nat`.
    fn check(&self, section: &mut Section<'_>, problems: &mut Vec<Problem>) {
        if self.is_wanted() || !section.is_good() {
            return;
        }
        for key in OF_NAT {
            if let Some(span) = section.refuse(key).filter(|_| section.has(key)) {
                problems.push(
                    Problem::new(format!("`{}` has `{key}` without `nat`", section.title))
                        .label(span, "says how the way out through the host is")
                        .help("add `nat = true`"),
                );
            }
        }
    }

    fn is_wanted(&self) -> bool {
        self.nat.as_ref().is_some_and(|nat| nat.value)
    }

    /// The NAT settings of the section's network. A forwarded port needs an interface with an address in `fixed`.
    fn settle(
        self,
        section: &Section<'_>,
        fixed: &[Located<FixedAddress>],
        problems: &mut Vec<Problem>,
    ) -> Option<NatConfig> {
        let nat = self.nat.filter(|nat| nat.value)?;
        let name = section.title.strip_prefix("network.").unwrap_or(&section.title);
        let interface = match self.interface {
            Some(interface) => interface,
            None if section.has("interface") => return None,
            None => {
                match format!("{INTERFACE_PREFIX}{name}").parse() {
                    Ok(interface) => interface,
                    Err(_) => {
                        problems.push(section.does_not_fit(
                        nat.span,
                        format!("`{INTERFACE_PREFIX}{name}` is too long for an interface of the host"),
                        "name it, such as `interface = \"weir-lan\"`",
                    ));
                        return None;
                    }
                }
            }
        };
        let forward = self.forward;
        if let Some(one_more) = forward.get(limits::FORWARDS_MAX) {
            problems.push(section.does_not_fit(
                one_more.span.clone(),
                format!("{} forwarded ports are too many", forward.len()),
                format!("forward {} at most", limits::FORWARDS_MAX),
            ));
        }
        for Located { value, span } in &forward {
            let is_known = !section.has("fixed") || section.has_good("fixed");
            let fixed = fixed.iter().map(|it| &it.value);
            if is_known && fixed_ipv4(fixed, &value.vif).is_none() {
                problems.push(section.does_not_fit(
                    span.clone(),
                    format!("`forward` names `{}`, which has no fixed address", value.vif),
                    format!("give it one: `dhcp = true` and `fixed = \"{} ADDRESS\"`", value.vif),
                ));
            }
        }
        let ports = forward
            .iter()
            .map(|it| (format!("{} {}", it.value.protocol, it.value.port), it.span.clone()));
        let place = format!("in `forward` of `{}`", section.title);
        report_repeated(("port", &place, "forward each port to one guest"), ports, problems);
        let forward = forward.into_iter().map(|it| it.value).collect();
        Some(NatConfig { interface, forward })
    }
}

/// The gateway of a network's section, from its `keys`. A contradiction between keys is reported with their places.
pub(super) fn gateway(
    section: &mut Section<'_>,
    keys: GatewayKeys,
    problems: &mut Vec<Problem>,
) -> Option<GatewayConfig> {
    let GatewayKeys { address, dhcp, nat, interface, forward, range, router, .. } = keys;
    let GatewayKeys { routes, ra, dhcp6, dns, domain, lease_time, fixed, .. } = keys;
    let GatewayKeys { boot_server, boot_file, .. } = keys;
    let addresses = section.located("address", address);
    let dhcp = section.located("dhcp", dhcp);
    let range = section.located("range", range);
    let router = section.located("router", router);
    let dns = section.located("dns", dns);
    let ra = section.located("ra", ra);
    let dhcp6 = section.located("dhcp6", dhcp6).filter(|it| it.value);
    let boot_server = section.located("boot_server", boot_server);
    let lease_time = lease_time.unwrap_or(LeaseTime::DEFAULT);
    let (Elements(forward), Elements(fixed), Elements(files)) = (forward, fixed, boot_file);
    let Elements(routes) = routes;
    let nat = NatKeys { nat: section.located("nat", nat), interface, forward };
    nat.check(section, problems);
    let has_nat = nat.is_wanted();
    let wants_dhcp = dhcp.as_ref().is_some_and(|dhcp| dhcp.value);
    if !wants_dhcp && section.is_good() {
        for key in OF_DHCP {
            if let Some(span) = section.refuse(key).filter(|_| section.has(key)) {
                problems.push(
                    Problem::new(format!("`{}` has `{key}` without `dhcp`", section.title))
                        .label(span, "says what DHCP gives to guests")
                        .help("add `dhcp = true`"),
                );
            }
        }
    }
    let Some(addresses) = addresses else {
        if let (Some(nat), false) = (nat.nat.filter(|it| it.value), section.has("address")) {
            problems.push(
                Problem::new(format!("`{}` has `nat` without `address`", section.title))
                    .label(nat.span, "the host has no address there")
                    .help("add the host's address, such as `address = \"192.168.77.1/24\"`"),
            );
        }
        if let (Some(dhcp), false) = (dhcp.filter(|it| it.value), section.has("address")) {
            problems.push(
                Problem::new(format!("`{}` has `dhcp` without `address`", section.title))
                    .label(dhcp.span, "nobody is there to ask")
                    .help("add weir's own address, such as `address = \"192.168.77.2/24\"`"),
            );
        }
        return None;
    };
    check_own(section, &addresses, problems);
    let own: Vec<_> = addresses.value.0.iter().map(|address| address.value).collect();
    let wanted_router = router.as_ref().map(|router| router.value.0);
    let dhcp = dhcp.filter(|dhcp| dhcp.value).and_then(|dhcp| {
        let Some(subnet) = ipv4_of(own.iter().copied()) else {
            problems.push(
                Problem::new(format!("`{}` has `dhcp` and no IPv4 address", section.title))
                    .label(dhcp.span, "gives addresses of IPv4")
                    .label(addresses.span.clone(), "no subnet to take them from")
                    .help("add an address such as \"192.168.77.2/24\" to `address`"),
            );
            return None;
        };
        let within = Within { title: &section.title, subnet, has_nat };
        if let Some(range) = &range {
            within.check_range(range, problems);
        }
        if let Some(router) = &router {
            within.check_router(router, problems);
        }
        within.check_routes(&routes, problems);
        // With NAT the host is the router, at weir's address.
        let router = router.map(|router| router.value.0).or(has_nat.then(|| subnet.addr()));
        Some(DhcpConfig {
            range: range.map_or_else(|| AddressRange::of(subnet), |range| range.value),
            router,
            routes: routes.into_iter().map(|route| route.value).collect(),
            domain,
            lease_time,
            boot: dhcp::boot(section, &within, router, boot_server, files, problems),
        })
    });
    let first = own.iter().copied().map(OwnAddress::get).find(|own| own.addr().is_ipv6());
    let subnets = [
        wants_dhcp.then(|| ipv4_of(own.iter().copied()).map(IpNet::V4)),
        dhcp6.is_some().then_some(first),
    ];
    check_fixed(section, &fixed, &own, subnets, wanted_router, problems);
    let nat = nat.settle(section, &fixed, problems);
    let wants_ra = ra.as_ref().is_some_and(|ra| ra.value);
    if let Some(ra) = ra.filter(|ra| ra.value && own.iter().all(|it| it.get().addr().is_ipv4())) {
        problems.push(
            Problem::new(format!("`{}` has `ra` and no IPv6 address", section.title))
                .label(ra.span, "tells guests of prefixes of IPv6")
                .label(addresses.span.clone(), "has none")
                .help("add an address such as \"fd00:77::1/64\" to `address`"),
        );
    }
    let is_wide = first.is_none_or(|own| own.prefix_len() <= DHCP6_LEN_MAX);
    if let Some(dhcp6) = dhcp6.as_ref().filter(|_| !wants_ra || !is_wide) {
        let (what, help) = match wants_ra {
            false => {
                ("`dhcp6` without `ra`, by which guests learn of it", "add `ra = true`".into())
            }
            true => (
                "`dhcp6` and a small subnet of IPv6",
                format!(
                    "give it a prefix of {DHCP6_LEN_MAX} bits at most, such as \"fd00:77::1/64\""
                ),
            ),
        };
        let what = format!("`{}` has {what}", section.title);
        problems.push(Problem::new(what).label(dhcp6.span.clone(), REFUSED).help(help));
    }
    let dns = match dns {
        Some(dns) => check_dns(section, dns, (wants_dhcp, wants_ra), problems),
        // weir itself, if guests learn its address.
        None => {
            let own = own.iter().map(|own| own.get().addr());
            let told = own.filter(|own| if own.is_ipv4() { wants_dhcp } else { wants_ra });
            told.take(limits::DHCP_DNS_MAX).collect()
        }
    };
    let fixed = fixed.into_iter().map(|fixed| fixed.value).collect();
    let dhcp6 = dhcp6.is_some();
    Some(GatewayConfig { addresses: own, dhcp, ra: wants_ra, dhcp6, fixed, dns, nat })
}

/// The DNS servers. DHCP announces those with an IPv4 address, and router advertisements the others.
fn check_dns(
    section: &Section<'_>,
    dns: Located<OneOrMore<ServerText>>,
    (dhcp, ra): (bool, bool),
    problems: &mut Vec<Problem>,
) -> Vec<IpAddr> {
    let dns = dns.value.0;
    if let Some(one_more) = dns.get(limits::DHCP_DNS_MAX) {
        problems.push(section.does_not_fit(
            one_more.span.clone(),
            format!("{} servers of names are too many", dns.len()),
            format!("name {} at most", limits::DHCP_DNS_MAX),
        ));
    }
    for Located { value: ServerText(server), span } in &dns {
        let (told, key) = if server.is_ipv4() { (dhcp, "dhcp") } else { (ra, "ra") };
        if !told {
            problems.push(section.does_not_fit(
                span.clone(),
                format!("nobody is told of the server {server} without `{key}`"),
                format!("add `{key} = true`"),
            ));
        }
    }
    dns.into_iter().map(|dns| dns.value.0).collect()
}

fn check_own(
    section: &Section<'_>,
    addresses: &Located<OneOrMore<OwnAddress>>,
    problems: &mut Vec<Problem>,
) {
    let own = &addresses.value.0;
    let refused = |span: Range<usize>, what: &str, help: String| {
        Problem::new(format!("`{}` has {what}", section.title)).label(span, REFUSED).help(help)
    };
    if own.is_empty() {
        let help = "such as `address = \"192.168.77.2/24\"`".to_owned();
        problems.push(refused(addresses.span.clone(), "no address in `address`", help));
    }
    if let Some(one_more) = own.get(limits::OWN_ADDRESSES_MAX) {
        let help = format!("name {} at most", limits::OWN_ADDRESSES_MAX);
        problems.push(refused(one_more.span.clone(), "too many addresses", help));
    }
    let second = own.iter().filter(|it| it.value.get().addr().is_ipv4()).nth(1);
    if let Some(second) = second {
        let help = "split the network: guests of one have one IPv4 subnet".to_owned();
        problems.push(refused(second.span.clone(), "two IPv4 addresses", help));
    }
    let places = own.iter().map(|it| (it.value.get().addr().to_string(), it.span.clone()));
    let place = format!("of `{}`", section.title);
    report_repeated(("address", &place, "name each address once"), places, problems);
}

/// Checks fixed addresses. `v4` and `v6` are the subnets in which DHCP and DHCPv6 give addresses: `None` without the
/// server, `Some(None)` without such a subnet.
fn check_fixed(
    section: &Section<'_>,
    fixed: &[Located<FixedAddress>],
    own: &[OwnAddress],
    [v4, v6]: [Option<Option<IpNet>>; 2],
    router: Option<Ipv4Addr>,
    problems: &mut Vec<Problem>,
) {
    let title = &section.title;
    if let Some(one_more) = fixed.get(limits::PORTS_MAX) {
        problems.push(section.does_not_fit(
            one_more.span.clone(),
            format!("{} fixed addresses are too many", fixed.len()),
            format!("a switch has {} ports at most", limits::PORTS_MAX),
        ));
        return;
    }
    for Located { value: FixedAddress { vif, address }, span } in fixed {
        let (subnet, key) = if address.is_ipv4() { (v4, "dhcp") } else { (v6, "dhcp6") };
        let Some(subnet) = subnet else {
            let what = format!("`{title}` has {address} of `{vif}` in `fixed` without `{key}`");
            let help = format!("add `{key} = true`");
            problems.push(Problem::new(what).label(span.clone(), REFUSED).help(help));
            continue;
        };
        let Some(subnet) = subnet else { continue };
        let is_station = match (subnet, *address) {
            (IpNet::V4(subnet), IpAddr::V4(it)) => AddressRange::of(subnet).contains(it),
            (IpNet::V6(subnet), IpAddr::V6(it)) => subnet.contains(&it) && it != subnet.network(),
            _ => false,
        };
        let what = if !is_station {
            "not within the subnet"
        } else if router.is_some_and(|router| *address == router) {
            "the router's"
        } else if own.iter().any(|own| own.get().addr() == *address) {
            "weir's own"
        } else {
            continue;
        };
        let problem = Problem::new(format!("`{title}`: {address} of `{vif}` is {what}"));
        let label = format!("the subnet is {}", subnet.trunc());
        problems.push(problem.label(span.clone(), label).help("choose another address"));
    }
    let place = format!("in `fixed` of `{title}`");
    for is_v4 in [true, false] {
        let all = fixed.iter().filter(|it| it.value.address.is_ipv4() == is_v4);
        let vifs = all.map(|it| (it.value.vif.to_string(), it.span.clone()));
        report_repeated(("interface", &place, "give each interface one address"), vifs, problems);
    }
    let addresses = fixed.iter().map(|it| (it.value.address.to_string(), it.span.clone()));
    report_repeated(("address", &place, "give each address to one interface"), addresses, problems);
}

/// The subnet that addresses have to be in.
struct Within<'s> {
    title: &'s str,
    subnet: Ipv4Net,
    /// True if the host routes, and has weir's address.
    has_nat: bool,
}

impl Within<'_> {
    /// True if a station of the subnet can have `address`.
    fn is_station(&self, address: Ipv4Addr) -> bool {
        AddressRange::of(self.subnet).contains(address)
    }

    fn problem(&self, span: &Range<usize>, what: String, help: String) -> Problem {
        let subnet = self.subnet.trunc();
        Problem::new(format!("`{}`: {what}", self.title))
            .label(span.clone(), format!("the subnet is {subnet}"))
            .help(help)
    }

    fn any_station(&self) -> String {
        format!("its stations have the addresses {}", AddressRange::of(self.subnet))
    }

    fn check_range(&self, range: &Located<AddressRange>, problems: &mut Vec<Problem>) {
        let AddressRange { first, last } = range.value;
        let span = &range.span;
        if !self.is_station(first) || !self.is_station(last) {
            let what = format!("the range {} is not within the subnet", range.value);
            problems.push(self.problem(span, what, self.any_station()));
        } else if first == last && first == self.subnet.addr() {
            let what = "the range is weir's own address".to_owned();
            problems.push(self.problem(span, what, "choose addresses for guests".into()));
        }
    }

    fn check_router(&self, router: &Located<Ipv4Text>, problems: &mut Vec<Problem>) {
        let Ipv4Text(address) = router.value;
        if !self.is_station(address) {
            let what = format!("the router {address} is not within the subnet");
            problems.push(self.problem(&router.span, what, self.any_station()));
        } else if address == self.subnet.addr() && !self.has_nat {
            let what = "`router` is weir's own address, which routes nothing".to_owned();
            let help = "name who routes, such as the host by the address of its TAP, and give weir another `address`";
            problems.push(self.problem(&router.span, what, help.into()));
        }
    }
}
