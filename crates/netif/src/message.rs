//! Entries of transmit and receive rings: `public/io/netif.h`, "Guest transmit", "Guest receive"
//! and "Extra Info". Fields are little-endian, and these values are unchecked. The copies that move a burst of packets
//! between granted bytes are plain data, so that one system call can make all of them.

use weir_wire::Mac;

/// Length of an entry of a transmit ring (bytes; `union netif_tx_sring_entry`).
pub const TX_SLOT_BYTES: usize = 12;
/// Length of an entry of a receive ring (bytes; `union netif_rx_sring_entry`).
pub const RX_SLOT_BYTES: usize = 8;

/// `flags` of a transmit request (`NETTXF_*`).
pub mod tx_flags {
    /// The receiver completes the protocol checksum; its field holds the pseudo-header's sum.
    pub const CSUM_BLANK: u16 = 1;
    /// The data has been checked.
    pub const DATA_VALIDATED: u16 = 1 << 1;
    /// The packet continues in the next request.
    pub const MORE_DATA: u16 = 1 << 2;
    /// The next request is an extra info. Only in a packet's first request.
    pub const EXTRA_INFO: u16 = 1 << 3;
    /// All defined flags.
    pub const DEFINED: u16 = CSUM_BLANK | DATA_VALIDATED | MORE_DATA | EXTRA_INFO;
}

/// `flags` of a receive response (`NETRXF_*`).
pub mod rx_flags {
    /// The data has been checked.
    pub const DATA_VALIDATED: u16 = 1;
    /// The guest completes the protocol checksum; its field holds the pseudo-header's sum.
    pub const CSUM_BLANK: u16 = 1 << 1;
    /// The packet continues in the next response.
    pub const MORE_DATA: u16 = 1 << 2;
    /// The next response is an extra info.
    pub const EXTRA_INFO: u16 = 1 << 3;
}

/// `status` of a response (`NETIF_RSP_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i16)]
pub enum Status {
    /// The valid packet was dropped.
    Dropped = -2,
    /// The request was invalid.
    Error = -1,
    /// Done.
    Okay = 0,
    /// No response, since the request was an extra info.
    Null = 1,
}

/// `struct netif_tx_request`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TxRequest {
    /// Grant reference of the page.
    pub gref: u32,
    /// Offset of the bytes in the page.
    pub offset: u16,
    /// [`tx_flags`].
    pub flags: u16,
    /// Id chosen by the front end, returned in the response.
    pub id: u16,
    /// Length (bytes): of the whole packet in its first request, of this slot in the others.
    pub size: u16,
}

impl TxRequest {
    /// Reads an entry.
    pub const fn from_bytes(bytes: &[u8; TX_SLOT_BYTES]) -> Self {
        let [g0, g1, g2, g3, o0, o1, f0, f1, i0, i1, s0, s1] = *bytes;
        Self {
            gref: u32::from_le_bytes([g0, g1, g2, g3]),
            offset: u16::from_le_bytes([o0, o1]),
            flags: u16::from_le_bytes([f0, f1]),
            id: u16::from_le_bytes([i0, i1]),
            size: u16::from_le_bytes([s0, s1]),
        }
    }

    /// Writes the entry.
    pub const fn to_bytes(&self) -> [u8; TX_SLOT_BYTES] {
        let [g0, g1, g2, g3] = self.gref.to_le_bytes();
        let [o0, o1] = self.offset.to_le_bytes();
        let [f0, f1] = self.flags.to_le_bytes();
        let [i0, i1] = self.id.to_le_bytes();
        let [s0, s1] = self.size.to_le_bytes();
        [g0, g1, g2, g3, o0, o1, f0, f1, i0, i1, s0, s1]
    }
}

/// `struct netif_tx_response`.
pub(crate) const fn tx_response(id: u16, status: Status) -> [u8; 4] {
    let [i0, i1] = id.to_le_bytes();
    let [s0, s1] = (status as i16).to_le_bytes();
    [i0, i1, s0, s1]
}

/// `struct netif_rx_request`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RxRequest {
    /// Id chosen by the front end, returned in the response.
    pub id: u16,
    /// Grant reference of a writable page.
    pub gref: u32,
}

