//! Drives any [`Moderation`] through scripted arrivals and checks its contract: no frame is held
//! past the hold limit, and no frame is left without a call.
//!
//! A new policy is covered by being in [`Kind::ALL`](super::Kind::ALL). The harness itself is
//! tested below with policies that break each rule.

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::{Batch, Decision, Delivery, Moderation, Verdict};

/// One batch of a script.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    /// Time from the publication of the batch before (ns).
    pub gap_ns: u64,
    /// Time from the arrival of its earliest frame to its publication (ns).
    pub parked_ns: u64,
    pub frames: u32,
    pub frame_bytes: u32,
}

/// A sequence of batches, with the behaviour of timer, guest and ring.
#[derive(Clone, Debug)]
pub(super) struct Script {
    pub arrivals: Vec<Arrival>,
    /// Delay of the worker's question after a deadline (ns), caused by scheduling and other queues.
    pub timer_late_ns: u64,
    /// Time from the beginning of a hold to the guest's own poll (ns), as in front-end coalescing.
    pub poll_after_ns: Option<u64>,
    /// Ring suppresses the calls.
    pub suppressed: bool,
}

/// The result of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Report {
    pub frames: u64,
    pub calls: u64,
    /// Longest time from a frame's publication to its delivery, minus the timer's own lateness.
    pub hold_ns_max: u64,
}

/// A breach of the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Breach {
    /// The deadline lies past the earliest frame's arrival plus the hold limit.
    HeldPastLimit { deadline_ns: u64, limit_ns: u64 },
    /// The deadline is not in the future: the timer would fire for ever.
    DeadlineInPast { deadline_ns: u64, now_ns: u64 },
}

/// The engine's part, on virtual time.
struct Run<'a> {
    policy: &'a mut dyn Moderation,
    script: &'a Script,
    hold_ns_max: u64,
    /// Earliest arrival and earliest publication among the undelivered frames.
    pending: Option<(u64, u64)>,
    deadline_ns: Option<u64>,
    report: Report,
}

impl Run<'_> {
    fn publish(&mut self, now_ns: u64, arrival: Arrival) -> Result<(), Breach> {
        let batch = Batch {
            frames: arrival.frames,
            bytes: u64::from(arrival.frames) * u64::from(arrival.frame_bytes),
            arrived_ns: now_ns.saturating_sub(arrival.parked_ns),
        };
        let (oldest_ns, published_ns) = self.pending.unwrap_or((batch.arrived_ns, now_ns));
        self.pending = Some((oldest_ns.min(batch.arrived_ns), published_ns));
        self.report.frames += u64::from(batch.frames);
        let verdict = self.policy.published(now_ns, batch);
        self.apply(now_ns, verdict)
    }

    fn apply(&mut self, now_ns: u64, verdict: Verdict) -> Result<(), Breach> {
        match (verdict, self.pending) {
            (Verdict::Call, _) if self.script.suppressed => {
                self.deliver(now_ns, Delivery::Suppressed);
            }
            (Verdict::Call, _) => {
                self.report.calls += 1;
                self.deliver(now_ns, Delivery::Called);
            }
            (Verdict::HoldUntil(deadline_ns), Some((oldest_ns, _))) => {
                let limit_ns = oldest_ns.saturating_add(self.hold_ns_max);
                if deadline_ns > limit_ns {
                    return Err(Breach::HeldPastLimit { deadline_ns, limit_ns });
                }
                if deadline_ns <= now_ns {
                    return Err(Breach::DeadlineInPast { deadline_ns, now_ns });
                }
                self.deadline_ns = Some(deadline_ns);
            }
            (Verdict::HoldUntil(_), None) => unreachable!("asked only with frames pending"),
        }
        Ok(())
    }

    fn deliver(&mut self, now_ns: u64, how: Delivery) {
        if let Some((_, published_ns)) = self.pending.take() {
            let late_ns = self.deadline_ns.map_or(0, |deadline| now_ns.saturating_sub(deadline));
            let hold_ns = now_ns - published_ns - late_ns;
            self.report.hold_ns_max = self.report.hold_ns_max.max(hold_ns);
        }
        self.deadline_ns = None;
        self.policy.delivered(now_ns, how);
    }

    /// Plays every event that is due before `until_ns`. The loop ends because each deadline lies
    /// later than the one before and none past the limit.
    fn advance(&mut self, until_ns: u64) -> Result<(), Breach> {
        while let (Some(deadline_ns), Some((_, published_ns))) = (self.deadline_ns, self.pending) {
            let polled_ns = self.script.poll_after_ns.map(|after| published_ns + after);
            let asked_ns = deadline_ns + self.script.timer_late_ns;
            match polled_ns {
                Some(polled_ns) if polled_ns <= asked_ns => {
                    if polled_ns > until_ns {
                        break;
                    }
                    self.deliver(polled_ns, Delivery::Polled);
                }
                _ if asked_ns > until_ns => break,
                _ => {
                    let verdict = self.policy.expired(asked_ns);
                    self.apply(asked_ns, verdict)?;
                }
            }
        }
        Ok(())
    }
}

