//! Medians of the slices, as a table for people and as JSON.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use weir_engine::stages::{self, Stage};
use weir_text::{Table, decimal};

use super::plan::{Measurement, Tells};
use super::slice::{Slice, WORKERS};

/// A measurement with its slices so far.
pub(super) struct Measured {
    pub(super) measurement: Measurement,
    pub(super) slices: Vec<Slice>,
}

/// The result. Its JSON is the output of `weir bench --json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Report {
    /// Version of weir.
    version: &'static str,
    /// Number of cores that this process may use. Switch and guests share them.
    cores: usize,
    workers: u64,
    /// Length of each slice (s).
    slice_seconds: f64,
    measurements: Vec<MeasuredRow>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct MeasuredRow {
    name: &'static str,
    /// Number of slices.
    slices: usize,
    /// Cores that the worker kept busy (median).
    switch_cores: f64,
    /// Cores that the two guests' threads kept busy (median). The threads make and check the traffic.
    guests_cores: f64,
    /// Packets that did not arrive intact, over all slices.
    lost: u64,
    figures: Vec<FigureRow>,
}

/// A figure: the median and the spread over the slices.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct FigureRow {
    name: String,
    unit: String,
    median: f64,
    min: f64,
    max: f64,
    says: &'static str,
    /// The stage of which this is the cost. Stages have a separate table.
    #[serde(skip)]
    stage: Option<Stage>,
}

impl FigureRow {
    /// Summarises the slices; `None` if no slice has the figure.
    fn new(
        name: impl Into<String>,
        unit: impl Into<String>,
        says: &'static str,
        values: impl Iterator<Item = f64>,
    ) -> Option<Self> {
        let (median, min, max) = median_and_spread(values.collect())?;
        Some(Self { name: name.into(), unit: unit.into(), median, min, max, says, stage: None })
    }
}

impl Report {
    pub(super) fn new(measured: &[Measured], slice: Duration, cores: usize) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION"),
            cores,
            workers: WORKERS,
            slice_seconds: slice.as_secs_f64(),
            measurements: measured.iter().map(MeasuredRow::new).collect(),
        }
    }
}

impl MeasuredRow {
    fn new(measured: &Measured) -> Self {
        let Measured { measurement, slices } = measured;
        let median = |of: fn(&Slice) -> f64| {
            median_and_spread(slices.iter().map(of).collect()).map_or(0.0, |(median, ..)| median)
        };
        let figures = match measurement.tells {
            Tells::Figures(figures) => figures
                .iter()
                .filter_map(|figure| {
                    let values = slices.iter().filter_map(figure.of);
                    FigureRow::new(figure.name, figure.unit, figure.says, values)
                })
                .collect(),
            Tells::Stages => stage_figures(measurement.name, slices),
        };
        Self {
            name: measurement.name,
            slices: slices.len(),
            switch_cores: median(Slice::switch_cores),
            guests_cores: median(Slice::guests_cores),
            lost: slices.iter().map(|slice| slice.lost).sum(),
            figures,
        }
    }

    fn stage(&self, stage: Stage) -> Option<&FigureRow> {
        self.figures.iter().find(|figure| figure.stage == Some(stage))
    }

    fn has_stages(&self) -> bool {
        self.figures.iter().any(|figure| figure.stage.is_some())
    }
}

fn stage_figures(measurement: &str, slices: &[Slice]) -> Vec<FigureRow> {
    let figure = |stage: Stage| {
        let name = format!("{measurement}_{}", stage.as_str());
        let unit = format!("{}/packet", stages::UNIT);
        let values = slices.iter().filter_map(|slice| slice.stages.per_frame(stage));
        let figure = FigureRow::new(name, unit, "", values)?;
        Some(FigureRow { stage: Some(stage), ..figure })
    };
    let bursts = slices.iter().filter_map(|slice| slice.stages.frames_per_burst());
    let bursts = FigureRow::new(format!("{measurement}_burst"), "packets", "", bursts);
    Stage::ALL.into_iter().filter_map(figure).chain(bursts).collect()
}

/// Returns the median, the smallest and the largest value. The median of an even number is the mean of the two middle
/// values.
pub(super) fn median_and_spread(mut values: Vec<f64>) -> Option<(f64, f64, f64)> {
    values.sort_by(f64::total_cmp);
    let (min, max) = (*values.first()?, *values.last()?);
    let (low, high) = ((values.len() - 1) / 2, values.len() / 2);
    Some((f64::midpoint(values[low], values[high]), min, max))
}

/// Formats a number with three or more significant digits, and with commas.
pub(super) fn significant(value: f64) -> String {
    match value.abs() {
        1000.0.. => decimal(value.round() as u64),
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        0.0 => "0".into(),
        _ => format!("{value:.3}"),
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cores = match self.cores {
            1 => "1 core".into(),
            cores => format!("{cores} cores"),
        };
        writeln!(
            f,
            "weir {} on {cores}: one worker, two built-in guests, slices of {} ms in turn",
            self.version,
            (1e3 * self.slice_seconds).round(),
        )?;
        self.figures(f)?;
        self.stages(f)?;
        for row in self.measurements.iter().filter(|row| row.lost > 0) {
            writeln!(f, "{}: {} packets lost or damaged", row.name, decimal(row.lost))?;
        }
        Ok(())
    }
}

impl Report {
    fn figures(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows: Vec<_> = self.measurements.iter().filter(|row| !row.has_stages()).collect();
        if rows.is_empty() {
            return Ok(());
        }
        let headers =
            ["<FIGURE", "MEDIAN", "MIN", "MAX", "<UNIT", "SWITCH", "GUESTS", "<WHAT IT SAYS"];
        let mut table = Table::new(&headers);
        for MeasuredRow { switch_cores, guests_cores, figures, .. } in rows {
            for (position, figure) in figures.iter().enumerate() {
                let cores = |cores: f64| match position {
                    0 => format!("{:.0}%", 100.0 * cores),
                    _ => String::new(),
                };
                table.row(vec![
                    figure.name.clone(),
                    significant(figure.median),
                    significant(figure.min),
                    significant(figure.max),
                    figure.unit.clone(),
                    cores(*switch_cores),
                    cores(*guests_cores),
                    figure.says.into(),
                ]);
            }
        }
        write!(f, "\n{table}")?;
        writeln!(
            f,
            "\nSWITCH is the worker's CPU time, GUESTS that of the two threads which make and check \
             the traffic.\nAll share the machine's cores: where there are fewer than three, what \
             arrives in a second is\nthe guests' figure as much as weir's, and what a core does is \
             weir's own."
        )
    }

    fn stages(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows: Vec<_> = self.measurements.iter().filter(|row| row.has_stages()).collect();
        if rows.is_empty() {
            return Ok(());
        }
        let mut table =
            Table::new(&["<STAGES", "TAKE", "CLASSIFY", "COPY", "PUBLISH", "CALL", "ALL", "BURST"]);
        for row in rows {
            let mut cells = vec![row.name.to_owned()];
            let medians = Stage::ALL.map(|stage| row.stage(stage).map_or(0.0, |cost| cost.median));
            cells.extend(medians.map(significant));
            cells.push(significant(medians.iter().sum()));
            let burst = row.figures.iter().find(|figure| figure.stage.is_none());
            cells.push(burst.map_or_else(String::new, |burst| significant(burst.median)));
            table.row(cells);
        }
        write!(f, "\n{table}")?;
        writeln!(
            f,
            "\n{} for each packet, medians; BURST is how many packets weir took at once. Where \
             threads are more\nthan cores, a stage in which the worker lost its core has that time \
             as well.",
            stages::UNIT
        )
    }
}