impl RxRequest {
    /// Reads an entry.
    pub const fn from_bytes(bytes: &[u8; RX_SLOT_BYTES]) -> Self {
        let [i0, i1, _, _, g0, g1, g2, g3] = *bytes;
        Self { id: u16::from_le_bytes([i0, i1]), gref: u32::from_le_bytes([g0, g1, g2, g3]) }
    }

    /// Writes the entry.
    pub const fn to_bytes(&self) -> [u8; RX_SLOT_BYTES] {
        let [i0, i1] = self.id.to_le_bytes();
        let [g0, g1, g2, g3] = self.gref.to_le_bytes();
        [i0, i1, 0, 0, g0, g1, g2, g3]
    }
}

/// `struct netif_rx_response`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RxResponse {
    /// Id of the request.
    pub id: u16,
    /// Offset of the bytes in the page.
    pub offset: u16,
    /// [`rx_flags`].
    pub flags: u16,
    /// Length (bytes), or a negative [`Status`].
    pub status: i16,
}

impl RxResponse {
    /// Offset of `status`.
    pub(crate) const STATUS: usize = 6;

    /// Reads an entry.
    pub const fn from_bytes(bytes: &[u8; RX_SLOT_BYTES]) -> Self {
        let [i0, i1, o0, o1, f0, f1, s0, s1] = *bytes;
        Self {
            id: u16::from_le_bytes([i0, i1]),
            offset: u16::from_le_bytes([o0, o1]),
            flags: u16::from_le_bytes([f0, f1]),
            status: i16::from_le_bytes([s0, s1]),
        }
    }

    /// Writes the entry.
    pub const fn to_bytes(&self) -> [u8; RX_SLOT_BYTES] {
        let [i0, i1] = self.id.to_le_bytes();
        let [o0, o1] = self.offset.to_le_bytes();
        let [f0, f1] = self.flags.to_le_bytes();
        let [s0, s1] = self.status.to_le_bytes();
        [i0, i1, o0, o1, f0, f1, s0, s1]
    }
}

/// Length of an extra info (bytes), which fits into an entry of either ring.
pub const EXTRA_BYTES: usize = 8;
/// `flags` of an extra info: another one follows (`XEN_NETIF_EXTRA_FLAG_MORE`).
pub const EXTRA_MORE: u8 = 1;

/// `type` of an extra info (`XEN_NETIF_EXTRA_TYPE_*`).
const TYPE_GSO: u8 = 1;
const TYPE_MCAST_ADD: u8 = 2;
const TYPE_MCAST_DEL: u8 = 3;
const TYPE_HASH: u8 = 4;
const TYPE_XDP: u8 = 5;

/// `gso.type`: TCP over IPv4 (`XEN_NETIF_GSO_TYPE_TCPV4`).
pub const GSO_TCPV4: u8 = 1;
/// `gso.type`: TCP over IPv6 (`XEN_NETIF_GSO_TYPE_TCPV6`).
pub const GSO_TCPV6: u8 = 2;

/// `struct netif_extra_info` without its `flags`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extra {
    /// `XEN_NETIF_EXTRA_TYPE_GSO`. No `features` are defined, so the field is ignored.
    Gso {
        /// Payload bytes of each segment.
        size: u16,
        /// [`GSO_TCPV4`] or [`GSO_TCPV6`].
        kind: u8,
    },
    /// `XEN_NETIF_EXTRA_TYPE_MCAST_ADD`: the guest wants frames to this address.
    McastAdd(Mac),
    /// `XEN_NETIF_EXTRA_TYPE_MCAST_DEL`: the guest no longer wants them.
    McastDel(Mac),
    /// `XEN_NETIF_EXTRA_TYPE_HASH`.
    Hash {
        /// Hash type: the number of a bit of `XEN_NETIF_CTRL_HASH_TYPE_*`.
        kind: u8,
        /// `XEN_NETIF_CTRL_HASH_ALGORITHM_*`.
        algorithm: u8,
        /// The hash.
        value: u32,
    },
    /// Linux's `XEN_NETIF_EXTRA_TYPE_XDP`: room that the back end left before the data.
    Xdp {
        /// Length of the room (bytes).
        headroom: u16,
    },
}

