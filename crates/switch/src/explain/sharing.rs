//! What an interface had of the workers' time, what its weight entitles it to, and what kept it from more.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_config::PortName;

/// A port's share of the workers' time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PortShare {
    /// In proportion to others'.
    pub weight: u16,
    /// Worker time that was charged to it, in nanoseconds.
    pub worker_ns: u64,
}

/// An interface as a sender among others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SharingExplanation {
    /// The interface.
    pub own: PortShare,
    /// All other ports, by name.
    pub others: BTreeMap<PortName, PortShare>,
    /// Workers that there are.
    pub workers: u64,
    /// When this was looked at, or from one look to the other, in nanoseconds.
    pub elapsed_ns: u64,
    /// Its queues waited so often for its rate.
    pub rate_waits: u64,
    /// Turns that were late though its window allows no more of them.
    pub window_violations: u64,
    /// Frames that waited for a receiver without buffers.
    pub parked: u64,
}

impl SharingExplanation {
    /// Counts from `before` on.
    pub fn since(&mut self, before: &Self) {
        let others = self.others.iter_mut().map(|(name, now)| (now, before.others.get(name)));
        for (now, before) in others.chain([(&mut self.own, Some(&before.own))]) {
            let before = before.map_or(0, |before| before.worker_ns);
            now.worker_ns = now.worker_ns.saturating_sub(before);
        }
        let Self { elapsed_ns, rate_waits, window_violations, parked, .. } = self;
        for (now, before) in [
            (elapsed_ns, before.elapsed_ns),
            (rate_waits, before.rate_waits),
            (window_violations, before.window_violations),
            (parked, before.parked),
        ] {
            *now = now.saturating_sub(before);
        }
    }
}
