//! The walk over a list of descriptors in a packed ring, and over its indirect table.
//!
//! As in a split ring, each descriptor is read once and the walk ends after [`CHAIN_LEN_MAX`] of them. A list lies
//! in consecutive slots, without `next`.

use weir_guestmem::{GuestMemory, Slice};
use weir_limits::CHAIN_LEN_MAX;

use crate::buffers::{Descriptor, Direction, add_buffer, indirect_table, whole};
use crate::error::RingError;
use crate::layout::{DESC_BYTES, DESC_F_INDIRECT, DESC_F_NEXT};

#[derive(Debug, Clone, Copy)]
pub(crate) struct Walked {
    /// The buffer id: that of its last descriptor (virtio 1.2 §2.8.6).
    pub(crate) id: u16,
    /// Slots that the list takes in the ring.
    pub(crate) slots: u16,
    /// Bytes in all its buffers.
    pub(crate) len: u32,
}

/// The owner of the walked descriptors, and the rules for them.
#[derive(Clone, Copy)]
pub(crate) struct Rules<'m> {
    pub(crate) direction: Direction,
    pub(crate) indirect_negotiated: bool,
    /// First slot, which names the list in errors.
    pub(crate) slot: u16,
    pub(crate) memory: &'m GuestMemory,
}

/// Appends the buffers of a list to `pieces`. `first` is its first descriptor; `descriptor(n)` reads the nth, or fails.
/// After an error `pieces` may have some of them; the caller stops the port.
pub(crate) fn walk<'m>(
    rules: Rules<'m>,
    first: Descriptor,
    mut descriptor: impl FnMut(u16) -> Result<Descriptor, RingError>,
    pieces: &mut Vec<Slice<'m>>,
) -> Result<Walked, RingError> {
    let Rules { direction, indirect_negotiated, slot, memory } = rules;
    let mut len = 0;
    let mut read = first;
    for slots in 1..=CHAIN_LEN_MAX as u16 {
        let id = read.id();
        if read.flags() & DESC_F_INDIRECT != 0 {
            if slots > 1 && indirect_negotiated {
                return Err(RingError::IndirectMisused { head: slot });
            }
            let (table, count) = indirect_table(read, indirect_negotiated, slot, memory)?;
            walk_table(rules, table, count, pieces, &mut len)?;
            return Ok(Walked { id, slots, len: whole(len, slot)? });
        }
        add_buffer(read, direction, slot, memory, pieces, &mut len)?;
        if read.flags() & DESC_F_NEXT == 0 {
            return Ok(Walked { id, slots, len: whole(len, slot)? });
        }
        read = descriptor(slots)?;
    }
    Err(RingError::ChainTooLong { head: slot })
}

/// An indirect table has no chain: all its entries are buffers, in order, and only the flag `WRITE` has a meaning
/// (virtio 1.2 §2.8.7).
fn walk_table<'m>(
    rules: Rules<'m>,
    table: Slice<'m>,
    count: u32,
    pieces: &mut Vec<Slice<'m>>,
    len: &mut u32,
) -> Result<(), RingError> {
    let Rules { direction, slot, memory, .. } = rules;
    if count as usize > CHAIN_LEN_MAX {
        return Err(RingError::ChainTooLong { head: slot });
    }
    for index in 0..count as usize {
        let mut bytes = [0; DESC_BYTES];
        table.skip(index * DESC_BYTES).read(&mut bytes);
        let read = Descriptor::parse_packed(bytes);
        if read.flags() & DESC_F_INDIRECT != 0 {
            return Err(RingError::IndirectMisused { head: slot });
        }
        add_buffer(read, direction, slot, memory, pieces, len)?;
    }
    Ok(())
}
