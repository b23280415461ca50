//! Descriptors of both ring formats, and the check that makes one a piece of the guest's memory.

use weir_guestmem::{GuestMemory, MainRegions, Slice};

use crate::error::RingError;
use crate::layout::{DESC_BYTES, DESC_F_INDIRECT, DESC_F_NEXT, DESC_F_WRITE};

/// An opaque name of a chain, from the take to the completion.
///
/// A token contains all data for the completion, so a ring keeps no table of chains under way: in a split ring the
/// first descriptor; in a packed ring the buffer id, the slots, and the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Token(u64);

impl Token {
    #[inline(always)]
    pub(crate) fn split(head: u16) -> Self {
        Self(head.into())
    }

    /// First descriptor, in a split ring.
    #[inline(always)]
    pub(crate) fn head(self) -> u16 {
        self.0 as u16
    }

    #[inline(always)]
    pub(crate) fn packed(id: u16, slots: u16, at: u16) -> Self {
        Self(u64::from(id) | u64::from(slots) << 16 | u64::from(at) << 32)
    }

    /// Buffer id, in a packed ring. The guest chose it, and it is only returned to the guest.
    #[inline(always)]
    pub(crate) fn id(self) -> u16 {
        self.0 as u16
    }

    /// Slots, in a packed ring.
    #[inline(always)]
    pub(crate) fn slots(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// Place of the list's first slot, in a packed ring.
    #[inline(always)]
    pub(crate) fn at(self) -> u16 {
        (self.0 >> 32) as u16
    }
}

impl From<Token> for u64 {
    #[inline]
    fn from(token: Token) -> Self {
        token.0
    }
}

/// The reverse of the conversion of a [`Token`] to a number.
impl From<u64> for Token {
    #[inline]
    fn from(bits: u64) -> Self {
        Self(bits)
    }
}

/// A chain that was taken from a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chain {
    /// The name of the chain until it is completed.
    pub token: Token,
    /// Bytes in all its buffers.
    pub len: u32,
}

/// A chain that was just taken.
#[derive(Debug, Clone, Copy)]
pub struct Taken<'m> {
    /// The chain.
    pub chain: Chain,
    /// The chain's first piece.
    pub front: Slice<'m>,
    /// The indices of the chain's first piece and behind its last one among all pieces. They are equal if `front` is
    /// the whole chain, which is then not among them.
    pub pieces: (u32, u32),
}

impl<'m> Taken<'m> {
    /// A chain of one buffer.
    #[inline(always)]
    pub(crate) fn plain(token: Token, front: Slice<'m>) -> Self {
        let chain = Chain { token, len: front.len() as u32 }; // a descriptor's
        Self { chain, front, pieces: (0, 0) }
    }

    /// True if `front` is the whole chain, which is not among the pieces.
    #[inline(always)]
    pub fn is_plain(&self) -> bool {
        self.pieces.0 == self.pieces.1
    }

    /// A chain whose buffers, at least one, are the pieces behind the first `before`.
    pub(crate) fn behind(before: usize, chain: Chain, pieces: &[Slice<'m>]) -> Self {
        Self { chain, front: pieces[before], pieces: (before as u32, pieces.len() as u32) }
    }
}

/// A chain of one buffer in one of the two largest regions, if the next one is such: its name, and the buffer.
pub type Plain<'m> = Option<(Token, Slice<'m>)>;

/// The direction of a queue's buffers; a network queue's chains have only one (virtio 1.2 §5.1.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The device reads: transmit queues.
    Readable,
    /// The device writes: receive queues.
    Writable,
}

/// A descriptor as it lies in memory, read once: address, then length and two more fields, `flags, next` in a split
/// ring (§2.7.5) and `id, flags` in a packed one (§2.8.13). It is two words, which stay in registers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Descriptor {
    address: u64,
    /// From the lowest bit: length, flags, next or id.
    rest: u64,
}

impl Descriptor {
    #[inline(always)]
    pub(crate) fn parse(bytes: [u8; DESC_BYTES]) -> Self {
        let [a0, a1, a2, a3, a4, a5, a6, a7, r0, r1, r2, r3, r4, r5, r6, r7] = bytes;
        Self {
            address: u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            rest: u64::from_le_bytes([r0, r1, r2, r3, r4, r5, r6, r7]),
        }
    }

    /// A descriptor of these words: address, length, and the two other fields.
    #[inline(always)]
    pub(crate) fn of_words((address, len, others): (u64, u32, u32)) -> Self {
        Self { address, rest: u64::from(len) | u64::from(others) << 32 }
    }

