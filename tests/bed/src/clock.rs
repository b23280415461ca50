//! A time namespace, in which the monotonic and boot-time clocks have an offset (`time_namespaces(7)`).
//!
//! The machine's own clocks stay as they are.

use std::{fs, path::PathBuf, time::Duration};

use crate::{
    error::Result,
    process::{Placement, Process, wait_until},
};

const PATIENCE: Duration = Duration::from_secs(5);

/// A time namespace. It is removed when it is dropped and no process is in it.
pub struct Clock {
    holder: Process,
}

impl Clock {
    /// A namespace whose monotonic clock is `seconds` ahead of the machine's. The clock cannot be negative.
    pub fn ahead(seconds: i64) -> Result<Self> {
        let [monotonic, boot] = ["monotonic", "boottime"].map(|name| format!("--{name}={seconds}"));
        let wait = ["--fork", "--kill-child", "sleep", "infinity"];
        let argv = [&["unshare", "--time", &monotonic, &boot][..], &wait].concat();
        let (holder, _) = Process::start_dialogue(&argv, &Placement::default())?;
        let mut clock = Self { holder };
        wait_until("a time namespace", PATIENCE, || {
            clock.holder.check_alive()?;
            let own = fs::read_link("/proc/self/ns/time").ok();
            Ok(fs::read_link(clock.path()).ok() != own)
        })?;
        Ok(clock)
    }

    /// The namespace's file, for [`Placement::clock`].
    pub fn path(&self) -> PathBuf {
        // `unshare` puts only its children into the time namespace, not itself.
        PathBuf::from(format!("/proc/{}/ns/time_for_children", self.holder.pid()))
    }
}
