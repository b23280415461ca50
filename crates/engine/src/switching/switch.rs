//! One burst through the switch: every frame is classified, then each receiver is served once.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use weir_fabric::source_guard::Origin;
use weir_fabric::{
    EgressTag, FrameKey, PortId, PortSet, Route, Routed, Routes, Snooping, SourceGuard, Vid, View,
};
use weir_groups::{Direction, Peer, Rows};
use weir_limits::{PORTS_MAX, QUEUE_PAIRS_MAX};
use weir_policy::steering::Visit;
use weir_wire::{Ethernet, Mac, Tci};

use crate::frames::burst::{Burst, Frame, ones};
use crate::frames::drop_reason::DropReason;
use crate::frames::flow::symmetric_hash;
use crate::frames::inbox::Inbox;
use crate::frames::port::place;
use crate::frames::port::{Delivered, Outgoing, Overlay, PANICKED, Port, Side};
use crate::frames::stats::PortCounters;
use crate::lost::blocked;
use crate::switching::filter::{PortRules, Rules, Verdicts, Window};
use crate::switching::groups::{self, PortGroups};
use crate::switching::limits::FrameLenMax;
use crate::switching::limits::Storm;
use crate::switching::limits::{Charge, Police};
use crate::switching::pair::Pairs;
use crate::switching::waiters::Waiters;
use crate::threads::clock;
use crate::threads::stages::{self, Stage};

/// The part of an uplink in its bond.
#[derive(Clone, Default)]
pub(crate) struct InBond {
    /// The port by which frames of the uplink come in: the bond, if the uplink carries frames.
    pub(crate) comes_in_by: Option<PortId>,
    /// Gets frames of the link's own protocol.
    pub(crate) inbox: Option<Arc<Inbox>>,
}

/// A port in the table that workers read.
#[derive(Clone)]
pub struct Slot {
    /// The port.
    pub port: Arc<dyn Port>,
    /// The port's counters.
    pub counters: Arc<PortCounters>,
    /// The workers of the port's queues.
    pub pairs: Arc<Pairs>,
    /// The filters for frames that the port sends and receives.
    pub(crate) rules: PortRules,
    /// The limit on received traffic; `None` without a limit.
    pub(crate) police: Option<Arc<Police>>,
    /// The limit on flooded frames; `None` without a limit.
    pub(crate) storm: Option<Arc<Storm>>,
    /// The longest frames that the port can send and receive.
    pub(crate) frame_len_max: FrameLenMax,
    /// Workers with frames that wait for the port's buffers.
    pub(crate) waiters: Arc<Waiters>,
    /// The addresses from which the port can send; `None` if they are not checked.
    pub(crate) guard: Option<Arc<SourceGuard>>,
    /// True if answers of a DHCP server behind the port are accepted.
    pub(crate) gives_leases: bool,
    /// True if the port is isolated across hosts: overlays tell other hosts that it is isolated,
    /// and learn the same about the other hosts' ports.
    pub(crate) isolated_over_hosts: bool,
    /// The connections that the port may have; `None` without groups.
    pub(crate) groups: Option<Arc<PortGroups>>,
    /// The port of weir's own that serves the port's station.
    pub(crate) served_by: Option<PortId>,
    /// Multicast snooping, if a VLAN of the switch has it.
    snooping: Option<Arc<Snooping>>,
    /// True if frames from the port are flooded without a look at them.
    floods_freely: bool,
    /// The port's part in a bond.
    pub(crate) in_bond: Option<InBond>,
    /// True if no check other than the fabric's applies to the frames that the port sends.
    sends_freely: bool,
    /// True if no check other than the rate's applies to the frames that the port receives.
    receives_freely: bool,
}

impl Slot {
    /// A port without filters and limits.
    pub fn new(port: Arc<dyn Port>, counters: Arc<PortCounters>) -> Self {
        let (pairs, rules, police, storm, guard, waiters, groups) = Default::default();
        let frame_len_max = FrameLenMax::NONE;
        let gives_leases = port.is_uplink();
        Self {
            port,
            counters,
            pairs,
            rules,
            police,
            storm,
            frame_len_max,
            waiters,
            guard,
            gives_leases,
            isolated_over_hosts: false,
            groups,
            served_by: None,
            snooping: None,
            floods_freely: true,
            in_bond: None,
            sends_freely: true,
            receives_freely: true,
        }
    }

    /// Replaces the filters.
    pub fn set_rules(&mut self, rules: PortRules) {
        self.rules = rules;
        self.settle();
    }

    /// Makes multicast snooping look at the frames from the port.
    pub(crate) fn snooped_by(mut self, snooping: Option<&Arc<Snooping>>) -> Self {
        self.snooping = snooping.cloned();
        self.settle();
        self
    }

    /// Multicast snooping, if a VLAN of the switch has it.
    pub(crate) fn snooping(&self) -> Option<&Snooping> {
        self.snooping.as_deref()
    }

    /// The only port that gets a flooded frame to `dst` whose first bytes are `head`, if weir answers such frames at
    /// that port.
    pub(crate) fn kept_by(&self, ports: &Ports, dst: Mac, head: &[u8]) -> Option<PortId> {
        let own = self.served_by.filter(|_| dst.is_multicast())?;
        slot(ports, own).is_some_and(|slot| slot.port.keeps(head)).then_some(own)
    }

