//! Memory that keeps a worker waiting.
//!
//! A front end can punch a hole into the file that it shares as memory. Every thread that touches a
//! page of the hole then waits in the kernel until the whole hole is made, some 150 ms for each
//! GiB. No system call avoids this wait, and none shows whose memory it was. So a worker that did
//! not run for long notes, for a while, whose memory it touches, and a [`Watcher`] checks every few
//! milliseconds whether the worker waits for a hole in the kernel. A port that takes more than its
//! share of waiting is stopped. See docs/design/front-ends.md#0037.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::{self, Read};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use weir_fabric::PortId;
use weir_guestmem::HostBuffer;
use weir_limits::{BLOCKED_NS_MAX, BLOCKED_SHARE, BURST_BYTES_MAX};

use crate::frames::burst::Burst;
use crate::threads::clock;
use crate::threads::lock::lock;

/// A worker that was absent for this time (ns) may have waited for memory. It is longer than a busy
/// kernel gives the processor to other threads in one piece. A shorter wait means a small hole, and
/// small holes cost the front end as much as the worker.
const SUSPECT_NS: u64 = 10_000_000;
/// Time for which the worker is then watched (ns): rare large holes do not escape the watch.
const WATCH_NS: u64 = 60_000_000_000;
/// Interval of the watcher's checks (ns). An operation that ends before the next check is short.
const LOOK_NS: u64 = 5_000_000;
/// Prefixes of the kernel functions that wait for a hole: `shmem_fault`, and since Linux 6.16 `shmem_falloc_wait`.
const HOLE: [&str; 2] = ["shmem_fault", "shmem_falloc"];

/// The port whose memory a worker touches, in one word: a counter, a bit that is set if the port is certain, and the
/// port's number plus one. 0 means no port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Touch(u64);

impl Touch {
    const NONE: Self = Self(0);
    const CERTAIN: u64 = 1 << 16;
    const COUNT_SHIFT: u32 = 17;

    fn new(count: u64, port: PortId, certain: bool) -> Self {
        let certain = if certain { Self::CERTAIN } else { 0 };
        Self(count << Self::COUNT_SHIFT | certain | (u64::from(port.get()) + 1))
    }

    /// The touched port, if it is certain that the memory belongs to this port.
    fn port(self) -> Option<PortId> {
        let number =
            u64::checked_sub(self.0 & 0xffff, 1).filter(|_| self.0 & Self::CERTAIN != 0)?;
        PortId::new(number as u16)
    }
}

/// The data that a worker and its watcher share.
#[derive(Debug)]
struct Shared {
    thread: u32,
    touches: AtomicU64,
    /// Time until which the worker is watched (ns).
    watch_until_ns: AtomicU64,
    /// Time (ns) until which the worker makes sure that the touched port is certain, because it has waited for a hole.
    certain_until_ns: AtomicU64,
    /// Ports to be stopped, each with the time for which it kept the worker waiting (ns).
    found: Mutex<Vec<(PortId, u64)>>,
}

/// The worker's data about its watch.
struct Watched {
    shared: Arc<Shared>,
    watcher: Arc<Bell>,
    count: u64,
    own: Own,
}

thread_local! {
    /// True if this worker is watched now. An unwatched worker pays only for reading this flag.
    static WATCHES: Cell<bool> = const { Cell::new(false) };
    static THIS: RefCell<Option<Watched>> = const { RefCell::new(None) };
}

/// A buffer for the payload of a burst. After its worker has ended, another worker uses it.
struct Own(Option<&'static HostBuffer>);

static ROOMS: Mutex<Vec<&'static HostBuffer>> = Mutex::new(Vec::new());

impl Own {
    fn room(&mut self) -> &'static HostBuffer {
        let new = || Box::leak(Box::new(HostBuffer::new(BURST_BYTES_MAX as usize)));
        self.0.get_or_insert_with(|| lock(&ROOMS).pop().unwrap_or_else(|| new()))
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        lock(&ROOMS).extend(self.0);
    }
}

