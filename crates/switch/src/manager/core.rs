//! The manager's decisions, made from counters. There is no I/O, and times are passed in.

use std::collections::BTreeMap;

use weir_fabric::PortId;
use weir_limits::{AGENT_POLL_NS_MAX, AGENT_POLL_NS_MIN};
use weir_policy::attempt::{self, Attempt, Traffic};
use weir_policy::budget::{Layer, Load, Split};
use weir_policy::costs::{Cost, Regression, Sample};
use weir_policy::law::LAW;
use weir_policy::moderation::Kind;

#[cfg(test)]
mod tests;

/// The assumed cost of an unknown call or wake-up (ns): if both are unknown, only their ratio counts, which is near
/// 1.
const COST_NS_DEFAULT: f64 = LAW.event_ns as f64;
/// With at least this many interfaces, one alone cannot move the median call cost.
const COMMON_MIN: usize = 3;

/// Counters at one moment. All counts are totals that only grow.
#[derive(Clone, Debug, Default)]
pub(super) struct Look {
    /// The time of a monotonic clock.
    pub(super) now_ns: u64,
    /// CPU time of all workers (ns).
    pub(super) workers_cpu_ns: u64,
    /// Times that an uplink's frames woke a worker.
    pub(super) uplink_wakeups: u64,
    /// True if the gathering time of some uplink can be set.
    pub(super) uplink_settable: bool,
    /// The least original coalescing of settable uplinks (ns), if known: weir's own is added to it.
    pub(super) uplink_found_ns: u64,
    /// Each interface that the manager knows.
    pub(super) vifs: Vec<VifLook>,
}

/// Counters of one interface.
#[derive(Clone, Copy, Debug)]
pub(super) struct VifLook {
    pub(super) id: PortId,
    pub(super) kind: Kind,
    /// The part of the interface's latency budget that is left for holding (ns).
    pub(super) hold_ns_max: u64,
    /// True if the interface's guest can receive.
    pub(super) running: bool,
    /// Frames in both directions.
    pub(super) frames: u64,
    /// Bytes of these frames.
    pub(super) bytes: u64,
    /// Calls in both directions.
    pub(super) calls: u64,
    /// CPU time of its virtual machine.
    pub(super) guest_cpu: Option<GuestCpu>,
    /// The cost of an interrupt, as reported by the guest's agent (ns).
    pub(super) agent_cost_ns: Option<u64>,
    /// Frames that the interface's guest received.
    pub(super) received: u64,
    /// The hold of its queues under `auto`, if its guest could poll at that interval instead (ns).
    pub(super) pollable_ns: Option<u64>,
}

/// CPU time of a virtual machine's processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GuestCpu {
    /// The VM's process: CPU times of different processes cannot be compared.
    pub(super) process: u32,
    /// The sum over all its virtual processors (ns).
    pub(super) cpu_ns: u64,
}

/// The source of a cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// The guest's agent.
    Agent,
    /// Least squares over CPU times; with the standard error (ns).
    Regression {
        /// The standard error, rounded.
        error_ns: u64,
    },
    /// The default: nothing is known.
    Default,
}

/// The cost of an event, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Known {
    /// ns of CPU.
    pub(super) ns: f64,
    /// The source of the cost.
    pub(super) source: Source,
}

impl Known {
    const NOTHING: Self = Self { ns: COST_NS_DEFAULT, source: Source::Default };

    fn from(cost: Option<Cost>) -> Self {
        cost.map_or(Self::NOTHING, |cost| {
            // The bounds of a cost in `policy::budget` are far within u64.
            let error_ns = cost.error_ns.round() as u64;
            Self { ns: cost.ns, source: Source::Regression { error_ns } }
        })
    }
}

/// The reason for the uplink's share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sharing {
    /// Eq. 4 gives the share.
    Split,
    /// No uplink has an interval that can be set: the calls get the whole budget.
    NoUplink,
    /// This interface's frames must not wait at an uplink: its policy takes no part in the split.
    Refused(PortId),
    /// Interfaces are under `auto`, and the manager tries whether all can be held together.
    Together {
        /// All are held together until the next look.
        held: bool,
        /// The reason.
        why: attempt::Why,
    },
}

/// A decision on the settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Decision {
    /// T_p: the gathering time of uplinks (ns); 0 leaves the uplinks at their original settings.
    pub(super) uplink_ns: u64,
    /// The reason for the uplink's share.
    pub(super) sharing: Sharing,
    /// Interfaces with traffic.
    pub(super) busy: u32,
    /// The interfaces whose policy takes part in the split.
    pub(super) vifs: BTreeMap<PortId, VifDecision>,
}

