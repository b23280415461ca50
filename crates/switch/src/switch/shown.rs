//! The switch's reports about itself: its counters, and the effect of its policies.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use weir_config::{FilterRule, LatencyBudget, Moderation, PLACEMENT, PortName, VlanMode};
use weir_engine::guest::{CallTimes, PortInfo, QueueDecision, State};
use weir_engine::stats::QueueCounters;
use weir_engine::{DropReason, Panics, PortCounters, WokenFor, clock, lock, panicked, stages};
use weir_fabric::multicast::Membership;
use weir_fabric::{Claim, FdbEntry, PortId, Vid};
use weir_foreign::Stuck;
use weir_groups::TABLE_BYTES;
use weir_guestmem::total_mapped;
use weir_limits::{
    CONTROL_ADDRESSES_MAX, EVPN_CLAIMS_MAX, GROUP_CONNECTIONS_MAX, MEM_REGIONS_TOTAL_MAX,
    MEM_SLOTS_MAX, MEM_TABLES_MAX, MEMORY_TOTAL_MAX, MULTICAST_SHOWN, PORTS_MAX,
};
use weir_policy::steering::Steering;
use weir_port_tap::UplinkPort;
use weir_wire::Mac;

use super::bond::Bond;
use super::{Gateway, Overlay, Ports, Seen, Switch, Uplink, Vif};
use crate::GuestPort;
use crate::control::{AddressEntry, AddressOrigin, Part, Response};
use crate::events::{Glance, PortGlance, told};
use crate::explain::{
    DispatchExplanation, HostExplanation, MovedPair, PortShare, QueueExplanation,
    ReceivingExplanation, SharingExplanation, USUAL_DROPS, UplinkExplanation, VifExplanation,
};
use crate::loops::{Blocked, LoopCounts};
use crate::manager::ManagedExplanation;
use crate::named::NoSuchPort;
use crate::stats::{
    BlockStats, CallSettings, GuardExplanation, KeeperState, Limit, Limits, LoopStats, MemberStats,
    MulticastStats, PanickedThread, PortDecision, PortKind, PortState, PortStats, QueuePairNumbers,
    QueuePairStats, QueueStats, RingSizes, RuleStats, SessionStats, StageStats, StillThread,
    SwitchStats, Unclosed, WorkerStats, descriptors, limits,
};
use crate::watchdog::{Still, still};

/// Seconds since this time of [`clock`]; `None` for 0.
pub(super) fn seconds_since(ns: u64) -> Option<u64> {
    (ns > 0).then(|| Duration::from_nanos(clock::now_ns().saturating_sub(ns)).as_secs())
}

/// Each port's drops, late calls and waits at the last request for counters, and the time when
/// these counts were first seen.
pub(super) type Looks = BTreeMap<PortName, (u64, u64)>;

/// Fills in for how long the ports have been quiet.
fn quiet(looks: &mut Looks, ports: &mut [PortStats], now_ns: u64) {
    for port in ports {
        let usual = |reason: &str| USUAL_DROPS.contains(&reason);
        let drops = port.drops.iter().filter(|(reason, _)| !usual(reason));
        let all = drops.chain(&port.budget_breaches).map(|(_, count)| count).sum::<u64>();
        let all = all + port.rate_waits;
        let same = looks.get(&port.name).filter(|(before, _)| *before == all);
        let since_ns = same.map_or(now_ns, |(_, since_ns)| *since_ns);
        port.quiet_s = Duration::from_nanos(now_ns.saturating_sub(since_ns)).as_secs();
        looks.insert(port.name.clone(), (all, since_ns));
    }
}

impl Switch {
    /// Limits on addresses of other hosts, in all and in each network.
    pub(super) fn overlay_limits(&self, overlay: &Overlay) -> Limits {
        let id = overlay.id;
        let mut all = limits([("addresses", self.addresses(id))]);
        if let Some(evpn) = &overlay.evpn {
            let claims = Limit::new(evpn.shown().claims, EVPN_CLAIMS_MAX);
            all.extend(limits([("claims", claims)]));
        }
        all.extend(self.networks.of_overlay().filter_map(|(number, network, _)| {
            let known = self.engine.fabric().fdb().learned_in(Vid::of_network(number)?);
            let limit = Limit::new(known, self.engine.fabric().fdb().per_network_max());
            Some((format!("addresses_{}", network.name), limit))
        }));
        all
    }

