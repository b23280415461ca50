//! A ring that weir serves, in the format that the driver chose.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use weir_guestmem::{GuestMemory, Slice, fence};

use crate::buffers::{Chain, Direction, Plain, Taken, Token};
use crate::dirty::{Place, RingLog};
use crate::error::{RingError, SetupError};
use crate::in_order::InOrder;
use crate::layout::{Addresses, RingConfig, Site};
use crate::packed::device::PackedDevice;
use crate::record::{List, Origin, Record, Valid};
use crate::split::device::SplitDevice;

/// A ring that weir serves. Each call selects the format's own function by one `match`.
#[derive(Debug)]
pub struct DeviceRing {
    format: Format,
    /// The configuration of `format`.
    config: RingConfig,
    /// The order with `VIRTIO_F_IN_ORDER`; otherwise it is always empty.
    in_order: InOrder,
    /// Kept chains, without `VIRTIO_F_IN_ORDER`, in the order in which they were taken.
    kept: VecDeque<Token>,
    /// Some chains are kept, or were at the last publication.
    busy: bool,
    /// The set of kept chains, or of completed ones among them, is not recorded yet.
    changed: bool,
    /// The record for the next process.
    record: Option<Record>,
    /// A record was found, and this ring continues from it.
    resumed: bool,
    /// The log of writes to the ring.
    log: Option<Box<RingLog>>,
}

#[derive(Debug)]
pub(crate) enum Format {
    Split(SplitDevice),
    /// `VIRTIO_F_RING_PACKED`.
    Packed(PackedDevice),
}

impl Format {
    #[inline(always)]
    pub(crate) fn complete(&mut self, token: Token, written: u32) {
        match self {
            Self::Split(ring) => ring.complete(token, written),
            Self::Packed(ring) => ring.complete(token, written),
        }
    }
}

/// Makes the same call on the ring of either format.
macro_rules! each {
    ($self:expr, $ring:ident => $call:expr) => {
        match $self {
            Format::Split($ring) => $call,
            Format::Packed($ring) => $call,
        }
    };
}

impl DeviceRing {
    /// A ring at `at`. A packed ring continues at `base` (vhost-user `SET_VRING_BASE`); chains that were taken and not
    /// given back are taken again. A split ring continues at its used index.
    pub fn new(
        memory: &Arc<GuestMemory>,
        config: RingConfig,
        at: &Addresses,
        base: u32,
    ) -> Result<Self, SetupError> {
        Self::begin(Site { memory, config, at }, base)
    }

    fn begin(site: Site<'_>, base: u32) -> Result<Self, SetupError> {
        let format = if site.config.packed {
            Format::Packed(PackedDevice::new(site, base)?)
        } else {
            u16::try_from(base).map_err(|_| SetupError::Base(base))?;
            Format::Split(SplitDevice::new(site, 0)?)
        };
        Ok(Self::of(format))
    }

    fn of(format: Format) -> Self {
        Self {
            config: *each!(&format, ring => ring.config()),
            format,
            in_order: InOrder::default(),
            kept: VecDeque::new(),
            busy: false,
            changed: false,
            record: None,
            resumed: false,
            log: None,
        }
    }

    /// Does the same as [`new`](Self::new), with a record for the next process. If `record` belongs to this very ring,
    /// which a former process served, the ring continues from its state: see [`left_behind`](Self::left_behind).
    pub fn recorded(
        memory: &Arc<GuestMemory>,
        config: RingConfig,
        at: &Addresses,
        base: u32,
        said: u32,
        mut record: Record,
        origin: &Origin,
    ) -> Result<Self, SetupError> {
        let site = Site { memory, config, at };
        let found = match record.base_if_of(&config, origin) {
            Some(before) if config.packed => {
                Self::packed_by(site, base, is_said_again(said, before), &mut record)?
            }
            Some(_) => Self::split_by(site, &mut record)?,
            None => None,
        };
        let mut ring = match found {
            Some(found) => {
                record.go_on(said);
                Self { resumed: true, ..found }
            }
            None if config.packed => {
                let next_used = PackedDevice::next_used_by(site, base)?;
                // The record is written before the ring is touched: from then on it can belong to the ring.
                record.begin(&config, origin, said, next_used);
                Self::begin(site, base)?
            }
            None => {
                let ring = Self::begin(site, base)?;
                record.begin(&config, origin, said, 0);
                ring
            }
        };
        ring.record = Some(record);
        Ok(ring)
    }

