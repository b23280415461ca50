//! Multicast snooping (RFC 4541): a frame for a group goes to the group's members instead of all ports of the VLAN.
//!
//! | file | content |
//! |---|---|
//! | `packet.rs` | the messages of IGMP and MLD, and the group of a frame |
//!
//! Whatever snooping does not know, it floods. Where no querier has asked, nothing is known: weir has just started, or
//! nobody has an interest. A port gets every group until it has been asked and has had the time to answer, and a port
//! that has more groups than it may have gets all of them. See docs/design/l2.md#0064.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use weir_limits::{
    MULTICAST_GROUPS_PER_VIF_MAX, MULTICAST_MEMBER_SECS, MULTICAST_QUERIER_SECS,
    MULTICAST_RECORDS_PER_S, MULTICAST_RESPONSE_SECS_MAX, MULTICAST_SWEEP_SECS, PORTS_MAX,
};
use weir_wire::Mac;

use crate::DropReason;
use crate::port::PortId;
use crate::view::View;
use crate::vlan::Vid;
use packet::{Change, Packet, Query, Report, may_be_message, read};

mod packet;
#[cfg(test)]
mod tests;

/// The time until which a port gets all groups if nobody has asked it: for ever.
const NOT_ASKED: u32 = u32::MAX;

/// A set of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortSet([u64; PORTS_MAX / 64]);

impl PortSet {
    const EMPTY: Self = Self([0; PORTS_MAX / 64]);

    fn insert(&mut self, port: PortId) {
        self.0[port.index() / 64] |= 1 << (port.index() % 64);
    }

    /// True if the port is in the set.
    pub fn contains(&self, port: PortId) -> bool {
        self.0[port.index() / 64] >> (port.index() % 64) & 1 != 0
    }
}

/// A port that is a member of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Membership {
    /// The group.
    pub group: IpAddr,
    /// The port.
    pub port: PortId,
    /// The time until the membership ends without another report (s).
    pub left_secs: u32,
}

/// The state of snooping in a VLAN, for one IP version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The VLAN.
    pub vid: Vid,
    /// The IP version is 6.
    pub v6: bool,
    /// The address of the querier, and the port behind which it is; `None` if no querier is heard, and all groups are
    /// flooded.
    pub querier: Option<(IpAddr, PortId)>,
    /// Memberships, in order.
    pub members: Vec<Membership>,
    /// Ports that get all groups although they have been asked: they have more groups than they may have, or report
    /// more often than they may.
    pub over: Vec<PortId>,
    /// The number of memberships and of such ports that are not listed.
    pub unshown: u64,
}

/// Snooping in the VLANs that have it.
#[derive(Debug)]
pub struct Snooping(BTreeMap<Vid, [Family; 2]>);

/// One IP version in one VLAN.
#[derive(Debug)]
struct Family {
    /// By port: the time until which it gets all groups (s).
    all_until: Box<[AtomicU32]>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    querier: Option<Querier>,
    groups: HashMap<IpAddr, Vec<Member>>,
    reporters: HashMap<PortId, Reporter>,
    /// The time at which memberships that have ended were last removed (s).
    swept_secs: u32,
}

#[derive(Clone, Copy, Debug)]
struct Querier {
    from: IpAddr,
    port: PortId,
    until_secs: u32,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    port: PortId,
    until_secs: u32,
}

/// A port that has sent reports.
#[derive(Clone, Copy, Debug, Default)]
struct Reporter {
    /// The number of its memberships, with those that have ended and are not removed yet.
    groups: u32,
    /// The present second, and the number of records in it.
    second: u32,
    records: u32,
}

impl Family {
    fn new() -> Self {
        let all_until = (0..PORTS_MAX).map(|_| AtomicU32::new(NOT_ASKED)).collect();
        Self { all_until, state: Mutex::default() }
    }