/// Runs `script` from time zero until every frame is delivered.
pub(super) fn run(
    policy: &mut dyn Moderation,
    hold_ns_max: u64,
    script: &Script,
) -> Result<Report, Breach> {
    let report = Report::default();
    let mut run = Run { policy, script, hold_ns_max, pending: None, deadline_ns: None, report };
    let mut now_ns = 0;
    for &arrival in &script.arrivals {
        let due_ns = now_ns + arrival.gap_ns;
        run.advance(due_ns)?;
        now_ns = due_ns;
        run.publish(now_ns, arrival)?;
    }
    run.advance(u64::MAX)?;
    assert_eq!(run.pending, None, "frames pending with no deadline");
    Ok(run.report)
}

fn arrival() -> impl Strategy<Value = Arrival> {
    let gap_ns = prop_oneof![Just(0), 1..2_000u64, 1..3_000_000u64];
    let parked_ns = prop_oneof![4 => Just(0), 1 => 0..2_000_000u64];
    let frame_bytes = prop_oneof![Just(64u32), Just(1514), Just(65_549)];
    (gap_ns, parked_ns, 1..=64u32, frame_bytes).prop_map(
        |(gap_ns, parked_ns, frames, frame_bytes)| Arrival {
            gap_ns,
            parked_ns,
            frames,
            frame_bytes,
        },
    )
}

/// Generates arrivals from back to back to slower than any budget, with late timers, polling guests
/// and suppressed calls.
pub(super) fn script() -> impl Strategy<Value = Script> {
    let arrivals = prop::collection::vec(arrival(), 1..100);
    let timer_late_ns = prop_oneof![Just(0), 1..500_000u64];
    let poll_after_ns = prop::option::of(1..1_500_000u64);
    (arrivals, timer_late_ns, poll_after_ns, any::<bool>()).prop_map(
        |(arrivals, timer_late_ns, poll_after_ns, suppressed)| Script {
            arrivals,
            timer_late_ns,
            poll_after_ns,
            suppressed,
        },
    )
}

fn hold_limit() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(1), 0..=weir_limits::LATENCY_BUDGET_NS_MAX, 0..1_000_000u64]
}

/// Checks the bound for the policies that `build` makes, over random scripts and hold limits.
///
/// # Panics
/// Panics with the smallest script found that breaks the bound.
pub(super) fn check_bound(build: impl Fn(u64) -> Box<dyn Moderation>) {
    TestRunner::default()
        .run(&(hold_limit(), script()), |(hold_ns_max, script)| {
            let mut policy = build(hold_ns_max);
            let report = run(policy.as_mut(), hold_ns_max, &script);
            prop_assert!(report.is_ok(), "{report:?}");
            prop_assert!(report.is_ok_and(|report| report.hold_ns_max <= hold_ns_max));
            Ok(())
        })
        .unwrap();
}

