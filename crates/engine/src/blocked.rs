//! Memory that keeps a worker waiting.
//!
//! A front end may punch a hole into the file that it shares as memory. The kernel then lets whoever touches a page of
//! the hole wait until all of the hole is made, some 150 ms for each GiB. No call avoids this wait, and none says whose
//! memory it was. So a worker that was away for long watches what it does for a while: an operation that is long, and in
//! which its thread went to sleep, has met such memory. A port that takes more than its share of waiting is stopped.
//!
//! Away from its processor a thread is also where others have it, but then it has not gone to sleep
//! (`ru_nvcsw`, getrusage(2)).

use std::cell::{Cell, RefCell};

use nix::sys::resource::{UsageWho, getrusage};
use weir_fabric::PortId;
use weir_limits::{BLOCKED_NS_MAX, BLOCKED_SHARE};

use crate::clock;

/// A worker away for so long (ns) may have waited for memory: a busy kernel preempts for less. Shorter waits come
/// from small holes, which cost their front end as much as the worker.
const SUSPECT_NS: u64 = 10_000_000;
/// For how long it then watches what it does (ns): a front end may not make a large hole more seldom than it likes.
const WATCH_NS: u64 = 60_000_000_000;
/// An operation that is no shorter (ns) is looked at: bursts take microseconds.
const LONG_NS: u64 = 1_000_000;

thread_local! {
    static WATCHES: Cell<bool> = const { Cell::new(false) };
    static FOUND: Cell<bool> = const { Cell::new(false) };
    static WATCH: RefCell<Watch> = const { RefCell::new(Watch::NONE) };
}

/// Who has kept a worker waiting, and by how much more than its share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Debt {
    port: PortId,
    ns: u64,
    at_ns: u64,
}

#[derive(Debug)]
struct Watch {
    until_ns: u64,
    /// How often this thread has gone to sleep, when that was looked up last.
    sleeps: i64,
    debts: Vec<Debt>,
    /// Ports to be stopped, and how long their last wait was (ns).
    found: Vec<(PortId, u64)>,
}

impl Watch {
    const NONE: Self = Self { until_ns: 0, sleeps: 0, debts: Vec::new(), found: Vec::new() };

    /// `port` has kept the worker waiting for `ns`. Says whether that is more than it may.
    fn waited(&mut self, port: PortId, ns: u64, now_ns: u64) -> bool {
        self.debts.retain_mut(|debt| {
            let paid_ns = now_ns.saturating_sub(debt.at_ns) / BLOCKED_SHARE;
            (debt.ns, debt.at_ns) = (debt.ns.saturating_sub(paid_ns), now_ns);
            debt.ns > 0
        });
        let known = self.debts.iter().position(|debt| debt.port == port);
        let known = known.unwrap_or_else(|| {
            self.debts.push(Debt { port, ns: 0, at_ns: now_ns });
            self.debts.len() - 1
        });
        self.debts[known].ns += ns;
        let too_much = self.debts[known].ns > BLOCKED_NS_MAX;
        if too_much {
            self.debts.remove(known);
        }
        too_much
    }
}

/// How often this thread has gone to sleep.
fn sleeps() -> i64 {
    getrusage(UsageWho::RUSAGE_THREAD).map_or(0, |usage| usage.voluntary_context_switches())
}

/// This worker, which was not asleep, has looked at the clock at `now_ns` for the first time after `away_ns`.
#[cold]
pub(crate) fn away(away_ns: u64, now_ns: u64) {
    if away_ns >= SUSPECT_NS {
        WATCH.with_borrow_mut(|watch| {
            watch.until_ns = now_ns + WATCH_NS;
            watch.sleeps = sleeps();
        });
        WATCHES.set(true);
    } else if WATCHES.get() && WATCH.with_borrow(|watch| now_ns >= watch.until_ns) {
        WATCHES.set(false);
    }
}

/// This worker has slept, as it wanted to.
#[inline]
pub(crate) fn slept() {
    if WATCHES.get() {
        WATCH.with_borrow_mut(|watch| watch.sleeps = sleeps());
    }
}

/// Does what touches memory of `port`.
#[inline]
pub(crate) fn watched<T>(port: PortId, work: impl FnOnce() -> T) -> T {
    if WATCHES.get() { timed(port, work) } else { work() }
}

#[cold]
fn timed<T>(port: PortId, work: impl FnOnce() -> T) -> T {
    let begun_ns = clock::now_ns();
    let done = work();
    let now_ns = clock::now_ns();
    let took_ns = now_ns.saturating_sub(begun_ns);
    if took_ns >= LONG_NS {
        WATCH.with_borrow_mut(|watch| {
            let before = std::mem::replace(&mut watch.sleeps, sleeps());
            if watch.sleeps > before && watch.waited(port, took_ns, now_ns) {
                watch.found.push((port, took_ns));
                FOUND.set(true);
            }
        });
    }
    done
}

/// Some ports are to be stopped.
#[inline]
pub(crate) fn any() -> bool {
    FOUND.get()
}

/// Takes all of them, with how long their last wait was (ns).
#[cold]
pub(crate) fn take() -> Vec<(PortId, u64)> {
    FOUND.set(false);
    WATCH.with_borrow_mut(|watch| std::mem::take(&mut watch.found))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn port(number: u16) -> PortId {
        PortId::new(number).unwrap()
    }

    fn sleep_ms(ms: u64) {
        std::thread::sleep(Duration::from_millis(ms));
    }

    fn spin_ms(ms: u64) {
        let end_ns = clock::now_ns() + ms * 1_000_000;
        while clock::now_ns() < end_ns {}
    }

    #[test]
    fn whose_memory_keeps_a_worker_waiting_is_found_once_it_watches() {
        watched(port(1), || sleep_ms(150));
        assert!(!any(), "nobody watched yet");
        away(SUSPECT_NS, clock::now_ns());
        watched(port(2), || spin_ms(150));
        assert!(!any(), "it was busy, and did not sleep");
        sleep_ms(2);
        slept();
        watched(port(2), || spin_ms(150));
        assert!(!any(), "the sleep was the worker's own");
        watched(port(1), || watched(port(3), || sleep_ms(150)));
        let found = take();
        assert_eq!(found.len(), 1, "the receiver's, within the sender's burst: {found:?}");
        assert!(found[0].0 == port(3) && found[0].1 >= 150_000_000);
        assert!(!any() && take().is_empty());
    }

    #[test]
    fn a_watch_ends() {
        away(SUSPECT_NS, 1);
        away(0, 1 + WATCH_NS);
        watched(port(1), || sleep_ms(150));
        assert!(!any());
    }

    #[test]
    fn short_waits_count_until_their_share_of_time_has_passed() {
        let mut watch = Watch::NONE;
        let (each_ns, every_ns) = (BLOCKED_NS_MAX / 2, BLOCKED_NS_MAX / 2 * BLOCKED_SHARE);
        for turn in 0..100 {
            assert!(!watch.waited(port(1), each_ns, turn * every_ns), "its share, turn {turn}");
        }
        let now_ns = 100 * every_ns;
        assert!(!watch.waited(port(1), each_ns, now_ns));
        assert!(!watch.waited(port(2), each_ns, now_ns), "another one's");
        assert!(!watch.waited(port(1), each_ns, now_ns), "no more than it may");
        assert!(watch.waited(port(1), 1, now_ns));
    }
}
