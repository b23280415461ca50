//! Bytes that weir writes into frames under way, as slices like the frames' other memory.

use std::cell::OnceCell;
use std::fmt;

use weir_guestmem::{HostBuffer, Slice};
use weir_limits::{BURST_MAX, HEAD_LEN};

/// The fronts of merged frames, which weir has copied out, and checksums that it has filled in behind a front, as
/// slices like the foreign memory of these frames. The memory is allocated at the first use.
///
/// Each frame of a burst has its own place, so that its bytes stay until the burst ends: receivers may postpone the
/// copy until they have the whole list.
#[derive(Default)]
pub(crate) struct Fronts(OnceCell<HostBuffer>);

impl Fronts {
    /// A copy of `front`, which belongs to frame number `frame` of the burst and is no longer than a head; `None` for
    /// any other.
    pub(crate) fn copy_of(&self, frame: u16, front: &[u8]) -> Option<Slice<'_>> {
        self.copy_to(usize::from(frame) * HEAD_LEN, front)
    }

    /// A copy of the last one or two bytes of the checksum of frame number `frame`.
    pub(crate) fn checksum(&self, frame: usize, bytes: &[u8]) -> Option<Slice<'_>> {
        self.copy_to(BURST_MAX * HEAD_LEN + frame * CHECKSUM_LEN, bytes)
    }

    fn copy_to(&self, at: usize, bytes: &[u8]) -> Option<Slice<'_>> {
        let room = self.0.get_or_init(|| HostBuffer::new(BURST_MAX * (HEAD_LEN + CHECKSUM_LEN)));
        let copy = room.slice(at, bytes.len())?;
        copy.write(bytes);
        Some(copy)
    }
}

const CHECKSUM_LEN: usize = 2;

impl fmt::Debug for Fronts {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("Fronts").field(&self.0.get().map(HostBuffer::len)).finish()
    }
}
