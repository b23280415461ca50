//! The server's handling of one client message (RFC 2131).
//!
//! weir is the only server of its network, so it answers with a NAK where a server among others would be silent, and
//! lets a client keep an address that weir does not remember, if the address is free.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::Ipv4Addr;
use std::ops::{Range, RangeInclusive};

use dhcproto::v4::{DhcpOption, HType, Message, MessageType, Opcode, OptionCode};
use dhcproto::{Decodable, Decoder, Encodable};
use ipnet::Ipv4Net;
use weir_fabric::source_guard::dhcp::{COOKIE, END, MAGIC, OPTIONS, options};
use weir_limits::{BOOT_FILE_LEN_MAX, DECLINED_SECS, LEASE_SECS_MIN, LEASES_MAX, OFFER_SECS};
use weir_wire::Mac;

use crate::leases::{Client, Hold, Lease, Leases};

#[cfg(test)]
mod tests;

/// The first bytes of a client's message: `op`, `htype` (Ethernet) and `hlen` (RFC 2131 §2).
const REQUEST_OF_ETHERNET: [u8; 3] = [1, 1, 6];
/// The options that the server reads, each with its valid lengths.
const LISTENED_TO: [(u8, RangeInclusive<usize>); 8] = [
    (50, 4..=4),   // the address that it asks for
    (51, 4..=4),   // for how long
    (53, 1..=1),   // what kind of message it is
    (54, 4..=4),   // the server that it means
    (55, 1..=255), // the options that it wants
    (61, 1..=255), // what it calls itself
    (77, 1..=255), // what kind of client it is
    (93, 2..=2),   // its architecture
];
/// Names of a server and of a file, which a client need not fill in.
const NAMES: Range<usize> = 44..236;
/// iPXE's user class.
const IPXE: &[u8] = b"iPXE";
/// Every client accepts a message of this length. A shorter one may be taken for BOOTP's (RFC 1542 §2.1).
const MESSAGE_LEN_MIN: usize = 300;

/// The settings that the guests of a network get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DhcpSettings {
    /// weir's own address, and the subnet.
    pub own: Ipv4Net,
    /// The range of addresses that the server gives.
    pub range: RangeInclusive<Ipv4Addr>,
    /// The default gateway.
    pub router: Option<Ipv4Addr>,
    /// Further routes, each with its gateway.
    pub routes: Vec<(Ipv4Net, Ipv4Addr)>,
    /// DNS servers.
    pub dns: Vec<Ipv4Addr>,
    /// The domain of guests' names.
    pub domain: Option<String>,
    /// The lease time (s).
    pub lease_secs: u32,
    /// Fixed addresses, by interface.
    pub fixed: BTreeMap<String, Ipv4Addr>,
    /// The server and files of firmware that boots over the network.
    pub boot: BootSettings,
}

/// The server and the files from which firmware boots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BootSettings {
    /// The TFTP server.
    pub server: Option<Ipv4Addr>,
    /// iPXE's file.
    pub ipxe: Option<String>,
    /// The file of firmware of an architecture.
    pub by_architecture: BTreeMap<u16, String>,
    /// The file of all other clients.
    pub others: Option<String>,
}

/// The sender of a message.
#[derive(Clone, Copy, Debug)]
pub struct Asker<'a> {
    /// The interface that the sender is behind.
    pub vif: &'a str,
    /// The source address of the frame.
    pub mac: Mac,
    /// The MTU of the interface.
    pub mtu: Option<u16>,
}

/// The result of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// An address was offered.
    Offered,
    /// An address was given, or its lease was extended.
    Given,
    /// Settings were given to a client that has an address.
    Informed,
    /// The client got a NAK and has to start again.
    Refused,
    /// The client has given an address back.
    Released,
    /// The client has found an address in use.
    Declined,
    /// There is no address for the client.
    NoAddress,
    /// The message is not for weir, or weir must not answer it.
    Ignored,
}

/// An answer to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The message.
    pub bytes: Vec<u8>,
    /// The address that it is sent to.
    pub to: Ipv4Addr,
}

