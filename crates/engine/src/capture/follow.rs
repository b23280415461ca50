//! Follows frames through the switch, with the time of each stage: `weir trace --live`.
//!
//! While a client follows frames of a port, every port is wrapped in a `Tapped`. The sender's `Tapped` picks frames.
//! Each port that handles a picked frame notes the time; all notes on a frame are made by one thread. The notes are
//! sent to the reader when the sender has the frame's buffer back. The channel has room for all requested frames, so no
//! thread waits.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, sync_channel};

use weir_fabric::PortId;
use weir_filter::Program;
use weir_limits::FOLLOWED_MAX;

use super::CaptureError;
use crate::engine::Engine;
use crate::switching::switch::slot;
use crate::taps::followed::Live;
pub use crate::taps::followed::{Call, Did, Part, Way};
use crate::threads::lock::lock;
use crate::working::shared::Shared;

/// Frames that are followed until this value is dropped.
pub struct Following {
    shared: Arc<Shared>,
    live: Arc<Live>,
    ways: Receiver<Way>,
}

impl Engine {
    /// Begins to follow the next `frames` (at most [`FOLLOWED_MAX`]) from `sender` that `filter` matches, through all
    /// present ports.
    ///
    /// # Errors
    /// [`CaptureError`]; nothing has changed then.
    pub fn follow(
        &self,
        sender: PortId,
        filter: Option<Arc<Program>>,
        frames: u32,
    ) -> Result<Following, CaptureError> {
        let mut captured = lock(&self.shared.captured);
        if slot(&self.shared.ports.load(), sender).is_none() {
            return Err(CaptureError::NoSuchPort(sender));
        }
        if captured.follows() {
            return Err(CaptureError::Follows);
        }
        let frames = frames.min(FOLLOWED_MAX);
        let (sent, ways) = sync_channel(frames as usize);
        let live = Arc::new(Live { sender, filter, left: frames.into(), ways: sent });
        captured.set_live(&self.shared.ports, Some(Arc::clone(&live)));
        Ok(Following { shared: Arc::clone(&self.shared), live, ways })
    }
}

impl Following {
    /// The next frame whose path is complete, if there is one.
    pub fn next_way(&mut self) -> Option<Way> {
        self.ways.try_recv().ok()
    }

    /// The number of frames that are still to be followed.
    pub fn left(&self) -> u32 {
        self.live.left.load(Ordering::Relaxed)
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        lock(&self.shared.captured).set_live(&self.shared.ports, None);
    }
}
