//! Why EVPN cannot be had.

use std::io;

use rustix::io::Errno;
use weir_limits::{EVPN_DEVICE_PORT, EVPN_DEVICE_PORTS};

/// Why zebra cannot be shown a network, or cannot be heard.
#[derive(Debug, thiserror::Error)]
pub enum EvpnError {
    /// No way to the kernel.
    #[error("cannot open a socket to the kernel's rtnetlink")]
    Socket(#[source] io::Error),
    /// A device cannot be made or set.
    #[error("{name}: cannot {step}")]
    Device {
        /// Which one.
        name: String,
        /// What was tried.
        step: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel does not say what is noted.
    #[error("cannot read what FRR has noted in the kernel")]
    Read(#[source] io::Error),
}

impl EvpnError {
    /// What its user can do.
    pub fn help(&self) -> Option<String> {
        let Self::Device { name, source, .. } = self else { return None };
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