/// One interface's part of the decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct VifDecision {
    /// T_v (ns).
    pub(super) vif_ns: u64,
    /// True if all interfaces are held together.
    pub(super) together: bool,
    /// The interval at which the guest is to poll (ns).
    pub(super) poll_ns: Option<u64>,
    /// Under `auto`, if the guest could poll: the reason for or against polling.
    pub(super) polling: Option<attempt::Why>,
    /// The time of the last change of either share (ns).
    pub(super) since_ns: u64,
}

/// The manager's memory.
#[derive(Debug, Default)]
pub(super) struct Core {
    /// Time, workers' CPU time, uplinks' wake-ups and frames at the last look.
    before: Option<[u64; 4]>,
    /// Time between the last two looks (ns).
    elapsed_ns: u64,
    uplink_cost: Regression,
    /// The last T_p (ns) by Eq. 4, and the budget (ns) from which it was computed.
    uplink_share: (u64, u64),
    together: Attempt,
    vifs: BTreeMap<PortId, Vif>,
}

/// The manager's memory of an interface.
#[derive(Debug)]
struct Vif {
    /// The counters at the last look, and its time (ns).
    before: Option<(VifLook, u64)>,
    call_cost: Regression,
    /// Traffic between the last two looks.
    traffic: Traffic,
    /// Frames among these that the interface's guest received.
    received: u64,
    agent_cost_ns: Option<u64>,
    /// The trial of polling in place of calls, under `auto`.
    polling: Attempt,
    /// The interface counts as busy until this time (ns).
    busy_until_ns: u64,
    /// The last (T_p, T_v), and the time of their last change (ns).
    shares: Option<((u64, u64), u64)>,
}

/// True if the policy's limit depends on the uplink's share, so that the interface's frames can wait at an uplink.
pub(super) const fn takes_part(kind: Kind) -> bool {
    matches!(kind, Kind::TwoLayer | Kind::Frontend | Kind::Auto)
}

/// True if the policy takes part in the split under any load.
pub(super) const fn always_takes_part(kind: Kind) -> bool {
    matches!(kind, Kind::TwoLayer | Kind::Frontend)
}

impl Core {
    pub(super) fn decide(&mut self, look: &Look) -> Decision {
        self.learn(look);
        let (sharing, budget_ns) = self.sharing(look);
        let busy = self.busy(look.now_ns);
        let uplink_cost_ns = self.uplink_cost().ns;
        // An idle switch keeps a share that suits the first interface that becomes busy.
        let vifs = busy.max(1);
        let load = |budget_ns, call_cost_ns| Load { budget_ns, uplink_cost_ns, call_cost_ns, vifs };
        let uplink_ns = match (sharing, budget_ns) {
            (Sharing::Split, Some(budget_ns)) => {
                let load = load(budget_ns, self.common_call_cost_ns(look.now_ns));
                self.uplink_share_ns(load)
            }
            (Sharing::Together { held: true, .. }, Some(budget_ns)) => {
                let load = load(budget_ns, self.common_call_cost_ns(look.now_ns));
                Split::beyond(look.uplink_found_ns, load).uplink_ns
            }
            _ => 0,
        };
        let together = matches!(sharing, Sharing::Together { held: true, .. });
        let is_tried = matches!(sharing, Sharing::Together { why: attempt::Why::Tried, .. });
        let elapsed_ns = self.elapsed_ns;
        let mut vifs = BTreeMap::new();
        for now in look.vifs.iter().filter(|vif| takes_part(vif.kind)) {
            if let Some(vif) = self.vifs.get_mut(&now.id) {
                let load = load(now.hold_ns_max, vif.call_cost().ns);
                let part = match now.kind {
                    Kind::Auto => {
                        let longer_ns = uplink_ns.saturating_sub(look.uplink_found_ns);
                        let vif_ns = now.hold_ns_max.saturating_sub(longer_ns);
                        let poll_ns = vif.polls(now, vif_ns, elapsed_ns, is_tried);
                        let since_ns = vif.since_ns((uplink_ns, vif_ns), look.now_ns);
                        let polling = now.pollable_ns.map(|_| vif.polling.why());
                        VifDecision { vif_ns, together, poll_ns, polling, since_ns }
                    }
                    kind => vif.part(kind, load, uplink_ns, look.now_ns),
                };
                vifs.insert(now.id, part);
            }
        }
        Decision { uplink_ns, sharing, busy, vifs }
    }

    /// C_p: the cost of an uplink's wake-up.
    pub(super) fn uplink_cost(&self) -> Known {
        Known::from(self.uplink_cost.cost())
    }

    /// C_v: the cost of a call to this interface.
    pub(super) fn call_cost(&self, id: PortId) -> Option<Known> {
        self.vifs.get(&id).map(Vif::call_cost)
    }

