//! The log of a ring's bytes that its device has written, for a guest that migrates: `docs/design/restarts.md#0034`.

use std::sync::Arc;

use weir_guestmem::{DirtyLog, LogError, Marks, Piece};

use crate::device::Format;
use crate::index::{distance, lap_distance, position, slot};
use crate::layout::*;

/// The log of writes to a ring (vhost-user `VHOST_VRING_F_LOG`).
#[derive(Debug)]
pub struct RingLog {
    log: Arc<DirtyLog>,
    device: Area,
    /// A packed ring's device writes there as well.
    descriptors: Option<Area>,
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
    /// A log for the ring whose descriptors and whose device area are at these guest addresses.
    ///
    /// # Errors
    /// [`LogError::TooShort`] unless the log has bits for all that the device writes.
    pub fn new(
        log: Arc<DirtyLog>,
        config: &RingConfig,
        descriptors: Vec<Piece>,
        device: Vec<Piece>,
    ) -> Result<Self, LogError> {
        let [descriptors, device] = [descriptors, device].map(Area);
        device.check(&log)?;
        let descriptors = config.packed.then_some(descriptors);
        descriptors.iter().try_for_each(|area| area.check(&log))?;
        Ok(Self { log, device, descriptors })
    }

    /// Marks all bytes that the device can have written.
    pub(crate) fn all(&self) {
        let marks = self.log.after_writes();
        let areas = [Some(&self.device), self.descriptors.as_ref()];
        areas.into_iter().flatten().for_each(|area| area.mark(marks, 0, usize::MAX));
    }

    /// Marks the bytes that were completed and published since `ring` was at `from`.
    pub(crate) fn published(&self, ring: &Format, from: Place) {
        let marks = self.log.after_writes();
        match (ring, from) {
            (Format::Split(ring), Place::Split(from)) => {
                let size = ring.config().size;
                let entries = Entries { area: &self.device, from: ENTRIES, bytes: USED_ELEM_BYTES };
                let first = position(from, size) as u16; // below the size
                entries.mark(marks, size, first, distance(from, ring.next_used()));
                self.device.mark(marks, 0, ENTRIES);
            }
            (Format::Packed(ring), Place::Packed(from)) => {
                let size = ring.config().size;
                if let Some(area) = &self.descriptors {
                    let entries = Entries { area, from: 0, bytes: DESC_BYTES };
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
            self.device.mark(marks, 0, EVENT_BYTES);
        } else {
            self.device.mark(marks, 0, ENTRIES);
            self.device.mark(marks, avail_event(config.size), 2);
        }
    }
}

/// An area of a ring: the guest addresses of its pieces.
#[derive(Debug)]
struct Area(Vec<Piece>);

impl Area {
    fn check(&self, log: &DirtyLog) -> Result<(), LogError> {
        // A ring outside of guest memory has no bits in the log.
        let nowhere = Piece { address: u64::MAX, len: 1 };
        let pieces = if self.0.is_empty() { std::slice::from_ref(&nowhere) } else { &self.0 };
        pieces.iter().try_for_each(|piece| log.check(piece.address, piece.len))
    }

    /// Marks `len` bytes from `from` on, as far as there are some.
    fn mark(&self, marks: Marks<'_>, from: usize, len: usize) {
        let (mut from, mut left) = (from as u64, len as u64);
        for piece in &self.0 {
            let here = left.min(piece.len.saturating_sub(from));
            marks.at(piece.address.saturating_add(from), here);
            (from, left) = (from.saturating_sub(piece.len), left - here);
        }
    }
}

/// A ring's entries.
struct Entries<'a> {
    area: &'a Area,
    /// Place of the first entry in the area.
    from: usize,
    /// Bytes of one entry.
    bytes: usize,
}

impl Entries<'_> {
    /// Marks `count` of `size` entries, from `first` on.
    fn mark(&self, marks: Marks<'_>, size: u16, first: u16, count: u16) {
        let bytes = |count: u16| usize::from(count) * self.bytes;
        let before_end = count.min(size - first);
        self.area.mark(marks, self.from + bytes(first), bytes(before_end));
        self.area.mark(marks, self.from, bytes((count - before_end).min(size)));
    }
}
