//! Frames of a link's own protocol, for the thread that speaks it. The switch never forwards them.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use weir_wire::{Head, Mac};

use super::burst::Frame;
use crate::threads::lock::lock;

/// The latest frame to one address that came in by a port. If a sender sends more frames than are
/// taken, each costs one copy.
#[derive(Debug)]
pub struct Inbox {
    dst: Mac,
    latest: Mutex<Option<Head>>,
    bell: Arc<OwnedFd>,
}

impl Inbox {
    /// Returns an inbox for frames to `dst` without a tag. `bell`, an eventfd, rings when one has
    /// come.
    pub fn new(dst: Mac, bell: Arc<OwnedFd>) -> Self {
        Self { dst, latest: Mutex::default(), bell }
    }

    /// The front of the latest frame since the last call.
    pub fn take(&self) -> Option<Head> {
        lock(&self.latest).take()
    }

    /// Notes the frames that are for the inbox.
    pub(crate) fn look(&self, frames: &[Frame]) {
        let is_its =
            |frame: &&Frame| frame.tag.is_none() && frame.head.as_slice().starts_with(&self.dst.0);
        let Some(frame) = frames.iter().rfind(is_its) else { return };
        let before = lock(&self.latest).replace(frame.head);
        if before.is_none() {
            // A full counter means that the bell rings already.
            let _ = rustix::io::write(&*self.bell, &1_u64.to_ne_bytes());
        }
    }
}
