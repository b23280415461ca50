//! A guest's side of transmit and receive rings, like Linux's netfront, and the front end's half of a shared ring
//! (`public/io/ring.h`, FRONT_RING), for guests that are weir's own or tests.

use std::sync::atomic::Ordering;

use weir_guestmem::{Window, fence};
use weir_limits::{NETIF_EXTRAS_MAX, XEN_PAGE_LEN};

use crate::back::{
    HEADER_BYTES, REQ_EVENT, REQ_PROD, RSP_EVENT, RSP_PROD, checked_size, distance, entry,
    plausible, reached,
};
use crate::error::{RingError, SetupError};
use crate::message::{Segment, *};

/// A ring that this process drives, with entries of `SLOT` bytes. The back end gets no more trust
/// than a guest: indices are checked, and an entry is copied before use.
#[derive(Debug)]
pub struct FrontRing<const SLOT: usize> {
    sring: Window,
    size: u32,
    /// Index of the next request to write (`req_prod_pvt`).
    req_prod: u32,
    /// `req_prod` as last published.
    pushed: u32,
    /// Index of the next response to take.
    rsp_cons: u32,
    /// `rsp_prod` as last read and checked: at most `pushed`.
    rsp_prod: u32,
}

impl<const SLOT: usize> FrontRing<SLOT> {
    /// Makes an empty ring in `sring` (`XEN_FRONT_RING_INIT`).
    ///
    /// # Errors
    /// [`SetupError`] describes the fault of the memory.
    pub fn init(sring: Window) -> Result<Self, SetupError> {
        Self::init_at(sring, 0)
    }

    /// Makes a ring with all indices at `start`; see [`init`](Self::init).
    pub(crate) fn init_at(sring: Window, start: u32) -> Result<Self, SetupError> {
        let size = checked_size(&sring, SLOT)?;
        sring.store32(REQ_PROD, start);
        sring.store32(REQ_EVENT, start.wrapping_add(1));
        sring.store32(RSP_PROD, start);
        sring.store32(RSP_EVENT, start.wrapping_add(1));
        sring.write(RSP_EVENT + 4, [0; HEADER_BYTES - RSP_EVENT - 4]);
        Ok(Self { sring, size, req_prod: start, pushed: start, rsp_cons: start, rsp_prod: start })
    }

    /// Returns the number of entries.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Returns the number of requests that fit (`RING_FREE_REQUESTS`).
    pub fn free(&self) -> u32 {
        self.size - distance(self.rsp_cons, self.req_prod)
    }

    /// Writes the next request, and returns its index; `None` if the ring is full. The back end
    /// sees it after [`push`](Self::push).
    pub fn request(&mut self, bytes: [u8; SLOT]) -> Option<u32> {
        if self.free() == 0 {
            return None;
        }
        let index = self.req_prod;
        self.sring.write(entry(index, self.size, SLOT), bytes);
        self.req_prod = index.wrapping_add(1);
        Some(index)
    }

    /// Publishes the requests. Returns whether the back end wants an event
    /// (`RING_PUSH_REQUESTS_AND_CHECK_NOTIFY`).
    pub fn push(&mut self) -> bool {
        let old = std::mem::replace(&mut self.pushed, self.req_prod);
        if old == self.pushed {
            return false;
        }
        // Release: the back end sees the requests before the index that covers them.
        self.sring.store32_release(REQ_PROD, self.pushed);
        // Pairs with the fence in the back end's `final_check`.
        fence(Ordering::SeqCst);
        reached(self.sring.load32(REQ_EVENT), old, self.pushed)
    }

    /// Reads the producer again, and returns the number of responses that may be taken.
    ///
    /// # Errors
    /// [`RingError::ResponseProducer`] when there are more responses than requests.
    pub fn refill(&mut self) -> Result<u32, RingError> {
        // Acquire: the responses that rsp_prod covers are read after it.
        let to = self.sring.load32_acquire(RSP_PROD);
        let outstanding = distance(self.rsp_cons, self.pushed);
        if !plausible(self.rsp_cons, self.rsp_prod, to, outstanding) {
            return Err(RingError::ResponseProducer { from: self.rsp_prod, to, size: self.size });
        }
        self.rsp_prod = to;
        Ok(self.available())
    }

