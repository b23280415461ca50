//! A ring that weir serves, of whatever format the driver chose.

use std::sync::Arc;

use weir_guestmem::{GuestMemory, Slice};

use crate::buffers::{Chain, Direction, Pieces, Token};
use crate::error::{RingError, SetupError};
use crate::in_order::InOrder;
use crate::layout::{Addresses, RingConfig};
use crate::packed::device::PackedDevice;
use crate::split::device::SplitDevice;

/// A ring that weir serves. Each call is one `match` away from its format's own.
#[derive(Debug)]
pub struct DeviceRing {
    format: Format,
    /// With `VIRTIO_F_IN_ORDER`; else nothing ever waits there.
    in_order: InOrder,
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
    /// A ring at `at`, going on where `base` says (vhost-user `SET_VRING_BASE`).
    ///
    /// # Errors
    /// See [`SetupError`].
    pub fn new(
        memory: &Arc<GuestMemory>,
        config: RingConfig,
        at: &Addresses,
        base: u32,
    ) -> Result<Self, SetupError> {
        let format = if config.packed {
            Format::Packed(PackedDevice::new(memory, config, at, base)?)
        } else {
            let base = u16::try_from(base).map_err(|_| SetupError::Base(base))?;
            Format::Split(SplitDevice::new(memory, config, at, base)?)
        };
        Ok(Self { format, in_order: InOrder::default() })
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

    /// Has the processor fetch what taking and completing the next `count` chains will touch. A
    /// packed ring is read and written front to back, which processors foresee.
    #[inline]
    pub fn fetch_ahead(&self, count: u16) {
        if let Format::Split(ring) = &self.format {
            ring.fetch_ahead(count);
        }
    }

    /// Takes the next chain of a transmit queue, if there is one.
    #[inline(always)]
    pub fn take_readable<'m>(
        &mut self,
        memory: &'m GuestMemory,
        pieces: &mut Vec<Slice<'m>>,
    ) -> Result<Option<Chain>, RingError> {
        self.check_waiting()?;
        each!(&mut self.format, ring => ring.take_readable(memory, pieces))
    }

    /// Takes the next chain of a receive queue, if there is one.
    #[inline(always)]
    pub fn take_writable<'m>(
        &mut self,
        memory: &'m GuestMemory,
        pieces: &mut Vec<Slice<'m>>,
    ) -> Result<Option<Chain>, RingError> {
        self.check_waiting()?;
        each!(&mut self.format, ring => ring.take_writable(memory, pieces))
    }

    /// Takes up to `max` chains of a transmit queue: `each` is given every one.
    ///
    /// # Errors
    /// Of the first chain that is wrong; those before it were given to `each`.
    #[inline(always)]
    pub fn take_readable_burst<'m>(
        &mut self,
        max: u16,
        memory: &'m GuestMemory,
        pieces: &mut Vec<Slice<'m>>,
        each: impl FnMut(Chain, Pieces<'_, 'm>),
    ) -> Result<(), RingError> {
        self.take_burst(Direction::Readable, max, memory, pieces, each)
    }

    /// The same for a receive queue.
    #[inline(always)]
    pub fn take_writable_burst<'m>(
        &mut self,
        max: u16,
        memory: &'m GuestMemory,
        pieces: &mut Vec<Slice<'m>>,
        each: impl FnMut(Chain, Pieces<'_, 'm>),
    ) -> Result<(), RingError> {
        self.take_burst(Direction::Writable, max, memory, pieces, each)
    }

    #[inline(always)]
    fn take_burst<'m>(
        &mut self,
        direction: Direction,
        max: u16,
        memory: &'m GuestMemory,
        pieces: &mut Vec<Slice<'m>>,
        mut each: impl FnMut(Chain, Pieces<'_, 'm>),
    ) -> Result<(), RingError> {
        self.check_waiting()?;
        let each = |chain: Chain, pieces: Pieces<'_, 'm>| {
            each(chain, pieces);
            Ok(())
        };
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

    /// Says that a chain stays for longer than the next [`publish`](Self::publish): a packed ring's
    /// descriptors are copied, since those of completed chains are written over them.
    ///
    /// With `VIRTIO_F_IN_ORDER` chains are kept or completed in the order in which they were taken,
    /// and those that were kept completed at any time.
    pub fn keep(&mut self, token: Token) {
        if self.config().in_order {
            self.in_order.keep(token);
        }
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
    ) -> Result<Chain, RingError> {
        each!(&self.format, ring => ring.retake_readable(token, memory, pieces))
    }

    /// Completes a chain: `written` bytes were put into it. The guest sees it after
    /// [`publish`](Self::publish); with `VIRTIO_F_IN_ORDER`, once those before it that were
    /// [kept](Self::keep) are complete, too.
    #[inline(always)]
    pub fn complete(&mut self, token: Token, written: u32) {
        if self.in_order.is_idle() {
            self.format.complete(token, written);
        } else {
            self.in_order.complete(&mut self.format, token, written);
        }
    }

    /// Shows the guest what was completed, at once. Says how many chains that was.
    #[inline]
    pub fn publish(&mut self) -> u16 {
        each!(&mut self.format, ring => ring.publish())
    }

    /// As [`publish`](Self::publish), for the first `count` of the completed chains: behind them are
    /// some whose buffers are being written to yet.
    #[inline]
    pub fn publish_first(&mut self, count: u16) -> u16 {
        each!(&mut self.format, ring => ring.publish_first(count))
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
        each!(&mut self.format, ring => ring.suppress_kicks());
    }

    /// Asks for a kick at the next chain beyond what [`available`](Self::available) counts, and
    /// says how much is available now: only when that is no more may the caller sleep.
    #[inline]
    pub fn enable_kicks(&mut self) -> Result<u16, RingError> {
        each!(&mut self.format, ring => ring.enable_kicks())
    }
}
