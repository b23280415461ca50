//! `weir uplink bridge`: the host's card becomes a port of a new bridge, which takes over its addresses, its routes and
//! its MAC address, and gives them back unless somebody confirms.
//!
//! A mistake on the way to a remote host cuts off the user who makes it. So another process,
//! started before the first change, takes the change back when the time is over, whatever has
//! become of the command. A file holds the commands for this. The process that renames the file
//! decides: the command that confirms, or the process that takes the change back.
//!
//! `ip -batch` makes the change in one go. An address is on the bridge before it leaves the card, and a route is
//! replaced rather than removed. Connections go on: their packets find the address and a route, and the neighbours'
//! caches stay right.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use ipnet::IpNet;
use miette::Diagnostic;
use serde::Deserialize;
use signal_hook::consts::{SIGHUP, SIGINT};
use thiserror::Error;
use weir_config::InterfaceName;
use weir_limits::{
    BRIDGE_LOOK_NS, BRIDGE_WITHIN_SECS_DEFAULT, BRIDGE_WITHIN_SECS_MAX, BRIDGE_WITHIN_SECS_MIN,
};
use weir_switch::host::{ip, said_by, shown};

/// The first argument of the process that takes the change back. The interface and the seconds follow.
const ARGUMENT: &str = "takes-a-bridge-back";
/// The last line of the commands that take a change back.
const COMPLETE: &str = "# complete\n";
/// The answers of that process: it waits for the time to be over, or another change waits already.
const READY: &str = "ready\n";
/// See [`READY`].
const WAITS: &str = "waits\n";
/// A lifetime that does not end.
const FOREVER: u32 = u32::MAX;
/// Settings of the card that the bridge takes over, below `/proc/sys/net`.
const SETTINGS: [(&str, &str); 6] = [
    ("ipv4", "rp_filter"),
    ("ipv4", "forwarding"),
    ("ipv6", "disable_ipv6"),
    ("ipv6", "accept_ra"),
    ("ipv6", "autoconf"),
    ("ipv6", "addr_gen_mode"),
];
/// Words of a shown route that describe its state, and are no part of its settings.
const STATES: [&str; 6] = ["linkdown", "dead", "offload", "rt_offload", "trap", "rt_trap"];

/// The reason why a bridge is not made, confirmed or taken back.
#[derive(Debug, Error, Diagnostic)]
pub enum BridgeError {
    /// The host does not meet the requirements. Nothing was changed.
    #[error("{what}")]
    Refused {
        /// The fault.
        what: String,
        /// The remedy.
        #[help]
        help: String,
    },
    /// A step has failed, and the steps before it were taken back.
    #[error("{interface} stays as it was: a step of the change has failed")]
    TakenBack {
        /// The card.
        interface: InterfaceName,
        /// The error of `ip`.
        #[source]
        source: io::Error,
    },
    /// The host cannot be looked at, or changed back.
    #[error("{0}")]
    Failed(String, #[source] io::Error),
}

fn refused<T>(what: impl Into<String>, help: impl Into<String>) -> Result<T, BridgeError> {
    Err(BridgeError::Refused { what: what.into(), help: help.into() })
}

fn failed(what: &str) -> impl FnOnce(io::Error) -> BridgeError {
    let what = what.to_owned();
    move |source| BridgeError::Failed(what, source)
}

/// `weir uplink`
#[derive(Debug, Subcommand)]
pub enum UplinkCommand {
    /// Make a bridge of which a card is a port, and take it back unless it is confirmed
    #[command(after_help = BRIDGE_NOTES)]
    Bridge(BridgeArgs),
}

/// `weir uplink bridge`
#[derive(Debug, Args)]
pub struct BridgeArgs {
    /// The card, which has the host's address
    #[arg(value_name = "INTERFACE")]
    pub interface: InterfaceName,
    /// The bridge to make
    #[arg(long, value_name = "BRIDGE", default_value = "br0")]
    pub name: InterfaceName,
    /// Another port of the bridge, such as the TAP of an uplink
    #[arg(long, value_name = "INTERFACE")]
    pub with: Vec<InterfaceName>,
    /// Seconds until the change is taken back
    #[arg(long, value_name = "SECONDS", default_value_t = BRIDGE_WITHIN_SECS_DEFAULT)]
    #[arg(value_parser = clap::value_parser!(u64).range(BRIDGE_WITHIN_SECS_MIN..=BRIDGE_WITHIN_SECS_MAX))]
    pub within: u64,
    /// Have the change stay
    #[arg(long, conflicts_with = "undo")]
    pub confirm: bool,
    /// Take the change back at once
    #[arg(long)]
    pub undo: bool,
}

const BRIDGE_NOTES: &str = "\
The bridge gets the addresses, the routes and the MAC address of the card; connections go on. \
Without --confirm in time, another process gives all back to the card, even if this command was \
killed or its terminal is gone.

The change ends with the next start of the host. Give networkd, netplan or ifupdown their files \
before --confirm: the guide's host-network.md.";

/// The card as `ip -j -d addr` shows it.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub(crate) struct Card {
    #[serde(default)]
    ifname: String,
    #[serde(default)]
    address: String,
    #[serde(default)]
    mtu: u32,
    master: Option<String>,
    #[serde(default)]
    flags: Vec<String>,
    #[serde(default)]
    link_type: String,
    #[serde(default)]
    addr_info: Vec<Address>,
}

