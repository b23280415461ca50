//! Checks after every event: each deadline is kept, and every queue makes progress.
//!
//! Both hold only while a worker has its CPU, so time counts on the worker's *own* two clocks. The
//! first stops while the thread is ready without a CPU, and while all clocks jump. Its bound
//! is some rounds over all queues, full, at the scenario's costs. The second runs only while the
//! worker sleeps. Its bound is the lateness of timers.

use std::cmp::Reverse;

use weir_limits::{BURST_MAX, FRAME_LEN_MAX, PARKED_NS_MAX};

use super::Host;
use super::parts::{PortId, Side};
use super::worker::ROUNDS_PER_POLL;
use crate::link::Frame;
use crate::profile::{Profile, bytes_ns};
use crate::random::Distribution;
use crate::report::Violation;
use crate::scenario::{LoadKind, Scenario};

/// A worker's own clocks.
#[derive(Clone, Copy, Debug, Default)]
struct Own {
    /// Time spent ready without a CPU, and getting one back (ns).
    waited_ns: u64,
    /// Time spent asleep (ns).
    slept_ns: u64,
    /// At the last look the worker was ready without a CPU, or asleep.
    waits: bool,
    sleeps: bool,
}

/// A time by both of a worker's clocks (ns).
#[derive(Clone, Copy, Debug)]
struct Times {
    own_ns: u64,
    slept_ns: u64,
}

impl Times {
    /// Returns a time of a worker that never sleeps.
    const fn awake(own_ns: u64) -> Self {
        Self { own_ns, slept_ns: 0 }
    }

    /// Returns whether either clock exceeds `most`.
    const fn exceeds(self, most: Self) -> bool {
        self.own_ns > most.own_ns || self.slept_ns > most.slept_ns
    }
}

/// A state and its beginning.
#[derive(Clone, Copy, Debug)]
struct Since<T>(Option<(T, Times)>);

impl<T> Default for Since<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: Copy + PartialEq> Since<T> {
    /// Notes the present state, `None` for none. Returns its duration.
    fn lasts(&mut self, what: Option<T>, now: Times) -> Times {
        let Some(what) = what else {
            self.0 = None;
            return Times::awake(0);
        };
        let since = self.0.filter(|(before, _)| *before == what).unwrap_or((what, now));
        self.0 = Some(since);
        Times {
            own_ns: now.own_ns.saturating_sub(since.1.own_ns),
            slept_ns: now.slept_ns.saturating_sub(since.1.slept_ns),
        }
    }
}

type FrameId = (usize, bool, u64);

#[derive(Debug)]
pub(super) struct Watch {
    /// Longest time from a deadline to the question, and from a frame that a worker knows of to its
    /// service.
    ask_max: Times,
    serve_max: Times,
    /// Time to get a CPU back (ns).
    switch_ns: u64,
    last_ns: u64,
    jumped_ns: u64,
    workers: Vec<Own>,
    /// By guest and side: the worker that had to ask.
    overdue: Vec<[Since<usize>; 2]>,
    /// Set per guest and side while the guest sleeps without knowledge of its frames.
    asleep: Vec<[Since<()>; 2]>,
    /// By port: the first frame, and the worker that has to take it. The wait counts on that
    /// worker's clocks.
    queued: Vec<Since<(FrameId, usize)>>,
    /// By port: the worker that has to try the parked frames again.
    parked: Vec<Since<usize>>,
}

