//! An interface's limits on received traffic, and the frames dropped because of them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_config::Receiving;

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
