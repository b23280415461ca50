//! What both directions of a queue have in common: a ring that may be running.

use std::collections::VecDeque;
use std::sync::Arc;

use weir_calls::Price;
use weir_engine::burst::Burst;
use weir_engine::clock;
use weir_engine::guest::{GuestRing, ReceiveRing, TransmitRing};
use weir_guestmem::{GuestMemory, fault_count};
use weir_ring::{DeviceRing, Token};
use weir_wire::{OffloadCaps, Tci};

use crate::error::StopReason;
use crate::features::Features;
use crate::migration::{Logging, Logs};
use crate::notify::Notifier;
use crate::rx::Room;

/// Where a ring stood when its service began.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Beginning {
    pub(crate) since_ns: u64,
    pub(crate) base: u32,
    /// Kicks that its queue had counted.
    pub(crate) kicks: u64,
}

impl Beginning {
    pub(crate) fn new(base: u32, kicks: u64) -> Self {
        Self { since_ns: clock::now_ns(), base, kicks }
    }
}

#[derive(Debug)]
pub(crate) struct Ring {
    pub(crate) device: DeviceRing,
    pub(crate) memory: Arc<GuestMemory>,
    pub(crate) features: Features,
    /// What the driver takes unfinished.
    pub(crate) caps: OffloadCaps,
    /// The guest takes containers (`VHOST_USER_PROTOCOL_F_WEIR_CONTAINERS`).
    pub(crate) containers: bool,
    /// A kick has come. Until then the ring is not touched (vhost-user: "The back-end must start
    /// a ring upon receiving a kick").
    pub(crate) started: bool,
    pub(crate) beginning: Beginning,
    /// It was running before it was set up: its driver need not kick, and may wait for a call.
    pub(crate) resumed: bool,
    /// Chains that a weir which is gone had taken, and not given back: they go first.
    pub(crate) left_behind: VecDeque<Token>,
    /// It was running before, and may be disabled: nothing is taken yet, because a disabled ring's frames are
    /// dropped.
    pub(crate) expects_enable: bool,
    /// What is marked in a dirty log.
    pub(crate) logging: Option<Box<Logging>>,
    /// [`fault_count`] when the memory was last found whole.
    faults: u64,
}

impl Ring {
    /// `kicks` is what its queue has counted so far.
    pub(crate) fn new(
        device: DeviceRing,
        memory: Arc<GuestMemory>,
        features: Features,
        containers: bool,
        started: bool,
        kicks: u64,
    ) -> Self {
        Self {
            beginning: Beginning::new(device.base(), kicks),
            left_behind: device.left_behind().into(),
            device,
            memory,
            features,
            caps: features.receive_caps(),
            containers,
            started,
            resumed: false,
            expects_enable: false,
            logging: None,
            // 0 makes the first look a real one: the file may be gone already.
            faults: 0,
        }
    }

    /// Frames may be taken from it.
    #[inline]
    pub(crate) fn is_served(&self) -> bool {
        self.started && !self.expects_enable
    }

    /// There is something to take, as far as is known.
    #[inline]
    pub(crate) fn has_more(&self) -> bool {
        self.device.has_more() || !self.left_behind.is_empty()
    }

    /// The memory is whole; if not, what was read is not what the guest wrote. So is its dirty log.
    #[inline]
    pub(crate) fn check(&mut self) -> Result<(), StopReason> {
        let faults = fault_count();
        let faulted = faults != self.faults;
        self.faults = faults;
        if faulted && self.memory.poisoned() {
            return Err(StopReason::MemoryTruncated);
        }
        self.logging.as_ref().map_or(Ok(()), |logging| logging.check(faulted))
    }

    /// Logs from now on by `logs`; gives back what there was.
    pub(crate) fn set_logs(&mut self, logs: Logs) -> Logs {
        let (logging, of_ring) = logs;
        // This log may be gone already.
        self.faults = 0;
        (std::mem::replace(&mut self.logging, logging), self.device.set_log(of_ring))
    }
}

