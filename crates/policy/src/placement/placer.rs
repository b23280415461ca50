//! The plan: workers in turn, busiest first, each on the cheapest place. Also decides when a plan
//! replaces the one in force.

use std::collections::{BTreeMap, BTreeSet};

use super::cost::{Busy, Cost, Machine, Near};
use super::guests::{Guests, Sight};
use super::{Cpu, Decision, Look, Place, Policy, Reason, Rejected};

/// Least gain of a new plan, as a share of the cost of a line within the cache for a fully busy
/// worker.
pub const GAIN_MIN: f64 = 0.2;
/// Time for which a plan must show that gain before it takes effect (ns).
pub const SETTLE_NS: u64 = 3_000_000_000;
/// Least lifetime of a plan (ns).
pub const STAY_NS: u64 = 10_000_000_000;
/// Number of processors at or below which nothing is placed: there is none to reserve for a worker.
const FEW_CPUS: usize = 2;
/// Most alternatives reported.
const REJECTED_MAX: usize = 4;

/// Decides the places of workers and virtual processors.
#[derive(Debug)]
pub struct Placer {
    policy: Policy,
    sight: Sight,
    /// The plan in force: processor by worker.
    places: Vec<Option<u16>>,
    /// `None` without permission to place virtual processors.
    guests: Option<Guests>,
    patience: Patience,
}

/// Rule for replacing the plan in force.
#[derive(Debug, Default)]
struct Patience {
    /// Time since which another plan is better (ns).
    better_since_ns: Option<u64>,
    /// Beginning of the plan in force (ns); `None` at first.
    changed_ns: Option<u64>,
}

/// Inputs of a plan at one look.
struct Terms<'a> {
    machine: Machine<'a>,
    allowed: Vec<&'a Cpu>,
    near: Vec<Near>,
    busy: Busy<'a>,
    policy: Policy,
}

impl Placer {
    /// Returns a placer without places. It places virtual processors only with `pin_vcpus`.
    pub fn new(policy: Policy, pin_vcpus: bool) -> Self {
        Self {
            policy,
            sight: Sight::default(),
            places: Vec::new(),
            guests: pin_vcpus.then(Guests::default),
            patience: Patience::default(),
        }
    }

    /// Returns the plan to follow from now on.
    pub fn decide(&mut self, look: &Look<'_>) -> Decision {
        self.sight.take_in(self.policy, look);
        self.places.resize(look.workers.len(), None);
        let machine = Machine(look.cpus);
        let near = self.sight.workers.iter().map(|worker| Near::new(&machine, &worker.near));
        let terms = Terms {
            allowed: look.allowed.iter().filter_map(|cpu| machine.get(*cpu)).collect(),
            near: near.collect(),
            busy: Busy::new(&machine, &self.sight.busy),
            machine,
            policy: self.policy,
        };
        let refusal = refusal(&terms.allowed, look.workers.len());
        let plan = match refusal {
            Some(_) => vec![None; look.workers.len()],
            None => self.plan(&terms),
        };
        let gain = if plan == self.places { 0.0 } else { self.gain(&terms, &plan) };
        // A place on a processor that is no longer allowed is given up at once.
        let lost = self.places.iter().flatten().any(|cpu| !look.allowed.contains(cpu));
        let changes = self.patience.is_over(gain, look.now_ns, lost);
        if changes {
            self.places = plan;
        }
        let guests = match &mut self.guests {
            Some(guests) => guests.place(look, &terms.machine, &self.sight, &self.places, changes),
            None => BTreeMap::new(),
        };
        Decision {
            workers: (0..self.places.len())
                .map(|worker| terms.explain(worker, &self.places, refusal))
                .collect(),
            guests,
            settling: self.patience.better_since_ns.map(|since_ns| (since_ns, gain)),
        }
    }

    /// Makes a plan, busiest worker first: the best places gain most there.
    fn plan(&self, terms: &Terms<'_>) -> Vec<Option<u16>> {
        let load =
            |worker: &usize| self.sight.workers.get(*worker).map_or(0.0, |worker| worker.load);
        let mut order: Vec<usize> = (0..self.places.len()).collect();
        order.sort_by(|a, b| load(b).total_cmp(&load(a)));
        let mut plan = vec![None; self.places.len()];
        for worker in order {
            let now = self.places.get(worker).copied().flatten();
            let choice = terms.choose(worker, &plan, now);
            if let Some(place) = plan.get_mut(worker) {
                *place = choice;
            }
        }
        plan
    }

    /// Returns the gain of `plan`, weighted by load. The gain is infinite for a worker that must
    /// have a place and has none.
    fn gain(&self, terms: &Terms<'_>, plan: &[Option<u16>]) -> f64 {
        let workers = self.sight.workers.iter().enumerate();
        let gains = workers.map(|(worker, sight)| {
            let before = terms.cost(worker, &self.places);
            let after = terms.cost(worker, plan);
            match (before, after) {
                (None, Some(_)) => f64::INFINITY,
                (before, after) => {
                    let total = |cost: Option<Cost>| cost.map_or(0.0, |cost| cost.total());
                    // Under `static` a worker without load counts in full, since its place depends
                    // on its guests alone.
                    let weight = if terms.policy == Policy::Static { 1.0 } else { sight.load };
                    weight * (total(before) - total(after))
                }
            }
        });
        gains.sum()
    }
}