    /// Each change leaves the state valid, so a lock poisoned by a panic means nothing.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn gets_all(&self, port: PortId, now_secs: u32) -> bool {
        self.all_until[port.index()].load(Ordering::Relaxed) > now_secs
    }

    /// Gives a port all groups for the time of a membership, since its reports are not known
    /// completely.
    fn give_all(&self, port: PortId, now_secs: u32) {
        let until = now_secs.saturating_add(MULTICAST_MEMBER_SECS).min(NOT_ASKED - 1);
        self.all_until[port.index()].fetch_max(until, Ordering::Relaxed);
    }

    /// Notes that a port is asked which groups it has.
    fn ask(&self, port: PortId, answers_by_secs: u32) {
        let (from, to) = (NOT_ASKED, answers_by_secs.min(NOT_ASKED - 1));
        let all_until = &self.all_until[port.index()];
        // Otherwise the port was asked before.
        let _ = all_until.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Lists at most `share` memberships, and as many ports that get all groups. Frames wait meanwhile, so memory is
    /// taken before.
    fn standing(&self, (vid, v6): (Vid, bool), share: usize, now_secs: u32) -> Standing {
        let (mut members, mut over) = (Vec::with_capacity(share), Vec::with_capacity(share));
        let (mut seen, mut noted, mut all_over) = (0, 0, 0);
        let querier = {
            let state = self.state();
            for (port, reporter) in &state.reporters {
                noted += u64::from(reporter.groups);
                let is_asked = self.all_until[port.index()].load(Ordering::Relaxed) != NOT_ASKED;
                if is_asked && self.gets_all(*port, now_secs) {
                    all_over += 1;
                    if over.len() < share {
                        over.push(*port);
                    }
                }
            }
            let each = state.groups.iter();
            let each = each.flat_map(|(group, it)| it.iter().map(move |member| (*group, member)));
            for (group, Member { port, until_secs }) in each.take(share) {
                seen += 1;
                let left_secs = until_secs.saturating_sub(now_secs);
                if left_secs > 0 {
                    members.push(Membership { group, port: *port, left_secs });
                }
            }
            state.querier(now_secs)
        };
        members.sort_unstable_by_key(|it| (it.group, it.port));
        over.sort_unstable();
        let unshown = noted.saturating_sub(seen) + (all_over - over.len() as u64);
        let querier = querier.map(|it| (it.from, it.port));
        Standing { vid, v6, querier, members, over, unshown }
    }

    fn forget(&self, port: PortId) {
        self.all_until[port.index()].store(NOT_ASKED, Ordering::Relaxed);
        let mut state = self.state();
        if state.reporters.remove(&port).is_some() {
            state.groups.retain(|_, members| {
                members.retain(|member| member.port != port);
                !members.is_empty()
            });
        }
        state.querier = state.querier.filter(|querier| querier.port != port);
    }
}

impl State {
    /// Handles a report; false if not all of it is noted.
    fn report(&mut self, report: Report<'_>, port: PortId, leaves: bool, now_secs: u32) -> bool {
        for change in report {
            let reporter = self.reporters.entry(port).or_default();
            if reporter.second != now_secs {
                (reporter.second, reporter.records) = (now_secs, 0);
            }
            reporter.records += 1;
            if reporter.records > MULTICAST_RECORDS_PER_S {
                return false;
            }
            let is_noted = match change {
                Some(Change::Join(group)) => self.join(group, port, now_secs),
                Some(Change::Leave(group)) if leaves => {
                    self.leave(group, port);
                    true
                }
                _ => true,
            };
            if !is_noted {
                return false;
            }
        }
        true
    }

    fn join(&mut self, group: IpAddr, port: PortId, now_secs: u32) -> bool {
        let until_secs = now_secs.saturating_add(MULTICAST_MEMBER_SECS);
        let known = self.groups.get_mut(&group);
        if let Some(member) =
            known.and_then(|members| members.iter_mut().find(|member| member.port == port))
        {
            member.until_secs = until_secs;
            return true;
        }
        let count = |state: &Self| state.reporters.get(&port).map_or(0, |it| it.groups);
        if count(self) >= MULTICAST_GROUPS_PER_VIF_MAX {
            self.sweep(now_secs);
            if count(self) >= MULTICAST_GROUPS_PER_VIF_MAX {
                return false;
            }
        }
        self.reporters.entry(port).or_default().groups += 1;
        self.groups.entry(group).or_default().push(Member { port, until_secs });
        true
    }

    fn leave(&mut self, group: IpAddr, port: PortId) {
        let Some(members) = self.groups.get_mut(&group) else { return };
        let before = members.len();
        members.retain(|member| member.port != port);
        let left = before - members.len();
        if members.is_empty() {
            self.groups.remove(&group);
        }
        if let Some(reporter) = self.reporters.get_mut(&port) {
            reporter.groups = reporter.groups.saturating_sub(u32::try_from(left).unwrap_or(0));
        }
    }

