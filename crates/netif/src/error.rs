//! What can be wrong with a ring, and with a packet in it.

use weir_limits::{
    NETIF_EXTRAS_MAX, NETIF_TX_FRAGS_FATAL, NETIF_TX_FRAGS_MAX, XEN_PAGE_LEN, XEN_RING_PAGES_MAX,
};

/// A ring cannot be set up on the pages that the front end granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SetupError {
    /// No room for one entry, or more pages than the bound.
    #[error("a ring of {0} bytes holds no entry, or exceeds {XEN_RING_PAGES_MAX} pages")]
    Length(usize),
    /// A page that does not begin at a multiple of 4.
    #[error("a ring's memory is not aligned to 4 bytes")]
    Misaligned,
    /// More requests than entries are waiting in a ring that is taken over.
    #[error("request producer {req_prod} is not within {size} of response producer {rsp_prod}")]
    Indices {
        /// `req_prod`.
        req_prod: u32,
        /// `rsp_prod`.
        rsp_prod: u32,
        /// Entries of the ring.
        size: u32,
    },
}

/// The other side broke the rules in a way that makes everything after it meaningless. The interface
/// stops, as with Linux's netback (`xenvif_fatal_tx_err`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// More requests than the ring has room for, or fewer than before (`RING_REQUEST_PROD_OVERFLOW`).
    #[error("request producer went from {from} to {to} in a ring of {size}")]
    RequestProducer {
        /// What it was.
        from: u32,
        /// What the front end wrote.
        to: u32,
        /// Entries of the ring.
        size: u32,
    },
    /// More responses than requests were made, or fewer than before (`RING_RESPONSE_PROD_OVERFLOW`).
    #[error("response producer went from {from} to {to} in a ring of {size}")]
    ResponseProducer {
        /// What it was.
        from: u32,
        /// What the back end wrote.
        to: u32,
        /// Entries of the ring.
        size: u32,
    },
    /// A request says that its packet goes on, and there is no further request.
    #[error("the packet at request {index} has no end")]
    Unfinished {
        /// Its first request.
        index: u32,
    },
    /// Extra info is announced, and there is no further request.
    #[error("the extra infos of the packet at request {index} have no end")]
    MissingExtra {
        /// The packet's first request.
        index: u32,
    },
    /// More extra infos than there are types.
    #[error("the packet at request {index} has more than {NETIF_EXTRAS_MAX} extra infos")]
    TooManyExtras {
        /// The packet's first request.
        index: u32,
    },
    /// An extra info of a type that does not exist.
    #[error("extra info at request {index} has type {kind}")]
    ExtraType {
        /// The extra info's place.
        index: u32,
        /// `type`.
        kind: u8,
    },
    /// More slots than any front end needs.
    #[error(
        "the packet at request {index} has more than {NETIF_TX_FRAGS_FATAL} slots after its first"
    )]
    TooManySlots {
        /// Its first request.
        index: u32,
    },
    /// Bytes beyond the page that the grant is for.
    #[error("request {index}: {size} bytes at offset {offset} are not in a page of {XEN_PAGE_LEN}")]
    CrossesPage {
        /// The request's place.
        index: u32,
        /// `offset`.
        offset: u16,
        /// `size`, of a packet's first slot without those of the others.
        size: u16,
    },
    /// A GSO type that does not exist.
    #[error("the packet at request {index} has GSO type {kind}")]
    GsoType {
        /// Its first request.
        index: u32,
        /// `gso.type`.
        kind: u8,
    },
    /// Segments of 0 bytes.
    #[error("the packet at request {index} has a GSO size of 0")]
    GsoSizeZero {
        /// Its first request.
        index: u32,
    },
}

impl RingError {
    /// A stable name for counters and statistics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::RequestProducer { .. } => "request_producer",
            Self::ResponseProducer { .. } => "response_producer",
            Self::Unfinished { .. } => "packet_unfinished",
            Self::MissingExtra { .. } => "extra_missing",
            Self::TooManyExtras { .. } => "too_many_extras",
            Self::ExtraType { .. } => "extra_type",
            Self::TooManySlots { .. } => "too_many_slots",
            Self::CrossesPage { .. } => "crosses_page",
            Self::GsoType { .. } => "gso_type",
            Self::GsoSizeZero { .. } => "gso_size_zero",
        }
    }
}

/// A packet that is answered with `NETIF_RSP_ERROR`, slot by slot; the interface goes on. Honest front
/// ends with defects send such packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    /// More slots than Linux's netback takes, and fewer than make it an attack.
    #[error(
        "the packet has {slots} slots after its first; at most {NETIF_TX_FRAGS_MAX} are allowed"
    )]
    Slots {
        /// Slots after the first one.
        slots: usize,
    },
    /// The slots are longer together than the packet is said to be: a frame of 64 KiB or more, the
    /// length of which overflowed.
    #[error("a slot has {size} bytes, and the packet has {left} bytes left")]
    SlotBeyondPacket {
        /// `size` of the slot.
        size: u16,
        /// Bytes that the slots before it left.
        left: u16,
    },
    /// The first slot has no Ethernet header.
    #[error("the first slot has {len} bytes, too few for an Ethernet header")]
    FirstSlotShort {
        /// Bytes of the first slot.
        len: u16,
    },
    /// A flag that `public/io/netif.h` does not define.
    #[error("a request or an extra info has undefined flags {flags:#06x}")]
    UnknownFlags {
        /// All of its flags.
        flags: u16,
    },
}

impl PacketError {
    /// A stable name for counters and statistics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Slots { .. } => "slots",
            Self::SlotBeyondPacket { .. } => "slot_beyond_packet",
            Self::FirstSlotShort { .. } => "first_slot_short",
            Self::UnknownFlags { .. } => "unknown_flags",
        }
    }
}
