//! A mirror: a port that gets copies of other ports' frames.
//!
//! Copies are made as for a capture. The mirror's own thread takes them out of the rings and delivers them to the
//! mirror's port, so no other thread waits for it. Copies for which the rings have no room (`mirror_lost`) or the
//! port has none (`rx_ring_full`) are counted at the mirror's port.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use weir_fabric::{EgressTag, PortId};
use weir_guestmem::HostBuffer;
use weir_limits::FRAME_LEN_MAX;
use weir_wire::VnetHdr;
use weir_wire::vlan::TAG_LEN;

use super::{Capture, CaptureError};
use crate::engine::Engine;
use crate::frames::burst::{Pieces, Scratch, TakenChain};
use crate::frames::drop_reason::DropReason;
use crate::frames::port::{Outgoing, Side};
use crate::frames::stats::PortCounters;
use crate::own::{self, Offered, pause};
use crate::switching::switch::{Ports, Slot, slot};
use crate::taps::tap::Header;
use crate::taps::tap::{Tap, Wanted};
use crate::threads::beat;
use crate::threads::clock;
use crate::threads::lock::lock;
use crate::working::shared::Shared;

const NAME: &str = "weir-mirror";
/// Frames that are delivered in one burst.
const FRAMES: usize = 32;
/// Room for each frame (bytes).
const ROOM: usize = VnetHdr::LEN + FRAME_LEN_MAX as usize + TAG_LEN;
/// Sleep of the thread after it found frames, and after it found none. Workers never wake it.
const PAUSE_NS: u64 = 1_000_000;
const PAUSE_IDLE_NS: u64 = 5_000_000;