    /// The cost of this weir's layers as one (ns), for the weir below.
    pub(super) fn layers_cost_ns(&self, decision: Option<&Decision>, now_ns: u64) -> u64 {
        let gathers =
            |it: &Decision| matches!(it.sharing, Sharing::Split | Sharing::Together { .. });
        let places = decision.is_some_and(gathers).into();
        let uplink = Layer { cost_ns: self.uplink_cost().ns, places };
        let (cost_ns, places) = (self.common_call_cost_ns(now_ns), self.busy(now_ns).max(1));
        Layer::of([uplink, Layer { cost_ns, places }]).cost_ns.round() as u64
    }

    /// Updates the estimates from the counters.
    pub(super) fn learn(&mut self, look: &Look) {
        let frames = look.vifs.iter().map(|vif| vif.frames).sum();
        let now = [look.now_ns, look.workers_cpu_ns, look.uplink_wakeups, frames];
        self.elapsed_ns = look.now_ns.saturating_sub(self.before.map_or(look.now_ns, |it| it[0]));
        if let Some(before) = self.before.replace(now)
            && let Some([elapsed_ns, cpu_ns, events, frames]) = grown(now, before)
            && events > 0
        {
            self.uplink_cost.add(Sample { cpu_ns, events, frames, elapsed_ns });
        }
        self.vifs.retain(|id, _| look.vifs.iter().any(|vif| vif.id == *id));
        for vif in &look.vifs {
            self.vifs.entry(vif.id).or_insert_with(|| Vif::new(vif.id)).learn(*vif, look.now_ns);
        }
    }

    /// The decision on whether to split a budget, and the budget: the smallest one among interfaces that can receive.
    fn sharing(&mut self, look: &Look) -> (Sharing, Option<u64>) {
        let running = || look.vifs.iter().filter(|vif| vif.running);
        let budget_ns = running().map(|vif| vif.hold_ns_max).min();
        let refused = running().find(|vif| !takes_part(vif.kind));
        let sharing = match (look.uplink_settable, refused) {
            (false, _) => Sharing::NoUplink,
            (true, Some(vif)) => Sharing::Refused(vif.id),
            (true, None) if running().all(|vif| always_takes_part(vif.kind)) => Sharing::Split,
            (true, None) => {
                let with_traffic = self.vifs.values().filter(|vif| look.now_ns < vif.busy_until_ns);
                let traffic: Vec<_> = with_traffic.map(|vif| vif.traffic).collect();
                let held = self.together.look(&attempt::Look {
                    elapsed_ns: self.elapsed_ns,
                    budget_ns: budget_ns.unwrap_or(0),
                    traffic: &traffic,
                });
                Sharing::Together { held, why: self.together.why() }
            }
        };
        if !matches!(sharing, Sharing::Together { .. }) {
            self.together.refuse();
        }
        (sharing, budget_ns)
    }

    /// T_p by Eq. 4 (ns). For the same budget it changes only by more than a step, because setting a card's interval
    /// costs time, and estimates of costs waver.
    fn uplink_share_ns(&mut self, load: Load) -> u64 {
        let (stands_ns, of_ns) = self.uplink_share;
        let uplink_ns = Split::of(load).uplink_ns;
        if of_ns != load.budget_ns || uplink_ns.abs_diff(stands_ns) > load.budget_ns >> LAW.step {
            self.uplink_share = (uplink_ns, load.budget_ns);
        }
        self.uplink_share.0
    }

    /// n: interfaces with traffic.
    pub(super) fn busy(&self, now_ns: u64) -> u32 {
        let busy = self.vifs.values().filter(|vif| now_ns < vif.busy_until_ns).count();
        u32::try_from(busy).unwrap_or(u32::MAX)
    }

    /// The common C_v, from which the uplink's share is decided. A guest's reports and behaviour must affect only its
    /// own share. So the common C_v is the median, which one liar among three or more cannot choose, or the cost of
    /// the only interface. Otherwise it is the default.
    pub(super) fn common_call_cost_ns(&self, now_ns: u64) -> f64 {
        let busy = self.vifs.values().filter(|vif| now_ns < vif.busy_until_ns);
        let mut costs: Vec<f64> = busy.map(|vif| vif.call_cost().ns).collect();
        costs.sort_by(f64::total_cmp);
        let alone = costs.len() == 1 && self.vifs.len() == 1;
        let middle = costs.get(costs.len().saturating_sub(1) / 2);
        middle.filter(|_| alone || costs.len() >= COMMON_MIN).copied().unwrap_or(COST_NS_DEFAULT)
    }
}

