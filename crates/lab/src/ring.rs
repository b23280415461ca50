//! The timing of virtqueues: the owners of buffers, and the wishes for calls.

use std::collections::VecDeque;

use crate::link::Frame;

/// Used elements, and the element at which the driver wants a call (virtio 1.2 §2.7.7,
/// `used_event`).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Used {
    /// Elements published since the ring was made.
    total: u64,
    /// Elements published at the last question whether to call.
    told: u64,
    /// Number of the element at which the driver wants a call. A number behind `told` has passed:
    /// no call.
    event: u64,
}

impl Used {
    pub(crate) fn publish(&mut self, elements: u32) {
        self.total += u64::from(elements);
    }

    /// Requests a call after `more` elements beyond the `seen` ones.
    pub(crate) fn arm(&mut self, seen: u64, more: u64) {
        self.event = seen + more;
    }

    /// Requests no call.
    pub(crate) fn disarm(&mut self) {
        self.event = u64::MAX;
    }

    /// Returns whether the driver wants a call for the published elements (virtio 1.2 §2.7.7.2).
    pub(crate) fn wants_call(&self) -> bool {
        self.told <= self.event && self.event < self.total
    }

    /// Returns the same as [`wants_call`](Self::wants_call), and notes the question. `None`: there is nothing new.
    pub(crate) fn call_if_wanted(&mut self) -> Option<bool> {
        let wanted = self.wants_call();
        let told = std::mem::replace(&mut self.told, self.total);
        (told < self.total).then_some(wanted)
    }
}

/// Longest buffer that a driver offers for long frames (Linux: a page).
const BUFFER_BYTES_MAX: u32 = 4_096;
/// Weight of a frame in the driver's usual length (a shift; Linux: `RECEIVE_AVG_WEIGHT`, 1/64).
const USUAL_WEIGHT: u32 = 6;

/// A receive ring. Each buffer is free, holds a part of a frame, or is spent: taken by the driver
/// and not offered again.
#[derive(Debug)]
pub(crate) struct RxRing {
    size: u32,
    /// Length of the shortest buffer (bytes).
    buffer_bytes: u32,
    /// Usual frame length (bytes), times 2^[`USUAL_WEIGHT`]: the driver offers buffers of this
    /// length.
    usual: u32,
    free: u32,
    /// Published frames.
    visible: VecDeque<Placed>,
    /// Complete frames that are not published yet.
    withheld: VecDeque<Placed>,
    pub(crate) used: Used,
    /// Used elements that the driver has taken.
    seen: u64,
    /// weir wants a kick at the next buffer.
    pub(crate) kick_wanted: bool,
}

/// A frame, and the number of its buffers.
#[derive(Debug)]
struct Placed {
    frame: Frame,
    buffers: u32,
}

impl RxRing {
    pub(crate) fn new(size: u16, buffer_bytes: u32) -> Self {
        let size = u32::from(size);
        Self {
            size,
            buffer_bytes: buffer_bytes.max(1),
            usual: 0,
            free: size,
            visible: VecDeque::new(),
            withheld: VecDeque::new(),
            used: Used::default(),
            seen: 0,
            kick_wanted: false,
        }
    }

    /// Returns the number of buffers that a frame takes, with its virtio header.
    pub(crate) fn buffers(&self, frame: &Frame) -> u32 {
        const HEADER_BYTES: u32 = 12;
        let usual = HEADER_BYTES + (self.usual >> USUAL_WEIGHT);
        (frame.bytes + HEADER_BYTES).div_ceil(usual.min(BUFFER_BYTES_MAX).max(self.buffer_bytes))
    }

    pub(crate) fn size(&self) -> u32 {
        self.size
    }

    pub(crate) fn free(&self) -> u32 {
        self.free
    }

    /// Puts a frame into free buffers, invisibly. Returns their number; `None` if there are too
    /// few.
    pub(crate) fn place(&mut self, frame: Frame) -> Option<u32> {
        let buffers = self.buffers(&frame);
        self.free = self.free.checked_sub(buffers)?;
        self.withheld.push_back(Placed { frame, buffers });
        Some(buffers)
    }

