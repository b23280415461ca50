//! A port with observers, and the ports that are in the table behind their observers.

use std::sync::Arc;

use arc_swap::ArcSwap;
use weir_fabric::PortId;
use weir_policy::steering::{Mark, Receiver, Steering};

use super::{
    followed::{Followed, Live},
    tap::{Tap, Taps},
};
use crate::{
    frames::burst::{Burst, Scratch},
    frames::drop_reason::DropReason,
    frames::port::{Ask, Claims, Delivered, Forward, Outgoing, Overlay, Port, Side, Take, Taken},
    frames::stats::{DropObserver, PortCounters},
    switching::switch::{Ports, slot},
    threads::clock,
};

/// A wrapper of another port that copies frames as they come and go. Every method of the trait is passed on to the
/// other port, including those with defaults.
pub(crate) struct Tapped {
    bare: Arc<dyn Port>,
    taps: Taps,
    followed: Option<Followed>,
}

impl Tapped {
    pub(crate) fn new(bare: Arc<dyn Port>, taps: Taps, followed: Option<Followed>) -> Self {
        Self { bare, taps, followed }
    }
}

impl Receiver for Tapped {
    fn mark(&self, queue: usize) -> Mark {
        self.bare.mark(queue)
    }

    fn has_taken(&self, queue: usize, placed: u64, before: Mark) -> bool {
        self.bare.has_taken(queue, placed, before)
    }
}

impl Port for Tapped {
    fn take(&self, queue: usize, ask: Ask, scratch: &mut Scratch, forward: Forward<'_>) -> Taken {
        // Frames that waited were copied when they arrived.
        let is_new = ask.what == Take::New;
        let on_the_way = self.followed.as_ref().filter(|_| is_new).and_then(Followed::begin);
        let taken = self.bare.take(queue, ask, scratch, &mut |burst| {
            if is_new {
                self.taps.iter().for_each(|tap| tap.sent(burst));
            }
            if let Some(on_the_way) = &on_the_way {
                on_the_way.pick(queue, burst);
            }
            forward(burst);
            if let Some(on_the_way) = &on_the_way {
                on_the_way.leave(burst);
            }
        });
        if let Some(on_the_way) = on_the_way {
            on_the_way.end();
        }
        taken
    }

    fn deliver(&self, queue: usize, burst: &Burst<'_>, frames: &[Outgoing]) -> Delivered {
        // The time is taken before the guest can answer: its answer must have the later time.
        let at_ns = clock::now_ns();
        let before = self.followed.as_ref().map(|followed| followed.calls(queue));
        let done = self.bare.deliver(queue, burst, frames);
        let is_delivered = |place| place < done.frames || done.ahead >> place & 1 != 0;
        if let (Some(followed), Some(before)) = (&self.followed, before) {
            let delivered = frames.iter().enumerate().filter(|(place, _)| is_delivered(*place));
            let delivered = delivered.fold(0, |bits, (_, outgoing)| bits | 1 << outgoing.frame);
            followed.delivered(queue, delivered, at_ns, before, done.hold_until);
        }
        self.taps.iter().for_each(|tap| tap.received(at_ns, burst, frames, is_delivered));
        done
    }

    fn expired(&self, queue: usize, side: Side, by_ns: u64) -> Option<u64> {
        self.bare.expired(queue, side, by_ns)
    }

    fn peek_tx(&self, queue: usize) -> bool {
        self.bare.peek_tx(queue)
    }

    fn share_tx(&self, queue: usize, on: bool) -> bool {
        self.bare.share_tx(queue, on)
    }

    fn is_uplink(&self) -> bool {
        self.bare.is_uplink()
    }

    fn copies_remote(&self) -> bool {
        self.bare.copies_remote()
    }

    fn wait_ns_max(&self) -> u64 {
        self.bare.wait_ns_max()
    }

    fn arm_tx(&self, queue: usize) -> bool {
        self.bare.arm_tx(queue)
    }

    fn kicked(&self, queue: usize, side: Side) {
        self.bare.kicked(queue, side);
    }

    fn has_one_kick(&self, queue: usize) -> bool {
        self.bare.has_one_kick(queue)
    }

    fn rx_queues(&self) -> usize {
        self.bare.rx_queues()
    }

    fn steering(&self) -> Option<&Steering> {
        self.bare.steering()
    }

    fn flow_hash(&self, head: &[u8]) -> u32 {
        self.bare.flow_hash(head)
    }

    fn overlay(&self) -> Option<&dyn Overlay> {
        self.bare.overlay()
    }

    fn claims(&self) -> Option<&dyn Claims> {
        self.bare.claims()
    }

    fn keeps(&self, head: &[u8]) -> bool {
        self.bare.keeps(head)
    }

    fn fail(&self, reason: &str) {
        self.bare.fail(reason);
    }

    fn blocks(&self, ns: u64) {
        self.bare.blocks(ns);
    }
}

/// The present captures.
#[derive(Default)]
pub(crate) struct Captured {
    /// Captures that run, without those of mirrors.
    pub(crate) captures: usize,
    pub(crate) mirrors: usize,
    ports: Vec<TappedPort>,
    live: Option<Arc<Live>>,
}

/// A port that is in the table behind its observers.
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    /// The methods of a block that begins with `start`.
    fn methods<'s>(source: &'s str, start: &str) -> BTreeSet<&'s str> {
        let (_, block) = source.split_once(start).expect("the block");
        let (block, _) = block.split_once("\n}\n").expect("its end");
        let names = block.lines().filter_map(|line| line.strip_prefix("    fn "));
        names.filter_map(|rest| rest.split(['(', '<']).next()).collect()
    }

    #[test]
    fn a_captured_port_does_all_that_the_port_does() {
        let port = methods(include_str!("../frames/port.rs"), "\npub trait Port: Receiver");
        let passed_on = methods(include_str!("tapped.rs"), "\nimpl Port for Tapped");
        assert!(port.len() > 15, "{port:?}");
        assert_eq!(port, passed_on, "a default in place of the port's own method");
    }
}
