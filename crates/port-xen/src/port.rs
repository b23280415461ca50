//! A vif as a port of the engine.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use weir_engine::burst::{Burst, Scratch};
use weir_engine::guest::{
    AnyInterface, CallPolicy, GuestPort, Interface, PortInfo, QueuePair, State,
};
use weir_engine::logs::Logs;
use weir_engine::{
    Ask, Delivered, DropReason, Forward, Outgoing, Port, PortCounters, Side, Taken, Watch, clock,
    lock, symmetric_hash,
};
use weir_fabric::PortId;
use weir_limits::QUEUE_PAIRS_MAX;
use weir_policy::moderation::GuestPoll;
use weir_policy::steering::{Mark, Receiver, Steering};
use weir_xen::vif::VifId;
use weir_xen::{EventChannel, Hypervisor};

use crate::control::Groups;
use crate::control::{self, Control, GuestHash};
use crate::link::Failures;
use crate::link::Link;
use crate::link::{StopReason, Stopped};
use crate::rx::{RxRing, has_taken};
use crate::tx::{Context, Sending, TxRing};

/// Parameters of a vif.
#[derive(Debug, Clone)]
pub struct XenOptions {
    /// The vif.
    pub vif: VifId,
    /// Most queue pairs that a driver may use, 1 to [`QUEUE_PAIRS_MAX`].
    pub queue_pairs: usize,
    /// The policy of calls to the guest.
    pub calls: CallPolicy,
}

/// Messages that a guest can cause again and again.
#[derive(Clone, Copy)]
pub(crate) enum Said {
    Connected,
    Disconnected,
    Stopped,
    Closed,
}

/// State of the connection for the statistics.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    pub(crate) connected: bool,
    pub(crate) stop_reason: Option<String>,
    pub(crate) stopped_ns: u64,
    pub(crate) opened: u64,
    pub(crate) closed: u64,
    pub(crate) failed: u64,
}

impl Shown {
    /// Notes the reason of a stop that was not orderly.
    pub(crate) fn note_stop(&mut self, reason: String) {
        (self.stop_reason, self.stopped_ns) = (Some(reason), clock::now_ns());
    }
}

/// A vif's queue pairs.
pub(crate) type Guest = Interface<Option<TxRing>, Option<RxRing>>;
pub(crate) type Pair = QueuePair<Option<TxRing>, Option<RxRing>>;

/// A vif of a Xen guest.
pub struct XenPort {
    pub(crate) vif: VifId,
    /// The vif's name in logs.
    name: String,
    /// Number of the port in the switch.
    id: PortId,
    pub(crate) hypervisor: Arc<dyn Hypervisor>,
    /// Fails when a worker finds the guest breaking the rules. Then nothing is served until a front
    /// end starts afresh.
    pub(crate) guest: Guest,
    /// By queue pair: set if the front end gave both rings one event channel.
    pub(crate) one_channel: [AtomicBool; QUEUE_PAIRS_MAX],
    pub(crate) groups: Groups,
    hash: GuestHash,
    pub(crate) control: Mutex<Option<Control>>,
    failures: Arc<Failures>,
    logs: Logs<4>,
    pub(crate) watches: Mutex<Vec<Watch>>,
    pub(crate) shown: Mutex<Shown>,
}

impl XenPort {
    /// Makes a vif whose front end is not connected.
    pub(crate) fn new(
        id: PortId,
        counters: Arc<PortCounters>,
        options: &XenOptions,
        hypervisor: Arc<dyn Hypervisor>,
        failures: Arc<Failures>,
    ) -> Self {
        Self {
            vif: options.vif,
            name: options.vif.to_string(),
            id,
            hypervisor,
            guest: Interface::new(options.queue_pairs, &options.calls, true, counters),
            one_channel: Default::default(),
            groups: Groups::default(),
            hash: GuestHash::default(),
            control: Mutex::default(),
            failures,
            logs: Logs::default(),
            watches: Mutex::default(),
            shown: Mutex::default(),
        }
    }

