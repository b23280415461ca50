//! The owner of an address, and ports between which addresses have moved lately: a loop moves them
//! thousands of times a second.

use crate::port::PortId;
use crate::vlan::Vid;

/// The strength with which a port holds an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// An address learned from traffic. Any port that uses the address takes it over. It ages, and can be evicted.
    Dynamic = 0,
    /// The first address of a checked port ([`crate::MacCheck::First`]). It stays until the port is flushed.
    First = 1,
    /// The configured address of a checked port ([`crate::MacCheck::Pinned`]). It stays until the port is flushed.
    Pinned = 2,
    /// An address learned from an uplink's traffic: as [`Self::Dynamic`], but fewer ports can take it over.
    Uplink = 3,
    /// An address stated by a control plane ([`Fdb::tell`](super::Fdb::tell)): as [`Self::Uplink`], but it stays until
    /// it is withdrawn.
    Told = 4,
    /// An address that a control plane states as not moving: only a port on which the address is configured takes it
    /// over.
    ToldSticky = 5,
}

impl Claim {
    /// True if the address ages, and may be evicted.
    pub(super) fn is_learned(self) -> bool {
        matches!(self, Self::Dynamic | Self::Uplink)
    }

    /// True if the address is behind an uplink and so counts against its network's limit.
    pub(super) fn is_outside(self) -> bool {
        matches!(self, Self::Uplink | Self::Told | Self::ToldSticky)
    }

    /// True if a port with the claim `by` takes over an address that another port holds with this claim. A guest cannot
    /// simply take an address behind an uplink, above all the gateway's. Nor can a station outside take a guest's
    /// address.
    pub(super) fn yields_to(self, by: Self) -> bool {
        match self {
            Self::Dynamic => true,
            Self::Uplink | Self::Told => by != Self::First,
            Self::First | Self::ToldSticky => by == Self::Pinned,
            Self::Pinned => false,
        }
    }
}

/// Pairs of each kind that are kept. They are read and cleared ten times a second.
const PAIRS_MAX: usize = 32;

/// Addresses that moved between two ports in a VLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moves {
    /// The VLAN.
    pub vid: Vid,
    /// The two ports, the lower number first.
    pub ports: [PortId; 2],
    /// The number of moves to the second port, and to the first.
    pub times: [u64; 2],
}

/// Pairs since the last reading. Pairs with guests cannot take the places of pairs of uplinks.
#[derive(Debug, Default)]
pub(super) struct Noted {
    outside: Vec<Moves>,
    others: Vec<Moves>,
}

impl Noted {
    /// Notes a move; `outside` if both ports hold the address as uplinks do.
    pub(super) fn note(&mut self, vid: Vid, from: PortId, to: PortId, outside: bool) {
        let pairs = if outside { &mut self.outside } else { &mut self.others };
        let ports = [from.min(to), from.max(to)];
        let back = usize::from(to < from);
        if let Some(pair) = pairs.iter_mut().find(|it| (it.vid, it.ports) == (vid, ports)) {
            pair.times[back] += 1;
        } else if pairs.len() < PAIRS_MAX {
            let mut times = [0; 2];
            times[back] = 1;
            pairs.push(Moves { vid, ports, times });
        }
    }

    /// Returns the pairs, those of uplinks first, and clears them.
    pub(super) fn take(&mut self) -> Vec<Moves> {
        let Self { outside, others } = self;
        outside.drain(..).chain(others.drain(..)).collect()
    }
}
