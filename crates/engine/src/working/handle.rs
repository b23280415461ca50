//! A worker as other threads see it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::frames::stats::Counter;
use crate::threads::lock::lock;
use crate::working::poller::Poller;
use crate::working::stalls::Retry;

/// The cause that ended a worker's sleep. If several events came at the same time, it is the first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WokenFor {
    /// A guest has sent frames.
    Kick,
    /// An uplink has frames.
    Uplink,
    /// A receiver has buffers, for which frames may wait.
    Buffers,
    /// weir itself: a queue must be polled, frames must be tried again, or a signal came.
    Told,
    /// A nap ended.
    Nap,
    /// A held call for received frames was due.
    ReceivedHold,
    /// A held call for sent frames was due.
    SentHold,
    /// Frames have waited long enough for their receiver or their rate, or kicks were ignored long enough.
    Waited,
    /// The timer was set for work that was already done.
    Nothing,
}

impl WokenFor {
    /// All causes, in the order of their numbers.
    pub const ALL: [Self; 9] = [
        Self::Kick,
        Self::Uplink,
        Self::Buffers,
        Self::Told,
        Self::Nap,
        Self::ReceivedHold,
        Self::SentHold,
        Self::Waited,
        Self::Nothing,
    ];

    /// The cause's name in statistics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kick => "kick",
            Self::Uplink => "uplink",
            Self::Buffers => "buffers",
            Self::Told => "told",
            Self::Nap => "nap",
            Self::ReceivedHold => "hold_rx",
            Self::SentHold => "hold_tx",
            Self::Waited => "waited",
            Self::Nothing => "nothing",
        }
    }
}

/// The data of a worker that other threads can see, and the means to reach the worker. Each worker writes its own data
/// with every burst. The alignment keeps it off cache lines that another worker writes; processors fetch lines in
/// pairs.
#[repr(align(128))]
pub(crate) struct WorkerHandle {
    /// The worker's epoll set.
    pub(crate) poller: Arc<Poller>,
    /// Frames that the worker must retry, noted by other threads.
    retries: Mutex<Vec<Retry>>,
    /// True if `retries` has entries.
    told: AtomicBool,
    /// The worker's thread id, once the thread runs.
    pub(crate) thread_id: AtomicU32,
    /// The worker's wake-ups, by cause.
    pub(crate) woken_for: [Counter; WokenFor::ALL.len()],
    /// Bursts that the worker forwarded.
    pub(crate) bursts: Counter,
    /// Number of times that the worker was nudged to poll a queue.
    pub(crate) nudges: Counter,
    /// The time before a deadline for which the worker sets its timer (ns): the longest lateness of its timers, and a
    /// quarter more.
    pub(crate) timer_lead_ns: AtomicU64,
    /// Timers that were later than `timer_lead_ns`.
    pub(crate) late_timers: Counter,
}

impl WorkerHandle {
    /// The number of times that the worker woke from sleep.
    pub(crate) fn wakeups(&self) -> u64 {
        self.woken_for.iter().map(Counter::get).sum()
    }

    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self {
            poller: Arc::new(Poller::new()?),
            retries: Mutex::default(),
            told: AtomicBool::new(false),
            thread_id: AtomicU32::new(0),
            woken_for: Default::default(),
            bursts: Counter::default(),
            nudges: Counter::default(),
            timer_lead_ns: AtomicU64::new(0),
            late_timers: Counter::default(),
        })
    }

    /// Makes the worker retry frames at once.
    pub(crate) fn tell(&self, retry: Retry) {
        lock(&self.retries).push(retry);
        self.told.store(true, Ordering::Release);
        self.poller.wake();
    }

    /// True if the worker must retry frames.
    #[inline]
    pub(crate) fn is_told(&self) -> bool {
        self.told.load(Ordering::Acquire)
    }

    /// Moves the noted frames into `retries`.
    #[cold]
    pub(crate) fn take_told(&self, retries: &mut Vec<Retry>) {
        let mut told = lock(&self.retries);
        self.told.store(false, Ordering::Relaxed);
        retries.append(&mut told);
    }
}
