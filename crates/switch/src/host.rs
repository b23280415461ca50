//! Checks the host for a configuration before a weir is started with it.

use std::collections::BTreeMap;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ipnet::IpNet;
use weir_config::{Config, Defaults, UplinkConfig};

use crate::nat::{
    addresses_of, check_default, check_host_side, check_local, check_others, check_own, dropped_by,
    nft, tell_resolved,
};
pub use crate::nat::{ip, said_by, shown};
use crate::programs;

/// The directories of sysctl.d(5). A file replaces files of the same name in later directories.
const DIRECTORIES: [&str; 5] =
    ["etc/sysctl.d", "run/sysctl.d", "usr/local/lib/sysctl.d", "usr/lib/sysctl.d", "lib/sysctl.d"];
/// The argument with which root runs [`tell_resolved_if_asked`]; a configuration follows.
const TELL_RESOLVED: &str = "tell-resolved";
/// The file that sysctl(8) `--system` reads after the files of all directories.
const LAST: &str = "etc/sysctl.conf";
/// The kernel's switches for routing.
const IPV4_ROUTING: &str = "net.ipv4.ip_forward";
const IPV6_ROUTING: &str = "net.ipv6.conf.all.forwarding";

/// A requirement that the host does not meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lack {
    /// The problem.
    pub what: String,
    /// Advice for the user, if there is any.
    pub help: Option<String>,
}

/// Tells systemd-resolved for which networks a running weir answers names, if `weir` was started
/// for this purpose. A weir that is not root may not do so itself: the service manager starts this
/// command for it (debian/weir.service).
pub fn tell_resolved_if_asked(log: fn()) -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    let (word, file) = (arguments.next()?, arguments.next());
    if word != TELL_RESOLVED {
        return None;
    }
    log();
    let file = file.map_or_else(|| Config::DEFAULT_PATH.into(), PathBuf::from);
    let config = Defaults::of_this_user().map(|defaults| Config::load(&file, &defaults));
    let Ok(Ok(config)) = config else {
        tracing::error!("`weir check {}` says what is wrong with it", file.display());
        return Some(ExitCode::FAILURE);
    };
    for (_, _, gateway) in config.networks.with_gateway() {
        if let Some((nat, own)) = gateway.nat.as_ref().zip(gateway.ipv4())
            && gateway.answers_names()
            && is_asked_at(own.addr())
        {
            tell_resolved(&nat.interface, own.addr(), gateway.domain());
        }
    }
    Some(ExitCode::SUCCESS)
}

/// True if there is a socket at port 53 of exactly this address. Where weir could have such a
/// socket, it is weir's.
fn is_asked_at(own: Ipv4Addr) -> bool {
    let shown = format!(" {:08X}:0035 ", u32::from_ne_bytes(own.octets()));
    fs::read_to_string("/proc/net/udp").is_ok_and(|all| all.contains(&shown))
}

/// The unmet requirements for NAT of networks, and for the host's side of TAPs.
pub fn lacks(config: &Config) -> Vec<Lack> {
    let (mut all, mut routes) = (Vec::from_iter(programs::lacks(config)), [false; 2]);
    for uplink in &config.uplinks {
        all.extend(no_card(Path::new("/sys/class/net"), uplink));
        all.extend(firewall_of_bridge(uplink));
        if let Err((help, error)) = check_host_side(uplink, true) {
            all.push(Lack { what: format!("`{}`: {error}", uplink.table()), help });
        }
        if uplink.kind.is_made()
            && let Err((help, error)) =
                check_own(&uplink.interface, &addresses_of(uplink), uplink.bridge.as_ref())
        {
            all.push(Lack { what: format!("`{}`: {error}", uplink.table()), help });
        }
    }
    let local = config.networks.overlay.as_ref().map(|overlay| overlay.local.get());
    if let Some(Err((help, error))) = local.map(check_local) {
        all.push(Lack { what: format!("`overlay`: {error}"), help });
    }
    for (_, network, gateway) in config.networks.with_gateway() {
        let Some(nat) = &gateway.nat else { continue };
        let addresses: Vec<IpNet> = gateway.addresses.iter().map(|it| it.get()).collect();
        if let Err((help, error)) = check_others(&nat.interface, &addresses, true) {
            all.push(Lack { what: format!("network `{}`: {error}", network.name), help });
        }
        if let Err((help, error)) = check_own(&nat.interface, &addresses, None) {
            all.push(Lack { what: format!("network `{}`: {error}", network.name), help });
        }
        let subnets = addresses.iter().map(|net| net.trunc().to_string());
        let names = Vec::from_iter(subnets.chain([nat.interface.to_string()]));
        if let Some(table) = dropped_by("forward", &names) {
            let what = format!("the table `{table}` of nftables drops what the host forwards");
            let interface = &nat.interface;
            let help = format!(
                "let `{interface}` in and out by a rule of it, as with `iptables -I FORWARD -i {interface} -j ACCEPT` \
                 and the same with `-o`; Docker's own is DOCKER-USER"
            );
            all.push(Lack { what, help: Some(help) });
        }
        routes[0] |= addresses.iter().any(|net| net.addr().is_ipv4());
        routes[1] |= addresses.iter().any(|net| net.addr().is_ipv6());
    }
    if routes == [false; 2] {
        return all;
    }
    if let Err(error) = nft() {
        all.push(Lack { what: error.to_string(), help: None });
    }
    let keys = [IPV4_ROUTING, IPV6_ROUTING].into_iter().zip(routes);
    all.extend(
        keys.filter(|(_, wanted)| *wanted).filter_map(|(key, _)| not_routing(Path::new("/"), key)),
    );
    all
}