    /// The port as the rules of another port's groups see it.
    pub(crate) fn peer(&self) -> Peer<'_> {
        let groups = self.groups.as_deref().map_or(&[][..], PortGroups::names);
        let hides = self.port.claims().is_some();
        Peer { groups, serves: self.gives_leases, hides, claimed: None }
    }

    /// Notes in a burst from the port the facts that other hosts are told about its sender.
    fn tell_of(&self, burst: &mut Burst<'_>) {
        burst.set_id = PortGroups::set_id(self.groups.as_deref());
        burst.isolated = self.isolated_over_hosts;
    }

    /// Applies a change of the fields above.
    pub(crate) fn settle(&mut self) {
        let is_free = self.groups.is_none()
            && self.frame_len_max == FrameLenMax::NONE
            && !self.isolated_over_hosts;
        self.sends_freely = is_free && self.rules.tx.is_none() && self.guard.is_none();
        let snoops = self.guard.as_deref().is_some_and(SourceGuard::snoops);
        self.receives_freely = is_free && self.rules.rx.is_none() && !snoops;
        self.floods_freely =
            self.storm.is_none() && self.snooping.is_none() && self.served_by.is_none();
    }
}

/// All ports, by number. The table is replaced as a whole; workers hold a snapshot for one round.
pub type Ports = Vec<Option<Slot>>;

/// The slot of a port number.
#[inline]
pub fn slot(ports: &Ports, id: PortId) -> Option<&Slot> {
    ports.get(id.index())?.as_ref()
}

/// A deadline of a queue's moderation policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hold {
    /// The time to call [`Port::expired`] (ns).
    pub until_ns: u64,
    /// The port whose guest waits for the call.
    pub port: PortId,
    /// The pair of queues.
    pub queue: usize,
    /// The side of the pair.
    pub side: Side,
}

const NO_LIST: u16 = u16::MAX;

/// Frames for one receive queue.
struct List {
    port: PortId,
    queue: usize,
    frames: Vec<Outgoing>,
    /// If bit i is set, `frames[i]` goes to this receiver only, and can wait.
    unicast: u64,
    /// True if a frame leaves with a tag.
    tagged: bool,
}

impl List {
    /// An empty list.
    #[cold]
    fn new(port: PortId, queue: usize) -> Self {
        Self { port, queue, frames: Vec::new(), unicast: 0, tagged: false }
    }

    #[inline]
    fn push(&mut self, outgoing: Outgoing, unicast: bool) {
        self.unicast |= u64::from(unicast) << self.frames.len();
        self.tagged |= outgoing.tag != EgressTag::Untagged;
        self.frames.push(outgoing);
    }

    /// Adds the frames in `left` that directly follow the added unicast frame `first` and have the same header: frames
    /// of one flow often follow each other. Returns the frames that are then left.
    #[inline(always)]
    fn follow(&mut self, burst: &Burst<'_>, first: u16, tag: EgressTag, left: u64) -> u64 {
        let frames = burst.frames();
        let Some((Frame { head, tag: vlan, .. }, behind)) =
            frames.get(usize::from(first)..).and_then(<[Frame]>::split_first)
        else {
            return left;
        };
        let (addresses, vlan) = (head.addresses(), *vlan);
        // The number of consecutive frames behind the first that are in `left`.
        let in_a_row = !(left >> first >> 1);
        let in_a_row = behind.len().min(in_a_row.trailing_zeros() as usize);
        // Only special frames have tags.
        let no_tags = burst.special() == 0;
        let like =
            |next: &&Frame| next.head.addresses() == addresses && (no_tags || next.tag == vlan);
        let count = behind[..in_a_row].iter().take_while(like).count();
        if count == 0 {
            return left;
        }
        let (next, count) = (first + 1, count as u16); // a burst is short
        self.unicast |= ones(count) << self.frames.len();
        self.frames.extend((next..next + count).map(|frame| Outgoing { frame, tag }));
        left & !(ones(count) << next)
    }

    /// Makes frames readable for a port that must read them; `false` if none of the list's frames is left.
    #[cold]
    fn fetch(&mut self, port: &dyn Port, burst: &Burst<'_>) -> bool {
        if !port.copies_remote() {
            burst.fetch(self.frames.iter().fold(0, |bits, outgoing| bits | 1 << outgoing.frame));
        }
        self.leave_out(burst.lost());
        !self.frames.is_empty()
    }

    /// Parks or drops the frames that `done` leaves over, and returns those that wait (by their index in the burst).
    /// These frames are refunded to the receiver's rate limit.
    #[cold]
    #[inline(never)]
    fn keep_rest(
        &self,
        slot: &Slot,
        burst: &mut Burst<'_>,
        done: &Delivered,
        charged: Option<(&Police, Charge)>,
    ) -> u64 {
        let (mut waiting, mut undelivered) = (0, 0);
        let left = self.frames.get(done.frames..).unwrap_or_default();
        for (i, outgoing) in (done.frames..).zip(left) {
            if done.ahead & 1 << i != 0 {
                continue;
            }
            undelivered |= 1 << outgoing.frame;
            let may_wait = done.worth_waiting && self.unicast & 1 << i != 0;
            if may_wait && burst.park(outgoing.frame, self.port) {
                waiting |= 1 << outgoing.frame;
            } else {
                slot.counters.dropped_of(DropReason::RxRingFull, burst, 1 << outgoing.frame);
            }
        }
        if let (Some((police, charge)), true) = (charged, undelivered != 0) {
            police.give_back(&charge, burst, undelivered, clock::now_ns());
        }
        waiting
    }

    /// Removes the frames in `refused` (by their index in the burst).
    fn leave_out(&mut self, refused: u64) {
        let (mut place, mut kept, mut unicast) = (0, 0, 0);
        self.frames.retain(|outgoing| {
            let keep = refused >> outgoing.frame & 1 == 0;
            if keep {
                unicast |= (self.unicast >> place & 1) << kept;
                kept += 1;
            }
            place += 1;
            keep
        });
        self.unicast = unicast;
    }
}

