//! Chooses the best simulated plan, and explains why the others were not chosen.
//!
//! 1. Every load gets through: losses stay within `lost`, and streams and requests reach their `at_least`.
//! 2. Every group keeps its p99, or else its latency budget, and weir uses only the CPUs that it may use.
//! 3. Among the remaining plans, those in which weir and guests together use the least CPU win.
//! 4. Among plans within one percent, or 0.01 CPU, of the best, the fewest workers win, and then the plan nearest to
//!    weir's defaults.

use weir_text::count;

use super::host::{Group, Host};
use super::play::{GroupPlayed, Played};

/// Largest relative difference of CPU times that counts as none. The lab does not resolve smaller ones.
const SAME: f64 = 0.01;
/// The absolute difference that counts as none (CPUs).
const SAME_CPUS: f64 = 0.01;
/// Largest share of late interrupts at which a budget counts as kept, as for a p99.
const LATE_MAX: f64 = 0.01;

/// A limit that a candidate does not meet.
#[derive(Clone, Debug)]
pub struct Miss {
    /// Description in words.
    pub text: String,
    /// The distance: the missing part of the load, or the excess over a bound.
    by: By,
}

#[derive(Clone, Copy, Debug)]
enum By {
    Load(f64),
    Bound(f64),
}

/// Returns the limits that a candidate does not meet.
pub fn misses(host: &Host, played: &Played) -> Vec<Miss> {
    let groups = host.groups.iter().zip(&played.groups);
    let mut misses: Vec<_> = groups.flat_map(|(group, it)| of_group(host, group, it)).collect();
    if let Some(cpus) = host.file.limits.cpus.map(|cpus| cpus as f64)
        && played.weir_cpus > cpus
    {
        misses.push(Miss {
            text: format!("weir takes {:.2} CPUs of {cpus}", played.weir_cpus),
            by: By::Bound(played.weir_cpus / cpus - 1.0),
        });
    }
    misses
}

fn of_group(host: &Host, group: &Group, it: &GroupPlayed) -> Vec<Miss> {
    let name = &group.name;
    let mut misses = Vec::new();
    let lost_max = host.file.limits.lost.map_or(0.0, |lost| lost.0 as f64 / 1e3);
    if it.lost > lost_max {
        let text = format!("{name} loses {} of its packets", percent(it.lost));
        misses.push(Miss { text, by: By::Load(it.lost) });
    }
    for (loads, got) in group.loads.iter().zip(&it.forth_per_s) {
        if let Some(wanted) = loads.at_least.filter(|wanted| got < wanted) {
            let part = 1.0 - got / wanted;
            let text = format!("{name} gets {} less than it needs", percent(part));
            misses.push(Miss { text, by: By::Load(part) });
        }
    }
    match (group.p99_ns, it.p99_ns) {
        (Some(wanted), Some(got)) if got > wanted => {
            let text = format!("{name}: p99 {} over the target {}", time(got), time(wanted));
            misses.push(Miss { text, by: By::Bound(got as f64 / wanted.max(1) as f64 - 1.0) });
        }
        (None, _) if it.late > LATE_MAX => {
            let (late, budget) = (percent(it.late), group.latency_budget);
            let text = format!("{name}: {late} of its interrupts come later than {budget}");
            misses.push(Miss { text, by: By::Bound(it.late) });
        }
        _ => {}
    }
    misses
}

/// Returns the index of the best candidate. If every candidate misses a limit, the nearest candidate's. `None` if
/// nothing was simulated.
pub fn best(all: &[(Played, Vec<Miss>)]) -> Option<usize> {
    let Some(least) = least_cpus(all) else { return nearest(all) };
    let rank = |played: &Played| (played.candidate.workers, played.candidate.oddness());
    all.iter()
        .enumerate()
        .filter(|(_, (played, misses))| misses.is_empty() && same(played.cpus(), least))
        .min_by(|(_, (a, _)), (_, (b, _))| {
            rank(a).cmp(&rank(b)).then(a.cpus().total_cmp(&b.cpus()))
        })
        .map(|(at, _)| at)
}

/// Returns the least CPU among candidates that meet every limit; `None` if none does.
pub fn least_cpus(all: &[(Played, Vec<Miss>)]) -> Option<f64> {
    let good = all.iter().filter(|(_, misses)| misses.is_empty());
    good.map(|(played, _)| played.cpus()).min_by(f64::total_cmp)
}

/// Returns the candidate with the least missing load, and among equal ones with the smallest excess over a bound.
fn nearest(all: &[(Played, Vec<Miss>)]) -> Option<usize> {
    let worst = |misses: &[Miss], of: fn(By) -> f64| {
        misses.iter().map(|miss| of(miss.by)).fold(0.0, f64::max)
    };
    let load = |by| if let By::Load(part) = by { part } else { 0.0 };
    let bound = |by| if let By::Bound(part) = by { part } else { 0.0 };
    let distance = |misses: &[Miss]| (worst(misses, load), worst(misses, bound));
    let order = all.iter().enumerate().min_by(|(_, (_, a)), (_, (_, b))| {
        let (a, b) = (distance(a), distance(b));
        a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1))
    });
    order.map(|(at, _)| at)
}

fn same(cpus: f64, least: f64) -> bool {
    cpus <= least + (least * SAME).max(SAME_CPUS)
}

/// Explains why `played`, which meets every limit, was not chosen. For `least` see [`least_cpus`].
pub fn why_not(played: &Played, chosen: &Played, least: f64) -> String {
    if !same(played.cpus(), least) {
        let more = (played.cpus() - chosen.cpus()).max(SAME_CPUS);
        return format!("{more:.2} CPUs more");
    }
    let (workers, fewest) = (played.candidate.workers, chosen.candidate.workers);
    match workers > fewest {
        true => format!("as much CPU, and {} more", count(workers - fewest, "worker")),
        false => "as much CPU and as many workers, and further from the defaults".into(),
    }
}

/// Formats a time for people: in ms from 1 ms on, or else in us.
pub fn time(ns: u64) -> String {
    match ns {
        0..1_000_000 => format!("{:.0} us", ns as f64 / 1e3),
        _ => format!("{:.1} ms", ns as f64 / 1e6),
    }
}

/// Formats a share for people.
pub fn percent(part: f64) -> String {
    if part > 0.0 && part < 0.001 {
        return "less than 0.1 %".into();
    }
    format!("{:.1} %", 100.0 * part)
}