impl Patience {
    /// Returns whether a plan with this gain replaces the one in force now. `lost`: the present
    /// plan cannot continue.
    fn is_over(&mut self, gain: f64, now_ns: u64, lost: bool) -> bool {
        if gain < GAIN_MIN && !lost {
            self.better_since_ns = None;
            return false;
        }
        let since_ns = *self.better_since_ns.get_or_insert(now_ns);
        let settled = now_ns.saturating_sub(since_ns) >= SETTLE_NS;
        let stays = |changed_ns: u64| now_ns.saturating_sub(changed_ns) < STAY_NS;
        let over = settled && !self.changed_ns.is_some_and(stays);
        if over || lost || gain == f64::INFINITY {
            *self = Self { better_since_ns: None, changed_ns: Some(now_ns) };
            return true;
        }
        false
    }
}

/// Returns the reason why no worker can have a place at all.
fn refusal(allowed: &[&Cpu], workers: usize) -> Option<Reason> {
    let cores: BTreeSet<u16> = allowed.iter().map(|cpu| cpu.core).collect();
    if allowed.len() <= FEW_CPUS {
        Some(Reason::FewCpus { cpus: allowed.len() })
    } else if cores.len() <= workers {
        Some(Reason::FewCores { cores: cores.len() })
    } else {
        None
    }
}

impl Terms<'_> {
    fn near(&self, worker: usize) -> Option<&Near> {
        self.near.get(worker)
    }

    /// Returns the cheapest place for `worker` beside the places in `plan`. Among equals the
    /// present one (`now`) wins, else the lowest.
    fn choose(&self, worker: usize, plan: &[Option<u16>], now: Option<u16>) -> Option<u16> {
        let near = self.near(worker)?;
        if self.policy == Policy::Dynamic && near.is_empty() {
            return None;
        }
        let others = self.others(worker, plan);
        let total = |cpu: &Cpu| Cost::of(&self.machine, cpu, near, &self.busy, &others).total();
        let order = |cpu: &&&Cpu| (total(cpu), now != Some(cpu.id));
        let (cost, cpu) = self
            .allowed
            .iter()
            .map(|cpu| (order(&cpu), cpu))
            .min_by(|(a, _), (b, _)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)))?;
        let pays = cost.0 + GAIN_MIN < self.any(near).total();
        (self.policy == Policy::Static || pays).then_some(cpu.id)
    }

    /// Returns the cost where the kernel chooses.
    fn any(&self, near: &Near) -> Cost {
        Cost::of_any(self.allowed.iter().copied(), near)
    }

    fn others(&self, worker: usize, plan: &[Option<u16>]) -> Vec<&Cpu> {
        let others = plan.iter().enumerate().filter(|(other, _)| *other != worker);
        others.filter_map(|(_, cpu)| self.machine.get((*cpu)?)).collect()
    }

    /// Returns the cost of `worker` under `plan`; `None` where it must have a place and has none.
    fn cost(&self, worker: usize, plan: &[Option<u16>]) -> Option<Cost> {
        let near = self.near(worker)?;
        let cpu = plan.get(worker).copied().flatten().and_then(|cpu| self.machine.get(cpu));
        match (cpu, self.policy) {
            (Some(cpu), _) => {
                let others = self.others(worker, plan);
                Some(Cost::of(&self.machine, cpu, near, &self.busy, &others))
            }
            (None, Policy::Dynamic) => Some(self.any(near)),
            (None, Policy::Static) => None,
        }
    }

    fn explain(&self, worker: usize, places: &[Option<u16>], refusal: Option<Reason>) -> Place {
        let id = places.get(worker).copied().flatten();
        let free = |reason| Place { cpu: None, cost: 0.0, reason, rejected: Vec::new() };
        let (Some(near), None) = (self.near(worker), refusal) else {
            return free(refusal.unwrap_or(Reason::NothingKnown));
        };
        if id.is_none() && near.is_empty() {
            return free(Reason::NothingKnown);
        }
        let chosen = self.cost(worker, places).unwrap_or_default();
        let cpu = id.and_then(|id| self.machine.get(id));
        let reason = match cpu {
            None => Reason::KernelAsGood,
            Some(_) if near.is_empty() => Reason::OwnCore,
            Some(cpu) => Reason::NearVcpus { share: near.share_in_cache(cpu) },
        };
        let rejected = self.rejected(worker, near, places, cpu, &chosen);
        Place { cpu: id, cost: chosen.total(), reason, rejected }
    }

    /// Returns the best alternative in each cache.
    fn rejected(
        &self,
        worker: usize,
        near: &Near,
        places: &[Option<u16>],
        chosen: Option<&Cpu>,
        cost: &Cost,
    ) -> Vec<Rejected> {
        let others = self.others(worker, places);
        let mut best: BTreeMap<u16, Rejected> = BTreeMap::new();
        for cpu in self.allowed.iter().filter(|cpu| chosen.is_none_or(|chosen| chosen.id != cpu.id))
        {
            let other = Cost::of(&self.machine, cpu, near, &self.busy, &others);
            let total = other.total();
            if best.get(&cpu.cache).is_none_or(|best| total < best.cost) {
                let why = other.why_more_than(cost);
                best.insert(cpu.cache, Rejected { cpu: cpu.id, cost: total, why });
            }
        }
        let own = chosen.and_then(|chosen| best.remove(&chosen.cache));
        let mut far: Vec<_> = best.into_values().collect();
        far.sort_by(|a, b| a.cost.total_cmp(&b.cost));
        own.into_iter().chain(far).take(REJECTED_MAX).collect()
    }
}
