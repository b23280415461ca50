//! Variants of weir in an experiment, and its optional second host.

use weir_lab::realization::{Identifiers, Placement, Realization};
use weir_lab::scenario::{Guest, Scenario, Thread};
use weir_lab::topology::Topology;
use weir_policy::placement::Policy;

use super::error::Problem;
use super::file::{PlacementFile, PlacementPolicy, RealizationFile, Workers};

/// Reads `[realization]`.
pub fn realization(file: &RealizationFile) -> Result<Realization, Problem> {
    let hosts = file.hosts.unwrap_or(1);
    if !(1..=2).contains(&hosts) {
        let message = format!("there are {hosts} hosts, expected 1 or 2");
        return Err(Problem::new("realization.hosts", message));
    }
    let policy = |it: &PlacementFile| match it.policy {
        PlacementPolicy::None => None,
        PlacementPolicy::Static => Some(Policy::Static),
        PlacementPolicy::Dynamic => Some(Policy::Dynamic),
    };
    Ok(Realization {
        dedicated: file.workers == Workers::Dedicated,
        uplink_apart: file.uplink_apart,
        identifiers: file
            .identifiers
            .as_ref()
            .map(|it| Identifiers { count: it.count, cpu: it.cpu }),
        placement: file.placement.as_ref().and_then(|it| {
            let (look_ns, pin_vcpus) = (it.look.0, it.pin_vcpus);
            policy(it).map(|policy| Placement { policy, look_ns, pin_vcpus })
        }),
        cache_blind: file.cache_blind,
        guests_poll: file.guests_poll,
        tx_calls_when_full: file.tx_calls_when_full,
        guests_are_threads: file.guests_are_threads,
        timers_ahead: file.timers_ahead,
        hold_timers: file.hold_timers,
        manager: file.manager,
        client_threads: file.client_threads,
        twins: hosts == 2,
    })
}

/// Adds an equal second host at the other end of the uplink's wire.
pub fn doubled(one: Scenario) -> Scenario {
    let each = one.topology.cpus().unwrap_or(0);
    let on = |cpus: &[usize], host: usize| match cpus.is_empty() {
        true => (host * each..(host + 1) * each).collect(),
        false => cpus.iter().map(|cpu| cpu + host * each).collect(),
    };
    let worker = |host, it: &Thread| Thread { cpus: on(&it.cpus, host), ..it.clone() };
    let guest = |host, it: &Guest| Guest { cpus: on(&it.cpus, host), ..it.clone() };
    Scenario {
        topology: Topology { sockets: 2 * one.topology.sockets, ..one.topology },
        workers: (0..2)
            .flat_map(|host| one.workers.iter().map(move |it| worker(host, it)))
            .collect(),
        guests: (0..2).flat_map(|host| one.guests.iter().map(move |it| guest(host, it))).collect(),
        uplinks: (0..2).flat_map(|_| one.uplinks.iter().cloned()).collect(),
        ..one
    }
}
