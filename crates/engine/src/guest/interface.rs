//! A guest's interface to the engine, with any kind of ring: its queue pairs (more can be added under traffic), whether
//! it serves, and when its guest is called.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use weir_limits::QUEUE_PAIRS_MAX;
use weir_policy::moderation::{Decision, GuestPoll, Received, hold_ns_max};
use weir_policy::steering::{Receiver, Steering};

use super::{CallPolicy, CallTimes, QueueDecision, ReceiveRing, TransmitCalls, TransmitRing};
use crate::calls::held::HeldTimes;
use crate::frames::burst::Burst;
use crate::frames::flow::record_flows;
use crate::frames::port::Side;
use crate::frames::stats::{PortCounters, QueueCounters, TimesRead};
use crate::queue::{ReceiveQueue, TransmitQueue};
use crate::threads::lock::ReadyQueues;
use crate::threads::lock::lock;

/// A pair of queues, with the port's part of each direction.
#[derive(Debug)]
pub struct QueuePair<T, R> {
    /// Frames from the guest.
    pub tx: TransmitQueue<T>,
    /// Frames to the guest.
    pub rx: Mutex<ReceiveQueue<R>>,
    /// The durations of calls for these frames, once there was one.
    times: Arc<OnceLock<Box<HeldTimes>>>,
}

/// An interface, with the port's part of its transmit and of its receive queues.
#[derive(Debug)]
pub struct Interface<T, R> {
    /// The pairs that were ever offered to a front end, from the first on. None is removed while the interface exists:
    /// workers find a pair without a lock, and its counts stay.
    pairs: [OnceLock<Box<QueuePair<T, R>>>; QUEUE_PAIRS_MAX],
    /// The number of pairs that the next front end is offered.
    offered: AtomicUsize,
    counters: Arc<PortCounters>,
    /// See [`TransmitCalls::patient`].
    patient: bool,
    latency_budget_ns: AtomicU64,
    wait_ns_max: AtomicU64,
    /// The guest was found breaking the rules: nothing is served until service starts again.
    failed: AtomicBool,
    rx_ready: ReadyQueues,
    steering: Steering,
}

impl<T: TransmitRing + Default, R: ReceiveRing + Default> Interface<T, R> {
    /// An interface without rings, counting into `counters`, with call policy `calls`. `patient`: see
    /// [`TransmitCalls::patient`].
    pub fn new(
        queue_pairs: usize,
        calls: &CallPolicy,
        patient: bool,
        counters: Arc<PortCounters>,
    ) -> Self {
        let interface = Self {
            pairs: Default::default(),
            offered: AtomicUsize::new(0),
            counters,
            patient,
            latency_budget_ns: AtomicU64::new(calls.latency_budget_ns),
            wait_ns_max: AtomicU64::new(calls.wait_ns_max()),
            failed: AtomicBool::new(false),
            rx_ready: ReadyQueues::default(),
            steering: Steering::new(1).expect("one queue is a valid number of queues"),
        };
        interface.offer(queue_pairs, calls);
        interface
    }

    /// Offers `queue_pairs` queue pairs, 1 to [`QUEUE_PAIRS_MAX`], to the next front end, while traffic flows. New
    /// pairs call the guest by `calls`, which must be the policy of the others.
    pub fn offer(&self, queue_pairs: usize, calls: &CallPolicy) {
        let queue_pairs = queue_pairs.clamp(1, QUEUE_PAIRS_MAX);
        for place in self.pairs.iter().take(queue_pairs) {
            place.get_or_init(|| {
                let tx_calls = match self.patient {
                    true => TransmitCalls::patient(calls),
                    false => TransmitCalls::new(calls),
                };
                let rx = ReceiveQueue::new(R::default(), calls);
                Box::new(QueuePair {
                    tx: TransmitQueue::new(T::default(), tx_calls),
                    times: rx.calls.times(),
                    rx: Mutex::new(rx),
                })
            });
        }
        self.offered.store(queue_pairs, Ordering::Relaxed);
    }
}

impl<T: TransmitRing, R: ReceiveRing> Interface<T, R> {
    /// The number of queue pairs that the next front end is offered.
    pub fn offered(&self) -> usize {
        self.offered.load(Ordering::Relaxed)
    }

