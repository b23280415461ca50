//! The manager's thread: it sleeps, looks, and applies decisions.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use weir_agent::{Below, Totals, Wish};
use weir_config::{PlacementConfig, PortName, UplinkConfig};
use weir_engine::guest::{GuestPort, QueueDecision};
use weir_engine::{Engine, PortCounters, beat, clock};
use weir_fabric::PortId;
use weir_limits::{AGENT_POLL_NS_MIN, LATENCY_BUDGET_NS_DEFAULT, LOOP_LOOK_NS};
use weir_policy::attempt::Why;
use weir_policy::law::LAW;
use weir_policy::moderation::{Kind, hold_ns_max};
use weir_port_tap::UplinkPort;
use weir_port_vxlan::{Here, VxlanPort};

use super::agents::{Agent, AgentSocket};
use super::core::{
    Core, Decision, Known, Look, Sharing, Source, VifDecision, VifLook, always_takes_part,
    takes_part,
};
use super::guest_cpu::GuestThreads;
use super::placement::{self, Host, Placement, PlacementCounts, PortLook};
use super::rebalance::{Table, steers};
use super::uplink::Gathering;
use super::{Command, ManagedExplanation, NewVif, VifSettings};
use crate::explain::{
    AgentExplanation, BelowExplanation, CostExplanation, CostSource, DispatchExplanation,
    SplitExplanation, TrafficExplanation, UplinkExplanation, WishExplanation,
};
use crate::loops::Loops;
use crate::switch::Kept;

/// The interval (ns) at which queues are moved between workers by their load, if they are. It allows two steps within
/// a tenth of a second.
const DISPATCH_NS: u64 = 50_000_000;
/// The interval (ns) at which entries of indirection tables are moved by load.
const REBALANCE_NS: u64 = 100_000_000;
/// After this time without traffic (ns) the thread sleeps until there is some.
const QUIET_NS: u64 = LAW.traffic_ns();

/// An interface in the manager's care.
pub(super) struct ManagedVif {
    name: PortName,
    port: Arc<dyn GuestPort>,
    agent: Option<AgentSocket>,
    settings: VifSettings,
    guest: GuestThreads,
    /// The longest time for holding (ns) that the weir below leaves to this one.
    below_ns: u64,
    /// The guest's wish as far as it is granted, which is less than the host's settings.
    granted: Wish,
    /// The last limit of holds that was set (ns), with a flag that is true if all are held together; `None` after a
    /// new policy.
    set: Option<(u64, bool)>,
    /// The polling interval that was last set at the port, if any; `None` if none was set yet.
    polled: Option<Option<u64>>,
    /// Frames of each receive queue at the last look.
    received: Vec<u64>,
    table: Table,
}

impl ManagedVif {
    pub(super) fn new(vif: NewVif) -> Self {
        let NewVif { name, port, agent, settings } = vif;
        let (guest, table) = (GuestThreads::default(), Table::default());
        let (set, polled, received) = (None, None, Vec::new());
        let (below_ns, granted) = (u64::MAX, Wish::default());
        Self { name, port, agent, settings, guest, below_ns, granted, set, polled, received, table }
    }

    /// The longest time for holding (ns), by the settings and by the weir below.
    fn hold_ns_max(&self) -> u64 {
        self.settings.hold_ns_max.min(self.below_ns)
    }

    fn look(&mut self, agent: Option<&Agent>) -> VifLook {
        let id = self.port.id();
        let pollable = self.settings.kind == Kind::Auto && agent.is_some_and(|it| it.can_poll(id));
        let pollable_ns = if pollable { self.held_ns() } else { None };
        let counters = self.port.interface().counters();
        let queues = || counters.rx.iter().chain(&counters.tx);
        let process = self.process();
        VifLook {
            id,
            kind: self.settings.kind,
            hold_ns_max: self.hold_ns_max(),
            running: self.port.rx_queues() > 0,
            frames: queues().map(|queue| queue.frames.get()).sum(),
            bytes: queues().map(|queue| queue.bytes.get()).sum(),
            calls: queues().map(|queue| queue.calls.get()).sum(),
            // The cost of calls is needed only for policies that take part in the split.
            guest_cpu: self.guest.cpu(process.filter(|_| takes_part(self.settings.kind))),
            received: counters.rx.iter().map(|queue| queue.frames.get()).sum(),
            agent_cost_ns: agent.and_then(|agent| agent.cost_ns(id)),
            pollable_ns,
        }
    }

