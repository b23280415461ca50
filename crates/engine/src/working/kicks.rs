//! Kicks without frames.
//!
//! A kick costs the guest a write, and weir a wake-up and a poll that are not charged. Drivers sometimes kick in vain,
//! when weir took the frame before the kick came; up to one such kick per frame is usual. The kicks of a guest that
//! keeps kicking without frames are ignored for a while: its kick descriptor stays in the epoll set without events.
//! Frames that are sent meanwhile are found afterwards.

use std::collections::VecDeque;

use weir_limits::{VAIN_KICKS_MAX, VAIN_KICKS_PAUSE_NS};

use crate::frames::port::PerQueue;
use crate::frames::port::QueueRef;
use crate::frames::port::Side;

/// Kicks of a pair of queues that brought no frames, less the frames that came.
#[derive(Debug, Default)]
struct Vain {
    tx: u8,
    rx: u8,
}

/// A worker's notes about kicks.
#[derive(Debug, Default)]
pub(crate) struct Kicks {
    vain: PerQueue<Vain>,
    /// Queues whose kicks are ignored, each with the end of that time (ns).
    ignored: VecDeque<(QueueRef, u64)>,
}

impl Kicks {
    /// Counts a kick that may have brought no frames. Returns true if the next kicks must be ignored.
    #[inline]
    pub(crate) fn came(&mut self, queue: QueueRef) -> bool {
        let vain = self.vain.at(queue);
        let vain = match queue.side {
            Side::Tx => &mut vain.tx,
            Side::Rx => &mut vain.rx,
        };
        *vain = vain.saturating_add(1).min(VAIN_KICKS_MAX);
        *vain == VAIN_KICKS_MAX
    }

    /// Counts `frames` that were taken from a transmit queue.
    #[inline]
    pub(crate) fn brought(&mut self, queue: QueueRef, frames: usize) {
        if self.vain.get(queue).is_some_and(|vain| vain.tx > 0) {
            // Each frame explains its own kick, and one kick in vain.
            let frames = u8::try_from(2 * frames).unwrap_or(u8::MAX);
            let tx = &mut self.vain.at(queue).tx;
            *tx = tx.saturating_sub(frames);
        }
    }

    /// Notes that frames waited for the kick of a receive queue.
    #[inline]
    pub(crate) fn was_awaited(&mut self, queue: QueueRef) {
        self.vain.at(queue).rx = 0;
    }

    pub(crate) fn ignore(&mut self, queue: QueueRef, now_ns: u64) {
        self.ignored.push_back((queue, now_ns.saturating_add(VAIN_KICKS_PAUSE_NS)));
    }

    /// True if no queue's kicks are ignored.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.ignored.is_empty()
    }

    /// The earliest time at which ignored kicks count again (ns).
    #[inline]
    pub(crate) fn wake_ns(&self) -> Option<u64> {
        self.ignored.front().map(|(_, until_ns)| *until_ns)
    }

    /// A queue whose kicks count again at `now_ns`.
    pub(crate) fn due(&mut self, now_ns: u64) -> Option<QueueRef> {
        // The list is in the order of time, since all kicks are ignored for the same time.
        let (queue, _) = *self.ignored.front().filter(|(_, until_ns)| *until_ns <= now_ns)?;
        self.ignored.pop_front();
        Some(queue)
    }
}

#[cfg(test)]
mod tests {
    use weir_fabric::PortId;

    use super::*;

    const PORT: PortId = PortId::new(3).unwrap();
    const TX: QueueRef = QueueRef { port: PORT, queue: 0, side: Side::Tx };
    const RX: QueueRef = QueueRef { side: Side::Rx, ..TX };

    #[test]
    fn a_kick_in_vain_for_each_frame_is_usual() {
        let mut kicks = Kicks::default();
        for _ in 0..10 * u32::from(VAIN_KICKS_MAX) {
            assert!(!kicks.came(TX) && !kicks.came(TX));
            kicks.brought(TX, 1);
            assert!(!kicks.came(RX));
            kicks.was_awaited(RX);
        }
    }

    #[test]
    fn who_goes_on_without_frames_is_ignored_and_once_more_after_one_more_kick() {
        let mut kicks = Kicks::default();
        for queue in [TX, RX] {
            for _ in 1..VAIN_KICKS_MAX {
                assert!(!kicks.came(queue));
            }
            assert!(kicks.came(queue));
            kicks.ignore(queue, 5);
            assert_eq!(kicks.due(4 + VAIN_KICKS_PAUSE_NS), None);
            assert_eq!(kicks.wake_ns(), Some(5 + VAIN_KICKS_PAUSE_NS));
            assert_eq!(kicks.due(5 + VAIN_KICKS_PAUSE_NS), Some(queue));
            assert!(kicks.is_empty() && kicks.came(queue));
        }
        kicks.brought(TX, 1);
        assert!(!kicks.came(TX), "a frame is one");
    }
}
