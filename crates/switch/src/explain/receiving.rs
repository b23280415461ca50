//! What an interface may receive, and what it did not get for that.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_config::Receiving;

/// What an interface may receive, and what was dropped beyond it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReceivingExplanation {
    /// As it is configured.
    pub limits: Receiving,
    /// Frames that were dropped for it.
    pub policed: u64,
    /// When this was looked at, or from one look to the other, in nanoseconds.
    pub elapsed_ns: u64,
}

impl ReceivingExplanation {
    /// Counts from `before` on.
    pub fn since(&mut self, before: &Self) {
        self.policed = self.policed.saturating_sub(before.policed);
        self.elapsed_ns = self.elapsed_ns.saturating_sub(before.elapsed_ns);
    }
}
