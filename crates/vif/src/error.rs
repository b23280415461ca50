//! Errors of sessions and of sending.

use std::fmt;
use std::io;
use std::path::PathBuf;

use weir_guestmem::MemoryError;
use weir_limits::{FRAME_LEN_MAX, FRAME_LEN_MIN};
use weir_ring::SetupError;
use weir_vhost_user::{FrontEndError, Request};

use crate::features::{Features, OptionsError};

/// A request of the handshake, with its ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// The request.
    pub request: Request,
    /// The ring, for a request about one: ring 2n receives and ring 2n + 1 transmits for queue pair
    /// n.
    pub ring: Option<u32>,
}

impl fmt::Display for Step {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.request)?;
        match self.ring {
            Some(ring) => write!(out, " for ring {ring}"),
            None => Ok(()),
        }
    }
}

/// Reason why there is no session with the back end.
#[derive(Debug, thiserror::Error)]
pub enum VifError {
    /// The options are invalid.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// Nothing listens at the path.
    #[error("cannot connect to {path}: {source}")]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Accepting a connection failed.
    #[error("cannot accept a connection: {0}")]
    Accept(#[source] io::Error),
    /// A request of the handshake failed.
    #[error("the handshake failed at {step}: {source}")]
    Handshake {
        /// The request.
        step: Step,
        /// The failure.
        source: FrontEndError,
    },
    /// The back end lacks what [`Options::required`](crate::Options::required) demands.
    #[error("the back end does not offer {missing}")]
    Required {
        /// The missing features.
        missing: Features,
    },
    /// The back end took `FEATURES_OK` back (virtio 1.2 §3.1.1).
    #[error("the back end does not accept the features {features}")]
    FeaturesNotOk {
        /// The features requested.
        features: Features,
    },
    /// The back end has fewer queue pairs.
    #[error("the front end wants {wanted} queue pairs, the back end has {offered}")]
    QueuePairs {
        /// The number requested.
        wanted: usize,
        /// The number offered.
        offered: u64,
    },
    /// A system call for memory or an eventfd failed.
    #[error("{call} failed: {source}")]
    Os {
        /// The system call.
        call: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// Mapping the interface's own memory failed.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A ring does not fit its memory.
    #[error(transparent)]
    Ring(#[from] SetupError),
}

/// Reason why a frame was not sent. No part of it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The ring or the transmit buffers are full. [`QueuePair::wait`](crate::QueuePair::wait) for
    /// [`WaitFor::Transmit`](crate::WaitFor::Transmit), then try again.
    #[error("the transmit ring is full")]
    Full,
    /// Invalid length of a frame.
    #[error("the frame has {len} bytes, not {FRAME_LEN_MIN} to {FRAME_LEN_MAX}")]
    Length {
        /// Length of the frame (bytes).
        len: usize,
    },
    /// The frame needs an offload that was not negotiated (virtio 1.2 §5.1.6.2.1).
    #[error("the frame needs an offload that was not negotiated")]
    Offload,
    /// There is no such [`Body`](crate::Body), or it is shorter.
    #[error("bytes {start}..{end} are outside the body")]
    Body {
        /// First byte of the range.
        start: usize,
        /// End of the range, exclusive.
        end: usize,
    },
}
