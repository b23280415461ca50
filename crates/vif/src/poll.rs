//! Front-end coalescing (Dong 2011 §4.1, FVIC): the guest takes no calls for received frames and polls the ring on its
//! own timer. Without frames it goes back to calls and sleeps.

use std::time::{Duration, Instant};

/// Consecutive empty polls after which the driver asks for calls again.
const EMPTY_LOOKS_MAX: u32 = 4;

/// The poll timer of a driver.
#[derive(Debug)]
pub(crate) struct PollTimer {
    interval: Duration,
    /// Time of the next poll; `None` while the driver relies on calls.
    next: Option<Instant>,
    /// Consecutive polls that found nothing.
    empty: u32,
}

impl PollTimer {
    /// Returns a timer that rests until a frame is found.
    pub(crate) fn new(interval: Duration) -> Self {
        Self { interval, next: None, empty: 0 }
    }

    /// Returns the time of the next poll; `None` while the driver relies on calls.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.next
    }

    /// Notes that a poll at `now` found frames, or that a call came: the next poll is due in one interval.
    pub(crate) fn found(&mut self, now: Instant) {
        self.empty = 0;
        self.rearm(now);
    }

    /// Notes that a poll at `now` found nothing.
    pub(crate) fn missed(&mut self, now: Instant) {
        self.empty += 1;
        if self.empty < EMPTY_LOOKS_MAX {
            self.rearm(now);
        } else {
            self.empty = 0;
            self.next = None;
        }
    }

    /// Sets the next poll. A time beyond the clock's range never comes, so the driver relies on calls then.
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
