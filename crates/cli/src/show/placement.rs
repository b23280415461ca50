//! The output of `weir explain placement`.

use std::fmt::{self, Write as _};

use weir_config::{PlacementMode, PortName};
use weir_switch::explain::{MachineSummary, PlacementExplanation};
use weir_text::{Table, decimal};

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
    use weir_switch::explain::{GuestPlacement, WorkerPlacement};

    use super::super::text;
    use super::*;

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