    /// Shows the driver all frames.
    pub(crate) fn publish(&mut self) {
        self.used.publish(self.withheld.iter().map(|placed| placed.buffers).sum());
        self.visible.append(&mut self.withheld);
    }

    /// Returns the driver's next frame, and leaves it in the ring.
    pub(crate) fn first(&self) -> Option<&Frame> {
        self.visible.front().map(|placed| &placed.frame)
    }

    pub(crate) fn take(&mut self) -> Option<Frame> {
        let Placed { frame, buffers } = self.visible.pop_front()?;
        self.seen += u64::from(buffers);
        self.usual = match self.usual {
            0 => frame.bytes << USUAL_WEIGHT,
            usual => usual - (usual >> USUAL_WEIGHT) + frame.bytes,
        };
        Some(frame)
    }

    /// Requests a call for the next frame. Returns whether a frame is there already.
    pub(crate) fn arm(&mut self) -> bool {
        self.used.arm(self.seen, 0);
        !self.visible.is_empty()
    }

    /// Offers spent buffers again, if there are more than `keep`. Returns whether weir wants a kick
    /// for them.
    pub(crate) fn refill(&mut self, keep: u32) -> bool {
        let held: u32 = self.placed().map(|placed| placed.buffers).sum();
        let spent = self.size - self.free - held;
        if spent <= keep {
            return false;
        }
        self.free += spent;
        std::mem::take(&mut self.kick_wanted)
    }

    /// Returns the number of frames that the driver has not taken.
    pub(crate) fn len(&self) -> u64 {
        (self.visible.len() + self.withheld.len()) as u64
    }

    fn placed(&self) -> impl Iterator<Item = &Placed> {
        self.visible.iter().chain(&self.withheld)
    }

    pub(crate) fn frames(&self) -> impl Iterator<Item = &Frame> {
        self.placed().map(|placed| &placed.frame)
    }
}

/// A transmit ring, one slot for each frame (`VIRTIO_RING_F_INDIRECT_DESC`).
#[derive(Debug)]
pub(crate) struct TxRing {
    size: u32,
    available: VecDeque<Frame>,
    /// Frames that weir has taken and not completed.
    taken: u32,
    pub(crate) used: Used,
    /// Used elements whose slots the driver has taken back.
    reclaimed: u64,
    /// weir wants a kick at the next frame.
    pub(crate) kick_wanted: bool,
}

impl TxRing {
    pub(crate) fn new(size: u16) -> Self {
        Self {
            size: size.into(),
            available: VecDeque::new(),
            taken: 0,
            used: Used::default(),
            reclaimed: 0,
            kick_wanted: true,
        }
    }

    pub(crate) fn size(&self) -> u32 {
        self.size
    }

    /// Returns the number of frames that weir has not taken.
    pub(crate) fn available(&self) -> u32 {
        self.available.len() as u32 // no more than `size`
    }

    pub(crate) fn has_more(&self) -> bool {
        !self.available.is_empty()
    }

    /// Returns whether weir has completed every offered frame.
    pub(crate) fn is_done(&self) -> bool {
        self.available.is_empty() && self.taken == 0
    }

    /// Returns the number of slots that the driver has not taken back.
    fn outstanding(&self) -> u64 {
        u64::from(self.available()) + u64::from(self.taken) + (self.used.total - self.reclaimed)
    }

    pub(crate) fn has_room(&self) -> bool {
        self.outstanding() < u64::from(self.size)
    }

    /// Offers a frame. Returns whether weir wants a kick for it.
    pub(crate) fn offer(&mut self, frame: Frame) -> bool {
        self.available.push_back(frame);
        std::mem::take(&mut self.kick_wanted)
    }

    pub(crate) fn take(&mut self) -> Option<Frame> {
        let frame = self.available.pop_front()?;
        self.taken += 1;
        Some(frame)
    }

    /// Completes `frames` of the taken frames.
    pub(crate) fn complete(&mut self, frames: u32) {
        self.taken -= frames;
        self.used.publish(frames);
    }

