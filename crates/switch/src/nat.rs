//! The way out of a network through the host: rules of nftables that are there as long as somebody holds them.
//!
//! `nft` runs in its interactive form, reads commands from a pipe, and owns the table that they make (`flags owner`,
//! Linux 5.12): the kernel removes the table when `nft` ends, and `nft` ends when the pipe closes, however whoever holds
//! the pipe has ended. Nobody else can change such a table, and `nft flush ruleset` leaves it alone. Other tables are
//! never touched.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use weir_config::{ForwardProtocol, InterfaceName};
use weir_wire::Mac;

#[cfg(test)]
mod tests;

/// Where distributions have it: not all have it in everybody's path.
const PATHS: [&str; 3] = ["/usr/sbin/nft", "/sbin/nft", "/usr/bin/nft"];
/// How long the rules may take to be there. Usual is a hundredth of that.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(5);
/// The last thing that is made: with it all is there.
const LAST: &str = "complete";

/// What is let out, and what is let in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NatTask {
    /// The host's interface in the network.
    pub(crate) interface: InterfaceName,
    /// The host's addresses there, each with its subnet.
    pub(crate) addresses: Vec<IpNet>,
    /// What comes in for guests.
    pub(crate) forwards: Vec<NatForward>,
}

/// A port of the host's that is a guest's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NatForward {
    pub(crate) protocol: ForwardProtocol,
    pub(crate) port: u16,
    pub(crate) guest: Ipv4Addr,
    pub(crate) guest_port: u16,
}

/// Rules that are there until this is dropped, or this process ends.
#[derive(Debug)]
pub(crate) struct Nat {
    /// `None` once it is to end.
    commands: Option<ChildStdin>,
    nft: Child,
}

