//! The rule-book: what has to hold of a configuration, whoever makes it.

use super::sharing::Sharing;
use super::values::{LatencyBudget, Schedule};
use super::{UplinkConfig, VifConfig};

/// Settings of one table that do not go together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Fault {
    /// The keys: the first is the one to change.
    pub keys: [&'static str; 2],
    /// Why they do not.
    pub reason: String,
    /// What to do about it.
    pub help: String,
}

impl VifConfig {
    /// What of its settings does not go together, under a latency budget of `budget` and the switch's `schedule`, where
    /// that is known.
    pub fn faults(&self, budget: LatencyBudget, schedule: Option<Schedule>) -> Vec<Fault> {
        let mut faults = self.call_faults(budget);
        faults.extend(self.sharing.faults(schedule));
        faults.extend(self.guarding.faults(self.mac_check));
        faults
    }
}

impl UplinkConfig {
    /// What of its settings does not go together with the switch's `schedule`.
    pub fn faults(&self, schedule: Schedule) -> Vec<Fault> {
        Sharing { weight: self.weight, ..Sharing::default() }.faults(Some(schedule))
    }
}