    /// The shortest hold (ns) of the receive queues that had at least an eighth of the frames since the last look, if
    /// any.
    fn held_ns(&mut self) -> Option<u64> {
        let decisions = self.port.interface().decisions();
        let received = decisions.iter().map(|queue| queue.frames).collect();
        let before = std::mem::replace(&mut self.received, received);
        let new = |(index, queue): (usize, &QueueDecision)| {
            let before = before.get(index).copied().unwrap_or(queue.frames);
            (queue.frames.saturating_sub(before), queue.decision.hold_ns)
        };
        let queues: Vec<_> = decisions.iter().enumerate().map(new).collect();
        let all: u64 = queues.iter().map(|(frames, _)| frames).sum();
        let matter = queues.iter().filter(|(frames, _)| *frames > 0 && *frames >= all / 8);
        matter.map(|(_, hold_ns)| *hold_ns).min()
    }

    /// Tells the port at what interval its guest polls, if it does.
    fn set_polled(&mut self, poll_ns: Option<u64>) {
        if self.polled.replace(poll_ns) != Some(poll_ns) {
            self.port.set_guest_poll_ns(poll_ns);
        }
    }

    /// The process of the virtual machine's monitor.
    fn process(&self) -> Option<u32> {
        self.port.front_end().map(|pid| pid.as_raw_nonzero().get().unsigned_abs())
    }

    fn placement_look(&self) -> PortLook<'_> {
        PortLook {
            name: &self.name,
            id: self.port.id(),
            process: self.process(),
            queues: self.port.interface().queue_pairs(),
            counters: self.port.interface().counters(),
        }
    }

    /// Sets the limit of holds (ns), and the flag for holding all together.
    fn hold(&mut self, hold_ns: u64, together: bool) {
        if self.set != Some((hold_ns, together)) {
            self.port.interface().set_hold_ns_max(None, hold_ns);
            self.port.interface().set_together(together);
            self.set = Some((hold_ns, together));
        }
    }

    /// Releases the limit from the manager's control. Calls that were held together get individual holds again.
    fn let_go(&mut self) {
        if self.set.is_some() {
            self.hold(self.settings.hold_ns_max, false);
        }
        self.set = None;
    }

    /// The limit (ns) of the time for which frames may wait at the interface under the guest's
    /// wish, if they may have waited at an uplink for `uplink_ns`. The wish does not shorten the
    /// time at the uplink, which all interfaces share.
    fn wished_ns(&self, uplink_ns: u64) -> u64 {
        let wished_ns = self.granted.budget_ns.map(hold_ns_max);
        wished_ns.map_or(u64::MAX, |hold_ns| hold_ns.saturating_sub(uplink_ns))
    }

    /// Limits holds by the manager's decision, if there is one, and by the guest's wish.
    fn hold_by(&mut self, part: Option<&VifDecision>, uplink_ns: u64) {
        let wished_ns = self.wished_ns(uplink_ns);
        match part {
            Some(part) => self.hold(part.vif_ns.min(wished_ns), part.together),
            None if self.hold_ns_max().min(wished_ns) < self.settings.hold_ns_max => {
                self.hold(self.hold_ns_max().min(wished_ns), false);
            }
            None => self.let_go(),
        }
    }

    /// Grants the guest's wish as far as the host's settings allow it; returns true if the budget changes.
    fn grant(&mut self, wish: Wish, engine: &Engine) -> bool {
        let VifSettings { budget_ns, share, .. } = self.settings;
        let granted = Wish {
            budget_ns: wish.budget_ns.filter(|ns| *ns < budget_ns),
            weight: wish.weight.map(|weight| weight.max(1)).filter(|it| *it < share.weight),
        };
        let before = std::mem::replace(&mut self.granted, granted);
        if granted.weight != before.weight {
            let weight = granted.weight.unwrap_or(share.weight);
            engine.change_settings(self.port.id(), |settings| settings.share.weight = weight);
        }
        granted.budget_ns != before.budget_ns
    }

    /// Notes that the settings were changed, perhaps at the engine too. The guest's wish is granted
    /// anew under the new settings.
    fn change(&mut self, settings: VifSettings, engine: &Engine) {
        self.settings = settings;
        (self.set, self.polled) = (None, None);
        let granted = std::mem::take(&mut self.granted);
        if granted.weight.is_some() {
            engine.change_settings(self.port.id(), |now| now.share = settings.share);
        }
        if granted.budget_ns.is_some() {
            self.port.interface().set_hold_ns_max(None, settings.hold_ns_max);
        }
    }

    /// The wish, and what is in force.
    fn explain_wish(&self, wish: Wish) -> Option<WishExplanation> {
        let Wish { budget_ns, weight } = wish;
        let VifSettings { budget_ns: host_ns, share, .. } = self.settings;
        (!wish.is_none()).then(|| WishExplanation {
            budget_ns,
            weight,
            has_budget_ns: self.granted.budget_ns.unwrap_or(host_ns),
            has_weight: self.granted.weight.unwrap_or(share.weight),
        })
    }
}

