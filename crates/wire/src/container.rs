//! Containers: several frames in one receive buffer of a guest that unpacks them itself (Thakur 2014, after
//! Bourguiba 2012).
//!
//! Containers are not part of virtio: a back end and a driver must have agreed on them. Then [`F_CONTAINER`] in the
//! virtio header marks a container:
//!
//! ```text
//! virtio header   flags = F_CONTAINER, hdr_len = records, gso_size = bytes of all records, num_buffers = 1
//! record          len: le16        bytes of the frame
//!                 flags: le16      RECORD_VNET or 0
//!                 virtio header    12 bytes, only with RECORD_VNET: the frame's own
//!                 frame
//!                 padding          to a multiple of 4 from the buffer's beginning, of any value
//! record          ...
//! ```
//!
//! Frames keep the order in which they were sent. A container lies in one buffer, so each frame is one piece of
//! memory. A frame without offloads needs no virtio header. A frame that does not fit goes alone.
//!
//! Both sides work on memory that another party can write, and this module never touches it. [`Builder`] computes
//! positions. [`parse`] reads each byte once through a function, and returns positions inside the container for any
//! input.

use weir_limits::{CONTAINER_LEN_MAX, FRAME_LEN_MIN};

use crate::vnet::{GSO_NONE, VnetHdr};

/// `flags` of the virtio header: a container follows. virtio 1.3 uses the lower bits.
pub const F_CONTAINER: u8 = 0x80;
/// `flags` of a record: the frame's own virtio header comes first.
pub const RECORD_VNET: u16 = 1;
/// Bytes before each frame, and before its virtio header if it has one.
pub const RECORD_LEN: usize = 4;
/// Records begin at multiples of this.
const ALIGN: usize = 4;

/// Shortest record: the shortest frame in it, and padding.
const RECORD_LEN_MIN: usize = (RECORD_LEN + FRAME_LEN_MIN as usize).next_multiple_of(ALIGN);
/// Most records in one container.
pub const RECORDS_MAX: usize = (CONTAINER_LEN_MAX - VnetHdr::LEN) / RECORD_LEN_MIN;

const _: () = assert!(CONTAINER_LEN_MAX <= u16::MAX as usize && VnetHdr::LEN.is_multiple_of(ALIGN));

/// The places of a record's parts, in bytes from the beginning of the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// [`RECORD_LEN`] bytes, followed by the frame's own virtio header if it has one.
    pub record: usize,
    /// The bytes to write there.
    pub header: [u8; RECORD_LEN],
    /// The frame.
    pub frame: usize,
}

/// Lays out a container: returns the place of each frame and, at the end, the container's virtio header.
#[derive(Clone, Copy, Debug)]
pub struct Builder {
    room: usize,
    len: usize,
    records: u16,
}

impl Builder {
    /// An empty container in a buffer of `buffer_len` bytes, of which it uses no more than
    /// [`CONTAINER_LEN_MAX`].
    #[inline]
    pub fn new(buffer_len: usize) -> Builder {
        Builder { room: buffer_len.min(CONTAINER_LEN_MAX), len: VnetHdr::LEN, records: 0 }
    }

    /// Adds a frame of `len` bytes; `None`, with no change, if it does not fit.
    #[inline]
    pub fn add(&mut self, len: usize, has_vnet: bool) -> Option<Place> {
        let frame = self.len + RECORD_LEN + if has_vnet { VnetHdr::LEN } else { 0 };
        let end = frame.checked_add(len)?.checked_next_multiple_of(ALIGN)?;
        if end > self.room {
            return None;
        }
        let [l0, l1] = (len as u16).to_le_bytes(); // below CONTAINER_LEN_MAX
        let [f0, f1] = if has_vnet { RECORD_VNET } else { 0 }.to_le_bytes();
        let place = Place { record: self.len, header: [l0, l1, f0, f1], frame };
        self.len = end;
        self.records += 1;
        Some(place)
    }

    /// The number of the container's frames.
    #[inline]
    pub fn records(&self) -> u16 {
        self.records
    }

    /// Bytes of the container, including its virtio header: the length that a device reports as written.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if it has no frame. Such a container must not be sent.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// The virtio header, to be written at the beginning when all frames are added.
    #[inline]
    pub fn vnet(&self) -> VnetHdr {
        VnetHdr {
            flags: F_CONTAINER,
            gso_type: GSO_NONE,
            hdr_len: self.records,
            gso_size: (self.len - VnetHdr::LEN) as u16, // below CONTAINER_LEN_MAX
            num_buffers: 1,
            ..VnetHdr::default()
        }
    }
}

