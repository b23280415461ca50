//! The address of a TAP that weir makes: the same at each start, so that what the host and its firmware note of a
//! neighbour stays true.

use std::fs;

use sha2::{Digest, Sha256};
use weir_config::{InterfaceName, SocketPath};
use weir_wire::Mac;

/// One for each installation of a system (machine-id(5)).
const MACHINE_ID: &str = "/etc/machine-id";
/// The id is not to be guessed from what leaves the machine, and means something else to other programs.
const PURPOSE: &[u8] = b"weir TAP";

/// The address of the TAP `name` of the weir with this control socket; `None` where the machine has no id. The socket
/// tells apart the weirs of one machine, which may be on one network and have TAPs of one name in namespaces.
pub(super) fn of(name: &InterfaceName, control: &SocketPath) -> Option<Mac> {
    let id = fs::read_to_string(MACHINE_ID).ok();
    let mac = id.as_deref().and_then(machine_id).map(|id| derive(id, name, control));
    if mac.is_none() {
        tracing::info!(interface = %name, "no id in {MACHINE_ID}: the TAP has another MAC address at each start");
    }
    mac
}

/// What the file says, unless the machine is still to get its id ("uninitialized").
fn machine_id(text: &str) -> Option<&str> {
    let id = text.trim_end();
    let is_id = id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_id.then_some(id)
}

fn derive(id: &str, name: &InterfaceName, control: &SocketPath) -> Mac {
    let mut hash = Sha256::new();
    for part in
        [PURPOSE, id.as_bytes(), control.to_string().as_bytes(), name.to_string().as_bytes()]
    {
        // No part goes on in the next one.
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let [first, rest @ ..]: [u8; 32] = hash.finalize().into();
    let [b, c, d, e, f, ..] = rest;
    // A station's, locally administered (IEEE 802 8.4).
    Mac([first & !0b01 | 0b10, b, c, d, e, f])
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "3d1219c7c4c5404aaa1f6d2a48adfda4";

    fn mac(id: &str, name: &str, control: &str) -> Mac {
        derive(id, &name.parse().unwrap(), &control.parse().unwrap())
    }

    #[test]
    fn the_address_of_a_tap_is_its_machines_its_weirs_and_its_names() {
        let of = |id, name, control| mac(id, name, control);
        let one = of(ID, "tap0", "/run/weir/control.sock");
        assert_eq!(one, of(ID, "tap0", "/run/weir/control.sock"));
        // As Python's hashlib has it.
        assert_eq!(one.to_string(), "56:8e:ba:b3:0f:f7");
        for other in [
            of("4d1219c7c4c5404aaa1f6d2a48adfda4", "tap0", "/run/weir/control.sock"),
            of(ID, "tap1", "/run/weir/control.sock"),
            of(ID, "tap0", "/run/weir/other.sock"),
        ] {
            assert_ne!(one, other);
        }
    }

    #[test]
    fn the_address_of_a_tap_is_a_stations_and_locally_administered() {
        for number in 0..500 {
            let mac = mac(ID, &format!("tap{number}"), "/run/weir/control.sock");
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
