//! The way out of a network through the host: rules of nftables that exist as long as a process holds them.
//!
//! `nft` runs in its interactive form, reads commands from a pipe, and owns the table that they make (`flags owner`,
//! Linux 5.12). The kernel removes the table when `nft` ends, and `nft` ends when the pipe closes, however the holder
//! of the pipe ended. No other process can change such a table, and `nft flush ruleset` leaves it alone. Other tables
//! are never touched.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use rustix::process::geteuid;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use weir_config::{ForwardProtocol, InterfaceName, UplinkConfig};
use weir_wire::Mac;

/// The paths of `nft` in distributions. Not all distributions have these directories in every user's search path.
const PATHS: [&str; 3] = ["/usr/sbin/nft", "/sbin/nft", "/usr/bin/nft"];
/// The socket at which programs ask systemd-resolved for names while it runs.
const RESOLVED: &str = "/run/systemd/resolve/io.systemd.Resolve";
/// The program that gives systemd-resolved the settings of a link, with a time limit: by itself it
/// waits 25 s for an answer.
const RESOLVECTL: [&str; 3] = ["/usr/bin/timeout", "5", "/usr/bin/resolvectl"];
/// The time limit for the rules to appear. They usually take a hundredth of it.
const PATIENCE: Duration = Duration::from_secs(5);
/// The pause between two checks.
const PAUSE: Duration = Duration::from_millis(5);
/// The longest prefix that counts as a part of the default route. A VPN splits that route into
/// halves or eighths.
const DEFAULT_ROUTE_LEN_MAX: u8 = 7;
/// The object that is made last: once it exists, all rules do.
const LAST: &str = "complete";

/// The traffic that is let out and in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NatTask {
    /// The host's interface in the network.
    pub(crate) interface: InterfaceName,
    /// The host's addresses in the network, each with its subnet.
    pub(crate) addresses: Vec<IpNet>,
    /// Ports that are forwarded to guests.
    pub(crate) forwards: Vec<NatForward>,
}

/// A port of the host that is forwarded to a guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NatForward {
    pub(crate) protocol: ForwardProtocol,
    pub(crate) port: u16,
    pub(crate) guest: Ipv4Addr,
    pub(crate) guest_port: u16,
}

/// Rules that exist until the value is dropped, or this process ends.
#[derive(Debug)]
pub(crate) struct Nat {
    /// `None` once `nft` is to end.
    commands: Option<ChildStdin>,
    nft: Child,
}

impl Nat {
    /// Makes the rules.
    ///
    /// # Errors
    /// `nft` does not exist, or its error message.
    pub(crate) fn start(task: &NatTask) -> io::Result<Self> {
        let path = nft()?;
        // Two weirs have rules for a while when one takes the other's place.
        let table = format!("{}-{}", task.interface, std::process::id());
        let script = task.script(&table);
        said_by("nft", Command::new(path).args(["-c", "-f", "-"]), &script)?;
        let mut nft = Command::new(path)
            .arg("-i")
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let commands = nft.stdin.take();
        let mut nat = Self { commands, nft };
        if let Some(commands) = &mut nat.commands {
            commands.write_all(script.as_bytes())?;
        }
        let end = Instant::now() + PATIENCE;
        let shows = || {
            let mut lists = Command::new(path);
            said_by("nft", lists.args(["list", "set", "inet", &table, LAST]), "")
        };
        while let Err(error) = shows() {
            if Instant::now() > end || nat.nft.try_wait()?.is_some() {
                return Err(error);
            }
            std::thread::sleep(PAUSE);
        }
        Ok(nat)
    }
}

/// The program that makes rules.
///
/// # Errors
/// There is no such program.
pub(crate) fn nft() -> io::Result<&'static str> {
    let path = PATHS.into_iter().find(|path| Path::new(path).exists());
    path.ok_or_else(|| io::Error::other("there is no program `nft`: install the package nftables"))
}

