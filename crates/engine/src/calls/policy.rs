//! The call policy of an interface: the user's settings, and the results.

use weir_policy::moderation::{Completions, Decision, Kind, Moderation, Settings, hold_ns_max};

use crate::frames::stats::TimesSummary;

/// The settings for calls to a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallPolicy {
    /// The kind of policy.
    pub kind: Kind,
    /// Longest time that a frame may be held in all (ns).
    pub latency_budget_ns: u64,
    /// `rx-usecs` (ns), see [`Settings::rx_ns`].
    pub rx_ns: Option<u64>,
    /// `rx-frames`, see [`Settings::rx_frames`].
    pub rx_frames: Option<u32>,
    /// Bytes of frames with which a container is full, see [`Settings::container_bytes`].
    pub container_bytes: Option<u32>,
    /// The engine's workers poll, see [`Settings::polled`].
    pub polled: bool,
}

impl CallPolicy {
    /// A policy without settings other than the budget.
    pub const fn within(kind: Kind, latency_budget_ns: u64) -> Self {
        let (rx_ns, rx_frames, container_bytes) = (None, None, None);
        Self { kind, latency_budget_ns, rx_ns, rx_frames, container_bytes, polled: false }
    }

    /// Longest time to hold a call (ns): the budget without the part for other waits.
    pub const fn hold_ns_max(&self) -> u64 {
        hold_ns_max(self.latency_budget_ns)
    }

    /// Longest time that a frame may wait for others in its sender's ring (ns).
    pub const fn wait_ns_max(&self) -> u64 {
        self.kind.wait_ns_max(self.latency_budget_ns, self.rx_ns)
    }

    /// The policy for transmitted frames; `None` if the guest is called at once, since the policy never holds. With
    /// `patient`, a few frames may wait longer under `auto`.
    pub fn completions(&self, patient: bool) -> Option<Completions> {
        match self.kind {
            Kind::Auto if patient => Some(Completions::patient(self.hold_ns_max())),
            _ => self.kind.completions(self.hold_ns_max()),
        }
    }

    /// The policy for received frames.
    pub fn build(&self) -> Box<dyn Moderation> {
        let Self { rx_ns, rx_frames, container_bytes, polled, .. } = *self;
        let settings = Settings::within(self.hold_ns_max());
        self.kind.build(Settings { rx_ns, rx_frames, container_bytes, polled, ..settings })
    }
}

/// The present decision of a receive queue's policy, and the results since the interface was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueDecision {
    /// The kind of policy.
    pub kind: Kind,
    /// The present hold time, and its reason.
    pub decision: Decision,
    /// The limit of the hold time (ns).
    pub hold_ns_max: u64,
    /// Frames received.
    pub frames: u64,
    /// Calls made.
    pub calls: u64,
    /// Calls that the guest had suppressed.
    pub calls_suppressed: u64,
    /// Hold times: from frames being ready to the guest's notification.
    pub hold: TimesSummary,
    /// The mean difference between the latencies of successive calls (ns), over the most recent calls.
    pub jitter_ns: u64,
}

/// Call times of an interface since it was made, over all its receive queues.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CallTimes {
    /// Times from frames being ready to the guest's notification.
    pub hold: TimesSummary,
    /// Times from the earliest moment at which a frame can have been in its sender's ring to the guest's notification,
    /// without frames that waited for buffers: the latency budget bounds these times.
    pub latency: TimesSummary,
    /// The mean difference between the latencies of successive calls (ns), over the most recent calls, on the queue
    /// where it is largest.
    pub jitter_ns: u64,
    /// The present decision of the policy on the queue that it holds longest.
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