/// An uplink in the manager's care.
pub(super) struct ManagedUplink {
    name: PortName,
    id: PortId,
    queues: usize,
    interface_name: String,
    interface: Box<dyn Gathering>,
    port: Arc<dyn UplinkPort>,
    rss_rebalance: bool,
    table: Table,
    /// The port's queues are those of the card.
    has_cards_queues: bool,
    /// The conversation with the weir below, if this one runs in a guest.
    below: Option<(Box<Below>, Option<Kept>)>,
}

impl ManagedUplink {
    pub(super) fn new(
        config: &UplinkConfig,
        id: PortId,
        port: Arc<dyn UplinkPort>,
        interface: Box<dyn Gathering>,
    ) -> Self {
        Self {
            name: config.name.clone(),
            id,
            queues: config.queues.get().into(),
            interface_name: config.device(),
            interface,
            port,
            rss_rebalance: config.rss_rebalance,
            table: Table::default(),
            has_cards_queues: config.kind.has_cards_queues(),
            below: None,
        }
    }

    /// Speaks with the weir below, for layers that cost `cost_ns`.
    fn serve_below(&mut self, ready: bool, now_ns: u64, engine: &Engine, cost_ns: u64) {
        let Some((below, _)) = &mut self.below else { return };
        let counters = self.port.service().counters();
        below.serve(ready, now_ns, || Totals {
            cpu_ns: workers_cpu_ns(engine),
            wakeups: wakeups(counters),
            frames: counters.tx.iter().map(|queue| queue.frames.get()).sum(),
            cost_ns,
        });
    }

    fn explain_below(&self, cost_ns: u64) -> Option<BelowExplanation> {
        let (below, _) = self.below.as_ref()?;
        let (port, error) = (below.port().to_string(), below.error().map(Into::into));
        Some(BelowExplanation { port, given_ns: below.given_ns(), cost_ns, error })
    }

    fn placement_look(&self) -> PortLook<'_> {
        let Self { name, id, queues, port, .. } = self;
        let counters = port.service().counters();
        PortLook { name, id: *id, process: None, queues: *queues, counters }
    }
}

/// The manager's periodic tasks under traffic, each with its own period.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Task {
    /// Moves queues between workers.
    Dispatch,
    /// Splits latency budgets between uplinks and guests.
    Split,
    /// Moves entries of indirection tables.
    Rebalance,
    /// Places workers on processors.
    Place,
    /// Exchanges latency budgets with other hosts, from the state of the splits.
    Across,
    /// Looks for addresses whose moves indicate a loop.
    Loops,
}

impl Task {
    const ALL: [Self; 6] =
        [Self::Dispatch, Self::Split, Self::Rebalance, Self::Place, Self::Across, Self::Loops];
}

/// The time of the next look at the counters.
enum Rhythm {
    /// Never: nothing needs a look.
    Off,
    /// The sleep ends at this time (ns).
    At(u64),
    /// The sleep ends when a worker wakes up.
    AtTraffic,
}

pub(super) struct Run {
    engine: Arc<Engine>,
    loops: Arc<Loops>,
    wake: Arc<OwnedFd>,
    commands: mpsc::Receiver<Command>,
    core: Core,
    vifs: BTreeMap<PortId, ManagedVif>,
    agents: Vec<Agent>,
    uplinks: Vec<ManagedUplink>,
    overlay: Option<Arc<VxlanPort>>,
    decision: Option<Decision>,
    placement: Placement,
    rhythm: Rhythm,
    /// The time when each needed task is due (ns).
    due_ns: [u64; Task::ALL.len()],
    /// Workers' wake-ups and bursts at the last look, and the time when they last changed or a command came (ns).
    seen: (u64, u64),
    changed_ns: u64,
}

impl Run {
    pub(super) fn new(
        engine: Arc<Engine>,
        loops: Arc<Loops>,
        wake: Arc<OwnedFd>,
        commands: mpsc::Receiver<Command>,
    ) -> Self {
        Self {
            engine,
            loops,
            wake,
            commands,
            core: Core::default(),
            vifs: BTreeMap::new(),
            agents: Vec::new(),
            uplinks: Vec::new(),
            overlay: None,
            decision: None,
            placement: Placement::new(
                PlacementConfig::default(),
                Host::default(),
                Arc::new(PlacementCounts::default()),
            ),
            rhythm: Rhythm::Off,
            due_ns: [0; Task::ALL.len()],
            seen: (0, 0),
            changed_ns: 0,
        }
    }

