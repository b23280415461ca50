//! What `/proc` says of weir.

use procfs::process::{Process, Status};

/// A process by its number.
#[derive(Clone, Copy, Debug)]
pub struct Observed(pub u32);

impl Observed {
    /// Descriptors; 0 where they cannot be seen.
    pub fn fds(self) -> usize {
        self.process().and_then(|it| it.fd_count().ok()).unwrap_or(0)
    }

    /// Threads.
    pub fn threads(self) -> usize {
        self.status().map_or(0, |status| status.threads as usize)
    }

    /// Memory of its own (`RssAnon`, KiB): neither guests' memory nor its program's text.
    pub fn own_kib(self) -> u64 {
        self.status().and_then(|status| status.rssanon).unwrap_or(0)
    }

    fn process(self) -> Option<Process> {
        Process::new(self.0.cast_signed()).ok()
    }

    fn status(self) -> Option<Status> {
        self.process()?.status().ok()
    }
}
