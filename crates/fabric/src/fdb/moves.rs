//! Ports between which addresses have moved lately: a loop moves them thousands of times a second.

use crate::port::PortId;
use crate::vlan::Vid;

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
