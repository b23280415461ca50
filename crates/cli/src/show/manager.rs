//! The output of `weir explain` about the manager: the split of a budget, the known costs, a guest's agent,
//! and the places of workers and virtual processors.

use std::fmt::{self, Write as _};

use weir_config::{PlacementMode, PortName};
use weir_switch::explain::{
    AgentExplanation, AgentState, CostExplanation, CostSource, Gatherer, MachineSummary,
    PlacementExplanation, SplitExplanation, WishExplanation,
};
use weir_text::{Table, decimal, time};

/// The device that makes frames wait at an uplink.
pub(super) fn gatherer(it: &Gatherer) -> String {
    match it {
        Gatherer::RxUsecs { found_usecs } => format!("rx-usecs, found: {found_usecs}"),
        Gatherer::NapiTimer { why } => format!("gro_flush_timeout; {why}"),
    }
}

/// The split of the latency budget, with the costs from which it follows.
pub(super) fn split(f: &mut String, it: &SplitExplanation) -> fmt::Result {
    writeln!(
        f,
        "split: {} for uplinks, {} for calls, for {}: {}",
        time(it.uplink_ns),
        time(it.vif_ns),
        time(it.stands_for_ns),
        it.reason
    )?;
    let SplitExplanation { vifs, uplink_cost, call_cost, .. } = it;
    let (wake_up, call) = (cost(uplink_cost), cost(call_cost));
    writeln!(f, "costs: wake-up {wake_up}, call {call}; interfaces with traffic: {vifs}")
}

/// A cost with its source.
pub(super) fn cost(it: &CostExplanation) -> String {
    let ns = time(it.ns);
    match (it.source, it.error_ns) {
        (CostSource::Agent, _) => format!("{ns} (the agent says)"),
        (CostSource::Regression, Some(error_ns)) => format!("{ns} +- {}", time(error_ns)),
        (CostSource::Regression, None) => ns,
        (CostSource::Default, _) => format!("{ns} (not known yet)"),
    }
}

pub(super) fn agent(f: &mut String, it: &AgentExplanation) -> fmt::Result {
    let poll = |ns: Option<u64>| ns.map_or("no timer".into(), |ns| format!("{} timer", time(ns)));
    match (it.state, &it.version) {
        (AgentState::Waiting, _) => write!(f, "agent: nobody on {}", it.socket)?,
        (AgentState::Silent, _) => write!(f, "agent: none speaks on {}", it.socket)?,
        (AgentState::Elsewhere, _) => {
            write!(f, "agent: connected, and the guest has no interface with this MAC address")?;
        }
        (AgentState::Connected, version) => {
            let version = version.as_deref().unwrap_or("of unknown release");
            write!(f, "agent: {version}, guest polls by {}", poll(it.poll_ns))?;
            // After some empty polls the guest waits for interrupts again.
            f.push_str(if it.poll_ns.is_some() { " while it gets frames" } else { "" });
            if it.asked_poll_ns != it.poll_ns {
                write!(f, " (asked for {})", poll(it.asked_poll_ns))?;
            }
            if let Some(interrupts) = it.interrupts_per_s {
                write!(f, ", {} interrupts/s", decimal(interrupts))?;
            }
            if let Some(why) = &it.why {
                write!(f, "; {why}")?;
            }
            if let Some(wishes) = &it.wishes {
                wish(f, wishes)?;
            }
        }
    }
    match &it.error {
        Some(error) => writeln!(f, "; last error: {error}"),
        None => writeln!(f),
    }
}

/// The settings that a guest requests, and those that it has.
fn wish(f: &mut String, it: &WishExplanation) -> fmt::Result {
    let budget = it.budget_ns.map(|ns| ("budget", time(ns), time(it.has_budget_ns)));
    let weight = it.weight.map(|weight| ("weight", weight.to_string(), it.has_weight.to_string()));
    for (what, wished, has) in budget.into_iter().chain(weight) {
        write!(f, "; wishes {what} {wished}: ")?;
        match wished == has {
            true => write!(f, "granted")?,
            false => write!(f, "has the host's {has}")?,
        }
    }
    Ok(())
}

