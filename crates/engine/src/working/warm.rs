//! Queues that had work recently and have none now. Their kicks are suppressed, so they must be polled.

use crate::frames::queue_ref::PerQueue;
use crate::frames::queue_ref::QueueRef;

/// The warm queues of one worker. A kick removes a queue by a mark, without a search; its entry in the list is removed
/// at the next poll.
#[derive(Debug, Default)]
pub(crate) struct Warm {
    listed: Vec<QueueRef>,
    of: PerQueue<Entry>,
    /// The number of listed queues that are warm.
    count: usize,
}

#[derive(Debug, Default)]
struct Entry {
    /// The time since which it has had no work (ns), if it is warm.
    since_ns: Option<u64>,
    listed: bool,
}

impl Warm {
    /// True if no queue must be polled.
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// True if `queue` is warm.
    pub(crate) fn contains(&self, queue: QueueRef) -> bool {
        self.of.get(queue).is_some_and(|entry| entry.since_ns.is_some())
    }

    /// Adds a queue that has run out of work at `since_ns`.
    #[inline]
    pub(crate) fn insert(&mut self, queue: QueueRef, since_ns: u64) {
        let entry = self.of.at(queue);
        if entry.since_ns.replace(since_ns).is_none() {
            self.count += 1;
        }
        if !std::mem::replace(&mut entry.listed, true) {
            self.listed.push(queue);
        }
    }

    /// Removes a queue that must not be polled any more.
    #[inline]
    pub(crate) fn remove(&mut self, queue: QueueRef) {
        if self.of.get(queue).is_some_and(|entry| entry.since_ns.is_some()) {
            self.of.at(queue).since_ns = None;
            self.count -= 1;
        }
    }

    /// Calls `stays` with each queue and the time since it had work; `false` removes the queue.
    #[inline]
    pub(crate) fn retain(&mut self, mut stays: impl FnMut(QueueRef, u64) -> bool) {
        let Self { listed, of, count } = self;
        listed.retain(|&queue| {
            let entry = of.at(queue);
            if let Some(since_ns) = entry.since_ns {
                if stays(queue, since_ns) {
                    return true;
                }
                entry.since_ns = None;
                *count -= 1;
            }
            entry.listed = false;
            false
        });
    }
}

#[cfg(test)]
mod tests {
    use weir_fabric::PortId;

    use super::*;
    use crate::frames::port::Side;

    fn queue(number: u16) -> QueueRef {
        QueueRef { port: PortId::new(number).unwrap(), queue: 0, side: Side::Tx }
    }

    fn seen(warm: &mut Warm) -> Vec<(QueueRef, u64)> {
        let mut seen = Vec::new();
        warm.retain(|queue, since_ns| {
            seen.push((queue, since_ns));
            true
        });
        seen
    }

    #[test]
    fn a_queue_that_was_taken_out_and_comes_back_is_looked_at_once() {
        let mut warm = Warm::default();
        warm.insert(queue(1), 10);
        warm.insert(queue(2), 20);
        warm.remove(queue(1));
        warm.remove(queue(1));
        assert!(!warm.is_empty());
        warm.insert(queue(1), 30);
        assert_eq!(seen(&mut warm), [(queue(1), 30), (queue(2), 20)]);
        warm.remove(queue(1));
        assert_eq!(seen(&mut warm), [(queue(2), 20)]);
        warm.retain(|_, _| false);
        assert!(warm.is_empty() && seen(&mut warm).is_empty());
        warm.insert(queue(2), 40);
        assert_eq!(seen(&mut warm), [(queue(2), 40)]);
    }
}