impl Watch {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let profile = &scenario.profile;
        let round_ns = round_ns(scenario);
        let wake_ns = profile.timer_late_ns + profile.wakeup_latency_ns + profile.sleep_ns;
        // No nap exceeds the wait that every guest allows.
        let waits = scenario.guests.iter().map(|guest| guest.calls.wait_ns_max());
        let nap_ns = waits.min().unwrap_or(0);
        let (guests, ports) =
            (scenario.guests.len(), scenario.guests.len() + scenario.uplinks.len());
        let scheduling = profile.scheduling;
        let late_ns = profile.timer_late_ns;
        let serve_ns = wake_ns + nap_ns + (u64::from(ROUNDS_PER_POLL) + 3) * round_ns;
        Self {
            ask_max: Times { own_ns: wake_ns + 2 * round_ns, slept_ns: late_ns },
            serve_max: Times { own_ns: serve_ns, slept_ns: late_ns + nap_ns },
            switch_ns: scheduling.switch_ns
                + scheduling.llc_refill_ns.max(scheduling.socket_refill_ns)
                + scheduling.cold_refill_ns,
            last_ns: 0,
            jumped_ns: 0,
            workers: vec![Own::default(); scenario.workers.len()],
            overdue: vec![Default::default(); guests],
            asleep: vec![Default::default(); guests],
            queued: vec![Since::default(); ports],
            parked: vec![Since::default(); ports],
        }
    }

    /// Notes a jump of all clocks.
    pub(super) fn jumped(&mut self, ns: u64) {
        self.jumped_ns += ns;
        self.last_ns += ns;
    }

    /// Returns the time by a worker's clocks.
    fn by(&self, worker: usize, now_ns: u64) -> Times {
        let Own { waited_ns, slept_ns, .. } = self.workers[worker];
        Times { own_ns: now_ns.saturating_sub(self.jumped_ns + waited_ns), slept_ns }
    }

    /// Checks deadlines and progress.
    ///
    /// # Errors
    /// The broken invariant.
    pub(super) fn look(&mut self, host: &Host<'_>) -> Result<(), Violation> {
        let now_ns = host.now_ns();
        let passed_ns = now_ns.saturating_sub(self.last_ns);
        self.last_ns = now_ns;
        for (own, worker) in self.workers.iter_mut().zip(&host.workers) {
            let waited = std::mem::replace(&mut own.waits, host.cpus.waits(worker.thread));
            let slept = std::mem::replace(&mut own.sleeps, host.cpus.sleeps(worker.thread));
            own.waited_ns += if waited { passed_ns } else { 0 };
            own.waited_ns += if waited && !own.waits { self.switch_ns } else { 0 };
            own.slept_ns += if slept { passed_ns } else { 0 };
        }
        for guest in 0..host.guests.len() {
            self.look_at_calls(host, guest)?;
            self.look_at_guest(host, guest)?;
        }
        (0..host.waiting.len()).try_for_each(|port| self.look_at_queue(host, port))
    }

    /// Checks that policies are asked on time.
    fn look_at_calls(&mut self, host: &Host<'_>, guest: usize) -> Result<(), Violation> {
        let now_ns = host.now_ns();
        let state = &host.guests[guest];
        let (rx, tx) = (&state.rx_calls, &state.tx_calls);
        let sides = [
            (Side::Rx, "receive", rx.is_pending(), rx.due_ns()),
            (Side::Tx, "transmit", tx.is_pending(), tx.due_ns()),
        ];
        for (at, (side, name, pending, due_ns)) in sides.into_iter().enumerate() {
            let overdue =
                |due_ns, what| Violation::Overdue { now_ns, guest, side: name, due_ns, what };
            if pending && due_ns.is_none() {
                return Err(overdue(now_ns, "there is no deadline for what is pending"));
            }
            let asks = |worker: usize, due_ns: u64| {
                host.workers[worker].holds.iter().any(|Reverse((until_ns, held, of))| {
                    (*held, *of) == (guest, side) && *until_ns <= due_ns
                })
            };
            let passed = due_ns.filter(|due_ns| *due_ns <= now_ns);
            let worker = match passed {
                None => None,
                Some(due_ns) => {
                    let who = (0..host.workers.len()).find(|worker| asks(*worker, due_ns));
                    Some(who.ok_or_else(|| overdue(due_ns, "no timer was set for it"))?)
                }
            };
            let now = worker.map_or(Times::awake(0), |worker| self.by(worker, now_ns));
            if self.overdue[guest][at].lasts(worker, now).exceeds(self.ask_max) {
                let due_ns = due_ns.unwrap_or(now_ns);
                return Err(overdue(due_ns, "its worker did not, and had its CPU"));
            }
        }
        Ok(())
    }

    /// Checks that a guest with a halted vCPU knows of every event that it waits for.
    fn look_at_guest(&mut self, host: &Host<'_>, guest: usize) -> Result<(), Violation> {
        let now_ns = host.now_ns();
        let state = &host.guests[guest];
        let halted = state.is_halted();
        let received = halted && !state.rx_calls.is_pending() && state.rx.first().is_some();
        let free = state.tx.is_done() && host.waiting[guest].is_empty();
        let sent = halted && free && state.is_held_up() && !state.tx_calls.is_pending();
        // The guest's own timer may soon make it poll.
        let poll_ns = host.scenario.guests[guest].poll.map_or(0, |poll| poll.interval_ns);
        let sides = [
            (received, "frames are in its receive ring, and its vCPU is halted without a call"),
            (sent, "its transmit ring is free again, and its vCPU is halted without a call"),
        ];
        let (now, most) = (now_ns.saturating_sub(self.jumped_ns), Times::awake(poll_ns));
        for (asleep, (so, what)) in self.asleep[guest].iter_mut().zip(sides) {
            if asleep.lasts(so.then_some(()), Times::awake(now)).exceeds(most) {
                return Err(Violation::Starved { now_ns, port: guest, what });
            }
        }
        Ok(())
    }

    /// Checks that a worker takes the frames it knows of, and that no frame stays parked.
    fn look_at_queue(&mut self, host: &Host<'_>, port: PortId) -> Result<(), Violation> {
        let now_ns = host.now_ns();
        let starved = |what| Err(Violation::Starved { now_ns, port, what });
        let (first, known, kick_wanted) = match port.checked_sub(host.guests.len()) {
            Some(uplink) => {
                let uplink = &host.uplinks[uplink];
                (uplink.first(), true, uplink.kick_wanted)
            }
            None => {
                let guest = &host.guests[port];
                (guest.tx.frames().next(), !guest.owes_kick(), guest.tx.kick_wanted)
            }
        };
        if first.is_some() && kick_wanted {
            return starved("frames wait for a worker that waits for a kick");
        }
        let id = |frame: &Frame| (frame.load, frame.way == crate::link::Way::Back, frame.number);
        let owner = host.owner(port);
        let now = self.by(owner, now_ns);
        let first = first.filter(|_| known).map(|frame| (id(frame), owner));
        if self.queued[port].lasts(first, now).exceeds(self.serve_max) {
            return starved("frames wait for a worker that has its CPU");
        }
        let old = |frame: &Frame| frame.arrived_ns + PARKED_NS_MAX <= now_ns;
        let old = host.waiting[port].front().filter(|frame| old(frame)).map(|_| owner);
        if self.parked[port].lasts(old, now).exceeds(self.ask_max) {
            return starved("frames are parked for longer than they may be");
        }
        Ok(())
    }
}

