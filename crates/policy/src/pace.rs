//! Decides what a worker without work does: poll, nap or sleep.
//!
//! A sleep costs a system call on either side, a wake-up and a guest's kick, some microseconds
//! together. So a worker first **busy-polls** for a while, with kicks suppressed, if work has
//! lately come sooner than that. It never polls for longer than a sleep would cost, so it spends at
//! most twice the cost of the best choice (the ski-rental argument). After polls that find nothing,
//! a growing number of sleeps goes without a poll. Where another queue usually answers, the last
//! queue has its own memory: an answer comes soon after a request, and the next request much later.
//! A wake-up in the way of an answer counts up to four times, if frames may wait for less than 100
//! us.
//!
//! If frames come steadily but further apart, every frame would cost a wake-up. Then the worker **naps**: it sleeps for
//! a part of the latency budget, with kicks suppressed, and takes all new frames at once. A nap slows down a sender
//! that waits for answers before it sends more, so the rate falls. Then naps end, and are not tried again for a growing
//! time. If the rate falls too little to tell, a while without naps shows whether they were the cause.

use crate::attempt::HoldOff;
use crate::law::{LAW, Law};

/// Returns the longest nap (ns) of a worker while `budget_ns` is the smallest latency budget among
/// receivers: the budget less the law's margin. A hold counts from the earliest time at which a
/// frame may have come, so it has the time that a nap leaves.
fn nap_ns_max(law: &Law, budget_ns: u64) -> u64 {
    budget_ns.saturating_sub(law.margin_ns).min(law.nap_ns_max)
}

/// The next step of a worker that has run out of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Poll the queues for this time (ns), with kicks suppressed; then call [`Pace::polled`].
    Poll(u64),
    /// Sleep for this time (ns), with kicks suppressed; then poll the queues.
    Nap(u64),
    /// Enable kicks and sleep until one comes; then call [`Pace::slept`].
    Sleep,
}

/// State of naps.
#[derive(Clone, Copy, Debug, Default)]
struct Naps {
    period_start_ns: u64,
    /// Frames served in this period, and their bytes.
    frames: u64,
    bytes: u64,
    /// Frames a second without naps, smoothed over some periods.
    rate: u64,
    /// Periods over which `rate` is known, since its last jump.
    known: u32,
    nap_ns: u64,
    trial: Option<Trial>,
    /// A comparison without naps, while one is under way.
    look: Option<Look>,
    /// Judgements since the last comparison, and the number after which the next one is due.
    judged: u32,
    to_look: u32,
    hold_off: HoldOff,
    good_periods: u32,
}

/// Observation of naps, which may do harm.
#[derive(Clone, Copy, Debug)]
struct Trial {
    /// Expected frames a second without naps.
    rate: u64,
    /// Beginning of the first nap (ns), until it is judged.
    first: Option<u64>,
    /// Frames since then.
    brought: u64,
    /// Periods judged so far, with the frames expected and the frames that came.
    periods: u32,
    expected: u64,
    came: u64,
    elapsed_ns: u64,
}

/// Observation without naps, compared with the rate under naps.
#[derive(Clone, Copy, Debug)]
struct Look {
    /// Frames a second with naps.
    rate: u64,
    periods: u32,
    came: u64,
    elapsed_ns: u64,
}

impl Look {
    /// Returns whether more frames come without naps: more by a step than random arrivals can bring by chance.
    fn finds_harm(&self, law: &Law) -> bool {
        let more = self.came.saturating_sub(frames_in(self.rate, self.elapsed_ns));
        more > (self.came >> law.step) + law.chance(self.came)
    }
}

impl Trial {
    const fn new(rate: u64, first: Option<u64>) -> Self {
        Self { rate, first, brought: 0, periods: 0, expected: 0, came: 0, elapsed_ns: 0 }
    }

    /// Returns whether clearly fewer frames came: fewer by two steps than random arrivals can bring
    /// by chance.
    fn harms(&self, law: &Law) -> bool {
        let missing = self.expected.saturating_sub(self.came);
        missing > ((2 * self.expected) >> law.step) + law.chance(self.expected)
    }

    /// Returns whether somewhat fewer frames came. The traffic may shrink, or naps may slow it
    /// down.
    fn may_harm(&self, law: &Law) -> bool {
        let missing = self.expected.saturating_sub(self.came);
        missing > ((self.expected / 2) >> law.step) + law.chance(self.expected) / 2
    }
}

/// Memories of polls for answers. Queues beyond this number share them.
const MEMORIES: usize = 8;