    /// A split ring with the state in `record`; `None` if the record does not fit it.
    fn split_by(site: Site<'_>, record: &mut Record) -> Result<Option<Self>, SetupError> {
        let used = SplitDevice::used_index(site)?;
        // A reset driver starts at index 0, and no kept chain is ever recorded at 0.
        if used == 0 {
            return Ok(None);
        }
        let valid = match record.valid() {
            Valid::Moving(_, to, key) if key == used => Valid::Final(to),
            Valid::Moving(0, ..) => Valid::None,
            Valid::Moving(from, ..) => Valid::Final(from),
            valid => valid,
        };
        // A third party has given chains back since: the recorded ones may be among them.
        let valid = if record.knows(used) { valid } else { Valid::None };
        let list = match valid {
            Valid::Final(list) => record.list(list),
            _ => Some(List::default()),
        };
        let Some(list) = list.filter(|list| list.log.is_empty()) else { return Ok(None) };
        let device = SplitDevice::new(site, list.chains.len() as u16)?; // at most the ring's size
        record.set_valid(valid);
        Ok(Some(Self::with_list(Format::Split(device), &list)))
    }

    /// A packed ring with the state in `record`; `None` if the record does not fit it.
    fn packed_by(
        site: Site<'_>,
        base: u32,
        is_said_again: bool,
        record: &mut Record,
    ) -> Result<Option<Self>, SetupError> {
        if !PackedDevice::was_served(site)? {
            return Ok(None);
        }
        let valid = record.valid();
        let list = match valid {
            Valid::Final(list) | Valid::Logged(list) => record.list(list),
            Valid::None | Valid::Moving(..) => Some(List::default()),
        };
        let Some(list) = list else { return Ok(None) };
        let slots: u32 = list.chains.iter().map(|(token, _)| u32::from(token.slots())).sum();
        if slots > site.config.size.into() {
            return Ok(None);
        }
        let stays = match list.chains.is_empty() {
            true => Valid::None,
            false => valid.list().map_or(Valid::None, Valid::Final),
        };
        let mut device;
        if matches!(valid, Valid::Logged(_)) {
            if !is_said_again {
                return Ok(None);
            }
            let Ok(found) = PackedDevice::at(site, list.before) else {
                return Ok(None);
            };
            device = found;
            if !device.make_again(&list.log) {
                return Ok(None);
            }
            record.publishes(&device.nothing_more());
        } else {
            let publication = record.published();
            let Ok(found) = PackedDevice::at(site, publication.before) else {
                return Ok(None);
            };
            device = found;
            let Some(outcome) = device.outcome(&publication) else { return Ok(None) };
            let place = site.config.base_at(outcome.after);
            // Some front ends send only the lower half.
            if !is_said_again && base != place && base != place & 0xffff {
                return Ok(None);
            }
            record.publishes(&outcome);
            device.make(&outcome);
        }
        record.set_valid(stays);
        device.take_all(slots as u16);
        let mut descriptors = list.descriptors.iter();
        for (token, _) in list.chains.iter().filter(|(_, done)| !done) {
            device.keep_copied(*token, descriptors.by_ref().take(token.slots().into()));
        }
        Ok(Some(Self::with_list(Format::Packed(device), &list)))
    }

    fn with_list(format: Format, list: &List) -> Self {
        let mut ring = Self::of(format);
        ring.busy = !list.chains.is_empty();
        for &(token, done) in &list.chains {
            if ring.config().in_order {
                ring.in_order.restore(token, done);
            } else {
                ring.kept.push_back(token);
            }
        }
        ring
    }

    /// True if the ring continues from the state of a former process.
    pub fn is_resumed(&self) -> bool {
        self.resumed
    }

