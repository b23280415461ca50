//! The types of configuration values. Each can only be made from a valid value, so whatever holds
//! one (a file, a control request, a test) has been checked.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use weir_filter::CompileError;
use weir_limits as limits;
use weir_wire::{Mac, MacParseError};

/// Why a value was refused. `Display` says what is wrong with the value; [`ValueError::help`] says
/// what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ValueError {
    /// The value has another type than the key needs.
    #[error("expected {expected}, found {found}")]
    WrongType {
        /// What the key takes, with an example.
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
    /// A word that is not one of the possible ones.
    #[error("`{value}` is not one of {}", quoted_list(.choices))]
    NotAChoice {
        /// The word.
        value: String,
        /// The possible words.
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
    /// Not the text of a MAC address.
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
    /// A port name with a character that it may not have, or too long, or empty.
    #[error("`{value}` cannot be the name of a port")]
    PortName {
        /// The name.
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
    /// A socket path that does not fit into `sockaddr_un`.
    #[error(
        "the path has {len} bytes; a socket's path has at most {}",
        limits::SOCKET_PATH_LEN_MAX
    )]
    SocketPathTooLong {
        /// Its length in bytes.
        len: usize,
    },
    /// A socket path with characters that cannot be passed on to a VM monitor.
    #[error("a socket's path must be UTF-8 text without quotes and control characters")]
    SocketPathText,
    /// Not an octal file mode.
    #[error("`{value}` is not a file mode")]
    SocketMode {
        /// The text.
        value: String,
    },
    /// libpcap does not understand a filter expression, or makes of it what weir does not run.
    #[error("{0}")]
    Filter(CompileError),
    /// Text that is no filter rule.
    #[error("`{value}` is not a rule")]
    FilterRule {
        /// The text.
        value: String,
    },
    /// Not a quantity of the kind that is meant.
    #[error("`{value}` is not {expected}")]
    Quantity {
        /// The text.
        value: String,
        /// What the key takes, with an example.
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
    /// A trunk without VLANs.
    #[error("a trunk needs at least one VLAN")]
    TrunkEmpty,
}

impl ValueError {
    /// What to write instead, where the message alone does not say it.
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
            Self::PortName { .. } => format!(
                "1 to {} characters out of a-z, 0-9, `-`, `_` and `.`, the first a letter or digit",
                limits::PORT_NAME_LEN_MAX
            ),
            Self::InterfaceName { .. } => format!(
                "1 to {} characters, without spaces, `/`, `:` and `%`",
                limits::IFNAME_LEN_MAX
            ),
            Self::SocketPathRelative { .. } => {
                "the VM monitor starts in another directory; write the path from / on".into()
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
            Self::TrunkEmpty => "write for example [10, 20], or \"all\"".into(),
            Self::NotAChoice { value, choices } => {
                format!("did you mean `{}`?", super::suggest::closest(value, choices)?)
            }
            Self::Mac(_)
            | Self::WrongType { .. }
            | Self::OutOfRange { .. }
            | Self::Quantity { .. }
            | Self::NotWithin { .. }
            | Self::SocketPathText => return None,
        })
    }
}

fn quoted_list(words: &[&str]) -> String {
    words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}

/// Serialises a type as the text of its `Display` and reads it back by its `FromStr`.
macro_rules! serde_as_text {
    ($type:ty) => {
        impl TryFrom<String> for $type {
            type Error = ValueError;
            fn try_from(text: String) -> Result<Self, ValueError> {
                text.parse()
            }
        }
        impl From<$type> for String {
            fn from(value: $type) -> String {
                value.to_string()
            }
        }
    };
}