/// The queues that had work right after others: the answer to a request comes from another guest.
#[derive(Clone, Copy, Debug)]
pub struct Successors<Q> {
    /// The queue that was served last, and its memory.
    last: Option<(Q, usize)>,
    /// For each memory, the queue that had work next.
    next: [Option<Q>; MEMORIES],
}

impl<Q> Default for Successors<Q> {
    fn default() -> Self {
        Self { last: None, next: [const { None }; MEMORIES] }
    }
}

impl<Q: Copy + PartialEq> Successors<Q> {
    /// Notes that `queue`, of this number, had frames. `peeks`: it can be polled.
    pub fn served(&mut self, queue: Q, number: usize, peeks: bool) {
        let number = number % MEMORIES;
        if let Some((before, memory)) = self.last.replace((queue, number)) {
            self.next[memory] = (peeks && before != queue).then_some(queue);
        }
    }

    /// Returns the queue that had work after the last one the time before, if it was another one, with the memory of
    /// polls for it.
    pub fn awaited(&self) -> Option<(usize, Q)> {
        let (_, memory) = self.last?;
        self.next[memory].map(|queue| (memory, queue))
    }
}

/// The polls of one kind, and the sleeps without polls while polling does not pay.
#[derive(Clone, Copy, Debug)]
struct Polls {
    window_ns: u64,
    hold_off: HoldOff,
}

/// One worker's policy. Every `now_ns` is from one monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    law: &'static Law,
    /// Polls for any work, and for answers by the queue that was served last.
    any: Polls,
    answers: [Polls; MEMORIES],
    /// The memory of answers that the last rest used.
    awaited: Option<usize>,
    /// Longest poll of the last rest (ns).
    longest_ns: u64,
    naps: Naps,
}

impl Default for Pace {
    fn default() -> Self {
        Self::under(&LAW)
    }
}

impl Pace {
    /// Returns a policy that knows no load.
    pub fn under(law: &'static Law) -> Self {
        let any = Polls { window_ns: 0, hold_off: HoldOff::NONE };
        let (answers, longest_ns) = ([any; MEMORIES], law.sleep_ns());
        Self { law, any, answers, awaited: None, longest_ns, naps: Naps::default() }
    }

    /// Counts served frames and their bytes. A frame that is tried again, since its receiver had no
    /// buffers, counts each time: otherwise a flooded guest would get less.
    pub fn served(&mut self, frames: usize, bytes: u64) {
        let frames = frames as u64;
        self.naps.frames += frames;
        self.naps.bytes += bytes;
        if let Some(trial) = &mut self.naps.trial {
            trial.brought += frames;
        }
    }

    fn polls(&mut self) -> &mut Polls {
        match self.awaited {
            Some(memory) => &mut self.answers[memory % MEMORIES],
            None => &mut self.any,
        }
    }

    /// Decides what to do without work. `budget_ns` is the smallest latency budget among possible
    /// receivers. `awaited` is the memory of [`Successors::awaited`], if the worker polls that queue
    /// as well.
    pub fn rest(&mut self, now_ns: u64, budget_ns: u64, awaited: Option<usize>) -> Rest {
        self.naps.judge_first(self.law, now_ns);
        self.naps.judge(self.law, now_ns, nap_ns_max(self.law, budget_ns));
        self.awaited = awaited;
        self.longest_ns = match awaited {
            Some(_) => self.law.answer_ns_max(budget_ns),
            None => self.law.sleep_ns(),
        };
        let Polls { window_ns, hold_off } = *self.polls();
        if self.naps.trial.is_some() {
            Rest::Nap(self.naps.nap_ns)
        } else if hold_off.left == 0 {
            Rest::Poll(window_ns.clamp(self.law.poll_ns_min(), self.longest_ns))
        } else {
            Rest::Sleep
        }
    }

    /// Notes the end of a poll: with work after `gap_ns`, or with none.
    pub fn polled(&mut self, gap_ns: Option<u64>) {
        let (law, longest_ns) = (self.law, self.longest_ns);
        let Polls { window_ns, hold_off } = self.polls();
        if let Some(gap_ns) = gap_ns {
            // The window grows at once and shrinks slowly.
            let narrower_ns = *window_ns - (*window_ns >> law.step);
            *window_ns = (2 * gap_ns).max(narrower_ns).min(longest_ns);
            hold_off.forget();
        } else {
            *window_ns = (2 * *window_ns).clamp(law.poll_ns_min(), longest_ns);
            hold_off.failed(law);
        }
    }