    /// Returns the number of responses that may be taken without reading the producer again.
    pub fn available(&self) -> u32 {
        distance(self.rsp_cons, self.rsp_prod)
    }

    /// Copies the next response and its index, if [`available`](Self::available) is not 0. After a
    /// response shorter than its entry the bytes are the request's.
    pub fn response(&mut self) -> Option<(u32, [u8; SLOT])> {
        if self.available() == 0 {
            return None;
        }
        let index = self.rsp_cons;
        let bytes = self.sring.read::<SLOT>(entry(index, self.size, SLOT));
        self.rsp_cons = index.wrapping_add(1);
        Some((index, bytes))
    }

    /// Asks for an event at the next response, and returns the number available now
    /// (`RING_FINAL_CHECK_FOR_RESPONSES`). The caller may sleep only if that is 0.
    pub fn final_check(&mut self) -> Result<u32, RingError> {
        self.sring.store32(RSP_EVENT, self.rsp_prod.wrapping_add(1));
        // Pairs with the fence in the back end's `needs_notify`.
        fence(Ordering::SeqCst);
        self.refill()
    }
}

/// An answer to a transmit request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TxResponse {
    /// Id of the request.
    pub id: u16,
    /// A `NETIF_RSP_*`, unchecked: see [`Status`].
    pub status: i16,
}

/// The front end of a transmit ring.
#[derive(Debug)]
pub struct TxFront {
    ring: FrontRing<TX_SLOT_BYTES>,
}

impl TxFront {
    /// Makes an empty ring; see [`FrontRing::init`].
    pub fn init(sring: Window) -> Result<Self, SetupError> {
        Ok(Self { ring: FrontRing::init(sring)? })
    }

    /// Returns the ring, for pushing, refilling and events.
    pub fn ring(&mut self) -> &mut FrontRing<TX_SLOT_BYTES> {
        &mut self.ring
    }

    /// Writes the requests of a packet in `slots`, each with its id. `flags` are the [`tx_flags`]
    /// of the first request, without the flags that announce further requests. Returns `false`, and
    /// writes nothing, if the ring has no room, `slots` is empty, or the packet is 64 KiB or
    /// longer.
    pub fn send(&mut self, slots: &[(Segment, u16)], flags: u16, extras: &[Extra]) -> bool {
        let total: u32 = slots.iter().map(|(segment, _)| u32::from(segment.len)).sum();
        let (Some(((first, id), frags)), Ok(total)) = (slots.split_first(), u16::try_from(total))
        else {
            return false;
        };
        if slots.len() + extras.len() > self.ring.free() as usize {
            return false;
        }
        let more = |more: bool| if more { tx_flags::MORE_DATA } else { 0 };
        let info = if extras.is_empty() { 0 } else { tx_flags::EXTRA_INFO };
        let request = |segment: &Segment, id, flags, size| {
            let Segment { gref, offset, .. } = *segment;
            TxRequest { gref, offset, flags, id, size }.to_bytes()
        };
        let flags = flags | info | more(!frags.is_empty());
        self.ring.request(request(first, *id, flags, total));
        for (nth, extra) in extras.iter().enumerate() {
            let [a, b, c, d, e, f, g, h] = extra.to_bytes(nth + 1 < extras.len());
            self.ring.request([a, b, c, d, e, f, g, h, 0, 0, 0, 0]);
        }
        for (nth, (segment, id)) in frags.iter().enumerate() {
            let flags = more(nth + 1 < frags.len());
            self.ring.request(request(segment, *id, flags, segment.len));
        }
        true
    }

    /// Returns the next answer among those that the last [`FrontRing::refill`] counted. Skips
    /// answers to extra infos.
    pub fn response(&mut self) -> Option<TxResponse> {
        while let Some((_, bytes)) = self.ring.response() {
            let [i0, i1, s0, s1, ..] = bytes;
            let status = i16::from_le_bytes([s0, s1]);
            if status != Status::Null as i16 {
                return Some(TxResponse { id: u16::from_le_bytes([i0, i1]), status });
            }
        }
        None
    }
}

