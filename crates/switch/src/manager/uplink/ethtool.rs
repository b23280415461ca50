//! The interrupt coalescing of a network card for received frames, which `ethtool -c` shows and `ethtool -C` sets, by
//! generic netlink (Linux 5.6; the kernel's Documentation/networking/ethtool-netlink.rst).
//!
//! The kernel answers during the send, so no caller waits for an answer. Each request has its own socket, because
//! there are only a few requests a second.

use std::io;

use weir_agent::napi::{Generic, Napi, attribute, bytes_of};
use weir_config::InterfaceName;

use super::Nic;

/// linux/ethtool_netlink.h.
const FAMILY: &str = "ethtool";
const COALESCE_GET: u8 = 19;
const COALESCE_SET: u8 = 20;
/// The attribute that names the interface, with a flag: it consists of attributes (`NLA_F_NESTED`).
const HEADER: u16 = 1 | 1 << 15;
const HEADER_DEV_NAME: u16 = 2;
const RX_USECS: u16 = 2;
const USE_ADAPTIVE_RX: u16 = 11;

/// A card's interrupt coalescing for received frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Coalescing {
    /// The delay of an interrupt, in microseconds.
    pub(super) rx_usecs: u32,
    /// True if the driver chooses the delay by itself.
    pub(super) adaptive: bool,
}

/// Real cards.
#[derive(Debug)]
pub(super) struct Ethtool;

impl Nic for Ethtool {
    fn coalescing(&self, interface: &InterfaceName) -> io::Result<Option<Coalescing>> {
        let mut found = None;
        coalesce(COALESCE_GET, interface, &[], |answer| found = coalescing_in(answer))?;
        Ok(found)
    }

    fn set_rx_usecs(&self, interface: &InterfaceName, usecs: u32) -> io::Result<()> {
        coalesce(COALESCE_SET, interface, &[(RX_USECS, &usecs.to_ne_bytes())], |_| ())
    }

    fn napis_set_alone(&self, ifindex: u32, polls: u64, timeout_ns: u64) -> Vec<Napi> {
        Napi::set_alone(ifindex, polls, timeout_ns)
    }

    fn restore_napis(&self, all: &[Napi]) -> io::Result<()> {
        Napi::restore(all)
    }
}

/// The coalescing in an answer. A driver supports the attributes that its answer contains.
fn coalescing_in(answer: &[u8]) -> Option<Coalescing> {
    let rx_usecs = attribute(answer, RX_USECS)?.try_into().ok()?;
    let adaptive = attribute(answer, USE_ADAPTIVE_RX).is_some_and(|value| value != [0]);
    Some(Coalescing { rx_usecs: u32::from_ne_bytes(rx_usecs), adaptive })
}

fn coalesce(
    command: u8,
    interface: &InterfaceName,
    settings: &[(u16, &[u8])],
    answered: impl FnMut(&[u8]),
) -> io::Result<()> {
    let header = header(interface.as_str());
    Generic::open(FAMILY)?.ask(command, &[&[(HEADER, &header[..])], settings].concat(), answered)
}

