//! A batch of grants: the packets of one burst of a transmit queue, and the copies of their bytes.
//! Only the burst's worker uses it, without the queue's lock.
//!
//! If most of a queue's last burst was fetched, the next burst brings whole packets at once, which
//! saves one call.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::mem::take;
use std::sync::Arc;

use weir_engine::burst::Remote;
use weir_engine::burst::{Burst, FrameError, Pieces, TakenChain};
use weir_engine::{DropReason, PortCounters};
use weir_guestmem::Slice;
use weir_limits::HEAD_LEN;
use weir_netif::{Status, TxPacket, TxSlot};
use weir_wire::VnetHdr;
use weir_xen::{CopySegment, CopyStatus, Grant, GrantRef};

use super::pool::{Place, Pool};

/// A request with data, and its buffer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Buffered {
    pub(super) slot: TxSlot,
    pub(super) buffer: u16,
}

/// A packet of a burst.
pub(super) struct Hauled {
    /// The ring's name for the packet.
    pub(super) token: u64,
    packet: TxPacket,
    /// Range of the packet's requests among the haul's: the first, and one past the last.
    requests: (usize, usize),
    arrived_ns: u64,
    /// Status of the answer, unless the packet waits for a receiver.
    pub(super) status: Cell<Status>,
}

/// Packets of one burst.
pub(crate) struct Haul {
    pool: Arc<Pool>,
    hauled: RefCell<Packets>,
    /// Whole packets are copied at once.
    whole: Cell<bool>,
    /// The bytes are present or were requested before: the packets wait only for their receivers.
    waited: Cell<bool>,
    /// Bytes beyond fronts: the total, those fetched later, and those that other Xen guests got
    /// from page to page, or would have got in this way if weir had not had the bytes already.
    taken: Cell<u64>,
    fetched: Cell<u64>,
    passed: Cell<u64>,
    /// Buffers whose grants were found bad when another guest was to get the data.
    bad: RefCell<Vec<u16>>,
    room: RefCell<Room>,
}

#[derive(Default)]
struct Packets {
    packets: Vec<Hauled>,
    requests: Vec<Buffered>,
}

impl Packets {
    fn requests(&self, packet: &Hauled) -> &[Buffered] {
        let (from, end) = packet.requests;
        self.requests.get(from..end).unwrap_or_default()
    }
}

/// Memory that is kept between bursts.
#[derive(Default)]
struct Room {
    copies: Vec<CopySegment<'static>>,
    /// Buffer of each copy, and the number of its packet or frame.
    owners: Vec<(u16, u8)>,
}

/// Returns an empty vector with the memory of `used`, for copies of another burst.
pub(crate) fn emptied<'b>(mut used: Vec<CopySegment<'_>>) -> Vec<CopySegment<'b>> {
    used.clear();
    // Source and target have one layout, so collecting in place keeps the allocation.
    used.into_iter()
        .map(|_| -> CopySegment<'b> { unreachable!("the vector was cleared") })
        .collect()
}

impl Haul {
    pub(super) fn new(pool: Arc<Pool>) -> Self {
        Self {
            pool,
            hauled: RefCell::default(),
            whole: Cell::default(),
            waited: Cell::default(),
            taken: Cell::default(),
            fetched: Cell::default(),
            passed: Cell::default(),
            bad: RefCell::default(),
            room: RefCell::default(),
        }
    }

    /// Begins an empty batch. `whole`: copies whole packets at once. `waited`: copies nothing,
    /// since the packets wait in their buffers.
    pub(super) fn begin(&mut self, whole: bool, waited: bool) {
        let Packets { packets, requests } = self.hauled.get_mut();
        packets.clear();
        requests.clear();
        self.whole.set(whole);
        self.waited.set(waited);
        for count in [&self.taken, &self.fetched, &self.passed] {
            count.set(0);
        }
        self.bad.get_mut().clear();
    }

