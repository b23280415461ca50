//! An interface's share of the workers, and how fast it may send and receive.

use serde::{Deserialize, Serialize};
use thiserror::Error;
use weir_engine::{Rate, RateLimit};
use weir_limits as limits;
use weir_policy::schedule::{Kind, Share, Window};

use super::error::Problem;
use super::section::Section;
use super::settings::{Change, optional_settings};
use super::values::{
    BitRate, BurstSize, LateTurns, PacketBurst, PacketRate, Period, Schedule, Weight,
};

optional_settings! {
    /// What an interface may receive. Frames beyond it are dropped.
    Receiving,
    /// What `weir vif set` changes of [`Receiving`]. Clearing a rate clears its burst.
    ReceivingChanges {
        /// Bits/s.
        rate: BitRate = "rx_rate",
        /// How much more at once.
        burst: BurstSize = "rx_burst",
        /// Frames/s.
        packets_per_second: PacketRate = "rx_packets_per_second",
        /// How many more at once.
        packet_burst: PacketBurst = "rx_packet_burst",
    }
}

optional_settings! {
    /// An interface's share of the workers, and its rates.
    Sharing,
    /// What `weir vif set` changes of [`Sharing`]. Clearing a rate clears its burst.
    SharingChanges {
        /// Its part of a worker's time, in proportion to others'; 1 by default.
        weight: Weight = "weight",
        /// How many turns may be late.
        window: LateTurns = "window",
        /// How often a turn is due.
        period: Period = "period",
        /// Bits/s that the guest may send.
        rate: BitRate = "rate",
        /// How much more at once.
        burst: BurstSize = "burst",
        /// Frames/s that the guest may send.
        packets_per_second: PacketRate = "packets_per_second",
        /// How many more at once.
        packet_burst: PacketBurst = "packet_burst",
    }
    /// What it may receive.
    receive: Receiving, ReceivingChanges
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
    #[error("`{key}` has no effect with schedule \"{schedule}\"")]
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

/// Each key that is there has the other that it needs: key, whether it is there, what it needs, whether that is there.
fn belong_together(pairs: &[(&'static str, bool, &'static str, bool)]) -> Result<(), SharingError> {
    match pairs.iter().find(|(_, has, _, has_needed)| *has && !has_needed) {
        Some(&(key, _, needs, _)) => Err(SharingError::Without { key, needs }),
        None => Ok(()),
    }
}

impl Receiving {
    fn check(&self) -> Result<(), SharingError> {
        belong_together(&[
            ("rx_burst", self.burst.is_some(), "rx_rate", self.rate.is_some()),
            (
                "rx_packet_burst",
                self.packet_burst.is_some(),
                "rx_packets_per_second",
                self.packets_per_second.is_some(),
            ),
        ])
    }

    /// For the engine. The default burst is [`POLICE_BURST_NS_DEFAULT`](limits::POLICE_BURST_NS_DEFAULT) of the
    /// rate, and room for a GSO frame or a burst of frames.
    pub fn limit(&self) -> RateLimit {
        let Self { rate, burst, packets_per_second, packet_burst } = *self;
        rate_limit(
            (rate, burst),
            (packets_per_second, packet_burst),
            limits::POLICE_BURST_NS_DEFAULT,
        )
    }
}

impl Sharing {
    /// Whether the settings go together, and with the switch's `schedule` where that is known.
    pub fn check(&self, schedule: Option<Schedule>) -> Result<(), SharingError> {
        let Self { window, period, .. } = self;
        belong_together(&[
            ("window", window.is_some(), "period", period.is_some()),
            ("period", period.is_some(), "window", window.is_some()),
            ("burst", self.burst.is_some(), "rate", self.rate.is_some()),
            (
                "packet_burst",
                self.packet_burst.is_some(),
                "packets_per_second",
                self.packets_per_second.is_some(),
            ),
        ])?;
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

    /// Its turns, as the engine takes them.
    pub fn share(&self) -> Share {
        let window = self.window.zip(self.period).and_then(|(late, period)| {
            // Both were checked when they were made.
            Window::new(late.x, late.y, period.get()).ok()
        });
        Share { weight: self.weight.map_or(1, Weight::get), window }
    }

    /// Its sending rates for the engine. The default burst is
    /// [`RATE_BURST_NS_DEFAULT`](limits::RATE_BURST_NS_DEFAULT) of the rate, and room for a GSO frame or a burst of
    /// frames.
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
        let sharing = Self::read(section, problems);
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
        problems.push(section.does_not_fit(span, error, error.help()));
    }
}

/// A limit in the engine's numbers. The default burst is `burst_ns` of the rate, and room for a GSO frame or a
/// burst of frames.
fn rate_limit(
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
    let weight = section.value("weight", problems);
    Sharing { weight, ..Sharing::default() }.report(section, Some(schedule), problems);
    weight
}

impl ReceivingChanges {
    fn apply(mut self, receiving: &mut Receiving) {
        self.burst.clear_with(&self.rate);
        self.packet_burst.clear_with(&self.packets_per_second);
        self.apply_each(receiving);
    }
}

impl SharingChanges {
    /// Changes `sharing`. What belongs to a key that is cleared goes with it.
    pub(super) fn apply(mut self, sharing: &mut Sharing) {
        if self.window == Change::Clear {
            self.period = Change::Clear;
        }
        self.burst.clear_with(&self.rate);
        self.packet_burst.clear_with(&self.packets_per_second);
        self.apply_each(sharing);
    }
}

#[cfg(test)]
mod tests;