    /// Notes that a sleep ended with work.
    pub fn slept(&mut self) {
        self.polls().hold_off.tick();
    }
}

impl Naps {
    /// Judges the first nap. A nap that brings next to nothing has delayed a sender that sends one
    /// frame at a time. One such nap is enough evidence.
    fn judge_first(&mut self, law: &Law, now_ns: u64) {
        let Some(trial) = &mut self.trial else { return };
        let Some(since_ns) = trial.first else { return };
        let expected = frames_in(trial.rate, now_ns.saturating_sub(since_ns));
        let brought = std::mem::take(&mut trial.brought);
        if expected < law.frames_worth() {
            // A nap that a kick cut short says nothing.
            trial.first = Some(now_ns);
            return;
        }
        trial.first = None;
        if brought <= expected >> law.part {
            self.failed(law);
        }
    }

    /// Judges a period at its end: begins, continues or ends naps.
    fn judge(&mut self, law: &Law, now_ns: u64, nap_ns_max: u64) {
        let elapsed_ns = now_ns.saturating_sub(self.period_start_ns);
        if elapsed_ns < law.period_ns() {
            return;
        }
        let (came, bytes) = (std::mem::take(&mut self.frames), std::mem::take(&mut self.bytes));
        self.period_start_ns = now_ns;
        let rate = per_second(came, elapsed_ns);
        // A sender of large segments has at most about a millisecond's worth on its way (Linux: TCP
        // small queues), and waits for completions that a longer nap delays. A comparison of rates
        // does not show that loss.
        let large = bytes > came.saturating_mul(law.segment_bytes());
        let longest_ns = law.nap_ns_max >> if large { law.part } else { 0 };
        let nap_ns_max = nap_ns_max.min(longest_ns);
        // A nap brings no more frames than small rings have room for.
        self.nap_ns = nap_ns_max.min(law.frames() * 1_000_000_000 / rate.max(1));
        let Some(trial) = &mut self.trial else {
            return self.judge_without(law, rate, came, elapsed_ns, now_ns);
        };
        trial.periods += 1;
        trial.expected += frames_in(trial.rate, elapsed_ns);
        trial.came += came;
        trial.elapsed_ns += elapsed_ns;
        if trial.harms(law) {
            self.failed(law);
            return;
        }
        if self.nap_ns <= law.sleep_ns() || frames_in(rate, self.nap_ns) < law.batches {
            (self.trial, self.rate) = (None, rate);
            return;
        }
        if trial.periods == law.periods() {
            self.judged = self.judged.saturating_add(1);
            let rate = per_second(trial.came, trial.elapsed_ns);
            if trial.may_harm(law) && self.judged >= self.to_look {
                self.look = Some(Look { rate, periods: 0, came: 0, elapsed_ns: 0 });
                self.trial = None;
            } else {
                // The next observation starts from zero, since the traffic may grow and shrink.
                *trial = Trial::new(rate, None);
            }
        }
        self.good_periods += 1;
        if self.good_periods == law.samples() {
            self.good_periods = 0;
            self.hold_off.forget();
        }
    }

    /// Judges a period without naps.
    fn judge_without(&mut self, law: &Law, rate: u64, came: u64, elapsed_ns: u64, now_ns: u64) {
        if let Some(look) = &mut self.look {
            look.periods += 1;
            look.came += came;
            look.elapsed_ns += elapsed_ns;
            if look.came < u64::from(law.memory) && look.periods < law.periods() {
                return;
            }
            self.rate = per_second(look.came, look.elapsed_ns);
            let harm = look.finds_harm(law);
            self.look = None;
            if harm {
                self.failed(law);
                return;
            }
            // Each frame without naps costs a wake-up. So the first comparison comes after one
            // judgement, and each comparison that finds no harm doubles the distance.
            (self.judged, self.to_look) = (0, (2 * self.to_look).clamp(1, law.frames_max));
        } else {
            // The average does not describe traffic that has just begun.
            let sudden = rate > self.rate.saturating_mul(2);
            self.known = if sudden { 0 } else { self.known.saturating_add(1) };
            self.rate = if sudden {
                rate
            } else {
                self.rate - (self.rate >> law.step) + (rate >> law.step)
            };
            if self.hold_off.left > 0 {
                self.hold_off.tick();
                return;
            }
        }
        if self.known >= law.in_a_row
            && self.nap_ns > law.sleep_ns()
            && frames_in(self.rate.min(rate), self.nap_ns) >= law.frames_worth()
        {
            self.trial = Some(Trial::new(self.rate, Some(now_ns)));
        }
    }

