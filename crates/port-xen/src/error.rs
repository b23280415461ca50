//! Why a vif stopped: what `weir stats` and xenstore's `error` node show.

use std::io;

use weir_netif::{RingError, SetupError};

/// The end of a front end's connection, or why there is none.
#[derive(Debug, thiserror::Error)]
pub enum StopReason {
    /// A ring's page cannot be mapped: the guest has not granted it.
    #[error("queue {queue}: {ring} ring: cannot map grant {reference}: {error}")]
    Map {
        /// The queue.
        queue: usize,
        /// Which ring.
        ring: &'static str,
        /// The grant reference that the guest named.
        reference: u32,
        /// What Xen said.
        error: io::Error,
    },
    /// An event channel cannot be bound: the guest has not made it.
    #[error("queue {queue}: {ring} ring: cannot bind event channel {port}: {error}")]
    Bind {
        /// The queue.
        queue: usize,
        /// Which ring.
        ring: &'static str,
        /// The port that the guest named.
        port: u32,
        /// What Xen said.
        error: io::Error,
    },
    /// What is in a ring's page is no ring.
    #[error("queue {queue}: {ring} ring: {error}")]
    Setup {
        /// The queue.
        queue: usize,
        /// Which ring.
        ring: &'static str,
        /// What is wrong.
        error: SetupError,
    },
    /// The guest's driver broke a ring.
    #[error("queue {queue}: {ring} ring: {error}")]
    Ring {
        /// The queue.
        queue: usize,
        /// Which ring.
        ring: &'static str,
        /// How.
        error: RingError,
    },
    /// Memory or descriptors could not be had.
    #[error("queue {queue}: {error}")]
    Resources {
        /// The queue.
        queue: usize,
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
        move |error| Self::Ring { queue, ring: "transmit", error }
    }

    /// The guest's driver broke the receive ring of a queue.
    pub(crate) fn rx(queue: usize) -> impl Fn(RingError) -> Self {
        move |error| Self::Ring { queue, ring: "receive", error }
    }
}
