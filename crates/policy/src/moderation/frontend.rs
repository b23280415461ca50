//! The guest polls on its own timer (Dong 2011 §4.1, FVIC).

use super::{Backend, Batch, Decision, Delivery, GuestPoll, Kind, Moderation, Settings, Verdict};

/// Number of deliveries that [`Frontend::decision`] looks back on.
const DELIVERIES: u32 = u64::BITS;

/// Leaves holding to the guest. It gives a call for every batch whose call the guest has not
/// suppressed, and holds none.
///
/// The guest's driver takes no interrupts while a timer of its own polls the ring. On a stock Linux
/// guest `weir-agent` makes `virtio_net` do so. With `napi_defer_hard_irqs` the driver does not ask
/// for calls when it finds the ring empty, but polls after `gro_flush_timeout`. It asks for calls
/// only after a number of empty polls in a row. The agent sets the timeout within the queue's share
/// of the budget. In the ring this is ordinary suppression (virtio 1.2 §2.7.7), which the engine
/// finds when it is about to call.
///
/// So the right verdict is always [`Verdict::Call`]. If the guest polls, the call is suppressed. If
/// it does not (no agent, an expired timer, a dead agent), the driver waits for the call: a hold
/// here would add to the guest's own and could exceed the limit. No frame is left behind either
/// way: a driver that enables calls again checks the ring once more afterwards (§2.7.7.1).
///
/// A driver may poll on its timer and ask for calls nevertheless, as `xen-netfront` does. Where
/// such polling is [known](Moderation::set_guest_poll), published frames stay without a call for
/// the guest's own interval. By then the guest has polled, or its timer has stopped and the call is
/// due: no frame waits longer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Frontend {
    hold_ns_max: u64,
    /// One bit for each recent delivery, newest lowest: set if the guest was polling.
    polled: u64,
    /// Number of valid bits in `polled`.
    seen: u32,
    /// Interval of a guest that polls and asks for calls nevertheless (ns).
    guest_poll_ns: Option<u64>,
    /// Deadline of the held call (ns).
    until_ns: Option<u64>,
}

impl Frontend {
    /// Returns a policy that has seen no delivery. The guest's timer is set within `hold_ns_max`.
    pub const fn new(hold_ns_max: u64) -> Self {
        Self { hold_ns_max, polled: 0, seen: 0, guest_poll_ns: None, until_ns: None }
    }

    /// Returns whether the guest polled at most of the recent deliveries.
    fn guest_polls(&self) -> bool {
        2 * self.polled.count_ones() > self.seen
    }
}

impl Moderation for Frontend {
    fn kind(&self) -> Kind {
        Kind::Frontend
    }

    fn published(&mut self, _now_ns: u64, batch: Batch) -> Verdict {
        let Some(poll_ns) = self.guest_poll_ns else { return Verdict::Call };
        let hold_ns = poll_ns.min(self.hold_ns_max);
        let due_ns = batch.arrived_ns.saturating_add(hold_ns);
        Verdict::HoldUntil(*self.until_ns.get_or_insert(due_ns))
    }

    /// The held call is due.
    fn expired(&mut self, _now_ns: u64) -> Verdict {
        Verdict::Call
    }

    fn delivered(&mut self, _now_ns: u64, how: Delivery) {
        let polled = matches!(how, Delivery::Suppressed | Delivery::Polled);
        self.polled = self.polled << 1 | u64::from(polled);
        self.seen = (self.seen + 1).min(DELIVERIES);
        self.until_ns = None;
    }

    fn set_hold_ns_max(&mut self, hold_ns_max: u64) {
        self.hold_ns_max = hold_ns_max;
    }

    fn set_guest_poll(&mut self, poll: Option<GuestPoll>) {
        self.guest_poll_ns = poll.filter(|poll| poll.asks).map(|poll| poll.every_ns);
    }

    fn reset(&mut self) {
        *self = Self { guest_poll_ns: self.guest_poll_ns, ..Self::new(self.hold_ns_max) };
    }

    fn decision(&self) -> Decision {
        if self.guest_polls() {
            Decision { hold_ns: self.hold_ns_max, reason: "the guest polls on its own timer" }
        } else {
            Decision { hold_ns: 0, reason: "the guest wants calls: it does not poll" }
        }
    }
}

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
    fn every_batch_is_called_for_whether_the_guest_polls_or_not() {
        let mut policy = Frontend::new(1_000_000);
        for how in [Delivery::Called, Delivery::Suppressed, Delivery::Polled, Delivery::Called] {
            let batch = Batch { frames: 1, bytes: 64, arrived_ns: 0 };
            assert_eq!(policy.published(0, batch), Verdict::Call);
            policy.delivered(0, how);
        }
        assert_eq!(policy.expired(0), Verdict::Call);
    }

    #[test]
    fn a_guest_that_polls_and_wants_calls_gets_one_when_its_interval_has_passed() {
        let mut policy = Frontend::new(1_000_000);
        policy.set_guest_poll(Some(GuestPoll { every_ns: 250_000, asks: true }));
        let batch = |arrived_ns| Batch { frames: 1, bytes: 64, arrived_ns };
        assert_eq!(policy.published(20, batch(10)), Verdict::HoldUntil(250_010));
        assert_eq!(
            policy.published(100, batch(90)),
            Verdict::HoldUntil(250_010),
            "the first counts"
        );
        policy.delivered(150, Delivery::Polled);
        assert_eq!(policy.published(200, batch(190)), Verdict::HoldUntil(250_190));
        assert_eq!(policy.expired(250_190), Verdict::Call);
        policy.delivered(250_190, Delivery::Called);
        policy.set_hold_ns_max(1_000);
        assert_eq!(policy.published(300_000, batch(300_000)), Verdict::HoldUntil(301_000));
        policy.delivered(301_000, Delivery::Called);
        policy.set_guest_poll(None);
        assert_eq!(policy.published(400_000, batch(400_000)), Verdict::Call);
    }

    #[test]
    fn decision_says_whether_the_guest_polls() {
        let mut policy = Frontend::new(500);
        assert_eq!(policy.decision().hold_ns, 0);
        for _ in 0..DELIVERIES {
            policy.delivered(0, Delivery::Suppressed);
        }
        let reason = "the guest polls on its own timer";
        assert_eq!(policy.decision(), Decision { hold_ns: 500, reason });
        for _ in 0..DELIVERIES / 2 {
            policy.delivered(0, Delivery::Called);
        }
        assert_eq!(policy.decision().hold_ns, 0, "its agent has died");
    }

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
