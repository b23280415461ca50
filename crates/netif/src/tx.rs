//! What a guest transmits: requests become checked packets, by the rules of `public/io/netif.h` ("Guest
//! transmit") and of Linux's netback where the header leaves them open.
//!
//! | what is wrong | what netback does, and weir |
//! |---|---|
//! | the producer, an unfinished packet or chain of extra infos, an unknown type, GSO size 0, a page crossed, more than 20 further slots | the interface stops: [`RingError`] |
//! | 19 or 20 further slots, a slot beyond the packet, no Ethernet header in the first slot | each slot is answered with `NETIF_RSP_ERROR`: [`PacketError`] |
//! | more extra infos than types | netback reads on to the ring's end; weir stops |
//! | flags that are not defined | netback ignores them; weir answers with `NETIF_RSP_ERROR` |

use weir_guestmem::Window;
use weir_limits::{
    FRAME_LEN_MIN, NETIF_EXTRAS_MAX, NETIF_TX_FRAGS_FATAL, NETIF_TX_FRAGS_MAX, XEN_PAGE_LEN,
};
use weir_wire::{GsoKind, Mac};

use crate::back::BackRing;
use crate::error::{PacketError, RingError, SetupError};
use crate::message::*;
use crate::plan::Segment;

/// One slot of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TxSlot {
    /// Where its bytes are, inside one page. It may have none.
    pub segment: Segment,
    /// The front end's name for the request: [`TxBack::complete`] answers with it.
    pub id: u16,
}

/// How a big packet is to be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TxGso {
    /// What its segments are; never UDP, for which Xen has no type.
    pub kind: GsoKind,
    /// Payload bytes of each segment, at least 1.
    pub size: u16,
}

/// A checked packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TxPacket {
    /// Its slots: so many, from this one of those that [`TxBack::take`] appended to.
    pub slots: (usize, usize),
    /// Extra infos, which are answered with the packet.
    pub extras: u8,
    /// Bytes in all slots: at least an Ethernet header, at most 65,535.
    pub len: u32,
    /// The protocol checksum is left to the receiver.
    pub csum_blank: bool,
    /// Whether it is to be cut.
    pub gso: Option<TxGso>,
    /// The flow's hash as the sender says, unchecked: an index at best.
    pub hash: Option<u32>,
}

/// A change to the addresses that a guest wants, in a dummy packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Multicast {
    /// The address, which may be none of a group.
    pub address: Mac,
    /// Wanted, or no longer.
    pub add: bool,
    /// The dummy, whose one slot says nothing.
    pub packet: TxPacket,
}

/// What was next in a transmit ring, to be [completed](TxBack::complete) in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// A packet to forward.
    Packet(TxPacket),
    /// No packet: its status says whether the change was made.
    Multicast(Multicast),
    /// What can't be a packet, whose slots need not be in a page.
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
    /// Flags that are not defined.
    unknown: Option<PacketError>,
}

impl TxBack {
    /// As [`BackRing::attach`].
    pub fn attach(sring: Window) -> Result<Self, SetupError> {
        Ok(Self { ring: BackRing::attach(sring)? })
    }

    /// The ring, for what has nothing to do with packets: refilling, pushing, events.
    #[inline]
    pub fn ring(&mut self) -> &mut BackRing<TX_SLOT_BYTES> {
        &mut self.ring
    }

    /// Takes the next packet of those that the last [`BackRing::refill`] counted, each request copied
    /// once and checked. Its slots are appended to `slots`. Longer than a screen: what is wrong with a packet is said
    /// only when its last request is read.
    ///
    /// # Errors
    /// [`RingError`] when nothing in the ring can be believed any more: the interface is to stop, and the
    /// ring is not to be used again.
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
            // The first request's size is the packet's: what the others have is not in its page.
            slot.segment.len = left;
        }
        Ok(Some(Taken::Packet(packet)))
    }

    #[inline]
    fn request(&mut self) -> Option<TxRequest> {
        self.ring.request().map(|bytes| TxRequest::from_bytes(&bytes))
    }

    /// The extra infos of the packet at `index`, in the requests after its first.
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
                // Only from back to front has it a meaning.
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

    /// Answers all requests of a packet whose slots [`take`](Self::take) put into `slots`: one response for each,
    /// and a null response for each extra info. Packets may complete in any order.
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