    /// Explains the policies of an interface, the state of an uplink, or the placement of workers.
    pub(super) fn vif_explain(&self, name: &PortName) -> Response {
        let ports = self.ports();
        let Some(vif) = ports.vifs.iter().find(|vif| vif.config.name == *name) else {
            if let Some(overlay) = ports.overlay.as_ref().filter(|overlay| overlay.name == *name) {
                return self.overlay_explain(overlay);
            }
            return match self.manager.explain_uplink(name) {
                Some(explanation) => self.with_dispatch(&ports, explanation),
                None if name.as_str() == PLACEMENT => self.placement_explain(),
                None => Response::from(&ports.no_such_port(name)),
            };
        };
        let ManagedExplanation { split, agent, steering } = self.manager.explain_vif(vif.port.id());
        let queue = |(queue, now): (usize, QueueDecision)| QueueExplanation {
            queue,
            moderation: Moderation(now.kind),
            hold_ns: now.decision.hold_ns,
            hold_ns_max: now.hold_ns_max,
            reason: now.decision.reason.into(),
            frames: now.frames,
            calls: now.calls,
            calls_suppressed: now.calls_suppressed,
            held_ns: now.hold.into(),
            jitter_ns: now.jitter_ns,
        };
        let (id, now_ns) = (vif.port.id(), clock::now_ns());
        let dispatch = self.dispatch_of(id, vif.port.interface().queue_pairs(), now_ns);
        let PortInfo { state, silent, .. } = vif.port.info();
        let explanation = VifExplanation {
            name: name.clone(),
            state: state.into(),
            blocked: self.block_of(id),
            silent: silent.into_iter().map(Into::into).collect(),
            latency_budget_ns: self.budget(&vif.config).ns(),
            calls: CallSettings::of(&vif.config),
            budget_breaches: breaches(vif.port.interface().counters()),
            queue_pairs: vif.queue_pairs(),
            rings: RingSizes::of(&vif.config, &vif.port.interface().ring_sizes()),
            queues: vif.port.interface().decisions().into_iter().enumerate().map(queue).collect(),
            split,
            agent,
            filter: RuleStats::of(&vif.config.filter, &vif.rules),
            dispatch,
            sharing: self.sharing_of(&ports, vif, now_ns),
            receiving: ReceivingExplanation {
                limits: vif.config.sharing.receive,
                policed: vif.port.interface().counters().dropped_for(DropReason::PolicedRx),
                elapsed_ns: now_ns,
            },
            guard: vif.guard_explanation(now_ns),
            groups: self.groups_of(vif),
            steering,
            hosts: self.hosts_of(&ports, &vif.config.vlan),
            traffic: self.vif_traffic(vif),
        };
        Response::Explained { explanation: Box::new(explanation) }
    }

    /// The split of budgets with the other hosts of a network.
    fn hosts_of(&self, ports: &Ports, vlan: &VlanMode) -> Vec<HostExplanation> {
        let of = ports.overlay.as_ref().zip(self.networks.number_of(vlan));
        let all = of.map(|(overlay, network)| overlay.port.between(network));
        all.unwrap_or_default().into_iter().map(HostExplanation::from).collect()
    }

    /// Completes an uplink's explanation with the engine's part.
    fn with_dispatch(&self, ports: &Ports, explanation: UplinkExplanation) -> Response {
        let uplink = ports.uplinks.iter().find(|it| it.config.name == explanation.name);
        let dispatch = uplink.map(|it| self.dispatch_of(it.id, it.port.queues(), clock::now_ns()));
        let dispatch = dispatch.unwrap_or_default();
        let blocked = uplink.and_then(|it| self.block_of(it.id));
        let traffic = uplink.map(|uplink| self.uplink_traffic(uplink)).unwrap_or_default();
        let filter = uplink.map(|it| RuleStats::of(&it.config.filter, &it.rules));
        let filter = filter.unwrap_or_default();
        let bond = uplink.and_then(|it| it.bond.as_ref()).map(Bond::shown);
        let in_bond = self.bond_of(&explanation.name).cloned();
        let found = UplinkExplanation { dispatch, blocked, traffic, filter, ..explanation };
        let explanation = UplinkExplanation { bond, in_bond, ..found };
        Response::UplinkExplained { explanation: Box::new(explanation) }
    }