/// If systemd-resolved runs, has it ask weir at `own` for guests' names, and ask nobody else in the
/// network: guests would answer for any name there. systemd-resolved takes such settings from root,
/// and forgets them with the interface. A stopped systemd-resolved is left alone, because
/// `resolvectl` would start it.
pub(crate) fn tell_resolved(interface: &InterfaceName, own: Ipv4Addr, domain: &str) {
    if !geteuid().is_root() || UnixStream::connect(RESOLVED).is_err() {
        return;
    }
    let own = own.to_string();
    let off = ["default-route", "dnssec", "dnsovertls", "llmnr", "mdns"].map(|it| (it, "no"));
    for (setting, value) in [("dns", own.as_str()), ("domain", domain)].into_iter().chain(off) {
        let [program, arguments @ ..] = RESOLVECTL;
        let mut tells = Command::new(program);
        tells.args(arguments).args([setting, interface.as_str(), value]);
        if let Err(error) = said_by("resolvectl", &mut tells, "") {
            tracing::warn!(%error, "systemd-resolved does not know {domain}");
            return;
        }
    }
}

impl Drop for Nat {
    fn drop(&mut self) {
        // `nft` reads the end of its commands, and exits. A confined helper must not wait for another process.
        self.commands.take();
    }
}

/// Runs `command`, with `input`, to its end.
///
/// # Errors
/// The command's error message.
pub fn said_by(name: &str, command: &mut Command, input: &str) -> io::Result<()> {
    let command = command.env_clear().current_dir("/").stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // A command that does not read its input reports an error.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let first = said.lines().next().unwrap_or("it does not say why").to_owned();
    Err(io::Error::other(format!("{name}: {first}")))
}

impl NatTask {
    /// The commands, one on each line.
    fn script(&self, table: &str) -> String {
        let interface = format!("\"{}\"", self.interface);
        let mut script = format!("add table inet {table} {{ flags owner; }}\n");
        let mut add = |what: &str, rest: &str| {
            let _ = writeln!(script, "add {what} inet {table} {rest}");
        };
        add("chain", "prerouting { type nat hook prerouting priority dstnat; }");
        add("chain", "output { type nat hook output priority -100; }");
        add("chain", "postrouting { type nat hook postrouting priority srcnat; }");
        add("chain", "forward { type filter hook forward priority filter; }");
        add("chain", "input { type filter hook input priority filter; }");
        // The way out can have a smaller MTU than the network: the MSS of TCP is clamped to the route's MTU.
        let clamp = "tcp flags & (syn | rst) == syn tcp option maxseg size set rt mtu";
        add("rule", &format!("forward iifname {interface} {clamp}"));
        add("rule", &format!("forward oifname {interface} {clamp}"));
        // Guests may send only with addresses of their subnet, and receive only answers and forwarded traffic.
        for subnet in &self.addresses {
            let (family, subnet) = (family_of(subnet.addr()), subnet.trunc());
            let from = format!("{family} saddr");
            add("rule", &format!("forward iifname {interface} {from} {subnet} accept"));
            add("rule", &format!("input iifname {interface} {from} {subnet} accept"));
            let out = format!("postrouting {from} {subnet} oifname != {{ \"lo\", {interface} }}");
            add("rule", &format!("{out} masquerade"));
            // The answer to a guest that reaches another guest by the host's address must pass the host.
            let back = format!("postrouting {from} {subnet} oifname {interface} ct status dnat");
            add("rule", &format!("{back} masquerade"));
        }
        // A guest may send to the host only as itself: the host would answer a guest that speaks as its resolver. A
        // guest without an address asks for one from such a source.
        for near in ["ip saddr 0.0.0.0", "ip6 saddr { ::, fe80::/10 }"] {
            add("rule", &format!("input iifname {interface} {near} accept"));
        }
        add("rule", &format!("input iifname {interface} drop"));
        add("rule", &format!("forward iifname {interface} drop"));
        let known = format!("forward oifname {interface} ct state established,related");
        add("rule", &format!("{known} accept"));
        add("rule", &format!("forward oifname {interface} ct status dnat accept"));
        add("rule", &format!("forward oifname {interface} drop"));
        for NatForward { protocol, port, guest, guest_port } in &self.forwards {
            let to = format!("{protocol} dport {port} dnat ip to {guest}:{guest_port}");
            add("rule", &format!("prerouting fib daddr type local meta nfproto ipv4 {to}"));
            add("rule", &format!("output oifname \"lo\" meta nfproto ipv4 {to}"));
        }
        add("set", &format!("{LAST} {{ type mark; }}"));
        script
    }
}

