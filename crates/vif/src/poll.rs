//! Front-end coalescing (Dong 2011 §4.1, FVIC): the guest takes no calls for what it receives and looks
//! at the ring on a timer of its own. While nothing comes it goes back to calls and sleeps.

use std::time::{Duration, Instant};

/// After so many looks in a row that found nothing, calls are asked for again.
const EMPTY_LOOKS_MAX: u32 = 4;

/// When a driver that polls looks at its ring.
#[derive(Debug)]
pub(crate) struct PollTimer {
    interval: Duration,
    /// The next look; `None` while calls are relied on.
    next: Option<Instant>,
    /// Looks in a row that found nothing.
    empty: u32,
}

impl PollTimer {
    /// A timer that rests until something is found.
    pub(crate) fn new(interval: Duration) -> Self {
        Self { interval, next: None, empty: 0 }
    }

    /// When to look next; `None` when a call is to say so.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.next
    }

    /// A look at `now` found something, or a call came: the next look is due in one interval.
    pub(crate) fn found(&mut self, now: Instant) {
        self.empty = 0;
        self.rearm(now);
    }

    /// A look at `now` found nothing.
    pub(crate) fn missed(&mut self, now: Instant) {
        self.empty += 1;
        if self.empty < EMPTY_LOOKS_MAX {
            self.rearm(now);
        } else {
            self.empty = 0;
            self.next = None;
        }
    }

    /// A point in time that no clock can tell will not come: calls are to say when.
    fn rearm(&mut self, now: Instant) {
        self.next = now.checked_add(self.interval);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_millis(1);

    #[test]
    fn rests_until_something_is_found_and_after_looks_in_vain() {
        let mut timer = PollTimer::new(INTERVAL);
        let now = Instant::now();
        assert_eq!(timer.next(), None);
        for _ in 0..2 {
            timer.found(now);
            for _ in 1..EMPTY_LOOKS_MAX {
                assert_eq!(timer.next(), Some(now + INTERVAL));
                timer.missed(now);
            }
            assert_eq!(timer.next(), Some(now + INTERVAL));
            timer.missed(now);
            assert_eq!(timer.next(), None);
        }
    }

    #[test]
    fn what_is_found_in_between_begins_the_count_anew() {
        let mut timer = PollTimer::new(INTERVAL);
        let now = Instant::now();
        timer.found(now);
        for _ in 0..3 * EMPTY_LOOKS_MAX {
            timer.missed(now);
            timer.found(now);
        }
        assert_eq!(timer.next(), Some(now + INTERVAL));
    }

    #[test]
    fn an_interval_without_end_relies_on_calls() {
        let mut timer = PollTimer::new(Duration::MAX);
        timer.found(Instant::now());
        assert_eq!(timer.next(), None);
    }
}
