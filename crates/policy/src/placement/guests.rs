//! Places virtual processors into the cache of the worker that carries most of their guest's
//! traffic, off workers' cores. They stay there until workers move.

use std::collections::{BTreeMap, BTreeSet};

use super::cost::Machine;
use super::{Cpu, GuestId, GuestLook, GuestPlace, GuestReason, Look, Policy, VcpuLook};

/// Weight of a new look in the average. With a look each second, the last four have most of the
/// weight.
const NEW: f64 = 0.25;
/// Share below which an entry is dropped.
const FORGOTTEN: f64 = 0.001;

/// Averages over the looks: the load of each worker, the places of its traffic's peers, and the processors that guests
/// keep busy.
#[derive(Debug, Default)]
pub(super) struct Sight {
    /// Set after the first look.
    begun: bool,
    pub(super) workers: Vec<WorkerSight>,
    /// Share of each processor's time that virtual processors take, 0 to 1.
    pub(super) busy: BTreeMap<u16, f64>,
}

/// The average for one worker.
#[derive(Debug, Default)]
pub(super) struct WorkerSight {
    pub(super) load: f64,
    /// Shares of the traffic by the peer's processor; traffic with an unknown peer has no share.
    pub(super) near: BTreeMap<u16, f64>,
    /// Shares of the traffic by guest.
    pub(super) traffic: BTreeMap<GuestId, f64>,
}

impl Sight {
    pub(super) fn take_in(&mut self, policy: Policy, look: &Look<'_>) {
        // The first look counts for all earlier ones.
        let new = if std::mem::replace(&mut self.begun, true) { NEW } else { 1.0 };
        let mut spots = BTreeMap::new();
        let mut busy = BTreeMap::new();
        for guest in look.guests {
            spots.insert(guest.id, parts_of(policy, guest));
            for thread in &guest.threads {
                for (cpu, part) in thread_parts(policy, thread) {
                    *busy.entry(cpu).or_default() += part * busy_part(policy, thread);
                }
            }
        }
        average(&mut self.busy, &busy, new);
        self.workers.resize_with(look.workers.len(), WorkerSight::default);
        for (sight, worker) in self.workers.iter_mut().zip(look.workers) {
            sight.load += new * (worker.load - sight.load);
            let weight = |traffic: f64| match policy {
                Policy::Static => 1.0,
                Policy::Dynamic => traffic,
            };
            let known = worker.traffic.iter().filter(|(guest, _)| spots.contains_key(guest));
            let known: BTreeMap<GuestId, f64> =
                known.map(|(guest, traffic)| (*guest, weight(*traffic))).collect();
            let all: f64 = known.values().sum();
            let mut near = BTreeMap::new();
            let mut traffic = BTreeMap::new();
            for (guest, part) in known.into_iter().filter(|(_, part)| *part > 0.0) {
                traffic.insert(guest, part / all);
                for (cpu, spot) in spots.get(&guest).into_iter().flatten() {
                    *near.entry(*cpu).or_default() += part / all * spot;
                }
            }
            average(&mut sight.near, &near, new);
            average(&mut sight.traffic, &traffic, new);
        }
    }
}

/// Returns a guest's position: shares by processor, 1 in all.
fn parts_of(policy: Policy, guest: &GuestLook) -> BTreeMap<u16, f64> {
    // An idle guest is where its threads are, with equal shares.
    let idle = guest.threads.iter().all(|thread| thread.load <= 0.0);
    let weight = |thread: &VcpuLook| match policy {
        Policy::Dynamic if !idle => thread.load,
        _ => 1.0,
    };
    let all: f64 = guest.threads.iter().map(weight).sum();
    let mut parts = BTreeMap::new();
    for thread in &guest.threads {
        for (cpu, part) in thread_parts(policy, thread) {
            *parts.entry(cpu).or_default() += weight(thread) / all * part;
        }
    }
    parts
}

/// Returns a thread's position: shares by processor, 1 in all.
fn thread_parts(policy: Policy, thread: &VcpuLook) -> Vec<(u16, f64)> {
    match policy {
        Policy::Static => {
            let part = 1.0 / thread.may_run.len().max(1) as f64;
            thread.may_run.iter().map(|cpu| (*cpu, part)).collect()
        }
        Policy::Dynamic => vec![(thread.last_cpu, 1.0)],
    }
}

/// Returns how busy a thread keeps its processors.
fn busy_part(policy: Policy, thread: &VcpuLook) -> f64 {
    match policy {
        // A thread may become busy at any time.
        Policy::Static => 1.0,
        Policy::Dynamic => thread.load,
    }
}

