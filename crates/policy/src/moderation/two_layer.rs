//! The guest's layer of adaptive two-layer coalescing (Dong 2011 §4.2).

use super::{Backend, Batch, Decision, Delivery, Kind, Moderation, Settings, Verdict};

/// [`Backend`] with a hold of T_v, which the manager sets: T_v = T_worst - T_p, with T_p from Eq. 4
/// ([`crate::budget`]). The split replaces `rx-usecs`; `rx-frames` applies.
#[derive(Clone, Copy, Debug)]
pub struct TwoLayer {
    backend: Backend,
}

impl TwoLayer {
    /// Returns a policy that holds up to `settings.hold_ns_max` until the manager sets another
    /// limit.
    pub const fn new(settings: Settings) -> Self {
        Self { backend: Backend::new(Settings { rx_ns: None, ..settings }) }
    }
}

impl Moderation for TwoLayer {
    fn kind(&self) -> Kind {
        Kind::TwoLayer
    }

    fn published(&mut self, now_ns: u64, batch: Batch) -> Verdict {
        self.backend.published(now_ns, batch)
    }

    fn expired(&mut self, now_ns: u64) -> Verdict {
        self.backend.expired(now_ns)
    }

    fn delivered(&mut self, now_ns: u64, how: Delivery) {
        self.backend.delivered(now_ns, how);
    }

    fn set_hold_ns_max(&mut self, hold_ns_max: u64) {
        self.backend.set_hold_ns_max(hold_ns_max);
    }

    fn reset(&mut self) {
        self.backend.reset();
    }

    fn decision(&self) -> Decision {
        let reason = "what the uplink's share leaves of the latency budget";
        Decision { reason, ..self.backend.decision() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_as_long_as_the_manager_says_and_rx_usecs_does_not() {
        let mut policy = TwoLayer::new(Settings { rx_ns: Some(10), ..Settings::within(1_000) });
        let batch = Batch { frames: 1, bytes: 64, arrived_ns: 0 };
        assert_eq!(policy.published(0, batch), Verdict::HoldUntil(1_000));
        policy.set_hold_ns_max(600);
        assert_eq!(policy.expired(500), Verdict::HoldUntil(600));
        assert_eq!(policy.decision().hold_ns, 600);
    }
}
