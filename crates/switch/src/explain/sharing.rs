//! An interface's use of the workers' time, its entitlement by weight, and its limits, those on received traffic too.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_config::{PortName, Receiving};

/// A port's share of the workers' time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PortShare {
    /// The port's weight, relative to the weights of the others.
    pub weight: u16,
    /// Worker time that was charged to the port, in nanoseconds.
    pub worker_ns: u64,
}

/// An interface as a sender that shares the workers with others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SharingExplanation {
    /// The interface.
    pub own: PortShare,
    /// All other ports, by name.
    pub others: BTreeMap<PortName, PortShare>,
    /// The number of workers.
    pub workers: u64,
    /// The time of this look; in a difference of two looks, the time between them. In nanoseconds.
    pub elapsed_ns: u64,
    /// Times that its queues waited for its rate limit.
    pub rate_waits: u64,
    /// Late turns beyond the number that the interface's window allows.
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

/// Limits on received traffic, and the frames dropped because of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReceivingExplanation {
    /// The configured limits.
    pub limits: Receiving,
    /// Frames dropped because of the limits.
    pub policed: u64,
    /// The time of this look; in a difference of two looks, the time between them. In nanoseconds.
    pub elapsed_ns: u64,
}

impl ReceivingExplanation {
    /// Counts from `before` on.
    pub fn since(&mut self, before: &Self) {
        self.policed = self.policed.saturating_sub(before.policed);
        self.elapsed_ns = self.elapsed_ns.saturating_sub(before.elapsed_ns);
    }
}
