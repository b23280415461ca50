//! The device side of a packed virtqueue.
//!
//! ```text
//! refill()           is the next slot available       one acquire load of a descriptor's flags
//! take_burst()       the next list's buffers          the guest's descriptors, each read once
//! keep()             copies a list that stays         before its slots are written over
//! complete()         noted, nothing written yet
//! publish_first()    used descriptors, the first one's flags last: one release store
//! needs_call()       is the guest waiting?            after a full fence
//! ask_for_kicks()    before sleep
//! ```
//!
//! One ring serves both directions. A used descriptor is written at the device's position, not at the list's. So a
//! completion out of order overwrites lists that are still in flight.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use weir_guestmem::{Element, Elements, GuestMemory, MainRegions, Slice, Window, append, fence};
use weir_limits::QUEUE_SIZE_MAX;

use crate::buffers::*;
use crate::error::{RingError, SetupError};
use crate::index::*;
use crate::layout::*;
use crate::packed::chain::{Rules, walk};
use crate::record::{Logged, Publication, Record};

/// A used descriptor that is not published. With `VIRTIO_F_IN_ORDER`, consecutive lists without written bytes share the
/// used descriptor of the last one (§2.8.8).
#[derive(Debug, Clone, Copy)]
struct Completed {
    /// The second word of the used descriptor without the flags of its lap: from the lowest bit, length, id, and
    /// `WRITE` if bytes were written.
    word: u64,
    /// Slots of all lists that share the used descriptor.
    slots: u16,
    lists: u16,
}

impl Completed {
    /// The used descriptor of one list.
    #[inline(always)]
    fn new(id: u16, slots: u16, written: u32) -> Self {
        let flags = if written > 0 { DESC_F_WRITE } else { 0 };
        let word = u64::from(written) | u64::from(id) << 32 | u64::from(flags) << 48;
        Self { word, slots, lists: 1 }
    }

    fn id(&self) -> u16 {
        (self.word >> 32) as u16
    }

    fn written(&self) -> u32 {
        self.word as u32
    }

    /// The second word of the used descriptor, in a lap with these flags.
    #[inline(always)]
    fn word(&self, flags: u16) -> u64 {
        self.word | u64::from(flags) << 48
    }
}

/// The descriptors of a list whose slots can be overwritten.
#[derive(Debug, Default)]
struct Kept {
    token: Token,
    descriptors: Vec<[u8; DESC_BYTES]>,
}

/// The flags that mark a descriptor.
const PACKED_MARKS: u16 = PACKED_F_AVAIL | PACKED_F_USED;

/// The descriptor, if it has these marks.
#[inline(always)]
fn marked(descriptor: &Element<'_, DESC_BYTES>, marks: u16) -> Option<Descriptor> {
    const _: () = assert!(PACKED_LEN == 8 && PACKED_FLAGS == PACKED_LEN + 6);
    // Acquire: the address is read after the flags (§2.8.21).
    let word = descriptor.load_second_acquire(|flags| flags & PACKED_MARKS == marks)?;
    Some(Descriptor::packed(descriptor.read_first(), word))
}

/// The list of the descriptor at `place`, if it has these flags, and one buffer in one of the `main` regions.
#[inline(always)]
fn plain_list<'m>(
    descriptor: &Element<'_, DESC_BYTES>,
    flags: u16,
    place: u16,
    main: MainRegions<'m>,
) -> Plain<'m> {
    let is_plain = |found| found & (PACKED_MARKS | PLAIN_FLAGS) == flags;
    let word = descriptor.load_second_acquire(is_plain)?;
    let buffer = main.slice(descriptor.read_first(), word as u32)?;
    Some((Token::packed((word >> 32) as u16, 1, place), buffer))
}

/// A packed ring that weir serves.
#[derive(Debug)]
pub(crate) struct PackedDevice {
    config: RingConfig,
    ring: Window,
    /// The descriptors in `ring`.
    descriptors: Elements<DESC_BYTES>,
    /// The driver's event suppression: its request for calls.
    driver_event: Window,
    /// The device's event suppression: weir's request for kicks.
    device_event: Window,
    /// Next slot to take.
    next_avail: u16,
    /// Slots before this one were found available.
    avail_end: u16,
    /// Slot of the next used descriptor.
    next_used: u16,
    /// Slots of all lists ever published.
    published_total: u64,
    /// Slots published since the last check by [`needs_call`](Self::needs_call), or 65535 if there were more.
    unannounced: u16,
    kicks_enabled: bool,
    completed: Vec<Completed>,
    /// True if lists of more than one slot are under way, the last one before `long_until`.
    long: bool,
    long_until: u16,
    /// True if lists of `completed` share a used descriptor, or belong together.
    joined: bool,
    kept: Vec<Kept>,
    /// Unused entries, kept for their allocations.
    spare: Vec<Kept>,
}

