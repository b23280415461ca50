//! The driver side of a packed virtqueue.

use std::sync::atomic::Ordering;

use weir_guestmem::{Window, fence};

use crate::driver::{Batches, Buffer, Used};
use crate::error::SetupError;
use crate::index::*;
use crate::layout::*;

/// A packed ring that this process drives.
#[derive(Debug)]
pub(crate) struct PackedDriver {
    size: u16,
    event_idx: bool,
    ring: Window,
    /// The driver's event suppression: this side's request for calls.
    driver_event: Window,
    /// The device's event suppression: its request for kicks.
    device_event: Window,
    /// The number of slots of the list with this buffer id; 0 if the id is free.
    slots: Vec<u16>,
    free_ids: Vec<u16>,
    free_slots: u16,
    in_flight: u16,
    /// Next slot to write.
    next_avail: u16,
    /// Slots before this one were published.
    published: u16,
    /// Flags of the first unpublished slot: they are written last.
    first_flags: u16,
    /// The slot of the next used descriptor.
    next_used: u16,
    batches: Batches,
    /// The device lost its position in the ring: the place of the next used descriptor is unknown.
    broken: bool,
    skipped: u64,
}

impl PackedDriver {
    /// An empty ring in zeroed memory at `site`.
    pub(crate) fn new(site: Site<'_>) -> Result<Self, SetupError> {
        let RingConfig { size, event_idx, in_order, .. } = site.config;
        let [ring, driver_event, device_event] = site.packed_areas()?;
        Ok(Self {
            size,
            event_idx,
            ring,
            driver_event,
            device_event,
            slots: vec![0; size.into()],
            free_ids: (0..size).rev().collect(),
            free_slots: size,
            in_flight: 0,
            next_avail: 0,
            published: 0,
            first_flags: 0,
            next_used: 0,
            batches: Batches::new(in_order),
            broken: false,
            skipped: 0,
        })
    }

    /// The number of free slots.
    pub(crate) fn free(&self) -> u16 {
        self.free_slots
    }

    /// The number of lists that the device has not given back.
    pub(crate) fn in_flight(&self) -> u16 {
        self.in_flight
    }

    /// The offset of the descriptor at a place.
    fn slot(&self, place: u16) -> usize {
        usize::from(slot(place, self.size)) * DESC_BYTES
    }

    /// Offers a list of buffers; the device sees it after [`publish`](Self::publish). `None` if the ring has too few
    /// free slots, or if there is no buffer.
    pub(crate) fn offer(&mut self, buffers: &[Buffer]) -> Option<u16> {
        let count = u16::try_from(buffers.len()).ok()?;
        if count == 0 || count > self.free_slots {
            return None;
        }
        let id = self.free_ids.pop()?;
        let last = buffers.len() - 1;
        // Written from the back: the first slot's flags make the list available (§2.8.21).
        for (i, buffer) in buffers.iter().enumerate().rev() {
            let next = if i < last { DESC_F_NEXT } else { 0 };
            let write = if buffer.writable { DESC_F_WRITE } else { 0 };
            self.write_slot(ahead(self.next_avail, i as u16, self.size), buffer, id, next | write);
        }
        self.enqueue(id, count);
        Some(id)
    }

    /// Offers a table of descriptors that the caller wrote at `address` (`VIRTIO_F_INDIRECT_DESC`).
    pub(crate) fn offer_indirect(&mut self, address: u64, table_bytes: u32) -> Option<u16> {
        if self.free_slots == 0 {
            return None;
        }
        let id = self.free_ids.pop()?;
        let table = Buffer { address, len: table_bytes, writable: false };
        self.write_slot(self.next_avail, &table, id, DESC_F_INDIRECT);
        self.enqueue(id, 1);
        Some(id)
    }

    fn write_slot(&mut self, place: u16, buffer: &Buffer, id: u16, flags: u16) {
        let avail = if wrap(place, self.size) { PACKED_F_AVAIL } else { PACKED_F_USED };
        let flags = flags | avail;
        let mut bytes = [0; PACKED_FLAGS];
        bytes[..8].copy_from_slice(&buffer.address.to_le_bytes());
        bytes[8..12].copy_from_slice(&buffer.len.to_le_bytes());
        bytes[12..].copy_from_slice(&id.to_le_bytes());
        let at = self.slot(place);
        self.ring.write(at, bytes);
        if place == self.published {
            self.first_flags = flags;
        } else {
            self.ring.store_release(at + PACKED_FLAGS, flags);
        }
    }

