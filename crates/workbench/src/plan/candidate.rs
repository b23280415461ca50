//! Candidates for weir's settings: those to simulate and those to skip.

use std::collections::BTreeSet;
use std::fmt;

use weir_config::{Execution, PlacementMode, Realization};
use weir_lab::cpus::{Class, WEIGHT_USUAL};
use weir_lab::estimate::{self, Work};
use weir_lab::realization::{self, Realization as LabRealization};
use weir_lab::scenario::{Scenario, Thread};
use weir_limits::WORKERS_MAX;
use weir_policy::dispatch::Aim;
use weir_policy::placement::Policy;
use weir_text::count;

use super::host::Host;

/// Priority of real-time threads, as weir sets it.
const PRIORITY: u8 = 1;
/// Interval of the placer (ns), as in weir.
const LOOK_NS: u64 = 1_000_000_000;
/// Interval of the placer under `static` (ns). That policy needs only the guests' traffic, and follows its first plan
/// at once, so that the interval can be short enough for every run.
const LOOK_STATIC_NS: u64 = 100_000_000;
/// Warm-up under `dynamic` (ns). A dynamic plan takes effect after an advantage of three seconds, and the placer
/// first runs after one second.
const WARM_UP_DYNAMIC_NS: u64 = 5_000_000_000;
/// Number of workers up to which every number is simulated. Larger ones are simulated only if they are powers of two,
/// or three times such a power.
const STEP_BY_STEP: usize = 4;
/// Number of CPUs up to which weir places nothing.
const FEW_CPUS: usize = 2;

/// Settings of `[switch]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Execution model.
    pub execution: Execution,
    /// Realization of the workers; only for tasklets.
    pub realization: Option<Realization>,
    /// Number of workers.
    pub workers: usize,
    /// Placement of the workers.
    pub placement: PlacementMode,
    /// True if the placement also moves vCPUs.
    pub pin_vcpus: bool,
}

/// Settings that are not simulated.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Skipped {
    /// The settings.
    pub what: String,
    /// The reason.
    pub why: String,
}

impl Candidate {
    /// Returns `base` with these settings, as weir's crew and manager implement them.
    pub fn scenario(&self, base: &Scenario) -> Scenario {
        let class = match self.execution {
            Execution::Tasklet | Execution::Threads => Class::Fair { weight: WEIGHT_USUAL },
            Execution::RtThreads => Class::Realtime { priority: PRIORITY },
        };
        let aim = match self.realization {
            Some(Realization::Adaptive) => Some(Aim::Pack),
            Some(Realization::Shared | Realization::Dedicated) => Some(Aim::Spread),
            None => None,
        };
        let dispatch = aim.filter(|_| self.workers > 1);
        let policy = match self.placement {
            PlacementMode::Off => None,
            PlacementMode::Static => Some((Policy::Static, LOOK_STATIC_NS)),
            PlacementMode::Dynamic => Some((Policy::Dynamic, LOOK_NS)),
        };
        let warm_up_ns = match self.placement {
            // The warm-up is the same for both, so that both have the same packets.
            PlacementMode::Off | PlacementMode::Static => base.warm_up_ns.max(2 * LOOK_STATIC_NS),
            PlacementMode::Dynamic => base.warm_up_ns.max(WARM_UP_DYNAMIC_NS),
        };
        Scenario {
            workers: vec![Thread { cpus: Vec::new(), class }; self.workers],
            dispatch,
            first_worker: dispatch.filter(|aim| *aim == Aim::Pack).map(|_| 0),
            realization: LabRealization {
                dedicated: self.realization == Some(Realization::Dedicated),
                placement: policy.map(|(policy, look_ns)| realization::Placement {
                    policy,
                    look_ns,
                    pin_vcpus: self.pin_vcpus,
                }),
                ..base.realization
            },
            warm_up_ns,
            ..base.clone()
        }
    }

    /// Returns the candidate with another placement.
    pub fn placed(self, placement: PlacementMode, pin_vcpus: bool) -> Self {
        Self { placement, pin_vcpus: pin_vcpus && placement != PlacementMode::Off, ..self }
    }

    /// Returns the distance from weir's defaults, which decides between equal candidates.
    pub fn oddness(&self) -> [usize; 3] {
        let realization = match self.realization {
            Some(Realization::Adaptive) | None => 0,
            Some(Realization::Shared) => 1,
            Some(Realization::Dedicated) => 2,
        };
        [self.execution as usize, realization, self.placement as usize]
    }
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", count(self.workers, "worker"), self.execution)?;
        if let Some(realization) = self.realization {
            write!(f, ", {realization}")?;
        }
        write!(f, ", placement {}", self.placement)
    }
}

/// The simulations for a host.
#[derive(Debug)]
pub struct Candidates {
    /// Candidates to simulate first.
    pub first: Vec<Candidate>,
    /// True if the best of these candidates is then simulated with the dynamic placement, too.
    pub dynamic: bool,
    /// Settings to skip.
    pub skipped: Vec<Skipped>,
}

