//! A ring that weir serves, of whatever format the driver chose.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use weir_guestmem::{GuestMemory, Slice, fence};

use crate::buffers::{Chain, Direction, Taken, Token};
use crate::dirty::{Place, RingLog};
use crate::error::{RingError, SetupError};
use crate::in_order::InOrder;
use crate::layout::{Addresses, RingConfig, Site};
use crate::packed::device::PackedDevice;
use crate::record::{List, Origin, Record, Valid};
use crate::split::device::SplitDevice;

/// A ring that weir serves. Each call is one `match` away from its format's own.
#[derive(Debug)]
pub struct DeviceRing {
    format: Format,
    /// With `VIRTIO_F_IN_ORDER`; else nothing ever waits there.
    in_order: InOrder,
    /// Chains that stay, without `VIRTIO_F_IN_ORDER`, in the order in which they were taken.
    kept: VecDeque<Token>,
    /// Some stay, or did at the last publication.
    busy: bool,
    /// Which ones, or which of them are done, is not recorded yet.
    changed: bool,
    /// What the next process would need.
    record: Option<Record>,
    /// A record was found, and this ring goes on by it.
    resumed: bool,
    /// Where writes to it are marked.
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

/// The same call, whichever format.
macro_rules! each {
    ($self:expr, $ring:ident => $call:expr) => {
        match $self {
            Format::Split($ring) => $call,
            Format::Packed($ring) => $call,
        }
    };
}

impl DeviceRing {
    /// A ring at `at`. A packed one goes on where `base` says (vhost-user `SET_VRING_BASE`), with what was taken and
    /// not given back to be taken again. A split one goes on at its used index.
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

    /// As [`new`](Self::new), with a record of what the next process would need. If `record` is of this very
    /// ring, which a process served that is gone, the ring goes on where that was: see
    /// [`left_behind`](Self::left_behind).
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
                // Before the ring is touched: from then on it is one that the record may be of.
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

    /// A split ring as `record` has it; `None` if that says nothing of it.
    fn split_by(site: Site<'_>, record: &mut Record) -> Result<Option<Self>, SetupError> {
        let used = SplitDevice::used_index(site)?;
        // A driver that begins anew does so at 0, where no chain that stays is ever recorded.
        if used == 0 {
            return Ok(None);
        }
        let valid = match record.valid() {
            Valid::Moving(_, to, key) if key == used => Valid::Final(to),
            Valid::Moving(0, ..) => Valid::None,
            Valid::Moving(from, ..) => Valid::Final(from),
            valid => valid,
        };
        // Somebody else has given chains back since: these among them, or nobody knows.
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

    /// A packed ring as `record` has it; `None` if that says nothing of it.
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
            // Some front ends say the lower half only.
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

    /// A process that is gone has left this ring, and it goes on there.
    pub fn is_resumed(&self) -> bool {
        self.resumed
    }

    /// Chains that were taken before, by a process that is gone, and stay: they are to be [read
    /// again](Self::retake_readable) and [completed](Self::complete_kept) before any other is taken.
    pub fn left_behind(&self) -> Vec<Token> {
        let waiting = self.in_order.waiting().filter(|(_, done)| !done).map(|(token, _)| token);
        self.kept.iter().copied().chain(waiting).collect()
    }

    /// Marks in `log` all that it may have written so far, and from now on what it writes; gives back the log that
    /// there was.
    pub fn set_log(&mut self, log: Option<Box<RingLog>>) -> Option<Box<RingLog>> {
        if let Some(log) = &log {
            log.all(self.config());
        }
        std::mem::replace(&mut self.log, log)
    }

    /// What was negotiated.
    #[inline]
    pub fn config(&self) -> &RingConfig {
        each!(&self.format, ring => ring.config())
    }

    /// Where the ring stands: what `GET_VRING_BASE` answers.
    pub fn base(&self) -> u32 {
        match &self.format {
            Format::Split(ring) => ring.base().into(),
            Format::Packed(ring) => ring.base(),
        }
    }

    /// Looks for new chains, and says how much is known to be available: chains of a split ring,
    /// slots of a packed one.
    #[inline]
    pub fn refill(&mut self) -> Result<u16, RingError> {
        each!(&mut self.format, ring => ring.refill())
    }

    /// What the last look found and was not taken since.
    #[inline]
    pub fn available(&self) -> u16 {
        each!(&self.format, ring => ring.available())
    }

    /// Whether there is something to take. Costs no access to memory that is not at hand: a split
    /// ring's index is not read anew, a packed ring's next descriptor is.
    #[inline]
    pub fn has_more(&self) -> bool {
        match &self.format {
            Format::Split(ring) => ring.available() > 0,
            Format::Packed(ring) => ring.has_more(),
        }
    }

    /// Whether there is something to take, the ring's memory read anew.
    #[inline]
    pub fn peek(&self) -> bool {
        match &self.format {
            Format::Split(ring) => ring.peek(),
            Format::Packed(ring) => ring.has_more(),
        }
    }

    /// Takes the next chain, if there is one. All of its buffers are among the `pieces` then.
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
        let mut taken = None;
        self.take_burst(direction, 1, memory, pieces, |it| taken = Some(it))?;
        pieces.extend(taken.filter(Taken::is_plain).map(|it| it.front));
        Ok(taken.map(|it| it.chain))
    }

