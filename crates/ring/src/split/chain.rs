//! The walk over a descriptor chain that a guest wrote.
//!
//! Each descriptor is read once, checked, and used from that copy. The walk ends after
//! [`CHAIN_LEN_MAX`] descriptors whatever the guest does.

use weir_guestmem::{GuestMemory, Slice, Window};
use weir_limits::CHAIN_LEN_MAX;

use crate::error::RingError;
use crate::layout::{DESC_BYTES, DESC_F_INDIRECT, DESC_F_NEXT, DESC_F_WRITE};

/// A chain that was taken from the available ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chain {
    /// Its first descriptor: what names it in the used ring.
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

#[derive(Clone, Copy)]
struct Descriptor {
    address: u64,
    len: u32,
    flags: u16,
    next: u16,
}

impl Descriptor {
    #[inline]
    fn parse(bytes: [u8; DESC_BYTES]) -> Self {
        let [a0, a1, a2, a3, a4, a5, a6, a7, l0, l1, l2, l3, f0, f1, n0, n1] = bytes;
        Self {
            address: u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            len: u32::from_le_bytes([l0, l1, l2, l3]),
            flags: u16::from_le_bytes([f0, f1]),
            next: u16::from_le_bytes([n0, n1]),
        }
    }
}

/// Where the walk reads descriptors: the ring's own table, or an indirect one.
#[derive(Clone, Copy)]
enum Table<'t> {
    Ring { table: &'t Window, size: u16 },
    Indirect { table: Slice<'t>, count: u32 },
}

impl Table<'_> {
    #[inline]
    fn get(&self, index: u16) -> Result<Descriptor, RingError> {
        match *self {
            Table::Ring { table, size } => {
                if index >= size {
                    return Err(RingError::DescriptorOutOfRange { index, size: size.into() });
                }
                Ok(Descriptor::parse(table.read(usize::from(index) * DESC_BYTES)))
            }
            Table::Indirect { table, count } => {
                if u32::from(index) >= count {
                    return Err(RingError::DescriptorOutOfRange { index, size: count });
                }
                let mut bytes = [0; DESC_BYTES];
                table.skip(usize::from(index) * DESC_BYTES).read(&mut bytes);
                Ok(Descriptor::parse(bytes))
            }
        }
    }
}

/// Appends the buffers of the chain that begins at `head` to `pieces`. After an error `pieces` may
/// hold some of them; the caller stops the port.
#[inline]
pub(crate) fn walk<'m>(
    table: &Window,
    size: u16,
    indirect_negotiated: bool,
    direction: Direction,
    head: u16,
    memory: &'m GuestMemory,
    pieces: &mut Vec<Slice<'m>>,
) -> Result<Chain, RingError> {
    let mut table = Table::Ring { table, size };
    let mut index = head;
    let mut len = 0u32;
    for _ in 0..CHAIN_LEN_MAX {
        let descriptor = table.get(index)?;
        if descriptor.flags & DESC_F_INDIRECT != 0 {
            // The device ignores WRITE here (§2.7.5.3.2).
            table = open_indirect(&table, &descriptor, indirect_negotiated, head, memory)?;
            index = 0;
            continue;
        }
        if descriptor.len == 0 {
            return Err(RingError::ZeroLength { head });
        }
        let writable = descriptor.flags & DESC_F_WRITE != 0;
        match direction {
            Direction::Readable if writable => return Err(RingError::WritableInTransmit { head }),
            Direction::Writable if !writable => return Err(RingError::ReadOnlyInReceive { head }),
            _ => {}
        }
        len = len.checked_add(descriptor.len).ok_or(RingError::LengthOverflow { head })?;
        if !memory.pieces(descriptor.address, descriptor.len, pieces) {
            return Err(RingError::BadAddress { address: descriptor.address, len: descriptor.len });
        }
        if descriptor.flags & DESC_F_NEXT == 0 {
            return Ok(Chain { head, len });
        }
        index = descriptor.next;
    }
    Err(RingError::ChainTooLong { head })
}

#[inline]
fn open_indirect<'m>(
    from: &Table<'_>,
    descriptor: &Descriptor,
    negotiated: bool,
    head: u16,
    memory: &'m GuestMemory,
) -> Result<Table<'m>, RingError> {
    if !negotiated {
        return Err(RingError::IndirectNotNegotiated { head });
    }
    if matches!(from, Table::Indirect { .. }) || descriptor.flags & DESC_F_NEXT != 0 {
        return Err(RingError::IndirectMisused { head });
    }
    let len = descriptor.len;
    if len == 0 || !(len as usize).is_multiple_of(DESC_BYTES) {
        return Err(RingError::IndirectLength { head, len });
    }
    let table = memory
        .slice(descriptor.address, len)
        .ok_or(RingError::BadAddress { address: descriptor.address, len })?;
    Ok(Table::Indirect { table, count: len / DESC_BYTES as u32 })
}
