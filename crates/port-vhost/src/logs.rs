//! How often a port's messages are logged: by kind so many a minute, of all ports so many a second; the rest is
//! counted.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex};

use weir_engine::{clock, lock};
use weir_limits::{LOG_LINES_AT_ONCE_MAX, LOG_LINES_MAX, LOG_LINES_PER_SEC_MAX, LOG_PERIOD_NS};
use weir_policy::policing::Gcra;

/// What is said of a port that its front end can have said again and again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Said {
    Connected,
    Disconnected,
    Ended,
    TurnedAway,
    AcceptFailed,
    Stopped,
    NoRecord,
    Base,
}

const KINDS: usize = 8;

/// What all ports of the process may say together: a token is a line.
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

/// Of one port.
#[derive(Debug, Default)]
pub(crate) struct Logs {
    kinds: [Mutex<Kind>; KINDS],
    unsaid: AtomicU64,
}

impl Logs {
    /// Whether it is to be said, and then how many times it was not.
    fn turn(&self, said: Said, now_ns: u64, all: &Gcra) -> Option<u64> {
        let mut kind = lock(&self.kinds[said as usize]);
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

    /// Says it unless it was said too often; with how many times it was not said, if any.
    pub(crate) fn say(&self, said: Said, say: impl FnOnce(Option<u64>)) {
        if let Some(unsaid) = self.turn(said, clock::now_ns(), &ALL) {
            say((unsaid > 0).then_some(unsaid));
        }
    }

    /// What was not said, ever.
    pub(crate) fn unsaid(&self) -> u64 {
        self.unsaid.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    #[test]
    fn what_is_said_too_often_is_counted_and_the_count_is_said() {
        let (logs, all) = (Logs::default(), all());
        let turn = |said, now_ns| logs.turn(said, now_ns, &all);
        let turns = |now_ns| (0..100).filter_map(|_| turn(Said::Ended, now_ns)).collect::<Vec<_>>();
        let most = LOG_LINES_MAX as usize;
        assert_eq!(turns(1), vec![0; most]);
        assert_eq!(turn(Said::Connected, 1), Some(0), "each kind by itself");
        let unsaid = 100 - u64::from(LOG_LINES_MAX);
        assert_eq!(turns(1 + LOG_PERIOD_NS)[..2], [unsaid, 0]);
        assert_eq!(logs.unsaid(), 2 * unsaid);
    }

    #[test]
    fn many_ports_together_say_no_more_than_the_switch_may() {
        let (ports, all) = ([const { None::<Logs> }; 100].map(Option::unwrap_or_default), all());
        let said = |now_ns| {
            ports.iter().filter(|logs| logs.turn(Said::Ended, now_ns, &all).is_some()).count()
                as u64
        };
        assert_eq!(said(1), LOG_LINES_AT_ONCE_MAX);
        assert_eq!(said(1 + SECOND_NS), LOG_LINES_PER_SEC_MAX);
        assert_eq!(said(1 + 60 * SECOND_NS), LOG_LINES_AT_ONCE_MAX, "nothing is saved up");
        let unsaid: u64 = ports.iter().map(Logs::unsaid).sum();
        assert_eq!(unsaid, 300 - 2 * LOG_LINES_AT_ONCE_MAX - LOG_LINES_PER_SEC_MAX);
    }
}