/// The server of one network.
#[derive(Debug)]
pub struct Dhcp {
    settings: DhcpSettings,
    leases: Leases,
    /// Interfaces of the network. One address is reserved for each.
    vifs: BTreeSet<String>,
    /// Fixed addresses by interface, and the interface of each fixed address.
    fixed: BTreeMap<String, Ipv4Addr>,
    reserved: BTreeMap<Ipv4Addr, String>,
    /// The addresses of weir, the router and the gateways of routes, which no client gets unasked.
    taken: BTreeSet<Ipv4Addr>,
    /// Addresses whose leases have changed since they were saved.
    pub changed: BTreeSet<Ipv4Addr>,
}

impl Dhcp {
    /// Creates a server that starts with these leases.
    pub fn new(settings: DhcpSettings, leases: Leases) -> Self {
        let (vifs, fixed, reserved, changed) = Default::default();
        let gateways = settings.routes.iter().map(|(_, gateway)| *gateway);
        let taken = gateways.chain(settings.router).chain([settings.own.addr()]).collect();
        let mut server = Self { settings, leases, vifs, fixed, reserved, taken, changed };
        server.set_vifs([]);
        server
    }

    /// The leases of the network.
    pub fn leases(&self) -> &Leases {
        &self.leases
    }

    /// The addresses that an interface holds now, and its fixed address.
    pub fn addresses_of(&self, vif: &str, now_secs: u32) -> Vec<Ipv4Addr> {
        let mut all: Vec<_> = self.leases.bound_of(vif, now_secs).collect();
        all.extend(self.fixed.get(vif).filter(|fixed| !all.contains(fixed)));
        all
    }

    /// The interface that holds an address now, or for which the address is fixed.
    pub fn vif_of(&self, address: Ipv4Addr, now_secs: u32) -> Option<&str> {
        let of_lease = self.leases.vif_of(address, now_secs);
        of_lease.or_else(|| self.reserved.get(&address).map(String::as_str))
    }

    /// The server's settings.
    pub fn settings(&self) -> &DhcpSettings {
        &self.settings
    }

    /// Sets the interfaces of the network, each with the fixed address of its own section. A fixed address in the
    /// network's section takes precedence.
    pub fn set_vifs(&mut self, vifs: impl IntoIterator<Item = (String, Option<Ipv4Addr>)>) {
        let (mut names, mut fixed) = (BTreeSet::new(), BTreeMap::new());
        for (vif, own) in vifs {
            let own = own.filter(|own| self.is_station(*own));
            fixed.extend(own.map(|own| (vif.clone(), own)));
            names.insert(vif);
        }
        fixed.extend(self.settings.fixed.clone());
        self.reserved = fixed.iter().map(|(vif, address)| (*address, vif.clone())).collect();
        (self.vifs, self.fixed) = (names, fixed);
    }

    /// True if a station other than weir and the router can have the address.
    fn is_station(&self, address: Ipv4Addr) -> bool {
        let own = self.settings.own;
        own.contains(&address)
            && address != own.network()
            && address != own.broadcast()
            && address != own.addr()
            && Some(address) != self.settings.router
    }

    /// Takes a client's message.
    pub fn take(
        &mut self,
        asker: &Asker<'_>,
        bytes: &[u8],
        now_secs: u32,
    ) -> (Done, Option<Reply>) {
        // The bytes are checked before anything else reads them.
        if bytes.get(..3) != Some(&REQUEST_OF_ETHERNET)
            || bytes.get(COOKIE..OPTIONS) != Some(&MAGIC)
        {
            return (Done::Ignored, None);
        }
        let Some(bytes) = with_few_options(bytes) else { return (Done::Ignored, None) };
        let Ok(message) = Message::decode(&mut Decoder::new(&bytes)) else {
            return (Done::Ignored, None);
        };
        // A guest that sends another station's `chaddr` would get its address. weir serves its network without relays.
        if message.chaddr() != asker.mac.0 || !message.giaddr().is_unspecified() {
            return (Done::Ignored, None);
        }
        let id = match message.opts().get(OptionCode::ClientIdentifier) {
            Some(DhcpOption::ClientIdentifier(id)) if !id.is_empty() => Some(id.clone()),
            _ => None,
        };
        let client = Client { vif: asker.vif.to_owned(), mac: asker.mac, id };
        let turn = Turn { server: self, asker, message: &message, client, now_secs };
        match message.opts().msg_type() {
            Some(MessageType::Discover) => turn.discover(),
            Some(MessageType::Request) => turn.request(),
            Some(MessageType::Decline) => turn.decline(),
            Some(MessageType::Release) => turn.release(),
            Some(MessageType::Inform) => turn.inform(),
            _ => (Done::Ignored, None),
        }
    }

