//! Values with which tests begin.

use weir_switch::explain::VifExplanation;
use weir_switch::stats::{CallSettings, PortState};

/// The policies of a running interface with default settings and without traffic.
pub(crate) fn explanation(name: &str) -> VifExplanation {
    VifExplanation {
        name: name.parse().unwrap(),
        state: PortState::Running,
        blocked: None,
        latency_budget_ns: 250_000,
        calls: CallSettings::default(),
        budget_breaches: Default::default(),
        queue_pairs: Default::default(),
        rings: Default::default(),
        queues: Vec::new(),
        split: None,
        agent: None,
        filter: Vec::new(),
        dispatch: Default::default(),
        sharing: Default::default(),
        receiving: Default::default(),
        guard: None,
        groups: None,
        steering: None,
        silent: Vec::new(),
        hosts: Vec::new(),
        traffic: Default::default(),
    }
}
