//! Quantities with a unit, and the rules by which workers give turns.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use weir_limits as limits;
use weir_policy::schedule::{Kind, Window};

use super::{ValueError, serde_as_text};

/// The rule by which workers give turns to senders.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Schedule(pub Kind);

impl FromStr for Schedule {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let not_a_choice = |_| ValueError::NotAChoice { value: text.into(), choices: &Kind::NAMES };
        text.parse().map(Self).map_err(not_a_choice)
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Defines a quantity written as a whole number and a unit, with bounds.
macro_rules! quantity {
    ($(#[$doc:meta])* $name:ident = $min:expr, $max:expr, $expected:literal, $units:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(u64);

        impl $name {
            const MIN: Self = Self($min);
            const MAX: Self = Self($max);
            /// Units from the smallest to the largest. A quantity is shown in the largest unit that divides it.
            const UNITS: &'static [(&'static str, u64)] = &$units;

            /// The number, in the smallest unit.
            pub const fn get(self) -> u64 {
                self.0
            }
        }

        impl FromStr for $name {
            type Err = ValueError;
            fn from_str(text: &str) -> Result<Self, ValueError> {
                let digits = text.bytes().take_while(u8::is_ascii_digit).count();
                let (number, unit) = text.split_at(digits);
                let unit = Self::UNITS.iter().find(|(name, _)| unit.eq_ignore_ascii_case(name));
                let (false, Some((_, unit))) = (number.is_empty(), unit) else {
                    return Err(ValueError::Quantity { value: text.into(), expected: $expected });
                };
                // Digits alone fail to parse only if the number is too large.
                let number = number.parse::<u64>().ok().and_then(|number| number.checked_mul(*unit));
                let bounds = Self::MIN..=Self::MAX;
                number.map(Self).filter(|number| bounds.contains(number)).ok_or_else(|| {
                    let (min, max) = (Self::MIN.to_string(), Self::MAX.to_string());
                    ValueError::NotWithin { value: text.into(), min, max }
                })
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut units = Self::UNITS.iter().rev();
                let (name, unit) =
                    units.find(|(_, unit)| self.0.is_multiple_of(*unit)).unwrap_or(&("", 1));
                f.pad(&format!("{}{name}", self.0 / unit))
            }
        }

        serde_as_text!($name);
    };
}

quantity! {
    /// A rate in bits/s, in the units of `tc`.
    BitRate = limits::RATE_BITS_MIN, limits::RATE_BITS_MAX, "a rate, such as \"1Gbit\"",
    [("bit", 1), ("kbit", 1_000), ("Mbit", 1_000_000), ("Gbit", 1_000_000_000)]
}

quantity! {
    /// A burst in bytes.
    BurstSize = limits::RATE_BURST_BYTES_MIN, limits::RATE_BURST_BYTES_MAX,
    "a number of bytes, such as \"256KiB\"",
    [("B", 1), ("kB", 1_000), ("KiB", 1 << 10), ("MB", 1_000_000), ("MiB", 1 << 20), ("GiB", 1 << 30)]
}

quantity! {
    /// The most bytes of memory that a front end may share.
    MemoryMax = limits::MEMORY_MAX_MIN, limits::MEMORY_MAX_MAX,
    "a number of bytes, such as \"64GiB\"",
    [("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)]
}

impl MemoryMax {
    /// The default.
    pub const DEFAULT: Self = Self(limits::MEMORY_MAX_DEFAULT);
}

quantity! {
    /// The period of a window constraint, in nanoseconds.
    Period = limits::WINDOW_PERIOD_NS_MIN, limits::WINDOW_PERIOD_NS_MAX,
    "a duration, such as \"1ms\"",
    [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)]
}

quantity! {
    /// The duration of a DHCP lease, in seconds.
    LeaseTime = limits::LEASE_SECS_MIN, limits::LEASE_SECS_MAX, "a duration, such as \"1h\"",
    [("s", 1), ("min", 60), ("h", 3_600), ("d", 86_400)]
}

impl LeaseTime {
    /// The default.
    pub const DEFAULT: Self = Self(limits::LEASE_SECS_DEFAULT);
}

/// A window constraint `x/y`, such as `1/4`: of any `y` turns `x` may be late.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LateTurns {
    pub(crate) x: u16,
    pub(crate) y: u16,
}

impl FromStr for LateTurns {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let parsed =
            text.split_once('/').and_then(|(x, y)| Some((x.parse().ok()?, y.parse().ok()?)));
        let good = |(x, y): &(u16, u16)| Window::new(*x, *y, Period::MAX.get()).is_ok();
        match parsed.filter(good) {
            Some((x, y)) => Ok(Self { x, y }),
            None => {
                let expected = "x/y, of which x are late at most, such as \"1/4\"";
                Err(ValueError::Quantity { value: text.into(), expected })
            }
        }
    }
}

impl fmt::Display for LateTurns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}/{}", self.x, self.y))
    }
}

serde_as_text!(LateTurns);
