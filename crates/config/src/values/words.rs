//! Choices, a word for each.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{ValueError, serde_as_text};

/// Defines an enum of words, the text of each in one place.
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
    /// Which side of a vhost-user socket listens.
    SocketRole {
        /// weir listens and the VM monitor connects.
        #[default]
        Server = "server",
        /// The VM monitor listens; weir connects, and connects again when the VM comes back.
        Client = "client",
    }
}

words! {
    /// Which frames a filter rule is about, seen from the port as the counters are.
    Direction {
        /// What the port sends into the switch.
        #[default]
        Tx = "tx",
        /// What it receives.
        Rx = "rx",
    }
}

words! {
    /// What becomes of a frame that a filter rule matches.
    FilterAction {
        /// It passes.
        #[default]
        Accept = "accept",
        /// It goes nowhere.
        Drop = "drop",
    }
}

words! {
    /// Whether a guest is held to its addresses above Ethernet, and how they are known.
    GuardMode {
        /// It is not.
        #[default]
        Off = "off",
        /// To those that are configured.
        Configured = "configured",
        /// To those, and to what DHCP gives it.
        Snooped = "snooped",
    }
}

words! {
    /// Which threads do the work (Dong 2011 §4.3.1).
    Execution {
        /// A fixed number of workers, each of which serves many queues.
        #[default]
        Tasklet = "tasklet",
        /// A thread for each pair of queues, under the ordinary scheduler.
        Threads = "threads",
        /// The same under `SCHED_FIFO`.
        RtThreads = "rt-threads",
    }
}

words! {
    /// How workers wait for work (Raj 2006).
    Realization {
        /// As many as the load needs are at work, and they sleep when there is none.
        #[default]
        Adaptive = "adaptive",
        /// The work is spread over all of them, and they sleep when there is none.
        Shared = "shared",
        /// Each looks at its queues all the time, on a core of its own.
        Dedicated = "dedicated",
    }
}

words! {
    /// How weir chooses the processors on which its workers run.
    PlacementMode {
        /// Not at all: the kernel does.
        #[default]
        Off = "off",
        /// A core for each, in a cache where its guests' virtual processors may run.
        Static = "static",
        /// A core where that pays, in the cache where its guests' virtual processors do run.
        Dynamic = "dynamic",
    }
}

words! {
    /// What kind of tags are a port's own. Those of the other kind are payload.
    TagProtocol {
        /// Customers', 0x8100.
        #[default]
        Dot1q = "802.1q",
        /// A provider's, 0x88a8.
        Dot1ad = "802.1ad",
    }
}

impl TagProtocol {
    /// Says nothing that would not hold without it.
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
    /// What stands behind an uplink.
    UplinkKind {
        /// A TAP interface, made if it does not exist (`IFF_MULTI_QUEUE` with several queues).
        #[default]
        Tap = "tap",
        /// An existing interface, by packet sockets that share its frames by flow.
        AfPacket = "af_packet",
        /// An existing interface, by an AF_XDP socket for each receive queue, for weir alone.
        AfXdp = "af_xdp",
    }
}
