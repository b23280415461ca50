//! What an interface is entitled to of the workers, and how fast it may send and receive.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use weir_engine::{Rate, RateLimit};
use weir_limits as limits;
use weir_policy::schedule::{Kind, Share, Window};

use super::error::Problem;
use super::receiving::{Receiving, ReceivingChanges};
use super::section::{Located, Section};
use super::settings::Change;
use super::values::{PacketBurst, PacketRate, ValueError, Weight};

/// By which rule workers give turns to those who send.
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
            /// From the smallest on; the first name of each size is the one that is shown.
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
                // All that is left to go wrong with a row of digits is that they are too many.
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

        impl TryFrom<String> for $name {
            type Error = ValueError;
            fn try_from(text: String) -> Result<Self, ValueError> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(value: $name) -> String {
                value.to_string()
            }
        }
    };
}

quantity! {
    /// A rate in bits/s, in the units of `tc`.
    BitRate = limits::RATE_BITS_MIN, limits::RATE_BITS_MAX, "a rate, such as \"1Gbit\"",
    [("bit", 1), ("kbit", 1_000), ("Mbit", 1_000_000), ("Gbit", 1_000_000_000)]
}

quantity! {
    /// A number of bytes that may go at once.
    BurstSize = limits::RATE_BURST_BYTES_MIN, limits::RATE_BURST_BYTES_MAX,
    "a number of bytes, such as \"256KiB\"",
    [("B", 1), ("kB", 1_000), ("KiB", 1 << 10), ("MB", 1_000_000), ("MiB", 1 << 20), ("GiB", 1 << 30)]
}

quantity! {
    /// Bytes of memory that a front end may share.
    MemoryMax = limits::MEMORY_MAX_MIN, limits::MEMORY_MAX_MAX,
    "a number of bytes, such as \"64GiB\"",
    [("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)]
}

impl MemoryMax {
    /// Where nothing is configured.
    pub const DEFAULT: Self = Self(limits::MEMORY_MAX_DEFAULT);
}

quantity! {
    /// The period of a window constraint, in nanoseconds.
    Period = limits::WINDOW_PERIOD_NS_MIN, limits::WINDOW_PERIOD_NS_MAX,
    "a duration, such as \"1ms\"",
    [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)]
}

/// How many turns of how many may be late: `1/4`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LateTurns {
    x: u16,
    y: u16,
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

impl TryFrom<String> for LateTurns {
    type Error = ValueError;
    fn try_from(text: String) -> Result<Self, ValueError> {
        text.parse()
    }
}

impl From<LateTurns> for String {
    fn from(value: LateTurns) -> String {
        value.to_string()
    }
}

/// What an interface is entitled to, as it is configured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sharing {
    /// Its part of a worker's time, in proportion to others'; 1 where nothing is said.
    pub weight: Option<Weight>,
    /// How many turns may be late.
    pub window: Option<LateTurns>,
    /// How often a turn is due.
    pub period: Option<Period>,
    /// How fast the guest may send.
    pub rate: Option<BitRate>,
    /// How much more than that at once.
    pub burst: Option<BurstSize>,
    /// How many frames it may send in a second.
    pub packets_per_second: Option<PacketRate>,
    /// How many more than that at once.
    pub packet_burst: Option<PacketBurst>,
    /// How much the guest may receive.
    pub receive: Receiving,
}

/// Settings that do not go together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SharingError {
    /// A key without another that it belongs to.
    #[error("`{key}` without `{needs}`")]
    Without {
        /// The key.
        key: &'static str,
        /// The other.
        needs: &'static str,
    },
    /// A key that the switch's schedule makes nothing of.
    #[error("`{key}` means nothing to schedule \"{schedule}\"")]
    Unused {
        /// The key.
        key: &'static str,
        /// The schedule.
        schedule: Schedule,
    },
}

