//! Effects of the fitted costs: each is varied alone, and the claims are judged again.

use std::cell::RefCell;
use std::fmt;
use std::sync::atomic::AtomicU64;

use indicatif::ProgressBar;
use serde::Serialize;
use weir_lab::estimate;
use weir_lab::profile::Profile;
use weir_lab::scenario::Scenario;
use weir_limits::LAB_SENSITIVITY_EVENTS_MAX;
use weir_text::Table;

use super::error::LabError;
use super::experiment::Experiment;
use super::file::{At, Figure, Use};
use super::output::Point;
use super::profile::{Machine, StatedCost};
use super::runs;
use super::runs::run_point;
use super::verdict::{Judged, Verdict, judge};

/// Variations (percent), and their text.
pub const PERCENTS: [(i64, &str); 7] = [
    (-50, "-50 %"),
    (-25, "-25 %"),
    (-10, "-10 %"),
    (0, "as it is"),
    (10, "+10 %"),
    (25, "+25 %"),
    (50, "+50 %"),
];

/// A fitted cost of a machine, and the verdicts on its experiments' claims with other values.
#[derive(Debug, Serialize)]
pub struct Sensitivity {
    /// The machine.
    pub machine: String,
    /// The cost's name.
    pub cost: String,
    /// The value with its unit.
    pub value: String,
    /// The claim that it was fitted to.
    pub fitted: String,
    /// The claims of the experiments on that machine.
    pub claims: Vec<Varied>,
}

/// A claim under each of [`PERCENTS`].
#[derive(Debug, Serialize)]
pub struct Varied {
    /// Name of the claim's experiment.
    pub experiment: String,
    /// Name of the figure or table.
    pub figure: String,
    /// Text of the claim.
    pub says: String,
    /// The use of the claim: fitted to it or not.
    pub used: Use,
    /// The paper's number or order.
    pub paper: String,
    /// Results by variation.
    pub at: Vec<AtPercent>,
}

/// A claim's result at one of [`PERCENTS`].
#[derive(Debug, Serialize)]
pub struct AtPercent {
    /// The variation of the cost.
    pub percent: i64,
    /// Our result.
    pub ours: String,
    /// The ratio of our result to the paper's, if the paper gives a number.
    pub ratio: Option<f64>,
    /// The verdict.
    pub verdict: Verdict,
}

/// Returns the points that an experiment's claims need.
fn needed(experiment: &Experiment) -> Vec<&(At, Scenario)> {
    let asked = RefCell::new(Vec::new());
    judged(experiment, |_, at| {
        asked.borrow_mut().push(at.clone());
        f64::NAN
    });
    let asked = asked.into_inner();
    experiment.points.iter().filter(|point| asked.contains(&point.0)).collect()
}

fn judged(experiment: &Experiment, y: impl Fn(Figure, &At) -> f64) -> Vec<Judged> {
    let file = &experiment.file;
    let x = (file.plot.x.as_str(), file.points_of(&file.plot.x));
    file.claims.iter().map(|claim| judge(claim, x, &y)).collect()
}

/// Returns the number of runs of [`of`].
///
/// # Errors
/// The runs exceed the bounds.
pub fn runs(experiments: &[Experiment]) -> Result<usize, LabError> {
    let mut runs = 0;
    for experiment in experiments {
        let needed = needed(experiment);
        let times = variations(experiment).count();
        runs += times * needed.len();
        let once = needed.iter().map(|point| estimate::events(&point.1));
        let once = once.fold(0, u64::saturating_add);
        let events = once.saturating_mul(times as u64);
        if events > LAB_SENSITIVITY_EVENTS_MAX {
            return Err(LabError::TooLong {
                experiment: experiment.name.clone(),
                what: format!("{events} events with each fitted number varied"),
                max: LAB_SENSITIVITY_EVENTS_MAX,
            });
        }
    }
    Ok(runs)
}

fn variations(experiment: &Experiment) -> impl Iterator<Item = (&Machine, &StatedCost, i64)> {
    experiment.machines.iter().flat_map(|machine| {
        let each = move |cost| PERCENTS.into_iter().map(move |it| (machine, cost, it.0));
        machine.fitted().flat_map(each)
    })
}