/// A frame that weir sends in the guest's name, once with each of some tags.
#[derive(Debug)]
pub(crate) struct Injected {
    pub(crate) frame: Box<[u8]>,
    /// The last one goes first.
    pub(crate) tags: Vec<Option<Tci>>,
}

impl Injected {
    /// Adds as much of it as there is room for; whether that is all.
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
    /// Where the front end wants to hear that the ring is broken.
    pub(crate) err: Option<Notifier>,
    /// What calls by either cost, now and in sessions before.
    price: Price,
    /// `SET_VRING_ENABLE`.
    pub(crate) enabled: bool,
    /// What weir sends in the guest's name (`SEND_RARP`); a later one replaces it.
    pub(crate) injected: Option<Box<Injected>>,
    /// Frames wait for its next buffer: kicks stay on until one came.
    pub(crate) armed: bool,
    pub(crate) room: Room,
}

impl Queue {
    /// Tells the front end that the ring is broken, where it asked to be told (`SET_VRING_ERR`).
    pub(crate) fn signal_error(&mut self) {
        if let Some(err) = &self.err {
            err.notify(&mut self.price);
        }
    }

    /// Tells the front end of new marks in its dirty log, where it asked to be told (`SET_LOG_FD`).
    #[inline]
    pub(crate) fn signal_log(&mut self) {
        let logging = self.ring.as_ref().and_then(|ring| ring.logging.as_ref());
        if let Some(call) = logging.and_then(|logging| logging.to_tell()) {
            call.notify(&mut self.price);
        }
    }

    /// The guest may wait for a call that a previous weir never gave. Front ends set the descriptor before or after
    /// the ring is in service, and some replace it then.
    pub(crate) fn call_if_resumed(&mut self) {
        if let (Some(_), Some(call)) = (self.ring.as_ref().filter(|ring| ring.resumed), &self.call)
        {
            call.notify(&mut self.price);
        }
    }
}

impl GuestRing for Queue {
    #[inline]
    fn size(&mut self) -> u32 {
        self.ring.as_ref().map_or(0, |ring| ring.device.config().size.into())
    }

    #[inline]
    fn call_if_wanted(&mut self) -> Option<bool> {
        let ring = self.ring.as_mut()?;
        if ring.device.unannounced() == 0 {
            return None;
        }
        let wanted = ring.device.needs_call();
        if let (true, Some(call)) = (wanted, &self.call) {
            call.notify(&mut self.price);
        }
        Some(wanted && self.call.is_some())
    }
}

impl ReceiveRing for Queue {
    type Error = StopReason;

    fn is_ready(&self) -> bool {
        self.enabled && self.ring.as_ref().is_some_and(|ring| ring.started)
    }

    #[inline]
    fn show(&mut self, chains: u16) {
        if let Some(ring) = &mut self.ring {
            ring.device.publish_first(chains);
        }
    }

    fn arm(&mut self, index: usize) -> Result<bool, StopReason> {
        let Some(ring) = self.ring.as_mut() else { return Ok(false) };
        let seen = ring.device.available();
        let now = ring.device.enable_kicks();
        self.armed = true;
        now.map(|now| now > seen).map_err(|error| {
            StopReason::Ring { ring: 2 * index, error }.unless_truncated(&ring.memory)
        })
    }

    fn placed(&self) -> u64 {
        self.ring.as_ref().map_or(0, |ring| ring.device.completed_total())
    }

    #[inline]
    fn check(&mut self) -> Result<(), StopReason> {
        self.ring.as_mut().map_or(Ok(()), Ring::check)
    }
}

impl TransmitRing for Queue {
    #[inline]
    fn wants_call(&mut self) -> bool {
        self.ring.as_ref().is_some_and(|ring| ring.device.wants_call())
    }
}