/// Places of the next used and the next available descriptor in a ring that continues at `base`: see
/// [`PackedDevice::new`].
fn places_by(size: u16, base: u32) -> Result<(u16, u16), SetupError> {
    if size == 0 || size > QUEUE_SIZE_MAX {
        return Err(SetupError::PackedSize(size.into()));
    }
    let (avail, used) = (base as u16, (base >> 16) as u16);
    let used = if used == 0 { avail } else { used };
    let within = |off_wrap: u16| off_wrap & !(1 << 15) < size;
    let (next_avail, next_used) = (from_off_wrap(avail, size), from_off_wrap(used, size));
    let behind = lap_distance(next_used, next_avail, size);
    if !within(avail) || !within(used) || behind > size {
        return Err(SetupError::Base(base));
    }
    Ok((next_used, next_avail))
}

/// True if this packed ring of `size` slots is new, or its driver is in its first round. Then no descriptor is marked
/// used, nor made available in a second round. With `VIRTIO_F_IN_ORDER` a device may leave out any slots of a round,
/// but not all. `false` if the ring is not in memory.
pub fn is_untouched(memory: &Arc<GuestMemory>, at: &Addresses, size: u16) -> bool {
    let ring = memory.window(at.descriptor, usize::from(size) * DESC_BYTES);
    ring.is_some_and(|ring| {
        let flags = |slot| ring.load_acquire(usize::from(slot) * DESC_BYTES + PACKED_FLAGS);
        (0..size).all(|slot| flags(slot) & PACKED_F_USED == 0)
    })
}

impl PackedDevice {
    /// A ring at `site` that continues at `base` (vhost-user, "Vring descriptor indices for packed virtqueues"). The
    /// lower half of `base` has slot and wrap counter of the next available descriptor, the upper half those of the
    /// next used one. An upper half of 0 stands for the same place as the lower half: front ends that know only the
    /// lower half send 0. Lists between the two places were taken by a former process, and are taken again.
    pub(crate) fn new(site: Site<'_>, base: u32) -> Result<Self, SetupError> {
        let next_used = Self::next_used_by(site, base)?;
        Self::at(site, next_used)
    }

    /// The place of the next used descriptor of a ring that continues at `base`.
    ///
    /// # Errors
    /// The ring's memory contradicts the base.
    pub(crate) fn next_used_by(site: Site<'_>, base: u32) -> Result<u16, SetupError> {
        let size = site.config.size;
        let (next_used, next_avail) = places_by(size, base)?;
        let [ring, ..] = site.packed_areas()?;
        let at = usize::from(slot(next_used, size)) * DESC_BYTES + PACKED_FLAGS;
        let marks = ring.load_acquire(at) & PACKED_MARKS;
        let (available, used) = match wrap(next_used, size) {
            true => (PACKED_F_AVAIL, PACKED_MARKS),
            false => (PACKED_F_USED, 0),
        };
        let slot = slot(next_used, size);
        if marks == used {
            // The ring's driver would see used descriptors only after two rounds of the ring.
            return Err(SetupError::UsedAlready { slot });
        }
        if next_avail != next_used && marks != available {
            return Err(SetupError::NeverOffered { slot });
        }
        Ok(next_used)
    }

    /// A ring that continues at this place, with no list taken.
    pub(crate) fn at(site: Site<'_>, next_used: u16) -> Result<Self, SetupError> {
        let [ring, driver_event, device_event] = site.packed_areas()?;
        let config = site.config;
        if u32::from(next_used) >= 2 * u32::from(config.size) {
            return Err(SetupError::Base(next_used.into()));
        }
        let bad = SetupError::PackedSize(config.size.into());
        let mut ring = Self {
            config,
            descriptors: ring.elements(0, config.size).ok_or(bad)?,
            ring,
            driver_event,
            device_event,
            next_avail: next_used,
            avail_end: next_used,
            next_used,
            published_total: 0,
            // The guest may have missed a call before weir took over, which it had requested long before. So the first
            // check returns true, unless the guest requests a call at a later place.
            unannounced: config.size,
            kicks_enabled: true,
            completed: Vec::new(),
            long: false,
            long_until: next_used,
            joined: false,
            kept: Vec::new(),
            spare: Vec::new(),
        };
        if !config.event_idx {
            // The value is unused then (§2.8.14). It is not 0: see `was_served`.
            ring.device_event.store(EVENT_OFF_WRAP, u16::MAX);
        }
        // The first kick starts a ring, and another device may have left a request here that the driver reads.
        ring.ask_for_kicks();
        Ok(ring)
    }

