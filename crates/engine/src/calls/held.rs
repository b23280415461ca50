//! A queue's debt to its guest: frames of which it was not notified, since when and until when they
//! wait, and whether the notification came too late.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use weir_policy::law::LAW;
use weir_policy::moderation::{Batch, Deadline, Delivery};

use super::CallPolicy;
use crate::frames::stats::{BreachReason, PortCounters, Times};
use crate::lost::cpu_loss;

/// The time that work which piled up during an absence may take, as a part of the absence: 2 %
/// after milliseconds on a loaded machine, 5 % at most.
const PILED_UP_SHARE: u64 = 16;

/// Frames of a receive queue of which the guest was not notified.
#[derive(Debug, Clone, Copy)]
struct Pending {
    /// The time at which the first of them were complete (ns).
    since_ns: u64,
    /// The earliest time at which one of them reached weir (ns).
    arrived_ns: u64,
    /// True if at least one of the frames waited for buffers before.
    parked: bool,
    /// The number of the frames' chains.
    chains: u32,
}

/// The mean difference between the latencies of two calls in a row, smoothed over 16 of them (RFC 3550 §6.4.1).
#[derive(Debug, Default)]
pub(crate) struct Jitter {
    /// The mean difference (ns), times 16.
    sixteenths: AtomicU64,
}

impl Jitter {
    #[inline]
    fn record(&self, before_ns: u64, latency_ns: u64) {
        let sixteenths = self.sixteenths.load(Ordering::Relaxed);
        let rest = sixteenths - ((sixteenths + 8) >> 4);
        self.sixteenths.store(rest + before_ns.abs_diff(latency_ns), Ordering::Relaxed);
    }

    /// The mean difference (ns).
    pub(crate) fn ns(&self) -> u64 {
        self.sixteenths.load(Ordering::Relaxed) >> 4
    }
}

/// The durations of calls. The holder of the queue's lock adds to them, and others read them without it.
#[derive(Debug, Default)]
pub(crate) struct HeldTimes {
    /// Times from frames being ready to the guest's notification.
    pub(crate) hold: Times,
    /// Times from the arrival of the earliest frame, without frames that waited for buffers.
    pub(crate) latency: Times,
    /// The difference of these times from one call to the next.
    pub(crate) jitter: Jitter,
}

impl HeldTimes {
    #[cold]
    fn make() -> Box<Self> {
        Box::default()
    }
}

/// Frames of a receive queue that wait for their call.
#[derive(Debug)]
pub(crate) struct HeldCall {
    pending: Option<Pending>,
    /// The time until which these frames wait.
    pub(crate) deadline: Deadline,
    /// Complete chains that the guest cannot see yet.
    pub(crate) withheld: u16,
    /// The interface's latency budget (ns), by which breaches are counted.
    budget_ns: u64,
    /// The part of the budget that holds may use (ns).
    pub(crate) hold_ns_max: u64,
    /// The latency of the last call (ns).
    before_ns: Option<u64>,
    /// The durations; they are made when there is a time to count.
    pub(crate) times: Arc<OnceLock<Box<HeldTimes>>>,
}

impl HeldCall {
    /// A queue in which nothing waits.
    pub(crate) fn new(calls: &CallPolicy) -> Self {
        Self {
            pending: None,
            deadline: Deadline::default(),
            withheld: 0,
            budget_ns: calls.latency_budget_ns,
            hold_ns_max: calls.hold_ns_max(),
            before_ns: None,
            times: Arc::default(),
        }
    }

    /// Sets another policy or budget; nothing is pending.
    pub(crate) fn set_policy(&mut self, calls: &CallPolicy) {
        self.budget_ns = calls.latency_budget_ns;
        self.hold_ns_max = calls.hold_ns_max();
    }

    /// True if there are frames of which the guest was not notified.
    pub(crate) fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// The number of chains of which the guest was not notified.
    pub(crate) fn chains(&self) -> u32 {
        self.pending.map_or(0, |pending| pending.chains)
    }

    /// Notes frames that are ready, in `chains` chains.
    #[inline(always)]
    pub(crate) fn add(&mut self, now_ns: u64, batch: &Batch, chains: u16, parked: bool) {
        let Batch { arrived_ns, .. } = *batch;
        let chains = u32::from(chains);
        match &mut self.pending {
            None => {
                self.pending = Some(Pending { since_ns: now_ns, arrived_ns, parked, chains });
            }
            Some(pending) => {
                pending.arrived_ns = pending.arrived_ns.min(arrived_ns);
                pending.parked |= parked;
                pending.chains = pending.chains.saturating_add(chains);
            }
        }
    }

