//! A guest's interface as the engine sees it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use weir_calls::Proxy;
use weir_engine::burst::{Burst, Scratch};
use weir_engine::guest::{
    AnyInterface, CallPolicy, GuestDevice, GuestPort, Interface, PortInfo, QueuePair, Silence,
    SilentRing, State,
};
use weir_engine::queue::{settle, stop};
use weir_engine::{
    Ask, Delivered, DropReason, Forward, Outgoing, Port, PortCounters, Side, Taken, clock, lock,
};
use weir_fabric::PortId;
use weir_foreign::Party;
use weir_guestmem::{Account, Asks};
use weir_limits::{BLOCKED_SHARE, CALL_PAUSE_NS, DESCRIPTORS_OF_MESSAGE, SILENT_NS_MIN};
use weir_policy::moderation::GuestPoll;
use weir_policy::steering::{Mark, Receiver, Steering};
use weir_ring::Record;
use weir_sandbox::descriptors::{NoRoom, Share, of_guest};

use crate::allowance::Allowance;
use crate::error::{Fault, StopReason};
use crate::keep::Keep;
use crate::notify::Caller;
use crate::queue::{Injected, Late, Queue, Ring};
use crate::records::Records;
use crate::rx::{Copies, RxQueue};
use crate::tx::Sending;
use crate::{rx, tx};

/// A kind of message about a port that its front end can provoke again and again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Said {
    Connected,
    Disconnected,
    Ended,
    TurnedAway,
    AcceptFailed,
    Stopped,
    NoRecord,
    Base,
}

/// The log limits of one port.
pub(crate) type Logs = weir_engine::logs::Logs<8>;

/// The options of a new interface.
#[derive(Debug, Clone)]
pub struct VhostOptions {
    /// The interface's name in logs.
    pub name: String,
    /// Most queue pairs that a driver may use, 1 to [`QUEUE_PAIRS_MAX`](weir_limits::QUEUE_PAIRS_MAX).
    pub queue_pairs: usize,
    /// The policy that says when to call the guest.
    pub calls: CallPolicy,
    /// The device, as weir describes it to front ends that ask.
    pub device: GuestDevice,
}

/// The session's part of the statistics.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    pub(crate) connected: bool,
    /// The front end has sent a request, to this weir or to the previous one.
    pub(crate) has_spoken: bool,
    /// The front end has stopped rings that ran, and has not reset the device since.
    pub(crate) halted: bool,
    /// The process at the other end of the socket.
    pub(crate) front_end: Option<rustix::process::Pid>,
    /// Queue pairs that the session was offered.
    pub(crate) queue_pairs: Option<usize>,
    pub(crate) stop_reason: Option<String>,
    pub(crate) stopped_ns: u64,
    pub(crate) opened: u64,
    pub(crate) closed: u64,
    pub(crate) failed: u64,
    pub(crate) features: u64,
    pub(crate) mtu: Option<u16>,
    pub(crate) memory_bytes: u64,
}

impl Shown {
    /// Notes the reason of a stop that was not orderly.
    pub(crate) fn note_stop(&mut self, reason: String) {
        (self.stop_reason, self.stopped_ns) = (Some(reason), clock::now_ns());
    }
}

/// A guest's interface.
#[derive(Debug)]
pub struct VhostPort {
    name: String,
    /// The port's number in the switch.
    id: PortId,
    /// The guest's interface. It fails when a worker finds the guest breaking a rule: service stops
    /// until the session or the device starts afresh.
    guest: Interface<Queue, Queue>,
    /// The time (ns) until which the interface stays stopped.
    pause_until_ns: AtomicU64,
    proxy: Proxy,
    /// The party that pays for closing everything that comes by its socket.
    pub(crate) party: Party,
    /// The party's share of descriptors, including those of the interface itself and of a session.
    share: Share,
    own_descriptors: u64,
    session_descriptors: AtomicU64,
    /// The memory that front ends have mapped, and its bound.
    memory: Arc<Account>,
    records: Option<Records>,
    keep: Option<Keep>,
    pub(crate) shown: Mutex<Shown>,
    /// The questions of the present session to its virtual IOMMU.
    asks: Mutex<Weak<Asks>>,
    device: Mutex<GuestDevice>,
    /// The processor time that its sessions may use.
    pub(crate) allowance: Mutex<Allowance>,
    logs: Logs,
    /// The number of times that a session, or a front end that wanted one, had to pause.
    throttled: AtomicU64,
    turned_away: AtomicU64,
    /// The time at which the last front end was turned away; 0 if none was.
    turned_away_ns: AtomicU64,
}

