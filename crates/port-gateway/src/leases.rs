//! The leases: each address, its client and its end.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::ops::Bound;

use weir_limits::{LEASES_MAX, LEASES_PER_VIF_MAX, READ_AT_ONCE};
use weir_wire::Mac;

/// A client behind an interface. A client identifier is valid behind its own interface only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// The interface.
    pub vif: String,
    /// The client's MAC address.
    pub mac: Mac,
    /// The client identifier (RFC 2132 §9.14), if the client sends one.
    pub id: Option<Vec<u8>>,
}

impl Client {
    /// True if both are the same client: by their identifiers if both have one, by their MAC addresses otherwise.
    pub fn is(&self, other: &Self) -> bool {
        self.vif == other.vif
            && match (&self.id, &other.id) {
                (Some(id), Some(other)) => id == other,
                _ => self.mac == other.mac,
            }
    }
}

/// The state of an address until its lease ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// The client has it.
    Bound,
    /// The address was offered to the client.
    Offered,
    /// The client has found the address in use.
    Declined,
}

/// The lease of an address. After its end, the client gets the address again unless another client has it by then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The client that has the address.
    pub client: Client,
    /// The state of the address.
    pub hold: Hold,
    /// The second in which the lease ends.
    pub until_secs: u32,
}

impl Lease {
    /// True if the lease has not ended.
    pub fn holds(&self, now_secs: u32) -> bool {
        now_secs < self.until_secs
    }

    /// True if the client has the address now.
    pub fn is_bound(&self, now_secs: u32) -> bool {
        self.hold == Hold::Bound && self.holds(now_secs)
    }
}

/// Leases of one network, for one IP version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leases<A = Ipv4Addr> {
    all: BTreeMap<A, Lease>,
    /// Addresses of each interface.
    of_vifs: BTreeMap<String, BTreeSet<A>>,
}

impl<A> Default for Leases<A> {
    fn default() -> Self {
        Self { all: BTreeMap::new(), of_vifs: BTreeMap::new() }
    }
}

impl<A: Copy + Ord> Leases<A> {
    /// All leases by address, past ones included.
    pub fn iter(&self) -> impl Iterator<Item = (A, &Lease)> {
        self.all.iter().map(|(address, lease)| (*address, lease))
    }

    /// The leases of at most [`READ_AT_ONCE`] addresses after this one, past ones included.
    pub fn after(&self, last: Option<A>) -> impl Iterator<Item = (A, &Lease)> {
        let after = last.map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.all.range((after, Bound::Unbounded)).take(READ_AT_ONCE);
        next.map(|(address, lease)| (*address, lease))
    }

    /// The lease of an address, past ones included.
    pub fn get(&self, address: A) -> Option<&Lease> {
        self.all.get(&address)
    }

    /// The addresses that clients of an interface have now.
    pub fn bound_of(&self, vif: &str, now_secs: u32) -> impl Iterator<Item = A> {
        let all = self.of_vif(vif).filter(move |(_, lease)| lease.is_bound(now_secs));
        all.map(|(address, _)| address)
    }

    /// The interface whose client has an address now.
    pub fn vif_of(&self, address: A, now_secs: u32) -> Option<&str> {
        let lease = self.get(address).filter(|lease| lease.is_bound(now_secs));
        lease.map(|lease| lease.client.vif.as_str())
    }

    /// The leases of one interface, past ones included.
    pub fn of_vif(&self, vif: &str) -> impl Iterator<Item = (A, &Lease)> {
        let addresses = self.of_vifs.get(vif).into_iter().flatten();
        addresses.filter_map(|address| Some((*address, self.all.get(address)?)))
    }

    /// The number of an interface's leases that have not ended.
    pub fn held_by(&self, vif: &str, now_secs: u32) -> usize {
        self.of_vif(vif).filter(|(_, lease)| lease.holds(now_secs)).count()
    }

    /// The number of leases that have not ended.
    pub fn held(&self, now_secs: u32) -> usize {
        self.all.values().filter(|lease| lease.holds(now_secs)).count()
    }

    /// True if the interface can get one more address of those that are `free`. One is kept for each of `others` that has
    /// none yet.
    pub fn have_room_for<'n>(
        &self,
        vif: &str,
        others: impl Iterator<Item = &'n String>,
        free: impl FnOnce() -> u64,
        now_secs: u32,
    ) -> bool {
        let waits = |other: &&String| *other != vif && self.held_by(other, now_secs) == 0;
        let own = self.held_by(vif, now_secs);
        own == 0
            || own < LEASES_PER_VIF_MAX && {
                let kept = others.filter(waits).count();
                free() > kept as u64 && self.held(now_secs) + kept < LEASES_MAX
            }
    }

    /// The client's present or last address. If there are several, the one whose lease ends last.
    pub fn of(&self, client: &Client) -> Option<(A, &Lease)> {
        let its = self.of_vif(&client.vif).filter(|(_, lease)| lease.client.is(client));
        its.filter(|(_, lease)| lease.hold != Hold::Declined)
            .max_by_key(|(_, lease)| lease.until_secs)
    }

    /// True if no other client has the address.
    pub fn is_free_for(&self, address: A, client: &Client, now_secs: u32) -> bool {
        self.all.get(&address).is_none_or(|lease| {
            let own = lease.hold != Hold::Declined && lease.client.is(client);
            own || !lease.holds(now_secs)
        })
    }

    /// Replaces the lease of an address.
    pub fn put(&mut self, address: A, lease: Lease, now_secs: u32) {
        self.forget(address);
        if self.all.len() >= LEASES_MAX {
            // The lease that ended first makes room.
            let past = self.all.iter().filter(|(_, lease)| !lease.holds(now_secs));
            let oldest =
                past.min_by_key(|(_, lease)| lease.until_secs).map(|(address, _)| *address);
            let Some(oldest) = oldest else { return };
            self.forget(oldest);
        }
        self.of_vifs.entry(lease.client.vif.clone()).or_default().insert(address);
        self.all.insert(address, lease);
    }

    /// Ends the lease of an address, but remembers its client.
    pub fn end(&mut self, address: A, now_secs: u32) {
        if let Some(lease) = self.all.get_mut(&address) {
            lease.until_secs = lease.until_secs.min(now_secs);
        }
    }

    /// Removes the lease of an address.
    pub fn forget(&mut self, address: A) {
        let Some(lease) = self.all.remove(&address) else { return };
        if let Some(addresses) = self.of_vifs.get_mut(&lease.client.vif) {
            addresses.remove(&address);
            if addresses.is_empty() {
                self.of_vifs.remove(&lease.client.vif);
            }
        }
    }
}
