//! Several workers fill one receive ring: each in its turn takes chains and completes them, all copy at the same
//! time, and the guest sees the frames in the order of the turns.
//!
//! ```text
//! worker 1   | take, complete, begin |    copy ...............    | finish: nothing yet     |
//! worker 2                           | take, complete, begin | copy .. | finish              |
//! the guest sees                                                         1's and 2's, at once
//!            |--- ring's lock -------|                            |-- ring's lock -|
//! ```
//!
//! Completing writes only what the guest ignores until the used index (or the first used descriptor's flags) covers
//! it. So chains fix the order when they are taken, and only publishing is postponed.

use std::collections::VecDeque;

/// What one worker has completed and not finished copying, or finished before its turn.
#[derive(Debug)]
struct Batch<T> {
    chains: u16,
    note: T,
    copied: bool,
}

/// A worker's place in the order.
#[derive(Debug)]
#[must_use = "a batch that is never finished holds up all behind it"]
pub struct Place(u32);

/// The order of publishing batches. It belongs to one ring, under the same lock. `T` is the caller's note on a
/// batch.
#[derive(Debug)]
pub struct FillOrder<T> {
    /// Oldest first.
    batches: VecDeque<Batch<T>>,
    /// Free-running number of the oldest.
    oldest: u32,
}

impl<T> Default for FillOrder<T> {
    fn default() -> Self {
        Self { batches: VecDeque::new(), oldest: 0 }
    }
}

impl<T> FillOrder<T> {
    /// No worker is copying.
    pub fn is_idle(&self) -> bool {
        self.batches.is_empty()
    }

    /// A batch with this place is not published, and its ring has not stopped.
    pub fn has(&self, place: &Place) -> bool {
        (place.0.wrapping_sub(self.oldest) as usize) < self.batches.len()
    }

    /// A worker has completed `chains` chains, which are the last ones, and is about to copy.
    pub fn begin(&mut self, chains: u16, note: T) -> Place {
        let place = self.oldest.wrapping_add(self.batches.len() as u32); // at most one per worker
        self.batches.push_back(Batch { chains, note, copied: false });
        Place(place)
    }

    /// Ends a copy. Gives the batches to publish, oldest first, to `published`, and returns their chains, for
    /// `publish_first`.
    pub fn finish(&mut self, place: Place, mut published: impl FnMut(T)) -> u16 {
        let nth = place.0.wrapping_sub(self.oldest) as usize;
        if let Some(batch) = self.batches.get_mut(nth) {
            batch.copied = true;
        }
        let mut chains = 0;
        while self.batches.front().is_some_and(|batch| batch.copied)
            && let Some(batch) = self.batches.pop_front()
        {
            self.oldest = self.oldest.wrapping_add(1);
            chains += batch.chains;
            published(batch.note);
        }
        chains
    }

    /// The ring has stopped.
    pub fn clear(&mut self) {
        self.oldest = self.oldest.wrapping_add(self.batches.len() as u32);
        self.batches.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finish(order: &mut FillOrder<u32>, place: Place) -> (u16, Vec<u32>) {
        let mut notes = Vec::new();
        let chains = order.finish(place, |note| notes.push(note));
        (chains, notes)
    }

    #[test]
    fn batches_are_published_in_the_order_in_which_they_began() {
        let mut order = FillOrder::default();
        let [a, b, c] = [(3, 10), (1, 11), (2, 12)].map(|(chains, note)| order.begin(chains, note));
        assert_eq!(finish(&mut order, b), (0, vec![]));
        assert_eq!(finish(&mut order, a), (4, vec![10, 11]));
        assert!(!order.is_idle());
        assert_eq!(finish(&mut order, c), (2, vec![12]));
        assert!(order.is_idle());
    }

    #[test]
    fn a_batch_of_a_ring_that_stopped_publishes_nothing() {
        let mut order = FillOrder::default();
        let old = order.begin(3, 1);
        assert!(order.has(&old));
        order.clear();
        let new = order.begin(5, 2);
        assert!(!order.has(&old) && order.has(&new));
        assert_eq!(finish(&mut order, old), (0, vec![]));
        assert_eq!(finish(&mut order, new), (5, vec![2]));
    }
}