impl Vif {
    fn new(id: PortId) -> Self {
        Self {
            before: None,
            call_cost: Regression::default(),
            traffic: Traffic { vif: id.get().into(), frames: 0, bytes: 0 },
            received: 0,
            agent_cost_ns: None,
            polling: Attempt::default(),
            busy_until_ns: 0,
            shares: None,
        }
    }

    fn learn(&mut self, now: VifLook, now_ns: u64) {
        self.agent_cost_ns = now.agent_cost_ns;
        let Some((before, before_ns)) = self.before.replace((now, now_ns)) else {
            return;
        };
        self.traffic.frames = now.frames.saturating_sub(before.frames);
        self.traffic.bytes = now.bytes.saturating_sub(before.bytes);
        self.received = now.received.saturating_sub(before.received);
        if now.frames > before.frames {
            self.busy_until_ns = now_ns.saturating_add(LAW.traffic_ns());
        }
        let (Some(cpu), Some(cpu_before)) = (now.guest_cpu, before.guest_cpu) else {
            return;
        };
        if cpu.process != cpu_before.process {
            // The process is another virtual machine, about which nothing is known yet.
            self.call_cost = Regression::default();
            return;
        }
        let totals =
            |look: VifLook, cpu: GuestCpu, at_ns| [cpu.cpu_ns, look.calls, look.frames, at_ns];
        let (now, before) = (totals(now, cpu, now_ns), totals(before, cpu_before, before_ns));
        if let Some([cpu_ns, events, frames, elapsed_ns]) = grown(now, before) {
            self.call_cost.add(Sample { cpu_ns, events, frames, elapsed_ns });
        }
    }

    /// The rest of the budget beside T_p, or less if the interface's own calls are cheaper than the others'.
    fn part(&mut self, kind: Kind, load: Load, uplink_ns: u64, now_ns: u64) -> VifDecision {
        let left_ns = load.budget_ns.saturating_sub(uplink_ns);
        let vif_ns = match uplink_ns {
            0 => left_ns,
            _ => Split::of(load).vif_ns.min(left_ns),
        };
        let since_ns = self.since_ns((uplink_ns, vif_ns), now_ns);
        let polls = kind == Kind::Frontend && vif_ns >= AGENT_POLL_NS_MIN;
        let poll_ns = polls.then(|| vif_ns.min(AGENT_POLL_NS_MAX));
        let (together, polling) = (false, None);
        VifDecision { vif_ns, together, poll_ns, polling, since_ns }
    }

    /// Under `auto`: the interval at which the guest polls, in place of calls after holds of up to `vif_ns`. Two
    /// trials never run at once (`is_tried`).
    fn polls(
        &mut self,
        now: &VifLook,
        vif_ns: u64,
        elapsed_ns: u64,
        is_tried: bool,
    ) -> Option<u64> {
        let every_ns = now.pollable_ns.map(|ns| ns.min(vif_ns).min(AGENT_POLL_NS_MAX));
        let gathers = |every_ns: u64| {
            let frames = u128::from(self.received) * u128::from(every_ns);
            // A few large frames are a stream whose sender waits for answers. A trial would slow that stream down.
            frames >= u128::from(LAW.poll_frames_min()) * u128::from(elapsed_ns)
        };
        let Some(every_ns) = every_ns.filter(|ns| *ns >= AGENT_POLL_NS_MIN) else {
            self.polling.refuse();
            return None;
        };
        if !gathers(every_ns) {
            self.polling.too_few(self.traffic.vif);
        } else if is_tried && self.polling.why() == attempt::Why::Tried {
            // The results so far came from a switch in another state.
            self.polling.refuse();
        } else if !is_tried {
            let traffic = &[self.traffic];
            self.polling.look(&attempt::Look { elapsed_ns, budget_ns: every_ns, traffic });
        }
        self.polling.is_on().then_some(every_ns)
    }

    /// The time of the last change of the shares.
    fn since_ns(&mut self, now: (u64, u64), now_ns: u64) -> u64 {
        let since_ns = match self.shares {
            Some((shares, since_ns)) if shares == now => since_ns,
            _ => now_ns,
        };
        self.shares = Some((now, since_ns));
        since_ns
    }

    fn call_cost(&self) -> Known {
        match self.agent_cost_ns {
            Some(ns) => Known { ns: ns as f64, source: Source::Agent },
            None => Known::from(self.call_cost.cost()),
        }
    }
}

/// The growth of each total; `None` if a total has shrunk.
fn grown<const N: usize>(now: [u64; N], before: [u64; N]) -> Option<[u64; N]> {
    let mut grown = [0; N];
    for ((grown, now), before) in grown.iter_mut().zip(now).zip(before) {
        *grown = now.checked_sub(before)?;
    }
    Some(grown)
}
