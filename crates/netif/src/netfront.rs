//! A guest's side of transmit and receive rings, like Linux's netfront.

use weir_guestmem::Window;
use weir_limits::{NETIF_EXTRAS_MAX, XEN_PAGE_LEN};

use crate::error::SetupError;
use crate::front::FrontRing;
use crate::message::*;
use crate::plan::Segment;

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