impl Extra {
    /// Reads an extra info and its `flags`. `Err` holds a type that does not exist.
    pub const fn from_bytes(bytes: [u8; EXTRA_BYTES]) -> Result<(Self, u8), u8> {
        let [kind, flags, a, b, c, d, e, f] = bytes;
        let extra = match kind {
            TYPE_GSO => Self::Gso { size: u16::from_le_bytes([a, b]), kind: c },
            TYPE_MCAST_ADD => Self::McastAdd(Mac([a, b, c, d, e, f])),
            TYPE_MCAST_DEL => Self::McastDel(Mac([a, b, c, d, e, f])),
            TYPE_HASH => {
                Self::Hash { kind: a, algorithm: b, value: u32::from_le_bytes([c, d, e, f]) }
            }
            TYPE_XDP => Self::Xdp { headroom: u16::from_le_bytes([a, b]) },
            _ => return Err(kind),
        };
        Ok((extra, flags))
    }

    /// Writes the extra info. `more` announces another one.
    pub const fn to_bytes(&self, more: bool) -> [u8; EXTRA_BYTES] {
        let flags = if more { EXTRA_MORE } else { 0 };
        match *self {
            Self::Gso { size, kind } => {
                let [a, b] = size.to_le_bytes();
                [TYPE_GSO, flags, a, b, kind, 0, 0, 0]
            }
            Self::McastAdd(Mac([a, b, c, d, e, f])) => [TYPE_MCAST_ADD, flags, a, b, c, d, e, f],
            Self::McastDel(Mac([a, b, c, d, e, f])) => [TYPE_MCAST_DEL, flags, a, b, c, d, e, f],
            Self::Hash { kind, algorithm, value } => {
                let [c, d, e, f] = value.to_le_bytes();
                [TYPE_HASH, flags, kind, algorithm, c, d, e, f]
            }
            Self::Xdp { headroom } => {
                let [a, b] = headroom.to_le_bytes();
                [TYPE_XDP, flags, a, b, 0, 0, 0, 0]
            }
        }
    }
}

/// Bytes in one granted page: `offset + len` is at most a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Grant reference. The hypervisor checks whether the guest granted it, to whom and for what.
    pub gref: u32,
    /// Offset of the bytes in the page.
    pub offset: u16,
    /// Length (bytes).
    pub len: u16,
}

impl Segment {
    /// Returns the first `len` bytes, or all if there are fewer.
    #[must_use]
    pub fn first(self, len: u16) -> Self {
        Self { len: self.len.min(len), ..self }
    }

    /// Returns the bytes from `at` on; none if there are fewer.
    #[must_use]
    pub fn skip(self, at: u16) -> Self {
        let at = at.min(self.len);
        Self { offset: self.offset.saturating_add(at), len: self.len - at, ..self }
    }
}

/// One copy into a granted page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrantCopy {
    /// Index of the source piece.
    pub piece: usize,
    /// Offset in that piece.
    pub at: u32,
    /// Destination, at least 1 byte.
    pub to: Segment,
}

/// Returns the copies that fill `to` from pieces of `lens` bytes in order, until either runs out.
/// No copy crosses the end of a piece or a segment: between two guests, each copy is one
/// `GNTTABOP_copy`.
pub fn copies(
    lens: impl IntoIterator<Item = u32>,
    to: impl IntoIterator<Item = Segment>,
) -> impl Iterator<Item = GrantCopy> {
    let mut pieces = lens.into_iter().enumerate().filter(|(_, len)| *len > 0);
    let mut segments = to.into_iter().filter(|segment| segment.len > 0);
    let mut piece = pieces.next();
    let mut segment = segments.next();
    let mut at = 0;
    std::iter::from_fn(move || {
        let ((nth, len), room) = (piece?, segment?);
        let step = room.first(u16::try_from(len - at).unwrap_or(u16::MAX));
        let copy = GrantCopy { piece: nth, at, to: step };
        at += u32::from(step.len);
        if at == len {
            piece = pieces.next();
            at = 0;
        }
        let rest = room.skip(step.len);
        segment = if rest.len == 0 { segments.next() } else { Some(rest) };
        Some(copy)
    })
}