    /// Chains that a former process took and kept: they must be [read again](Self::retake_readable) and
    /// [completed](Self::complete_kept) before any other is taken.
    pub fn left_behind(&self) -> Vec<Token> {
        let waiting = self.in_order.waiting().filter(|(_, done)| !done).map(|(token, _)| token);
        self.kept.iter().copied().chain(waiting).collect()
    }

    /// Marks all bytes in `log` that the ring may have written so far, and from now on its writes; returns the former
    /// log.
    pub fn set_log(&mut self, log: Option<Box<RingLog>>) -> Option<Box<RingLog>> {
        if let Some(log) = &log {
            log.all();
        }
        std::mem::replace(&mut self.log, log)
    }

    /// The negotiated configuration.
    #[inline]
    pub fn config(&self) -> &RingConfig {
        &self.config
    }

    /// The position of the ring: the answer to `GET_VRING_BASE`.
    pub fn base(&self) -> u32 {
        match &self.format {
            Format::Split(ring) => ring.base().into(),
            Format::Packed(ring) => ring.base(),
        }
    }

    /// Checks for new chains, and returns the number known to be available: chains of a split ring, slots of a packed
    /// one.
    #[inline]
    pub fn refill(&mut self) -> Result<u16, RingError> {
        each!(&mut self.format, ring => ring.refill())
    }

    /// The number that the last check found and that was not taken since.
    #[inline]
    pub fn available(&self) -> u16 {
        each!(&self.format, ring => ring.available())
    }

    /// True if there is a chain to take. It reads only memory that is probably cached: it does not read a split ring's
    /// index again, but it does read a packed ring's next descriptor.
    #[inline]
    pub fn has_more(&self) -> bool {
        match &self.format {
            Format::Split(ring) => ring.available() > 0,
            Format::Packed(ring) => ring.has_more(),
        }
    }

    /// True if there is a chain to take, according to the ring's memory.
    #[inline]
    pub fn peek(&self) -> bool {
        match &self.format {
            Format::Split(ring) => ring.peek(),
            Format::Packed(ring) => ring.has_more(),
        }
    }