/// The destination of a frame.
struct Appended {
    list: usize,
    /// True if all frames for this receiver have the same destination.
    of_all: bool,
}

/// The lists of one burst. They are kept between bursts, so only the widest flood so far allocates.
pub struct Forwarder {
    lists: Vec<List>,
    used: usize,
    /// The list of each (port, queue) in this burst.
    list_of: Box<[u16]>,
    /// The decisions of filters about the sent burst, and about the list that is being served.
    sent: Verdicts,
    received: Verdicts,
    window: Window,
    /// The frames of a list, as security groups read them.
    rows: Box<Rows>,
    /// The routes of earlier frames.
    routes: Routes,
    /// Receivers whose queues were looked up for this burst.
    visits: Vec<(PortId, Visit)>,
    /// New deadlines; the worker takes them.
    pub holds: Vec<Hold>,
    /// Receivers for which frames were parked and which already have buffers again. The worker retries their frames.
    pub(crate) refilled: Vec<PortId>,
    /// The number of the worker that owns this forwarder.
    worker: usize,
}

const _: () = assert!(weir_limits::BURST_MAX <= u64::BITS as usize);
const _: () = assert!(PORTS_MAX * QUEUE_PAIRS_MAX < NO_LIST as usize);

impl Default for Forwarder {
    fn default() -> Self {
        Self {
            lists: Vec::new(),
            used: 0,
            list_of: vec![NO_LIST; PORTS_MAX * QUEUE_PAIRS_MAX].into(),
            sent: Verdicts::default(),
            received: Verdicts::default(),
            window: Window::default(),
            rows: Box::default(),
            routes: Routes::default(),
            visits: Vec::new(),
            holds: Vec::new(),
            refilled: Vec::new(),
            worker: 0,
        }
    }
}

/// The source of a burst, and the switch's state while it passes.
#[derive(Clone, Copy)]
pub struct Ingress<'a> {
    /// The forwarding rules.
    pub view: &'a View<'a>,
    /// The ports.
    pub ports: &'a Ports,
    /// The sender.
    pub port: PortId,
    /// The sender's counters.
    pub counters: &'a PortCounters,
    /// The present time (ns).
    pub now_ns: u64,
}

impl Forwarder {
    /// The forwarder of a worker.
    pub(crate) fn of(worker: usize) -> Self {
        Self { worker, ..Self::default() }
    }

    /// Forgets an unfinished burst, but keeps its deadlines: receivers that were served depend on them.
    pub fn start_over(&mut self, ports: &Ports) {
        self.leave(ports);
        let holds = std::mem::take(&mut self.holds);
        *self = Self { holds, ..Self::of(self.worker) };
    }

    /// Moves every frame of `burst` to receivers' rings, to `burst.room.parked`, or to a drop counter.
    pub fn forward(&mut self, ingress: Ingress<'_>, burst: &mut Burst<'_>) {
        match slot(ingress.ports, ingress.port) {
            Some(sender) if burst.still_tagged != 0 => self.forward_tagged(sender, ingress, burst),
            Some(sender) if !sender.sends_freely => match sender.rules.tx.as_deref() {
                None => self.forward_careful(sender, ingress, burst),
                Some(rules) => self.forward_filtered(sender, rules, ingress, burst),
            },
            _ if self.forward_alone(&ingress, burst) => {}
            _ => self.forward_but(0, None, ingress, burst),
        }
    }

    /// Forwards the only frame of a burst without a list, if its route is noted, and its receiver has one queue and
    /// checks nothing. Returns false, with nothing done, for all others.
    #[inline(always)]
    fn forward_alone(&mut self, ingress: &Ingress<'_>, burst: &mut Burst<'_>) -> bool {
        let [Frame { head, tag: None, .. }] = burst.frames() else { return false };
        if burst.still_tagged != 0 || burst.away.is_some() || !burst.room.blocked.is_empty() {
            return false;
        }
        let now_secs = clock::secs(ingress.now_ns);
        let found = self.routes.find(ingress.view, ingress.port, head.addresses(), now_secs);
        let Some(Route { port, tag: EgressTag::Untagged }) = found else { return false };
        let Some(slot) = slot(ingress.ports, port) else { return false };
        if !slot.receives_freely || slot.police.is_some() || slot.port.rx_queues() != 1 {
            return false;
        }
        stages::lap(Stage::Classify);
        (burst.at_last, burst.is_untagged) = (true, true);
        let refills = slot.waiters.refills();
        let done = deliver(slot, (port, 0), burst, &[Outgoing::untagged(0)]);
        if let Some(until_ns) = done.hold_until {
            self.holds.push(Hold { until_ns, port, queue: 0, side: Side::Rx });
        }
        if done.frames == 0 || done.again {
            self.keep_alone((slot, port, refills), burst, &done);
        }
        true
    }

    /// Parks or drops the only frame of a burst if its receiver has not taken it.
    #[cold]
    #[inline(never)]
    fn keep_alone(&mut self, to: (&Slot, PortId, u64), burst: &mut Burst<'_>, done: &Delivered) {
        let (slot, port, refills) = to;
        let mut list = List::new(port, 0);
        list.push(Outgoing::untagged(0), true);
        let waiting = list.keep_rest(slot, burst, done, None);
        self.note_waiting(slot, port, waiting != 0, done.again, refills);
    }

