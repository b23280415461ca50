//! A guest's transmit ring: requests become checked packets, by the rules of `public/io/netif.h`
//! ("Guest transmit"), and of Linux's netback where the header leaves them open.
//!
//! | fault | reaction of netback and weir |
//! |---|---|
//! | the producer, an unfinished packet or chain of extra infos, an unknown type, GSO size 0, a page crossed, more than 20 further slots | the interface stops: [`RingError`] |
//! | 19 or 20 further slots, a slot beyond the packet, no Ethernet header in the first slot | each slot is answered with `NETIF_RSP_ERROR`: [`PacketError`] |
//! | more extra infos than types | netback reads on to the ring's end; weir stops |
//! | undefined flags | netback ignores them; weir answers with `NETIF_RSP_ERROR` |

use weir_guestmem::Window;
use weir_limits::{
    FRAME_LEN_MIN, NETIF_EXTRAS_MAX, NETIF_TX_FRAGS_FATAL, NETIF_TX_FRAGS_MAX, XEN_PAGE_LEN,
};
use weir_wire::{GsoKind, Mac};

use crate::back::BackRing;
use crate::error::{PacketError, RingError, SetupError};
use crate::message::{Segment, *};

/// One slot of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TxSlot {
    /// Place of the bytes, inside one page. It may be empty.
    pub segment: Segment,
    /// Id chosen by the front end: [`TxBack::complete`] answers with it.
    pub id: u16,
}

/// Parameters for cutting a big packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TxGso {
    /// Kind of the segments; never UDP, for which Xen has no type.
    pub kind: GsoKind,
    /// Payload of each segment (bytes), at least 1.
    pub size: u16,
}

/// A checked packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TxPacket {
    /// The packet's slots: their beginning and number in the vector that [`TxBack::take`] appended
    /// to.
    pub slots: (usize, usize),
    /// Number of extra infos, which are answered with the packet.
    pub extras: u8,
    /// Length of all slots (bytes): at least an Ethernet header, at most 65,535.
    pub len: u32,
    /// The receiver completes the protocol checksum.
    pub csum_blank: bool,
    /// Parameters for cutting, if the packet is to be cut.
    pub gso: Option<TxGso>,
    /// The flow's hash according to the sender, unchecked: at best an index.
    pub hash: Option<u32>,
}

/// A change of a guest's multicast addresses, in a dummy packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Multicast {
    /// The address, which is not necessarily a group's.
    pub address: Mac,
    /// Adds the address; otherwise removes it.
    pub add: bool,
    /// The dummy packet, whose one slot is meaningless.
    pub packet: TxPacket,
}

/// The next element of a transmit ring, which the caller must [complete](TxBack::complete) in any
/// case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// A packet to forward.
    Packet(TxPacket),
    /// A change without a packet: its status reports whether the change was made.
    Multicast(Multicast),
    /// An invalid packet, whose slots may lie outside a page.
    Refused(TxPacket, PacketError),
}

/// The back end of a transmit ring.
#[derive(Debug)]
pub struct TxBack {
    ring: BackRing<TX_SLOT_BYTES>,
}

/// The last extra info of each type, as netback keeps them.
#[derive(Default)]
struct Extras {
    count: u8,
    gso: Option<TxGso>,
    mcast_add: Option<Mac>,
    mcast_del: Option<Mac>,
    hash: Option<u32>,
    /// Error of undefined flags.
    unknown: Option<PacketError>,
}

impl TxBack {
    /// Takes over the ring; see [`BackRing::attach`].
    pub fn attach(sring: Window) -> Result<Self, SetupError> {
        Ok(Self { ring: BackRing::attach(sring)? })
    }

    /// Returns the ring, for refilling, pushing and events.
    #[inline]
    pub fn ring(&mut self) -> &mut BackRing<TX_SLOT_BYTES> {
        &mut self.ring
    }