impl VhostPort {
    /// An interface with no session.
    pub fn new(id: PortId, counters: Arc<PortCounters>, options: &VhostOptions) -> Self {
        Self {
            name: options.name.clone(),
            id,
            guest: Interface::new(options.queue_pairs, &options.calls, false, counters),
            pause_until_ns: AtomicU64::new(0),
            proxy: Proxy::new(&options.name),
            party: Party::new(options.name.as_str()),
            share: Share::new(of_guest(options.queue_pairs, false)),
            own_descriptors: 0,
            session_descriptors: AtomicU64::new(0),
            memory: Arc::default(),
            records: None,
            keep: None,
            shown: Mutex::default(),
            asks: Mutex::default(),
            device: Mutex::new(options.device),
            allowance: Mutex::default(),
            logs: Logs::default(),
            throttled: AtomicU64::new(0),
            turned_away: AtomicU64::new(0),
            turned_away_ns: AtomicU64::new(0),
        }
    }

    /// Uses this account for the front ends' memory, in place of one with the default bound.
    pub fn with_memory(self, memory: Account) -> Self {
        Self { memory: Arc::new(memory), ..self }
    }

    /// Uses these records of the rings, so that they outlive this process.
    pub fn with_records(self, records: Records) -> Self {
        Self { records: Some(records), ..self }
    }

    /// Uses this place for the session, which then outlives this process.
    pub fn with_keep(self, keep: Keep) -> Self {
        let port = Self { keep: Some(keep), ..self };
        port.renew_share();
        port
    }

    /// Counts these descriptors of the interface itself as held in any case.
    pub fn with_own_descriptors(mut self, own: u64) -> Self {
        self.own_descriptors = own;
        self.renew_share();
        self
    }

    fn renew_share(&self) {
        let most = of_guest(self.offered_queue_pairs(), self.keep.is_some());
        self.share.set_least(self.own_descriptors + most);
    }

    /// Front ends' descriptors that are to be closed and are still open.
    fn unclosed(&self) -> u64 {
        let kept = self.keep.as_ref().map_or(0, Keep::unclosed);
        (self.party.open() + kept + self.proxy.unclosed()) as u64
    }

    /// Claims this many descriptors for a session, and those of a message.
    ///
    /// # Errors
    /// Other interfaces would not have their share any more.
    pub(crate) fn claim(&self, of_session: u64) -> Result<(), NoRoom> {
        let message = DESCRIPTORS_OF_MESSAGE * if self.keep.is_some() { 2 } else { 1 };
        let of_session = of_session + message;
        self.share.claim(self.own_descriptors + of_session + self.unclosed())?;
        self.session_descriptors.store(of_session, Ordering::Relaxed);
        Ok(())
    }

    /// Gives the claim back: nothing is left of a session except descriptors that are not closed
    /// yet.
    pub(crate) fn claim_no_more(&self) {
        self.session_descriptors.store(0, Ordering::Relaxed);
        self.share.hold(self.own_descriptors + self.unclosed());
    }

    /// Claims descriptors for another front end's connection, which is about to be accepted and
    /// closed.
    ///
    /// # Errors
    /// As [`Self::claim`].
    pub(crate) fn claim_to_close(&self) -> Result<(), NoRoom> {
        let held = self.own_descriptors + self.session_descriptors.load(Ordering::Relaxed);
        self.share.claim(held + self.unclosed() + 1)
    }

    /// The place where the session is kept.
    pub fn keep(&self) -> Option<&Keep> {
        self.keep.as_ref()
    }

    /// The record of vring `ring`, if there is a file for it. Otherwise the reason is logged.
    pub(crate) fn record(&self, ring: usize, size: u16) -> Option<Record> {
        let record = self.records.as_ref()?.record(ring, size);
        let say = |error: &std::io::Error| {
            self.log(Said::NoRecord, |unsaid| {
                tracing::warn!(vif = self.name, ring, %error, unsaid, "cannot keep a record of a ring");
            });
        };
        record.inspect_err(say).ok()
    }