/// A frame in a container: its place, in bytes from the beginning of the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The frame's first byte.
    pub at: u16,
    /// Bytes of the frame.
    pub len: u16,
    /// True if its own virtio header is right before it.
    pub has_vnet: bool,
}

/// The reason for which a whole container is refused: after one wrong length, no later record can be trusted, and the
/// writer is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContainerError {
    /// The buffer is shorter than the length in the virtio header.
    #[error("the container declares {declared} bytes in a buffer with {written}")]
    Length {
        /// Bytes according to the virtio header, which is included.
        declared: usize,
        /// Bytes that the device wrote.
        written: usize,
    },
    /// The container has no frame.
    #[error("the container is empty")]
    Empty,
    /// The header has more than one buffer, or offloads.
    #[error("the virtio header of a container has fields other than its size")]
    Header,
    /// A record begins or ends behind the container's end.
    #[error("record {record} at {at} does not end within the container's {len} bytes")]
    Beyond {
        /// The number of the record, from 0.
        record: u16,
        /// The record's offset in the buffer.
        at: usize,
        /// Bytes of the container.
        len: usize,
    },
    /// The frame is too short for an Ethernet header.
    #[error("record {record} at {at} has a frame of {frame_len} bytes")]
    Runt {
        /// The number of the record, from 0.
        record: u16,
        /// The record's offset in the buffer.
        at: usize,
        /// Bytes of the frame.
        frame_len: u16,
    },
    /// A record has a flag without a meaning.
    #[error("record {record} at {at} has unknown flags {flags:#x}")]
    Flags {
        /// The number of the record, from 0.
        record: u16,
        /// The record's offset in the buffer.
        at: usize,
        /// All flags of the record.
        flags: u16,
    },
    /// There are bytes behind the records.
    #[error("{left} bytes follow the last of {records} records")]
    Trailing {
        /// The number of records.
        records: u16,
        /// Bytes behind the records.
        left: usize,
    },
}

/// Replaces `records` by the frames, in order, of a container of `written` bytes whose virtio header is `vnet`. `read`
/// returns the [`RECORD_LEN`] bytes at an offset of the buffer, or `None` outside it.
///
/// Every record lies within the first `written` bytes, behind the virtio header, and overlaps no other, even if the
/// memory changes meanwhile.
///
/// # Errors
/// [`ContainerError`]; `records` is empty then.
#[inline]
pub fn parse(
    vnet: &VnetHdr,
    written: usize,
    mut read: impl FnMut(usize) -> Option<[u8; RECORD_LEN]>,
    records: &mut Vec<Record>,
) -> Result<(), ContainerError> {
    records.clear();
    let result = walk(vnet, written, &mut read, records);
    if result.is_err() {
        records.clear();
    }
    result
}

#[inline]
fn walk(
    vnet: &VnetHdr,
    written: usize,
    read: &mut impl FnMut(usize) -> Option<[u8; RECORD_LEN]>,
    records: &mut Vec<Record>,
) -> Result<(), ContainerError> {
    let len = VnetHdr::LEN + usize::from(vnet.gso_size);
    if len != written || len > CONTAINER_LEN_MAX {
        return Err(ContainerError::Length { declared: len, written });
    }
    let count = vnet.hdr_len;
    let expected = VnetHdr { hdr_len: count, gso_size: vnet.gso_size, ..Builder::new(0).vnet() };
    if *vnet != expected {
        return Err(ContainerError::Header);
    }
    if count == 0 {
        return Err(ContainerError::Empty);
    }
    let mut at = VnetHdr::LEN;
    for record in 0..count {
        let beyond = ContainerError::Beyond { record, at, len };
        if at + RECORD_LEN > len {
            return Err(beyond);
        }
        let [l0, l1, f0, f1] = read(at).ok_or(beyond)?;
        let (frame_len, flags) = (u16::from_le_bytes([l0, l1]), u16::from_le_bytes([f0, f1]));
        let has_vnet = flags == RECORD_VNET;
        if flags & !RECORD_VNET != 0 {
            return Err(ContainerError::Flags { record, at, flags });
        }
        if u32::from(frame_len) < FRAME_LEN_MIN {
            return Err(ContainerError::Runt { record, at, frame_len });
        }
        let frame = at + RECORD_LEN + if has_vnet { VnetHdr::LEN } else { 0 };
        let end = (frame + usize::from(frame_len)).next_multiple_of(ALIGN);
        if end > len {
            return Err(beyond);
        }
        // The offset is below CONTAINER_LEN_MAX, like the record's end.
        records.push(Record { at: frame as u16, len: frame_len, has_vnet });
        at = end;
    }
    match len - at {
        0 => Ok(()),
        left => Err(ContainerError::Trailing { records: count, left }),
    }
}

#[cfg(test)]
mod tests;
