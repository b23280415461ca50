//! Placement: the CPUs of workers and, with permission, of guests' virtual processors (Guo 2009). Once a second under
//! traffic, placement looks at the present CPUs of both and asks the policy ([`weir_policy::placement`]).
//!
//! | file | content |
//! |---|---|
//! | `sight.rs` | the workers' traffic for each guest, and the CPUs of the guest's virtual processors |
//! | `vcpus.rs` | threads of virtual processors, from `/proc` |
//! | `pins.rs` | threads of other processes that were pinned, and their affinity |
//! | `shown.rs` | `weir explain placement` |

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use rustix::io::Errno;
use weir_config::{PlacementConfig, PlacementMode};
use weir_engine::Engine;
use weir_engine::stats::Counter;
use weir_fabric::PortId;
use weir_policy::placement::{Decision, Look, Placer, Policy};
use weir_topology::{Topology, cpu_list};

use crate::helper::Hands;

mod pins;
mod shown;
mod sight;
#[cfg(test)]
mod tests;
mod vcpus;

pub(crate) use pins::affinity::set as set_affinity;
use pins::{Outcome, Pins, affinity};
pub(super) use sight::PortLook;
use sight::{GuestSight, Sight};

/// The interval of looks under traffic (ns).
pub(super) const LOOK_NS: u64 = 1_000_000_000;

/// The machine on which threads are placed. Tests replace it.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    /// The directory in which the processors are described.
    pub(crate) sysfs: PathBuf,
    pub(crate) proc: PathBuf,
    /// The processors for workers; `None` for all processors of this process.
    pub(crate) allowed: Option<BTreeSet<u16>>,
    /// The process that pins virtual processors.
    pub(crate) hands: Hands,
}

impl Default for Host {
    fn default() -> Self {
        Self { sysfs: "/sys".into(), proc: "/proc".into(), allowed: None, hands: Hands::Own }
    }
}

/// Counters of placement.
#[derive(Debug, Default)]
pub(crate) struct PlacementCounts {
    /// Moves of a worker to other CPUs.
    pub(crate) moves: Counter,
    /// Moves of a virtual processor to other CPUs.
    pub(crate) vcpu_moves: Counter,
    /// Moves that the kernel refused.
    pub(crate) refused: Counter,
}

/// A worker's thread.
#[derive(Debug, Default)]
struct WorkerState {
    /// The affinity that was set; `None` if it was never set.
    set: Option<BTreeSet<u16>>,
    /// The kernel's refusal to set it.
    refusal: Option<Errno>,
    moves: u64,
}

#[derive(Debug, Default)]
struct Machine {
    topology: Topology,
    /// The processors on which workers may run.
    allowed: BTreeSet<u16>,
}

pub(super) struct Placement {
    config: PlacementConfig,
    host: Host,
    /// The machine, or the reason why it is not known.
    machine: Result<Machine, String>,
    placer: Option<Placer>,
    sight: Sight,
    guests: Vec<GuestSight>,
    pins: Pins,
    workers: Vec<WorkerState>,
    decision: Option<Decision>,
    looked_ns: Option<u64>,
    counts: Arc<PlacementCounts>,
}

impl Placement {
    pub(super) fn new(config: PlacementConfig, host: Host, counts: Arc<PlacementCounts>) -> Self {
        let policy = match config.mode {
            PlacementMode::Off => None,
            PlacementMode::Static => Some(Policy::Static),
            PlacementMode::Dynamic => Some(Policy::Dynamic),
        };
        Self {
            config,
            machine: Ok(Machine::default()),
            placer: policy.map(|policy| Placer::new(policy, config.pin_vcpus)),
            sight: Sight::default(),
            guests: Vec::new(),
            pins: Pins::new(&host.proc, host.hands.clone()),
            workers: Vec::new(),
            decision: None,
            looked_ns: None,
            counts,
            host,
        }
    }

    /// Replaces the settings, and undoes the effect of the old ones.
    pub(super) fn change(&mut self, config: PlacementConfig, host: Host, engine: &Engine) {
        let counts = Arc::clone(&self.counts);
        let old = std::mem::replace(self, Self::new(config, host, counts));
        let allowed = old.machine.map(|machine| machine.allowed).unwrap_or_default();
        for (state, thread) in old.workers.iter().zip(engine.worker_threads()) {
            if let (Some(_), Some(thread)) = (&state.set, thread) {
                // If this fails, the new settings report the error at the next look.
                let _ = affinity::set(thread, &allowed);
            }
        }
    }

    pub(super) fn counts(&self) -> &Arc<PlacementCounts> {
        &self.counts
    }

    /// True if anything is to be placed.
    pub(super) fn is_on(&self) -> bool {
        self.placer.is_some()
    }

