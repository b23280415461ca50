//! One burst through the switch: classify every frame, then serve each receiver once.

use std::sync::Arc;

use weir_fabric::{EgressTag, Forward, FrameKey, PortId, View};
use weir_limits::{PORTS_MAX, QUEUE_PAIRS_MAX};

use crate::burst::Burst;
use crate::flow::symmetric_hash;
use crate::port::{Outgoing, Port};
use crate::stats::{DropReason, PortCounters};

/// A port in the table that workers read.
#[derive(Clone)]
pub struct Slot {
    /// The port.
    pub port: Arc<dyn Port>,
    /// What it counts.
    pub counters: Arc<PortCounters>,
}

/// All ports, by number. Replaced as a whole; workers hold a snapshot for one round.
pub type Ports = Vec<Option<Slot>>;

/// The slot of a port number.
#[inline]
pub fn slot(ports: &Ports, id: PortId) -> Option<&Slot> {
    ports.get(id.index())?.as_ref()
}

/// A deadline that a receive queue's moderation policy gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hold {
    /// When to ask [`Port::expired`] (ns).
    pub until_ns: u64,
    /// The receiver.
    pub port: PortId,
    /// Its queue.
    pub queue: usize,
}

const NO_LIST: u16 = u16::MAX;

/// Frames for one receive queue.
struct List {
    port: PortId,
    queue: usize,
    frames: Vec<Outgoing>,
    /// Bit i: `frames[i]` goes to this receiver only, and may wait.
    unicast: u64,
}

/// The lists of one burst, kept between bursts: the loop allocates only until it has seen its
/// widest flood.
pub struct Forwarder {
    lists: Vec<List>,
    used: usize,
    /// Which list a (port, queue) has in this burst.
    list_of: Box<[u16]>,
    /// Deadlines that came up; the worker takes them.
    pub holds: Vec<Hold>,
    /// Receive queues that frames were parked for; the worker asks them for a kick.
    pub full: Vec<(PortId, usize)>,
}

const _: () = assert!(weir_limits::BURST_MAX <= u64::BITS as usize);
const _: () = assert!(PORTS_MAX * QUEUE_PAIRS_MAX < NO_LIST as usize);

impl Default for Forwarder {
    fn default() -> Self {
        Self {
            lists: Vec::new(),
            used: 0,
            list_of: vec![NO_LIST; PORTS_MAX * QUEUE_PAIRS_MAX].into(),
            holds: Vec::new(),
            full: Vec::new(),
        }
    }
}

/// Where a burst comes from, and what the switch looks like while it passes.
#[derive(Clone, Copy)]
pub struct Ingress<'a> {
    /// The forwarding rules.
    pub view: &'a View<'a>,
    /// The ports.
    pub ports: &'a Ports,
    /// The sender.
    pub port: PortId,
    /// Its counters.
    pub counters: &'a PortCounters,
    /// Now.
    pub now_ns: u64,
}

impl Forwarder {
    /// Takes every frame of `burst` to where it belongs: into receivers' rings, into
    /// `burst.parked`, or into a drop counter.
    pub fn forward(&mut self, ingress: Ingress<'_>, burst: &mut Burst<'_>) {
        for index in 0..burst.frames().len() {
            self.classify(&ingress, burst, index as u16);
        }
        for list in 0..self.used {
            self.serve(&ingress, burst, list);
        }
        self.used = 0;
    }

    #[inline]
    fn classify(&mut self, ingress: &Ingress<'_>, burst: &mut Burst<'_>, index: u16) {
        let frame = &burst.frames()[usize::from(index)];
        let key = FrameKey { src: frame.ethernet.src, dst: frame.ethernet.dst, tag: frame.tag };
        let now_secs = crate::clock::secs(ingress.now_ns);
        match ingress.view.forward(ingress.port, &key, now_secs) {
            Err(reason) => ingress.counters.dropped(reason, 1),
            Ok(Forward::Unicast { port, vid }) => {
                if burst.blocked.contains(&port) {
                    if !burst.park(index, port) {
                        count_drop(ingress, port, DropReason::RxRingFull);
                    }
                } else if let Some(tag) = ingress.view.egress(port, vid, key.tag) {
                    self.append(ingress, burst, port, Outgoing { frame: index, tag }, true);
                }
            }
            Ok(Forward::Flood { vid }) => {
                for port in ingress.view.flood_ports(ingress.port, vid) {
                    if let Some(tag) = ingress.view.egress(port, vid, key.tag) {
                        self.append(ingress, burst, port, Outgoing { frame: index, tag }, false);
                    }
                }
            }
        }
    }

    #[inline]
    fn append(
        &mut self,
        ingress: &Ingress<'_>,
        burst: &Burst<'_>,
        port: PortId,
        outgoing: Outgoing,
        unicast: bool,
    ) {
        let Some(slot) = slot(ingress.ports, port) else {
            return;
        };
        let queue = match slot.port.rx_queues() {
            0 => {
                // A flood reaches whoever is there; only a frame meant for this port is lost.
                if unicast {
                    slot.counters.dropped(DropReason::RxNotReady, 1);
                }
                return;
            }
            1 => 0,
            _ => {
                let head = &burst.frames()[usize::from(outgoing.frame)].head;
                slot.port.rx_queue_for(symmetric_hash(head.as_slice()))
            }
        };
        let entry = &mut self.list_of[port.index() * QUEUE_PAIRS_MAX + queue % QUEUE_PAIRS_MAX];
        if *entry == NO_LIST {
            *entry = self.used as u16;
            if self.used == self.lists.len() {
                self.lists.push(List { port, queue, frames: Vec::new(), unicast: 0 });
            }
            let list = &mut self.lists[self.used];
            (list.port, list.queue, list.unicast) = (port, queue, 0);
            list.frames.clear();
            self.used += 1;
        }
        let list = &mut self.lists[usize::from(*entry)];
        list.unicast |= u64::from(unicast) << list.frames.len();
        list.frames.push(outgoing);
    }

    fn serve(&mut self, ingress: &Ingress<'_>, burst: &mut Burst<'_>, index: usize) {
        let list = &self.lists[index];
        self.list_of[list.port.index() * QUEUE_PAIRS_MAX + list.queue % QUEUE_PAIRS_MAX] = NO_LIST;
        let Some(slot) = slot(ingress.ports, list.port) else {
            return;
        };
        let done = slot.port.deliver(list.queue, burst, &list.frames, ingress.now_ns);
        if let Some(until_ns) = done.hold_until {
            self.holds.push(Hold { until_ns, port: list.port, queue: list.queue });
        }
        let mut waits = false;
        for (i, outgoing) in list.frames.iter().enumerate().skip(done.frames) {
            let may_wait = done.worth_waiting && list.unicast & 1 << i != 0;
            if may_wait && burst.park(outgoing.frame, list.port) {
                waits = true;
            } else {
                slot.counters.dropped(DropReason::RxRingFull, 1);
            }
        }
        if waits {
            self.full.push((list.port, list.queue));
        }
    }
}

fn count_drop(ingress: &Ingress<'_>, port: PortId, reason: DropReason) {
    if let Some(slot) = slot(ingress.ports, port) {
        slot.counters.dropped(reason, 1);
    }
}

/// An egress decision for tests and simple ports.
impl Outgoing {
    /// The frame as it is, without a tag.
    pub fn untagged(frame: u16) -> Self {
        Self { frame, tag: EgressTag::Untagged }
    }
}
