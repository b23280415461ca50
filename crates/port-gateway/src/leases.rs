//! Who has which address, and until when.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use weir_limits::LEASES_MAX;
use weir_wire::Mac;

/// A client behind an interface. What a client says of itself counts behind its own interface only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// The interface.
    pub vif: String,
    /// Its address.
    pub mac: Mac,
    /// What it calls itself (RFC 2132 §9.14), if it does.
    pub id: Option<Vec<u8>>,
}

impl Client {
    /// Whether both are one: by the names that they give themselves if both do, by their MAC addresses otherwise.
    pub fn is(&self, other: &Self) -> bool {
        self.vif == other.vif
            && match (&self.id, &other.id) {
                (Some(id), Some(other)) => id == other,
                _ => self.mac == other.mac,
            }
    }
}

/// What holds of an address until its time is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// The client has it.
    Bound,
    /// It was offered to the client.
    Offered,
    /// The client has found somebody else who uses it.
    Declined,
}

/// An address and its client. Once its time is over, the client gets it again if nobody else has it by then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Who has it.
    pub client: Client,
    /// What holds of it.
    pub hold: Hold,
    /// The second in which that ends.
    pub until_secs: u32,
}

impl Lease {
    /// Whether it still holds.
    pub fn holds(&self, now_secs: u32) -> bool {
        now_secs < self.until_secs
    }
}

/// Leases of one network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leases {
    all: BTreeMap<Ipv4Addr, Lease>,
    /// Addresses of each interface.
    of_vifs: BTreeMap<String, BTreeSet<Ipv4Addr>>,
}

impl Leases {
    /// All that are remembered, by address.
    pub fn iter(&self) -> impl Iterator<Item = (Ipv4Addr, &Lease)> {
        self.all.iter().map(|(address, lease)| (*address, lease))
    }

    /// The lease of an address, past ones included.
    pub fn get(&self, address: Ipv4Addr) -> Option<&Lease> {
        self.all.get(&address)
    }

    /// Those of one interface, past ones included.
    pub fn of_vif(&self, vif: &str) -> impl Iterator<Item = (Ipv4Addr, &Lease)> {
        let addresses = self.of_vifs.get(vif).into_iter().flatten();
        addresses.filter_map(|address| Some((*address, self.all.get(address)?)))
    }

    /// How many of an interface hold.
    pub fn held_by(&self, vif: &str, now_secs: u32) -> usize {
        self.of_vif(vif).filter(|(_, lease)| lease.holds(now_secs)).count()
    }

    /// How many hold in all.
    pub fn held(&self, now_secs: u32) -> usize {
        self.all.values().filter(|lease| lease.holds(now_secs)).count()
    }

    /// The address that a client has, or had: the one that lasts longest, if there are several.
    pub fn of(&self, client: &Client) -> Option<(Ipv4Addr, &Lease)> {
        let its = self.of_vif(&client.vif).filter(|(_, lease)| lease.client.is(client));
        its.filter(|(_, lease)| lease.hold != Hold::Declined)
            .max_by_key(|(_, lease)| lease.until_secs)
    }

    /// Whether the client may have an address as far as others are concerned.
    pub fn is_free_for(&self, address: Ipv4Addr, client: &Client, now_secs: u32) -> bool {
        self.all.get(&address).is_none_or(|lease| {
            let own = lease.hold != Hold::Declined && lease.client.is(client);
            own || !lease.holds(now_secs)
        })
    }

    /// Whoever had the address does not have it any more.
    pub fn put(&mut self, address: Ipv4Addr, lease: Lease, now_secs: u32) {
        self.forget(address);
        if self.all.len() >= LEASES_MAX {
            // One that is over, and has been for the longest time.
            let past = self.all.iter().filter(|(_, lease)| !lease.holds(now_secs));
            let oldest =
                past.min_by_key(|(_, lease)| lease.until_secs).map(|(address, _)| *address);
            let Some(oldest) = oldest else { return };
            self.forget(oldest);
        }
        self.of_vifs.entry(lease.client.vif.clone()).or_default().insert(address);
        self.all.insert(address, lease);
    }

    /// The client gives the address back, and is remembered.
    pub fn end(&mut self, address: Ipv4Addr, now_secs: u32) {
        if let Some(lease) = self.all.get_mut(&address) {
            lease.until_secs = lease.until_secs.min(now_secs);
        }
    }

    /// Forgets an address and who had it.
    pub fn forget(&mut self, address: Ipv4Addr) {
        let Some(lease) = self.all.remove(&address) else { return };
        if let Some(addresses) = self.of_vifs.get_mut(&lease.client.vif) {
            addresses.remove(&address);
            if addresses.is_empty() {
                self.of_vifs.remove(&lease.client.vif);
            }
        }
    }
}