    /// Returns the port's counters.
    pub fn counters(&self) -> &PortCounters {
        self.guest.counters()
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.guest.has_failed()
    }

    /// Takes the vif from the guest, and reports it to the thread that follows xenstore. A ring's fault is reported
    /// under its queue's lock: later, the front end might have begun again, and would lose its new connection.
    pub(crate) fn stop(&self, reason: &StopReason) -> Stopped {
        if self.guest.fail() {
            let reason = reason.to_string();
            self.log(Said::Stopped, |unsaid| {
                tracing::warn!(vif = self.name, reason, unsaid, "interface stopped");
            });
            lock(&self.shown).note_stop(reason.clone());
            self.failures.report(self.vif, reason);
        }
        Stopped
    }

    /// Logs by `say`, which gets the number of earlier messages that were left out, unless such messages came too
    /// often.
    pub(crate) fn log(&self, said: Said, say: impl FnOnce(Option<u64>)) {
        self.logs.say(said as usize, say);
    }

    /// Returns the channel of the control ring, and true if it may hold requests without an event; `None` without a
    /// control ring.
    pub(crate) fn control(&self) -> Option<(Arc<dyn EventChannel>, bool)> {
        if self.has_failed() {
            return None;
        }
        lock(&self.control).as_ref().map(|control| (control.channel(), control.more))
    }

    /// Answers requests of the control ring.
    pub(crate) fn serve_control(&self) {
        let mut control = lock(&self.control);
        let Some(control) = control.as_mut().filter(|_| !self.has_failed()) else { return };
        if let Err(reason) = control.serve(&self.hash, self.guest.steering(), self) {
            self.stop(&reason);
        }
    }

    /// Restores weir's own steering.
    pub(crate) fn reset_hash(&self) {
        control::reset(&self.hash, self.guest.steering());
    }

    /// Drops old reports, once no part of the connection is in service.
    pub(crate) fn forget_failures(&self) {
        self.failures.forget(self.vif);
    }

    fn context(&self, index: usize) -> Context<'_> {
        Context { index, groups: &self.groups, hash: &self.hash, counters: self.counters() }
    }
}

impl Receiver for XenPort {
    fn mark(&self, queue: usize) -> Mark {
        // The mark needs no event: a 32-bit index shows its age by itself, since it takes long to wrap.
        let placed = |pair: &Pair| Mark { placed: lock(&pair.rx).placed(), event: None };
        self.guest.pair(queue).map_or(Mark::default(), placed)
    }

    fn has_taken(&self, queue: usize, placed: u64, _before: Mark) -> bool {
        self.guest.pair(queue).is_none_or(|pair| has_taken(&mut lock(&pair.rx), placed))
    }
}

/// The other functions have the trait's defaults: the number of queue pairs is in xenstore, weir
/// maps only granted pages, and a vif ends with its domain, which is not a process.
impl GuestPort for XenPort {
    fn id(&self) -> PortId {
        self.id
    }

    fn interface(&self) -> &dyn AnyInterface {
        &self.guest
    }

    fn info(&self) -> PortInfo {
        let shown = lock(&self.shown);
        let state = match (self.has_failed(), shown.connected) {
            (true, _) => State::Stopped,
            (false, true) => State::Running,
            (false, false) => State::Waiting,
        };
        PortInfo {
            state,
            stop_reason: shown.stop_reason.clone(),
            stopped_ns: shown.stopped_ns,
            opened: shown.opened,
            closed: shown.closed,
            failed: shown.failed,
            log_lines_unsaid: self.logs.unsaid(),
            ..PortInfo::default()
        }
    }

    fn set_guest_poll_ns(&self, poll_ns: Option<u64>) {
        // Linux's netfront asks for events while it polls. Under `frontend` they are held for the
        // interval, in which the guest mostly takes the frames by itself.
        self.guest.set_guest_poll(poll_ns.map(|every_ns| GuestPoll { every_ns, asks: true }));
    }
}