    /// Takes up to `max` chains, a burst at most: `each` is given every one.
    ///
    /// # Errors
    /// Of the first chain that is wrong; those before it were given to `each`.
    #[inline(always)]
    pub fn take_burst<'m>(
        &mut self,
        direction: Direction,
        max: u16,
        memory: &'m GuestMemory,
        pieces: &mut Vec<Slice<'m>>,
        each: impl FnMut(Taken<'m>),
    ) -> Result<(), RingError> {
        self.check_waiting()?;
        each!(&mut self.format, ring => ring.take_burst(direction, max, memory, pieces, each))
    }

    /// A driver that has more chains in flight than there are places lets the list of those that wait
    /// grow: it breaks the rules.
    #[inline]
    fn check_waiting(&self) -> Result<(), RingError> {
        let size = self.config().size;
        if self.in_order.len() > size.into() {
            return Err(RingError::TooManyInFlight { size });
        }
        Ok(())
    }

    /// Gives back the last chains that were taken, none of them completed: they are taken again.
    #[inline]
    pub fn give_back(&mut self, chains: impl ExactSizeIterator<Item = Token>) {
        each!(&mut self.format, ring => ring.give_back(chains));
    }

    /// Says that a chain stays beyond the next [`publish`](Self::publish): a packed ring's descriptors are copied,
    /// since completed chains overwrite them.
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

