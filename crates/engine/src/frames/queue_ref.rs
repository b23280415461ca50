//! The name of one queue of one port, and a worker's data for each queue, found without a search however many there
//! are.

use weir_fabric::PortId;
use weir_limits::QUEUE_PAIRS_MAX;

use super::port::Side;

/// A queue that an event concerns.
#[derive(Clone, Copy, Debug, Eq, Hash)]
#[cfg_attr(not(test), derive(PartialEq))]
#[cfg_attr(
    test,
    expect(clippy::derived_hash_with_manual_eq, reason = "it is the derived one that counts")
)]
pub struct QueueRef {
    /// The port.
    pub port: PortId,
    /// The port's queue pair.
    pub queue: usize,
    /// The queue's side in its pair.
    pub side: Side,
}

#[cfg(test)]
thread_local! {
    /// The number of queue comparisons by this thread: a search through a list compares with each entry.
    pub(crate) static COMPARED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

#[cfg(test)]
impl PartialEq for QueueRef {
    fn eq(&self, other: &Self) -> bool {
        COMPARED.set(COMPARED.get() + 1);
        (self.port, self.queue, self.side) == (other.port, other.queue, other.side)
    }
}

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
