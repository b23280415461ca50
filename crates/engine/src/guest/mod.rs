//! The common part of guests' ports for any kind of ring: an interface's queues and its state.

mod info;
mod interface;
mod port;

pub use info::{PortInfo, Silence, SilentRing};
pub use interface::{AnyInterface, Interface, QueuePair};
pub use port::{GuestDevice, GuestPort};

pub use crate::calls::{
    Asked, CallPolicy, CallTimes, Completed, GuestRing, QueueDecision, ReceiveCalls, ReceiveRing,
    Received, TransmitCalls, TransmitRing,
};

/// The state of an interface.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum State {
    /// No front end is connected.
    #[default]
    Waiting,
    /// A front end is connected, no ring is running.
    Connected,
    /// Rings were running, and the front end has stopped them without a reset of the device.
    Halted,
    /// At least one ring is running.
    Running,
    /// The last session broke the rules; see the reason. A new session or a reset starts again.
    Stopped,
}

impl State {
    /// The name in statistics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Connected => "connected",
            Self::Halted => "halted",
            Self::Running => "running",
            Self::Stopped => "stopped",
        }
    }
}