/// The card of a packet socket that this host does not have, as after a change of its name.
fn no_card(links: &Path, uplink: &UplinkConfig) -> Option<Lack> {
    let name = uplink.interface.as_str();
    let others = fs::read_dir(links).ok()?.flatten().map(|it| it.file_name());
    let others = Vec::from_iter(others.filter_map(|it| it.into_string().ok())).join(", ");
    (uplink.kind.has_card() && !links.join(name).exists()).then(|| Lack {
        what: format!("`{}`: this host has no interface `{name}`", uplink.table()),
        help: Some(format!("another `name`; there are: {others}")),
    })
}

/// The firewall that sees frames of a TAP's bridge as forwarded packets, and drops them.
fn firewall_of_bridge(uplink: &UplinkConfig) -> Option<Lack> {
    let link = Path::new("/sys/class/net").join(uplink.interface.as_str()).join("master");
    let bridge = fs::read_link(link).ok()?.file_name()?.to_str()?.to_owned();
    let on = fs::read_to_string("/proc/sys/net/bridge/bridge-nf-call-iptables").ok()?;
    let names = [uplink.interface.to_string(), bridge.clone(), "physdev".into()];
    let table = (on.trim() == "1").then(|| dropped_by("forward", &names))??;
    let key = "net.bridge.bridge-nf-call-iptables";
    Some(Lack {
        what: format!("the table `{table}` of nftables drops what passes the bridge `{bridge}`"),
        help: Some(format!("`sysctl -w {key}=0`, or a rule for `{bridge}` in that table")),
    })
}

/// Firewalls that may keep guests from services of this host. A site may mean that.
pub fn doubts(config: &Config) -> Vec<Lack> {
    let doubt = |uplink: &UplinkConfig| {
        let (addresses, interface) = (addresses_of(uplink), &uplink.interface);
        let names = addresses.iter().map(|net| net.trunc().to_string());
        let names = Vec::from_iter(names.chain([interface.to_string()]));
        let table = (!addresses.is_empty()).then(|| dropped_by("input", &names))??;
        let what = format!("the table `{table}` of nftables drops what guests send to this host");
        let help = format!("if they are to reach it: `iptables -I INPUT -i {interface} -j ACCEPT`");
        Some(Lack { what, help: Some(help) })
    };
    config.uplinks.iter().filter_map(doubt).collect()
}

/// The reason why guests of networks with NAT reach no other network: this host reaches none itself. weir starts
/// nevertheless.
pub fn cut_off(config: &Config) -> Option<Lack> {
    let with_nat = config.networks.with_gateway().filter(|(_, _, gateway)| gateway.nat.is_some());
    let mut addresses = with_nat.flat_map(|(_, _, gateway)| gateway.addresses.iter()).peekable();
    addresses.peek()?;
    let (help, error) = check_default(addresses.any(|it| it.get().addr().is_ipv4())).err()?;
    Some(Lack { what: error.to_string(), help })
}

/// The problem that this process may not make rules of nftables.
pub(crate) fn no_right() -> Option<Lack> {
    let what = "`nat` takes root or CAP_NET_ADMIN, and this user has neither".to_owned();
    let help =
        "start weir as root; without root, an uplink with `kind = \"stream\"` takes guests out"
            .to_owned();
    (!weir_sandbox::may_administer_networks()).then_some(Lack { what, help: Some(help) })
}

/// The requirements of [`lacks`] that are not met, and those of this user, who would start weir.
pub fn lacks_of_a_start(config: &Config) -> Vec<Lack> {
    let mut all = lacks(config);
    all.extend(crate::sandbox::user_note(config).map(|what| Lack { what, help: None }));
    let has_nat = config.networks.with_gateway().any(|(_, _, gateway)| gateway.nat.is_some());
    all.extend(no_right().filter(|_| has_nat));
    let missing = |uplink: &&UplinkConfig| {
        uplink.kind.is_made()
            && !Path::new("/sys/class/net").join(uplink.interface.as_str()).exists()
    };
    if !weir_sandbox::may_administer_networks() {
        all.extend(config.uplinks.iter().filter(missing).map(|uplink| Lack {
            what: format!("`{}`: this user may not make the TAP `{}`", uplink.table(), uplink.interface),
            help: Some(format!(
                "start weir as root, or make the TAP as root: `ip tuntap add dev {} mode tap multi_queue vnet_hdr user \
                 USER`; without an uplink weir needs no privilege",
                uplink.interface
            )),
        }));
    }
    all
}