    /// The workers that serve the queues of a port.
    fn dispatch_of(&self, id: PortId, queues: usize, now_ns: u64) -> DispatchExplanation {
        let (moved, _) = self.engine.moved();
        let moved = moved.iter().filter(|moved| moved.port == id);
        DispatchExplanation {
            workers: (0..queues).map(|queue| self.engine.worker_of(id, queue)).collect(),
            moves: moved.map(|moved| MovedPair::new(moved, now_ns)).collect(),
        }
    }

    /// An interface as a sender among the other ports.
    fn sharing_of(&self, ports: &Ports, vif: &Vif, now_ns: u64) -> SharingExplanation {
        let share = |id: PortId, counters: &PortCounters| PortShare {
            weight: self.engine.share(id).weight,
            worker_ns: counters.worker_ns.get(),
        };
        let of_vif = |vif: &Vif| share(vif.port.id(), vif.port.interface().counters());
        let others = ports.vifs.iter().filter(|other| other.config.name != vif.config.name);
        let others = others.map(|other| (other.config.name.clone(), of_vif(other)));
        let uplinks = ports.uplinks.iter().map(|uplink| {
            (uplink.config.name.clone(), share(uplink.id, uplink.port.service().counters()))
        });
        let counters = vif.port.interface().counters();
        SharingExplanation {
            own: of_vif(vif),
            others: others.chain(uplinks).collect(),
            workers: self.engine.workers().len() as u64,
            elapsed_ns: now_ns,
            rate_waits: counters.rate_waits.get(),
            window_violations: counters.window_violations.get(),
            parked: counters.parked.get(),
        }
    }

    fn placement_explain(&self) -> Response {
        match self.manager.explain_placement() {
            Some(explanation) => {
                Response::PlacementExplained { explanation: Box::new(explanation) }
            }
            None => Response::error("the switch is ending"),
        }
    }

    /// The results of `of` for each port, including the overlay's and weir's own. Its arguments are the port's
    /// number, name and filter, and for a guest the guest's port and budget.
    pub(crate) fn each_port<T>(
        &self,
        of: impl Fn(PortId, &PortName, &[FilterRule], Option<(&dyn GuestPort, LatencyBudget)>) -> T,
    ) -> Vec<T> {
        let ports = self.ports();
        let vifs = ports.vifs.iter().map(|vif| {
            let guest = (&*vif.port, self.budget(&vif.config));
            of(vif.port.id(), &vif.config.name, &vif.config.filter, Some(guest))
        });
        let uplinks = ports.uplinks.iter();
        let uplinks = uplinks.map(|it| of(it.id, &it.config.name, &it.config.filter, None));
        let overlay = ports.overlay.iter().map(|it| of(it.id, &it.name, &[], None));
        let own = ports.gateways.iter().map(|it| of(it.id, &it.name, &[], None));
        vifs.chain(uplinks).chain(overlay).chain(own).collect()
    }

    /// The ports by which weir itself is a station in networks.
    pub(crate) fn gateway_ids(&self) -> Vec<PortId> {
        self.ports().gateways.iter().map(|gateway| gateway.id).collect()
    }

    /// The port of the overlay, if there is one.
    pub(crate) fn overlay_id(&self) -> Option<PortId> {
        self.ports().overlay.as_ref().map(|overlay| overlay.id)
    }

    /// The name of a VLAN of the fabric for users.
    pub(crate) fn vlan_name(&self, vid: Vid) -> String {
        let mut networks = self.networks.of_overlay();
        let network = networks.find(|(number, ..)| vid.network() == Some(*number));
        network.map_or_else(|| format!("VLAN {vid}"), |(_, it, _)| format!("network {}", it.name))
    }