    /// Removes memberships that have ended, at most once in [`MULTICAST_SWEEP_SECS`].
    fn sweep(&mut self, now_secs: u32) {
        if now_secs.saturating_sub(self.swept_secs) < MULTICAST_SWEEP_SECS {
            return;
        }
        self.swept_secs = now_secs;
        let reporters = &mut self.reporters;
        self.groups.retain(|_, members| {
            members.retain(|member| {
                let stays = member.until_secs > now_secs;
                if let (false, Some(reporter)) = (stays, reporters.get_mut(&member.port)) {
                    reporter.groups = reporter.groups.saturating_sub(1);
                }
                stays
            });
            !members.is_empty()
        });
    }

    /// Handles a query; returns the time by which members have answered.
    fn query(&mut self, query: Query, port: PortId, now_secs: u32) -> u32 {
        let until_secs = now_secs.saturating_add(MULTICAST_QUERIER_SECS);
        let is_other = |other: &Querier| other.until_secs > now_secs && other.port != port;
        // The lowest address stays the querier (RFC 3376 §6.6.2); one of 0.0.0.0 stands for another.
        let rank = |from: IpAddr| (from.is_unspecified(), from);
        if !self.querier.is_some_and(|it| is_other(&it) && rank(it.from) < rank(query.from)) {
            self.querier = Some(Querier { from: query.from, port, until_secs });
        }
        self.sweep(now_secs);
        // The response's last second is not over yet.
        let answers_by = now_secs + query.response_secs.min(MULTICAST_RESPONSE_SECS_MAX) + 1;
        if let Some(group) = query.group.filter(|_| query.ends) {
            // The querier asks twice, one response time apart (RFC 3376 §8.8, §8.9).
            let until_secs = answers_by + query.response_secs.min(MULTICAST_RESPONSE_SECS_MAX);
            for member in self.groups.get_mut(&group).into_iter().flatten() {
                member.until_secs = member.until_secs.min(until_secs);
            }
        }
        answers_by
    }

    fn querier(&self, now_secs: u32) -> Option<Querier> {
        self.querier.filter(|querier| querier.until_secs > now_secs)
    }
}

impl Snooping {
    /// Snooping in these VLANs; `None` without any.
    pub fn new(vids: impl Iterator<Item = Vid>) -> Option<Self> {
        let networks: BTreeMap<_, _> =
            vids.map(|vid| (vid, [Family::new(), Family::new()])).collect();
        (!networks.is_empty()).then_some(Self(networks))
    }

    fn family(&self, vid: Vid, v6: bool) -> Option<&Family> {
        self.0.get(&vid).map(|families| &families[usize::from(v6)])
    }

