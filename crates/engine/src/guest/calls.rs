//! When an interface's guest is called: what a user sets of it, and what comes of that.

use weir_policy::moderation::{Completions, Decision, Kind, Moderation, Settings, hold_ns_max};

use crate::stats::TimesSummary;

/// When to call a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallPolicy {
    /// Which policy decides.
    pub kind: Kind,
    /// Longest time that a frame may be held in all (ns).
    pub latency_budget_ns: u64,
    /// `rx-usecs` (ns), see [`Settings::rx_ns`].
    pub rx_ns: Option<u64>,
    /// `rx-frames`, see [`Settings::rx_frames`].
    pub rx_frames: Option<u32>,
    /// With how many bytes of frames a container is full, see [`Settings::container_bytes`].
    pub container_bytes: Option<u32>,
}

impl CallPolicy {
    /// A policy with nothing set but the budget.
    pub const fn within(kind: Kind, latency_budget_ns: u64) -> Self {
        Self { kind, latency_budget_ns, rx_ns: None, rx_frames: None, container_bytes: None }
    }

    /// Longest time to hold a call (ns): the budget without the part for other waits.
    pub const fn hold_ns_max(&self) -> u64 {
        hold_ns_max(self.latency_budget_ns)
    }

    /// How long a frame may wait for others in its sender's ring (ns).
    pub const fn wait_ns_max(&self) -> u64 {
        self.kind.wait_ns_max(self.latency_budget_ns, self.rx_ns)
    }

    /// The policy for transmitted frames; `None` to call at once, under a policy that never holds. `patient`: under
    /// `auto` a few may wait longer.
    pub fn completions(&self, patient: bool) -> Option<Completions> {
        match self.kind {
            Kind::Auto if patient => Some(Completions::patient(self.hold_ns_max())),
            _ => self.kind.completions(self.hold_ns_max()),
        }
    }

    /// The policy for received frames.
    pub fn build(&self) -> Box<dyn Moderation> {
        let Self { rx_ns, rx_frames, container_bytes, .. } = *self;
        let settings = Settings::within(self.hold_ns_max());
        self.kind.build(Settings { rx_ns, rx_frames, container_bytes, ..settings })
    }
}

/// What a receive queue's policy does now, and what came of it since the interface was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueDecision {
    /// Which policy.
    pub kind: Kind,
    /// How long it holds, and why.
    pub decision: Decision,
    /// The limit of that (ns).
    pub hold_ns_max: u64,
    /// Frames received.
    pub frames: u64,
    /// Calls given.
    pub calls: u64,
    /// Calls that the guest did not want.
    pub calls_suppressed: u64,
    /// Hold times: from frames being ready to the guest being told of them.
    pub hold: TimesSummary,
}

/// How calls of an interface have gone since it was made, over all its receive queues.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CallTimes {
    /// From frames being ready to the guest being told of them.
    pub hold: TimesSummary,
    /// From the earliest moment at which a frame can have been in its sender's ring to the guest being told of it,
    /// without frames that waited for buffers: what the latency budget bounds.
    pub latency: TimesSummary,
    /// What the policy does now on the queue that it holds longest.
    pub decision: Option<Decision>,
}

#[cfg(test)]
mod tests {
    use weir_policy::moderation::Verdict;

    use super::*;

    #[test]
    fn a_few_completions_wait_longer_where_asked_for_and_under_auto_only() {
        let until = |kind, patient| {
            let calls = CallPolicy::within(kind, 1_000_000);
            let hold_ns_max = calls.hold_ns_max();
            let verdict = calls.completions(patient).map(|mut it| it.completed(0, 4, 256, 4, 256));
            verdict.map(|verdict| match verdict {
                Verdict::HoldUntil(until_ns) => until_ns / hold_ns_max,
                Verdict::Call => 0,
            })
        };
        assert_eq!(until(Kind::Auto, true), Some(16));
        assert_eq!(until(Kind::Auto, false), Some(1));
        assert_eq!(until(Kind::Backend, true), Some(1));
        assert_eq!(until(Kind::Immediate, true), None);
    }
}
