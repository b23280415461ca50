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

use weir_guestmem::{CACHE_LINE_BYTES, Elements, GuestMemory, Slice, Window, fence};
use weir_limits::BURST_MAX;

use crate::buffers::{Direction, Taken, Token};
use crate::error::{RingError, SetupError};
use crate::index::{distance, passed};
use crate::layout::*;
use crate::split::chain::{plain, walk};

/// A ring that weir serves.
#[derive(Debug)]
pub(crate) struct SplitDevice {
    config: RingConfig,
    descriptors: Elements<DESC_BYTES>,
    avail: Window,
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
    /// `published` when [`needs_call`](Self::needs_call) last looked.
    looked_at: u16,
    kicks_enabled: bool,
    /// Chains that share one used element, not written yet: its place, and the last one's head.
    batch: Option<(u16, u16)>,
}

const DESCRIPTORS_PER_LINE: u16 = (CACHE_LINE_BYTES / DESC_BYTES) as u16;
const ELEMENTS_PER_LINE: u16 = (CACHE_LINE_BYTES / USED_ELEM_BYTES) as u16;

impl SplitDevice {
    /// A ring at `site`, going on behind `taken` chains that its driver has not got back. Where it stands says the
    /// used index in its memory: docs/design/0028-inflight.md.
    pub(crate) fn new(site: Site<'_>, taken: u16) -> Result<Self, SetupError> {
        let [descriptors, avail, used] = site.split_areas()?;
        let config = site.config;
        let next_used = used.load(IDX);
        let next_avail = next_used.wrapping_add(taken);
        let bad = SetupError::Size(config.size.into());
        let mut ring = Self {
            config,
            descriptors: descriptors.elements(0, config.size).ok_or(bad)?,
            heads: avail.elements(avail_entry(0), config.size).ok_or(bad)?,
            avail,
            elements: used.elements(used_entry(0), config.size).ok_or(bad)?,
            used,
            next_avail,
            avail_end: next_avail,
            next_used,
            published: next_used,
            published_total: 0,
            // The guest may have missed a call before weir took over, and asked for it long before: the first look
            // says yes, unless it asks for one that is yet to come.
            looked_at: next_used.wrapping_sub(config.size),
            kicks_enabled: true,
            batch: None,
        };
        // Its first kick is what starts a ring, and a driver looks at what another device may have left here.
        ring.ask_for_kicks();
        Ok(ring)
    }

    /// The used index that the memory of a ring at `site` holds.
    pub(crate) fn used_index(site: Site<'_>) -> Result<u16, SetupError> {
        let [_, _, used] = site.split_areas()?;
        Ok(used.load(IDX))
    }

    /// The used index after the first `count` of the completed chains are published.
    pub(crate) fn would_show(&self, count: u16) -> u16 {
        self.published.wrapping_add(count.min(distance(self.published, self.next_used)))
    }

    /// The used index as published last.
    pub(crate) fn published(&self) -> u16 {
        self.published
    }

    /// The used index once all that is completed is published.
    pub(crate) fn next_used(&self) -> u16 {
        self.next_used
    }

    /// What was negotiated.
    pub(crate) fn config(&self) -> &RingConfig {
        &self.config
    }

    /// The next available index: what `GET_VRING_BASE` answers.
    pub(crate) fn base(&self) -> u16 {
        self.next_avail
    }

    /// Chains that may be taken now, the index read anew.
    #[inline]
    pub(crate) fn refill(&mut self) -> Result<u16, RingError> {
        // Acquire: the entries and descriptors that idx covers are read after it (§2.7.13.3).
        let to = self.avail.load_acquire(IDX);
        let ahead = distance(self.next_avail, to);
        if ahead > self.config.size {
            let (from, size) = (self.next_avail, self.config.size);
            return Err(RingError::AvailIndexJump { from, to, size });
        }
        self.avail_end = to;
        Ok(ahead)
    }

    /// Chains that may be taken without reading the index anew.
    #[inline]
    pub(crate) fn available(&self) -> u16 {
        distance(self.next_avail, self.avail_end)
    }

    /// Whether there is a chain to take, the index read anew. A wrong index is `true`, too:
    /// [`refill`](Self::refill) says what is wrong with it.
    #[inline]
    pub(crate) fn peek(&self) -> bool {
        self.avail.load(IDX) != self.next_avail
    }

    /// Takes up to `max` of the chains that [`available`](Self::available) counts, a burst at most. `each` is given
    /// every one.
    #[inline(always)]
    pub(crate) fn take_burst<'m>(
        &mut self,
        direction: Direction,
        max: u16,
        memory: &'m GuestMemory,
        pieces: &mut Vec<Slice<'m>>,
        mut each: impl FnMut(Taken<'m>),
    ) -> Result<(), RingError> {
        let count = max.min(self.available()).min(BURST_MAX as u16);
        self.fetch(count);
        let (mut next_avail, mut result) = (self.next_avail, Ok(()));
        for _ in 0..count {
            let head = self.heads.load(self.heads.around(next_avail));
            match plain(&self.descriptors, direction, head, memory) {
                Some(front) => each(Taken::plain(Token::split(head), front)),
                None => {
                    match walk(&self.descriptors, &self.config, direction, head, memory, pieces) {
                        Ok(taken) => each(taken),
                        Err(error) => {
                            result = Err(error);
                            break;
                        }
                    }
                }
            }
            next_avail = next_avail.wrapping_add(1);
        }
        self.next_avail = next_avail;
        result
    }