    #[inline(always)]
    pub(crate) fn parse_packed(bytes: [u8; DESC_BYTES]) -> Self {
        let Self { address, rest } = Self::parse(bytes);
        Self::packed(address, rest)
    }

    /// A descriptor of a packed ring: `rest` is its second word, from the lowest bit: length, id, flags.
    #[inline(always)]
    pub(crate) fn packed(address: u64, rest: u64) -> Self {
        let id_flags = (rest >> 32) as u32;
        Self { address, rest: u64::from(id_flags.rotate_left(16)) << 32 | u64::from(rest as u32) }
    }

    #[inline(always)]
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    #[inline(always)]
    pub(crate) fn len(&self) -> u32 {
        self.rest as u32
    }

    #[inline(always)]
    pub(crate) fn flags(&self) -> u16 {
        (self.rest >> 32) as u16
    }

    /// The next descriptor, in a split ring.
    #[inline(always)]
    pub(crate) fn next(&self) -> u16 {
        (self.rest >> 48) as u16
    }

    /// The buffer id, in a packed ring.
    #[inline(always)]
    pub(crate) fn id(&self) -> u16 {
        (self.rest >> 48) as u16
    }
}

/// Flags that show whether a descriptor is a chain of one buffer, and in which direction.
pub(crate) const PLAIN_FLAGS: u16 = DESC_F_NEXT | DESC_F_INDIRECT | DESC_F_WRITE;

/// The value of [`PLAIN_FLAGS`] in a chain of one buffer.
#[inline(always)]
pub(crate) fn plain_flags(direction: Direction) -> u16 {
    if direction == Direction::Writable { DESC_F_WRITE } else { 0 }
}

/// The buffer of a chain of `only` this descriptor, if it is valid and in one of the [two largest
/// regions](GuestMemory::main), as nearly all are. `None` does not mean that the chain is invalid.
#[inline(always)]
pub(crate) fn plain_buffer<'m>(
    only: Descriptor,
    direction: Direction,
    main: MainRegions<'m>,
) -> Option<Slice<'m>> {
    if only.flags() & PLAIN_FLAGS != plain_flags(direction) {
        return None;
    }
    main.slice(only.address(), only.len())
}

/// Checks the buffer of `descriptor`, appends it to `pieces` and its length to `len`. A buffer of 0 bytes, which the
/// standard does not forbid, has no address and adds nothing. `head` names the chain in errors.
#[inline(always)]
pub(crate) fn add_buffer<'m>(
    descriptor: Descriptor,
    direction: Direction,
    head: u16,
    memory: &'m GuestMemory,
    pieces: &mut Vec<Slice<'m>>,
    len: &mut u32,
) -> Result<(), RingError> {
    let writable = descriptor.flags() & DESC_F_WRITE != 0;
    match direction {
        Direction::Readable if writable => return Err(RingError::WritableInTransmit { head }),
        Direction::Writable if !writable => return Err(RingError::ReadOnlyInReceive { head }),
        _ => {}
    }
    if descriptor.len() == 0 {
        return Ok(());
    }
    *len = len.checked_add(descriptor.len()).ok_or(RingError::LengthOverflow { head })?;
    if !memory.pieces(descriptor.address(), descriptor.len(), pieces) {
        return Err(RingError::not_in(memory, descriptor.address(), descriptor.len()));
    }
    Ok(())
}

/// The length of a whole chain; an error if it is 0.
#[inline(always)]
pub(crate) fn whole(len: u32, head: u16) -> Result<u32, RingError> {
    if len == 0 { Err(RingError::ZeroLength { head }) } else { Ok(len) }
}

/// The table of an indirect descriptor, and the number of its entries.
#[inline]
pub(crate) fn indirect_table<'m>(
    descriptor: Descriptor,
    negotiated: bool,
    head: u16,
    memory: &'m GuestMemory,
) -> Result<(Slice<'m>, u32), RingError> {
    if !negotiated {
        return Err(RingError::IndirectNotNegotiated { head });
    }
    if descriptor.flags() & DESC_F_NEXT != 0 {
        return Err(RingError::IndirectMisused { head });
    }
    let len = descriptor.len();
    if len == 0 || !(len as usize).is_multiple_of(DESC_BYTES) {
        return Err(RingError::IndirectLength { head, len });
    }
    let memory = memory.tables();
    let table = memory
        .slice(descriptor.address(), len)
        .ok_or_else(|| RingError::not_in(memory, descriptor.address(), len))?;
    Ok((table, len / DESC_BYTES as u32))
}
