//! The configured storm control of an interface.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_engine::{Rate, StormLimit};
use weir_limits::{STORM_BURST_MIN, STORM_BURST_NS};

use super::keys::{Change, keys};
use super::values::PacketRate;

keys! {
    /// The most frames per second from the guest that weir floods.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
    #[serde(default, deny_unknown_fields)]
    pub struct StormControl {
        /// The broadcasts that are flooded in a second.
        broadcasts_per_second: Option<PacketRate> => Change<PacketRate> = None, [];
        /// The multicasts that are flooded in a second.
        multicasts_per_second: Option<PacketRate> => Change<PacketRate> = None, [];
        /// The frames to unknown stations that are flooded in a second.
        unknown_per_second: Option<PacketRate> => Change<PacketRate> = None, [];
    }

    /// Changes of storm control by `weir vif set`.
    #[derive(Debug, Clone, Copy)]
    pub struct StormChanges;
}

impl StormControl {
    /// The limits for the engine.
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
    /// No limit depends on another.
    fn settle(&mut self, _: &mut StormControl) {}
}
