//! The stations behind other hosts, from zebra's entries in the kernel. Pure: times are passed in, and nothing is read.
//!
//! An address is behind a host if its bridge has the address at the VXLAN device, and the device has it at that host.
//! Zebra leaves the second entry when an address has come back to this host, so neither entry alone is enough.
//!
//! An entry that zebra removes is *stale* first, and is removed here after a while: soon if FRR is there, because then
//! the entry was withdrawn; late if FRR has ended, because forwarding continues without it (as in a graceful restart,
//! RFC 4724).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use weir_limits::{EVPN_OWNED_PART, EVPN_OWNED_PER_ADDRESS, OVERLAY_PEERS_MAX};
use weir_wire::{Mac, Owner};

use crate::announce::{Owned, Place};
use crate::neighbours::Neighbours;

/// An entry of zebra's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noted {
    /// A host gets flooded frames of a network from now on, or no longer.
    Member {
        /// The network's number in the switch.
        network: u16,
        /// The host.
        host: IpAddr,
        /// False if the entry was removed.
        is_there: bool,
    },
    /// The address is at our host. Without our host it would be at this other one.
    Host {
        /// The network's number in the switch.
        network: u16,
        /// The address.
        mac: Mac,
        /// The host.
        host: Option<IpAddr>,
    },
    /// The address is behind another host, or no longer.
    Away {
        /// The network's number in the switch.
        network: u16,
        /// The address.
        mac: Mac,
        /// True if the address does not move.
        sticky: bool,
        /// False if the entry was removed.
        is_there: bool,
    },
    /// The address is at our host, or no longer.
    Here {
        /// The network's number in the switch.
        network: u16,
        /// The address.
        mac: Mac,
        /// False if the entry was removed.
        is_there: bool,
    },
    /// A station behind another host has an IP address.
    Owner {
        /// The address.
        of: Owned,
        /// The address's owner.
        owner: Owner,
    },
    /// zebra was notified that a station of this host has an IP address.
    OwnerHere {
        /// The address.
        of: Owned,
        /// The address's owner.
        mac: Mac,
    },
    /// No owner of an IP address is known any more.
    NoOwner {
        /// The address.
        of: Owned,
    },
}

/// The place of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// The host.
    pub host: IpAddr,
    /// True if the address does not move.
    pub sticky: bool,
}

/// The time since which an entry is stale (ns), if it is.
pub(crate) type Stale = Option<u64>;

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    host: Option<IpAddr>,
    away: bool,
    sticky: bool,
    stale: Stale,
    /// True if zebra has the entry, according to the present reading.
    seen: bool,
}

