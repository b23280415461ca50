//! Errors of a ring, and of a packet in it.

use weir_limits::{
    NETIF_EXTRAS_MAX, NETIF_TX_FRAGS_FATAL, NETIF_TX_FRAGS_MAX, XEN_PAGE_LEN, XEN_RING_PAGES_MAX,
};

/// Error: a ring cannot be set up on the front end's pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SetupError {
    /// The pages have no room for one entry, or are more than the bound.
    #[error("a ring of {0} bytes holds no entry, or exceeds {XEN_RING_PAGES_MAX} pages")]
    Length(usize),
    /// A page does not begin at a multiple of 4.
    #[error("a ring's memory is not aligned to 4 bytes")]
    Misaligned,
    /// A ring that is taken over has more waiting requests than entries.
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

/// Error: the other side broke the protocol so that the rest of the ring is meaningless. The
/// interface stops, as with Linux's netback (`xenvif_fatal_tx_err`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// The request producer exceeds the ring's room, or went back (`RING_REQUEST_PROD_OVERFLOW`).
    #[error("request producer went from {from} to {to} in a ring of {size}")]
    RequestProducer {
        /// The previous value.
        from: u32,
        /// The front end's value.
        to: u32,
        /// Entries of the ring.
        size: u32,
    },
    /// The response producer exceeds the requests, or went back (`RING_RESPONSE_PROD_OVERFLOW`).
    #[error("response producer went from {from} to {to} in a ring of {size}")]
    ResponseProducer {
        /// The previous value.
        from: u32,
        /// The back end's value.
        to: u32,
        /// Entries of the ring.
        size: u32,
    },
    /// A request announces more of its packet, but no request follows.
    #[error("the packet at request {index} has no end")]
    Unfinished {
        /// Index of the packet's first request.
        index: u32,
    },
    /// Extra info is announced, but no request follows.
    #[error("the extra infos of the packet at request {index} have no end")]
    MissingExtra {
        /// Index of the packet's first request.
        index: u32,
    },
    /// There are more extra infos than types.
    #[error("the packet at request {index} has more than {NETIF_EXTRAS_MAX} extra infos")]
    TooManyExtras {
        /// Index of the packet's first request.
        index: u32,
    },
    /// The type of an extra info does not exist.
    #[error("extra info at request {index} has type {kind}")]
    ExtraType {
        /// Index of the extra info.
        index: u32,
        /// `type`.
        kind: u8,
    },
    /// There are more slots than any front end needs.
    #[error(
        "the packet at request {index} has more than {NETIF_TX_FRAGS_FATAL} slots after its first"
    )]
    TooManySlots {
        /// Index of the packet's first request.
        index: u32,
    },
    /// The bytes exceed the granted page.
    #[error("request {index}: {size} bytes at offset {offset} are not in a page of {XEN_PAGE_LEN}")]
    CrossesPage {
        /// Index of the request.
        index: u32,
        /// `offset`.
        offset: u16,
        /// `size`; for a packet's first slot without the sizes of the others.
        size: u16,
    },
    /// The GSO type does not exist.
    #[error("the packet at request {index} has GSO type {kind}")]
    GsoType {
        /// Index of the packet's first request.
        index: u32,
        /// `gso.type`.
        kind: u8,
    },
    /// The segments have 0 bytes.
    #[error("the packet at request {index} has a GSO size of 0")]
    GsoSizeZero {
        /// Index of the packet's first request.
        index: u32,
    },
}

impl RingError {
    /// Returns a stable name for counters and statistics.
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

/// Error: a packet is answered with `NETIF_RSP_ERROR`, slot by slot, and the interface continues.
/// Honest front ends with defects send such packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    /// There are more slots than Linux's netback takes, but not enough for an attack.
    #[error(
        "the packet has {slots} slots after its first; at most {NETIF_TX_FRAGS_MAX} are allowed"
    )]
    Slots {
        /// Slots after the first one.
        slots: usize,
    },
    /// The slots exceed the packet's length: a frame of 64 KiB or more whose length overflowed.
    #[error("a slot has {size} bytes, and the packet has {left} bytes left")]
    SlotBeyondPacket {
        /// `size` of the slot.
        size: u16,
        /// Bytes left by the previous slots.
        left: u16,
    },
    /// The first slot has no Ethernet header.
    #[error("the first slot has {len} bytes, too few for an Ethernet header")]
    FirstSlotShort {
        /// Length of the first slot (bytes).
        len: u16,
    },
    /// `public/io/netif.h` does not define this flag.
    #[error("a request or an extra info has undefined flags {flags:#06x}")]
    UnknownFlags {
        /// All flags of the request.
        flags: u16,
    },
}

impl PacketError {
    /// Returns a stable name for counters and statistics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Slots { .. } => "slots",
            Self::SlotBeyondPacket { .. } => "slot_beyond_packet",
            Self::FirstSlotShort { .. } => "first_slot_short",
            Self::UnknownFlags { .. } => "unknown_flags",
        }
    }
}
