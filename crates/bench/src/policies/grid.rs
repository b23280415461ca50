//! A grid of loads: `auto` against the best fixed hold of each load.
//!
//! A fixed hold suits some loads and ruins others. The best fixed setting of a load delivers the most packets, and
//! among equal ones takes the least CPU time per packet. `auto` does not know the load. It is compared by delivered
//! packets and by CPU time per packet (worker and both guests). Both ratios are within a round, so that a disturbance
//! affects both sides. The worse median of the two counts.
//!
//! For each round the best setting is chosen from the *other* rounds. Within the same rounds it would be the luckiest
//! one: of seven equal settings, one always has a better median than `auto`.
//!
//! Settings that are [`far off`](given_up) after the first round leave the contest.
//!
//! Without traffic, busy cores are compared, and less than [`IDLE_CORES`] counts as [`IDLE_CORES`]. Loads with
//! packets, even a thousand a second, have no such floor.

use serde::Serialize;

use super::super::figures::FigureRow;
use super::super::report::median_and_spread;
use super::super::slice::Slice;
use super::contests::{Contest, Setting};

/// Smallest share of the largest number of packets at which a fixed setting may be the best.
const PACKETS_SHARE_MIN: f64 = 0.98;
/// Number of busy cores below which all count as equally idle: half a percent of a core.
const IDLE_CORES: f64 = 0.005;
/// Share of the largest number of packets below which a fixed setting is far off.
const PACKETS_SHARE_FAR_OFF: f64 = 0.9;
/// Multiple of the best setting's CPU above which a fixed setting is far off.
const COST_FAR_OFF: f64 = 1.4;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct LoadRow {
    pub(super) name: &'static str,
    /// The best setting with a fixed hold.
    pub(super) best_static: String,
    pub(super) auto_vs_best_static: f64,
    pub(super) policies: Vec<PolicyRow>,
}

/// Medians of a load under a policy.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct PolicyRow {
    pub(super) name: String,
    /// Number of turns measured.
    pub(super) turns: usize,
    pub(super) packets_per_s: f64,
    /// CPU time of the worker and the guests per packet.
    pub(super) cpu_us_per_packet: f64,
    /// Busy cores of worker and guests.
    pub(super) cores: f64,
    /// Median time of a packet or, if the load has them, of a round trip.
    pub(super) p50_us: Option<f64>,
    /// Number of times that a guest was notified of a frame later than its budget allows.
    pub(super) breaches: u64,
}

impl PolicyRow {
    /// Summarises all rounds, or all but `without`.
    fn new(setting: &Setting, slices: &[Slice], without: Option<usize>) -> Self {
        let slices = slices.iter().enumerate().filter(|(round, _)| Some(*round) != without);
        let slices: Vec<_> = slices.map(|(_, slice)| slice).collect();
        let median = |of: &dyn Fn(&Slice) -> Option<f64>| {
            let values = slices.iter().filter_map(|slice| of(slice)).collect();
            median_and_spread(values).map(|(median, ..)| median)
        };
        Self {
            name: setting.name.clone(),
            turns: slices.len(),
            packets_per_s: median(&Slice::packets_per_s).unwrap_or(0.0),
            cpu_us_per_packet: median(&Slice::all_cpu_us_per_packet).unwrap_or(0.0),
            cores: median(&|slice| Some(cores(slice))).unwrap_or(0.0),
            p50_us: median(&|slice| slice.latency_us(|latency| latency.p50_ns)),
            breaches: slices.iter().flat_map(|slice| slice.breaches.values()).sum(),
        }
    }

    /// Returns the cost to minimise. `most` is the largest number of packets under any policy.
    fn cost(&self, most: f64) -> f64 {
        match most {
            0.0 => self.cores.max(IDLE_CORES),
            _ => self.cpu_us_per_packet,
        }
    }
}

/// Returns the busy cores of worker and guests.
fn cores(slice: &Slice) -> f64 {
    slice.switch_cores() + slice.guests_cores()
}

impl LoadRow {
    /// Compares `auto` with the best setting, round by round.
    pub(super) fn new(contest: &Contest, slices: &[Vec<Slice>]) -> (Self, FigureRow) {
        let rows = |without| rows(contest, slices, without);
        // `auto` is the last setting.
        let best = |rows: &[PolicyRow]| best(&rows[..rows.len() - 1]);
        let (auto, _) = slices.split_last().expect("there are settings");
        let others = match auto.len() {
            1 => vec![&slices[best(&rows(None))][0]],
            rounds => (0..rounds).map(|round| &slices[best(&rows(Some(round)))][round]).collect(),
        };
        let policies = rows(None);
        let best_static = policies[best(&policies)].name.clone();
        let says = format!(
            "{}: auto with {} against {best_static}, packets or CPU for each, whichever is worse",
            contest.load_name, contest.budget
        );
        let ratios = against(auto, &others);
        let figure = FigureRow::new(contest.name.clone(), "x", says, ratios)
            .expect("contests without rounds are left out");
        let name = contest.load_name;
        (Self { name, best_static, auto_vs_best_static: figure.median, policies }, figure)
    }
}

