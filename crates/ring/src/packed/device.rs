//! The device side of a packed virtqueue.
//!
//! ```text
//! refill()           is the next slot available       one acquire load of a descriptor's flags
//! take_*()           the next list's buffers          the guest's descriptors, each read once
//! keep()             copies a list that stays         before its slots are written over
//! complete()         noted, nothing written yet
//! publish()          used descriptors, the first one's flags last: one release store
//! needs_call()       is the guest waiting?            after a full fence
//! enable_kicks()     before sleep: did more come?     after a full fence
//! ```
//!
//! There is one ring for both ways. A used descriptor goes where the device stands, not where the
//! list was, so that completing out of order writes over lists that are still in flight.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use weir_guestmem::{GuestMemory, Slice, Window, fence};

use crate::buffers::{Chain, Descriptor, Direction, Pieces, Token};
use crate::error::{RingError, SetupError};
use crate::index::*;
use crate::layout::*;
use crate::packed::chain::{Rules, Walked, walk};

/// A list that was completed and not published.
#[derive(Debug, Clone, Copy)]
struct Completed {
    token: Token,
    written: u32,
}

/// The descriptors of a list whose slots may be written over.
#[derive(Debug, Default)]
struct Kept {
    token: Token,
    descriptors: Vec<[u8; DESC_BYTES]>,
}

/// A packed ring that weir serves.
#[derive(Debug)]
pub struct PackedDevice {
    config: RingConfig,
    ring: Window,
    /// The driver's event suppression: when it wants calls.
    driver_event: Window,
    /// The device's: when weir wants kicks.
    device_event: Window,
    /// Next slot to take.
    next_avail: u16,
    /// Slots before this one have been seen to be available.
    avail_end: u16,
    /// Slot of the next used descriptor.
    next_used: u16,
    /// `next_used` when [`needs_call`](Self::needs_call) last looked.
    looked_at: u16,
    kicks_enabled: bool,
    completed: Vec<Completed>,
    kept: Vec<Kept>,
    /// Kept for their allocations.
    spare: Vec<Kept>,
}

impl PackedDevice {
    /// A ring at `at`, going on at `base` (vhost-user, "Vring descriptor indices for packed
    /// virtqueues"): slot and wrap counter of the next available descriptor in the lower half, of
    /// the next used one in the upper half. An upper half of 0 stands for the same place: that is
    /// what front ends say that know of the lower half only.
    pub fn new(
        memory: &Arc<GuestMemory>,
        config: RingConfig,
        at: &Addresses,
        base: u32,
    ) -> Result<Self, SetupError> {
        let size = config.size;
        let [ring, driver_event, device_event] = packed_areas(memory, size, at)?;
        let (avail, used) = (base as u16, (base >> 16) as u16);
        let used = if used == 0 { avail } else { used };
        let next_avail = from_off_wrap(avail, size);
        let behind = lap_distance(from_off_wrap(used, size), next_avail, size);
        let within = |off_wrap: u16| off_wrap & !(1 << 15) < size;
        if !within(avail) || !within(used) || behind > size {
            return Err(SetupError::Base(base));
        }
        let next_used = next_avail.wrapping_sub(behind);
        let mut ring = Self {
            config,
            ring,
            driver_event,
            device_event,
            next_avail,
            avail_end: next_avail,
            next_used,
            // The guest may have missed a call before weir took over: the first look always says yes.
            looked_at: next_used.wrapping_sub(1),
            kicks_enabled: true,
            completed: Vec::new(),
            kept: Vec::new(),
            spare: Vec::new(),
        };
        ring.suppress_kicks();
        Ok(ring)
    }

    /// What was negotiated.
    pub fn config(&self) -> &RingConfig {
        &self.config
    }

    /// Where the ring stands: what `GET_VRING_BASE` answers, in the form that [`new`](Self::new)
    /// takes.
    pub fn base(&self) -> u32 {
        let size = self.config.size;
        let [avail, used] = [self.next_avail, self.next_used].map(|i| to_off_wrap(i, size));
        u32::from(avail) | u32::from(used) << 16
    }

    fn slot(&self, index: u16) -> usize {
        position(index, self.config.size) * DESC_BYTES
    }

    /// Has the driver made this slot available (§2.8.1)?
    #[inline(always)]
    fn is_available(&self, index: u16) -> bool {
        // Acquire: the rest of the descriptor is read after its flags (§2.8.21).
        let flags = self.ring.load_acquire(self.slot(index) + PACKED_FLAGS);
        let wrap = wrap(index, self.config.size);
        (flags & PACKED_F_AVAIL != 0) == wrap && (flags & PACKED_F_USED != 0) != wrap
    }

    /// Slots known to be available, after a look at the one behind them. Not all that are: a packed
    /// ring has no index that would tell.
    #[inline]
    pub fn refill(&mut self) -> Result<u16, RingError> {
        if self.is_available(self.avail_end) {
            self.avail_end = self.avail_end.wrapping_add(1);
        }
        Ok(self.available())
    }