    /// The number of an interface's or uplink's port.
    ///
    /// # Errors
    /// [`NoSuchPort`]
    pub(crate) fn port_id(&self, name: &PortName) -> Result<PortId, NoSuchPort> {
        let ports = self.ports();
        let vif = ports.vifs.iter().find(|vif| vif.config.name == *name).map(|vif| vif.port.id());
        let uplink = || ports.uplinks.iter().find(|uplink| uplink.config.name == *name);
        vif.or_else(|| Some(uplink()?.id)).ok_or_else(|| ports.no_such_port(name))
    }

    /// The counters of the whole switch.
    pub fn stats(&self) -> SwitchStats {
        SwitchStats { ports: self.port_stats(None), ..self.own_stats() }
    }

    /// The names of all ports, in the order of [`Self::stats`].
    pub(super) fn port_names(&self) -> Vec<PortName> {
        let ports = self.ports();
        let vifs = ports.vifs.iter().map(|vif| &vif.config.name);
        ports.outward().map(|(_, name)| name).chain(vifs).cloned().collect()
    }

    /// The counters of the ports with these names, or of all ports.
    pub(super) fn port_stats(&self, names: Option<&[PortName]>) -> Vec<PortStats> {
        let names: Option<BTreeSet<_>> = names.map(|names| names.iter().collect());
        let is_asked = |name: &PortName| names.as_ref().is_none_or(|names| names.contains(name));
        let ports = self.ports();
        let uplinks = ports.uplinks.iter().filter(|it| is_asked(&it.config.name));
        let uplinks = uplinks.map(|uplink| PortStats {
            limits: limits([("addresses", self.addresses(uplink.id))]),
            blocked: self.block_of(uplink.id),
            ..uplink_stats(uplink)
        });
        let overlay = ports.overlay.iter().filter(|it| is_asked(&it.name));
        let overlay = overlay.map(|overlay| PortStats {
            limits: self.overlay_limits(overlay),
            ..overlay_stats(overlay)
        });
        let own = ports.gateways.iter().filter(|it| is_asked(&it.name)).map(gateway_stats);
        let mut stats: Vec<_> = uplinks.chain(overlay).chain(own).collect();
        let vifs = ports.vifs.iter().filter(|it| is_asked(&it.config.name));
        let vifs: Vec<_> = vifs.map(|vif| vif.seen.clone()).collect();
        drop(ports);
        stats.extend(vifs.iter().map(|vif| self.vif_stats(vif)));
        let mut looks = lock(&self.looks);
        quiet(&mut looks, &mut stats, clock::now_ns());
        let there = BTreeSet::from_iter(self.port_names());
        looks.retain(|name, _| there.contains(name));
        stats
    }

    /// The counters of the switch without those of its ports.
    pub(super) fn own_stats(&self) -> SwitchStats {
        let (file, unsaved) = (self.config_file(), self.unsaved());
        let ports = self.ports();
        let workers = self.engine.workers().into_iter().zip(0..);
        SwitchStats {
            version: env!("CARGO_PKG_VERSION").into(),
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            started_unix_ms: self.started_unix_ms,
            uptime_s: self.started.elapsed().as_secs_f64(),
            over_s: None,
            keeper: match (self.keeper.is_configured(), self.keeper.is_there()) {
                (false, _) => KeeperState::None,
                (true, true) => KeeperState::There,
                (true, false) => KeeperState::Gone,
            },
            file,
            unsaved,
            queues_moved: self.engine.moved().1,
            workers: workers
                .map(|(worker, id)| WorkerStats {
                    id,
                    wakeups: worker.wakeups,
                    wakeups_for: WokenFor::ALL
                        .iter()
                        .zip(worker.woken_for)
                        .map(|(what, times)| (what.name().into(), times))
                        .collect(),
                    bursts: worker.bursts,
                    cpu_ns: worker.cpu_ns.unwrap_or(0),
                    timer_lead_ns: worker.timer_lead_ns,
                    late_timers: worker.late_timers,
                })
                .collect(),
            panicked: panicked()
                .into_iter()
                .map(|(name, Panics { panics, ended })| PanickedThread {
                    name: name.into(),
                    panics,
                    ended,
                })
                .collect(),
            still: still().into_iter().map(|thread| still_thread(&ports, thread)).collect(),
            unclosed: weir_foreign::stuck().into_iter().map(unclosed).collect(),
            programs_failed: self.programs.get().map(|it| it.failures()).unwrap_or_default(),
            placement: self.manager.placement_counts().into(),
            loops: self.loop_stats(),
            limits: self.limits(&ports),
            groups: self.group_stats(&ports),
            multicast: self.multicast_stats(&ports),
            on_demand: self.on_demand.stats(),
            stages: StageStats::of_this_process(),
            ports: Vec::new(),
        }
    }

