//! One queue's frames from the host: from the device into buffers, from there into bursts, and for
//! those that find their receiver full, waiting in their buffers.

use std::cell::OnceCell;
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use weir_engine::burst::{Burst, Scratch, TakenChain};
use weir_engine::{DropReason, PortCounters, Side, Taken};
use weir_fabric::PortId;
use weir_guestmem::HostBuffer;
use weir_limits::{BURST_MAX, PARKED_NS_MAX, TAP_BURST_MAX, TAP_PARKED_MAX, TAP_SLOTS};

use crate::frame_device::{FrameDevice, SLOT_LEN};

// `settle` notes in one word which frames of a burst wait.
const _: () = assert!(BURST_MAX <= u64::BITS as usize);

/// A frame that waits for a receiver that was full.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// The buffer it lies in.
    slot: u16,
    port: PortId,
    since_ns: u64,
}

/// Where a queue's frames come from.
pub(crate) struct Source<'d> {
    pub device: &'d dyn FrameDevice,
    pub queue: BorrowedFd<'d>,
}

/// A transmit queue. Every slot is in `free`, in `waiting`, or the token of a frame of the burst that
/// is under way.
pub(crate) struct TxQueue {
    /// Frame buffers, each made at its first use: a device with little traffic has few.
    buffers: Box<[OnceCell<HostBuffer>]>,
    /// Where in each buffer header and frame are.
    places: Box<[Range<usize>]>,
    /// The last one freed is used first: its memory is still in the CPU's cache.
    free: Vec<u16>,
    /// In the host's order.
    waiting: VecDeque<Waiting>,
    /// The last read found nothing more. The descriptor is edge-triggered: from then on, and only
    /// then, the next frame gives a kick.
    drained: bool,
}

impl TxQueue {
    pub(crate) fn new() -> Self {
        Self {
            buffers: (0..TAP_SLOTS).map(|_| OnceCell::new()).collect(),
            places: vec![0..0; TAP_SLOTS].into(),
            free: (0..TAP_SLOTS as u16).rev().collect(),
            waiting: VecDeque::with_capacity(TAP_PARKED_MAX),
            drained: false,
        }
    }

    /// Whether the next frame gives a kick.
    pub(crate) fn drained(&self) -> bool {
        self.drained
    }

