//! A call per burst, at once.

use super::{Batch, Decision, Delivery, Kind, Moderation, Verdict};

/// Gives a call for every published batch and holds nothing.
///
/// This policy has the lowest latency and the most interrupts: it is the baseline for the other
/// policies. The engine publishes once per burst, so there is at most one call per burst, and the
/// ring's own suppression still saves the calls that the guest does not want.
#[derive(Clone, Copy, Debug, Default)]
pub struct Immediate;

impl Moderation for Immediate {
    fn kind(&self) -> Kind {
        Kind::Immediate
    }

    fn published(&mut self, _now_ns: u64, _batch: Batch) -> Verdict {
        Verdict::Call
    }

    /// Not reached, since this policy gives no deadline. The timer of a replaced policy gets the
    /// safe answer: one call too many loses nothing.
    fn expired(&mut self, _now_ns: u64) -> Verdict {
        Verdict::Call
    }

    fn delivered(&mut self, _now_ns: u64, _how: Delivery) {}

    /// A policy without holds keeps within every limit.
    fn set_hold_ns_max(&mut self, _hold_ns_max: u64) {}

    fn reset(&mut self) {}

    fn decision(&self) -> Decision {
        Decision { hold_ns: 0, reason: "this policy holds nothing" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_for_every_batch_whatever_came_before() {
        let mut policy = Immediate;
        policy.set_hold_ns_max(1_000_000);
        for now_ns in [0, 1, 1, u64::MAX] {
            let batch = Batch { frames: 1, bytes: 64, arrived_ns: now_ns };
            assert_eq!(policy.published(now_ns, batch), Verdict::Call);
        }
        assert_eq!(policy.expired(u64::MAX), Verdict::Call);
    }
}
