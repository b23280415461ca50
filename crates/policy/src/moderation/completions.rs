//! Decides when to notify a guest that its transmitted frames were taken.

use super::Verdict;
use crate::attempt::HoldOff;
use crate::law::{LAW, Law};

/// The policy for the calls of one transmit queue.
///
/// A completion lets the driver free a frame. The sender waits for that only if it has run out of
/// something. Completions are **prompt** where that may be the case:
///
/// - Frames are long on average: TCP's bulk data. TCP small queues (Linux `tcp_limit_output_bytes`) stop a connection
///   that has about a millisecond's worth of data in the ring until some of it is freed.
/// - More than half of the ring is not reclaimed: the driver is about to stop its queue.
///
/// Otherwise completions wait for the next call of the *receive* queue of the same pair, since the
/// handler of that call frees transmitted frames as well (Linux `virtio_net`: `virtnet_poll` begins
/// with `virtnet_poll_cleantx`). They wait for the hold limit at most, counted from the earliest
/// completion.
///
/// With [`Self::patient`] a few frames, such as acknowledgements, wait for up to sixteen hold
/// limits, since the next received frame may well come later than one limit. A sender that continues
/// as soon as a late call reaches it was waiting for its completions; it gets no such long holds
/// for a while.
///
/// If received frames are held when the hold ends, one call serves both ([`Due::CallForReceived`]). A little later, as
/// after a call shortly before, a check shows whether the guest has freed its frames. A guest that has not gets a call
/// for them, and its driver is not trusted with a common call for a while.
///
/// A hold that gathered nothing and still ended in a call has only cost a worker a wake-up. After
/// it a growing number of completions is prompt, as `HoldOff` counts.
///
/// The caller makes the call and then calls [`Self::delivered`], as with [`super::Moderation`].
#[derive(Clone, Copy, Debug)]
pub struct Completions {
    law: &'static Law,
    hold_ns_max: u64,
    /// Lets a few completions wait longer.
    patient: bool,
    /// Time of the earliest completion that the guest was not notified of (ns).
    since_ns: Option<u64>,
    /// Sums over the completions since the last delivery.
    frames: u64,
    bytes: u64,
    /// Number of batches since the last delivery.
    batches: u32,
    /// Batches that the hold which has just ended gathered.
    gathered: Option<u32>,
    hold_off: HoldOff,
    /// Time of the check that a call for received frames has freed these frames too (ns).
    look_ns: Option<u64>,
    /// Back-off before the next common call.
    not_freed: HoldOff,
    /// Time of a call after more than the hold limit (ns).
    called_late_ns: Option<u64>,
    /// Back-off before the next such long hold, after a sender that waited for its completions.
    waited: HoldOff,
}

/// State of the receive queue of the same pair, as far as its handler frees transmitted frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// The guest knows of every received frame, or its handler frees nothing.
    Told,
    /// A call is held.
    Held,
    /// Time of the last call (ns).
    Called(u64),
}

/// Answer to a worker that asks about completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Ask again at this time (ns).
    HoldUntil(u64),
    /// Notify the guest now.
    Call,
    /// Make the held call for received frames, and ask again later.
    CallForReceived {
        /// Time to ask again (ns).
        ask_ns: u64,
    },
}

impl Completions {
    /// Returns a policy with nothing pending, under a hold limit (ns).
    pub const fn new(hold_ns_max: u64) -> Self {
        Self {
            law: &LAW,
            hold_ns_max,
            patient: false,
            since_ns: None,
            frames: 0,
            bytes: 0,
            batches: 0,
            gathered: None,
            hold_off: HoldOff::NONE,
            look_ns: None,
            not_freed: HoldOff::NONE,
            called_late_ns: None,
            waited: HoldOff::NONE,
        }
    }

    /// Returns a policy that lets a few completions wait longer.
    pub const fn patient(hold_ns_max: u64) -> Self {
        Self { patient: true, ..Self::new(hold_ns_max) }
    }

    /// Replaces the law.
    pub const fn under(self, law: &'static Law) -> Self {
        Self { law, ..self }
    }

