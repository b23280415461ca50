//! The place of a mapping, written by its owner while others read it.
//!
//! The `SIGBUS` handler searches the places of all mappings, while other threads take and return theirs. A base of
//! one mapping with the length of another would name foreign addresses, so the handler skips a place that changes
//! during the read. This loses nothing: the mapping that it searches for is in use.

use super::atomic::{AtomicUsize, Ordering, fence};

/// An address range, or none. One thread writes at a time.
#[derive(Debug, Default)]
pub struct Place {
    /// Odd while it changes.
    version: AtomicUsize,
    base: AtomicUsize,
    len: AtomicUsize,
}

impl Place {
    /// Puts `len` bytes from `base` on in place of what was there; with a length of 0, nothing.
    pub fn set(&self, base: usize, len: usize) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        // Who reads one of the two as it is now sees the odd version when it looks again.
        fence(Ordering::Release);
        self.base.store(base, Ordering::Relaxed);
        self.len.store(len, Ordering::Relaxed);
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }

    /// Base and length that were set together; `None` while they change.
    pub fn get(&self) -> Option<(usize, usize)> {
        let version = self.version.load(Ordering::Acquire);
        let range = (self.base.load(Ordering::Relaxed), self.len.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let same = self.version.load(Ordering::Relaxed) == version;
        (same && version.is_multiple_of(2)).then_some(range)
    }
}
