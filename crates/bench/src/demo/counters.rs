//! Counters of a running phase.

use std::collections::BTreeMap;

use weir_config::{LatencyBudget, Workers};
use weir_switch::stats::{CallSettings, SwitchStats};

use super::figures::{Latency, Sample, Trouble};
use super::phase::Phase;
use crate::rig::{Guest, Places, Rig, Role, Setup, port};

pub(super) fn setup(phase: Phase) -> Setup {
    Setup {
        load: phase.traffic.load(),
        calls: CallSettings { moderation: phase.moderation, ..CallSettings::default() },
        sender_calls: None,
        latency_budget: LatencyBudget::DEFAULT,
        workers: Workers::Auto,
        filter: &[],
        packed: false,
        containers: false,
        places: Places::Anywhere,
    }
}

/// Returns the present counters of a phase.
pub(super) fn sample(phase: Phase, rig: &Rig) -> Sample {
    let latency = rig.guest(phase.traffic.load().latency_at()).stats.latency();
    let latency = (!latency.is_empty()).then(|| Latency {
        p50_ns: latency.value_at_quantile(0.5),
        p99_ns: latency.value_at_quantile(0.99),
    });
    let at = rig.elapsed();
    let stats = rig.stats();
    let receiver = port(&stats, Role::Receiver);
    let rx = receiver.map(|port| port.rx).unwrap_or_default();
    let loads = rig.guests().map(|guest| guest.stats.snapshot());
    let sum =
        |counter: fn(&weir_vif::load::LoadSnapshot) -> u64| loads.iter().map(counter).sum::<u64>();
    Sample {
        at,
        frames: rx.frames,
        bytes: rx.bytes,
        calls: rx.calls,
        hold: receiver.map(|port| port.hold_ns).unwrap_or_default(),
        latency,
        lost: sum(|load| load.lost),
        reordered: sum(|load| load.reordered),
        trouble: Trouble {
            retransmitted: sum(|load| load.retransmitted),
            invalid: sum(|load| load.invalid),
            dropped: drops(&stats),
        },
        switch_cpu_ns: stats.workers.iter().map(|worker| worker.cpu_ns).sum(),
        guests_cpu_ns: rig.guests().map(Guest::cpu_ns).iter().sum(),
    }
}

/// Returns both ports' dropped frames by reason.
fn drops(stats: &SwitchStats) -> BTreeMap<String, u64> {
    let mut drops = BTreeMap::new();
    for (reason, count) in stats.ports.iter().flat_map(|port| &port.drops) {
        *drops.entry(reason.clone()).or_default() += count;
    }
    drops
}
