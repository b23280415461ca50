//! A ring that weir serves, of whatever format the driver chose.

use std::sync::Arc;

use weir_guestmem::{GuestMemory, Slice};

use crate::buffers::Chain;
use crate::error::{RingError, SetupError};
use crate::in_order::InOrder;
use crate::layout::{Addresses, RingConfig};
use crate::packed::device::PackedDevice;
use crate::split::device::SplitDevice;

/// A ring that weir serves. Each call is one `match` away from its format's own.
#[derive(Debug)]
pub enum DeviceRing {
    /// A split ring.
    Split(SplitDevice),
    /// A packed ring (`VIRTIO_F_RING_PACKED`).
    Packed(PackedDevice),
    /// Either, with `VIRTIO_F_IN_ORDER`.
    InOrder(InOrder),
}

/// The same call, whichever format; those of an [`InOrder`] go to its ring.
macro_rules! each {
    ($self:expr, $ring:ident => $call:expr) => {
        match $self {
            DeviceRing::Split($ring) => $call,
            DeviceRing::Packed($ring) => $call,
            DeviceRing::InOrder(InOrder { ring: $ring, .. }) => $call,
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
        let ring = if config.packed {
            Self::Packed(PackedDevice::new(memory, config, at, base)?)
        } else {
            let base = u16::try_from(base).map_err(|_| SetupError::Base(base))?;
            Self::Split(SplitDevice::new(memory, config, at, base)?)
        };
        Ok(if config.in_order { Self::InOrder(InOrder::new(ring)) } else { ring })
    }

    /// What was negotiated.
    #[inline]
    pub fn config(&self) -> &RingConfig {
        each!(self, ring => ring.config())
    }

    /// Where the ring stands: what `GET_VRING_BASE` answers.
    pub fn base(&self) -> u32 {
        match self {
            Self::Split(ring) => ring.base().into(),
            Self::Packed(ring) => ring.base(),
            Self::InOrder(in_order) => in_order.ring.base(),
        }
    }

    /// Looks for new chains, and says how much is known to be available: chains of a split ring,
    /// slots of a packed one.
    #[inline]
    pub fn refill(&mut self) -> Result<u16, RingError> {
        each!(self, ring => ring.refill())
    }

    /// What the last look found and was not taken since.
    #[inline]
    pub fn available(&self) -> u16 {
        each!(self, ring => ring.available())
    }

    /// Whether there is something to take. Costs no access to memory that is not at hand: a split
    /// ring's index is not read anew, a packed ring's next descriptor is.
    #[inline]
    pub fn has_more(&self) -> bool {
        match self {
            Self::Split(ring) => ring.available() > 0,
            Self::Packed(ring) => ring.has_more(),
            Self::InOrder(in_order) => in_order.ring.has_more(),
        }
    }

    /// Takes the next chain of a transmit queue, if there is one.
    #[inline(always)]
    pub fn take_readable<'m>(
        &mut self,
        memory: &'m GuestMemory,
        pieces: &mut Vec<Slice<'m>>,
    ) -> Result<Option<Chain>, RingError> {
        match self {
            Self::Split(ring) => ring.take_readable(memory, pieces),
            Self::Packed(ring) => ring.take_readable(memory, pieces),
            Self::InOrder(in_order) => {
                let chain = in_order.ring.take_readable(memory, pieces)?;
                in_order.taken(chain)
            }
        }
    }

    /// Takes the next chain of a receive queue, if there is one.
    #[inline(always)]
    pub fn take_writable<'m>(
        &mut self,
        memory: &'m GuestMemory,
        pieces: &mut Vec<Slice<'m>>,
    ) -> Result<Option<Chain>, RingError> {
        match self {
            Self::Split(ring) => ring.take_writable(memory, pieces),
            Self::Packed(ring) => ring.take_writable(memory, pieces),
            Self::InOrder(in_order) => {
                let chain = in_order.ring.take_writable(memory, pieces)?;
                in_order.taken(chain)
            }
        }
    }

    /// Gives back the last `count` chains that were taken since the last [`publish`](Self::publish)
    /// and not completed: they are taken again.
    #[inline]
    pub fn give_back(&mut self, count: u16) {
        match self {
            Self::Split(ring) => ring.give_back(count),
            Self::Packed(ring) => ring.give_back(count),
            Self::InOrder(in_order) => in_order.give_back(count),
        }
    }

    /// Says that a chain stays for longer than the next [`publish`](Self::publish): a packed ring's
    /// descriptors are copied, since those of completed chains are written over them.
    pub fn keep(&mut self, head: u16) {
        match self {
            Self::Split(_) => {}
            Self::Packed(ring) => ring.keep(head),
            Self::InOrder(in_order) => in_order.ring.keep(head),
        }
    }

    /// Reads a chain again that was taken before, [kept](Self::keep) and not completed. It is
    /// checked as if it were new.
    pub fn retake_readable<'m>(
        &self,
        head: u16,
        memory: &'m GuestMemory,
        pieces: &mut Vec<Slice<'m>>,
    ) -> Result<Chain, RingError> {
        each!(self, ring => ring.retake_readable(head, memory, pieces))
    }

    /// Completes a chain: `written` bytes were put into it. The guest sees it after
    /// [`publish`](Self::publish); with `VIRTIO_F_IN_ORDER`, once all before it are complete, too.
    #[inline(always)]
    pub fn complete(&mut self, head: u16, written: u32) {
        match self {
            Self::Split(ring) => ring.complete(head, written),
            Self::Packed(ring) => ring.complete(head, written),
            Self::InOrder(in_order) => in_order.complete(head, written),
        }
    }

    /// Shows the guest what was completed, at once. Says how many chains that was.
    #[inline]
    pub fn publish(&mut self) -> u16 {
        each!(self, ring => ring.publish())
    }

    /// Does the guest want a call for what was published since the last look?
    #[inline]
    pub fn needs_call(&mut self) -> bool {
        each!(self, ring => ring.needs_call())
    }

    /// How much was published that no [`needs_call`](Self::needs_call) has looked at yet.
    #[inline]
    pub fn unannounced(&self) -> u16 {
        each!(self, ring => ring.unannounced())
    }

    /// Asks the guest for no kicks: weir is looking anyway. A kick may come all the same.
    #[inline]
    pub fn suppress_kicks(&mut self) {
        each!(self, ring => ring.suppress_kicks());
    }

    /// Asks for a kick at the next chain beyond what [`available`](Self::available) counts, and
    /// says how much is available now: only when that is no more may the caller sleep.
    #[inline]
    pub fn enable_kicks(&mut self) -> Result<u16, RingError> {
        each!(self, ring => ring.enable_kicks())
    }
}
