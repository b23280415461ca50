//! Arrivals of a flow's frames.

use std::collections::BTreeSet;

/// The numbers that have arrived, from 0. The size is bounded by the frames in flight.
#[derive(Debug, Default)]
pub struct Ledger {
    /// All numbers below have arrived or are written off.
    floor: u64,
    /// Larger numbers that have arrived.
    beyond: BTreeSet<u64>,
    written_off: u64,
    repeated: u64,
}

impl Ledger {
    /// Records an arrival. Returns true if it is the number's first.
    pub fn enter(&mut self, number: u64) -> bool {
        if number < self.floor || !self.beyond.insert(number) {
            self.repeated += 1;
            return false;
        }
        while self.beyond.remove(&self.floor) {
            self.floor += 1;
        }
        true
    }

    /// Returns the number of frames that have arrived.
    pub fn come(&self) -> u64 {
        self.floor - self.written_off + self.beyond.len() as u64
    }

    /// Returns the number of repeated frames.
    pub fn repeated(&self) -> u64 {
        self.repeated
    }

    /// Writes off the missing numbers below `end`. Returns their count.
    pub fn write_off(&mut self, end: u64) -> u64 {
        let missing = end.saturating_sub(self.floor) - self.beyond.range(..end).count() as u64;
        self.written_off += missing;
        self.floor = self.floor.max(end);
        self.beyond = self.beyond.split_off(&end);
        missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_counts_once_in_whatever_order() {
        let mut ledger = Ledger::default();
        assert!([2, 0, 1, 5].into_iter().all(|number| ledger.enter(number)));
        assert!(!ledger.enter(1) && !ledger.enter(5));
        assert_eq!((ledger.come(), ledger.repeated()), (4, 2));
    }

    #[test]
    fn what_does_not_come_is_written_off_once() {
        let mut ledger = Ledger::default();
        [0, 1, 3, 6].into_iter().for_each(|number| assert!(ledger.enter(number)));
        assert_eq!(ledger.write_off(6), 3);
        assert_eq!((ledger.come(), ledger.write_off(6)), (4, 0));
        assert_eq!(ledger.write_off(7), 0);
        // The late arrival of a frame that is written off counts as a repetition.
        assert!(!ledger.enter(4));
        assert_eq!((ledger.come(), ledger.repeated()), (4, 1));
    }
}
