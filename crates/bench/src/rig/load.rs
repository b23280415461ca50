//! The kinds of traffic between the two guests, and both ends of each.

use std::net::Ipv4Addr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use weir_vif::WaitFor;
use weir_vif::load::{End, Flow, LoadError, Station, bulk, mixed, pingpong, small};
use weir_wire::Mac;

/// TCP or UDP port of the sender and of the receiver.
const PORTS: (u16, u16) = (40_000, 5_201);
/// Interval at which a silent guest checks for its end.
const STOP_POLL: Duration = Duration::from_millis(50);

/// An end of the traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Sends frames or requests.
    Sender,
    /// Receives frames or answers requests.
    Receiver,
}

impl Role {
    /// Returns the name of the guest and of its interface.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sender => "sender",
            Self::Receiver => "receiver",
        }
    }

    /// Returns the guest's addresses.
    pub(super) fn station(self) -> Station {
        let number = match self {
            Self::Sender => 1,
            Self::Receiver => 2,
        };
        Station { mac: Mac([0x52, 0x54, 0, 0, 0, number]), ip: Ipv4Addr::new(10, 0, 0, number) }
    }

    /// Returns the flow as seen from the guest.
    pub(super) fn flow(self) -> Flow {
        let flow = Flow {
            local: Self::Sender.station(),
            remote: Self::Receiver.station(),
            local_port: PORTS.0,
            remote_port: PORTS.1,
        };
        match self {
            Self::Sender => flow,
            Self::Receiver => flow.reversed(),
        }
    }
}

/// A kind of traffic, from one guest to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// A TCP-like stream.
    Bulk(bulk::Options),
    /// Small packets.
    Small(small::Options),
    /// One request at a time.
    RequestResponse(pingpong::Options),
    /// A stream and small packets on the same queues.
    Mixed(mixed::Options),
    /// No traffic.
    Silence,
}

impl Load {
    /// Returns the end that measures latencies: for a stream from a frame to its acknowledgement, for requests the
    /// round trip, and for small packets one way.
    pub fn latency_at(self) -> Role {
        match self {
            Self::Bulk(_) | Self::RequestResponse(_) => Role::Sender,
            Self::Small(_) | Self::Mixed(_) | Self::Silence => Role::Receiver,
        }
    }

    /// Runs one end of the traffic until `end.stop`.
    pub fn run(self, role: Role, end: End<'_>) -> Result<(), LoadError> {
        match (self, role) {
            (Self::Bulk(options), Role::Sender) => bulk::send(end, &options),
            (Self::Bulk(options), Role::Receiver) => bulk::receive(end, &options),
            (Self::Small(options), Role::Sender) => small::send(end, &options),
            (Self::Small(options), Role::Receiver) => small::receive(end, &options),
            (Self::RequestResponse(options), Role::Sender) => pingpong::request(end, &options),
            (Self::RequestResponse(_), Role::Receiver) => pingpong::respond(end),
            (Self::Mixed(options), Role::Sender) => mixed::send(end, &options),
            (Self::Mixed(options), Role::Receiver) => mixed::receive(end, &options),
            (Self::Silence, _) => {
                while !end.stop.load(Ordering::Relaxed) {
                    end.pair.wait(WaitFor::Receive, STOP_POLL)?;
                }
                Ok(())
            }
        }
    }
}