fn machine(f: &mut String, it: &MachineSummary) -> fmt::Result {
    let MachineSummary { cpus, cores, caches, nodes, allowed, .. } = it;
    writeln!(
        f,
        "machine: processors {cpus}, cores {cores}, last-level caches {}, nodes {nodes}; weir may use \
         {allowed}",
        caches.len()
    )?;
    let known =
        if it.caches_known { "" } else { " (the kernel does not say: as packages and nodes)" };
    writeln!(f, "caches: {}{known}", caches.join(" | "))?;
    if !it.efficiency.is_empty() {
        writeln!(f, "efficiency cores: {}", it.efficiency)?;
    }
    Ok(())
}

/// The placement of workers and virtual processors, with reasons.
pub(super) fn placement(f: &mut String, it: &PlacementExplanation) -> fmt::Result {
    let vcpus = if it.pin_vcpus { "are placed as well" } else { "are left alone" };
    writeln!(f, "placement {}; virtual processors {vcpus}", it.mode)?;
    if let Some(it) = &it.machine {
        machine(f, it)?;
    }
    if let Some(problem) = &it.problem {
        writeln!(f, "the machine's processors are not known: {problem}")?;
    }
    if it.mode == PlacementMode::Off {
        return writeln!(f, "workers run where the kernel puts them");
    }
    if it.workers.is_empty() {
        return writeln!(f, "nothing was decided yet");
    }
    let mut table = Table::new(&["WORKER", "CPU", "LOAD", "MOVES", "<PORTS", "<BECAUSE"]);
    for worker in &it.workers {
        table.row(vec![
            worker.worker.to_string(),
            worker.cpu.map_or("any".into(), |cpu| cpu.to_string()),
            format!("{:.0}%", worker.load * 100.0),
            decimal(worker.moves),
            names(&worker.ports),
            worker.reason.clone(),
        ]);
    }
    write!(f, "\n{table}")?;
    for worker in &it.workers {
        for rejected in &worker.rejected {
            writeln!(f, "worker {}: not {rejected}", worker.worker)?;
        }
        if let Some(refused) = &worker.refused {
            writeln!(f, "worker {}: refused: {refused}", worker.worker)?;
        }
    }
    if !it.guests.is_empty() {
        let mut table =
            Table::new(&["PROCESS", "<PORTS", "VCPUS", "<LAST ON", "<KEPT ON", "<BECAUSE"]);
        for guest in &it.guests {
            table.row(vec![
                guest.process.to_string(),
                names(&guest.ports),
                guest.vcpus.to_string(),
                guest.last_ran.clone(),
                guest.cpus.clone().unwrap_or("any".into()),
                guest.reason.clone(),
            ]);
        }
        write!(f, "\n{table}")?;
    }
    for guest in &it.guests {
        if let Some(refused) = &guest.refused {
            writeln!(f, "process {}: refused: {refused}", guest.process)?;
        }
    }
    if let Some(settling) = &it.settling {
        writeln!(f, "{settling}")?;
    }
    writeln!(
        f,
        "moves: workers {}, virtual processors {}, refused {}",
        decimal(it.moves),
        decimal(it.vcpu_moves),
        decimal(it.refused)
    )
}

fn names(ports: &[PortName]) -> String {
    match ports {
        [] => "-".into(),
        ports => ports.iter().map(PortName::as_str).collect::<Vec<_>>().join(","),
    }
}

#[cfg(test)]
mod tests {
    use weir_switch::explain::{
        DispatchExplanation, GuestPlacement, InterruptPlace, InterruptPlaces, UplinkExplanation,
        UplinkLayer, WorkerPlacement,
    };

    use super::super::explain::uplink;
    use super::super::text;
    use super::*;