/// Returns the longest time of one round over all queues (ns), with full bursts and every call
/// given.
fn round_ns(scenario: &Scenario) -> u64 {
    let profile = &scenario.profile;
    let (guests, uplinks) = (scenario.guests.len() as u64, scenario.uplinks.len() as u64);
    let calls_ns = (guests + 1) * profile.call_ns + profile.uplink_interrupt_ns;
    // Parked frames, then new ones.
    let bursts_ns = 2 * (guests + uplinks) * (burst_ns(scenario) + calls_ns + profile.look_ns);
    let deadlines_ns = 2 * guests * (profile.deadline_ns + profile.call_ns);
    let ns = bursts_ns + deadlines_ns + profile.poll_ns + profile.look_ns;
    // The worker's SMT sibling works, too.
    ns * 1_000 / u64::from(profile.scheduling.smt_permille.max(1))
}

fn burst_ns(scenario: &Scenario) -> u64 {
    let profile: &Profile = &scenario.profile;
    let bytes = scenario.loads.iter().map(|load| bytes_max(&load.kind)).max().unwrap_or(0);
    let copy_ns = bytes_ns(bytes, profile.copy_ps_per_byte);
    let frame_ns = profile.take_ns.max(profile.uplink_take_ns + copy_ns)
        + profile.classify_ns
        + profile.place_ns.max(profile.uplink_place_ns)
        + copy_ns
        + profile.publish_ns
        + profile.far_cache_ns.max(profile.far_socket_ns);
    profile.burst_ns + BURST_MAX as u64 * frame_ns
}

