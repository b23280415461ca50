//! The notes on followed frames, which ports' `Tapped` make.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::SyncSender;

use weir_fabric::PortId;
use weir_filter::Program;
use weir_limits::FOLLOWED_STEPS_MAX;

use super::tap::{matches, on_port};
use crate::frames::burst::Burst;
use crate::frames::drop_reason::DropReason;
use crate::frames::stats::PortCounters;
use crate::switching::filter::Window;
use crate::threads::clock;

/// A frame's path through the switch. Times are ns of [`clock`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    /// The sender's transmit queue.
    pub queue: usize,
    /// The frame's front, with its tag.
    pub front: Vec<u8>,
    /// The frame's length, with its tag.
    pub len: u32,
    /// The time at which the worker began to read the queue.
    pub begun_ns: u64,
    /// The time at which the frame's burst had been read and checked.
    pub taken_ns: u64,
    /// The number of frames in this burst.
    pub burst: usize,
    /// The part of each port in the frame's path, at most [`FOLLOWED_STEPS_MAX`] parts.
    pub parts: Vec<Part>,
    /// The number of further parts.
    pub more: u32,
    /// The time at which the sender had the frame's buffer back. For a frame that waits, it is the time at which the
    /// sender had the other frames' buffers back.
    pub returned_ns: u64,
}

/// The part of one port in a frame's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The port.
    pub port: PortId,
    /// The time at which the port's action began.
    pub at_ns: u64,
    /// The port's action.
    pub did: Did,
}

/// An action of a port, see [`Part`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Did {
    /// The frame was delivered.
    Delivered {
        /// The receive queue.
        queue: usize,
        /// The time at which the burst's frames for this queue were copied and the guest was notified.
        done_ns: u64,
        /// The notification of the guest.
        call: Call,
    },
    /// The frame was dropped, and this port counts the drop.
    Dropped(DropReason),
    /// The frame waits in the sender's memory for this port's buffers.
    Waits,
}

/// The notification of a guest about delivered frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// A call was made.
    Made,
    /// The guest had suppressed calls: it was polling anyway.
    Unwanted,
    /// The call is held until this time.
    Held(u64),
    /// No call now: one is due already, or the port has no calls.
    None,
}

/// The frames to be followed, and the number of frames that are still to be picked.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) sender: PortId,
    pub(crate) filter: Option<Arc<Program>>,
    pub(crate) left: AtomicU32,
    pub(crate) ways: SyncSender<Way>,
}

/// A port's part in following frames.
#[derive(Clone, Debug)]
pub(crate) struct Followed {
    live: Arc<Live>,
    port: PortId,
    counters: Arc<PortCounters>,
}

thread_local! {
    /// The followed frames of the burst under way, each with its index in the burst.
    static UNDER_WAY: RefCell<Vec<(u16, Way)>> = const { RefCell::new(Vec::new()) };
}

impl Followed {
    pub(crate) fn new(live: &Arc<Live>, port: PortId, counters: &Arc<PortCounters>) -> Self {
        Self { live: Arc::clone(live), port, counters: Arc::clone(counters) }
    }

