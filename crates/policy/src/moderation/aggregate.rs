//! Frames handed over by the container, full or timed out (Thakur 2014 §III.A).

use super::{Batch, Decision, Delivery, Kind, Moderation, Settings, Verdict};
use crate::aggregation::{Container, Limits};

/// Gathers frames in a container, and hands it over when it is full or its timeout has passed since
/// its earliest frame arrived.
///
/// The timeout is `rx-usecs`, and never past the hold limit; `rx-frames` and the container's bytes
/// say when it is full. The guest sees nothing of a container before it is handed over
/// ([`Moderation::withholds`]).
#[derive(Clone, Copy, Debug)]
pub struct Aggregate {
    settings: Settings,
    container: Container,
}

impl Aggregate {
    /// Returns a policy with an empty container.
    pub fn new(settings: Settings) -> Self {
        Self { settings, container: Container::default() }
    }

    fn verdict(&self, now_ns: u64) -> Verdict {
        let limits = limits(&self.settings);
        until(now_ns, self.container.due_ns(&limits, timeout_ns(&self.settings)))
    }
}

/// Returns the limits of a container under these settings.
pub(super) fn limits(settings: &Settings) -> Limits {
    let frames = settings.rx_frames;
    Limits { bytes: settings.container_bytes.unwrap_or(Limits::default().bytes), frames }
}

/// Returns the longest wait of a container (ns), counted from its earliest frame.
pub(super) fn timeout_ns(settings: &Settings) -> u64 {
    settings.rx_ns.map_or(settings.hold_ns_max, |rx_ns| rx_ns.min(settings.hold_ns_max))
}

/// Returns the verdict for a container that is due at `due_ns`.
pub(super) fn until(now_ns: u64, due_ns: u64) -> Verdict {
    // An empty container is never due. Nobody asks about it; one call too many would lose nothing.
    if due_ns <= now_ns || due_ns == u64::MAX { Verdict::Call } else { Verdict::HoldUntil(due_ns) }
}

impl Moderation for Aggregate {
    fn kind(&self) -> Kind {
        Kind::Aggregate
    }

    fn published(&mut self, now_ns: u64, batch: Batch) -> Verdict {
        self.container.add(now_ns, batch.frames, batch.bytes, batch.arrived_ns);
        self.verdict(now_ns)
    }

    fn expired(&mut self, now_ns: u64) -> Verdict {
        self.verdict(now_ns)
    }

    fn delivered(&mut self, _now_ns: u64, _how: Delivery) {
        self.container.clear();
    }

    fn set_hold_ns_max(&mut self, hold_ns_max: u64) {
        self.settings.hold_ns_max = hold_ns_max;
    }

    fn reset(&mut self) {
        self.container.clear();
    }

    fn decision(&self) -> Decision {
        Decision { hold_ns: timeout_ns(&self.settings), reason: "the container's timeout" }
    }

    fn withholds(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(frames: u32, bytes: u64, arrived_ns: u64) -> Batch {
        Batch { frames, bytes, arrived_ns }
    }

    #[test]
    fn a_page_of_frames_is_a_full_container() {
        let mut policy = Aggregate::new(Settings::within(100));
        assert_eq!(policy.published(0, batch(63, 63 * 64, 0)), Verdict::HoldUntil(100));
        assert_eq!(policy.published(1, batch(1, 64, 1)), Verdict::Call);
        policy.delivered(1, Delivery::Called);
        assert_eq!(policy.published(2, batch(1, 64, 2)), Verdict::HoldUntil(102));
    }

    #[test]
    fn bytes_frames_and_timeout_can_be_set() {
        let settings = Settings {
            rx_ns: Some(50),
            rx_frames: Some(3),
            container_bytes: Some(1000),
            ..Settings::within(100)
        };
        let mut policy = Aggregate::new(settings);
        assert_eq!(policy.published(0, batch(2, 128, 0)), Verdict::HoldUntil(50));
        assert_eq!(policy.published(1, batch(1, 64, 1)), Verdict::Call);
        policy.delivered(1, Delivery::Called);
        assert_eq!(policy.published(2, batch(1, 1000, 2)), Verdict::Call);
    }

    #[test]
    fn a_timeout_beyond_the_hold_limit_is_the_hold_limit() {
        let settings = Settings { rx_ns: Some(1_000), ..Settings::within(100) };
        let mut policy = Aggregate::new(settings);
        assert_eq!(policy.published(10, batch(1, 64, 7)), Verdict::HoldUntil(107));
        assert_eq!(policy.expired(107), Verdict::Call);
        assert_eq!(policy.decision().hold_ns, 100);
    }
}
