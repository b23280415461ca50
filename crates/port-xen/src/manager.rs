//! The thread that follows xenstore for all vifs: it attaches, connects and releases them.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use weir_engine::guest::GuestPort;
use weir_engine::logs::Logs;
use weir_engine::{Engine, PortCounters, beat, lock, supervise};
use weir_fabric::PortId;
use weir_limits::XENSTORE_PAUSE_NS;
use weir_xen::store::{Client, StoreError};
use weir_xen::vif::{FrontKeys, Offer, Serve, VifId, VifKeys, Vifs};
use weir_xen::{EventChannel, Hypervisor};

use crate::link::Failures;
use crate::port::{Said, XenOptions, XenPort};

/// The switch's part.
pub trait Board: Send {
    /// Handles a vif that the toolstack has attached: puts a port for it, made by `services`, on
    /// the switch. Returns `None` to leave the vif to another back end.
    fn attach(&mut self, vif: VifId, keys: &VifKeys, services: &Services) -> Option<Arc<XenPort>>;

    /// Handles a detached vif, whose rings are released: takes the port off the switch.
    fn detach(&mut self, vif: VifId, port: &XenPort);
}

/// Services of the thread and of Xen for ports.
#[derive(Clone)]
pub struct Services {
    hypervisor: Arc<dyn Hypervisor>,
    failures: Arc<Failures>,
}

impl Services {
    /// Makes the port of a vif.
    pub fn port(
        &self,
        id: PortId,
        counters: Arc<PortCounters>,
        options: &XenOptions,
    ) -> Arc<XenPort> {
        let (hypervisor, failures) = (Arc::clone(&self.hypervisor), Arc::clone(&self.failures));
        Arc::new(XenPort::new(id, counters, options, hypervisor, failures))
    }
}

/// The thread. Dropping it releases all vifs. Their front ends stay as they are, for the next weir.
pub struct Manager {
    failures: Arc<Failures>,
    thread: Option<JoinHandle<()>>,
}

impl Manager {
    /// Starts the thread on a connection to xenstore. `connect` makes this connection, and a new
    /// one whenever it breaks. With `split_event_channels` guests may have a channel for each ring,
    /// otherwise one for both rings of a queue.
    ///
    /// # Errors
    /// [`StoreError`]: xenstore, a thread or a descriptor is not available.
    pub fn start<S>(
        engine: Arc<Engine>,
        hypervisor: Arc<dyn Hypervisor>,
        connect: impl Fn() -> io::Result<Client<S>> + Send + 'static,
        board: impl Board + 'static,
        split_event_channels: bool,
    ) -> Result<Self, StoreError>
    where
        S: Read + Write + AsFd + Send + 'static,
    {
        let failures = Arc::new(Failures::new()?);
        let mut vifs = Vifs::new(connect()?)?;
        let services = Services { hypervisor, failures: Arc::clone(&failures) };
        let name = "weir-xen";
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
            let ports = BTreeMap::new();
            let refusals = Logs::default();
            let mut ports =
                Ports { engine, board, services, split_event_channels, ports, refusals };
            let failures = Arc::clone(&ports.services.failures);
            let mut broken = false;
            let returned = supervise(name, || {
                // A connection that panicked may have a request without its answer.
                while !broken || reconnect(&mut vifs, &connect, &mut ports, &failures) {
                    broken = true;
                    let Err(error) = follow(&mut vifs, &mut ports, &failures) else { return };
                    tracing::error!(%error, "lost xenstore; vifs cannot be attached or detached until it returns");
                }
            });
            // Connected vifs continue.
            while !returned && !failures.stopping.load(Ordering::Acquire) {
                wait(&mut [PollFd::new(&failures.wake, PollFlags::IN)], None);
                let _ = rustix::io::read(&failures.wake, &mut [0; 8]);
            }
            ports.release();
        })?;
        Ok(Self { failures, thread: Some(thread) })
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.failures.stopping.store(true, Ordering::Release);
        self.failures.wake();
        if let Some(thread) = self.thread.take()
            // A board may hold the last reference to the owner of this manager.
            && thread.thread().id() != std::thread::current().id()
        {
            // A panic has been reported on standard error.
            let _ = thread.join();
        }
    }
}

/// Connects to xenstore again, however long it takes. Connected vifs continue meanwhile. Returns
/// `false` if weir ends.
fn reconnect<S: Read + Write + AsFd>(
    vifs: &mut Vifs<S>,
    connect: impl Fn() -> io::Result<Client<S>>,
    ports: &mut Ports<impl Board>,
    failures: &Failures,
) -> bool {
    let pause = Duration::from_nanos(XENSTORE_PAUSE_NS);
    let mut at = Instant::now() + pause;
    while !failures.stopping.load(Ordering::Acquire) {
        let left = at.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            attend(ports, failures, None, Timespec::try_from(left).ok().as_ref());
            continue;
        }
        let client = connect().map_err(StoreError::from);
        match client.and_then(|client| vifs.reconnect(client, ports)) {
            Ok(()) => {
                tracing::info!("connected to xenstore again");
                return true;
            }
            Err(error) => tracing::debug!(%error, "no xenstore yet"),
        }
        at = Instant::now() + pause;
    }
    false
}

