//! The reasons why EVPN cannot be used, and the version of FRR.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use weir_limits::{EVPN_DEVICE_PORT, EVPN_DEVICE_PORTS};

/// The reason why a network cannot be shown to zebra, or zebra's entries cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum EvpnError {
    /// There is no socket to the kernel.
    #[error("cannot open a socket to the kernel's rtnetlink")]
    Socket(#[source] io::Error),
    /// A device cannot be made or set.
    #[error("{name}: cannot {step}")]
    Device {
        /// The name of the device.
        name: String,
        /// The step that failed.
        step: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// The host has a VXLAN device with this VNI.
    #[error("VNI {vni} is that of the VXLAN device {name}")]
    Taken {
        /// The VNI.
        vni: u32,
        /// The name of the device.
        name: String,
    },
    /// FRR is too old for the underlay's addresses.
    #[error("FRR {has} has no VXLAN over IPv6, and `local` of [overlay] is {local}")]
    FrrTooOld {
        /// FRR's version.
        has: FrrVersion,
        /// This host's address in the underlay.
        local: IpAddr,
    },
    /// The kernel does not give its entries.
    #[error("cannot read what FRR has noted in the kernel")]
    Read(#[source] io::Error),
}

impl EvpnError {
    /// Advice to the user, if there is any.
    pub fn help(&self) -> Option<String> {
        let (name, source) = match self {
            Self::Device { name, source, .. } => (name, source),
            Self::FrrTooOld { .. } => {
                return Some(format!(
                    "take FRR {FRR_OVER_IPV6} or later, give the underlay IPv4 addresses, or name `peers` in each network"
                ));
            }
            Self::Taken { name, .. } => {
                return Some(format!(
                    "FRR takes one device for each VNI: give the network another `vni`, on all of its hosts, or remove \
                     {name}"
                ));
            }
            Self::Socket(_) | Self::Read(_) => return None,
        };
        match Errno::from_io_error(source) {
            Some(Errno::PERM | Errno::ACCESS) => {
                Some("making devices for FRR takes CAP_NET_ADMIN: start weir as root".into())
            }
            Some(Errno::OPNOTSUPP) => {
                Some("the kernel lacks bridges or VXLAN: modprobe bridge vxlan".into())
            }
            Some(Errno::ADDRINUSE) => {
                let last = EVPN_DEVICE_PORT + (EVPN_DEVICE_PORTS - 1);
                Some(format!("one of the UDP ports {EVPN_DEVICE_PORT} to {last} has to be free"))
            }
            Some(Errno::EXIST) => Some(format!(
                "another VXLAN device has this VNI: `ip -d link show type vxlan` names it; end it, or the weir of {name}"
            )),
            _ => None,
        }
    }
}

/// The first FRR that notes stations behind hosts with IPv6 addresses.
pub const FRR_OVER_IPV6: FrrVersion = FrrVersion { major: 10, minor: 6 };

/// The time that zebra gets to answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// Length of the buffer for the answer: more bytes than the answer has.
const ANSWER_LEN: usize = 4096;

/// FRR's version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FrrVersion {
    /// The first number: 10 of 10.6.1.
    pub major: u32,
    /// The second number: 6 of 10.6.1.
    pub minor: u32,
}

impl fmt::Display for FrrVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl FrrVersion {
    /// Asks a daemon by a non-blocking connection to its vty socket, which `vtysh` uses; `None` without an answer.
    pub fn ask(socket: impl AsFd) -> Option<Self> {
        rustix::io::write(&socket, b"show version\0").ok()?;
        let (mut answer, mut len) = ([0; ANSWER_LEN], 0);
        let timeout = Timespec { tv_sec: PATIENCE.as_secs().cast_signed(), tv_nsec: 0 };
        while len < answer.len() {
            let mut fds = [PollFd::new(&socket, PollFlags::IN)];
            match poll(&mut fds, Some(&timeout)) {
                Ok(0) => break,
                Ok(_) => {}
                // An interrupted call does not mean that there is no answer.
                Err(Errno::INTR) => continue,
                Err(_) => return None,
            }
            match rustix::io::read(&socket, &mut answer[len..]).map_err(io::Error::from) {
                Ok(0) | Err(_) => break,
                Ok(read) => len += read,
            }
            // The answer ends with three zeros and a status.
            if answer[..len].split(|byte| *byte == b'\n').count() > 1
                && answer[..len].ends_with(&[0; 4])
            {
                break;
            }
        }
        Self::parse(&String::from_utf8_lossy(&answer[..len]))
    }

    /// Reads the version from "FRRouting 10.7.0 (host) on Linux(6.12)."
    fn parse(answer: &str) -> Option<Self> {
        let (_, version) = answer.split_once("FRRouting ")?;
        let number = |text: &str| {
            let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
            text[..end].parse().ok()
        };
        let (major, rest) = version.split_once('.')?;
        Some(Self { major: number(major)?, minor: number(rest)? })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_version_of_frr_is_read_from_what_its_daemons_say() {
        let of = |major, minor| Some(FrrVersion { major, minor });
        for (answer, expected) in [
            ("FRRouting 8.4.4 (host) on Linux(6.1.0).\nCopyright", of(8, 4)),
            ("\0FRRouting 10.7 (host).", of(10, 7)),
            ("FRRouting 10.6-dev (host)", of(10, 6)),
            ("FRRouting 10", None),
            ("FRRouting x.y", None),
            ("% Unknown command", None),
            ("", None),
        ] {
            assert_eq!(FrrVersion::parse(answer), expected, "{answer}");
        }
        assert!(of(10, 5) < Some(FRR_OVER_IPV6) && of(9, 9) < Some(FRR_OVER_IPV6));
        assert!(of(10, 10) > Some(FRR_OVER_IPV6));
    }

    #[test]
    fn a_daemon_that_hangs_up_or_is_silent_has_no_version() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        assert_eq!(FrrVersion::ask(&ours), None, "it is silent");
        rustix::io::write(&theirs, b"FRRouting 10.6.1 (host).\n\0\0\0\0").unwrap();
        assert_eq!(FrrVersion::ask(&ours), Some(FRR_OVER_IPV6));
        drop(theirs);
        assert_eq!(FrrVersion::ask(&ours), None);
    }
}
