//! Frames that wait in their sender's queue for receivers without buffers.
//!
//! Waiting frames keep their places: a retried frame whose receiver is still full waits where it was, so frames for one
//! receiver stay in order.

use std::collections::VecDeque;

use weir_fabric::PortId;
use weir_limits::{BURST_MAX, PARKED_NS_MAX};

use crate::frames::burst::Burst;
use crate::frames::port::Take;
use crate::threads::clock;

#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// The queue's name for the frame.
    token: u64,
    port: PortId,
    arrived_ns: u64,
    /// The time at which the frame first found its receiver full (ns). The frame can have arrived long before, if its
    /// worker was late.
    full_ns: u64,
    /// True if the burst under way retries the frame.
    tried: bool,
}

/// The waiting frames of a queue, in the order in which they were taken.
#[derive(Debug, Default)]
pub(super) struct ParkedFrames {
    frames: VecDeque<Waiting>,
    /// The index at which the next retry for all receivers begins: no frame before it could be sent.
    try_from: usize,
    /// The number of frames that the burst under way retries.
    trying: usize,
}

/// The decision about a frame that waited.
#[derive(Clone, Copy, Debug)]
pub(super) enum Again {
    /// The frame must be retried, as a frame that arrived at this time (ns).
    Try(u64),
    /// The frame has waited too long.
    Drop,
}

impl ParkedFrames {
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.frames.len()
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// The time at which the first waiting frame has waited long enough (ns).
    #[inline]
    pub(super) fn until_ns(&self) -> Option<u64> {
        self.frames.front().map(|first| first.full_ns.saturating_add(PARKED_NS_MAX))
    }

    /// Passes at most a burst of the frames that wait for `receiver`, or for any receiver, to `each`, oldest first.
    /// Frames that have waited too long at `now_ns` are passed too, and then forgotten. Returns the number of all these
    /// frames.
    ///
    /// # Errors
    /// Errors of `each`, after which it is not called again.
    pub(super) fn try_again<E>(
        &mut self,
        receiver: Option<PortId>,
        now_ns: u64,
        mut each: impl FnMut(u64, Again) -> Result<(), E>,
    ) -> Result<usize, E> {
        let from = match receiver {
            None => self.try_from.min(self.frames.len()),
            Some(_) => 0,
        };
        (self.try_from, self.trying) = (from, 0);
        let (mut nth, mut dropped, mut result) = (0, 0, Ok(()));
        self.frames.retain_mut(|frame| {
            nth += 1;
            let is_meant = nth > from && receiver.is_none_or(|receiver| receiver == frame.port);
            if !is_meant || self.trying == BURST_MAX || result.is_err() {
                return true;
            }
            if frame.full_ns.saturating_add(PARKED_NS_MAX) <= now_ns {
                dropped += 1;
                result = each(frame.token, Again::Drop);
                return false;
            }
            self.trying += 1;
            frame.tried = true;
            result = each(frame.token, Again::Try(frame.arrived_ns));
            true
        });
        result.map(|()| self.trying + dropped)
    }

    /// Notes in the burst which receivers are blocked, and how many of its frames may wait, at most `max` in all. Only
    /// one worker has taken a burst of this kind (`what`).
    #[inline(always)]
    pub(super) fn tell(&self, what: Take, max: usize, burst: &mut Burst<'_>) {
        burst.park_room = max;
        if !self.frames.is_empty() {
            self.tell_of_some(what, burst);
        }
    }

    #[cold]
    fn tell_of_some(&self, what: Take, burst: &mut Burst<'_>) {
        let before = match what {
            Take::New => self.frames.len(),
            // Frames behind the retried ones are newer.
            Take::Parked(None) => self.try_from,
            // All older frames for this receiver are among the retried ones.
            Take::Parked(Some(_)) => 0,
        };
        burst.room.blocked.extend(self.frames.iter().take(before).map(|frame| frame.port));
        burst.room.blocked.dedup();
        let keep = self.frames.len() - self.trying;
        burst.park_room = burst.park_room.saturating_sub(keep);
    }

    /// Settles a burst. Its parked frames wait from now on; its retried frames that were not parked again no longer
    /// wait. Returns true if frames must be retried at once. `in_order` means that bursts come here in the order in
    /// which they were taken; otherwise frames are sorted by their ascending names.
    #[inline(always)]
    pub(super) fn settle(&mut self, what: Take, in_order: bool, burst: &Burst<'_>) -> bool {
        match what {
            Take::New => {
                if !burst.room.parked.is_empty() {
                    self.add(in_order, burst);
                }
                false
            }
            Take::Parked(receiver) => self.put_back(receiver, burst),
        }
    }

    #[cold]
    fn add(&mut self, in_order: bool, burst: &Burst<'_>) {
        let full_ns = clock::now_ns();
        for (frame, port) in burst.frames().iter().zip(burst.waits_for()) {
            let Some(port) = port else { continue };
            let (token, arrived_ns) = (frame.token, frame.arrived_ns);
            let place = match in_order {
                true => self.frames.len(),
                false => self.frames.partition_point(|other| other.token < token),
            };
            self.frames.insert(place, Waiting { token, port, arrived_ns, full_ns, tried: false });
        }
    }

    #[cold]
    fn put_back(&mut self, receiver: Option<PortId>, burst: &Burst<'_>) -> bool {
        let tried = std::mem::take(&mut self.trying);
        let behind = self.frames.len() - tried > self.try_from;
        let none_went = burst.room.parked.len() == tried;
        let mut frames = burst.frames().iter().zip(burst.waits_for()).peekable();
        self.frames.retain_mut(|waiting| {
            if !std::mem::take(&mut waiting.tried) {
                return true;
            }
            // A chain that was refused has no frame; the other chains have their frames in the same order.
            let frame = frames.next_if(|(frame, _)| frame.token == waiting.token);
            let Some((_, Some(port))) = frame else { return false };
            waiting.port = port;
            true
        });
        if receiver.is_some() {
            self.try_from = 0;
            // If no frame of a whole burst was sent, further frames would not be sent either.
            return tried == BURST_MAX && !none_went;
        }
        // Continues from the front if some frames were sent. Otherwise, continues behind the retried frames, because
        // the frames there may wait for another receiver.
        let from = std::mem::take(&mut self.try_from);
        if none_went && behind {
            self.try_from = from + tried;
        }
        behind || (from > 0 && !none_went && !self.frames.is_empty())
    }

    /// Forgets all frames, and passes their names to `each`.
    pub(super) fn abandon(&mut self, each: impl FnMut(u64)) {
        (self.try_from, self.trying) = (0, 0);
        self.frames.drain(..).map(|frame| frame.token).for_each(each);
    }
}
