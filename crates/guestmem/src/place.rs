//! The place of a mapping, written by its owner while others read it.
//!
//! The `SIGBUS` handler searches the places of all mappings, while other threads take and return theirs. A base of one
//! mapping with the length of another would name foreign addresses, so the handler skips a place that changes during
//! the read. No mapping is missed: the mapping in question is in use and does not change.

use super::atomic::{AtomicUsize, Ordering, fence};

/// An address range, or none. One thread writes at a time.
#[derive(Debug, Default)]
pub struct Place {
    /// Version; odd during a change.
    version: AtomicUsize,
    base: AtomicUsize,
    len: AtomicUsize,
}

impl Place {
    /// Sets the range to `len` bytes from `base` on; a length of 0 means none.
    pub fn set(&self, base: usize, len: usize) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        // A reader that sees a new value of either sees the odd version when it looks again.
        fence(Ordering::Release);
        self.base.store(base, Ordering::Relaxed);
        self.len.store(len, Ordering::Relaxed);
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }

    /// Returns base and length that were set together; `None` during a change.
    pub fn get(&self) -> Option<(usize, usize)> {
        let version = self.version.load(Ordering::Acquire);
        let range = (self.base.load(Ordering::Relaxed), self.len.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let same = self.version.load(Ordering::Relaxed) == version;
        (same && version.is_multiple_of(2)).then_some(range)
    }
}