    /// Notes completed frames (published used elements), with their total length.
    ///
    /// `unreclaimed` of `ring_size` buffers are not free for the driver: the driver has offered them, or was not yet
    /// notified of their completion.
    pub fn completed(
        &mut self,
        now_ns: u64,
        frames: u32,
        bytes: u64,
        unreclaimed: u32,
        ring_size: u32,
    ) -> Verdict {
        if let Some(called_ns) = self.called_late_ns.take() {
            match now_ns < self.handled_ns(called_ns) {
                true => self.waited.failed(self.law),
                false => self.waited.ease(),
            }
        } else if self.since_ns.is_none() {
            self.waited.tick();
        }
        self.since_ns = Some(self.since_ns.map_or(now_ns, |since_ns| since_ns.min(now_ns)));
        self.frames = self.frames.saturating_add(u64::from(frames));
        self.bytes = self.bytes.saturating_add(bytes);
        self.batches = self.batches.saturating_add(1);
        let bulk = self.bytes > self.frames.saturating_mul(self.law.bulk_bytes);
        if bulk || unreclaimed > ring_size / 2 {
            return Verdict::Call;
        }
        if self.hold_off.left > 0 {
            self.hold_off.tick();
            return Verdict::Call;
        }
        self.verdict(now_ns)
    }

    /// Answers a worker whose last deadline has passed.
    pub fn expired(&mut self, now_ns: u64, received: Received) -> Due {
        if let Verdict::HoldUntil(until_ns) = self.verdict(now_ns) {
            return Due::HoldUntil(until_ns);
        }
        let Some(since_ns) = self.since_ns else { return Due::Call };
        let ask_ns = match received {
            Received::Told => None,
            Received::Held => Some(self.handled_ns(now_ns)),
            Received::Called(at_ns) => Some(self.handled_ns(at_ns.min(now_ns))),
        };
        if let Some(ask_ns) = ask_ns.filter(|ask_ns| *ask_ns > now_ns && self.look_ns.is_none()) {
            if self.not_freed.left == 0 {
                self.look_ns = Some(ask_ns);
                return match received {
                    Received::Held => Due::CallForReceived { ask_ns },
                    _ => Due::HoldUntil(ask_ns),
                };
            }
            self.not_freed.tick();
        }
        self.gathered = Some(self.batches);
        let late = now_ns > since_ns.saturating_add(self.hold_ns_max);
        self.called_late_ns = Some(now_ns).filter(|_| late);
        Due::Call
    }

    /// Returns the time by which a guest that was called at `called_ns` should have freed its
    /// frames (ns).
    fn handled_ns(&self, called_ns: u64) -> u64 {
        called_ns.saturating_add((self.hold_ns_max >> self.law.part).max(1))
    }

    /// Notes that the guest was notified by a call (`called`), or had suppressed it.
    pub fn delivered(&mut self, called: bool) {
        match self.gathered.take() {
            Some(1) if called => self.hold_off.failed(self.law),
            Some(_) => self.hold_off.forget(),
            None => {}
        }
        match self.look_ns {
            Some(_) if called => self.not_freed.failed(self.law),
            Some(_) => self.not_freed.forget(),
            None => {}
        }
        self.forget();
    }

    /// Notes that the guest has freed all held frames, before more are completed.
    pub fn freed(&mut self) {
        self.hold_off.forget();
        if self.look_ns.is_some() {
            self.not_freed.forget();
        }
        self.forget();
    }

    fn forget(&mut self) {
        (self.since_ns, self.look_ns, self.gathered) = (None, None, None);
        (self.frames, self.bytes, self.batches) = (0, 0, 0);
    }

    /// Returns the deadline for held completions (ns), if there are any.
    pub fn deadline_ns(&self) -> Option<u64> {
        let since_ns = self.since_ns?;
        Some(self.look_ns.unwrap_or_else(|| since_ns.saturating_add(self.hold_ns())))
    }

    fn hold_ns(&self) -> u64 {
        match self.waited.left {
            0 => self.longest_ns(),
            _ => self.hold_ns_max,
        }
    }

