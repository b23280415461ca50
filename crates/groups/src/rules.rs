//! Rules of the groups of one interface.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use crate::packet::Flow;

/// A group, by a hash of its name: the same in every switch and after every reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupId(u64);

impl GroupId {
    /// The group of that name.
    pub fn of(name: &str) -> Self {
        // Its keys are constants.
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// The direction of a frame or of a connection, seen from the interface's guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To the guest.
    In,
    /// From the guest.
    Out,
}

impl Direction {
    /// The direction of a bit in a connection's state: 0 is to the guest.
    pub(crate) const fn of(bit: usize) -> Self {
        match bit {
            0 => Self::In,
            _ => Self::Out,
        }
    }

    /// The opposite direction.
    #[must_use]
    pub fn reverse(self) -> Self {
        match self {
            Self::In => Self::Out,
            Self::Out => Self::In,
        }
    }
}

/// The other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Other {
    /// Anyone.
    Anyone,
    /// An interface that is in the group, of this switch or, by the ID of its groups, of another host.
    Group(GroupId),
    /// An address whose first bits are those of this address; the number says how many bits.
    Prefix(IpAddr, u8),
}

/// A rule that allows new connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The direction in which they are opened.
    pub direction: Direction,
    /// Their IP protocol; `None` for all.
    pub protocol: Option<u8>,
    /// Destination ports, or types of ICMP messages, as ranges; empty for all.
    pub values: Box<[(u16, u16)]>,
    /// The other end.
    pub other: Other,
}

impl Rule {
    fn allows(&self, direction: Direction, flow: &Flow, groups: Option<&[GroupId]>) -> bool {
        self.direction == direction
            && self.protocol.is_none_or(|protocol| protocol == flow.protocol)
            && (self.values.is_empty() || self.has_value(flow))
            && self.is_of(direction, flow, groups)
    }

    fn has_value(&self, flow: &Flow) -> bool {
        let within =
            |value: u16| self.values.iter().any(|&(low, high)| (low..=high).contains(&value));
        flow.value.is_some_and(within)
    }

    fn is_of(&self, direction: Direction, flow: &Flow, groups: Option<&[GroupId]>) -> bool {
        match self.other {
            Other::Anyone => true,
            Other::Group(group) => groups.is_none_or(|groups| groups.contains(&group)),
            Other::Prefix(prefix, len) => {
                let peer = match direction {
                    Direction::In => flow.src,
                    Direction::Out => flow.dst,
                };
                prefix.is_ipv6() == flow.v6 && same_prefix(bits(prefix), peer, len, flow.v6)
            }
        }
    }
}

fn same_prefix(prefix: u128, address: u128, len: u8, v6: bool) -> bool {
    let width = if v6 { 128 } else { 32 };
    let shift = width - u32::from(len).min(width);
    (prefix ^ address).checked_shr(shift).unwrap_or(0) == 0
}

/// An address as a number; that of IPv4 has 32 bits.
pub(crate) fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u32::from(address).into(),
        IpAddr::V6(address) => Ipv6Addr::to_bits(address),
    }
}

/// The rules of all groups of one interface. Rules only allow, and those of several groups add up. A direction is open
/// without a rule only if no group closes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Connections to the guest need no rule.
    pub allow_in: bool,
    /// Connections from the guest need no rule.
    pub allow_out: bool,
    /// The rules, group by group.
    pub rules: Arc<[Rule]>,
    /// The groups.
    pub groups: Box<[GroupId]>,
    /// Refusals are kept until they are logged.
    pub log: bool,
    /// The ID of the groups as a set, for other hosts; 0 if the set has none.
    pub set_id: u16,
    /// A number that changes with the rules. Connections are judged by the new rules when their next frame comes.
    pub generation: u16,
}

/// The reason why a new connection is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Allowed {
    /// The rule at this place.
    Rule(u16),
    /// The direction is open.
    Default,
}

impl Policy {
    /// The reason why a connection like `flow` may be opened in this direction, to or from an interface in
    /// `groups`; `None` if it may not. Without `groups`, the other end may be in any group.
    pub(crate) fn allows(
        &self,
        direction: Direction,
        flow: &Flow,
        groups: Option<&[GroupId]>,
    ) -> Option<Allowed> {
        let found = self.rules.iter().position(|rule| rule.allows(direction, flow, groups));
        match found {
            // A policy has fewer rules than a u16 counts.
            Some(place) => Some(Allowed::Rule(place as u16)),
            None => self.is_open(direction).then_some(Allowed::Default),
        }
    }

    /// True if connections in this direction need no rule.
    pub(crate) fn is_open(&self, direction: Direction) -> bool {
        match direction {
            Direction::In => self.allow_in,
            Direction::Out => self.allow_out,
        }
    }
}

/// The decision about a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The frame passes.
    Passes(Why),
    /// The frame is dropped.
    Refused(Why),
}

/// The reason for a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The rule at this place allows the connection that the frame opens.
    Rule(u16),
    /// The direction is open.
    Default,
    /// The frame belongs to a connection.
    Established,
    /// The frame is an ICMP error about a packet of a connection.
    Related,
    /// The frame needs no rule: ARP, neighbour discovery, DHCP, messages about multicast groups.
    Needed,
    /// The frame is a fragment of a datagram that may pass; if it is refused, it has no place in one.
    Fragment,
    /// No rule allows the frame.
    NoRule,
    /// No host sends such a packet in this state of the connection, or at all.
    Invalid,
    /// The table has no place for the connection.
    Full,
}

impl Why {
    /// The reasons for a refusal.
    pub(crate) const REFUSES: [Self; 4] = [Self::NoRule, Self::Invalid, Self::Fragment, Self::Full];

    /// The reason in a word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Rule(_) => "rule",
            Self::Default => "default",
            Self::Established => "established",
            Self::Related => "related",
            Self::Needed => "needed",
            Self::Fragment => "fragment",
            Self::NoRule => "no_rule",
            Self::Invalid => "invalid",
            Self::Full => "full",
        }
    }
}