    /// True if the address is dynamic: the server can give it to any client.
    fn is_for_all(&self, address: Ipv4Addr) -> bool {
        self.settings.range.contains(&address)
            && self.is_station(address)
            && !self.taken.contains(&address)
            && !self.reserved.contains_key(&address)
    }

    /// The number of dynamic addresses.
    fn room(&self) -> u64 {
        let range = &self.settings.range;
        let (first, last) = (range.start().to_bits(), range.end().to_bits());
        let others = self.taken.iter();
        let others = others.filter(|it| range.contains(*it) && !self.reserved.contains_key(*it));
        let taken = self.reserved.keys().filter(|it| range.contains(*it)).count() + others.count();
        (u64::from(last.saturating_sub(first)) + 1).saturating_sub(taken as u64)
    }

    /// True if the interface can get one more address.
    fn has_room_for(&self, vif: &str, now_secs: u32) -> bool {
        let free = || {
            let is_of_range =
                |lease: &Lease, address| lease.holds(now_secs) && self.is_for_all(address);
            let held = self.leases.iter().filter(|(address, lease)| is_of_range(lease, *address));
            self.room().saturating_sub(held.count() as u64)
        };
        let others = self.vifs.iter().filter(|other| !self.fixed.contains_key(*other));
        self.leases.have_room_for(vif, others, free, now_secs)
    }
}

/// A client's message, and the server that takes it.
struct Turn<'t> {
    server: &'t mut Dhcp,
    asker: &'t Asker<'t>,
    message: &'t Message,
    client: Client,
    now_secs: u32,
}

