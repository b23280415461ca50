//! Why an interface cannot be used by packet sockets, and what its user can do about it.

use std::io;

use weir_policy::steering::QueueCountError;
use weir_port_tap::NameError;

/// Why [`PacketSocket::open`](crate::PacketSocket::open) failed.
#[derive(Debug, thiserror::Error)]
pub enum PacketError {
    /// Not a name that an interface can have.
    #[error(transparent)]
    Name(#[from] NameError),
    /// More queues than weir serves, or none.
    #[error(transparent)]
    Queues(#[from] QueueCountError),
    /// The privilege for packet sockets is missing.
    #[error("not permitted to open a packet socket on interface `{name}`")]
    NotPermitted {
        /// The interface.
        name: String,
    },
    /// There is no such interface.
    #[error("there is no interface `{name}`")]
    NoInterface {
        /// The interface.
        name: String,
    },
    /// Its frames are not Ethernet's.
    #[error("interface `{name}` is not an Ethernet interface")]
    NotEthernet {
        /// The interface.
        name: String,
    },
    /// The MTU could not be set.
    #[error("cannot set the MTU of interface `{name}` to {mtu}")]
    Mtu {
        /// The interface.
        name: String,
        /// The MTU asked for.
        mtu: u16,
        /// The kernel's word.
        source: io::Error,
    },
    /// The link could not be brought up.
    #[error("cannot bring interface `{name}` up")]
    LinkUp {
        /// The interface.
        name: String,
        /// The kernel's word.
        source: io::Error,
    },
    /// Another step failed.
    #[error("interface `{name}`: cannot {step}")]
    Setup {
        /// The interface.
        name: String,
        /// What was attempted.
        step: &'static str,
        /// The kernel's word.
        source: io::Error,
    },
}

impl PacketError {
    /// What its user can do, where that is known.
    pub fn help(&self) -> Option<String> {
        match self {
            Self::Name(error) => Some(error.help()),
            Self::Queues(_) | Self::Setup { .. } => None,
            Self::NotPermitted { .. } => {
                Some("give weir CAP_NET_RAW (and CAP_NET_ADMIN to set MTU and link state)".into())
            }
            Self::NoInterface { .. } => {
                Some("`ip link` lists the interfaces there are; one of kind `tap` is made".into())
            }
            Self::NotEthernet { name } => Some(format!(
                "`ip link show dev {name}` prints `link/ether` for one that can be an uplink"
            )),
            Self::Mtu { name, mtu, source } => Some(match source.kind() {
                io::ErrorKind::PermissionDenied => format!(
                    "give weir CAP_NET_ADMIN, or set it beforehand: `ip link set dev {name} mtu {mtu}`"
                ),
                _ => format!("`ip -d link show dev {name}` prints its minmtu and maxmtu"),
            }),
            Self::LinkUp { name, source } => match source.kind() {
                io::ErrorKind::PermissionDenied => Some(format!(
                    "give weir CAP_NET_ADMIN, or do it beforehand: `ip link set dev {name} up`"
                )),
                _ => None,
            },
        }
    }
}