    /// Reads at most [`TAP_BURST_MAX`] frames and has them forwarded.
    ///
    /// # Errors
    /// A read that failed; what was read before it has been forwarded.
    pub(crate) fn take_new(
        &mut self,
        source: &Source<'_>,
        now_ns: u64,
        counters: &PortCounters,
        scratch: &mut Scratch,
        forward: &mut dyn FnMut(&mut Burst<'_>),
    ) -> (Taken, io::Result<()>) {
        let mut burst = scratch.lend();
        burst.from_device = true;
        burst.park_room = TAP_PARKED_MAX.saturating_sub(self.waiting.len());
        for waiting in &self.waiting {
            if !burst.blocked.contains(&waiting.port) {
                burst.blocked.push(waiting.port);
            }
        }
        let vnet_len = source.device.vnet_len();
        let mut frames = 0;
        let mut result = Ok(());
        self.drained = false;
        // A slot is free for each frame of a burst, however many wait (asserted in weir_limits).
        while frames < TAP_BURST_MAX
            && let Some(slot) = self.free.pop()
        {
            let buffer = self.buffers[usize::from(slot)].get_or_init(|| HostBuffer::new(SLOT_LEN));
            match source.device.receive(source.queue, buffer) {
                Ok(place) => {
                    frames += 1;
                    self.places[usize::from(slot)] = place.clone();
                    if !add(&mut burst, buffer, place, slot, vnet_len, now_ns, counters) {
                        self.free.push(slot);
                    }
                }
                Err(error) => {
                    self.free.push(slot);
                    match error.kind() {
                        io::ErrorKind::Interrupted => {}
                        io::ErrorKind::WouldBlock => {
                            self.drained = true;
                            break;
                        }
                        _ if source.device.is_gone(source.queue, Side::Tx, &error) => {
                            result = Err(error);
                            break;
                        }
                        _ => {
                            frames += 1;
                            counters.dropped(DropReason::DeviceError, 1);
                        }
                    }
                }
            }
        }
        if !burst.frames().is_empty() {
            forward(&mut burst);
        }
        counters.parked.add(burst.parked.len() as u64);
        settle(&burst, &mut self.free, &mut self.waiting);
        scratch.give_back(burst);
        (self.taken(frames), result)
    }

    /// Has all frames that wait forwarded again, but for those that have waited too long.
    pub(crate) fn take_parked(
        &mut self,
        vnet_len: usize,
        now_ns: u64,
        counters: &PortCounters,
        scratch: &mut Scratch,
        forward: &mut dyn FnMut(&mut Burst<'_>),
    ) -> Taken {
        let mut burst = scratch.lend();
        burst.from_device = true;
        burst.waited = true;
        burst.park_room = TAP_PARKED_MAX;
        let frames = self.waiting.len();
        for Waiting { slot, since_ns, .. } in self.waiting.drain(..) {
            let expired = since_ns.saturating_add(PARKED_NS_MAX) <= now_ns;
            if expired {
                counters.dropped(DropReason::RxWaitedTooLong, 1);
            }
            let place = self.places[usize::from(slot)].clone();
            let buffer = self.buffers[usize::from(slot)].get().filter(|_| !expired);
            let added = |it| add(&mut burst, it, place, slot, vnet_len, since_ns, counters);
            if !buffer.is_some_and(added) {
                self.free.push(slot);
            }
        }
        if !burst.frames().is_empty() {
            forward(&mut burst);
        }
        settle(&burst, &mut self.free, &mut self.waiting);
        scratch.give_back(burst);
        self.taken(frames)
    }

    /// Drops what waits: the port has stopped.
    pub(crate) fn abandon_waiting(&mut self, counters: &PortCounters) {
        counters.dropped(DropReason::TxDisabled, self.waiting.len() as u64);
        self.free.extend(self.waiting.drain(..).map(|waiting| waiting.slot));
        self.drained = true;
    }

    fn taken(&self, frames: usize) -> Taken {
        let oldest = self.waiting.iter().map(|waiting| waiting.since_ns).min();
        Taken {
            frames,
            more: !self.drained,
            peek: false,
            parked: self.waiting.len(),
            parked_more: false, // all of them are tried in one burst
            parked_until: oldest.map(|since_ns| since_ns.saturating_add(PARKED_NS_MAX)),
            hold_until: None,
        }
    }

    /// Slots that hold no frame.
    #[cfg(test)]
    pub(crate) fn free_slots(&self) -> usize {
        self.free.len()
    }
}

/// Adds the frame in `buffer` to the burst. `false`: it was dropped, with a counter.
fn add<'m>(
    burst: &mut Burst<'m>,
    buffer: &'m HostBuffer,
    place: Range<usize>,
    slot: u16,
    vnet_len: usize,
    arrived_ns: u64,
    counters: &PortCounters,
) -> bool {
    let first = burst.pieces.len() as u32;
    let len = place.len();
    burst.pieces.extend(buffer.slice(place.start, len));
    let pieces = (first, burst.pieces.len() as u32);
    let chain = TakenChain { token: slot.into(), len: len as u32, pieces }; // at most SLOT_LEN
    let Err(error) = burst.add(chain, vnet_len, arrived_ns) else {
        return true;
    };
    // The kernel does not lie about its frames; an offload that weir never asked for is an error of
    // the device.
    let reason = error.drop_reason().unwrap_or(DropReason::DeviceError);
    counters.dropped(reason, 1);
    false
}

/// After a burst: the slots of its frames wait or are free.
fn settle(burst: &Burst<'_>, free: &mut Vec<u16>, waiting: &mut VecDeque<Waiting>) {
    let mut waits = 0u64;
    for parked in &burst.parked {
        waits |= 1 << parked.frame;
    }
    for (index, frame) in burst.frames().iter().enumerate() {
        let parked = (waits & 1 << index != 0)
            .then(|| burst.parked.iter().find(|parked| usize::from(parked.frame) == index))
            .flatten();
        match parked {
            Some(parked) => waiting.push_back(Waiting {
                slot: frame.token as u16, // one of ours
                port: parked.port,
                since_ns: frame.arrived_ns,
            }),
            None => free.push(frame.token as u16),
        }
    }
}