/// Notes that this worker has read the clock at `now_ns`, `away_ns` after the last time, and was awake in between.
#[cold]
pub(crate) fn away(away_ns: u64, now_ns: u64) {
    if away_ns >= SUSPECT_NS {
        THIS.with_borrow(|this| {
            let Some(this) = this else { return };
            this.shared.watch_until_ns.store(now_ns + WATCH_NS, Ordering::Relaxed);
            if !WATCHES.replace(true) {
                this.watcher.ring();
            }
        });
    } else if WATCHES.get() {
        THIS.with_borrow(|this| {
            let until_ns = |this: &Watched| this.shared.watch_until_ns.load(Ordering::Relaxed);
            WATCHES.set(this.as_ref().is_some_and(|this| now_ns < until_ns(this)));
        });
    }
}

/// Runs `work`, which touches memory of `port` and of no other port.
#[inline]
pub(crate) fn touching<T>(port: PortId, work: impl FnOnce() -> T) -> T {
    if WATCHES.get() { touch(port, true, work) } else { work() }
}

/// Delivers a burst to `port`. This also touches memory of the burst's sender, unless the payload was [brought
/// in](bring_in).
#[inline]
pub(crate) fn delivering<T>(port: PortId, work: impl FnOnce() -> T) -> T {
    if WATCHES.get() { touch(port, takes_care(), work) } else { work() }
}

#[cold]
fn takes_care() -> bool {
    let until_ns = |this: &Watched| this.shared.certain_until_ns.load(Ordering::Relaxed);
    let until_ns = THIS.with_borrow(|this| this.as_ref().map_or(0, until_ns));
    until_ns != 0 && clock::now_ns() < until_ns
}

#[cold]
fn touch<T>(port: PortId, certain: bool, work: impl FnOnce() -> T) -> T {
    let say = |touch: Touch| {
        THIS.with_borrow(|this| {
            this.as_ref().map_or(0, |this| this.shared.touches.swap(touch.0, Ordering::Relaxed))
        })
    };
    let count = THIS.with_borrow_mut(|this| {
        this.as_mut().map_or(0, |this| {
            this.count += 1;
            this.count
        })
    });
    // Restores the previous value at the end, even after a panic.
    struct Back<F: Fn(Touch) -> u64>(F, u64);
    impl<F: Fn(Touch) -> u64> Drop for Back<F> {
        fn drop(&mut self) {
            (self.0)(Touch(self.1));
        }
    }
    let before = say(Touch::new(count, port, certain));
    let _back = Back(say, before);
    work()
}

/// Copies the payload of `burst` to weir's own memory while this worker must be certain whose memory it touches: the
/// delivery then touches only the receivers' memory.
#[inline]
pub(crate) fn bring_in(burst: &mut Burst<'_>) {
    if WATCHES.get() && burst.away.is_none() && takes_care() {
        THIS.with_borrow_mut(|this| {
            let Some(this) = this else { return };
            bring_to(this.own.room(), burst);
        });
    }
}

fn bring_to(room: &'static HostBuffer, burst: &mut Burst<'_>) {
    let mut at = 0;
    for piece in burst.pieces.iter_mut() {
        let Some(copy) = room.slice(at, piece.len()) else { return };
        piece.copy_to(&copy);
        at += piece.len();
        *piece = copy;
    }
}

/// Takes the list of ports to be stopped, each with the time for which it kept this worker waiting (ns).
#[inline]
pub(crate) fn take_found() -> Vec<(PortId, u64)> {
    if !WATCHES.get() {
        return Vec::new();
    }
    THIS.with_borrow(|this| {
        this.as_ref().map_or(Vec::new(), |this| std::mem::take(&mut *lock(&this.shared.found)))
    })
}

/// Wakes the watcher up.
#[derive(Debug, Default)]
struct Bell {
    state: Mutex<Rung>,
    rings: Condvar,
}

#[derive(Debug, Default)]
struct Rung {
    rung: bool,
    ends: bool,
    workers: Vec<Weak<Shared>>,
}

