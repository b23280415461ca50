//! The owners of IP addresses: this host's are announced to FRR, and the overlay answers guests' requests for other
//! hosts'.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weir_config::{Networks, VifConfig, VlanMode};
use weir_engine::clock;
use weir_evpn::{Announced, Claims, Dirty, Judged, Owned, Place, Table};
use weir_fabric::PortId;
use weir_limits::{EVPN_CLAIMS_MAX, EVPN_CLAIMS_PER_NETWORK};
use weir_port_vxlan::{Sighting, VxlanPort};
use weir_wire::Mac;

/// IP addresses that are configured for one station, which are those of interfaces with a source guard.
#[derive(Debug, Default)]
pub(in crate::switch) struct ConfiguredOwners(Mutex<BTreeMap<PortId, Vec<(Owned, Mac)>>>);

impl ConfiguredOwners {
    fn all(&self) -> MutexGuard<'_, BTreeMap<PortId, Vec<(Owned, Mac)>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds or updates an interface.
    pub(in crate::switch) fn set(&self, id: PortId, config: &VifConfig, networks: &Networks) {
        let network = match &config.vlan {
            VlanMode::Network(name) => networks.number(name),
            _ => None,
        };
        let (Some(network), Some(mac)) = (network, config.mac) else { return self.remove(id) };
        let owned = config.guarding.own_addresses().map(|ip| ((network, ip), mac.into()));
        self.all().insert(id, owned.collect());
    }

    /// The owner of each address. An address that several stations may have, such as a virtual router's, has no owner
    /// until a station claims it.
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

    /// Removes an interface.
    pub(in crate::switch) fn remove(&self, id: PortId) {
        self.all().remove(&id);
    }
}

/// The thread's state of IP addresses, for reports.
#[derive(Debug, Default)]
pub(in crate::switch) struct Shown {
    /// IP addresses of this host's stations that are announced to FRR.
    pub(in crate::switch) here: BTreeMap<Owned, Mac>,
    /// IP addresses that this host's stations have claimed.
    pub(in crate::switch) claims: usize,
    /// Times that two stations have claimed the same IP address.
    pub(in crate::switch) contested: u64,
    /// Claims that were refused because there was no room.
    pub(in crate::switch) refused: u64,
}

/// The thread's state of this host's IP addresses.
pub(super) struct Owners {
    claims: Claims,
    announced: Announced<Owned, Mac>,
    /// Networks in which weir answers requests for addresses.
    suppressed: BTreeSet<u16>,
    configured: Arc<ConfiguredOwners>,
    /// The announcements, for reports.
    shown: Arc<Mutex<Arc<Shown>>>,
    /// The time when a claim or a contest ends by itself (ns).
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

    /// Notes claims of stations; returns true if they may change the announcements or what is shown.
    pub(super) fn saw(&mut self, sightings: Vec<Sighting>) -> bool {
        let (now_ns, mut changes) = (clock::now_ns(), false);
        for Sighting { network, ip, mac, is_remote } in sightings {
            let judged = self.claims.saw((network, ip), mac, is_remote, now_ns);
            changes |= judged != Judged::Known;
        }
        changes
    }

    /// Passes FRR's addresses behind other hosts to the overlay, and compares the announcements with FRR's state.
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

    /// The announcements to make for this host's stations, and true if no others remain.
    pub(super) fn changes<H>(
        &mut self,
        here: &BTreeMap<Place, H>,
        table: &Table,
        now_ns: u64,
    ) -> (Vec<(Owned, Option<Mac>)>, bool) {
        self.claims.configure(self.configured.of_one());
        // The claim is another host's as long as FRR provides that station's host.
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

    /// Notes that FRR did not get the announcements.
    pub(super) fn untold(&mut self, changes: &[(Owned, Option<Mac>)]) {
        changes.iter().for_each(|(of, _)| self.announced.untold(*of));
    }

    /// The time (ns) until an announcement changes by itself.
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
