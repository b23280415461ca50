//! Calls held by the switch for a fixed time (Dong 2011 §4.1, BVIC).

use super::{Batch, Decision, Delivery, Kind, Moderation, Settings, Verdict};

/// Holds the call until `rx-usecs` after the arrival of the earliest pending frame, or until
/// `rx-frames` are pending, and never past the hold limit.
#[derive(Clone, Copy, Debug)]
pub struct Backend {
    settings: Settings,
    pending: Option<Pending>,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    earliest_ns: u64,
    frames: u32,
}

impl Backend {
    /// Returns a policy with nothing pending.
    pub const fn new(settings: Settings) -> Self {
        Self { settings, pending: None }
    }

    fn hold_ns(&self) -> u64 {
        let Settings { hold_ns_max, rx_ns, .. } = self.settings;
        rx_ns.map_or(hold_ns_max, |rx_ns| rx_ns.min(hold_ns_max))
    }

    fn verdict(&self, now_ns: u64) -> Verdict {
        let Some(Pending { earliest_ns, frames }) = self.pending else {
            return Verdict::Call;
        };
        let until_ns = earliest_ns.saturating_add(self.hold_ns());
        if until_ns <= now_ns || self.settings.rx_frames.is_some_and(|most| frames >= most) {
            return Verdict::Call;
        }
        Verdict::HoldUntil(until_ns)
    }
}

impl Moderation for Backend {
    fn kind(&self) -> Kind {
        Kind::Backend
    }

    fn published(&mut self, now_ns: u64, batch: Batch) -> Verdict {
        let before = self.pending.unwrap_or(Pending { earliest_ns: u64::MAX, frames: 0 });
        self.pending = Some(Pending {
            earliest_ns: before.earliest_ns.min(batch.arrived_ns),
            frames: before.frames.saturating_add(batch.frames),
        });
        self.verdict(now_ns)
    }

    fn expired(&mut self, now_ns: u64) -> Verdict {
        self.verdict(now_ns)
    }

    fn delivered(&mut self, _now_ns: u64, _how: Delivery) {
        self.pending = None;
    }

    fn set_hold_ns_max(&mut self, hold_ns_max: u64) {
        self.settings.hold_ns_max = hold_ns_max;
    }

    fn reset(&mut self) {
        self.pending = None;
    }

    fn decision(&self) -> Decision {
        let hold_ns = self.hold_ns();
        let reason = if self.settings.rx_ns == Some(hold_ns) {
            "rx-usecs"
        } else {
            "the queue's whole share of the latency budget"
        };
        Decision { hold_ns, reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(frames: u32, arrived_ns: u64) -> Batch {
        Batch { frames, bytes: 64, arrived_ns }
    }

    #[test]
    fn holds_from_the_earliest_arrival() {
        let mut policy = Backend::new(Settings { rx_ns: Some(100), ..Settings::within(1000) });
        assert_eq!(policy.published(10, batch(1, 7)), Verdict::HoldUntil(107));
        assert_eq!(policy.published(50, batch(1, 50)), Verdict::HoldUntil(107));
        assert_eq!(policy.published(60, batch(1, 5)), Verdict::HoldUntil(105));
        assert_eq!(policy.expired(105), Verdict::Call);
        policy.delivered(105, Delivery::Called);
        assert_eq!(policy.published(200, batch(1, 200)), Verdict::HoldUntil(300));
    }

    #[test]
    fn a_hold_never_passes_the_limit_whatever_rx_usecs_says() {
        let mut policy = Backend::new(Settings { rx_ns: Some(1_000), ..Settings::within(100) });
        assert_eq!(policy.published(0, batch(1, 0)), Verdict::HoldUntil(100));
        policy.set_hold_ns_max(0);
        assert_eq!(policy.published(1, batch(1, 1)), Verdict::Call);
    }

    #[test]
    fn enough_frames_end_a_hold() {
        let mut policy = Backend::new(Settings { rx_frames: Some(4), ..Settings::within(100) });
        assert_eq!(policy.published(0, batch(3, 0)), Verdict::HoldUntil(100));
        assert_eq!(policy.published(1, batch(1, 1)), Verdict::Call);
        policy.delivered(1, Delivery::Called);
        assert_eq!(policy.published(2, batch(3, 2)), Verdict::HoldUntil(102));
    }
}
