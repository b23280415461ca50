//! A machine with weir on it and guests, for tests.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use weir_engine::guest::{CallPolicy, GuestPort, State};
use weir_engine::{DropReason, Engine, QueueRef, Side, lock};
use weir_fabric::PortConfig;
use weir_policy::moderation::Kind;
use weir_xen::testing::Host;
use weir_xen::vif::{VifId, VifKeys, XenbusState};
use weir_xen::{DomainId, Hypervisor};

use super::{Connect, Netfront, Received};
use crate::{Board, Manager, Services, XenOptions, XenPort};

/// Ports by their vifs.
pub type PortMap = Arc<Mutex<BTreeMap<VifId, Arc<XenPort>>>>;

/// Puts every vif on an engine.
struct Plug {
    engine: Arc<Engine>,
    calls: CallPolicy,
    ports: PortMap,
}

impl Board for Plug {
    fn attach(&mut self, vif: VifId, _: &VifKeys, services: &Services) -> Option<Arc<XenPort>> {
        let options = XenOptions { vif, queue_pairs: 4, calls: self.calls };
        let make = |id, counters| services.port(id, counters, &options);
        let (_, port) = self.engine.add_port(PortConfig::vif(), make).ok()?;
        lock(&self.ports).insert(vif, Arc::clone(&port));
        Some(port)
    }

    fn detach(&mut self, vif: VifId, port: &XenPort) {
        lock(&self.ports).remove(&vif);
        self.engine.remove_port(port.id());
    }
}

/// A machine with weir on it.
pub struct Bench {
    /// The machine.
    pub host: Host,
    /// The switch.
    pub engine: Arc<Engine>,
    /// Ports on the switch.
    pub ports: PortMap,
    /// weir's thread for vifs. Dropped last.
    pub manager: Option<Manager>,
}

/// The first vif of a domain.
pub const fn vif(domain: u16) -> VifId {
    VifId { domain: DomainId(domain), handle: 0 }
}

/// Returns the address of the first vif of a domain.
pub fn mac(domain: u16) -> [u8; 6] {
    [2, 0, 0, 0, 0, domain as u8]
}

/// Builds a frame from one domain to another, or to everybody (0xff).
pub fn frame(from: u16, to: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = if to == 0xff { vec![0xff; 6] } else { mac(to).into() };
    frame.extend(mac(from));
    frame.extend([0x88, 0xb5]); // IEEE 802 local experimental
    frame.extend(payload);
    frame
}

impl Default for Bench {
    fn default() -> Self {
        Self::new()
    }
}

impl Bench {
    /// Starts weir with a call for each frame.
    pub fn new() -> Self {
        Self::with(CallPolicy::within(Kind::Immediate, 250_000))
    }

    /// Starts weir with this policy.
    pub fn with(calls: CallPolicy) -> Self {
        Self::on(Host::new(), calls)
    }

    /// Starts weir on a machine.
    ///
    /// # Panics
    /// If there are no threads or descriptors.
    pub fn on(host: Host, calls: CallPolicy) -> Self {
        let hypervisor = Arc::new(host.clone());
        Self::through(host, hypervisor, calls)
    }

    /// Starts weir on a machine, with access to Xen through `hypervisor`.
    ///
    /// # Panics
    /// As [`on`](Self::on).
    pub fn through(host: Host, hypervisor: Arc<dyn Hypervisor>, calls: CallPolicy) -> Self {
        let engine = Engine::start(2).expect("threads");
        let ports = PortMap::default();
        let board = Plug { engine: Arc::clone(&engine), calls, ports: Arc::clone(&ports) };
        let follows = host.clone();
        let connect = move || Ok(follows.client());
        let manager = Manager::start(Arc::clone(&engine), hypervisor, connect, board, true)
            .expect("a thread");
        remember(&engine, &ports);
        Self { host, engine, ports, manager: Some(manager) }
    }

    /// Waits for the port of a domain's vif.
    ///
    /// # Panics
    /// If there never is one.
    pub fn port(&self, domain: u16) -> Arc<XenPort> {
        eventually("the vif is found", || lock(&self.ports).contains_key(&vif(domain)));
        Arc::clone(&lock(&self.ports)[&vif(domain)])
    }

    /// Makes a guest whose vif is attached, and not connected.
    pub fn attached(&self, domain: u16) -> Netfront {
        self.host.attach(DomainId(domain), 0, "02:00:00:00:00:01", "br0");
        Netfront::new(&self.host, vif(domain))
    }

    /// Makes a guest whose vif is in service.
    pub fn guest(&self, domain: u16, how: Connect) -> Netfront {
        let mut front = self.attached(domain);
        self.connect(&mut front, domain, how);
        front
    }

    /// Connects an attached guest.
    ///
    /// # Panics
    /// If weir does not serve it.
    pub fn connect(&self, front: &mut Netfront, domain: u16, how: Connect) {
        let waits = || front.back_state() == Some(XenbusState::InitWait);
        eventually("weir has said what it can do", waits);
        front.connect(how);
        let connected = || front.back_state() == Some(XenbusState::Connected);
        eventually("the vif is connected", connected);
        assert_eq!(self.port(domain).info().state, State::Running);
        self.settle();
    }