    /// Ends naps that do harm.
    fn failed(&mut self, law: &Law) {
        self.trial = None;
        self.hold_off.failed(law);
        (self.good_periods, self.to_look) = (0, 0);
    }
}

fn per_second(frames: u64, ns: u64) -> u64 {
    frames.saturating_mul(1_000_000_000) / ns.max(1)
}

fn frames_in(rate: u64, ns: u64) -> u64 {
    rate.saturating_mul(ns) / 1_000_000_000
}

#[cfg(test)]
mod tests {
    use rand::{RngExt as _, SeedableRng as _};
    use rand_xoshiro::SplitMix64;

    use super::*;

    const BUDGET_NS: u64 = 1_000_000;
    const SECOND_NS: u64 = 1_000_000_000;
    const FRAME_BYTES: u64 = 1_514;

    /// Counts of a worker's actions in a run.
    #[derive(Debug, Default)]
    struct Did {
        polls: u64,
        empty_polls: u64,
        naps: u64,
        sleeps: u64,
        frames: u64,
    }

    /// Plays a worker and a sender in virtual time. `next(now, left)` returns the time of the next
    /// frame, given when the previous one was taken and when it was sent.
    fn run(pace: &mut Pace, from_ns: u64, for_ns: u64, next: impl Fn(u64, u64) -> u64) -> Did {
        let mut did = Did::default();
        let (mut now, mut sent) = (from_ns, from_ns);
        while now < from_ns + for_ns {
            let mut taken = 0;
            while sent <= now {
                taken += 1;
                sent = next(now, sent);
            }
            did.frames += taken;
            pace.served(taken as usize, taken * FRAME_BYTES);
            let start = now;
            let mut rest = pace.rest(now, BUDGET_NS, None);
            if let Rest::Poll(window) = rest {
                did.polls += 1;
                if sent <= start + window {
                    now = sent;
                    pace.polled(Some(now - start));
                    continue;
                }
                did.empty_polls += 1;
                now += window;
                pace.polled(None);
                rest = pace.rest(start, BUDGET_NS, None);
            }
            match rest {
                Rest::Nap(ns) => {
                    did.naps += 1;
                    now += ns;
                }
                _ => {
                    did.sleeps += 1;
                    now = now.max(sent);
                    pace.slept();
                }
            }
        }
        did
    }

    #[test]
    fn the_queue_that_had_work_next_is_awaited_if_it_is_another_that_can_be_polled() {
        let mut successors = Successors::default();
        let mut awaited = |queue: usize, peeks| {
            successors.served(queue, queue, peeks);
            successors.awaited()
        };
        assert_eq!([1, 2, 1].map(|queue| awaited(queue, true)), [None, None, Some((1, 2))]);
        assert_eq!(awaited(1, true), None, "its own next frame");
        assert_eq!(
            [2, 1].map(|queue| awaited(queue, false)),
            [Some((2, 1)), None],
            "the last of both"
        );
        assert_eq!(awaited(1 + MEMORIES, true), Some((1, 1 + MEMORIES)), "memories are shared");
    }

    #[test]
    fn work_that_comes_at_once_is_waited_for_awake() {
        let mut pace = Pace::default();
        // Each frame comes 3 us after the previous one was taken: a sender that waits for answers.
        let did = run(&mut pace, 0, SECOND_NS / 10, |taken, _| taken + 3_000);
        assert!(did.frames > 30_000, "{did:?}");
        assert!(did.sleeps < 100, "{did:?}");
    }

    #[test]
    fn the_window_is_twice_the_gap_and_follows_it() {
        let mut pace = Pace::default();
        pace.polled(Some(3_000));
        assert_eq!(pace.rest(0, BUDGET_NS, None), Rest::Poll(6_000));
        for _ in 0..100 {
            pace.polled(Some(600));
        }
        let Rest::Poll(window) = pace.rest(0, BUDGET_NS, None) else { panic!("polling pays") };
        assert!((1_200..1_300).contains(&window), "{window}");
        pace.polled(Some(7_000));
        assert_eq!(
            pace.rest(0, BUDGET_NS, None),
            Rest::Poll(LAW.sleep_ns()),
            "no longer than a sleep costs"
        );
    }