    fn multicast_stats(&self, ports: &Ports) -> Vec<MulticastStats> {
        let Some(snooping) = self.engine.fabric().snooping() else { return Vec::new() };
        let now_secs = clock::secs(clock::now_ns());
        let names: BTreeMap<_, _> = ports.named().collect();
        let own: BTreeMap<_, _> = ports.gateways.iter().map(|it| (it.id, &it.name)).collect();
        let name = |port| names.get(&port).or_else(|| own.get(&port)).map(|name| (*name).clone());
        let standings = snooping.standings(now_secs, MULTICAST_SHOWN);
        let stats = standings.into_iter().map(|standing| {
            let member = |Membership { group, port, left_secs }| {
                Some(MemberStats { group, port: name(port)?, left_s: left_secs })
            };
            MulticastStats {
                vlan: standing.vid.get(),
                ip: if standing.v6 { 6 } else { 4 },
                querier: standing.querier.map(|(from, _)| from),
                querier_port: standing.querier.and_then(|(_, port)| name(port)),
                members: standing.members.into_iter().filter_map(member).collect(),
                over: standing.over.into_iter().filter_map(name).collect(),
                unshown: standing.unshown,
            }
        });
        stats.collect()
    }

    fn loop_stats(&self) -> LoopStats {
        let LoopCounts { suspected, found } = self.loops.counts();
        LoopStats { suspected, found }
    }

    /// The port's block, if it is blocked.
    fn block_of(&self, port: PortId) -> Option<BlockStats> {
        let Blocked { with, vid, for_ns, retry_in_ns, tries } =
            self.loops.blocked(port, clock::now_ns())?;
        let seconds = |ns| Duration::from_nanos(ns).as_secs_f64();
        let (vlan, retry_s) = (vid.get(), seconds(retry_in_ns));
        Some(BlockStats { with, vlan, seconds: seconds(for_ns), retry_s, tries })
    }

    /// The ports by which packets can flow, each with the number of its session.
    pub(super) fn up(&self) -> BTreeMap<PortName, u64> {
        let ports = self.ports();
        let uplinks = ports.uplinks.iter().filter(|it| it.port.trouble().is_none());
        let uplinks = uplinks.map(|it| (it.config.name.clone(), 0));
        let vifs = ports.vifs.iter().filter_map(|vif| {
            let PortInfo { state, opened, .. } = vif.port.info();
            let runs = PortState::from(state) == PortState::Running;
            runs.then(|| (vif.config.name.clone(), opened))
        });
        uplinks.chain(vifs).collect()
    }

    /// The switch's state, as far as events show it.
    pub(super) fn look(&self) -> Glance {
        let ports = self.ports();
        let uplinks = ports.uplinks.iter().map(|uplink| {
            let failure = uplink.port.trouble();
            let state = match failure {
                Some(_) => PortState::Stopped,
                None => PortState::Running,
            };
            let glance = PortGlance {
                kind: PortKind::Uplink,
                stop_reason: failure,
                state,
                ..counted(uplink.port.service().counters())
            };
            (uplink.config.name.clone(), glance)
        });
        let vifs = ports.vifs.iter().map(|vif| {
            let PortInfo { state, stop_reason, opened, failed, .. } = vif.port.info();
            let state = PortState::from(state);
            let counted = counted(vif.port.interface().counters());
            (vif.config.name.clone(), PortGlance { state, stop_reason, opened, failed, ..counted })
        });
        Glance {
            now_ns: clock::now_ns(),
            ports: uplinks.chain(vifs).collect(),
            still: still().into_iter().map(|thread| still_thread(&ports, thread)).collect(),
            told: told(),
        }
    }