    /// Forwards frames with tags that may be payload.
    #[inline(never)]
    fn forward_tagged(&mut self, sender: &Slot, ingress: Ingress<'_>, burst: &mut Burst<'_>) {
        burst.settle_tags(ingress.view.tags(ingress.port));
        match sender.rules.tx.as_deref() {
            None => self.forward_careful(sender, ingress, burst),
            Some(rules) => self.forward_filtered(sender, rules, ingress, burst),
        }
    }

    /// Forwards frames with more than one tag, or from a sender whose frames are checked.
    #[inline(never)]
    fn forward_careful(&mut self, sender: &Slot, ingress: Ingress<'_>, burst: &mut Burst<'_>) {
        sender.tell_of(burst);
        let refused = refuse(sender, &ingress, burst, &mut self.window, 0);
        self.forward_but(refused, sender.groups.as_deref(), ingress, burst);
    }

    /// Forwards frames of a sender with a filter.
    #[inline(never)]
    fn forward_filtered(
        &mut self,
        sender: &Slot,
        rules: &Rules,
        ingress: Ingress<'_>,
        burst: &mut Burst<'_>,
    ) {
        sender.tell_of(burst);
        let (verdicts, window) = (&mut self.sent, &mut self.window);
        let refused = rules.judge_sent(burst, verdicts, window, ingress.counters);
        let refused = refuse(sender, &ingress, burst, &mut self.window, refused);
        self.forward_but(refused, sender.groups.as_deref(), ingress, burst);
        let waiting = burst.room.parked.iter().fold(0, |bits, parked| bits | 1 << parked.frame);
        rules.settle(burst, &self.sent, waiting);
    }

    /// Forwards all frames that are not in `refused` (by bit), of a sender with these `groups`. The function is
    /// inlined, so senders without a filter do not read these bits.
    #[inline(always)]
    fn forward_but(
        &mut self,
        refused: u64,
        groups: Option<&PortGroups>,
        ingress: Ingress<'_>,
        burst: &mut Burst<'_>,
    ) {
        let mut left = burst.all() & !refused;
        while left != 0 {
            let first = left.trailing_zeros() as u16; // a burst is short
            left &= left - 1;
            if let Some((list, tag)) = self.classify(&ingress, burst, first)
                && left != 0
            {
                left = self.lists[list].follow(burst, first, tag, left);
            }
        }
        stages::lap(Stage::Classify);
        for list in 0..self.used {
            burst.at_last = list + 1 == self.used;
            self.serve(&ingress, groups, burst, list);
        }
        self.used = 0;
        if !self.visits.is_empty() {
            self.leave(ingress.ports);
        }
    }

    /// Forwards one frame. Returns its list and tag, if they also apply to all frames with the same header.
    #[inline(always)]
    fn classify(
        &mut self,
        ingress: &Ingress<'_>,
        burst: &mut Burst<'_>,
        frame: u16,
    ) -> Option<(usize, EgressTag)> {
        let Frame { head, tag, .. } = &burst.frames()[usize::from(frame)];
        let now_secs = clock::secs(ingress.now_ns);
        let (view, addresses) = (ingress.view, head.addresses());
        let found = self.routes.find(view, ingress.port, addresses, now_secs);
        let routed = match found.filter(|_| tag.is_none()) {
            Some(route) => Ok(Routed::Unicast { route, known: true }),
            None => self.look_up(ingress, burst, frame, now_secs)?,
        };
        match routed {
            Err(reason) => ingress.counters.dropped_of(reason, burst, 1 << frame),
            Ok(Routed::Unicast { route: Route { port, .. }, .. })
                if burst.room.blocked.contains(&port) =>
            {
                if !burst.park(frame, port) {
                    count_drop(ingress, port, DropReason::RxRingFull, burst, frame);
                }
            }
            Ok(Routed::Unicast { route: Route { port, tag }, .. }) => {
                let outgoing = Outgoing { frame, tag };
                let like_others = burst.still_tagged == 0;
                if !like_others && is_still_tagged(ingress, burst, port, outgoing) {
                    return None;
                }
                let Appended { list, of_all } =
                    self.append(ingress, burst, port, outgoing, true)?;
                return (of_all && like_others).then_some((list, tag));
            }
            Ok(Routed::Flood { vid }) => self.flood(ingress, burst, frame, vid),
        }
        None
    }

    /// Asks the fabric for the route of a frame for which none is noted. Notes the route if frames with the same
    /// addresses take it too.
    #[inline(never)]
    fn look_up(
        &mut self,
        ingress: &Ingress<'_>,
        burst: &mut Burst<'_>,
        frame: u16,
        now_secs: u32,
    ) -> Option<Result<Routed, weir_fabric::DropReason>> {
        let own = ingress.view.tags(ingress.port);
        if burst.frames().get(usize::from(frame))?.tag.is_some_and(|tag| tag.protocol() != own) {
            burst.settle_tag(frame, own);
        }
        let &Frame { ref head, tag, .. } = burst.frames().get(usize::from(frame))?;
        // Every frame of a burst has an Ethernet header.
        let Ethernet { src, dst, .. } = Ethernet::parse(head.as_slice()).ok()?;
        let routed = ingress.view.route(ingress.port, &FrameKey { src, dst, tag }, now_secs);
        if let (Ok(Routed::Unicast { route, known: true }), None) = (routed, tag) {
            self.routes.note(ingress.view, ingress.port, head.addresses(), now_secs, route);
        }
        Some(routed)
    }