impl Turn<'_> {
    /// True if the client has the address, or the server has offered it to the client.
    fn has(&self, address: Ipv4Addr) -> bool {
        self.server.leases.get(address).is_some_and(|lease| {
            lease.hold != Hold::Declined
                && lease.client.is(&self.client)
                && lease.holds(self.now_secs)
        })
    }

    /// True if the server can give the address to the client.
    fn may_have(&self, address: Ipv4Addr) -> bool {
        let leases = &self.server.leases;
        match self.server.fixed.get(self.asker.vif) {
            // The fixed address belongs to the interface: any client behind it can have the address.
            Some(fixed) => {
                let is_free = leases.get(address).is_none_or(|lease| {
                    let own = lease.client.vif == self.asker.vif && lease.hold != Hold::Declined;
                    own || !lease.holds(self.now_secs)
                });
                *fixed == address && is_free
            }
            None => {
                // A client that has the address already needs no further one.
                let has = self.has(address);
                self.server.is_for_all(address)
                    && leases.is_free_for(address, &self.client, self.now_secs)
                    && (has || self.server.has_room_for(self.asker.vif, self.now_secs))
            }
        }
    }

    /// The address to offer. In this order: the interface's fixed address, the client's present or last one, the
    /// requested one, any other (RFC 2131 §4.3.1).
    fn choose(&self) -> Option<Ipv4Addr> {
        if let Some(fixed) = self.server.fixed.get(self.asker.vif) {
            return Some(*fixed).filter(|fixed| self.may_have(*fixed));
        }
        let had = self.server.leases.of(&self.client).map(|(address, _)| address);
        let wanted =
            had.into_iter().chain(self.requested()).find(|address| self.may_have(*address));
        if wanted.is_some() {
            return wanted;
        }
        if !self.server.has_room_for(self.asker.vif, self.now_secs) {
            return None;
        }
        // The search begins at a hash of the client, so that the client gets the same address again if it is free.
        let (first, last) = (self.server.settings.range.start(), self.server.settings.range.end());
        let (first, size) = (first.to_bits(), u64::from(last.to_bits() - first.to_bits()) + 1);
        let mut hasher = DefaultHasher::new();
        (self.asker.vif, self.asker.mac.0).hash(&mut hasher);
        let start = hasher.finish() % size;
        let address = |step: u64| Ipv4Addr::from_bits(first + ((start + step) % size) as u32);
        // Among this many addresses, at least one is neither leased nor excluded.
        let tries = size.min(2 * LEASES_MAX as u64 + 8);
        let free = |address: &Ipv4Addr| {
            self.server.is_for_all(*address)
                && self.server.leases.is_free_for(*address, &self.client, self.now_secs)
        };
        let never_had = |address: &Ipv4Addr| self.server.leases.get(*address).is_none();
        let mut all = (0..tries).map(address);
        all.find(|address| free(address) && never_had(address)).or_else(|| {
            (0..tries).map(address).filter(free).min_by_key(|address| {
                self.server.leases.get(*address).map_or(0, |lease| lease.until_secs)
            })
        })
    }

    fn requested(&self) -> Option<Ipv4Addr> {
        match self.message.opts().get(OptionCode::RequestedIpAddress) {
            Some(DhcpOption::RequestedIpAddress(address)) => Some(*address),
            _ => None,
        }
    }

    fn named_server(&self) -> Option<Ipv4Addr> {
        match self.message.opts().get(OptionCode::ServerIdentifier) {
            Some(DhcpOption::ServerIdentifier(address)) => Some(*address),
            _ => None,
        }
    }

    fn own(&self) -> Ipv4Addr {
        self.server.settings.own.addr()
    }

    /// The lease time: the client's requested time, limited by the configured one.
    fn lease_secs(&self) -> u32 {
        let max = self.server.settings.lease_secs;
        match self.message.opts().get(OptionCode::AddressLeaseTime) {
            Some(DhcpOption::AddressLeaseTime(secs)) => {
                (*secs).clamp((LEASE_SECS_MIN as u32).min(max), max)
            }
            _ => max,
        }
    }

    fn hold(&mut self, address: Ipv4Addr, hold: Hold, secs: u32) {
        let lease = Lease {
            client: self.client.clone(),
            hold,
            until_secs: self.now_secs.saturating_add(secs),
        };
        // Other addresses that were only offered to the client become free. Addresses that were given to the client
        // stay its own until their leases end.
        let others: Vec<_> = self
            .server
            .leases
            .of_vif(self.asker.vif)
            .filter(|(other, lease)| {
                *other != address && lease.hold == Hold::Offered && lease.client.is(&self.client)
            })
            .map(|(other, _)| other)
            .collect();
        for other in others {
            self.server.leases.forget(other);
        }
        // A client that asks again within a second changes nothing.
        if self.server.leases.get(address) == Some(&lease) {
            return;
        }
        self.server.leases.put(address, lease, self.now_secs);
        if hold != Hold::Offered {
            self.server.changed.insert(address);
        }
    }

    fn discover(mut self) -> (Done, Option<Reply>) {
        let Some(address) = self.choose() else { return (Done::NoAddress, None) };
        let secs = self.lease_secs();
        // An address that the client has stays bound: the client can continue to use it (RFC 2131
        // §4.3.2).
        let has = self
            .server
            .leases
            .of(&self.client)
            .is_some_and(|(own, lease)| own == address && lease.is_bound(self.now_secs));
        if !has {
            self.hold(address, Hold::Offered, OFFER_SECS);
        }
        (Done::Offered, Some(self.reply(MessageType::Offer, address, Some(secs))))
    }

    fn request(mut self) -> (Done, Option<Reply>) {
        let ciaddr = self.message.ciaddr();
        let address = match (self.named_server(), self.requested()) {
            // The client selects another server's offer. No such server exists here, but a client can name one.
            (Some(server), _) if server != self.own() => {
                if let Some((address, lease)) = self.server.leases.of(&self.client)
                    && lease.hold == Hold::Offered
                {
                    self.server.leases.forget(address);
                }
                return (Done::Ignored, None);
            }
            // The client selects an offer, or it restarts and names its last address.
            (_, Some(address)) => address,
            // The client renews its lease.
            (None, None) if !ciaddr.is_unspecified() => ciaddr,
            _ => return (Done::Ignored, None),
        };
        if !self.may_have(address) {
            return (Done::Refused, Some(self.refuse()));
        }
        let secs = self.lease_secs();
        self.hold(address, Hold::Bound, secs);
        (Done::Given, Some(self.reply(MessageType::Ack, address, Some(secs))))
    }

    /// The client has found the address in use. The address counts towards the interface's limit for a while, so that a
    /// guest cannot exhaust the network's addresses with DECLINE messages.
    fn decline(mut self) -> (Done, Option<Reply>) {
        let Some(address) = self.requested() else { return (Done::Ignored, None) };
        let for_weir = self.named_server().is_none_or(|server| server == self.own());
        if !for_weir || !self.has(address) {
            return (Done::Ignored, None);
        }
        self.server.leases.forget(address);
        self.hold(address, Hold::Declined, DECLINED_SECS);
        (Done::Declined, None)
    }

    fn release(self) -> (Done, Option<Reply>) {
        let address = self.message.ciaddr();
        let for_weir = self.named_server().is_none_or(|server| server == self.own());
        let is_its =
            self.server.leases.get(address).is_some_and(|lease| {
                lease.client.is(&self.client) && lease.is_bound(self.now_secs)
            });
        if !for_weir || !is_its {
            return (Done::Ignored, None);
        }
        self.server.leases.end(address, self.now_secs);
        self.server.changed.insert(address);
        (Done::Released, None)
    }

    /// No address and no time are given (RFC 2131 §4.3.5).
    fn inform(self) -> (Done, Option<Reply>) {
        if !self.server.settings.own.contains(&self.message.ciaddr()) {
            return (Done::Ignored, None);
        }
        (Done::Informed, Some(self.reply(MessageType::Ack, Ipv4Addr::UNSPECIFIED, None)))
    }

    /// True if the client asks for the option.
    fn wants(&self, option: OptionCode) -> bool {
        match self.message.opts().get(OptionCode::ParameterRequestList) {
            Some(DhcpOption::ParameterRequestList(wanted)) => wanted.contains(&option),
            _ => false,
        }
    }

    /// The file that the client boots from, if there is one.
    fn boot_file(&self) -> Option<&str> {
        let (options, boot) = (self.message.opts(), &self.server.settings.boot);
        let is_ipxe = match options.get(OptionCode::UserClass) {
            Some(DhcpOption::UserClass(class)) => is_ipxe(class),
            _ => false,
        };
        let of_ipxe = boot.ipxe.as_ref().filter(|_| is_ipxe);
        let by_architecture = || match options.get(OptionCode::ClientSystemArchitecture) {
            Some(DhcpOption::ClientSystemArchitecture(architecture)) => {
                boot.by_architecture.get(&u16::from(*architecture))
            }
            _ => None,
        };
        let file = of_ipxe.or_else(by_architecture).or(boot.others.as_ref());
        file.map(String::as_str)
    }

    /// Tells the client about the network's server and file. Firmware reads them in the header; the options are for
    /// clients that ask for them. The answer has no option 60: with "PXEClient" in it firmware would expect weir to
    /// answer at port 4011 (PXE 2.1 §2.2.5).
    fn tell_boot(&self, answer: &mut Message) {
        if let Some(server) = self.server.settings.boot.server {
            answer.set_siaddr(server);
            if self.wants(OptionCode::TFTPServerName) {
                let name = server.to_string().into_bytes();
                answer.opts_mut().insert(DhcpOption::TFTPServerName(name));
            }
        }
        if let Some(file) = self.boot_file().filter(|file| file.len() <= BOOT_FILE_LEN_MAX) {
            answer.set_fname_str(file);
            if self.wants(OptionCode::BootfileName) {
                let name = file.as_bytes().to_vec();
                answer.opts_mut().insert(DhcpOption::BootfileName(name));
            }
        }
    }

    /// The fields that every answer has.
    fn answer(&self, kind: MessageType) -> Message {
        let message = self.message;
        let mut answer = Message::new_with_id(
            message.xid(),
            Ipv4Addr::UNSPECIFIED,
            Ipv4Addr::UNSPECIFIED,
            Ipv4Addr::UNSPECIFIED,
            message.giaddr(),
            &self.asker.mac.0,
        );
        answer.set_opcode(Opcode::BootReply).set_htype(HType::Eth).set_flags(message.flags());
        let options = answer.opts_mut();
        options.insert(DhcpOption::MessageType(kind));
        options.insert(DhcpOption::ServerIdentifier(self.own()));
        // RFC 6842 §3.
        if let Some(id) = &self.client.id {
            options.insert(DhcpOption::ClientIdentifier(id.clone()));
        }
        answer
    }

    fn reply(&self, kind: MessageType, address: Ipv4Addr, secs: Option<u32>) -> Reply {
        let settings = &self.server.settings;
        let mut answer = self.answer(kind);
        answer.set_yiaddr(address).set_ciaddr(match kind {
            MessageType::Ack => self.message.ciaddr(),
            _ => Ipv4Addr::UNSPECIFIED,
        });
        self.tell_boot(&mut answer);
        let options = answer.opts_mut();
        options.insert(DhcpOption::SubnetMask(settings.own.netmask()));
        options.insert(DhcpOption::BroadcastAddr(settings.own.broadcast()));
        if let Some(router) = settings.router {
            options.insert(DhcpOption::Router(vec![router]));
        }
        if !settings.routes.is_empty() && self.wants(OptionCode::ClasslessStaticRoute) {
            // A client that takes these routes ignores the router option (RFC 3442).
            let default = settings.router.map(|router| (Ipv4Net::default(), router));
            let all = settings.routes.iter().copied().chain(default).collect();
            options.insert(DhcpOption::ClasslessStaticRoute(all));
        }
        if !settings.dns.is_empty() {
            options.insert(DhcpOption::DomainNameServer(settings.dns.clone()));
        }
        if let Some(domain) = &settings.domain {
            options.insert(DhcpOption::DomainName(domain.clone()));
        }
        if let Some(mtu) = self.asker.mtu {
            options.insert(DhcpOption::InterfaceMtu(mtu));
        }
        if let Some(secs) = secs {
            options.insert(DhcpOption::AddressLeaseTime(secs));
            // RFC 2131 §4.4.5.
            options.insert(DhcpOption::Renewal(secs / 2));
            options.insert(DhcpOption::Rebinding(secs / 8 * 7 + secs % 8 * 7 / 8));
        }
        let ciaddr = self.message.ciaddr();
        // RFC 2131 §4.1.
        let to = match () {
            () if !ciaddr.is_unspecified() => ciaddr,
            () if self.message.flags().broadcast() => Ipv4Addr::BROADCAST,
            () => address,
        };
        Reply { bytes: encode(&answer), to }
    }

    fn refuse(&self) -> Reply {
        let answer = self.answer(MessageType::Nak);
        // The client's address can be of another network (RFC 2131 §4.1).
        Reply { bytes: encode(&answer), to: Ipv4Addr::BROADCAST }
    }
}

