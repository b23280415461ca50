//! The ports that stand in the table behind their observers.

use std::sync::Arc;

use arc_swap::ArcSwap;
use weir_fabric::PortId;

use super::followed::{Followed, Live};
use super::tap::{Tap, Taps};
use super::tapped::Tapped;
use crate::frames::burst::Burst;
use crate::frames::drop_reason::DropReason;
use crate::frames::port::Port;
use crate::frames::stats::{DropObserver, PortCounters};
use crate::switching::switch::{Ports, slot};

/// The present captures.
#[derive(Default)]
pub(crate) struct Captured {
    /// Captures that run, without those of mirrors.
    pub(crate) captures: usize,
    pub(crate) mirrors: usize,
    ports: Vec<TappedPort>,
    live: Option<Arc<Live>>,
}

/// A port that stands in the table behind its observers.
struct TappedPort {
    id: PortId,
    bare: Arc<dyn Port>,
    counters: Arc<PortCounters>,
    taps: Vec<Arc<Tap>>,
    /// True if frames are followed at the port.
    follows: bool,
}

impl TappedPort {
    /// The port's stand-in, and the observers of its drops.
    fn stands(&self, live: Option<&Arc<Live>>) -> (Arc<dyn Port>, Option<Looks>) {
        let taps: Taps = self.taps.iter().cloned().collect();
        let live = live.filter(|_| self.follows);
        let followed = live.map(|live| Followed::new(live, self.id, &self.counters));
        let bare = Arc::clone(&self.bare);
        let passes = taps.iter().any(|tap| tap.copies());
        let port: Arc<dyn Port> = match passes || followed.is_some() {
            true => Arc::new(Tapped::new(bare, Arc::clone(&taps), followed.clone())),
            false => bare,
        };
        let looks = followed.is_some() || taps.iter().any(|tap| tap.copies_drops());
        (port, looks.then_some(Looks { taps, followed }))
    }
}

impl Captured {
    /// True if frames are being followed.
    pub(crate) fn follows(&self) -> bool {
        self.live.is_some()
    }

    /// Changes the taps of a port; does nothing if there is no such port.
    pub(crate) fn change(
        &mut self,
        ports: &ArcSwap<Ports>,
        id: PortId,
        change: impl FnOnce(&mut Vec<Arc<Tap>>),
    ) {
        if let Some(port) = self.port(&ports.load(), id) {
            change(&mut port.taps);
            self.settle(ports, |other| other == id);
        }
    }

    /// Begins to follow frames at every present port, or ends it.
    pub(crate) fn set_live(&mut self, ports: &ArcSwap<Ports>, live: Option<Arc<Live>>) {
        let table = ports.load();
        match live {
            None => self.ports.iter_mut().for_each(|port| port.follows = false),
            Some(_) => {
                let numbers = (0..).take(table.len());
                for id in numbers.filter_map(PortId::new) {
                    if let Some(port) = self.port(&table, id) {
                        port.follows = true;
                    }
                }
            }
        }
        self.live = live;
        self.settle(ports, |_| true);
    }

    fn port(&mut self, table: &Ports, id: PortId) -> Option<&mut TappedPort> {
        let place = match self.ports.iter().position(|port| port.id == id) {
            Some(place) => place,
            None => {
                let slot = slot(table, id)?;
                let (bare, counters) = (Arc::clone(&slot.port), Arc::clone(&slot.counters));
                let (taps, follows) = Default::default();
                self.ports.push(TappedPort { id, bare, counters, taps, follows });
                self.ports.len() - 1
            }
        };
        self.ports.get_mut(place)
    }

    /// Puts ports into the table with their current observers.
    fn settle(&mut self, ports: &ArcSwap<Ports>, which: impl Fn(PortId) -> bool) {
        let mut stands = Vec::new();
        for port in self.ports.iter().filter(|port| which(port.id)) {
            let (port_stands, looks) = port.stands(self.live.as_ref());
            port.counters.set_observer(looks.map(|looks| Box::new(looks) as _));
            stands.push((port.id, port_stands));
        }
        ports.rcu(|ports| {
            let mut ports = Ports::clone(ports);
            for (id, port) in &stands {
                if let Some(Some(slot)) = ports.get_mut(id.index()) {
                    slot.port = Arc::clone(port);
                }
            }
            ports
        });
        self.ports.retain(|port| port.follows || !port.taps.is_empty());
    }

    /// True if the port still exists and `tap` copies its frames.
    pub(crate) fn has(&self, id: PortId, tap: &Arc<Tap>) -> bool {
        let port = self.ports.iter().find(|port| port.id == id);
        port.is_some_and(|port| port.taps.iter().any(|other| Arc::ptr_eq(other, tap)))
    }

    /// Forgets a port that leaves the table.
    pub(crate) fn forget(&mut self, id: PortId) {
        self.ports.retain(|port| port.id != id);
    }
}

/// The observers of a port's drops.
#[derive(Debug)]
struct Looks {
    taps: Taps,
    followed: Option<Followed>,
}

impl DropObserver for Looks {
    fn dropped(&self, burst: &Burst<'_>, frames: u64, reason: DropReason) {
        self.taps.iter().for_each(|tap| tap.dropped(burst, frames, reason));
        if let Some(followed) = &self.followed {
            followed.dropped(frames, reason);
        }
    }

    fn dropped_unseen(&self, frames: u64, reason: DropReason) {
        self.taps.iter().for_each(|tap| tap.dropped_unseen(frames, reason));
    }
}
