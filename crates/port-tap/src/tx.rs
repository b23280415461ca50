//! One queue's frames from the host. They are read from the device into buffers, and stay there until their receivers
//! have copied them.

use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;

use weir_engine::burst::{Burst, Pieces, TakenChain};
use weir_engine::{DropReason, Side};
use weir_guestmem::HostBuffer;
use weir_limits::{BURST_MAX, TAP_BURST_MAX, TAP_PARKED_MAX, TAP_SLOTS};

use crate::port::{FrameDevice, SLOT_LEN};
use crate::uplink::{DeviceFrames, Service, Uncalled};

const _: () = assert!(TAP_PARKED_MAX <= BURST_MAX);

/// A queue's frame buffers, each made at its first use: a device with little traffic has few.
pub(crate) struct Buffers(Box<[OnceLock<HostBuffer>]>);

impl Buffers {
    pub(crate) fn new() -> Self {
        Self((0..TAP_SLOTS).map(|_| OnceLock::new()).collect())
    }

    fn get(&self, slot: u16) -> &HostBuffer {
        self.0[usize::from(slot)].get_or_init(|| HostBuffer::new(SLOT_LEN)) // one of ours
    }
}

/// The buffers that hold a frame, and the frame's place in each.
pub(crate) struct Slots {
    /// The place of header and frame in each buffer.
    places: Box<[Range<usize>]>,
    /// The last slot freed is used first: its memory is still in the CPU's cache.
    free: Vec<u16>,
    /// Room for the places of the frames that one call has read.
    read: Vec<Range<usize>>,
    /// The last read found no more frames. The descriptor is edge-triggered: from then on, and only then, the next
    /// frame gives a kick.
    drained: bool,
}

impl Slots {
    pub(crate) fn new() -> Self {
        Self {
            places: vec![0..0; TAP_SLOTS].into(),
            free: (0..TAP_SLOTS as u16).rev().collect(),
            read: Vec::with_capacity(TAP_BURST_MAX),
            drained: false,
        }
    }

    /// Slots that hold no frame.
    #[cfg(test)]
    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }
}

/// The places of a transmit queue.
pub(crate) type Places = Uncalled<Slots>;

/// A queue of a device, and the buffers for its frames. Their tokens are slots.
pub(crate) struct DeviceQueue<'d> {
    pub service: &'d Service,
    /// The index of the queue.
    pub index: usize,
    pub device: &'d dyn FrameDevice,
    pub queue: BorrowedFd<'d>,
    pub buffers: &'d Buffers,
    /// The error that showed that the device is lost.
    pub lost: Cell<Option<io::Error>>,
}

impl DeviceQueue<'_> {
    /// Adds the frame in `buffer` to the burst, or counts the reason why not.
    fn add<'m>(
        &self,
        burst: &mut Burst<'m>,
        buffer: &'m HostBuffer,
        place: Range<usize>,
        token: u64,
        arrived_ns: u64,
    ) {
        let first = burst.pieces.len() as u32;
        let len = place.len();
        burst.pieces.extend(buffer.slice(place.start, len));
        let pieces = Pieces::Among(first, burst.pieces.len() as u32);
        let chain = TakenChain { token, len: len as u32, pieces }; // at most SLOT_LEN
        burst.chains.push(chain);
        burst.add_of_device(chain, self.device.vnet_len(), arrived_ns, self.service.counters());
    }
}

impl DeviceFrames for DeviceQueue<'_> {
    type Places = Slots;

    const PARKED_MAX: usize = TAP_PARKED_MAX;

    fn queue(&self) -> (&Service, usize) {
        (self.service, self.index)
    }

    /// Reads at most [`TAP_BURST_MAX`] frames.
    fn read<'m>(&'m self, slots: &mut Slots, now_ns: u64, burst: &mut Burst<'m>) -> usize {
        let mut frames = 0;
        slots.drained = false;
        // A slot is free for each frame of a burst, however many wait (asserted in weir_limits), unless
        // several bursts are under way.
        while frames < TAP_BURST_MAX && !slots.drained && !slots.free.is_empty() {
            let Slots { free, read, .. } = slots;
            read.clear();
            let last_freed = free.iter().rev().take(TAP_BURST_MAX - frames);
            let mut into = last_freed.map(|slot| self.buffers.get(*slot));
            match self.device.receive(self.queue, &mut into, read) {
                Ok(asked) => {
                    slots.drained = slots.read.len() < asked;
                    frames += slots.read.len();
                    for index in 0..slots.read.len() {
                        let Some(slot) = slots.free.pop() else { break };
                        let place = slots.read[index].clone();
                        slots.places[usize::from(slot)] = place.clone();
                        self.add(burst, self.buffers.get(slot), place, slot.into(), now_ns);
                    }
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::WouldBlock => slots.drained = true,
                    _ if self.device.is_gone(self.queue, Side::Tx, &error) => {
                        self.lost.set(Some(error));
                        break;
                    }
                    _ => {
                        frames += 1;
                        self.service.counters().dropped(DropReason::DeviceError, 1);
                    }
                },
            }
        }
        frames
    }

    fn read_again<'m>(
        &'m self,
        slots: &mut Slots,
        token: u64,
        arrived_ns: u64,
        burst: &mut Burst<'m>,
    ) {
        let slot = token as usize; // one of ours
        if let Some(buffer) = self.buffers.0[slot].get() {
            self.add(burst, buffer, slots.places[slot].clone(), token, arrived_ns);
        }
    }

    fn free(&self, slots: &mut Slots, tokens: impl Iterator<Item = u64>) {
        slots.free.extend(tokens.map(|token| token as u16)); // ours
    }

    fn has_more(&self, slots: &Slots) -> bool {
        !slots.drained
    }
}
