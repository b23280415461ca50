//! `weir lab ablation`: the effect of each mechanism of the law of control.
//!
//! Every point under `auto` is simulated with the law and with the law without each mechanism. A cell is the largest
//! loss of a point (percent) that exceeds the spread of its seeds under the law. A mean over points would hide it.

use std::io::{self, Write};

use serde::Serialize;
use weir_lab::host::run_within;
use weir_lab::report::Report;
use weir_lab::scenario::Scenario;
use weir_limits::LAB_EVENTS_MAX;
use weir_policy::law::{LAW, Law, MECHANISMS, Mechanism};
use weir_text::Table;

use super::args::LabAblationArgs;
use super::error::LabError;
use super::experiment::name_of;
use super::file::{At, Figure};
use super::runs;
use super::runs::{progress, selected};

/// Default experiments.
const USUAL: [&str; 7] = [
    "auto-udp",
    "auto-closed",
    "auto-mixed",
    "auto-guests",
    "auto-containers",
    "auto-local",
    "auto-two-layer",
];
/// Smallest loss in the table (percent).
const SHOWN_PERCENT: f64 = 3.0;
/// Compared figures: packets, CPU per packet, interrupts, p99, and calls later than the budget (per million).
const FIGURES: [&str; 5] = ["packets", "CPU", "interrupts", "p99", "breaches"];

/// A mechanism's row.
#[derive(Debug, Serialize)]
struct Row {
    mechanism: &'static str,
    without: &'static str,
    /// The largest loss in each of [`FIGURES`] with its point; `None` below 3 percent.
    losses: Vec<Option<Loss>>,
}

#[derive(Clone, Debug, Serialize)]
struct Loss {
    percent: f64,
    point: String,
}

/// The figures of each seed at a point under one law.
type Played = Vec<[f64; FIGURES.len()]>;

pub fn run(args: &LabAblationArgs, out: &mut dyn Write) -> Result<(), LabError> {
    let names = match args.names.is_empty() {
        true => USUAL.map(str::to_owned).to_vec(),
        false => args.names.clone(),
    };
    let experiments = selected(&names, None, None)?;
    let points: Vec<(&str, &At, &Scenario)> = experiments
        .iter()
        .flat_map(|it| it.points.iter().map(|(at, scenario)| (it.name.as_str(), at, scenario)))
        .filter(|(_, at, _)| at.get("setting").is_none_or(|setting| setting == "auto"))
        .collect();
    let laws: Vec<&'static Law> =
        std::iter::once(&LAW).chain(MECHANISMS.iter().map(|it| &it.law)).collect();
    let turns: Vec<_> =
        laws.iter().flat_map(|law| points.iter().map(move |point| (*law, *point))).collect();
    let bar = progress(turns.len());
    let played = runs::in_parallel(&turns, |(law, (experiment, at, scenario))| {
        bar.inc(1);
        (1..=args.seeds).map(|seed| play(law, experiment, at, scenario, seed)).collect()
    })?;
    bar.finish_and_clear();
    let (usual, others) = played.split_at(points.len());
    let rows: Vec<Row> = MECHANISMS
        .iter()
        .zip(others.chunks(points.len().max(1)))
        .map(|(mechanism, played)| row(mechanism, &points, usual, played))
        .collect();
    show(args, &rows, out)
}

fn play(
    law: &'static Law,
    experiment: &str,
    at: &At,
    scenario: &Scenario,
    seed: u64,
) -> Result<[f64; FIGURES.len()], LabError> {
    let scenario = Scenario { seed, law, ..scenario.clone() };
    let report = run_within(&scenario, LAB_EVENTS_MAX).map_err(|source| LabError::Run {
        experiment: experiment.to_owned(),
        point: name_of(at),
        seed,
        source: Box::new(source),
    })?;
    // For these figures, a larger value is worse.
    Ok([
        1.0 / Figure::PacketsPerS.of(&report).max(1.0),
        Figure::CpuUsPerPacket.of(&report),
        Figure::InterruptsPerS.of(&report),
        Figure::LatencyP99Us.of(&report),
        breaches(&report),
    ])
}

/// Returns the calls later than the budget (per million).
fn breaches(report: &Report) -> f64 {
    let late: u64 = report.guests.iter().map(|guest| guest.late).sum();
    let calls: u64 = report.guests.iter().map(|guest| guest.rx_calls).sum();
    1e6 * late as f64 / calls.max(1) as f64
}

