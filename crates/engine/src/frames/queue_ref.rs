//! The name of one queue of one port.

use weir_fabric::PortId;

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
