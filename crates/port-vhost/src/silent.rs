//! Rings that are in service and serve nobody: the reason, for whoever asks.
//!
//! Nothing is counted for this on a packet's way: the ring's memory is read only when somebody asks.

use weir_engine::guest::Silence;
use weir_limits::{SILENT_KICKS_MIN, SILENT_NS_MIN};

use crate::queue::{Queue, Ring};

impl Queue {
    /// The reason why nothing comes of the ring, whose kicks so far are `kicks`; `None` if something does, or still
    /// can.
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