impl SharingError {
    /// The key that does not fit.
    pub fn key(self) -> &'static str {
        match self {
            Self::Without { key, .. } | Self::Unused { key, .. } => key,
        }
    }

    /// What to do about it.
    pub fn help(self) -> String {
        match self {
            Self::Without { needs, .. } => format!("add `{needs}`"),
            Self::Unused { key: "weight", .. } => {
                "remove it, or set `schedule = \"drr\"` in [switch]".into()
            }
            Self::Unused { .. } => "remove it, or set `schedule = \"dwcs\"` in [switch]".into(),
        }
    }
}

impl Sharing {
    /// Whether the settings go together, and with the switch's `schedule` where that is known.
    ///
    /// # Errors
    /// The first that does not.
    pub fn check(&self, schedule: Option<Schedule>) -> Result<(), SharingError> {
        let pairs = [
            ("window", self.window.is_some(), "period", self.period.is_some()),
            ("period", self.period.is_some(), "window", self.window.is_some()),
            ("burst", self.burst.is_some(), "rate", self.rate.is_some()),
            (
                "packet_burst",
                self.packet_burst.is_some(),
                "packets_per_second",
                self.packets_per_second.is_some(),
            ),
        ];
        for (key, has, needs, has_needed) in pairs {
            if has && !has_needed {
                return Err(SharingError::Without { key, needs });
            }
        }
        self.receive.check()?;
        let Some(schedule) = schedule else { return Ok(()) };
        let uses = [
            ("weight", self.weight.is_some(), Kind::Drr),
            ("window", self.window.is_some(), Kind::Dwcs),
        ];
        match uses.into_iter().find(|(_, has, kind)| *has && *kind != schedule.0) {
            Some((key, ..)) => Err(SharingError::Unused { key, schedule }),
            None => Ok(()),
        }
    }

    /// What the engine is told: its turns.
    pub fn share(&self) -> Share {
        let window = self.window.zip(self.period).and_then(|(late, period)| {
            // Both were checked when they were made.
            Window::new(late.x, late.y, period.get()).ok()
        });
        Share { weight: self.weight.map_or(1, Weight::get), window }
    }

    /// What the engine is told: how fast it may send. Where no burst is set, it is what the rate brings in
    /// [`RATE_BURST_NS_DEFAULT`](limits::RATE_BURST_NS_DEFAULT), and room for a GSO frame or a burst.
    pub fn limit(&self) -> RateLimit {
        let bits = (self.rate, self.burst);
        let packets = (self.packets_per_second, self.packet_burst);
        rate_limit(bits, packets, limits::RATE_BURST_NS_DEFAULT)
    }

    /// Reads the keys of an interface's section.
    pub(super) fn from_section(
        section: &mut Section<'_>,
        schedule: Option<Schedule>,
        problems: &mut Vec<Problem>,
    ) -> Self {
        let before = problems.len();
        let sharing = Self {
            weight: section.take("weight", problems).map(Located::into_value),
            window: section.take("window", problems).map(Located::into_value),
            period: section.take("period", problems).map(Located::into_value),
            rate: section.take("rate", problems).map(Located::into_value),
            burst: section.take("burst", problems).map(Located::into_value),
            packets_per_second: section
                .take("packets_per_second", problems)
                .map(Located::into_value),
            packet_burst: section.take("packet_burst", problems).map(Located::into_value),
            receive: Receiving::from_section(section, problems),
        };
        // A value that was refused is not missing.
        if before == problems.len() {
            sharing.report(section, schedule, problems);
        }
        sharing
    }

    /// Reports what does not go together.
    fn report(
        &self,
        section: &mut Section<'_>,
        schedule: Option<Schedule>,
        problems: &mut Vec<Problem>,
    ) {
        let Err(error) = self.check(schedule) else { return };
        let span = section.refuse(error.key()).unwrap_or(section.span.clone());
        problems.push(
            Problem::new(format!("`{}`: {error}", section.title))
                .label(span, "does not fit")
                .help(error.help()),
        );
    }
}

