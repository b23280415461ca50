//! Waits of threads for workers, and of workers for ports: a bell that rings when traffic begins, and a gate.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Condvar, Mutex, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

/// A bell that the next worker to wake up rings, if a thread has asked for it.
///
/// A worker counts its wake-up, then checks for a request. The requester asks first, then checks the wake-ups
/// ([`Engine::ring_at_traffic`](crate::Engine::ring_at_traffic)). One of the two sees the other, so no start of
/// traffic is missed. The cost is nothing per frame, and a fence per sleep.
pub(crate) struct Activity {
    asked: AtomicBool,
    bell: OwnedFd,
}

impl Activity {
    pub(crate) fn new() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { asked: AtomicBool::new(false), bell })
    }

    /// A worker woke up, and has counted that.
    pub(crate) fn worker_woke(&self) {
        fence(Ordering::SeqCst);
        if self.asked.load(Ordering::Relaxed) && self.asked.swap(false, Ordering::Relaxed) {
            // A full counter means that the bell rings already.
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }

    /// Asks the next worker that wakes up to ring.
    pub(crate) fn ask(&self) {
        // A ring that nobody has read belongs to an earlier request.
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        self.asked.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Withdraws the request.
    pub(crate) fn withdraw(&self) {
        self.asked.store(false, Ordering::Relaxed);
    }

    /// A descriptor that is readable after the bell rang.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// A gate that is open, or closed until it is opened.
pub(crate) struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    pub(crate) fn new(open: bool) -> Self {
        Self { open: Mutex::new(open), opened: Condvar::new() }
    }

    pub(crate) fn open(&self) {
        *self.open.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.opened.notify_all();
    }

    /// Waits until the gate is open.
    pub(crate) fn pass(&self) {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.opened.wait_while(open, |open| !*open));
    }
}
