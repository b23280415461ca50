//! The options of DHCP for guests besides their addresses: routes, and the files that their firmware loads over the
//! network.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use ipnet::Ipv4Net;
use weir_limits as limits;

use super::super::error::Problem;
use super::super::section::{Located, Section, report_repeated};
use super::super::values::ValueError;
use super::{Ipv4Text, Within};

/// A route of the guests besides the one to their default router.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// The addresses that it leads to.
    pub destination: Ipv4Net,
    /// The station of the network that forwards packets for them.
    pub gateway: Ipv4Addr,
}

impl Route {
    pub(super) const EXPECTED: &str = "a prefix of IPv4 without bits behind its length, and its gateway, such as \
                            \"10.0.0.0/8 192.168.77.3\"";
}

impl FromStr for Route {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let refused = || ValueError::Quantity { value: text.into(), expected: Self::EXPECTED };
        let mut words = text.split_whitespace();
        let (Some(destination), Some(gateway), None) = (words.next(), words.next(), words.next())
        else {
            return Err(refused());
        };
        let destination: Ipv4Net = destination.parse().map_err(|_| refused())?;
        let gateway = gateway.parse().map_err(|_| refused())?;
        let first = destination.network();
        // A kernel refuses a route with bits behind the prefix. No route leads to a group or to the station itself.
        let is_good = destination.addr() == first && !first.is_multicast() && !first.is_loopback();
        is_good.then_some(Self { destination, gateway }).ok_or_else(refused)
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.destination, self.gateway)
    }
}

/// The options of DHCP for firmware that boots over the network.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BootConfig {
    /// The TFTP server.
    pub server: Option<Ipv4Addr>,
    /// The files, at most one for each kind of client, in the order of the file.
    pub files: Vec<BootFile>,
}

/// A file to boot from, and its clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootFile {
    /// The clients that load the file.
    pub client: BootClient,
    /// The file's path on the TFTP server, or its URL.
    pub file: String,
}

/// A kind of client that boots over the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BootClient {
    /// Clients without their own file.
    Other,
    /// iPXE, from a ROM or loaded by other firmware.
    Ipxe,
    /// Firmware of an architecture, by the number in option 93 (RFC 4578 §2.1).
    Architecture(u16),
}

/// The names of architectures. The numbers are those of IANA's registry "Processor Architecture Types".
const ARCHITECTURES: [(&str, u16); 6] = [
    ("bios", 0),
    ("efi-ia32", 6),
    ("efi-x64", 7),
    ("efi-arm", 10),
    ("efi-arm64", 11),
    ("efi-riscv64", 27),
];
const IPXE: &str = "ipxe";
/// All of these names.
const KINDS: [&str; ARCHITECTURES.len() + 1] = {
    let mut names = [IPXE; ARCHITECTURES.len() + 1];
    let mut at = 0;
    while at < ARCHITECTURES.len() {
        names[at] = ARCHITECTURES[at].0;
        at += 1;
    }
    names
};

impl BootFile {
    pub(super) const EXPECTED: &str = "a file of 127 characters at most, after the kind of client if only one kind \
                                       loads it, such as \"pxelinux.0\", \"efi-x64 ipxe.efi\" or \"ipxe menu.ipxe\"";

    /// True if the file needs no TFTP server.
    fn is_url(&self) -> bool {
        self.file.contains("://")
    }
}

impl FromStr for BootFile {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let refused = || ValueError::Quantity { value: text.into(), expected: Self::EXPECTED };
        let mut words = text.split(' ').filter(|word| !word.is_empty());
        let (client, file) = match (words.next(), words.next(), words.next()) {
            (Some(file), None, _) => (BootClient::Other, file),
            (Some(client), Some(file), None) => (client.parse()?, file),
            _ => return Err(refused()),
        };
        let is_good = file.len() <= limits::BOOT_FILE_LEN_MAX
            && !file.chars().any(|it| it.is_control() || it.is_whitespace());
        is_good.then(|| Self { client, file: file.to_owned() }).ok_or_else(refused)
    }
}

impl FromStr for BootClient {
    type Err = ValueError;
    /// Reads a name, or the number of an architecture.
    fn from_str(text: &str) -> Result<Self, ValueError> {
        if text == IPXE {
            return Ok(Self::Ipxe);
        }
        let named = ARCHITECTURES.into_iter().find(|(name, _)| *name == text);
        let number = named.map(|(_, number)| number).or_else(|| text.parse().ok());
        let unknown = || ValueError::NotAChoice { value: text.into(), choices: &KINDS };
        number.map(Self::Architecture).ok_or_else(unknown)
    }
}