    /// The stations that the switch knows.
    pub(super) fn stations(&self, part: &Part<(u16, Mac)>) -> Response {
        let ports = self.ports();
        let overlay = ports.overlay.as_ref();
        let names: BTreeMap<_, _> = ports.named().collect();
        let networks: BTreeMap<_, _> = self
            .networks
            .of_overlay()
            .map(|(number, it, _)| (number, it.name.to_string()))
            .collect();
        let (fdb, now_secs) = (self.engine.fabric().fdb(), clock::secs(clock::now_ns()));
        let host = |entry: &FdbEntry| {
            let overlay = overlay.filter(|overlay| overlay.id == entry.port)?;
            let remote = fdb.remote(entry.vid, entry.mac, entry.port, now_secs)?;
            overlay.port.networks().host(remote)
        };
        let after = part.after.and_then(|(vlan, mac)| Some((Vid::from_bits(vlan)?, mac)));
        let entries = fdb.page(now_secs, after, part.limit.clamp(1, CONTROL_ADDRESSES_MAX));
        let here = entries.iter().filter_map(|entry| Some((entry.vid.network()?, entry.mac)));
        let here: BTreeSet<_> = here.collect();
        let mut owned = overlay.map(|overlay| overlay.owned_by(&here)).unwrap_or_default();
        let mut given: BTreeMap<_, _> = ports.gateways.iter().flat_map(Gateway::given).collect();
        let mut ips = |entry: &FdbEntry| {
            let network = entry.vid.network();
            let owned = network.and_then(|network| owned.remove(&(network, entry.mac)));
            let mut all = owned.unwrap_or_default();
            all.extend(given.remove(&(entry.vid, entry.mac)).unwrap_or_default());
            all.sort_unstable();
            all.dedup();
            all
        };
        // A removed port has no name any more.
        let shown = entries.into_iter().filter_map(|entry| {
            let origin = match entry.claim {
                Claim::Told | Claim::ToldSticky => AddressOrigin::Evpn,
                Claim::Pinned => AddressOrigin::Configured,
                Claim::Dynamic | Claim::First | Claim::Uplink => AddressOrigin::Learned,
            };
            Some(AddressEntry {
                vlan: entry.vid.get(),
                mac: entry.mac.to_string(),
                port: (*names.get(&entry.port)?).clone(),
                network: entry.vid.network().and_then(|number| networks.get(&number).cloned()),
                host: host(&entry),
                ips: ips(&entry),
                origin,
                configured: entry.claim == Claim::Pinned,
                age_s: (origin == AddressOrigin::Learned).then_some(entry.age_secs),
            })
        });
        Response::Addresses { addresses: shown.collect(), total: fdb.len() }
    }

    /// The limits of the whole switch. The control socket's server adds the limit of its connections.
    fn limits(&self, ports: &Ports) -> Limits {
        let mapped = total_mapped();
        let front_ends =
            ports.vifs.iter().filter(|vif| !matches!(vif.port.info().state, State::Waiting));
        let fdb = self.engine.fabric().fdb();
        let tables = ports.vifs.iter().filter_map(|vif| self.engine.groups(vif.port.id()));
        let connections: Vec<_> = tables.map(|it| u64::from(it.connections().0)).collect();
        let tables = connections.len();
        let used = [
            ("memory_mapped_bytes", Limit::new(mapped.bytes, MEMORY_TOTAL_MAX)),
            ("memory_regions", Limit::new(mapped.regions, MEM_REGIONS_TOTAL_MAX)),
            // Each front end has a thread.
            ("front_ends", Limit::new(front_ends.count(), PORTS_MAX)),
            ("ports", Limit::new(ports.len(), PORTS_MAX)),
            ("addresses", Limit::new(fdb.len(), fdb.capacity())),
            (
                "connections",
                Limit::new(connections.iter().sum::<u64>(), tables * GROUP_CONNECTIONS_MAX),
            ),
            ("connection_tables_bytes", Limit::new(tables * TABLE_BYTES, PORTS_MAX * TABLE_BYTES)),
        ];
        let mut limits = limits(used);
        limits.extend(descriptors().map(|limit| ("descriptors".to_owned(), limit)));
        limits
    }