/// Moves `old` by the share `new` of the way to `now`.
fn average<K: Copy + Ord>(old: &mut BTreeMap<K, f64>, now: &BTreeMap<K, f64>, new: f64) {
    for (key, value) in old.iter_mut() {
        *value += new * (now.get(key).copied().unwrap_or(0.0) - *value);
    }
    for (key, value) in now {
        old.entry(*key).or_insert(new * value);
    }
    old.retain(|_, value| *value >= FORGOTTEN);
}

/// Places given to guests.
#[derive(Debug, Default)]
pub(super) struct Guests {
    /// Worker of each guest.
    beside: BTreeMap<GuestId, usize>,
}

impl Guests {
    /// Places each guest of `look`, with workers at `places`. A guest with a place keeps it unless
    /// the workers have `moved`.
    pub(super) fn place(
        &mut self,
        look: &Look<'_>,
        machine: &Machine<'_>,
        sight: &Sight,
        places: &[Option<u16>],
        moved: bool,
    ) -> BTreeMap<GuestId, GuestPlace> {
        let present: BTreeSet<GuestId> = look.guests.iter().map(|guest| guest.id).collect();
        self.beside.retain(|guest, _| present.contains(guest) && !moved);
        // Guests with a place come first, then those with most traffic.
        let mut order: Vec<_> = look
            .guests
            .iter()
            .map(|guest| (self.beside.get(&guest.id).copied(), main_worker(sight, guest.id), guest))
            .collect();
        order.sort_by(|(a_old, a, _), (b_old, b, _)| {
            let traffic = |main: &Option<(usize, f64)>| main.map_or(0.0, |(_, traffic)| traffic);
            b_old.is_some().cmp(&a_old.is_some()).then(traffic(b).total_cmp(&traffic(a)))
        });
        let cores: BTreeSet<u16> =
            places.iter().filter_map(|cpu| machine.get((*cpu)?)).map(|cpu| cpu.core).collect();
        let mut taken: BTreeMap<u16, usize> = BTreeMap::new();
        let mut found = BTreeMap::new();
        for (old, main, guest) in order {
            let worker = old.or(main.map(|(worker, _)| worker));
            let home = worker
                .and_then(|worker| Some((worker, machine.get(places.get(worker).copied()??)?)));
            let place = match home {
                None => Err(GuestReason::NoWorkerPlaced),
                Some((_, home)) => room(machine, guest, home, &cores, &taken),
            };
            let place = match (place, home) {
                (Ok(cpus), Some((worker, home))) => {
                    self.beside.insert(guest.id, worker);
                    *taken.entry(home.cache).or_default() += movable(guest).count();
                    GuestPlace { cpus: Some(cpus), reason: GuestReason::BesideWorker(worker) }
                }
                (place, _) => {
                    self.beside.remove(&guest.id);
                    let reason = place.err().unwrap_or(GuestReason::NoWorkerPlaced);
                    GuestPlace { cpus: None, reason }
                }
            };
            found.insert(guest.id, place);
        }
        found
    }
}

/// Returns the worker that carries most of a guest's traffic, and its share.
fn main_worker(sight: &Sight, guest: GuestId) -> Option<(usize, f64)> {
    let carried = sight.workers.iter().enumerate().filter_map(|(worker, sight)| {
        Some((worker, sight.load.max(f64::MIN_POSITIVE) * sight.traffic.get(&guest)?))
    });
    carried.max_by(|(_, a), (_, b)| a.total_cmp(b))
}

fn movable(guest: &GuestLook) -> impl Iterator<Item = &VcpuLook> {
    guest.threads.iter().filter(|thread| thread.movable)
}

/// Returns the processors in `home`'s cache for the guest's threads, if all threads may run there
/// and each gets one besides the `taken` ones of that cache.
fn room(
    machine: &Machine<'_>,
    guest: &GuestLook,
    home: &Cpu,
    workers_cores: &BTreeSet<u16>,
    taken: &BTreeMap<u16, usize>,
) -> Result<BTreeSet<u16>, GuestReason> {
    let movable = || movable(guest);
    if movable().next().is_none() {
        return Err(GuestReason::NoneNamed);
    }
    let on_node =
        |thread: &&VcpuLook| machine.get(thread.last_cpu).is_some_and(|cpu| cpu.node == home.node);
    if movable().filter(on_node).count() * 2 < movable().count() {
        return Err(GuestReason::OtherNode);
    }
    let free = machine
        .0
        .iter()
        .filter(|cpu| cpu.cache == home.cache && cpu.node == home.node)
        .filter(|cpu| !workers_cores.contains(&cpu.core))
        .map(|cpu| cpu.id);
    let cpus: BTreeSet<u16> =
        free.filter(|cpu| movable().all(|thread| thread.may_run.contains(cpu))).collect();
    let threads = movable().count();
    let left = cpus.len().saturating_sub(taken.get(&home.cache).copied().unwrap_or(0));
    if threads > left {
        return Err(GuestReason::NoRoom { threads, cpus: left });
    }
    Ok(cpus)
}