impl Card {
    /// The card's name with each of its addresses.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = (String, IpAddr)> {
        self.addr_info.iter().filter_map(|it| Some((self.ifname.clone(), it.local?)))
    }
}

/// An address of the card.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Address {
    local: Option<IpAddr>,
    /// The address of the other end, on a link between two hosts.
    address: Option<IpAddr>,
    prefixlen: u8,
    broadcast: Option<IpAddr>,
    scope: String,
    label: Option<String>,
    noprefixroute: bool,
    mngtmpaddr: bool,
    valid_life_time: Option<u32>,
    preferred_life_time: Option<u32>,
}

impl Address {
    /// The address as arguments of `ip addr`; none for an address that the kernel shows in a
    /// special form.
    fn arguments(&self) -> Option<String> {
        let local = self.local?;
        let mut text = match self.address {
            Some(peer) => format!("{local} peer {peer}/{}", self.prefixlen),
            None => format!("{local}/{}", self.prefixlen),
        };
        if let Some(broadcast) = self.broadcast {
            let _ = write!(text, " broadcast {broadcast}");
        }
        if !self.scope.is_empty() {
            let _ = write!(text, " scope {}", self.scope);
        }
        for (word, lifetime) in
            [("valid_lft", self.valid_life_time), ("preferred_lft", self.preferred_life_time)]
        {
            if let Some(seconds) = lifetime.filter(|seconds| *seconds != FOREVER) {
                let _ = write!(text, " {word} {seconds}");
            }
        }
        let ipv6 = local.is_ipv6();
        // The address was the host's before: nobody else has it.
        for (word, has) in [
            ("nodad", ipv6),
            ("noprefixroute", self.noprefixroute),
            ("mngtmpaddr", self.mngtmpaddr && ipv6),
        ] {
            if has {
                let _ = write!(text, " {word}");
            }
        }
        Some(text)
    }

    fn net(&self) -> Option<IpNet> {
        IpNet::new(self.local?, self.prefixlen).ok()
    }
}

/// A route as arguments of `ip route`, without the interface.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Route {
    family: &'static str,
    text: String,
    /// The table, unless it is the main one.
    table: Option<String>,
}

impl Route {
    /// The route in a line of `ip -o route show table all`; `None` for a route to one of `nets`
    /// that the kernel itself makes.
    fn of(family: &'static str, line: &str, nets: &[IpNet]) -> Option<Result<Self, String>> {
        let mut words = line.split_whitespace().filter(|word| !STATES.contains(word)).peekable();
        let first = *words.peek()?;
        if ["local", "broadcast", "multicast", "anycast"].contains(&first) {
            return None;
        }
        let (mut text, mut table, mut is_kernels) = (Vec::new(), None, false);
        while let Some(word) = words.next() {
            match word {
                "nexthop" | "nhid" | "encap" => return Some(Err(line.trim().to_owned())),
                "table" => {
                    table = words.next().map(str::to_owned);
                    continue;
                }
                "proto" => is_kernels = words.peek() == Some(&"kernel"),
                "dev" => {
                    words.next();
                    continue;
                }
                // The number is shown with a unit that the command does not take.
                "expires" => {
                    let seconds = words.next().unwrap_or_default().trim_end_matches("sec");
                    text.push(format!("expires {seconds}"));
                    continue;
                }
                _ => {}
            }
            // The word `default` does not give the address family.
            let word = if word == "default" { everything(family) } else { word };
            text.push(word.to_owned());
        }
        let to = first.parse::<IpNet>();
        if is_kernels && to.is_ok_and(|to| nets.iter().any(|net| net.trunc() == to)) {
            return None;
        }
        Some(Ok(Self { family, text: text.join(" "), table: table.filter(|it| it != "main") }))
    }

