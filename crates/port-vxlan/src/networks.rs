//! The networks of an overlay and the hosts that are members of each.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use weir_guestmem::PeerAddress;
use weir_limits::{BURST_MAX, OVERLAY_ANSWERS_PER_SEC};
use weir_policy::policing::Gcra;

use crate::across::Pair;
use crate::suppress::Sightings;

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
    /// Guests' questions for neighbours are answered where the answer is known.
    pub neigh_suppress: bool,
}

/// All networks of an overlay. A host has a number, its *remote*, the same in all networks.
#[derive(Clone, Debug)]
pub struct Networks {
    /// The UDP port of all hosts.
    port: u16,
    /// By its number.
    networks: HashMap<u16, Network>,
    /// A network's number, by its number on the wire.
    by_vni: HashMap<u32, u16>,
    /// A host's number, by its address.
    remotes: HashMap<IpAddr, u32>,
    /// A host's socket, by its number.
    addresses: Vec<Host>,
    /// Numbers of hosts that are members of no network any more.
    free: Vec<u32>,
}

/// A host, and of how many networks it is a member.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    pub(crate) ip: IpAddr,
    pub(crate) socket: PeerAddress,
    networks: u32,
    pub(crate) pair: Arc<Pair>,
}

/// One network.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    pub(crate) vni: u32,
    /// Who may speak in it, in ascending order.
    members: Arc<[u32]>,
    /// The sockets of those who get what is for all.
    pub(crate) peers: Arc<[PeerAddress]>,
    pub(crate) floods: Arc<Gcra>,
    /// Frames of weir's own to its guests.
    pub(crate) answers: Arc<Gcra>,
    /// What guests say of their addresses, where that counts.
    pub(crate) sightings: Option<Arc<[Sightings; 2]>>,
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
            port,
            networks: HashMap::new(),
            by_vni: HashMap::new(),
            remotes: HashMap::new(),
            addresses: Vec::new(),
            free: Vec::new(),
        };
        for spec in specs {
            // At once what comes in a tenth of a second, and a burst in any case.
            let burst = u64::from(spec.floods_per_s / 10).max(BURST_MAX as u64);
            let floods = Arc::new(Gcra::new(spec.floods_per_s.into(), burst));
            all.by_vni.insert(spec.vni, spec.number);
            let (members, peers) = (Arc::new([]), Arc::new([]));
            let answers = Arc::new(Gcra::new(OVERLAY_ANSWERS_PER_SEC, BURST_MAX as u64));
            let sightings = spec.neigh_suppress.then(Arc::default);
            let network = Network { vni: spec.vni, members, peers, floods, answers, sightings };
            all.networks.insert(spec.number, network);
            all.set_members(spec.number, &spec.peers, &[]);
        }
        all
    }

    /// `members` get what is for all of a network and speak in it, `speakers` only speak. A host that is in no network
    /// any more has no number: another one may get it, so nobody names it from here on.
    pub fn set_members(&mut self, number: u16, members: &[IpAddr], speakers: &[IpAddr]) {
        let Some(before) = self.networks.get(&number).map(|network| Arc::clone(&network.members))
        else {
            return;
        };
        let mut all: Vec<_> = members.iter().chain(speakers).map(|&ip| self.join(ip)).collect();
        let mut peers = all[..members.len()].to_vec();
        for list in [&mut all, &mut peers] {
            list.sort_unstable();
            list.dedup();
        }
        for &remote in &all {
            self.count(remote, |networks| networks.saturating_add(1));
        }
        for &remote in before.iter() {
            self.count(remote, |networks| networks.saturating_sub(1));
        }
        let peers = peers.into_iter().filter_map(|remote| self.address(remote)).collect();
        if let Some(network) = self.networks.get_mut(&number) {
            (network.members, network.peers) = (all.into(), peers);
        }
        for (remote, host) in (0..).zip(&self.addresses) {
            if host.networks == 0 && self.remotes.remove(&host.ip).is_some() {
                self.free.push(remote);
            }
        }
    }

    /// The number of a host, which may have none yet.
    fn join(&mut self, ip: IpAddr) -> u32 {
        if let Some(&remote) = self.remotes.get(&ip) {
            return remote;
        }
        let socket = PeerAddress::new(SocketAddr::new(ip, self.port));
        let host = Host { ip, socket, networks: 0, pair: Arc::default() };
        let remote = match self.free.pop() {
            Some(remote) => {
                self.addresses[remote as usize] = host;
                remote
            }
            None => {
                self.addresses.push(host);
                self.addresses.len() as u32 - 1 // as many as are members
            }
        };
        self.remotes.insert(ip, remote);
        remote
    }

    fn count(&mut self, remote: u32, change: impl FnOnce(u32) -> u32) {
        if let Some(host) = self.addresses.get_mut(remote as usize) {
            host.networks = change(host.networks);
        }
    }

    /// The host with a number.
    pub fn host(&self, remote: u32) -> Option<IpAddr> {
        Some(self.addresses.get(remote as usize)?.ip)
    }

    /// The number of a host that is a member of a network.
    pub fn member(&self, number: u16, ip: IpAddr) -> Option<u32> {
        let remote = *self.remotes.get(&ip)?;
        self.networks.get(&number)?.has_member(remote).then_some(remote)
    }

    pub(crate) fn sightings(&self) -> impl Iterator<Item = &Sightings> {
        self.networks.values().filter_map(|network| network.sightings.as_deref()).flatten()
    }

    pub(crate) fn network(&self, number: u16) -> Option<&Network> {
        self.networks.get(&number)
    }

    fn address(&self, remote: u32) -> Option<PeerAddress> {
        Some(self.peer(remote)?.socket)
    }

    pub(crate) fn peer(&self, remote: u32) -> Option<&Host> {
        self.addresses.get(remote as usize)
    }

    /// The hosts that are members of a network.
    pub(crate) fn peers(&self) -> impl Iterator<Item = &Host> {
        self.addresses.iter().filter(|host| host.networks > 0)
    }

    /// The one with an address.
    pub(crate) fn peer_at(&self, ip: IpAddr) -> Option<&Host> {
        self.peer(*self.remotes.get(&ip)?)
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
            neigh_suppress: false,
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
    fn members_come_and_go_and_their_numbers_are_used_again() {
        let mut networks = two();
        let third = networks.member(1, ip(3)).unwrap();
        networks.set_members(0, &[ip(4)], &[ip(5)]);
        assert_eq!(networks.network(0).unwrap().peers.len(), 1, "a speaker gets no floods");
        assert!(networks.origin(100, Some(ip(5))).is_ok() && networks.member(0, ip(4)).is_some());
        assert_eq!(networks.origin(100, Some(ip(2))), Err(Stranger::Remote));
        assert_eq!(networks.member(1, ip(3)), Some(third), "of another network still");
        networks.set_members(1, &[], &[]);
        assert_eq!(networks.origin(200, Some(ip(3))), Err(Stranger::Remote));
        for round in 0..200 {
            networks.set_members(1, &[ip(10 + round), ip(11 + round)], &[]);
        }
        assert!(networks.addresses.len() <= 8, "{}", networks.addresses.len());
        networks.set_members(7, &[ip(4)], &[]);
        assert!(networks.network(7).is_none());
    }

    #[test]
    fn a_peer_that_is_named_twice_is_one() {
        let networks = two();
        assert_eq!(networks.network(0).unwrap().peers.len(), 2);
        assert!(networks.network(2).is_none());
    }
}