fn header(interface: &str) -> Vec<u8> {
    bytes_of(&[(HEADER_DEV_NAME, &[interface.as_bytes(), b"\0"].concat())])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The messages of ethtool 6.1 as strace shows them, behind their headers: `ethtool -c t0`, and
    /// `ethtool -C t0 rx-usecs 300`.
    #[test]
    #[cfg(target_endian = "little")]
    fn requests_are_those_of_the_ethtool_program() {
        const T0: &[u8] = b"\x0c\x00\x01\x80\x07\x00\x02\x00t0\x00\x00";
        const RX_USECS_300: &[u8] = b"\x08\x00\x02\x00\x2c\x01\x00\x00";
        let name = header("t0");
        assert_eq!(bytes_of(&[(HEADER, &name)]), T0);
        let usecs = 300_u32.to_ne_bytes();
        let set = bytes_of(&[(HEADER, &name), (RX_USECS, &usecs)]);
        assert_eq!(set, [T0, RX_USECS_300].concat());
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn answers_say_what_a_driver_has() {
        const HEADER: &[u8] =
            b"\x14\x00\x01\x80\x08\x00\x01\x00\x04\x00\x00\x00\x07\x00\x02\x00t0\x00\x00";
        const RX_FRAMES: &[u8] = b"\x08\x00\x03\x00\x00\x00\x00\x00";
        const RX_USECS_300: &[u8] = b"\x08\x00\x02\x00\x2c\x01\x00\x00";
        let read = |parts: &[&[u8]]| coalescing_in(&[&[HEADER], parts].concat().concat());
        assert_eq!(read(&[RX_FRAMES]), None, "a TAP has no more");
        let fixed = Coalescing { rx_usecs: 300, adaptive: false };
        assert_eq!(read(&[RX_USECS_300, RX_FRAMES]), Some(fixed));
        for (bit, on) in [(0, false), (1, true)] {
            let adaptive = [5, 0, 0x0b, 0, bit, 0, 0, 0];
            let expected = Coalescing { adaptive: on, ..fixed };
            assert_eq!(read(&[RX_USECS_300, RX_FRAMES, &adaptive]), Some(expected));
        }
        for cut in 0..8 {
            assert_eq!(read(&[&RX_USECS_300[..cut]]), None, "{cut} bytes of it");
        }
        assert_eq!(coalescing_in(&[]), None);
    }

    fn errno(result: io::Result<impl Sized>) -> Option<i32> {
        result.err().and_then(|error| error.raw_os_error())
    }

    #[test]
    fn the_kernel_says_that_the_loopback_interface_has_no_such_settings() {
        let lo = "lo".parse().unwrap();
        let not_supported = rustix::io::Errno::OPNOTSUPP.raw_os_error();
        assert_eq!(errno(Ethtool.coalescing(&lo)), Some(not_supported));
        let none = "weir-no-such-if".parse().unwrap();
        let no_device = rustix::io::Errno::NODEV.raw_os_error();
        assert_eq!(errno(Ethtool.coalescing(&none)), Some(no_device));
    }

    /// Every kernel has a TAP, and a TAP takes one of these settings: its `rx-frames`.
    #[test]
    fn root_the_kernel_takes_what_is_set_and_refuses_what_a_tap_has_not() {
        const RX_MAX_FRAMES: u16 = 3;
        if !weir_testing::is_root("a TAP") {
            return;
        }
        let name = format!("wet{}", std::process::id());
        let ip = |args: &[&str]| {
            assert!(std::process::Command::new("ip").args(args).status().unwrap().success());
        };
        ip(&["tuntap", "add", "dev", &name, "mode", "tap"]);
        let tap: InterfaceName = name.parse().unwrap();
        let frames = || -> io::Result<Option<Vec<u8>>> {
            let mut found = None;
            let read = |answer: &[u8]| found = attribute(answer, RX_MAX_FRAMES).map(<[u8]>::to_vec);
            coalesce(COALESCE_GET, &tap, &[], read)?;
            Ok(found)
        };
        let found = frames();
        let three = [(RX_MAX_FRAMES, &3_u32.to_ne_bytes()[..])];
        let mut answers = 0;
        let set = coalesce(COALESCE_SET, &tap, &three, |_| answers += 1);
        let after = frames();
        let (usecs, refused) = (Ethtool.coalescing(&tap), Ethtool.set_rx_usecs(&tap, 300));
        ip(&["link", "del", &name]);
        assert_eq!(found.unwrap(), Some(vec![0; 4]));
        set.unwrap();
        assert_eq!(answers, 0, "an acknowledgement alone");
        assert_eq!(after.unwrap(), Some(3_u32.to_ne_bytes().to_vec()));
        assert_eq!(usecs.unwrap(), None);
        assert!(refused.is_err());
    }
}