    /// A pair, by number.
    #[inline]
    pub fn pair(&self, queue: usize) -> Option<&QueuePair<T, R>> {
        self.pairs.get(queue)?.get().map(|pair| &**pair)
    }

    /// The queue pair, unless it is not in service or the interface has failed.
    #[inline]
    pub fn served(&self, queue: usize) -> Option<&QueuePair<T, R>> {
        self.pair(queue).filter(|_| !self.has_failed())
    }

    /// All pairs.
    pub fn pairs(&self) -> impl Iterator<Item = &QueuePair<T, R>> {
        self.pairs.iter().map_while(OnceLock::get).map(|pair| &**pair)
    }

    /// The steering, which chooses the receive queue of a flow.
    pub fn steering(&self) -> &Steering {
        &self.steering
    }

    /// Stops all service, until it is [enabled again](Self::clear_failure). Returns true if the interface had not
    /// failed before.
    pub fn fail(&self) -> bool {
        let had_failed = self.failed.swap(true, Ordering::SeqCst);
        self.rx_ready.none();
        !had_failed
    }

    /// Allows service to start again.
    pub fn clear_failure(&self) {
        self.failed.store(false, Ordering::Relaxed);
    }

    /// True if the interface has failed and nothing is served.
    #[inline]
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Counts the receive queues that can receive, after one has changed. The caller must not hold a queue's lock.
    pub fn count_ready(&self) {
        let failed = || self.failed.load(Ordering::SeqCst);
        let count = || self.pairs().take_while(|pair| lock(&pair.rx).queue.is_ready()).count();
        // 0 queues are an error and change no steering: the engine asks `rx_queues` first.
        self.rx_ready.count(failed, count, |ready| _ = self.steering.set_queues(ready));
    }

    /// See [`Port::rx_queues`](crate::Port::rx_queues).
    #[inline]
    pub fn rx_queues(&self) -> usize {
        self.rx_ready.get()
    }

    /// See [`Port::wait_ns_max`](crate::Port::wait_ns_max).
    pub fn wait_ns_max(&self) -> u64 {
        self.wait_ns_max.load(Ordering::Relaxed)
    }

    /// Steers a flow's replies to the queue on which the guest sent it. `receiver` is the port.
    pub fn follow(&self, queue: usize, burst: &Burst<'_>, now_secs: u32, receiver: &dyn Receiver) {
        record_flows(&self.steering, queue, burst, now_secs, receiver);
    }

    /// See [`Port::expired`](crate::Port::expired). `frees_sent` is true if the guest's receive handler also frees
    /// transmitted frames.
    pub fn expired(
        &self,
        queue: usize,
        side: Side,
        by_ns: u64,
        frees_sent: impl FnOnce() -> bool,
    ) -> Option<u64> {
        let pair = self.pair(queue)?;
        match side {
            Side::Rx => lock(&pair.rx).expired(queue, by_ns, &self.counters),
            Side::Tx => {
                let received = match frees_sent() {
                    true => lock(&pair.rx).calls.standing(),
                    false => Received::Told,
                };
                let asked = pair.tx.lock().expired(queue, by_ns, received, &self.counters);
                if asked.call_for_received {
                    lock(&pair.rx).flush(queue, &self.counters);
                }
                asked.again_at
            }
        }
    }
}

/// Settings and readings of an interface beside the data path, for any kind of ring.
pub trait AnyInterface: Send + Sync {
    /// The number of the interface's queue pairs: the most that it has ever offered.
    fn queue_pairs(&self) -> usize;

    /// The port's counters.
    fn counters(&self) -> &PortCounters;

    /// Changes the moderation policy while traffic flows. A held call is made first.
    fn set_moderation(&self, calls: &CallPolicy);

    /// Sets the limit of holds (ns) of one queue pair, or of all, under traffic: the manager's share of the budget,
    /// never above the budget's limit.
    fn set_hold_ns_max(&self, queue: Option<usize>, hold_ns: u64);

