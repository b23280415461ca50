//! What workers share with one another and with the control side.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use weir_fabric::Fabric;

use crate::activity::Activity;
use crate::crew::{Crew, Options};
use crate::poller::Poller;
use crate::share::Shares;
use crate::stats::Counter;
use crate::switch::Ports;

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

    /// A receiver has buffers: every worker that holds parked frames tries them again.
    ///
    /// A worker parks frames, counts them in `stalled`, and looks at `retry` before it sleeps; here it
    /// is the other way round, so that one of the two sees the other.
    pub(crate) fn retry_everywhere(&self, me: usize) {
        for (index, worker) in self.crew.iter().enumerate() {
            worker.retry.store(true, Ordering::SeqCst);
            if worker.stalled.load(Ordering::SeqCst) > 0 && index != me {
                worker.poller.wake();
            }
        }
    }
}

/// What others may see of a worker, and how they reach it. Each worker writes its own with every burst: on
/// lines of cache, which processors fetch in pairs, that no other worker writes.
#[repr(align(128))]
pub(crate) struct WorkerHandle {
    /// Its epoll set.
    pub(crate) poller: Arc<Poller>,
    /// Transmit queues that hold frames for receivers that are full.
    pub(crate) stalled: AtomicUsize,
    /// A receiver got buffers: try those frames again.
    pub(crate) retry: AtomicBool,
    /// Its thread, once it runs.
    pub(crate) thread_id: AtomicU32,
    /// Times it woke from sleep.
    pub(crate) wakeups: Counter,
    /// Bursts it forwarded.
    pub(crate) bursts: Counter,
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
            stalled: AtomicUsize::new(0),
            retry: AtomicBool::new(false),
            thread_id: AtomicU32::new(0),
            wakeups: Counter::default(),
            bursts: Counter::default(),
            timer_lead_ns: AtomicU64::new(0),
            late_timers: Counter::default(),
        })
    }
}
