//! Placement: where workers run, and with permission guests' virtual processors (Guo 2009). Once a second
//! while there is traffic it looks where both are and asks the policy ([`weir_policy::placement`]).
//!
//! | file | what |
//! |---|---|
//! | `sight.rs` | what workers carry for which guest, and where its virtual processors are |
//! | `vcpus.rs` | threads of virtual processors, from `/proc` |
//! | `affinity.rs` | where a thread may run |
//! | `pins.rs` | threads of others that were told where to run, and giving that back |
//! | `shown.rs` | `weir explain placement` |

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::io::Errno;
use weir_config::{PlacementConfig, PlacementMode};
use weir_engine::Engine;
use weir_engine::stats::Counter;
use weir_policy::placement::{Decision, Look, Placer, Policy};
use weir_topology::{Topology, cpu_list};

use crate::helper::Hands;

mod affinity;
mod pins;
mod shown;
mod sight;
#[cfg(test)]
mod tests;
mod vcpus;

pub(crate) use affinity::set as set_affinity;

use pins::{Outcome, Pins};
pub(super) use sight::PortLook;
use sight::{GuestSight, Sight};

/// How often it looks while there is traffic (ns).
pub(super) const LOOK_NS: u64 = 1_000_000_000;

/// What there is to place on. Tests make up another.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    /// Where the processors are described.
    pub(crate) sysfs: PathBuf,
    pub(crate) proc: PathBuf,
    /// Where workers may run; `None` for what this process may.
    pub(crate) allowed: Option<BTreeSet<u16>>,
    /// Who tells virtual processors where to run.
    pub(crate) hands: Hands,
}

impl Default for Host {
    fn default() -> Self {
        Self { sysfs: "/sys".into(), proc: "/proc".into(), allowed: None, hands: Hands::Own }
    }
}

/// What placement counts.
#[derive(Debug, Default)]
pub(crate) struct PlacementCounts {
    /// Times that a worker was told to run elsewhere.
    pub(crate) moves: Counter,
    /// Times that a virtual processor was.
    pub(crate) vcpu_moves: Counter,
    /// Times that the kernel refused either.
    pub(crate) refused: Counter,
}

/// A worker's thread.
#[derive(Debug, Default)]
struct WorkerState {
    /// Where it was told to run; `None` while it never was told.
    set: Option<BTreeSet<u16>>,
    /// The kernel did not want that.
    refusal: Option<Errno>,
    moves: u64,
}

#[derive(Debug, Default)]
struct Machine {
    topology: Topology,
    /// Where workers may run.
    allowed: BTreeSet<u16>,
}

pub(super) struct Placement {
    config: PlacementConfig,
    host: Host,
    /// Or why it is not known.
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

    /// Takes other settings. What was set by the old ones is undone.
    pub(super) fn change(&mut self, config: PlacementConfig, host: Host, engine: &Engine) {
        let counts = Arc::clone(&self.counts);
        let old = std::mem::replace(self, Self::new(config, host, counts));
        let allowed = old.machine.map(|machine| machine.allowed).unwrap_or_default();
        for (state, thread) in old.workers.iter().zip(engine.worker_threads()) {
            if let (Some(_), Some(thread)) = (&state.set, thread) {
                // Where it cannot be undone, the new settings say so at the next look.
                let _ = affinity::set(thread, &allowed);
            }
        }
    }

    pub(super) fn counts(&self) -> &Arc<PlacementCounts> {
        &self.counts
    }

    /// Whether anything is to be placed.
    pub(super) fn is_on(&self) -> bool {
        self.placer.is_some()
    }

    /// Looks, decides and sets, unless it did so less than [`LOOK_NS`] ago.
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

    fn set_workers(&mut self, decision: &Decision, engine: &Engine) {
        let Ok(Machine { allowed, .. }) = &self.machine else {
            return;
        };
        self.workers.resize_with(decision.workers.len(), WorkerState::default);
        let workers = self.workers.iter_mut().zip(&decision.workers).zip(engine.worker_threads());
        for (index, ((state, place), thread)) in workers.enumerate() {
            let wanted = place.cpu.map_or_else(|| allowed.clone(), |cpu| [cpu].into());
            let is_untouched = state.set.is_none() && place.cpu.is_none();
            // One that has not begun yet has its turn at the next look.
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

/// The machine now: its processors are read again when workers may run elsewhere than before.
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
