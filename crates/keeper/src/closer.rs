//! Closing. What a front end has sent over its own connection is closed with that, and may be a socket that lingers or
//! a file of a server of its own: so each owner's descriptors are closed by a thread of that owner's, and one that does
//! not come back costs its owner room on the shelf, and nobody else anything.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// A thread with nothing to close ends after so long.
const IDLE: Duration = Duration::from_secs(1);

/// Who closes one owner's descriptors.
#[derive(Debug, Default)]
pub(crate) struct Closer {
    thread: Option<mpsc::Sender<OwnedFd>>,
    /// Handed over and not closed yet.
    open: Arc<AtomicUsize>,
}

impl Closer {
    /// Descriptors that are not closed yet.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }

    /// Has `descriptor` closed.
    pub(crate) fn close(&mut self, descriptor: OwnedFd) {
        self.open.fetch_add(1, Ordering::AcqRel);
        let descriptor = match &self.thread {
            None => descriptor,
            Some(thread) => match thread.send(descriptor) {
                Ok(()) => return,
                // It has just ended.
                Err(mpsc::SendError(descriptor)) => descriptor,
            },
        };
        let (sender, receiver) = mpsc::channel();
        let _ = sender.send(descriptor);
        let open = Arc::clone(&self.open);
        let thread = std::thread::Builder::new().name("closer".into()).stack_size(64 << 10);
        // Without a thread all is closed here, with the channel.
        let started = thread.spawn(move || close_all(&receiver, &open));
        self.thread = started.is_ok().then_some(sender);
        if self.thread.is_none() {
            self.open.store(0, Ordering::Release);
        }
    }
}

fn close_all(descriptors: &mpsc::Receiver<OwnedFd>, open: &AtomicUsize) {
    while let Ok(descriptor) = descriptors.recv_timeout(IDLE) {
        drop(descriptor);
        open.fetch_sub(1, Ordering::AcqRel);
    }
}