impl Candidates {
    /// Returns all settings that the file's limits allow, except those that a simple estimate excludes.
    pub fn of(host: &Host) -> Self {
        let limits = &host.file.limits;
        let executions =
            once_each(limits.execution.clone().unwrap_or_else(|| {
                vec![Execution::Tasklet, Execution::Threads, Execution::RtThreads]
            }));
        let realizations = once_each(limits.realization.clone().unwrap_or_else(|| {
            vec![Realization::Adaptive, Realization::Shared, Realization::Dedicated]
        }));
        let placements = once_each(limits.placement.clone().unwrap_or_else(|| {
            vec![PlacementMode::Off, PlacementMode::Static, PlacementMode::Dynamic]
        }));
        let mut skipped = Vec::new();
        let mut settings = Vec::new();
        for execution in executions {
            if execution == Execution::Tasklet {
                for workers in workers(host, &mut skipped) {
                    for realization in &realizations {
                        settings.push((execution, Some(*realization), workers));
                    }
                }
            } else {
                let ports = host.scenario.guests.len() + host.scenario.uplinks.len();
                settings.push((execution, None, ports.min(WORKERS_MAX)));
            }
        }
        if realizations.contains(&Realization::Adaptive)
            && realizations.contains(&Realization::Shared)
            && settings.iter().any(|it| it.2 == 1)
        {
            settings.retain(|it| *it != (Execution::Tasklet, Some(Realization::Shared), 1));
            skipped.push(Skipped {
                what: "1 worker, shared".into(),
                why: "it is the same as adaptive".into(),
            });
        }
        let (near, dynamic) = placeable(host, &placements, &mut skipped);
        let mut first = Vec::new();
        let cores = cores(host);
        let mut crowded = BTreeSet::new();
        for (execution, realization, workers) in settings {
            let plain = Candidate {
                execution,
                realization,
                workers,
                placement: PlacementMode::Off,
                pin_vcpus: false,
            };
            for placement in &near {
                if *placement != PlacementMode::Off && workers >= cores && near.len() > 1 {
                    crowded.insert(workers);
                } else {
                    first.push(plain.placed(*placement, limits.pin_vcpus));
                }
            }
        }
        if let Some(workers) = crowded.first() {
            skipped.push(Skipped {
                what: format!("placement of {workers} workers or more"),
                why: format!("weir places nothing where {cores} cores would leave none to guests"),
            });
        }
        Self { first, dynamic, skipped }
    }
}

/// Removes duplicates, and keeps the order.
fn once_each<T: PartialEq>(all: Vec<T>) -> Vec<T> {
    let mut once = Vec::new();
    for one in all {
        if !once.contains(&one) {
            once.push(one);
        }
    }
    once
}

fn cores(host: &Host) -> usize {
    let topology = host.cpus.topology;
    topology.cpus().unwrap_or(0) / topology.threads_per_core.max(1)
}

/// Returns the numbers of workers to simulate.
fn workers(host: &Host, skipped: &mut Vec<Skipped>) -> Vec<usize> {
    let ports = host.scenario.guests.len() + host.scenario.uplinks.len();
    let cpus = host.cpus.topology.cpus().unwrap_or(1);
    let allowed = host.file.limits.cpus.unwrap_or(WORKERS_MAX);
    let max = WORKERS_MAX.min(ports).min(cpus).min(allowed).max(1);
    let Work { least, most } = estimate::work(&host.scenario);
    // `as` saturates.
    let from = (least.ceil() as usize).clamp(1, max);
    let to = (most.ceil() as usize).saturating_mul(2).clamp(from, max);
    if from > 1 {
        skipped.push(Skipped {
            what: span(1, from - 1),
            why: format!("forwarding the datagrams takes {least:.1} CPUs, whatever else is saved"),
        });
    }
    if to < max {
        skipped.push(Skipped {
            what: span(to + 1, max),
            why: format!(
                "the work is {most:.1} CPUs, even with a wake-up and an interrupt for each packet, and for \
                 twice of that all are played"
            ),
        });
    }
    // With many workers, one more or less makes little difference.
    let step = |it: &usize| {
        let odd = it >> it.trailing_zeros();
        *it <= STEP_BY_STEP || odd == 1 || odd == 3 || *it == from || *it == to
    };
    let (played, between): (Vec<_>, Vec<_>) = (from..=to).partition(step);
    if !between.is_empty() {
        let between: Vec<_> = between.iter().map(ToString::to_string).collect();
        skipped.push(Skipped {
            what: format!("{} workers", between.join(", ")),
            why: "the next fewer and the next more are".into(),
        });
    }
    played
}

fn span(from: usize, to: usize) -> String {
    if from == to { count(to, "worker") } else { format!("{from} to {to} workers") }
}

/// Returns the placements to simulate first, and true if the dynamic one follows.
fn placeable(
    host: &Host,
    wanted: &[PlacementMode],
    skipped: &mut Vec<Skipped>,
) -> (Vec<PlacementMode>, bool) {
    let cpus = host.cpus.topology.cpus().unwrap_or(0);
    let topology = host.cpus.topology;
    let mut placements = wanted.to_vec();
    if placements.len() > 1 && cpus <= FEW_CPUS {
        placements.retain(|it| *it == PlacementMode::Off);
        skipped.push(Skipped {
            what: "placement".into(),
            why: format!("weir places nothing on {cpus} CPUs"),
        });
        if placements.is_empty() {
            placements.push(PlacementMode::Off);
        }
    }
    let caches = topology.sockets * topology.llcs_per_socket;
    let dynamic = PlacementMode::Dynamic;
    if placements.len() > 1 && caches == 1 && placements.contains(&dynamic) {
        placements.retain(|it| *it != dynamic);
        skipped.push(Skipped {
            what: "dynamic placement".into(),
            why: "with one last-level cache it does nothing".into(),
        });
    }
    // A dynamic placement takes seconds to settle, so it is simulated for the best candidate only.
    let later = placements.len() > 1 && placements.contains(&dynamic);
    if later {
        placements.retain(|it| *it != dynamic);
    }
    (placements, later)
}
