//! The walk over a descriptor chain that a guest wrote.
//!
//! Each descriptor is read once, checked, and used from that copy. The walk ends after
//! [`CHAIN_LEN_MAX`] descriptors whatever the guest does.

use weir_guestmem::{Elements, GuestMemory, Slice};
use weir_limits::CHAIN_LEN_MAX;

use crate::buffers::{Chain, Descriptor, Direction, Taken, Token};
use crate::buffers::{PLAIN_FLAGS, add_buffer, indirect_table, plain_flags, whole};
use crate::error::RingError;
use crate::layout::{DESC_BYTES, DESC_F_INDIRECT, DESC_F_NEXT, RingConfig};

/// The table in which the walk reads descriptors: the ring's own, or an indirect one.
#[derive(Clone, Copy)]
enum Table<'t> {
    Ring { table: &'t Elements<DESC_BYTES>, size: u16 },
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
                Ok(Descriptor::parse(table.read(index.into())))
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

/// Appends the buffers of the chain that begins at `head` to `pieces`. After an error `pieces` may have some of them;
/// the caller stops the port.
#[inline(never)]
pub(crate) fn walk<'m>(
    table: &Elements<DESC_BYTES>,
    config: &RingConfig,
    direction: Direction,
    head: u16,
    memory: &'m GuestMemory,
    pieces: &mut Vec<Slice<'m>>,
) -> Result<Taken<'m>, RingError> {
    if let Some(words) = table.word_reader()(head) {
        let only = Descriptor::of_words(words);
        if only.flags() & PLAIN_FLAGS == plain_flags(direction)
            && let Some(front) = memory.translated(only.address(), only.len())
        {
            return Ok(Taken::plain(Token::split(head), front));
        }
    }
    walk_all(table, config, direction, head, memory, pieces)
}

#[inline(never)]
fn walk_all<'m>(
    table: &Elements<DESC_BYTES>,
    config: &RingConfig,
    direction: Direction,
    head: u16,
    memory: &'m GuestMemory,
    pieces: &mut Vec<Slice<'m>>,
) -> Result<Taken<'m>, RingError> {
    let before = pieces.len();
    let mut table = Table::Ring { table, size: config.size };
    let mut descriptor = table.get(head)?;
    let mut len = 0u32;
    for _ in 0..CHAIN_LEN_MAX {
        if descriptor.flags() & DESC_F_INDIRECT != 0 {
            // The device ignores WRITE here (§2.7.5.3.2).
            table = open_indirect(&table, descriptor, config.indirect, head, memory)?;
            descriptor = table.get(0)?;
            continue;
        }
        add_buffer(descriptor, direction, head, memory, pieces, &mut len)?;
        if descriptor.flags() & DESC_F_NEXT == 0 {
            let chain = Chain { token: Token::split(head), len: whole(len, head)? };
            return Ok(Taken::behind(before, chain, pieces));
        }
        descriptor = table.get(descriptor.next())?;
    }
    Err(RingError::ChainTooLong { head })
}

#[inline]
fn open_indirect<'m>(
    from: &Table<'_>,
    descriptor: Descriptor,
    negotiated: bool,
    head: u16,
    memory: &'m GuestMemory,
) -> Result<Table<'m>, RingError> {
    if matches!(from, Table::Indirect { .. }) && negotiated {
        return Err(RingError::IndirectMisused { head });
    }
    let (table, count) = indirect_table(descriptor, negotiated, head, memory)?;
    Ok(Table::Indirect { table, count })
}