fn family_of(address: IpAddr) -> &'static str {
    match address {
        IpAddr::V4(_) => "ip",
        IpAddr::V6(_) => "ip6",
    }
}

/// The settings of an interface that weir has made for the host, before they are applied. They end with it.
pub(crate) struct HostInterface<'h> {
    pub(crate) name: &'h InterfaceName,
    /// The MAC address to set; `None` keeps the present one.
    pub(crate) mac: Option<Mac>,
    pub(crate) addresses: &'h [IpNet],
    /// The bridge whose port it becomes.
    pub(crate) bridge: Option<&'h InterfaceName>,
}

/// A link in the output of `ip -j addr`.
#[derive(Deserialize)]
struct ShownLink {
    #[serde(default)]
    ifname: String,
    #[serde(default)]
    addr_info: Vec<ShownAddress>,
    #[serde(default)]
    flags: Vec<String>,
    /// The bridge, if the link is a port of one.
    master: Option<String>,
}

/// An address of a [`ShownLink`].
#[derive(Deserialize)]
struct ShownAddress {
    local: Option<IpAddr>,
    prefixlen: u8,
}

/// A route in the output of `ip -j route`.
#[derive(Deserialize)]
struct ShownRoute {
    dst: String,
    dev: Option<String>,
    #[serde(default)]
    flags: Vec<String>,
}

/// Checks that the host reaches no subnet by another interface than this one: packets for guests, or for stations
/// behind that interface, would go astray. A wider route, which contains the subnet, counts only with `wider_counts`,
/// before the first start: it must not keep a weir that has guests from starting again.
///
/// # Errors
/// The fault, with the remedy where it is known.
pub(crate) fn check_others(
    interface: &InterfaceName,
    addresses: &[IpNet],
    wider_counts: bool,
) -> Result<(), (Option<String>, io::Error)> {
    let failed = |error| (Some("`nat` takes the program `ip` (iproute2)".to_owned()), error);
    let links: Vec<ShownLink> = shown(&["-j", "addr", "show"]).map_err(failed)?;
    let mut others = Vec::new();
    for link in links {
        let nets = link.addr_info.iter().filter_map(|it| IpNet::new(it.local?, it.prefixlen).ok());
        others.extend(nets.map(|net| (link.ifname.clone(), net)));
    }
    for family in ["-4", "-6"] {
        let routes: Vec<ShownRoute> = shown(&["-j", family, "route", "show"]).map_err(failed)?;
        let to = |dst: &str| {
            let address = || dst.parse::<IpAddr>().ok().map(IpNet::from);
            dst.parse::<IpNet>().ok().or_else(address)
        };
        let to = |it: ShownRoute| Some((it.dev?, to(&it.dst)?));
        others.extend(routes.into_iter().filter_map(to));
    }
    let overlap = addresses.iter().find_map(|own| {
        // A default route, whole or in parts, does not overlap: it applies only where no other
        // route does.
        let least = if wider_counts { DEFAULT_ROUTE_LEN_MAX + 1 } else { own.prefix_len() };
        let of_others = others.iter().filter(|(name, _)| name != interface.as_str());
        let mut overlapping = of_others.filter(|(_, net)| {
            let is_around = net.trunc().contains(&own.addr()) && net.prefix_len() >= least;
            own.contains(&net.addr()) || is_around
        });
        overlapping.next().map(|(name, net)| (own.trunc(), name, net))
    });
    let Some((subnet, other, net)) = overlap else { return Ok(()) };
    let help = "choose another subnet for `address`, such as 192.168.78.1/24";
    let what = format!("{subnet} is what the host reaches by `{other}` ({net})");
    Err((Some(help.to_owned()), io::Error::other(what)))
}

