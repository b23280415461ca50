//! Bursts of a transmit queue that several workers have under way, while the queue's lock is released. When the ring
//! stops, no new burst begins, so that those under way come to an end ([`lock_settled`]).
//!
//! [`lock_settled`]: crate::threads::lock::lock_settled

/// The bursts of a queue, behind its lock.
#[derive(Debug, Default)]
pub(crate) struct UnderWay {
    /// The number of all bursts that were taken, and of those that are settled.
    begun: u64,
    settled: u64,
    /// The number of the first burst of the ring that is in service.
    first: u64,
    closing: bool,
}

impl UnderWay {
    /// Prepares the stop of the ring: no burst begins until it [has stopped](Self::abandon).
    pub fn close(&mut self) {
        self.closing = true;
    }

    /// True if the ring must stop.
    #[inline]
    pub fn is_closing(&self) -> bool {
        self.closing
    }

    /// Begins a burst that must be settled, and returns its number.
    pub fn begin(&mut self) -> u64 {
        let number = self.begun;
        self.begun += 1;
        number
    }

    /// True if no worker has a burst under way, except one that holds the lock.
    pub fn is_settled(&self) -> bool {
        self.begun == self.settled
    }

    /// True if all bursts that were taken before this one are settled; `None` if the ring has stopped without it.
    pub fn may_settle(&self, number: u64) -> Option<bool> {
        (number >= self.first).then_some(number == self.settled)
    }

    /// Settles a burst: the next one, or any if the [order](Self::may_settle) does not matter.
    pub fn settle(&mut self) {
        self.settled += 1;
    }

    /// Called when the ring has stopped: workers with a burst are not waited for any more, and leave the ring alone.
    pub fn abandon(&mut self) {
        self.settled = self.begun;
        self.first = self.begun;
        self.closing = false;
    }
}
