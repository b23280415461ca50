//! Eventfds: kicks, calls and errors.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

/// A non-blocking eventfd.
#[derive(Debug)]
pub(crate) struct Event(OwnedFd);

impl Event {
    pub(crate) fn new() -> Result<Self, Errno> {
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(Self)
    }

    /// Duplicates the descriptor.
    pub(crate) fn again(&self) -> std::io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    /// Adds one signal.
    pub(crate) fn signal(&self) {
        // EAGAIN means that 2^64 - 2 signals are waiting; one more adds nothing.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Takes all signals, and returns their number.
    pub(crate) fn drain(&self) -> u64 {
        let mut count = [0; 8];
        match rustix::io::read(&self.0, &mut count) {
            Ok(8) => u64::from_ne_bytes(count),
            // EAGAIN: no signal.
            _ => 0,
        }
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
