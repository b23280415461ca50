//! Where workers and virtual processors run, and why.

use std::fmt;

use serde::{Deserialize, Serialize};
use weir_config::{PlacementMode, PortName};
use weir_text::{Table, decimal};

/// What `weir explain placement` says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlacementExplanation {
    /// `placement`, as it is configured.
    pub mode: PlacementMode,
    /// `pin_vcpus`, as it is configured.
    pub pin_vcpus: bool,
    /// The processors; none where they are not known.
    pub machine: Option<MachineSummary>,
    /// Why they are not known.
    pub problem: Option<String>,
    /// Each worker; none before the first look.
    pub workers: Vec<WorkerPlacement>,
    /// Each guest.
    pub guests: Vec<GuestPlacement>,
    /// A better plan that is not followed yet.
    pub settling: Option<String>,
    /// Times that a worker was told to run elsewhere.
    pub moves: u64,
    /// Times that a virtual processor was.
    pub vcpu_moves: u64,
    /// Times that the kernel refused either.
    pub refused: u64,
}

/// The machine's processors. Lists are as the kernel writes them: `0-3,8`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineSummary {
    /// How many are online.
    pub cpus: usize,
    /// How many cores these are threads of.
    pub cores: usize,
    /// The processors of each last-level cache.
    pub caches: Vec<String>,
    /// Whether the kernel says which share a cache; else those of a package and node count as sharing one.
    pub caches_known: bool,
    /// How many NUMA nodes there are.
    pub nodes: usize,
    /// Whether the kernel says which are of one node; else all are.
    pub nodes_known: bool,
    /// Those on efficiency cores.
    pub efficiency: String,
    /// Those on which weir may run.
    pub allowed: String,
}

/// Where a worker runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkerPlacement {
    /// Its number.
    pub worker: usize,
    /// The processor it is to run on; none where the kernel chooses.
    pub cpu: Option<u16>,
    /// Its part of a processor's time between the last looks, 0 to 1.
    pub load: f64,
    /// Times that it was told to run elsewhere.
    pub moves: u64,
    /// The ports whose queues it serves.
    pub ports: Vec<PortName>,
    /// Why there.
    pub reason: String,
    /// Places that were not taken, and why.
    pub rejected: Vec<String>,
    /// Why it does not run there all the same.
    pub refused: Option<String>,
}

/// Where a guest's virtual processors run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestPlacement {
    /// The process of its VM monitor.
    pub process: u32,
    /// Its interfaces.
    pub ports: Vec<PortName>,
    /// How many of its virtual processors are known.
    pub vcpus: usize,
    /// The processors on which they last ran.
    pub last_ran: String,
    /// The processors they are to run on; none where they are left alone.
    pub cpus: Option<String>,
    /// Why there.
    pub reason: String,
    /// Why one of them does not run there all the same.
    pub refused: Option<String>,
}

fn names(ports: &[PortName]) -> String {
    match ports {
        [] => "-".into(),
        ports => ports.iter().map(PortName::as_str).collect::<Vec<_>>().join(","),
    }
}

impl fmt::Display for MachineSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cpus, cores, caches, nodes, allowed, .. } = self;
        writeln!(
            f,
            "machine: processors {cpus}, cores {cores}, last-level caches {}, nodes {nodes}; weir may use \
             {allowed}",
            caches.len()
        )?;
        let known = if self.caches_known {
            ""
        } else {
            " (the kernel does not say: as packages and nodes)"
        };
        writeln!(f, "caches: {}{known}", caches.join(" | "))?;
        if !self.efficiency.is_empty() {
            writeln!(f, "efficiency cores: {}", self.efficiency)?;
        }
        Ok(())
    }
}

impl fmt::Display for PlacementExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let vcpus = if self.pin_vcpus { "are placed as well" } else { "are left alone" };
        writeln!(f, "placement {}; virtual processors {vcpus}", self.mode)?;
        if let Some(machine) = &self.machine {
            write!(f, "{machine}")?;
        }
        if let Some(problem) = &self.problem {
            writeln!(f, "the machine's processors are not known: {problem}")?;
        }
        if self.mode == PlacementMode::Off {
            return writeln!(f, "workers run where the kernel puts them");
        }
        if self.workers.is_empty() {
            return writeln!(f, "nothing was decided yet");
        }
        let mut table = Table::new(&["WORKER", "CPU", "LOAD", "MOVES", "<PORTS", "<BECAUSE"]);
        for worker in &self.workers {
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
        for worker in &self.workers {
            for rejected in &worker.rejected {
                writeln!(f, "worker {}: not {rejected}", worker.worker)?;
            }
            if let Some(refused) = &worker.refused {
                writeln!(f, "worker {}: refused: {refused}", worker.worker)?;
            }
        }
        if !self.guests.is_empty() {
            let mut table =
                Table::new(&["PROCESS", "<PORTS", "VCPUS", "<LAST ON", "<KEPT ON", "<BECAUSE"]);
            for guest in &self.guests {
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
        for guest in &self.guests {
            if let Some(refused) = &guest.refused {
                writeln!(f, "process {}: refused: {refused}", guest.process)?;
            }
        }
        if let Some(settling) = &self.settling {
            writeln!(f, "{settling}")?;
        }
        writeln!(
            f,
            "moves: workers {}, virtual processors {}, refused {}",
            decimal(self.moves),
            decimal(self.vcpu_moves),
            decimal(self.refused)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        insta::assert_snapshot!(sample().to_string(), @r"
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
        assert!(off.to_string().ends_with("workers run where the kernel puts them\n"), "{off}");
    }

    #[test]
    fn placement_survives_json() {
        let json = serde_json::to_string(&sample()).unwrap();
        assert_eq!(serde_json::from_str::<PlacementExplanation>(&json).unwrap(), sample());
    }
}
