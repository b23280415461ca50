//! A transmit ring in service: its packets under way, in order, and the owners of their buffers.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use weir_engine::burst::{Burst, Frame};
use weir_engine::guest::{GuestRing, TransmitRing};
use weir_engine::{DropReason, PortCounters};
use weir_limits::{BURST_BYTES_MAX, BURST_MAX};
use weir_netif::{PacketError, RingError, Status, TxBack, TxPacket, TxSlot};

use super::haul::{Buffered, Haul};
use super::pool::Pool;
use crate::control::Groups;
use crate::link::Link;

/// A packet that was taken and not answered yet.
#[derive(Debug, Clone, Copy)]
struct Flight {
    packet: TxPacket,
    /// The flight's requests with data: the number of the first since the ring's beginning, and how many.
    from: u64,
    slots: usize,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// In a burst, or waiting in its buffers for a full receiver.
    UnderWay,
    /// The packet is answered once all earlier packets are.
    Done(Status),
}

pub(crate) struct TxRing {
    pub(super) back: TxBack,
    pub(crate) link: Link,
    pool: Arc<Pool>,
    /// Buffers without a request. The last one freed is used first, since its memory is still in
    /// the CPU's cache.
    free: Vec<u16>,
    /// Packets under way, in the order of the ring.
    flights: VecDeque<Flight>,
    /// Name of the first flight. The names of the flights are consecutive.
    first: u64,
    /// The requests of all flights in order, and the number of earlier ones.
    buffers: VecDeque<Buffered>,
    answered: u64,
    /// Whole packets are copied at once.
    fetches_all: bool,
    /// Memory for bursts: one for each concurrent burst.
    hauls: Vec<Haul>,
    /// Memory for the requests of one packet.
    slots: Vec<TxSlot>,
}

