//! Figures with one value per round, and their output.

use std::fmt::{self, Display};
use std::io::{self, Write};

use serde::Serialize;
use weir_text::Table;

use super::report::{median_and_spread, significant};
use crate::args::BenchArgs;
use crate::steps::BenchError;

/// A figure: the median and the spread over the rounds, and each round's value.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct FigureRow {
    pub(super) name: String,
    pub(super) unit: &'static str,
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
    pub(super) rounds: Vec<f64>,
    pub(super) says: String,
}

impl FigureRow {
    /// Summarises the rounds; `None` if no round has the figure.
    pub(super) fn new(
        name: impl Into<String>,
        unit: &'static str,
        says: impl Into<String>,
        rounds: Vec<f64>,
    ) -> Option<Self> {
        let (median, min, max) = median_and_spread(rounds.clone())?;
        Some(Self { name: name.into(), unit, median, min, max, rounds, says: says.into() })
    }
}

/// Returns a table of the figures, for people.
pub(super) fn figures_table(figures: &[FigureRow]) -> Table {
    let headers = ["<FIGURE", "MEDIAN", "MIN", "MAX", "<UNIT", "<WHAT IT SAYS"];
    let mut table = Table::new(&headers);
    for figure in figures {
        table.row(vec![
            figure.name.clone(),
            significant(figure.median),
            significant(figure.min),
            significant(figure.max),
            figure.unit.into(),
            figure.says.clone(),
        ]);
    }
    table
}

/// The result of a measurement that consists only of figures.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Figures {
    pub(super) title: &'static str,
    pub(super) figures: Vec<FigureRow>,
    /// Notes for the reader.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) notes: Vec<String>,
}

impl Figures {
    /// Prints the figures, as JSON or as a table.
    pub(super) fn print(&self, args: &BenchArgs, out: &mut dyn Write) -> Result<(), BenchError> {
        if self.figures.is_empty() {
            return Err(BenchError::Interrupted);
        }
        Ok(print(self, args.json, out)?)
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n\n{}", self.title, figures_table(&self.figures))?;
        self.notes.iter().try_for_each(|note| write!(f, "\n{note}\n"))
    }
}

/// Writes a result for people, or as JSON.
pub fn print(
    result: &(impl Display + Serialize),
    json: bool,
    out: &mut dyn Write,
) -> io::Result<()> {
    if json {
        serde_json::to_writer_pretty(&mut *out, result)?;
        writeln!(out)?;
    } else {
        write!(out, "{result}")?;
    }
    out.flush()
}