fn row(
    mechanism: &Mechanism,
    points: &[(&str, &At, &Scenario)],
    usual: &[Played],
    without: &[Played],
) -> Row {
    let losses = (0..FIGURES.len()).map(|figure| {
        let each = points.iter().zip(usual).zip(without);
        let losses = each.filter_map(|(((experiment, at, _), usual), without)| {
            let percent = loss(figure, usual, without)?;
            Some(Loss { percent, point: format!("{experiment}, {}", name_of(at)) })
        });
        losses.max_by(|one, other| one.percent.total_cmp(&other.percent))
    });
    let Mechanism { name, without, .. } = *mechanism;
    Row { mechanism: name, without, losses: losses.collect() }
}

/// Returns the loss (percent; for breaches the difference) if it exceeds the spread of the seeds.
fn loss(figure: usize, usual: &Played, without: &Played) -> Option<f64> {
    let of = |played: &Played| played.iter().map(|it| it[figure]).collect::<Vec<_>>();
    let (usual, without) = (of(usual), of(without));
    let mean = |it: &[f64]| it.iter().sum::<f64>() / it.len().max(1) as f64;
    let (before, after) = (mean(&usual), mean(&without));
    let largest = usual.iter().copied().fold(f64::MIN, f64::max);
    let smallest = usual.iter().copied().fold(f64::MAX, f64::min);
    let spread = largest - smallest;
    let more = match FIGURES[figure] {
        "breaches" => after - before,
        "packets" => 100.0 * (1.0 - before / after),
        _ => 100.0 * (after / before - 1.0),
    };
    (after - before > spread && more.is_finite() && more >= SHOWN_PERCENT).then_some(more)
}

fn show(args: &LabAblationArgs, rows: &[Row], out: &mut dyn Write) -> Result<(), LabError> {
    if args.json {
        serde_json::to_writer_pretty(&mut *out, rows).map_err(io::Error::from)?;
        writeln!(out)?;
        return Ok(());
    }
    let cell = |loss: &Option<Loss>| {
        loss.as_ref().map_or_else(|| "-".to_owned(), |loss| format!("{:.0}", loss.percent))
    };
    if args.markdown {
        writeln!(out, "| off | so that | {} |", FIGURES.join(" | "))?;
        writeln!(out, "|---|---|{}", "--:|".repeat(FIGURES.len()))?;
        for row in rows {
            let cells: Vec<_> = row.losses.iter().map(cell).collect();
            writeln!(out, "| {} | {} | {} |", row.mechanism, row.without, cells.join(" | "))?;
        }
        return Ok(());
    }
    let mut table =
        Table::new(&["<OFF", "PACKETS", "CPU", "INTERRUPTS", "P99", "BREACHES", "<WORST"]);
    for row in rows {
        let mut cells = vec![row.mechanism.to_owned()];
        cells.extend(row.losses.iter().map(cell));
        let worst = row.losses.iter().flatten().next();
        cells.push(worst.map_or_else(String::new, |loss| loss.point.clone()));
        table.row(cells);
    }
    write!(out, "{table}")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_within_the_spread_of_the_seeds_is_none() {
        let played = |cpu: [f64; 2]| cpu.map(|cpu| [1.0, cpu, 1.0, 1.0, 0.0]).to_vec();
        let usual = played([1.0, 1.1]);
        assert_eq!(loss(1, &usual, &played([1.05, 1.15])), None);
        let lost = loss(1, &usual, &played([2.1, 2.1])).unwrap();
        assert!((lost - 100.0).abs() < 1e-6, "{lost}");
        assert_eq!(loss(1, &played([1.0, 1.0]), &played([1.02, 1.02])), None, "below 3 percent");
        assert_eq!(loss(1, &usual, &played([0.5, 0.5])), None, "a gain");
    }

    #[test]
    fn without_holds_datagrams_cost_more_interrupts() {
        let args = LabAblationArgs {
            names: vec!["auto-udp".into()],
            seeds: 1,
            json: true,
            markdown: false,
        };
        let mut out = Vec::new();
        run(&args, &mut out).unwrap();
        let rows: serde_json::Value = serde_json::from_slice(&out).unwrap();
        let interrupts = &rows[0]["losses"][2]["percent"];
        assert!(rows[0]["mechanism"] == "holds" && interrupts.as_f64() > Some(100.0), "{rows}");
    }
}
