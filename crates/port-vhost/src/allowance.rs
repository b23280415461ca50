//! The processor time that a session may use.

use std::time::{Duration, Instant};

use weir_limits::{
    SESSION_CPU_BURST_NS, SESSION_CPU_DEBT_NS, SESSION_CPU_PERCENT, SESSIONS_CPU_PERCENT,
};

/// The processor time that the sessions of one interface may use: `SESSION_CPU_PERCENT` of one processor, or an equal
/// part of the bound on all sessions that are held back, and a small burst.
///
/// A session leaves memory that takes long to unmap. The next one may be another monitor, which nothing should make
/// wait at its first messages. So a session's end is paid from what later sessions do not need. If others end before
/// that, the debt is paid at once, as far as they leave as much again: who comes back with dear memory pauses.
#[derive(Debug)]
pub(crate) struct Allowance {
    left_ns: i64,
    /// Debts of the last session that has ended, and of those before it.
    last_ns: u64,
    overdue_ns: u64,
    at: Instant,
}

impl Default for Allowance {
    fn default() -> Self {
        let left_ns = SESSION_CPU_BURST_NS as i64;
        Self { left_ns, last_ns: 0, overdue_ns: 0, at: Instant::now() }
    }
}

impl Allowance {
    /// Notes the end of a session. What it leaves comes by the next [`spend`](Self::spend).
    pub(crate) fn end_session(&mut self) {
        let last_ns = std::mem::take(&mut self.last_ns);
        self.overdue_ns = (self.overdue_ns + last_ns).min(SESSION_CPU_DEBT_NS);
    }

    /// Notes that `used_ns` were used until `now`, and `behind_ns` for what sessions that have ended left, while
    /// sessions of `held_back` interfaces are held back, perhaps with this session among them. Returns how long the
    /// session must pause; `None` if it continues.
    pub(crate) fn spend(
        &mut self,
        used_ns: u64,
        behind_ns: u64,
        now: Instant,
        held_back: u64,
    ) -> Option<Duration> {
        let sharers = held_back.div_ceil(SESSIONS_CPU_PERCENT / SESSION_CPU_PERCENT).max(1);
        let passed_ns = now.saturating_duration_since(self.at).as_nanos() as u64;
        self.at = now;
        let gained_ns = passed_ns / 100 * SESSION_CPU_PERCENT / sharers;
        let most_ns = SESSION_CPU_BURST_NS as i64;
        let has_ns = self.left_ns.saturating_add_unsigned(gained_ns);
        self.left_ns = has_ns.min(most_ns);
        let spare_ns = has_ns.abs_diff(self.left_ns);
        self.last_ns -= spare_ns.saturating_sub(self.overdue_ns).min(self.last_ns);
        self.overdue_ns = self.overdue_ns.saturating_sub(spare_ns);
        let due_ns = behind_ns.min(self.overdue_ns);
        self.overdue_ns -= due_ns;
        self.last_ns = self.last_ns.saturating_add(behind_ns).min(SESSION_CPU_DEBT_NS);
        let least_ns = -(SESSION_CPU_DEBT_NS as i64);
        let used_ns = used_ns.saturating_add(due_ns);
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
        assert_eq!(allowance.spend(SESSION_CPU_BURST_NS, 0, start, 0), None);
        let ms = 1_000_000;
        let pause = allowance.spend(ms, 0, start, 1).unwrap();
        assert_eq!(pause, Duration::from_nanos(ms * 100 / SESSION_CPU_PERCENT));
        assert_eq!(allowance.spend(0, 0, start + pause, 1), None);
        let rested = start + Duration::from_secs(3600);
        assert_eq!(allowance.spend(SESSION_CPU_BURST_NS, 0, rested, 0), None, "no more than that");
        assert!(allowance.spend(ms, 0, rested, 1).is_some());
    }