    fn enqueue(&mut self, id: u16, count: u16) {
        self.slots[usize::from(id)] = count;
        self.free_slots -= count;
        self.in_flight += 1;
        self.next_avail = ahead(self.next_avail, count, self.size);
        self.batches.offered(id);
    }

    /// Shows the device the offered lists, and returns true if it wants a kick.
    pub(crate) fn publish(&mut self) -> bool {
        let old = self.published;
        if old == self.next_avail {
            return false;
        }
        self.ring.store_release(self.slot(old) + PACKED_FLAGS, self.first_flags);
        self.published = self.next_avail;
        // Pairs with the fence in the device's `enable_kicks`.
        fence(Ordering::SeqCst);
        match self.device_event.load_acquire(EVENT_FLAGS) & EVENT_FLAGS_MASK {
            EVENT_DISABLE => false,
            EVENT_DESC if self.event_idx => {
                let off_wrap = self.device_event.load(EVENT_OFF_WRAP);
                let new = lap_distance(old, self.published, self.size);
                passed_off_wrap(off_wrap, new, self.published, self.size)
            }
            _ => true,
        }
    }

    fn is_used(&self) -> bool {
        // Acquire: the rest of the used descriptor is read after its flags (§2.8.22).
        let flags = self.ring.load_acquire(self.slot(self.next_used) + PACKED_FLAGS);
        let wrap = wrap(self.next_used, self.size);
        (flags & PACKED_F_AVAIL != 0) == wrap && (flags & PACKED_F_USED != 0) == wrap
    }

    /// Takes back the next list that the device completed. After a used descriptor that names no list in flight it
    /// takes no more: the device's position is unknown then.
    pub(crate) fn take(&mut self) -> Option<Used> {
        if !self.batches.has_more() {
            if self.broken || self.in_flight == 0 || !self.is_used() {
                return None;
            }
            let at = self.slot(self.next_used) + PACKED_LEN;
            let [l0, l1, l2, l3, i0, i1] = self.ring.read(at);
            let head = u16::from_le_bytes([i0, i1]);
            let written = u32::from_le_bytes([l0, l1, l2, l3]);
            if self.slots.get(usize::from(head)).is_none_or(|slots| *slots == 0) {
                self.broken = true;
                self.skipped += 1;
                return None;
            }
            self.batches.begin(Used { head, written });
        }
        let used = self.batches.next()?;
        let slots = std::mem::take(&mut self.slots[usize::from(used.head)]);
        self.next_used = ahead(self.next_used, slots, self.size);
        self.free_slots += slots;
        self.free_ids.push(used.head);
        self.in_flight -= 1;
        Some(used)
    }

    /// The number of used descriptors since the last call that named no list.
    pub(crate) fn skipped(&mut self) -> u64 {
        std::mem::take(&mut self.skipped)
    }

    /// True if the device has completed a list that was not taken back.
    pub(crate) fn has_used(&self) -> bool {
        self.batches.has_more() || (!self.broken && self.in_flight > 0 && self.is_used())
    }

    /// Asks the device for no calls.
    pub(crate) fn suppress_calls(&mut self) {
        self.driver_event.store(EVENT_FLAGS, EVENT_DISABLE);
    }

    /// Asks for a call at the next completed list, and returns true if one came in the meantime: only after `false` may
    /// the caller sleep.
    pub(crate) fn enable_calls(&mut self) -> bool {
        if self.event_idx {
            let off_wrap = to_off_wrap(self.next_used, self.size);
            self.driver_event.store(EVENT_OFF_WRAP, off_wrap);
            self.driver_event.store_release(EVENT_FLAGS, EVENT_DESC);
        } else {
            self.driver_event.store(EVENT_FLAGS, EVENT_ENABLE);
        }
        // Pairs with the fence in the device's `needs_call`.
        fence(Ordering::SeqCst);
        self.has_used()
    }
}