    /// The usage of a port's entries in the forwarding table.
    pub(super) fn addresses(&self, port: PortId) -> Limit {
        let fabric = self.engine.fabric();
        let max = fabric.port_config(port).map_or(0, |config| config.learn_max);
        Limit::new(fabric.fdb().learned_by(port), max)
    }

    fn vif_limits(&self, vif: &Seen, info: &PortInfo) -> Limits {
        let mut all = limits([("addresses", self.addresses(vif.port.id()))]);
        let PortInfo { memory_bytes, memory_mapped: mapped, memory_max_bytes: max, .. } = *info;
        if let Some(groups) = self.engine.groups(vif.port.id()) {
            let (connections, _) = groups.connections();
            all.extend(limits([("connections", Limit::new(connections, GROUP_CONNECTIONS_MAX))]));
        }
        if max > 0 {
            let tables = MEM_TABLES_MAX as u64;
            all.extend(limits([
                ("memory_bytes", Limit::new(memory_bytes, max)),
                ("memory_mapped_bytes", Limit::new(mapped.bytes, max.saturating_mul(tables))),
                ("memory_regions", Limit::new(mapped.regions, MEM_TABLES_MAX * MEM_SLOTS_MAX)),
            ]));
        }
        all
    }

    fn vif_stats(&self, vif: &Seen) -> PortStats {
        let info = vif.port.info();
        let mut stats = PortStats::new(vif.config.name.clone(), PortKind::Vif);
        stats.state = info.state.into();
        stats.blocked = self.block_of(vif.port.id());
        stats.sessions = SessionStats {
            opened: info.opened,
            closed: info.closed,
            failed: info.failed,
            turned_away: info.turned_away,
            turned_away_s: seconds_since(info.turned_away_ns),
            throttled: info.throttled,
            log_lines_unsaid: info.log_lines_unsaid,
            memory_mapped_bytes: info.memory_mapped.bytes,
            memory_max_bytes: info.memory_max_bytes,
            last_error: info.stop_reason.clone(),
            last_error_s: seconds_since(info.stopped_ns),
        };
        stats.mac = vif.config.mac;
        stats.vlan = vif.config.vlan.clone();
        stats.latency_budget_ns = self.budget(&vif.config).ns();
        stats.limits = self.vif_limits(vif, &info);
        let PortInfo { state, stop_reason, silent, .. } = info;
        stats.silent = silent.into_iter().map(Into::into).collect();
        stats.stopped_reason = stop_reason.filter(|_| state == State::Stopped);
        let CallTimes { hold, latency, jitter_ns, decision } = vif.port.interface().call_times();
        (stats.hold_ns, stats.latency_ns) = (hold.into(), latency.into());
        stats.jitter_ns = jitter_ns;
        stats.decision =
            decision.map(|it| PortDecision { hold_ns: it.hold_ns, reason: it.reason.to_owned() });
        stats.calls = Some(CallSettings::of(&vif.config));
        stats.filter = RuleStats::of(&vif.config.filter, &vif.rules);
        stats.guard = vif.guard_explanation(clock::now_ns());
        stats.budget_breaches = breaches(vif.port.interface().counters());
        stats.queue_pairs = Some(vif.queue_pairs());
        stats.rss_moved = vif.port.steering().map_or(0, Steering::moved_entries);
        count(&mut stats, vif.port.interface().counters(), vif.port.interface().queue_pairs());
        stats
    }
}

/// Starts or stops the measurement of stages.
pub(super) fn measure_stages(on: bool) -> Response {
    stages::set_on(on);
    Response::Ok
}

fn unclosed(Stuck { party, open, since }: Stuck) -> Unclosed {
    Unclosed { party, descriptors: open as u64, seconds: since.as_secs_f64() }
}

fn still_thread(ports: &Ports, thread: Still) -> StillThread {
    let port = ports.named().find(|(id, _)| Some(*id) == thread.port);
    StillThread {
        name: thread.name,
        does: thread.place.as_str().into(),
        port: port.map(|(_, name)| name.clone()),
        party: thread.party,
        seconds: Duration::from_nanos(thread.ns).as_secs_f64(),
        kernel: thread.kernel,
    }
}

