//! The explanation of placement.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use weir_policy::placement::{
    Cpu, GuestPlace, GuestReason, Place, Reason, SETTLE_NS, STAY_NS, Why,
};
use weir_topology::{Topology, cpu_list};

use super::{Machine, Placement, affinity, look_at};
use crate::explain::{GuestPlacement, MachineSummary, PlacementExplanation, WorkerPlacement};

impl Placement {
    /// The present placement, with reasons.
    pub(in crate::manager) fn explain(&self) -> PlacementExplanation {
        let known = match &self.machine {
            Ok(machine) if !machine.topology.cpus.is_empty() => Ok(summary(machine)),
            // There has been no look yet.
            Ok(_) => look_at(&self.host, Err(String::new())).map(|machine| summary(&machine)),
            Err(error) => Err(error.clone()),
        };
        let (machine, problem) = match known {
            Ok(machine) => (Some(machine), None),
            Err(problem) => (None, Some(problem)),
        };
        let (workers, guests) = match &self.decision {
            None => (Vec::new(), Vec::new()),
            Some(decision) => (
                (0..)
                    .zip(&decision.workers)
                    .map(|(worker, place)| self.worker(worker, place))
                    .collect(),
                self.guests
                    .iter()
                    .map(|guest| self.guest(guest, decision.guests.get(&guest.look.id)))
                    .collect(),
            ),
        };
        let settling = self.decision.as_ref().and_then(|decision| decision.settling);
        let waits = |(_, gain)| {
            let [settle, stay] = [SETTLE_NS, STAY_NS].map(|ns| ns / 1_000_000_000);
            format!(
                "a better plan (by {gain:.1}) waits: it must stay better for {settle} s, and come {stay} s after \
                 the last"
            )
        };
        PlacementExplanation {
            mode: self.config.mode,
            pin_vcpus: self.config.pin_vcpus,
            machine,
            problem,
            workers,
            guests,
            settling: settling.map(waits),
            moves: self.counts.moves.get(),
            vcpu_moves: self.counts.vcpu_moves.get(),
            refused: self.counts.refused.get(),
        }
    }

    fn worker(&self, worker: usize, place: &Place) -> WorkerPlacement {
        let (load, ports) = self.sight.workers.get(worker).cloned().unwrap_or_default();
        let state = self.workers.get(worker);
        let rejected = place.rejected.iter().map(|rejected| {
            format!("processor {}, cost {:.1}: {}", rejected.cpu, rejected.cost, why(rejected.why))
        });
        WorkerPlacement {
            worker,
            cpu: place.cpu,
            load,
            moves: state.map_or(0, |state| state.moves),
            ports,
            reason: reason(place),
            rejected: rejected.collect(),
            refused: state.and_then(|state| state.refusal).map(affinity::explain),
        }
    }

    fn guest(&self, guest: &super::GuestSight, place: Option<&GuestPlace>) -> GuestPlacement {
        let ran: BTreeSet<u16> = guest.look.threads.iter().map(|thread| thread.last_cpu).collect();
        let refused = guest.threads.iter().find_map(|thread| self.pins.refusal(*thread));
        let others = guest.threads.iter().filter(|thread| self.pins.is_others(**thread)).count();
        let mut reason = match place {
            None if guest.look.threads.is_empty() => "no virtual processor of it is known".into(),
            None => "pin_vcpus is off".into(),
            Some(place) => guest_reason(place.reason),
        };
        if others > 0 {
            // Writing to a string cannot fail.
            let _ = write!(reason, "; {others} that somebody else has moved are left alone");
        }
        GuestPlacement {
            process: guest.look.id,
            ports: guest.ports.clone(),
            vcpus: guest.look.threads.len(),
            last_ran: cpu_list(&ran),
            cpus: place.and_then(|place| place.cpus.as_ref()).map(cpu_list),
            reason,
            refused: refused.map(affinity::explain),
        }
    }
}

fn summary(machine: &Machine) -> MachineSummary {
    let Topology { cpus, caches_known, nodes_known } = &machine.topology;
    let count = |of: fn(&Cpu) -> u16| cpus.iter().map(of).collect::<BTreeSet<u16>>().len();
    let caches: BTreeSet<u16> = cpus.iter().map(|cpu| cpu.cache).collect();
    let members = |cache: u16| {
        let members = cpus.iter().filter(|cpu| cpu.cache == cache).map(|cpu| cpu.id);
        cpu_list(&members.collect())
    };
    let efficiency = cpus.iter().filter(|cpu| cpu.efficiency).map(|cpu| cpu.id).collect();
    MachineSummary {
        cpus: cpus.len(),
        cores: count(|cpu| cpu.core),
        caches: caches.into_iter().map(members).collect(),
        caches_known: *caches_known,
        nodes: count(|cpu| cpu.node),
        nodes_known: *nodes_known,
        efficiency: cpu_list(&efficiency),
        allowed: cpu_list(&machine.allowed),
    }
}

fn reason(place: &Place) -> String {
    let cost = place.cost;
    match place.reason {
        Reason::FewCpus { cpus } => {
            format!("weir may use {cpus} processors: none can be kept for a worker")
        }
        Reason::FewCores { cores } => {
            format!(
                "weir may use {cores} cores: with one for each worker there would be none for guests"
            )
        }
        Reason::NothingKnown => "no virtual processor of those that it serves is known".into(),
        Reason::KernelAsGood => {
            format!("no place would cost less than the kernel's choice, {cost:.1}")
        }
        Reason::OwnCore => "a core of its own; no virtual processor is known".into(),
        Reason::NearVcpus { share } => {
            format!("{:.0}% of its traffic is with this cache, cost {cost:.1}", share * 100.0)
        }
    }
}

fn why(why: Why) -> &'static str {
    match why {
        Why::FarFromVcpus => "far from the virtual processors",
        Why::VcpusRunThere => "virtual processors run there",
        Why::OtherWorker => "another worker's core",
        Why::EfficiencyCore => "an efficiency core",
        Why::AsGood => "as good",
    }
}

fn guest_reason(reason: GuestReason) -> String {
    match reason {
        GuestReason::BesideWorker(worker) => {
            format!("in the cache of worker {worker}, off workers' cores")
        }
        GuestReason::NoWorkerPlaced => "no worker that serves it has a place".into(),
        GuestReason::NoneNamed => {
            "none of its threads is named as a virtual processor (QEMU: -name debug-threads=on)"
                .into()
        }
        GuestReason::OtherNode => "its memory is on another node than its worker".into(),
        GuestReason::NoRoom { threads, cpus } => {
            format!("{cpus} processors are left in its worker's cache, and it has {threads}")
        }
    }
}