    /// Takes the next packet among the requests that the last [`BackRing::refill`] counted. Copies
    /// each request once, checks it, and appends the packet's slots to `slots`. The function
    /// exceeds a screen, since a packet's fault is reported only after its last request.
    ///
    /// # Errors
    /// [`RingError`] when the ring's content can no longer be trusted: the interface must stop, and
    /// the ring must not be used again.
    pub fn take(&mut self, slots: &mut Vec<TxSlot>) -> Result<Option<Taken>, RingError> {
        let index = self.ring.next_index();
        let Some(first) = self.request() else { return Ok(None) };
        let extras = match first.flags & tx_flags::EXTRA_INFO {
            0 => Extras::default(),
            _ => self.extras(index)?,
        };
        let from = slots.len();
        let slot = |request: &TxRequest| TxSlot {
            segment: Segment { gref: request.gref, offset: request.offset, len: request.size },
            id: request.id,
        };
        slots.push(slot(&first));
        let packet = |slots: &[TxSlot]| TxPacket {
            slots: (from, slots.len() - from),
            extras: extras.count,
            len: first.size.into(),
            csum_blank: first.flags & tx_flags::CSUM_BLANK != 0,
            gso: extras.gso,
            hash: extras.hash,
        };
        let dummy = extras.mcast_add.map(|address| (address, true));
        if let Some((address, add)) = dummy.or(extras.mcast_del.map(|address| (address, false))) {
            let multicast = Multicast { address, add, packet: packet(slots) };
            return Ok(Some(Taken::Multicast(multicast)));
        }

        let mut refused = extras.unknown.or(unknown_flags(first.flags));
        let mut left = first.size;
        let mut more = first.flags & tx_flags::MORE_DATA != 0;
        while more {
            let frags = slots.len() - from - 1;
            let place = self.ring.next_index();
            let frag = self.request().ok_or(RingError::Unfinished { index })?;
            if frags >= NETIF_TX_FRAGS_FATAL {
                return Err(RingError::TooManySlots { index });
            }
            inside_page(place, frag.offset, frag.size)?;
            match left.checked_sub(frag.size) {
                Some(rest) => left = rest,
                None => {
                    let beyond = PacketError::SlotBeyondPacket { size: frag.size, left };
                    refused.get_or_insert(beyond);
                }
            }
            refused = refused.or(unknown_flags(frag.flags));
            slots.push(slot(&frag));
            more = frag.flags & tx_flags::MORE_DATA != 0;
        }
        let frags = slots.len() - from - 1;
        if frags > NETIF_TX_FRAGS_MAX {
            refused.get_or_insert(PacketError::Slots { slots: frags });
        }
        if u32::from(left) < FRAME_LEN_MIN {
            refused.get_or_insert(PacketError::FirstSlotShort { len: left });
        }
        let packet = packet(slots);
        if let Some(error) = refused {
            return Ok(Some(Taken::Refused(packet, error)));
        }
        inside_page(index, first.offset, left)?;
        if let Some(slot) = slots.get_mut(from) {
            // The first request's size is the whole packet's, so the other slots' bytes are not in
            // its page.
            slot.segment.len = left;
        }
        Ok(Some(Taken::Packet(packet)))
    }

    #[inline]
    fn request(&mut self) -> Option<TxRequest> {
        self.ring.request().map(|bytes| TxRequest::from_bytes(&bytes))
    }

    /// Reads the extra infos of the packet at `index`, in the requests after its first.
    fn extras(&mut self, index: u32) -> Result<Extras, RingError> {
        let mut extras = Extras::default();
        loop {
            let place = self.ring.next_index();
            let bytes = self.ring.request().ok_or(RingError::MissingExtra { index })?;
            if usize::from(extras.count) == NETIF_EXTRAS_MAX {
                return Err(RingError::TooManyExtras { index });
            }
            extras.count += 1;
            let [info @ .., _, _, _, _] = bytes;
            let (extra, flags) = Extra::from_bytes(info)
                .map_err(|kind| RingError::ExtraType { index: place, kind })?;
            match extra {
                Extra::Gso { size: 0, .. } => return Err(RingError::GsoSizeZero { index }),
                Extra::Gso { size, kind } => {
                    let kind = match kind {
                        GSO_TCPV4 => GsoKind::Tcp4,
                        GSO_TCPV6 => GsoKind::Tcp6,
                        _ => return Err(RingError::GsoType { index, kind }),
                    };
                    extras.gso = Some(TxGso { kind, size });
                }
                Extra::McastAdd(address) => extras.mcast_add = Some(address),
                Extra::McastDel(address) => extras.mcast_del = Some(address),
                Extra::Hash { value, .. } => extras.hash = Some(value),
                // XDP headroom has a meaning only from back end to front end.
                Extra::Xdp { .. } => {}
            }
            if flags & !EXTRA_MORE != 0 {
                extras.unknown = Some(PacketError::UnknownFlags { flags: flags.into() });
            }
            if flags & EXTRA_MORE == 0 {
                return Ok(extras);
            }
        }
    }

    /// Answers all requests of a packet whose slots [`take`](Self::take) put into `slots`: one
    /// response for each, and a null response for each extra info. Packets may complete in any
    /// order.
    pub fn complete(&mut self, packet: &TxPacket, slots: &[TxSlot], status: Status) {
        let (from, count) = packet.slots;
        for (nth, slot) in slots.iter().skip(from).take(count).enumerate() {
            self.ring.respond(tx_response(slot.id, status));
            for _ in 0..if nth == 0 { packet.extras } else { 0 } {
                self.ring.respond(tx_response(0, Status::Null));
            }
        }
    }
}

fn inside_page(index: u32, offset: u16, size: u16) -> Result<(), RingError> {
    if usize::from(offset) + usize::from(size) > XEN_PAGE_LEN {
        return Err(RingError::CrossesPage { index, offset, size });
    }
    Ok(())
}

fn unknown_flags(flags: u16) -> Option<PacketError> {
    (flags & !tx_flags::DEFINED != 0).then_some(PacketError::UnknownFlags { flags })
}