impl Bell {
    fn ring(&self) {
        lock(&self.state).rung = true;
        self.rings.notify_one();
    }
}

/// The thread that checks whether workers wait for holes. It sleeps while no worker must be
/// watched. Dropping this value ends it.
#[derive(Debug)]
pub(crate) struct Watcher {
    bell: Arc<Bell>,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    pub(crate) fn start() -> io::Result<Self> {
        let bell = Arc::<Bell>::default();
        let run = {
            let bell = Arc::clone(&bell);
            move || {
                let mut looks = Looks::default();
                while let Some(workers) = wait(&bell, looks.watches) {
                    looks.look(&workers, clock::now_ns(), waits_for_hole);
                }
            }
        };
        let thread = std::thread::Builder::new().name("weir-holes".into()).spawn(run)?;
        Ok(Self { bell, thread: Some(thread) })
    }

    /// Registers this thread as a worker that can be watched.
    pub(crate) fn enter(&self) {
        let thread = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        let shared = Arc::new(Shared {
            thread,
            touches: 0.into(),
            watch_until_ns: 0.into(),
            certain_until_ns: 0.into(),
            found: Mutex::default(),
        });
        {
            let workers = &mut lock(&self.bell.state).workers;
            workers.retain(|worker| worker.strong_count() > 0);
            workers.push(Arc::downgrade(&shared));
        }
        let watcher = Arc::clone(&self.bell);
        THIS.set(Some(Watched { shared, watcher, count: 0, own: Own(None) }));
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        lock(&self.bell.state).ends = true;
        self.bell.rings.notify_one();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Waits for the next check: for the usual interval if a worker is `watched`, otherwise until a worker must be. `None`
/// at the end.
fn wait(bell: &Bell, watched: bool) -> Option<Vec<Arc<Shared>>> {
    let mut state = lock(&bell.state);
    if watched {
        let time = Duration::from_nanos(LOOK_NS);
        let waited = bell.rings.wait_timeout_while(state, time, |state| !state.ends);
        state = waited.unwrap_or_else(PoisonError::into_inner).0;
    } else {
        let waited = bell.rings.wait_while(state, |state| !state.rung && !state.ends);
        state = waited.unwrap_or_else(PoisonError::into_inner);
    }
    state.rung = false;
    (!state.ends).then(|| state.workers.iter().filter_map(Weak::upgrade).collect())
}

/// True if a thread of this process waits for a hole in the kernel.
fn waits_for_hole(thread: u32) -> bool {
    let mut name = [0; 32];
    let read = File::open(format!("/proc/self/task/{thread}/wchan"))
        .and_then(|mut file| file.read(&mut name))
        .unwrap_or(0);
    HOLE.iter().any(|hole| name[..read].starts_with(hole.as_bytes()))
}

/// A port that has kept a worker waiting, and the time by which this exceeds the port's share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Debt {
    port: PortId,
    ns: u64,
    at_ns: u64,
}

/// The state that the watcher keeps between its checks.
#[derive(Debug, Default)]
struct Looks {
    watches: bool,
    looked_ns: u64,
    /// For each thread: the memory that it touched at the last check.
    touched: Vec<(u32, Touch)>,
    debts: Vec<Debt>,
}

impl Looks {
    fn look(&mut self, workers: &[Arc<Shared>], now_ns: u64, waits: impl Fn(u32) -> bool) {
        // A late check does not prove a wait of the same length.
        let passed_ns = now_ns.saturating_sub(self.looked_ns).min(2 * LOOK_NS);
        let before = std::mem::take(&mut self.touched);
        for worker in workers {
            let touch = Touch(worker.touches.load(Ordering::Relaxed));
            let known = before.contains(&(worker.thread, touch));
            self.touched.push((worker.thread, touch));
            let still = |touch: Touch| touch.0 == worker.touches.load(Ordering::Relaxed);
            if touch == Touch::NONE || !known || !waits(worker.thread) || !still(touch) {
                continue;
            }
            worker.certain_until_ns.store(now_ns + WATCH_NS, Ordering::Relaxed);
            worker.watch_until_ns.fetch_max(now_ns + WATCH_NS, Ordering::Relaxed);
            let Some(port) = touch.port() else { continue };
            let mut found = lock(&worker.found);
            if let Some((_, ns)) = found.iter_mut().find(|(found, _)| *found == port) {
                *ns += passed_ns;
            } else if let Some(ns) = self.waited(port, passed_ns, now_ns) {
                found.push((port, ns));
            }
        }
        self.looked_ns = now_ns;
        let is_watched = |it: &Arc<Shared>| now_ns < it.watch_until_ns.load(Ordering::Relaxed);
        self.watches = workers.iter().any(is_watched);
    }

