//! `weir trace`: the path of a frame through the switch, stage by stage.

mod live;
#[cfg(test)]
mod tests;
mod words;

use std::borrow::Cow;

use miette::Diagnostic;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_config::PortName;
use weir_limits::{FRAME_LEN_MAX, FRAME_LEN_MIN};

use crate::control::NoSuchPort;

pub use live::{FollowRequest, FollowedFrame, FollowedStep, LiveTrace};

/// The path of a frame through the switch, without sending it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Trace {
    /// The stages, in the order of the path.
    pub steps: Vec<TraceStep>,
    /// The ports that would get the frame.
    pub delivered: Vec<PortName>,
}

/// A stage of the path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TraceStep {
    /// The deciding part, or the frame's place.
    #[schema(value_type = String)]
    pub stage: Cow<'static, str>,
    /// The port at which the stage is, or to which it is charged. A port that was just added or removed is given by
    /// its number.
    pub port: String,
    /// The decision with its reason, or the event.
    pub says: String,
    /// The counter of [drops](crate::stats::PortStats::drops) that counts the frame.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub dropped: Option<Cow<'static, str>>,
}

/// The reason why a trace is refused.
#[derive(Debug, thiserror::Error, Diagnostic)]
pub enum TraceRefused {
    /// There is no such port.
    #[error(transparent)]
    #[diagnostic(transparent)]
    NoSuchPort(#[from] NoSuchPort),
    /// The frame's length is outside the limits.
    #[error("a frame has {FRAME_LEN_MIN} to {FRAME_LEN_MAX} bytes, not {0}")]
    Length(usize),
}