/// Checks that the host itself reaches other networks: it has a default route, and the route's interface has a carrier.
///
/// # Errors
/// With what can be done about it.
pub(crate) fn check_default(ipv4: bool) -> Result<(), (Option<String>, io::Error)> {
    let (family, name) = if ipv4 { ("-4", "IPv4") } else { ("-6", "IPv6") };
    let arguments = ["-j", family, "route", "show", "default"];
    let Ok(routes) = shown::<ShownRoute>(&arguments) else { return Ok(()) };
    match no_way(&routes) {
        None => Ok(()),
        Some(None) => {
            let help = "`ip route add default via GATEWAY`, or have a DHCP client ask for one";
            let what =
                format!("this host has no default route for {name}, so guests reach it alone");
            Err((Some(help.into()), io::Error::other(what)))
        }
        Some(Some(card)) => {
            let help = format!("plug the cable in, or `ip link set {card} up`");
            let what =
                format!("`{card}`, by which this host's default route goes, is not connected");
            Err((Some(help), io::Error::other(what)))
        }
    }
}

/// The card of the first of these default routes if none of the routes leads anywhere. Without
/// routes there is no card.
fn no_way(routes: &[ShownRoute]) -> Option<Option<&str>> {
    let is_cut = |it: &ShownRoute| it.flags.iter().any(|flag| flag == "linkdown" || flag == "dead");
    routes.iter().all(is_cut).then(|| routes.first()?.dev.as_deref())
}

/// Checks whether somebody has changed the host's side of this interface since weir made it. An interface that does not
/// exist, or that is down, counts as unchanged.
///
/// # Errors
/// The error has advice on what to do.
pub(crate) fn check_own(
    interface: &InterfaceName,
    addresses: &[IpNet],
    bridge: Option<&InterfaceName>,
) -> Result<(), (Option<String>, io::Error)> {
    let Ok(links) = shown::<ShownLink>(&["-j", "addr", "show"]) else { return Ok(()) };
    let Some(link) = links.iter().find(|it| it.ifname == interface.as_str()) else { return Ok(()) };
    let failed = |what: String, help: String| Err((Some(help), io::Error::other(what)));
    let is_up = |link: &ShownLink| link.flags.iter().any(|flag| flag == "UP");
    if !is_up(link) {
        return Ok(());
    }
    let nets = || link.addr_info.iter().filter_map(|it| IpNet::new(it.local?, it.prefixlen).ok());
    if let Some(gone) = addresses.iter().find(|own| !nets().any(|net| net == **own)) {
        let help = format!("`ip addr add {gone} dev {interface}`");
        return failed(format!("`{interface}` does not have {gone}"), help);
    }
    if let Some(bridge) = bridge.filter(|it| link.master.as_deref() != Some(it.as_str())) {
        let help = format!("`ip link set {interface} master {bridge}`");
        return failed(format!("`{interface}` is not a port of `{bridge}`"), help);
    }
    let Some(bridge) = &link.master else { return Ok(()) };
    if links.iter().any(|it| it.ifname == *bridge && !is_up(it)) {
        let what = format!("`{bridge}`, the bridge of `{interface}`, is down");
        return failed(what, format!("`ip link set {bridge} up`"));
    }
    match nets().find(|net| net.addr().is_ipv4()) {
        None => Ok(()),
        Some(net) => failed(
            format!(
                "{net} is on `{interface}`, which is a port of `{bridge}`: nobody answers there"
            ),
            format!("`ip addr del {net} dev {interface}`, and `ip addr add {net} dev {bridge}`"),
        ),
    }
}

/// Checks that the host still has this address.
///
/// # Errors
/// The error has advice on what to do.
pub(crate) fn check_local(address: IpAddr) -> Result<(), (Option<String>, io::Error)> {
    let Ok(links) = shown::<ShownLink>(&["-j", "addr", "show"]) else { return Ok(()) };
    let mut all = links.iter().flat_map(|link| &link.addr_info);
    if all.any(|it| it.local == Some(address)) {
        return Ok(());
    }
    let help = format!("`ip addr add {address}/LENGTH dev INTERFACE`, or another `local`");
    Err((Some(help), io::Error::other(format!("this host does not have the address {address}"))))
}