    fn replace(&self, dev: &InterfaceName) -> String {
        let Self { text, table, .. } = self;
        let table = table.as_ref().map(|table| format!(" table {table}")).unwrap_or_default();
        format!("route replace {text} dev {dev}{table}\n")
    }
}

/// Runs `weir uplink`.
///
/// # Errors
/// [`BridgeError`]
pub fn run(command: &UplinkCommand, out: &mut dyn io::Write) -> Result<(), BridgeError> {
    let UplinkCommand::Bridge(args) = command;
    let BridgeArgs { interface, name, within, .. } = args;
    let done = match (args.confirm, args.undo) {
        (true, _) => {
            confirm(args)?;
            "the bridge stays until the host starts again; the guide's host-network.md has what lasts"
                .into()
        }
        (_, true) => {
            undo(interface)?;
            format!("{interface} has its addresses and routes again")
        }
        _ if args.is_done(&cards()?) => {
            let waits = Note::of(interface).open.exists();
            let next = if waits { ": --confirm has it stay" } else { "" };
            format!("{interface} is a port of {name} already{next}")
        }
        _ => {
            args.begin()?;
            let next = format!("within {within} s: weir uplink bridge {interface} --confirm");
            format!("{interface} is a port of {name}, which has its addresses and routes\n{next}")
        }
    };
    writeln!(out, "{done}").map_err(failed("the output cannot be written"))
}

/// The state of the card before the change.
#[derive(Debug)]
struct Found {
    card: Card,
    routes: Vec<Route>,
}

fn cards() -> Result<Vec<Card>, BridgeError> {
    shown(&["-j", "addr", "show"]).map_err(failed("the host's interfaces cannot be read"))
}

impl BridgeArgs {
    fn has_port(&self, name: &InterfaceName, cards: &[Card]) -> bool {
        let mut own = cards.iter().filter(|it| it.ifname == name.as_str());
        own.any(|it| it.master.as_deref() == Some(self.name.as_str()))
    }

    /// True if the bridge has all the ports already, and the card has no address of the host.
    fn is_done(&self, cards: &[Card]) -> bool {
        let mut of_card = cards.iter().filter(|it| it.ifname == self.interface.as_str());
        Path::new("/sys/class/net").join(self.name.as_str()).join("bridge").exists()
            && self.with.iter().chain([&self.interface]).all(|it| self.has_port(it, cards))
            && of_card.all(|it| it.addr_info.iter().all(|address| address.scope != "global"))
    }

    /// Makes the change. It is taken back after the time that was set, unless it is confirmed before.
    ///
    /// # Errors
    /// [`BridgeError`]. The host is then as it was before.
    fn begin(&self) -> Result<(), BridgeError> {
        let interface = &self.interface;
        let found = self.look()?;
        let settings = settings(interface);
        let back = self.back(&found);
        let note = Note::of(interface);
        let mut timer = self.timer(&back)?;
        let [make, take] = self.there(&found);
        let done = batch(&["-batch", "-"], &make).and_then(|()| {
            // Settings that the kernel does not have for a bridge are left out.
            for (family, key, value) in &settings {
                let _ = fs::write(setting(family, key, &self.name), value);
            }
            batch(&["-batch", "-"], &take)
        });
        let Err(source) = done else {
            flush(interface, &found.routes);
            return Ok(());
        };
        let _ = timer.kill();
        let _ = timer.wait();
        if note.claim() {
            take_back(interface, &note)?;
        }
        Err(BridgeError::TakenBack { interface: interface.clone(), source })
    }

