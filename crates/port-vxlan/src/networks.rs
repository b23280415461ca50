//! The networks of an overlay and the hosts that are members of each.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use weir_groups::GroupId;
use weir_guestmem::PeerAddress;
use weir_limits::{BURST_MAX, OVERLAY_ANSWERS_PER_SEC, OVERLAY_HOSTS_MAX};
use weir_policy::policing::Gcra;

use crate::across::Pair;
use crate::agreement::Said;
use crate::header;
use crate::sightings::Sightings;

/// A network as it is configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkSpec {
    /// The network's number in the switch ([`weir_fabric::Vid::of_network`]).
    pub number: u16,
    /// The network's number on the wire, 24 bits.
    pub vni: u32,
    /// The hosts that are members of the network.
    pub peers: Vec<IpAddr>,
    /// The number of frames per second that may go to all members.
    pub floods_per_s: u32,
    /// True if guests' neighbour requests are answered when the answer is known.
    pub neigh_suppress: bool,
}

/// A set of groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSet {
    /// The groups.
    pub groups: Arc<[GroupId]>,
    /// A number made of the groups' names. Two hosts compare it.
    pub check: u64,
}

/// The sets of groups that have an ID, by the ID.
pub type GroupSets = HashMap<u16, GroupSet>;

/// Tells whether frames between a host and this one carry the ID of their sender's groups.
pub type ClaimsGroups = Arc<dyn Fn(IpAddr) -> bool + Send + Sync>;

/// The low bits of a host's number are its place. The other bits count the hosts that have had this place. So a
/// reference to an earlier host (an address in the forwarding table, a frame under way) names no host, and never the
/// next one.
const TURN: u32 = OVERLAY_HOSTS_MAX as u32;
/// The number of turns. The forwarding table keeps a number plus one, which must fit.
const TURNS: u32 = u32::MAX / TURN;

fn place(remote: u32) -> usize {
    (remote % TURN) as usize
}

/// The number of the host that takes the place of `remote`: the same low bits, with the next turn.
fn next(remote: u32) -> u32 {
    remote % TURN + (remote / TURN + 1) % TURNS * TURN
}

/// All networks of an overlay. A host has a number, its *remote*, the same in all networks.
#[derive(Clone)]
pub struct Networks {
    /// The UDP port of all hosts.
    port: u16,
    /// `None` if no host has IDs of groups.
    claims_groups: Option<ClaimsGroups>,
    sets: GroupSets,
    /// Networks by number.
    networks: HashMap<u16, Network>,
    /// The number of each network, by its number on the wire.
    by_vni: HashMap<u32, u16>,
    /// The number of each host, by its address.
    remotes: HashMap<IpAddr, u32>,
    /// Hosts by place; `None` if a host has left and the place is free.
    hosts: Vec<Option<Host>>,
    /// Numbers for new hosts, one for each free place: the place that has been free for longest
    /// comes first.
    free: VecDeque<u32>,
}

/// A host, and the number of networks of which it is a member.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    remote: u32,
    pub(crate) ip: IpAddr,
    pub(crate) socket: PeerAddress,
    networks: u32,
    /// Frames to and from the host have IDs of groups.
    pub(crate) claims_groups: bool,
    /// The meaning of IDs of groups there.
    pub(crate) said: Arc<Said>,
    pub(crate) pair: Arc<Pair>,
}

impl Host {
    /// The header's bits about the sender that the host understands.
    pub(crate) fn groups(&self, bits: u64) -> u64 {
        if self.claims_groups { bits } else { 0 }
    }
}

/// One network.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    /// The header of its frames, without groups.
    pub(crate) header: u64,
    /// The hosts that may send in the network, in ascending order.
    members: Arc<[u32]>,
    /// The sockets of the hosts that get flooded frames: first those whose frames have IDs of groups.
    pub(crate) peers: Arc<[PeerAddress]>,
    /// The number of hosts in `peers` whose frames have IDs of groups. They come first.
    pub(crate) peers_with_groups: usize,
    pub(crate) floods: Arc<Gcra>,
    /// The rate of weir's own frames to guests of the network.
    pub(crate) answers: Arc<Gcra>,
    /// Claims of guests' addresses, if weir notes them in this network.
    pub(crate) sightings: Option<Arc<[Sightings; 2]>>,
}

impl Network {
    pub(crate) fn has_member(&self, remote: u32) -> bool {
        self.members.binary_search(&remote).is_ok()
    }
}