/// A policy for the harness's own tests. It holds from the *latest* batch on to break the bound,
/// from the earliest arrival otherwise.
#[derive(Debug)]
struct Hold {
    hold_ns_max: u64,
    from_latest: bool,
    holds_again: bool,
    oldest_ns: Option<u64>,
}

impl Hold {
    fn new(hold_ns_max: u64) -> Self {
        Self { hold_ns_max, from_latest: false, holds_again: false, oldest_ns: None }
    }
}

impl Moderation for Hold {
    fn kind(&self) -> super::Kind {
        super::Kind::Immediate
    }

    fn published(&mut self, now_ns: u64, batch: Batch) -> Verdict {
        let oldest_ns = match self.oldest_ns {
            Some(oldest_ns) if !self.from_latest => oldest_ns.min(batch.arrived_ns),
            _ => batch.arrived_ns,
        };
        self.oldest_ns = Some(oldest_ns);
        let deadline_ns = oldest_ns.saturating_add(self.hold_ns_max);
        if deadline_ns > now_ns { Verdict::HoldUntil(deadline_ns) } else { Verdict::Call }
    }

    fn expired(&mut self, now_ns: u64) -> Verdict {
        if self.holds_again { Verdict::HoldUntil(now_ns) } else { Verdict::Call }
    }

    fn delivered(&mut self, _now_ns: u64, _how: Delivery) {
        self.oldest_ns = None;
    }

    fn set_hold_ns_max(&mut self, hold_ns_max: u64) {
        self.hold_ns_max = hold_ns_max;
    }

    fn reset(&mut self) {
        self.oldest_ns = None;
    }

    fn decision(&self) -> Decision {
        Decision { hold_ns: self.hold_ns_max, reason: "a test" }
    }
}

fn two_batches(gap_ns: u64) -> Script {
    let arrival = Arrival { gap_ns, parked_ns: 0, frames: 3, frame_bytes: 64 };
    Script { arrivals: vec![arrival; 2], timer_late_ns: 0, poll_after_ns: None, suppressed: false }
}

#[test]
fn harness_passes_a_hold_from_the_earliest_arrival() {
    check_bound(|hold_ns_max| Box::new(Hold::new(hold_ns_max)));
    let report = run(&mut Hold::new(100), 100, &two_batches(60));
    assert_eq!(report, Ok(Report { frames: 6, calls: 1, hold_ns_max: 100 }));
}

#[test]
fn harness_counts_no_call_when_the_guest_polls_first() {
    let script = Script { poll_after_ns: Some(50), ..two_batches(200) };
    let report = run(&mut Hold::new(100), 100, &script);
    assert_eq!(report, Ok(Report { frames: 6, calls: 0, hold_ns_max: 50 }));
}

#[test]
fn harness_catches_a_hold_counted_from_the_latest_batch() {
    let mut policy = Hold { from_latest: true, ..Hold::new(100) };
    let report = run(&mut policy, 100, &two_batches(60));
    assert_eq!(report, Err(Breach::HeldPastLimit { deadline_ns: 220, limit_ns: 160 }));
}

#[test]
fn harness_catches_a_hold_that_ignores_parked_time() {
    let mut script = two_batches(60);
    script.arrivals[0].parked_ns = 60;
    let report = run(&mut Hold::new(101), 100, &script);
    assert_eq!(report, Err(Breach::HeldPastLimit { deadline_ns: 101, limit_ns: 100 }));
}

#[test]
fn harness_catches_a_deadline_that_never_ends() {
    let mut policy = Hold { holds_again: true, ..Hold::new(100) };
    let report = run(&mut policy, 100, &two_batches(60));
    assert_eq!(report, Err(Breach::DeadlineInPast { deadline_ns: 160, now_ns: 160 }));
}
