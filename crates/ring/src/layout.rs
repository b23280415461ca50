//! Layout of a split virtqueue in memory (virtio 1.2 §2.7).

/// Bytes of one descriptor: `addr: le64, len: le32, flags: le16, next: le16` (§2.7.5).
pub(crate) const DESC_BYTES: usize = 16;
/// The chain goes on at `next`.
pub(crate) const DESC_F_NEXT: u16 = 1;
/// The device writes the buffer (otherwise it reads it).
pub(crate) const DESC_F_WRITE: u16 = 2;
/// The buffer holds a table of descriptors.
pub(crate) const DESC_F_INDIRECT: u16 = 4;

/// `avail.flags` (§2.7.6) and `used.flags` (§2.7.8).
pub(crate) const FLAGS: usize = 0;
/// `avail.idx` and `used.idx`.
pub(crate) const IDX: usize = 2;
/// First entry of `avail.ring` and `used.ring`.
pub(crate) const ENTRIES: usize = 4;
/// `avail.flags`: the driver asks for no calls.
pub(crate) const AVAIL_F_NO_INTERRUPT: u16 = 1;
/// `used.flags`: the device asks for no kicks.
pub(crate) const USED_F_NO_NOTIFY: u16 = 1;
/// Bytes of a used element: `id: le32, len: le32`.
pub(crate) const USED_ELEM_BYTES: usize = 8;

/// Where `avail.ring[position]` lies.
#[inline]
pub(crate) fn avail_entry(position: usize) -> usize {
    ENTRIES + 2 * position
}

/// Where `used.ring[position]` lies.
#[inline]
pub(crate) fn used_entry(position: usize) -> usize {
    ENTRIES + USED_ELEM_BYTES * position
}

/// `avail.used_event`: behind the available ring's entries.
#[inline]
pub(crate) fn used_event(size: u16) -> usize {
    avail_entry(size.into())
}

/// `used.avail_event`: behind the used ring's entries.
#[inline]
pub(crate) fn avail_event(size: u16) -> usize {
    used_entry(size.into())
}

/// Bytes of the descriptor, driver (available) and device (used) areas of a ring with `size`
/// entries, the event fields included.
pub fn area_sizes(size: u16) -> [usize; 3] {
    [DESC_BYTES * usize::from(size), used_event(size) + 2, avail_event(size) + 2]
}

/// What was negotiated about a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingConfig {
    /// Entries; a power of two.
    pub size: u16,
    /// `VIRTIO_F_EVENT_IDX`.
    pub event_idx: bool,
    /// `VIRTIO_F_INDIRECT_DESC`.
    pub indirect: bool,
}

/// Where a ring lies, as addresses of the front end's process (vhost-user `SET_VRING_ADDR`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Addresses {
    /// Descriptor table.
    pub descriptor: u64,
    /// Driver area: the available ring.
    pub driver: u64,
    /// Device area: the used ring.
    pub device: u64,
}