/// Varies each fitted cost of the experiments' machines, with the first seed: a cost that matters changes more than
/// the seed does.
pub fn of(experiments: &[Experiment], bar: &ProgressBar) -> Result<Vec<Sensitivity>, LabError> {
    let mut all: Vec<Sensitivity> = Vec::new();
    for experiment in experiments {
        bar.set_message(experiment.name.clone());
        let needed = needed(experiment);
        let seed = experiment.file.seeds.get(..1).unwrap_or_default();
        let all_variations: Vec<_> = variations(experiment).collect();
        let judged = runs::in_parallel(&all_variations, |(machine, cost, percent)| {
            let profile = varied(&machine.profile, cost.field, *percent);
            let events = AtomicU64::new(0);
            let mut points: Vec<Point> = Vec::new();
            for (at, scenario) in &needed {
                let mut scenario = Scenario::clone(scenario);
                if scenario.profile == machine.profile {
                    scenario.profile = profile;
                }
                points.push(run_point(experiment, at, &scenario, seed, &events, bar)?);
            }
            Ok(judged(experiment, |figure, at| {
                let point = points.iter().find(|point| point.at == *at);
                point.and_then(|it| it.figures.get(figure.as_str())).map_or(f64::NAN, |it| it.mean)
            }))
        })?;
        for ((machine, cost, percent), claims) in all_variations.into_iter().zip(judged) {
            let same = |it: &Sensitivity| it.machine == machine.title && it.cost == cost.name;
            let number = all.iter().position(same).unwrap_or_else(|| {
                all.push(Sensitivity {
                    machine: machine.title.clone(),
                    cost: cost.name.to_owned(),
                    value: cost.value.clone(),
                    fitted: cost.text.clone(),
                    claims: Vec::new(),
                });
                all.len() - 1
            });
            add(&mut all[number].claims, &experiment.name, claims, percent);
        }
    }
    all.retain(|it| !it.claims.is_empty());
    Ok(all)
}

fn varied(profile: &Profile, field: &str, percent: i64) -> Profile {
    let fields = profile.fields();
    let value = |name| {
        let found = fields.iter().find(|it| it.0 == name).map_or(0, |it| it.1);
        let factor = if name == field { 100u64.saturating_add_signed(percent) } else { 100 };
        Ok::<_, std::convert::Infallible>(found.saturating_mul(factor) / 100)
    };
    match Profile::from_fields(value) {
        Ok(profile) => profile,
        Err(never) => match never {},
    }
}

fn add(to: &mut Vec<Varied>, experiment: &str, claims: Vec<Judged>, percent: i64) {
    for claim in claims {
        let at = AtPercent {
            percent,
            ours: claim.ours,
            ratio: claim.ratio.filter(|ratio| ratio.is_finite()),
            verdict: claim.verdict,
        };
        let same = |it: &&mut Varied| {
            it.experiment == experiment && it.figure == claim.figure && it.says == claim.says
        };
        match to.iter_mut().find(same) {
            Some(row) => row.at.push(at),
            None => to.push(Varied {
                experiment: experiment.to_owned(),
                figure: claim.figure,
                says: claim.says,
                used: claim.used,
                paper: claim.paper,
                at: vec![at],
            }),
        }
    }
}

impl fmt::Display for Sensitivity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { machine, cost, value, fitted, claims } = self;
        writeln!(f, "{cost} = {value}, fitted to {fitted}\nmachine: {machine}\n")?;
        let mut head = vec!["<PAPER", "<SAYS", "<USED TO", "<THERE"];
        head.extend(PERCENTS.map(|(_, words)| words));
        let mut table = Table::new(&head);
        for claim in claims {
            let mut row = vec![
                claim.figure.clone(),
                claim.says.clone(),
                claim.used.as_str().to_owned(),
                claim.paper.clone(),
            ];
            row.extend(claim.at.iter().map(|it| format!("{} {}", it.ours, it.verdict.sign())));
            table.row(row);
        }
        writeln!(f, "{table}")
    }
}
