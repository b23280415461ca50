//! The owners of IP addresses behind other hosts, from the neighbours that zebra notes behind a network's bridge. Pure:
//! times are given, nothing is read.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use weir_wire::Owner;

use crate::announce::Owned;
use crate::table::Stale;

#[derive(Clone, Copy, Debug)]
struct Entry {
    owner: Owner,
    stale: Stale,
    /// Zebra has the entry, according to the present reading.
    seen: bool,
}

/// The owners of IP addresses behind other hosts.
#[derive(Debug)]
pub(crate) struct Neighbours {
    entries: HashMap<Owned, Entry>,
    /// The number of entries in each network.
    counts: BTreeMap<u16, usize>,
    max: usize,
    network_max: usize,
    /// The addresses that have changed.
    pub(crate) dirty: BTreeSet<Owned>,
}

impl Neighbours {
    /// An empty table with room for `max` entries, and for `network_max` of one network.
    pub(crate) fn new(max: usize, network_max: usize) -> Self {
        let (entries, counts, dirty) = Default::default();
        Self { entries, counts, max, network_max, dirty }
    }

    pub(crate) fn note(&mut self, of: Owned, owner: Owner) {
        let count = self.counts.entry(of.0).or_default();
        let is_new = !self.entries.contains_key(&of);
        if is_new && (self.entries.len() >= self.max || *count >= self.network_max) {
            return;
        }
        *count += usize::from(is_new);
        let before = self.entries.insert(of, Entry { owner, stale: None, seen: true });
        if before.is_none_or(|before| before.owner != owner) {
            self.dirty.insert(of);
        }
    }

    /// Makes an entry stale, so that it is removed after a while; `true` if there was one.
    pub(crate) fn withdraw(&mut self, of: Owned, now_ns: u64) -> bool {
        let entry = self.entries.get_mut(&of);
        entry.map(|entry| entry.stale.get_or_insert(now_ns)).is_some()
    }

    /// Removes an entry at once: the address is here.
    pub(crate) fn remove(&mut self, of: Owned) {
        if self.entries.remove(&of).is_some() {
            if let Some(count) = self.counts.get_mut(&of.0) {
                *count -= 1;
            }
            self.dirty.insert(of);
        }
    }

    /// Removes the entries that are stale for long enough: `is_due` decides by the time since which
    /// an entry is stale. Returns the earliest such time of the other entries.
    pub(crate) fn expire(&mut self, is_due: impl Fn(u64) -> bool) -> Stale {
        let due = self.entries.iter().filter(|(_, entry)| entry.stale.is_some_and(&is_due));
        for of in due.map(|(of, _)| *of).collect::<Vec<_>>() {
            self.remove(of);
        }
        self.entries.values().filter_map(|entry| entry.stale).min()
    }

    pub(crate) fn begin_all(&mut self) {
        self.entries.values_mut().for_each(|entry| entry.seen = false);
    }

    /// Ends a reading of all entries; `true` if any is stale now.
    pub(crate) fn end_all(&mut self, now_ns: u64) -> bool {
        let mut stale = false;
        for entry in self.entries.values_mut().filter(|entry| !entry.seen) {
            entry.stale.get_or_insert(now_ns);
            stale = true;
        }
        stale
    }

    pub(crate) fn owner(&self, of: Owned) -> Option<Owner> {
        self.entries.get(&of).map(|entry| entry.owner)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use weir_wire::Mac;

    use super::*;

    fn ip(number: u32) -> Owned {
        (0, IpAddr::from((0x0a00_0000 + number).to_be_bytes()))
    }

    fn owner(last: u8) -> Owner {
        Owner { mac: Mac([2, 0, 0, 0, 0, last]), is_router: false }
    }

    #[test]
    fn an_owner_is_noted_changes_and_goes_after_a_while() {
        let mut all = Neighbours::new(10, 10);
        all.note(ip(1), owner(1));
        assert_eq!((all.owner(ip(1)), std::mem::take(&mut all.dirty).len()), (Some(owner(1)), 1));
        all.note(ip(1), owner(1));
        assert!(all.dirty.is_empty(), "nothing new");
        all.note(ip(1), Owner { is_router: true, ..owner(1) });
        assert_eq!(std::mem::take(&mut all.dirty).len(), 1);
        assert!(all.withdraw(ip(1), 5) && !all.withdraw(ip(2), 5));
        assert_eq!(all.expire(|since| since < 5), Some(5));
        all.note(ip(1), owner(2));
        assert_eq!((all.expire(|_| true), all.owner(ip(1))), (None, Some(owner(2))), "it is back");
        all.withdraw(ip(1), 6);
        all.expire(|_| true);
        assert_eq!((all.owner(ip(1)), all.entries.len()), (None, 0));
    }

    #[test]
    fn what_was_missed_is_found_by_reading_all() {
        let mut all = Neighbours::new(10, 10);
        [1, 2].iter().for_each(|&it| all.note(ip(it), owner(1)));
        all.begin_all();
        all.note(ip(2), owner(1));
        assert!(all.end_all(7));
        all.expire(|_| true);
        assert_eq!((all.owner(ip(1)), all.owner(ip(2))), (None, Some(owner(1))));
    }

    #[test]
    fn one_network_leaves_the_others_room() {
        let mut all = Neighbours::new(30, 20);
        (0..100_000).for_each(|it| all.note(ip(it), owner(1)));
        assert_eq!(all.entries.len(), 20);
        let other = |it| (1, ip(it).1);
        (0..100).for_each(|it| all.note(other(it), owner(1)));
        assert_eq!(all.entries.len(), 30);
        (0..100_000).for_each(|it| all.remove(ip(it)));
        (0..100).for_each(|it| all.note(other(it), owner(1)));
        assert_eq!(all.entries.len(), 20);
    }
}
