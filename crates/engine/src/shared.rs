//! What workers share with one another and with the control side.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwap;
use weir_fabric::{Fabric, PortId};

use crate::activity::Activity;
use crate::crew::{Crew, Options};
use crate::lock::lock;
use crate::poller::Poller;
use crate::share::Shares;
use crate::stalls::Retry;
use crate::stats::Counter;
use crate::switch::{Ports, Slot};

/// What workers and the control side share.
pub(crate) struct Shared {
    pub(crate) fabric: Fabric,
    pub(crate) ports: ArcSwap<Ports>,
    pub(crate) crew: Crew,
    pub(crate) shares: Shares,
    pub(crate) activity: Activity,
    pub(crate) stopping: AtomicBool,
}

impl Shared {
    pub(crate) fn new(options: Options) -> std::io::Result<Self> {
        Ok(Self {
            fabric: Fabric::new(),
            ports: ArcSwap::default(),
            crew: Crew::new(options),
            shares: Shares::default(),
            activity: Activity::new()?,
            stopping: AtomicBool::new(false),
        })
    }

    /// A receiver has buffers: tells the workers whose frames wait for it, except `me`. Returns whether `me` has
    /// some.
    #[inline]
    pub(crate) fn refilled(&self, slot: &Slot, receiver: PortId, me: usize) -> bool {
        let waiting = slot.waiters.refilled();
        if waiting & !(1 << me) != 0 {
            self.tell(waiting & !(1 << me), receiver);
        }
        waiting >> me & 1 != 0
    }

    #[cold]
    fn tell(&self, mut workers: u64, receiver: PortId) {
        while workers != 0 {
            self.crew.tell(workers.trailing_zeros() as usize, Retry::Receiver(receiver));
            workers &= workers - 1;
        }
    }
}

/// A worker as others see and reach it. Each worker writes its own with every burst, so it has cache lines (CPUs
/// fetch them in pairs) that no other worker writes.
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
    pub(crate) bursts: Counter,
    /// Times it was told to look at a queue.
    pub(crate) nudges: Counter,
    /// How early it sets its timer (ns): the most that its timers were late, and a quarter.
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

    #[inline]
    pub(crate) fn is_told(&self) -> bool {
        self.told.load(Ordering::Acquire)
    }

    #[cold]
    pub(crate) fn take_told(&self, retries: &mut Vec<Retry>) {
        let mut told = lock(&self.retries);
        self.told.store(false, Ordering::Relaxed);
        retries.append(&mut told);
    }
}
