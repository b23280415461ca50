//! A frame device as the engine sees it: a TAP's queues or a packet socket, with one frame per system call and a
//! `virtio_net_hdr` before it. Frames from the host are read into buffers, and stay there until their receivers have copied
//! them.

use std::cell::{Cell, RefCell};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use weir_engine::burst::{Burst, Pieces, Scratch, TakenChain};
use weir_engine::egress::{Packet, Put};
use weir_engine::gro::EgressList;
use weir_engine::guest::TransmitCalls;
use weir_engine::queue::TransmitQueue;
use weir_engine::{Ask, Delivered, DropReason, Forward, Outgoing, Port, PortCounters, Side, Taken};
use weir_guestmem::{Batch, HostBuffer, Outbox, PeerAddress};
use weir_limits::{BURST_MAX, FRAME_LEN_MAX, TAP_BURST_MAX, TAP_PARKED_MAX, TAP_SLOTS};
use weir_policy::steering::{Receiver, Steering};
use weir_wire::vlan::TAG_LEN;
use weir_wire::{OffloadCaps, VnetHdr};

use crate::uplink::{DeviceFrames, FromDevice, Service, Uncalled, UplinkPort};

/// A [`FrameDevice`] as a port of the switch.
pub struct FramePort {
    service: Service,
    device: Box<dyn FrameDevice>,
    /// One transmit queue for each of the device's queues. The kernel takes writes of several threads, and writes
    /// during reads; only reading needs a lock, for the buffers.
    tx: Vec<(TransmitQueue<Places>, Buffers)>,
}

thread_local! {
    /// Room for a burst on its way out, so that a worker allocates it once.
    static OUTBOX: RefCell<(Outbox, Vec<Counted>)> = RefCell::default();
}

/// A packet that is to be sent.
struct Counted {
    /// The number of frames in the packet, and its bytes in all.
    frames: u32,
    bytes: usize,
}

/// A burst on its way out.
struct Sending<'p, 'm> {
    port: &'p FramePort,
    queue: usize,
    fd: BorrowedFd<'p>,
    batch: Batch<'p, 'm>,
    /// The counts of each packet in the batch.
    counted: &'p mut Vec<Counted>,
}

impl<'m> Sending<'_, 'm> {
    /// Adds one packet: header and front from weir, the rest from its sender's memory.
    fn put(&mut self, packet: &Packet<'_, 'm>) -> Put {
        let mut room = [0; VnetHdr::LEN];
        let Some(prefix) = self.port.device.prefix(packet, &mut room) else {
            self.port.counters().dropped(DropReason::FilteredRx, packet.frames.into());
            return Put::Refused;
        };
        let front = [prefix, packet.head.as_slice()];
        let to = [PeerAddress::NONE];
        if !self.batch.push(&front, packet.body(), &to, 0, false) {
            self.send();
            if !self.batch.push(&front, packet.body(), &to, 0, false) {
                self.port.counters().dropped(DropReason::DeviceError, packet.frames.into());
                return Put::Refused;
            }
        }
        self.counted.push(Counted { frames: packet.frames, bytes: packet.frames_len() });
        Put::Done
    }

    /// Sends the added packets, and counts them.
    fn send(&mut self) {
        let Self { port, queue, fd, batch, counted } = self;
        port.device.send(*fd, batch, &mut |which, error| {
            let reason = match error.kind() {
                io::ErrorKind::WouldBlock => DropReason::RxRingFull,
                io::ErrorKind::NotConnected => DropReason::RxNotReady,
                _ => DropReason::DeviceError,
            };
            for lost in counted.get_mut(which).into_iter().flatten() {
                port.counters().dropped(reason, lost.frames.into());
                (lost.frames, lost.bytes) = (0, 0);
            }
            if reason == DropReason::DeviceError && port.device.is_gone(*fd, Side::Rx, error) {
                port.service.gone(error);
            }
        });
        if let Some(rx) = port.counters().rx.get(*queue) {
            rx.frames.add(counted.iter().map(|sent| u64::from(sent.frames)).sum());
            rx.bytes.add(counted.iter().map(|sent| sent.bytes as u64).sum());
        }
        counted.clear();
    }
}

impl FramePort {
    /// A port on `device` with these counters.
    pub fn new(device: impl FrameDevice + 'static, counters: Arc<PortCounters>) -> Self {
        Self {
            service: Service::new(device.name().to_owned(), counters),
            tx: device
                .queues()
                .iter()
                .map(|_| {
                    let places = Uncalled(Slots::new());
                    (TransmitQueue::new(places, TransmitCalls::default()), Buffers::new())
                })
                .collect(),
            device: Box::new(device),
        }
    }

    /// Slots of a transmit queue that hold no frame.
    #[cfg(test)]
    pub(crate) fn free_slots(&self, queue: usize) -> usize {
        self.tx[queue].0.lock().queue.0.free()
    }

    fn transmit(
        &self,
        index: usize,
    ) -> Option<(&TransmitQueue<Places>, FromDevice<DeviceQueue<'_>>)> {
        let (tx, buffers) = self.tx.get(index)?;
        let queue = self.device.queues().get(index)?.as_fd();
        let (service, device) = (&self.service, &*self.device);
        let lost = Cell::default();
        Some((tx, FromDevice(DeviceQueue { service, index, device, queue, buffers, lost })))
    }

    fn counters(&self) -> &PortCounters {
        self.service.counters()
    }
}

