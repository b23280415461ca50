//! Connects a front end's rings and channels, and releases them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use weir_engine::guest::GuestPort;
use weir_engine::queue::stop;
use weir_engine::{Engine, QueueRef, Side, Watch, lock};
use weir_guestmem::Window;
use weir_netif::{CtrlBack, FrontFeatures, RxBack, TxBack};
use weir_xen::vif::{FrontKeys, QueueKeys, RingKeys};

use crate::control::Control;
use crate::link::Link;
use crate::link::{Ring, StopReason};
use crate::port::XenPort;
use crate::rx::{RxRing, Takes};
use crate::tx::{self, Sending, TxRing};

/// One queue's rings, not in service yet.
struct Rings {
    tx: TxRing,
    rx: RxRing,
}

impl Ring {
    fn map(self, port: &XenPort, keys: RingKeys) -> Result<Window, StopReason> {
        let map = port.hypervisor.map(port.vif.domain, keys.reference);
        let reference = keys.reference.0;
        let map = map.map_err(|error| StopReason::Map { ring: self, reference, error })?;
        Ok(Window::over(Arc::new(map)))
    }

    fn link(self, port: &XenPort, keys: RingKeys) -> Result<Link, StopReason> {
        let domain = port.vif.domain;
        let channel = port.hypervisor.bind(domain, keys.port);
        let remote = keys.port.0;
        let channel =
            channel.map_err(|error| StopReason::Bind { ring: self, port: remote, error })?;
        let hypervisor = Arc::clone(&port.hypervisor);
        Ok(Link { domain, hypervisor, channel: channel.into() })
    }

    fn setup(self) -> impl Fn(weir_netif::SetupError) -> StopReason {
        move |error| StopReason::Setup { ring: self, error }
    }

    fn resources(self) -> impl Fn(io::Error) -> StopReason {
        move |error| StopReason::Resources { ring: self, error }
    }
}

impl Rings {
    fn take(
        port: &XenPort,
        queue: usize,
        keys: QueueKeys,
        takes: Takes,
    ) -> Result<Self, StopReason> {
        let ring = Ring::Transmit(queue);
        let window = ring.map(port, keys.tx)?;
        let link = ring.link(port, keys.tx)?;
        let back = TxBack::attach(window).map_err(ring.setup())?;
        let tx = TxRing::new(back, link).map_err(ring.resources())?;
        let ring = Ring::Receive(queue);
        let window = ring.map(port, keys.rx)?;
        let link = match keys.rx.port == keys.tx.port {
            true => tx.link.clone(),
            false => ring.link(port, keys.rx)?,
        };
        let back = RxBack::attach(window).map_err(ring.setup())?;
        let rx = RxRing::new(back, link, takes).map_err(ring.resources())?;
        Ok(Self { tx, rx })
    }
}

fn take_control(port: &XenPort, keys: RingKeys, queues: usize) -> Result<Control, StopReason> {
    let ring = Ring::Control;
    let window = ring.map(port, keys)?;
    let link = ring.link(port, keys)?;
    let back = CtrlBack::attach(window).map_err(ring.setup())?;
    Control::new(back, link, queues).map_err(ring.resources())
}

impl XenPort {
    /// Maps the rings of a front end, binds its channels, and serves them.
    ///
    /// # Errors
    /// [`StopReason`]. No ring stays mapped, and no channel stays bound.
    pub fn connect(&self, engine: &Engine, front: &FrontKeys) -> Result<(), StopReason> {
        let connected = self.try_connect(engine, front);
        let mut shown = lock(&self.shown);
        match &connected {
            Ok(()) => {
                shown.connected = true;
                shown.opened += 1;
            }
            Err(reason) => {
                shown.failed += 1;
                shown.note_stop(reason.to_string());
            }
        }
        connected
    }

    fn try_connect(&self, engine: &Engine, front: &FrontKeys) -> Result<(), StopReason> {
        let features = FrontFeatures {
            csum_v4: front.ip_csum_offload,
            csum_v6: front.ipv6_csum_offload,
            sg: front.sg,
            gso_tcpv4: front.gso_tcpv4,
            gso_tcpv6: front.gso_tcpv6,
        };
        let takes = Takes { caps: features.caps(), sg: front.sg };
        let queues = front.queues.iter().enumerate();
        let rings: Vec<Rings> = queues
            .map(|(queue, keys)| Rings::take(self, queue, *keys, takes))
            .collect::<Result<_, _>>()?;
        let queues = front.queues.len();
        let control = front.ctrl.map(|keys| take_control(self, keys, queues)).transpose()?;
        self.guest.clear_failure();
        *lock(&self.control) = control;
        self.groups.reset(front.multicast_control);
        let mut kicks = Vec::new();
        for (queue, (pair, Rings { tx, rx })) in self.guest.pairs().zip(rings).enumerate() {
            let kick = |link: &Link, side| {
                let id = QueueRef { port: self.id(), queue, side };
                link.channel.fd().try_clone_to_owned().map(|fd| (id, fd))
            };
            // Reading an event consumes it, so one channel for both rings cannot be watched for
            // each of them.
            let one_channel = Arc::ptr_eq(&tx.link.channel, &rx.link.channel);
            self.one_channel[queue].store(one_channel, Ordering::Relaxed);
            kicks.push((Ring::Transmit(queue), kick(&tx.link, Side::Tx)));
            if !one_channel {
                kicks.push((Ring::Receive(queue), kick(&rx.link, Side::Rx)));
            }
            pair.tx.lock().queue = Some(tx);
            lock(&pair.rx).queue = Some(rx);
        }
        self.guest.count_ready();
        // The port becomes active before its kicks are watched, since a kick may bring the first
        // frame. The call fails only for a port that was removed.
        let _ = engine.fabric().set_active(self.id(), true);
        let watches = kicks.into_iter().map(|(ring, kick)| {
            kick.and_then(|(id, fd)| engine.watch(id, fd)).map_err(ring.resources())
        });
        match watches.collect::<Result<Vec<Watch>, _>>() {
            Ok(watches) => *lock(&self.watches) = watches,
            Err(reason) => {
                self.release(engine);
                return Err(reason);
            }
        }
        Ok(())
    }

    /// Releases a front end's rings and channels: waiting frames are dropped and answered, held events are sent, and
    /// nothing stays mapped or bound.
    pub fn disconnect(&self, engine: &Engine) {
        self.release(engine);
        let mut shown = lock(&self.shown);
        if std::mem::take(&mut shown.connected) {
            if self.has_failed() {
                shown.failed += 1;
            } else {
                shown.closed += 1;
            }
        }
    }

    fn release(&self, engine: &Engine) {
        lock(&self.watches).clear();
        let control = lock(&self.control).take();
        self.reset_hash();
        drop(control);
        for (index, pair) in self.guest.pairs().enumerate() {
            let tx = tx::stop(&pair.tx, &Sending { port: self, index });
            let rx = stop(&pair.rx, || self.has_failed(), index, self.counters()).queue.take();
            // The pages are unmapped outside the locks.
            drop((tx, rx));
        }
        self.forget_failures();
        self.guest.count_ready();
        let _ = engine.fabric().set_active(self.id(), false);
        // The next guest may have another address.
        let _ = engine.fabric().reset_mac_check(self.id());
    }
}