/// Defines an integer type with bounds, checked when it is made and when it is deserialised.
macro_rules! bounded_integer {
    ($(#[$doc:meta])* $name:ident($int:ty) = $min:expr, $max:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "u64", into = "u64")]
        pub struct $name($int);

        impl $name {
            /// Smallest value.
            pub const MIN: $int = $min;
            /// Largest value.
            pub const MAX: $int = $max;

            /// The number.
            pub const fn get(self) -> $int {
                self.0
            }
        }

        impl TryFrom<u64> for $name {
            type Error = ValueError;
            fn try_from(value: u64) -> Result<Self, ValueError> {
                <$int>::try_from(value)
                    .ok()
                    .filter(|int| (Self::MIN..=Self::MAX).contains(int))
                    .map(Self)
                    .ok_or_else(|| Self::out_of_range(value.to_string()))
            }
        }

        impl $name {
            /// The error for a number, as text, that is out of bounds.
            pub(super) fn out_of_range(value: String) -> ValueError {
                ValueError::OutOfRange { min: Self::MIN.into(), max: Self::MAX.into(), value }
            }
        }

        impl FromStr for $name {
            type Err = ValueError;
            fn from_str(text: &str) -> Result<Self, ValueError> {
                let number = text.parse::<u64>().map_err(|_| Self::out_of_range(text.into()))?;
                Self::try_from(number)
            }
        }

        impl From<$name> for u64 {
            fn from(value: $name) -> u64 {
                value.0.into()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

/// A VLAN id, 1 to 4094 (IEEE 802.1Q).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Vid(weir_fabric::Vid);

impl Vid {
    /// The number.
    pub const fn get(self) -> u16 {
        self.0.get()
    }

    /// The error for a number, as text, that is out of bounds.
    pub(super) fn out_of_range(value: String) -> ValueError {
        ValueError::OutOfRange { min: 1, max: limits::VLAN_ID_MAX.into(), value }
    }
}

impl TryFrom<u64> for Vid {
    type Error = ValueError;
    fn try_from(value: u64) -> Result<Self, ValueError> {
        u16::try_from(value)
            .ok()
            .and_then(|vid| weir_fabric::Vid::new(vid).ok())
            .map(Self)
            .ok_or_else(|| Self::out_of_range(value.to_string()))
    }
}

impl From<Vid> for u64 {
    fn from(vid: Vid) -> u64 {
        vid.get().into()
    }
}

impl From<Vid> for weir_fabric::Vid {
    fn from(vid: Vid) -> Self {
        vid.0
    }
}

impl fmt::Display for Vid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

bounded_integer! {
    /// An MTU in bytes: the largest packet inside an Ethernet frame.
    Mtu(u16) = limits::MTU_MIN, limits::MTU_MAX
}

bounded_integer! {
    /// A number of queue pairs (one RX and one TX virtqueue each), or of TAP queues.
    QueuePairs(u8) = 1, limits::QUEUE_PAIRS_MAX as u8
}

bounded_integer! {
    /// A number of worker threads.
    WorkerCount(u8) = 1, limits::WORKERS_MAX as u8
}

bounded_integer! {
    /// How long a call is held (`rx-usecs`), in microseconds.
    RxUsecs(u32) = 0, (limits::LATENCY_BUDGET_NS_MAX / 1_000) as u32
}

bounded_integer! {
    /// With how many frames a call is held no longer (`rx-frames`).
    RxFrames(u16) = 1, limits::RX_FRAMES_MAX
}

bounded_integer! {
    /// With how many bytes of frames a container is full.
    ContainerBytes(u32) = limits::FRAME_LEN_MIN, limits::CONTAINER_BYTES_MAX
}

bounded_integer! {
    /// An interface's part of a worker's time, in proportion to others'.
    Weight(u16) = 1, limits::WEIGHT_MAX
}

bounded_integer! {
    /// Frames in a second.
    PacketRate(u32) = 1, limits::RATE_PACKETS_MAX
}

bounded_integer! {
    /// Frames at once.
    PacketBurst(u32) = 1, limits::RATE_BURST_PACKETS_MAX
}

/// One queue pair.
impl Default for QueuePairs {
    fn default() -> Self {
        Self(1)
    }
}

impl RxUsecs {
    /// The time in nanoseconds.
    pub fn ns(self) -> u64 {
        u64::from(self.0) * 1_000
    }
}

impl Mtu {
    /// The usual MTU of Ethernet, which a port has where nothing says otherwise.
    pub const ETHERNET: Self = Self(1500);
}

/// The name of a port (a VIF or an uplink): 1 to 32 characters out of `a-z0-9-_.`, beginning with a
/// letter or a digit. It is safe as a file name, in a shell and in a VM monitor's options.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PortName(String);

impl PortName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for PortName {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let good = text.len() <= limits::PORT_NAME_LEN_MAX
            && text.bytes().next().is_some_and(plain)
            && text.bytes().all(|byte| plain(byte) || b"-_.".contains(&byte));
        if good { Ok(Self(text.into())) } else { Err(ValueError::PortName { value: text.into() }) }
    }
}

impl fmt::Display for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

serde_as_text!(PortName);

/// The name of a network interface of the host, as Linux's `dev_valid_name` accepts it and without
/// `%`, which asks the kernel to choose a number.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct InterfaceName(String);

impl InterfaceName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for InterfaceName {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let good = (1..=limits::IFNAME_LEN_MAX).contains(&text.len())
            && text != "."
            && text != ".."
            && text.chars().all(|c| !c.is_whitespace() && !c.is_control() && !"/:%".contains(c));
        if good {
            Ok(Self(text.into()))
        } else {
            Err(ValueError::InterfaceName { value: text.into() })
        }
    }
}

impl fmt::Display for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

serde_as_text!(InterfaceName);

/// The absolute path of a Unix socket, at most 107 bytes. It is text without quotes and control
/// characters, since it is passed on in a VM monitor's options.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SocketPath(String);

impl SocketPath {
    /// The path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The path.
    pub fn as_path(&self) -> &Path {
        Path::new(&self.0)
    }
}

impl FromStr for SocketPath {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        if !text.starts_with('/') {
            return Err(ValueError::SocketPathRelative { value: text.into() });
        }
        if text.len() > limits::SOCKET_PATH_LEN_MAX {
            return Err(ValueError::SocketPathTooLong { len: text.len() });
        }
        if text.chars().any(|c| c.is_control() || c == '"' || c == '\'') {
            return Err(ValueError::SocketPathText);
        }
        Ok(Self(text.into()))
    }
}

impl TryFrom<&Path> for SocketPath {
    type Error = ValueError;
    fn try_from(path: &Path) -> Result<Self, ValueError> {
        path.to_str().ok_or(ValueError::SocketPathText)?.parse()
    }
}

impl From<&SocketPath> for PathBuf {
    fn from(path: &SocketPath) -> PathBuf {
        PathBuf::from(&path.0)
    }
}

impl fmt::Display for SocketPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

serde_as_text!(SocketPath);

/// The permissions of a socket file, as in `chmod`; at most `0777`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SocketMode(u32);

impl SocketMode {
    /// For the owner only.
    pub const OWNER: Self = Self(0o600);

    /// The mode bits.
    pub const fn bits(self) -> u32 {
        self.0
    }
}

impl FromStr for SocketMode {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let octal = !text.is_empty() && text.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
        match u32::from_str_radix(text, 8) {
            Ok(bits) if octal && bits <= 0o777 => Ok(Self(bits)),
            _ => Err(ValueError::SocketMode { value: text.into() }),
        }
    }
}

impl fmt::Display for SocketMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

serde_as_text!(SocketMode);

/// The longest time weir may add on purpose between a packet's arrival and the guest's interrupt.
/// Zero means that no packet waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LatencyBudget {
    ns: u64,
}