    /// Reads a chain again that was taken before, [kept](Self::keep) and not completed. It is
    /// checked as if it were new.
    pub fn retake_readable<'m>(
        &self,
        token: Token,
        memory: &'m GuestMemory,
        pieces: &mut Vec<Slice<'m>>,
    ) -> Result<Taken<'m>, RingError> {
        each!(&self.format, ring => ring.retake_readable(token, memory, pieces))
    }

    /// Completes a chain that was just taken: `written` bytes were put into it. The guest sees it after
    /// [`publish`](Self::publish); with `VIRTIO_F_IN_ORDER`, once those before it that were
    /// [kept](Self::keep) are complete, too.
    #[inline(always)]
    pub fn complete(&mut self, token: Token, written: u32) {
        if self.in_order.is_idle() {
            self.format.complete(token, written);
        } else {
            self.changed = true;
            self.in_order.complete(&mut self.format, token, written);
        }
    }

    /// The same for several, one after the other.
    #[inline(always)]
    pub fn complete_all(&mut self, chains: impl Iterator<Item = (Token, u32)>) {
        if self.in_order.is_idle() {
            each!(&mut self.format, ring => ring.complete_all(chains));
        } else {
            chains.for_each(|(token, written)| self.complete(token, written));
        }
    }

    /// As [`complete`](Self::complete), for a chain that was [kept](Self::keep).
    #[cold]
    pub fn complete_kept(&mut self, token: Token, written: u32) {
        self.changed = true;
        // They go roughly in their order.
        if let Some(place) = self.kept.iter().position(|kept| *kept == token) {
            self.kept.remove(place);
        }
        if let Format::Packed(ring) = &mut self.format {
            ring.forget(token);
        }
        self.complete(token, written);
    }

    /// Says that some of what is completed, and not published, belongs together: a packet in several buffers.
    /// All of it is published, or nothing, even if this process is killed meanwhile.
    pub fn join(&mut self) {
        if let Format::Packed(ring) = &mut self.format {
            ring.join();
        }
    }

    /// Shows the guest what was completed, at once. Says how many chains that was.
    #[inline]
    pub fn publish(&mut self) -> u16 {
        self.publish_first(u16::MAX)
    }

    /// As [`publish`](Self::publish), for the first `count` of the completed chains: behind them are
    /// some whose buffers are being written to yet.
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

    /// Some chains stay, or did until now.
    #[cold]
    fn publish_busy(&mut self, count: u16) -> u16 {
        let stay = !self.kept.is_empty() || !self.in_order.is_idle();
        let Self { format, changed, record, .. } = self;
        let published = match format {
            // A driver that begins anew has 0 there: see `split_by`.
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

    /// A packed ring's publication, of which all is recorded first.
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

    /// Does the guest want a call for what was published since the last look?
    #[inline]
    pub fn needs_call(&mut self) -> bool {
        each!(&mut self.format, ring => ring.needs_call())
    }

    /// As [`needs_call`](Self::needs_call), and the next look asks for the same again: a call that is
    /// wanted now may be given later.
    #[inline]
    pub fn wants_call(&self) -> bool {
        each!(&self.format, ring => ring.wants_call())
    }

    /// Whether the driver takes calls at all. A split ring's that has EVENT_IDX cannot say that it does not.
    pub fn wants_calls(&self) -> bool {
        each!(&self.format, ring => ring.wants_calls())
    }

    /// How much was published that no [`needs_call`](Self::needs_call) has looked at yet.
    #[inline]
    pub fn unannounced(&self) -> u16 {
        each!(&self.format, ring => ring.unannounced())
    }

    /// Chains ever completed, published or not; in a packed ring, their slots.
    pub fn completed_total(&self) -> u64 {
        each!(&self.format, ring => ring.completed_total())
    }

    /// What the driver wrote when it last said at which used chain it wants a call; `None` if it does not
    /// say that. It had taken all before that one then.
    pub fn call_event(&self) -> Option<u16> {
        each!(&self.format, ring => ring.call_event())
    }

    /// Of [`completed_total`](Self::completed_total), and of what was completed in this ring's memory
    /// before, the driver may not have taken back the last so many. Fewer are left if `event_is_fresh`:
    /// [`call_event`](Self::call_event) has changed since as much was completed as the ring has room for.
    pub fn untaken_max(&self, event_is_fresh: bool) -> u64 {
        each!(&self.format, ring => ring.untaken_max(event_is_fresh))
    }

    /// Asks the guest for no kicks: weir is looking anyway. A kick may come all the same.
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

    /// Asks for a kick at the next chain beyond what [`available`](Self::available) counts, and
    /// says how much is available now: only when that is no more may the caller sleep.
    #[inline]
    pub fn enable_kicks(&mut self) -> Result<u16, RingError> {
        let available = each!(&mut self.format, ring => {
            ring.ask_for_kicks();
            // The mirror image of the fence in `needs_call`: the request is visible before the driver's index or
            // descriptor is read, or the driver's kick and weir's look could miss each other.
            fence(Ordering::SeqCst);
            ring.refill()
        });
        self.mark_kicks();
        available
    }
}

/// A front end that took chains of a packed ring and gave none back says another place to take from, but the same
/// place of the used descriptor.
fn is_said_again(said: u32, before: u32) -> bool {
    said == before || (said >> 16 != 0 && said >> 16 == before >> 16)
}

/// What was taken and is not given back, as far as it stays, in that order; and whether it is done.
fn in_flight<'r>(
    kept: &'r VecDeque<Token>,
    in_order: &'r InOrder,
) -> impl Iterator<Item = (Token, bool)> + 'r {
    kept.iter().map(|token| (*token, false)).chain(in_order.waiting())
}