    /// Forwards a frame to every port of its VLAN.
    #[inline(never)]
    fn flood(&mut self, ingress: &Ingress<'_>, burst: &Burst<'_>, frame: u16, vid: Vid) {
        let flooded = &burst.frames()[usize::from(frame)];
        let Frame { head, tag: came_with, .. } = flooded;
        let Ok(Ethernet { dst, .. }) = Ethernet::parse(head.as_slice()) else { return };
        let ports = ingress.view.flood_ports(ingress.port, vid, dst);
        let sender = slot(ingress.ports, ingress.port);
        let Some(sender) = sender.filter(|sender| !sender.floods_freely) else {
            return self.flood_to(ingress, burst, frame, (vid, *came_with), ports, dst);
        };
        if let Some(own) = sender.kept_by(ingress.ports, dst, head.as_slice()) {
            let only = std::iter::once(own);
            return self.flood_to(ingress, burst, frame, (vid, *came_with), only, dst);
        }
        match flooded_to(sender, ingress, burst, (frame, vid, dst), &mut self.window) {
            Ok(None) => self.flood_to(ingress, burst, frame, (vid, *came_with), ports, dst),
            Ok(Some(members)) => {
                let ports = ports.filter(|port| members.contains(*port));
                self.flood_to(ingress, burst, frame, (vid, *came_with), ports, dst);
            }
            Err(reason) => ingress.counters.dropped_of(reason, burst, 1 << frame),
        }
    }

    /// Forwards a frame of `vid` that came with this tag to `ports`.
    #[inline(always)]
    fn flood_to(
        &mut self,
        ingress: &Ingress<'_>,
        burst: &Burst<'_>,
        frame: u16,
        (vid, came_with): (Vid, Option<Tci>),
        ports: impl Iterator<Item = PortId>,
        dst: Mac,
    ) {
        let mut goes_nowhere = !dst.is_multicast();
        for port in ports {
            if let Some(tag) = ingress.view.egress(port, vid, came_with) {
                let outgoing = Outgoing { frame, tag };
                let is_counted = is_still_tagged(ingress, burst, port, outgoing);
                let goes_there =
                    is_counted || self.append(ingress, burst, port, outgoing, false).is_some();
                goes_nowhere &= !goes_there;
            }
        }
        if goes_nowhere {
            ingress.counters.dropped_of(DropReason::UnknownUnicast, burst, 1 << frame);
        }
    }

    /// Adds a frame to its receiver's list. Returns the list; `None` if the receiver cannot receive.
    #[inline(always)]
    fn append(
        &mut self,
        ingress: &Ingress<'_>,
        burst: &Burst<'_>,
        port: PortId,
        outgoing: Outgoing,
        unicast: bool,
    ) -> Option<Appended> {
        let slot = slot(ingress.ports, port)?;
        let queues = slot.port.rx_queues();
        let queue = match queues {
            0 => {
                // A flood reaches the ports that can receive now, so nothing is lost; a unicast frame for this port is
                // lost.
                if unicast {
                    slot.counters.dropped_of(DropReason::RxNotReady, burst, 1 << outgoing.frame);
                }
                return None;
            }
            1 => 0,
            _ => {
                let head = &burst.frames()[usize::from(outgoing.frame)].head;
                self.steer(slot, port, head.as_slice())
            }
        };
        let list = self.list_for(port, queue);
        self.lists[list].push(outgoing, unicast);
        Some(Appended { list, of_all: queues == 1 })
    }

    /// The receive queue of `port` for a frame that begins with `head`.
    #[inline(never)]
    fn steer(&mut self, slot: &Slot, port: PortId, head: &[u8]) -> usize {
        let Some(steering) = slot.port.steering() else { return 0 };
        let hash = match steering.is_given() {
            false => symmetric_hash(head),
            true => slot.port.flow_hash(head),
        };
        let place = self.visits.iter().position(|(visited, _)| *visited == port);
        let place = place.unwrap_or_else(|| {
            self.visits.push((port, Visit::default()));
            self.visits.len() - 1
        });
        steering.queue_for(hash, &mut self.visits[place].1, &*slot.port)
    }

    /// Ends the visits to queues that were looked up for this burst, because the burst's frames now have places.
    fn leave(&mut self, ports: &Ports) {
        for (port, visit) in self.visits.drain(..) {
            if let Some(slot) = slot(ports, port)
                && let Some(steering) = slot.port.steering()
            {
                steering.leave(visit, &*slot.port);
            }
        }
    }

    /// The list of a receive queue in this burst.
    #[inline(always)]
    fn list_for(&mut self, port: PortId, queue: usize) -> usize {
        let entry = &mut self.list_of[place(port, queue)];
        if *entry != NO_LIST {
            return usize::from(*entry);
        }
        let index = self.used;
        *entry = index as u16;
        if index == self.lists.len() {
            self.lists.push(List::new(port, queue));
        }
        let list = &mut self.lists[index];
        (list.port, list.queue, list.unicast, list.tagged) = (port, queue, 0, false);
        list.frames.clear();
        self.used = index + 1;
        index
    }