    /// Takes back completed slots, and requests a call at the next completion.
    pub(crate) fn reclaim(&mut self) {
        self.reclaimed = self.used.total;
        self.used.arm(self.reclaimed, 0);
    }

    /// Takes back completed slots. Requests a call only if there is still no room.
    pub(crate) fn reclaim_unless_full(&mut self) {
        self.reclaim_delayed();
        if self.has_room() {
            self.used.disarm();
        }
    }

    /// Takes back completed slots, and requests a call after three quarters of the outstanding ones
    /// (Linux: `virtqueue_enable_cb_delayed`).
    pub(crate) fn reclaim_delayed(&mut self) {
        self.reclaimed = self.used.total;
        self.used.arm(self.reclaimed, self.outstanding() * 3 / 4);
    }

    pub(crate) fn frames(&self) -> impl Iterator<Item = &Frame> {
        self.available.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spec_2_7_7_2_a_call_is_wanted_once_when_the_event_is_passed() {
        let mut used = Used::default();
        used.publish(1);
        assert_eq!(used.call_if_wanted(), Some(true));
        used.publish(1);
        assert_eq!((used.wants_call(), used.call_if_wanted()), (false, Some(false)), "not armed");
        assert_eq!(used.call_if_wanted(), None, "nothing new");
        used.arm(2, 2);
        used.publish(2);
        assert_eq!(used.call_if_wanted(), Some(false), "after two others");
        used.publish(1);
        assert_eq!(used.call_if_wanted(), Some(true));
    }

    #[test]
    fn a_receive_ring_runs_out_of_buffers_until_it_is_refilled() {
        let mut ring = RxRing::new(4, 1_536);
        let big = Frame { bytes: 3_000, ..Frame::default() };
        assert_eq!((ring.place(big), ring.place(big)), (Some(2), Some(2)));
        assert_eq!(ring.place(Frame::default()), None);
        assert!(ring.first().is_none(), "withheld");
        ring.publish();
        assert_eq!(ring.used.call_if_wanted(), Some(true));
        ring.kick_wanted = true;
        assert!(ring.take().is_some());
        assert!(!ring.refill(2), "not worth it");
        assert!(ring.arm(), "one is there");
        assert!(ring.take().is_some());
        assert!(ring.refill(2), "weir waits for buffers");
        assert!(!ring.arm());
        assert_eq!(ring.place(Frame::default()), Some(1));
    }

    #[test]
    fn buffers_grow_up_to_a_page_where_frames_are_long() {
        let mut ring = RxRing::new(256, 1_536);
        let mut receive = |bytes| {
            let buffers = ring.place(Frame { bytes, ..Frame::default() });
            ring.publish();
            ring.take();
            ring.refill(0);
            buffers
        };
        assert_eq!((receive(65_000), receive(65_000)), (Some(43), Some(16)));
        (0..1_000).for_each(|_| assert_eq!(receive(64), Some(1)));
        assert_eq!(receive(65_000), Some(43), "and shrink again");
    }

    #[test]
    fn a_transmit_ring_is_full_until_its_driver_reclaims() {
        let mut ring = TxRing::new(2);
        assert!(ring.offer(Frame::default()), "the first is kicked for");
        assert!(!ring.offer(Frame::default()));
        assert!(!ring.has_room());
        assert!(ring.take().is_some() && ring.take().is_some() && ring.take().is_none());
        ring.complete(1);
        assert!(!ring.has_room(), "completed, and not reclaimed");
        ring.reclaim_delayed();
        assert!(ring.has_room());
        ring.complete(1);
        assert_eq!(ring.used.call_if_wanted(), Some(true));
    }

    #[test]
    fn a_driver_that_looks_itself_wants_calls_only_while_its_ring_is_full() {
        let mut ring = TxRing::new(2);
        for full in [false, true, false] {
            ring.reclaim_unless_full();
            assert!(ring.has_room());
            ring.offer(Frame::default());
            if full {
                ring.offer(Frame::default());
                ring.reclaim_unless_full();
            }
            while ring.take().is_some() {
                ring.complete(1);
            }
            assert_eq!(ring.used.call_if_wanted(), Some(full));
        }
    }
}