    /// Gives the pages of its rings' records back until they are used again.
    pub(crate) fn leave_records(&self) {
        self.records.iter().for_each(Records::leave);
    }

    /// The memory that its front ends have mapped, and its bound.
    pub fn memory(&self) -> &Arc<Account> {
        &self.memory
    }

    /// The interface's name in logs.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The interface's counters.
    pub fn counters(&self) -> &PortCounters {
        self.guest.counters()
    }

    pub(crate) fn device(&self) -> GuestDevice {
        *lock(&self.device)
    }

    pub(crate) fn offered_queue_pairs(&self) -> usize {
        self.guest.offered()
    }

    /// The number of kicks that a vring's queue has counted.
    pub(crate) fn kicks(&self, ring: usize) -> u64 {
        let counters =
            if ring.is_multiple_of(2) { &self.counters().rx } else { &self.counters().tx };
        counters.get(ring / 2).map_or(0, |queue| queue.kicks.get())
    }

    fn silent_rings(&self) -> Vec<SilentRing> {
        if self.has_failed() {
            return Vec::new();
        }
        let now_ns = clock::now_ns();
        let unanswered = lock(&self.asks).upgrade().and_then(|asks| {
            let long = Duration::from_nanos(SILENT_NS_MIN);
            let (questions, since) = asks.unanswered(Instant::now(), long)?;
            Some(Silence::NoTranslation { questions: questions as u64, seconds: since.as_secs() })
        });
        let silent = |ring: usize| {
            let pair = self.guest.pair(ring / 2)?;
            let kicks = self.kicks(ring);
            let why = |queue: &Queue| {
                let unanswered = unanswered.filter(|_| queue.lacks_translation());
                unanswered.or_else(|| queue.silence(kicks, now_ns))
            };
            let why = if ring.is_multiple_of(2) {
                why(&lock(&pair.rx).queue)
            } else {
                why(&pair.tx.lock().queue)
            };
            Some(SilentRing { ring, why: why? })
        };
        (0..2 * self.guest.queue_pairs()).filter_map(silent).collect()
    }

    /// Runs `change` on the queue of a vring (2 * pair receives, 2 * pair + 1 transmits), then counts again the queues
    /// that can receive. `None` if there is no such ring.
    pub(crate) fn with_queue<T>(
        &self,
        ring: usize,
        change: impl FnOnce(&mut Queue) -> T,
    ) -> Option<T> {
        let pair = self.guest.pair(ring / 2)?;
        let result = if ring.is_multiple_of(2) {
            change(&mut lock(&pair.rx).queue)
        } else {
            change(&mut pair.tx.lock().queue)
        };
        self.guest.count_ready();
        Some(result)
    }

    /// Takes a ring out of service, with nothing left in flight.
    pub(crate) fn stop_ring(&self, ring: usize) -> Option<Ring> {
        let pair = self.guest.pair(ring / 2)?;
        let stopped = if ring.is_multiple_of(2) {
            let mut rx = stop(&pair.rx, || self.has_failed(), ring / 2, self.counters());
            (rx.queue.armed, rx.queue.late) = (false, None);
            rx.queue.ring.take()
        } else {
            tx::stop(&pair.tx, &Sending { port: self, index: ring / 2 })
        };
        self.guest.count_ready();
        stopped
    }

    /// Takes a ring out of service for a while, with no burst under way. Frames that wait go on waiting.
    pub(crate) fn set_aside(&self, ring: usize) -> Option<Ring> {
        let (index, counters) = (ring / 2, self.counters());
        let pair = self.guest.pair(index)?;
        let aside = if ring.is_multiple_of(2) {
            let mut rx = settle(&pair.rx, || self.has_failed(), index, counters);
            (rx.queue.armed, rx.queue.late) = (false, Some(Late::Again));
            rx.queue.ring.take()
        } else {
            let mut tx = pair.tx.settle(&Sending { port: self, index });
            tx.flush(index, counters);
            tx.queue.late = Some(Late::Again);
            tx.queue.ring.take()
        };
        self.guest.count_ready();
        aside
    }

