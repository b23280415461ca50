//! Copies of frames for an observer: `weir capture`.
//!
//! A captured port is in the table of ports behind a `Tapped`, which copies the frames that the
//! port takes and delivers. So a port without a capture costs nothing more, not even a check for
//! one. Drops are copied at the place that counts them.
//!
//! Workers never wait for the reader. Each writes into its own ring; a frame without room there is
//! counted instead of copied. The sender of a frame pays for its copies, as it pays for its
//! delivery.
//!
//! [`mirror`] delivers copies to another port. [`follow`] uses the same means at every port for some frames of one
//! sender: `weir trace --live`.

pub mod follow;
pub mod mirror;

use std::sync::Arc;

use weir_fabric::PortId;
use weir_limits::{CAPTURE_PORTS_MAX, CAPTURES_MAX, MIRRORS_MAX};

use crate::engine::Engine;
use crate::switching::switch::slot;
pub use crate::taps::tap::{Counted, Wanted};
pub use crate::taps::tap::{Direction, Header};
use crate::taps::tap::{Drain, Tap, lanes};
use crate::threads::lock::lock;
use crate::working::shared::Shared;

/// The reason why nothing is captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CaptureError {
    /// The maximum of captures run already.
    #[error("{CAPTURES_MAX} captures run, and no more are allowed")]
    TooMany,
    /// There is no port, or more than a capture can have.
    #[error("a capture has 1 to {CAPTURE_PORTS_MAX} ports, not {0}")]
    Ports(usize),
    /// A port does not exist.
    #[error("{0} is not there")]
    NoSuchPort(PortId),
    /// The maximum of mirrors run already.
    #[error("{MIRRORS_MAX} mirrors run, and no more are allowed")]
    TooManyMirrors,
    /// The mirror would copy its own copies.
    #[error("a port cannot mirror itself")]
    Itself,
    /// The system has no thread for the mirror.
    #[error("there is no thread for a mirror")]
    NoThread,
    /// Frames are being followed already.
    #[error("a live trace runs, and no more are allowed")]
    Follows,
}

/// Copies of frames of some ports, until the value is dropped.
pub struct Capture {
    shared: Arc<Shared>,
    taps: Vec<(PortId, Arc<Tap>)>,
    drains: Vec<Drain>,
    bytes: Vec<u8>,
    for_mirror: bool,
}

impl Engine {
    /// Begins to copy frames of `ports`; a port's number is its index in this list.
    ///
    /// # Errors
    /// [`CaptureError`]; nothing has changed then.
    pub fn capture(&self, ports: &[PortId], wanted: &Wanted) -> Result<Capture, CaptureError> {
        self.begin(ports, wanted, false)
    }

    fn begin(
        &self,
        ports: &[PortId],
        wanted: &Wanted,
        for_mirror: bool,
    ) -> Result<Capture, CaptureError> {
        if ports.is_empty() || ports.len() > CAPTURE_PORTS_MAX {
            return Err(CaptureError::Ports(ports.len()));
        }
        let mut captured = lock(&self.shared.captured);
        let table = self.shared.ports.load();
        if let Some(gone) = ports.iter().find(|port| slot(&table, **port).is_none()) {
            return Err(CaptureError::NoSuchPort(*gone));
        }
        match for_mirror {
            false if captured.captures >= CAPTURES_MAX => return Err(CaptureError::TooMany),
            true if captured.mirrors >= MIRRORS_MAX => return Err(CaptureError::TooManyMirrors),
            false => captured.captures += 1,
            true => captured.mirrors += 1,
        }
        let (lanes, drains) = lanes(self.shared.crew.iter().count());
        let tap = |(number, port): (u16, &PortId)| {
            (*port, Arc::new(Tap::new(wanted.clone(), number, Arc::clone(&lanes))))
        };
        let taps: Vec<_> = (0..).zip(ports).map(tap).collect();
        for (port, tap) in &taps {
            captured.change(&self.shared.ports, *port, |taps| taps.push(Arc::clone(tap)));
        }
        let (shared, bytes) = (Arc::clone(&self.shared), Vec::new());
        Ok(Capture { shared, taps, drains, bytes, for_mirror })
    }
}

impl Capture {
    /// Most frames that one [`read`](Self::read) passes on: there may be more.
    pub const READ_MAX: usize = 4096;

    /// Passes on the new copies of the workers, [`READ_MAX`](Self::READ_MAX) frames at most, and returns how many. They
    /// are in the order of time, except frames of different workers that were copied during the call.
    pub fn read<E>(
        &mut self,
        each: impl FnMut(&Header, &[u8]) -> Result<(), E>,
    ) -> Result<usize, E> {
        self.read_at_most(Self::READ_MAX, each)
    }

    fn read_at_most<E>(
        &mut self,
        frames: usize,
        mut each: impl FnMut(&Header, &[u8]) -> Result<(), E>,
    ) -> Result<usize, E> {
        for read in 0..frames {
            let timed = |(n, drain): (usize, &mut Drain)| drain.peek().map(|at_ns| (at_ns, n));
            let Some((_, first)) = self.drains.iter_mut().enumerate().filter_map(timed).min()
            else {
                return Ok(read);
            };
            if let Some(header) = self.drains[first].pop(&mut self.bytes) {
                each(&header, &self.bytes)?;
            }
        }
        Ok(frames)
    }

    /// The counts, by the ports' numbers.
    pub fn counted(&self) -> Vec<Counted> {
        self.taps.iter().map(|(_, tap)| tap.counted()).collect()
    }

    /// Ends the copying. Frames that were copied can still be read.
    pub fn stop(&mut self) {
        let mut captured = lock(&self.shared.captured);
        for (port, tap) in &self.taps {
            captured.change(&self.shared.ports, *port, |taps| {
                taps.retain(|other| !Arc::ptr_eq(other, tap));
            });
        }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.stop();
        let mut captured = lock(&self.shared.captured);
        match self.for_mirror {
            false => captured.captures -= 1,
            true => captured.mirrors -= 1,
        }
    }
}