/// A limit in the engine's numbers. Without a burst it is what comes in `burst_ns`, and room for a GSO frame or
/// a burst of frames.
pub(super) fn rate_limit(
    (rate, burst): (Option<BitRate>, Option<BurstSize>),
    (packet_rate, packet_burst): (Option<PacketRate>, Option<PacketBurst>),
    burst_ns: u64,
) -> RateLimit {
    let in_default_time = |per_s: u64| per_s / (1_000_000_000 / burst_ns);
    let bits = rate.map(|rate| {
        let default = in_default_time(rate.get()).max(8 * u64::from(limits::FRAME_LEN_MAX));
        Rate { per_s: rate.get(), burst: burst.map_or(default, |burst| 8 * burst.get()) }
    });
    let packets = packet_rate.map(|rate| {
        let per_s = rate.get().into();
        let default = in_default_time(per_s).max(limits::BURST_MAX as u64);
        Rate { per_s, burst: packet_burst.map_or(default, |burst| burst.get().into()) }
    });
    RateLimit { bits, packets }
}

/// Reads the weight of an uplink, which is all that it has of [`Sharing`].
pub(super) fn weight(
    section: &mut Section<'_>,
    schedule: Schedule,
    problems: &mut Vec<Problem>,
) -> Option<Weight> {
    let weight = section.take("weight", problems).map(Located::into_value);
    Sharing { weight, ..Sharing::default() }.report(section, Some(schedule), problems);
    weight
}

/// What `weir vif set` changes of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SharingChanges {
    /// See [`Sharing::weight`].
    pub weight: Change<Weight>,
    /// See [`Sharing::window`].
    pub window: Change<LateTurns>,
    /// See [`Sharing::period`].
    pub period: Change<Period>,
    /// See [`Sharing::rate`]. Clearing it clears the burst.
    pub rate: Change<BitRate>,
    /// See [`Sharing::burst`].
    pub burst: Change<BurstSize>,
    /// See [`Sharing::packets_per_second`]. Clearing it clears the burst.
    pub packets_per_second: Change<PacketRate>,
    /// See [`Sharing::packet_burst`].
    pub packet_burst: Change<PacketBurst>,
    /// See [`Sharing::receive`].
    pub receive: ReceivingChanges,
}

impl SharingChanges {
    /// Reads the keys of a section.
    pub(super) fn from_section(section: &mut Section<'_>, problems: &mut Vec<Problem>) -> Self {
        Self {
            weight: section.take_or("weight", Change::Keep, problems),
            window: section.take_or("window", Change::Keep, problems),
            period: section.take_or("period", Change::Keep, problems),
            rate: section.take_or("rate", Change::Keep, problems),
            burst: section.take_or("burst", Change::Keep, problems),
            packets_per_second: section.take_or("packets_per_second", Change::Keep, problems),
            packet_burst: section.take_or("packet_burst", Change::Keep, problems),
            receive: ReceivingChanges::from_section(section, problems),
        }
    }

    /// Changes `sharing`. What belongs to a key that is cleared goes with it.
    pub(super) fn apply(self, sharing: &mut Sharing) {
        self.weight.apply(&mut sharing.weight);
        self.window.apply(&mut sharing.window);
        self.period.apply(&mut sharing.period);
        self.rate.apply(&mut sharing.rate);
        self.packets_per_second.apply(&mut sharing.packets_per_second);
        if self.window == Change::Clear {
            sharing.period = None;
        }
        if sharing.rate.is_none() {
            sharing.burst = None;
        }
        if sharing.packets_per_second.is_none() {
            sharing.packet_burst = None;
        }
        self.burst.apply(&mut sharing.burst);
        self.packet_burst.apply(&mut sharing.packet_burst);
        self.receive.apply(&mut sharing.receive);
    }
}

#[cfg(test)]
mod tests;