/// The table of somebody else that drops what passes this hook: by default, or by its last rule. A table counts that has
/// none of `names`, such as the interface's, in its rules. `None` for a user who may not see tables.
pub(crate) fn dropped_by(hook: &str, names: &[String]) -> Option<String> {
    let mut list = Command::new(nft().ok()?);
    let list = list.args(["list", "ruleset"]).env_clear().stdin(Stdio::null()).output().ok()?;
    drops(&String::from_utf8_lossy(&list.stdout), hook, names)
}

/// The table of a ruleset as `nft` prints it.
fn drops(ruleset: &str, hook: &str, names: &[String]) -> Option<String> {
    let hook = format!(" hook {hook} ");
    let is_counted =
        |word: &&str| ["counter", "packets", "bytes"].contains(word) || word.parse::<u64>().is_ok();
    let drops = |chain: &str| {
        let last = chain.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
        let mut verdict = last.split_whitespace().skip_while(is_counted);
        let refuses = matches!(verdict.next(), Some("drop" | "reject"));
        chain.contains(&hook) && (chain.contains("policy drop") || refuses)
    };
    let is_it = |table: &&str| {
        table.split("\n\t}").any(drops) && !names.iter().any(|name| table.contains(name))
    };
    let table = ruleset.split("\n}").find(is_it)?.trim_start();
    let name = table.lines().find(|line| line.starts_with("table "))?;
    Some(name.trim_end_matches([' ', '{']).trim_start_matches("table ").to_owned())
}

impl HostInterface<'_> {
    /// Gives the interface its bridge and its addresses.
    ///
    /// # Errors
    /// The error message of `ip`.
    pub(crate) fn set_up(&self) -> io::Result<()> {
        let name = self.name;
        let mut batch = String::new();
        if let Some(mac) = self.mac {
            // The kernel derives the link-local address from the MAC address when the link comes up.
            batch += &format!("link set dev {name} down\nlink set dev {name} address {mac}\n");
            batch += &format!("link set dev {name} up\n");
        }
        if let Some(bridge) = self.bridge {
            batch += &format!("link set dev {name} master {bridge}\n");
        }
        for address in self.addresses {
            let nodad = if address.addr().is_ipv6() { " nodad" } else { "" };
            batch += &format!("addr replace {address} dev {name}{nodad}\n");
        }
        said_by("ip", ip()?.args(["-batch", "-"]), &batch)
    }
}

/// Checks that the host has the bridge of a TAP, and no other way to its subnets.
///
/// # Errors
/// The fault, with the remedy where it is known.
pub(crate) fn check_host_side(
    config: &UplinkConfig,
    wider_counts: bool,
) -> Result<(), (Option<String>, io::Error)> {
    config.bridge.as_ref().map_or(Ok(()), check_bridge)?;
    let addresses = addresses_of(config);
    match addresses.is_empty() {
        true => Ok(()),
        false => check_others(&config.interface, &addresses, wider_counts),
    }
}

pub(crate) fn addresses_of(config: &UplinkConfig) -> Vec<IpNet> {
    let all = config.address.iter().flat_map(|all| all.as_slice());
    all.map(|address| address.get()).collect()
}

/// Checks that the host has this bridge.
///
/// # Errors
/// The fault, with its remedy.
pub(crate) fn check_bridge(bridge: &InterfaceName) -> Result<(), (Option<String>, io::Error)> {
    let failed = |error| (Some("`bridge` takes the program `ip` (iproute2)".to_owned()), error);
    let all: Vec<ShownLink> = shown(&["-j", "link", "show", "type", "bridge"]).map_err(failed)?;
    if all.iter().any(|link| link.ifname == bridge.as_str()) {
        return Ok(());
    }
    let help = format!("make it: `ip link add {bridge} type bridge`, and bring it up");
    Err((Some(help), io::Error::other(format!("the host has no bridge `{bridge}`"))))
}