    /// Begins before a queue of the sender is read; `None` for any other port, and when no more frames are to be
    /// followed.
    pub(crate) fn begin(&self) -> Option<OnTheWay<'_>> {
        let is_sender = self.port == self.live.sender;
        (is_sender && self.live.left.load(Ordering::Relaxed) > 0).then(|| {
            UNDER_WAY.with_borrow_mut(Vec::clear);
            OnTheWay { live: &self.live, begun_ns: clock::now_ns(), _thread: PhantomData }
        })
    }

    /// Calls of a receive queue so far: made and suppressed.
    pub(crate) fn calls(&self, queue: usize) -> [u64; 2] {
        let counters = self.counters.rx.get(queue);
        counters.map_or([0; 2], |queue| [queue.calls.get(), queue.calls_suppressed.get()])
    }

    /// Notes that `frames` (bit i: frame i of the burst) were delivered from `at_ns` until now.
    pub(crate) fn delivered(
        &self,
        queue: usize,
        frames: u64,
        at_ns: u64,
        before: [u64; 2],
        hold_until: Option<u64>,
    ) {
        self.note(frames, at_ns, || {
            let [made, unwanted] = self.calls(queue);
            let call = match hold_until {
                Some(until_ns) => Call::Held(until_ns),
                None if made > before[0] => Call::Made,
                None if unwanted > before[1] => Call::Unwanted,
                None => Call::None,
            };
            Did::Delivered { queue, done_ns: clock::now_ns(), call }
        });
    }

    /// Notes that `frames` were dropped.
    pub(crate) fn dropped(&self, frames: u64, reason: DropReason) {
        self.note(frames, clock::now_ns(), || Did::Dropped(reason));
    }

    fn note(&self, frames: u64, at_ns: u64, did: impl FnOnce() -> Did) {
        UNDER_WAY.with_borrow_mut(|ways| {
            let mut ways =
                ways.iter_mut().filter(|(number, _)| frames >> number & 1 != 0).peekable();
            if ways.peek().is_some() {
                let part = Part { port: self.port, at_ns, did: did() };
                ways.for_each(|(_, way)| way.note(part));
            }
        });
    }
}

impl Way {
    fn note(&mut self, part: Part) {
        match self.parts.len() < FOLLOWED_STEPS_MAX {
            true => self.parts.push(part),
            false => self.more += 1,
        }
    }
}

/// A burst of the sender, until the sender has its buffers back. If this value is dropped early, nothing is reported
/// about the burst.
pub(crate) struct OnTheWay<'l> {
    live: &'l Live,
    begun_ns: u64,
    /// The marker keeps the value on this thread, which holds the notes.
    _thread: PhantomData<*const ()>,
}

impl OnTheWay<'_> {
    /// Picks frames of the burst to follow.
    pub(crate) fn pick(&self, queue: usize, burst: &Burst<'_>) {
        let taken_ns = clock::now_ns();
        let mut window = Window::default();
        UNDER_WAY.with_borrow_mut(|ways| {
            for (number, frame) in (0..).zip(burst.frames()) {
                let (head, len) = on_port(frame, frame.tag);
                let front = head.as_slice();
                if !matches(self.live.filter.as_deref(), front, len, &mut window, number, burst) {
                    continue;
                }
                let one_less = |left: u32| left.checked_sub(1);
                let relaxed = Ordering::Relaxed;
                if self.live.left.fetch_update(relaxed, relaxed, one_less).is_err() {
                    return;
                }
                let (front, parts) = (front.to_vec(), Vec::new());
                let (begun_ns, burst) = (self.begun_ns, burst.frames().len());
                let (more, returned_ns) = Default::default();
                let way =
                    Way { queue, front, len, begun_ns, taken_ns, burst, parts, more, returned_ns };
                ways.push((number, way));
            }
        });
    }

    /// Notes which frames wait, after the rest of the burst is done.
    pub(crate) fn leave(&self, burst: &Burst<'_>) {
        let at_ns = clock::now_ns();
        UNDER_WAY.with_borrow_mut(|ways| {
            for (number, way) in ways {
                for parked in burst.room.parked.iter().filter(|parked| parked.frame == *number) {
                    way.note(Part { port: parked.port, at_ns, did: Did::Waits });
                }
            }
        });
    }

    /// Reports the frames: the sender has its buffers back.
    pub(crate) fn end(self) {
        let returned_ns = clock::now_ns();
        for (_, way) in UNDER_WAY.take() {
            // The channel has room for all frames; the send fails only if the reader has disconnected.
            let _ = self.live.ways.try_send(Way { returned_ns, ..way });
        }
    }
}

impl Drop for OnTheWay<'_> {
    fn drop(&mut self) {
        UNDER_WAY.with_borrow_mut(Vec::clear);
    }
}