    #[test]
    fn a_host_that_stood_still_delays_a_session_for_seconds_only() {
        let mut allowance = Allowance::default();
        let stood_still_ns = 60_000_000_000;
        let longest = Duration::from_nanos(SESSION_CPU_DEBT_NS * 100 / SESSION_CPU_PERCENT);
        for used_ns in [stood_still_ns, u64::MAX] {
            let start = allowance.at;
            assert_eq!(allowance.spend(used_ns, 0, start, 0), Some(longest));
            assert_eq!(
                allowance.spend(0, 0, start + longest, 0),
                None,
                "one pause repays the debt"
            );
        }
    }

    #[test]
    fn sessions_that_are_held_back_share_what_all_of_them_may_take() {
        let (floods, ms) = (20, 1_000_000);
        let pause = |held_back| {
            let mut allowance = Allowance::default();
            let start = allowance.at;
            allowance.spend(SESSION_CPU_BURST_NS + ms, 0, start, held_back).unwrap()
        };
        // Each session has a millisecond in its pause.
        let all = Duration::from_nanos(ms * floods * 100 / SESSIONS_CPU_PERCENT);
        assert_eq!(pause(floods), all);
        let few = SESSIONS_CPU_PERCENT / SESSION_CPU_PERCENT;
        assert_eq!(pause(few), pause(1), "as many as have their own part");
        let mut newcomer = Allowance::default();
        let start = newcomer.at;
        assert_eq!(
            newcomer.spend(SESSION_CPU_BURST_NS, 0, start, floods),
            None,
            "who comes anew waits for none of them"
        );
    }

    #[test]
    fn what_a_session_leaves_pauses_the_next_one_only_if_that_leaves_as_much_again() {
        for left_ns in [SESSION_CPU_DEBT_NS, u64::MAX] {
            let mut allowance = Allowance::default();
            let start = allowance.at;
            allowance.end_session();
            // A worker held some of its memory, which is unmapped when the next one has come.
            assert_eq!(allowance.spend(0, left_ns / 2, start, 0), None);
            assert_eq!(allowance.spend(SESSION_CPU_BURST_NS, left_ns / 2, start, 0), None);
            // Programs that look who is there leave nothing.
            for _ in 0..3 {
                allowance.end_session();
                assert_eq!(allowance.spend(0, 0, start, 0), None);
            }
            allowance.end_session();
            let longest = Duration::from_nanos(SESSION_CPU_DEBT_NS * 100 / SESSION_CPU_PERCENT);
            assert_eq!(allowance.spend(0, left_ns, start, 0), Some(longest));
        }
    }

    #[test]
    fn sessions_whose_ends_are_dear_get_no_more_of_a_processor_than_others() {
        // Each leaves a different time, of which a part comes when the next one is there already.
        let mut allowance = Allowance::default();
        let start = allowance.at;
        let (mut now, mut used_ns) = (start, 0);
        for session in 0..1000 {
            let (own_ns, left_ns) = (session % 7 * 100_000, session % 41 * 1_000_000);
            let pause = allowance.spend(own_ns, left_ns / 3, now, 0);
            now += pause.unwrap_or_default();
            allowance.end_session();
            now += allowance.spend(0, left_ns - left_ns / 3, now, 0).unwrap_or_default();
            used_ns += own_ns + left_ns;
        }
        let passed_ns = now.duration_since(start).as_nanos() as u64;
        let most_ns =
            passed_ns / 100 * SESSION_CPU_PERCENT + SESSION_CPU_BURST_NS + 2 * SESSION_CPU_DEBT_NS;
        assert!(used_ns <= most_ns, "{used_ns} of {most_ns}");
    }

    #[test]
    fn time_that_no_session_needs_pays_what_others_have_left() {
        let mut allowance = Allowance::default();
        let start = allowance.at;
        allowance.end_session();
        assert_eq!(allowance.spend(0, SESSION_CPU_DEBT_NS, start, 0), None);
        let rested = start + Duration::from_nanos(SESSION_CPU_DEBT_NS * 100 / SESSION_CPU_PERCENT);
        allowance.end_session();
        assert_eq!(allowance.spend(0, SESSION_CPU_DEBT_NS, rested, 0), None, "it is paid");
    }
}
