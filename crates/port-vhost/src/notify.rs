//! Calls: how weir interrupts a guest, and how a front end hears of a broken ring.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use weir_calls::{Call, CallError, Kind};

use crate::error::{Refusal, StopReason};
use crate::port::VhostPort;

/// A descriptor of the front end's to call by. Nothing that it does to it makes [`Self::notify`] block.
#[derive(Debug)]
pub(crate) struct Notifier {
    call: Call,
    port: Weak<VhostPort>,
    ring: usize,
}

impl Notifier {
    /// Of vring `ring` of `port`. `what`: which of its descriptors.
    pub(crate) fn new(
        port: &Arc<VhostPort>,
        ring: usize,
        what: &'static str,
        fd: OwnedFd,
    ) -> Result<Self, Refusal> {
        let call = Call::new(fd, || port.proxy()).map_err(|error| Refusal::Call { what, error })?;
        Ok(Self { call, port: Arc::downgrade(port), ring })
    }

    /// Interrupts the guest.
    #[inline]
    pub(crate) fn notify(&self) {
        if let Err(error) = self.call.give() {
            self.failed(error);
        }
    }

    /// A guest that is not called waits for ever: better it is seen to have stopped.
    #[cold]
    fn failed(&self, error: CallError) {
        if let Some(port) = self.port.upgrade() {
            port.stop(&StopReason::Call { ring: self.ring, error });
        }
    }
}

/// Refuses what is not an eventfd. A worker's epoll set asks it whether it is readable, which an eventfd answers at
/// once; all front ends that exist kick by one, user-mode Linux too.
pub(crate) fn check_kick(fd: &OwnedFd) -> Result<(), Refusal> {
    match Kind::of(std::os::fd::AsFd::as_fd(fd)) {
        Ok(Kind::Eventfd) => Ok(()),
        Ok(kind) => Err(Refusal::Kick(kind)),
        Err(error) => Err(Refusal::Descriptor { what: "kick", error }),
    }
}
