//! The worker set: the workers as other threads see them, and the queues of each.
//!
//! A queue pair has one worker at a time, whose number is in its port's [`Pair`]. A worker's own notes on a queue are
//! hints: the worker drops them when the pair has another number. So moving a pair takes a new number, a new watch for
//! the pair's kicks, and a nudge: see [`Crew::assign`].

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

use weir_fabric::{Capacity, PortId};
use weir_limits::WORKERS_MAX;
use weir_policy::dispatch::Aim;
use weir_policy::schedule::Kind;

use crate::frames::port::{QueueRef, Side};
use crate::frames::stats::Counter;
use crate::lost::cpu_loss::CpuClock;
use crate::switching::pair::{Pair, Pairs};
use crate::threads::lock::lock;
use crate::working::poller::{Poller, Watch, Watched};
use crate::working::stalls::Retry;

/// The threads that do the work (Dong 2011 §4.3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Execution {
    /// A fixed number of workers, each of which serves many queues.
    #[default]
    Tasklet,
    /// A worker for each pair of queues, under the ordinary scheduler.
    Threads,
    /// A worker for each pair of queues, under `SCHED_FIFO`: only other real-time threads preempt it.
    RtThreads,
}

/// The way in which workers wait for work (Raj 2006).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Realization {
    /// Workers sleep until they are kicked, and the work is spread over all of them.
    Shared,
    /// Workers poll their queues all the time with kicks suppressed, each on its own core.
    Dedicated,
    /// Workers sleep until they are kicked, and the load determines how many of them work.
    #[default]
    Adaptive,
}

/// The configuration of a switch's workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The kind of the workers' threads.
    pub execution: Execution,
    /// The way in which the workers wait.
    pub realization: Realization,
    /// The rule by which workers give turns to queues at first.
    pub schedule: Kind,
    /// The clock by which workers find out that they were kept from their processors.
    pub cpu_clock: CpuClock,
    /// The number of workers, unless `execution` gives each pair of queues its own.
    pub workers: usize,
    /// True if workers serve no queue until [`Engine::open`](crate::Engine::open).
    pub held: bool,
    /// Size of the forwarding table.
    pub fdb: Capacity,
}

impl Options {
    /// The aim of moving queues between workers; `None` if queues do not move.
    pub(crate) fn aim(&self) -> Option<Aim> {
        match (self.execution, self.realization) {
            _ if self.workers < 2 => None,
            (Execution::Threads | Execution::RtThreads, _) => None,
            (Execution::Tasklet, Realization::Adaptive) => Some(Aim::Pack),
            (Execution::Tasklet, Realization::Shared | Realization::Dedicated) => Some(Aim::Spread),
        }
    }

    pub(crate) fn per_pair(&self) -> bool {
        matches!(self.execution, Execution::Threads | Execution::RtThreads)
    }
}

/// The workers of a switch. Workers can be added, but not removed.
pub(crate) struct Crew {
    pub(crate) options: Options,
    handles: Box<[OnceLock<Arc<WorkerHandle>>]>,
    count: AtomicUsize,
    roster: Mutex<Roster>,
}

/// The data that changes when a pair moves, under one lock: the worker of a pair also watches the pair's kicks.
#[derive(Default)]
pub(crate) struct Roster {
    watched: HashMap<QueueRef, Weak<Watched>>,
    /// Workers whose pair of queues was removed.
    free: Vec<usize>,
}

impl Crew {
    pub(crate) fn new(options: Options) -> Self {
        Self {
            options,
            handles: std::iter::repeat_with(OnceLock::new).take(WORKERS_MAX).collect(),
            count: AtomicUsize::new(0),
            roster: Mutex::default(),
        }
    }