/// Handles events of xenstore and reports of workers, until weir ends.
fn follow<S: Read + Write + AsFd>(
    vifs: &mut Vifs<S>,
    ports: &mut Ports<impl Board>,
    failures: &Failures,
) -> Result<(), StoreError> {
    while !failures.stopping.load(Ordering::Acquire) {
        let mut more = vifs.poll(ports)?;
        loop {
            let mut reports = lock(&failures.reports);
            if reports.is_empty() {
                break;
            }
            // The report is removed first, so that weir does not panic over it twice.
            let (vif, reason) = reports.remove(0);
            drop(reports);
            if let Err(error) = vifs.fail(vif, &reason, ports) {
                // The guest keeps its vif until there is a connection again.
                lock(&failures.reports).insert(0, (vif, reason));
                return Err(error);
            }
            more |= vifs.client().fired() > 0;
        }
        let store = Some(vifs.client().as_fd());
        if attend(ports, failures, store, more.then_some(&NOW)) {
            vifs.receive()?;
        }
    }
    Ok(())
}

const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// Waits up to `timeout` for xenstore, workers and control rings, and serves the last two. Returns `true` if xenstore
/// has a message.
fn attend(
    ports: &Ports<impl Board>,
    failures: &Failures,
    store: Option<BorrowedFd<'_>>,
    timeout: Option<&Timespec>,
) -> bool {
    let controls = ports.controls();
    let more = controls.iter().any(|control| control.more);
    let mut fds = vec![PollFd::new(&failures.wake, PollFlags::IN)];
    fds.extend(controls.iter().map(ControlRing::poll_fd));
    fds.extend(store.map(|store| PollFd::from_borrowed_fd(store, PollFlags::IN)));
    wait(&mut fds, if more { Some(&NOW) } else { timeout });
    let mut fired = fds.iter().map(|fd| !fd.revents().is_empty());
    if fired.next().is_some_and(|wake| wake) {
        let _ = rustix::io::read(&failures.wake, &mut [0; 8]);
    }
    for (control, fired) in controls.iter().zip(fired.by_ref()) {
        if fired || control.more {
            control.port.serve_control();
        }
    }
    fired.next().is_some_and(|store| store)
}

fn wait(fds: &mut [PollFd<'_>], timeout: Option<&Timespec>) {
    // EINTR is no event. Any other error of poll is a programming error, which would show as an
    // idle thread.
    let _ = beat::wait(|| poll(fds, timeout));
}

/// The ports of all attached vifs.
struct Ports<B> {
    engine: Arc<Engine>,
    board: B,
    services: Services,
    split_event_channels: bool,
    ports: BTreeMap<VifId, Arc<XenPort>>,
    /// A guest can make its part of xenstore so full that it refuses weir's requests.
    refusals: Logs<1>,
}

struct ControlRing {
    port: Arc<XenPort>,
    channel: Arc<dyn EventChannel>,
    /// The control ring may hold requests without an event.
    more: bool,
}

impl ControlRing {
    fn poll_fd(&self) -> PollFd<'_> {
        PollFd::from_borrowed_fd(self.channel.fd(), PollFlags::IN)
    }
}

impl<B> Ports<B> {
    fn controls(&self) -> Vec<ControlRing> {
        let control = |port: &Arc<XenPort>| {
            let (channel, more) = port.control()?;
            Some(ControlRing { port: Arc::clone(port), channel, more })
        };
        self.ports.values().filter_map(control).collect()
    }

    /// Releases all rings.
    fn release(&self) {
        for port in self.ports.values() {
            port.disconnect(&self.engine);
        }
    }
}

impl<B: Board> Serve for Ports<B> {
    fn offer(&mut self, vif: VifId, keys: &VifKeys) -> Option<Offer> {
        let port = self.board.attach(vif, keys, &self.services)?;
        let queues_max = u32::try_from(port.interface().queue_pairs()).unwrap_or(1);
        self.ports.insert(vif, port);
        Some(Offer {
            queues_max,
            sg: true,
            gso_tcpv4: true,
            gso_tcpv6: true,
            ipv6_csum_offload: true,
            split_event_channels: self.split_event_channels,
            multicast_control: true,
            ctrl_ring: true,
        })
    }

    fn connect(&mut self, vif: VifId, _: &VifKeys, front: &FrontKeys) -> Result<(), String> {
        let port = self.ports.get(&vif).ok_or("it was not offered")?;
        port.connect(&self.engine, front).map_err(|reason| reason.to_string())?;
        port.log(Said::Connected, |unsaid| {
            tracing::info!(%vif, queues = front.queues.len(), unsaid, "front end connected");
        });
        Ok(())
    }

    fn disconnect(&mut self, vif: VifId) {
        if let Some(port) = self.ports.get(&vif) {
            port.disconnect(&self.engine);
            port.log(Said::Disconnected, |unsaid| {
                tracing::info!(%vif, unsaid, "front end disconnected");
            });
        }
    }

    fn closed(&mut self, vif: VifId, reason: &str) {
        if let Some(port) = self.ports.get(&vif) {
            port.log(Said::Closed, |unsaid| {
                tracing::warn!(%vif, reason, unsaid, "interface closed");
            });
        }
    }

    fn refused(&mut self, error: &StoreError) {
        self.refusals.say(0, |unsaid| {
            tracing::warn!(%error, unsaid, "xenstore refused a request");
        });
    }

    fn forget(&mut self, vif: VifId) {
        if let Some(port) = self.ports.remove(&vif) {
            self.board.detach(vif, &port);
        }
    }
}
