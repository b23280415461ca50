//! A simulated port: a sender that always has a burst ready or sends on request, and a receiver that takes all
//! frames. It costs a worker little beside weir's own work.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use weir_engine::burst::{Burst, Pieces, Scratch, TakenChain};
use weir_engine::egress::{Packet, Put};
use weir_engine::gro::EgressList;
use weir_engine::stats::Times;
use weir_engine::{
    Ask, Delivered, Engine, Forward, Outgoing, Port, PortCounters, QueueRef, Side, Take, Taken,
    clock,
};
use weir_fabric::{MacCheck, PortConfig, PortError, PortId};
use weir_guestmem::HostBuffer;
use weir_limits::FRAME_LEN_MAX;
use weir_policy::steering::Receiver;
use weir_wire::{Mac, OffloadCaps};

/// Frames of a full burst.
const BURST: usize = 32;
/// Length of an empty virtio-net header before each frame.
const VNET_LEN: usize = 12;
/// Local experimental ethertype (IEEE 802).
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];

/// A simulated port.
pub(crate) struct PlayedPort {
    id: PortId,
    counters: Arc<PortCounters>,
    frame: HostBuffer,
    /// Frames left to send.
    left: AtomicU64,
    /// Buffer for received frames.
    inbox: HostBuffer,
    /// Time at which the next received frame was sent (ns), if it is timed.
    asked_ns: AtomicU64,
    /// Times of timed frames.
    times: Mutex<Times>,
}

/// Addresses and length of frames.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sends {
    pub(crate) from: Mac,
    pub(crate) to: Mac,
    /// Length of a frame (bytes).
    pub(crate) len: usize,
}

impl PlayedPort {
    /// Adds a port to `engine`. It sends nothing yet.
    pub(crate) fn add(engine: &Engine, sends: Sends) -> Result<Arc<Self>, PortError> {
        let config = PortConfig { mac_check: MacCheck::Off, ..PortConfig::vif() };
        let make = |id, counters| {
            let frame = HostBuffer::new(VNET_LEN + sends.len);
            if let Some(slice) = frame.slice(VNET_LEN, sends.len) {
                slice.write(&[&sends.to.0[..], &sends.from.0, &ETHERTYPE].concat());
            }
            Arc::new(Self {
                id,
                counters,
                frame,
                left: AtomicU64::new(0),
                inbox: HostBuffer::new(FRAME_LEN_MAX as usize),
                asked_ns: AtomicU64::new(0),
                times: Mutex::default(),
            })
        };
        let (id, port) = engine.add_port(config, make)?;
        engine.fabric().set_active(id, true)?;
        Ok(port)
    }

    pub(crate) fn id(&self) -> PortId {
        self.id
    }

    /// Starts sending `frames` frames.
    pub(crate) fn send(&self, engine: &Engine, frames: u64) {
        self.left.store(frames, Ordering::SeqCst);
        engine.nudge(QueueRef { port: self.id, queue: 0, side: Side::Tx });
    }

    /// Returns the worker time charged to the port (ns).
    pub(crate) fn worker_ns(&self) -> u64 {
        self.counters.worker_ns.get()
    }

    /// Returns the number of received frames.
    pub(crate) fn received(&self) -> u64 {
        self.counters.rx[0].frames.get()
    }

    /// Starts the timer for the next received frame.
    pub(crate) fn time_next(&self) {
        self.asked_ns.store(clock::now_ns(), Ordering::SeqCst);
    }

    /// Takes the collected times.
    pub(crate) fn take_times(&self) -> Times {
        std::mem::take(&mut *self.times.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn receive(&self, packet: &Packet<'_, '_>) {
        let mut at = packet.head.len();
        for slice in packet.body() {
            if let Some(place) = self.inbox.slice(at, slice.len()) {
                slice.copy_to(&place);
            }
            at += slice.len();
        }
    }
}

impl Receiver for PlayedPort {}

impl Port for PlayedPort {
    fn take(&self, queue: usize, ask: Ask, scratch: &mut Scratch, forward: Forward<'_>) -> Taken {
        let Ask { what, now_ns } = ask;
        let (Take::New, Some(slice)) = (what, self.frame.slice(0, self.frame.len())) else {
            return Taken::default();
        };
        let mut burst = scratch.lend();
        let frames = BURST.min(burst.frames_max) as u64;
        let frames = frames.min(self.left.load(Ordering::SeqCst));
        self.left.fetch_sub(frames, Ordering::SeqCst);
        for token in 0..frames {
            let pieces = Pieces::Only(slice);
            let chain = TakenChain { token, len: slice.len() as u32, pieces };
            // The frame is valid, and there is space for a burst.
            let _ = burst.add(chain, VNET_LEN, now_ns);
        }
        if frames > 0 {
            forward(&mut burst);
        }
        let tx = &self.counters.tx[queue];
        tx.frames.add(frames);
        tx.bytes.add(frames * (slice.len() - VNET_LEN) as u64);
        let more = self.left.load(Ordering::SeqCst) > 0;
        Taken { frames: frames as usize, more, peek: true, ..Taken::default() }
    }

    fn deliver(&self, queue: usize, burst: &Burst<'_>, frames: &[Outgoing]) -> Delivered {
        let mut list = EgressList::new(burst, frames, OffloadCaps::NONE);
        let put = |packet: Packet<'_, '_>| {
            self.receive(&packet);
            Put::Done
        };
        while list.emit_next(put).is_some() {}
        self.counters.rx[queue].frames.add(frames.len() as u64);
        match self.asked_ns.swap(0, Ordering::SeqCst) {
            0 => {}
            asked_ns => {
                let took_ns = clock::now_ns().saturating_sub(asked_ns);
                self.times.lock().unwrap_or_else(PoisonError::into_inner).record(took_ns);
            }
        }
        list.delivered()
    }

    fn arm_tx(&self, _queue: usize) -> bool {
        self.left.load(Ordering::SeqCst) > 0
    }

    fn rx_queues(&self) -> usize {
        1
    }

    fn fail(&self, reason: &str) {
        tracing::error!(port = %self.id, reason, "a simulated port failed");
    }
}
