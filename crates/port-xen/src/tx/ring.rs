//! A transmit ring in service: its packets under way, and their buffers.

use std::collections::VecDeque;
use std::mem::take;
use std::sync::Arc;

use weir_engine::burst::{Burst, TakenChain};
use weir_engine::guest::{GuestRing, TransmitRing};
use weir_engine::{DropReason, PortCounters};
use weir_fabric::PortId;
use weir_guestmem::HostPages;
use weir_limits::{BURST_BYTES_MAX, BURST_MAX, HEAD_LEN, PARKED_NS_MAX};
use weir_netif::{PacketError, RingError, Status, TxBack, TxPacket, TxSlot};
use weir_wire::VnetHdr;
use weir_xen::{CopySegment, CopyStatus, Grant, GrantRef};

use super::pool::{self, Pool};
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
    pool: Pool,
    /// In the order of the ring.
    flights: VecDeque<Flight>,
    /// Name of the first of them: those after it count on.
    first: u64,
    /// The requests of all flights, one after the other.
    buffers: VecDeque<Buffered>,
    /// Room for the requests of one packet, and for a burst's copies.
    slots: Vec<TxSlot>,
    copies: Vec<CopySegment<'static>>,
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
            link,
            pool: Pool::new(size)?,
            flights: VecDeque::with_capacity(size.into()),
            first: 0,
            buffers: VecDeque::with_capacity(size.into()),
            slots: Vec::with_capacity(size.into()),
            copies: Vec::with_capacity(size.into()),
        })
    }

    /// The memory of its buffers, for as long as a burst borrows it.
    pub(super) fn pages(&self) -> Arc<HostPages> {
        self.pool.pages()
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

    /// New packets of the ring: taken, copied, and added to `burst`. Says how many requests' worth of
    /// packets that was.
    pub(super) fn fill_new<'m>(
        &mut self,
        pages: &'m HostPages,
        groups: &Groups,
        burst: &mut Burst<'m>,
        now_ns: u64,
        counters: &PortCounters,
    ) -> Result<usize, RingError> {
        self.back.ring().refill()?;
        let frames_max = burst.frames_max.min(BURST_MAX);
        let mut copies = emptied(take(&mut self.copies));
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
                    self.begin(packet, pages, &mut copies);
                }
                Ok(Some(weir_netif::Taken::Multicast(change))) => {
                    let status = groups.change(change.address, change.add);
                    self.back.answer_multicast(change, status);
                }
                Ok(Some(weir_netif::Taken::Refused(error))) => {
                    counters.dropped(refused(&error), 1);
                }
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
            taken += 1;
        }
        let copied = result.is_ok() && self.link.copy(&mut copies);
        let mut statuses = copies.iter().map(|copy| copy.status() == CopyStatus::Done);
        let mut buffer = from_buffer;
        for nth in from..self.flights.len() {
            let slots = self.flights[nth].slots;
            // Not `all`, which would stop at the first.
            let good = statuses.by_ref().take(slots).fold(true, |good, this| good & this);
            let added = if good && copied {
                self.add(nth, buffer, pages, burst, now_ns)
            } else {
                Err(DropReason::CopyFailed)
            };
            if let Err(reason) = added {
                counters.dropped(reason, 1);
                self.flights[nth].state = State::Done(Status::Error);
            }
            buffer += slots;
        }
        drop(statuses);
        self.copies = emptied(copies);
        result.map(|()| taken)
    }

    /// Notes a packet whose requests are in `slots`, and what is to be copied of it.
    fn begin<'m>(
        &mut self,
        packet: TxPacket,
        pages: &'m HostPages,
        copies: &mut Vec<CopySegment<'m>>,
    ) {
        let mut slots = 0;
        for slot in &self.slots {
            // As many buffers as the ring has entries: there is one for each request.
            let Some(buffer) = self.pool.take() else { break };
            self.buffers.push_back(Buffered { slot: *slot, buffer });
            let segment = slot.segment;
            let grant = Grant {
                domain: self.link.domain,
                reference: GrantRef(segment.gref),
                offset: segment.offset,
            };
            let to = pool::data(pages, buffer, segment.len);
            // Within its page, which `TxBack` has checked.
            copies.extend(to.and_then(|to| CopySegment::from_grant(grant, to)));
            slots += 1;
        }
        self.flights.push_back(Flight { packet, slots, state: State::Done(Status::Okay) });
    }

    /// Adds flight number `nth`, the data of which are in the buffers from number `from` on.
    fn add<'m>(
        &self,
        nth: usize,
        from: usize,
        pages: &'m HostPages,
        burst: &mut Burst<'m>,
        arrived_ns: u64,
    ) -> Result<(), DropReason> {
        let Flight { packet, slots, .. } = self.flights[nth];
        let buffers = || self.buffers.range(from..from + slots);
        let vnet = vnet_hdr(&packet, buffers(), pages)?;
        let first = burst.pieces.len();
        for (place, Buffered { slot, buffer }) in buffers().enumerate() {
            let piece = if place == 0 {
                pool::with_header(pages, *buffer, slot.segment.len)
            } else {
                pool::data(pages, *buffer, slot.segment.len)
            };
            burst.pieces.extend(piece.filter(|piece| !piece.is_empty()));
        }
        if let Some(front) = burst.pieces.get(first) {
            front.write_array(vnet.to_bytes());
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
        burst.add(chain, VnetHdr::LEN, arrived_ns).map_err(refused)
    }

    /// Packets that wait, oldest first; those that waited too long are dropped.
    pub(super) fn fill_waiting<'m>(
        &mut self,
        pages: &'m HostPages,
        burst: &mut Burst<'m>,
        now_ns: u64,
        counters: &PortCounters,
    ) -> usize {
        let mut taken = 0;
        let mut buffer = 0;
        for nth in 0..self.flights.len() {
            let flight = self.flights[nth];
            let from = buffer;
            buffer += flight.slots;
            let State::Waits { since_ns, .. } = flight.state else { continue };
            taken += 1;
            let added = if since_ns.saturating_add(PARKED_NS_MAX) <= now_ns {
                Err(DropReason::RxWaitedTooLong)
            } else {
                self.add(nth, from, pages, burst, since_ns)
            };
            if let Err(reason) = added {
                counters.dropped(reason, 1);
            }
            // Unless it is parked again.
            self.flights[nth].state = State::Done(Status::Okay);
        }
        taken
    }

    /// Notes what waits, answers what is done up to the first that is not, and says how many responses the
    /// guest can see more than before.
    pub(super) fn settle(&mut self, burst: &Burst<'_>) -> u32 {
        for parked in &burst.parked {
            let Some(frame) = burst.frames().get(usize::from(parked.frame)) else { continue };
            let nth = frame.token.wrapping_sub(self.first);
            let flight = usize::try_from(nth).ok().and_then(|nth| self.flights.get_mut(nth));
            if let Some(flight) = flight {
                flight.state = State::Waits { port: parked.port, since_ns: frame.arrived_ns };
            }
        }
        self.answer()
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
                self.pool.give_back(buffer);
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
            State::Done(_) => None,
        })
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
    pages: &HostPages,
) -> Result<VnetHdr, DropReason> {
    if !packet.csum_blank && packet.gso.is_none() {
        return Ok(VnetHdr::default());
    }
    let mut head = [0; HEAD_LEN];
    let mut len = 0;
    for Buffered { slot, buffer } in buffers {
        let Some(data) = pool::data(pages, *buffer, slot.segment.len) else { continue };
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
