//! This host's stations, as zebra learns of them: entries of the kernel's bridges behind the TAP of each network, and
//! neighbours behind the bridges.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use rustix::io::Errno;
use weir_limits::{EVPN_AGAIN_NS, EVPN_BATCH};
use weir_wire::Mac;

use crate::error::EvpnError;
use crate::links::{Message, Socket};

/// An address of a network, by the network's number in the switch.
pub type Place = (u16, Mac);

/// The way in which an address is announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// The address may move to another host.
    Plain,
    /// The address stays at this host, whatever other hosts announce (RFC 7432 §15.2: "sticky").
    Sticky,
}

/// An IP address of a network, by the network's number in the switch.
pub type Owned = (u16, IpAddr);

/// Notifies zebra by entries of bridges, which needs `CAP_NET_ADMIN`.
#[derive(Debug)]
pub struct Herald(Socket);

impl Herald {
    /// Opens a socket to the kernel.
    ///
    /// # Errors
    /// There is no socket.
    pub fn open() -> Result<Self, EvpnError> {
        Socket::open(0).map(Self).map_err(EvpnError::Socket)
    }

    /// Announces an address behind the TAP with this number, or withdraws it.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn tell(&mut self, tap: u32, mac: Mac, how: Option<How>) -> io::Result<()> {
        let mut entry = NeighbourMessage::default();
        entry.header.family = AddressFamily::Bridge;
        entry.header.ifindex = tap;
        entry.header.flags = NeighbourFlags::Controller;
        // The entry does not age.
        entry.header.state = NeighbourState::Noarp;
        entry.attributes.push(NeighbourAttribute::LinkLayerAddress(mac.0.into()));
        entry.header.flags.set(NeighbourFlags::Sticky, how == Some(How::Sticky));
        self.send(entry, how.is_some())
    }

    /// Announces that the station with this address has an IP address, or withdraws it: as a neighbour behind the
    /// bridge with this number.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn tell_owner(&mut self, bridge: u32, ip: IpAddr, mac: Option<Mac>) -> io::Result<()> {
        let mut entry = NeighbourMessage::default();
        entry.header.ifindex = bridge;
        // The entry does not age, and does not count in the kernel's limit of neighbours.
        entry.header.state = NeighbourState::Permanent;
        let (family, ip) = match ip {
            IpAddr::V4(ip) => (AddressFamily::Inet, NeighbourAddress::Inet(ip)),
            IpAddr::V6(ip) => (AddressFamily::Inet6, NeighbourAddress::Inet6(ip)),
        };
        entry.header.family = family;
        entry.attributes.push(NeighbourAttribute::Destination(ip));
        let mac = mac.map(|mac| NeighbourAttribute::LinkLayerAddress(mac.0.into()));
        let there = mac.is_some();
        entry.attributes.extend(mac);
        self.send(entry, there)
    }

    /// Adds or changes the entry if `there` is true. Otherwise removes it.
    fn send(&mut self, entry: NeighbourMessage, there: bool) -> io::Result<()> {
        if there {
            let flags = NLM_F_CREATE | NLM_F_REPLACE;
            return self.0.request(Message::NewNeighbour(entry), flags);
        }
        match self.0.request(Message::DelNeighbour(entry), 0) {
            // Another host has the address.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NOENT) => Ok(()),
            done => done,
        }
    }
}

/// The announcements that zebra has: an `H` for each `P`.
#[derive(Debug)]
pub struct Announced<P, H> {
    told: BTreeMap<P, H>,
    /// Places that another host has taken, each with the time.
    taken: BTreeMap<P, u64>,
    /// Places that are withdrawn first, because zebra has not accepted them.
    again: BTreeSet<P>,
}

impl<P, H> Default for Announced<P, H> {
    fn default() -> Self {
        Self { told: BTreeMap::new(), taken: BTreeMap::new(), again: BTreeSet::new() }
    }
}

impl<P: Ord + Copy, H: PartialEq + Copy> Announced<P, H> {
    /// The changes that make zebra know `here`, at most a batch; `true` if these are all.
    pub fn changes(&mut self, here: &BTreeMap<P, H>, now_ns: u64) -> (Vec<(P, Option<H>)>, bool) {
        self.taken.retain(|place, at| here.contains_key(place) && now_ns < *at + EVPN_AGAIN_NS);
        let again = std::mem::take(&mut self.again);
        let is_gone = |place: &&P| !here.contains_key(place) || again.contains(place);
        let gone = self.told.keys().filter(is_gone);
        let gone = gone.map(|place| (*place, None));
        let new = here.iter().filter(|(place, how)| {
            self.told.get(place) != Some(how)
                && !self.taken.contains_key(place)
                && !again.contains(place)
        });
        let mut changes: Vec<_> =
            gone.chain(new.map(|(place, how)| (*place, Some(*how)))).collect();
        let is_all = changes.len() <= EVPN_BATCH && self.taken.is_empty() && again.is_empty();
        changes.truncate(EVPN_BATCH);
        for (place, how) in &changes {
            match how {
                Some(how) => self.told.insert(*place, *how),
                None => self.told.remove(place),
            };
        }
        (changes, is_all)
    }

