//! The thread that follows xenstore for all vifs: it attaches, connects and lets go of them.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use weir_engine::guest::GuestPort;
use weir_engine::{Engine, PortCounters, beat, lock, supervise};
use weir_fabric::PortId;
use weir_limits::XENSTORE_PAUSE_NS;
use weir_xen::store::{Client, StoreError};
use weir_xen::vif::{FrontKeys, Offer, Serve, VifId, VifKeys, Vifs};
use weir_xen::{EventChannel, Hypervisor};

use crate::failures::Failures;
use crate::port::{XenOptions, XenPort};

/// What the switch does with vifs.
pub trait Board: Send {
    /// The toolstack has attached a vif: puts a port for it, made by `services`, on the switch. `None`
    /// leaves the vif to another back end.
    fn attach(&mut self, vif: VifId, keys: &VifKeys, services: &Services) -> Option<Arc<XenPort>>;

    /// It has detached one, whose rings are let go of: takes the port off the switch.
    fn detach(&mut self, vif: VifId, port: &XenPort);
}

/// What ports need of the thread, and of Xen.
#[derive(Clone)]
pub struct Services {
    hypervisor: Arc<dyn Hypervisor>,
    failures: Arc<Failures>,
}

impl Services {
    /// A port for a vif.
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

/// The thread. Dropping it lets go of all vifs; their front ends stay as they are, for the next weir.
pub struct Manager {
    failures: Arc<Failures>,
    thread: Option<JoinHandle<()>>,
}

impl Manager {
    /// Starts the thread on a connection to xenstore, by `connect`, as each time that one breaks. With
    /// `split_event_channels` guests may have a channel for each ring, and otherwise one for both rings of a queue.
    ///
    /// # Errors
    /// [`StoreError`]: xenstore, a thread or a descriptor cannot be had.
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
            let mut ports = Ports { engine, board, services, split_event_channels, ports };
            let failures = Arc::clone(&ports.services.failures);
            let mut broken = false;
            let returned = supervise(name, || {
                // One that panicked may have left a request without its answer.
                while !broken || reconnect(&mut vifs, &connect, &mut ports, &failures) {
                    broken = true;
                    let Err(error) = follow(&mut vifs, &mut ports, &failures) else { return };
                    tracing::error!(%error, "lost xenstore; vifs cannot be attached or detached until it returns");
                }
            });
            // Those that are connected go on.
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
            // A board may hold the last reference to what owns this.
            && thread.thread().id() != std::thread::current().id()
        {
            // One that panicked has said so on standard error.
            let _ = thread.join();
        }
    }
}

/// Connects to xenstore again, however long that takes. Those who are connected go on meanwhile. `false`: weir ends.
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

/// Does what xenstore and workers ask for, until weir ends.
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
            // Out of the list: one that weir panics over is not met again.
            let (vif, reason) = reports.remove(0);
            drop(reports);
            if let Err(error) = vifs.fail(vif, &reason, ports) {
                // The guest has its vif until there is a connection again.
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

/// Waits for xenstore, workers and control rings, for so long at most, and serves these. Says whether there is
/// something of xenstore.
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
    // EINTR is no event; anything else that poll can say is a programming error that would show as a
    // thread that does nothing.
    let _ = beat::wait(|| poll(fds, timeout));
}

/// The ports of all vifs that are attached.
struct Ports<B> {
    engine: Arc<Engine>,
    board: B,
    services: Services,
    split_event_channels: bool,
    ports: BTreeMap<VifId, Arc<XenPort>>,
}

struct ControlRing {
    port: Arc<XenPort>,
    channel: Arc<dyn EventChannel>,
    /// It may hold requests that no event tells of.
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

    /// Lets go of all rings.
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
        tracing::info!(%vif, queues = front.queues.len(), "front end connected");
        Ok(())
    }

    fn disconnect(&mut self, vif: VifId) {
        if let Some(port) = self.ports.get(&vif) {
            port.disconnect(&self.engine);
            tracing::info!(%vif, "front end disconnected");
        }
    }

    fn forget(&mut self, vif: VifId) {
        if let Some(port) = self.ports.remove(&vif) {
            self.board.detach(vif, &port);
        }
    }
}