/// The reason why a datagram belongs to no network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stranger {
    /// This host does not have the network.
    Network,
    /// The sender is no member of the network.
    Remote,
}

impl Networks {
    /// Makes these networks, with peers that listen on `port`. Of two networks with the same number, the last one
    /// holds. Without `claims_groups`, no host has IDs of groups.
    pub fn new(specs: &[NetworkSpec], port: u16, claims_groups: Option<ClaimsGroups>) -> Self {
        let mut all = Self {
            port,
            claims_groups,
            sets: GroupSets::new(),
            networks: HashMap::new(),
            by_vni: HashMap::new(),
            remotes: HashMap::new(),
            hosts: Vec::new(),
            free: VecDeque::new(),
        };
        for spec in specs {
            // The burst is a tenth of a second's frames, and at least one of the engine's bursts.
            let burst = u64::from(spec.floods_per_s / 10).max(BURST_MAX as u64);
            let floods = Arc::new(Gcra::new(spec.floods_per_s.into(), burst));
            all.by_vni.insert(spec.vni, spec.number);
            let (members, peers) = (Arc::new([]), Arc::new([]));
            let answers = Arc::new(Gcra::new(OVERLAY_ANSWERS_PER_SEC, BURST_MAX as u64));
            let sightings = spec.neigh_suppress.then(Arc::default);
            let network = Network {
                header: header::plain(spec.vni),
                members,
                peers,
                peers_with_groups: 0,
                floods,
                answers,
                sightings,
            };
            all.networks.insert(spec.number, network);
            all.set_members(spec.number, &spec.peers, &[]);
        }
        all
    }

    /// Sets the hosts of a network: `members` get flooded frames and send, `speakers` only send. A host that is no
    /// longer in any network loses its number, and gets another one when it comes back.
    pub fn set_members(&mut self, number: u16, members: &[IpAddr], speakers: &[IpAddr]) {
        let Some(before) = self.networks.get(&number).map(|network| Arc::clone(&network.members))
        else {
            return;
        };
        let mut join = |ips: &[IpAddr]| {
            let mut remotes: Vec<_> = ips.iter().filter_map(|&ip| self.join(ip)).collect();
            remotes.sort_unstable();
            remotes.dedup();
            remotes
        };
        let peers = join(members);
        let all = join(&[members, speakers].concat());
        for &remote in &all {
            self.count(remote, |networks| networks.saturating_add(1));
        }
        for &remote in before.iter() {
            self.count(remote, |networks| networks.saturating_sub(1));
            self.leave(remote);
        }
        let hosts = peers.into_iter().filter_map(|remote| self.peer(remote));
        let (with, without): (Vec<_>, Vec<_>) = hosts.partition(|host| host.claims_groups);
        let peers_with_groups = with.len();
        let peers = with.into_iter().chain(without).map(|host| host.socket).collect();
        if let Some(network) = self.networks.get_mut(&number) {
            (network.members, network.peers) = (all.into(), peers);
            network.peers_with_groups = peers_with_groups;
        }
    }

    /// Replaces the sets of groups that have an ID.
    pub fn set_group_sets(&mut self, sets: GroupSets) {
        self.sets = sets;
    }

    /// True if frames of some host may have IDs of groups.
    pub(crate) fn has_claims(&self) -> bool {
        self.claims_groups.is_some()
    }

    /// The groups that an ID stands for in a frame from this host; none for an ID that is not known
    /// here, or means other groups there.
    pub(crate) fn groups_of(&self, set_id: u16, remote: u32) -> Arc<[GroupId]> {
        let set = self.sets.get(&set_id);
        let set = set.filter(|set| {
            self.peer(remote).is_some_and(|host| !host.said.disputes(set_id, set.check))
        });
        set.map_or_else(|| Arc::new([]) as _, |set| Arc::clone(&set.groups))
    }

    /// The IDs of groups here, each with the check of its set.
    pub(crate) fn checks(&self) -> impl Iterator<Item = (u16, u64)> {
        self.sets.iter().map(|(id, set)| (*id, set.check))
    }

    /// The IDs of groups that mean other groups at a host, in ascending order.
    pub(crate) fn disputed(&self, host: &Host) -> Vec<u16> {
        host.said.disputed(|id| Some(self.sets.get(&id)?.check))
    }