    /// Notes that another host has the place, as zebra reports: the earlier announcement does not hold any more.
    pub fn taken(&mut self, place: P, now_ns: u64) {
        if self.told.remove(&place).is_some() {
            self.taken.insert(place, now_ns);
        }
    }

    /// Notes that zebra has not accepted the announcement, which is withdrawn and made again.
    pub fn again(&mut self, place: P) {
        self.again.insert(place);
    }

    /// Notes that another weir, which this one replaces, has announced the place.
    pub fn adopt(&mut self, place: P, how: H) {
        self.told.entry(place).or_insert(how);
    }

    /// Notes that zebra does not know the place, which is announced again.
    pub fn untold(&mut self, place: P) {
        self.told.remove(&place);
    }

    /// Notes that zebra has the announcement, perhaps from an earlier weir.
    pub fn found(&mut self, place: P, how: H) {
        self.told.insert(place, how);
    }

    /// The number of announcements.
    pub fn len(&self) -> usize {
        self.told.len()
    }

    /// True if there are no announcements.
    pub fn is_empty(&self) -> bool {
        self.told.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mac(last: u8) -> Mac {
        Mac([2, 0, 0, 0, 0, last])
    }

    fn here(of: &[(u8, How)]) -> BTreeMap<Place, How> {
        of.iter().map(|(last, how)| ((0, mac(*last)), *how)).collect()
    }

    #[test]
    fn zebra_is_told_what_has_changed_and_no_more() {
        let mut announced = Announced::default();
        let both = here(&[(1, How::Plain), (2, How::Sticky)]);
        let (changes, is_all) = announced.changes(&both, 0);
        let expected = [(1, Some(How::Plain)), (2, Some(How::Sticky))];
        assert_eq!(changes, expected.map(|(last, how)| ((0, mac(last)), how)));
        assert!(is_all && announced.changes(&both, 0).0.is_empty());
        let one = here(&[(1, How::Sticky)]);
        let expected = [(2, None), (1, Some(How::Sticky))];
        assert_eq!(announced.changes(&one, 0).0, expected.map(|(it, how)| ((0, mac(it)), how)));
        assert_eq!(announced.len(), 1);
    }

    #[test]
    fn an_address_that_two_hosts_have_is_announced_once_a_second() {
        let (mut announced, here) = (Announced::default(), here(&[(1, How::Plain)]));
        let mut told = 0;
        for ms in 0..3_500 {
            let now_ns = ms * 1_000_000;
            told += announced.changes(&here, now_ns).0.len();
            announced.taken((0, mac(1)), now_ns);
        }
        assert_eq!(told, 4);
    }

    #[test]
    fn what_zebra_has_not_taken_is_withdrawn_and_told_anew() {
        let (mut announced, here) = (Announced::default(), here(&[(1, How::Sticky)]));
        announced.changes(&here, 0);
        announced.again((0, mac(1)));
        assert_eq!(announced.changes(&here, 0), (vec![((0, mac(1)), None)], false));
        assert_eq!(announced.changes(&here, 0), (vec![((0, mac(1)), Some(How::Sticky))], true));
    }

    #[test]
    fn what_another_weir_has_told_is_withdrawn_where_it_holds_no_more() {
        let (mut announced, here) = (Announced::default(), here(&[(1, How::Sticky)]));
        announced.changes(&here, 0);
        [1, 2].into_iter().for_each(|last| announced.adopt((0, mac(last)), How::Plain));
        assert_eq!(announced.changes(&here, 0), (vec![((0, mac(2)), None)], true));
    }

    #[test]
    fn many_addresses_are_told_in_batches() {
        let mut announced = Announced::default();
        let many = (0..3 * EVPN_BATCH as u32).map(|it| {
            let [_, _, c, d] = it.to_be_bytes();
            ((0, Mac([2, 0, 0, 0, c, d])), How::Plain)
        });
        let many: BTreeMap<_, _> = many.collect();
        let mut batches = Vec::new();
        loop {
            let (changes, is_all) = announced.changes(&many, 0);
            batches.push(changes.len());
            if is_all {
                break;
            }
        }
        assert_eq!((batches, announced.len()), (vec![EVPN_BATCH; 3], 3 * EVPN_BATCH));
    }
}
