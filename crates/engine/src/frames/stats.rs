//! Counters of a port. Directions are the guest's, as in virtio: *tx* is traffic into the switch, *rx* out of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwapOption;
use weir_limits::QUEUE_PAIRS_MAX;

use crate::frames::burst::Burst;
use crate::frames::drop_reason::DropReason;

mod times;

pub use times::{TIME_BOUNDS_NS, Times, TimesRead, TimesSummary};

weir_fabric::reasons! {
    /// The reasons for late notifications of a receiver, each with a named counter.
    pub enum BreachReason {
        /// The worker was off its CPU for as long as the call was late: the CPU ran another thread or machine.
        NoCpu = "no_cpu",
        /// Switching alone took longer than the budget, and the call was not held: the worker had too much to do.
        ForwardedLate = "forwarded_late",
        /// The call was held, and the worker came back to it too late: it had too much to do.
        AskedLate = "asked_late",
        /// The policy's deadline was later than the budget allows: a bug in weir.
        Policy = "policy",
    }
}

/// A counter that any thread reads.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Adds `n` if no other thread adds at the same time, as under a queue's lock. A locked
    /// instruction would take as long as twenty others.
    #[inline]
    pub fn add_alone(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// The value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counters of one queue in one direction.
#[derive(Debug, Default)]
pub struct QueueCounters {
    /// Frames moved. A GSO frame counts once.
    pub frames: Counter,
    /// Bytes of the moved frames, from the Ethernet header to the end of the payload.
    pub bytes: Counter,
    /// Calls (virtual interrupts) made.
    pub calls: Counter,
    /// Calls that the guest had suppressed.
    pub calls_suppressed: Counter,
    /// Kicks received.
    pub kicks: Counter,
}

/// An observer of a port's dropped frames.
pub(crate) trait DropObserver: std::fmt::Debug + Send + Sync {
    /// The frames of `burst` in `frames` (bit i: frame i) are dropped.
    fn dropped(&self, burst: &Burst<'_>, frames: u64, reason: DropReason);

    /// Frames that no longer exist were dropped.
    fn dropped_unseen(&self, frames: u64, reason: DropReason);
}

/// The counters of a port.
#[derive(Debug, Default)]
pub struct PortCounters {
    /// The counters of each transmit queue.
    pub tx: [QueueCounters; QUEUE_PAIRS_MAX],
    /// The counters of each receive queue.
    pub rx: [QueueCounters; QUEUE_PAIRS_MAX],
    /// Frames that waited in the sender's memory for a receiver; counted at the sender.
    pub parked: Counter,
    /// Packets merged from TCP segments for this receiver; the segments count as frames.
    pub gro: Counter,
    /// Worker time that was charged to this port as a sender (ns).
    pub worker_ns: Counter,
    /// Calls of this guest that took more than `CALL_NS_USUAL_MAX` of the caller's time.
    pub dear_calls: Counter,
    /// Time beyond `CALL_NS_USUAL_MAX` that those calls took (ns). It is charged to this port, and also in `worker_ns`.
    pub dear_call_ns: Counter,
    /// Times that a queue with frames to send had to wait for its port's rate.
    pub rate_waits: Counter,
    /// Number of times that kicks of one of the port's rings were ignored for a while, since they brought no frames.
    pub kick_pauses: Counter,
    /// Windows of turns (`weir_policy::schedule::Window`) with more late turns than allowed.
    pub window_violations: Counter,
    drops: Drops,
    breaches: [Counter; BreachReason::COUNT],
    observer: ArcSwapOption<Box<dyn DropObserver>>,
}

/// The counters of dropped frames, by reason.
#[derive(Debug)]
struct Drops([Counter; DropReason::COUNT]);

impl Default for Drops {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Counter::default()))
    }
}

impl PortCounters {
    /// Counts dropped frames that no longer exist; [`dropped_of`](Self::dropped_of) counts frames of a burst.
    #[inline]
    pub fn dropped(&self, reason: impl Into<DropReason>, frames: u64) {
        if frames > 0 {
            self.note_dropped(reason.into(), frames, None);
        }
    }

