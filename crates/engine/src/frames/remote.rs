//! Payload that stays with its sender until it is read.
//!
//! A port can take frames without payload, if other ports can get the bytes later without weir's memory: Xen copies
//! from grant to grant. The slices of such frames are the memory for the bytes if weir has to read them, and hold other
//! frames' bytes until then. So a reader first fetches all that it will read, with one call:
//! [`Forwarder`](crate::switching::switch::Forwarder) for a port that does not [copy from there](crate::Port::copies_remote),
//! filters that read beyond the front, and [`EgressList`](crate::frames::gro::EgressList) for checksums, segments and merging.

use std::any::Any;
use std::cell::Cell;
use std::fmt::Debug;

use crate::frames::burst::Burst;

/// The owner of frames' payload: the sending port's queue.
pub trait Remote: Any + Debug {
    /// Copies the payload of `frames` (bit i: frame i of `burst`) to their slices with one system call. Returns the
    /// frames for which that failed.
    fn fetch(&self, burst: &Burst<'_>, frames: u64) -> u64;
}

/// The part of a burst that is still with its sender.
#[derive(Debug, Clone)]
pub(crate) struct Away<'m> {
    remote: &'m (dyn Remote + 'static),
    /// Bit i: the payload of frame i is with the sender.
    frames: Cell<u64>,
    /// Bit i: the payload of frame i could not be fetched, so the frame is dropped.
    lost: Cell<u64>,
}

impl<'m> Burst<'m> {
    /// Notes that the payload of `frames` (bit i: frame i) is with `remote`.
    pub fn leave_with(&mut self, remote: &'m (dyn Remote + 'static), frames: u64) {
        self.away = Some(Away { remote, frames: frames.into(), lost: 0.into() });
    }

    /// The owner of this burst's payload, for ports that copy from there.
    #[inline]
    pub fn remote(&self) -> Option<&'m (dyn Remote + 'static)> {
        self.away.as_ref().map(|away| away.remote)
    }

    /// Makes the payload of `frames` readable, except for frames that are [`lost`](Self::lost) afterwards.
    pub fn fetch(&self, frames: u64) {
        let Some(away) = &self.away else { return };
        let wanted = frames & away.frames.get();
        if wanted != 0 {
            let lost = away.remote.fetch(self, wanted);
            away.frames.set(away.frames.get() & !wanted);
            away.lost.set(away.lost.get() | lost);
        }
    }

    /// Frames whose payload could not be fetched (bit i: frame i). They are not delivered; their taker counts them.
    #[inline]
    pub fn lost(&self) -> u64 {
        self.away.as_ref().map_or(0, |away| away.lost.get())
    }
}
