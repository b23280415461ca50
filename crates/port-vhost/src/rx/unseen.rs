//! A container that is open for further frames, also those of later bursts while the guest cannot see it.

use weir_guestmem::{GuestMemory, Slice};
use weir_ring::{DeviceRing, Token};
use weir_wire::container::Builder;

/// A container with room for more frames.
pub(super) struct Open<'m> {
    pub(super) token: Token,
    pub(super) buffer: Slice<'m>,
    pub(super) builder: Builder,
    /// True for the container of an earlier burst: its chain is the ring's last completed one. Otherwise its chain is
    /// the writer's next, and is used when the container closes.
    pub(super) again: bool,
}

impl Open<'_> {
    /// Converts this container, which was closed just now, into one that later bursts can use.
    pub(super) fn unseen(self, device: &DeviceRing, memory: &GuestMemory) -> Option<Unseen> {
        let Self { token, buffer, builder, .. } = self;
        let (address, len) = (memory.address_of(&buffer)?, buffer.len() as u32); // a descriptor's length
        Some(Unseen { token, address, len, builder, completed: device.completed_total() })
    }
}

/// A ring's last container, until the guest sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unseen {
    token: Token,
    /// The guest address of the buffer, and its length.
    address: u64,
    len: u32,
    builder: Builder,
    /// The ring's completed chains, up to this one.
    completed: u64,
}

impl Unseen {
    /// Opens the container again, unless a chain follows it or the guest can see it.
    pub(super) fn open<'m>(self, device: &DeviceRing, memory: &'m GuestMemory) -> Option<Open<'m>> {
        let Self { token, address, len, builder, completed } = self;
        let is_last = completed == device.completed_total() && device.has_unpublished();
        let buffer = memory.slice(address, len).filter(|_| is_last)?;
        Some(Open { token, buffer, builder, again: true })
    }
}
