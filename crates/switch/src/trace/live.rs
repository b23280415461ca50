//! `weir trace --live`: frames as they pass, with the time of each stage, in words.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_config::{Expression, PortName};
use weir_engine::Engine;
use weir_engine::capture::follow::{Call, Did, Following, Part, Way};
use weir_fabric::PortId;
use weir_limits::FOLLOWED_MAX;

use super::TraceStep;
use crate::capture::{CaptureRefused, epoch_ns};
use crate::named::NoSuchPort;

/// The sleep of the writing thread when there is nothing to write. Workers never wake it.
const PAUSE: Duration = Duration::from_millis(5);
/// The wait after the last frame was picked. A frame whose burst panicked never arrives.
const PATIENCE: Duration = Duration::from_secs(1);

/// A request to follow frames.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FollowRequest {
    /// Only frames that match this expression.
    #[serde(default)]
    #[schema(value_type = String)]
    pub filter: Expression,
    /// The number of frames.
    pub frames: u32,
}

/// A frame that was followed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FollowedFrame {
    /// The time when a worker began to read the sender's queue, in ns since 1970.
    pub at_ns: u64,
    /// The frame's length, including its VLAN tag.
    pub length: u32,
    /// The frame's first bytes, as hexadecimal digits.
    pub front: String,
    /// The stages.
    pub steps: Vec<FollowedStep>,
}

/// A stage with its time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FollowedStep {
    /// The time when the stage was reached, in ns since `at_ns`.
    pub after_ns: u64,
    /// The stage.
    #[serde(flatten)]
    pub step: TraceStep,
}

/// Frames that are being followed.
pub struct LiveTrace {
    following: Following,
    frames: u32,
    words: Words,
    epoch_ns: u64,
}

impl LiveTrace {
    /// Begins to follow the next frames that `sender` sends and that match, through `ports`.
    ///
    /// # Errors
    /// [`CaptureRefused`]
    pub(crate) fn begin(
        engine: &Engine,
        request: &FollowRequest,
        sender: Result<PortId, NoSuchPort>,
        ports: Vec<(PortId, PortName, bool)>,
        overlay: Option<PortId>,
    ) -> Result<Self, CaptureRefused> {
        let frames = request.frames;
        if !(1..=FOLLOWED_MAX).contains(&frames) {
            return Err(CaptureRefused::Frames(frames));
        }
        let sender = sender?;
        let filter = (!request.filter.is_empty()).then(|| request.filter.program());
        let following = engine.follow(sender, filter, frames)?;
        let words = Words { ports, sender, overlay };
        Ok(Self { following, frames, words, epoch_ns: epoch_ns() })
    }

    /// Writes each frame as a line of JSON, until the requested number is written, `goes_on` returns false, or `out`
    /// fails; returns the number of written frames.
    ///
    /// # Errors
    /// The error of `out`; a reader ends the trace with a broken pipe.
    pub fn write_to(
        mut self,
        mut out: impl Write,
        mut goes_on: impl FnMut() -> bool,
    ) -> io::Result<u32> {
        let (mut written, mut last) = (0, Instant::now());
        while written < self.frames && goes_on() {
            if let Some(way) = self.following.next_way() {
                let mut line = serde_json::to_vec(&self.words.tell(&way, self.epoch_ns))?;
                line.push(b'\n');
                out.write_all(&line)?;
                (written, last) = (written + 1, Instant::now());
            } else if self.following.left() == 0 && last.elapsed() > PATIENCE {
                break;
            } else {
                out.flush()?;
                std::thread::sleep(PAUSE);
            }
        }
        out.flush()?;
        Ok(written)
    }
}

/// Ports by their numbers: their names, with a flag that is true for guests.
struct Words {
    ports: Vec<(PortId, PortName, bool)>,
    sender: PortId,
    overlay: Option<PortId>,
}

impl Words {
    fn of(&self, id: PortId) -> (String, bool) {
        let known = self.ports.iter().find(|(other, ..)| *other == id);
        known.map_or_else(
            || (format!("port {id}"), false),
            |(_, name, vif)| (name.to_string(), *vif),
        )
    }

    fn tell(&self, way: &Way, epoch_ns: u64) -> FollowedFrame {
        let (sender, _) = self.of(self.sender);
        let at_sender = |at_ns, stage, says| step(at_ns, stage, &sender, says);
        let others = match way.burst {
            1 => "alone".into(),
            frames => format!("in a burst of {frames} frames"),
        };
        let mut steps = vec![
            at_sender(
                way.begun_ns,
                "reads",
                format!("a worker reads transmit queue {}", way.queue),
            ),
            at_sender(way.taken_ns, "taken", format!("read and checked, {others}")),
        ];
        steps.extend(way.parts.iter().flat_map(|part| self.part(part)));
        if way.more > 0 {
            steps.push(at_sender(way.returned_ns, "more", format!("and {} more ports", way.more)));
        }
        if !way.parts.iter().any(|part| part.did == Did::Waits) {
            let says = "the sender has its buffer back".into();
            steps.push(at_sender(way.returned_ns, "returned", says));
        }
        for step in &mut steps {
            step.after_ns = step.after_ns.saturating_sub(way.begun_ns);
        }
        let mut front = String::new();
        for byte in &way.front {
            let _ = write!(front, "{byte:02x}");
        }
        FollowedFrame { at_ns: epoch_ns + way.begun_ns, length: way.len, front, steps }
    }

    fn part(&self, part: &Part) -> Vec<FollowedStep> {
        let (port, is_guest) = self.of(part.port);
        let at_ns = part.at_ns;
        match part.did {
            Did::Delivered { queue, done_ns, call } => {
                let begins = format!("goes into receive queue {queue}");
                let says = match is_guest {
                    true => format!("the guest has the frame{}", called(call, done_ns)),
                    false if Some(part.port) == self.overlay => {
                        "the frame is on its way to other hosts".into()
                    }
                    false => "the interface of the host has the frame".into(),
                };
                vec![
                    step(at_ns, "delivery", &port, begins),
                    step(done_ns, "delivered", &port, says),
                ]
            }
            Did::Dropped(reason) => {
                let reason = reason.as_str();
                let says = format!("the frame ends here, counted as {reason}");
                let mut dropped = step(at_ns, "dropped", &port, says);
                dropped.step.dropped = Some(reason.into());
                vec![dropped]
            }
            Did::Waits => {
                let says = "there are no buffers: the frame waits in its sender's memory".into();
                vec![step(at_ns, "waits", &port, says)]
            }
        }
    }
}

fn step(after_ns: u64, stage: &'static str, port: &str, says: String) -> FollowedStep {
    let step = TraceStep { stage: stage.into(), port: port.to_owned(), says, dropped: None };
    FollowedStep { after_ns, step }
}

fn called(call: Call, done_ns: u64) -> String {
    match call {
        Call::Made => " and is called".into(),
        Call::Unwanted => "; it looks by itself and wants no call".into(),
        Call::Held(until_ns) => {
            format!(" and is called within {} us", until_ns.saturating_sub(done_ns) / 1000)
        }
        Call::None => "; a call is due already".into(),
    }
}
