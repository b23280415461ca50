//! Why a vif stopped: what `weir stats` and xenstore's `error` node show.

use std::io;

use weir_netif::{RingError, SetupError};

/// One of a vif's rings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ring {
    /// That of a transmit queue, by number.
    Transmit(usize),
    /// That of a receive queue, by number.
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

/// The end of a front end's connection, or why there is none.
#[derive(Debug, thiserror::Error)]
pub enum StopReason {
    /// A ring's page cannot be mapped: the guest has not granted it.
    #[error("{ring}: cannot map grant {reference}: {error}")]
    Map {
        /// Which ring.
        ring: Ring,
        /// The grant reference that the guest named.
        reference: u32,
        /// What Xen said.
        error: io::Error,
    },
    /// An event channel cannot be bound: the guest has not made it.
    #[error("{ring}: cannot bind event channel {port}: {error}")]
    Bind {
        /// Which ring.
        ring: Ring,
        /// The port that the guest named.
        port: u32,
        /// What Xen said.
        error: io::Error,
    },
    /// What is in a ring's page is no ring.
    #[error("{ring}: {error}")]
    Setup {
        /// Which ring.
        ring: Ring,
        /// What is wrong.
        error: SetupError,
    },
    /// The guest's driver broke a ring.
    #[error("{ring}: {error}")]
    Ring {
        /// Which ring.
        ring: Ring,
        /// How.
        error: RingError,
    },
    /// Memory or descriptors could not be had.
    #[error("{ring}: {error}")]
    Resources {
        /// The ring that they are for.
        ring: Ring,
        /// What the system said.
        error: io::Error,
    },
    /// weir's own fault.
    #[error("{0}")]
    Internal(String),
}

impl StopReason {
    /// The guest's driver broke the transmit ring of a queue.
    pub(crate) fn tx(queue: usize) -> impl Fn(RingError) -> Self {
        move |error| Self::Ring { ring: Ring::Transmit(queue), error }
    }

    /// The guest's driver broke the receive ring of a queue.
    pub(crate) fn rx(queue: usize) -> impl Fn(RingError) -> Self {
        move |error| Self::Ring { ring: Ring::Receive(queue), error }
    }
}

/// The port was stopped, which has said why.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stopped;
