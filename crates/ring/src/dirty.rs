//! The log of a ring's bytes that its device has written, for a guest that migrates: `docs/design/restarts.md#0034`.

use std::sync::Arc;

use weir_guestmem::{DirtyLog, GuestMemory, LogError, Marks};

use crate::device::Format;
use crate::index::{distance, lap_distance, position, slot};
use crate::layout::*;

/// The log of writes to a ring (vhost-user `VHOST_VRING_F_LOG`).
#[derive(Debug)]
pub struct RingLog {
    log: Arc<DirtyLog>,
    /// Guest address of the device area.
    device: u64,
    /// Guest address of the descriptors: a packed ring's device writes there as well.
    descriptors: Option<u64>,
}

/// The position of a ring before a write.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Place {
    /// The used index as published last.
    Split(u16),
    /// The position of the next used descriptor.
    Packed(u16),
}

impl RingLog {
    /// A log for the ring at `at` of `memory`; its device area is marked at guest address `device`.
    ///
    /// # Errors
    /// [`LogError::TooShort`] unless the log has bits for all of it.
    pub fn new(
        log: Arc<DirtyLog>,
        memory: &GuestMemory,
        config: &RingConfig,
        at: &Addresses,
        device: u64,
    ) -> Result<Self, LogError> {
        log.check(device, device_area_bytes(config) as u64)?;
        // A ring outside of guest memory has no bits in the log.
        let address = || memory.guest_address(at.descriptor).unwrap_or(u64::MAX);
        let descriptors = config.packed.then(address);
        if let Some(descriptors) = descriptors {
            log.check(descriptors, descriptor_bytes(config))?;
        }
        Ok(Self { log, device, descriptors })
    }

    /// Marks all bytes that the device can have written.
    pub(crate) fn all(&self, config: &RingConfig) {
        let marks = self.log.after_writes();
        marks.at(self.device, device_area_bytes(config) as u64);
        if let Some(descriptors) = self.descriptors {
            marks.at(descriptors, descriptor_bytes(config));
        }
    }

    /// Marks the bytes that were completed and published since `ring` was at `from`.
    pub(crate) fn published(&self, ring: &Format, from: Place) {
        let marks = self.log.after_writes();
        match (ring, from) {
            (Format::Split(ring), Place::Split(from)) => {
                let size = ring.config().size;
                let entries = Entries { at: self.device + ENTRIES as u64, bytes: USED_ELEM_BYTES };
                let first = position(from, size) as u16; // below the size
                entries.mark(marks, size, first, distance(from, ring.next_used()));
                marks.at(self.device, ENTRIES as u64);
            }
            (Format::Packed(ring), Place::Packed(from)) => {
                let size = ring.config().size;
                if let Some(descriptors) = self.descriptors {
                    let entries = Entries { at: descriptors, bytes: DESC_BYTES };
                    let slots = lap_distance(from, ring.next_used(), size);
                    entries.mark(marks, size, slot(from, size), slots);
                }
            }
            _ => {}
        }
    }

    /// Marks the device's request for kicks.
    pub(crate) fn kicks(&self, config: &RingConfig) {
        let marks = self.log.after_writes();
        if config.packed {
            marks.at(self.device, EVENT_BYTES as u64);
        } else {
            marks.at(self.device, ENTRIES as u64);
            marks.at(self.device + avail_event(config.size) as u64, 2);
        }
    }
}

/// A ring's entries.
struct Entries {
    /// Guest address of the first entry.
    at: u64,
    /// Bytes of one entry.
    bytes: usize,
}

impl Entries {
    /// Marks `count` of `size` entries, from `first` on.
    fn mark(&self, marks: Marks<'_>, size: u16, first: u16, count: u16) {
        let bytes = |count: u16| u64::from(count) * self.bytes as u64;
        let before_end = count.min(size - first);
        marks.at(self.at + bytes(first), bytes(before_end));
        marks.at(self.at, bytes((count - before_end).min(size)));
    }
}

/// Bytes of the area that only the device writes.
fn device_area_bytes(config: &RingConfig) -> usize {
    if config.packed { EVENT_BYTES } else { area_sizes(config.size)[2] }
}

fn descriptor_bytes(config: &RingConfig) -> u64 {
    DESC_BYTES as u64 * u64::from(config.size)
}