    /// Delivers a list to its receiver: first the checks that refuse frames, in their order, then the delivery, then
    /// the handling of frames that were not delivered. The function is longer than a screen: each step removes frames
    /// from the list of the next.
    #[inline(always)]
    fn serve(
        &mut self,
        ingress: &Ingress<'_>,
        groups: Option<&PortGroups>,
        burst: &mut Burst<'_>,
        index: usize,
    ) {
        let list = &self.lists[index];
        self.list_of[place(list.port, list.queue)] = NO_LIST;
        let Some(slot) = slot(ingress.ports, list.port) else { return };
        let asked = groups.is_some() || !slot.receives_freely;
        if asked && !self.admit(slot, ingress, groups, burst, index) {
            return;
        }
        let list = &mut self.lists[index];
        let rules = if asked { slot.rules.rx.as_deref() } else { None };
        let mut charged = None;
        if let Some(police) = slot.police.as_deref() {
            let charge = police.charge(&list.frames, burst, ingress.now_ns, &slot.counters);
            list.leave_out(charge.refused);
            if list.frames.is_empty() {
                return;
            }
            charged = Some((police, charge));
        }
        if burst.away.is_some() && !list.fetch(&*slot.port, burst) {
            return;
        }
        burst.is_untagged = !list.tagged;
        let refills = slot.waiters.refills();
        let done = deliver(slot, (list.port, list.queue), burst, &list.frames);
        if let Some(until_ns) = done.hold_until {
            let (port, queue) = (list.port, list.queue);
            self.holds.push(Hold { until_ns, port, queue, side: Side::Rx });
        }
        let waiting = match done.frames < list.frames.len() {
            true => list.keep_rest(slot, burst, &done, charged),
            false => 0,
        };
        if let Some(rules) = rules {
            rules.settle(burst, &self.received, waiting);
        }
        if waiting != 0 || done.again {
            let port = list.port;
            self.note_waiting(slot, port, waiting != 0, done.again, refills);
        }
    }

    /// Notes that frames for a port are waiting, or that its buffers have come `again`. `refills` is from before their
    /// delivery.
    #[cold]
    fn note_waiting(&mut self, slot: &Slot, port: PortId, waits: bool, again: bool, refills: u64) {
        let refilled = waits && slot.waiters.wait(self.worker, refills);
        if refilled || again {
            self.refilled.push(port);
        }
    }
}

/// Delivers frames to a receive queue, and reports the outcome.
#[inline(always)]
fn deliver(
    slot: &Slot,
    (port, queue): (PortId, usize),
    burst: &Burst<'_>,
    frames: &[Outgoing],
) -> Delivered {
    let deliver = || blocked::delivering(port, || slot.port.deliver(queue, burst, frames));
    catch_unwind(AssertUnwindSafe(deliver)).unwrap_or_else(|_| {
        // The receiver's code has a bug. Its sender and all others continue.
        slot.port.fail(PANICKED);
        slot.counters.dropped(DropReason::RxNotReady, frames.len() as u64);
        Delivered { frames: frames.len(), ..Delivered::default() }
    })
}

/// The checks of a list of frames before its receiver's rate. Each removes the frames that it refuses, and returns
/// whether some are left.
struct Admission<'a, 'm> {
    slot: &'a Slot,
    ingress: &'a Ingress<'a>,
    /// The sender's groups, which are checked here since their rules name the receiver.
    groups: Option<&'a PortGroups>,
    burst: &'a Burst<'m>,
    list: &'a mut List,
    verdicts: &'a mut Verdicts,
    window: &'a mut Window,
    rows: &'a mut Rows,
}

impl Admission<'_, '_> {
    #[inline(always)]
    fn isolation(&mut self) -> bool {
        if !self.slot.isolated_over_hosts {
            return true;
        }
        self.list.leave_out(isolated(self.ingress, self.burst, &self.list.frames));
        !self.list.frames.is_empty()
    }

    #[inline(always)]
    fn got_mtu(&mut self) -> bool {
        let Self { slot, burst, list, .. } = self;
        if slot.frame_len_max == FrameLenMax::NONE {
            return true;
        }
        let over = slot.frame_len_max.exceeded_in(&list.frames, burst);
        if over != 0 {
            slot.counters.dropped_of(DropReason::OverMtuRx, burst, over);
            tell_too_long_for(slot, list, burst, over);
            list.leave_out(over);
        }
        !list.frames.is_empty()
    }

    #[inline(always)]
    fn got_filter(&mut self) -> bool {
        let Self { slot, burst, list, verdicts, window, .. } = self;
        let Some(rules) = slot.rules.rx.as_deref() else { return true };
        let frames = &list.frames;
        list.leave_out(rules.judge_received(frames, burst, verdicts, window, &slot.counters));
        !list.frames.is_empty()
    }

    #[inline(always)]
    fn groups(&mut self) -> bool {
        let Self { slot, ingress, groups, burst, list, rows, .. } = self;
        if groups.is_none() && slot.groups.is_none() {
            return true;
        }
        groups::read(rows, &list.frames, burst);
        if let Some(groups) = groups {
            let (out, now_ns) = (Direction::Out, ingress.now_ns);
            let judged = (&*list.frames, &**rows);
            let refused = groups.judge(out, judged, burst, (slot.peer(), None), now_ns);
            if refused != 0 {
                ingress.counters.dropped_of(DropReason::GroupOut, burst, refused);
                list.leave_out(refused);
                groups::read(rows, &list.frames, burst);
            }
        }
        if let Some(own) = slot.groups.as_deref().filter(|_| !list.frames.is_empty()) {
            let sender = sender_of(ingress);
            let peer = sender.map(Slot::peer).unwrap_or_default();
            let claims = sender.and_then(|sender| sender.port.claims());
            let (into, now_ns) = (Direction::In, ingress.now_ns);
            let judged = (&*list.frames, &**rows);
            let refused = own.judge(into, judged, burst, (peer, claims), now_ns);
            if refused != 0 {
                slot.counters.dropped_of(DropReason::GroupIn, burst, refused);
                list.leave_out(refused);
            }
        }
        !list.frames.is_empty()
    }
}

