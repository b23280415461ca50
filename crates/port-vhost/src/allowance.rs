//! The processor time that a session may use.

use std::time::{Duration, Instant};

use weir_limits::{
    SESSION_CPU_BURST_NS, SESSION_CPU_DEBT_NS, SESSION_CPU_PERCENT, SESSIONS_CPU_PERCENT,
};

/// The processor time that the sessions of one interface may use: `SESSION_CPU_PERCENT` of one processor, or an equal
/// part of the bound on all sessions that are held back, and a small burst.
#[derive(Debug)]
pub(crate) struct Allowance {
    left_ns: i64,
    at: Instant,
}

impl Default for Allowance {
    fn default() -> Self {
        Self { left_ns: SESSION_CPU_BURST_NS as i64, at: Instant::now() }
    }
}

impl Allowance {
    /// Notes that `used_ns` were used until `now`, while sessions of `held_back` interfaces are held back, perhaps with
    /// this session among them. Returns how long the session must pause; `None` if it continues.
    pub(crate) fn spend(&mut self, used_ns: u64, now: Instant, held_back: u64) -> Option<Duration> {
        let sharers = held_back.div_ceil(SESSIONS_CPU_PERCENT / SESSION_CPU_PERCENT).max(1);
        let passed_ns = now.saturating_duration_since(self.at).as_nanos() as u64;
        self.at = now;
        let gained_ns = passed_ns / 100 * SESSION_CPU_PERCENT / sharers;
        let most_ns = SESSION_CPU_BURST_NS as i64;
        self.left_ns = self.left_ns.saturating_add_unsigned(gained_ns).min(most_ns);
        let least_ns = -(SESSION_CPU_DEBT_NS as i64);
        self.left_ns = self.left_ns.saturating_sub_unsigned(used_ns).max(least_ns);
        let short_ns = u64::try_from(-self.left_ns).ok().filter(|short| *short > 0)?;
        let pause_ns = short_ns.saturating_mul(100).saturating_mul(sharers) / SESSION_CPU_PERCENT;
        Some(Duration::from_nanos(pause_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_gets_its_part_of_a_processor_and_a_little_at_once() {
        let mut allowance = Allowance::default();
        let start = allowance.at;
        assert_eq!(allowance.spend(SESSION_CPU_BURST_NS, start, 0), None);
        let ms = 1_000_000;
        let pause = allowance.spend(ms, start, 1).unwrap();
        assert_eq!(pause, Duration::from_nanos(ms * 100 / SESSION_CPU_PERCENT));
        assert_eq!(allowance.spend(0, start + pause, 1), None);
        let rested = start + Duration::from_secs(3600);
        assert_eq!(allowance.spend(SESSION_CPU_BURST_NS, rested, 0), None, "no more than that");
        assert!(allowance.spend(ms, rested, 1).is_some());
    }

    #[test]
    fn a_host_that_stood_still_delays_a_session_for_seconds_only() {
        let mut allowance = Allowance::default();
        let stood_still_ns = 60_000_000_000;
        let longest = Duration::from_nanos(SESSION_CPU_DEBT_NS * 100 / SESSION_CPU_PERCENT);
        for used_ns in [stood_still_ns, u64::MAX] {
            let start = allowance.at;
            assert_eq!(allowance.spend(used_ns, start, 0), Some(longest));
            assert_eq!(allowance.spend(0, start + longest, 0), None, "one pause repays the debt");
        }
    }

    #[test]
    fn sessions_that_are_held_back_share_what_all_of_them_may_take() {
        let (floods, ms) = (20, 1_000_000);
        let pause = |held_back| {
            let mut allowance = Allowance::default();
            let start = allowance.at;
            allowance.spend(SESSION_CPU_BURST_NS + ms, start, held_back).unwrap()
        };
        // Each session has a millisecond in its pause.
        let all = Duration::from_nanos(ms * floods * 100 / SESSIONS_CPU_PERCENT);
        assert_eq!(pause(floods), all);
        let few = SESSIONS_CPU_PERCENT / SESSION_CPU_PERCENT;
        assert_eq!(pause(few), pause(1), "as many as have their own part");
        let mut newcomer = Allowance::default();
        let start = newcomer.at;
        assert_eq!(
            newcomer.spend(SESSION_CPU_BURST_NS, start, floods),
            None,
            "who comes anew waits for none of them"
        );
    }
}
