//! Reasons why a vif stopped, for `weir stats` and xenstore's `error` node.

use std::io;

use weir_netif::{RingError, SetupError};

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
