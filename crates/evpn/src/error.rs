//! The reasons why EVPN cannot be used.

use std::io;
use std::net::IpAddr;

use rustix::io::Errno;
use weir_limits::{EVPN_DEVICE_PORT, EVPN_DEVICE_PORTS};

use crate::version::{FRR_OVER_IPV6, FrrVersion};

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
