//! Frames handed over by the container, full or timed out (Thakur 2014 §III.A).

use super::{Batch, Decision, Delivery, Kind, Moderation, Settings, Verdict};
use crate::aggregation::{Container, Limits, Playout};

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

/// Divisor of the timeout. While a container expects more, it stays open for at least timeout / 4
/// after the latest arrival. At a rate that fills containers this is many gaps long, so that chance
/// does not close them early. At the end of a burst it is small beside the timeout.
const QUIET_DIVISOR: u64 = 4;
/// Divisor of the timeout. A gap that exceeds the one before by more than timeout / 2 and twice the
/// mean deviation is a pause between bursts, and is not learned.
const SPIKE_DIVISOR: u64 = 2;

/// [`Aggregate`](super::Aggregate) with a release time that follows the traffic, by the playout
/// estimator [`Playout`].
///
/// **What is estimated.** The delay n_i of an arrival (frames that came together are one) is its
/// time to *the next arrival*, at most the timeout T_o. Containers have no influence on it. P = D +
/// 4 V is then the time by which the next arrival has come, if it comes:
///
/// - P reaches T_o: arrivals are rarer than containers time out. Waiting brings delay and no
///   further frames, so frames are handed over at once.
/// - P below T_o: the container waits for the next arrival, for P after the latest one (at least
///   T_o / 4), until it is full, and never past T_o. At a high rate it fills first, as with a fixed
///   timeout.
///
/// A container that has waited in vain counts as a sample of T_o, and never as a spike. Senders that
/// wait for an answer to a held frame need this: their next frame comes soon, but never during the
/// wait.
#[derive(Clone, Copy, Debug)]
pub struct AggregateAdaptive {
    settings: Settings,
    container: Container,
    playout: Playout,
    /// Time of the latest arrival (ns).
    latest_ns: Option<u64>,
    /// The previous container waited in vain.
    in_vain: bool,
}

impl AggregateAdaptive {
    /// Returns a policy with an empty container and no samples.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            container: Container::default(),
            playout: Playout::default(),
            latest_ns: None,
            in_vain: false,
        }
    }

    /// Returns how long after the latest arrival a container is given up (ns); `None` when waiting
    /// for the next arrival is not worth it.
    fn quiet_ns(&self) -> Option<u64> {
        let timeout_ns = timeout_ns(&self.settings);
        match self.playout.playout_ns(timeout_ns) {
            None => Some(timeout_ns),
            Some(playout_ns) if playout_ns >= timeout_ns => None,
            Some(playout_ns) => Some(playout_ns.max(timeout_ns / QUIET_DIVISOR)),
        }
    }

    fn verdict(&self, now_ns: u64) -> Verdict {
        let due_ns = self.container.due_ns(&limits(&self.settings), timeout_ns(&self.settings));
        let quiet_at_ns =
            self.quiet_ns().map_or(0, |quiet_ns| self.container.quiet_at_ns(quiet_ns));
        until(now_ns, due_ns.min(quiet_at_ns))
    }
}

impl Moderation for AggregateAdaptive {
    fn kind(&self) -> Kind {
        Kind::AggregateAdaptive
    }

    fn published(&mut self, now_ns: u64, batch: Batch) -> Verdict {
        if let Some(latest_ns) = self.latest_ns {
            let timeout_ns = timeout_ns(&self.settings);
            let gap_ns = now_ns.saturating_sub(latest_ns);
            let (delay_ns, spike_ns) = match self.in_vain {
                true => (timeout_ns, u64::MAX),
                false => (gap_ns.min(timeout_ns), timeout_ns / SPIKE_DIVISOR),
            };
            self.playout.sample(delay_ns, spike_ns);
        }
        self.in_vain = false;
        self.latest_ns = Some(now_ns);
        self.container.add(now_ns, batch.frames, batch.bytes, batch.arrived_ns);
        self.verdict(now_ns)
    }

