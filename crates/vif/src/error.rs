//! Why there is no session, and why a frame was not sent.

use std::fmt;
use std::io;
use std::path::PathBuf;

use weir_guestmem::MemoryError;
use weir_limits::{FRAME_LEN_MAX, FRAME_LEN_MIN};
use weir_ring::SetupError;
use weir_vhost_user::{FrontEndError, Request};

use crate::features::Features;
use crate::options::OptionsError;

/// A request of the handshake, with the ring it is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// The request.
    pub request: Request,
    /// The ring, if it is about one: 2n receives and 2n + 1 transmits for queue pair n.
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

/// Why there is no session with the back end.
#[derive(Debug, thiserror::Error)]
pub enum VifError {
    /// The options make no interface.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// Nobody listens at the path.
    #[error("cannot connect to {path}: {source}")]
    Connect {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// No connection came in.
    #[error("cannot accept a connection: {0}")]
    Accept(#[source] io::Error),
    /// A request of the handshake failed.
    #[error("the handshake failed at {step}: {source}")]
    Handshake {
        /// Which one.
        step: Step,
        /// How.
        source: FrontEndError,
    },
    /// The back end lacks what [`Options::required`](crate::Options::required) demands.
    #[error("the back end does not offer {missing}")]
    Required {
        /// What it lacks.
        missing: Features,
    },
    /// The back end took `FEATURES_OK` back (virtio 1.2 §3.1.1).
    #[error("the back end does not accept the features {features}")]
    FeaturesNotOk {
        /// What was asked for.
        features: Features,
    },
    /// The back end has fewer queue pairs.
    #[error("the front end wants {wanted} queue pairs, the back end has {offered}")]
    QueuePairs {
        /// What was asked for.
        wanted: usize,
        /// What there are.
        offered: u64,
    },
    /// A system call for memory or an eventfd failed.
    #[error("{call} failed: {source}")]
    Os {
        /// The system call.
        call: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The interface's own memory could not be mapped.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A ring does not fit its place.
    #[error(transparent)]
    Ring(#[from] SetupError),
}

/// Why a frame was not sent. Nothing of it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The ring or the transmit buffers are in use; [`QueuePair::wait`](crate::QueuePair::wait)
    /// for [`WaitFor::Transmit`](crate::WaitFor::Transmit) and try again.
    #[error("the transmit ring is full")]
    Full,
    /// No frame has this length.
    #[error("the frame has {len} bytes, not {FRAME_LEN_MIN} to {FRAME_LEN_MAX}")]
    Length {
        /// Bytes.
        len: usize,
    },
    /// The frame leaves something to the device that it was not asked about (virtio 1.2
    /// §5.1.6.2.1).
    #[error("the frame needs an offload that was not negotiated")]
    Offload,
    /// No such [`Body`](crate::Body), or it is shorter.
    #[error("bytes {start}..{end} are outside the body")]
    Body {
        /// First byte asked for.
        start: usize,
        /// Behind the last one.
        end: usize,
    },
}
