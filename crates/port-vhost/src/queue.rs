//! The common part of both directions of a queue: a ring that may be running.

use std::collections::VecDeque;
use std::sync::Arc;

use weir_calls::Price;
use weir_engine::burst::Burst;
use weir_engine::guest::{GuestRing, ReceiveRing, Silence, TransmitRing};
use weir_engine::{Take, clock};
use weir_guestmem::{GuestMemory, fault_count};
use weir_limits::{SILENT_KICKS_MIN, SILENT_NS_MIN};
use weir_ring::{DeviceRing, Token};
use weir_wire::{OffloadCaps, Tci};

use crate::error::{Fault, StopReason};
use crate::features::Features;
use crate::migration::{Logging, Logs};
use crate::notify::Notifier;
use crate::rx::room::Room;
use crate::rx::unseen::Unseen;

/// The place of a ring when its service began.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Beginning {
    pub(crate) since_ns: u64,
    pub(crate) base: u32,
    /// The kicks that its queue had counted by then.
    pub(crate) kicks: u64,
}

impl Beginning {
    pub(crate) fn new(base: u32, kicks: u64) -> Self {
        Self { since_ns: clock::now_ns(), base, kicks }
    }
}

/// The reasons for which nothing is taken from a ring in service.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Holds(u8);

impl Holds {
    const NONE: Self = Self(0);
    /// No kick has come yet. Until then the ring is not touched (vhost-user: "The back-end must start a ring upon
    /// receiving a kick").
    pub(crate) const KICK: Self = Self(4);
    /// The ring ran before, and may still be disabled: a disabled ring's frames are dropped.
    pub(crate) const ENABLE: Self = Self(1);
    /// The translation of the next frame's address is asked for.
    pub(crate) const TRANSLATION: Self = Self(2);

    pub(crate) fn set(&mut self, which: Self, on: bool) {
        self.0 = if on { self.0 | which.0 } else { self.0 & !which.0 };
    }

    pub(crate) fn has(self, which: Self) -> bool {
        self.0 & which.0 != 0
    }
}

/// A ring whose place is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Late {
    /// The ring has not been served yet.
    First,
    /// The ring was served before.
    Again,
}

#[derive(Debug)]
pub(crate) struct Ring {
    pub(crate) device: DeviceRing,
    pub(crate) memory: Arc<GuestMemory>,
    pub(crate) features: Features,
    /// The offloads that the driver accepts unfinished.
    pub(crate) caps: OffloadCaps,
    /// The guest takes containers (`VHOST_USER_PROTOCOL_F_WEIR_CONTAINERS`).
    pub(crate) containers: bool,
    /// The last container, if later bursts may add to it.
    pub(crate) unseen: Option<Unseen>,
    pub(crate) beginning: Beginning,
    /// The ring ran before it was set up: its driver need not kick, and may wait for a call.
    pub(crate) resumed: bool,
    /// Chains that an earlier weir had taken and not returned: they go first.
    pub(crate) left_behind: VecDeque<Token>,
    pub(crate) holds: Holds,
    /// The marks that go to a dirty log.
    pub(crate) logging: Option<Box<Logging>>,
    /// [`fault_count`] when the memory was last found whole.
    pub(crate) faults: u64,
}

impl Ring {
    /// Makes a ring whose queue has counted `kicks` so far.
    pub(crate) fn new(
        device: DeviceRing,
        memory: Arc<GuestMemory>,
        features: Features,
        containers: bool,
        started: bool,
        kicks: u64,
    ) -> Self {
        let mut holds = Holds::NONE;
        holds.set(Holds::KICK, !started);
        Self {
            beginning: Beginning::new(device.base(), kicks),
            left_behind: device.left_behind().into(),
            device,
            memory,
            features,
            caps: features.receive_caps(),
            containers,
            unseen: None,
            resumed: false,
            holds,
            logging: None,
            // 0 makes the first check a real one: the file may have been truncated before.
            faults: 0,
        }
    }