impl Port for XenPort {
    fn take(&self, queue: usize, ask: Ask, scratch: &mut Scratch, forward: Forward<'_>) -> Taken {
        let Some(pair) = self.guest.served(queue) else { return Taken::default() };
        let follows = self.rx_queues() > 1 && !self.guest.steering().is_given();
        let mut follow_and_forward = |burst: &mut Burst<'_>| {
            if follows {
                self.guest.follow(queue, burst, clock::secs(ask.now_ns), self);
            }
            forward(burst);
        };
        let source = Sending { port: self, index: queue };
        let taken = pair.tx.take(&source, ask, scratch, &mut follow_and_forward);
        taken.unwrap_or_else(|Stopped| Taken::default())
    }

    fn deliver(&self, queue: usize, burst: &Burst<'_>, frames: &[Outgoing]) -> Delivered {
        let all = Delivered { frames: frames.len(), ..Delivered::default() };
        let Some(pair) = self.guest.served(queue) else {
            self.counters().dropped(DropReason::RxNotReady, frames.len() as u64);
            return all;
        };
        self.fill(pair, self.context(queue), burst, frames).unwrap_or(all)
    }

    fn expired(&self, queue: usize, side: Side, by_ns: u64) -> Option<u64> {
        // With a channel for each ring, netfront's handler for received frames frees no transmitted
        // ones.
        self.guest.expired(queue, side, by_ns, || self.has_one_kick(queue))
    }

    fn peek_tx(&self, queue: usize) -> bool {
        // A fault of the ring shows when it is served.
        self.guest
            .served(queue)
            .is_some_and(|pair| pair.tx.lock().queue.as_mut().is_some_and(TxRing::peek))
    }

    fn share_tx(&self, queue: usize, on: bool) -> bool {
        let Some(pair) = self.guest.pair(queue) else { return false };
        pair.tx.set_side_by_side(on);
        true
    }

    fn copies_remote(&self) -> bool {
        true
    }

    fn wait_ns_max(&self) -> u64 {
        self.guest.wait_ns_max()
    }

    fn arm_tx(&self, queue: usize) -> bool {
        let Some(pair) = self.guest.served(queue) else { return false };
        let mut tx = pair.tx.lock();
        let armed = tx.queue.as_mut().map_or(Ok(false), TxRing::arm);
        armed.map_err(|error| self.stop(&StopReason::tx(queue)(error))).unwrap_or(false)
    }

    fn kicked(&self, queue: usize, side: Side) {
        let Some(pair) = self.guest.pair(queue) else { return };
        let acknowledge = |link: &Link| {
            if let Err(error) = link.acknowledge() {
                self.stop(&StopReason::Internal(format!("queue {queue}: event channel: {error}")));
            }
        };
        match side {
            Side::Tx => {
                self.counters().tx[queue].kicks.add(1);
                if let Some(ring) = &pair.tx.lock().queue {
                    acknowledge(&ring.link);
                }
            }
            Side::Rx => {
                self.counters().rx[queue].kicks.add(1);
                if let Some(ring) = &lock(&pair.rx).queue {
                    acknowledge(&ring.link);
                }
            }
        }
    }

    fn has_one_kick(&self, queue: usize) -> bool {
        self.one_channel.get(queue).is_some_and(|one| one.load(Ordering::Relaxed))
    }

    fn rx_queues(&self) -> usize {
        self.guest.rx_queues()
    }

    fn steering(&self) -> Option<&Steering> {
        Some(self.guest.steering())
    }

    fn flow_hash(&self, head: &[u8]) -> u32 {
        self.hash.entry(head).unwrap_or_else(|| symmetric_hash(head))
    }

    fn fail(&self, reason: &str) {
        self.stop(&StopReason::Internal(reason.to_owned()));
    }
}

impl std::fmt::Debug for XenPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("XenPort").field("vif", &self.name).field("id", &self.id).finish()
    }
}
