//! Security groups of a running switch.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, TryLockError};

use weir_config::{Groups, PortName, RuleDirection, RuleProtocol, TO_A_GROUP, VifGroups};
use weir_engine::{PortSettings, clock};
use weir_groups::{Connection, Decision, Direction, Ends, Refused, Why};
use weir_limits::GROUP_PAGE;
use weir_port_vxlan::{GroupSet, VxlanPort};

use super::{Ports, Switch, Vif};
use crate::control::Response;
use crate::explain::{GroupsExplanation, RefusalExplanation};
use crate::stats::{ConnectionPage, ConnectionStats, GroupStats};

impl Switch {
    /// The present groups of the switch.
    pub(super) fn groups(&self) -> Arc<Groups> {
        Arc::clone(&self.groups.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sets the switch's groups, and returns the former ones. [`hold_to_groups`] then applies them to interfaces.
    ///
    /// [`hold_to_groups`]: Self::hold_to_groups
    pub(super) fn replace_groups(&self, groups: Arc<Groups>) -> Arc<Groups> {
        let mut now = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut now, groups)
    }

    /// Applies the present rules of groups to all interfaces in groups.
    pub(super) fn hold_to_groups(&self) {
        let groups = self.groups();
        for vif in &self.ports().vifs {
            if let Some(policy) = groups.policy(&vif.config.groups) {
                let change = |settings: &mut PortSettings| settings.groups = Some(policy);
                self.engine.change_settings(vif.port.id(), change);
            }
        }
        if let Some(overlay) = &self.ports().overlay {
            self.tell_group_sets(&overlay.port);
        }
        self.engine.regroup();
    }

    /// Tells an overlay the sets of groups that have an ID.
    pub(super) fn tell_group_sets(&self, overlay: &VxlanPort) {
        let groups = self.groups();
        let sets = groups
            .ids
            .iter()
            .map(|(id, set)| (id, GroupSet { groups: set.ids(), check: set.check() }));
        overlay.change_networks(|networks| networks.set_group_sets(sets.collect()));
    }

    /// All groups with their members.
    pub(super) fn group_stats(&self, ports: &Ports) -> Vec<GroupStats> {
        let groups = self.groups();
        let stats = groups.all.iter().map(|group| {
            let is_in = |groups: &VifGroups| groups.as_slice().contains(&group.name);
            let vifs = ports.vifs.iter().filter(|vif| is_in(&vif.config.groups));
            GroupStats {
                name: group.name.to_string(),
                default_in: group.default_in,
                default_out: group.default_out,
                log: group.log,
                rules: group.rules.iter().map(ToString::to_string).collect(),
                vifs: vifs.map(|vif| vif.config.name.clone()).collect(),
            }
        });
        stats.collect()
    }

    /// A page of an interface's connections.
    pub(super) fn connections(&self, name: &PortName, from: u32) -> Response {
        let ports = self.ports();
        let Some(vif) = ports.vifs.iter().find(|vif| vif.config.name == *name) else {
            return ports.no_such_vif(name);
        };
        let groups = self.engine.groups(vif.port.id());
        let (found, next) = groups.map_or_else(Default::default, |groups| {
            groups.page(from as usize, GROUP_PAGE, clock::now_ns())
        });
        let page = ConnectionPage {
            vif: name.clone(),
            connections: found.into_iter().map(shown).collect(),
            next: next.and_then(|next| next.try_into().ok()),
        };
        Response::Connections { page }
    }

    /// Forgets the connections of an interface, of a network's interfaces, or of all.
    pub(super) fn flush(&self, of: Option<&str>) -> Response {
        let ports = self.ports();
        let is_named = |vif: &&Vif| of.is_none_or(|of| vif.config.name.as_str() == of);
        let is_in = |vif: &&Vif| of.is_some_and(|of| self.networks.has(of, &vif.config.vlan));
        let mut vifs: Vec<_> = ports.vifs.iter().filter(is_named).collect();
        if vifs.is_empty() {
            vifs = ports.vifs.iter().filter(is_in).collect();
        }
        if let Some(of) = of.filter(|_| vifs.is_empty()) {
            let message = format!("there is no interface {of}, and no interface in a network {of}");
            return Response::not_found(message, "`weir vif list` shows those there are");
        }
        let tables: Vec<_> =
            vifs.iter().filter_map(|vif| self.engine.groups(vif.port.id())).collect();
        let connections: u64 = tables.iter().map(|groups| u64::from(groups.flush())).sum();
        let interfaces = tables.len();
        let note =
            format!("connections forgotten: {connections} (interfaces in groups: {interfaces})");
        Response::Noted { note }
    }

    /// The groups of each interface.
    pub(crate) fn groups_of_ports(&self) -> BTreeMap<PortName, VifGroups> {
        let ports = self.ports();
        let vifs =
            ports.vifs.iter().map(|vif| (vif.config.name.clone(), vif.config.groups.clone()));
        vifs.collect()
    }

    /// An interface's groups, and the frames that they refused.
    pub(super) fn groups_of(&self, vif: &Vif) -> Option<GroupsExplanation> {
        let port = self.engine.groups(vif.port.id())?;
        let (groups, refusals, own) = (self.groups(), port.refusals(), &vif.config.groups);
        let closing =
            |direction| groups.closing(own, direction).map(|it| it.name.clone()).collect();
        let logs = |name: &&_| groups.get(name).is_some_and(|group| group.log);
        let counts = |direction| {
            let counts = refusals.counts(direction).filter(|(_, frames)| *frames > 0);
            counts.map(|(why, frames)| (why.word().to_owned(), frames)).collect()
        };
        let mut refused: Vec<_> = refusals.latest().map(RefusalExplanation::from).collect();
        refused.sort_by_key(|it| (std::cmp::Reverse(it.frames), it.ago_ms));
        Some(GroupsExplanation {
            groups: own.as_slice().to_vec(),
            close_in: closing(Direction::In),
            close_out: closing(Direction::Out),
            id: groups.ids.of(own),
            to_groups_here: match self.networks.overlay {
                Some(_) => groups.with_rules_to_a_group(own.as_slice()).cloned().collect(),
                None => Vec::new(),
            },
            log: own.as_slice().iter().filter(logs).cloned().collect(),
            refused_in: counts(Direction::In),
            refused_out: counts(Direction::Out),
            refused,
            log_lines_unsaid: port.logs().unsaid(),
        })
    }

    /// Logs the frames that were refused since the last call because a group with `log` closes their direction, and
    /// hosts of an overlay where IDs of groups mean other groups.
    pub fn log_refusals(&self) {
        let groups = self.groups();
        // A thread that changes the ports may wait for a guest, and the watchdog must not wait. The next call logs the
        // rest.
        let ports = match self.ports.try_lock() {
            Ok(ports) => ports,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        // A log that blocks may delay this thread, but no change of ports.
        let in_groups = ports.vifs.iter().filter_map(|vif| {
            let port = self.engine.groups(vif.port.id())?;
            Some((vif.config.name.clone(), vif.config.groups.clone(), port))
        });
        let in_groups: Vec<_> = in_groups.collect();
        let overlay = ports.overlay.as_ref();
        let overlay = overlay.map(|it| (Arc::clone(&it.port), Arc::clone(&it.disputed)));
        drop(ports);
        if let Some((port, disputed)) = overlay {
            disputed.log(port.disputed());
        }
        for (name, own, port) in in_groups {
            let (taken, mut missed) = port.take_refusals();
            for (refusal, frames) in taken {
                let closing = groups.closing(&own, refusal.direction);
                let logging = closing.filter(|group| group.log && refusal.why == Why::NoRule);
                let logging: Vec<_> = logging.map(|group| group.name.as_str()).collect();
                if logging.is_empty() {
                    continue;
                }
                let ends = refusal.ends;
                let Told { protocol, port: to_port, icmp_type } = Told::of(ends);
                port.logs().say(0, |unsaid| {
                    tracing::warn!(
                        vif = name.as_str(),
                        direction = %direction(refusal.direction),
                        group = logging.join(","),
                        protocol,
                        from = ends.map(|ends| ends.src.to_string()),
                        to = ends.map(|ends| ends.dst.to_string()),
                        port = to_port,
                        icmp_type,
                        vlan = some(refusal.vid.into()),
                        frames,
                        displaced = some(std::mem::take(&mut missed)),
                        unsaid,
                        "a group has refused frames"
                    );
                });
            }
        }
    }

    /// A decision of an interface's groups in words.
    pub(crate) fn group_words(
        &self,
        groups: &VifGroups,
        receives: bool,
        decision: Decision,
    ) -> String {
        let direction = if receives { "in" } else { "out" };
        let (Decision::Passes(why) | Decision::Refused(why)) = decision;
        match why {
            Why::Rule(place) => match self.groups().rule_at(groups, place.into()) {
                Some((group, number, rule)) => {
                    format!(
                        "rule {} of group {}, `{rule}`, allows the connection",
                        number + 1,
                        group.name
                    )
                }
                None => "a rule that has gone allows the connection".into(),
            },
            Why::Default => format!("groups {groups} leave open what goes {direction}"),
            Why::Established => "the frame belongs to a connection that is known".into(),
            Why::Related => "the ICMP error is about a packet of a connection that is known".into(),
            Why::Needed => {
                "ARP, neighbour discovery, IGMP, MLD and DHCP of the guest need no rule".into()
            }
            Why::Fragment if matches!(decision, Decision::Passes(_)) => {
                "the first fragment of the datagram has passed".into()
            }
            Why::Fragment => "the fragment has no place in a datagram that has passed".into(),
            Why::NoRule => {
                let (all, way) =
                    (self.groups(), if receives { Direction::In } else { Direction::Out });
                let closing = all.closing(groups, way).map(|group| group.name.as_str());
                let closing: Vec<_> = closing.collect();
                let mut refused =
                    format!("no rule of groups {groups} allows this to go {direction}");
                if closing.len() != groups.as_slice().len() {
                    refused += &format!(", which {} closes", closing.join(", "));
                }
                let has_other_hosts = self.networks.overlay.is_some();
                if !receives
                    && has_other_hosts
                    && let Some(name) = all.with_rules_to_a_group(groups.as_slice()).next()
                {
                    refused += &format!("; rules of {name} `to` a group: {TO_A_GROUP}");
                }
                refused
            }
            Why::Invalid => "no host sends such a packet in this place".into(),
            Why::Full => "the interface has as many connections as it may".into(),
        }
    }
}

/// The number, or `None` if it is 0.
fn some(number: u64) -> Option<u64> {
    (number > 0).then_some(number)
}

impl From<Refused> for RefusalExplanation {
    fn from(refused: Refused) -> Self {
        let Refused { refusal, times, last_ns, .. } = refused;
        let told = Told::of(refusal.ends);
        Self {
            direction: direction(refusal.direction),
            reason: refusal.why.word().into(),
            vlan: (refusal.vid != 0).then_some(refusal.vid),
            protocol: told.protocol,
            from: refusal.ends.map(|ends| ends.src.to_string()),
            to: refusal.ends.map(|ends| ends.dst.to_string()),
            port: told.port,
            icmp_type: told.icmp_type,
            frames: times,
            ago_ms: clock::now_ns().saturating_sub(last_ns) / 1_000_000,
        }
    }
}

/// The protocol of a packet with its value, as a rule names them.
struct Told {
    protocol: Option<String>,
    port: Option<u16>,
    icmp_type: Option<u16>,
}

impl Told {
    fn of(ends: Option<Ends>) -> Self {
        let protocol = ends.map(|ends| RuleProtocol::from(ends.protocol));
        let value = |key| {
            let value = ends.and_then(|ends| ends.value);
            value.filter(|_| protocol.and_then(RuleProtocol::values_key) == Some(key))
        };
        Self {
            port: value("ports"),
            icmp_type: value("types"),
            protocol: protocol.map(|it| it.to_string()),
        }
    }
}

fn direction(direction: Direction) -> RuleDirection {
    match direction {
        Direction::In => RuleDirection::In,
        Direction::Out => RuleDirection::Out,
    }
}

fn shown(connection: Connection) -> ConnectionStats {
    let Connection { protocol, vid, own, peer, ports, identifier, opener, state, idle_ns } =
        connection;
    let with_port = |address, port: Option<u16>| match port {
        Some(port) => SocketAddr::new(address, port).to_string(),
        None => address.to_string(),
    };
    ConnectionStats {
        protocol: RuleProtocol::from(protocol).to_string(),
        vlan: (vid != 0).then_some(vid),
        own: with_port(own, ports.map(|(own, _)| own)),
        peer: with_port(peer, ports.map(|(_, peer)| peer)),
        identifier,
        opened: direction(opener),
        state: state.to_owned(),
        idle_ms: idle_ns / 1_000_000,
    }
}