    /// True once a kick has come.
    #[inline]
    pub(crate) fn is_started(&self) -> bool {
        !self.holds.has(Holds::KICK)
    }

    /// Notes a kick. Returns true for the first one.
    pub(crate) fn start(&mut self) -> bool {
        let is_first = !self.is_started();
        self.holds.set(Holds::KICK, false);
        is_first
    }

    /// True if frames can be taken from the ring.
    #[inline]
    pub(crate) fn is_served(&self) -> bool {
        self.holds == Holds::NONE
    }

    /// True if `what` means frames that were taken before, and only new frames wait for a
    /// translation.
    #[cold]
    pub(crate) fn has_only_waiting(&self, what: Take) -> bool {
        self.holds == Holds::TRANSLATION && what != Take::New
    }

    /// True if there is something to take, as far as is known.
    #[inline]
    pub(crate) fn has_more(&self) -> bool {
        self.device.has_more() || !self.left_behind.is_empty()
    }

    /// Checks that the memory and its dirty log are whole. If the memory is not, the bytes that were read are not the
    /// guest's.
    #[inline(always)]
    pub(crate) fn check(&mut self) -> Result<(), Fault> {
        let faults = fault_count();
        let faulted = faults != self.faults;
        self.faults = faults;
        if faulted && self.memory.poisoned() {
            return Err(StopReason::MemoryTruncated.into());
        }
        match &self.logging {
            Some(logging) => logging.check(faulted),
            None => Ok(()),
        }
    }

    /// Uses `logs` from now on, and returns the earlier ones.
    pub(crate) fn set_logs(&mut self, logs: Logs) -> Logs {
        let (logging, of_ring) = logs;
        // This log may already have been truncated.
        self.faults = 0;
        (std::mem::replace(&mut self.logging, logging), self.device.set_log(of_ring))
    }
}

/// A frame that weir sends in the guest's name, once with each of its tags.
#[derive(Debug)]
pub(crate) struct Injected {
    pub(crate) frame: Box<[u8]>,
    /// The tags that are still to be sent, last one first.
    pub(crate) tags: Vec<Option<Tci>>,
}

impl Injected {
    /// Adds as many copies as there is room for. True if none is left.
    #[cold]
    #[inline(never)]
    pub(crate) fn add_to(&mut self, burst: &mut Burst<'_>, now_ns: u64) -> bool {
        while self.tags.pop_if(|tag| burst.add_own(&self.frame, *tag, now_ns)).is_some() {}
        self.tags.is_empty()
    }
}

/// A queue as the session configures it.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) ring: Option<Ring>,
    pub(crate) call: Option<Notifier>,
    /// The descriptor by which the front end hears that the ring is broken.
    pub(crate) err: Option<Notifier>,
    /// The cost of calls by either descriptor, in this session and earlier ones.
    price: Price,
    /// `SET_VRING_ENABLE`.
    pub(crate) enabled: bool,
    /// The frame that weir sends in the guest's name (`SEND_RARP`); a later one replaces it.
    pub(crate) injected: Option<Box<Injected>>,
    /// The ring is in service, and its place is not known yet: its virtual IOMMU's translation is asked for.
    pub(crate) late: Option<Late>,
    /// Frames wait for the ring's next buffer: kicks stay on until one has come.
    pub(crate) armed: bool,
    pub(crate) room: Room,
}

impl Queue {
    /// True if frames can be received, now or once the ring's place is known again.
    pub(crate) fn is_running(&self) -> bool {
        self.is_ready() && self.late != Some(Late::First)
    }

    /// Notifies the front end that the ring is broken, if it asked for this (`SET_VRING_ERR`).
    pub(crate) fn signal_error(&mut self) {
        if let Some(err) = &self.err {
            err.notify(&mut self.price);
        }
    }

    /// Notifies the front end of new marks in its dirty log, if it asked for this (`SET_LOG_FD`).
    #[inline]
    pub(crate) fn signal_log(&mut self) {
        if let Some(logging) = self.ring.as_ref().and_then(|ring| ring.logging.as_ref()) {
            signal(logging, &mut self.price);
        }
    }

