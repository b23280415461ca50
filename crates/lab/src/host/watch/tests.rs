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
    let ask = |host: &mut Host<'_>| host.guests.iter_mut().for_each(|it| it.tx.kick_wanted = true);
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
