//! Workers that wait until all is there that they are to serve.

use std::sync::{Condvar, Mutex, PoisonError};

/// Open, or closed until it is opened.
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

    /// Until it is open.
    pub(crate) fn pass(&self) {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.opened.wait_while(open, |open| !*open));
    }
}
