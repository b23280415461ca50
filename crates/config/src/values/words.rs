//! Choices, each with a word of the configuration.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{ValueError, serde_as_text};

/// Defines an enum and the word of each variant.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$word_doc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub enum $name {
            $($(#[$word_doc])* $variant,)+
        }

        impl $name {
            /// The words of the configuration.
            pub const WORDS: &'static [&'static str] = &[$($word,)+];
        }

        impl FromStr for $name {
            type Err = ValueError;
            fn from_str(text: &str) -> Result<Self, ValueError> {
                match text {
                    $($word => Ok(Self::$variant),)+
                    _ => Err(ValueError::NotAChoice { value: text.into(), choices: Self::WORDS }),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(match self {
                    $(Self::$variant => $word,)+
                })
            }
        }

        serde_as_text!($name);
    };
}

words! {
    /// The fate of connections that no rule of a group allows.
    GroupDefault {
        /// Such connections are refused.
        #[default]
        Deny = "deny",
        /// Such connections are allowed, and the group has no rules for that direction.
        Allow = "allow",
    }
}

words! {
    /// The direction in which a connection is opened, seen from the guest.
    RuleDirection {
        /// The connections that others open to the guest.
        #[default]
        In = "in",
        /// The connections that the guest opens.
        Out = "out",
    }
}

words! {
    /// weir's side of a vhost-user socket.
    SocketRole {
        /// weir listens and the VM monitor connects.
        #[default]
        Server = "server",
        /// The VM monitor listens; weir connects, and connects again when the VM comes back.
        Client = "client",
    }
}

words! {
    /// The direction of the frames that a filter rule applies to. The view is the port's, as in the counters.
    Direction {
        /// Frames that the port sends into the switch.
        #[default]
        Tx = "tx",
        /// Frames that the port receives.
        Rx = "rx",
    }
}

words! {
    /// The action on a frame that a filter rule matches.
    FilterAction {
        /// The frame passes.
        #[default]
        Accept = "accept",
        /// The frame is dropped.
        Drop = "drop",
    }
}

words! {
    /// The mode of the source guard: the IP addresses from which a guest may send.
    GuardMode {
        /// Any address.
        #[default]
        Off = "off",
        /// The configured addresses.
        Configured = "configured",
        /// The configured addresses, and those that DHCP gives the guest.
        Snooped = "snooped",
    }
}

words! {
    /// The threads that do the work (Dong 2011 §4.3.1).
    Execution {
        /// A fixed number of workers, each of which serves many queues.
        #[default]
        Tasklet = "tasklet",
        /// A thread for each pair of queues, under the ordinary scheduler.
        Threads = "threads",
        /// A thread for each pair of queues, under `SCHED_FIFO`.
        RtThreads = "rt-threads",
    }
}

words! {
    /// The way in which workers wait for work (Raj 2006).
    Realization {
        /// As many workers run as the load needs, and they sleep when there is no work.
        #[default]
        Adaptive = "adaptive",
        /// The work is spread over all workers, and they sleep when there is no work.
        Shared = "shared",
        /// Each worker polls its queues all the time, on its own core.
        Dedicated = "dedicated",
    }
}

words! {
    /// The way in which weir chooses the processors for its workers.
    PlacementMode {
        /// weir does not choose: the kernel does.
        #[default]
        Off = "off",
        /// Each worker gets a core, at a cache where its guests' virtual processors may run.
        Static = "static",
        /// A worker gets a core where that pays, at the cache where its guests' virtual processors do run.
        Dynamic = "dynamic",
    }
}

words! {
    /// The kind of tags that are a port's own. Tags of the other kind are payload.
    TagProtocol {
        /// Customer tags, 0x8100.
        #[default]
        Dot1q = "802.1q",
        /// Provider tags, 0x88a8.
        Dot1ad = "802.1ad",
    }
}

impl TagProtocol {
    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl From<TagProtocol> for weir_fabric::TagProtocol {
    fn from(protocol: TagProtocol) -> Self {
        match protocol {
            TagProtocol::Dot1q => Self::Dot1q,
            TagProtocol::Dot1ad => Self::Dot1ad,
        }
    }
}

words! {
    /// The kind of host interface behind an uplink.
    UplinkKind {
        /// A TAP interface, made if it does not exist (`IFF_MULTI_QUEUE` with several queues).
        #[default]
        Tap = "tap",
        /// An existing interface. Packet sockets share its frames by flow.
        AfPacket = "af_packet",
        /// An existing interface that weir has for itself, with an AF_XDP socket for each receive queue.
        AfXdp = "af_xdp",
        /// A stream socket that somebody else listens on, such as gvproxy's; each frame has its length in front.
        Stream = "stream",
        /// Several of these together, as one port. It is a table of its own, `[bond.NAME]`.
        Bond = "bond",
    }
}

words! {
    /// Which uplinks of a bond carry frames.
    BondMode {
        /// One of the uplinks: the first with a carrier, until its carrier is lost.
        #[default]
        ActiveBackup = "active-backup",
        /// All that have a carrier, each with its part of the flows.
        Balance = "balance",
        /// All that the other switch has together by LACP, each with its part of the flows.
        Lacp = "lacp",
    }
}

words! {
    /// How often the other end of a bond is to speak LACP.
    LacpRate {
        /// Each 30 seconds. The other end counts as gone after 90.
        #[default]
        Slow = "slow",
        /// Each second. The other end counts as gone after 3.
        Fast = "fast",
    }
}

impl UplinkKind {
    /// Whether an uplink of this kind uses an existing interface of the host, whose interrupts weir can set.
    pub fn has_card(self) -> bool {
        matches!(self, Self::AfPacket | Self::AfXdp)
    }
}