    fn of_state(state: AgentState) -> AgentExplanation {
        AgentExplanation {
            socket: "/run/weir/web0.agent".parse().unwrap(),
            state,
            version: Some("0.1.0".into()),
            asked_poll_ns: Some(625_000),
            poll_ns: None,
            interrupts_per_s: Some(2_800),
            why: Some("it is being tried".into()),
            wishes: Some(WishExplanation {
                budget_ns: Some(100_000),
                weight: Some(9),
                has_budget_ns: 100_000,
                has_weight: 4,
            }),
            error: Some("read-only".into()),
        }
    }

    #[test]
    fn split_and_costs_for_people() {
        let costs = |source, error_ns| CostExplanation { ns: 4_200, error_ns, source };
        let shown = |it: &SplitExplanation| text(|f| split(f, it));
        let of = SplitExplanation {
            uplink_ns: 300_000,
            vif_ns: 630_000,
            stands_for_ns: 12_000_000_000,
            reason: "what costs least".into(),
            vifs: 3,
            uplink_cost: costs(CostSource::Regression, Some(310)),
            call_cost: costs(CostSource::Agent, None),
        };
        insta::assert_snapshot!(shown(&of), @r"
        split: 300 us for uplinks, 630 us for calls, for 12 s: what costs least
        costs: wake-up 4.2 us +- 310 ns, call 4.2 us (the agent says); interfaces with traffic: 3
        ");
        let unknown = costs(CostSource::Default, None);
        let shown_with = |layer, interrupts| {
            let (name, interface) = ("lan".parse().unwrap(), "eth0".into());
            let dispatch = DispatchExplanation { workers: vec![Some(0)], moves: Vec::new() };
            let steering = None;
            let (traffic, filter) = Default::default();
            let of = UplinkExplanation {
                name,
                interface,
                blocked: None,
                layer,
                interrupts,
                below: None,
                cost: unknown,
                dispatch,
                steering,
                traffic,
                filter,
                bond: None,
                in_bond: None,
            };
            text(|f| uplink(f, &of))
        };
        let shown = |layer| shown_with(layer, InterruptPlaces::AsFound);
        let gathers = |by| shown(UplinkLayer::Gathers { uplink_ns: 300_000, by });
        insta::assert_snapshot!(gathers(Gatherer::RxUsecs { found_usecs: 3 }), @r"
        lan: interface eth0, gathers frames for 300 us (rx-usecs, found: 3)
        costs: wake-up 4.2 us (not known yet)
        workers, by queue: 0
        ");
        let timer = gathers(Gatherer::NapiTimer { why: "the driver has no rx-usecs".into() });
        assert!(timer.contains("(gro_flush_timeout; the driver has no rx-usecs)"), "{timer}");
        assert!(shown(UplinkLayer::WorkerOnly).contains("no interval can be set"));
        assert!(shown(UplinkLayer::Refused { reason: "EPERM".into() }).contains("EPERM"));
        let queues = [(0, 2), (1, 5)].map(|(queue, cpu)| InterruptPlace { queue, cpu }).into();
        let follow = InterruptPlaces::Follow { queues };
        let reason = "irqbalance moves them".into();
        let left = InterruptPlaces::LeftAlone { reason };
        let lines = [follow, left].map(|places| shown_with(UplinkLayer::AsFound, places));
        insta::assert_snapshot!(lines.concat(), @r"
        lan: interface eth0, interrupts as the host has them set
        interrupts come to the workers' processors: queue 0 on 2, 1 on 5
        costs: wake-up 4.2 us (not known yet)
        workers, by queue: 0
        lan: interface eth0, interrupts as the host has them set
        interrupts stay: irqbalance moves them
        costs: wake-up 4.2 us (not known yet)
        workers, by queue: 0
        ");
    }

    #[test]
    fn agents_for_people() {
        let shown = |it: &AgentExplanation| text(|f| agent(f, it));
        let lines = [AgentState::Waiting, AgentState::Silent, AgentState::Elsewhere]
            .map(|state| shown(&AgentExplanation { error: None, ..of_state(state) }));
        insta::assert_snapshot!(lines.concat() + &shown(&of_state(AgentState::Connected)), @r"
        agent: nobody on /run/weir/web0.agent
        agent: none speaks on /run/weir/web0.agent
        agent: connected, and the guest has no interface with this MAC address
        agent: 0.1.0, guest polls by no timer (asked for 625 us timer), 2,800 interrupts/s; it is being tried; wishes budget 100 us: granted; wishes weight 9: has the host's 4; last error: read-only
        ");
        let polls = AgentExplanation { poll_ns: Some(625_000), ..of_state(AgentState::Connected) };
        assert!(shown(&polls).contains("guest polls by 625 us timer while it gets frames, 2,800"));
    }

    fn shown(it: &PlacementExplanation) -> String {
        text(|f| placement(f, it))
    }

    fn sample() -> PlacementExplanation {
        let worker = |worker, cpu, reason: &str| WorkerPlacement {
            worker,
            cpu,
            load: 0.42,
            moves: 1,
            ports: vec!["web0".parse().unwrap(), "lan".parse().unwrap()],
            reason: reason.into(),
            rejected: Vec::new(),
            refused: None,
        };
        let mut first = worker(0, Some(11), "90% of its traffic is with this cache, cost 1.2");
        first.rejected.push("processor 3, cost 3.0: far from the virtual processors".into());
        let mut second = worker(1, Some(7), "a core of its own; no virtual processor is known");
        second.ports.clear();
        second.refused = Some("Invalid argument".into());
        PlacementExplanation {
            mode: PlacementMode::Dynamic,
            pin_vcpus: true,
            machine: Some(MachineSummary {
                cpus: 12,
                cores: 12,
                caches: vec!["0-5".into(), "6-11".into()],
                caches_known: true,
                nodes: 1,
                nodes_known: true,
                efficiency: String::new(),
                allowed: "2-11".into(),
            }),
            problem: None,
            workers: vec![first, second],
            guests: vec![GuestPlacement {
                process: 4711,
                ports: vec!["web0".parse().unwrap()],
                vcpus: 2,
                last_ran: "8-9".into(),
                cpus: Some("6,8-10".into()),
                reason: "in the cache of worker 0, off workers' cores".into(),
                refused: Some("Operation not permitted".into()),
            }],
            settling: None,
            moves: 2,
            vcpu_moves: 1,
            refused: 2,
        }
    }

    #[test]
    fn placement_for_people() {
        insta::assert_snapshot!(shown(&sample()), @r"
        placement dynamic; virtual processors are placed as well
        machine: processors 12, cores 12, last-level caches 2, nodes 1; weir may use 2-11
        caches: 0-5 | 6-11

        WORKER  CPU  LOAD  MOVES  PORTS     BECAUSE
             0   11   42%      1  web0,lan  90% of its traffic is with this cache, cost 1.2
             1    7   42%      1  -         a core of its own; no virtual processor is known
        worker 0: not processor 3, cost 3.0: far from the virtual processors
        worker 1: refused: Invalid argument

        PROCESS  PORTS  VCPUS  LAST ON  KEPT ON  BECAUSE
           4711  web0       2  8-9      6,8-10   in the cache of worker 0, off workers' cores
        process 4711: refused: Operation not permitted
        moves: workers 2, virtual processors 1, refused 2
        ");
        let off = PlacementExplanation { mode: PlacementMode::Off, pin_vcpus: false, ..sample() };
        let off = shown(&off);
        assert!(off.ends_with("workers run where the kernel puts them\n"), "{off}");
    }

    #[test]
    fn placement_survives_json() {
        let json = serde_json::to_string(&sample()).unwrap();
        assert_eq!(serde_json::from_str::<PlacementExplanation>(&json).unwrap(), sample());
    }
}
