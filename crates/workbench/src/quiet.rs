//! Disables idle states and keeps other threads away during a measurement, as `cyclictest` does.
//!
//! The cost of a wake-up depends on the CPU's idle time, and in a virtual machine on the host: the same sleep may
//! cost five times as much a second later. Other threads use a CPU for milliseconds, which delays about one packet in
//! a hundred.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::num::NonZeroU64;

use weir_engine::Priority;

use crate::args::QuietArgs;

/// A process that holds this file open sets the largest latency of the CPUs' idle states
/// (`Documentation/power/pm_qos_interface.rst`).
const LATENCY: &str = "/dev/cpu_dma_latency";
/// No latency (us).
const AT_ONCE: i32 = 0;

/// Timer slack during measurements (ns), as `weir_engine` sets it for its workers.
const TIMER_SLACK_NS: u64 = 1_000;

/// Sets this thread's timer slack to a worker's. If the kernel refuses, timers are later, and the results show it.
pub(super) fn exact_timers() {
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(TIMER_SLACK_NS));
}

/// Runs `look` without real-time priority, so that this thread never keeps a CPU from those that it measures.
pub(super) fn aside<T>(look: impl FnOnce() -> T) -> T {
    let first = weir_engine::is_real_time();
    // Neither can fail: this thread had both priorities before.
    let _ = first.then(|| weir_engine::set_priority(Priority::Usual));
    let seen = look();
    let _ = first.then(|| weir_engine::set_priority(Priority::RealTime));
    seen
}

/// While the value exists, CPUs never enter idle states, and this thread and its children precede all threads without
/// real-time priority. Both apply as far as requested, and as far as the system permits.
#[derive(Debug)]
pub(super) struct Quiet {
    awake: Option<io::Result<File>>,
    first: Option<io::Result<()>>,
}

/// Conditions of a measurement.
#[derive(Clone, Debug, Default)]
pub(super) struct How {
    /// Description for a reader.
    pub(super) said: String,
    /// True if the threads preceded all others.
    pub(super) is_first: bool,
}

impl Quiet {
    /// Applies both measures from now on, or fewer if `args` say so.
    pub(super) fn unless(args: &QuietArgs) -> Self {
        let hold = || {
            let mut file = OpenOptions::new().write(true).open(LATENCY)?;
            file.write_all(&AT_ONCE.to_ne_bytes())?;
            Ok(file)
        };
        Self {
            awake: (!args.idle_states).then(hold),
            first: (!args.fair).then(|| weir_engine::set_priority(Priority::RealTime)),
        }
    }
}

impl Quiet {
    pub(super) fn how(&self) -> How {
        How { said: self.to_string(), is_first: self.is_first() }
    }

    fn is_first(&self) -> bool {
        matches!(self.first, Some(Ok(())))
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        if self.is_first() {
            // This cannot fail: a thread may always give up its real-time priority.
            let _ = weir_engine::set_priority(Priority::Usual);
        }
    }
}

/// Writes the conditions, for a reader of the numbers.
impl fmt::Display for Quiet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.awake {
            Some(Ok(_)) => f.write_str("CPUs kept from idle states")?,
            Some(Err(error)) => write!(f, "CPUs in idle states as they like ({LATENCY}: {error})")?,
            None => f.write_str("CPUs in idle states as they like")?,
        }
        match &self.first {
            Some(Ok(())) => f.write_str(", threads with real-time priority"),
            Some(Err(error)) => write!(f, ", threads among all others (SCHED_FIFO: {error})"),
            None => f.write_str(", threads among all others"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_what_was_done() {
        let none = Quiet::unless(&QuietArgs { idle_states: true, fair: true });
        let said = none.to_string();
        assert_eq!(said, "CPUs in idle states as they like, threads among all others");
        // The attempt is made on a separate thread, so that other tests do not wait for it.
        let tried = std::thread::spawn(|| {
            let quiet = Quiet::unless(&QuietArgs::default());
            (
                quiet.to_string(),
                weir_engine::is_real_time(),
                drop(quiet),
                weir_engine::is_real_time(),
            )
        });
        let (said, during, (), after) = tried.join().unwrap();
        let may = OpenOptions::new().write(true).open(LATENCY).is_ok();
        assert_eq!(said.contains("CPUs kept from idle states"), may, "{said}");
        assert_eq!(said.contains(LATENCY), !may, "{said}");
        assert_eq!(said.contains("threads with real-time priority"), during, "{said}");
        assert!(!after);
    }
}
