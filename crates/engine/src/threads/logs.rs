//! Limits on log messages: a number per minute for each kind of message about one party, and a number per second for
//! all parties; the rest is counted.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex};

use weir_limits::{LOG_LINES_AT_ONCE_MAX, LOG_LINES_MAX, LOG_LINES_PER_SEC_MAX, LOG_PERIOD_NS};
use weir_policy::policing::Gcra;

use crate::threads::clock;
use crate::threads::lock::lock;

/// The bucket of all parties of the process together: a token is a line.
static ALL: LazyLock<Gcra> = LazyLock::new(all);

fn all() -> Gcra {
    Gcra::new(LOG_LINES_PER_SEC_MAX, LOG_LINES_AT_ONCE_MAX)
}

#[derive(Debug, Default, Clone, Copy)]
struct Kind {
    period_ns: u64,
    said: u32,
    unsaid: u64,
}

/// The log messages about one party that it can cause again and again, of `KINDS` kinds.
#[derive(Debug)]
pub struct Logs<const KINDS: usize> {
    kinds: [Mutex<Kind>; KINDS],
    unsaid: AtomicU64,
}

impl<const KINDS: usize> Default for Logs<KINDS> {
    fn default() -> Self {
        Self { kinds: std::array::from_fn(|_| Mutex::default()), unsaid: AtomicU64::new(0) }
    }
}

impl<const KINDS: usize> Logs<KINDS> {
    /// The number of suppressed messages before this one, if it is to be logged; otherwise `None`.
    fn turn(&self, kind: usize, now_ns: u64, all: &Gcra) -> Option<u64> {
        let mut kind = lock(&self.kinds[kind]);
        if kind.said == 0 || now_ns.saturating_sub(kind.period_ns) >= LOG_PERIOD_NS {
            (kind.period_ns, kind.said) = (now_ns, 0);
        }
        if kind.said >= LOG_LINES_MAX || all.pass(now_ns, 1, [1].into_iter()).frames == 0 {
            kind.unsaid += 1;
            self.unsaid.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        kind.said += 1;
        Some(std::mem::take(&mut kind.unsaid))
    }

    /// Logs a message of this `kind`, a number below `KINDS`, unless there were too many. `say` gets the number of
    /// messages that were suppressed before, if any.
    pub fn say(&self, kind: usize, say: impl FnOnce(Option<u64>)) {
        if let Some(unsaid) = self.turn(kind, clock::now_ns(), &ALL) {
            say((unsaid > 0).then_some(unsaid));
        }
    }

    /// The number of all suppressed messages.
    pub fn unsaid(&self) -> u64 {
        self.unsaid.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    #[test]
    fn what_is_said_too_often_is_counted_and_the_count_is_said() {
        const ENDED: usize = 0;
        let (logs, all) = (Logs::<2>::default(), all());
        let turn = |kind, now_ns| logs.turn(kind, now_ns, &all);
        let turns = |now_ns| (0..100).filter_map(|_| turn(ENDED, now_ns)).collect::<Vec<_>>();
        let most = LOG_LINES_MAX as usize;
        assert_eq!(turns(1), vec![0; most]);
        assert_eq!(turn(1, 1), Some(0), "each kind by itself");
        let unsaid = 100 - u64::from(LOG_LINES_MAX);
        assert_eq!(turns(1 + LOG_PERIOD_NS)[..2], [unsaid, 0]);
        assert_eq!(logs.unsaid(), 2 * unsaid);
    }

    #[test]
    fn many_ports_together_say_no_more_than_the_switch_may() {
        let (ports, all) = ([const { None::<Logs<1>> }; 100].map(Option::unwrap_or_default), all());
        let said = |now_ns| {
            ports.iter().filter(|logs| logs.turn(0, now_ns, &all).is_some()).count() as u64
        };
        assert_eq!(said(1), LOG_LINES_AT_ONCE_MAX);
        assert_eq!(said(1 + SECOND_NS), LOG_LINES_PER_SEC_MAX);
        assert_eq!(said(1 + 60 * SECOND_NS), LOG_LINES_AT_ONCE_MAX, "nothing is saved up");
        let unsaid: u64 = ports.iter().map(Logs::unsaid).sum();
        assert_eq!(unsaid, 300 - 2 * LOG_LINES_AT_ONCE_MAX - LOG_LINES_PER_SEC_MAX);
    }
}
