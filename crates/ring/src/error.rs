//! Errors of a ring.

use weir_guestmem::GuestMemory;
use weir_limits::{BUFFER_PIECES_MAX, CHAIN_LEN_MAX, QUEUE_SIZE_MAX};

/// A ring cannot be set up as the front end asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SetupError {
    /// The size is not a power of two, or beyond the bound (virtio 1.2 §2.7).
    #[error("queue size {0} is not a power of two up to {QUEUE_SIZE_MAX}")]
    Size(u32),
    /// No slot, or more than the bound (virtio 1.2 §2.8.10.1).
    #[error("packed queue size {0} is not from 1 to {QUEUE_SIZE_MAX}")]
    PackedSize(u32),
    /// A ring area is not inside one shared memory region.
    #[error("the {area} area ({bytes} bytes at user address {address:#x}) is not in shared memory")]
    NotShared {
        /// `descriptor`, `driver` or `device`.
        area: &'static str,
        /// The address that the front end sent.
        address: u64,
        /// The length of the area.
        bytes: usize,
    },
    /// A ring area is not aligned as virtio 1.2 §2.7 requires.
    #[error("the {area} area at user address {address:#x} is not aligned to {align} bytes")]
    Misaligned {
        /// `descriptor`, `driver` or `device`.
        area: &'static str,
        /// The address that the front end sent.
        address: u64,
        /// The required alignment.
        align: usize,
    },
    /// The ring base is not a valid position of such a ring.
    #[error("ring base {0:#x} is not a position of this ring")]
    Base(u32),
    /// A packed ring's base is behind the state in its memory.
    #[error(
        "the ring is said to go on at slot {slot}, which a back end has given back already in this round: restart the \
         guest's driver, or the guest"
    )]
    UsedAlready {
        /// The slot.
        slot: u16,
    },
    /// A packed ring's base is ahead of the state in its memory.
    #[error(
        "slot {slot} is said to have been taken, which the driver has not made available: restart the guest's driver, \
         or the guest"
    )]
    NeverOffered {
        /// The slot.
        slot: u16,
    },
}

/// A driver broke the rules of the ring. The port that owns the ring stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// `avail.idx` moved by more than the queue size.
    #[error("available index jumped from {from} to {to} in a queue of {size}")]
    AvailIndexJump {
        /// The index that weir had read before.
        from: u16,
        /// The index that the driver wrote.
        to: u16,
        /// Queue size.
        size: u16,
    },
    /// A slot of a packed ring was made available again before it was used.
    #[error("slot {slot} of {size} was made available again before it was used")]
    AvailableOverrun {
        /// The slot at which the chain begins.
        slot: u16,
        /// Queue size.
        size: u16,
    },
    /// More chains are available at one time than the ring has room for, with `VIRTIO_F_IN_ORDER`.
    #[error("more than {size} chains were made available before any was used")]
    TooManyInFlight {
        /// Queue size.
        size: u16,
    },
    /// A slot of a packed ring was available, and then no longer.
    #[error("slot {slot} was available and no longer is")]
    AvailableRetracted {
        /// The slot.
        slot: u16,
    },
    /// An available entry, or `next`, names no descriptor.
    #[error("descriptor {index} is beyond the table of {size}")]
    DescriptorOutOfRange {
        /// The value that the driver wrote.
        index: u16,
        /// Entries of the table.
        size: u32,
    },
    /// The chain has more descriptors than the bound: it is a loop, or longer than any driver needs.
    #[error("descriptor chain from {head} loops or is longer than {CHAIN_LEN_MAX}")]
    ChainTooLong {
        /// First descriptor.
        head: u16,
    },
    /// No buffer has a byte: there is nothing to take or to fill.
    #[error("descriptor chain from {head} has 0 bytes")]
    ZeroLength {
        /// First descriptor.
        head: u16,
    },
    /// The buffers of a chain add up to 2^32 bytes or more (virtio 1.2 §2.7.5).
    #[error("descriptor chain from {head} is 2^32 bytes or longer")]
    LengthOverflow {
        /// First descriptor.
        head: u16,
    },
    /// A buffer is not in memory that the front end shared.
    #[error(
        "buffer of {len} bytes at guest address {address:#x} is not in shared memory, or in more than {BUFFER_PIECES_MAX} regions"
    )]
    BadAddress {
        /// Guest-physical address.
        address: u64,
        /// Bytes.
        len: u32,
    },
    /// A buffer, or an indirect table, is at an address of a virtual IOMMU whose translation is asked for. The driver
    /// broke no rule: the chain stays in the ring.
    #[error("the translation of I/O address {address:#x} is not known yet")]
    Untranslated {
        /// I/O virtual address.
        address: u64,
    },
    /// The driver offered, in a transmit queue, a buffer for the device to write.
    #[error("descriptor chain from {head} of a transmit queue is device-writable")]
    WritableInTransmit {
        /// First descriptor.
        head: u16,
    },
    /// The driver offered, in a receive queue, a buffer that the device may only read.
    #[error("descriptor chain from {head} of a receive queue is not device-writable")]
    ReadOnlyInReceive {
        /// First descriptor.
        head: u16,
    },
    /// An indirect table without `VIRTIO_F_INDIRECT_DESC`.
    #[error("descriptor chain from {head} uses an indirect table, which was not negotiated")]
    IndirectNotNegotiated {
        /// First descriptor.
        head: u16,
    },
    /// An indirect descriptor inside an indirect table, or with `NEXT` (virtio 1.2 §2.7.5.3.1), or
    /// behind other descriptors of a packed ring (§2.8.19).
    #[error("descriptor chain from {head} nests or continues an indirect table")]
    IndirectMisused {
        /// First descriptor.
        head: u16,
    },
    /// An indirect table whose length is not a multiple of a descriptor's.
    #[error("descriptor chain from {head} has an indirect table of {len} bytes")]
    IndirectLength {
        /// First descriptor.
        head: u16,
        /// Bytes.
        len: u32,
    },
}

impl RingError {
    /// The error of a buffer at `address` that is not in `memory`: a missing translation is asked for.
    #[cold]
    pub(crate) fn not_in(memory: &GuestMemory, address: u64, len: u32) -> Self {
        match memory.ask(address, len) {
            true => Self::Untranslated { address },
            false => Self::BadAddress { address, len },
        }
    }

    /// True if the chain is taken again once its addresses can be translated.
    pub fn is_untranslated(&self) -> bool {
        matches!(self, Self::Untranslated { .. })
    }

    /// A stable name for counters and statistics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::AvailIndexJump { .. } => "avail_index_jump",
            Self::AvailableOverrun { .. } => "available_overrun",
            Self::TooManyInFlight { .. } => "too_many_in_flight",
            Self::AvailableRetracted { .. } => "available_retracted",
            Self::DescriptorOutOfRange { .. } => "descriptor_out_of_range",
            Self::ChainTooLong { .. } => "chain_too_long",
            Self::ZeroLength { .. } => "zero_length_buffer",
            Self::LengthOverflow { .. } => "chain_length_overflow",
            Self::BadAddress { .. } => "bad_address",
            Self::Untranslated { .. } => "untranslated",
            Self::WritableInTransmit { .. } => "writable_in_transmit",
            Self::ReadOnlyInReceive { .. } => "read_only_in_receive",
            Self::IndirectNotNegotiated { .. } => "indirect_not_negotiated",
            Self::IndirectMisused { .. } => "indirect_misused",
            Self::IndirectLength { .. } => "indirect_length",
        }
    }
}
