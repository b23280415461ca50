//! Storm control of an interface, as it is configured.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_engine::{Rate, StormLimit};
use weir_limits::{STORM_BURST_MIN, STORM_BURST_NS};

use super::error::Problem;
use super::section::Section;
use super::values::PacketRate;

/// How many frames in a second the guest may have flooded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct StormControl {
    /// For everybody.
    pub broadcasts_per_second: Option<PacketRate>,
    /// For a group.
    pub multicasts_per_second: Option<PacketRate>,
    /// For one station that nobody knows.
    pub unknown_per_second: Option<PacketRate>,
}

impl StormControl {
    /// What the engine is told.
    pub fn limit(&self) -> StormLimit {
        let rate = |rate: PacketRate| {
            let per_s = u64::from(rate.get());
            let burst = (per_s * (STORM_BURST_NS / 1_000_000) / 1000).max(STORM_BURST_MIN);
            Rate { per_s, burst }
        };
        StormLimit {
            broadcast: self.broadcasts_per_second.map(rate),
            multicast: self.multicasts_per_second.map(rate),
            unknown: self.unknown_per_second.map(rate),
        }
    }

    /// Reads the keys of an interface's section.
    pub(super) fn from_section(section: &mut Section<'_>, problems: &mut Vec<Problem>) -> Self {
        let mut rate = |key| section.value(key, problems);
        Self {
            broadcasts_per_second: rate("broadcasts_per_second"),
            multicasts_per_second: rate("multicasts_per_second"),
            unknown_per_second: rate("unknown_per_second"),
        }
    }
}