    /// Notes that the guest knows of all frames, by `how`. `hidden`: it could not see the frames before.
    #[inline(always)]
    pub(crate) fn told(
        &mut self,
        now_ns: u64,
        how: Delivery,
        hidden: bool,
        counters: &PortCounters,
    ) {
        let until_ns = self.deadline.until_ns();
        self.deadline.clear();
        let Some(pending) = self.pending.take() else { return };
        let told_ns = match how {
            Delivery::Called => now_ns,
            Delivery::Suppressed if hidden => now_ns,
            // The guest was polling when they became visible, or has polled since.
            Delivery::Suppressed | Delivery::Polled => pending.since_ns,
        };
        // If a guest took frames by itself, weir does not know the time.
        if how != Delivery::Polled {
            let times = self.times.get_or_init(HeldTimes::make);
            times.hold.record(now_ns.saturating_sub(pending.since_ns));
            if !pending.parked {
                let latency_ns = told_ns.saturating_sub(pending.arrived_ns);
                times.latency.record(latency_ns);
                if let Some(before_ns) = self.before_ns.replace(latency_ns) {
                    times.jitter.record(before_ns, latency_ns);
                }
            }
        }
        let latest_ns = pending.arrived_ns.saturating_add(self.budget_ns);
        // A frame that waited for buffers was not held: its sender's `parked` counts it.
        if told_ns > latest_ns && !pending.parked {
            let late_ns = told_ns - latest_ns;
            let lost_ns = cpu_loss::lost_ns(pending.arrived_ns, told_ns, now_ns);
            let reason = if is_explained(late_ns, lost_ns) {
                BreachReason::NoCpu
            } else {
                reason(&pending, until_ns, latest_ns)
            };
            counters.breached(reason);
        }
    }

    /// The ring has stopped: forgets pending frames.
    pub(crate) fn reset(&mut self) {
        self.pending = None;
        self.withheld = 0;
        self.deadline.clear();
    }
}

/// True if preemption explains a late call: it makes up most of the delay, and the rest is no more than the piled up
/// work.
fn is_explained(late_ns: u64, lost_ns: u64) -> bool {
    let work_ns = LAW.margin_ns.saturating_add(lost_ns / PILED_UP_SHARE);
    lost_ns > late_ns / 2 && lost_ns.saturating_add(work_ns) >= late_ns
}

#[cold]
fn reason(pending: &Pending, until_ns: Option<u64>, latest_ns: u64) -> BreachReason {
    match until_ns {
        _ if pending.since_ns > latest_ns => BreachReason::ForwardedLate,
        None => BreachReason::ForwardedLate,
        Some(until_ns) if until_ns <= latest_ns => BreachReason::AskedLate,
        Some(_) => BreachReason::Policy,
    }
}

#[cfg(test)]
mod tests {
    use weir_policy::moderation::Kind;

    use super::*;

    const BUDGET_NS: u64 = 100_000;

    fn hold() -> HeldCall {
        HeldCall::new(&CallPolicy::within(Kind::Backend, BUDGET_NS))
    }

    fn batch(arrived_ns: u64) -> Batch {
        Batch { frames: 1, bytes: 64, arrived_ns }
    }

    #[test]
    fn a_missing_processor_explains_what_it_took_and_no_more() {
        assert!(is_explained(500_000, 600_000));
        assert!(is_explained(150_000, 150_000 - LAW.margin_ns));
        let lost_ns = 16_000_000;
        assert!(is_explained(lost_ns + LAW.margin_ns + 1_000_000, lost_ns));
        assert!(!is_explained(lost_ns + LAW.margin_ns + 1_000_001, lost_ns));
        assert!(!is_explained(LAW.margin_ns, LAW.margin_ns / 2 - 1), "too little of it");
    }

    /// The breaches that are counted if frames that arrived at 0 were ready at `ready_ns`, held until `until_ns`, and
    /// the guest was notified at `told_ns`.
    fn breaches(
        ready_ns: u64,
        until_ns: Option<u64>,
        told_ns: u64,
        parked: bool,
    ) -> Vec<(&'static str, u64)> {
        let counters = PortCounters::default();
        let mut held = hold();
        held.add(ready_ns, &batch(0), 1, parked);
        if let Some(until_ns) = until_ns {
            assert_eq!(held.deadline.set(until_ns, ready_ns), Some(until_ns));
        }
        held.told(told_ns, Delivery::Called, false, &counters);
        counters.breaches().collect()
    }

    #[test]
    fn every_breach_is_counted_once_with_its_reason() {
        let (latest_ns, until_ns) = (BUDGET_NS, Some(BUDGET_NS - 1_000));
        assert_eq!(breaches(1_000, until_ns, latest_ns, false), []);
        let late = |reason| vec![(reason, 1)];
        assert_eq!(breaches(0, until_ns, latest_ns + 1, false), late("asked_late"));
        assert_eq!(breaches(latest_ns + 1, None, latest_ns + 2, false), late("forwarded_late"));
        assert_eq!(breaches(latest_ns + 1, None, latest_ns + 2, true), [], "it was not held");
        let past = 2 * BUDGET_NS;
        assert_eq!(breaches(0, Some(past), past, false), late("policy"));
    }

