//! Refuses settings of an experiment that have no effect or name something that does not exist: both are mistakes.

use weir_config::Moderation;
use weir_policy::moderation::Kind;

use super::error::Problem;
use super::experiment::{Experiment, name_of};
use super::file::{
    Arrivals, At, DispatchFile, End, Execution, ExperimentFile, MeasuredFile, PlacementPolicy,
    Statement, SweepFile, TrafficFile,
};

/// Keys that no sweep may change: they belong to the whole experiment.
const OF_ALL_POINTS: [&str; 7] = ["title", "paper", "seeds", "sweep", "plot", "claim", "measured"];

/// Checks that every sweep gives its keys different values.
///
/// # Errors
/// The first sweep without effect.
pub fn sweeps(file: &ExperimentFile) -> Result<(), Problem> {
    for (number, sweep) in file.sweeps.iter().enumerate() {
        let problem = |message| Problem::new(format!("sweep.{number}"), message);
        for key in sweep.sweep.keys() {
            if OF_ALL_POINTS.contains(&key.split('.').next().unwrap_or_default()) {
                return Err(problem(format!("`{key}` is one for all points, and cannot be swept")));
            }
            let hides = |other: &&String| {
                other.strip_prefix(key).is_some_and(|it| it.is_empty() || it.starts_with('.'))
            };
            let before = file.sweeps.iter().take(number);
            let found = before.clone().find_map(|it| Some((it, it.sweep.keys().find(hides)?)));
            if let Some((SweepFile { name, .. }, other)) = found {
                return Err(problem(format!(
                    "`{key}` takes the place of `{other}` of the sweep `{name}`"
                )));
            }
        }
    }
    Ok(())
}

/// A key that may have no effect.
struct Rule {
    /// Path of the key. For workers it is without the number.
    path: &'static str,
    /// Returns true if the key's value is not the default.
    written: fn(&ExperimentFile) -> bool,
    /// Returns true if the key has an effect.
    works: fn(&ExperimentFile) -> bool,
    /// The condition that is missing for an effect.
    since: &'static str,
}

const RULES: &[Rule] = &[
    Rule {
        path: "guests.rx_usecs",
        written: |it| it.guests.rx_usecs.is_some(),
        works: |it| Moderation(it.guests.moderation).takes_rx_usecs(),
        since: "`moderation` makes nothing of it",
    },
    Rule {
        path: "guests.rx_frames",
        written: |it| it.guests.rx_frames.is_some(),
        works: |it| Moderation(it.guests.moderation).takes_rx_frames(),
        since: "`moderation` makes nothing of it",
    },
    Rule {
        path: "guests.empty_polls",
        written: |it| it.guests.empty_polls > 0,
        works: |it| it.guests.poll.is_some_and(|time| time.0 > 0),
        since: "guests have no timer without `poll`",
    },
    Rule {
        path: "guests.poll_periodic",
        written: |it| it.guests.poll_periodic,
        works: |it| it.guests.poll.is_some_and(|time| time.0 > 0),
        since: "guests have no timer without `poll`",
    },
    Rule {
        path: "guests.lro",
        written: |it| it.guests.lro,
        works: |it| it.loads.iter().any(|it| matches!(it.traffic, TrafficFile::Stream { .. })),
        since: "no load is a TCP stream",
    },
    Rule {
        path: "worker.priority",
        written: |it| it.workers.iter().any(|worker| worker.priority.is_some()),
        works: |it| it.execution != Execution::Threads,
        since: "of `execution = \"threads\"`, no worker has a `priority`",
    },
    Rule {
        path: "worker.count",
        written: |it| it.workers.iter().any(|worker| worker.count > 1),
        works: |it| it.execution == Execution::Tasklet,
        since: "how many threads there are hangs on guests and uplinks, not on `count`",
    },
    Rule {
        path: "dispatch",
        written: |it| it.dispatch != DispatchFile::None,
        works: several_workers,
        since: "there is one worker, and queues have nowhere to go",
    },
    Rule {
        path: "first_worker",
        written: |it| it.first_worker.is_some(),
        works: several_workers,
        since: "there is one worker, which has all queues",
    },
    Rule {
        path: "realization.identifiers",
        written: |it| it.realization.identifiers.is_some(),
        works: |it| !it.realization.guests_poll,
        since: "guests that poll take no calls",
    },
    Rule {
        path: "realization.placement.pin_vcpus",
        written: |it| it.realization.placement.as_ref().is_some_and(|it| it.pin_vcpus),
        works: |it| {
            let placement = it.realization.placement.as_ref();
            placement.is_some_and(|it| it.policy != PlacementPolicy::None)
        },
        since: "nothing is placed",
    },
    Rule {
        path: "realization.manager",
        written: |it| it.realization.manager,
        works: |it| it.uplink.is_some() && it.guests.moderation == Kind::Auto,
        since: "it has all guests held together where there is an uplink and they are under `auto`",
    },
    Rule {
        path: "realization.client_threads",
        written: |it| it.realization.client_threads > 0,
        works: |it| {
            let in_turn = |it: &TrafficFile| match it {
                TrafficFile::Datagrams { arrivals, .. } => matches!(arrivals, Arrivals::Buffer(_)),
                it => matches!(it, TrafficFile::Stream { .. }),
            };
            it.loads.iter().any(|it| it.from == End::Uplink && in_turn(&it.traffic))
        },
        since: "no load is a TCP stream or a socket from an uplink",
    },
    Rule {
        path: "uplink",
        written: |it| it.uplink.is_some(),
        works: |it| {
            let uses = |end| end == End::Uplink;
            it.realization.hosts == Some(2)
                || it.loads.iter().any(|load| uses(load.from) || uses(load.to))
        },
        since: "no load goes through it",
    },
];

