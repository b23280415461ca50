//! The reasons why an interface cannot be used by packet sockets, and the user's remedies.

use weir_port_tap::LinkError;

/// The reason why [`PacketSocket::open`](crate::PacketSocket::open) failed.
#[derive(Debug, thiserror::Error)]
pub enum PacketError {
    /// The interface cannot be an uplink of any kind.
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
    /// Advice to the user, if there is any.
    pub fn help(&self) -> Option<String> {
        match self {
            Self::Link(error) => error.help(),
            Self::NotPermitted { .. } => {
                Some("give weir CAP_NET_RAW (and CAP_NET_ADMIN to set MTU and link state)".into())
            }
        }
    }
}