    pub(super) fn placement_counts(&self) -> Arc<PlacementCounts> {
        Arc::clone(self.placement.counts())
    }

    pub(super) fn run(&mut self) {
        // After a panic, this wakes the loop for the commands that were queued behind the one that panicked.
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
        loop {
            let mut ready = self.sleep();
            let now_ns = clock::now_ns();
            self.serve_below(&ready.split_off(self.agents.len()), now_ns);
            for (agent, ready) in self.agents.iter_mut().zip(ready) {
                let party = format!("the agent at {}", agent.path());
                beat::serving(|| party, || agent.serve(ready, now_ns));
            }
            self.note_polls();
            self.note_wishes();
            while let Ok(command) = self.commands.try_recv() {
                if matches!(command, Command::Stop) {
                    return;
                }
                self.obey(command, now_ns);
            }
            if matches!(self.rhythm, Rhythm::At(at_ns) if at_ns <= now_ns) {
                self.look(now_ns);
            }
        }
    }

    /// Sleeps until there is something to do; returns a flag for each agent, and then for each uplink, which is true if
    /// its descriptor is ready.
    fn sleep(&mut self) -> Vec<bool> {
        let now_ns = clock::now_ns();
        let look_ns = match self.rhythm {
            Rhythm::At(at_ns) => Some(at_ns),
            Rhythm::Off | Rhythm::AtTraffic => None,
        };
        let agents = self.agents.iter().filter_map(|agent| agent.deadline_ns(now_ns));
        let below = || self.uplinks.iter().map(|uplink| uplink.below.as_ref().map(|(it, _)| it));
        let belows = below().flatten().map(|it| it.deadline_ns());
        let timeout =
            look_ns.into_iter().chain(agents).chain(belows).min().map(|at_ns| in_ns(at_ns, now_ns));

        let bell = self.engine.bell();
        let mut fds = vec![PollFd::new(&self.wake, PollFlags::IN)];
        let at_traffic = matches!(self.rhythm, Rhythm::AtTraffic);
        // The bell stays readable until it is rearmed.
        let bell_flags = if at_traffic { PollFlags::IN } else { PollFlags::empty() };
        fds.push(PollFd::from_borrowed_fd(bell, bell_flags));
        let mut watched = Vec::new();
        let agents = self.agents.iter().map(|agent| agent.watched(now_ns));
        let belows = below().map(|it| it.and_then(|it| it.watched()));
        for (index, watching) in agents.chain(belows).enumerate() {
            if let Some((fd, wants_write)) = watching {
                let write = if wants_write { PollFlags::OUT } else { PollFlags::empty() };
                fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN | write));
                watched.push(index);
            }
        }
        // On EINTR nothing is ready, and the deadlines are examined again.
        let _ = beat::wait(|| poll(&mut fds, timeout.as_ref()));
        let rang = at_traffic && fds.get(1).is_some_and(|fd| !fd.revents().is_empty());
        let mut ready = vec![false; self.agents.len() + self.uplinks.len()];
        for (fd, index) in fds.iter().skip(2).zip(watched) {
            if let Some(ready) = ready.get_mut(index) {
                *ready = !fd.revents().is_empty();
            }
        }
        let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
        if rang {
            let now_ns = clock::now_ns();
            (self.rhythm, self.changed_ns) = (Rhythm::At(now_ns), now_ns);
        }
        ready
    }

    fn obey(&mut self, command: Command, now_ns: u64) {
        match command {
            Command::AddVifs(vifs) => vifs.into_iter().for_each(|vif| self.add_vif(vif)),
            Command::ChangeVif(id, settings) => {
                if let Some(vif) = self.vifs.get_mut(&id) {
                    vif.change(settings, &self.engine);
                    if let Some(agent) = agent_of(&mut self.agents, vif.agent.as_ref()) {
                        agent.set_mac(id, settings.mac);
                    }
                    self.note_wishes();
                }
            }
            Command::RemoveVif(id, done) => {
                if let Some(vif) = self.vifs.remove(&id)
                    && let Some(socket) = &vif.agent
                {
                    self.agents
                        .retain_mut(|agent| *agent.path() != socket.path || agent.remove_vif(id));
                }
                let _ = done.send(());
            }
            Command::SetOverlay(overlay) => self.overlay = Some(overlay),
            Command::AddUplink(uplink) => self.uplinks.push(*uplink),
            Command::ChangeUplink(name, rss_rebalance) => {
                if let Some(uplink) = self.uplinks.iter_mut().find(|it| it.name == name) {
                    uplink.rss_rebalance = rss_rebalance;
                }
            }
            Command::RemoveUplink(name, done) => {
                self.uplinks.retain(|uplink| uplink.name != name);
                let _ = done.send(());
                self.note_below();
            }
            Command::SetBelow(name, below, kept) => {
                if let Some(uplink) = self.uplinks.iter_mut().find(|it| it.name == name) {
                    uplink.below = Some((below, kept));
                }
            }
            Command::ExplainVif(id, answer) => {
                let _ = answer.send(self.explain_vif(id, now_ns));
                return;
            }
            Command::ExplainUplink(name, answer) => {
                let layers_ns = self.core.layers_cost_ns(self.decision.as_ref(), now_ns);
                if let Some(uplink) = self.uplinks.iter().find(|uplink| uplink.name == name) {
                    let _ = answer.send(UplinkExplanation {
                        name,
                        interface: uplink.interface_name.clone(),
                        blocked: None,
                        layer: uplink.interface.layer().clone(),
                        interrupts: uplink.interface.interrupts().clone(),
                        below: uplink.explain_below(layers_ns),
                        cost: cost(self.core.uplink_cost()),
                        // The switch fills in the engine's part.
                        dispatch: DispatchExplanation::default(),
                        traffic: TrafficExplanation::default(),
                        filter: Vec::new(),
                        bond: None,
                        in_bond: None,
                        steering: uplink.table.explain(
                            now_ns,
                            &*uplink.port,
                            uplink.port.service().counters(),
                            uplink.rss_rebalance,
                        ),
                    });
                }
                return;
            }
            Command::Place(config, host) => {
                self.placement.change(config, host, &self.engine);
                self.move_interrupts();
            }
            Command::ExplainPlacement(answer) => {
                let _ = answer.send(self.placement.explain());
                return;
            }
            Command::Stop => return,
            #[cfg(test)]
            Command::Panic => panic!("asked for by a test"),
        }
        // The change can affect the other interfaces: with a new decision the shares add up again at once.
        for task in [Task::Split, Task::Place] {
            self.due_ns[task as usize] = now_ns;
        }
        // The new time causes a look even without traffic.
        self.changed_ns = now_ns;
        self.look(now_ns);
    }

    fn add_vif(&mut self, vif: ManagedVif) {
        let id = vif.port.id();
        if let Some(socket) = &vif.agent {
            let known = self.agents.iter_mut().find(|agent| *agent.path() == socket.path);
            match (known, Agent::new(socket.clone())) {
                (Some(agent), _) => agent.add_vif(id, vif.settings.mac),
                (None, Ok(mut agent)) => {
                    agent.add_vif(id, vif.settings.mac);
                    self.agents.push(agent);
                }
                (None, Err(error)) => {
                    tracing::error!(vif = %vif.name, %error, "cannot listen for an agent");
                }
            }
        }
        self.vifs.insert(id, vif);
        self.note_below();
    }

    /// Speaks with the weirs below. If one of them leaves another time to this one, that time is split at once.
    fn serve_below(&mut self, ready: &[bool], now_ns: u64) {
        if self.uplinks.iter().all(|uplink| uplink.below.is_none()) {
            return;
        }
        let cost_ns = self.core.layers_cost_ns(self.decision.as_ref(), now_ns);
        for (uplink, ready) in self.uplinks.iter_mut().zip(ready) {
            uplink.serve_below(*ready, now_ns, &self.engine, cost_ns);
        }
        if self.note_below() {
            self.due_ns[Task::Split as usize] = now_ns;
            self.look(now_ns);
        }
    }

    /// Limits holds to the least time that a weir below leaves; returns true if it is another one than before.
    fn note_below(&mut self) -> bool {
        let belows = self.uplinks.iter().filter_map(|uplink| uplink.below.as_ref()?.0.given_ns());
        let below_ns = belows.map(hold_ns_max).min().unwrap_or(u64::MAX);
        let mut changed = false;
        for vif in self.vifs.values_mut() {
            changed |= std::mem::replace(&mut vif.below_ns, below_ns) != below_ns;
        }
        changed
    }

    /// True if any interface's budget is to be split.
    fn splits(&self) -> bool {
        let settable = self.uplinks.iter().any(|uplink| uplink.interface.is_settable());
        let needs = |vif: &ManagedVif| {
            let kind = vif.settings.kind;
            vif.agent.is_some() || always_takes_part(kind) || settable && takes_part(kind)
        };
        self.uplinks.iter().any(|uplink| uplink.below.is_some()) || self.vifs.values().any(needs)
    }

    /// True if any port can have several receive queues.
    fn steers(&self) -> bool {
        let mut uplinks = self.uplinks.iter();
        self.vifs.values().any(|vif| steers(&*vif.port, vif.port.interface().queue_pairs()))
            || uplinks.any(|uplink| steers(&*uplink.port, uplink.port.rx_queues()))
    }

    /// A task's period (ns); `None` if nothing depends on the task, which then costs nothing.
    fn period_ns(&self, task: Task) -> Option<u64> {
        match task {
            Task::Dispatch => self.engine.dispatches().then_some(DISPATCH_NS),
            Task::Split => self.splits().then_some(LAW.look_ns),
            Task::Rebalance => self.steers().then_some(REBALANCE_NS),
            Task::Place => self.placement.is_on().then_some(placement::LOOK_NS),
            Task::Across => self.overlay.as_ref().map(|_| LAW.look_ns),
            Task::Loops => self.loops.are_possible().then_some(LOOP_LOOK_NS),
        }
    }

    /// Performs the tasks that are due.
    fn look(&mut self, now_ns: u64) {
        for task in Task::ALL {
            match self.period_ns(task) {
                Some(period_ns) if self.due_ns[task as usize] <= now_ns => {
                    self.due_ns[task as usize] = now_ns + period_ns;
                    self.perform(task, now_ns);
                }
                // The last interface that took part may have changed to another policy.
                None if task == Task::Split => self.take_back(now_ns),
                Some(_) | None => {}
            }
        }
        self.rhythm = self.next_look(now_ns);
    }

    /// Undoes the last decision, once, when no interface takes part in the split any more.
    fn take_back(&mut self, now_ns: u64) {
        if self.decision.is_some() {
            let (sharing, vifs) = (Sharing::NoUplink, BTreeMap::new());
            self.apply(Decision { uplink_ns: 0, sharing, busy: 0, vifs }, now_ns);
            self.decision = None;
        }
    }

    fn perform(&mut self, task: Task, now_ns: u64) {
        match task {
            Task::Dispatch => self.engine.dispatch(now_ns),
            Task::Split => {
                let look = self.take_look(now_ns);
                let decision = self.core.decide(&look);
                self.apply(decision, now_ns);
            }
            Task::Rebalance => self.rebalance(now_ns),
            Task::Across => self.exchange(now_ns),
            Task::Loops => self.loops.look(now_ns),
            Task::Place => {
                let vifs = self.vifs.values().map(ManagedVif::placement_look);
                let uplinks = self.uplinks.iter().map(ManagedUplink::placement_look);
                let ports: Vec<_> = uplinks.chain(vifs).collect();
                self.placement.look(now_ns, &self.engine, &ports);
                self.move_interrupts();
            }
        }
    }

    /// Sends the interrupts of uplinks' cards to the processors of the workers that serve their
    /// queues.
    fn move_interrupts(&mut self) {
        for uplink in self.uplinks.iter_mut().filter(|uplink| uplink.has_cards_queues) {
            let cpus = self.placement.cpus_of(&self.engine, uplink.id, uplink.queues);
            uplink.interface.follow(&cpus);
        }
    }

    /// Exchanges latency budgets with other hosts.
    fn exchange(&mut self, now_ns: u64) {
        if !self.splits() {
            let look = self.take_look(now_ns);
            self.core.learn(&look);
        }
        let Some(overlay) = &self.overlay else { return };
        let receive = || self.vifs.values().filter(|vif| vif.port.rx_queues() > 0);
        let vifs = receive().map(|vif| vif.port.wait_ns_max());
        let uplinks = self.uplinks.iter().map(|uplink| uplink.port.wait_ns_max());
        let waits_ns = vifs.chain(uplinks).chain([LAW.wait_ns_max()]);
        let reached = || receive().filter(|vif| vif.settings.overlay_budget_ns.is_some());
        let budgets = reached().filter_map(|vif| vif.settings.overlay_budget_ns);
        let late = reached().flat_map(|vif| vif.port.interface().counters().breaches());
        let here = Here {
            wait_ns: waits_ns.min().filter(|_| self.engine.naps()).unwrap_or(0),
            wakeup_cost_ns: self.core.uplink_cost().ns,
            call_cost_ns: self.core.common_call_cost_ns(now_ns),
            receivers: self.core.busy(now_ns),
            budget_ns: budgets.min().unwrap_or(LATENCY_BUDGET_NS_DEFAULT),
            wait_ns_there: reached().map(|vif| vif.port.wait_ns_max()).min().unwrap_or(u64::MAX),
            told_late: late.map(|(_, n)| n).sum(),
        };
        overlay.exchange(&here, now_ns);
    }

    fn rebalance(&mut self, now_ns: u64) {
        for vif in self.vifs.values_mut() {
            let counters = vif.port.interface().counters();
            vif.table.look(now_ns, &*vif.port, counters, vif.settings.rss_rebalance);
        }
        for uplink in &mut self.uplinks {
            let counters = uplink.port.service().counters();
            uplink.table.look(now_ns, &*uplink.port, counters, uplink.rss_rebalance);
        }
    }

    fn take_look(&mut self, now_ns: u64) -> Look {
        let agents = &mut self.agents;
        let vifs = self.vifs.values_mut().map(|vif| {
            let agent = agent_of(agents, vif.agent.as_ref());
            vif.look(agent.as_deref())
        });
        let interfaces = || self.uplinks.iter().map(|uplink| &uplink.interface);
        let settable = || interfaces().filter(|interface| interface.is_settable());
        Look {
            now_ns,
            vifs: vifs.collect(),
            workers_cpu_ns: workers_cpu_ns(&self.engine),
            uplink_wakeups: {
                let overlay = self.overlay.iter().map(|it| it.service());
                let services = self.uplinks.iter().map(|it| it.port.service()).chain(overlay);
                services.map(|it| wakeups(it.counters())).sum()
            },
            uplink_settable: settable().next().is_some(),
            uplink_found_ns: settable().map(|interface| interface.found_ns()).min().unwrap_or(0),
        }
    }

    /// Applies the decision. The share that shrinks goes first, so that the sum never exceeds the budget.
    fn apply(&mut self, decision: Decision, now_ns: u64) {
        let grows = self.decision.as_ref().is_none_or(|old| old.uplink_ns < decision.uplink_ns);
        if !grows {
            self.set_uplinks(decision.uplink_ns);
        }
        for (id, vif) in &mut self.vifs {
            let part = decision.vifs.get(id);
            vif.hold_by(part, decision.uplink_ns);
            if let Some(agent) = agent_of(&mut self.agents, vif.agent.as_ref()) {
                let poll_ns = part.and_then(|part| part.poll_ns);
                let poll_ns = poll_ns.map(|ns| ns.min(vif.wished_ns(decision.uplink_ns)));
                agent.want(*id, poll_ns.filter(|ns| *ns >= AGENT_POLL_NS_MIN), now_ns);
            }
        }
        if grows {
            self.set_uplinks(decision.uplink_ns);
        }
        self.decision = Some(decision);
    }

    /// Tells ports whose guests have begun or stopped to poll.
    fn note_polls(&mut self) {
        for (id, vif) in &mut self.vifs {
            if vif.agent.is_some() {
                let agent = agent_of(&mut self.agents, vif.agent.as_ref());
                vif.set_polled(agent.and_then(|agent| agent.polls_ns(*id)));
            }
        }
    }

    /// Grants what guests wish. The rest of the decision stands until the next look, so that a guest that wishes
    /// something else again and again costs little.
    fn note_wishes(&mut self) {
        for (id, vif) in self.vifs.iter_mut().filter(|(_, vif)| vif.agent.is_some()) {
            let agent = agent_of(&mut self.agents, vif.agent.as_ref());
            let wish = agent.map(|agent| agent.wish(*id)).unwrap_or_default();
            if vif.grant(wish, &self.engine) {
                let decision = self.decision.as_ref();
                let uplink_ns = decision.map_or(0, |decision| decision.uplink_ns);
                vif.hold_by(decision.and_then(|decision| decision.vifs.get(id)), uplink_ns);
            }
        }
    }

    fn set_uplinks(&mut self, uplink_ns: u64) {
        for uplink in &mut self.uplinks {
            uplink.interface.set(uplink_ns);
        }
    }

    fn next_look(&mut self, now_ns: u64) -> Rhythm {
        let needed = Task::ALL.into_iter().filter(|task| self.period_ns(*task).is_some());
        let Some(next_ns) = needed.map(|task| self.due_ns[task as usize]).min() else {
            return Rhythm::Off;
        };
        let bursts = self.engine.workers().iter().map(|worker| worker.bursts).sum();
        let now = (self.engine.wakeups(), bursts);
        if std::mem::replace(&mut self.seen, now) != now {
            self.changed_ns = now_ns;
        }
        let quiet = now_ns.saturating_sub(self.changed_ns) >= QUIET_NS;
        if quiet && self.engine.ring_at_traffic(now.0) {
            Rhythm::AtTraffic
        } else {
            Rhythm::At(next_ns)
        }
    }

    fn explain_vif(&mut self, id: PortId, now_ns: u64) -> ManagedExplanation {
        let Some(vif) = self.vifs.get(&id) else {
            return ManagedExplanation::default();
        };
        let agent = agent_of(&mut self.agents, vif.agent.as_ref());
        let polling = self.decision.as_ref().and_then(|it| it.vifs.get(&id)?.polling);
        let wish = agent.as_ref().map(|agent| agent.wish(id)).unwrap_or_default();
        let agent = agent.and_then(|agent| agent.explain(id));
        let (why, wishes) = (polling.map(why_polls), vif.explain_wish(wish));
        let agent = agent.map(|agent| AgentExplanation { why, wishes, ..agent });
        let rebalances = vif.settings.rss_rebalance;
        let steering =
            vif.table.explain(now_ns, &*vif.port, vif.port.interface().counters(), rebalances);
        ManagedExplanation { split: self.explain_split(id, now_ns), agent, steering }
    }

    fn explain_together(&self, why: Why) -> String {
        match why {
            Why::Settles => "whether all may be held together is not known yet".into(),
            Why::Light(vif) => {
                let light = self.vifs.iter().find(|(id, _)| u32::from(id.get()) == vif);
                let name = light.map_or("an interface", |(_, vif)| vif.name.as_str());
                format!(
                    "frames of {name}, which has few, would wait at an uplink for others that don't come"
                )
            }
            Why::Tried => {
                "all are held together and not, in turn, to see whether that slows them down".into()
            }
            Why::Harmless => "by Eq. 4; all are held together, which slows nobody down".into(),
            Why::Slower => "to hold all together has slowed the load down".into(),
        }
    }

    fn explain_split(&self, id: PortId, now_ns: u64) -> Option<SplitExplanation> {
        let decision = self.decision.as_ref()?;
        let part = decision.vifs.get(&id)?;
        let reason = match decision.sharing {
            Sharing::Split => "by Eq. 4, what costs least for these costs".into(),
            Sharing::NoUplink => "no uplink has an interval that can be set".into(),
            Sharing::Together { why, .. } => self.explain_together(why),
            Sharing::Refused(other) => {
                let other = self.vifs.get(&other).map(|vif| (&vif.name, vif.settings.kind));
                other.map_or("another interface takes no part".into(), |(name, kind)| {
                    format!("frames for {name}, with moderation {kind}, may not wait at an uplink")
                })
            }
        };
        Some(SplitExplanation {
            uplink_ns: decision.uplink_ns,
            vif_ns: part.vif_ns,
            stands_for_ns: now_ns.saturating_sub(part.since_ns),
            reason,
            vifs: decision.busy,
            uplink_cost: cost(self.core.uplink_cost()),
            call_cost: cost(self.core.call_cost(id)?),
        })
    }
}

