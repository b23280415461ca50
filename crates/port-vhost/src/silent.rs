//! Rings that are in service and serve nobody: what is odd about them, for who asks.
//!
//! Nothing is counted for this on the way of a packet: the ring's memory is looked at when somebody asks.

use weir_engine::guest::Silence;
use weir_limits::{SILENT_KICKS_MIN, SILENT_NS_MIN};

use crate::queue::{Queue, Ring};

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