    /// Looks at the host, and refuses what cannot be moved.
    fn look(&self) -> Result<Found, BridgeError> {
        let (interface, bridge) = (&self.interface, &self.name);
        if !weir_sandbox::may_administer_networks() {
            return refused(
                "this user may not change the host's interfaces",
                "run the command as root",
            );
        }
        let links = cards()?;
        let find = |name: &InterfaceName| links.iter().find(|it| it.ifname == name.as_str());
        let Some(card) = find(interface) else {
            return refused(format!("there is no interface {interface}"), "`ip link` lists them");
        };
        if find(bridge).is_some() {
            let mut ports = [interface].into_iter().chain(&self.with);
            let port = ports.find(|it| !self.has_port(it, &links)).unwrap_or(interface);
            let help = format!(
                "choose another name with --name; a bridge gets a port by `ip link set {port} master {bridge}`"
            );
            return refused(format!("{bridge} is there already"), help);
        }
        if let Some(gone) = self.with.iter().find(|name| find(name).is_none()) {
            let help = "weir makes the TAP of an uplink: start it first, or leave --with out";
            return refused(format!("there is no interface {gone}"), help);
        }
        if let Some(master) = &card.master {
            return refused(
                format!("{interface} belongs to {master} already"),
                format!("if {master} is a bridge, `bridge = \"{master}\"` of the uplink is all"),
            );
        }
        if card.link_type != "ether" || !card.flags.iter().any(|flag| flag == "UP") {
            return refused(
                format!("{interface} is no Ethernet interface that is up"),
                format!(
                    "`ip link set {interface} up`, or choose the card that has the host's address"
                ),
            );
        }
        let covered = |it: &&Address| !it.noprefixroute;
        let nets: Vec<_> = card.addr_info.iter().filter(covered).filter_map(Address::net).collect();
        let mut routes = Vec::new();
        for family in ["4", "6"] {
            let lines = routes_of(family).map_err(failed("the host's routes cannot be read"))?;
            let is_its = |line: &&str| {
                let words: Vec<_> = line.split_whitespace().collect();
                words.windows(2).any(|pair| pair == ["dev", interface.as_str()])
            };
            let lines = lines.lines().filter(is_its);
            for route in lines.filter_map(|line| Route::of(family, line, &nets)) {
                match route {
                    Ok(route) => routes.push(route),
                    Err(line) => {
                        let help = "move it by hand: weir does not know the form of the route";
                        return refused(format!("the route `{line}` goes by {interface}"), help);
                    }
                }
            }
        }
        // A gateway is reached by another route, which comes first.
        routes.sort_by_key(|route| route.text.contains(" via "));
        Ok(Found { card: card.clone(), routes })
    }

    /// The commands of `ip` before and after the bridge gets the card's settings.
    fn there(&self, found: &Found) -> [String; 2] {
        let (interface, bridge) = (&self.interface, &self.name);
        let Found { card: Card { address, mtu, addr_info, .. }, routes } = found;
        // Without a delay a port forwards at once, whatever the protocol of bridges says.
        let make = format!(
            "link add {bridge} address {address} mtu {mtu} type bridge stp_state 0 forward_delay 0\n"
        );
        // The bridge is up, and so has a carrier, before it gets addresses: without a carrier, IPv6 has no
        // routes. Until then, any interface accepts packets for the host's addresses.
        let mut take = format!("link set {interface} master {bridge}\nlink set {bridge} up\n");
        // The kernel may have made the link-local address by then.
        for arguments in addr_info.iter().filter_map(Address::arguments) {
            let _ = writeln!(take, "addr replace {arguments} dev {bridge}");
        }
        for port in &self.with {
            let _ = writeln!(take, "link set {port} master {bridge}");
        }
        take.extend(routes.iter().map(|route| route.replace(bridge)));
        // Removing a first address also removes the others of its subnet.
        for net in addr_info.iter().rev().filter_map(Address::net) {
            let _ = writeln!(take, "addr del {net} dev {interface}");
        }
        [make, take]
    }

    /// The commands of `ip` that take the change back. Each works whether the change was made in
    /// part or not at all.
    fn back(&self, found: &Found) -> String {
        let (interface, bridge) = (&self.interface, &self.name);
        let mut back = String::new();
        for address in &found.card.addr_info {
            let Some(arguments) = address.arguments() else { continue };
            let label = address.label.as_ref().map(|it| format!(" label {it}")).unwrap_or_default();
            let _ = writeln!(back, "addr replace {arguments} dev {interface}{label}");
        }
        let _ = writeln!(back, "link set {interface} nomaster");
        back.extend(found.routes.iter().map(|route| route.replace(interface)));
        // The bridge's addresses, routes and ports go with the bridge.
        let _ = writeln!(back, "link del {bridge}");
        // Removing the bridge may also have removed a route to the same destination.
        back.extend(found.routes.iter().map(|route| route.replace(interface)));
        back
    }

