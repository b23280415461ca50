//! The container that is being unpacked: [`weir_wire::container`] says what one is.

use weir_guestmem::Slice;
use weir_wire::VnetHdr;
use weir_wire::container::{ContainerError, RECORD_LEN, Record, parse};

/// The frames of a container that were not handed out yet, and the buffer that they lie in, which the
/// device does not get back before.
#[derive(Debug, Default)]
pub(crate) struct Unloader {
    /// Kept for its allocation.
    records: Vec<Record>,
    /// The records before this one are handed out.
    next: usize,
    slot: u32,
}

/// A frame of a container.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unloaded {
    /// The buffer that it lies in.
    pub(crate) slot: u32,
    pub(crate) record: Record,
    /// It is the last one of its container: the buffer is free after it.
    pub(crate) last: bool,
}

impl Unloader {
    /// Opens the container that the device wrote to a buffer: `bytes`, which begin with `vnet`. The
    /// container before it has been handed out.
    pub(crate) fn open(
        &mut self,
        slot: u32,
        vnet: &VnetHdr,
        bytes: Slice<'_>,
    ) -> Result<(), ContainerError> {
        let read = |at: usize| bytes.skip(at).read_array::<RECORD_LEN>();
        self.next = 0;
        self.slot = slot;
        parse(vnet, bytes.len(), read, &mut self.records)
    }

    #[inline]
    pub(crate) fn next(&mut self) -> Option<Unloaded> {
        let record = *self.records.get(self.next)?;
        self.next += 1;
        Some(Unloaded { slot: self.slot, record, last: self.next == self.records.len() })
    }

    /// There are frames that were not handed out.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.next < self.records.len()
    }
}