    /// Calls the guest; `false` if nobody can be called.
    #[inline(never)]
    fn give_call(&mut self) -> bool {
        if let Some(call) = &self.call {
            call.notify(&mut self.price);
        }
        self.call.is_some()
    }

    /// Calls a guest that may wait for a call that an earlier weir never gave. Front ends set the descriptor before or
    /// after the ring is in service, and some replace it then.
    pub(crate) fn call_if_resumed(&mut self) {
        if let (Some(_), Some(call)) = (self.ring.as_ref().filter(|ring| ring.resumed), &self.call)
        {
            call.notify(&mut self.price);
        }
    }
}

/// Notifies the front end of new marks.
#[inline(never)]
fn signal(logging: &Logging, price: &mut Price) {
    if let Some(call) = logging.to_tell() {
        call.notify(price);
    }
}

impl GuestRing for Queue {
    #[inline]
    fn size(&mut self) -> u32 {
        self.ring.as_ref().map_or(0, |ring| ring.device.config().size.into())
    }

    #[inline(always)]
    fn call_if_wanted(&mut self) -> Option<bool> {
        let wanted = self.ring.as_mut()?.device.needs_call_for_more()?;
        Some(wanted && self.give_call())
    }
}

impl ReceiveRing for Queue {
    type Error = Fault;

    fn is_ready(&self) -> bool {
        let started = self.ring.as_ref().is_some_and(Ring::is_started);
        self.enabled && (started || self.late.is_some())
    }

    #[inline(always)]
    fn show(&mut self, chains: u16) {
        if let Some(ring) = &mut self.ring {
            ring.device.publish_first(chains);
        }
    }

    fn arm(&mut self, index: usize) -> Result<bool, Fault> {
        let Some(ring) = self.ring.as_mut() else { return Ok(false) };
        let seen = ring.device.available();
        let now = ring.device.enable_kicks();
        self.armed = true;
        now.map(|now| now > seen).map_err(|error| {
            StopReason::Ring { ring: 2 * index, error }.unless_truncated(&ring.memory).into()
        })
    }

    fn placed(&self) -> u64 {
        self.ring.as_ref().map_or(0, |ring| ring.device.completed_total())
    }

    #[inline(always)]
    fn check(&mut self) -> Result<(), Fault> {
        match &mut self.ring {
            Some(ring) => ring.check(),
            None => Ok(()),
        }
    }
}

impl TransmitRing for Queue {
    #[inline]
    fn wants_call(&mut self) -> bool {
        self.ring.as_ref().is_some_and(|ring| ring.device.wants_call())
    }
}

impl Queue {
    /// True if nothing comes of the ring until its virtual IOMMU translates an address.
    pub(crate) fn lacks_translation(&self) -> bool {
        let ring = self.ring.as_ref();
        // Frames wait for buffers, or buffers for an answer.
        let lacks = ring.is_some_and(|ring| self.armed || ring.holds.has(Holds::TRANSLATION));
        self.enabled && (self.late.is_some() || lacks)
    }

    /// The reason why nothing comes of the ring, whose kicks so far are `kicks`; `None` if something does, or still
    /// can.
    pub(crate) fn silence(&self, kicks: u64, now_ns: u64) -> Option<Silence> {
        let ring = self.ring.as_ref().filter(|_| self.enabled)?;
        let Ring { device, beginning, .. } = ring;
        if now_ns.saturating_sub(beginning.since_ns) < SILENT_NS_MIN {
            return None;
        }
        let taken = device.base() != beginning.base || device.completed_total() > 0;
        let kicks = kicks.saturating_sub(beginning.kicks);
        match (taken, device.peek()) {
            (false, true) if !ring.is_started() => Some(Silence::BuffersWithoutKick),
            (false, false) if kicks >= SILENT_KICKS_MIN => {
                Some(Silence::KicksWithoutBuffers(kicks))
            }
            (true, _) if self.call.is_none() && device.wants_calls() => {
                Some(Silence::NoCallDescriptor)
            }
            _ => None,
        }
    }
}
