//! Choices, each with a word of the configuration.

/// Defines an enum and the word of each variant.
macro_rules! words {
    (@or $first:literal $($rest:literal)*) => {
        concat!("\"", $first, "\"" $(, " or \"", $rest, "\"")*)
    };
    ($(#[$doc:meta])* $name:ident {
        $($(#[$word_doc:meta])* $variant:ident = $word:literal,)+
        // A word behind the semicolon is understood, and is no choice to suggest.
        $(; $(#[$apart_doc:meta])* $apart:ident = $apart_word:literal,)?
    }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub enum $name {
            $($(#[$word_doc])* $variant,)+
            $($(#[$apart_doc])* $apart,)?
        }

        impl $name {
            /// The words of the configuration.
            pub const WORDS: &'static [&'static str] = &[$($word,)+];
            /// The words for whoever wrote something else than a text.
            pub(crate) const EXPECTED: &'static str = $crate::values::words!(@or $($word)+);
        }

        impl std::str::FromStr for $name {
            type Err = $crate::values::ValueError;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                match text {
                    $($word => Ok(Self::$variant),)+
                    $($apart_word => Ok(Self::$apart),)?
                    _ => Err(Self::Err::NotAChoice { value: text.into(), choices: Self::WORDS }),
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(match self {
                    $(Self::$variant => $word,)+
                    $(Self::$apart => $apart_word,)?
                })
            }
        }

        $crate::values::serde_as_text!($name);
    };
}

pub(crate) use words;

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
    /// Which uplinks of a bond carry frames.
    BondMode {
        /// One of the uplinks: the first with a carrier, until its carrier is lost.
        #[default]
        ActiveBackup = "active-backup",
        /// All that have a carrier, each with its part of the flows.
        Balance = "balance",
        /// All that LACP has joined with the other switch, each with its part of the flows.
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
