//! Storm control of an interface, as it is configured.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_engine::{Rate, StormLimit};
use weir_limits::{STORM_BURST_MIN, STORM_BURST_NS};

use super::keys::keys;
use super::settings::Change;
use super::values::PacketRate;

keys! {
    /// How many frames in a second the guest may have flooded.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
    #[serde(default, deny_unknown_fields)]
    pub struct StormControl {
        /// For everybody.
        broadcasts_per_second: Option<PacketRate> => Change<PacketRate> = None, [];
        /// For a group.
        multicasts_per_second: Option<PacketRate> => Change<PacketRate> = None, [];
        /// For one station that nobody knows.
        unknown_per_second: Option<PacketRate> => Change<PacketRate> = None, [];
    }

    /// What `weir vif set` changes of it.
    #[derive(Debug, Clone, Copy)]
    pub struct StormChanges;
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
}

impl StormChanges {
    /// Each limit is by itself.
    fn settle(&mut self, _: &mut StormControl) {}
}
