//! What the looks say, averaged: how busy each worker is, where the other ends of its traffic are, and
//! which processors the guests keep busy.

use std::collections::BTreeMap;

use super::{GuestId, GuestLook, Look, Policy, VcpuLook};

/// What a new look counts for in the average. With a look each second, the last four have most of it.
const NEW: f64 = 0.25;
/// What is less is forgotten.
const FORGOTTEN: f64 = 0.001;

/// The average of looks.
#[derive(Debug, Default)]
pub(super) struct Sight {
    /// There was a look.
    begun: bool,
    pub(super) workers: Vec<WorkerSight>,
    /// How much of each processor's time virtual processors take, 0 to 1 each.
    pub(super) busy: BTreeMap<u16, f64>,
}

/// The average of one worker.
#[derive(Debug, Default)]
pub(super) struct WorkerSight {
    pub(super) load: f64,
    /// Parts of its traffic by the processor of the other end; no part where that is not known.
    pub(super) near: BTreeMap<u16, f64>,
    /// Parts of its traffic by guest.
    pub(super) traffic: BTreeMap<GuestId, f64>,
}

impl Sight {
    pub(super) fn take_in(&mut self, policy: Policy, look: &Look<'_>) {
        // The first look stands for all that were before it.
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

/// Where a guest is: parts of 1 by processor.
fn parts_of(policy: Policy, guest: &GuestLook) -> BTreeMap<u16, f64> {
    // An idle guest is where its threads are, each as much as the other.
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

/// Where a thread is: parts of 1 by processor.
fn thread_parts(policy: Policy, thread: &VcpuLook) -> Vec<(u16, f64)> {
    match policy {
        Policy::Static => {
            let part = 1.0 / thread.may_run.len().max(1) as f64;
            thread.may_run.iter().map(|cpu| (*cpu, part)).collect()
        }
        Policy::Dynamic => vec![(thread.last_cpu, 1.0)],
    }
}

/// How busy a thread keeps the processors that it is on.
fn busy_part(policy: Policy, thread: &VcpuLook) -> f64 {
    match policy {
        // It may be.
        Policy::Static => 1.0,
        Policy::Dynamic => thread.load,
    }
}

/// Moves `old` by the part `new` of the way to `now`.
fn average<K: Copy + Ord>(old: &mut BTreeMap<K, f64>, now: &BTreeMap<K, f64>, new: f64) {
    for (key, value) in old.iter_mut() {
        *value += new * (now.get(key).copied().unwrap_or(0.0) - *value);
    }
    for (key, value) in now {
        old.entry(*key).or_insert(new * value);
    }
    old.retain(|_, value| *value >= FORGOTTEN);
}
