//! Captures of ports' frames as pcapng: [`Switch::capture`](crate::Switch::capture) begins one, and [`Recording::write_to`] writes it.

mod pcapng;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use miette::Diagnostic;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_config::{Direction, Expression, PortName};
use weir_engine::Engine;
use weir_engine::capture::{Capture, CaptureError, Counted, Header, Wanted};
use weir_fabric::PortId;
use weir_limits::{CAPTURE_PORTS_MAX, FOLLOWED_MAX};

use crate::named::NoSuchPort;
use pcapng::Writer;
pub use pcapng::seen_in;

/// Sleeps of the writing thread after it found frames, and after it found none. Workers never wake the thread: a ring
/// holds new frames in the meantime.
const PAUSE: Duration = Duration::from_millis(1);
const PAUSE_IDLE: Duration = Duration::from_millis(5);

/// A request for a capture.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CaptureRequest {
    /// Interfaces and uplinks; one that is named twice counts once.
    pub ports: Vec<PortName>,
    /// Only frames that the ports send, or only frames that they receive; `None` for both.
    pub direction: Option<Direction>,
    /// Only frames that are dropped, each with the reason.
    #[serde(default)]
    pub drops: bool,
    /// Only frames that match this expression.
    #[serde(default)]
    #[schema(value_type = String)]
    pub filter: Expression,
    /// Bytes captured of each frame; `None` for all.
    pub snap_len: Option<u32>,
    /// Ends the capture after this many frames.
    pub frames_max: Option<u64>,
}

/// A captured frame, and the port that it was captured at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The port.
    pub port: PortName,
    /// The frame, or its beginning.
    pub frame: Vec<u8>,
}

/// The reason why a capture is refused.
#[derive(Debug, thiserror::Error, Diagnostic)]
pub enum CaptureRefused {
    /// There is no such port.
    #[error(transparent)]
    #[diagnostic(transparent)]
    NoSuchPort(#[from] NoSuchPort),
    /// The number of frames is outside the limits of a live trace.
    #[error("a live trace has 1 to {FOLLOWED_MAX} frames, not {0}")]
    Frames(u32),
    /// The server has no switch.
    #[error("there is nothing to capture here")]
    NoSwitch,
    /// The engine refuses.
    #[error(transparent)]
    Engine(#[from] CaptureError),
}

/// Counts of a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recorded {
    /// Frames in the file.
    pub written: u64,
    /// Frames that are missing because the reader was too slow.
    pub lost: u64,
}

/// A running capture. Its frames stay in rings of a few MiB until they are written.
pub struct Recording {
    capture: Capture,
    request: CaptureRequest,
    /// The offset from the data path's clock to the time since 1970.
    epoch_ns: u64,
}

/// The offset from the data path's clock to the time since 1970 (ns).
pub(crate) fn epoch_ns() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now_ns = now.map_or(0, |now| now.as_nanos() as u64); // until the year 2554
    now_ns.saturating_sub(weir_engine::clock::now_ns())
}

impl Recording {
    /// Begins to copy frames of the ports of `request`. `port_id` gives the number of each port.
    ///
    /// # Errors
    /// [`CaptureRefused`]
    pub(crate) fn begin(
        engine: &Engine,
        mut request: CaptureRequest,
        port_id: impl Fn(&PortName) -> Result<PortId, NoSuchPort>,
    ) -> Result<Self, CaptureRefused> {
        // The list is checked before duplicates are removed, because nobody writes a list of thousands by hand.
        if request.ports.len() > CAPTURE_PORTS_MAX {
            return Err(CaptureError::Ports(request.ports.len()).into());
        }
        let mut seen = BTreeSet::new();
        request.ports.retain(|name| seen.insert(name.clone()));
        let numbers = request.ports.iter().map(port_id);
        let ports = numbers.collect::<Result<Vec<_>, _>>()?;
        let is_wanted = |direction| request.direction.is_none_or(|only| only == direction);
        let wanted = Wanted {
            tx: is_wanted(Direction::Tx) && !request.drops,
            rx: is_wanted(Direction::Rx) && !request.drops,
            drops: request.drops,
            filter: (!request.filter.is_empty()).then(|| request.filter.program()),
            snap_len: request.snap_len.unwrap_or(u32::MAX),
        };
        let capture = engine.capture(&ports, &wanted)?;
        Ok(Self { capture, request, epoch_ns: epoch_ns() })
    }

    /// Writes pcapng until `goes_on` returns false, `out` fails, or the requested number of frames
    /// is written. The switch never waits for this function.
    ///
    /// # Errors
    /// The error of `out`; a reader ends a capture with a broken pipe.
    pub fn write_to(
        mut self,
        out: impl io::Write,
        mut goes_on: impl FnMut() -> bool,
    ) -> io::Result<Recorded> {
        let mut writer = Writer::begin(out, &self.request)?;
        let mut left = self.request.frames_max.unwrap_or(u64::MAX);
        let mut said = Vec::new();
        loop {
            let ends = left == 0 || !goes_on();
            if ends {
                self.capture.stop();
            }
            let read = self.read_into(&mut writer, &mut left)?;
            let counted = self.capture.counted();
            if counted.iter().map(unwritten).ne(said.iter().map(unwritten)) {
                // The statistics tell the reader about lost frames even if the reader stops now.
                writer.statistics(self.world_ns(), &counted)?;
                said = counted;
            }
            writer.flush()?;
            if ends && read == 0 || left == 0 {
                break;
            }
            if read == 0 {
                std::thread::sleep(PAUSE_IDLE);
            } else if read < Capture::READ_MAX {
                std::thread::sleep(PAUSE);
            }
        }
        self.capture.stop();
        let counted = self.capture.counted();
        writer.statistics(self.world_ns(), &counted)?;
        writer.flush()?;
        let lost = counted.iter().map(|counted| counted.lost).sum();
        Ok(Recorded { written: writer.written(), lost })
    }

    fn read_into<W: io::Write>(
        &mut self,
        writer: &mut Writer<W>,
        left: &mut u64,
    ) -> io::Result<usize> {
        let epoch_ns = self.epoch_ns;
        self.capture.read(|header: &Header, bytes: &[u8]| {
            if *left > 0 {
                *left -= 1;
                writer.frame(header, epoch_ns, bytes)?;
            }
            Ok(())
        })
    }

    fn world_ns(&self) -> u64 {
        self.epoch_ns + weir_engine::clock::now_ns()
    }
}

/// Counts of a port's frames that are missing from the file.
fn unwritten(counted: &Counted) -> (u64, &[(weir_engine::DropReason, u64)]) {
    (counted.lost, &counted.unseen_drops)
}
