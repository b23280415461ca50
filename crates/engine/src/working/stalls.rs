//! Transmit queues that hold frames for receivers without buffers, and these receivers.

use std::sync::Arc;

use weir_fabric::PortId;

use crate::frames::port::PerQueue;
use crate::frames::port::QueueRef;

/// Frames to be retried, or a note that is dropped between two bursts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Retry {
    /// The frames that wait for this receiver, which has buffers again.
    Receiver(PortId),
    /// All frames of this transmit queue, for any receiver: a worker that no longer serves the queue has parked some.
    Sender(QueueRef),
    /// Somebody waits until each worker has ended the burst that was under way.
    Fence(Arc<()>),
}

/// One worker's notes on queues that hold frames.
#[derive(Debug, Default)]
pub(crate) struct Stalls {
    of: PerQueue<Entry>,
    /// The number of queues that hold frames.
    count: usize,
    /// Queues that hold frames, and some that no longer do.
    listed: Vec<QueueRef>,
    /// The time before which no frame has waited long enough (ns).
    due_ns: u64,
    /// For each receiver, by number, the queues that have it in `waits_for`, in the order in which they began to wait.
    by_receiver: Vec<Vec<QueueRef>>,
}

#[derive(Debug, Default)]
struct Entry {
    /// The time at which the queue's oldest frame has waited long enough (ns), if the queue holds any frame.
    until_ns: Option<u64>,
    listed: bool,
    /// Receivers for which the queue's frames wait. Some receivers stay in the list although no frame waits for them,
    /// until they next have buffers.
    waits_for: Vec<PortId>,
}

impl Stalls {
    /// True if no queue holds frames.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The earliest time at which a frame may have waited long enough (ns).
    pub(crate) fn wake_ns(&self) -> Option<u64> {
        (self.count > 0).then_some(self.due_ns)
    }

    /// Notes the time until which the oldest frame of a queue can wait (ns), if the queue holds any frame. Returns true
    /// if it held none before.
    #[inline]
    pub(crate) fn note(&mut self, queue: QueueRef, until_ns: Option<u64>) -> bool {
        if until_ns.is_none() && self.of.get(queue).is_none_or(|entry| entry.until_ns.is_none()) {
            return true;
        }
        self.change(queue, until_ns)
    }

    #[cold]
    fn change(&mut self, queue: QueueRef, until_ns: Option<u64>) -> bool {
        let entry = self.of.at(queue);
        let before = std::mem::replace(&mut entry.until_ns, until_ns);
        self.count += usize::from(until_ns.is_some());
        self.count -= usize::from(before.is_some());
        if let Some(until_ns) = until_ns {
            self.due_ns = if self.listed.is_empty() { until_ns } else { self.due_ns.min(until_ns) };
            if !std::mem::replace(&mut entry.listed, true) {
                self.listed.push(queue);
            }
        }
        before.is_none()
    }

    pub(crate) fn waits(&mut self, queue: QueueRef, receiver: PortId) {
        let waits_for = &mut self.of.at(queue).waits_for;
        if waits_for.contains(&receiver) {
            return;
        }
        waits_for.push(receiver);
        let index = receiver.index();
        if index >= self.by_receiver.len() {
            self.by_receiver.resize_with(index + 1, Vec::new);
        }
        self.by_receiver[index].push(queue);
    }

    /// Moves the queues that wait for a receiver into `queues`. Frames that are parked for the receiver from now on
    /// must be noted again.
    pub(crate) fn take_waiting_for(&mut self, receiver: PortId, queues: &mut Vec<QueueRef>) {
        let Some(waiting) = self.by_receiver.get_mut(receiver.index()) else { return };
        for &queue in &*waiting {
            self.of.at(queue).waits_for.retain(|other| *other != receiver);
        }
        queues.append(waiting);
    }

    /// Appends the queues whose oldest frame has waited long enough at `now_ns` to `due`.
    pub(crate) fn take_due(&mut self, now_ns: u64, due: &mut Vec<QueueRef>) {
        if self.count == 0 || now_ns < self.due_ns {
            return;
        }
        let (of, mut next_ns) = (&mut self.of, u64::MAX);
        self.listed.retain(|&queue| {
            let entry = of.at(queue);
            match entry.until_ns {
                Some(until_ns) if until_ns <= now_ns => due.push(queue),
                Some(until_ns) => next_ns = next_ns.min(until_ns),
                None => entry.listed = false,
            }
            entry.listed
        });
        // The due queues are noted again after they have been tried.
        self.due_ns = next_ns;
    }

    /// Makes all queues due, because no note shows which of them have been retried.
    pub(crate) fn hurry(&mut self) {
        for &queue in &self.listed {
            if let Some(until_ns) = &mut self.of.at(queue).until_ns {
                *until_ns = 0;
            }
        }
        self.due_ns = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::port::Side;

    fn port(number: u16) -> PortId {
        PortId::new(number).unwrap()
    }

    fn queue(number: u16) -> QueueRef {
        QueueRef { port: port(number), queue: 0, side: Side::Tx }
    }

    #[test]
    fn a_queue_waits_for_a_receiver_once_until_that_has_buffers() {
        let mut stalls = Stalls::default();
        for (sender, receiver) in [(1, 7), (2, 7), (1, 7), (1, 8)] {
            stalls.waits(queue(sender), port(receiver));
        }
        let mut queues = Vec::new();
        stalls.take_waiting_for(port(9), &mut queues);
        assert!(queues.is_empty());
        stalls.take_waiting_for(port(7), &mut queues);
        assert_eq!(queues, [queue(1), queue(2)]);
        stalls.waits(queue(2), port(7));
        queues.clear();
        stalls.take_waiting_for(port(7), &mut queues);
        stalls.take_waiting_for(port(8), &mut queues);
        assert_eq!(queues, [queue(2), queue(1)]);
    }

    #[test]
    fn queues_are_due_when_their_oldest_frame_has_waited_long_enough() {
        let mut stalls = Stalls::default();
        assert!(stalls.note(queue(1), Some(100)));
        assert!(stalls.note(queue(2), Some(50)));
        assert!(!stalls.note(queue(2), Some(70)));
        assert_eq!(stalls.wake_ns(), Some(50), "never later than it is");
        let due = |stalls: &mut Stalls, now_ns| {
            let mut due = Vec::new();
            stalls.take_due(now_ns, &mut due);
            due
        };
        assert!(due(&mut stalls, 60).is_empty());
        assert_eq!(stalls.wake_ns(), Some(70));
        assert_eq!(due(&mut stalls, 70), [queue(2)]);
        assert!(!stalls.note(queue(2), None));
        assert_eq!(stalls.wake_ns(), Some(100));
        stalls.hurry();
        assert_eq!(due(&mut stalls, 1), [queue(1)]);
        stalls.note(queue(1), None);
        assert!(stalls.is_empty() && stalls.wake_ns().is_none());
        assert!(stalls.note(queue(2), Some(300)));
        assert_eq!(due(&mut stalls, 300), [queue(2)]);
    }
}
