//! Rings that are in service and serve nobody: what is odd about them, for who asks.
//!
//! Nothing is counted for this on the way of a packet: the ring's memory is looked at when somebody asks.

use weir_limits::{SILENT_KICKS_MIN, SILENT_NS_MIN};

use crate::queue::{Queue, Ring};

/// Why nothing comes of a ring that is in service and enabled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Silence {
    /// After so many kicks, the driver has put no buffer where weir looks: it means another base, wrap counter or
    /// address.
    KicksWithoutBuffers(u64),
    /// The driver has put buffers into it, and its kick descriptor has never signalled.
    BuffersWithoutKick,
    /// Buffers came back to a driver that wants to be told, and there is no descriptor to call it by.
    NoCallDescriptor,
}

/// A ring that serves nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SilentRing {
    /// Its number: even ones receive, odd ones transmit.
    pub ring: usize,
    /// Why.
    pub why: Silence,
}

impl Queue {
    /// Why nothing comes of its ring, whose kicks so far are `kicks`; `None` where something does, or may yet.
    pub(crate) fn silence(&self, kicks: u64, now_ns: u64) -> Option<Silence> {
        let Ring { device, started, beginning, .. } =
            self.ring.as_ref().filter(|_| self.enabled)?;
        if now_ns.saturating_sub(beginning.since_ns) < SILENT_NS_MIN {
            return None;
        }
        let taken = device.base() != beginning.base || device.completed_total() > 0;
        let kicks = kicks.saturating_sub(beginning.kicks);
        match (taken, device.peek()) {
            (false, true) if !started => Some(Silence::BuffersWithoutKick),
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