/// Returns the length of a load's longest frame.
fn bytes_max(kind: &LoadKind) -> u32 {
    match kind {
        LoadKind::Datagrams { bytes, .. } => {
            let most = match bytes {
                Distribution::Constant(bytes) => *bytes,
                Distribution::Uniform { max, .. } => *max,
                Distribution::Trace(bytes) => bytes.iter().copied().max().unwrap_or(0),
                Distribution::Exponential { .. } | Distribution::Pareto { .. } => u64::MAX,
            };
            u32::try_from(most).unwrap_or(u32::MAX).min(FRAME_LEN_MAX)
        }
        LoadKind::Requests { request_bytes, answer_bytes, .. } => *request_bytes.max(answer_bytes),
        LoadKind::Stream { segment_bytes: bytes, .. } | LoadKind::Socket { bytes, .. } => *bytes,
    }
}

#[cfg(test)]
mod tests {
    //! The checks can fail: each planted fault is found within a few seeds.

    use weir_policy::moderation::{Batch, Decision, Delivery, Kind, Moderation, Settings, Verdict};

    use super::*;
    use crate::cpus;
    use crate::host::{Event, Owner};
    use crate::soak::Case;

    /// Number of seeds within which every planted fault must be found.
    const SEEDS: u64 = 40;
    const EVENTS_MAX: u64 = 20_000;

