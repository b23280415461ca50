//! How much an interface may receive: `rate`, `burst`, `packets_per_second` and `packet_burst` with `rx_`
//! before them.

use serde::{Deserialize, Serialize};
use weir_engine::RateLimit;
use weir_limits::POLICE_BURST_NS_DEFAULT;

use super::error::Problem;
use super::section::{Located, Section};
use super::settings::Change;
use super::sharing::{BitRate, BurstSize, SharingError, rate_limit};
use super::values::{PacketBurst, PacketRate};

/// How much an interface may receive, as it is configured. What exceeds it is dropped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Receiving {
    /// How fast.
    pub rate: Option<BitRate>,
    /// How much more than that at once.
    pub burst: Option<BurstSize>,
    /// How many frames in a second.
    pub packets_per_second: Option<PacketRate>,
    /// How many more than that at once.
    pub packet_burst: Option<PacketBurst>,
}

impl Receiving {
    /// Whether the settings go together.
    ///
    /// # Errors
    /// [`SharingError::Without`]
    pub(super) fn check(&self) -> Result<(), SharingError> {
        if self.burst.is_some() && self.rate.is_none() {
            return Err(SharingError::Without { key: "rx_burst", needs: "rx_rate" });
        }
        if self.packet_burst.is_some() && self.packets_per_second.is_none() {
            let (key, needs) = ("rx_packet_burst", "rx_packets_per_second");
            return Err(SharingError::Without { key, needs });
        }
        Ok(())
    }

    /// What the engine is told. Where no burst is set, it is what the rate brings in
    /// [`POLICE_BURST_NS_DEFAULT`], and room for a GSO frame or a burst of frames.
    pub fn limit(&self) -> RateLimit {
        let Self { rate, burst, packets_per_second, packet_burst } = *self;
        rate_limit((rate, burst), (packets_per_second, packet_burst), POLICE_BURST_NS_DEFAULT)
    }

    /// Reads the keys of an interface's section.
    pub(super) fn from_section(section: &mut Section<'_>, problems: &mut Vec<Problem>) -> Self {
        Self {
            rate: section.take("rx_rate", problems).map(Located::into_value),
            burst: section.take("rx_burst", problems).map(Located::into_value),
            packets_per_second: section
                .take("rx_packets_per_second", problems)
                .map(Located::into_value),
            packet_burst: section.take("rx_packet_burst", problems).map(Located::into_value),
        }
    }
}

/// What `weir vif set` changes of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ReceivingChanges {
    /// See [`Receiving::rate`]. Clearing it clears the burst.
    pub rate: Change<BitRate>,
    /// See [`Receiving::burst`].
    pub burst: Change<BurstSize>,
    /// See [`Receiving::packets_per_second`]. Clearing it clears the burst.
    pub packets_per_second: Change<PacketRate>,
    /// See [`Receiving::packet_burst`].
    pub packet_burst: Change<PacketBurst>,
}

impl ReceivingChanges {
    /// Reads the keys of a section.
    pub(super) fn from_section(section: &mut Section<'_>, problems: &mut Vec<Problem>) -> Self {
        Self {
            rate: section.take_or("rx_rate", Change::Keep, problems),
            burst: section.take_or("rx_burst", Change::Keep, problems),
            packets_per_second: section.take_or("rx_packets_per_second", Change::Keep, problems),
            packet_burst: section.take_or("rx_packet_burst", Change::Keep, problems),
        }
    }

    /// Changes `receiving`. What belongs to a key that is cleared goes with it.
    pub(super) fn apply(self, receiving: &mut Receiving) {
        self.rate.apply(&mut receiving.rate);
        self.packets_per_second.apply(&mut receiving.packets_per_second);
        receiving.burst = receiving.burst.filter(|_| receiving.rate.is_some());
        let counted = receiving.packets_per_second.is_some();
        receiving.packet_burst = receiving.packet_burst.filter(|_| counted);
        self.burst.apply(&mut receiving.burst);
        self.packet_burst.apply(&mut receiving.packet_burst);
    }
}
