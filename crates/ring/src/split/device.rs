//! The device side of a split virtqueue.
//!
//! ```text
//! refill()           how much is available            one acquire load of avail.idx
//! take_burst()       the next chain's buffers         the guest's descriptors, each read once
//! complete()         one used element, not yet seen
//! publish_first()    one release store of used.idx
//! needs_call()       is the guest waiting?            after a full fence
//! ask_for_kicks()    before sleep
//! ```

use std::sync::atomic::Ordering;

use weir_guestmem::{CACHE_LINE_BYTES, Elements, Field, GuestMemory, Slice, Window, append, fence};
use weir_limits::BURST_MAX;

use crate::buffers::{Descriptor, Direction, Plain, Taken, Token, plain_buffer};
use crate::error::{RingError, SetupError};
use crate::index::{distance, passed};
use crate::layout::*;
use crate::split::chain::walk;

/// A ring that weir serves.
#[derive(Debug)]
pub(crate) struct SplitDevice {
    config: RingConfig,
    descriptors: Elements<DESC_BYTES>,
    avail: Window,
    /// Fields that each burst reads or writes.
    avail_idx: Field,
    used_event: Field,
    used_idx: Field,
    /// The entries of `avail`, and the elements of `used`.
    heads: Elements<AVAIL_ENTRY_BYTES>,
    used: Window,
    elements: Elements<USED_ELEM_BYTES>,
    /// Next entry of the available ring to take.
    next_avail: u16,
    /// `avail.idx` as last read, checked: at most `size` ahead of `next_avail`.
    avail_end: u16,
    /// Next entry of the used ring to write.
    next_used: u16,
    /// `used.idx` as last published.
    published: u16,
    /// Chains ever published.
    published_total: u64,
    /// The value of `published` at the last check by [`needs_call`](Self::needs_call).
    looked_at: u16,
    kicks_enabled: bool,
    /// Chains that share one unwritten used element: its index, and the head of the last one.
    batch: Option<(u16, u16)>,
}

const DESCRIPTORS_PER_LINE: u16 = (CACHE_LINE_BYTES / DESC_BYTES) as u16;
const ELEMENTS_PER_LINE: u16 = (CACHE_LINE_BYTES / USED_ELEM_BYTES) as u16;

impl SplitDevice {
    /// A ring at `site` that continues behind `taken` chains, which its driver has not got back. The used index in the
    /// ring's memory is its position: docs/design/restarts.md#0028.
    pub(crate) fn new(site: Site<'_>, taken: u16) -> Result<Self, SetupError> {
        let [descriptors, avail, used] = site.split_areas()?;
        let config = site.config;
        let next_used = used.load(IDX);
        let next_avail = next_used.wrapping_add(taken);
        let bad = SetupError::Size(config.size.into());
        let mut ring = Self {
            config,
            descriptors: descriptors.elements(0, config.size).ok_or(bad)?,
            avail_idx: avail.field(IDX).ok_or(bad)?,
            used_event: avail.field(used_event(config.size)).ok_or(bad)?,
            used_idx: used.field(IDX).ok_or(bad)?,
            heads: avail.elements(avail_entry(0), config.size).ok_or(bad)?,
            avail,
            elements: used.elements(used_entry(0), config.size).ok_or(bad)?,
            used,
            next_avail,
            avail_end: next_avail,
            next_used,
            published: next_used,
            published_total: 0,
            // The guest may have missed a call before weir took over, which it had requested long before. So the first
            // check returns true, unless the guest requests a call at a later index.
            looked_at: next_used.wrapping_sub(config.size),
            kicks_enabled: true,
            batch: None,
        };
        // The first kick starts a ring, and another device may have left a request here that the driver reads.
        ring.ask_for_kicks();
        Ok(ring)
    }

    /// The used index in the memory of a ring at `site`.
    pub(crate) fn used_index(site: Site<'_>) -> Result<u16, SetupError> {
        let [_, _, used] = site.split_areas()?;
        Ok(used.load(IDX))
    }

