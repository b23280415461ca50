//! A worker: the thread that serves queues. Its loop is the whole life of a packet in weir:
//!
//! ```text
//! sleep ── kick ──▶ take a burst ──▶ forward it ──▶ ... until its queues are empty ──▶ arm, sleep
//!                   (Port::take)     (Forwarder: FDB, then Port::deliver per receiver)
//! ```
//!
//! While it is awake its queues' kicks are off; before it sleeps it turns them on and looks once
//! more. With no traffic it sleeps without a timeout.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::event::epoll;
use weir_limits::BURST_MAX;

use crate::burst::Scratch;
use crate::clock;
use crate::poller::QueueRef;
use crate::port::{Side, Take, Taken};
use crate::shared::{Shared, WorkerHandle};
use crate::switch::{self, Forwarder, Hold, Ingress, slot};

/// Rounds over busy queues between two looks at the epoll set: a queue that wakes up while others
/// keep the worker busy waits for at most this many bursts per busy queue.
const ROUNDS_PER_POLL: u32 = 8;
/// Events taken from the kernel at once.
const EVENTS_MAX: usize = 64;

/// A queue that may have work. Only transmit queues are served; receive queues are filled.
type TxQueue = QueueRef;

pub(crate) struct Worker {
    shared: Arc<Shared>,
    index: usize,
    scratch: Scratch,
    forwarder: Forwarder,
    events: Vec<epoll::Event>,
    kicked: Vec<QueueRef>,
    /// Transmit queues to serve, in turn.
    ready: VecDeque<TxQueue>,
    /// Transmit queues with parked frames, and when the oldest has waited long enough.
    stalled: Vec<(TxQueue, u64)>,
    holds: BinaryHeap<Reverse<Hold>>,
    /// When this worker last swept the forwarding table (s).
    aged_secs: u32,
}

impl Worker {
    pub(crate) fn new(shared: Arc<Shared>, index: usize) -> Self {
        Self {
            shared,
            index,
            scratch: Scratch::default(),
            forwarder: Forwarder::default(),
            events: Vec::with_capacity(EVENTS_MAX),
            kicked: Vec::with_capacity(EVENTS_MAX),
            ready: VecDeque::new(),
            stalled: Vec::new(),
            holds: BinaryHeap::new(),
            aged_secs: 0,
        }
    }

    fn handle(&self) -> &WorkerHandle {
        &self.shared.workers[self.index]
    }

    pub(crate) fn run(mut self) {
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        self.handle().thread_id.store(tid.unsigned_abs(), Ordering::Relaxed);
        while !self.shared.stopping.load(Ordering::Relaxed) {
            let timeout = self.sleep_for();
            self.poll(timeout);
            self.retry_stalled();
            let mut rounds = 0;
            while !self.ready.is_empty() {
                for _ in 0..self.ready.len() {
                    self.serve_next();
                }
                self.expire_holds();
                self.retry_stalled();
                rounds += 1;
                if rounds % ROUNDS_PER_POLL == 0 {
                    self.poll(Some(Duration::ZERO));
                }
            }
            self.expire_holds();
        }
    }

    /// Time until the next deadline; `None` when there is none.
    fn sleep_for(&self) -> Option<Duration> {
        if self.handle().retry.load(Ordering::SeqCst) && !self.stalled.is_empty() {
            return Some(Duration::ZERO);
        }
        let hold = self.holds.peek().map(|Reverse(hold)| hold.until_ns);
        let stalled = self.stalled.iter().map(|(_, until)| *until).min();
        let next = match (hold, stalled) {
            (Some(a), Some(b)) => a.min(b),
            (a, b) => a.or(b)?,
        };
        Some(Duration::from_nanos(next.saturating_sub(clock::now_ns())))
    }

    fn poll(&mut self, timeout: Option<Duration>) {
        let handle = &self.shared.workers[self.index];
        handle.poller.wait(&mut self.events, timeout, &mut self.kicked);
        if timeout != Some(Duration::ZERO) {
            handle.wakeups.add(1);
        }
        if self.kicked.is_empty() {
            return;
        }
        let ports = self.shared.ports.load();
        for queue in self.kicked.drain(..) {
            let Some(slot) = slot(&ports, queue.port) else {
                continue;
            };
            slot.port.kicked(queue.queue, queue.side);
            match queue.side {
                Side::Tx if !self.ready.contains(&queue) => self.ready.push_back(queue),
                Side::Tx => {}
                // A receiver has buffers again.
                Side::Rx => self.shared.retry_everywhere(self.index),
            }
        }
    }

