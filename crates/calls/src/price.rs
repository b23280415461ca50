//! The cost of calls, and its limit.
//!
//! The front end sets the price: a call wakes all waiters of its descriptor one after the other, in the caller's
//! time. A call within [`CALL_NS_USUAL_MAX`] belongs to its burst. The called port pays for the excess, and its
//! next calls are measured by the thread's CPU clock, which excludes preemption. CPU time above [`CALL_NS_MAX`] per
//! call adds to a debt, time below pays it off; at [`CALL_DEBT_NS_MAX`] the port stops.

use weir_limits::{CALL_DEBT_NS_MAX, CALL_NS_MAX, CALL_NS_USUAL_MAX, CALLS_WATCHED};

/// The account of one descriptor's calls. It outlives the descriptor, so that a fresh start pays no
/// debt.
#[derive(Debug, Default)]
pub struct Price {
    /// Number of calls that are still measured by the CPU clock.
    watched: u32,
    debt_ns: u64,
}

/// Result of a measured call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// Time that the called port must pay for (ns).
    pub beyond_ns: u64,
    /// The port gets no more calls.
    pub too_dear: bool,
}

impl Price {
    /// Returns whether to measure the next call by the CPU clock.
    #[inline]
    pub fn is_watched(&self) -> bool {
        self.watched > 0
    }

    /// Notes a call of unusual length by the wall clock, whose cause is not known yet.
    pub fn suspect(&mut self) {
        self.watched = CALLS_WATCHED;
    }

    /// Notes the CPU time of a call (ns).
    pub fn measured(&mut self, cpu_ns: u64) -> Verdict {
        self.debt_ns = self.debt_ns.saturating_add(cpu_ns).saturating_sub(CALL_NS_MAX);
        let beyond_ns = cpu_ns.saturating_sub(CALL_NS_USUAL_MAX);
        self.watched = match beyond_ns {
            0 if self.debt_ns == 0 => self.watched.saturating_sub(1),
            0 => self.watched,
            _ => CALLS_WATCHED,
        };
        let too_dear = self.debt_ns >= CALL_DEBT_NS_MAX;
        // A larger debt would only take longer to pay off.
        self.debt_ns = self.debt_ns.min(CALL_DEBT_NS_MAX);
        Verdict { beyond_ns, too_dear }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: u64 = 2_000;
    const DEAR: u64 = 2_000_000;

    /// Returns the number of calls of `cpu_ns` until the port gets no more.
    fn calls_until_too_dear(price: &mut Price, mut cpu_ns: impl FnMut(u64) -> u64) -> Option<u64> {
        (0..100_000).find(|call| price.measured(cpu_ns(*call)).too_dear)
    }

    #[test]
    fn calls_that_stay_dear_are_too_dear_soon() {
        let calls = calls_until_too_dear(&mut Price::default(), |_| DEAR).unwrap();
        assert!(calls < CALL_DEBT_NS_MAX / DEAR + 2, "{calls}");
    }

    #[test]
    fn every_other_call_is_enough() {
        let calls = |call: u64| if call.is_multiple_of(2) { DEAR } else { USUAL };
        assert!(calls_until_too_dear(&mut Price::default(), calls).is_some());
    }

    #[test]
    fn one_dear_call_in_many_is_not() {
        let calls = |call: u64| if call.is_multiple_of(64) { DEAR } else { USUAL };
        assert_eq!(calls_until_too_dear(&mut Price::default(), calls), None);
        assert_eq!(calls_until_too_dear(&mut Price::default(), |_| CALL_NS_MAX), None);
    }

    #[test]
    fn a_new_start_pays_nothing_off_and_cheap_calls_do() {
        let mut price = Price::default();
        calls_until_too_dear(&mut price, |_| DEAR);
        assert!(price.measured(DEAR).too_dear, "the next one at once");
        let mut calls = 0;
        while price.is_watched() {
            price.measured(USUAL);
            calls += 1;
        }
        assert!(calls >= CALL_DEBT_NS_MAX / CALL_NS_MAX, "{calls}");
        assert!(!price.measured(DEAR).too_dear);
    }

    #[test]
    fn what_is_usual_is_nobody_elses() {
        let mut price = Price::default();
        assert_eq!(price.measured(CALL_NS_USUAL_MAX), Verdict { beyond_ns: 0, too_dear: false });
        assert!(!price.is_watched());
        assert_eq!(price.measured(CALL_NS_USUAL_MAX + 7).beyond_ns, 7);
        assert!(price.is_watched());
    }
}
