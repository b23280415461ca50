//! A worker's data for each queue, found without a search however many there are.

use weir_fabric::PortId;
use weir_limits::QUEUE_PAIRS_MAX;

use crate::frames::queue_ref::QueueRef;

/// A `T` for each pair of queues, by number: it grows when a port first occurs, and never shrinks.
#[derive(Debug)]
pub(crate) struct PerQueue<T>(Vec<T>);

impl<T> Default for PerQueue<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

/// The index of a pair of queues in a table.
#[inline]
pub(crate) fn place(port: PortId, queue: usize) -> usize {
    port.index() * QUEUE_PAIRS_MAX + queue % QUEUE_PAIRS_MAX
}

impl<T: Default> PerQueue<T> {
    /// The entry of `queue`; `None` if neither it nor a later queue was ever used.
    #[inline]
    pub(crate) fn get(&self, queue: QueueRef) -> Option<&T> {
        self.0.get(place(queue.port, queue.queue))
    }

    /// The entry of `queue`, which is created if it does not exist.
    #[inline]
    pub(crate) fn at(&mut self, queue: QueueRef) -> &mut T {
        let place = place(queue.port, queue.queue);
        if place >= self.0.len() {
            self.grow(place);
        }
        &mut self.0[place]
    }

    #[cold]
    fn grow(&mut self, place: usize) {
        self.0.resize_with(place + 1, T::default);
    }
}
