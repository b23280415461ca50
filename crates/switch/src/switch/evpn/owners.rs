//! Which station has which IP address: what FRR is told of those here, and what the overlay answers guests of others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weir_config::{Networks, VifConfig, VlanMode};
use weir_engine::clock;
use weir_evpn::{Announced, Claims, Dirty, Judged, Owned, Place, Table};
use weir_fabric::PortId;
use weir_limits::{EVPN_CLAIMS_MAX, EVPN_CLAIMS_PER_NETWORK};
use weir_port_vxlan::{Sighting, VxlanPort};
use weir_wire::Mac;

use super::Shown;

/// IP addresses that are configured for one station: interfaces with a source guard that knows them.
#[derive(Debug, Default)]
pub(in crate::switch) struct ConfiguredOwners(Mutex<BTreeMap<PortId, Vec<(Owned, Mac)>>>);

impl ConfiguredOwners {
    fn all(&self) -> MutexGuard<'_, BTreeMap<PortId, Vec<(Owned, Mac)>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An interface is there, or has changed.
    pub(in crate::switch) fn set(&self, id: PortId, config: &VifConfig, networks: &Networks) {
        let network = match &config.vlan {
            VlanMode::Network(name) => networks.number(name),
            _ => None,
        };
        let (Some(network), Some(mac)) = (network, config.mac) else { return self.remove(id) };
        let owned = config.guarding.own_addresses().map(|ip| ((network, ip), mac.into()));
        self.all().insert(id, owned.collect());
    }

    /// Who has which. An address that several may have, such as a virtual router's, is nobody's until one says so.
    fn of_one(&self) -> BTreeMap<Owned, Mac> {
        let (mut one, mut several) = (BTreeMap::new(), BTreeSet::new());
        for (of, mac) in self.all().values().flatten() {
            if one.insert(*of, *mac).is_some_and(|other| other != *mac) {
                several.insert(*of);
            }
        }
        one.retain(|of, _| !several.contains(of));
        one
    }

    /// It has gone.
    pub(in crate::switch) fn remove(&self, id: PortId) {
        self.all().remove(&id);
    }
}

/// What the thread knows of IP addresses here.
pub(super) struct Owners {
    claims: Claims,
    announced: Announced<Owned, Mac>,
    /// Networks in which questions are answered here.
    suppressed: BTreeSet<u16>,
    configured: Arc<ConfiguredOwners>,
    /// What is announced, for who looks.
    shown: Arc<Mutex<Arc<Shown>>>,
    /// When a claim or a contest ends by itself (ns).
    ends_ns: Option<u64>,
}

impl Owners {
    pub(super) fn new(
        networks: &Networks,
        configured: Arc<ConfiguredOwners>,
        shown: Arc<Mutex<Arc<Shown>>>,
    ) -> Self {
        Self {
            claims: Claims::new(EVPN_CLAIMS_MAX, EVPN_CLAIMS_PER_NETWORK),
            announced: Announced::default(),
            suppressed: networks.suppressed().collect(),
            configured,
            shown,
            ends_ns: None,
        }
    }

    /// What stations have said; whether that may change what is announced, or shown.
    pub(super) fn saw(&mut self, sightings: Vec<Sighting>) -> bool {
        let (now_ns, mut changes) = (clock::now_ns(), false);
        for Sighting { network, ip, mac, is_remote } in sightings {
            let judged = self.claims.saw((network, ip), mac, is_remote, now_ns);
            changes |= judged != Judged::Known;
        }
        changes
    }

    /// What FRR has said of addresses behind other hosts goes to the overlay, and what FRR was told is compared.
    pub(super) fn hear(&mut self, dirty: &Dirty, table: &Table, port: &VxlanPort, now_ns: u64) {
        for of in &dirty.owned {
            if table.owner(*of).is_some() {
                self.announced.taken(*of, now_ns);
            }
        }
        for (of, told) in &dirty.owned_here {
            match told {
                Some(mac) => self.announced.found(*of, *mac),
                None => self.announced.untold(*of),
            }
        }
        let answered = dirty.owned.iter().filter(|(network, _)| self.suppressed.contains(network));
        port.set_owners(answered.map(|of| (*of, table.owner(*of))));
    }

    /// What FRR is to be told of stations that are here; whether that is all.
    pub(super) fn changes<H>(
        &mut self,
        here: &BTreeMap<Place, H>,
        table: &Table,
        now_ns: u64,
    ) -> (Vec<(Owned, Option<Mac>)>, bool) {
        self.claims.configure(self.configured.of_one());
        // As long as FRR says where that station is.
        let elsewhere = |of: Owned| {
            let owner = table.owner(of)?.mac;
            table.remote((of.0, owner)).map(|_| owner)
        };
        let mut owned = self.claims.here(|place| here.contains_key(&place), elsewhere, now_ns);
        owned.retain(|(network, _), _| self.suppressed.contains(network));
        self.ends_ns = self.claims.ends_ns(now_ns).map(|after_ns| now_ns + after_ns);
        let changes = self.announced.changes(&owned, now_ns);
        let (claims, contested, refused) = self.claims.counts();
        let now = Shown { here: owned, claims, contested, refused };
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(now);
        changes
    }

    /// FRR could not be told.
    pub(super) fn untold(&mut self, changes: &[(Owned, Option<Mac>)]) {
        changes.iter().for_each(|(of, _)| self.announced.untold(*of));
    }

    /// After how long (ns) something is to be announced, or not any more, by itself.
    pub(super) fn due_ns(&self) -> Option<u64> {
        self.ends_ns.map(|at| at.saturating_sub(clock::now_ns()))
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn an_address_that_two_interfaces_may_have_is_configured_for_neither() {
        let of = |network, last| (network, IpAddr::from([10, 0, 0, last]));
        let mac = |last| Mac([2, 0, 0, 0, 0, last]);
        let owners = ConfiguredOwners::default();
        let set = |id: u16, owned: &[(Owned, Mac)]| {
            owners.all().insert(PortId::new(id).unwrap(), owned.to_vec());
        };
        set(1, &[(of(0, 1), mac(1)), (of(0, 9), mac(1))]);
        set(2, &[(of(0, 2), mac(2)), (of(0, 9), mac(2))]);
        set(3, &[(of(1, 9), mac(2))]);
        let expected = [(of(0, 1), mac(1)), (of(0, 2), mac(2)), (of(1, 9), mac(2))];
        assert_eq!(owners.of_one(), expected.into());
        owners.remove(PortId::new(2).unwrap());
        assert_eq!(owners.of_one().get(&of(0, 9)), Some(&mac(1)));
    }
}