    pub(crate) fn roster(&self) -> MutexGuard<'_, Roster> {
        self.roster.lock().unwrap_or_else(|e| e.into_inner())
    }

    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// All workers, by number.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<WorkerHandle>> {
        self.handles.iter().take(self.len()).filter_map(OnceLock::get)
    }

    fn get(&self, worker: usize) -> Option<&Arc<WorkerHandle>> {
        self.handles.get(worker)?.get()
    }

    /// Makes room for one more worker and returns its number; `None` at the maximum. Only one thread may call this at a
    /// time.
    pub(crate) fn add(&self) -> io::Result<Option<(usize, Arc<WorkerHandle>)>> {
        let index = self.len();
        let Some(place) = self.handles.get(index) else { return Ok(None) };
        let handle = Arc::new(WorkerHandle::new()?);
        let handle = Arc::clone(place.get_or_init(|| handle));
        self.count.store(index + 1, Ordering::Release);
        Ok(Some((index, handle)))
    }

    /// The worker of a pair. A pair without a worker gets one: by `hire`, if each pair has its own
    /// worker.
    pub(crate) fn worker_of(
        &self,
        roster: &mut Roster,
        pair: &Pair,
        queue: QueueRef,
        hire: impl FnOnce() -> io::Result<Option<usize>>,
    ) -> io::Result<&Arc<WorkerHandle>> {
        let worker = match pair.worker() {
            Some(worker) => worker,
            None => {
                let own = match self.first_worker(queue.port, queue.queue) {
                    None => roster.free.pop().map_or_else(hire, |free| Ok(Some(free)))?,
                    first => first,
                };
                let worker = own.unwrap_or_else(|| self.worker_at(queue.port, queue.queue));
                pair.set_worker(worker);
                worker
            }
        };
        self.get(worker).ok_or_else(|| io::Error::other("there are no workers"))
    }

    /// The first worker of a pair, before its load is known; `None` if each pair has its own
    /// worker.
    pub(crate) fn first_worker(&self, port: PortId, queue: usize) -> Option<usize> {
        match self.options.aim() {
            _ if self.options.per_pair() => None,
            Some(Aim::Pack) => Some(0),
            _ => Some(self.worker_at(port, queue)),
        }
    }

    /// A worker for a pair, chosen by the numbers of the port and the queue alone.
    fn worker_at(&self, port: PortId, queue: usize) -> usize {
        (port.index() + queue) % self.len().max(1)
    }

    /// Watches a kick for `worker`, the worker of its pair.
    pub(crate) fn watch(
        roster: &mut Roster,
        worker: &WorkerHandle,
        queue: QueueRef,
        kick: OwnedFd,
    ) -> io::Result<Watch> {
        let watched = worker.poller.watch(kick, queue)?;
        roster.watched.insert(queue, Arc::downgrade(&watched));
        Ok(Watch::new(watched))
    }

    /// Turns events for kicks of `queue` on or off. Returns false, and changes nothing, while a pair is being moved.
    pub(crate) fn listen(&self, queue: QueueRef, listen: bool) -> bool {
        let Ok(roster) = self.roster.try_lock() else { return false };
        if let Some(watched) = roster.watched.get(&queue).and_then(Weak::upgrade) {
            watched.listen(listen);
        }
        true
    }

    /// Gives a pair to another worker, while traffic flows.
    ///
    /// Both workers may serve the pair for a moment. A burst holds its queue's lock from the first frame taken to the
    /// last frame placed, which keeps order. No kick is lost: the counter of the kick's eventfd is never read, so the
    /// new watch reports any earlier write, and the new worker is made to poll.
    ///
    /// # Errors
    /// The kick cannot be watched; nothing has changed then.
    pub(crate) fn assign(
        &self,
        pairs: &Pairs,
        port: PortId,
        queue: usize,
        to: usize,
    ) -> io::Result<()> {
        let roster = self.roster();
        let (Some(pair), Some(worker)) = (pairs.get(queue), self.get(to)) else { return Ok(()) };
        // A pair without a worker belongs to a removed port, or was never watched.
        let Some(from) = pair.worker() else { return Ok(()) };
        pair.set_worker(to);
        let move_to = |side| match roster.watched.get(&QueueRef { port, queue, side }) {
            Some(watched) => watched.upgrade().map_or(Ok(()), |kick| kick.move_to(&worker.poller)),
            None => Ok(()),
        };
        if let Err(error) = move_to(Side::Tx) {
            pair.set_worker(from);
            return Err(error);
        }
        // Any worker can handle a receiver's kicks, so an error here does not matter.
        let _ = move_to(Side::Rx);
        worker.poller.nudge(QueueRef { port, queue, side: Side::Tx });
        Ok(())
    }

    /// Starts or stops a second worker's help with a pair.
    ///
    /// Each worker keeps notes of its own: a worker that has suppressed kicks polls the queue. No kick wakes the
    /// helper, so it is nudged now and then ([`nudge_helper`](Self::nudge_helper)). When the help stops, the pair's
    /// worker polls the queue, and retries the frames that wait for receivers.
    pub(crate) fn set_helper(&self, pair: &Pair, queue: QueueRef, helper: Option<usize>) {
        let _roster = self.roster();
        // The pair of a removed port has no worker.
        let worker = pair.worker();
        let helper = helper.filter(|_| worker.is_some());
        let before = pair.set_helper(helper);
        self.nudge_helper(pair, queue);
        if before.is_some()
            && before != helper
            && let Some(worker) = worker.and_then(|worker| self.get(worker))
        {
            worker.tell(Retry::Sender(queue));
            worker.poller.nudge(queue);
        }
    }

    /// Makes the pair's worker poll the pair, because another worker that no longer serves it has just taken frames
    /// from it with kicks suppressed.
    pub(crate) fn hand_over(&self, pair: &Pair, queue: QueueRef) {
        if let Some(worker) = pair.worker().and_then(|worker| self.get(worker)) {
            worker.poller.nudge(queue);
        }
    }

    /// Makes a worker retry frames.
    pub(crate) fn tell(&self, worker: usize, retry: Retry) {
        if let Some(worker) = self.get(worker) {
            worker.tell(retry);
        }
    }

    /// Makes the helper of a pair poll the pair, if there is a helper.
    pub(crate) fn nudge_helper(&self, pair: &Pair, queue: QueueRef) {
        if let Some(helper) = pair.helper().and_then(|helper| self.get(helper)) {
            helper.poller.nudge(queue);
        }
    }

    /// Forgets the pairs of a removed port.
    pub(crate) fn release(&self, port: PortId, pairs: &Pairs) {
        let mut roster = self.roster();
        for (queue, pair) in pairs.iter().enumerate() {
            for side in [Side::Tx, Side::Rx] {
                roster.watched.remove(&QueueRef { port, queue, side });
            }
            if let (Some(worker), true) = (pair.worker(), self.options.per_pair()) {
                roster.free.push(worker);
            }
            pair.release();
        }
    }
}

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
