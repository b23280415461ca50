//! What `/proc` says of weir.

use std::fs;

/// A process by its number.
#[derive(Clone, Copy, Debug)]
pub struct Observed(pub u32);

impl Observed {
    /// Descriptors; 0 where they cannot be seen.
    pub fn fds(self) -> usize {
        self.entries("fd")
    }

    /// Threads.
    pub fn threads(self) -> usize {
        self.entries("task")
    }

    fn entries(self, what: &str) -> usize {
        fs::read_dir(format!("/proc/{}/{what}", self.0)).map_or(0, Iterator::count)
    }

    /// Memory of its own (`RssAnon`, KiB): neither guests' memory nor its program's text.
    pub fn own_kib(self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0)).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    }
}