    /// The receivers of a multicast that came in by `ingress` and begins with `head`; `None` if they are all ports of
    /// the VLAN. The frame is learned from; `whole` is asked for its bytes if it may be a message of IGMP or MLD.
    ///
    /// # Errors
    /// The reason why the frame has to be dropped.
    pub fn judge<'f>(
        &self,
        view: &View<'_>,
        (ingress, vid): (PortId, Vid),
        head: &'f [u8],
        whole: impl FnOnce() -> &'f [u8],
        now_secs: u32,
    ) -> Result<Option<PortSet>, DropReason> {
        if !self.0.contains_key(&vid) {
            return Ok(None);
        }
        let packet = read(if may_be_message(head) { whole() } else { head });
        let v6 = match packet {
            Packet::ForAll => return Ok(None),
            Packet::Data(group) => group.is_ipv6(),
            Packet::Query(query) => query.from.is_ipv6(),
            Packet::Report(report) => report.v6,
            Packet::Unreadable { v6, .. } => v6,
        };
        let Some(family) = self.family(vid, v6) else { return Ok(None) };
        match packet {
            Packet::Query(_) | Packet::Unreadable { asks: true, .. }
                if !view.routes_multicast(ingress) =>
            {
                return Err(DropReason::MulticastQuery);
            }
            Packet::Query(query) => {
                let answers_by = family.state().query(query, ingress, now_secs);
                if query.group.is_none() {
                    let asked = view.flood_ports(ingress, vid, Mac::BROADCAST);
                    asked.for_each(|port| family.ask(port, answers_by));
                }
                return Ok(None);
            }
            Packet::Report(report) => {
                let leaves = view.has_one_station(ingress);
                if !family.state().report(report, ingress, leaves, now_secs) {
                    family.give_all(ingress, now_secs);
                }
            }
            Packet::Unreadable { .. } => family.give_all(ingress, now_secs),
            Packet::Data(_) | Packet::ForAll => {}
        }
        Ok(self.receivers(view, (ingress, vid), packet, family, now_secs))
    }

    /// The decision of [`judge`](Self::judge) about a frame that it would not learn from: to explain a frame's way.
    pub fn would_judge(
        &self,
        view: &View<'_>,
        (ingress, vid): (PortId, Vid),
        frame: &[u8],
        now_secs: u32,
    ) -> Result<Option<PortSet>, DropReason> {
        let packet = read(frame);
        let v6 = match packet {
            Packet::ForAll => return Ok(None),
            Packet::Query(_) | Packet::Unreadable { asks: true, .. }
                if self.0.contains_key(&vid) && !view.routes_multicast(ingress) =>
            {
                return Err(DropReason::MulticastQuery);
            }
            Packet::Query(_) => return Ok(None),
            Packet::Data(group) => group.is_ipv6(),
            Packet::Report(report) => report.v6,
            Packet::Unreadable { v6, .. } => v6,
        };
        let Some(family) = self.family(vid, v6) else { return Ok(None) };
        Ok(self.receivers(view, (ingress, vid), packet, family, now_secs))
    }

    /// The receivers of a report, or of a frame for a group.
    fn receivers(
        &self,
        view: &View<'_>,
        (ingress, vid): (PortId, Vid),
        packet: Packet<'_>,
        family: &Family,
        now_secs: u32,
    ) -> Option<PortSet> {
        let mut receivers = PortSet::EMPTY;
        let is_data = {
            let state = family.state();
            state.querier(now_secs)?;
            if let Packet::Data(group) = packet {
                let members = state.groups.get(&group)?.iter();
                let present = members.filter(|member| member.until_secs > now_secs);
                present.for_each(|member| receivers.insert(member.port));
                // A group without members is not registered.
                (receivers != PortSet::EMPTY).then_some(true)?
            } else {
                false
            }
        };
        for port in view.flood_ports(ingress, vid, Mac::BROADCAST) {
            if view.routes_multicast(port) || is_data && family.gets_all(port, now_secs) {
                receivers.insert(port);
            }
        }
        Some(receivers)
    }

    /// Notes that weir itself asks stations behind these ports, from this address of `querier`.
    pub fn asks(
        &self,
        (querier, vid): (PortId, Vid),
        from: IpAddr,
        asked: impl Iterator<Item = PortId>,
        response_secs: u32,
        now_secs: u32,
    ) {
        let Some(family) = self.family(vid, from.is_ipv6()) else { return };
        let query = Query { from, group: None, response_secs, ends: false };
        let answers_by = family.state().query(query, querier, now_secs);
        asked.for_each(|port| family.ask(port, answers_by));
    }

    /// True if a querier behind a port other than `own` is heard.
    pub fn hears_other(&self, (own, vid): (PortId, Vid), v6: bool, now_secs: u32) -> bool {
        let querier = self.family(vid, v6).and_then(|family| family.state().querier(now_secs));
        querier.is_some_and(|querier| querier.port != own)
    }

    /// The state in each VLAN. Memberships and ports that get all groups are at most `most` in all, an equal share for
    /// each VLAN and IP version. The addresses that guests choose do not decide which are listed, so no guest can hide
    /// another's.
    pub fn standings(&self, now_secs: u32, most: usize) -> Vec<Standing> {
        let share = (most / self.0.len() / 4).max(1);
        let both = |(vid, families): (&Vid, &[Family; 2])| {
            [false, true].map(|v6| families[usize::from(v6)].standing((*vid, v6), share, now_secs))
        };
        self.0.iter().flat_map(both).collect()
    }

    /// Forgets a port: its station may be another one from now on.
    pub(crate) fn forget(&self, port: PortId) {
        self.0.values().flatten().for_each(|family| family.forget(port));
    }
}
