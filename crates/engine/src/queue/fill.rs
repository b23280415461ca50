//! Several workers fill one receive ring: each takes chains and completes them in its turn, all copy at the same time,
//! and the guest sees the frames in the order of the turns.
//!
//! ```text
//! worker 1   | take, complete, begin |    copy ...............    | finish: nothing yet     |
//! worker 2                           | take, complete, begin | copy .. | finish              |
//! the guest sees                                                         1's and 2's, at once
//!            |--- ring's lock -------|                            |-- ring's lock -|
//! ```
//!
//! Completing only writes memory that the guest ignores until the used index (or the first used descriptor's flags)
//! covers it. So the order is fixed when chains are taken, and only publishing is postponed.

use std::collections::VecDeque;

/// Chains that one worker has completed but not yet published: their copies are not done, or earlier batches are not.
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

/// The order of publishing batches. It belongs to one ring, under the same lock. `T` is the caller's note on a batch.
#[derive(Debug)]
pub struct FillOrder<T> {
    /// The oldest batch: the only one if one worker fills the ring.
    first: Option<Batch<T>>,
    /// The batches behind the first one, oldest first; none if there is no first.
    behind: VecDeque<Batch<T>>,
    /// The free-running number of the oldest batch.
    oldest: u32,
}

impl<T> Default for FillOrder<T> {
    fn default() -> Self {
        Self { first: None, behind: VecDeque::new(), oldest: 0 }
    }
}

impl<T> FillOrder<T> {
    /// True if no worker is copying.
    pub fn is_idle(&self) -> bool {
        self.first.is_none()
    }

    fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.behind.len()
    }

    /// True if the batch with this place is not published, and its ring has not stopped.
    pub fn has(&self, place: &Place) -> bool {
        (place.0.wrapping_sub(self.oldest) as usize) < self.len()
    }

    /// Begins a batch of a worker that has just completed the last `chains` chains and is about to copy.
    pub fn begin(&mut self, chains: u16, note: T) -> Place {
        let place = self.oldest.wrapping_add(self.len() as u32); // at most one per worker
        let batch = Batch { chains, note, copied: false };
        match self.first {
            None => self.first = Some(batch),
            Some(_) => self.behind.push_back(batch),
        }
        Place(place)
    }

    /// Ends a copy. Passes the batches to publish, oldest first, to `published`, and returns their chains, for
    /// `publish_first`.
    pub fn finish(&mut self, place: Place, mut published: impl FnMut(T)) -> u16 {
        let nth = place.0.wrapping_sub(self.oldest) as usize;
        if nth == 0 && self.behind.is_empty() {
            let Some(only) = self.first.take() else { return 0 };
            self.oldest = self.oldest.wrapping_add(1);
            published(only.note);
            return only.chains;
        }
        let batch = match nth.checked_sub(1) {
            None => self.first.as_mut(),
            Some(nth) => self.behind.get_mut(nth),
        };
        if let Some(batch) = batch {
            batch.copied = true;
        }
        let mut chains = 0;
        while let Some(batch) = self.first.take_if(|batch| batch.copied) {
            self.first = self.behind.pop_front();
            self.oldest = self.oldest.wrapping_add(1);
            chains += batch.chains;
            published(batch.note);
        }
        chains
    }

    /// Forgets all batches after the ring has stopped.
    pub fn clear(&mut self) {
        self.oldest = self.oldest.wrapping_add(self.len() as u32);
        self.first = None;
        self.behind.clear();
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

    /// Raj & Schwan 2006 §6.2.2: eight contexts contend for the order of one interface. With four
    /// interfaces, only two contend for each.
    #[test]
    fn contexts_contend_for_order_the_less_the_more_interfaces_they_fill() {
        let contend = |interfaces: usize| {
            let mut orders: Vec<_> = (0..interfaces).map(|_| FillOrder::default()).collect();
            let places: Vec<_> = (0..8_u32)
                .map(|context| orders[context as usize % interfaces].begin(1, context))
                .collect();
            let contexts = orders[0].len();
            // The worker that began last finishes its copy first.
            let mut waited = 0;
            for (context, place) in places.into_iter().enumerate().rev() {
                let published = orders[context % interfaces].finish(place, drop);
                waited += usize::from(published == 0);
            }
            assert!(orders.iter().all(FillOrder::is_idle));
            (contexts, waited)
        };
        assert_eq!([1, 2, 4, 8].map(contend), [(8, 7), (4, 6), (2, 4), (1, 0)]);
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