    /// True if a device has served the ring at `site` since its driver started. A driver that starts sets the device's
    /// event structure to zeros (§2.8.10.1), and [`PackedDevice`] never leaves it at zero.
    pub(crate) fn was_served(site: Site<'_>) -> Result<bool, SetupError> {
        let [_, _, device_event] = site.packed_areas()?;
        Ok(device_event.read::<EVENT_BYTES>(0) != [0; EVENT_BYTES])
    }

    /// Marks `slots` slots from the next one on as taken.
    pub(crate) fn take_all(&mut self, slots: u16) {
        self.next_avail = self.ahead(self.next_avail, slots);
        self.avail_end = self.next_avail;
    }

    /// The outcome of a publication that a former process may have begun: the part that is in the ring, or that
    /// [`make`](Self::make) can finish. `None` if there is no such publication.
    pub(crate) fn outcome(&self, publication: &Publication) -> Option<Publication> {
        let Publication { before, after, single, .. } = *publication;
        let laps = 2 * u32::from(self.config.size);
        let slots = self.distance(before, after);
        if u32::from(before.max(after)) >= laps || slots > self.config.size {
            return None;
        }
        if slots == 0 || single || !self.is_available(before) {
            return Some(*publication);
        }
        // If there are several used descriptors, those behind the first are written one after the other, and each has
        // one slot.
        let behind_first = (1..slots).map(|nth| self.ahead(before, nth));
        let end = behind_first.take_while(|index| self.is_marked_used(*index)).last();
        let last = end.unwrap_or(before);
        Some(Publication { after: self.ahead(last, 1), ..*publication })
    }

    /// Makes a publication that is not in the ring yet. All of it but the first used descriptor is written, and the
    /// ring is at its beginning.
    pub(crate) fn make(&mut self, publication: &Publication) {
        let Publication { before, after, id, written, .. } = *publication;
        let slots = self.distance(before, after);
        if slots > 0 && self.is_available(before) {
            self.completed.push(Completed::new(id, slots, written));
            self.publish_first(u16::MAX, None);
        }
        self.stands_at(after);
    }

    /// Makes a publication again, unless it is in the ring. The ring is at its beginning. `false` if there is no such
    /// publication.
    pub(crate) fn make_again(&mut self, log: &[Logged]) -> bool {
        let slots: u32 = log.iter().map(|logged| u32::from(logged.slots)).sum();
        if slots > self.config.size.into() {
            return false;
        }
        let after = self.ahead(self.next_used, slots as u16);
        if slots > 0 && self.is_available(self.next_used) {
            let completed = log.iter().map(|it| Completed::new(it.id, it.slots, it.written));
            self.completed.extend(completed);
            self.publish_first(u16::MAX, None);
        }
        self.stands_at(after);
        true
    }

    /// Sets the position before any list is taken.
    fn stands_at(&mut self, index: u16) {
        (self.next_used, self.next_avail, self.avail_end) = (index, index, index);
        self.unannounced = self.config.size;
    }

    /// True if a device has marked this slot as used in its last lap.
    fn is_marked_used(&self, index: u16) -> bool {
        let marks = PACKED_MARKS;
        let flags = self.ring.load_acquire(self.slot(index) + PACKED_FLAGS) & marks;
        flags == self.used_flags(index, 0)
    }

    /// The negotiated configuration.
    pub(crate) fn config(&self) -> &RingConfig {
        &self.config
    }

    /// The position of the ring: the answer to `GET_VRING_BASE`, in the form that [`new`](Self::new) takes.
    pub(crate) fn base(&self) -> u32 {
        let size = self.config.size;
        let [avail, used] = [self.next_avail, self.next_used].map(|i| to_off_wrap(i, size));
        u32::from(avail) | u32::from(used) << 16
    }

    /// The index of the descriptor at a place.
    fn nth(&self, place: u16) -> usize {
        slot(place, self.config.size).into()
    }