    /// Plays seeds until an invariant breaks. `start` spoils the host before it starts. An event for
    /// which `before` returns false is lost. `after` spoils the host after each event.
    fn found(
        start: impl Fn(&mut Host<'_>),
        before: impl Fn(&Host<'_>, Event) -> bool,
        after: impl Fn(&mut Host<'_>),
    ) -> Violation {
        for seed in 0..SEEDS {
            let case = Case::draw(seed);
            let mut host = Host::new(&case.scenario);
            host.expect_faults(&case.faults);
            start(&mut host);
            host.start();
            while let Some(event) = host.calendar.next(case.scenario.run_ns)
                && host.calendar.passed() < EVENTS_MAX
            {
                if before(&host, event) {
                    host.happen(event);
                }
                after(&mut host);
                if let Err(violation) = host.hold_good() {
                    return violation;
                }
            }
        }
        panic!("not found by {SEEDS} seeds");
    }

    fn nothing(_: &mut Host<'_>) {}

    fn every(_: &Host<'_>, _: Event) -> bool {
        true
    }

    /// A faulty policy: `twist` changes its answers, given the time of the question.
    #[derive(Debug)]
    struct Double {
        policy: Box<dyn Moderation>,
        published: fn(Verdict, u64) -> Verdict,
        expired: fn(Verdict, u64) -> Verdict,
    }

    impl Moderation for Double {
        fn kind(&self) -> Kind {
            self.policy.kind()
        }

        fn published(&mut self, now_ns: u64, batch: Batch) -> Verdict {
            (self.published)(self.policy.published(now_ns, batch), now_ns)
        }

        fn expired(&mut self, now_ns: u64) -> Verdict {
            (self.expired)(self.policy.expired(now_ns), now_ns)
        }

        fn delivered(&mut self, now_ns: u64, how: Delivery) {
            self.policy.delivered(now_ns, how);
        }

        fn set_hold_ns_max(&mut self, hold_ns_max: u64) {
            self.policy.set_hold_ns_max(hold_ns_max);
        }

        fn reset(&mut self) {
            self.policy.reset();
        }

        fn decision(&self) -> Decision {
            self.policy.decision()
        }
    }

    /// Gives every receive queue a [`Double`] of `backend`.
    fn with_doubles(
        published: fn(Verdict, u64) -> Verdict,
        expired: fn(Verdict, u64) -> Verdict,
    ) -> impl Fn(&mut Host<'_>) {
        move |host| {
            for guest in &mut host.guests {
                let policy = Kind::Backend.build(Settings::within(100_000));
                guest.rx_calls.moderation = Box::new(Double { policy, published, expired });
            }
        }
    }

    #[test]
    fn a_policy_that_holds_too_long_is_found() {
        let longer = |verdict, _| match verdict {
            Verdict::HoldUntil(until_ns) => Verdict::HoldUntil(until_ns + 3_000_000),
            Verdict::Call => Verdict::Call,
        };
        let violation = found(with_doubles(longer, |verdict, _| verdict), every, nothing);
        assert!(matches!(violation, Violation::Held { .. }), "{violation}");
    }

    #[test]
    fn a_policy_that_never_lets_go_is_found() {
        let again = |_, now_ns| Verdict::HoldUntil(now_ns + 100_000);
        let violation = found(with_doubles(|verdict, _| verdict, again), every, nothing);
        assert!(matches!(violation, Violation::Held { .. }), "{violation}");
    }

    #[test]
    fn a_deadline_in_the_past_is_found() {
        let past = |_, now_ns| Verdict::HoldUntil(now_ns);
        let violation = found(with_doubles(past, |verdict, _| verdict), every, nothing);
        assert!(matches!(violation, Violation::Held { .. }), "{violation}");
    }

    #[test]
    fn a_deadline_that_is_forgotten_is_found() {
        let forget = |host: &mut Host<'_>| host.workers.iter_mut().for_each(|it| it.holds.clear());
        let violation = found(nothing, every, forget);
        let Violation::Overdue { what, .. } = violation else { panic!("{violation}") };
        assert_eq!(what, "no timer was set for it");
    }

    #[test]
    fn a_worker_that_sleeps_over_its_timer_is_found() {
        let no_timer = |_: &Host<'_>, event| !matches!(event, Event::WorkerTimer(..));
        let violation = found(nothing, no_timer, nothing);
        let Violation::Overdue { what, .. } = violation else { panic!("{violation}") };
        assert_eq!(what, "its worker did not, and had its CPU");
    }

    #[test]
    fn a_frame_that_is_dropped_without_a_reason_is_found() {
        let lose = |host: &mut Host<'_>| _ = host.guests[0].tx.take();
        let violation = found(nothing, every, lose);
        assert!(matches!(violation, Violation::Frames { .. }), "{violation}");
    }

    #[test]
    fn frames_in_another_order_are_found() {
        let swap = |host: &mut Host<'_>| {
            for waiting in host.waiting.iter_mut().filter(|waiting| waiting.len() > 1) {
                waiting.swap(0, 1);
            }
        };
        let violation = found(nothing, every, swap);
        assert!(matches!(violation, Violation::Order { .. }), "{violation}");
    }

    #[test]
    fn a_kick_that_nobody_waits_for_is_found() {
        let ask =
            |host: &mut Host<'_>| host.guests.iter_mut().for_each(|it| it.tx.kick_wanted = true);
        let violation = found(nothing, every, ask);
        let Violation::Starved { what, .. } = violation else { panic!("{violation}") };
        assert_eq!(what, "frames wait for a worker that waits for a kick");
    }

    #[test]
    fn a_worker_that_is_not_woken_up_is_found() {
        let no_wakeup = |host: &Host<'_>, event| match event {
            Event::Cpu(cpus::Event::Runnable(thread)) => {
                !matches!(host.owners[thread], Owner::Worker(_))
            }
            _ => true,
        };
        let violation = found(nothing, no_wakeup, nothing);
        let Violation::Starved { what, .. } = violation else { panic!("{violation}") };
        assert_eq!(what, "frames wait for a worker that has its CPU");
    }

    #[test]
    fn a_call_that_is_lost_is_found() {
        let answer_early = |host: &mut Host<'_>| {
            for guest in host.guests.iter_mut().filter(|guest| guest.rx_calls.is_pending()) {
                guest.rx.used.call_if_wanted();
            }
        };
        let violation = found(nothing, every, answer_early);
        let Violation::Starved { what, .. } = violation else { panic!("{violation}") };
        assert!(what.starts_with("frames are in its receive ring"), "{what}");
    }

    #[test]
    fn a_call_for_sent_frames_that_is_lost_is_found() {
        let never = |host: &mut Host<'_>| {
            host.guests.iter_mut().for_each(|guest| guest.tx.used.arm(u64::MAX, 0));
        };
        let violation = found(nothing, every, never);
        let Violation::Starved { what, .. } = violation else { panic!("{violation}") };
        assert!(what.starts_with("its transmit ring is free"), "{what}");
    }

    #[test]
    fn frames_that_stay_parked_are_found() {
        let no_timer = |host: &Host<'_>, event| match event {
            Event::WorkerTimer(worker, _) => {
                let parked = host.waiting.iter().any(|waiting| !waiting.is_empty());
                !parked || !host.workers[worker].holds.is_empty()
            }
            _ => true,
        };
        let violation = found(nothing, no_timer, nothing);
        let Violation::Starved { what, .. } = violation else { panic!("{violation}") };
        assert_eq!(what, "frames are parked for longer than they may be");
    }
}