    /// Adds a packet and its requests.
    pub(super) fn push<'b>(
        &self,
        token: u64,
        packet: TxPacket,
        requests: impl IntoIterator<Item = &'b Buffered>,
        arrived_ns: u64,
    ) {
        let mut hauled = self.hauled.borrow_mut();
        let from = hauled.requests.len();
        hauled.requests.extend(requests);
        let requests = (from, hauled.requests.len());
        let status = Cell::new(Status::Okay);
        hauled.packets.push(Hauled { token, packet, requests, arrived_ns, status });
    }

    /// Visits the packets, each with true if one of its buffers was found bad.
    pub(super) fn each(&self, mut each: impl FnMut(&Hauled, bool)) {
        let (hauled, bad) = (self.hauled.borrow(), self.bad.borrow());
        for packet in &hauled.packets {
            let is_bad = |at: &Buffered| bad.contains(&at.buffer);
            each(packet, !bad.is_empty() && hauled.requests(packet).iter().any(is_bad));
        }
    }

    /// Copies the part of each packet that weir reads into its buffers, by one call for all, unless that happened
    /// before.
    pub(super) fn bring(&self) {
        if self.waited.get() {
            return;
        }
        let (hauled, whole) = (self.hauled.borrow(), self.whole.get());
        let mut room = self.room.take();
        let (mut copies, owners) = (emptied(take(&mut room.copies)), &mut room.owners);
        owners.clear();
        let mut beyond = 0;
        for (packet, nth) in hauled.packets.iter().zip(0_u8..) {
            let mut left = HEAD_LEN as u16;
            for Buffered { slot, buffer } in hauled.requests(packet) {
                let segment = slot.segment;
                let domain = self.pool.link.domain;
                let grant =
                    Grant { domain, reference: GrantRef(segment.gref), offset: segment.offset };
                let front = segment.len.min(left);
                left -= front;
                beyond += u64::from(segment.len - front);
                let here = whole || front == segment.len;
                self.pool.note(*buffer, Place { grant, here });
                let brought = if whole { segment.len } else { front };
                let to = self.pool.data(*buffer, brought).filter(|to| !to.is_empty());
                // The copy is within its page, which `TxBack` has checked.
                if let Some(copy) = to.and_then(|to| CopySegment::from_grant(grant, to)) {
                    copies.push(copy);
                    owners.push((*buffer, nth));
                }
            }
        }
        self.taken.set(beyond);
        let known = self.pool.link.copy(&mut copies);
        for (copy, (_, nth)) in copies.iter().zip(&*owners) {
            if (!known || copy.status() != CopyStatus::Done)
                && let Some(packet) = hauled.packets.get(usize::from(*nth))
            {
                packet.status.set(Status::Error);
            }
        }
        room.copies = emptied(copies);
        self.room.replace(room);
    }

    /// Adds the packets to `burst`, and drops those that cannot be frames.
    pub(super) fn add_to<'h>(&'h self, burst: &mut Burst<'h>, counters: &PortCounters) {
        let hauled = self.hauled.borrow();
        let mut away = 0;
        for packet in &hauled.packets {
            let added = match packet.status.get() {
                Status::Okay => self.add(packet, hauled.requests(packet), burst),
                _ => Err(DropReason::CopyFailed),
            };
            match added {
                Ok(bit) => away |= bit,
                Err(reason) => {
                    counters.dropped(reason, 1);
                    packet.status.set(Status::Error);
                }
            }
        }
        if away != 0 || self.whole.get() {
            // The call is needed even if every frame's payload is here: the burst must learn which receivers get the
            // frames.
            burst.leave_with(self, away);
        }
    }

    /// Adds a packet. Returns its bit in the burst if its payload is not here, else 0.
    fn add<'h>(
        &'h self,
        packet: &Hauled,
        requests: &[Buffered],
        burst: &mut Burst<'h>,
    ) -> Result<u64, DropReason> {
        let pool = &self.pool;
        let vnet = vnet_hdr(&packet.packet, requests, pool)?;
        let first = burst.pieces.len();
        let header = requests.first().and_then(|first| pool.vnet_hdr(first.buffer));
        if let Some(header) = header {
            header.write_array(vnet.to_bytes());
            burst.pieces.push(header);
        }
        for Buffered { slot, buffer } in requests {
            let piece = pool.data(*buffer, slot.segment.len);
            burst.pieces.extend(piece.filter(|piece| !piece.is_empty()));
        }
        let chain = TakenChain {
            token: packet.token,
            len: packet.packet.len + VnetHdr::LEN as u32,
            pieces: Pieces::Among(first as u32, burst.pieces.len() as u32),
        };
        // The guest caused the fault of a header that weir wrote: never fatal.
        let refused = |error: FrameError| error.drop_reason().unwrap_or(DropReason::GsoHeaders);
        burst.add(chain, VnetHdr::LEN, packet.arrived_ns).map_err(refused)?;
        let is_away = |at: &Buffered| pool.place(at.buffer).is_some_and(|place| !place.here);
        Ok(u64::from(requests.iter().any(is_away)) << (burst.frames().len() - 1))
    }

    /// Decides from this burst's fate whether the next burst should copy whole packets at once.
    pub(super) fn is_to_be_whole(&self) -> bool {
        let [taken, fetched, passed] = [&self.taken, &self.fetched, &self.passed].map(Cell::get);
        if self.whole.get() { passed * 2 <= taken } else { fetched * 2 > taken }
    }

    /// Returns the buffer and the grant of the bytes of `slice`; `None` for bytes that are here, or
    /// unknown to the pool.
    #[inline]
    pub(crate) fn grant_of(&self, slice: &Slice<'_>) -> Option<(u16, Grant)> {
        let (buffer, Place { grant, here }) = self.pool.place_of(slice)?;
        self.passed.set(self.passed.get() + slice.len() as u64);
        (!here).then_some((buffer, grant))
    }

    /// Returns true if bytes of `slice` are still in another guest's pages.
    pub(crate) fn is_away(&self, slice: &Slice<'_>) -> bool {
        self.pool.place_of(slice).is_some_and(|(_, place)| !place.here)
    }

    /// Finds the bad grants among these buffers after copies to another guest failed: those that
    /// weir cannot read either.
    #[cold]
    pub(crate) fn blame(&self, buffers: impl Iterator<Item = u16>) {
        let mut room = self.room.take();
        let (mut reads, owners) = (emptied(take(&mut room.copies)), &mut room.owners);
        owners.clear();
        for buffer in buffers {
            let grant = self.pool.place(buffer).map(|place| place.grant);
            let read = grant.zip(self.pool.scrap(buffer));
            if let Some(read) = read.and_then(|(grant, to)| CopySegment::from_grant(grant, to)) {
                reads.push(read);
                owners.push((buffer, 0));
            }
        }
        let known = self.pool.link.copy(&mut reads);
        let mut bad = self.bad.borrow_mut();
        for (read, (buffer, _)) in reads.iter().zip(&*owners) {
            if known && read.status() != CopyStatus::Done {
                bad.push(*buffer);
            }
        }
        room.copies = emptied(reads);
        self.room.replace(room);
    }

    /// Returns true if the buffer was found bad.
    pub(crate) fn is_bad(&self, buffer: u16) -> bool {
        self.bad.borrow().contains(&buffer)
    }
}

