//! Chains that are taken and not written to yet, and their room.

use weir_guestmem::{OfMemory, Reused, Slice};
use weir_ring::Chain;

/// Room that is kept between bursts.
#[derive(Debug, Default)]
pub(crate) struct Room {
    pub(super) buffers: Reused<Slice<'static>>,
    pub(super) chains: Reused<Reserved<'static>>,
    pub(super) copies: Reused<[Slice<'static>; 2]>,
}

/// A chain that is taken and not written to yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reserved<'m> {
    /// Once the chain is used, its length is the number of bytes put into it.
    pub(super) chain: Chain,
    /// The first piece.
    pub(super) front: Slice<'m>,
    /// The range of all pieces among the writer's buffers, from the first to the one after the
    /// last, unless `front` is the only piece.
    pub(super) pieces: (u32, u32),
}

impl OfMemory for Reserved<'_> {
    type For<'m> = Reserved<'m>;
}

impl<'m> Reserved<'m> {
    /// True if `front` is the only piece.
    #[inline(always)]
    pub(super) fn is_plain(&self) -> bool {
        self.pieces.0 == self.pieces.1
    }

    /// The chain's pieces.
    pub(super) fn pieces<'r>(&'r self, buffers: &'r [Slice<'m>]) -> &'r [Slice<'m>] {
        match self.pieces {
            (first, end) if first == end => std::slice::from_ref(&self.front),
            (first, end) => &buffers[first as usize..end as usize],
        }
    }
}
