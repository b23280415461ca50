//! The driver side of a split virtqueue, for weir's own guest `vif`.

use std::sync::atomic::Ordering;

use weir_guestmem::{Window, fence};

use crate::driver::{Batches, Buffer, Used};
use crate::error::SetupError;
use crate::index::{distance, passed, position};
use crate::layout::*;

/// A ring that this process drives.
#[derive(Debug)]
pub(crate) struct SplitDriver {
    size: u16,
    event_idx: bool,
    descriptors: Window,
    avail: Window,
    used: Window,
    /// `next` of each descriptor, kept here since the device could have changed those in memory.
    next: Vec<u16>,
    /// The number of descriptors of the chain that begins here; 0 if none does.
    chain_len: Vec<u16>,
    free_head: u16,
    free_count: u16,
    /// Next entry of the available ring to write.
    next_avail: u16,
    /// `avail.idx` as last published.
    published: u16,
    /// Next entry of the used ring to read.
    next_used: u16,
    batches: Batches,
    skipped: u64,
}

impl SplitDriver {
    /// An empty ring in zeroed memory at `site`.
    pub(crate) fn new(site: Site<'_>) -> Result<Self, SetupError> {
        let RingConfig { size, event_idx, in_order, .. } = site.config;
        let [descriptors, avail, used] = site.split_areas()?;
        Ok(Self {
            size,
            event_idx,
            descriptors,
            avail,
            used,
            next: (1..=size).collect(),
            chain_len: vec![0; size.into()],
            free_head: 0,
            free_count: size,
            next_avail: 0,
            published: 0,
            next_used: 0,
            batches: Batches::new(in_order),
            skipped: 0,
        })
    }

    /// The number of free descriptors.
    pub(crate) fn free(&self) -> u16 {
        self.free_count
    }

    /// The number of chains that the device has not given back.
    pub(crate) fn in_flight(&self) -> u16 {
        distance(self.next_used, self.next_avail)
    }

    /// Offers a chain; the device sees it after [`publish`](Self::publish). `None` if the ring has too few free
    /// descriptors, or if there is no buffer.
    pub(crate) fn offer(&mut self, buffers: &[Buffer]) -> Option<u16> {
        let count = u16::try_from(buffers.len()).ok()?;
        if count == 0 || count > self.free_count {
            return None;
        }
        let head = self.free_head;
        let mut index = head;
        for (i, buffer) in buffers.iter().enumerate() {
            let next = self.next[usize::from(index)];
            let more = i + 1 < buffers.len();
            let flags =
                if more { DESC_F_NEXT } else { 0 } | if buffer.writable { DESC_F_WRITE } else { 0 };
            self.write_descriptor(index, buffer, flags, if more { next } else { 0 });
            index = next;
        }
        self.free_head = index;
        self.free_count -= count;
        self.enqueue(head, count);
        Some(head)
    }

    /// Offers a table of descriptors that the caller wrote at `address` (`VIRTIO_F_INDIRECT_DESC`).
    pub(crate) fn offer_indirect(&mut self, address: u64, table_bytes: u32) -> Option<u16> {
        if self.free_count == 0 {
            return None;
        }
        let head = self.free_head;
        self.free_head = self.next[usize::from(head)];
        self.free_count -= 1;
        let table = Buffer { address, len: table_bytes, writable: false };
        self.write_descriptor(head, &table, DESC_F_INDIRECT, 0);
        self.enqueue(head, 1);
        Some(head)
    }

    fn write_descriptor(&mut self, index: u16, buffer: &Buffer, flags: u16, next: u16) {
        let mut bytes = [0; DESC_BYTES];
        bytes[..8].copy_from_slice(&buffer.address.to_le_bytes());
        bytes[8..12].copy_from_slice(&buffer.len.to_le_bytes());
        bytes[12..14].copy_from_slice(&flags.to_le_bytes());
        bytes[14..].copy_from_slice(&next.to_le_bytes());
        self.descriptors.write(usize::from(index) * DESC_BYTES, bytes);
    }