    /// Looks, decides and sets, unless the last time was less than [`LOOK_NS`] ago.
    pub(super) fn look(&mut self, now_ns: u64, engine: &Engine, ports: &[PortLook<'_>]) {
        let is_early =
            self.looked_ns.is_some_and(|looked_ns| now_ns.saturating_sub(looked_ns) < LOOK_NS);
        let Some(placer) = self.placer.as_mut().filter(|_| !is_early) else {
            return;
        };
        self.looked_ns = Some(now_ns);
        self.machine =
            look_at(&self.host, std::mem::replace(&mut self.machine, Err(String::new())));
        let Ok(machine) = &self.machine else {
            return;
        };
        let by_traffic = self.config.mode == PlacementMode::Dynamic;
        let workers = self.sight.workers(now_ns, engine, ports, by_traffic);
        self.guests = self.sight.guests(now_ns, &self.host.proc, ports, &mut self.pins);
        let guests: Vec<_> = self.guests.iter().map(|guest| guest.look.clone()).collect();
        let decision = placer.decide(&Look {
            now_ns,
            cpus: &machine.topology.cpus,
            allowed: &machine.allowed,
            workers: &workers,
            guests: &guests,
        });
        self.set_workers(&decision, engine);
        self.set_guests(&decision);
        self.decision = Some(decision);
    }

    /// The processor of the worker that serves each of a port's queues. Queues of a worker that may run on several are
    /// left out, and without `move_irqs` all are.
    pub(super) fn cpus_of(
        &self,
        engine: &Engine,
        port: PortId,
        queues: usize,
    ) -> BTreeMap<u16, u16> {
        let cpu = |queue: u16| {
            let state = self.workers.get(engine.worker_of(port, queue.into())?)?;
            let set = state.set.as_ref().filter(|set| set.len() == 1 && state.refusal.is_none())?;
            Some((queue, *set.first()?))
        };
        // An uplink has fewer queues than 2^16.
        (0..queues as u16).filter(|_| self.config.move_irqs).filter_map(cpu).collect()
    }

    fn set_workers(&mut self, decision: &Decision, engine: &Engine) {
        let Ok(Machine { allowed, .. }) = &self.machine else {
            return;
        };
        self.workers.resize_with(decision.workers.len(), WorkerState::default);
        let workers = self.workers.iter_mut().zip(&decision.workers).zip(engine.worker_threads());
        for (index, ((state, place), thread)) in workers.enumerate() {
            let wanted = place.cpu.map_or_else(|| allowed.clone(), |cpu| [cpu].into());
            let is_untouched = state.set.is_none() && place.cpu.is_none();
            // A worker that has not started yet is placed at the next look.
            let Some(thread) =
                thread.filter(|_| !is_untouched && state.set.as_ref() != Some(&wanted))
            else {
                continue;
            };
            let cpus = cpu_list(&wanted);
            state.refusal = affinity::set(thread, &wanted).err();
            match state.refusal {
                None => {
                    tracing::info!(worker = index, cpus, "worker moved");
                    state.moves += 1;
                    self.counts.moves.add(1);
                }
                Some(error) => {
                    let reason = affinity::explain(error);
                    tracing::warn!(worker = index, cpus, reason, "cannot move a worker");
                    self.counts.refused.add(1);
                }
            }
            state.set = Some(wanted);
        }
    }

    fn set_guests(&mut self, decision: &Decision) {
        let mut kept = BTreeSet::new();
        for guest in &self.guests {
            let place = decision.guests.get(&guest.look.id).and_then(|place| place.cpus.as_ref());
            let Some(cpus) = place else {
                continue;
            };
            for (thread, vcpu) in guest.threads.iter().zip(&guest.look.threads) {
                if !vcpu.movable {
                    continue;
                }
                kept.insert(*thread);
                match self.pins.pin(*thread, cpus) {
                    Outcome::Stays => {}
                    Outcome::Moved => {
                        let (thread, cpus) = (thread.id, cpu_list(cpus));
                        tracing::info!(guest = guest.look.id, thread, cpus, "vCPU moved");
                        self.counts.vcpu_moves.add(1);
                    }
                    Outcome::Refused(error) => {
                        let (thread, reason) = (thread.id, affinity::explain(error));
                        tracing::warn!(guest = guest.look.id, thread, reason, "cannot move a vCPU");
                        self.counts.refused.add(1);
                    }
                }
            }
        }
        self.counts.vcpu_moves.add(self.pins.keep(&kept));
    }
}

/// The present machine: its processors are read again if the set of allowed processors has changed.
fn look_at(host: &Host, known: Result<Machine, String>) -> Result<Machine, String> {
    let allowed = match &host.allowed {
        Some(allowed) => allowed.clone(),
        None => affinity::allowed(None).map_err(|error| {
            format!("where weir may run is not known: {}", affinity::explain(error))
        })?,
    };
    if let Ok(known) = known
        && known.allowed == allowed
        && !known.topology.cpus.is_empty()
    {
        return Ok(known);
    }
    let topology = Topology::read(&host.sysfs).map_err(|error| {
        let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
        format!("{error}{}", cause.unwrap_or_default())
    })?;
    Ok(Machine { topology, allowed })
}