/// A received packet.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RxPacket {
    /// Parts of the packet: the id of the page's request, the offset and the length (bytes).
    pub parts: Vec<(u16, u16, u16)>,
    /// Ids of requests whose pages are empty: they became extra infos, or failed.
    pub unused: Vec<u16>,
    /// [`rx_flags`] of the first response.
    pub flags: u16,
    /// Extra infos.
    pub extras: Vec<Extra>,
    /// A part is missing, or the back end wrote an impossible value. The packet must be dropped.
    pub damaged: bool,
}

/// The front end of a receive ring.
#[derive(Debug)]
pub struct RxFront {
    ring: FrontRing<RX_SLOT_BYTES>,
    /// Id of the request in each entry, since an extra info overwrites it in the ring.
    ids: Vec<u16>,
}

impl RxFront {
    /// Makes an empty ring; see [`FrontRing::init`].
    pub fn init(sring: Window) -> Result<Self, SetupError> {
        let ring = FrontRing::init(sring)?;
        let ids = vec![0; ring.size() as usize];
        Ok(Self { ring, ids })
    }

    /// Returns the ring, for pushing, refilling and events.
    pub fn ring(&mut self) -> &mut FrontRing<RX_SLOT_BYTES> {
        &mut self.ring
    }

    /// Offers a page; returns `false` if the ring is full.
    pub fn offer(&mut self, request: RxRequest) -> bool {
        let Some(index) = self.ring.request(request.to_bytes()) else { return false };
        let size = self.ids.len();
        self.ids[index as usize % size] = request.id;
        true
    }

    /// Returns the next packet among the responses that the last [`FrontRing::refill`] counted. A
    /// back end pushes whole packets, so a packet without an end is damaged.
    pub fn packet(&mut self) -> Option<RxPacket> {
        let mut packet = RxPacket::default();
        let (id, bytes) = self.response()?;
        let first = RxResponse::from_bytes(&bytes);
        packet.flags = first.flags;
        packet.part(id, &first);
        if first.flags & rx_flags::EXTRA_INFO != 0 {
            self.extras(&mut packet);
        }
        let mut more = first.flags & rx_flags::MORE_DATA != 0;
        while more {
            let Some((id, bytes)) = self.response() else {
                packet.damaged = true;
                break;
            };
            let response = RxResponse::from_bytes(&bytes);
            packet.part(id, &response);
            more = response.flags & rx_flags::MORE_DATA != 0;
        }
        Some(packet)
    }

    fn extras(&mut self, packet: &mut RxPacket) {
        while let Some((id, bytes)) = self.response() {
            packet.unused.push(id);
            let Ok((extra, flags)) = Extra::from_bytes(bytes) else { break };
            if packet.extras.len() == NETIF_EXTRAS_MAX {
                break;
            }
            packet.extras.push(extra);
            if flags & EXTRA_MORE == 0 {
                return;
            }
        }
        packet.damaged = true;
    }

    fn response(&mut self) -> Option<(u16, [u8; RX_SLOT_BYTES])> {
        let (index, bytes) = self.ring.response()?;
        Some((self.ids[index as usize % self.ids.len()], bytes))
    }
}

impl RxPacket {
    /// Returns the length of all parts (bytes).
    pub fn len(&self) -> u32 {
        self.parts.iter().map(|(_, _, len)| u32::from(*len)).sum()
    }

    /// Returns whether the packet has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn part(&mut self, id: u16, response: &RxResponse) {
        match u16::try_from(response.status) {
            Ok(len)
                if id == response.id
                    && usize::from(response.offset) + usize::from(len) <= XEN_PAGE_LEN =>
            {
                self.parts.push((id, response.offset, len));
            }
            _ => {
                self.unused.push(id);
                self.damaged = true;
            }
        }
    }
}
