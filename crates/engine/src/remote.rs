//! Payload that stays with its sender until somebody reads it.
//!
//! A port may take frames without payload, if other ports can get the bytes later without passing through weir's
//! memory: Xen copies from grant to grant. The slices of such frames are where the bytes go if somebody has to read
//! them, and hold other frames' bytes until then. So a reader first fetches all that it will read, with one call:
//! [`Forwarder`](crate::switch::Forwarder) for a port that does not [copy from there](crate::Port::copies_remote),
//! filters that look beyond the front, and [`EgressList`](crate::gro::EgressList) for checksums, segments and
//! merging.

use std::any::Any;
use std::cell::Cell;
use std::fmt::Debug;

use crate::burst::Burst;

/// Who has the payload of frames: the sending port's queue.
pub trait Remote: Any + Debug {
    /// Brings the payload of `frames` (bit i: frame i of `burst`) to their slices with one system call. Returns the
    /// failed ones.
    fn fetch(&self, burst: &Burst<'_>, frames: u64) -> u64;
}

/// What of a burst is with its sender.
#[derive(Debug, Clone)]
pub(crate) struct Away<'m> {
    remote: &'m (dyn Remote + 'static),
    /// Bit i: the payload of frame i is there.
    frames: Cell<u64>,
    /// Bit i: and could not be fetched, so that the frame goes nowhere.
    lost: Cell<u64>,
}

impl<'m> Burst<'m> {
    /// The payload of `frames` (bit i: frame i) is with `remote`.
    pub fn leave_with(&mut self, remote: &'m (dyn Remote + 'static), frames: u64) {
        self.away = Some(Away { remote, frames: frames.into(), lost: 0.into() });
    }

    /// Who has payload of this burst, for ports that copy from there.
    #[inline]
    pub fn remote(&self) -> Option<&'m (dyn Remote + 'static)> {
        self.away.as_ref().map(|away| away.remote)
    }

    /// Makes the payload of `frames` readable, but for those that are [`lost`](Self::lost) after that.
    pub fn fetch(&self, frames: u64) {
        let Some(away) = &self.away else { return };
        let wanted = frames & away.frames.get();
        if wanted != 0 {
            let lost = away.remote.fetch(self, wanted);
            away.frames.set(away.frames.get() & !wanted);
            away.lost.set(away.lost.get() | lost);
        }
    }

    /// Frames whose payload was gone (bit i: frame i). They are not delivered; their taker counts them.
    #[inline]
    pub fn lost(&self) -> u64 {
        self.away.as_ref().map_or(0, |away| away.lost.get())
    }
}
