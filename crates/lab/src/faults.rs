//! Faults of a host with their times. They are separate from a [`Scenario`], whose figures are
//! about hosts without faults.
//!
//! [`crate::soak`] draws faults at random; [`crate::host::run_with`] injects them.

use std::fmt;

use weir_limits::LAB_NS_MAX;

use crate::scenario::Scenario;
use crate::topology::CpuId;

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Beginning (ns of the run).
    pub at_ns: u64,
    /// Duration (ns); of a clock's jump, its size.
    pub ns: u64,
    /// Kind of the fault.
    pub trouble: Trouble,
}

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// A guest's vCPU is busy with uninterruptible work: it takes no frames and no calls.
    GuestStalls {
        /// Index of the guest.
        guest: usize,
    },
    /// A guest has no memory for buffers: its receive ring runs out of them.
    NoBuffers {
        /// Index of the guest.
        guest: usize,
    },
    /// A guest's agent has disconnected, and its poll timer has ended (the manager restores the interface). Only
    /// for a guest with a timer.
    AgentLost {
        /// Index of the guest.
        guest: usize,
    },
    /// A thread of a higher priority than any worker has the CPU.
    CpuTaken {
        /// The CPU.
        cpu: CpuId,
    },
    /// The cable is out: frames on their way are lost, and so are frames sent meanwhile.
    LinkDown {
        /// Index of the uplink.
        uplink: usize,
    },
    /// The clock jumps forward, as after a stop of the virtual host: every event due meanwhile is
    /// due at once.
    ClockJumps,
    /// The host is suspended. `CLOCK_MONOTONIC`, weir's clock, stops, so no event of the
    /// host is late. All uplinks take the fault's duration to come up again.
    Suspend,
}

/// Error: the fault's target does not exist, or a value is out of bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a fault names nothing that exists, or lasts too long: {0}")]
pub struct FaultError(pub Fault);

impl Fault {
    /// Checks that the scenario has the fault's target.
    pub fn check(&self, scenario: &Scenario) -> Result<(), FaultError> {
        let there = match self.trouble {
            Trouble::GuestStalls { guest }
            | Trouble::NoBuffers { guest }
            | Trouble::AgentLost { guest } => guest < scenario.guests.len(),
            Trouble::CpuTaken { cpu } => scenario.topology.cpus().is_some_and(|cpus| cpu < cpus),
            Trouble::LinkDown { uplink } => uplink < scenario.uplinks.len(),
            Trouble::ClockJumps | Trouble::Suspend => true,
        };
        if there && self.at_ns <= LAB_NS_MAX && self.ns <= LAB_NS_MAX {
            return Ok(());
        }
        Err(FaultError(*self))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at_ns, ns, trouble } = self;
        write!(f, "at {at_ns} ns, for {ns} ns: ")?;
        match trouble {
            Trouble::GuestStalls { guest } => write!(f, "guest {guest} stalls"),
            Trouble::NoBuffers { guest } => write!(f, "guest {guest} offers no buffers"),
            Trouble::AgentLost { guest } => write!(f, "guest {guest} is without its agent"),
            Trouble::CpuTaken { cpu } => write!(f, "CPU {cpu} is taken away"),
            Trouble::LinkDown { uplink } => write!(f, "uplink {uplink} is down"),
            Trouble::ClockJumps => write!(f, "the clock jumps over it"),
            Trouble::Suspend => write!(f, "uplinks come up after a suspend"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{Error, run_with};
    use crate::soak::Case;

    #[test]
    fn a_fault_of_what_is_not_there_is_refused_and_named() {
        let Case { scenario, .. } = Case::draw(1);
        let guest = scenario.guests.len();
        let fault = Fault { at_ns: 5, ns: 7, trouble: Trouble::GuestStalls { guest } };
        let error = run_with(&scenario, &[fault], 1).map(|report| report.events).unwrap_err();
        assert_eq!(error, Error::Fault(FaultError(fault)));
        assert!(error.to_string().contains(&format!("guest {guest} stalls")), "{error}");
        let long = Fault { at_ns: 0, ns: u64::MAX, trouble: Trouble::ClockJumps };
        assert_eq!(long.check(&scenario), Err(FaultError(long)));
    }
}