impl Seen {
    fn guard_explanation(&self, now_ns: u64) -> Option<GuardExplanation> {
        let guard = self.guard.as_deref()?;
        let (guarding, counters) = (&self.config.guarding, self.port.interface().counters());
        Some(GuardExplanation::of(guarding, guard, counters, clock::secs(now_ns)))
    }

    pub(super) fn queue_pairs(&self) -> QueuePairNumbers {
        QueuePairNumbers {
            configured: self.config.queues.get().into(),
            session: self.port.info().session_queue_pairs,
            in_use: self.port.rx_queues(),
        }
    }
}

/// The counters of a port that events show.
fn counted(counters: &PortCounters) -> PortGlance {
    PortGlance {
        drops: counters.drops().collect(),
        breaches: counters.breaches().collect(),
        ..PortGlance::default()
    }
}

fn breaches(counters: &PortCounters) -> BTreeMap<String, u64> {
    counters.breaches().map(|(reason, n)| (reason.to_owned(), n)).collect()
}

/// The counters that all ports to the outside have.
fn outward_stats(name: &PortName, port: &dyn UplinkPort) -> PortStats {
    let mut stats = PortStats::new(name.clone(), PortKind::Uplink);
    stats.stopped_reason = port.trouble();
    stats.state = match stats.stopped_reason {
        Some(_) => PortState::Stopped,
        None => PortState::Running,
    };
    count(&mut stats, port.service().counters(), port.queues());
    stats
}

fn overlay_stats(overlay: &Overlay) -> PortStats {
    let mut stats = outward_stats(&overlay.name, &*overlay.port);
    stats.answers = overlay.answers();
    stats.budget_breaches = breaches(overlay.port.service().counters());
    stats
}

fn gateway_stats(gateway: &Gateway) -> PortStats {
    let mut stats = outward_stats(&gateway.name, &*gateway.port);
    stats.kind = PortKind::Own;
    stats.answers = gateway.answers();
    stats
}

fn uplink_stats(uplink: &Uplink) -> PortStats {
    let mut stats = outward_stats(&uplink.config.name, &*uplink.port);
    stats.vlan = uplink.config.vlan.clone();
    stats.filter = RuleStats::of(&uplink.config.filter, &uplink.rules);
    stats.rss_moved = uplink.port.steering().map_or(0, Steering::moved_entries);
    stats.bond = uplink.bond.as_ref().map(Bond::shown);
    stats
}

fn count(stats: &mut PortStats, counters: &PortCounters, queues: usize) {
    let queue = |q: &QueueCounters| QueueStats {
        frames: q.frames.get(),
        bytes: q.bytes.get(),
        calls: q.calls.get(),
        calls_suppressed: q.calls_suppressed.get(),
        kicks: q.kicks.get(),
    };
    let pairs = counters.rx.iter().zip(&counters.tx).take(queues);
    stats.set_queues(
        pairs.map(|(rx, tx)| QueuePairStats { rx: queue(rx), tx: queue(tx) }).collect(),
    );
    stats.count(counters);
    stats.drops = counters.drops().map(|(reason, n)| (reason.to_owned(), n)).collect();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_quiet_since_somebody_first_saw_what_it_has_lost() {
        const S: u64 = 1_000_000_000;
        let mut looks = Looks::new();
        let mut look = |drops: &[(&str, u64)], now_s: u64| {
            let mut port = PortStats::new("web0".parse().unwrap(), PortKind::Vif);
            port.drops = drops.iter().map(|(reason, count)| ((*reason).into(), *count)).collect();
            quiet(&mut looks, std::slice::from_mut(&mut port), now_s * S);
            port.quiet_s
        };
        assert_eq!(look(&[("rx_ring_full", 7)], 10), 0);
        assert_eq!(look(&[("rx_ring_full", 7), ("hairpin", 9)], 700), 690, "a usual drop");
        assert_eq!(look(&[("rx_ring_full", 8)], 710), 0);
        assert_eq!(look(&[("rx_ring_full", 8)], 712), 2);
    }
}