/// The program `ip`.
///
/// # Errors
/// There is no such program.
pub fn ip() -> io::Result<Command> {
    const PATHS: [&str; 4] = ["/usr/sbin/ip", "/sbin/ip", "/usr/bin/ip", "/bin/ip"];
    let path = PATHS.into_iter().find(|path| Path::new(path).exists());
    path.map(Command::new).ok_or_else(|| io::Error::other("there is no program `ip`"))
}

/// The output of `ip` for these arguments, which ask for JSON.
///
/// # Errors
/// The error message of `ip`.
pub fn shown<T: DeserializeOwned>(arguments: &[&str]) -> io::Result<Vec<T>> {
    let mut command = ip()?;
    let output =
        command.args(arguments).env_clear().current_dir("/").stdin(Stdio::null()).output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(io::Error::other(format!("ip: {}", said.trim_end())));
    }
    // `ip` prints nothing if there is nothing to show.
    if output.stdout.iter().all(u8::is_ascii_whitespace) {
        return Ok(Vec::new());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

#[cfg(test)]
mod tests {
    //! Rules of nftables in the test's own namespace, which needs root.

    use super::*;

    #[test]
    fn a_table_that_drops_forwarded_packets_is_named_unless_it_knows_the_interface() {
        let table = |name: &str, policy: &str, rule: &str| {
            format!(
                "table ip {name} {{\n\tchain FORWARD {{\n\t\ttype filter hook forward priority filter; \
                 policy {policy};\n\t\t{rule}\n\t}}\n}}\n"
            )
        };
        let own = table("weir-lan-7", "drop", "iifname \"weir-lan\" accept");
        let found =
            |others: &str| drops(&format!("{own}{others}"), "forward", &["weir-lan".into()]);
        assert_eq!(found(&table("filter", "drop", "")).as_deref(), Some("ip filter"));
        assert_eq!(found(&table("filter", "accept", "")), None);
        assert_eq!(found(&table("filter", "drop", "iifname \"weir-lan\" accept")), None);
        assert_eq!(found(&table("filter", "drop", "").replace("forward", "input")), None);
        // firewalld lets its last rule refuse.
        for rule in ["reject with icmpx admin-prohibited", "counter packets 3 bytes 180 drop"] {
            let last = format!("ct state established accept\n\t\t{rule}");
            assert_eq!(found(&table("filter", "accept", &last)).as_deref(), Some("ip filter"));
        }
        assert_eq!(found(&table("filter", "accept", "tcp dport 25 drop\n\t\taccept")), None);
    }

    #[test]
    fn a_host_without_a_default_route_or_with_one_by_a_card_without_a_cable_is_cut_off() {
        let routes = |text: &str| serde_json::from_str::<Vec<ShownRoute>>(text).unwrap();
        assert_eq!(no_way(&[]), Some(None));
        let down = r#"{"dst":"default","gateway":"10.0.0.1","dev":"eth0","flags":["linkdown"]}"#;
        let up = r#"{"dst":"default","gateway":"10.1.0.1","dev":"eth1","flags":[]}"#;
        assert_eq!(no_way(&routes(&format!("[{down}]"))), Some(Some("eth0")));
        assert_eq!(no_way(&routes(&format!("[{down},{up}]"))), None);
    }

    fn task() -> NatTask {
        NatTask {
            interface: "weir-lan".parse().unwrap(),
            addresses: vec!["192.168.77.1/24".parse().unwrap(), "fd00:77::1/64".parse().unwrap()],
            forwards: vec![NatForward {
                protocol: ForwardProtocol::Udp,
                port: 5353,
                guest: Ipv4Addr::new(192, 168, 77, 10),
                guest_port: 53,
            }],
        }
    }

    #[test]
    fn each_rule_names_the_interface_or_the_subnet_of_the_network() {
        let script = task().script("weir-lan-7");
        for line in script.lines().filter(|line| line.starts_with("add rule")) {
            let names = ["weir-lan\"", "192.168.77.", "fd00:77::/64"];
            assert!(names.iter().any(|name| line.contains(name)), "{line}");
        }
        assert!(script.lines().all(|line| line.contains(" inet weir-lan-7 ")), "{script}");
        assert!(script.contains("udp dport 5353 dnat ip to 192.168.77.10:53"));
    }
}