    /// Starts the process that takes the change back, and waits until that process has noted the
    /// commands. The process survives the end of the terminal and of this process.
    fn timer(&self, back: &str) -> Result<Child, BridgeError> {
        let start = || -> io::Result<(Child, String)> {
            let seconds = self.within.to_string();
            let mut timer = Command::new("/proc/self/exe")
                .arg0("weir-bridge-back")
                .args([ARGUMENT, self.interface.as_str(), &seconds])
                .current_dir("/")
                .env_clear()
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .process_group(0)
                .spawn()?;
            if let Some(mut commands) = timer.stdin.take() {
                commands.write_all(format!("{back}{COMPLETE}").as_bytes())?;
            }
            let mut said = String::new();
            if let Some(stdout) = timer.stdout.take() {
                BufReader::new(stdout).read_line(&mut said)?;
            }
            Ok((timer, said))
        };
        let (mut timer, said) =
            start().map_err(failed("the process that takes the change back does not start"))?;
        if said == READY {
            return Ok(timer);
        }
        let _ = timer.wait();
        match said == WAITS {
            true => refused(
                format!("a change of {} waits to be confirmed", self.interface),
                "confirm it with --confirm, or take it back with --undo",
            ),
            false => Err(failed("it cannot be noted how to take the change back")(
                io::Error::other(said),
            )),
        }
    }
}

/// The prefix of all addresses.
fn everything(family: &str) -> &'static str {
    if family == "6" { "::/0" } else { "0.0.0.0/0" }
}

/// Removes the routes that a card still has: the kernel leaves some routes of an address with a
/// limited lifetime.
fn flush(interface: &InterfaceName, routes: &[Route]) {
    let main = ["4", "6"].map(|family| (family, "main"));
    let others = routes.iter().filter_map(|it| Some((it.family, it.table.as_deref()?)));
    for (family, table) in BTreeSet::from_iter(main.into_iter().chain(others)) {
        let family = format!("-{family}");
        let _ = batch(&[&family, "route", "flush", "dev", interface.as_str(), "table", table], "");
    }
}

/// All routes, each on a line with all of its next hops.
fn routes_of(family: &str) -> io::Result<String> {
    let mut command = ip()?;
    let family = format!("-{family}");
    let arguments = [family.as_str(), "-o", "route", "show", "table", "all"];
    let output = command.args(arguments).env_clear().stdin(Stdio::null()).output()?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        // A kernel without IPv6 has no routes of it.
        false if arguments[0] == "-6" => Ok(String::new()),
        false => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned())),
    }
}

fn setting(family: &str, key: &str, interface: &InterfaceName) -> PathBuf {
    PathBuf::from(format!("/proc/sys/net/{family}/conf/{interface}/{key}"))
}

fn settings(interface: &InterfaceName) -> Vec<(&'static str, &'static str, String)> {
    let read = |(family, key)| {
        Some((family, key, fs::read_to_string(setting(family, key, interface)).ok()?))
    };
    SETTINGS.into_iter().filter_map(read).collect()
}

fn batch(arguments: &[&str], commands: &str) -> io::Result<()> {
    said_by("ip", ip()?.args(arguments), commands)
}

/// The file with the commands that take a change back. It exists until somebody has decided.
#[derive(Debug)]
struct Note {
    open: PathBuf,
    /// The name of the file while the change is being taken back.
    claimed: PathBuf,
    /// The time at which the change was taken back, in words.
    over: PathBuf,
}

impl Note {
    fn of(interface: &InterfaceName) -> Self {
        let at = |end: &str| Path::new("/run").join(format!("weir-bridge.{interface}{end}"));
        Self { open: at(""), claimed: at(".back"), over: at(".over") }
    }

    fn make(&self, back: &str) -> io::Result<()> {
        let _ = fs::remove_file(&self.over);
        let mut options = fs::File::options();
        let made = options.write(true).create_new(true).mode(0o600).open(&self.open);
        made.and_then(|mut file| file.write_all(back.as_bytes()))
    }

