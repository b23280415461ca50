//! Owners of addresses behind other hosts, and stations' claims of addresses until they are taken.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Mutex, OnceLock, PoisonError, RwLock};

use weir_limits::{EVPN_SIGHTINGS_MAX, EVPN_SIGHTINGS_PER_SEC};
use weir_policy::policing::Gcra;
use weir_wire::{Mac, Owner};

/// An IP address of a network, by the network's number in the switch.
pub type Owned = (u16, IpAddr);

/// A station's claim that an IP address is its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// The network's number in the switch.
    pub network: u16,
    /// The address.
    pub ip: IpAddr,
    /// The station.
    pub mac: Mac,
    /// The station is behind another host.
    pub is_remote: bool,
}

/// The owners of addresses behind other hosts, and the bell for claims.
#[derive(Default)]
pub(crate) struct Suppress {
    /// The owners are in order, so that a thread that lists them can pause for frames and continue
    /// from the same place.
    pub(crate) owners: RwLock<BTreeMap<Owned, Owner>>,
    pub(crate) bell: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// Claims of stations of one network, here or behind other hosts, until they are taken. Each network has its own room,
/// so that a flood of claims in one hides none in another.
#[derive(Debug)]
pub(crate) struct Sightings {
    waiting: Mutex<Vec<Sighting>>,
    rate: Gcra,
}

impl Default for Sightings {
    fn default() -> Self {
        let rate = Gcra::new(EVPN_SIGHTINGS_PER_SEC, EVPN_SIGHTINGS_MAX as u64);
        Self { waiting: Mutex::default(), rate }
    }
}

impl Sightings {
    /// Adds a claim; `false` if there is no room.
    pub(crate) fn push(&self, sighting: Sighting, now_ns: u64) -> bool {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        // A repeated claim counts once, and needs no budget.
        if waiting.contains(&sighting) {
            return true;
        }
        let has_room = waiting.len() < EVPN_SIGHTINGS_MAX;
        if !has_room || self.rate.pass(now_ns, 1, [1].into_iter()).frames == 0 {
            return false;
        }
        waiting.push(sighting);
        true
    }

    pub(crate) fn take(&self, into: &mut Vec<Sighting>) {
        into.append(&mut self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
