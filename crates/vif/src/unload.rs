//! Unpacks a container; [`weir_wire::container`] defines the format.

use weir_guestmem::Slice;
use weir_wire::VnetHdr;
use weir_wire::container::{ContainerError, RECORD_LEN, Record, parse};

/// The remaining frames of a container, and their buffer, which the device gets back only after the last of them.
#[derive(Debug, Default)]
pub(crate) struct Unloader {
    /// The vector is kept for its allocation.
    records: Vec<Record>,
    /// Index of the next record to hand out.
    next: usize,
    slot: u32,
}

/// A frame of a container.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unloaded {
    /// The frame's buffer.
    pub(crate) slot: u32,
    pub(crate) record: Record,
    /// Last frame of its container: the buffer is free after it.
    pub(crate) last: bool,
}

impl Unloader {
    /// Opens the container in a buffer. `bytes` are the device's, beginning with `vnet`. The
    /// previous container must be finished.
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

    /// Returns true if frames are left.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.next < self.records.len()
    }
}