impl Remote for Haul {
    fn fetch(&self, burst: &Burst<'_>, frames: u64) -> u64 {
        let mut room = self.room.take();
        let (mut copies, owners) = (emptied(take(&mut room.copies)), &mut room.owners);
        owners.clear();
        let wanted = burst.frames().iter().zip(0_u8..).filter(|(_, n)| frames >> n & 1 != 0);
        for (frame, n) in wanted {
            for slice in burst.payload(frame) {
                let Some((buffer, place)) = self.pool.place_of(slice) else { continue };
                // The copy is within its page, as the request was.
                let copy = CopySegment::from_grant(place.grant, *slice);
                if let Some(copy) = copy.filter(|_| !place.here) {
                    self.fetched.set(self.fetched.get() + slice.len() as u64);
                    copies.push(copy);
                    owners.push((buffer, n));
                }
            }
        }
        let known = self.pool.link.copy(&mut copies);
        let mut lost = 0;
        for (copy, (buffer, frame)) in copies.iter().zip(&*owners) {
            if known && copy.status() == CopyStatus::Done {
                self.pool.note_here(*buffer);
            } else {
                lost |= 1 << frame;
            }
        }
        room.copies = emptied(copies);
        self.room.replace(room);
        lost
    }
}

impl fmt::Debug for Haul {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Haul")
            .field("packets", &self.hauled.borrow().packets.len())
            .finish_non_exhaustive()
    }
}

/// Builds the virtio-net header for a packet. Gathers its front if needed.
fn vnet_hdr(packet: &TxPacket, requests: &[Buffered], pool: &Pool) -> Result<VnetHdr, DropReason> {
    if !packet.csum_blank && packet.gso.is_none() {
        return Ok(VnetHdr::default());
    }
    let mut head = [0; HEAD_LEN];
    let mut len = 0;
    for Buffered { slot, buffer } in requests {
        let Some(data) = pool.data(*buffer, slot.segment.len) else { continue };
        len += data.read(&mut head[len..]);
        if len == HEAD_LEN {
            break;
        }
    }
    packet.vnet_hdr(&head[..len]).map_err(|_| DropReason::GsoHeaders)
}