    /// The used index after the first `count` completed chains are published.
    pub(crate) fn would_show(&self, count: u16) -> u16 {
        self.published.wrapping_add(count.min(distance(self.published, self.next_used)))
    }

    /// The used index as published last.
    pub(crate) fn published(&self) -> u16 {
        self.published
    }

    /// The used index after all completed chains are published.
    pub(crate) fn next_used(&self) -> u16 {
        self.next_used
    }

    /// The negotiated configuration.
    pub(crate) fn config(&self) -> &RingConfig {
        &self.config
    }

    /// The next available index: the answer to `GET_VRING_BASE`.
    pub(crate) fn base(&self) -> u16 {
        self.next_avail
    }

    /// The number of chains that can be taken, after the index was read again.
    #[inline]
    pub(crate) fn refill(&mut self) -> Result<u16, RingError> {
        // Acquire: the entries and descriptors that idx covers are read after it (§2.7.13.3).
        let to = self.avail_idx.load_acquire();
        let ahead = distance(self.next_avail, to);
        if ahead > self.config.size {
            let (from, size) = (self.next_avail, self.config.size);
            return Err(RingError::AvailIndexJump { from, to, size });
        }
        self.avail_end = to;
        Ok(ahead)
    }

    /// The number of chains that can be taken without reading the index again.
    #[inline]
    pub(crate) fn available(&self) -> u16 {
        distance(self.next_avail, self.avail_end)
    }

    /// True if there is a chain to take, after the index was read again. The result is also true for a wrong index:
    /// [`refill`](Self::refill) returns the error.
    #[inline]
    pub(crate) fn peek(&self) -> bool {
        self.avail_idx.load() != self.next_avail
    }

    /// Takes up to `max` of the chains that [`available`](Self::available) counts, a burst at most, and appends what
    /// `note` makes of each to `chains`.
    #[inline(always)]
    pub(crate) fn take_burst<'m, T: Copy>(
        &mut self,
        direction: Direction,
        max: u16,
        memory: &'m GuestMemory,
        pieces: &mut Vec<Slice<'m>>,
        chains: &mut Vec<T>,
        mut note: impl FnMut(Taken<'m>) -> T,
    ) -> Result<(), RingError> {
        let count = max.min(self.available()).min(BURST_MAX as u16);
        self.fetch(count);
        let Self { heads, descriptors, config, next_avail, .. } = self;
        let (head_at, words_at) = (heads.reader(), descriptors.word_reader());
        let main = memory.main();
        let (from, mut result) = (usize::from(*next_avail), Ok(()));
        let taken = append(chains, 0..usize::from(count), |nth| {
            let head = head_at(from + nth);
            let words = words_at(head).map(Descriptor::of_words);
            match words.and_then(|only| plain_buffer(only, direction, main)) {
                Some(front) => Some(note(Taken::plain(Token::split(head), front))),
                None => match walk(descriptors, config, direction, head, memory, pieces) {
                    Ok(taken) => Some(note(taken)),
                    Err(error) => {
                        result = Err(error);
                        None
                    }
                },
            }
        });
        *next_avail = next_avail.wrapping_add(taken as u16); // a burst
        result
    }

