//! The reasons why an interface cannot be an uplink, or a TAP cannot be opened, and the user's remedies.

use std::io;

use weir_limits::IFNAME_LEN_MAX;
use weir_policy::steering::QueueCountError;

/// The reason why an interface of the host cannot be an uplink of any kind.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The name cannot be an interface's name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// There are more queues than weir serves, or none.
    #[error(transparent)]
    Queues(#[from] QueueCountError),
    /// There is no such interface.
    #[error("there is no interface `{name}`")]
    NoInterface {
        /// The interface.
        name: String,
    },
    /// The interface's frames are not Ethernet frames.
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
        /// The kernel's error.
        source: io::Error,
    },
    /// The link could not be brought up.
    #[error("cannot bring interface `{name}` up")]
    LinkUp {
        /// The interface.
        name: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// Another step failed.
    #[error("interface `{name}`: cannot {step}")]
    Setup {
        /// The interface.
        name: String,
        /// The step that failed.
        step: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

impl LinkError {
    /// Advice to the user, if there is any.
    pub fn help(&self) -> Option<String> {
        let is_denied = |source: &io::Error| source.kind() == io::ErrorKind::PermissionDenied;
        match self {
            Self::Name(error) => Some(error.help()),
            Self::NoInterface { .. } => {
                Some("`ip link` lists the interfaces there are; one of kind `tap` is made".into())
            }
            Self::NotEthernet { name } => Some(format!(
                "`ip link show dev {name}` prints `link/ether` for one that can be an uplink"
            )),
            Self::Mtu { name, mtu, source } if is_denied(source) => Some(format!(
                "give weir CAP_NET_ADMIN, or set it beforehand: `ip link set dev {name} mtu {mtu}`"
            )),
            Self::Mtu { name, .. } => {
                Some(format!("`ip -d link show dev {name}` prints its minmtu and maxmtu"))
            }
            Self::LinkUp { name, source } if is_denied(source) => Some(format!(
                "give weir CAP_NET_ADMIN, or do it beforehand: `ip link set dev {name} up`"
            )),
            Self::Queues(_) | Self::LinkUp { .. } | Self::Setup { .. } => None,
        }
    }
}

/// The reason why [`Tap::open`](crate::Tap::open) failed.
#[derive(Debug, thiserror::Error)]
pub enum TapError {
    /// The interface cannot be an uplink of any kind.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The kernel's TUN/TAP driver cannot be reached.
    #[error("cannot open /dev/net/tun")]
    NoDriver(#[source] io::Error),
    /// The process may neither make the TAP nor use the existing one.
    #[error("not permitted to use TAP `{name}`")]
    NotPermitted {
        /// The interface.
        name: String,
    },
    /// Another process has queues of the TAP.
    #[error("TAP `{name}` is in use by another process")]
    Busy {
        /// The interface.
        name: String,
    },
    /// An interface of that name exists, but it is no TAP, or not one with several queues.
    #[error("interface `{name}` exists, but is not a TAP that can have {queues} queue(s)")]
    WrongKind {
        /// The interface.
        name: String,
        /// Queues asked for.
        queues: usize,
    },
}

/// The reason why a name cannot be an interface's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` cannot be an interface's name: {problem}")]
pub struct NameError {
    /// The name.
    pub name: String,
    /// The fault of the name.
    pub problem: NameProblem,
}

impl NameError {
    /// Advice to the user.
    pub fn help(&self) -> String {
        format!("a name has 1 to {IFNAME_LEN_MAX} bytes without white space, `/`, `:` and `%`")
    }
}

/// A fault of an interface's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameProblem {
    /// No characters.
    #[error("it is empty")]
    Empty,
    /// The name has too many characters.
    #[error("it has {0} bytes, Linux takes {IFNAME_LEN_MAX}")]
    TooLong(usize),
    /// `.` or `..`, which would be a directory of sysfs.
    #[error("it names a directory")]
    Dots,
    /// White space, `/`, `:` or NUL, which Linux refuses, or `%`, by which it would make up a name.
    #[error("it contains {0:?}")]
    Character(char),
}

impl TapError {
    /// Advice to the user, if there is any.
    pub fn help(&self) -> Option<String> {
        match self {
            Self::Link(error) => error.help(),
            Self::NoDriver(source) => Some(match source.kind() {
                io::ErrorKind::PermissionDenied => {
                    "give this user read and write permission on /dev/net/tun".into()
                }
                _ => {
                    "load the driver (`modprobe tun`); in a container, pass /dev/net/tun in".into()
                }
            }),
            Self::NotPermitted { name } => Some(format!(
                "give weir CAP_NET_ADMIN, or make the TAP for its user beforehand: `ip tuntap add dev \
                 {name} mode tap multi_queue vnet_hdr user USER`"
            )),
            Self::Busy { name } => {
                Some(format!("end the process that has `{name}` open, or choose another name"))
            }
            Self::WrongKind { name, .. } => Some(format!(
                "make it anew: `ip link del {name}`, then `ip tuntap add dev {name} mode tap \
                 multi_queue vnet_hdr`; or remove it and let weir make it"
            )),
        }
    }
}
