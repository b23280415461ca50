//! Virtual time and its events.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Events by time (ns); events of one time in the order in which they were added.
///
/// Events cannot be cancelled. A caller that needs to cancel numbers its events and ignores
/// outdated ones.
#[derive(Debug)]
pub struct Calendar<E> {
    now_ns: u64,
    made: u64,
    passed: u64,
    heap: BinaryHeap<Entry<E>>,
}

#[derive(Debug)]
struct Entry<E> {
    at_ns: u64,
    number: u64,
    event: E,
}

impl<E> Entry<E> {
    fn key(&self) -> (u64, u64) {
        (self.at_ns, self.number)
    }
}

/// Reverses the order, since [`BinaryHeap`] returns the greatest first.
impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        other.key().cmp(&self.key())
    }
}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<E> Eq for Entry<E> {}

impl<E> Default for Calendar<E> {
    fn default() -> Self {
        Self { now_ns: 0, made: 0, passed: 0, heap: BinaryHeap::new() }
    }
}

impl<E> Calendar<E> {
    /// Returns the time of the present event (ns).
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Returns the number of events so far.
    pub fn passed(&self) -> u64 {
        self.passed
    }

    /// Schedules `event` at `at_ns`, or now if that is past.
    pub fn at(&mut self, at_ns: u64, event: impl Into<E>) {
        self.made += 1;
        let at_ns = at_ns.max(self.now_ns);
        self.heap.push(Entry { at_ns, number: self.made, event: event.into() });
    }

    /// Schedules `event` in `ns`.
    pub fn after(&mut self, ns: u64, event: impl Into<E>) {
        self.at(self.now_ns.saturating_add(ns), event);
    }

    /// Lets the clock jump forward: events that were due in these `ns` happen now, late, in their
    /// order.
    pub fn jump(&mut self, ns: u64) {
        self.now_ns = self.now_ns.saturating_add(ns);
    }

    /// Continues to the next event up to `until_ns`. Returns `None` if there is none; the time is
    /// then `until_ns`.
    pub fn next(&mut self, until_ns: u64) -> Option<E> {
        if self.heap.peek().is_none_or(|entry| entry.at_ns > until_ns) {
            self.now_ns = self.now_ns.max(until_ns);
            return None;
        }
        let entry = self.heap.pop()?;
        self.now_ns = self.now_ns.max(entry.at_ns);
        self.passed += 1;
        Some(entry.event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_then_in_the_order_in_which_they_were_made() {
        let mut calendar = Calendar::<u32>::default();
        for (at_ns, event) in [(5, 1u32), (3, 2), (5, 3), (3, 4), (0, 5)] {
            calendar.at(at_ns, event);
        }
        let order: Vec<u32> = std::iter::from_fn(|| calendar.next(4)).collect();
        assert_eq!((order, calendar.now_ns()), (vec![5, 2, 4], 4));
        // An event in the past happens now, after the events of this time.
        calendar.at(1, 6u32);
        let order: Vec<u32> = std::iter::from_fn(|| calendar.next(10)).collect();
        assert_eq!((order, calendar.now_ns(), calendar.passed()), (vec![6, 1, 3], 10, 6));
    }

    #[test]
    fn what_a_jump_of_the_clock_skips_happens_late_and_time_never_goes_back() {
        let mut calendar = Calendar::<u32>::default();
        for (at_ns, event) in [(5, 1u32), (3, 2), (20, 3)] {
            calendar.at(at_ns, event);
        }
        calendar.jump(10);
        let mut next = || calendar.next(30).map(|event| (event, calendar.now_ns()));
        assert_eq!([next(), next(), next()], [Some((2, 10)), Some((1, 10)), Some((3, 20))]);
    }
}
