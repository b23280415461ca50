//! `weir lab validate`: compares the lab's predictions for this machine, from its calibrated costs, with
//! measurements.

use std::fmt;
use std::io::Write;

use indicatif::ProgressBar;
use serde::Serialize;
use weir_bench::rig;
use weir_lab::scenarios::REALITY;
use weir_text::Table;

use super::super::calibrate::Calibration;
use super::super::error::Source;
use super::super::experiment::{Experiment, name_of};
use super::super::profile::Machine;
use super::super::quiet::Quiet;
use super::super::runs::{progress, read, run_one};
use super::median;
use super::{Disturbed, LabError, Refused, measure_between};
use crate::args::LabValidateArgs;

/// Bounds of the errors of predictions (percent): of the median, and of each.
const MEDIAN_MAX_PERCENT: f64 = 15.0;
const WORST_MAX_PERCENT: f64 = 35.0;
/// Rounds of calibration before each round of measurement, and after the last.
const CALIBRATION_ROUNDS: usize = 3;

/// A figure at a point.
#[derive(Debug, Serialize)]
struct Compared {
    point: String,
    figure: &'static str,
    predicted: f64,
    /// The median of the rounds; below, the least and the largest value.
    measured: f64,
    measured_min: f64,
    measured_max: f64,
    /// Error of the prediction relative to the measurement (percent).
    error_percent: f64,
}

/// Parts of a [`Validation`] other than its figures, in the order of its fields.
type Parts = (String, [String; 2], Refused, Disturbed, usize, usize);

#[derive(Debug, Serialize)]
struct Validation {
    title: String,
    machine: String,
    measured_with: String,
    /// Points that were not measured, with the reasons.
    refused: Refused,
    /// Points whose worker shared its CPU while they were measured, with the wait (percent).
    disturbed: Disturbed,
    settings: usize,
    rounds: usize,
    compared: Vec<Compared>,
    median_error_percent: f64,
    worst_error_percent: f64,
    passed: bool,
}

/// Calibrates this machine unless a profile is given, predicts, and measures. Calibration and measurement alternate,
/// so that a slow phase of the machine affects both.
///
/// # Errors
/// [`LabError`]; [`LabError::Unlike`] after the output if the errors of predictions exceed the
/// bounds.
pub fn run(args: &LabValidateArgs, out: &mut dyn Write) -> Result<(), LabError> {
    let stop = rig::catch_signals()?;
    let quiet = Quiet::unless(&args.quiet);
    let how = quiet.how();
    let given = args.profile.as_ref().map(|path| Ok::<_, LabError>((path, read(path)?)));
    let given = given.transpose()?.map(|(path, text)| (path.display().to_string(), text));
    let (file_name, file_text) = match &args.experiment {
        Some(path) => (path.display().to_string(), read(path)?),
        None => (REALITY.0.to_owned(), REALITY.1.to_owned()),
    };
    let source = Source { name: &file_name, text: &file_text };
    let parse = |(name, text): &(String, String)| {
        let machine = || Machine::parse(Source { name, text });
        Experiment::parse(source, args.seed, |_| machine().map(Some))
    };
    // The measurement does not depend on the costs.
    let mut measured = match &given {
        Some(profile) => parse(profile)?,
        None => parse(&("what is assumed".to_owned(), Calibration::default().profile(&how)?))?,
    };
    let bar = progress(0);
    let mut calibration = Calibration::default();
    let (refused, disturbed) = measure_between(&mut measured, args.rounds, &bar, &stop, || {
        bar.set_message("what things cost");
        if given.is_none() {
            calibration.measure(CALIBRATION_ROUNDS, &ProgressBar::hidden())
        } else {
            Ok(())
        }
    })?;
    drop(quiet);
    let mut experiment = match &given {
        Some(profile) => parse(profile)?,
        None => parse(&("what was just measured".to_owned(), calibration.profile(&how)?))?,
    };
    experiment.file.measured = measured.file.measured;
    let outcome = run_one(&experiment, &bar)?;
    bar.finish_and_clear();
    let simulated = outcome.points.into_iter().map(|it| (it.at, it.figures));
    let simulated: Vec<_> = simulated.collect();
    let compared = experiment.file.measured.iter().filter_map(|it| {
        let (_, figures) = simulated.iter().find(|(at, _)| *at == it.at)?;
        let predicted = figures.get(it.y.as_str())?.mean;
        Some(Compared {
            point: name_of(&it.at),
            figure: it.y.as_str(),
            predicted,
            measured: it.mean,
            measured_min: it.min.unwrap_or(it.mean),
            measured_max: it.max.unwrap_or(it.mean),
            error_percent: error_percent(predicted, it.mean),
        })
    });
    let settings = experiment.points.len() - refused.len();
    let title = experiment.file.title.clone();
    let parts =
        (title, [experiment.machine(), how.said], refused, disturbed, settings, args.rounds);
    let validation = Validation::new(parts, compared.collect());
    weir_bench::print(&validation, args.json, out)?;
    match validation.passed {
        true => Ok(()),
        false => Err(LabError::Unlike {
            median: validation.median_error_percent.round(),
            worst: validation.worst_error_percent.round(),
        }),
    }
}

