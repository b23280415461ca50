//! A worker as others see it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::lock::lock;
use crate::poller::Poller;
use crate::stalls::Retry;
use crate::stats::Counter;

/// What others may see of a worker, and how they reach it. Each worker writes its own with every burst: on
/// lines of cache, which processors fetch in pairs, that no other worker writes.
#[repr(align(128))]
pub(crate) struct WorkerHandle {
    /// Its epoll set.
    pub(crate) poller: Arc<Poller>,
    /// Frames that it is to try again, told by others.
    retries: Mutex<Vec<Retry>>,
    /// There are some.
    told: AtomicBool,
    /// Its thread, once it runs.
    pub(crate) thread_id: AtomicU32,
    /// Times it woke from sleep.
    pub(crate) wakeups: Counter,
    /// Bursts it forwarded.
    pub(crate) bursts: Counter,
    /// Times it was told to look at a queue.
    pub(crate) nudges: Counter,
    /// How much before a deadline it sets its timer (ns): the most that its timers were
    /// late, and a quarter of it.
    pub(crate) timer_lead_ns: AtomicU64,
    /// Times that a timer was later than that.
    pub(crate) late_timers: Counter,
}

impl WorkerHandle {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self {
            poller: Arc::new(Poller::new()?),
            retries: Mutex::default(),
            told: AtomicBool::new(false),
            thread_id: AtomicU32::new(0),
            wakeups: Counter::default(),
            bursts: Counter::default(),
            nudges: Counter::default(),
            timer_lead_ns: AtomicU64::new(0),
            late_timers: Counter::default(),
        })
    }

    /// Has it try frames again, at once.
    pub(crate) fn tell(&self, retry: Retry) {
        lock(&self.retries).push(retry);
        self.told.store(true, Ordering::Release);
        self.poller.wake();
    }

    /// Whether it was told.
    #[inline]
    pub(crate) fn is_told(&self) -> bool {
        self.told.load(Ordering::Acquire)
    }

    /// What it was told, into `retries`.
    #[cold]
    pub(crate) fn take_told(&self, retries: &mut Vec<Retry>) {
        let mut told = lock(&self.retries);
        self.told.store(false, Ordering::Relaxed);
        retries.append(&mut told);
    }
}