    /// Slots known to be available.
    #[inline]
    pub fn available(&self) -> u16 {
        distance(self.next_avail, self.avail_end)
    }

    /// Whether there is something to take.
    #[inline]
    pub fn has_more(&self) -> bool {
        self.available() > 0 || self.is_available(self.next_avail)
    }

    /// Takes the next list of a transmit queue, if there is one.
    #[inline(never)]
    pub fn take_readable<'m>(
        &mut self,
        memory: &'m GuestMemory,
        pieces: &mut Vec<Slice<'m>>,
    ) -> Result<Option<Chain>, RingError> {
        self.take(Direction::Readable, memory, pieces)
    }

    /// Takes the next list of a receive queue, if there is one.
    #[inline(never)]
    pub fn take_writable<'m>(
        &mut self,
        memory: &'m GuestMemory,
        pieces: &mut Vec<Slice<'m>>,
    ) -> Result<Option<Chain>, RingError> {
        self.take(Direction::Writable, memory, pieces)
    }

    #[inline(always)]
    fn take<'m>(
        &mut self,
        direction: Direction,
        memory: &'m GuestMemory,
        pieces: &mut Vec<Slice<'m>>,
    ) -> Result<Option<Chain>, RingError> {
        let (at, size) = (self.next_avail, self.config.size);
        let slot = position(at, size) as u16;
        if !self.is_available(at) {
            return match self.available() {
                0 => Ok(None),
                _ => Err(RingError::AvailableRetracted { slot }),
            };
        }
        // All in flight fit in the ring: a driver that says otherwise has made one slot available
        // twice.
        let room = size.saturating_sub(distance(self.next_used, at));
        let overrun = RingError::AvailableOverrun { slot, size };
        if room == 0 {
            return Err(overrun);
        }
        let descriptor = |nth| match nth < room {
            true => Ok(self.descriptor(at.wrapping_add(nth))),
            false => Err(overrun),
        };
        let rules = self.rules(direction, slot, memory);
        let Walked { id, slots, len } = walk(rules, self.descriptor(at), descriptor, pieces)?;
        self.next_avail = at.wrapping_add(slots);
        if distance(at, self.avail_end) < slots {
            self.avail_end = self.next_avail;
        }
        Ok(Some(Chain { token: Token::packed(id, slots, at), len }))
    }

    /// Takes up to `max` lists. `each` is given every one.
    #[inline(always)]
    pub(crate) fn take_burst<'m>(
        &mut self,
        direction: Direction,
        max: u16,
        memory: &'m GuestMemory,
        pieces: &mut Vec<Slice<'m>>,
        mut each: impl FnMut(Chain, Pieces<'_, 'm>) -> Result<(), RingError>,
    ) -> Result<(), RingError> {
        for _ in 0..max {
            let first = pieces.len();
            let Some(chain) = self.take(direction, memory, pieces)? else { break };
            each(chain, Pieces { first, all: pieces })?;
        }
        Ok(())
    }

    fn rules<'m>(&self, direction: Direction, slot: u16, memory: &'m GuestMemory) -> Rules<'m> {
        Rules { direction, indirect_negotiated: self.config.indirect, slot, memory }
    }

    #[inline(always)]
    fn descriptor(&self, index: u16) -> Descriptor {
        Descriptor::parse_packed(self.ring.read(self.slot(index)))
    }

    /// Gives back the last lists that were taken, none of them completed: they are taken again.
    #[inline]
    pub fn give_back(&mut self, lists: impl ExactSizeIterator<Item = Token>) {
        for token in lists {
            self.next_avail = self.next_avail.wrapping_sub(token.slots());
        }
    }

    /// Copies the descriptors of a list that was taken, so that
    /// [`retake_readable`](Self::retake_readable) finds them when others were completed before it.
    /// To be called before the [`publish`](Self::publish) that follows the take.
    pub fn keep(&mut self, token: Token) {
        if self.kept.iter().any(|kept| kept.token == token) {
            return;
        }
        let mut kept = self.spare.pop().unwrap_or_default();
        kept.token = token;
        kept.descriptors.clear();
        let slots = (0..token.slots()).map(|nth| self.slot(token.at().wrapping_add(nth)));
        kept.descriptors.extend(slots.map(|slot| self.ring.read(slot)));
        self.kept.push(kept);
    }

    /// Walks a list again that was taken before and [kept](Self::keep). What was copied is checked
    /// as if it were new: the guest may have changed it before that.
    pub fn retake_readable<'m>(
        &self,
        token: Token,
        memory: &'m GuestMemory,
        pieces: &mut Vec<Slice<'m>>,
    ) -> Result<Chain, RingError> {
        let slot = position(token.at(), self.config.size) as u16;
        let retracted = RingError::AvailableRetracted { slot };
        let kept = self.kept.iter().find(|kept| kept.token == token).ok_or(retracted)?;
        let descriptor = |nth| {
            let bytes = kept.descriptors.get(usize::from(nth)).ok_or(retracted)?;
            Ok(Descriptor::parse_packed(*bytes))
        };
        let rules = self.rules(Direction::Readable, slot, memory);
        Ok(Chain { token, len: walk(rules, descriptor(0)?, descriptor, pieces)?.len })
    }

    /// Completes a list: `written` bytes were put into it. The guest sees it after
    /// [`publish`](Self::publish).
    #[inline]
    pub fn complete(&mut self, token: Token, written: u32) {
        self.completed.push(Completed { token, written });
        if !self.kept.is_empty() {
            self.forget(token);
        }
    }

    #[cold]
    fn forget(&mut self, token: Token) {
        if let Some(place) = self.kept.iter().position(|kept| kept.token == token) {
            self.spare.push(self.kept.swap_remove(place));
        }
    }

    /// Shows the guest what was completed, all at once: the first used descriptor's flags are
    /// written last. Says how many lists that was.
    ///
    /// With `VIRTIO_F_IN_ORDER` lists that nothing was written to share one used descriptor, that
    /// of the last of them (§2.8.8).
    #[inline]
    pub fn publish(&mut self) -> u16 {
        self.publish_first(self.completed.len() as u16) // at most the queue size
    }

    /// Shows the guest the first `count` lists of what was completed and not published.
    #[inline]
    pub fn publish_first(&mut self, count: u16) -> u16 {
        let count = usize::from(count).min(self.completed.len());
        let completed = &self.completed[..count];
        let mut first = None;
        let mut slots = 0;
        for (i, &Completed { token, written }) in completed.iter().enumerate() {
            slots += token.slots();
            let joins = self.config.in_order && written == 0;
            if joins && completed.get(i + 1).is_some_and(|next| next.written == 0) {
                continue;
            }
            let at = self.slot(self.next_used);
            let flags = self.used_flags(written);
            if first.is_none() {
                first = Some((at, flags));
                self.ring.write(at + PACKED_LEN, written.to_le_bytes());
                self.ring.store(at + PACKED_ID, token.id());
            } else {
                let id_flags = u64::from(token.id()) | u64::from(flags) << 16;
                let used = u64::from(written) | id_flags << 32;
                self.ring.write(at + PACKED_LEN, used.to_le_bytes());
            }
            self.next_used = self.next_used.wrapping_add(slots);
            slots = 0;
        }
        if let Some((at, flags)) = first {
            // Release: all that was written before is there when the guest sees this (§2.8.22).
            self.ring.store_release(at + PACKED_FLAGS, flags);
        }
        self.completed.drain(..count);
        count as u16
    }

    /// Flags of the used descriptor at `next_used`; `WRITE` says that its length counts (§2.8.3).
    #[inline]
    fn used_flags(&self, written: u32) -> u16 {
        let wrap =
            if wrap(self.next_used, self.config.size) { PACKED_F_AVAIL | PACKED_F_USED } else { 0 };
        if written > 0 { wrap | DESC_F_WRITE } else { wrap }
    }

    /// Does the guest want a call for what was published since the last look (§2.8.14)?
    #[inline]
    pub fn needs_call(&mut self) -> bool {
        if self.looked_at == self.next_used {
            return false;
        }
        // The guest writes its event and then looks at the ring; weir wrote the ring and now reads
        // the event. Without a full fence on both sides each could miss the other.
        fence(Ordering::SeqCst);
        let old = std::mem::replace(&mut self.looked_at, self.next_used);
        // Acquire: the driver writes off_wrap before the flags that make it count.
        match self.driver_event.load_acquire(EVENT_FLAGS) & EVENT_FLAGS_MASK {
            EVENT_DISABLE => false,
            EVENT_DESC if self.config.event_idx => {
                let off_wrap = self.driver_event.load(EVENT_OFF_WRAP);
                passed_off_wrap(off_wrap, old, self.next_used, self.config.size)
            }
            _ => true,
        }
    }

    /// Published slots that no [`needs_call`](Self::needs_call) has looked at yet.
    #[inline]
    pub fn unannounced(&self) -> u16 {
        distance(self.looked_at, self.next_used)
    }

    /// Asks the guest for no kicks: weir is looking anyway. A kick may come all the same.
    #[inline]
    pub fn suppress_kicks(&mut self) {
        if std::mem::replace(&mut self.kicks_enabled, false) {
            self.device_event.store(EVENT_FLAGS, EVENT_DISABLE);
        }
    }

    /// Asks for a kick at the next slot beyond those that [`available`](Self::available) counts,
    /// and says how many are known to be available now: only when that is no more may the caller
    /// sleep.
    #[inline]
    pub fn enable_kicks(&mut self) -> Result<u16, RingError> {
        self.kicks_enabled = true;
        if self.config.event_idx {
            let off_wrap = to_off_wrap(self.avail_end, self.config.size);
            self.device_event.store(EVENT_OFF_WRAP, off_wrap);
            self.device_event.store_release(EVENT_FLAGS, EVENT_DESC);
        } else {
            self.device_event.store(EVENT_FLAGS, EVENT_ENABLE);
        }
        // The mirror image of the fence in `needs_call`.
        fence(Ordering::SeqCst);
        self.refill()
    }
}
