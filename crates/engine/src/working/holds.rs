//! The times at which a worker must ask its ports about held calls.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::frames::port::Side;
use crate::switching::switch::Hold;

/// Held calls by deadline. A queue has one entry, here or in another worker's list, unless its deadline moves forward.
///
/// A call for received frames must come within a latency budget, so it is due earlier by the **lead**, the lateness of
/// a timer. Nobody waits for a call for transmitted frames; a lead would only cause more of them.
#[derive(Debug, Default)]
pub(crate) struct Holds {
    received: BinaryHeap<Reverse<Hold>>,
    transmitted: BinaryHeap<Reverse<Hold>>,
}

impl Holds {
    pub(crate) fn push(&mut self, hold: Hold) {
        match hold.side {
            Side::Rx => self.received.push(Reverse(hold)),
            Side::Tx => self.transmitted.push(Reverse(hold)),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.received.is_empty() && self.transmitted.is_empty()
    }

    /// The time at which a sleep must end (ns).
    pub(crate) fn wake_ns(&self, lead_ns: u64) -> Option<u64> {
        let received = until_ns(&self.received).map(|until_ns| until_ns.saturating_sub(lead_ns));
        received.into_iter().chain(until_ns(&self.transmitted)).min()
    }

    /// The side of a call that is due at `now_ns`. Calls for received frames are due `lead_ns` earlier.
    pub(crate) fn due(&self, now_ns: u64, lead_ns: u64) -> Option<Side> {
        let by = |heap, by_ns| until_ns(heap).is_some_and(|until_ns| until_ns <= by_ns);
        if by(&self.received, now_ns.saturating_add(lead_ns)) {
            return Some(Side::Rx);
        }
        by(&self.transmitted, now_ns).then_some(Side::Tx)
    }

    /// Removes an entry that has ended at `now_ns`, and returns it with its deadline. Calls for received frames end
    /// `lead_ns` earlier.
    #[inline]
    pub(crate) fn ended(&mut self, now_ns: u64, lead_ns: u64) -> Option<(Hold, u64)> {
        let ahead_ns = now_ns.saturating_add(lead_ns);
        let received = ended_by(&mut self.received, ahead_ns).map(|hold| (hold, ahead_ns));
        received.or_else(|| ended_by(&mut self.transmitted, now_ns).map(|hold| (hold, now_ns)))
    }
}

fn until_ns(holds: &BinaryHeap<Reverse<Hold>>) -> Option<u64> {
    holds.peek().map(|Reverse(hold)| hold.until_ns)
}

fn ended_by(holds: &mut BinaryHeap<Reverse<Hold>>, by_ns: u64) -> Option<Hold> {
    let _ended = until_ns(holds).filter(|until_ns| *until_ns <= by_ns)?;
    holds.pop().map(|Reverse(hold)| hold)
}

#[cfg(test)]
mod tests {
    use weir_fabric::PortId;

    use super::*;

    const LEAD_NS: u64 = 50;

    fn hold(side: Side, until_ns: u64) -> Hold {
        Hold { until_ns, port: PortId::new(0).unwrap(), queue: 0, side }
    }

    #[test]
    fn only_calls_for_received_frames_end_early() {
        let mut holds = Holds::default();
        assert_eq!(holds.wake_ns(LEAD_NS), None);
        holds.push(hold(Side::Tx, 110));
        holds.push(hold(Side::Rx, 200));
        assert_eq!(holds.wake_ns(LEAD_NS), Some(110));
        assert_eq!(holds.ended(109, LEAD_NS), None);
        assert_eq!(holds.ended(110, LEAD_NS), Some((hold(Side::Tx, 110), 110)));
        assert_eq!(holds.wake_ns(LEAD_NS), Some(150));
        assert_eq!(holds.ended(150, 0), None, "one that is awake is in time");
        assert_eq!(holds.ended(150, LEAD_NS), Some((hold(Side::Rx, 200), 200)));
        assert_eq!(holds.ended(u64::MAX, LEAD_NS), None);
    }

    #[test]
    fn the_first_to_end_comes_first() {
        let mut holds = Holds::default();
        for until_ns in [30, 10, 20] {
            holds.push(hold(Side::Rx, until_ns));
        }
        let ended: Vec<u64> =
            std::iter::from_fn(|| holds.ended(25, 0)).map(|(hold, _)| hold.until_ns).collect();
        assert_eq!(ended, [10, 20]);
    }
}