impl Port for FramePort {
    fn take(&self, queue: usize, ask: Ask, scratch: &mut Scratch, forward: Forward<'_>) -> Taken {
        let Some((tx, source)) = self.transmit(queue) else { return Taken::default() };
        let taken = self.take_from((tx, &source), ask, scratch, forward);
        let Some(error) = source.0.lost.take() else { return taken };
        self.service.gone(&error);
        tx.lock().abandon(&source, DropReason::TxDisabled);
        Taken { frames: taken.frames, ..Taken::default() }
    }

    fn deliver(&self, queue: usize, burst: &Burst<'_>, frames: &[Outgoing]) -> Delivered {
        let Some(fd) = self.device.queues().get(queue) else {
            self.counters().dropped(DropReason::RxNotReady, frames.len() as u64);
            return Delivered { frames: frames.len(), ..Delivered::default() };
        };
        OUTBOX.with_borrow_mut(|(outbox, counted)| {
            counted.clear();
            let (fd, batch) = (fd.as_fd(), outbox.batch());
            let mut sending = Sending { port: self, queue, fd, batch, counted };
            let mut list = EgressList::new(burst, frames, self.device.offloads());
            while let Some(sent) = list.emit_next(|packet| sending.put(&packet)) {
                sent.settle(self.counters());
            }
            sending.send();
            self.counters().merged(list.merged());
            // The receive side is the host's backlog or the interface's queue. It is never full for
            // long, and does not report when it has room again: there is nothing to wait for.
            Delivered { worth_waiting: false, hold_until: None, ..list.delivered() }
        })
    }

    fn arm_tx(&self, queue: usize) -> bool {
        // Reading everything has armed the queue.
        self.transmit(queue).is_some_and(|(tx, source)| self.arm(tx, &source))
    }

    fn share_tx(&self, queue: usize, on: bool) -> bool {
        self.tx.get(queue).is_some_and(|(tx, _)| {
            tx.set_side_by_side(on);
            true
        })
    }

    fn is_uplink(&self) -> bool {
        true
    }

    fn kicked(&self, queue: usize, side: Side) {
        self.service.kicked(queue, side);
    }

    fn rx_queues(&self) -> usize {
        if self.service.has_failed() { 0 } else { self.tx.len() }
    }

    fn steering(&self) -> Option<&Steering> {
        Some(self.device.steering())
    }

    fn fail(&self, reason: &str) {
        self.service.fail(reason);
    }
}

/// A write returns when the kernel has the frame.
impl Receiver for FramePort {}

impl UplinkPort for FramePort {
    fn service(&self) -> &Service {
        &self.service
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.device.queues().iter().map(AsFd::as_fd).collect()
    }

    fn trouble(&self) -> Option<String> {
        self.failure().map(str::to_owned).or_else(|| self.device.trouble())
    }
}

impl std::fmt::Debug for FramePort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FramePort")
            .field("interface", &self.service.name())
            .field("failure", &self.failure())
            .finish()
    }
}

/// Bytes of a frame buffer: a VLAN tag that the device gives separately, the header, the longest frame, and one
/// more byte. A read that fills the buffer was truncated, and [`Burst::add`](weir_engine::burst::Burst::add) finds
/// the frame too long.
pub const SLOT_LEN: usize = TAG_LEN + VnetHdr::LEN + FRAME_LEN_MAX as usize + 1;

/// A device that a [`FramePort`](crate::FramePort) serves.
pub trait FrameDevice: Send + Sync {
    /// The interface's name.
    fn name(&self) -> &str;

    /// One descriptor per queue, non-blocking: readable when a frame is there.
    fn queues(&self) -> &[OwnedFd];

    /// The choice of the queue for a flow's frames.
    fn steering(&self) -> &Steering;

    /// The offloads that the device accepts undone in frames from weir.
    fn offloads(&self) -> OffloadCaps;

    /// Bytes of the `virtio_net_hdr`: 12, or 10 without `num_buffers`.
    fn vnet_len(&self) -> usize;

    /// Reads frames by one system call, one into each of `buffers`, in order, which have [`SLOT_LEN`] bytes. `places`
    /// gets the place of header and frame in each. Returns the number of frames that it could have read: if `places`
    /// got fewer, there are no more.
    ///
    /// # Errors
    /// `WouldBlock`: there is no frame. `Interrupted`: another call is worthwhile. Any other error means a lost frame,
    /// if not a lost device: see [`is_gone`](Self::is_gone).
    fn receive(
        &self,
        queue: BorrowedFd<'_>,
        buffers: &mut dyn Iterator<Item = &HostBuffer>,
        places: &mut Vec<Range<usize>>,
    ) -> io::Result<usize>;

    /// The bytes before a packet that is sent, in `room`: its `virtio_net_hdr`. `None` if the device may not get it.
    fn prefix<'r>(
        &self,
        packet: &Packet<'_, '_>,
        room: &'r mut [u8; VnetHdr::LEN],
    ) -> Option<&'r [u8]> {
        *room = packet.offload.to_vnet(0).to_bytes();
        room.get(..self.vnet_len())
    }

    /// Sends all frames of `batch`, each behind its header. `lost` gets those that were not sent, and the reason.
    fn send(
        &self,
        queue: BorrowedFd<'_>,
        batch: &mut Batch<'_, '_>,
        lost: &mut dyn FnMut(Range<usize>, &io::Error),
    );

    /// True if `error`, of reading ([`Side::Tx`]) or writing ([`Side::Rx`]), means that the device is lost; otherwise
    /// one frame is lost.
    fn is_gone(&self, queue: BorrowedFd<'_>, side: Side, error: &io::Error) -> bool;

    /// The reason why nothing passes at present, for a device that comes back by itself.
    fn trouble(&self) -> Option<String> {
        None
    }
}

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
