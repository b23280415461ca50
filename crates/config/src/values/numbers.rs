//! Numbers with bounds.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use weir_limits as limits;

use super::{ValueError, schema_as};

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
            pub(crate) fn out_of_range(value: String) -> ValueError {
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

        schema_as!($name, u64);

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
    /// The VLAN of ports that name none.
    pub const DEFAULT: Self = Self(weir_fabric::Vid::DEFAULT);

    /// The number.
    pub const fn get(self) -> u16 {
        self.0.get()
    }

    /// The error for a number, as text, that is out of bounds.
    pub(crate) fn out_of_range(value: String) -> ValueError {
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

schema_as!(Vid, u64);

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
    /// The least number of addresses that the forwarding table has room for.
    FdbEntries(u32) = limits::FDB_ENTRIES_DEFAULT as u32, limits::FDB_ENTRIES_MAX as u32
}

bounded_integer! {
    /// An MTU in bytes: the largest packet inside an Ethernet frame.
    Mtu(u16) = limits::MTU_MIN, limits::MTU_MAX
}

bounded_integer! {
    /// A network's VNI, its number on the wire of an overlay (24 bits). weir does not use 0.
    Vni(u32) = 1, 0xff_ffff
}

bounded_integer! {
    /// A DSCP (RFC 2474).
    Dscp(u8) = 0, limits::DSCP_MAX
}

impl Dscp {
    /// Best effort.
    pub const DEFAULT: Self = Self(0);
}

bounded_integer! {
    /// A UDP port.
    UdpPort(u16) = 1, u16::MAX
}

bounded_integer! {
    /// A number of queue pairs (one RX and one TX virtqueue each), or of TAP queues.
    QueuePairs(u8) = 1, limits::QUEUE_PAIRS_MAX as u8
}

/// The number of virtqueue entries that weir asks a virtual machine for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct RingSize(u16);

impl RingSize {
    /// The default number of entries.
    pub const DEFAULT: Self = Self(limits::QUEUE_SIZE_SUGGESTED);
    /// QEMU takes powers of two between its bounds.
    const CHOICES: [&str; 3] = ["256", "512", "1024"];

    /// The number.
    pub const fn get(self) -> u16 {
        self.0
    }

    /// The error for a number, as text, that is none of the sizes.
    pub(crate) fn out_of_range(value: String) -> ValueError {
        ValueError::NotAChoice { value, choices: &Self::CHOICES }
    }
}

impl TryFrom<u64> for RingSize {
    type Error = ValueError;
    fn try_from(value: u64) -> Result<Self, ValueError> {
        value.to_string().parse()
    }
}

impl FromStr for RingSize {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let choice = Self::CHOICES.iter().position(|choice| *choice == text);
        let size = choice.map(|nth| Self(limits::QUEUE_SIZE_ASKED_MIN << nth));
        size.ok_or_else(|| Self::out_of_range(text.into()))
    }
}

schema_as!(RingSize, u64);

impl From<RingSize> for u64 {
    fn from(size: RingSize) -> u64 {
        size.0.into()
    }
}

impl fmt::Display for RingSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

bounded_integer! {
    /// The most interfaces on demand of a pattern.
    OnDemandMax(u16) = 1, limits::ON_DEMAND_VIFS_MAX as u16
}

impl Default for OnDemandMax {
    fn default() -> Self {
        Self(limits::ON_DEMAND_VIFS_DEFAULT as u16)
    }
}

bounded_integer! {
    /// The seconds for which a monitor may be away before its interface on demand is removed.
    ForgetSecs(u32) = 1, limits::ON_DEMAND_FORGET_SECS_MAX
}

impl Default for ForgetSecs {
    fn default() -> Self {
        Self(limits::ON_DEMAND_FORGET_SECS_DEFAULT)
    }
}

bounded_integer! {
    /// A number of worker threads.
    WorkerCount(u8) = 1, limits::WORKERS_MAX as u8
}

bounded_integer! {
    /// The time that a call is held (`rx-usecs`), in microseconds.
    RxUsecs(u32) = 0, (limits::LATENCY_BUDGET_NS_MAX / 1_000) as u32
}

bounded_integer! {
    /// The number of frames that ends the hold of a call (`rx-frames`).
    RxFrames(u16) = 1, limits::RX_FRAMES_MAX
}

bounded_integer! {
    /// The bytes of frames that fill a container.
    ContainerBytes(u32) = limits::FRAME_LEN_MIN, limits::CONTAINER_BYTES_MAX
}

bounded_integer! {
    /// An interface's part of a worker's time, in proportion to others'.
    Weight(u16) = 1, limits::WEIGHT_MAX
}

bounded_integer! {
    /// A rate in frames per second.
    PacketRate(u32) = 1, limits::RATE_PACKETS_MAX
}

bounded_integer! {
    /// A burst in frames.
    PacketBurst(u32) = 1, limits::RATE_BURST_PACKETS_MAX
}

/// The smallest table.
impl Default for FdbEntries {
    fn default() -> Self {
        Self(Self::MIN)
    }
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

impl UdpPort {
    /// The port of VXLAN (RFC 7348 §5).
    pub const VXLAN: Self = Self(4789);
}

impl PacketRate {
    /// The default limit of the frames that a network floods.
    pub const FLOODS_DEFAULT: Self = Self(limits::OVERLAY_FLOODS_PER_SEC_DEFAULT);
}

impl Mtu {
    /// The MTU that `overhead` bytes of headers leave of 1500.
    pub(crate) const fn within_ethernet(overhead: u16) -> Self {
        Self(Self::ETHERNET.0 - overhead)
    }

    /// The usual MTU of Ethernet, and the default of a port.
    pub const ETHERNET: Self = Self(1500);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ring_sizes_are_the_powers_of_two_that_qemu_takes() {
        let sizes = RingSize::CHOICES.map(|choice| choice.parse::<RingSize>().unwrap().get());
        let (least, most) = (limits::QUEUE_SIZE_ASKED_MIN, limits::QUEUE_SIZE_SUGGESTED);
        assert_eq!(sizes, [least, 2 * least, most]);
        for bad in ["0", "255", "300", "2048", "0256", "", "-256"] {
            assert!(bad.parse::<RingSize>().is_err(), "{bad}");
        }
        assert_eq!(RingSize::try_from(512).unwrap().to_string(), "512");
        assert!(RingSize::try_from(65792).is_err());
    }
}