    /// Plays 10,000 requests and answers a second, with an answer 15 us after each request, and returns the sleeps and
    /// the time of polls for each request, once the worker knows the load.
    fn requests(budget_ns: u64) -> (f64, f64) {
        const KNOWN: u64 = 5_000;
        const REQUESTS: u64 = 10_000;
        let mut pace = Pace::default();
        let (mut now_ns, mut sleeps, mut polled_ns) = (0, 0, 0);
        for request in 0..KNOWN + REQUESTS {
            if request == KNOWN {
                (sleeps, polled_ns) = (0, 0);
            }
            for (queue, gap_ns) in [(0, 15_000), (1, 85_000)] {
                pace.served(1, 60);
                if let Rest::Poll(window_ns) = pace.rest(now_ns, budget_ns, Some(queue)) {
                    let gap_ns = (gap_ns <= window_ns).then_some(gap_ns);
                    polled_ns += gap_ns.unwrap_or(window_ns);
                    pace.polled(gap_ns);
                    if gap_ns.is_some() {
                        now_ns += 15_000;
                        continue;
                    }
                }
                sleeps += 1;
                pace.slept();
                now_ns += gap_ns;
            }
        }
        (f64::from(sleeps) / REQUESTS as f64, polled_ns as f64 / REQUESTS as f64)
    }

    #[test]
    fn an_answer_is_awaited_where_frames_may_wait_for_little() {
        let (sleeps, polled_ns) = requests(250_000);
        assert!(sleeps > 1.99 && polled_ns < 100.0, "{sleeps}, {polled_ns} ns");
        for budget_ns in [0, 40_000] {
            let (sleeps, polled_ns) = requests(budget_ns);
            // The next request comes too late to be waited for. A round has one sleep, and polls hardly longer than for
            // the answer.
            assert!(sleeps < 1.01 && polled_ns < 15_500.0, "{budget_ns}: {sleeps}, {polled_ns} ns");
        }
        // A stream of one queue is not waited for.
        let mut pace = Pace::default();
        pace.rest(0, 0, Some(9));
        pace.polled(Some(15_000));
        assert_eq!(pace.rest(0, 0, Some(9)), Rest::Poll(30_000));
        pace.rest(0, 0, None);
        pace.polled(Some(15_000));
        assert_eq!(pace.rest(0, 0, None), Rest::Poll(LAW.sleep_ns()));
    }

    #[test]
    fn work_that_comes_late_is_slept_for() {
        for gap_ns in [12_000, 40_000, 200_000, 10_000_000] {
            let mut pace = Pace::default();
            let did = run(&mut pace, 0, SECOND_NS, |taken, _| taken + gap_ns);
            assert!(did.empty_polls <= 12 + did.sleeps / 1_000, "{gap_ns} ns: {did:?}");
        }
    }

    #[test]
    fn polling_comes_back_with_the_traffic_that_pays_for_it() {
        let mut pace = Pace::default();
        run(&mut pace, 0, SECOND_NS, |taken, _| taken + 12_000);
        let did = run(&mut pace, SECOND_NS, SECOND_NS, |taken, _| taken + 2_000);
        assert!(did.sleeps <= u64::from(LAW.memory), "{did:?}");
        assert!(did.polls > 400_000, "{did:?}");
    }

    #[test]
    fn steady_frames_are_taken_in_naps() {
        let mut pace = Pace::default();
        run(&mut pace, 0, SECOND_NS / 50, |_, sent| sent + 12_000);
        let did = run(&mut pace, SECOND_NS / 50, SECOND_NS, |_, sent| sent + 12_000);
        assert!(did.naps > 1_000, "{did:?}");
        assert!(did.frames / (did.naps + did.sleeps) >= 50, "{did:?}");
    }

    /// Returns a worker's choice after a long load of `frames` in each period.
    fn rest_after(frames: usize, budget_ns: u64) -> Rest {
        rest_after_frames_of(FRAME_BYTES, frames, budget_ns)
    }

    /// As [`rest_after`], for frames of `bytes`.
    fn rest_after_frames_of(bytes: u64, frames: usize, budget_ns: u64) -> Rest {
        let mut pace = Pace::default();
        for period in 0..=u64::from(LAW.in_a_row) {
            assert!(
                !matches!(pace.rest(period * LAW.period_ns(), budget_ns, None), Rest::Nap(_)),
                "{period}"
            );
            pace.served(frames, frames as u64 * bytes);
        }
        pace.rest((u64::from(LAW.in_a_row) + 1) * LAW.period_ns(), budget_ns, None)
    }