impl Entry {
    fn remote(&self) -> Option<Remote> {
        self.host.filter(|_| self.away).map(|host| Remote { host, sticky: self.sticky })
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Member {
    stale: Stale,
    seen: bool,
}

#[derive(Debug, Default)]
struct Network {
    members: BTreeMap<IpAddr, Member>,
    /// The number of addresses at each host.
    hosts: BTreeMap<IpAddr, usize>,
}

/// The changes since the last call of [`Table::take_dirty`].
#[derive(Debug, Default)]
pub struct Dirty {
    /// Addresses that have changed.
    pub places: BTreeSet<Place>,
    /// Networks whose members have changed.
    pub networks: BTreeSet<u16>,
    /// Addresses of this host that zebra has not accepted while another host held them as sticky, and that are free
    /// now.
    pub again: BTreeSet<Place>,
    /// IP addresses whose owner behind other hosts has changed.
    pub owned: BTreeSet<Owned>,
    /// Owners at this host that zebra has learned, or lost.
    pub owned_here: BTreeMap<Owned, Option<Mac>>,
}

/// The stations behind other hosts.
#[derive(Debug)]
pub struct Table {
    entries: HashMap<Place, Entry>,
    networks: BTreeMap<u16, Network>,
    neighbours: Neighbours,
    dirty: Dirty,
    now_ns: u64,
    entries_max: usize,
    /// The number of entries that were refused for want of room.
    refused: u64,
    /// True if there is room again since entries were refused.
    wants_all: bool,
    /// The earliest time since which an entry is stale.
    stale_since: Stale,
    /// Addresses that zebra knows at this host, until they are asked for: an earlier weir may have announced them.
    left: Option<BTreeSet<Place>>,
}

impl Table {
    /// An empty table with room for `entries_max` addresses, and for some IP addresses of each.
    pub fn new(entries_max: usize) -> Self {
        let owned_max = entries_max.saturating_mul(EVPN_OWNED_PER_ADDRESS);
        Self {
            entries: HashMap::new(),
            networks: BTreeMap::new(),
            neighbours: Neighbours::new(owned_max, owned_max.div_ceil(EVPN_OWNED_PART)),
            dirty: Dirty::default(),
            now_ns: 0,
            entries_max,
            refused: 0,
            wants_all: false,
            stale_since: None,
            left: Some(BTreeSet::new()),
        }
    }

    /// The time that the next entries get (ns).
    pub fn set_now(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
    }

    /// Applies one of zebra's entries.
    pub fn take(&mut self, noted: &Noted) {
        match *noted {
            Noted::Member { network, host, is_there: true } => self.join(network, host),
            Noted::Member { network, host, is_there: false } => {
                let of = self.networks.entry(network).or_default();
                if let Some(member) = of.members.get_mut(&host) {
                    member.stale.get_or_insert(self.now_ns);
                    self.stale_since.get_or_insert(self.now_ns);
                }
            }
            Noted::Host { network, mac, host: Some(host) } => {
                self.change((network, mac), |entry| {
                    entry.host = Some(host);
                    entry.seen = true;
                    if entry.away {
                        entry.stale = None;
                    }
                })
            }
            Noted::Away { network, mac, sticky, is_there: true } => {
                self.left.as_mut().map(|left| left.remove(&(network, mac)));
                self.change((network, mac), |entry| {
                    *entry = Entry { away: true, sticky, stale: None, seen: true, ..*entry };
                });
            }
            Noted::Host { network, mac, host: None }
            | Noted::Away { network, mac, is_there: false, .. } => {
                if let Some(entry) = self.entries.get_mut(&(network, mac)) {
                    entry.stale.get_or_insert(self.now_ns);
                    self.stale_since.get_or_insert(self.now_ns);
                }
            }
            Noted::Here { network, mac, is_there: true } => {
                let most = self.entries_max;
                if let Some(left) = self.left.as_mut().filter(|left| left.len() < most) {
                    left.insert((network, mac));
                }
                if self.entries.contains_key(&(network, mac)) {
                    self.change((network, mac), |entry| entry.away = false);
                }
            }
            Noted::Here { network, mac, is_there: false } => {
                self.left.as_mut().map(|left| left.remove(&(network, mac)));
            }
            Noted::Owner { of, owner } => {
                self.neighbours.note(of, owner);
                self.dirty.owned_here.insert(of, None);
            }
            Noted::OwnerHere { of, mac } => {
                self.neighbours.remove(of);
                self.dirty.owned_here.insert(of, Some(mac));
            }
            Noted::NoOwner { of } => {
                if self.neighbours.withdraw(of, self.now_ns) {
                    self.stale_since.get_or_insert(self.now_ns);
                }
                self.dirty.owned_here.insert(of, None);
            }
        }
    }

    fn join(&mut self, network: u16, host: IpAddr) {
        let of = self.networks.entry(network).or_default();
        let is_new = !of.members.contains_key(&host);
        if is_new && of.members.len() >= OVERLAY_PEERS_MAX {
            self.refused += 1;
            return;
        }
        of.members.insert(host, Member { stale: None, seen: true });
        if is_new {
            self.dirty.networks.insert(network);
        }
    }

    fn change(&mut self, place: Place, change: impl FnOnce(&mut Entry)) {
        if !self.entries.contains_key(&place) && self.entries.len() >= self.entries_max {
            self.refused += 1;
            return;
        }
        let entry = self.entries.entry(place).or_default();
        let before = entry.remote();
        change(entry);
        let after = entry.remote();
        self.moved(place, before, after);
    }

    fn moved(&mut self, place: Place, before: Option<Remote>, after: Option<Remote>) {
        if before == after {
            return;
        }
        self.dirty.places.insert(place);
        let network = self.networks.entry(place.0).or_default();
        let (from, to) = (before.map(|it| it.host), after.map(|it| it.host));
        if from == to {
            return;
        }
        if let Some(host) = from
            && let Some(count) = network.hosts.get_mut(&host)
        {
            *count -= 1;
            if *count == 0 {
                network.hosts.remove(&host);
                self.dirty.networks.insert(place.0);
            }
        }
        if let Some(host) = to {
            let count = network.hosts.entry(host).or_default();
            *count += 1;
            if *count == 1 {
                self.dirty.networks.insert(place.0);
            }
        }
    }

    /// The addresses that zebra knows at this host; none at the second call.
    pub fn take_left(&mut self) -> BTreeSet<Place> {
        self.left.take().unwrap_or_default()
    }

    /// Removes the entries that are stale for long enough: `is_due` decides by the time since which
    /// an entry is stale.
    pub fn expire(&mut self, is_due: impl Fn(u64) -> bool) {
        if self.stale_since.is_none() {
            return;
        }
        let neighbours = self.neighbours.expire(&is_due);
        let is_due = |stale: Stale| stale.is_some_and(&is_due);
        let due = self.entries.iter().filter(|(_, entry)| is_due(entry.stale));
        for place in due.map(|(place, _)| *place).collect::<Vec<_>>() {
            let Some(entry) = self.entries.remove(&place) else { continue };
            self.moved(place, entry.remote(), None);
            if entry.sticky && !entry.away {
                self.dirty.again.insert(place);
            }
        }
        for (number, network) in &mut self.networks {
            let count = network.members.len();
            network.members.retain(|_, member| !is_due(member.stale));
            if network.members.len() < count {
                self.dirty.networks.insert(*number);
            }
        }
        let stale = self.entries.values().filter_map(|entry| entry.stale);
        let members = self.networks.values().flat_map(|network| network.members.values());
        let stale = stale.chain(members.filter_map(|member| member.stale)).chain(neighbours);
        self.stale_since = stale.min();
        let has_room = self.entries.len() < self.entries_max / 10 * 9;
        self.wants_all |= self.refused > 0 && has_room;
    }

    /// The earliest time since which an entry is stale, if one is.
    pub fn stale_since(&self) -> Option<u64> {
        self.stale_since
    }

    /// True if there is room for entries that were refused.
    pub fn wants_all(&self) -> bool {
        self.wants_all
    }

    /// Begins a reading of all of zebra's entries.
    pub fn begin_all(&mut self) {
        (self.refused, self.wants_all) = (0, false);
        self.neighbours.begin_all();
        self.entries.values_mut().for_each(|entry| entry.seen = false);
        let members = self.networks.values_mut().flat_map(|network| network.members.values_mut());
        members.for_each(|member| member.seen = false);
    }

    /// Ends the reading: entries that were not among those read were removed.
    pub fn end_all(&mut self) {
        let now_ns = self.now_ns;
        let unseen = self.entries.values_mut().filter(|entry| !entry.seen);
        let mut stale = self.neighbours.end_all(now_ns);
        for entry in unseen {
            entry.stale.get_or_insert(now_ns);
            stale = true;
        }
        let members = self.networks.values_mut().flat_map(|network| network.members.values_mut());
        for member in members.filter(|member| !member.seen) {
            member.stale.get_or_insert(now_ns);
            stale = true;
        }
        if stale {
            self.stale_since.get_or_insert(now_ns);
        }
    }

    /// Counts every address that is not at this host as changed.
    pub fn all_changed(&mut self) {
        let away = self.entries.iter().filter(|(_, entry)| entry.remote().is_some());
        self.dirty.places.extend(away.map(|(place, _)| *place));
    }

    /// True if any address counts as changed.
    pub fn is_dirty(&self) -> bool {
        !self.dirty.places.is_empty()
    }

    /// The changes since the last call.
    pub fn take_dirty(&mut self) -> Dirty {
        let owned = std::mem::take(&mut self.neighbours.dirty);
        Dirty { owned, ..std::mem::take(&mut self.dirty) }
    }

    /// The owner of an IP address, if it is known as a station behind another host.
    pub fn owner(&self, of: Owned) -> Option<Owner> {
        self.neighbours.owner(of)
    }

    /// The place of an address, if it is behind another host.
    pub fn remote(&self, place: Place) -> Option<Remote> {
        self.entries.get(&place)?.remote()
    }

    /// The hosts that have addresses of a network.
    pub fn hosts(&self, network: u16) -> impl Iterator<Item = IpAddr> {
        self.networks.get(&network).into_iter().flat_map(|it| it.hosts.keys().copied())
    }

    /// The addresses behind hosts for which `is_meant` is true.
    pub fn places(&self, is_meant: impl Fn(u16, IpAddr) -> bool) -> impl Iterator<Item = Place> {
        let behind = move |(place, entry): (&Place, &Entry)| {
            entry.remote().is_some_and(|it| is_meant(place.0, it.host)).then_some(*place)
        };
        self.entries.iter().filter_map(behind)
    }

    /// The hosts that get flooded frames of a network.
    pub fn members(&self, network: u16) -> Vec<IpAddr> {
        self.networks.get(&network).into_iter().flat_map(|it| it.members.keys().copied()).collect()
    }

    /// Hosts that have addresses of a network, and are no members: zebra may hear of an address before the membership.
    pub fn speakers(&self, network: u16) -> Vec<IpAddr> {
        let Some(of) = self.networks.get(&network) else { return Vec::new() };
        let hosts = of.hosts.keys().filter(|host| !of.members.contains_key(host));
        hosts.take(OVERLAY_PEERS_MAX).copied().collect()
    }

    /// The number of known addresses, and of those refused for want of room.
    pub fn counts(&self) -> (usize, u64) {
        (self.entries.len(), self.refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Mac = Mac([2, 0, 0, 0, 0, 0xa]);

    fn host(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    fn at(last: u8) -> Noted {
        Noted::Host { network: 0, mac: A, host: Some(host(last)) }
    }

    fn away(is_there: bool) -> Noted {
        Noted::Away { network: 0, mac: A, sticky: false, is_there }
    }

    fn member(last: u8, is_there: bool) -> Noted {
        Noted::Member { network: 0, host: host(last), is_there }
    }

    fn remote(table: &Table) -> Option<IpAddr> {
        table.remote((0, A)).map(|it| it.host)
    }

    #[test]
    fn an_address_is_away_once_both_devices_say_so_in_either_order() {
        for order in [[at(2), away(true)], [away(true), at(2)]] {
            let mut table = Table::new(100);
            table.take(&order[0]);
            assert_eq!(remote(&table), None);
            table.take(&order[1]);
            assert_eq!(remote(&table), Some(host(2)));
            let dirty = table.take_dirty();
            assert_eq!((dirty.places.len(), dirty.networks.len()), (1, 1));
            table.all_changed();
            assert!(table.take_dirty().places.contains(&(0, A)));
            assert_eq!(table.speakers(0), [host(2)]);
        }
    }

    #[test]
    fn an_address_that_comes_here_is_not_away_though_a_host_is_noted() {
        let mut table = Table::new(100);
        [at(2), away(true)].iter().for_each(|it| table.take(it));
        table.take(&Noted::Here { network: 0, mac: A, is_there: true });
        assert_eq!(remote(&table), None);
        assert!(table.speakers(0).is_empty());
        table.take(&away(true));
        assert_eq!(remote(&table), Some(host(2)), "and away again");
        table.take(&at(3));
        assert_eq!((remote(&table), table.speakers(0)), (Some(host(3)), vec![host(3)]));
    }

    #[test]
    fn what_another_weir_has_told_is_asked_for_once() {
        let mut table = Table::new(3);
        let mac = |last| Mac([2, 0, 0, 0, 0, last]);
        let here = |last, is_there| Noted::Here { network: 0, mac: mac(last), is_there };
        let away = Noted::Away { network: 0, mac: mac(3), sticky: false, is_there: true };
        for noted in [here(1, true), here(2, true), here(3, true), here(4, true)] {
            table.take(&noted);
        }
        [here(2, false), away].iter().for_each(|noted| table.take(noted));
        assert_eq!(table.take_left(), BTreeSet::from([(0, mac(1))]));
        table.take(&here(5, true));
        assert!(table.take_left().is_empty());
    }

    #[test]
    fn an_address_here_that_was_sticky_elsewhere_is_told_again_when_that_ends() {
        let mut table = Table::new(100);
        [at(2), Noted::Away { network: 0, mac: A, sticky: true, is_there: true }]
            .iter()
            .for_each(|it| table.take(it));
        assert_eq!(table.remote((0, A)), Some(Remote { host: host(2), sticky: true }));
        table.take(&Noted::Here { network: 0, mac: A, is_there: true });
        table.take(&Noted::Host { network: 0, mac: A, host: None });
        table.take_dirty();
        table.expire(|_| true);
        assert!(table.take_dirty().again.contains(&(0, A)));
    }

    #[test]
    fn what_is_withdrawn_goes_after_a_while_unless_it_comes_back() {
        let mut table = Table::new(100);
        table.set_now(10);
        let noted = [member(2, true), at(2), away(true)];
        noted.iter().for_each(|it| table.take(it));
        table.set_now(20);
        let withdrawn = [away(false), Noted::Host { network: 0, mac: A, host: None }];
        withdrawn.iter().for_each(|it| table.take(it));
        table.take(&member(2, false));
        assert_eq!(table.stale_since(), Some(20));
        table.expire(|since| since <= 19);
        assert_eq!((remote(&table), table.members(0)), (Some(host(2)), vec![host(2)]));
        noted.iter().for_each(|it| table.take(it));
        table.expire(|since| since <= 30);
        assert_eq!((remote(&table), table.stale_since()), (Some(host(2)), None));
        withdrawn.iter().for_each(|it| table.take(it));
        table.take(&member(2, false));
        table.take_dirty();
        table.expire(|since| since <= 20);
        assert_eq!((remote(&table), table.members(0)), (None, vec![]));
        let dirty = table.take_dirty();
        assert!(dirty.places.contains(&(0, A)) && dirty.networks.contains(&0));
        assert_eq!(table.counts(), (0, 0));
    }

    #[test]
    fn what_was_missed_is_found_by_reading_all() {
        let mut table = Table::new(100);
        [member(2, true), member(3, true), at(2), away(true)].iter().for_each(|it| table.take(it));
        table.set_now(5);
        table.begin_all();
        table.take(&member(3, true));
        table.end_all();
        table.expire(|since| since <= 5);
        assert_eq!((remote(&table), table.members(0)), (None, vec![host(3)]));
    }

    #[test]
    fn a_flood_of_routes_takes_no_more_than_its_room_and_the_rest_is_asked_for_later() {
        let mut table = Table::new(1000);
        let flood = |is_there: bool| {
            (0..100_000_u32).flat_map(move |it| {
                let [_, b, c, d] = it.to_be_bytes();
                let (network, mac) = ((it % 8) as u16, Mac([2, 0, 0, b, c, d]));
                let host = is_there.then_some(host(2));
                [
                    Noted::Host { network, mac, host },
                    Noted::Away { network, mac, sticky: false, is_there },
                ]
            })
        };
        flood(true).for_each(|it| table.take(&it));
        assert_eq!((table.counts().0, table.wants_all()), (1000, false));
        assert!(table.take_dirty().places.len() <= 1000);
        table.set_now(7);
        flood(false).for_each(|it| table.take(&it));
        table.expire(|since| since <= 7);
        assert!(table.counts().0 == 0 && table.wants_all());
        for number in 0..1000 {
            let host = IpAddr::from([10, 0, (number / 256) as u8, (number % 256) as u8]);
            table.take(&Noted::Member { network: 0, host, is_there: true });
        }
        assert_eq!(table.members(0).len(), OVERLAY_PEERS_MAX);
    }
}
