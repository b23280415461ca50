//! The reasons why an overlay cannot be opened, and the user's remedies.

use std::io;
use std::net::{IpAddr, SocketAddr};

use weir_port_tap::{LinkError, NameError};

/// The reason why [`OverlaySockets::open`](crate::OverlaySockets::open) failed.
#[derive(Debug, thiserror::Error)]
pub enum OverlayError {
    /// The underlay's interface cannot be used.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// No interface has the address.
    #[error("this host does not have the address {0}")]
    NoAddress(IpAddr),
    /// Another program receives at this address.
    #[error("{0} is in use")]
    Busy(SocketAddr),
    /// Guests' frames do not fit into the underlay's packets.
    #[error(
        "interface `{name}` has an MTU of {has}, and datagrams with frames of {mtu} take {needs}"
    )]
    Mtu {
        /// The interface.
        name: String,
        /// The interface's MTU.
        has: u32,
        /// The MTU that guests get.
        mtu: u16,
        /// The MTU that the interface would need.
        needs: u32,
    },
    /// Another step failed.
    #[error("cannot {step}")]
    Setup {
        /// The step that failed.
        step: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

impl From<NameError> for OverlayError {
    fn from(error: NameError) -> Self {
        Self::Link(error.into())
    }
}

impl OverlayError {
    /// Advice to the user, if there is any.
    pub fn help(&self) -> Option<String> {
        match self {
            Self::Link(error) => error.help(),
            Self::NoAddress(address) => Some(format!(
                "`ip addr` lists the addresses there are; give {address} to an interface before weir starts"
            )),
            Self::Busy(address) => Some(format!(
                "a VXLAN device of the kernel may have it: `ip -d link show type vxlan`; or another program: `ss \
                 -ulpn sport = :{}`",
                address.port()
            )),
            Self::Mtu { name, has, mtu, needs } => Some(format!(
                "raise the underlay's MTU (`ip link set dev {name} mtu {needs}`, on every host and switch of the way), \
                 or set `mtu = {}` in [overlay]",
                has.saturating_sub(needs - u32::from(*mtu))
            )),
            Self::Setup { .. } => None,
        }
    }
}