    /// Notes the questions of the present session to its virtual IOMMU.
    pub(crate) fn set_asks(&self, asks: &Arc<Asks>) {
        *lock(&self.asks) = Arc::downgrade(asks);
    }

    /// Queues a frame of weir's own, to be forwarded as if the guest had sent it with each of its tags.
    pub(crate) fn inject(&self, injected: Injected) {
        if let Some(pair) = self.guest.pair(0) {
            pair.tx.lock().queue.injected = Some(Box::new(injected));
        }
    }

    #[cfg(test)]
    pub(crate) fn first_rx(&self) -> std::sync::MutexGuard<'_, rx::RxQueue> {
        lock(&self.guest.pair(0).unwrap().rx)
    }

    /// True if an injected frame waits.
    #[cfg(test)]
    pub(crate) fn has_injected(&self) -> bool {
        self.guest.pairs().any(|pair| pair.tx.lock().queue.injected.is_some())
    }

    /// Keeps service from beginning again for `ns`.
    fn pause_for(&self, ns: u64) {
        self.pause_until_ns.fetch_max(clock::now_ns().saturating_add(ns), Ordering::Relaxed);
    }

    /// Lets service begin again for a new session or after a reset, unless the interface [pauses](Self::pause_for).
    pub(crate) fn clear_failure(&self) {
        if self.has_failed() && clock::now_ns() < self.pause_until_ns.load(Ordering::Relaxed) {
            return;
        }
        self.guest.clear_failure();
    }

    /// Notes the end of a session; `error` is the reason if it did not end in order.
    pub(crate) fn session_ended(&self, error: Option<&StopReason>) {
        let mut shown = lock(&self.shown);
        match error {
            None => shown.closed += 1,
            Some(error) => {
                shown.failed += 1;
                shown.note_stop(error.to_string());
            }
        }
    }

    pub(crate) fn stop(&self, reason: &StopReason) {
        self.log(Said::Stopped, |unsaid| {
            tracing::warn!(vif = self.name, %reason, unsaid, "interface stopped");
        });
        self.guest.fail();
        lock(&self.shown).note_stop(reason.to_string());
    }

    /// Logs by `say`, which gets the number of earlier messages that were left out, unless such messages came too
    /// often.
    pub(crate) fn log(&self, said: Said, say: impl FnOnce(Option<u64>)) {
        self.logs.say(said as usize, say);
    }

    pub(crate) fn note_throttled(&self) {
        self.throttled.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn note_turned_away(&self) {
        self.turned_away_ns.store(clock::now_ns(), Ordering::Relaxed);
        self.turned_away.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.guest.has_failed()
    }
}

impl Caller for VhostPort {
    fn counters(&self) -> &PortCounters {
        self.counters()
    }

    fn proxy(&self) -> &Proxy {
        &self.proxy
    }

    fn stop_for_dear_calls(&self, ring: usize) {
        self.pause_for(CALL_PAUSE_NS);
        self.stop(&StopReason::DearCalls { ring });
    }

    fn stop(&self, reason: &StopReason) {
        self.stop(reason);
    }
}

impl GuestPort for VhostPort {
    fn id(&self) -> PortId {
        self.id
    }

    fn interface(&self) -> &dyn AnyInterface {
        &self.guest
    }

    fn info(&self) -> PortInfo {
        let running = self.guest.pairs().any(|pair| lock(&pair.rx).queue.is_running());
        let silent = self.silent_rings();
        let shown = lock(&self.shown);
        let state = match (shown.connected, running) {
            _ if self.has_failed() => State::Stopped,
            (true, true) => State::Running,
            (true, false) if shown.halted => State::Halted,
            (true, false) => State::Connected,
            (false, _) => State::Waiting,
        };
        PortInfo {
            state,
            is_met: shown.connected && shown.has_spoken,
            stop_reason: shown.stop_reason.clone(),
            stopped_ns: shown.stopped_ns,
            opened: shown.opened,
            closed: shown.closed,
            failed: shown.failed,
            turned_away: self.turned_away.load(Ordering::Relaxed),
            turned_away_ns: self.turned_away_ns.load(Ordering::Relaxed),
            throttled: self.throttled.load(Ordering::Relaxed),
            log_lines_unsaid: self.logs.unsaid(),
            features: shown.features,
            mtu: shown.mtu,
            memory_bytes: shown.memory_bytes,
            memory_mapped: self.memory.mapped(),
            memory_max_bytes: self.memory.max_bytes(),
            session_queue_pairs: shown.queue_pairs,
            silent,
        }
    }

