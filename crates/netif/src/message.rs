//! What one entry of a transmit or receive ring says: `public/io/netif.h`, "Guest transmit", "Guest
//! receive" and "Extra Info". Fields are little-endian; nothing in these values has been checked.

use weir_wire::Mac;

/// Bytes of an entry of a transmit ring (`union netif_tx_sring_entry`).
pub const TX_SLOT_BYTES: usize = 12;
/// Bytes of an entry of a receive ring (`union netif_rx_sring_entry`).
pub const RX_SLOT_BYTES: usize = 8;

/// `flags` of a transmit request (`NETTXF_*`).
pub mod tx_flags {
    /// The protocol checksum is left to the receiver; its field holds the pseudo-header's sum.
    pub const CSUM_BLANK: u16 = 1;
    /// The data has been found right.
    pub const DATA_VALIDATED: u16 = 1 << 1;
    /// The packet goes on in the next request.
    pub const MORE_DATA: u16 = 1 << 2;
    /// An extra info is in the next request; a packet's first request only.
    pub const EXTRA_INFO: u16 = 1 << 3;
    /// All that are defined.
    pub const DEFINED: u16 = CSUM_BLANK | DATA_VALIDATED | MORE_DATA | EXTRA_INFO;
}

/// `flags` of a receive response (`NETRXF_*`).
pub mod rx_flags {
    /// The data has been found right.
    pub const DATA_VALIDATED: u16 = 1;
    /// The protocol checksum is left to the guest; its field holds the pseudo-header's sum.
    pub const CSUM_BLANK: u16 = 1 << 1;
    /// The packet goes on in the next response.
    pub const MORE_DATA: u16 = 1 << 2;
    /// An extra info is in the next response.
    pub const EXTRA_INFO: u16 = 1 << 3;
}

/// `status` of a response (`NETIF_RSP_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i16)]
pub enum Status {
    /// The packet was dropped, and nothing was wrong with it.
    Dropped = -2,
    /// Something was wrong with the request.
    Error = -1,
    /// Done.
    Okay = 0,
    /// No response: the request was an extra info.
    Null = 1,
}

/// `struct netif_tx_request`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TxRequest {
    /// Grant reference of the page.
    pub gref: u32,
    /// Where the bytes begin in it.
    pub offset: u16,
    /// [`tx_flags`].
    pub flags: u16,
    /// The front end's name for the request, for the response.
    pub id: u16,
    /// Bytes: of a packet's first request those of the whole packet, else those of this slot.
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

    /// The entry.
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
    /// The front end's name for the request, for the response.
    pub id: u16,
    /// Grant reference of a page that may be written to.
    pub gref: u32,
}

impl RxRequest {
    /// Reads an entry.
    pub const fn from_bytes(bytes: &[u8; RX_SLOT_BYTES]) -> Self {
        let [i0, i1, _, _, g0, g1, g2, g3] = *bytes;
        Self { id: u16::from_le_bytes([i0, i1]), gref: u32::from_le_bytes([g0, g1, g2, g3]) }
    }

    /// The entry.
    pub const fn to_bytes(&self) -> [u8; RX_SLOT_BYTES] {
        let [i0, i1] = self.id.to_le_bytes();
        let [g0, g1, g2, g3] = self.gref.to_le_bytes();
        [i0, i1, 0, 0, g0, g1, g2, g3]
    }
}

/// `struct netif_rx_response`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RxResponse {
    /// The request's.
    pub id: u16,
    /// Where in the page the bytes begin.
    pub offset: u16,
    /// [`rx_flags`].
    pub flags: u16,
    /// Bytes, or a negative [`Status`].
    pub status: i16,
}

impl RxResponse {
    /// Where `status` lies.
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

    /// The entry.
    pub const fn to_bytes(&self) -> [u8; RX_SLOT_BYTES] {
        let [i0, i1] = self.id.to_le_bytes();
        let [o0, o1] = self.offset.to_le_bytes();
        let [f0, f1] = self.flags.to_le_bytes();
        let [s0, s1] = self.status.to_le_bytes();
        [i0, i1, o0, o1, f0, f1, s0, s1]
    }
}

/// Bytes of an extra info: it fits into an entry of either ring.
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
    /// `XEN_NETIF_EXTRA_TYPE_GSO`. No `features` are defined; what is there is not looked at.
    Gso {
        /// Payload bytes of each segment.
        size: u16,
        /// [`GSO_TCPV4`] or [`GSO_TCPV6`].
        kind: u8,
    },
    /// `XEN_NETIF_EXTRA_TYPE_MCAST_ADD`: the guest wants frames to this address.
    McastAdd(Mac),
    /// `XEN_NETIF_EXTRA_TYPE_MCAST_DEL`: it no longer does.
    McastDel(Mac),
    /// `XEN_NETIF_EXTRA_TYPE_HASH`.
    Hash {
        /// What was hashed: the number of a bit of `XEN_NETIF_CTRL_HASH_TYPE_*`.
        kind: u8,
        /// `XEN_NETIF_CTRL_HASH_ALGORITHM_*`.
        algorithm: u8,
        /// The hash.
        value: u32,
    },
    /// `XEN_NETIF_EXTRA_TYPE_XDP` of Linux: room that the back end left before the data.
    Xdp {
        /// Bytes.
        headroom: u16,
    },
}

impl Extra {
    /// Reads an extra info: its value and its `flags`. `Err` has the type, if there is no such.
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

    /// The extra info; `more` says that another one follows.
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
