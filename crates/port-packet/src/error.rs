//! Why an interface cannot be used by packet sockets, and what its user can do about it.

use weir_port_tap::LinkError;

/// Why [`PacketSocket::open`](crate::PacketSocket::open) failed.
#[derive(Debug, thiserror::Error)]
pub enum PacketError {
    /// As with any interface.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The privilege for packet sockets is missing.
    #[error("not permitted to open a packet socket on interface `{name}`")]
    NotPermitted {
        /// The interface.
        name: String,
    },
}

impl PacketError {
    /// What its user can do, where that is known.
    pub fn help(&self) -> Option<String> {
        match self {
            Self::Link(error) => error.help(),
            Self::NotPermitted { .. } => {
                Some("give weir CAP_NET_RAW (and CAP_NET_ADMIN to set MTU and link state)".into())
            }
        }
    }
}