    fn set_guest_poll_ns(&self, poll_ns: Option<u64>) {
        // A driver that polls suppresses calls (virtio 1.2 §2.7.7).
        self.guest.set_guest_poll(poll_ns.map(|every_ns| GuestPoll { every_ns, asks: false }));
    }

    // A front end asks once, so the present session keeps its number.
    fn set_queue_pairs(&self, queue_pairs: usize, calls: &CallPolicy) {
        self.guest.offer(queue_pairs, calls);
        self.renew_share();
    }

    // A front end asks once, so a change is for the next session.
    fn set_device(&self, device: GuestDevice) {
        *lock(&self.device) = device;
    }

    fn set_memory_max(&self, bytes: u64) {
        self.memory.set_max_bytes(bytes);
    }

    // The process comes from `SO_PEERCRED`.
    fn front_end(&self) -> Option<rustix::process::Pid> {
        lock(&self.shown).front_end
    }

    // The port stays stopped, whatever a session that does not end may do.
    fn retire(&self, reason: &str) {
        self.pause_until_ns.store(u64::MAX, Ordering::Relaxed);
        self.stop(&StopReason::Internal(reason.to_owned()));
    }
}

impl Port for VhostPort {
    fn take(&self, queue: usize, ask: Ask, scratch: &mut Scratch, forward: Forward<'_>) -> Taken {
        let Some(pair) = self.guest.served(queue) else {
            return Taken::default();
        };
        let multi_queue = self.rx_queues() > 1;
        let mut follow_and_forward = |burst: &mut Burst<'_>| {
            if multi_queue {
                self.guest.follow(queue, burst, clock::secs(ask.now_ns), self);
            }
            forward(burst);
        };
        let source = Sending { port: self, index: queue };
        match pair.tx.take(&source, ask, scratch, &mut follow_and_forward) {
            Ok(taken) => taken,
            Err(reason) => self.stop_taking(pair, &reason),
        }
    }

    fn deliver(&self, queue: usize, burst: &Burst<'_>, frames: &[Outgoing]) -> Delivered {
        let mut delivered = Delivered { frames: frames.len(), ..Delivered::default() };
        match self.guest.served(queue) {
            None => self.drop_all(frames),
            Some(pair) => {
                if let Err(reason) = self.fill(queue, pair, burst, frames, &mut delivered) {
                    self.stop_filling(pair, &reason);
                    delivered = Delivered { frames: frames.len(), ..Delivered::default() };
                }
            }
        }
        delivered
    }

    fn expired(&self, queue: usize, side: Side, by_ns: u64) -> Option<u64> {
        self.guest.expired(queue, side, by_ns, || true)
    }

    fn peek_tx(&self, queue: usize) -> bool {
        let Some(pair) = self.guest.served(queue) else {
            return false;
        };
        let mut tx = pair.tx.lock();
        // A fault of the ring shows when it is served.
        let ring = tx.queue.ring.as_mut().filter(|ring| ring.is_served());
        ring.is_some_and(|ring| ring.device.peek() || !ring.left_behind.is_empty())
    }

    fn share_tx(&self, queue: usize, on: bool) -> bool {
        let Some(pair) = self.guest.pair(queue) else { return false };
        pair.tx.set_side_by_side(on);
        true
    }

    fn wait_ns_max(&self) -> u64 {
        self.guest.wait_ns_max()
    }

    fn arm_tx(&self, queue: usize) -> bool {
        let Some(pair) = self.guest.served(queue) else {
            return false;
        };
        let mut tx = pair.tx.lock();
        let Some(ring) = tx.queue.ring.as_mut().filter(|ring| ring.is_served()) else {
            return false;
        };
        match ring.device.enable_kicks() {
            Ok(available) => available > 0 || !ring.left_behind.is_empty(),
            Err(error) => {
                let reason = StopReason::Ring { ring: 2 * queue + 1, error };
                let reason = reason.unless_truncated(&ring.memory);
                tx.queue.signal_error();
                drop(tx);
                self.stop(&reason);
                false
            }
        }
    }

    fn kicked(&self, queue: usize, side: Side) {
        let Some(pair) = self.guest.pair(queue) else {
            return;
        };
        match side {
            Side::Tx => {
                self.counters().tx[queue].kicks.add(1);
                if let Some(ring) = pair.tx.lock().queue.ring.as_mut() {
                    ring.start();
                }
            }
            Side::Rx => {
                self.counters().rx[queue].kicks.add(1);
                let mut rx = lock(&pair.rx);
                rx.queue.armed = false;
                let started = rx.queue.ring.as_mut().is_some_and(Ring::start);
                drop(rx);
                if started {
                    self.guest.count_ready();
                }
            }
        }
    }

    fn rx_queues(&self) -> usize {
        self.guest.rx_queues()
    }

    fn steering(&self) -> Option<&Steering> {
        Some(self.guest.steering())
    }

    fn fail(&self, reason: &str) {
        self.stop(&StopReason::Internal(reason.to_owned()));
    }

    fn blocks(&self, ns: u64) {
        self.pause_for(ns.saturating_mul(BLOCKED_SHARE));
        self.stop(&StopReason::MemoryBlocks { ns });
    }
}