fn several_workers(file: &ExperimentFile) -> bool {
    file.execution != Execution::Tasklet
        || file.workers.iter().map(|worker| worker.count).sum::<usize>() > 1
}

/// Checks that every key has an effect at one point at least. `each` is the experiment at each point.
///
/// # Errors
/// The first key without any effect.
pub fn effects(file: &ExperimentFile, each: &[ExperimentFile]) -> Result<(), Problem> {
    for Rule { path, written, works, since } in RULES {
        let here = |it: &&ExperimentFile| written(it);
        if each.iter().any(written) && !each.iter().filter(here).any(works) {
            let is_it = |key: &String| key.starts_with(path) || path.starts_with(key.as_str());
            let swept = |sweep: &SweepFile| sweep.sweep.keys().any(is_it);
            let place = match file.sweeps.iter().position(swept) {
                Some(number) if !written(file) => format!("sweep.{number}"),
                // There may be several workers, and the number is unknown.
                _ if path.starts_with("worker.") => "worker".to_owned(),
                _ => (*path).to_owned(),
            };
            return Err(Problem::new(place, format!("`{path}` has no effect: {since}")));
        }
    }
    Ok(())
}

/// Checks that plots, claims and measurements name existing sweeps and points, and that each names only its own.
pub fn names(experiment: &Experiment) -> Result<(), Problem> {
    let Experiment { file, points, .. } = experiment;
    let plot = &file.plot;
    let names = || file.sweeps.iter().map(|it| it.name.as_str()).collect::<Vec<_>>().join(", ");
    for name in std::iter::once(&plot.x).chain(&plot.series) {
        if file.sweeps.iter().all(|sweep| sweep.name != *name) {
            let message = format!("there is no sweep `{name}`, expected one of: {}", names());
            return Err(Problem::new("plot", message));
        }
    }
    if plot.series.as_ref() == Some(&plot.x) {
        return Err(Problem::new("plot.series", "`series` is the sweep that `x` is already"));
    }
    for (number, seed) in file.seeds.iter().enumerate() {
        if file.seeds.iter().take(number).any(|other| other == seed) {
            return Err(Problem::new("seeds", format!("seed {seed} would only do the same twice")));
        }
    }
    let there = |at: &At, path: &str| {
        if points.iter().any(|point| point.0 == *at) {
            return Ok(());
        }
        let (at, names) = (name_of(at), names());
        let message = format!("there is no point `{at}`, expected a point of each of: {names}");
        Err(Problem::new(path, message))
    };
    for (number, claim) in file.claims.iter().enumerate() {
        let path = format!("claim.{number}.is");
        for at in spoken_of(&claim.is, file).map_err(|message| Problem::new(&path, message))? {
            there(&at, &path)?;
        }
    }
    for (number, measured) in file.measured.iter().enumerate() {
        let MeasuredFile { mean, min, max, .. } = *measured;
        let path = format!("measured.{number}");
        let in_order = min.is_none_or(|min| min <= mean) && max.is_none_or(|max| mean <= max);
        let numbers = [mean, min.unwrap_or(mean), max.unwrap_or(mean)];
        if !in_order || !numbers.iter().all(|it| it.is_finite()) {
            return Err(Problem::new(path, "expected numbers with `min` <= `mean` <= `max`"));
        }
        let before = file.measured.iter().take(number);
        if before.clone().any(|it| it.at == measured.at && it.y == measured.y) {
            let message = format!("`{}` is measured there already", measured.y.as_str());
            return Err(Problem::new(path, message));
        }
        there(&measured.at, &format!("{path}.at"))?;
    }
    Ok(())
}

/// Returns the points in a claim.
fn spoken_of(is: &Statement, file: &ExperimentFile) -> Result<Vec<At>, &'static str> {
    Ok(match is {
        Statement::Value { at, .. } => vec![at.clone()],
        Statement::Ratio { from, to, .. } => vec![from.clone(), to.clone()],
        Statement::More { from, to, than } => {
            [from, to, &than.from, &than.to].map(Clone::clone).to_vec()
        }
        Statement::Change { from, to, by, percent, sign, percent_max } => {
            let given = [by.is_some(), percent.is_some(), sign.is_some()];
            if given.iter().filter(|it| **it).count() != 1 {
                return Err("expected one of `by`, `percent` and `sign`");
            }
            if percent_max.is_some() && sign.is_none() {
                return Err(
                    "`percent_max` has no effect: it is the most that a `sign` may come to",
                );
            }
            vec![from.clone(), to.clone()]
        }
        Statement::Least { at, points } => {
            if points.is_empty() || points.len() >= file.points_of(&file.plot.x).len() {
                return Err("expected some of the points of `x`, not all");
            }
            at_each(at, points, file)?
        }
        Statement::Within { at, point, percent } => {
            if !(0.0..100.0).contains(percent) {
                return Err("expected `percent` from 0 to less than 100");
            }
            let points = file.points_of(&file.plot.x);
            if points.len() < 2 || !points.contains(point) {
                return Err("expected `point` to be one of several points of x");
            }
            at_each(at, points, file)?
        }
    })
}

/// Returns `at` for each of these points of x.
fn at_each(at: &At, points: &[String], file: &ExperimentFile) -> Result<Vec<At>, &'static str> {
    let x = &file.plot.x;
    if at.contains_key(x) {
        return Err("`at` has no effect on `x`: all of its points are compared");
    }
    let each = |point: &String| {
        let mut at = at.clone();
        at.insert(x.clone(), point.clone());
        at
    };
    Ok(points.iter().map(each).collect())
}
