//! A transmit ring in service: its packets under way, and their buffers.

use std::collections::VecDeque;
use std::fmt;
use std::mem::take;
use std::sync::Arc;

use weir_engine::burst::{Burst, Frame, TakenChain};
use weir_engine::guest::{GuestRing, TransmitRing};
use weir_engine::{DropReason, PortCounters};
use weir_fabric::PortId;
use weir_limits::{BURST_BYTES_MAX, BURST_MAX, HEAD_LEN, PARKED_NS_MAX};
use weir_netif::{PacketError, RingError, Status, TxBack, TxPacket, TxSlot};
use weir_wire::VnetHdr;
use weir_xen::{CopySegment, CopyStatus, Grant, GrantRef};

use super::pool::Pool;
use crate::connect::Link;
use crate::multicast::Groups;

/// A packet that was taken and is not answered.
#[derive(Debug, Clone, Copy)]
struct Flight {
    packet: TxPacket,
    /// Requests with data, in `buffers`.
    slots: usize,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// A frame of the burst that is being taken; whether all of it could be copied.
    Begun { good: bool },
    /// To be answered, when all before it are.
    Done(Status),
    /// It waits in its buffers for a receiver that was full.
    Waits { port: PortId, since_ns: u64 },
}

/// A request with data, and the buffer that has them now.
#[derive(Debug, Clone, Copy)]
struct Buffered {
    slot: TxSlot,
    buffer: u16,
}

/// A ring in service.
pub(crate) struct TxRing {
    pub(super) back: TxBack,
    pub(crate) link: Link,
    pool: Arc<Pool>,
    /// Buffers without a request. The last one freed is used first: its memory is still in the CPU's cache.
    free: Vec<u16>,
    /// In the order of the ring.
    flights: VecDeque<Flight>,
    /// Name of the first of them: those after it count on.
    first: u64,
    /// The requests of all flights, one after the other.
    buffers: VecDeque<Buffered>,
    /// Whole packets are brought at once.
    fetches_all: bool,
    /// Room for the requests of one packet, and for a burst's copies, each of a flight by its number.
    slots: Vec<TxSlot>,
    copies: Vec<CopySegment<'static>>,
    owners: Vec<usize>,
}

/// An empty vector with the room of `used`, for copies of another burst.
pub(crate) fn emptied<'b>(mut used: Vec<CopySegment<'_>>) -> Vec<CopySegment<'b>> {
    used.clear();
    // Source and target have one layout: collecting in place keeps the allocation.
    used.into_iter()
        .map(|_| -> CopySegment<'b> { unreachable!("the vector was cleared") })
        .collect()
}

impl TxRing {
    /// A ring with nothing under way.
    ///
    /// # Errors
    /// There is no memory for the buffers.
    pub(crate) fn new(mut back: TxBack, link: Link) -> std::io::Result<Self> {
        let size = u16::try_from(back.ring().size()).unwrap_or(u16::MAX);
        Ok(Self {
            back,
            pool: Arc::new(Pool::new(link.clone(), size)?),
            free: (0..size).rev().collect(),
            flights: VecDeque::with_capacity(size.into()),
            first: 0,
            buffers: VecDeque::with_capacity(size.into()),
            fetches_all: false,
            slots: Vec::with_capacity(size.into()),
            copies: Vec::with_capacity(size.into()),
            owners: Vec::with_capacity(size.into()),
            link,
        })
    }

    /// Its buffers, for as long as a burst borrows them.
    pub(super) fn pool(&self) -> Arc<Pool> {
        Arc::clone(&self.pool)
    }

    /// Answers all that waits; says how many packets that was.
    pub(super) fn abandon(&mut self) -> u64 {
        let mut waiting = 0;
        for flight in &mut self.flights {
            if matches!(flight.state, State::Waits { .. }) {
                flight.state = State::Done(Status::Dropped);
                waiting += 1;
            }
        }
        self.answer();
        waiting
    }

    /// See [`weir_engine::Port::peek_tx`].
    pub(crate) fn peek(&mut self) -> bool {
        self.back.ring().peek()
    }

