//! Errors for values that are refused.

use thiserror::Error;
use weir_filter::CompileError;
use weir_limits as limits;
use weir_wire::{Mac, MacParseError};

use super::{GuardMode, LatencyBudget};

/// The reason why a value is refused. `Display` says what is wrong with the value; [`ValueError::help`] says
/// what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ValueError {
    /// The value does not have the key's type.
    #[error("expected {expected}, found {found}")]
    WrongType {
        /// The values that the key takes, with an example.
        expected: &'static str,
        /// The TOML type that was found.
        found: &'static str,
    },
    /// An integer outside its bounds.
    #[error("must be {min} to {max}, not {value}")]
    OutOfRange {
        /// Smallest value.
        min: u64,
        /// Largest value.
        max: u64,
        /// The value as it was written.
        value: String,
    },
    /// A word that is none of the choices.
    #[error("`{value}` is not one of {}", quoted_list(.choices))]
    NotAChoice {
        /// The word.
        value: String,
        /// The choices.
        choices: &'static [&'static str],
    },
    /// A duration that has no number, no unit, or an unknown unit.
    #[error("`{value}` is not a duration")]
    Duration {
        /// The text.
        value: String,
    },
    /// A latency budget above `LATENCY_BUDGET_NS_MAX`.
    #[error("`{value}` is longer than the longest latency budget, {}", LatencyBudget::MAX)]
    BudgetTooLong {
        /// The text.
        value: String,
    },
    /// A text that is not a MAC address.
    #[error(transparent)]
    Mac(#[from] MacParseError),
    /// A MAC address that no interface can have as its own.
    #[error("{mac} is a {kind} address; an interface needs a unicast address")]
    MacNotUnicast {
        /// The address.
        mac: Mac,
        /// "multicast" or "zero".
        kind: &'static str,
    },
    /// A port name that is empty, is too long, or has a character that is not allowed.
    #[error("`{value}` cannot be the name of a port")]
    PortName {
        /// The name.
        value: String,
    },
    /// A network name that breaks the same rules.
    #[error("`{value}` cannot be the name of a network")]
    NetworkName {
        /// The name.
        value: String,
    },
    /// A text that cannot name a security group.
    #[error("`{value}` cannot be the name of a group")]
    SecurityGroup {
        /// The name.
        value: String,
    },
    /// A text that cannot name a template.
    #[error("`{value}` cannot be the name of a template")]
    TemplateName {
        /// The name.
        value: String,
    },
    /// A text that is no pattern of port names.
    #[error("`{value}` is no pattern of names")]
    NamePattern {
        /// The text.
        value: String,
    },
    /// A text that is not the address of an underlay host.
    #[error("`{value}` is not the address of a host")]
    HostAddress {
        /// The text.
        value: String,
    },
    /// A name that no user can have.
    #[error("`{value}` cannot be the name of a user")]
    UserName {
        /// The name.
        value: String,
    },
    /// A name that no group can have.
    #[error("`{value}` cannot be the name of a group")]
    GroupName {
        /// The name.
        value: String,
    },
    /// A text that is not the absolute path of a file.
    #[error("`{value}` is not the absolute path of a file")]
    FilePath {
        /// The text.
        value: String,
    },
    /// An address on which nothing can listen.
    #[error("`{value}` is not an address with a port")]
    ListenAddress {
        /// The text.
        value: String,
    },
    /// A name that Linux does not accept for a network interface.
    #[error("`{value}` cannot be the name of a network interface")]
    InterfaceName {
        /// The name.
        value: String,
    },
    /// A socket path that is not absolute.
    #[error("`{value}` is not an absolute path")]
    SocketPathRelative {
        /// The path.
        value: String,
    },
    /// A socket path that is longer than such paths may be.
    #[error("the path has {len} bytes; this socket's path has at most {max}")]
    SocketPathTooLong {
        /// The path's length in bytes.
        len: usize,
        /// The most bytes.
        max: usize,
    },
    /// A socket path with characters that a VM monitor's options cannot have.
    #[error("a socket's path must be UTF-8 text without quotes and control characters")]
    SocketPathText,
    /// A text that is not an octal file mode.
    #[error("`{value}` is not a file mode")]
    SocketMode {
        /// The text.
        value: String,
    },
    /// A filter expression that libpcap does not understand, or whose program weir does not run.
    #[error("{0}")]
    Filter(CompileError),
    /// A text that is not a filter rule.
    #[error("`{value}` is not a rule")]
    FilterRule {
        /// The text.
        value: String,
    },
    /// A text that is not a quantity of the expected kind.
    #[error("`{value}` is not {expected}")]
    Quantity {
        /// The text.
        value: String,
        /// The values that the key takes, with an example.
        expected: &'static str,
    },
    /// A quantity outside its bounds.
    #[error("`{value}` is not within {min} to {max}")]
    NotWithin {
        /// The text.
        value: String,
        /// Smallest quantity.
        min: String,
        /// Largest quantity.
        max: String,
    },
    /// A prefix whose address is not the first of its network.
    #[error("`{value}` is an address within {network}, not the network itself")]
    HostBits {
        /// The text.
        value: String,
        /// The whole network.
        network: String,
    },
    /// An address that no station has.
    #[error("`{value}` cannot be a guest's address")]
    AddressNotUnicast {
        /// The text.
        value: String,
    },
    /// A trunk without VLANs.
    #[error("a trunk needs at least one VLAN")]
    TrunkEmpty,
}

