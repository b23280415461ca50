//! The types of configuration values. Each can only be made from a valid value, so whatever holds
//! one (a file, a control request, a test) has been checked.

mod error;
mod names;
mod numbers;
mod quantities;
mod vlan;
mod words;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use weir_limits as limits;
use weir_wire::Mac;

pub use error::ValueError;
pub use names::{
    BondUplinks, ChannelName, FilePath, GroupName, HostAddress, InterfaceName, NamePattern,
    NetworkName, Owner, PortName, SecurityGroup, SocketMode, SocketPath, TemplateName, UserName,
};
pub use numbers::{
    ContainerBytes, Dscp, FdbEntries, ForgetSecs, Mtu, OnDemandMax, PacketBurst, PacketRate,
    QueuePairs, RingSize, RxFrames, RxUsecs, UdpPort, Vid, Vni, Weight, WorkerCount,
};
pub use quantities::{BitRate, BurstSize, LateTurns, LeaseTime, MemoryMax, Period, Schedule};
pub use vlan::{MirroredPorts, TrunkVids, VlanMode};
pub(crate) use words::words;
pub use words::{
    BondMode, Direction, Execution, FilterAction, GroupDefault, GuardMode, LacpRate, PlacementMode,
    Realization, RuleDirection, SocketRole, TagProtocol,
};

/// Gives a type the OpenAPI schema of the type that it is serialised as.
macro_rules! schema_as {
    ($type:ty, $written:ty) => {
        impl utoipa::PartialSchema for $type {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
                <$written as utoipa::PartialSchema>::schema()
            }
        }
        impl utoipa::ToSchema for $type {}
    };
}

/// Serialises a type as the text of its `Display` and reads it back by its `FromStr`.
macro_rules! serde_as_text {
    ($type:ty) => {
        $crate::values::schema_as!($type, String);
        impl TryFrom<String> for $type {
            type Error = $crate::values::ValueError;
            fn try_from(text: String) -> Result<Self, Self::Error> {
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

pub(crate) use {schema_as, serde_as_text};

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
    /// The budget if none is configured.
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
        // Digits alone fail to parse only if the number is too large.
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
    /// The address that weir suggests for the guest behind `name` without a configured one: `52:54:00` (QEMU's
    /// locally administered prefix) and the low 24 bits of the name's FNV-1a hash, so that it stays the same at
    /// each start of the VM.
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

/// The DSCP of the overlay's datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OverlayDscp {
    /// A configured DSCP.
    Fixed(Dscp),
    /// The DSCP of the inner packet.
    Inherit,
}

impl Default for OverlayDscp {
    fn default() -> Self {
        Self::Fixed(Dscp::DEFAULT)
    }
}

impl fmt::Display for OverlayDscp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(dscp) => dscp.fmt(f),
            Self::Inherit => f.write_str("inherit"),
        }
    }
}

/// The number of workers that serve the queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workers {
    /// A number that fits the machine and the ports.
    Auto,
    /// A configured number.
    Count(WorkerCount),
}

impl fmt::Display for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Count(number) => number.fmt(f),
        }
    }
}
