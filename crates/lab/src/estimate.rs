//! Estimates a run's length and its workers' load before it starts.

use crate::profile::bytes_ns;
use crate::scenario::{Endpoint, Load, LoadKind, Scenario};

/// Events of one frame on its way, acknowledgement included, none shared with other frames.
const EVENTS_PER_FRAME: f64 = 24.0;
/// Events of a timer: a worker's, a guest's or an uplink's.
const EVENTS_PER_TIMER: f64 = 6.0;
/// Shortest interval of one kind of timer in the estimate (ns), since workers busy-poll.
const TIMER_NS_MIN: u64 = 20_000;

/// Returns the most events of a plausible run, by its loads, links and timers. `host::run_within`
/// ends a run with far more.
pub fn events(scenario: &Scenario) -> u64 {
    let ns = (scenario.warm_up_ns.saturating_add(scenario.run_ns)) as f64;
    let mut frames = 0.0;
    // Streams at most fill the link that they share.
    let mut links = vec![0.0f64; scenario.uplinks.len()];
    for load in &scenario.loads {
        match &load.kind {
            LoadKind::Datagrams { .. } => frames += ns * forth_per_ns(scenario, load),
            LoadKind::Requests { .. } => frames += 2.0 * ns * forth_per_ns(scenario, load),
            LoadKind::Stream { segment_bytes: bytes, .. } | LoadKind::Socket { bytes, .. } => {
                let alone = ns * forth_per_ns(scenario, load);
                let shared = match (load.from, load.to) {
                    (Endpoint::Peer(uplink), _) | (_, Endpoint::Peer(uplink)) => Some(uplink),
                    // A frame goes from host to host.
                    _ => scenario.realization.twins.then_some(0),
                };
                match shared {
                    Some(uplink) => {
                        let bits = 8.0 * f64::from(*bytes);
                        let rate = scenario.uplinks.get(uplink).map_or(0, |it| it.bits_per_s);
                        let filled = rate as f64 / bits * ns / 1e9;
                        if let Some(link) = links.get_mut(uplink) {
                            *link = link.max(filled);
                        }
                    }
                    None => frames += alone,
                }
            }
        }
    }
    frames += links.iter().sum::<f64>();
    let polls = scenario.guests.iter().flat_map(|guest| {
        guest
            .poll
            .map(|poll| poll.interval_ns)
            .into_iter()
            .chain(guest.hypervisor_poll_ns)
            .chain(guest.tick_ns)
    });
    let polls = polls.map(|interval_ns| ns / interval_ns.max(1) as f64).sum::<f64>();
    let holds = scenario.workers.len() as f64 * ns / TIMER_NS_MIN as f64;
    let slices = ns / scenario.profile.scheduling.slice_ns.max(1) as f64;
    let rivals = scenario.rivals.len() as f64 * slices;
    let cpus = scenario.topology.cpus().unwrap_or(0) as f64;
    let ticks = match scenario.profile.tick_every_ns {
        0 => 0.0,
        every_ns => cpus * ns / every_ns as f64,
    };
    // `as` saturates.
    (frames * EVENTS_PER_FRAME + (polls + holds + rivals + ticks) * EVENTS_PER_TIMER) as u64
}

/// Returns the most frames that a load sends in a ns, by its ends' costs alone, without links and
/// competitors.
fn forth_per_ns(scenario: &Scenario, load: &Load) -> f64 {
    let costs = scenario.profile;
    match &load.kind {
        LoadKind::Datagrams { gap, .. } => 1.0 / gap.mean().max(1.0),
        LoadKind::Requests { outstanding, think, serve_ns, .. } => {
            let least_ns = costs.send_ns + costs.receive_ns + serve_ns;
            let alone = think.mean() + least_ns as f64;
            (f64::from(*outstanding) / alone).min(1.0 / least_ns.max(1) as f64)
        }
        LoadKind::Stream { segment_bytes: bytes, .. } | LoadKind::Socket { bytes, .. } => {
            let receive_ns = costs.receive_ns + bytes_ns(*bytes, costs.receive_ps_per_byte);
            1.0 / receive_ns.max(1) as f64
        }
    }
}

/// CPUs of worker time that the loads need.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// Datagrams alone, in bursts so long that only frames cost time.
    pub least: f64,
    /// All loads at their ends' full speed, with a burst, a wake-up and a call for each frame.
    pub most: f64,
}

/// Returns the load of a scenario on all its workers together, however many there are.
pub fn work(scenario: &Scenario) -> Work {
    /// Approximate length of a TCP acknowledgement.
    const ACK_BYTES: u32 = 66;
    let costs = &scenario.profile;
    let around_ns = costs.burst_ns
        + costs.sleep_ns
        + costs.poll_ns
        + costs.look_ns
        + costs.deadline_ns
        + costs.call_ns;
    let mut work = Work { least: 0.0, most: 0.0 };
    for load in &scenario.loads {
        let [from, to] = [load.from, load.to].map(|end| matches!(end, Endpoint::Peer(_)));
        let forward_ns = |bytes, from, to| costs.forward_ns(bytes, from, to) as f64;
        let most_ns = |bytes, from, to| {
            let interrupt_ns = if from { costs.uplink_interrupt_ns } else { 0 };
            forward_ns(bytes, from, to) + (around_ns + interrupt_ns) as f64
        };
        let rate = forth_per_ns(scenario, load);
        work.most += rate
            * match &load.kind {
                LoadKind::Datagrams { bytes, .. } => {
                    let bytes = bytes.mean() as u32; // `as` saturates
                    work.least += rate * forward_ns(bytes, from, to);
                    most_ns(bytes, from, to)
                }
                LoadKind::Requests { request_bytes, answer_bytes, .. } => {
                    most_ns(*request_bytes, from, to) + most_ns(*answer_bytes, to, from)
                }
                LoadKind::Stream { segment_bytes, .. } => {
                    most_ns(*segment_bytes, from, to) + most_ns(ACK_BYTES, to, from)
                }
                LoadKind::Socket { bytes, .. } => most_ns(*bytes, from, to),
            };
    }
    work
}