impl TxRing {
    /// Returns a ring with nothing under way.
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
            answered: 0,
            fetches_all: false,
            hauls: Vec::new(),
            slots: Vec::with_capacity(size.into()),
            link,
        })
    }

    /// Returns memory for a burst, of new packets or of some that `waited`.
    pub(super) fn haul(&mut self, waited: bool) -> Haul {
        let mut haul = self.hauls.pop().unwrap_or_else(|| Haul::new(Arc::clone(&self.pool)));
        haul.begin(self.fetches_all && !waited, waited);
        haul
    }

    pub(super) fn give_back(&mut self, haul: Haul) {
        self.hauls.push(haul);
    }

    /// See [`weir_engine::Port::peek_tx`].
    pub(crate) fn peek(&mut self) -> bool {
        self.back.ring().peek()
    }

    /// See [`weir_engine::Port::arm_tx`].
    pub(crate) fn arm(&mut self) -> Result<bool, RingError> {
        Ok(self.back.ring().final_check()? > 0)
    }

    /// Takes up to `frames_max` new packets of the ring into `haul`. Returns how many it took,
    /// including invalid packets and changes of groups.
    pub(super) fn take_new(
        &mut self,
        haul: &Haul,
        groups: &Groups,
        frames_max: usize,
        now_ns: u64,
        counters: &PortCounters,
    ) -> Result<usize, RingError> {
        self.back.ring().refill()?;
        let frames_max = frames_max.min(BURST_MAX);
        let (mut taken, mut bytes) = (0, 0);
        while taken < frames_max && bytes < BURST_BYTES_MAX {
            self.slots.clear();
            match self.back.take(&mut self.slots)? {
                None => break,
                Some(weir_netif::Taken::Packet(packet)) => {
                    bytes += u64::from(packet.len);
                    let slots = self.note(packet, State::UnderWay);
                    let token = self.first + (self.flights.len() - 1) as u64;
                    let requests = self.buffers.range(self.buffers.len() - slots..);
                    haul.push(token, packet, requests, now_ns);
                }
                // The request is answered in its turn, and does not become a frame.
                Some(weir_netif::Taken::Multicast(change)) => {
                    let status = groups.change(change.address, change.add);
                    self.note(change.packet, State::Done(status));
                }
                Some(weir_netif::Taken::Refused(packet, error)) => {
                    counters.dropped(refused(&error), 1);
                    self.note(packet, State::Done(Status::Error));
                }
            }
            taken += 1;
        }
        Ok(taken)
    }

    /// Notes a packet whose requests are in `slots`. Returns the number of requests.
    fn note(&mut self, packet: TxPacket, state: State) -> usize {
        let before = self.buffers.len();
        // There are as many buffers as ring entries, hence one for each request.
        let buffers = self.slots.iter().map_while(|slot| {
            let buffer = self.free.pop()?;
            Some(Buffered { slot: *slot, buffer })
        });
        self.buffers.extend(buffers);
        let (from, slots) = (self.answered + before as u64, self.buffers.len() - before);
        self.flights.push_back(Flight { packet, from, slots, state });
        slots
    }

    /// Takes a packet that waited into `haul`.
    pub(super) fn take_again(&mut self, haul: &Haul, token: u64, arrived_ns: u64) {
        let answered = self.answered;
        let Some(&mut Flight { packet, from, slots, .. }) = self.flight(token) else { return };
        let first = (from - answered) as usize; // at most as many as the ring has entries
        haul.push(token, packet, self.buffers.range(first..first + slots), arrived_ns);
    }

    /// Notes the packets of a burst that wait and those whose later copy failed. Answers finished
    /// packets up to the first unfinished one. Returns the number of responses that become visible
    /// to the guest.
    pub(super) fn settle(
        &mut self,
        haul: &Haul,
        burst: &Burst<'_>,
        counters: &PortCounters,
    ) -> u32 {
        haul.each(|packet, _| self.set(packet.token, State::Done(packet.status.get())));
        for parked in &burst.room.parked {
            if let Some(frame) = burst.frames().get(usize::from(parked.frame)) {
                self.set(frame.token, State::UnderWay);
            }
        }
        if burst.remote().is_some() {
            self.settle_failed(haul, burst, counters);
        }
        if !burst.waited {
            self.fetches_all = haul.is_to_be_whole();
        }
        self.answer()
    }

    fn flight(&mut self, token: u64) -> Option<&mut Flight> {
        let nth = token.wrapping_sub(self.first);
        self.flights.get_mut(usize::try_from(nth).ok()?)
    }

    /// Sets the state of a packet.
    fn set(&mut self, token: u64, state: State) {
        if let Some(flight) = self.flight(token) {
            flight.state = state;
        }
    }

    /// Ends the wait of a packet, with the status for its answer.
    pub(super) fn release(&mut self, token: u64, status: Status) {
        self.set(token, State::Done(status));
    }

    /// Drops packets whose grants became invalid before their payload was fetched.
    fn settle_failed(&mut self, haul: &Haul, burst: &Burst<'_>, counters: &PortCounters) {
        let mut failed = 0;
        let lost = burst.lost();
        let is_lost = |n: u8| lost >> n & 1 != 0;
        let frames = burst.frames().iter().zip(0_u8..);
        for (Frame { token, .. }, _) in frames.filter(|(_, n)| is_lost(*n)) {
            self.set(*token, State::Done(Status::Error));
            failed += 1;
        }
        haul.each(|packet, is_bad| {
            let okay = State::Done(Status::Okay);
            if is_bad && self.flight(packet.token).is_some_and(|flight| flight.state == okay) {
                self.set(packet.token, State::Done(Status::Error));
                failed += 1;
            }
        });
        counters.dropped(DropReason::CopyFailed, failed);
    }

    /// Answers finished packets up to the first unfinished one. Returns the number of responses
    /// that become visible to the guest.
    pub(super) fn answer(&mut self) -> u32 {
        while let Some(Flight { packet, slots, state: State::Done(status), .. }) =
            self.flights.front().copied()
        {
            self.flights.pop_front();
            self.first += 1;
            self.slots.clear();
            self.answered += slots as u64;
            for Buffered { slot, buffer } in self.buffers.drain(..slots) {
                self.slots.push(slot);
                self.free.push(buffer);
            }
            let packet = TxPacket { slots: (0, slots), ..packet };
            self.back.complete(&packet, &self.slots, status);
        }
        self.back.ring().push()
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

/// Returns the drop counter for a packet that contradicts its requests.
fn refused(error: &PacketError) -> DropReason {
    match error {
        PacketError::FirstSlotShort { .. } => DropReason::FrameTooShort,
        PacketError::Slots { .. } | PacketError::SlotBeyondPacket { .. } => {
            DropReason::FrameTooLong
        }
        PacketError::UnknownFlags { .. } => DropReason::BadRequest,
    }
}