    fn enqueue(&mut self, head: u16, count: u16) {
        self.chain_len[usize::from(head)] = count;
        self.avail.store(avail_entry(position(self.next_avail, self.size)), head);
        self.next_avail = self.next_avail.wrapping_add(1);
        self.batches.offered(head);
    }

    /// Shows the device the offered chains, and returns true if it wants a kick.
    pub(crate) fn publish(&mut self) -> bool {
        let old = self.published;
        if old == self.next_avail {
            return false;
        }
        self.avail.store_release(IDX, self.next_avail);
        self.published = self.next_avail;
        // Pairs with the fence in the device's `enable_kicks`.
        fence(Ordering::SeqCst);
        if self.event_idx {
            passed(self.used.load(avail_event(self.size)), old, self.published)
        } else {
            self.used.load(FLAGS) & USED_F_NO_NOTIFY == 0
        }
    }

    /// Takes back the next chain that the device completed. A used element that names no chain in
    /// flight is the device's mistake: it is skipped.
    pub(crate) fn take(&mut self) -> Option<Used> {
        if !self.batches.has_more() {
            let end = self.next_element()?;
            self.batches.begin(end);
        }
        let used = self.batches.next()?;
        self.next_used = self.next_used.wrapping_add(1);
        self.release(used.head);
        Some(used)
    }

    /// The next used element that names a chain in flight.
    fn next_element(&mut self) -> Option<Used> {
        // Read once: a device that keeps moving the index cannot keep this loop going.
        let left = distance(self.next_used, self.used.load_acquire(IDX)).min(self.size);
        for _ in 0..left {
            let at = used_entry(position(self.next_used, self.size));
            let [i0, i1, i2, i3, l0, l1, l2, l3] = self.used.read::<USED_ELEM_BYTES>(at);
            let written = u32::from_le_bytes([l0, l1, l2, l3]);
            let head = u16::try_from(u32::from_le_bytes([i0, i1, i2, i3])).ok();
            let in_flight =
                |head: &u16| self.chain_len.get(usize::from(*head)).is_some_and(|count| *count > 0);
            if let Some(head) = head.filter(in_flight) {
                return Some(Used { head, written });
            }
            self.next_used = self.next_used.wrapping_add(1);
            self.skipped += 1;
        }
        None
    }

    /// Frees the descriptors of a chain.
    fn release(&mut self, head: u16) {
        let count = std::mem::take(&mut self.chain_len[usize::from(head)]);
        let mut tail = head;
        for _ in 1..count {
            tail = self.next[usize::from(tail)];
        }
        self.next[usize::from(tail)] = self.free_head;
        self.free_head = head;
        self.free_count += count;
    }

    /// The number of used elements since the last call that named no chain.
    pub(crate) fn skipped(&mut self) -> u64 {
        std::mem::take(&mut self.skipped)
    }

    /// True if the device has completed a chain that was not taken back.
    pub(crate) fn has_used(&self) -> bool {
        self.batches.has_more() || self.used.load_acquire(IDX) != self.next_used
    }

    /// Asks the device for no calls.
    pub(crate) fn suppress_calls(&mut self) {
        if self.event_idx {
            // The index lies half the index space behind: 2^15 more elements come before it is passed.
            let far = self.next_used.wrapping_add(1 << 15);
            self.avail.store(used_event(self.size), far);
        } else {
            self.avail.store(FLAGS, AVAIL_F_NO_INTERRUPT);
        }
    }

    /// Asks for a call at the next completed chain, and returns true if one came in the meantime: only after `false`
    /// may the caller sleep.
    pub(crate) fn enable_calls(&mut self) -> bool {
        if self.event_idx {
            self.avail.store(used_event(self.size), self.next_used);
        } else {
            self.avail.store(FLAGS, 0);
        }
        // Pairs with the fence in the device's `needs_call`.
        fence(Ordering::SeqCst);
        self.has_used()
    }
}