impl LatencyBudget {
    /// The largest budget.
    pub const MAX: Self = Self { ns: limits::LATENCY_BUDGET_NS_MAX };
    /// The budget where the configuration says nothing.
    pub const DEFAULT: Self = Self { ns: limits::LATENCY_BUDGET_NS_DEFAULT };
    const UNITS: [(&'static str, u64); 4] =
        [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];

    /// The budget in nanoseconds.
    pub const fn ns(self) -> u64 {
        self.ns
    }
}

impl FromStr for LatencyBudget {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let not_a_duration = || ValueError::Duration { value: text.into() };
        let too_long = || ValueError::BudgetTooLong { value: text.into() };
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let (_, unit_ns) =
            Self::UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(not_a_duration)?;
        if number.is_empty() {
            return Err(not_a_duration());
        }
        // All that is left to go wrong with a row of digits is that they are too many.
        let number: u64 = number.parse().map_err(|_| too_long())?;
        match number.checked_mul(*unit_ns) {
            Some(ns) if ns <= Self::MAX.ns => Ok(Self { ns }),
            _ => Err(too_long()),
        }
    }
}

impl fmt::Display for LatencyBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, unit_ns) = Self::UNITS
            .iter()
            .rev()
            .find(|(_, unit_ns)| self.ns != 0 && self.ns.is_multiple_of(*unit_ns))
            .unwrap_or(&("us", 1_000));
        f.pad(&format!("{}{unit}", self.ns / unit_ns))
    }
}