impl Forwarder {
    /// Drops the frames of a list that its receiver must not get from a sender with these `groups`; `false` if no frame
    /// is left.
    #[inline(never)]
    fn admit(
        &mut self,
        slot: &Slot,
        ingress: &Ingress<'_>,
        groups: Option<&PortGroups>,
        burst: &Burst<'_>,
        index: usize,
    ) -> bool {
        let Self { lists, received, window, rows, .. } = self;
        let (list, verdicts) = (&mut lists[index], received);
        let mut admission =
            Admission { slot, ingress, groups, burst, list, verdicts, window, rows };
        macro_rules! run {
            ($($check:ident)*) => { true $(&& admission.$check())* };
        }
        if !checks_of_receiver!(run) {
            return false;
        }
        let Admission { list, window, .. } = admission;
        if let Some(guard) = slot.guard.as_deref().filter(|guard| guard.snoops()) {
            snoop(guard, ingress, burst, list, window);
        }
        true
    }
}

/// The receivers of a flooded frame, if they are not all ports of its VLAN; or the reason why it is dropped.
#[inline(never)]
fn flooded_to(
    sender: &Slot,
    ingress: &Ingress<'_>,
    burst: &Burst<'_>,
    (frame, vid, dst): (u16, Vid, Mac),
    window: &mut Window,
) -> Result<Option<PortSet>, DropReason> {
    let flooded = &burst.frames()[usize::from(frame)];
    let storm = sender.storm.as_deref();
    if let Some(reason) = storm.and_then(|storm| storm.refuses(dst, flooded, ingress.now_ns)) {
        return Err(reason);
    }
    let Some(snooping) = sender.snooping().filter(|_| dst.is_multicast()) else { return Ok(None) };
    let head = flooded.head.as_slice();
    let (of, now_secs) = ((ingress.port, vid), clock::secs(ingress.now_ns));
    Ok(snooping.judge(ingress.view, of, head, move || window.fill(head, frame, burst), now_secs)?)
}

/// The frames (bit i: frame i) of a list for an isolated port that have come from isolated guests of other hosts.
/// Frames for one station are counted as the fabric counts those between guests of one host.
#[inline(never)]
fn isolated(ingress: &Ingress<'_>, burst: &Burst<'_>, list: &[Outgoing]) -> u64 {
    let Some(claims) = sender_of(ingress).and_then(|sender| sender.port.claims()) else { return 0 };
    let (mut refused, mut counted) = (0, 0);
    for outgoing in list {
        let Some(frame) = burst.frames().get(usize::from(outgoing.frame)) else { continue };
        if claims.is_isolated(frame.token) {
            let to_one =
                Ethernet::parse(frame.head.as_slice()).is_ok_and(|it| !it.dst.is_multicast());
            refused |= 1 << outgoing.frame;
            counted |= u64::from(to_one) << outgoing.frame;
        }
    }
    ingress.counters.dropped_of(weir_fabric::DropReason::Isolated, burst, counted);
    refused
}

fn sender_of<'i>(ingress: &Ingress<'i>) -> Option<&'i Slot> {
    slot(ingress.ports, ingress.port)
}

/// True if the sender can give addresses and advertise routes.
fn sender_serves(ingress: &Ingress<'_>) -> bool {
    sender_of(ingress).is_some_and(|sender| sender.gives_leases)
}

/// The checks of a sender's burst behind its filter. Each drops the frames that it refuses, except those that are
/// refused already.
struct Sending<'a, 'm> {
    sender: &'a Slot,
    ingress: &'a Ingress<'a>,
    burst: &'a Burst<'m>,
    window: &'a mut Window,
    /// All refused frames (bit i: frame i).
    refused: u64,
}

impl Sending<'_, '_> {
    fn drop(&mut self, frames: u64, reason: DropReason) {
        let dropped = frames & !self.refused;
        self.ingress.counters.dropped_of(reason, self.burst, dropped);
        self.refused |= dropped;
    }

    #[inline(always)]
    fn tags(&mut self) {
        if self.burst.still_tagged != 0 {
            // If such a tag stayed in place, a guest could choose its VLAN.
            let reason = weir_fabric::DropReason::VlanTaggedOnAccess.into();
            self.drop(tagged_on_access(self.ingress, self.burst), reason);
        }
    }

    #[inline(always)]
    fn sent_mtu(&mut self) {
        let Self { sender, ingress, burst, .. } = *self;
        if sender.frame_len_max != FrameLenMax::NONE {
            let over = sender.frame_len_max.exceeded_by(burst) & !self.refused;
            self.drop(over, DropReason::OverMtuTx);
            if over != 0 {
                tell_too_long(sender, ingress, burst, over);
            }
        }
    }

    #[inline(always)]
    fn guard(&mut self) {
        let Self { sender, ingress, burst, .. } = *self;
        let Some(guard) = sender.guard.as_deref() else { return };
        let now_secs = clock::secs(ingress.now_ns);
        for (index, frame) in (0..).zip(burst.frames()) {
            if self.refused >> index & 1 != 0 {
                continue;
            }
            let head = frame.head.as_slice();
            let csum_at = frame.offload.csum().map(|csum| csum.field());
            if let Err(reason) = guard.check(head, frame.len, csum_at, now_secs) {
                self.drop(1 << index, reason.into());
            } else if guard.may_be_question(head) && goes_on(ingress, frame, now_secs) {
                guard.snoop_question(self.window.fill(head, index, burst), now_secs);
            }
        }
    }
}

/// Drops frames that the sender must not send, except those already in `refused`; returns all refused frames.
fn refuse(
    sender: &Slot,
    ingress: &Ingress<'_>,
    burst: &Burst<'_>,
    window: &mut Window,
    refused: u64,
) -> u64 {
    let mut sending = Sending { sender, ingress, burst, window, refused };
    macro_rules! run {
        ($($check:ident)*) => { $(sending.$check();)* };
    }
    checks_of_sender!(run);
    sending.refused
}