/// The message with only the options that the server reads, each once and of a valid length. `dhcproto` refuses a
/// message for some malformed options, and panics on others.
fn with_few_options(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut kept = bytes.get(..OPTIONS)?.to_vec();
    kept.get_mut(NAMES)?.fill(0);
    let mut wanted = LISTENED_TO.to_vec();
    for option in options(bytes.get(OPTIONS..)?) {
        let (code, value) = option?;
        let is_it =
            |(it, lens): &(u8, RangeInclusive<usize>)| *it == code && lens.contains(&value.len());
        if let Some(at) = wanted.iter().position(is_it) {
            wanted.swap_remove(at);
            kept.extend([code, value.len() as u8]);
            kept.extend(value);
        }
    }
    kept.push(END);
    Some(kept)
}

/// True if the user class is iPXE's: the bare name, or one of several names with a length in front of each (RFC 3004
/// §4).
fn is_ipxe(class: &[u8]) -> bool {
    if class == IPXE {
        return true;
    }
    let mut rest = class;
    while let Some((name, after)) =
        rest.split_first().and_then(|(len, after)| after.split_at_checked(usize::from(*len)))
    {
        if name == IPXE {
            return true;
        }
        rest = after;
    }
    false
}

fn encode(message: &Message) -> Vec<u8> {
    // Encoding fails only if the options are too long, and an answer has few.
    let mut bytes = message.to_vec().unwrap_or_default();
    let len = bytes.len().max(MESSAGE_LEN_MIN);
    bytes.resize(len, 0);
    bytes
}