    /// Has the processor fetch what taking and completing so many chains will touch, all at once: the guest's core has
    /// written it, and one after the other each line would be waited for. A line of descriptors has those of as many
    /// chains, where the driver takes them in a row.
    #[inline(always)]
    fn fetch(&self, count: u16) {
        let mut nth = 0;
        while nth < count {
            let head = self.heads.load(self.heads.around(self.next_avail.wrapping_add(nth)));
            self.descriptors.prefetch(self.descriptors.around(head));
            nth += DESCRIPTORS_PER_LINE;
        }
        nth = 0;
        while nth < count {
            self.elements.prefetch_write(self.elements.around(self.next_used.wrapping_add(nth)));
            nth += ELEMENTS_PER_LINE;
        }
    }

    /// Gives back the last chains that were taken, none of them completed: they are taken again.
    #[inline]
    pub(crate) fn give_back(&mut self, chains: impl ExactSizeIterator<Item = Token>) {
        self.next_avail = self.next_avail.wrapping_sub(chains.len() as u16); // at most the queue size
    }

    /// Reads a chain again that was taken before and not completed. The guest may have changed it
    /// since, so it is checked as if it were new.
    pub(crate) fn retake_readable<'m>(
        &self,
        token: Token,
        memory: &'m GuestMemory,
        pieces: &mut Vec<Slice<'m>>,
    ) -> Result<Taken<'m>, RingError> {
        let Self { descriptors, config, .. } = self;
        walk(descriptors, config, Direction::Readable, token.head(), memory, pieces)
    }

    /// Writes the used element of a chain: `written` bytes were put into it. The guest sees it
    /// after [`publish_first`](Self::publish_first).
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

    /// The same for several, one after the other.
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

    #[inline(always)]
    fn write_element(&self, index: u16, head: u16, written: u32) {
        let element = u64::from(head) | u64::from(written) << 32;
        self.elements.write(self.elements.around(index), element.to_le_bytes());
    }

    /// With `VIRTIO_F_IN_ORDER` chains that nothing was written to share one used element, the
    /// place of the first with the head of the last (§2.7.9).
    #[inline]
    fn end_batch(&mut self) {
        if let Some((first, head)) = self.batch.take() {
            self.write_element(first, head, 0);
        }
    }

    /// Shows the guest the first `count` chains of what was completed and not published: one index write. Says how many
    /// chains that was.
    #[inline]
    pub(crate) fn publish_first(&mut self, count: u16) -> u16 {
        self.end_batch();
        let count = count.min(distance(self.published, self.next_used));
        if count > 0 {
            self.published = self.published.wrapping_add(count);
            self.published_total += u64::from(count);
            // Release: the elements are written before the index that covers them (§2.7.13).
            self.used.store_release(IDX, self.published);
        }
        count
    }

    /// Does the guest want a call for what was published since the last look (§2.7.7, §2.7.10)?
    #[inline]
    pub(crate) fn needs_call(&mut self) -> bool {
        let needs = self.wants_call();
        self.looked_at = self.published;
        needs
    }

    /// As [`needs_call`](Self::needs_call), and the next look asks for the same elements again.
    #[inline]
    pub(crate) fn wants_call(&self) -> bool {
        if self.looked_at == self.published {
            return false;
        }
        // The guest writes its event and then reads used.idx; weir wrote used.idx and now reads
        // the event. Without a full fence on both sides each could miss the other.
        fence(Ordering::SeqCst);
        if self.config.event_idx {
            passed(self.avail.load(used_event(self.config.size)), self.looked_at, self.published)
        } else {
            self.avail.load(FLAGS) & AVAIL_F_NO_INTERRUPT == 0
        }
    }

    /// Whether the driver takes calls at all (§2.7.7). With EVENT_IDX it cannot say that it does not (§2.7.7.1).
    pub(crate) fn wants_calls(&self) -> bool {
        self.config.event_idx || self.avail.load(FLAGS) & AVAIL_F_NO_INTERRUPT == 0
    }

    /// Published elements that no [`needs_call`](Self::needs_call) has looked at yet.
    #[inline]
    pub(crate) fn unannounced(&self) -> u16 {
        distance(self.looked_at, self.published)
    }

    /// Chains ever completed.
    pub(crate) fn completed_total(&self) -> u64 {
        self.published_total + u64::from(distance(self.published, self.next_used))
    }

    /// `used_event` as it stands: how far the driver had taken used elements when it last asked for a call
    /// (§2.7.10). `None` without `VIRTIO_F_EVENT_IDX`.
    pub(crate) fn call_event(&self) -> Option<u16> {
        self.config.event_idx.then(|| self.avail.load(used_event(self.config.size)))
    }

    /// At most so many completed chains has the driver not taken back. `event_is_fresh` says that
    /// [`call_event`](Self::call_event) was written since the last `size` chains were completed.
    pub(crate) fn untaken_max(&self, event_is_fresh: bool) -> u64 {
        // What the driver offers, or weir has, is not what it has yet to take.
        let with_weir = distance(self.published, self.avail.load_acquire(IDX));
        let untaken = self.config.size.saturating_sub(with_weir);
        let event = self.call_event().filter(|_| event_is_fresh);
        let untaken = event.map_or(untaken, |event| untaken.min(distance(event, self.published)));
        u64::from(untaken) + u64::from(distance(self.published, self.next_used))
    }

    /// Asks the guest for no kicks: weir is looking anyway. A kick may come all the same. Says whether anything was
    /// written.
    #[inline]
    pub(crate) fn suppress_kicks(&mut self) -> bool {
        // With EVENT_IDX the flags stay 0 (§2.7.10) and avail_event stays where it is: the index
        // has passed it and comes by again after 2^16 chains, for one kick that does no harm.
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
            // Not `next_avail`: where some chains are left (a receive ring with too few buffers
            // for a frame) the driver's index has passed that, and would never pass it again.
            self.used.store(avail_event(self.config.size), self.avail_end);
        } else {
            self.used.store(FLAGS, 0);
        }
    }
}