    /// The number of a host, which may be new; `None` if no number is left.
    fn join(&mut self, ip: IpAddr) -> Option<u32> {
        if let Some(&remote) = self.remotes.get(&ip) {
            return Some(remote);
        }
        let remote = match self.free.pop_front() {
            Some(remote) => remote,
            None => {
                let remote = u32::try_from(self.hosts.len()).ok().filter(|&place| place < TURN)?;
                self.hosts.push(None);
                remote
            }
        };
        let socket = PeerAddress::new(SocketAddr::new(ip, self.port));
        let (said, pair) = Default::default();
        let claims_groups = self.claims_groups.as_ref().is_some_and(|claims| claims(ip));
        *self.hosts.get_mut(place(remote))? =
            Some(Host { remote, ip, socket, networks: 0, claims_groups, said, pair });
        self.remotes.insert(ip, remote);
        Some(remote)
    }

    /// Frees the place of a host that is no longer in any network.
    fn leave(&mut self, remote: u32) {
        let Some(slot) = self.hosts.get_mut(place(remote)) else { return };
        if let Some(host) = slot.take_if(|host| host.remote == remote && host.networks == 0) {
            self.remotes.remove(&host.ip);
            self.free.push_back(next(remote));
        }
    }

    fn count(&mut self, remote: u32, change: impl FnOnce(u32) -> u32) {
        if let Some(Some(host)) = self.hosts.get_mut(place(remote)) {
            host.networks = change(host.networks);
        }
    }

