//! Keeps the machine's CPUs from their idle states while something is measured.
//!
//! How long a CPU takes to come back from one, and who pays for it, hangs on how long it was idle, and on a virtual
//! machine on what its host does meanwhile: the same sleep costs five times as much in one second as in the next. What
//! is measured for comparison is measured without them, as `cyclictest` does it.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};

/// Who holds it open says how late a CPU may be back from an idle state (`Documentation/power/pm_qos_interface.rst`).
const LATENCY: &str = "/dev/cpu_dma_latency";
/// In microseconds: none.
const AT_ONCE: i32 = 0;

/// CPUs look for work all the time while this lives, if they are to and the system lets them.
#[derive(Debug)]
pub(super) struct Awake {
    held: Option<io::Result<File>>,
}

impl Awake {
    /// From now on, unless idle states are wanted.
    pub(super) fn unless(idle_states: bool) -> Self {
        let hold = || {
            let mut file = OpenOptions::new().write(true).open(LATENCY)?;
            file.write_all(&AT_ONCE.to_ne_bytes())?;
            Ok(file)
        };
        Self { held: (!idle_states).then(hold) }
    }
}

/// What a reader of the numbers has to know.
impl fmt::Display for Awake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.held {
            Some(Ok(_)) => f.write_str("CPUs kept from idle states"),
            Some(Err(error)) => write!(f, "CPUs in idle states as they like ({LATENCY}: {error})"),
            None => f.write_str("CPUs in idle states as they like"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_the_cpus_is_what_was_done() {
        assert_eq!(Awake::unless(true).to_string(), "CPUs in idle states as they like");
        let held = Awake::unless(false);
        let may = OpenOptions::new().write(true).open(LATENCY).is_ok();
        assert_eq!(held.to_string() == "CPUs kept from idle states", may);
        assert_eq!(held.to_string().contains(LATENCY), !may);
    }
}
