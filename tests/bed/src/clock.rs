//! Another time than this machine's: a namespace whose clocks that only go forward stand elsewhere (`time_namespaces(7)`).
//!
//! No clock of the machine is touched.

use std::{fs, path::PathBuf, time::Duration};

use crate::{
    error::Result,
    process::{Placement, Process, wait_until},
};

const PATIENCE: Duration = Duration::from_secs(5);

/// A time namespace, gone when dropped and when nobody is in it.
pub struct Clock {
    holder: Process,
}

impl Clock {
    /// One whose monotonic clock is this much ahead. It cannot stand before zero.
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

    /// Its file, for [`Placement::clock`].
    pub fn path(&self) -> PathBuf {
        // Of the process that made it only the children are in it.
        PathBuf::from(format!("/proc/{}/ns/time_for_children", self.holder.pid()))
    }
}