    /// Claims the decision. False if another process has claimed it.
    fn claim(&self) -> bool {
        fs::rename(&self.open, &self.claimed).is_ok()
    }
}

/// Confirms the change, which then stays. A bridge that stays already needs nothing.
///
/// # Errors
/// No change waits to be confirmed.
fn confirm(args: &BridgeArgs) -> Result<(), BridgeError> {
    let note = Note::of(&args.interface);
    if note.claim() {
        let _ = fs::remove_file(&note.claimed);
    } else if note.claimed.exists() || note.over.exists() || !args.is_done(&cards()?) {
        return nothing(&args.interface, &note);
    }
    Ok(())
}

/// Takes the change back at once. A card that is no port has all that it had.
///
/// # Errors
/// There is no change that waits, or `ip` fails.
fn undo(interface: &InterfaceName) -> Result<(), BridgeError> {
    let note = Note::of(interface);
    // A process that has claimed it may have been killed.
    match note.claim() || note.claimed.exists() {
        true => take_back(interface, &note),
        false if is_free(interface, &cards()?) => Ok(()),
        false => nothing(interface, &note),
    }
}

fn is_free(interface: &InterfaceName, cards: &[Card]) -> bool {
    cards.iter().any(|it| it.ifname == interface.as_str() && it.master.is_none())
}

fn nothing(interface: &InterfaceName, note: &Note) -> Result<(), BridgeError> {
    match fs::read_to_string(&note.over) {
        Ok(how) => refused(
            format!("the change of {interface} was taken back: {}", how.trim_end()),
            "make it again, and confirm it in time",
        ),
        Err(_) => refused(
            format!("no change of {interface} waits"),
            format!("`weir uplink bridge {interface}` makes one"),
        ),
    }
}

/// Takes back a change whose decision this process has claimed.
fn take_back(interface: &InterfaceName, note: &Note) -> Result<(), BridgeError> {
    let back =
        fs::read_to_string(&note.claimed).map_err(failed("cannot read what takes it back"))?;
    // Commands for steps that were not made fail, and the others must not wait for them.
    let _ = batch(&["-force", "-batch", "-"], &back);
    if !is_free(interface, &cards().unwrap_or_default()) {
        let source = io::Error::other(format!("{interface} is a port still"));
        return Err(BridgeError::Failed("the change is not taken back".into(), source));
    }
    let _ = fs::remove_file(&note.claimed);
    Ok(())
}

/// Takes a change back when its time is over, if this process was started for that, and returns the exit code. A
/// program that makes such changes calls this first.
pub fn run_if_asked() -> Option<ExitCode> {
    // Another program's arguments may be no text.
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_none_or(|argument| argument != ARGUMENT) {
        return None;
    }
    let mut text = || arguments.next()?.into_string().ok();
    let interface = text().and_then(|name| name.parse().ok());
    let seconds = text().and_then(|text| text.parse().ok());
    let (Some(interface), Some(seconds)) = (interface, seconds) else {
        return Some(ExitCode::FAILURE);
    };
    // The terminal of the user who has made the change may end with the change.
    for signal in [SIGHUP, SIGINT] {
        let _ = signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)));
    }
    let note = Note::of(&interface);
    let mut back = String::new();
    let read = io::stdin().read_to_string(&mut back);
    // The process that asks has ended before the first change.
    if read.is_err() || !back.ends_with(COMPLETE) {
        return Some(ExitCode::FAILURE);
    }
    let said = match note.make(&back) {
        Ok(()) => READY.to_owned(),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => WAITS.to_owned(),
        Err(error) => format!("{}: {error}\n", note.open.display()),
    };
    let _ = io::stdout().write_all(said.as_bytes());
    let _ = io::stdout().flush();
    if said != READY {
        return Some(ExitCode::FAILURE);
    }
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        std::thread::sleep(Duration::from_nanos(BRIDGE_LOOK_NS));
        if !note.open.exists() {
            return Some(ExitCode::SUCCESS);
        }
    }
    if !note.claim() {
        return Some(ExitCode::SUCCESS);
    }
    let how = match take_back(&interface, &note) {
        Ok(()) => format!("nobody had confirmed it within {seconds} s"),
        Err(error) => format!("{error}: `weir uplink bridge {interface} --undo` tries again"),
    };
    let _ = fs::write(&note.over, how);
    Some(ExitCode::SUCCESS)
}
