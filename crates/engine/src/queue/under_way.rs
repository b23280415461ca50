//! Bursts of a transmit queue that several workers have under way, with its lock given back in between; and how its
//! ring stops nevertheless: nothing new begins, so that what is under way comes to an end ([`lock_settled`]).
//!
//! [`lock_settled`]: crate::lock::lock_settled

/// A queue's, behind its lock.
#[derive(Debug, Default)]
pub(crate) struct UnderWay {
    /// Bursts that were taken, ever, and those that are settled.
    begun: u64,
    settled: u64,
    /// The first of the ring that is in service.
    first: u64,
    closing: bool,
}

impl UnderWay {
    /// Its ring is to stop: nothing new begins until it [has](Self::abandon).
    pub fn close(&mut self) {
        self.closing = true;
    }

    /// Its ring is to stop.
    #[inline]
    pub fn is_closing(&self) -> bool {
        self.closing
    }

    /// A burst was taken, which is to be settled: its number.
    pub fn begin(&mut self) -> u64 {
        let number = self.begun;
        self.begun += 1;
        number
    }

    /// No worker has a burst under way, but for one that holds the lock.
    pub fn is_settled(&self) -> bool {
        self.begun == self.settled
    }

    /// Whether those are settled that were taken before this one; `None` when the ring has stopped without it.
    pub fn may_settle(&self, number: u64) -> Option<bool> {
        (number >= self.first).then_some(number == self.settled)
    }

    /// One is settled: the next one, or any if nobody asks [in which order](Self::may_settle).
    pub fn settle(&mut self) {
        self.settled += 1;
    }

    /// The ring has stopped: those who have a burst are not waited for any more, and leave the ring alone.
    pub fn abandon(&mut self) {
        self.settled = self.begun;
        self.first = self.begun;
        self.closing = false;
    }
}