    /// The offset of the descriptor at a place.
    fn slot(&self, place: u16) -> usize {
        self.nth(place) * DESC_BYTES
    }

    fn ahead(&self, place: u16, count: u16) -> u16 {
        ahead(place, count, self.config.size)
    }

    fn distance(&self, from: u16, to: u16) -> u16 {
        lap_distance(from, to, self.config.size)
    }

    /// The descriptor at this slot, if the driver has made it available (§2.8.1).
    #[inline(always)]
    fn available_at(&self, place: u16) -> Option<Descriptor> {
        marked(&self.descriptors.get(self.nth(place)), self.marks(place))
    }

    /// The marks of an available descriptor in the lap of a place.
    #[inline(always)]
    fn marks(&self, place: u16) -> u16 {
        if wrap(place, self.config.size) { PACKED_F_AVAIL } else { PACKED_F_USED }
    }

    /// Up to `max` descriptors from a place on, but not beyond the ring's end.
    #[inline(always)]
    fn run(&self, at: u16, max: u16) -> impl ExactSizeIterator<Item = Element<'_, DESC_BYTES>> {
        self.descriptors.run(self.nth(at), max.into())
    }

    #[inline(always)]
    fn is_available(&self, place: u16) -> bool {
        self.available_at(place).is_some()
    }

    /// The number of slots known to be available, after a check of the next one. More can be available: a packed ring
    /// has no index that shows it.
    #[inline]
    pub(crate) fn refill(&mut self) -> Result<u16, RingError> {
        if self.is_available(self.avail_end) {
            self.avail_end = self.ahead(self.avail_end, 1);
        }
        Ok(self.available())
    }

    /// The number of slots known to be available.
    #[inline]
    pub(crate) fn available(&self) -> u16 {
        self.distance(self.next_avail, self.avail_end)
    }

    /// True if there is a list to take.
    #[inline]
    pub(crate) fn has_more(&self) -> bool {
        self.available() > 0 || self.is_available(self.next_avail)
    }

    /// Takes up to `max` lists, and appends what `note` makes of each to `chains`.
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
        let mut at = self.next_avail;
        let mut result = Ok(());
        let (mut lists, mut taken) = (0, 0);
        // There is room in the ring for all lists in flight.
        let room = self.config.size.saturating_sub(self.distance(self.next_used, at));
        let main = memory.main();
        while lists < max {
            let flags = self.marks(at) | plain_flags(direction);
            let mut place = at;
            let plain =
                append(chains, self.run(at, (max - lists).min(room - taken)), |descriptor| {
                    let (token, front) = plain_list(&descriptor, flags, place, main)?;
                    place = place.wrapping_add(1);
                    Some(note(Taken::plain(token, front)))
                }) as u16; // at most `max`
            at = self.ahead(at, plain);
            lists += plain;
            taken += plain; // at most the room that there was
            if lists == max {
                break;
            }
            // The run has ended with the ring, and the next one begins with it.
            if plain > 0 && self.nth(at) == 0 {
                continue;
            }
            let Some(first) = self.available_at(at) else {
                result = self.none_at(at);
                break;
            };
            match self.walk(at, first, room - taken, direction, memory, pieces) {
                Ok((list, slots)) => {
                    chains.push(note(list));
                    at = self.ahead(at, slots);
                    lists += 1;
                    taken += slots;
                }
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        if self.available() < taken {
            self.avail_end = at;
        }
        if taken != lists {
            (self.long, self.long_until) = (true, at);
        }
        self.next_avail = at;
        result
    }

    /// Takes the next list, if it has one buffer, in one of the two largest regions.
    #[inline(always)]
    pub(crate) fn take_plain<'m>(&mut self, to: Direction, memory: &'m GuestMemory) -> Plain<'m> {
        let at = self.next_avail;
        if self.distance(self.next_used, at) >= self.config.size {
            return None;
        }
        let flags = self.marks(at) | plain_flags(to);
        let list = plain_list(&self.descriptors.get(self.nth(at)), flags, at, memory.main())?;
        self.next_avail = self.ahead(at, 1);
        if self.avail_end == at {
            self.avail_end = self.next_avail;
        }
        Some(list)
    }

    /// Checks that no slot from this place on was known to be available, because no list begins here.
    fn none_at(&self, at: u16) -> Result<(), RingError> {
        match self.available() > self.distance(self.next_avail, at) {
            true => Err(RingError::AvailableRetracted { slot: slot(at, self.config.size) }),
            false => Ok(()),
        }
    }

    /// The list at slot `at`, which has up to `room` slots, and the number of its slots.
    #[inline(never)]
    fn walk<'m>(
        &self,
        at: u16,
        first: Descriptor,
        room: u16,
        direction: Direction,
        memory: &'m GuestMemory,
        pieces: &mut Vec<Slice<'m>>,
    ) -> Result<(Taken<'m>, u16), RingError> {
        let size = self.config.size;
        let slot = slot(at, size);
        let overrun = RingError::AvailableOverrun { slot, size };
        let nth = |nth| self.descriptors.read(self.nth(self.ahead(at, nth)));
        let descriptor = |n| match n < room {
            true => Ok(Descriptor::parse_packed(nth(n))),
            false => Err(overrun),
        };
        // There is no room left: the driver has made one slot available twice.
        if room == 0 {
            return Err(overrun);
        }
        let before = pieces.len();
        let rules = self.rules(direction, slot, memory);
        let walked = walk(rules, first, descriptor, pieces)?;
        let token = Token::packed(walked.id, walked.slots, at);
        let taken = Taken::behind(before, Chain { token, len: walked.len }, pieces);
        Ok((taken, walked.slots))
    }

    fn rules<'m>(&self, direction: Direction, slot: u16, memory: &'m GuestMemory) -> Rules<'m> {
        Rules { direction, indirect_negotiated: self.config.indirect, slot, memory }
    }

    /// Puts the last taken lists back. None of them may be completed. They are taken again.
    #[inline]
    pub(crate) fn give_back(&mut self, lists: impl ExactSizeIterator<Item = Token>) {
        for token in lists {
            self.next_avail = back(self.next_avail, token.slots(), self.config.size);
        }
    }

    /// Copies the descriptors of a taken list. [`retake_readable`](Self::retake_readable) then finds them even if other
    /// lists were completed before it. The copy must be made before the [`publish`](crate::DeviceRing::publish) that
    /// follows the take.
    pub(crate) fn keep(&mut self, token: Token) {
        if self.kept.iter().any(|kept| kept.token == token) {
            return;
        }
        let mut kept = self.spare.pop().unwrap_or_default();
        kept.token = token;
        kept.descriptors.clear();
        let slots = (0..token.slots()).map(|nth| self.nth(self.ahead(token.at(), nth)));
        kept.descriptors.extend(slots.map(|nth| self.descriptors.read(nth)));
        self.kept.push(kept);
    }

    /// Walks a list again that was taken before and [kept](Self::keep). The copy is checked like a new list: the guest
    /// may have changed the list before it was copied.
    pub(crate) fn retake_readable<'m>(
        &self,
        token: Token,
        memory: &'m GuestMemory,
        pieces: &mut Vec<Slice<'m>>,
    ) -> Result<Taken<'m>, RingError> {
        let slot = slot(token.at(), self.config.size);
        let retracted = RingError::AvailableRetracted { slot };
        let kept = self.kept.iter().find(|kept| kept.token == token).ok_or(retracted)?;
        let descriptor = |nth| {
            let bytes = kept.descriptors.get(usize::from(nth)).ok_or(retracted)?;
            Ok(Descriptor::parse_packed(*bytes))
        };
        let rules = self.rules(Direction::Readable, slot, memory);
        let before = pieces.len();
        let len = walk(rules, descriptor(0)?, descriptor, pieces)?.len;
        Ok(Taken::behind(before, Chain { token, len }, pieces))
    }

    /// Completes a list with `written` bytes. The guest sees it after [`publish`](crate::DeviceRing::publish).
    #[inline(always)]
    pub(crate) fn complete(&mut self, token: Token, written: u32) {
        self.note(Completed::new(token.id(), token.slots(), written));
    }

    /// True if a completed list waits for its publication.
    pub(crate) fn has_unpublished(&self) -> bool {
        !self.completed.is_empty()
    }

    /// Replaces the written bytes of the last completed list, which is not published.
    pub(crate) fn amend_last(&mut self, token: Token, written: u32) {
        if let Some(last) = self.completed.last_mut() {
            *last = Completed::new(token.id(), token.slots(), written);
        }
    }

    /// Notes completed lists that share a used descriptor. They may share the used descriptor of the lists noted last.
    #[inline(always)]
    fn note(&mut self, completed: Completed) {
        let joins = self.config.in_order && completed.written() == 0;
        match self.completed.last_mut() {
            Some(last) if joins && last.written() == 0 => {
                last.word = completed.word;
                last.slots = last.slots.wrapping_add(completed.slots);
                last.lists += completed.lists;
                self.joined = true;
            }
            _ => {
                self.joined |= completed.lists > 1;
                self.completed.push(completed);
            }
        }
    }

    /// Completes lists that were only read, in their order.
    #[inline]
    pub(crate) fn complete_read<T>(&mut self, lists: &[T], token: impl Fn(&T) -> Token) {
        if !self.config.in_order {
            return self.complete_all(lists.iter().map(|list| (token(list), 0)));
        }
        let Some(last) = lists.last() else { return };
        let slots = lists.iter().fold(0, |slots: u16, it| slots.wrapping_add(token(it).slots()));
        let lists = lists.len() as u16; // at most a ring's
        self.note(Completed { lists, ..Completed::new(token(last).id(), slots, 0) });
    }

    /// Completes several lists, in their order.
    #[inline(always)]
    pub(crate) fn complete_all(&mut self, chains: impl Iterator<Item = (Token, u32)>) {
        if self.config.in_order {
            return chains.for_each(|(token, written)| self.complete(token, written));
        }
        let completed =
            chains.map(|(token, written)| Completed::new(token.id(), token.slots(), written));
        self.completed.extend(completed);
    }

    /// Drops the copy of a [kept](Self::keep) list, which is no longer needed.
    #[cold]
    pub(crate) fn forget(&mut self, token: Token) {
        if let Some(place) = self.kept.iter().position(|kept| kept.token == token) {
            self.spare.push(self.kept.swap_remove(place));
        }
    }

    /// Restores a list that a former process had [kept](Self::keep), from its copy.
    pub(crate) fn keep_copied<'d>(
        &mut self,
        token: Token,
        descriptors: impl Iterator<Item = &'d [u8; DESC_BYTES]>,
    ) {
        self.kept.push(Kept { token, descriptors: descriptors.copied().collect() });
    }

    pub(crate) fn kept_descriptors(&self, token: Token) -> &[[u8; DESC_BYTES]] {
        let kept = self.kept.iter().find(|kept| kept.token == token);
        kept.map_or(&[], |kept| kept.descriptors.as_slice())
    }

    /// Joins completed but unpublished lists.
    pub(crate) fn join(&mut self) {
        self.joined = true;
    }

    /// The place of the next used descriptor.
    pub(crate) fn next_used(&self) -> u16 {
        self.next_used
    }

    /// An empty publication, which shows the position of the ring.
    pub(crate) fn nothing_more(&self) -> Publication {
        Publication::nothing_at(self.next_used)
    }

    /// True if at most one used descriptor would be published, or each is for a list of one slot.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.completed.len() <= 1 || !(self.long || self.joined)
    }

    /// True if nothing is completed and not published, and lists under way have one slot and a used descriptor each.
    #[inline(always)]
    pub(crate) fn is_at_rest(&self) -> bool {
        self.completed.is_empty() && !(self.long || self.joined || self.config.in_order)
    }

    /// Completes `lists` and shows them to the guest, while the ring [is at rest](Self::is_at_rest): their used
    /// descriptors are written without a note of them. Bytes were written to all of the lists, or to none: `used` has
    /// the token and the bytes of each. Returns the number of lists.
    #[inline(always)]
    pub(crate) fn return_plain<T>(
        &mut self,
        lists: &[T],
        used: impl Fn(&T) -> (Token, u32),
        record: Option<&Record>,
    ) -> u16 {
        let Some((first, mut left)) = lists.split_first() else { return 0 };
        let ((token, written), count) = (used(first), lists.len() as u16); // at most a ring's
        let id = token.id();
        if let Some(record) = record {
            record.publishes(&Publication {
                before: self.next_used,
                after: self.ahead(self.next_used, count),
                single: count == 1,
                id,
                written,
            });
        }
        self.begin_used(id, written);
        let mut at = self.ahead(self.next_used, 1);
        while !left.is_empty() {
            let flags = u64::from(self.used_flags(at, written)) << 48;
            let run = self.run(at, left.len() as u16);
            let (now, behind) = left.split_at(run.len());
            for (descriptor, list) in run.zip(now) {
                let (token, written) = used(list);
                descriptor.write_second(u64::from(written) | u64::from(token.id()) << 32 | flags);
            }
            at = self.ahead(at, now.len() as u16);
            left = behind;
        }
        self.show_used(written, count);
        count
    }

    /// Writes the first used descriptor of a publication, except its flags.
    #[inline(always)]
    fn begin_used(&self, id: u16, written: u32) {
        let first = self.slot(self.next_used);
        self.ring.write(first + PACKED_LEN, written.to_le_bytes());
        self.ring.store(first + PACKED_ID, id);
    }

    /// Shows the guest `slots` slots of written used descriptors: the flags of the first, with `written` bytes, follow
    /// all other writes.
    #[inline(always)]
    fn show_used(&mut self, written: u32, slots: u16) {
        let flags = self.used_flags(self.next_used, written);
        // Release: the guest sees all earlier writes when it sees this one (§2.8.22).
        self.ring.store_release(self.slot(self.next_used) + PACKED_FLAGS, flags);
        self.published_total += u64::from(slots);
        self.unannounced = self.unannounced.saturating_add(slots);
        self.next_used = self.ahead(self.next_used, slots);
        if self.long {
            // The place is at most a ring's length ahead.
            let ahead = self.distance(self.next_used, self.long_until);
            self.long = (1..=self.config.size).contains(&ahead);
        }
    }

    /// The used descriptors that [`publish_first`](Self::publish_first) would write.
    pub(crate) fn to_publish(&self, count: u16) -> impl Iterator<Item = Logged> {
        let within = self.completed.iter().scan(0u16, move |lists, completed| {
            *lists = lists.saturating_add(completed.lists);
            (*lists <= count).then_some(completed)
        });
        within.map(|it| Logged { id: it.id(), slots: it.slots, written: it.written() })
    }

    /// Shows the guest the first `count` completed lists at once: the first used descriptor's flags are written last.
    /// Returns the number of lists. With a `record`, the published lists [are plain](Self::is_plain).
    pub(crate) fn publish_first(&mut self, count: u16, record: Option<&Record>) -> u16 {
        let Some(&head) = self.completed.first().filter(|first| first.lists <= count) else {
            return 0;
        };
        let single = self.completed.len() == 1;
        if let Some(record) = record {
            let slots = if single { head.slots } else { count.min(self.completed.len() as u16) };
            record.publishes(&Publication {
                before: self.next_used,
                after: self.ahead(self.next_used, slots),
                single,
                id: head.id(),
                written: head.written(),
            });
        }
        self.begin_used(head.id(), head.written());
        let (slots, lists) = if single {
            self.completed.clear();
            (head.slots, head.lists)
        } else if record.is_some() {
            let lists = self.write_plain_behind_first(count);
            (lists, lists)
        } else {
            self.write_behind_first(count)
        };
        self.show_used(head.written(), slots);
        self.joined &= !self.completed.is_empty();
        lists
    }

    /// Writes the used descriptors behind the first one, and forgets all of them, the first included. Returns the
    /// numbers of slots and lists.
    #[inline]
    fn write_behind_first(&mut self, count: u16) -> (u16, u16) {
        let head = self.completed[0];
        let (mut taken, mut lists, mut shown) = (head.slots, head.lists, 1);
        let at = self.ahead(self.next_used, head.slots);
        let size = usize::from(self.config.size);
        let (mut nth, mut flags) = (self.nth(at), self.used_flags(at, 0));
        for completed in &self.completed[1..] {
            let &Completed { slots, lists: more, .. } = completed;
            if lists + more > count {
                break;
            }
            self.descriptors.get(nth).write_second(completed.word(flags));
            nth += usize::from(slots);
            if nth >= size {
                nth -= size;
                flags ^= PACKED_MARKS;
            }
            taken += slots; // at most a ring's
            lists += more;
            shown += 1;
        }
        self.completed.drain(..shown);
        (taken, lists)
    }

    /// Writes the used descriptors behind the first one if the lists [are plain](Self::is_plain). Returns the number of
    /// lists.
    fn write_plain_behind_first(&mut self, count: u16) -> u16 {
        let count = count.min(self.completed.len() as u16); // at most a ring's
        let (mut left, mut at) = (&self.completed[1..count.into()], self.next_used);
        at = self.ahead(at, 1);
        while !left.is_empty() {
            let flags = self.used_flags(at, 0);
            let mut shown = 0;
            for (descriptor, completed) in self.run(at, left.len() as u16).zip(left) {
                descriptor.write_second(completed.word(flags));
                shown += 1;
            }
            left = &left[shown..];
            at = self.ahead(at, shown as u16);
        }
        self.completed.drain(..usize::from(count));
        count
    }

    /// Flags of the used descriptor at `place`; `WRITE` means that its length is valid (§2.8.3).
    #[inline(always)]
    fn used_flags(&self, place: u16, written: u32) -> u16 {
        let wrap = if wrap(place, self.config.size) { PACKED_MARKS } else { 0 };
        if written > 0 { wrap | DESC_F_WRITE } else { wrap }
    }

    /// True if the guest wants a call for the slots published since the last check (§2.8.14).
    #[inline]
    pub(crate) fn needs_call(&mut self) -> bool {
        let needs = self.wants_call();
        self.unannounced = 0;
        needs
    }

    /// Does the same as [`needs_call`](Self::needs_call), but the next check covers the same slots again.
    #[inline]
    pub(crate) fn wants_call(&self) -> bool {
        if self.unannounced == 0 {
            return false;
        }
        // The guest writes its event and then reads the ring; weir wrote the ring and now reads the event. Without a
        // full fence on both sides each could miss the other.
        fence(Ordering::SeqCst);
        // Acquire: the driver writes off_wrap before the flags that make it count.
        match self.driver_event.load_acquire(EVENT_FLAGS) & EVENT_FLAGS_MASK {
            EVENT_DISABLE => false,
            EVENT_DESC if self.config.event_idx => {
                let off_wrap = self.driver_event.load(EVENT_OFF_WRAP);
                passed_off_wrap(off_wrap, self.unannounced, self.next_used, self.config.size)
            }
            _ => true,
        }
    }

    /// True if the driver does not suppress all calls (§2.8.14).
    pub(crate) fn wants_calls(&self) -> bool {
        self.driver_event.load_acquire(EVENT_FLAGS) & EVENT_FLAGS_MASK != EVENT_DISABLE
    }

    /// The number of published slots that no [`needs_call`](Self::needs_call) has covered yet.
    #[inline]
    pub(crate) fn unannounced(&self) -> u16 {
        self.unannounced
    }

    /// Slots of all lists ever completed.
    pub(crate) fn completed_total(&self) -> u64 {
        self.published_total + self.unpublished()
    }

    fn unpublished(&self) -> u64 {
        self.completed.iter().map(|completed| u64::from(completed.slots)).sum()
    }

    /// The place at which the driver requested a call (§2.8.14). When it made the request, it had taken all used
    /// descriptors before that place.
    pub(crate) fn call_event(&self) -> Option<u16> {
        let flags = self.driver_event.load_acquire(EVENT_FLAGS) & EVENT_FLAGS_MASK;
        (self.config.event_idx && flags == EVENT_DESC)
            .then(|| self.driver_event.load(EVENT_OFF_WRAP))
    }

    /// The most slots of completed lists that the driver may not have taken back. `event_is_fresh` means that
    /// [`call_event`](Self::call_event) was written since the last `size` slots were completed.
    pub(crate) fn untaken_max(&self, event_is_fresh: bool) -> u64 {
        let size = self.config.size;
        // Lists that the driver offers, or that weir holds, are not among those that the driver still has to take.
        let mut end = self.avail_end;
        while self.distance(self.next_used, end) < size && self.is_available(end) {
            end = self.ahead(end, 1);
        }
        let untaken = size.saturating_sub(self.distance(self.next_used, end));
        let event = self.call_event().filter(|_| event_is_fresh);
        let untaken = event.map_or(untaken, |event| {
            untaken.min(lap_distance(from_off_wrap(event, size), self.next_used, size))
        });
        u64::from(untaken) + self.unpublished()
    }

    /// Requests no kicks from the guest, because weir is polling anyway. A kick can still come. Returns true if the
    /// memory was written.
    #[inline]
    pub(crate) fn suppress_kicks(&mut self) -> bool {
        let writes = std::mem::replace(&mut self.kicks_enabled, false);
        if writes {
            self.device_event.store(EVENT_FLAGS, EVENT_DISABLE);
        }
        writes
    }

    /// Requests a kick at the next slot beyond those that [`available`](Self::available) counts.
    #[inline]
    pub(crate) fn ask_for_kicks(&mut self) {
        self.kicks_enabled = true;
        if self.config.event_idx {
            let off_wrap = to_off_wrap(self.avail_end, self.config.size);
            self.device_event.store(EVENT_OFF_WRAP, off_wrap);
            self.device_event.store_release(EVENT_FLAGS, EVENT_DESC);
        } else {
            self.device_event.store(EVENT_FLAGS, EVENT_ENABLE);
        }
    }
}
