//! The MAC address of a TAP that weir makes. It is the same at each start, so that the neighbour entries of host and
//! firmware stay valid.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use sha2::{Digest, Sha256};
use weir_config::InterfaceName;
use weir_wire::Mac;

/// The id of a system's installation (machine-id(5)).
const MACHINE_ID: &str = "/etc/machine-id";
/// A constant that keeps the id from being guessed from addresses on the network, and that separates weir's addresses
/// from other programs' uses of the id.
const PURPOSE: &[u8] = b"weir TAP";
/// A setting that only the machine's first network namespace has (`net_core_table` in `net/core/sysctl_net_core.c`).
const FIRST_NAMESPACE_HAS: &str = "/proc/sys/net/core/netdev_budget";
/// The network namespace of the calling thread.
const NAMESPACE: &str = "/proc/thread-self/ns/net";

/// The address of the TAP `name` in the calling thread's network namespace; `None` if the machine has no id.
pub(super) fn of(name: &InterfaceName) -> Option<Mac> {
    let id = fs::read_to_string(MACHINE_ID).ok();
    let namespace = namespace()?;
    let mac = id.as_deref().and_then(machine_id).map(|id| derive(id, &namespace, name));
    if mac.is_none() {
        tracing::info!(interface = %name, "no id in {MACHINE_ID}: the TAP has another MAC address at each start");
    }
    mac
}

/// The identity of the network namespace. Namespaces of one machine may share a network and have TAPs of the same
/// name. It is empty for the first namespace, and otherwise a number that holds as long as the namespace exists.
fn namespace() -> Option<String> {
    if Path::new(FIRST_NAMESPACE_HAS).exists() {
        return Some(String::new());
    }
    Some(fs::metadata(NAMESPACE).ok()?.ino().to_string())
}

/// The file's id, unless the machine has not got its id yet ("uninitialized").
fn machine_id(text: &str) -> Option<&str> {
    let id = text.trim_end();
    let is_id = id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_id.then_some(id)
}

fn derive(id: &str, namespace: &str, name: &InterfaceName) -> Mac {
    let mut hash = Sha256::new();
    for part in [PURPOSE, id.as_bytes(), namespace.as_bytes(), name.to_string().as_bytes()] {
        // The length separates each part from the next one.
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let [first, rest @ ..]: [u8; 32] = hash.finalize().into();
    let [b, c, d, e, f, ..] = rest;
    // The address is unicast and locally administered (IEEE 802 8.4).
    Mac([first & !0b01 | 0b10, b, c, d, e, f])
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{BufRead, BufReader};
    use std::os::fd::AsFd;
    use std::process::{Command, Stdio};
    use std::thread;

    use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

    use super::*;

    const ID: &str = "3d1219c7c4c5404aaa1f6d2a48adfda4";

    fn mac(id: &str, namespace: &str, name: &str) -> Mac {
        derive(id, namespace, &name.parse().unwrap())
    }

    #[test]
    fn the_address_of_a_tap_is_its_machines_its_namespaces_and_its_names() {
        let one = mac(ID, "", "tap0");
        assert_eq!(one, mac(ID, "", "tap0"));
        // The expected value was computed with Python's hashlib.
        assert_eq!(one.to_string(), "26:b6:67:36:9f:02");
        for other in [
            mac("4d1219c7c4c5404aaa1f6d2a48adfda4", "", "tap0"),
            mac(ID, "4026532000", "tap0"),
            mac(ID, "", "tap1"),
        ] {
            assert_ne!(one, other);
        }
    }

    #[test]
    fn root_each_network_namespace_has_a_name_of_its_own() {
        if !weir_testing::is_root("a network namespace") {
            return;
        }
        let here = namespace().unwrap();
        assert_eq!(namespace().unwrap(), here);
        let in_another = |_| {
            let mut command = Command::new("unshare");
            command.args(["--net", "sh", "-c", "echo ready && exec sleep 100"]);
            let mut holder = command.stdout(Stdio::piped()).spawn().unwrap();
            let mut line = String::new();
            BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
            let file = File::open(format!("/proc/{}/ns/net", holder.id())).unwrap();
            let enter = || {
                let kind = Some(LinkNameSpaceType::Network);
                move_into_link_name_space(file.as_fd(), kind).map(|()| namespace().unwrap())
            };
            let there = thread::scope(|scope| scope.spawn(enter).join()).unwrap().unwrap();
            (holder, there)
        };
        let [(mut first, one), (mut second, two)] = [1, 2].map(in_another);
        for holder in [&mut first, &mut second] {
            holder.kill().unwrap();
            holder.wait().unwrap();
        }
        assert!(one != two && one != here && two != here, "{here} {one} {two}");
    }

    #[test]
    fn the_address_of_a_tap_is_a_stations_and_locally_administered() {
        for number in 0..500 {
            let mac = mac(ID, "", &format!("tap{number}"));
            assert_eq!(mac.0[0] & 0b11, 0b10, "{mac}");
        }
    }

    #[test]
    fn a_machine_without_an_id_has_none() {
        assert_eq!(machine_id(&format!("{ID}\n")), Some(ID));
        for text in ["", "\n", "uninitialized\n", &ID[1..], "3d1219c7-c4c5-404a-aa1f-6d2a48adfda4"]
        {
            assert_eq!(machine_id(text), None, "{text:?}");
        }
    }
}