    /// See [`weir_engine::Port::arm_tx`].
    pub(crate) fn arm(&mut self) -> Result<bool, RingError> {
        Ok(self.back.ring().final_check()? > 0)
    }

    /// New packets of the ring: taken, their fronts copied, and added to `burst`. Says how many requests' worth of
    /// packets that was.
    pub(super) fn fill_new<'m>(
        &mut self,
        pool: &'m Pool,
        groups: &Groups,
        burst: &mut Burst<'m>,
        now_ns: u64,
        counters: &PortCounters,
    ) -> Result<usize, RingError> {
        self.back.ring().refill()?;
        let frames_max = burst.frames_max.min(BURST_MAX);
        self.fetches_all = pool.fetches_all(self.fetches_all);
        let mut copies = emptied(take(&mut self.copies));
        self.owners.clear();
        let from = self.flights.len();
        let from_buffer = self.buffers.len();
        let (mut taken, mut bytes) = (0, 0);
        let mut result = Ok(());
        while self.flights.len() - from < frames_max && bytes < BURST_BYTES_MAX {
            self.slots.clear();
            match self.back.take(&mut self.slots) {
                Ok(None) => break,
                Ok(Some(weir_netif::Taken::Packet(packet))) => {
                    bytes += u64::from(packet.len);
                    self.begin(packet, pool, &mut copies);
                }
                Ok(Some(weir_netif::Taken::Multicast(change))) => {
                    let status = groups.change(change.address, change.add);
                    self.no_frame(change.packet, status);
                }
                Ok(Some(weir_netif::Taken::Refused(packet, error))) => {
                    counters.dropped(refused(&error), 1);
                    self.no_frame(packet, Status::Error);
                }
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
            taken += 1;
        }
        let copied = result.is_ok() && self.link.copy(&mut copies);
        for (copy, nth) in copies.iter().zip(&self.owners) {
            if !copied || copy.status() != CopyStatus::Done {
                self.flights[*nth].state = State::Begun { good: false };
            }
        }
        self.copies = emptied(copies);
        let (mut buffer, mut away) = (from_buffer, 0);
        for nth in from..self.flights.len() {
            let Flight { slots, state, .. } = self.flights[nth];
            if let State::Begun { good } = state {
                let added = match good {
                    true => self.add(nth, buffer, pool, burst, now_ns),
                    false => Err(DropReason::CopyFailed),
                };
                let status = match added {
                    Ok(bit) => {
                        away |= bit;
                        Status::Okay
                    }
                    Err(reason) => {
                        counters.dropped(reason, 1);
                        Status::Error
                    }
                };
                self.flights[nth].state = State::Done(status);
            }
            buffer += slots;
        }
        if away != 0 || self.fetches_all {
            // Without a frame that is away, too: the pool is to see who gets them.
            burst.leave_with(pool, away);
        }
        result.map(|()| taken)
    }

    /// Notes a packet whose requests are in `slots`, and what is to be copied of it: what weir looks at.
    fn begin<'m>(&mut self, packet: TxPacket, pool: &'m Pool, copies: &mut Vec<CopySegment<'m>>) {
        let (mut slots, mut left) = (0, HEAD_LEN as u16);
        for slot in &self.slots {
            // As many buffers as the ring has entries: there is one for each request.
            let Some(buffer) = self.free.pop() else { break };
            self.buffers.push_back(Buffered { slot: *slot, buffer });
            let segment = slot.segment;
            let grant = Grant {
                domain: self.link.domain,
                reference: GrantRef(segment.gref),
                offset: segment.offset,
            };
            let front = segment.len.min(left);
            left -= front;
            pool.note(buffer, grant, segment.len - front, self.fetches_all);
            let here = if self.fetches_all { segment.len } else { front };
            let to = pool.data(buffer, here).filter(|to| !to.is_empty());
            // Within its page, which `TxBack` has checked.
            if let Some(copy) = to.and_then(|to| CopySegment::from_grant(grant, to)) {
                copies.push(copy);
                self.owners.push(self.flights.len());
            }
            slots += 1;
        }
        self.flights.push_back(Flight { packet, slots, state: State::Begun { good: true } });
    }

    /// Notes what is answered without being a frame: in its turn, like all others.
    fn no_frame(&mut self, packet: TxPacket, status: Status) {
        let buffers = self.slots.iter().map_while(|slot| {
            let buffer = self.free.pop()?;
            Some(Buffered { slot: *slot, buffer })
        });
        let before = self.buffers.len();
        self.buffers.extend(buffers);
        let slots = self.buffers.len() - before;
        self.flights.push_back(Flight { packet, slots, state: State::Done(status) });
    }

    /// Adds flight number `nth`, which has the buffers from number `from` on. Says by which bit it is known to
    /// the burst, if its payload is not there; 0 if it is.
    fn add<'m>(
        &self,
        nth: usize,
        from: usize,
        pool: &'m Pool,
        burst: &mut Burst<'m>,
        arrived_ns: u64,
    ) -> Result<u64, DropReason> {
        let Flight { packet, slots, .. } = self.flights[nth];
        let buffers = || self.buffers.range(from..from + slots);
        let vnet = vnet_hdr(&packet, buffers(), pool)?;
        let first = burst.pieces.len();
        let header = buffers().next().and_then(|first| pool.vnet_hdr(first.buffer));
        if let Some(header) = header {
            header.write_array(vnet.to_bytes());
            burst.pieces.push(header);
        }
        for Buffered { slot, buffer } in buffers() {
            let piece = pool.data(*buffer, slot.segment.len);
            burst.pieces.extend(piece.filter(|piece| !piece.is_empty()));
        }
        let chain = TakenChain {
            token: self.first + nth as u64,
            len: packet.len + VnetHdr::LEN as u32,
            pieces: (first as u32, burst.pieces.len() as u32),
        };
        // What is wrong with a header was said by the guest, but put into words by weir: never fatal.
        let refused = |error: weir_engine::burst::FrameError| {
            error.drop_reason().unwrap_or(DropReason::GsoHeaders)
        };
        burst.add(chain, VnetHdr::LEN, arrived_ns).map_err(refused)?;
        let away = pool.is_any_away(buffers().map(|buffered| buffered.buffer));
        Ok(u64::from(away) << (burst.frames().len() - 1))
    }

    /// Packets that wait, oldest first; those that waited too long are dropped.
    pub(super) fn fill_waiting<'m>(
        &mut self,
        pool: &'m Pool,
        burst: &mut Burst<'m>,
        now_ns: u64,
        counters: &PortCounters,
    ) -> usize {
        let mut taken = 0;
        let (mut buffer, mut away) = (0, 0);
        for nth in 0..self.flights.len() {
            let flight = self.flights[nth];
            let from = buffer;
            buffer += flight.slots;
            let State::Waits { since_ns, .. } = flight.state else { continue };
            taken += 1;
            let added = if since_ns.saturating_add(PARKED_NS_MAX) <= now_ns {
                Err(DropReason::RxWaitedTooLong)
            } else {
                self.add(nth, from, pool, burst, since_ns)
            };
            match added {
                Ok(bit) => away |= bit,
                Err(reason) => counters.dropped(reason, 1),
            }
            // Unless it is parked again.
            self.flights[nth].state = State::Done(Status::Okay);
        }
        if away != 0 {
            burst.leave_with(pool, away);
        }
        taken
    }

    /// Notes what waits and what could not be copied later, answers what is done up to the first that is not,
    /// and says how many responses the guest can see more than before.
    pub(super) fn settle(&mut self, burst: &Burst<'_>, counters: &PortCounters) -> u32 {
        for parked in &burst.parked {
            let Some(frame) = burst.frames().get(usize::from(parked.frame)) else { continue };
            if let Some(flight) = self.flight(frame) {
                flight.state = State::Waits { port: parked.port, since_ns: frame.arrived_ns };
            }
        }
        if burst.remote().is_some() {
            self.settle_failed(burst, counters);
        }
        self.answer()
    }

    fn flight(&mut self, frame: &Frame) -> Option<&mut Flight> {
        let nth = frame.token.wrapping_sub(self.first);
        self.flights.get_mut(usize::try_from(nth).ok()?)
    }

    /// Drops packets whose grants did not last until their payload was wanted.
    fn settle_failed(&mut self, burst: &Burst<'_>, counters: &PortCounters) {
        let mut failed = 0;
        let lost = burst.lost();
        for (frame, n) in burst.frames().iter().zip(0_u8..) {
            if lost >> n & 1 != 0
                && let Some(flight) = self.flight(frame)
            {
                flight.state = State::Done(Status::Error);
                failed += 1;
            }
        }
        let bad = self.pool.take_bad();
        if !bad.is_empty() {
            let mut buffers = self.buffers.iter();
            for flight in &mut self.flights {
                let mut own = buffers.by_ref().take(flight.slots);
                // Not `any`, which would stop at the first.
                let is_bad = own.by_ref().fold(false, |is, at| is | bad.contains(&at.buffer));
                if is_bad && flight.state == State::Done(Status::Okay) {
                    flight.state = State::Done(Status::Error);
                    failed += 1;
                }
            }
        }
        counters.dropped(DropReason::CopyFailed, failed);
    }

    fn answer(&mut self) -> u32 {
        while let Some(Flight { packet, slots, state: State::Done(status) }) =
            self.flights.front().copied()
        {
            self.flights.pop_front();
            self.first += 1;
            self.slots.clear();
            for Buffered { slot, buffer } in self.buffers.drain(..slots) {
                self.slots.push(slot);
                self.free.push(buffer);
            }
            let packet = TxPacket { slots: (0, slots), ..packet };
            self.back.complete(&packet, &self.slots, status);
        }
        self.back.ring().push()
    }

    /// Who is waited for, each once if it is waited for once.
    pub(super) fn waits(&self) -> impl Iterator<Item = (PortId, u64)> {
        self.flights.iter().filter_map(|flight| match flight.state {
            State::Waits { port, since_ns } => Some((port, since_ns)),
            State::Begun { .. } | State::Done(_) => None,
        })
    }
}