    /// Takes the next chain, if it has one buffer, in one of the two largest regions.
    #[inline(always)]
    pub(crate) fn take_plain<'m>(&mut self, to: Direction, memory: &'m GuestMemory) -> Plain<'m> {
        if self.available() == 0 && self.refill().ok()? == 0 {
            return None;
        }
        self.elements.prefetch_write(self.elements.around(self.next_used));
        let head = self.heads.reader()(self.next_avail.into());
        let only = self.descriptors.word_reader()(head).map(Descriptor::of_words)?;
        let buffer = plain_buffer(only, to, memory.main())?;
        self.next_avail = self.next_avail.wrapping_add(1);
        Some((Token::split(head), buffer))
    }

    /// Prefetches the memory for taking and completing `count` chains, all at once: the guest's core has written it,
    /// and the worker would wait for each line in turn. A line of descriptors has those of several chains, if the
    /// driver uses descriptors in order.
    #[inline(always)]
    fn fetch(&self, count: u16) {
        // The descriptor of a single chain is read at once.
        let mut nth = if count > 1 { 0 } else { count };
        let head_at = self.heads.reader();
        while nth < count {
            let head = head_at(usize::from(self.next_avail) + usize::from(nth));
            self.descriptors.prefetch(self.descriptors.around(head));
            nth += DESCRIPTORS_PER_LINE;
        }
        nth = 0;
        while nth < count {
            self.elements.prefetch_write(self.elements.around(self.next_used.wrapping_add(nth)));
            nth += ELEMENTS_PER_LINE;
        }
    }

    /// Puts the last taken chains back. None of them may be completed. They are taken again.
    #[inline]
    pub(crate) fn give_back(&mut self, chains: impl ExactSizeIterator<Item = Token>) {
        self.next_avail = self.next_avail.wrapping_sub(chains.len() as u16); // at most the queue size
    }

    /// Reads a chain again that was taken before and not completed. The guest may have changed the chain since, so it
    /// is checked like a new one.
    pub(crate) fn retake_readable<'m>(
        &self,
        token: Token,
        memory: &'m GuestMemory,
        pieces: &mut Vec<Slice<'m>>,
    ) -> Result<Taken<'m>, RingError> {
        let Self { descriptors, config, .. } = self;
        walk(descriptors, config, Direction::Readable, token.head(), memory, pieces)
    }

    /// Writes the used element of a chain with `written` bytes. The guest sees it after
    /// [`publish_first`](Self::publish_first).
    #[inline(always)]
    pub(crate) fn complete(&mut self, token: Token, written: u32) {
        let head = token.head();
        if self.config.in_order {
            self.complete_in_order(head, written);
        } else {
            self.write_element(self.next_used, head, written);
        }
        self.next_used = self.next_used.wrapping_add(1);
    }

    /// Completes several chains, in their order.
    #[inline(always)]
    pub(crate) fn complete_all(&mut self, chains: impl Iterator<Item = (Token, u32)>) {
        if self.config.in_order {
            return chains.for_each(|(token, written)| self.complete(token, written));
        }
        let mut next_used = self.next_used;
        for (token, written) in chains {
            self.write_element(next_used, token.head(), written);
            next_used = next_used.wrapping_add(1);
        }
        self.next_used = next_used;
    }

    fn complete_in_order(&mut self, head: u16, written: u32) {
        if written == 0 {
            self.batch = Some((self.batch.map_or(self.next_used, |(first, _)| first), head));
        } else {
            self.end_batch();
            self.write_element(self.next_used, head, written);
        }
    }

    /// True if a completed chain waits for its publication.
    pub(crate) fn has_unpublished(&self) -> bool {
        self.published != self.next_used
    }

    /// Replaces the written bytes of the last completed chain, which is not published.
    pub(crate) fn amend_last(&mut self, token: Token, written: u32) {
        self.write_element(self.next_used.wrapping_sub(1), token.head(), written);
    }

    #[inline(always)]
    fn write_element(&self, index: u16, head: u16, written: u32) {
        let element = u64::from(head) | u64::from(written) << 32;
        self.elements.write(self.elements.around(index), element.to_le_bytes());
    }

    /// With `VIRTIO_F_IN_ORDER` chains without written bytes share one used element, at the index of the first with the
    /// head of the last (§2.7.9).
    #[inline]
    fn end_batch(&mut self) {
        if let Some((first, head)) = self.batch.take() {
            self.write_element(first, head, 0);
        }
    }

    /// Shows the guest the first `count` completed chains that are not published: one index write. Returns their
    /// number.
    #[inline(always)]
    pub(crate) fn publish_first(&mut self, count: u16) -> u16 {
        self.end_batch();
        let count = count.min(distance(self.published, self.next_used));
        if count > 0 {
            self.published = self.published.wrapping_add(count);
            self.published_total += u64::from(count);
            // Release: the elements are written before the index that covers them (§2.7.13).
            self.used_idx.store_release(self.published);
        }
        count
    }

    /// True if the guest wants a call for the chains published since the last check (§2.7.7, §2.7.10).
    #[inline(always)]
    pub(crate) fn needs_call(&mut self) -> bool {
        let needs = self.wants_call();
        self.looked_at = self.published;
        needs
    }

    /// Does the same as [`needs_call`](Self::needs_call), but the next check covers the same elements again.
    #[inline(always)]
    pub(crate) fn wants_call(&self) -> bool {
        if self.looked_at == self.published {
            return false;
        }
        // The guest writes its event and then reads used.idx; weir wrote used.idx and now reads
        // the event. Without a full fence on both sides each could miss the other.
        fence(Ordering::SeqCst);
        if self.config.event_idx {
            passed(self.used_event.load(), self.looked_at, self.published)
        } else {
            self.avail.load(FLAGS) & AVAIL_F_NO_INTERRUPT == 0
        }
    }

    /// True if the driver does not suppress all calls (§2.7.7). With EVENT_IDX it cannot suppress them (§2.7.7.1).
    pub(crate) fn wants_calls(&self) -> bool {
        self.config.event_idx || self.avail.load(FLAGS) & AVAIL_F_NO_INTERRUPT == 0
    }

    /// The number of published elements that no [`needs_call`](Self::needs_call) has covered yet.
    #[inline]
    pub(crate) fn unannounced(&self) -> u16 {
        distance(self.looked_at, self.published)
    }

    /// The number of chains ever completed.
    pub(crate) fn completed_total(&self) -> u64 {
        self.published_total + u64::from(distance(self.published, self.next_used))
    }

    /// The present `used_event`: the used index up to which the driver had taken elements when it last asked for a call
    /// (§2.7.10). `None` without `VIRTIO_F_EVENT_IDX`.
    pub(crate) fn call_event(&self) -> Option<u16> {
        self.config.event_idx.then(|| self.used_event.load())
    }

    /// The most completed chains that the driver may not have taken back. `event_is_fresh` means that
    /// [`call_event`](Self::call_event) was written since the last `size` chains were completed.
    pub(crate) fn untaken_max(&self, event_is_fresh: bool) -> u64 {
        // Chains that the driver offers, or weir holds, are not among those that it still has to take.
        let with_weir = distance(self.published, self.avail_idx.load_acquire());
        let untaken = self.config.size.saturating_sub(with_weir);
        let event = self.call_event().filter(|_| event_is_fresh);
        let untaken = event.map_or(untaken, |event| untaken.min(distance(event, self.published)));
        u64::from(untaken) + u64::from(distance(self.published, self.next_used))
    }

    /// Asks the guest for no kicks: weir is polling anyway. A kick can still come. Returns true if the memory was
    /// written.
    #[inline]
    pub(crate) fn suppress_kicks(&mut self) -> bool {
        // With EVENT_IDX the flags stay 0 (§2.7.10) and avail_event stays as it is: the index has passed it and reaches
        // it again after 2^16 chains, for one harmless kick.
        let writes = std::mem::replace(&mut self.kicks_enabled, false) && !self.config.event_idx;
        if writes {
            self.used.store(FLAGS, USED_F_NO_NOTIFY);
        }
        writes
    }

    /// Asks for a kick at the next chain beyond those that [`available`](Self::available) counts.
    #[inline]
    pub(crate) fn ask_for_kicks(&mut self) {
        self.kicks_enabled = true;
        if self.config.event_idx {
            // Not `next_avail`: if some chains are left (a receive ring with too few buffers for a frame), the driver's
            // index has passed that value, and would never pass it again.
            self.used.store(avail_event(self.config.size), self.avail_end);
        } else {
            self.used.store(FLAGS, 0);
        }
    }
}
