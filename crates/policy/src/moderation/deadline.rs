//! The deadline of a [`Verdict::HoldUntil`], as an engine keeps it on real or virtual time.
//!
//! [`Verdict::HoldUntil`]: super::Verdict::HoldUntil

/// The time at which a worker asks about a call, with at most one timer set for it.
///
/// Every burst may move the deadline, but a timer that was set stays set. So a later deadline keeps
/// the present timer, which sets the next one when it fires. Only an earlier deadline sets another
/// timer.
#[derive(Debug, Default)]
pub struct Deadline {
    /// The deadline in force (ns).
    until_ns: Option<u64>,
    /// Time of the last timer that was set (ns). A timer in the past has fired, or is about to.
    timer_ns: Option<u64>,
}

impl Deadline {
    /// Returns the deadline in force.
    pub fn until_ns(&self) -> Option<u64> {
        self.until_ns
    }

    /// Sets the deadline. Returns the time of a timer, if one is to be set.
    pub fn set(&mut self, until_ns: u64, now_ns: u64) -> Option<u64> {
        self.until_ns = Some(until_ns);
        match self.timer_ns {
            Some(timer_ns) if now_ns < timer_ns && timer_ns <= until_ns => None,
            _ => {
                self.timer_ns = Some(until_ns);
                Some(until_ns)
            }
        }
    }

    /// Removes the deadline. A timer that is set finds nothing to do.
    pub fn clear(&mut self) {
        self.until_ns = None;
    }

    /// Notes that all timers up to `by_ns` have fired, or count as fired. Returns `Ok` if the
    /// deadline has passed, else the time of a timer, if one is to be set.
    pub fn fired(&mut self, by_ns: u64) -> Result<(), Option<u64>> {
        self.timer_ns.take_if(|timer_ns| *timer_ns <= by_ns);
        match self.until_ns {
            None => Err(None),
            Some(until_ns) if until_ns > by_ns => Err(self.set(until_ns, by_ns)),
            Some(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_that_moves_back_keeps_its_one_timer() {
        let mut deadline = Deadline::default();
        assert_eq!(deadline.set(100, 0), Some(100));
        for now_ns in 1..100 {
            assert_eq!(deadline.set(100 + now_ns, now_ns), None, "a timer is set");
        }
        assert_eq!(deadline.fired(100), Err(Some(199)), "and sets the next");
        assert_eq!(deadline.fired(199), Ok(()));
        deadline.clear();
        assert_eq!(deadline.fired(200), Err(None));
    }

    #[test]
    fn a_deadline_that_moves_forward_sets_another_timer_and_the_old_one_dies() {
        let mut deadline = Deadline::default();
        assert_eq!(deadline.set(100, 0), Some(100));
        assert_eq!(deadline.set(50, 1), Some(50));
        assert_eq!(deadline.fired(50), Ok(()));
        deadline.clear();
        assert_eq!(deadline.set(150, 60), Some(150), "it can't rely on the one at 100");
        assert_eq!(deadline.fired(100), Err(None), "which leaves the one at 150 alone");
    }

    #[test]
    fn a_timer_that_was_taken_for_fired_ahead_of_its_time_is_not_relied_on() {
        let mut deadline = Deadline::default();
        assert_eq!(deadline.set(100, 0), Some(100));
        assert_eq!(deadline.fired(120), Ok(()), "the worker is not back before 120");
        deadline.clear();
        assert_eq!(deadline.set(150, 60), Some(150), "though 100 is yet to come");
    }

    #[test]
    fn a_timer_that_never_fired_is_not_relied_on() {
        let mut deadline = Deadline::default();
        assert_eq!(deadline.set(100, 0), Some(100));
        assert_eq!(deadline.set(300, 200), Some(300));
    }

    #[test]
    fn a_deadline_that_moves_back_and_forward_again_is_asked_about_at_each_time() {
        let mut deadline = Deadline::default();
        assert_eq!(deadline.set(100, 0), Some(100));
        assert_eq!(deadline.set(150, 10), None, "a timer is set");
        assert_eq!(deadline.fired(100), Err(Some(150)), "and sets the next");
        assert_eq!(deadline.set(120, 110), Some(120), "sooner");
        assert_eq!(deadline.fired(120), Ok(()));
    }
}
