//! What a program has of the machine.

use procfs::process::Process;
use weir_bed::error::{Error, Result};

/// What must not grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Memory of its own (`RssAnon`): neither guests' memory nor its program's text.
    pub own_kib: u64,
    /// Descriptors.
    pub fds: u64,
    /// Threads.
    pub threads: u64,
}

impl Observed {
    /// What process `pid` has now.
    pub fn of(pid: u32) -> Result<Self> {
        let look = || {
            let process = Process::new(pid.cast_signed())?;
            let status = process.status()?;
            Ok(Self {
                own_kib: status.rssanon.unwrap_or(0),
                fds: process.fd_count()? as u64,
                threads: status.threads,
            })
        };
        look().map_err(|error: procfs::ProcError| Error::Check(format!("/proc/{pid}: {error}")))
    }
}