    /// Notes that `port` has kept a worker waiting for `ns`. Returns the total if it exceeds the port's share.
    fn waited(&mut self, port: PortId, ns: u64, now_ns: u64) -> Option<u64> {
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
        too_much.then(|| self.debts.remove(known).ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::burst::{Pieces, Scratch, TakenChain};

    fn port(number: u16) -> PortId {
        PortId::new(number).unwrap()
    }

    fn worker() -> Arc<Shared> {
        let (touches, watch_until_ns) = (0.into(), u64::MAX.into());
        let (certain_until_ns, found) = (0.into(), Mutex::default());
        Arc::new(Shared { thread: 1, touches, watch_until_ns, certain_until_ns, found })
    }

    fn found(worker: &Shared) -> Vec<PortId> {
        lock(&worker.found).iter().map(|(port, _)| *port).collect()
    }

    /// Checks until `ns` have passed.
    fn look_for(looks: &mut Looks, worker: &Arc<Shared>, ns: u64, waits: bool) {
        for _ in 0..ns / LOOK_NS {
            let now_ns = looks.looked_ns + LOOK_NS;
            looks.look(std::slice::from_ref(worker), now_ns, |_| waits);
        }
    }

    #[test]
    fn whose_memory_keeps_a_worker_waiting_is_found_and_nobody_else() {
        let (worker, mut looks) = (worker(), Looks::default());
        let touches = |touch: Touch| worker.touches.store(touch.0, Ordering::Relaxed);
        touches(Touch::new(1, port(1), true));
        look_for(&mut looks, &worker, 10 * BLOCKED_NS_MAX, false);
        assert!(found(&worker).is_empty(), "it is busy, or waits for a lock");
        assert!(worker.certain_until_ns.load(Ordering::Relaxed) == 0);
        touches(Touch::new(2, port(2), false));
        look_for(&mut looks, &worker, 10 * BLOCKED_NS_MAX, true);
        assert!(found(&worker).is_empty(), "it may be the sender's memory");
        assert!(worker.certain_until_ns.load(Ordering::Relaxed) > looks.looked_ns);
        touches(Touch::new(3, port(3), true));
        look_for(&mut looks, &worker, BLOCKED_NS_MAX / 2, true);
        assert!(found(&worker).is_empty(), "no more than it may");
        look_for(&mut looks, &worker, BLOCKED_NS_MAX, true);
        assert_eq!(found(&worker), [port(3)]);
        let ns = lock(&worker.found)[0].1;
        assert!((BLOCKED_NS_MAX..3 * BLOCKED_NS_MAX / 2).contains(&ns), "all of it counts: {ns}");
    }

    #[test]
    fn operations_that_are_over_by_the_next_look_are_not_looked_at() {
        let (worker, mut looks) = (worker(), Looks::default());
        for count in 1..100 {
            worker.touches.store(Touch::new(count, port(1), true).0, Ordering::Relaxed);
            let now_ns = looks.looked_ns + LOOK_NS;
            looks
                .look(std::slice::from_ref(&worker), now_ns, |_| unreachable!("another operation"));
        }
    }

    #[test]
    fn short_waits_count_until_their_share_of_time_has_passed() {
        let mut looks = Looks::default();
        let (each_ns, every_ns) = (BLOCKED_NS_MAX / 2, BLOCKED_NS_MAX / 2 * BLOCKED_SHARE);
        for turn in 0..100 {
            assert!(looks.waited(port(1), each_ns, turn * every_ns).is_none(), "its share, {turn}");
        }
        let now_ns = 100 * every_ns;
        assert!(looks.waited(port(1), each_ns, now_ns).is_none());
        assert!(looks.waited(port(2), each_ns, now_ns).is_none(), "another one's");
        assert!(looks.waited(port(1), each_ns, now_ns).is_none(), "no more than it may");
        assert_eq!(looks.waited(port(1), 1, now_ns), Some(BLOCKED_NS_MAX + 1));
    }

    /// The memory that this worker's thread has marked as touched.
    fn says() -> Touch {
        THIS.with_borrow(|this| {
            Touch(this.as_ref().unwrap().shared.touches.load(Ordering::Relaxed))
        })
    }

    #[test]
    fn a_worker_that_was_away_says_for_a_while_whose_memory_it_touches() {
        let watcher = Watcher::start().unwrap();
        watcher.enter();
        touching(port(1), || assert_eq!(says(), Touch::NONE, "nobody watches"));
        away(SUSPECT_NS, 1);
        touching(port(1), || {
            assert_eq!(says().port(), Some(port(1)));
            let outer = says();
            delivering(port(2), || assert!(says() != outer && says().port().is_none(), "whose?"));
            assert_eq!(says(), outer, "the sender's again");
            let panics = || delivering(port(2), || panic!("of a receiver"));
            assert!(std::panic::catch_unwind(panics).is_err());
            assert_eq!(says(), outer);
        });
        assert_eq!(says(), Touch::NONE);
        THIS.with_borrow(|this| {
            this.as_ref().unwrap().shared.certain_until_ns.store(u64::MAX, Ordering::Relaxed);
        });
        delivering(port(2), || {
            assert_eq!(says().port(), Some(port(2)), "the payload was brought in")
        });
        away(0, 1 + WATCH_NS);
        touching(port(1), || assert_eq!(says(), Touch::NONE, "the watch has ended"));
    }

    #[test]
    fn payload_is_brought_in_while_a_worker_takes_care() {
        let watcher = Watcher::start().unwrap();
        watcher.enter();
        let (guest, mut scratch) = (HostBuffer::new(1000), Scratch::default());
        guest.slice(12, 988).unwrap().write(&[7; 988]);
        let mut burst = scratch.lend();
        burst.pieces.push(guest.slice(0, 600).unwrap());
        burst.pieces.push(guest.slice(600, 400).unwrap());
        let chain = TakenChain { token: 0, len: 1000, pieces: Pieces::Among(0, 2) };
        burst.add(chain, 12, 0).unwrap();
        bring_in(&mut burst);
        let starts = |burst: &Burst<'_>| burst.pieces[1].address();
        assert_eq!(starts(&burst), guest.slice(600, 1).unwrap().address(), "nobody watches");
        away(SUSPECT_NS, 1);
        THIS.with_borrow(|this| {
            this.as_ref().unwrap().shared.certain_until_ns.store(u64::MAX, Ordering::Relaxed);
        });
        bring_in(&mut burst);
        guest.slice(0, 1000).unwrap().write(&[9; 1000]);
        let payload = burst.payload(&burst.frames()[0]);
        assert!(!payload.is_empty());
        for piece in payload {
            let mut bytes = vec![0; piece.len()];
            piece.read(&mut bytes);
            assert!(bytes.iter().all(|byte| *byte == 7), "of weir's own copy");
        }
    }

    #[test]
    fn the_kernel_says_where_a_thread_waits() {
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            tell.send(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()).unwrap();
            let _ = stopped.recv();
        });
        let id = told.recv().unwrap();
        std::thread::sleep(Duration::from_millis(20));
        let read = std::fs::read_to_string(format!("/proc/self/task/{id}/wchan")).unwrap();
        assert!(read.starts_with("futex"), "{read}: without this no hole is found");
        assert!(!waits_for_hole(id));
        drop(stop);
        thread.join().unwrap();
    }
}