/// The problem that the host does not route, with the file that sets the key.
fn not_routing(root: &Path, key: &str) -> Option<Lack> {
    let now = fs::read_to_string(root.join("proc/sys").join(key.replace('.', "/"))).ok()?;
    if now.trim() != "0" {
        return None;
    }
    let again = format!("`sysctl -w {key}=1` until the host is started again");
    let help = match set_by(root, key) {
        None => {
            format!("no file below /etc/sysctl.d sets it: write `{key} = 1` into one, and {again}")
        }
        Some((path, value)) if value == "0" => {
            format!("/{} sets it: change that, and {again}", path.display())
        }
        Some((path, value)) => {
            let path = path.display();
            format!("/{path} sets it to {value}, and something has changed it since: {again}")
        }
    };
    Some(Lack { what: format!("the host does not route: {key} is 0"), help: Some(help) })
}

/// The file that sets a key at the start of the host, and the value.
fn set_by(root: &Path, key: &str) -> Option<(PathBuf, String)> {
    let mut files = BTreeMap::new();
    for directory in DIRECTORIES {
        for file in fs::read_dir(root.join(directory)).into_iter().flatten().flatten() {
            let name = file.file_name();
            if Path::new(&name).extension().is_some_and(|it| it == "conf") {
                files.entry(name.clone()).or_insert_with(|| Path::new(directory).join(name));
            }
        }
    }
    let all = files.into_values().chain([PathBuf::from(LAST)]);
    let mut set = all.filter_map(|path| {
        let text = fs::read_to_string(root.join(&path)).ok()?;
        Some((path, value_in(&text, key)?))
    });
    set.next_back()
}

/// The value that a file sets for a key.
fn value_in(text: &str, key: &str) -> Option<String> {
    let mut set = text.lines().filter_map(|line| {
        let (name, value) = line.split_once('=')?;
        // Slashes stand for dots. A dash before a key ignores errors of that key.
        let name = name.trim().trim_start_matches('-').replace('/', ".");
        (name == key).then(|| value.trim().to_owned())
    });
    set.next_back()
}

#[cfg(test)]
mod tests {
    //! The files that set the kernel's values.

    use super::*;

    #[test]
    fn a_card_that_has_another_name_now_is_missed() {
        let links = tempfile::tempdir().unwrap();
        fs::create_dir(links.path().join("ens3")).unwrap();
        let defaults = Defaults {
            control: weir_config::SocketPath::try_from(Path::new("/run/weir/control.sock"))
                .unwrap(),
            control_named: true,
            keeper: None,
        };
        let of = |kind: &str, name: &str| {
            let text = format!("[uplink.lan]\nkind = \"{kind}\"\nname = \"{name}\"\n");
            let config = Config::from_toml("weir.toml", &text, &defaults).unwrap();
            no_card(links.path(), &config.uplinks[0])
        };
        let lack = of("af_packet", "eth0").unwrap();
        assert!(lack.what.contains("`eth0`") && lack.help.unwrap().ends_with("there are: ens3"));
        assert_eq!((of("af_packet", "ens3"), of("tap", "weir0")), (None, None));
    }

    #[test]
    fn who_has_switched_routing_off_is_named() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let help = || not_routing(root.path(), IPV4_ROUTING).map(|lack| lack.help.unwrap());
        write("proc/sys/net/ipv4/ip_forward", "1\n");
        assert_eq!(help(), None);
        write("proc/sys/net/ipv4/ip_forward", "0\n");
        assert!(help().unwrap().starts_with("no file"));
        write("usr/lib/sysctl.d/50-a.conf", "# net.ipv4.ip_forward = 1\nnet/ipv4/ip_forward=1\n");
        assert!(
            help().unwrap().starts_with("/usr/lib/sysctl.d/50-a.conf sets it to 1, and something")
        );
        write("etc/sysctl.d/60-b.conf", "net.ipv4.ip_forward=1\n-net.ipv4.ip_forward = 0\n");
        write("etc/sysctl.d/99-c.text", "net.ipv4.ip_forward = 1\n");
        assert!(help().unwrap().starts_with("/etc/sysctl.d/60-b.conf sets it:"));
        // Only the file in the earliest directory counts among files of the same name.
        write("run/sysctl.d/60-b.conf", "net.ipv4.ip_forward = 1\n");
        assert!(help().unwrap().starts_with("/etc/sysctl.d/60-b.conf sets it:"));
        write("etc/sysctl.conf", "net.ipv4.ip_forward = 1\n");
        assert!(help().unwrap().starts_with("/etc/sysctl.conf sets it to 1"));
    }
}
