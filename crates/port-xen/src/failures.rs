//! Reports of stopped vifs, from workers to the thread that follows xenstore.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use rustix::event::{EventfdFlags, eventfd};
use weir_engine::lock;
use weir_xen::vif::VifId;

/// Vifs that workers have stopped, and the eventfd that wakes the thread.
pub(crate) struct Failures {
    pub(crate) wake: OwnedFd,
    pub(crate) stopping: AtomicBool,
    pub(crate) reports: Mutex<Vec<(VifId, String)>>,
}

impl Failures {
    pub(crate) fn new() -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { wake, stopping: AtomicBool::new(false), reports: Mutex::default() })
    }

    /// Reports that a guest has lost its vif.
    pub(crate) fn report(&self, vif: VifId, reason: String) {
        lock(&self.reports).push((vif, reason));
        self.wake();
    }

    /// Drops unhandled reports of a vif.
    pub(crate) fn forget(&self, vif: VifId) {
        lock(&self.reports).retain(|(of, _)| *of != vif);
    }

    pub(crate) fn wake(&self) {
        // A full counter means that the thread wakes anyway.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}
