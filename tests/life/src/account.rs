//! Drops that weir reports, over the lives of many weirs, and a program's use of the machine.

use std::collections::BTreeMap;

use procfs::{
    Current, Uptime,
    process::{Process, Stat},
};
use weir_bed::{
    error::{Error, Result},
    weir_stats::Stats,
};

/// Drops by port and reason.
type Drops = BTreeMap<(String, String), u64>;

/// Frames counted with a reason.
#[derive(Debug, Default)]
pub struct Account {
    /// Drops of weirs that have ended.
    past: Drops,
    /// Drops of the running weir, when it was last asked.
    now: Drops,
}

impl Account {
    /// Takes the running weir's counters.
    pub fn note(&mut self, stats: &Stats) -> Result<()> {
        self.now = stats.drops()?;
        Ok(())
    }

    /// Records the end of the running weir: the next one counts from zero.
    pub fn ended(&mut self) {
        for (at, count) in std::mem::take(&mut self.now) {
            *self.past.entry(at).or_default() += count;
        }
    }

    /// Returns the total at the ports that `among` selects.
    pub fn total(&self, among: impl Fn(&str) -> bool) -> u64 {
        let all = self.past.iter().chain(&self.now);
        all.filter(|((port, _), _)| among(port)).map(|(_, count)| count).sum()
    }

    /// Returns the drops of all ports by reason, as text.
    pub fn reasons(&self) -> String {
        let mut reasons = BTreeMap::<_, u64>::new();
        for ((_, reason), count) in self.past.iter().chain(&self.now) {
            *reasons.entry(reason).or_default() += count;
        }
        let words: Vec<_> =
            reasons.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
        if words.is_empty() { String::from("none") } else { words.join(", ") }
    }
}

/// Resources that must not grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Private memory (`RssAnon`), without guests' memory and program text.
    pub own_kib: u64,
    /// Number of descriptors.
    pub fds: u64,
    /// Number of permanent threads, see [`STAYS_S`].
    pub threads: u64,
}

/// Age from which on a thread counts as permanent (s). The keeper's closers end after a second without work.
const STAYS_S: f64 = 3.0;

impl Observed {
    /// Reads the present resources of process `pid`.
    pub fn of(pid: u32) -> Result<Self> {
        let look = || {
            let process = Process::new(pid.cast_signed())?;
            let own_kib = process.status()?.rssanon.unwrap_or(0);
            let (now, ticks) = (Uptime::current()?.uptime, procfs::ticks_per_second() as f64);
            let age = |stat: Stat| now - stat.starttime as f64 / ticks;
            let own = age(process.stat()?);
            // A thread that has ended meanwhile has no status.
            let tasks = process.tasks()?.flatten().filter_map(|task| task.stat().ok());
            let threads = staying(own, &tasks.map(age).collect::<Vec<_>>()) as u64;
            Ok(Self { own_kib, fds: process.fd_count()? as u64, threads })
        };
        look().map_err(|error: procfs::ProcError| Error::Check(format!("/proc/{pid}: {error}")))
    }
}

/// Returns the number of a program's permanent threads. In a young program all threads count.
fn staying(program_s: f64, threads_s: &[f64]) -> usize {
    let is_young = program_s < 2.0 * STAYS_S;
    threads_s.iter().filter(|age| is_young || **age >= STAYS_S).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(drops: &str) -> Stats {
        let ports = r#"[{"name":"a","drops":DROPS},{"name":"b","drops":{"x":1,"y":0}}]"#;
        Stats::parse(&format!("{{\"ports\":{}}}", ports.replace("DROPS", drops))).unwrap()
    }

    #[test]
    fn drops_of_all_lives_count_and_none_twice() {
        let mut account = Account::default();
        account.note(&stats(r#"{"x":2}"#)).unwrap();
        account.note(&stats(r#"{"x":3}"#)).unwrap();
        assert_eq!(account.total(|_| true), 4);
        account.ended();
        account.note(&stats(r#"{"y":1}"#)).unwrap();
        assert_eq!(account.total(|port| port == "a"), 4);
        assert_eq!(account.total(|_| true), 6);
        assert_eq!(account.reasons(), "5 x, 1 y");
    }

    #[test]
    fn a_thread_that_comes_and_goes_does_not_count() {
        assert_eq!(staying(100.0, &[100.0, 99.9, 3.0, 0.9, 0.0]), 3);
        assert_eq!(staying(1.0, &[1.0, 1.0, 0.9]), 3);
    }
}