impl fmt::Debug for TxRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { back, flights, .. } = self;
        f.debug_struct("TxRing")
            .field("back", back)
            .field("flights", flights)
            .finish_non_exhaustive()
    }
}

impl GuestRing for TxRing {
    fn size(&mut self) -> u32 {
        self.back.ring().size()
    }

    fn call_if_wanted(&mut self) -> Option<bool> {
        self.link.call_if_wanted(self.back.ring())
    }
}

impl TransmitRing for TxRing {
    fn wants_call(&mut self) -> bool {
        self.back.ring().wants_notify()
    }
}

/// The virtio-net header that a packet would have had; its front is gathered if that needs it.
fn vnet_hdr<'b>(
    packet: &TxPacket,
    buffers: impl Iterator<Item = &'b Buffered>,
    pool: &Pool,
) -> Result<VnetHdr, DropReason> {
    if !packet.csum_blank && packet.gso.is_none() {
        return Ok(VnetHdr::default());
    }
    let mut head = [0; HEAD_LEN];
    let mut len = 0;
    for Buffered { slot, buffer } in buffers {
        let Some(data) = pool.data(*buffer, slot.segment.len) else { continue };
        len += data.read(&mut head[len..]);
        if len == HEAD_LEN {
            break;
        }
    }
    packet.vnet_hdr(&head[..len]).map_err(|_| DropReason::GsoHeaders)
}

/// The counter for a packet that its requests do not describe.
fn refused(error: &PacketError) -> DropReason {
    match error {
        PacketError::FirstSlotShort { .. } => DropReason::FrameTooShort,
        PacketError::Slots { .. } | PacketError::SlotBeyondPacket { .. } => {
            DropReason::FrameTooLong
        }
        PacketError::UnknownFlags { .. } => DropReason::BadRequest,
    }
}
