//! Places virtual processors into the cache of the worker that carries most of their guest's
//! traffic, off workers' cores. They stay there until workers move.

use std::collections::{BTreeMap, BTreeSet};

use super::cost::Machine;
use super::sight::Sight;
use super::{Cpu, GuestId, GuestLook, GuestPlace, GuestReason, Look, VcpuLook};

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