    /// Waits for the end of bursts that began before a vif or a filter was there, so that new
    /// frames meet it.
    ///
    /// # Panics
    /// If a burst never ends.
    pub fn settle(&self) {
        let ports: Vec<_> = lock(&self.ports).values().map(Arc::clone).collect();
        for port in ports {
            let Some(worker) = self.engine.worker_of(port.id(), 0) else { continue };
            let nudges = || self.engine.workers()[worker].nudges;
            let before = nudges();
            let queue = QueueRef { port: port.id(), queue: 0, side: Side::Tx };
            self.engine.nudge(queue);
            // A worker reads messages between two bursts.
            eventually("its worker is told", || {
                nudges() > before || port.info().state != State::Running
            });
        }
    }

    /// Makes two guests, domains 1 and 2.
    pub fn pair(&self, how: Connect) -> (Netfront, Netfront) {
        (self.guest(1, how), self.guest(2, how))
    }

    /// Returns true if a frame was dropped because its receiver had no buffers for too long.
    fn has_waited_in_vain(&self) -> bool {
        let reasons = [DropReason::RxWaitedTooLong, DropReason::RxRingFull].map(DropReason::as_str);
        let ports = lock(&self.ports);
        let mut drops = ports.values().flat_map(|port| port.counters().drops());
        drops.any(|(name, count)| count > 0 && reasons.contains(&name))
    }

    /// Returns how many frames the domain's port dropped for a reason.
    pub fn dropped(&self, domain: u16, reason: &str) -> u64 {
        let port = self.port(domain);
        port.counters().drops().find(|(name, _)| *name == reason).map_or(0, |(_, count)| count)
    }
}

/// Waits for an action of another thread, with a bound for failing tests.
///
/// # Panics
/// If the event never happens.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    for looks in 0_u32.. {
        if holds() {
            return;
        }
        assert!(Instant::now() < end, "never happened: {what}\n{}", text());
        // This mostly takes microseconds, and a fuzzer waits a hundred times for an input.
        match looks {
            0..50 => std::thread::yield_now(),
            _ => std::thread::sleep(Duration::from_micros(200)),
        }
    }
}

/// Waits until the first queue's frames are delivered or dropped.
///
/// # Panics
/// If a request is never answered.
pub fn all_is_answered(front: &mut Netfront) {
    eventually("all is answered", || {
        let queue = &mut front.queues[0];
        queue.answers();
        queue.tx.ring().free() == queue.tx.ring().size()
    });
}

/// Runs a scenario in which frames wait for a receiver, and repeats it if this machine was too
/// slow. A frame is dropped when it, or its receiver, has waited for
/// [`PARKED_NS_MAX`](weir_limits::PARKED_NS_MAX). No scenario intends this, and counters show it.
///
/// # Panics
/// If the scenario fails for another reason, or each time.
pub fn while_frames_wait(scenario: impl Fn(&Bench)) {
    const ATTEMPTS: usize = 20;
    for attempt in 1..=ATTEMPTS {
        let bench = Bench::new();
        let played = catch_unwind(AssertUnwindSafe(|| scenario(&bench)));
        match played {
            Ok(()) => return,
            Err(_) if bench.has_waited_in_vain() && attempt < ATTEMPTS => {}
            Err(failure) => resume_unwind(failure),
        }
    }
}

/// Waits for the next packet of a queue.
///
/// # Panics
/// If none comes.
pub fn receive(front: &mut Netfront, queue: usize) -> Received {
    let mut received = None;
    eventually("a packet comes", || {
        received = front.receive(queue);
        received.is_some()
    });
    received.expect("it came")
}

type WeakPorts = Weak<Mutex<BTreeMap<VifId, Arc<XenPort>>>>;

thread_local! {
    /// The engine that this thread has started last.
    static LAST: RefCell<(Weak<Engine>, WeakPorts)> = RefCell::default();
}

/// Makes `engine` the subject of [`text`].
pub(super) fn remember(engine: &Arc<Engine>, ports: &PortMap) {
    LAST.set((Arc::downgrade(engine), Arc::downgrade(ports)));
}

/// Describes workers, rings and drops.
pub(super) fn text() -> String {
    let mut text = String::new();
    let (engine, ports) = LAST.with_borrow(|(engine, ports)| (engine.upgrade(), ports.upgrade()));
    if let (Some(engine), Some(ports)) = (engine, ports) {
        // Writing to a string cannot fail.
        let _ = write_all(&mut text, &engine, &ports);
    }
    text
}

fn write_all(text: &mut String, engine: &Engine, ports: &PortMap) -> fmt::Result {
    writeln!(text, "{:?}", engine.workers())?;
    for port in lock(ports).values() {
        writeln!(text, "{port:?}, {:?}", port.info().state)?;
        let counters = port.counters();
        for (queue, pair) in port.guest.pairs().enumerate() {
            let worker = engine.worker_of(port.id(), queue);
            let [tx, rx] = [&counters.tx, &counters.rx].map(|of| of.get(queue));
            let counts = [tx, rx].map(|of| of.map(|of| (of.kicks.get(), of.frames.get())));
            writeln!(text, "  queue {queue} of worker {worker:?}, (kicks, frames) {counts:?}")?;
            // A lock that is held for ever may be the fault in question, so it is not waited for.
            writeln!(text, "    {:?}\n    {:?}", pair.tx, pair.rx)?;
        }
        let parked = counters.parked.get();
        let drops: Vec<_> = counters.drops().filter(|(_, count)| *count > 0).collect();
        writeln!(text, "  parked {parked}, dropped {drops:?}")?;
    }
    Ok(())
}