/// Returns all settings, over all turns or all but `without`.
fn rows(contest: &Contest, slices: &[Vec<Slice>], without: Option<usize>) -> Vec<PolicyRow> {
    let settings = contest.settings.iter().zip(slices);
    settings.map(|(setting, slices)| PolicyRow::new(setting, slices, without)).collect()
}

/// Returns the index of the best policy. There must be at least one.
pub(super) fn best(policies: &[PolicyRow]) -> usize {
    let most = most(policies);
    let enough =
        to_the_end(policies).filter(|(_, policy)| policy.packets_per_s >= PACKETS_SHARE_MIN * most);
    let cheapest = enough.min_by(|(_, a), (_, b)| a.cost(most).total_cmp(&b.cost(most)));
    cheapest.map_or(0, |(index, _)| index)
}

/// Iterates over the policies that were not given up.
fn to_the_end(policies: &[PolicyRow]) -> impl Iterator<Item = (usize, &PolicyRow)> {
    let turns = most_turns(policies);
    policies.iter().enumerate().filter(move |(_, policy)| policy.turns == turns)
}

fn most(policies: &[PolicyRow]) -> f64 {
    to_the_end(policies).map(|(_, policy)| policy.packets_per_s).fold(0.0, f64::max)
}

pub(super) fn most_turns(policies: &[PolicyRow]) -> usize {
    policies.iter().map(|policy| policy.turns).max().unwrap_or(0)
}

/// Returns for each setting whether further measurements are useless. The last setting, `auto`, is always measured.
pub(super) fn given_up(contest: &Contest, slices: &[Vec<Slice>]) -> Vec<bool> {
    let policies = rows(contest, slices, None);
    let fixed = &policies[..policies.len() - 1];
    let most = most(fixed);
    let best = fixed[best(fixed)].cost(most);
    let far_off = |policy: &PolicyRow| {
        policy.packets_per_s < PACKETS_SHARE_FAR_OFF * most
            || policy.cost(most) > COST_FAR_OFF * best
    };
    let turns = most_turns(fixed);
    let fixed = fixed.iter().map(|policy| policy.turns < turns || far_off(policy));
    fixed.chain([false]).collect()
}

/// Returns the ratio of our result to another's by round, for packets or CPU time per packet, whichever has the worse
/// median.
pub(super) fn against(ours: &[Slice], others: &[&Slice]) -> Vec<f64> {
    let rounds = || ours.iter().zip(others.iter().copied());
    if others.iter().all(|slice| slice.received == 0) {
        let busy = |slice| cores(slice).max(IDLE_CORES);
        return rounds().map(|(our, other)| busy(other) / busy(our)).collect();
    }
    let ratios = |of: fn(&Slice, &Slice) -> Option<f64>| -> Vec<f64> {
        rounds().filter_map(|(our, other)| of(our, other)).collect()
    };
    let packets = ratios(|our, other| Some(our.packets_per_s()? / other.packets_per_s()?));
    let cpu =
        ratios(|our, other| Some(other.all_cpu_us_per_packet()? / our.all_cpu_us_per_packet()?));
    let median = |ratios: &[f64]| median_and_spread(ratios.to_vec()).map_or(0.0, |(m, ..)| m);
    if median(&packets) < median(&cpu) { packets } else { cpu }
}

/// Smallest ratio of medians at which `auto` counts as delaying a load.
const LATER: f64 = 1.05;
/// Largest ratio of CPU times at which `auto` saves enough to justify the delay.
const SAVED: f64 = 0.9;

/// Returns the number of loads whose packets are later at the median with `auto` than with
/// immediate calls, without saving a tenth of the CPU time for a packet. `None` if no load has
/// times.
pub(super) fn held_in_vain(loads: &[LoadRow]) -> Option<FigureRow> {
    let timed = loads.iter().filter_map(|LoadRow { name, policies, .. }| {
        let (immediate, auto) = (policies.first()?, policies.last()?);
        let later = auto.p50_us? > LATER * immediate.p50_us?;
        let saves = auto.cpu_us_per_packet < SAVED * immediate.cpu_us_per_packet;
        Some((*name, later && !saves))
    });
    let (in_vain, others): (Vec<_>, Vec<_>) = timed.partition(|(_, in_vain)| *in_vain);
    let names: Vec<_> = in_vain.iter().map(|(name, _)| *name).collect();
    let all = in_vain.len() + others.len();
    let says = format!(
        "of {all} loads: more than 5 % later at the median under auto than under immediate, and less than 10 % of the \
         CPU saved: {}",
        if names.is_empty() { "none".into() } else { names.join(", ") }
    );
    let count = (all > 0).then(|| vec![names.len() as f64])?;
    FigureRow::new("auto_hold_without_saving", "loads", says, count)
}

/// Returns the figure of the worst load, which stands for all.
pub(super) fn worst(figures: &[FigureRow]) -> Option<FigureRow> {
    let worst = figures.iter().min_by(|a, b| a.median.total_cmp(&b.median))?;
    let says = format!("the worst of {} loads, {}", figures.len(), worst.says);
    Some(FigureRow { name: "auto_vs_best_static".into(), says, ..worst.clone() })
}
