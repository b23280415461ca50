//! The networks of an overlay and the hosts that are members of each.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use weir_guestmem::PeerAddress;
use weir_limits::BURST_MAX;
use weir_policy::policing::Gcra;

/// A network as it is configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkSpec {
    /// Its number in the switch ([`weir_fabric::Vid::of_network`]).
    pub number: u16,
    /// Its number on the wire, 24 bits.
    pub vni: u32,
    /// The hosts that are members of it.
    pub peers: Vec<IpAddr>,
    /// Frames a second that may go to all of them.
    pub floods_per_s: u32,
}

/// All networks of an overlay. A host has a number, its *remote*, the same in all networks.
#[derive(Debug)]
pub struct Networks {
    /// By its number.
    networks: HashMap<u16, Network>,
    /// A network's number, by its number on the wire.
    by_vni: HashMap<u32, u16>,
    /// A host's number, by its address.
    remotes: HashMap<IpAddr, u32>,
    /// A host's socket, by its number.
    addresses: Vec<PeerAddress>,
}

/// One network.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) vni: u32,
    /// Members, in ascending order.
    members: Vec<u32>,
    /// Their sockets.
    pub(crate) peers: Vec<PeerAddress>,
    pub(crate) floods: Gcra,
}

impl Network {
    pub(crate) fn has_member(&self, remote: u32) -> bool {
        self.members.binary_search(&remote).is_ok()
    }
}

/// Why a datagram is of no network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stranger {
    /// Nobody here has that network.
    Network,
    /// Its sender is no member of the network.
    Remote,
}

impl Networks {
    /// These, with peers that listen on `port`. Of two with the same number the last one holds.
    pub fn new(specs: &[NetworkSpec], port: u16) -> Self {
        let mut all = Self {
            networks: HashMap::new(),
            by_vni: HashMap::new(),
            remotes: HashMap::new(),
            addresses: Vec::new(),
        };
        for spec in specs {
            let mut members: Vec<_> = spec.peers.iter().map(|&ip| all.number(ip, port)).collect();
            members.sort_unstable();
            members.dedup();
            let peers = members.iter().filter_map(|&remote| all.address(remote)).collect();
            // At once what comes in a tenth of a second, and a burst in any case.
            let burst = u64::from(spec.floods_per_s / 10).max(BURST_MAX as u64);
            let floods = Gcra::new(spec.floods_per_s.into(), burst);
            all.by_vni.insert(spec.vni, spec.number);
            all.networks.insert(spec.number, Network { vni: spec.vni, members, peers, floods });
        }
        all
    }

    fn number(&mut self, ip: IpAddr, port: u16) -> u32 {
        let next = self.addresses.len() as u32; // as many as fit in a configuration
        *self.remotes.entry(ip).or_insert_with(|| {
            self.addresses.push(PeerAddress::new(SocketAddr::new(ip, port)));
            next
        })
    }

    pub(crate) fn network(&self, number: u16) -> Option<&Network> {
        self.networks.get(&number)
    }

    pub(crate) fn address(&self, remote: u32) -> Option<PeerAddress> {
        self.addresses.get(remote as usize).copied()
    }

    /// The network that a datagram from `from` is of, and the sender's number.
    pub(crate) fn origin(&self, vni: u32, from: Option<IpAddr>) -> Result<(u16, u32), Stranger> {
        let number = *self.by_vni.get(&vni).ok_or(Stranger::Network)?;
        let network = self.networks.get(&number).ok_or(Stranger::Network)?;
        let remote = from.and_then(|ip| self.remotes.get(&ip).copied());
        let remote = remote.filter(|&remote| network.has_member(remote)).ok_or(Stranger::Remote)?;
        Ok((number, remote))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    fn two() -> Networks {
        let spec = |number, vni, peers: &[u8]| NetworkSpec {
            number,
            vni,
            peers: peers.iter().map(|&last| ip(last)).collect(),
            floods_per_s: 1000,
        };
        Networks::new(&[spec(0, 100, &[2, 3, 2]), spec(1, 200, &[3])], 4789)
    }

    #[test]
    fn only_members_of_a_network_speak_in_it() {
        let networks = two();
        let (blue, second) = networks.origin(100, Some(ip(2))).unwrap();
        let (_, third) = networks.origin(100, Some(ip(3))).unwrap();
        assert_eq!((blue, second == third), (0, false));
        assert_eq!(networks.origin(200, Some(ip(3))), Ok((1, third)), "a host has one number");
        assert_eq!(networks.origin(200, Some(ip(2))), Err(Stranger::Remote));
        assert_eq!(networks.origin(100, Some(ip(9))), Err(Stranger::Remote));
        assert_eq!(networks.origin(100, None), Err(Stranger::Remote));
        assert_eq!(networks.origin(300, Some(ip(3))), Err(Stranger::Network));
    }

    #[test]
    fn a_peer_that_is_named_twice_is_one() {
        let networks = two();
        assert_eq!(networks.network(0).unwrap().peers.len(), 2);
        assert!(networks.network(2).is_none());
    }
}
