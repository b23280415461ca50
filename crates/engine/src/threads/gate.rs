//! A gate at which workers wait until the ports that they serve are complete.

use std::sync::{Condvar, Mutex, PoisonError};

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