impl ValueError {
    /// Advice on what to write instead, unless the message alone says it.
    pub fn help(&self) -> Option<String> {
        Some(match self {
            Self::Duration { .. } => {
                "write a whole number and a unit (ns, us, ms or s), for example \"250us\"".into()
            }
            Self::BudgetTooLong { .. } => {
                "the budget bounds the delay weir adds to a packet; 50us to 1ms is usual".into()
            }
            Self::MacNotUnicast { .. } => {
                "the lowest bit of the first byte must be 0, as in \"52:54:00:12:34:56\"".into()
            }
            Self::HostAddress { .. } => {
                "write an IPv4 or IPv6 address that one host has, such as \"192.0.2.1\"; names are not looked up"
                    .into()
            }
            Self::PortName { .. } | Self::NetworkName { .. } | Self::SecurityGroup { .. } | Self::TemplateName { .. } => format!(
                "1 to {} characters out of a-z, 0-9, `-`, `_` and `.`, the first a letter or digit",
                limits::PORT_NAME_LEN_MAX
            ),
            Self::NamePattern { .. } => {
                "write the name of a port with one `*`, which stands for any characters: \"vm-*\"".into()
            }
            Self::UserName { .. } | Self::GroupName { .. } => format!(
                "1 to {} printable characters, without `/` and `:`; or a number",
                limits::USER_NAME_LEN_MAX
            ),
            Self::FilePath { .. } => "write the path from / on".into(),
            Self::ListenAddress { .. } => {
                "write numbers, for example \"127.0.0.1:9101\" or \"[::1]:9101\"".into()
            }
            Self::InterfaceName { .. } => format!(
                "1 to {} characters, without spaces, `/`, `:` and `%`",
                limits::IFNAME_LEN_MAX
            ),
            Self::SocketPathRelative { .. } => {
                "write the path from / on: other programs start in other directories".into()
            }
            Self::SocketPathTooLong { .. } => {
                "choose a shorter directory, such as /run/weir".into()
            }
            Self::SocketMode { .. } => "write an octal mode in quotes, for example \"0660\"".into(),
            Self::Filter(_) => {
                "pcap-filter(7) says how expressions are written; weir's limits are in its guide"
                    .into()
            }
            Self::FilterRule { .. } => {
                "write tx or rx, accept or drop, and an expression: \"tx drop tcp dst port 25\""
                    .into()
            }
            Self::HostBits { network, .. } => {
                format!("write the address without a length, or all of the network: \"{network}\"")
            }
            Self::TrunkEmpty => "write for example [10, 20], or \"all\"".into(),
            Self::NotAChoice { value, choices } => match crate::suggest::closest(value, choices) {
                Some(word) => format!("did you mean `{word}`?"),
                None if *choices == GuardMode::WORDS => {
                    "with configured the guest sends from its addresses only, with snooped also from those that DHCP gives \
                     it"
                        .into()
                }
                None => return None,
            },
            Self::Mac(_)
            | Self::WrongType { .. }
            | Self::OutOfRange { .. }
            | Self::Quantity { .. }
            | Self::NotWithin { .. }
            | Self::AddressNotUnicast { .. }
            | Self::SocketPathText => return None,
        })
    }
}

fn quoted_list(words: &[&str]) -> String {
    words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}
