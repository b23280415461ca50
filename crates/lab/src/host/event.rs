//! The events in a host, each with the part of the host that it concerns.

use crate::cpus;

/// A port of the switch: a guest, or beyond the guests an uplink.
pub(super) type PortId = usize;

/// One link of an uplink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// The link to the peer.
    Out,
    /// The link from the peer.
    In,
}

/// One of a port's queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Side {
    Rx,
    Tx,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    Cpu(cpus::Event),
    /// A load begins.
    Start(usize),
    /// The next datagram of a load is due.
    Datagram(usize),
    /// A client of a load sends its next request.
    Request(usize),
    /// The sender of a load's segments checks its timer.
    Resend(usize),
    /// The receiver of a load's segments checks if it owes an acknowledgement.
    DelayedAck(usize),
    /// A guest's poll timer fires, if the number still matches.
    GuestTimer(usize, u64),
    /// The nested hypervisor of a guest polls.
    HypervisorTimer(usize),
    /// A sleeping worker's timer fires, if the sleep's number still matches.
    WorkerTimer(usize, u64),
    /// An uplink shows gathered frames to the host.
    Gathered(usize),
    /// A frame has left one end of a link.
    Served(usize, Direction),
    /// A frame has reached the other end.
    Arrived(usize, Direction),
    /// A fault begins.
    Fault(usize),
    /// A fault ends.
    FaultOver(usize),
    /// The placer takes a look.
    Look,
    /// Queues may move between workers.
    Dispatch,
    /// The manager looks at latency budgets.
    Budget,
    /// A CPU's tick occurs.
    Tick(usize),
}

impl From<cpus::Event> for Event {
    fn from(event: cpus::Event) -> Self {
        Self::Cpu(event)
    }
}

/// The owner of a thread.
#[derive(Clone, Copy, Debug)]
pub(super) enum Owner {
    Worker(usize),
    Guest(usize),
    /// A host's interrupt controller.
    Demux(usize),
    Rival,
    Thief(usize),
    /// A CPU's tick.
    Tick,
}