/// Frames (bit i: frame i) that begin with a tag which the sender must not send.
#[cold]
fn tagged_on_access(ingress: &Ingress<'_>, burst: &Burst<'_>) -> u64 {
    let is_refused = |index: &u16| {
        let takes = |tag| ingress.view.takes_still_tagged(ingress.port, tag);
        burst.still_tagged >> index & 1 != 0 && !burst.begins_with(*index).is_some_and(takes)
    };
    (0..burst.frames().len() as u16).filter(is_refused).fold(0, |bits, index| bits | 1 << index)
}

/// Makes an overlay notify a guest in one of its networks that these frames are too long. Only frames that the guest is
/// allowed to send count: a forged sender address would direct the message to another guest.
#[cold]
fn tell_too_long(sender: &Slot, ingress: &Ingress<'_>, burst: &Burst<'_>, over: u64) {
    let (Some(network), Some(mtu)) =
        (ingress.view.network_of(ingress.port), sender.frame_len_max.mtu())
    else {
        return;
    };
    let now_secs = clock::secs(ingress.now_ns);
    // The overlay is searched for once. Otherwise, a guest that floods frames which are too long would cause a search
    // through all ports for each frame.
    let mut overlay: Option<&dyn Overlay> = None;
    for (_, frame) in (0..).zip(burst.frames()).filter(|(index, _)| over >> index & 1 != 0) {
        let head = frame.head.as_slice();
        let csum_at = frame.offload.csum().map(|csum| csum.field());
        let guard = sender.guard.as_deref();
        let may = guard.is_none_or(|it| it.check(head, frame.len, csum_at, now_secs).is_ok());
        if may && goes_on(ingress, frame, now_secs) {
            let find = || ingress.ports.iter().flatten().find_map(|slot| slot.port.overlay());
            let Some(found) = overlay.or_else(find) else { return };
            found.tell_too_long(head, network, mtu);
            overlay = Some(found);
        }
    }
}

/// Makes an overlay notify the senders of these frames that the frames are too long for it.
#[cold]
fn tell_too_long_for(receiver: &Slot, list: &List, burst: &Burst<'_>, over: u64) {
    let (Some(overlay), Some(mtu)) = (receiver.port.overlay(), receiver.frame_len_max.mtu()) else {
        return;
    };
    for outgoing in list.frames.iter().filter(|it| over >> it.frame & 1 != 0) {
        if let (Some(frame), EgressTag::Tagged(network)) =
            (burst.frames().get(usize::from(outgoing.frame)), outgoing.tag)
        {
            overlay.tell_too_long(frame.head.as_slice(), network.bits(), mtu);
        }
    }
}

/// True if the fabric accepts a frame, including its source address. The fabric is asked again when the frame is
/// forwarded.
fn goes_on(ingress: &Ingress<'_>, frame: &Frame, now_secs: u32) -> bool {
    Ethernet::parse(frame.head.as_slice()).is_ok_and(|Ethernet { src, dst, .. }| {
        let key = FrameKey { src, dst, tag: frame.tag };
        ingress.view.forward(ingress.port, &key, now_secs).is_ok()
    })
}

/// Shows a guest's source guard the addresses that the guest is about to get from a port which may assign addresses.
#[inline(never)]
fn snoop(
    guard: &SourceGuard,
    ingress: &Ingress<'_>,
    burst: &Burst<'_>,
    list: &List,
    window: &mut Window,
) {
    if !sender_serves(ingress) {
        return;
    }
    let now_secs = clock::secs(ingress.now_ns);
    for outgoing in &list.frames {
        let Some(frame) = burst.frames().get(usize::from(outgoing.frame)) else { continue };
        let head = frame.head.as_slice();
        if SourceGuard::may_be_answer(head) {
            let origin = Origin::new(ingress.port, frame.tag);
            let others = || ingress.ports.iter().flatten().filter_map(|slot| slot.guard.as_deref());
            let is_free = |address| !others().any(|guard| guard.holds(address, origin, now_secs));
            guard.snoop(window.fill(head, outgoing.frame, burst), origin, now_secs, is_free);
        }
    }
}

/// True if a frame would leave by `port` without its own tag but with another tag behind it, which would then take
/// effect. Such a frame is dropped.
#[inline(never)]
fn is_still_tagged(
    ingress: &Ingress<'_>,
    burst: &Burst<'_>,
    port: PortId,
    outgoing: Outgoing,
) -> bool {
    let gives = |tag| ingress.view.gives_still_tagged(port, outgoing.tag, tag);
    let refused = burst.still_tagged >> outgoing.frame & 1 != 0
        && burst.begins_with(outgoing.frame).is_some_and(|tag| !gives(tag));
    if refused {
        let reason = weir_fabric::DropReason::VlanStillTagged;
        ingress.counters.dropped_of(reason, burst, 1 << outgoing.frame);
    }
    refused
}

fn count_drop(
    ingress: &Ingress<'_>,
    port: PortId,
    reason: DropReason,
    burst: &Burst<'_>,
    frame: u16,
) {
    if let Some(slot) = slot(ingress.ports, port) {
        slot.counters.dropped_of(reason, burst, 1 << frame);
    }
}

/// An egress decision for tests and simple ports.
impl Outgoing {
    /// The unchanged frame, without a tag.
    pub fn untagged(frame: u16) -> Self {
        Self { frame, tag: EgressTag::Untagged }
    }
}
