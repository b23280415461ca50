//! A table's connections as they are shown.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use weir_limits::{GROUP_CONNECTIONS_MAX, GROUP_TIME_SHIFT};
use weir_wire::layers::protocol;

use crate::packet::Key;
use crate::rules::Direction;
use crate::table::{State, Table, ticks, ticks_since};

/// A connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The IP protocol.
    pub protocol: u8,
    /// The VLAN as the interface sees it; 0 without a tag.
    pub vid: u16,
    /// The guest's address.
    pub own: IpAddr,
    /// The address of the other end.
    pub peer: IpAddr,
    /// The guest's port and the other end's, if the protocol has ports.
    pub ports: Option<(u16, u16)>,
    /// The identifier of ICMP queries.
    pub identifier: Option<u16>,
    /// The direction in which the connection was opened.
    pub opener: Direction,
    /// The state in a word.
    pub state: &'static str,
    /// The time since the last packet (ns), in steps of 17 ms.
    pub idle_ns: u64,
}

impl State {
    fn word(self) -> &'static str {
        match self {
            Self::SynSent => "syn_sent",
            Self::Crossed => "syn_crossed",
            Self::SynReceived => "syn_received",
            Self::Established => "established",
            Self::FinOfOpener => "fin_of_opener",
            Self::FinOfPeer => "fin_of_peer",
            Self::Closing => "closing",
            Self::TimeWait => "time_wait",
            Self::Reset => "reset",
            Self::TakenUp => "taken_up",
            Self::Forbidden => "forbidden",
            Self::Unanswered => "unanswered",
            Self::Answered => "answered",
        }
    }
}

impl Key {
    fn addresses(&self) -> (IpAddr, IpAddr) {
        let [k0, k1, k2, k3, last] = self.0;
        let v6 = |high: u64, low: u64| {
            let (high, low) = (high.swap_bytes(), low.swap_bytes());
            IpAddr::from(Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low)))
        };
        let v4 = |end: u64| IpAddr::from(Ipv4Addr::from_bits((end as u32).swap_bytes()));
        match self.is_v6() {
            true => (v6(k0, k1), v6(k2, k3)),
            false => (v4(k0), v4(last)),
        }
    }
}

impl Table {
    /// At most `max` connections from place `from` of the table on, and the place for the next call if there may be
    /// more. Reads at most eight times as many places, since frames wait for the table meanwhile.
    pub fn page(&self, from: usize, max: usize, now_ns: u64) -> (Vec<Connection>, Option<usize>) {
        let now = ticks(now_ns);
        let mut found = Vec::new();
        let end = from.saturating_add(8 * max).min(GROUP_CONNECTIONS_MAX);
        for at in from..end {
            let Some((key, known)) = self.at(at, now) else { continue };
            if found.len() == max {
                return (found, Some(at));
            }
            let (protocol, ports) = (key.protocol(), key.ports());
            let has_ports = matches!(protocol, protocol::TCP | protocol::UDP | protocol::SCTP);
            let identifier = match known.opener {
                Direction::Out => ports.0,
                Direction::In => ports.1,
            };
            let (own, peer) = key.addresses();
            found.push(Connection {
                protocol,
                vid: key.vid(),
                own,
                peer,
                ports: has_ports.then_some(ports),
                identifier: matches!(protocol, protocol::ICMP | protocol::ICMPV6)
                    .then_some(identifier),
                opener: known.opener,
                state: known.state.word(),
                idle_ns: u64::from(ticks_since(now, known.seen)) << GROUP_TIME_SHIFT,
            });
        }
        (found, (end < GROUP_CONNECTIONS_MAX).then_some(end))
    }
}