    fn expired(&mut self, now_ns: u64) -> Verdict {
        let verdict = self.verdict(now_ns);
        self.in_vain = verdict == Verdict::Call && self.container.is_alone();
        verdict
    }

    fn delivered(&mut self, _now_ns: u64, _how: Delivery) {
        self.container.clear();
    }

    fn set_hold_ns_max(&mut self, hold_ns_max: u64) {
        self.settings.hold_ns_max = hold_ns_max;
    }

    fn reset(&mut self) {
        *self = Self::new(self.settings);
    }

    fn decision(&self) -> Decision {
        match (self.quiet_ns(), self.latest_ns) {
            (None, _) => Decision { hold_ns: 0, reason: "the next frame comes after the timeout" },
            (Some(_), None) => {
                let hold_ns = timeout_ns(&self.settings);
                Decision { hold_ns, reason: "the container's timeout, as nothing has come yet" }
            }
            (Some(hold_ns), Some(_)) => {
                Decision { hold_ns, reason: "the next frame is expected within this time" }
            }
        }
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

    const TIMEOUT_NS: u64 = 1000;

    fn frame(now_ns: u64) -> Batch {
        Batch { frames: 1, bytes: 64, arrived_ns: now_ns }
    }

    /// Returns a policy that has seen `count` arrivals `gap_ns` apart, and the time of the latest.
    fn after(count: u64, gap_ns: u64) -> (AggregateAdaptive, u64) {
        let mut policy = AggregateAdaptive::new(Settings::within(TIMEOUT_NS));
        for i in 0..count {
            let _ = policy.published(i * gap_ns, frame(i * gap_ns));
            policy.delivered(i * gap_ns, Delivery::Called);
        }
        (policy, (count - 1) * gap_ns)
    }

    #[test]
    fn the_first_frame_may_wait_for_the_timeout() {
        let mut policy = AggregateAdaptive::new(Settings::within(TIMEOUT_NS));
        assert_eq!(policy.published(5, frame(5)), Verdict::HoldUntil(1005));
        assert_eq!(policy.expired(1005), Verdict::Call);
    }

    #[test]
    fn frames_rarer_than_the_timeout_go_at_once() {
        let (mut policy, latest_ns) = after(2, TIMEOUT_NS);
        let now_ns = latest_ns + TIMEOUT_NS;
        assert_eq!(policy.published(now_ns, frame(now_ns)), Verdict::Call);
        assert_eq!(policy.decision().hold_ns, 0);
    }

    #[test]
    fn a_container_waits_for_the_next_frame_and_no_longer() {
        let (mut policy, latest_ns) = after(100, 300);
        let now_ns = latest_ns + 300;
        assert_eq!(policy.published(now_ns, frame(now_ns)), Verdict::HoldUntil(now_ns + 300));
        // The latest arrival is limited by the timeout.
        assert_eq!(policy.published(now_ns + 300, frame(now_ns)), Verdict::HoldUntil(now_ns + 600));
        let late_ns = now_ns + 900;
        assert_eq!(policy.published(late_ns, frame(late_ns)), Verdict::HoldUntil(now_ns + 1000));
    }

    #[test]
    fn dense_frames_wait_for_a_part_of_the_timeout_at_least() {
        let (mut policy, latest_ns) = after(100, 1);
        let now_ns = latest_ns + 1;
        assert_eq!(policy.published(now_ns, frame(now_ns)), Verdict::HoldUntil(now_ns + 250));
    }

    #[test]
    fn a_reset_forgets_the_rate() {
        let (mut policy, latest_ns) = after(100, TIMEOUT_NS);
        policy.reset();
        let until_ns = latest_ns + 1 + TIMEOUT_NS;
        let verdict = policy.published(latest_ns + 1, frame(latest_ns + 1));
        assert_eq!(verdict, Verdict::HoldUntil(until_ns));
    }
}