serde_as_text!(LatencyBudget);

/// A unicast MAC address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MacAddress(Mac);

impl MacAddress {
    /// The address weir suggests for the guest behind `name` where none is configured:
    /// `52:54:00` (the prefix QEMU uses, locally administered) and the low 24 bits of the name's
    /// FNV-1a hash, so that it stays the same from one start of the VM to the next.
    pub fn derived_from(name: &PortName) -> Self {
        const FNV_OFFSET: u32 = 0x811c_9dc5;
        const FNV_PRIME: u32 = 0x0100_0193;
        let hash = name
            .as_str()
            .bytes()
            .fold(FNV_OFFSET, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(FNV_PRIME));
        let [_, a, b, c] = hash.to_be_bytes();
        Self(Mac([0x52, 0x54, 0x00, a, b, c]))
    }
}

impl From<MacAddress> for Mac {
    fn from(mac: MacAddress) -> Mac {
        mac.0
    }
}

impl FromStr for MacAddress {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let mac: Mac = text.parse()?;
        if mac.is_zero() {
            return Err(ValueError::MacNotUnicast { mac, kind: "zero" });
        }
        if mac.is_multicast() {
            return Err(ValueError::MacNotUnicast { mac, kind: "multicast" });
        }
        Ok(Self(mac))
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

serde_as_text!(MacAddress);

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

/// How many workers serve the queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workers {
    /// As many as the machine and the ports ask for.
    Auto,
    /// This many.
    Count(WorkerCount),
}

/// The VLANs a trunk carries with a tag.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrunkVids {
    /// Every VLAN.
    All,
    /// These.
    Only(BTreeSet<Vid>),
}

impl fmt::Display for TrunkVids {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Only(vids) => {
                f.write_str(&vids.iter().map(Vid::to_string).collect::<Vec<_>>().join(","))
            }
        }
    }
}

/// How a port takes part in VLANs (IEEE 802.1Q).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum VlanMode {
    /// Nothing is configured: the fabric's default for the kind of port holds.
    #[default]
    Unset,
    /// Frames are untagged on the port and belong to this VLAN.
    Access(Vid),
    /// Frames carry their VLAN's tag.
    Trunk {
        /// The VLANs the port is a member of.
        allowed: TrunkVids,
        /// The VLAN of untagged frames; without it they are dropped.
        native: Option<Vid>,
    },
}

impl fmt::Display for VlanMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Unset => "-".into(),
            Self::Access(vid) => vid.to_string(),
            Self::Trunk { allowed, native: None } => format!("trunk {allowed}"),
            Self::Trunk { allowed, native: Some(vid) } => format!("trunk {allowed} native {vid}"),
        };
        f.pad(&text)
    }
}
