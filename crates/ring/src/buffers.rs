//! Descriptors, and what both ring formats make of one: a checked piece of the guest's memory.

use weir_guestmem::{GuestMemory, Slice};

use crate::error::RingError;
use crate::layout::{DESC_BYTES, DESC_F_NEXT, DESC_F_WRITE};

/// A chain that was taken from a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chain {
    /// What names it until it is completed. In a split ring its first descriptor; in a packed ring
    /// a number of the device's own, below the queue size.
    pub head: u16,
    /// Bytes in all its buffers.
    pub len: u32,
}

/// Which way the buffers of a queue go; a network queue's chains go one way only (virtio 1.2 §5.1.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// The device reads: transmit queues.
    Readable,
    /// The device writes: receive queues.
    Writable,
}

/// A descriptor as it lies in memory, read once: the last two fields are `flags, next` in a split
/// ring (§2.7.5) and `id, flags` in a packed one (§2.8.13).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Descriptor {
    pub(crate) address: u64,
    pub(crate) len: u32,
    pub(crate) flags: u16,
    next_or_id: u16,
}

impl Descriptor {
    #[inline]
    pub(crate) fn parse(bytes: [u8; DESC_BYTES]) -> Self {
        let [a0, a1, a2, a3, a4, a5, a6, a7, l0, l1, l2, l3, f0, f1, n0, n1] = bytes;
        Self {
            address: u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            len: u32::from_le_bytes([l0, l1, l2, l3]),
            flags: u16::from_le_bytes([f0, f1]),
            next_or_id: u16::from_le_bytes([n0, n1]),
        }
    }

    #[inline]
    pub(crate) fn parse_packed(bytes: [u8; DESC_BYTES]) -> Self {
        let Self { address, len, flags: id, next_or_id: flags } = Self::parse(bytes);
        Self { address, len, flags, next_or_id: id }
    }

    /// Of a split ring.
    #[inline]
    pub(crate) fn next(&self) -> u16 {
        self.next_or_id
    }

    /// Of a packed ring.
    #[inline]
    pub(crate) fn id(&self) -> u16 {
        self.next_or_id
    }
}

/// Checks the buffer of `descriptor`, appends it to `pieces` and its length to `len`. `head` says
/// which chain is to blame.
#[inline(always)]
pub(crate) fn add_buffer<'m>(
    descriptor: &Descriptor,
    direction: Direction,
    head: u16,
    memory: &'m GuestMemory,
    pieces: &mut Vec<Slice<'m>>,
    len: &mut u32,
) -> Result<(), RingError> {
    if descriptor.len == 0 {
        return Err(RingError::ZeroLength { head });
    }
    let writable = descriptor.flags & DESC_F_WRITE != 0;
    match direction {
        Direction::Readable if writable => return Err(RingError::WritableInTransmit { head }),
        Direction::Writable if !writable => return Err(RingError::ReadOnlyInReceive { head }),
        _ => {}
    }
    *len = len.checked_add(descriptor.len).ok_or(RingError::LengthOverflow { head })?;
    if !memory.pieces(descriptor.address, descriptor.len, pieces) {
        return Err(RingError::BadAddress { address: descriptor.address, len: descriptor.len });
    }
    Ok(())
}

/// The table that an indirect descriptor names, and its entries.
#[inline]
pub(crate) fn indirect_table<'m>(
    descriptor: &Descriptor,
    negotiated: bool,
    head: u16,
    memory: &'m GuestMemory,
) -> Result<(Slice<'m>, u32), RingError> {
    if !negotiated {
        return Err(RingError::IndirectNotNegotiated { head });
    }
    if descriptor.flags & DESC_F_NEXT != 0 {
        return Err(RingError::IndirectMisused { head });
    }
    let len = descriptor.len;
    if len == 0 || !(len as usize).is_multiple_of(DESC_BYTES) {
        return Err(RingError::IndirectLength { head, len });
    }
    let table = memory
        .slice(descriptor.address, len)
        .ok_or(RingError::BadAddress { address: descriptor.address, len })?;
    Ok((table, len / DESC_BYTES as u32))
}