impl fmt::Display for BootClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |number| ARCHITECTURES.into_iter().find(|(_, it)| *it == number);
        match self {
            Self::Other => f.write_str("other"),
            Self::Ipxe => f.write_str(IPXE),
            Self::Architecture(number) => match name(*number) {
                Some((name, _)) => f.write_str(name),
                None => number.fmt(f),
            },
        }
    }
}

impl fmt::Display for BootFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.client {
            BootClient::Other => f.write_str(&self.file),
            client => write!(f, "{client} {}", self.file),
        }
    }
}

impl Within<'_> {
    pub(super) fn check_routes(&self, routes: &[Located<Route>], problems: &mut Vec<Problem>) {
        if let Some(one_more) = routes.get(limits::DHCP_ROUTES_MAX) {
            let what = format!("{} routes are too many", routes.len());
            let help = format!("name {} at most", limits::DHCP_ROUTES_MAX);
            problems.push(self.problem(&one_more.span, what, help));
        }
        for Located { value: Route { destination, gateway }, span } in routes {
            let (what, help) = if destination.prefix_len() == 0 {
                let what = format!("a route for {destination} is the default route");
                (what, format!("write `router = \"{gateway}\"` instead"))
            } else if self.subnet.contains(destination) {
                let what = format!("guests have the addresses {destination} in their own network");
                (what, "remove the route, or name a prefix outside the subnet".to_owned())
            } else if !self.is_station(*gateway) {
                let what = format!("the gateway {gateway} is not within the subnet");
                (what, self.any_station())
            } else if *gateway == self.subnet.addr() && !self.has_nat {
                let what = format!("the gateway {gateway} is weir itself, which routes nothing");
                (what, "name who routes, such as the host by the address of its TAP".to_owned())
            } else {
                continue;
            };
            problems.push(self.problem(span, what, help));
        }
        let all = routes.iter().map(|it| (it.value.destination.to_string(), it.span.clone()));
        let place = format!("in `routes` of `{}`", self.title);
        report_repeated(("prefix", &place, "name one gateway for each prefix"), all, problems);
    }
}

/// The settings of network boot in a network whose guests know `router`.
pub(super) fn boot(
    section: &Section<'_>,
    within: &Within<'_>,
    router: Option<Ipv4Addr>,
    server: Option<Located<Ipv4Text>>,
    files: Vec<Located<BootFile>>,
    problems: &mut Vec<Problem>,
) -> BootConfig {
    if let Some(server) = &server {
        let Ipv4Text(address) = server.value;
        if address == within.subnet.addr() && !within.has_nat {
            let what = "`boot_server` is weir's own address, which serves no files".to_owned();
            let help =
                "name who serves them, such as the host by the address of its TAP".to_owned();
            problems.push(within.problem(&server.span, what, help));
        } else if !within.is_station(address)
            && (within.subnet.contains(&address) || router.is_none())
        {
            let what = format!("no guest reaches the server {address}");
            let help =
                format!("add a `router`, or name a server of the subnet: {}", within.any_station());
            problems.push(within.problem(&server.span, what, help));
        }
    }
    if let Some(one_more) = files.get(limits::BOOT_FILES_MAX) {
        problems.push(section.does_not_fit(
            one_more.span.clone(),
            format!("{} files to boot from are too many", files.len()),
            format!("name {} at most", limits::BOOT_FILES_MAX),
        ));
    }
    let first = files.iter().find(|it| !it.value.is_url());
    if let (Some(first), false) = (first, section.has("boot_server")) {
        problems.push(
            Problem::new(format!("`{}` has `boot_file` without `boot_server`", section.title))
                .label(first.span.clone(), "nobody is there to load it from")
                .help(
                    "add the TFTP server, such as `boot_server = \"192.168.77.1\"`, or name a URL",
                ),
        );
    }
    let clients = files.iter().map(|it| (it.value.client.to_string(), it.span.clone()));
    let place = format!("in `boot_file` of `{}`", section.title);
    report_repeated(("client", &place, "name one file for each kind of client"), clients, problems);
    let server = server.map(|server| server.value.0);
    BootConfig { server, files: files.into_iter().map(|it| it.value).collect() }
}