    /// One burst of the next queue in turn.
    fn serve_next(&mut self) {
        let Some(queue) = self.ready.pop_front() else {
            return;
        };
        let Some(taken) = self.take(queue, Take::New) else {
            return;
        };
        if taken.more || taken.frames >= BURST_MAX {
            self.ready.push_back(queue);
            return;
        }
        let ports = self.shared.ports.load();
        if slot(&ports, queue.port).is_some_and(|slot| slot.port.arm_tx(queue.queue)) {
            self.ready.push_back(queue);
        }
    }

    /// Takes one burst and forwards it. `None` when the port is gone.
    fn take(&mut self, queue: TxQueue, what: Take) -> Option<Taken> {
        let ports = self.shared.ports.load();
        let view = self.shared.fabric.view();
        let slot = slot(&ports, queue.port)?;
        let now_ns = clock::now_ns();
        let ingress = Ingress {
            view: &view,
            ports: &ports,
            port: queue.port,
            counters: &slot.counters,
            now_ns,
        };
        let (scratch, forwarder) = (&mut self.scratch, &mut self.forwarder);
        let taken = catch_unwind(AssertUnwindSafe(|| {
            slot.port.take(queue.queue, what, now_ns, scratch, &mut |burst| {
                forwarder.forward(ingress, burst);
            })
        }));
        let taken = taken.unwrap_or_else(|_| {
            // Nothing a guest does should come here. If it does, it takes only its own port along.
            slot.port.fail("internal error (a panic in the data path; please report it)");
            self.scratch = Scratch::default();
            self.forwarder = Forwarder::default();
            Taken::default()
        });
        self.handle().bursts.add(u64::from(taken.frames > 0));
        for hold in self.forwarder.holds.drain(..) {
            self.holds.push(Reverse(hold));
        }
        self.note_stalled(queue, &taken);
        self.age(now_ns);
        for (port, queue) in self.forwarder.full.drain(..) {
            let full = switch::slot(&ports, port);
            if full.is_some_and(|full| full.port.arm_rx(queue)) {
                self.shared.workers[self.index].retry.store(true, Ordering::SeqCst);
            }
        }
        Some(taken)
    }

    /// Once a second while there is traffic, forgets a part of what has not been heard of for long.
    /// Lookups judge an entry's age themselves; this only makes room.
    fn age(&mut self, now_ns: u64) {
        let now_secs = clock::secs(now_ns);
        if std::mem::replace(&mut self.aged_secs, now_secs) != now_secs {
            self.shared.fabric.fdb().age(now_secs);
        }
    }

    /// Keeps the list of queues that wait.
    fn note_stalled(&mut self, queue: TxQueue, taken: &Taken) {
        let position = self.stalled.iter().position(|(stalled, _)| *stalled == queue);
        match (taken.parked_until, position) {
            (None, None) => {}
            (None, Some(position)) => {
                self.stalled.swap_remove(position);
            }
            (Some(until), Some(position)) => self.stalled[position].1 = until,
            (Some(until), None) => self.stalled.push((queue, until)),
        }
        // Before receivers' kicks are turned on below: whoever gets one must see the count.
        self.handle().stalled.store(self.stalled.len(), Ordering::SeqCst);
    }

    fn retry_stalled(&mut self) {
        if self.stalled.is_empty() {
            return;
        }
        let now_ns = clock::now_ns();
        let asked = self.handle().retry.swap(false, Ordering::SeqCst);
        for i in (0..self.stalled.len()).rev() {
            let Some(&(queue, until)) = self.stalled.get(i) else {
                continue;
            };
            if !asked && until > now_ns {
                continue;
            }
            match self.take(queue, Take::Parked) {
                None => self.note_stalled(queue, &Taken::default()),
                // Room was made: what the sender has had to keep back may come now.
                Some(taken) if taken.more && !self.ready.contains(&queue) => {
                    self.ready.push_back(queue);
                }
                Some(_) => {}
            }
        }
    }

    fn expire_holds(&mut self) {
        if self.holds.is_empty() {
            return;
        }
        let ports = self.shared.ports.load();
        let now_ns = clock::now_ns();
        while let Some(Reverse(hold)) = self.holds.peek().copied() {
            if hold.until_ns > now_ns {
                break;
            }
            self.holds.pop();
            let next =
                slot(&ports, hold.port).and_then(|slot| slot.port.expired(hold.queue, now_ns));
            if let Some(until_ns) = next {
                self.holds.push(Reverse(Hold { until_ns: until_ns.max(now_ns + 1), ..hold }));
            }
        }
    }
}