    /// Holds all interfaces together, or no longer: see [`Moderation::set_together`]. It must be called again after
    /// [`set_moderation`](Self::set_moderation).
    ///
    /// [`Moderation::set_together`]: weir_policy::moderation::Moderation::set_together
    fn set_together(&self, together: bool);

    /// Notes whether the guest polls its receive queues. It must be called again after
    /// [`set_moderation`](Self::set_moderation).
    fn set_guest_poll(&self, poll: Option<GuestPoll>);

    /// The present decision of each receive queue's policy.
    fn decisions(&self) -> Vec<QueueDecision>;

    /// Call times over all of the interface's receive queues.
    fn call_times(&self) -> CallTimes;

    /// The entries of each queue pair's rings, to receive and to send; 0 of a ring that is not in service.
    fn ring_sizes(&self) -> Vec<[u32; 2]>;
}

impl<T: TransmitRing + Send, R: ReceiveRing + Send> AnyInterface for Interface<T, R> {
    fn queue_pairs(&self) -> usize {
        self.pairs().count()
    }

    #[inline]
    fn counters(&self) -> &PortCounters {
        &self.counters
    }

    fn set_moderation(&self, calls: &CallPolicy) {
        self.latency_budget_ns.store(calls.latency_budget_ns, Ordering::Relaxed);
        self.wait_ns_max.store(calls.wait_ns_max(), Ordering::Relaxed);
        for (index, pair) in self.pairs().enumerate() {
            let new = calls.build();
            // The old policy is freed here, outside the lock.
            let _old = lock(&pair.rx).set_moderation(index, new, calls, &self.counters);
            pair.tx.lock().set_policy(index, calls, &self.counters);
        }
    }

    fn set_hold_ns_max(&self, queue: Option<usize>, hold_ns: u64) {
        let hold_ns = hold_ns.min(hold_ns_max(self.latency_budget_ns.load(Ordering::Relaxed)));
        for (index, pair) in self.pairs().enumerate() {
            if queue.is_none_or(|queue| queue == index) {
                lock(&pair.rx).calls.set_hold_ns_max(hold_ns);
                pair.tx.lock().calls.set_hold_ns_max(hold_ns);
            }
        }
    }

    fn set_together(&self, together: bool) {
        for pair in self.pairs() {
            lock(&pair.rx).calls.set_together(together);
        }
    }

    fn set_guest_poll(&self, poll: Option<GuestPoll>) {
        for pair in self.pairs() {
            lock(&pair.rx).calls.set_guest_poll(poll);
        }
    }

    fn decisions(&self) -> Vec<QueueDecision> {
        let decision = |(pair, counted): (&QueuePair<T, R>, &QueueCounters)| {
            let (kind, decision, hold_ns_max) = lock(&pair.rx).calls.decision();
            let times = pair.times.get();
            QueueDecision {
                kind,
                decision,
                hold_ns_max,
                frames: counted.frames.get(),
                calls: counted.calls.get(),
                calls_suppressed: counted.calls_suppressed.get(),
                hold: times.map(|times| times.hold.summary()).unwrap_or_default(),
                jitter_ns: times.map_or(0, |times| times.jitter.ns()),
            }
        };
        self.pairs().zip(&self.counters.rx).map(decision).collect()
    }

    fn call_times(&self) -> CallTimes {
        let (mut hold, mut latency) = (TimesRead::default(), TimesRead::default());
        let mut decision: Option<Decision> = None;
        let mut jitter_ns = 0;
        for pair in self.pairs() {
            if let Some(times) = pair.times.get() {
                hold.add(&times.hold);
                latency.add(&times.latency);
                jitter_ns = times.jitter.ns().max(jitter_ns);
            }
            let decided = lock(&pair.rx).calls.decided();
            if decision.is_none_or(|longest| decided.hold_ns > longest.hold_ns) {
                decision = Some(decided);
            }
        }
        CallTimes { hold: hold.summary(), latency: latency.summary(), jitter_ns, decision }
    }

    fn ring_sizes(&self) -> Vec<[u32; 2]> {
        self.pairs()
            .map(|pair| [lock(&pair.rx).queue.size(), pair.tx.lock().queue.size()])
            .collect()
    }
}
