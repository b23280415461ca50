//! A ring's access to Xen and to the guest at its other end. Also the reasons why a vif stopped, and their reports from
//! workers to the thread that follows xenstore: for `weir stats` and xenstore's `error` node.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use rustix::event::{EventfdFlags, eventfd};
use weir_engine::lock;
use weir_netif::{BackRing, RingError, SetupError};
use weir_xen::vif::VifId;
use weir_xen::{CopySegment, DomainId, EventChannel, Hypervisor};

/// A ring's guest, and the hypervisor to reach it.
#[derive(Clone)]
pub(crate) struct Link {
    pub(crate) domain: DomainId,
    pub(crate) hypervisor: Arc<dyn Hypervisor>,
    pub(crate) channel: Arc<dyn EventChannel>,
}

impl Link {
    /// Copies a burst. Returns `false` if the result is unknown.
    pub(crate) fn copy(&self, segments: &mut [CopySegment<'_>]) -> bool {
        match segments {
            [] => true,
            segments => self.hypervisor.copy(segments).is_ok(),
        }
    }

    /// Interrupts the guest.
    pub(crate) fn notify(&self) {
        // A channel whose other end was closed interrupts nobody; xenstore reports the end.
        let _ = self.channel.notify();
    }

    /// Interrupts the guest if `ring` has unannounced responses and the guest wants an event. Returns true if it did;
    /// `None` if there are none.
    pub(crate) fn call_if_wanted<const SLOT: usize>(
        &self,
        ring: &mut BackRing<SLOT>,
    ) -> Option<bool> {
        if ring.unannounced() == 0 {
            return None;
        }
        let wanted = ring.needs_notify();
        if wanted {
            self.notify();
        }
        Some(wanted)
    }

    /// Returns the channel, for the caller to wait on its events.
    pub(crate) fn channel(&self) -> Arc<dyn EventChannel> {
        Arc::clone(&self.channel)
    }

    /// Acknowledges an event, so that the next one is reported.
    pub(crate) fn acknowledge(&self) -> io::Result<bool> {
        self.channel.acknowledge()
    }
}

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

/// One of a vif's rings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ring {
    /// Ring of a transmit queue, by number.
    Transmit(usize),
    /// Ring of a receive queue, by number.
    Receive(usize),
    /// The control ring.
    Control,
}

impl std::fmt::Display for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Transmit(queue) => write!(f, "queue {queue}: transmit ring"),
            Self::Receive(queue) => write!(f, "queue {queue}: receive ring"),
            Self::Control => f.write_str("control ring"),
        }
    }
}

/// Reason why a front end's connection ended or failed.
#[derive(Debug, thiserror::Error)]
pub enum StopReason {
    /// A ring's page cannot be mapped: the guest has not granted it.
    #[error("{ring}: cannot map grant {reference}: {error}")]
    Map {
        /// The ring.
        ring: Ring,
        /// The guest's grant reference.
        reference: u32,
        /// Xen's error.
        error: io::Error,
    },
    /// An event channel cannot be bound: the guest has not made it.
    #[error("{ring}: cannot bind event channel {port}: {error}")]
    Bind {
        /// The ring.
        ring: Ring,
        /// The guest's port.
        port: u32,
        /// Xen's error.
        error: io::Error,
    },
    /// The content of a ring's page is invalid.
    #[error("{ring}: {error}")]
    Setup {
        /// The ring.
        ring: Ring,
        /// The fault.
        error: SetupError,
    },
    /// The guest's driver broke a ring.
    #[error("{ring}: {error}")]
    Ring {
        /// The ring.
        ring: Ring,
        /// The fault.
        error: RingError,
    },
    /// Memory or descriptors are exhausted.
    #[error("{ring}: {error}")]
    Resources {
        /// The ring that needed them.
        ring: Ring,
        /// The system's error.
        error: io::Error,
    },
    /// A fault of weir itself.
    #[error("{0}")]
    Internal(String),
}

impl StopReason {
    /// Makes the error that the guest's driver broke the transmit ring of a queue.
    pub(crate) fn tx(queue: usize) -> impl Fn(RingError) -> Self {
        move |error| Self::Ring { ring: Ring::Transmit(queue), error }
    }

    /// Makes the error that the guest's driver broke the receive ring of a queue.
    pub(crate) fn rx(queue: usize) -> impl Fn(RingError) -> Self {
        move |error| Self::Ring { ring: Ring::Receive(queue), error }
    }
}

/// The port was stopped, and the reason reported.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stopped;