    #[test]
    fn a_sender_of_large_segments_does_not_wait_for_a_long_nap() {
        let rest_after = |bytes, frames| rest_after_frames_of(bytes, frames, BUDGET_NS);
        assert_eq!(rest_after(8_192, 70), Rest::Nap(LAW.nap_ns_max));
        assert_eq!(rest_after(8_193, 70), Rest::Nap(LAW.nap_ns_max >> LAW.part));
        let few = rest_after(40_000, 10);
        assert!(!matches!(few, Rest::Nap(_)), "two in a nap: {few:?}");
    }

    #[test]
    fn a_nap_leaves_some_of_the_budget() {
        for (frames, budget_ns, longest_ns) in
            [(200, 60_000, 40_000), (200, 200_000, 180_000), (70, BUDGET_NS, LAW.nap_ns_max)]
        {
            assert_eq!(rest_after(frames, budget_ns), Rest::Nap(longest_ns));
        }
        let rest = rest_after(1_000, 20_000);
        assert!(!matches!(rest, Rest::Nap(_)), "not worth a sleep: {rest:?}");
        assert_eq!(
            [0, 20_000, 100_000, BUDGET_NS].map(|ns| nap_ns_max(&LAW, ns)),
            [0, 0, 80_000, LAW.nap_ns_max]
        );
    }

    #[test]
    fn a_nap_ends_before_small_rings_are_full() {
        assert_eq!(rest_after(4_000, BUDGET_NS), Rest::Nap(16_000), "64 frames at 4 Mpps");
        let rest = rest_after(20_000, BUDGET_NS);
        assert!(!matches!(rest, Rest::Nap(_)), "too short to be worth a sleep: {rest:?}");
    }

    #[test]
    fn a_sender_that_naps_slow_down_is_left_alone() {
        let mut pace = Pace::default();
        // Each frame comes 12 us after the previous one was taken: naps would stretch the gap to
        // 900.
        let did = run(&mut pace, 0, SECOND_NS, |taken, _| taken + 12_000);
        assert!(did.naps < 15 && did.frames > SECOND_NS / 12_000 * 49 / 50, "{did:?}");
    }

    #[test]
    fn a_sender_that_naps_slow_down_by_little_is_left_alone_too() {
        let mut pace = Pace::default();
        // Each fortieth frame comes when the previous one was taken, the others 50 us apart: in 2
        // ms, or half a nap longer.
        let sent_so_far = std::cell::Cell::new(0u64);
        let did = run(&mut pace, 0, 20 * SECOND_NS, |taken, sent| {
            sent_so_far.set(sent_so_far.get() + 1);
            if sent_so_far.get().is_multiple_of(40) { taken + 50_000 } else { sent + 50_000 }
        });
        assert!(did.frames > 20 * 20_000 * 97 / 100, "{did:?}");
    }

    #[test]
    fn a_load_that_grows_at_first_is_judged_by_what_it_has_come_to() {
        let mut pace = Pace::default();
        // A window of frames that are answered when they are taken: 20 at first, then 100, in a millisecond.
        let sent_so_far = std::cell::Cell::new(0u64);
        let did = run(&mut pace, 0, 10 * SECOND_NS, |taken, sent| {
            let nth = sent_so_far.replace(sent_so_far.get() + 1);
            let gap_ns = if nth < 20 { 50_000 } else { 10_000 };
            if nth.is_multiple_of(50) { taken + 10_000 } else { sent + gap_ns }
        });
        assert!(did.frames > 10 * 100_000 * 95 / 100, "{did:?}");
    }

    #[test]
    fn naps_go_on_though_frames_come_at_random_times() {
        let mut pace = Pace::default();
        let mut random = SplitMix64::seed_from_u64(1);
        let mut gap = || (-50_000.0 * (1.0 - random.random::<f64>()).ln()) as u64;
        let gaps: [u64; 4_096] = std::array::from_fn(|_| gap());
        let did = run(&mut pace, 0, 10 * SECOND_NS, |_, sent| sent + gaps[sent as usize % 4_096]);
        assert!(did.sleeps < did.naps / 4, "{did:?}");
        assert!(did.frames / (did.naps + did.sleeps) >= 10, "{did:?}");
    }

    #[test]
    fn naps_end_with_the_traffic() {
        let mut pace = Pace::default();
        run(&mut pace, 0, SECOND_NS / 10, |_, sent| sent + 12_000);
        let did = run(&mut pace, SECOND_NS / 10, SECOND_NS, |_, sent| sent + 500_000);
        assert!(did.naps <= 2 * LAW.period_ns().div_ceil(LAW.nap_ns_max), "{did:?}");
    }
}
