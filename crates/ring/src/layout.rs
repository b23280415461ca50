//! Layout of virtqueues in memory: split (virtio 1.2 §2.7) and packed (§2.8).

use std::sync::Arc;

use weir_guestmem::{GuestMemory, Window};
use weir_limits::QUEUE_SIZE_MAX;

use crate::error::SetupError;
use crate::index::to_off_wrap;

/// Bytes of one descriptor: `addr: le64, len: le32, flags: le16, next: le16` in a split ring
/// (§2.7.5), `addr: le64, len: le32, id: le16, flags: le16` in a packed one (§2.8.13).
pub(crate) const DESC_BYTES: usize = 16;
/// The chain continues: at `next` in a split ring, in the next slot of a packed one.
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
/// Bytes of an entry of the available ring.
pub(crate) const AVAIL_ENTRY_BYTES: usize = 2;

/// The offset of `avail.ring[position]`.
#[inline]
pub(crate) fn avail_entry(position: usize) -> usize {
    ENTRIES + AVAIL_ENTRY_BYTES * position
}

/// The offset of `used.ring[position]`.
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

/// The offset of `len` in a packed descriptor.
pub(crate) const PACKED_LEN: usize = 8;
/// The offset of `id` in a packed descriptor.
pub(crate) const PACKED_ID: usize = 12;
/// The offset of `flags` in a packed descriptor.
pub(crate) const PACKED_FLAGS: usize = 14;
/// Equal to the driver's wrap counter if a descriptor is available (§2.8.1).
pub(crate) const PACKED_F_AVAIL: u16 = 1 << 7;
/// Equal to the device's wrap counter if a descriptor is used (§2.8.1).
pub(crate) const PACKED_F_USED: u16 = 1 << 15;
/// Bytes of an event suppression structure: `off_wrap: le16, flags: le16` (§2.8.14). The driver
/// area holds the driver's, the device area the device's.
pub(crate) const EVENT_BYTES: usize = 4;
/// Slot and wrap counter at which the other side must notify.
pub(crate) const EVENT_OFF_WRAP: usize = 0;
/// Bits 0 and 1 have one of the three values below.
pub(crate) const EVENT_FLAGS: usize = 2;
/// Bits of `flags` with a meaning.
pub(crate) const EVENT_FLAGS_MASK: u16 = 3;
/// Notifications of everything.
pub(crate) const EVENT_ENABLE: u16 = 0;
/// No notifications.
pub(crate) const EVENT_DISABLE: u16 = 1;
/// A notification when `off_wrap` is passed (`VIRTIO_F_EVENT_IDX`).
pub(crate) const EVENT_DESC: u16 = 2;

/// Bytes of the descriptor, driver (available) and device (used) areas of a ring with `size` entries, including the
/// event fields. A packed ring's areas fit into those of a split ring.
pub fn area_sizes(size: u16) -> [usize; 3] {
    [DESC_BYTES * usize::from(size), used_event(size) + 2, avail_event(size) + 2]
}

/// Checks the number of entries of a ring: a power of two for a split ring (§2.7), any number for a packed one
/// (§2.8.10.1).
///
/// # Errors
/// [`SetupError::Size`] and [`SetupError::PackedSize`].
pub fn ring_size(size: u32, packed: bool) -> Result<u16, SetupError> {
    let bad = if packed { SetupError::PackedSize(size) } else { SetupError::Size(size) };
    let within = u16::try_from(size).ok().filter(|size| (1..=QUEUE_SIZE_MAX).contains(size));
    within.filter(|size| packed || size.is_power_of_two()).ok_or(bad)
}

/// The addresses and the configuration of a ring to be set up.
#[derive(Clone, Copy)]
pub(crate) struct Site<'a> {
    pub(crate) memory: &'a Arc<GuestMemory>,
    pub(crate) config: RingConfig,
    pub(crate) at: &'a Addresses,
}

impl Site<'_> {
    /// The areas of a split ring (§2.7).
    pub(crate) fn split_areas(&self) -> Result<[Window; 3], SetupError> {
        ring_size(self.config.size.into(), false)?;
        let [descriptor, driver, device] = self.config.area_sizes();
        self.areas([(descriptor, 16), (driver, 2), (device, 4)])
    }

    /// The areas of a packed ring (§2.8.10.1).
    pub(crate) fn packed_areas(&self) -> Result<[Window; 3], SetupError> {
        ring_size(self.config.size.into(), true)?;
        let [descriptor, driver, device] = self.config.area_sizes();
        self.areas([(descriptor, 16), (driver, 4), (device, 4)])
    }

    /// The three areas of a ring, checked for place and alignment. `shape` is bytes and alignment of the descriptor,
    /// the driver and the device area.
    fn areas(&self, shape: [(usize, usize); 3]) -> Result<[Window; 3], SetupError> {
        let Self { memory, at, .. } = self;
        let area = |area, address, (bytes, align): (usize, usize)| {
            let window = memory.window(address, bytes).ok_or(SetupError::NotShared {
                area,
                address,
                bytes,
            })?;
            // The mapping keeps offsets within a page, so that an address that was aligned for the front end is aligned
            // here, unless the region itself is odd: the address here is checked.
            if !window.is_aligned(align) {
                return Err(SetupError::Misaligned { area, address, align });
            }
            Ok(window)
        };
        Ok([
            area("descriptor", at.descriptor, shape[0])?,
            area("driver", at.driver, shape[1])?,
            area("device", at.device, shape[2])?,
        ])
    }
}

/// The negotiated configuration of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RingConfig {
    /// Entries; a power of two for a split ring.
    pub size: u16,
    /// `VIRTIO_F_EVENT_IDX`.
    pub event_idx: bool,
    /// `VIRTIO_F_INDIRECT_DESC`.
    pub indirect: bool,
    /// `VIRTIO_F_RING_PACKED`.
    pub packed: bool,
    /// `VIRTIO_F_IN_ORDER`.
    pub in_order: bool,
}

impl RingConfig {
    /// The position at which an unused ring begins, in the form of vhost-user's `SET_VRING_BASE`.
    pub fn fresh_base(&self) -> u32 {
        // Both wrap counters of a packed ring begin at 1 (§2.8.1).
        if self.packed { 0x8000_8000 } else { 0 }
    }

    /// Bytes of the descriptor, driver and device areas.
    pub fn area_sizes(&self) -> [usize; 3] {
        let [descriptor, driver, device] = area_sizes(self.size);
        if self.packed {
            [descriptor, EVENT_BYTES, EVENT_BYTES]
        } else {
            [descriptor, driver, device]
        }
    }

    /// The position of a packed ring at this place with no chain taken, in the same form.
    pub(crate) fn base_at(&self, index: u16) -> u32 {
        let off_wrap = u32::from(to_off_wrap(index, self.size));
        off_wrap | off_wrap << 16
    }
}

/// The addresses of a ring in the front end's process (vhost-user `SET_VRING_ADDR`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Addresses {
    /// Descriptor table, or descriptor ring.
    pub descriptor: u64,
    /// Driver area: the available ring, or the driver's event suppression.
    pub driver: u64,
    /// Device area: the used ring, or the device's event suppression.
    pub device: u64,
}