/// The reason why a guest under `auto` polls instead of being called, or does not.
fn why_polls(why: Why) -> String {
    let why = match why {
        Why::Settles => "whether the guest may poll instead of being called is not known yet",
        Why::Light(_) => "few frames come within a hold: the guest is called for them",
        Why::Tried => "the guest polls and is called, in turn, to see whether that slows it down",
        Why::Harmless => "that the guest polls instead of being called slows nobody down",
        Why::Slower => "that the guest polled instead of being called has slowed the load down",
    };
    why.into()
}

/// CPU time of all workers (ns).
fn workers_cpu_ns(engine: &Engine) -> u64 {
    engine.workers().iter().filter_map(|worker| worker.cpu_ns).sum()
}

/// Times that frames from outside woke a worker.
fn wakeups(counters: &PortCounters) -> u64 {
    counters.tx.iter().map(|queue| queue.kicks.get()).sum()
}

fn agent_of<'a>(agents: &'a mut [Agent], socket: Option<&AgentSocket>) -> Option<&'a mut Agent> {
    let socket = socket?;
    agents.iter_mut().find(|agent| *agent.path() == socket.path)
}

fn cost(known: Known) -> CostExplanation {
    let (source, error_ns) = match known.source {
        Source::Agent => (CostSource::Agent, None),
        Source::Regression { error_ns } => (CostSource::Regression, Some(error_ns)),
        Source::Default => (CostSource::Default, None),
    };
    // The cost is within the bounds of `policy::budget`, or of an agent's report.
    CostExplanation { ns: known.ns.round() as u64, error_ns, source }
}

/// The time from `now_ns` to `at_ns`; zero if `at_ns` has passed.
fn in_ns(at_ns: u64, now_ns: u64) -> Timespec {
    const NS_PER_SECOND: u64 = 1_000_000_000;
    let left_ns = at_ns.saturating_sub(now_ns);
    let tv_sec = i64::try_from(left_ns / NS_PER_SECOND).unwrap_or(i64::MAX);
    // The rest is less than a second.
    Timespec { tv_sec, tv_nsec: (left_ns % NS_PER_SECOND) as i64 }
}

#[cfg(test)]
mod tests;
