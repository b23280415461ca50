//! Averages over the looks: the load of each worker, the places of its traffic's peers, and the
//! processors that guests keep busy.

use std::collections::BTreeMap;

use super::{GuestId, GuestLook, Look, Policy, VcpuLook};

/// Weight of a new look in the average. With a look each second, the last four have most of the
/// weight.
const NEW: f64 = 0.25;
/// Share below which an entry is dropped.
const FORGOTTEN: f64 = 0.001;

/// The average of looks.
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
        // The first look stands for all before it.
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