    /// Counts the frames of `burst` in `frames` (bit i: frame i) as dropped, and passes them to captures of drops.
    #[inline]
    pub fn dropped_of(&self, reason: impl Into<DropReason>, burst: &Burst<'_>, frames: u64) {
        if frames != 0 {
            self.note_dropped(reason.into(), frames, Some(burst));
        }
    }

    #[inline(never)]
    fn note_dropped(&self, reason: DropReason, frames: u64, burst: Option<&Burst<'_>>) {
        let count = burst.map_or(frames, |_| frames.count_ones().into());
        self.drops.0[reason.index()].add(count);
        let Some(observer) = &*self.observer.load() else { return };
        match burst {
            Some(burst) => observer.dropped(burst, frames, reason),
            None => observer.dropped_unseen(count, reason),
        }
    }

    /// Sets the observer of dropped frames.
    pub(crate) fn set_observer(&self, observer: Option<Box<dyn DropObserver>>) {
        self.observer.store(observer.map(Arc::new));
    }

    /// Charges this port for a burst that it sent.
    #[inline]
    pub(crate) fn charge(&self, worker_ns: u64, violations: u64) {
        self.worker_ns.add(worker_ns);
        if violations > 0 {
            self.window_violations.add(violations);
        }
    }

    /// Charges this port the excess of an expensive call (ns) that another port's burst made to it.
    #[cold]
    pub(crate) fn charge_call(&self, ns: u64) {
        self.worker_ns.add(ns);
        self.dear_call_ns.add(ns);
    }

    /// Counts packets that were merged for this receiver.
    #[inline]
    pub fn merged(&self, packets: u64) {
        if packets > 0 {
            self.gro.add(packets);
        }
    }

    /// Counts a late notification of this receiver about its frames.
    #[cold]
    pub fn breached(&self, reason: BreachReason) {
        self.breaches[reason.index()].add(1);
    }

    /// The reasons why this receiver was notified too late, with their counts.
    pub fn breaches(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counted = BreachReason::ALL.iter().zip(&self.breaches);
        counted
            .map(|(reason, counter)| (reason.as_str(), counter.get()))
            .filter(|(_, count)| *count > 0)
    }

    /// The number of frames that were dropped for one reason.
    pub fn dropped_for(&self, reason: DropReason) -> u64 {
        self.drops.0[reason.index()].get()
    }

    /// The reasons why frames were dropped, with the number of frames.
    pub fn drops(&self) -> impl Iterator<Item = (&'static str, u64)> {
        DropReason::all()
            .map(|reason| (reason.as_str(), self.drops.0[reason.index()].get()))
            .filter(|(_, count)| *count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_drop_reason_has_a_counter_and_a_name_of_its_own() {
        let counters = PortCounters::default();
        for reason in DropReason::all() {
            counters.dropped(reason, 1);
        }
        let named: Vec<_> = counters.drops().collect();
        assert_eq!(named.len(), DropReason::COUNT);
        assert!(named.iter().all(|(_, count)| *count == 1), "two reasons share a counter");
        let names: std::collections::HashSet<_> = named.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), DropReason::COUNT);
    }

    #[test]
    fn the_guide_has_each_drop_reason_at_the_port_that_counts_it() {
        let guide = include_str!("../../../../docs/guide/counters.md");
        let (_, drops) = guide.split_once("\n## Drops\n").unwrap();
        let (sender, receiver) = drops.split_once("\nCounted at the **receiver**").unwrap();
        for reason in DropReason::all() {
            let rows = if reason.is_receivers() { receiver } else { sender };
            let name = format!("`{}`", reason.as_str());
            let is_row = |line: &str| {
                line.strip_prefix("| ")
                    .is_some_and(|row| row.split(" | ").next().unwrap().contains(&name))
            };
            assert!(rows.lines().any(is_row), "{name}");
        }
    }

    #[test]
    fn every_breach_reason_has_a_counter_and_a_name_of_its_own() {
        for reason in BreachReason::ALL {
            let counters = PortCounters::default();
            counters.breached(reason);
            assert_eq!(counters.breaches().collect::<Vec<_>>(), [(reason.as_str(), 1)]);
        }
    }
}