    /// The host with this number.
    pub fn host(&self, remote: u32) -> Option<IpAddr> {
        Some(self.peer(remote)?.ip)
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

    pub(crate) fn peer(&self, remote: u32) -> Option<&Host> {
        self.hosts.get(place(remote))?.as_ref().filter(|host| host.remote == remote)
    }

    /// The hosts that are members of a network.
    pub(crate) fn peers(&self) -> impl Iterator<Item = &Host> {
        self.hosts.iter().flatten()
    }

    /// The host with this address, if it is a member.
    pub(crate) fn peer_at(&self, ip: IpAddr) -> Option<&Host> {
        self.peer(*self.remotes.get(&ip)?)
    }

    /// The network of a datagram from `from`, and the sender's number.
    pub(crate) fn origin(&self, vni: u32, from: Option<IpAddr>) -> Result<(u16, u32), Stranger> {
        let number = *self.by_vni.get(&vni).ok_or(Stranger::Network)?;
        let network = self.networks.get(&number).ok_or(Stranger::Network)?;
        let remote = from.and_then(|ip| self.remotes.get(&ip).copied());
        let remote = remote.filter(|&remote| network.has_member(remote)).ok_or(Stranger::Remote)?;
        Ok((number, remote))
    }
}

impl std::fmt::Debug for Networks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Networks").field("networks", &self.networks).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::collection::vec;
    use proptest::prelude::*;

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
        Networks::new(&[spec(0, 100, &[2, 3, 2]), spec(1, 200, &[3])], 4789, None)
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
        assert!(networks.hosts.len() <= 8, "{}", networks.hosts.len());
        networks.set_members(7, &[ip(4)], &[]);
        assert!(networks.network(7).is_none());
    }

    #[test]
    fn a_peer_that_is_named_twice_is_one() {
        let networks = two();
        assert_eq!(networks.network(0).unwrap().peers.len(), 2);
        assert!(networks.network(2).is_none());
    }

    #[test]
    fn hosts_that_take_ids_of_groups_come_first_however_they_join() {
        let claims: ClaimsGroups = Arc::new(|host| host == ip(4) || host == ip(6));
        let spec = NetworkSpec {
            number: 0,
            vni: 100,
            peers: vec![ip(3), ip(4)],
            floods_per_s: 1000,
            neigh_suppress: false,
        };
        let mut networks = Networks::new(&[spec], 4789, Some(claims));
        let first = |networks: &Networks| {
            let network = networks.network(0).unwrap();
            let (with, without) = network.peers.split_at(network.peers_with_groups);
            let has = |peers: &[PeerAddress], last| {
                peers.contains(&PeerAddress::new(SocketAddr::new(ip(last), 4789)))
            };
            assert!((3..8).all(|last| !has(with, last) || [4, 6].contains(&last)));
            assert!([4, 6].iter().all(|last| !has(without, *last)));
            (with.len(), without.len())
        };
        assert_eq!(first(&networks), (1, 1));
        // FRR names the members.
        networks.set_members(0, &[ip(6), ip(3), ip(4), ip(5)], &[ip(7)]);
        assert_eq!(first(&networks), (2, 2));
        networks.set_members(0, &[ip(3), ip(5)], &[ip(4)]);
        assert_eq!(first(&networks), (0, 2), "one that only speaks gets no floods");
        networks.set_members(0, &[ip(6)], &[]);
        assert_eq!(first(&networks), (1, 0));
    }

    #[test]
    fn three_hosts_that_leave_and_come_back_are_known_again() {
        let mut networks = two();
        networks.set_members(1, &[], &[]);
        for round in 0..3 {
            networks.set_members(0, &[], &[]);
            for members in [&[ip(5)][..], &[ip(5), ip(6)], &[ip(5), ip(6), ip(7)]] {
                networks.set_members(0, members, &[]);
            }
            for last in [5, 6, 7] {
                let remote = networks.member(0, ip(last)).expect("a member");
                assert_eq!(networks.host(remote), Some(ip(last)), "round {round}");
            }
            assert_eq!(networks.network(0).unwrap().peers.len(), 3, "round {round}");
        }
    }

    #[test]
    fn the_number_of_a_host_that_has_left_is_nobodys_for_long() {
        let mut networks = two();
        let third = networks.member(1, ip(3)).unwrap();
        networks.set_members(0, &[], &[]);
        networks.set_members(1, &[], &[]);
        for round in 0..TURNS - 1 {
            networks.set_members(1, &[ip(10 + (round % 9) as u8)], &[]);
            networks.set_members(1, &[], &[]);
            assert_eq!(networks.host(third), None, "round {round}");
        }
    }

    /// The members and the speakers of each network.
    type Lists = BTreeMap<u16, (Vec<u8>, Vec<u8>)>;

    fn agree(networks: &Networks, lists: &Lists) -> Result<(), TestCaseError> {
        let mut numbers = BTreeMap::new();
        for (&number, (members, speakers)) in lists {
            let vni = 100 * (u32::from(number) + 1);
            for last in 0..16 {
                let speaks = members.contains(&last) || speakers.contains(&last);
                let remote = networks.member(number, ip(last));
                prop_assert_eq!(remote.is_some(), speaks, "host {} in network {}", last, number);
                let origin = networks.origin(vni, Some(ip(last)));
                prop_assert_eq!(origin, remote.map(|it| (number, it)).ok_or(Stranger::Remote));
                let Some(remote) = remote else { continue };
                prop_assert_eq!(networks.host(remote), Some(ip(last)));
                prop_assert_eq!(networks.peer_at(ip(last)).map(|host| host.ip), Some(ip(last)));
                prop_assert_eq!(*numbers.entry(remote).or_insert(last), last, "one number for two");
            }
            let flooded: BTreeSet<_> = members.iter().collect();
            prop_assert_eq!(networks.network(number).unwrap().peers.len(), flooded.len());
        }
        let known: BTreeSet<_> = networks.peers().map(|host| host.ip).collect();
        let meant = lists.values().flat_map(|(members, speakers)| members.iter().chain(speakers));
        prop_assert_eq!(known, meant.map(|&last| ip(last)).collect::<BTreeSet<_>>());
        prop_assert_eq!(networks.remotes.len(), numbers.len(), "nobody else has a number");
        Ok(())
    }

    proptest! {
        #[test]
        fn hosts_that_join_and_leave_in_any_order_are_known_as_the_lists_say(
            changes in vec((0..3u16, vec(0..16u8, 0..6), vec(0..16u8, 0..3)), 1..60),
        ) {
            let spec = |number: u16| NetworkSpec {
                number,
                vni: 100 * (u32::from(number) + 1),
                peers: Vec::new(),
                floods_per_s: 1000,
                neigh_suppress: false,
            };
            let mut networks = Networks::new(&[spec(0), spec(1), spec(2)], 4789, None);
            let mut lists: Lists = (0..3).map(|number| (number, Default::default())).collect();
            // The host that each number has named so far.
            let mut named = HashMap::new();
            for (number, members, speakers) in changes {
                let ips = |list: &[u8]| list.iter().map(|&last| ip(last)).collect::<Vec<_>>();
                networks.set_members(number, &ips(&members), &ips(&speakers));
                lists.insert(number, (members, speakers));
                agree(&networks, &lists)?;
                for host in networks.peers() {
                    prop_assert_eq!(*named.entry(host.remote).or_insert(host.ip), host.ip);
                }
                for (&remote, &ip) in &named {
                    prop_assert!(networks.host(remote).is_none_or(|now| now == ip));
                }
                prop_assert!(networks.hosts.len() <= 16 + 9, "{} places", networks.hosts.len());
            }
        }
    }
}