    /// The reason for a breach of 50 us. The frame arrived at `arrived_ns`, at a worker whose CPU
    /// clock stands still. The worker was away from 1 ms to 1.4 ms, and slept from then on.
    fn reason_after_an_absence(arrived_ns: u64) -> Vec<(&'static str, u64)> {
        let played = move || {
            let (told_ns, counters) = (arrived_ns + BUDGET_NS + 50_000, PortCounters::default());
            cpu_loss::enter(cpu_loss::CpuClock::Stopped);
            for awake_ns in [1_000_000, 1_400_000] {
                cpu_loss::look(awake_ns);
            }
            cpu_loss::slept(1_400_000, told_ns.max(1_400_000));
            let mut held = hold();
            held.add(arrived_ns, &batch(arrived_ns), 1, false);
            let until_ns = arrived_ns + BUDGET_NS;
            assert_eq!(held.deadline.set(until_ns, arrived_ns), Some(until_ns));
            held.told(told_ns, Delivery::Called, false, &counters);
            counters.breaches().collect()
        };
        // The losses of a worker belong to its thread.
        std::thread::spawn(played).join().unwrap()
    }

    #[test]
    fn only_a_processor_that_was_missing_during_the_hold_explains_it() {
        assert_eq!(reason_after_an_absence(1_250_000), [("no_cpu", 1)]);
        assert_eq!(reason_after_an_absence(1_300_000), [("no_cpu", 1)], "for most of it");
        assert_eq!(reason_after_an_absence(1_390_000), [("asked_late", 1)], "for too little of it");
        assert_eq!(reason_after_an_absence(1_400_000), [("asked_late", 1)], "it was back by then");
    }

    #[test]
    fn the_bound_counts_from_the_earliest_arrival() {
        let counters = PortCounters::default();
        let mut held = hold();
        held.add(200_000, &batch(199_000), 1, false);
        held.add(201_000, &batch(1_000), 1, false);
        held.told(202_000, Delivery::Called, false, &counters);
        assert_eq!(counters.breaches().collect::<Vec<_>>(), [("forwarded_late", 1)]);
    }

    #[test]
    fn a_hold_counts_from_when_frames_are_ready_and_latency_from_when_they_came() {
        let mut held = hold();
        let mut told = |parked, how| {
            held.add(30_000, &batch(10_000), 1, parked);
            held.told(90_000, how, false, &PortCounters::default());
            let times = held.times.get().unwrap();
            [times.hold.summary(), times.latency.summary()]
        };
        let [held_ns, latency_ns] = told(false, Delivery::Called);
        assert_eq!((held_ns.max, latency_ns.max), (60_000, 80_000));
        let [held_ns, latency_ns] = told(false, Delivery::Suppressed);
        assert_eq!((held_ns.count, latency_ns.sum), (2, 100_000), "it was looking at 30 us");
        let [held_ns, latency_ns] = told(true, Delivery::Called);
        assert_eq!(
            (held_ns.count, latency_ns.count),
            (3, 2),
            "what waits for buffers is late by itself"
        );
    }

    #[test]
    fn jitter_is_the_mean_difference_of_latencies_in_a_row() {
        let jitter_ns = |latencies: &[u64]| {
            let mut held = hold();
            for (call, latency_ns) in latencies.iter().enumerate() {
                let arrived_ns = 1_000_000 * call as u64;
                held.add(arrived_ns, &batch(arrived_ns), 1, false);
                held.told(
                    arrived_ns + latency_ns,
                    Delivery::Called,
                    false,
                    &PortCounters::default(),
                );
            }
            held.times.get().map(|times| times.jitter.ns())
        };
        assert_eq!(jitter_ns(&[70_000; 100]), Some(0), "a delay by itself is no jitter");
        assert_eq!(
            jitter_ns(&[10_000, 26_000]),
            Some(1_000),
            "a sixteenth of the first difference"
        );
        let alternating: Vec<_> =
            (0..200).map(|n| if n % 2 == 0 { 10_000 } else { 50_000 }).collect();
        let ns = jitter_ns(&alternating).unwrap();
        assert!((39_900..=40_000).contains(&ns), "{ns}");
        let calm: Vec<_> = alternating.into_iter().chain([50_000; 200]).collect();
        assert_eq!(jitter_ns(&calm), Some(0), "it is of the last calls");
    }

    #[test]
    fn what_the_guest_saw_by_itself_is_neither_a_hold_nor_a_breach() {
        let counters = PortCounters::default();
        let mut held = hold();
        held.add(1_000, &batch(0), 1, false);
        held.told(10 * BUDGET_NS, Delivery::Polled, false, &counters);
        assert_eq!(counters.breaches().count(), 0);
        assert!(held.times.get().is_none());
        // The guest could not see these frames, so the delay counts.
        held.add(1_000, &batch(0), 1, false);
        held.told(10 * BUDGET_NS, Delivery::Suppressed, true, &counters);
        assert_eq!(counters.breaches().count(), 1);
    }
}