/// Returns the difference of `predicted` and `measured` in percent of the latter.
fn error_percent(predicted: f64, measured: f64) -> f64 {
    if measured == predicted {
        return 0.0;
    }
    100.0 * (predicted - measured).abs() / measured.abs()
}

impl Validation {
    fn new(
        (title, [machine, measured_with], refused, disturbed, settings, rounds): Parts,
        compared: Vec<Compared>,
    ) -> Self {
        let errors = || compared.iter().map(|it| it.error_percent);
        let median_error_percent = median(errors().collect());
        let worst_error_percent = errors().fold(0.0, f64::max);
        // NaN does not pass.
        let passed =
            median_error_percent <= MEDIAN_MAX_PERCENT && worst_error_percent <= WORST_MAX_PERCENT;
        Self {
            title,
            machine,
            measured_with,
            refused,
            disturbed,
            settings,
            rounds,
            compared,
            median_error_percent,
            worst_error_percent,
            passed,
        }
    }
}

impl fmt::Display for Validation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.title)?;
        writeln!(
            f,
            "machine: {}\nmeasured with {}; {} settings, median of {} rounds (least to most)\n",
            self.machine, self.measured_with, self.settings, self.rounds
        )?;
        let mut table =
            Table::new(&["<SETTING", "<FIGURE", "PREDICTED", "MEASURED", "LEAST", "MOST", "ERROR"]);
        let mut last = "";
        for it in &self.compared {
            let point = if it.point == last { "" } else { &it.point };
            last = &it.point;
            table.row(vec![
                point.to_owned(),
                it.figure.to_owned(),
                format!("{:.1}", it.predicted),
                format!("{:.1}", it.measured),
                format!("{:.1}", it.measured_min),
                format!("{:.1}", it.measured_max),
                format!("{:.0} %", it.error_percent),
            ]);
        }
        writeln!(f, "{table}")?;
        for (point, why) in &self.refused {
            writeln!(f, "{point}: not measured: {why}")?;
        }
        for (point, percent) in &self.disturbed {
            writeln!(
                f,
                "{point}: somebody else had the worker's CPU, which waited {percent:.0} % of the time"
            )?;
        }
        let mut figures: Vec<_> = self.compared.iter().map(|it| it.figure).collect();
        figures.sort_unstable();
        figures.dedup();
        for figure in figures {
            let of_figure = self.compared.iter().filter(|it| it.figure == figure);
            let errors: Vec<_> = of_figure.map(|it| it.error_percent).collect();
            let worst = errors.iter().copied().fold(0.0, f64::max);
            writeln!(f, "{figure}: median error {:.0} %, worst {worst:.0} %", median(errors))?;
        }
        writeln!(
            f,
            "all: median error {:.0} % (at most {MEDIAN_MAX_PERCENT} %), worst {:.0} % (at most \
             {WORST_MAX_PERCENT} %): {}",
            self.median_error_percent,
            self.worst_error_percent,
            if self.passed { "pass" } else { "fail" }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compared(errors: &[(f64, f64)]) -> Validation {
        let one = |(predicted, measured): &(f64, f64)| Compared {
            point: "rate 10k".into(),
            figure: "cpu_percent",
            predicted: *predicted,
            measured: *measured,
            measured_min: *measured,
            measured_max: *measured,
            error_percent: error_percent(*predicted, *measured),
        };
        let machine = ["machine", "nothing"].map(Into::into);
        let parts = ("title".into(), machine, Vec::new(), Vec::new(), errors.len(), 1);
        Validation::new(parts, errors.iter().map(one).collect())
    }

    #[test]
    fn errors_are_of_what_was_measured() {
        assert_eq!(error_percent(90.0, 100.0), 10.0);
        assert_eq!(error_percent(110.0, 100.0), 10.0);
        assert_eq!(error_percent(0.0, 0.0), 0.0);
        assert!(error_percent(1.0, 0.0).is_infinite());
    }

    #[test]
    fn half_of_the_errors_are_above_the_median() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(Vec::new()).is_nan());
    }

    #[test]
    fn what_passes_is_neither_often_nor_far_off() {
        let verdict = |errors: &[(f64, f64)]| compared(errors).passed;
        assert!(verdict(&[(100.0, 100.0), (114.0, 100.0), (66.0, 100.0)]));
        assert!(!verdict(&[(100.0, 100.0), (100.0, 100.0), (136.0, 100.0)]), "the worst");
        assert!(!verdict(&[(100.0, 100.0), (116.0, 100.0), (116.0, 100.0)]), "the median");
        assert!(!verdict(&[]), "nothing was measured");
        assert!(!verdict(&[(1.0, 0.0)]), "nothing came");
    }

    #[test]
    fn the_table_says_each_figure_and_the_verdict() {
        let text = compared(&[(90.0, 100.0), (120.0, 100.0)]).to_string();
        assert!(text.contains("10 %") && text.contains("20 %"), "{text}");
        let last = text.lines().last().unwrap();
        assert_eq!(last, "all: median error 15 % (at most 15 %), worst 20 % (at most 35 %): pass");
    }
}