impl VhostPort {
    /// Stops because of a transmit queue. Frames that were taken before the error do not count.
    #[cold]
    fn stop_taking(&self, pair: &QueuePair<Queue, Queue>, reason: &StopReason) -> Taken {
        pair.tx.lock().queue.signal_error();
        self.stop(reason);
        Taken::default()
    }

    /// Stops because of a receive queue.
    #[cold]
    fn stop_filling(&self, pair: &QueuePair<Queue, Queue>, reason: &StopReason) {
        lock(&pair.rx).queue.signal_error();
        self.stop(reason);
    }

    /// Drops frames for a guest that cannot receive.
    #[cold]
    fn drop_all(&self, frames: &[Outgoing]) {
        self.counters().dropped(DropReason::RxNotReady, frames.len() as u64);
    }

    /// Does the same, unless the frames may wait for the ring's place.
    #[cold]
    fn refuse(&self, rx: &mut RxQueue, frames: &[Outgoing], delivered: &mut Delivered) {
        match rx::worth_waiting(rx) {
            Some(worth_waiting) => *delivered = Delivered { worth_waiting, ..Delivered::default() },
            None => self.drop_all(frames),
        }
    }

    /// Writes what became of the frames to `delivered`, which says that all are done.
    #[inline(always)]
    fn fill(
        &self,
        queue: usize,
        pair: &QueuePair<Queue, Queue>,
        burst: &Burst<'_>,
        frames: &[Outgoing],
        delivered: &mut Delivered,
    ) -> Result<(), Fault> {
        let mut rx = lock(&pair.rx);
        // The memory stays mapped while this worker copies without the lock.
        let Some(memory) = rx::memory(&rx) else {
            self.refuse(&mut rx, frames, delivered);
            return Ok(());
        };
        let counters = self.counters();
        let copies = rx::place(&mut rx, queue, &memory, burst, frames, counters, delivered)?;
        let Some(copies) = copies else { return Ok(()) };
        drop(rx);
        if delivered.frames == frames.len() {
            burst.placed();
        }
        delivered.hold_until = self.copy(queue, pair, copies)?;
        Ok(())
    }

    /// Makes copies without the queue's lock, and shows what they complete.
    #[inline(never)]
    fn copy(
        &self,
        queue: usize,
        pair: &QueuePair<Queue, Queue>,
        copies: Copies<'_>,
    ) -> Result<Option<u64>, Fault> {
        copies.copy();
        rx::finish(&mut lock(&pair.rx), queue, copies, self.counters())
    }
}

impl Receiver for VhostPort {
    fn mark(&self, queue: usize) -> Mark {
        self.guest.pair(queue).map_or(Mark::default(), |pair| rx::mark(&lock(&pair.rx)))
    }

    fn has_taken(&self, queue: usize, placed: u64, before: Mark) -> bool {
        self.guest.pair(queue).is_none_or(|pair| rx::has_taken(&lock(&pair.rx), placed, before))
    }
}