    /// Takes the next chain, if there is one. All of its buffers are then among the `pieces`.
    ///
    /// # Errors
    /// The chain is wrong, or the driver has too many in flight.
    #[inline]
    pub fn take<'m>(
        &mut self,
        direction: Direction,
        memory: &'m GuestMemory,
        pieces: &mut Vec<Slice<'m>>,
    ) -> Result<Option<Chain>, RingError> {
        let mut taken = Vec::new();
        self.take_burst(direction, 1, memory, pieces, &mut taken, |it| it)?;
        let taken = taken.pop();
        pieces.extend(taken.filter(Taken::is_plain).map(|it| it.front));
        Ok(taken.map(|it| it.chain))
    }

    /// Takes up to `max` chains, a burst at most, and appends what `note` makes of each to `chains`.
    ///
    /// # Errors
    /// The error of the first invalid chain; the chains before it are among `chains`.
    #[inline(always)]
    pub fn take_burst<'m, T: Copy>(
        &mut self,
        direction: Direction,
        max: u16,
        memory: &'m GuestMemory,
        pieces: &mut Vec<Slice<'m>>,
        chains: &mut Vec<T>,
        note: impl FnMut(Taken<'m>) -> T,
    ) -> Result<(), RingError> {
        self.check_waiting()?;
        each!(&mut self.format, ring => {
            ring.take_burst(direction, max, memory, pieces, chains, note)
        })
    }

    /// Takes the next chain, if it has one buffer in the largest region, as nearly all have. `None` says nothing about
    /// the chain, which [`take_burst`](Self::take_burst) reads anew.
    #[inline(always)]
    pub fn take_plain<'m>(&mut self, direction: Direction, memory: &'m GuestMemory) -> Plain<'m> {
        if !self.in_order.is_idle() {
            return None;
        }
        each!(&mut self.format, ring => ring.take_plain(direction, memory))
    }

    /// A driver with more chains in flight than entries would make the list of waiting chains grow: it breaks the
    /// rules.
    #[inline]
    fn check_waiting(&self) -> Result<(), RingError> {
        let size = self.config.size;
        if !self.in_order.is_idle() && self.in_order.len() > size.into() {
            return Err(RingError::TooManyInFlight { size });
        }
        Ok(())
    }

    /// Puts the last taken chains back, none of them completed: they are taken again.
    #[inline]
    pub fn give_back(&mut self, chains: impl ExactSizeIterator<Item = Token>) {
        each!(&mut self.format, ring => ring.give_back(chains));
    }

    /// Keeps a chain beyond the next [`publish`](Self::publish): a packed ring's descriptors are copied, since
    /// completed chains overwrite them.
    ///
    /// With `VIRTIO_F_IN_ORDER`, chains must be kept or completed in the order in which they were taken; kept
    /// chains may complete at any time.
    pub fn keep(&mut self, token: Token) {
        if self.config().in_order {
            self.changed |= self.in_order.keep(token);
        } else if !self.kept.contains(&token) {
            self.kept.push_back(token);
            self.changed = true;
        }
        self.busy = true;
        if let Format::Packed(ring) = &mut self.format {
            ring.keep(token);
        }
    }

    /// Reads a chain again that was taken before, [kept](Self::keep) and not completed. It is checked like a new one.
    pub fn retake_readable<'m>(
        &self,
        token: Token,
        memory: &'m GuestMemory,
        pieces: &mut Vec<Slice<'m>>,
    ) -> Result<Taken<'m>, RingError> {
        each!(&self.format, ring => ring.retake_readable(token, memory, pieces))
    }

    /// Completes a chain that was just taken, with `written` bytes. The guest sees it after [`publish`](Self::publish);
    /// with `VIRTIO_F_IN_ORDER`, only after all earlier [kept](Self::keep) chains are also complete.
    #[inline(always)]
    pub fn complete(&mut self, token: Token, written: u32) {
        if self.in_order.is_idle() {
            self.format.complete(token, written);
        } else {
            self.changed = true;
            self.in_order.complete(&mut self.format, token, written);
        }
    }

    /// True if the last completed chain waits for its publication, and for nothing else.
    pub fn has_unpublished(&self) -> bool {
        self.in_order.is_idle() && each!(&self.format, ring => ring.has_unpublished())
    }

    /// Completes the last completed chain once more, with more `written` bytes. The chain was completed by itself with
    /// some bytes, and [is not published](Self::has_unpublished).
    pub fn amend_last(&mut self, token: Token, written: u32) {
        each!(&mut self.format, ring => ring.amend_last(token, written));
    }

    /// Completes several chains, in their order.
    #[inline(always)]
    pub fn complete_all(&mut self, chains: impl Iterator<Item = (Token, u32)>) {
        if self.in_order.is_idle() {
            each!(&mut self.format, ring => ring.complete_all(chains));
        } else {
            chains.for_each(|(token, written)| self.complete(token, written));
        }
    }

    /// Completes chains with written bytes, `used`, in their order, and shows them to the guest, if a packed ring can do
    /// both at once. Returns false, with nothing done, if not.
    #[inline(always)]
    pub fn show_all<T>(&mut self, chains: &[T], used: impl Fn(&T) -> (Token, u32)) -> bool {
        let Format::Packed(ring) = &mut self.format else { return false };
        let can = ring.is_at_rest() && self.in_order.is_idle() && !self.busy && self.log.is_none();
        if can {
            ring.return_plain(chains, used, self.record.as_ref());
        }
        can
    }

    /// Completes chains that were only read, in their order, and shows the guest all completed ones. Returns their
    /// number.
    #[inline(always)]
    pub fn return_all<T>(&mut self, chains: &[T], token: impl Fn(&T) -> Token) -> u16 {
        match &mut self.format {
            Format::Packed(ring) if self.in_order.is_idle() => {
                if ring.is_at_rest() && !self.busy && self.log.is_none() {
                    let read = |chain: &T| (token(chain), 0);
                    return ring.return_plain(chains, read, self.record.as_ref());
                }
                ring.complete_read(chains, token);
            }
            _ => match chains {
                [only] => self.complete(token(only), 0),
                _ => self.complete_all(chains.iter().map(|chain| (token(chain), 0))),
            },
        }
        self.publish()
    }

    /// Does the same as [`complete`](Self::complete) for a chain that was [kept](Self::keep).
    #[cold]
    pub fn complete_kept(&mut self, token: Token, written: u32) {
        self.changed = true;
        // Kept chains are completed roughly in their order.
        if let Some(place) = self.kept.iter().position(|kept| *kept == token) {
            self.kept.remove(place);
        }
        if let Format::Packed(ring) = &mut self.format {
            ring.forget(token);
        }
        self.complete(token, written);
    }

    /// Joins completed but unpublished chains: a packet in several buffers. All of them are published, or none, even if
    /// this process is killed meanwhile.
    pub fn join(&mut self) {
        if let Format::Packed(ring) = &mut self.format {
            ring.join();
        }
    }

    /// Shows the guest all completed chains, at once. Returns their number.
    #[inline]
    pub fn publish(&mut self) -> u16 {
        self.publish_first(u16::MAX)
    }

    /// Does the same as [`publish`](Self::publish) for the first `count` completed chains: the buffers of some later
    /// ones are still being written.
    #[inline(always)]
    pub fn publish_first(&mut self, count: u16) -> u16 {
        match self.log {
            None => self.show_first(count),
            Some(_) => self.show_first_and_mark(count),
        }
    }

    #[inline(never)]
    fn show_first_and_mark(&mut self, count: u16) -> u16 {
        let from = match &self.format {
            Format::Split(ring) => Place::Split(ring.published()),
            Format::Packed(ring) => Place::Packed(ring.next_used()),
        };
        let shown = self.show_first(count);
        if let Some(log) = &self.log {
            log.published(&self.format, from);
        }
        shown
    }

    #[inline(always)]
    fn show_first(&mut self, count: u16) -> u16 {
        if self.busy {
            return self.publish_busy(count);
        }
        match &mut self.format {
            Format::Split(ring) => ring.publish_first(count),
            Format::Packed(ring) if ring.is_plain() => {
                ring.publish_first(count, self.record.as_ref())
            }
            Format::Packed(_) => self.publish_logged(count),
        }
    }

    /// Publishes while some chains are kept, or were until now.
    #[cold]
    fn publish_busy(&mut self, count: u16) -> u16 {
        let stay = !self.kept.is_empty() || !self.in_order.is_idle();
        let Self { format, changed, record, .. } = self;
        let published = match format {
            // A reset driver has index 0: see `split_by`.
            Format::Split(ring) if stay && record.is_some() && ring.would_show(count) == 0 => {
                return 0;
            }
            Format::Split(ring) => {
                let shows = ring.would_show(count);
                if let Some(record) = record {
                    record.shows(ring.published(), shows);
                }
                match record.as_mut().filter(|_| *changed) {
                    Some(record) => {
                        let (from, to) = (record.current(), record.other());
                        let chains = in_flight(&self.kept, &self.in_order);
                        record.write_list(to, 0, chains, [].iter(), [].into_iter());
                        record.set_valid(Valid::Moving(from, to, shows));
                        let published = ring.publish_first(count);
                        record.set_valid(if stay { Valid::Final(to) } else { Valid::None });
                        published
                    }
                    None => ring.publish_first(count),
                }
            }
            Format::Packed(ring) if !*changed && ring.is_plain() => {
                ring.publish_first(count, record.as_ref())
            }
            Format::Packed(_) => self.publish_logged(count),
        };
        self.changed = false;
        self.busy = stay;
        published
    }

    /// Publishes in a packed ring, after the whole publication was recorded.
    #[cold]
    fn publish_logged(&mut self, count: u16) -> u16 {
        let Self { format: Format::Packed(ring), record: Some(record), .. } = self else {
            return match &mut self.format {
                Format::Packed(ring) => ring.publish_first(count, None),
                Format::Split(ring) => ring.publish_first(count),
            };
        };
        let list = record.other();
        let chains = in_flight(&self.kept, &self.in_order);
        let descriptors = in_flight(&self.kept, &self.in_order)
            .filter(|(_, done)| !done)
            .flat_map(|(token, _)| ring.kept_descriptors(token));
        record.write_list(list, ring.next_used(), chains, descriptors, ring.to_publish(count));
        record.set_valid(Valid::Logged(list));
        let published = ring.publish_first(count, None);
        record.publishes(&ring.nothing_more());
        let stay = !self.kept.is_empty() || !self.in_order.is_idle();
        record.set_valid(if stay { Valid::Final(list) } else { Valid::None });
        published
    }

    /// Does the same as [`needs_call`](Self::needs_call); `None` if no chains were published since the last check.
    #[inline(always)]
    pub fn needs_call_for_more(&mut self) -> Option<bool> {
        each!(&mut self.format, ring => (ring.unannounced() > 0).then(|| ring.needs_call()))
    }

    /// True if the guest wants a call for the chains published since the last check.
    #[inline]
    pub fn needs_call(&mut self) -> bool {
        each!(&mut self.format, ring => ring.needs_call())
    }

    /// Does the same as [`needs_call`](Self::needs_call), but the next check covers the same chains again: a call that
    /// is wanted now can be made later.
    #[inline]
    pub fn wants_call(&self) -> bool {
        each!(&self.format, ring => ring.wants_call())
    }

    /// True if the driver does not suppress all calls. The driver of a split ring with EVENT_IDX cannot suppress them.
    pub fn wants_calls(&self) -> bool {
        each!(&self.format, ring => ring.wants_calls())
    }

    /// The number of published chains that no [`needs_call`](Self::needs_call) has covered yet.
    #[inline]
    pub fn unannounced(&self) -> u16 {
        each!(&self.format, ring => ring.unannounced())
    }

    /// Chains ever completed, published or not; in a packed ring, their slots.
    pub fn completed_total(&self) -> u64 {
        each!(&self.format, ring => ring.completed_total())
    }

    /// The used index at which the driver asked for a call; `None` if it does not use one. When it wrote the index, it
    /// had taken all chains before it.
    pub fn call_event(&self) -> Option<u16> {
        each!(&self.format, ring => ring.call_event())
    }

    /// The number of last chains that the driver may not have taken back, out of
    /// [`completed_total`](Self::completed_total) and of earlier completions in this ring's memory. The number is
    /// smaller if `event_is_fresh`, which means that [`call_event`](Self::call_event) has changed within the last
    /// completions, as many as the ring has entries.
    pub fn untaken_max(&self, event_is_fresh: bool) -> u64 {
        each!(&self.format, ring => ring.untaken_max(event_is_fresh))
    }

    /// Asks the guest for no kicks: weir is polling anyway. A kick can still come.
    #[inline]
    pub fn suppress_kicks(&mut self) {
        let wrote = each!(&mut self.format, ring => ring.suppress_kicks());
        if wrote {
            self.mark_kicks();
        }
    }

    fn mark_kicks(&self) {
        if let Some(log) = &self.log {
            log.kicks(self.config());
        }
    }

    /// Asks for a kick at the next chain beyond those that [`available`](Self::available) counts, and returns the
    /// number available now: the caller may sleep only if that has not grown.
    #[inline]
    pub fn enable_kicks(&mut self) -> Result<u16, RingError> {
        let available = each!(&mut self.format, ring => {
            ring.ask_for_kicks();
            // The mirror image of the fence in `needs_call`: the request is visible before the driver's index or
            // descriptor is read, or the driver's kick and weir's check could miss each other.
            fence(Ordering::SeqCst);
            ring.refill()
        });
        self.mark_kicks();
        available
    }
}

/// True if `said` repeats the base from `before`. A front end that took chains of a packed ring and gave none back
/// sends another position of the available descriptor, but the same position of the used one.
fn is_said_again(said: u32, before: u32) -> bool {
    said == before || (said >> 16 != 0 && said >> 16 == before >> 16)
}

/// Kept chains that were taken and not given back, in this order, each with true if it is done.
fn in_flight<'r>(
    kept: &'r VecDeque<Token>,
    in_order: &'r InOrder,
) -> impl Iterator<Item = (Token, bool)> + 'r {
    kept.iter().map(|token| (*token, false)).chain(in_order.waiting())
}
