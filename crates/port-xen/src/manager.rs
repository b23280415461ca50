//! The thread that follows xenstore for all vifs: it attaches, connects and lets go of them.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use weir_engine::{Engine, PortCounters, lock};
use weir_fabric::PortId;
use weir_xen::store::{Client, StoreError};
use weir_xen::vif::{FrontKeys, Offer, Serve, VifId, VifKeys, Vifs};
use weir_xen::{EventChannel, Hypervisor};

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
    pub(crate) hypervisor: Arc<dyn Hypervisor>,
    pub(crate) failures: Arc<Failures>,
}

impl Services {
    /// A port for a vif.
    pub fn port(
        &self,
        id: PortId,
        counters: Arc<PortCounters>,
        options: &XenOptions,
    ) -> Arc<XenPort> {
        Arc::new(XenPort::new(id, counters, options, self))
    }
}

/// Vifs that workers have stopped, and what wakes the thread.
pub(crate) struct Failures {
    wake: OwnedFd,
    stopping: AtomicBool,
    reports: Mutex<Vec<(VifId, String)>>,
}

impl Failures {
    fn new() -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { wake, stopping: AtomicBool::new(false), reports: Mutex::default() })
    }

    /// A guest has lost its vif.
    pub(crate) fn report(&self, vif: VifId, reason: String) {
        lock(&self.reports).push((vif, reason));
        self.wake();
    }

    fn wake(&self) {
        // A full counter means that the thread will wake anyway.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

/// The thread. Dropping it lets go of all vifs; their front ends stay as they are, for the next weir.
pub struct Manager {
    failures: Arc<Failures>,
    thread: Option<JoinHandle<()>>,
}

impl Manager {
    /// Starts the thread on a connection to xenstore. With `split_event_channels` guests may have a channel for
    /// each ring, and otherwise one for both rings of a queue.
    ///
    /// # Errors
    /// [`StoreError`]: xenstore, a thread or a descriptor cannot be had.
    pub fn start<S>(
        engine: Arc<Engine>,
        hypervisor: Arc<dyn Hypervisor>,
        client: Client<S>,
        board: impl Board + 'static,
        split_event_channels: bool,
    ) -> Result<Self, StoreError>
    where
        S: Read + Write + AsFd + Send + 'static,
    {
        let failures = Arc::new(Failures::new()?);
        let vifs = Vifs::new(client)?;
        let services = Services { hypervisor, failures: Arc::clone(&failures) };
        let thread = std::thread::Builder::new().name("weir-xen".into()).spawn(move || {
            let ports = BTreeMap::new();
            let mut ports = Ports { engine, board, services, split_event_channels, ports };
            let failures = Arc::clone(&ports.services.failures);
            if let Err(error) = follow(vifs, &mut ports, &failures) {
                tracing::error!(%error, "no vif is attached or detached any more");
                // Those that are connected go on.
                while !failures.stopping.load(Ordering::Acquire) {
                    wait(&mut [PollFd::new(&failures.wake, PollFlags::IN)], None);
                    let _ = rustix::io::read(&failures.wake, &mut [0; 8]);
                }
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

/// Does what xenstore and workers ask for, until weir ends.
fn follow<S: Read + Write + AsFd>(
    mut vifs: Vifs<S>,
    ports: &mut Ports<impl Board>,
    failures: &Failures,
) -> Result<(), StoreError> {
    const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
    while !failures.stopping.load(Ordering::Acquire) {
        let mut more = vifs.poll(ports)?;
        for (vif, reason) in std::mem::take(&mut *lock(&failures.reports)) {
            vifs.fail(vif, &reason, ports)?;
            more |= vifs.client().fired() > 0;
        }
        let controls = ports.controls();
        more |= controls.iter().any(|control| control.more);
        let store = {
            let mut fds = vec![
                PollFd::from_borrowed_fd(vifs.client().as_fd(), PollFlags::IN),
                PollFd::new(&failures.wake, PollFlags::IN),
            ];
            fds.extend(controls.iter().map(ControlRing::poll_fd));
            wait(&mut fds, more.then_some(&NOW));
            let mut fired = fds.iter().map(|fd| !fd.revents().is_empty());
            let store = fired.next().is_some_and(|store| store);
            if fired.next().is_some_and(|wake| wake) {
                let _ = rustix::io::read(&failures.wake, &mut [0; 8]);
            }
            for (control, fired) in controls.iter().zip(fired) {
                if fired || control.more {
                    control.port.serve_control();
                }
            }
            store
        };
        if store {
            vifs.receive()?;
        }
    }
    Ok(())
}

fn wait(fds: &mut [PollFd<'_>], timeout: Option<&Timespec>) {
    // EINTR is no event; anything else that poll can say is a programming error that would show as a
    // thread that does nothing.
    let _ = poll(fds, timeout);
}

/// The ports of all vifs that are attached.
struct Ports<B> {
    engine: Arc<Engine>,
    board: B,
    services: Services,
    split_event_channels: bool,
    ports: BTreeMap<VifId, Arc<XenPort>>,
}

/// The control ring of a vif that has one.
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
        let queues_max = u32::try_from(port.queue_pairs()).unwrap_or(1);
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