    /// Returns the longest hold of the present completions (ns).
    fn longest_ns(&self) -> u64 {
        let Self { law, hold_ns_max, .. } = *self;
        match self.patient && self.frames <= law.few_frames() {
            true => {
                hold_ns_max.saturating_mul(1 << law.step).min(law.few_ns_max()).max(hold_ns_max)
            }
            false => hold_ns_max,
        }
    }

    /// Sets the hold limit (ns). A deadline that is already set may still be kept.
    pub fn set_hold_ns_max(&mut self, hold_ns_max: u64) {
        self.hold_ns_max = hold_ns_max;
    }

    fn verdict(&self, now_ns: u64) -> Verdict {
        match self.deadline_ns() {
            Some(until_ns) if until_ns > now_ns => Verdict::HoldUntil(until_ns),
            _ => Verdict::Call,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMIT_NS: u64 = 1_000;
    const RING: u32 = 256;

    /// Completes small frames, more than a few.
    fn small(completions: &mut Completions, now_ns: u64) -> Verdict {
        completions.completed(now_ns, 40, 40 * 64, 10, RING)
    }

    fn few(completions: &mut Completions, now_ns: u64) -> Verdict {
        completions.completed(now_ns, 4, 4 * 64, 10, RING)
    }

    #[test]
    fn small_frames_are_held_from_the_earliest_completion_on() {
        let mut completions = Completions::new(LIMIT_NS);
        assert_eq!(small(&mut completions, 10), Verdict::HoldUntil(1_010));
        assert_eq!(small(&mut completions, 500), Verdict::HoldUntil(1_010));
        assert_eq!(completions.expired(1_010, Received::Told), Due::Call);
        completions.delivered(true);
        assert_eq!(small(&mut completions, 2_000), Verdict::HoldUntil(3_000));
    }

    #[test]
    fn a_few_frames_are_held_for_longer_than_many() {
        let mut completions = Completions::patient(LIMIT_NS);
        assert_eq!(few(&mut completions, 0), Verdict::HoldUntil(16_000));
        assert_eq!(few(&mut completions, 100), Verdict::HoldUntil(16_000));
        assert_eq!(small(&mut completions, 200), Verdict::HoldUntil(1_000), "many by now");
        assert_eq!(completions.expired(1_000, Received::Told), Due::Call);
        completions.delivered(true);
        assert_eq!(few(&mut completions, 2_000), Verdict::HoldUntil(18_000));
        assert_eq!(small(&mut completions, 4_000), Verdict::Call);
        completions.delivered(true);
        completions.set_hold_ns_max(2_000_000);
        assert_eq!(few(&mut completions, 0), Verdict::HoldUntil(LAW.few_ns_max()));
        completions.set_hold_ns_max(2 * LAW.few_ns_max());
        assert_eq!(few(&mut completions, 0), Verdict::HoldUntil(2 * LAW.few_ns_max()));
    }

    #[test]
    fn a_sender_that_waits_for_a_few_completions_is_kept_waiting_ever_more_rarely() {
        for (waits_ns, at_least, at_most) in [(10, 0, 10), (LIMIT_NS, 1_000, 1_000)] {
            let mut completions = Completions::patient(LIMIT_NS);
            let (mut now_ns, mut longer) = (0, 0);
            for _ in 0..1_000 {
                let _ = few(&mut completions, now_ns);
                if let Verdict::HoldUntil(until_ns) = few(&mut completions, now_ns) {
                    longer += u32::from(until_ns > now_ns + LIMIT_NS);
                    now_ns = until_ns;
                    assert_eq!(completions.expired(now_ns, Received::Told), Due::Call);
                }
                completions.delivered(true);
                now_ns += waits_ns;
            }
            assert!((at_least..=at_most).contains(&longer), "{longer} after {waits_ns}");
        }
    }

    #[test]
    fn bulk_data_is_completed_at_once() {
        let mut completions = Completions::new(LIMIT_NS);
        assert_eq!(completions.completed(0, 2, 2 * 1_514, 10, RING), Verdict::Call);
        completions.delivered(true);
        assert_eq!(completions.completed(0, 1, 65_549, 10, RING), Verdict::Call);
        completions.delivered(true);
        assert_eq!(few(&mut completions, 5), Verdict::HoldUntil(1_005), "acknowledgements");
    }

    #[test]
    fn a_ring_that_runs_full_is_completed_at_once() {
        let mut completions = Completions::new(LIMIT_NS);
        let half = RING / 2;
        assert_eq!(completions.completed(0, 1, 64, half, RING), Verdict::HoldUntil(1_000));
        assert_eq!(completions.completed(1, 1, 64, half + 1, RING), Verdict::Call);
        assert_eq!(completions.completed(1, 1, 64, 1, 1), Verdict::Call, "a ring of one");
    }

    #[test]
    fn holds_that_gather_nothing_end_for_ever_longer() {
        let mut completions = Completions::new(LIMIT_NS);
        let mut held = 0;
        for packet in 0..1_000 {
            let now_ns = packet * 2 * LIMIT_NS;
            if let Verdict::HoldUntil(until_ns) = small(&mut completions, now_ns) {
                held += 1;
                assert_eq!(completions.expired(until_ns, Received::Told), Due::Call);
            }
            completions.delivered(true);
        }
        assert!((5..=11).contains(&held), "{held}");
    }

    #[test]
    fn holds_go_on_where_they_gather_or_save_the_call() {
        for (batches, called) in [(2, true), (1, false)] {
            let mut completions = Completions::new(LIMIT_NS);
            for packet in 0..100 {
                let now_ns = packet * 2 * LIMIT_NS;
                for batch in 0..batches {
                    let verdict = small(&mut completions, now_ns + batch);
                    assert_eq!(verdict, Verdict::HoldUntil(now_ns + LIMIT_NS));
                }
                assert_eq!(completions.expired(now_ns + LIMIT_NS, Received::Told), Due::Call);
                completions.delivered(called);
            }
        }
    }

    #[test]
    fn a_held_call_for_received_frames_is_given_for_both() {
        let mut completions = Completions::new(LIMIT_NS);
        for packet in 0..100 {
            let now_ns = packet * 2 * LIMIT_NS;
            assert_eq!(small(&mut completions, now_ns), Verdict::HoldUntil(now_ns + LIMIT_NS));
            let ask_ns = now_ns + LIMIT_NS + (LIMIT_NS >> LAW.part);
            let due = completions.expired(now_ns + LIMIT_NS, Received::Held);
            assert_eq!(due, Due::CallForReceived { ask_ns });
            assert_eq!(completions.deadline_ns(), Some(ask_ns));
            if packet % 2 == 0 {
                assert_eq!(completions.expired(ask_ns, Received::Held), Due::Call, "once");
                completions.delivered(false);
            } else {
                completions.freed();
            }
            assert_eq!(completions.deadline_ns(), None);
        }
    }

    #[test]
    fn a_guest_that_was_just_called_has_time_to_free_them() {
        let mut completions = Completions::new(LIMIT_NS);
        assert_eq!(small(&mut completions, 0), Verdict::HoldUntil(1_000));
        let called = Received::Called(950);
        assert_eq!(completions.expired(1_000, called), Due::HoldUntil(1_200));
        assert_eq!(completions.expired(1_200, Received::Called(1_190)), Due::Call, "once");
        completions.delivered(false);
        assert_eq!(small(&mut completions, 2_000), Verdict::HoldUntil(3_000));
        assert_eq!(completions.expired(3_000, called), Due::Call, "long ago");
    }

    #[test]
    fn a_driver_that_frees_nothing_in_that_call_is_called_for_it_and_asked_ever_more_rarely() {
        let mut completions = Completions::new(LIMIT_NS);
        let mut trusted = 0;
        for packet in 0..2_000 {
            let now_ns = packet * 3 * LIMIT_NS;
            // Two batches make the hold worth it.
            let _ = small(&mut completions, now_ns);
            assert_eq!(small(&mut completions, now_ns), Verdict::HoldUntil(now_ns + LIMIT_NS));
            let due = completions.expired(now_ns + LIMIT_NS, Received::Held);
            if let Due::CallForReceived { ask_ns } = due {
                trusted += 1;
                assert_eq!(completions.expired(ask_ns, Received::Held), Due::Call);
            } else {
                assert_eq!(due, Due::Call);
            }
            completions.delivered(true);
        }
        assert!((5..=13).contains(&trusted), "{trusted}");
    }

    #[test]
    fn what_the_guest_has_freed_by_itself_is_not_held_any_more() {
        let mut completions = Completions::new(LIMIT_NS);
        assert_eq!(small(&mut completions, 10), Verdict::HoldUntil(1_010));
        completions.freed();
        assert_eq!(small(&mut completions, 900), Verdict::HoldUntil(1_900));
    }

    #[test]
    fn no_limit_holds_nothing() {
        let mut completions = Completions::new(LIMIT_NS);
        completions.set_hold_ns_max(0);
        assert_eq!(small(&mut completions, 7), Verdict::Call);
        completions.delivered(true);
        assert_eq!(completions.deadline_ns(), None);
    }

    proptest! {
        #[test]
        fn no_completion_is_held_past_the_limit(
            hold_ns_max in prop_oneof![0..2_000_000u64, Just(u64::MAX)],
            patient in any::<bool>(),
            batches in prop::collection::vec(
                (0..3_000_000u64, prop_oneof![0..20u32, any::<u32>()], any::<u64>(), 0..300u32, any::<bool>(), 0..3u8),
                1..100),
        ) {
            let mut completions = match patient {
                true => Completions::patient(hold_ns_max),
                false => Completions::new(hold_ns_max),
            };
            let (mut now_ns, mut since_ns, mut held) = (0u64, None, 0u64);
            let lag_ns = (hold_ns_max >> LAW.part).max(1);
            let mut told_ns = None::<u64>;
            for (gap_ns, frames, bytes, unreclaimed, called, received) in batches {
                let received = match received {
                    0 => Received::Told,
                    1 => Received::Held,
                    _ => Received::Called(now_ns),
                };
                now_ns += gap_ns;
                while let Some(until_ns) = completions.deadline_ns().filter(|&at| at <= now_ns) {
                    match completions.expired(until_ns, received) {
                        Due::CallForReceived { ask_ns } => {
                            prop_assert!(received == Received::Held && told_ns.is_none());
                            prop_assert_eq!(ask_ns, until_ns + lag_ns);
                            told_ns = Some(until_ns);
                        }
                        Due::HoldUntil(ask_ns) => {
                            prop_assert!(matches!(received, Received::Called(_)));
                            prop_assert!(ask_ns <= until_ns + lag_ns && told_ns.is_none());
                            told_ns = Some(until_ns);
                        }
                        Due::Call => {
                            completions.delivered(called);
                            (since_ns, told_ns, held) = (None, None, 0);
                        }
                    }
                }
                let earliest_ns: u64 = *since_ns.get_or_insert(now_ns);
                held += u64::from(frames);
                match completions.completed(now_ns, frames, bytes, unreclaimed, RING) {
                    Verdict::Call => {
                        completions.delivered(called);
                        (since_ns, told_ns, held) = (None, None, 0);
                    }
                    Verdict::HoldUntil(until_ns) => {
                        prop_assert!(until_ns > now_ns);
                        // A guest that was called gets the handler's time in addition.
                        let latest_ns = match told_ns {
                            Some(told_ns) => told_ns + lag_ns,
                            None => {
                                let few = patient && held <= LAW.few_frames();
                                let longer_ns = if few { LAW.few_ns_max() } else { 0 };
                                earliest_ns.saturating_add(hold_ns_max.max(longer_ns))
                            }
                        };
                        prop_assert!(until_ns <= latest_ns);
                        prop_assert!(unreclaimed <= RING / 2);
                        prop_assert_eq!(completions.deadline_ns(), Some(until_ns));
                    }
                }
            }
        }
    }
}