/// A mirror, until it is dropped.
pub struct Mirror {
    shared: Arc<Shared>,
    to: Target,
    taps: Vec<(PortId, Arc<Tap>)>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// The port that gets copies. Its number can be given to another port later.
#[derive(Clone)]
struct Target {
    id: PortId,
    counters: Arc<PortCounters>,
}

impl Target {
    fn slot(&self, ports: &Ports) -> Option<Slot> {
        let slot = slot(ports, self.id)?;
        Arc::ptr_eq(&slot.counters, &self.counters).then(|| slot.clone())
    }
}

impl Engine {
    /// Gives `to` copies of all frames that `sources` send and receive. Frames that `to` sends are not handled here:
    /// the caller must ensure that the fabric accepts none from it, and that it is no source of another mirror.
    ///
    /// # Errors
    /// [`CaptureError`]; nothing has changed then.
    pub fn mirror(&self, sources: &[PortId], to: PortId) -> Result<Mirror, CaptureError> {
        if sources.contains(&to) {
            return Err(CaptureError::Itself);
        }
        let ports = self.shared.ports.load();
        let counters = slot(&ports, to).map(|slot| Arc::clone(&slot.counters));
        let counters = counters.ok_or(CaptureError::NoSuchPort(to))?;
        let target = Target { id: to, counters };
        let capture = self.begin(sources, &Wanted::ALL, true)?;
        let (stop, taps) = (Arc::new(AtomicBool::new(false)), capture.taps.clone());
        let shared = Arc::clone(&self.shared);
        let mut deliveries =
            Deliveries::new(Arc::clone(&shared), capture, target.clone(), Arc::clone(&stop));
        let thread = std::thread::Builder::new().name(NAME.into()).spawn(move || {
            weir_sandbox::narrow(weir_sandbox::Thread::Worker);
            // The thread is not vital, because memory of the guest behind its port can keep it waiting.
            beat::watch_this_thread(NAME, beat::Role::Own);
            if catch_unwind(AssertUnwindSafe(|| deliveries.run())).is_err() {
                tracing::error!(port = %to, "a mirror panicked and has ended (please report it)");
            }
        });
        let thread = Some(thread.map_err(|_| CaptureError::NoThread)?);
        Ok(Mirror { shared, to: target, taps, stop, thread })
    }
}

impl Mirror {
    /// True if the mirror's ports are still those of its creation, and its thread runs.
    pub fn is_whole(&self) -> bool {
        let captured = lock(&self.shared.captured);
        let stands = |(id, tap): &(PortId, Arc<Tap>)| captured.has(*id, tap);
        self.taps.iter().all(stands)
            && self.to.slot(&self.shared.ports.load()).is_some()
            && self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// The state of the thread.
struct Deliveries {
    shared: Arc<Shared>,
    capture: Capture,
    to: Target,
    stop: Arc<AtomicBool>,
    buffer: HostBuffer,
    scratch: Scratch,
    /// Bytes of each frame in the buffer, its virtio header included.
    lens: Vec<u32>,
    /// The number of lost copies that have been counted.
    lost: u64,
    /// The time at which the guest's call is due, if it is held.
    held_until: Option<u64>,
    /// The port had no buffers for all frames of the last burst.
    is_full: bool,
}

impl Deliveries {
    fn new(shared: Arc<Shared>, capture: Capture, to: Target, stop: Arc<AtomicBool>) -> Self {
        let (scratch, lens, lost, held_until, is_full) = Default::default();
        let buffer = HostBuffer::new(FRAMES * ROOM);
        Self { shared, capture, to, stop, buffer, scratch, lens, lost, held_until, is_full }
    }

    fn run(&mut self) {
        while !self.stop.load(Ordering::Relaxed) {
            let read = self.read();
            // The port may have been removed: copies of that time do not count as lost.
            if let Some(slot) = self.to.slot(&self.shared.ports.load()) {
                self.count_lost(&slot.counters);
                if read > 0 {
                    self.deliver(&slot);
                }
                self.call(&slot);
            }
            match read {
                FRAMES => {}
                0 => self.sleep(PAUSE_IDLE_NS),
                _ => self.sleep(PAUSE_NS),
            }
        }
        self.capture.stop();
    }

    /// Takes frames into the buffer; returns how many.
    fn read(&mut self) -> usize {
        let Self { capture, buffer, lens, .. } = self;
        lens.clear();
        let read = capture.read_at_most(FRAMES, |header: &Header, bytes: &[u8]| {
            let len = VnetHdr::LEN + bytes.len();
            if let Some(room) = buffer.slice(lens.len() * ROOM, len) {
                room.write(&header.vnet);
                room.skip(VnetHdr::LEN).write(bytes);
                lens.push(len as u32); // a frame's length
            }
            Ok::<_, std::convert::Infallible>(())
        });
        let Ok(_) = read;
        lens.len()
    }

    fn count_lost(&mut self, counters: &PortCounters) {
        let lost = self.capture.counted().iter().map(|counted| counted.lost).sum();
        if lost > self.lost {
            counters.dropped(DropReason::MirrorLost, lost - self.lost);
            self.lost = lost;
        }
    }

    fn deliver(&mut self, slot: &Slot) {
        let Self { buffer, scratch, lens, is_full, stop, .. } = &mut *self;
        if slot.port.rx_queues() == 0 {
            slot.counters.dropped(DropReason::RxNotReady, lens.len() as u64);
            return;
        }
        let mut burst = scratch.lend();
        // The senders' headers have been checked.
        burst.from_device = true;
        let now_ns = clock::now_ns();
        for (place, len) in (0_u32..).zip(&*lens) {
            let Some(whole) = buffer.slice(place as usize * ROOM, *len as usize) else { continue };
            let pieces = Pieces::Only(whole);
            let chain = TakenChain { token: place.into(), len: *len, pieces };
            burst.add_of_device(chain, VnetHdr::LEN, now_ns, &slot.counters);
        }
        let outgoing = (0_u16..).zip(burst.frames()).map(|(frame, it)| Outgoing {
            frame,
            tag: it.tag.map_or(EgressTag::Untagged, EgressTag::Tagged),
        });
        // A port that has just had no buffers for the whole wait must not delay copies of others again.
        let was_full = *is_full;
        let waits = || !was_full && !stop.load(Ordering::Relaxed);
        let Offered { left, held_until: held } =
            own::deliver(slot, &burst, outgoing.collect(), waits);
        slot.counters.dropped(DropReason::RxRingFull, left.len() as u64);
        *is_full = !left.is_empty();
        self.held_until = held.or(self.held_until);
    }

    /// Makes a held call when it is due.
    fn call(&mut self, slot: &Slot) {
        let now_ns = clock::now_ns();
        if self.held_until.is_some_and(|until_ns| until_ns <= now_ns) {
            self.held_until = slot.port.expired(0, Side::Rx, now_ns);
        }
    }

    /// Sleeps for `ns`, or until a call is due.
    // The thread that ends the mirror also ends the pause.
    fn sleep(&self, ns: u64) {
        let due = self.held_until.map(|until_ns| until_ns.saturating_sub(clock::now_ns()));
        pause(due.unwrap_or(ns).min(ns));
    }
}