impl Nat {
    /// Makes the rules.
    ///
    /// # Errors
    /// There is no `nft`, or it says why not.
    pub(crate) fn start(task: &NatTask) -> io::Result<Self> {
        let path = PATHS.into_iter().find(|path| Path::new(path).exists());
        let path = path.ok_or_else(|| {
            io::Error::other("there is no program `nft`: install the package nftables")
        })?;
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

impl Drop for Nat {
    fn drop(&mut self) {
        // It reads the end of its commands, and ends. A confined helper may wait for nobody.
        self.commands.take();
    }
}

/// Runs `command`, with `input`, to its end.
///
/// # Errors
/// It says why it has failed.
fn said_by(name: &str, command: &mut Command, input: &str) -> io::Result<()> {
    let command = command.env_clear().current_dir("/").stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // One that reads nothing says why.
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
    /// A command on each line.
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
        // Where the way out is narrower than the network, TCP is told so.
        let clamp = "tcp flags & (syn | rst) == syn tcp option maxseg size set rt mtu";
        add("rule", &format!("forward iifname {interface} {clamp}"));
        add("rule", &format!("forward oifname {interface} {clamp}"));
        // Guests speak as guests, and are reached by answers and by what is forwarded.
        for subnet in &self.addresses {
            let (family, subnet) = (family_of(subnet.addr()), subnet.trunc());
            let from = format!("{family} saddr");
            add("rule", &format!("forward iifname {interface} {from} {subnet} accept"));
            let out = format!("postrouting {from} {subnet} oifname != {{ \"lo\", {interface} }}");
            add("rule", &format!("{out} masquerade"));
            // A guest that asks for another one by the host's address is answered by way of the host.
            let back = format!("postrouting {from} {subnet} oifname {interface} ct status dnat");
            add("rule", &format!("{back} masquerade"));
        }
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

/// The host's interface in a network, before it is one.
pub(crate) struct HostInterface<'h> {
    pub(crate) name: &'h InterfaceName,
    pub(crate) mac: Mac,
    pub(crate) addresses: &'h [IpNet],
}

/// Of what `ip -j addr` shows.
#[derive(Deserialize)]
struct ShownLink {
    ifname: String,
    #[serde(default)]
    addr_info: Vec<ShownAddress>,
}

/// See [`ShownLink`].
#[derive(Deserialize)]
struct ShownAddress {
    local: Option<IpAddr>,
    prefixlen: u8,
}

/// Of what `ip -j route` shows.
#[derive(Deserialize)]
struct ShownRoute {
    dst: String,
    #[serde(default)]
    dev: Option<String>,
}

impl HostInterface<'_> {
    /// Looks whether the host reaches a subnet by another interface: packets for guests, or for who is there, would go
    /// astray.
    ///
    /// # Errors
    /// With what can be done about it, where that is known.
    pub(crate) fn check_others(&self) -> Result<(), (Option<String>, io::Error)> {
        let failed = |error| (Some("`nat` takes the program `ip` (iproute2)".to_owned()), error);
        let links: Vec<ShownLink> = shown(&["-j", "addr", "show"]).map_err(failed)?;
        let mut others = Vec::new();
        for link in links {
            let nets =
                link.addr_info.iter().filter_map(|it| IpNet::new(it.local?, it.prefixlen).ok());
            others.extend(nets.map(|net| (link.ifname.clone(), net)));
        }
        for family in ["-4", "-6"] {
            let routes: Vec<ShownRoute> =
                shown(&["-j", family, "route", "show"]).map_err(failed)?;
            // A default route is for what nothing else is.
            let to =
                |dst: &str| dst.parse::<IpNet>().ok().or(Some(dst.parse::<IpAddr>().ok()?.into()));
            let to = |it: ShownRoute| Some((it.dev?, to(&it.dst)?));
            others.extend(routes.into_iter().filter_map(to));
        }
        let overlap = self.addresses.iter().find_map(|own| {
            let of_others = others
                .iter()
                .filter(|(name, net)| name != self.name.as_str() && net.prefix_len() > 0);
            let mut overlapping = of_others
                .filter(|(_, net)| own.contains(&net.addr()) || net.trunc().contains(&own.addr()));
            overlapping.next().map(|(name, net)| (own.trunc(), name, net))
        });
        let Some((subnet, other, net)) = overlap else { return Ok(()) };
        let help = "choose another subnet for `address`, such as 192.168.78.1/24";
        let what = format!("{subnet} is what the host reaches by `{other}` ({net})");
        Err((Some(help.to_owned()), io::Error::other(what)))
    }

    /// Gives the interface, which has the address `now`, its own addresses.
    ///
    /// # Errors
    /// `ip` says why not.
    pub(crate) fn set_up(&self, now: Mac) -> io::Result<()> {
        let (name, mac) = (self.name, self.mac);
        let mut batch = String::new();
        if now != mac {
            // The kernel makes an address of the link from it when the link comes up.
            batch += &format!("link set dev {name} down\nlink set dev {name} address {mac}\n");
            batch += &format!("link set dev {name} up\n");
        }
        for address in self.addresses {
            let nodad = if address.addr().is_ipv6() { " nodad" } else { "" };
            batch += &format!("addr replace {address} dev {name}{nodad}\n");
        }
        said_by("ip", ip()?.args(["-batch", "-"]), &batch)
    }
}

fn ip() -> io::Result<Command> {
    const PATHS: [&str; 4] = ["/usr/sbin/ip", "/sbin/ip", "/usr/bin/ip", "/bin/ip"];
    let path = PATHS.into_iter().find(|path| Path::new(path).exists());
    path.map(Command::new).ok_or_else(|| io::Error::other("there is no program `ip`"))
}

fn shown<T: DeserializeOwned>(arguments: &[&str]) -> io::Result<Vec<T>> {
    let mut command = ip()?;
    let output =
        command.args(arguments).env_clear().current_dir("/").stdin(Stdio::null()).output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(io::Error::other(format!("ip: {}", said.trim_end())));
    }
    // Nothing is shown as nothing.
    if output.stdout.iter().all(u8::is_ascii_whitespace) {
        return Ok(Vec::new());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}
