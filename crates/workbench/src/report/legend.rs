//! A plot's legend: only the elements of the plot, on as many lines as needed.

use std::fmt::Write as _;

use super::axis;
use super::chart::{Chart, MarkKind};
use super::svg::{MARGIN, key};
use super::text::{Escaped, cut, width};

const SIZE: f64 = 12.0;
const LINE: f64 = 20.0;
/// Width of a key, and gap between two entries.
const KEY: f64 = 38.0;
const GAP: f64 = 12.0;
/// Most letters of an entry.
const LETTERS_MAX: usize = 48;

/// A drawn element.
#[derive(Clone, Copy, Debug)]
pub enum Key {
    /// A series, by number.
    Series(usize),
    /// A statement of the paper.
    Mark(MarkKind),
    /// A measurement.
    Measured,
    /// The least and the largest value over the seeds.
    Whisker,
}

/// Entries with their positions.
#[derive(Debug)]
pub struct Legend {
    /// Position, line, key and text of each entry.
    entries: Vec<(f64, usize, Key, String)>,
    /// True if series are drawn as lines.
    lines: bool,
}

impl Legend {
    /// Builds the legend of `chart`, on lines of at most `width_max`.
    pub fn of(chart: &Chart, width_max: f64) -> Self {
        let (mut entries, mut x, mut line) = (Vec::new(), 0.0, 0);
        for (key, words) in words(chart) {
            let words = cut(&words, LETTERS_MAX);
            let long = KEY + width(&words, SIZE);
            if x > 0.0 && x + long > width_max {
                (x, line) = (0.0, line + 1);
            }
            entries.push((x, line, key, words));
            x += long + GAP;
        }
        Self { entries, lines: axis::numeric(&chart.x).is_some() }
    }

    /// Returns the legend's height.
    pub fn height(&self) -> f64 {
        self.entries.last().map_or(0.0, |entry| LINE * (entry.1 + 1) as f64)
    }

    /// Draws the legend below `top`.
    pub fn draw(&self, svg: &mut String, top: f64) {
        for (x, line, entry, words) in &self.entries {
            let (x, y) = (MARGIN + x, top + LINE * (*line as f64 + 0.5));
            let _ = writeln!(
                svg,
                "{}<text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                key(*entry, x + 16.0, y, self.lines),
                x + KEY,
                y + 4.0,
                Escaped(words),
            );
        }
    }
}

fn words(chart: &Chart) -> Vec<(Key, String)> {
    let series = chart.series.iter().enumerate();
    let mut words: Vec<_> =
        series.map(|(number, series)| (Key::Series(number), series.name.clone())).collect();
    let simulated = || chart.series.iter().flat_map(|series| series.simulated.iter().flatten());
    if simulated().any(|it| it.max > it.min) {
        words.push((Key::Whisker, format!("least to most of {} seeds", chart.seeds)));
    }
    if chart.series.iter().any(|series| series.measured.iter().any(Option::is_some)) {
        words.push((Key::Measured, "measured".into()));
    }
    let mut kinds: Vec<(Key, String)> = Vec::new();
    for mark in &chart.marks {
        let text = called(mark.kind);
        if kinds.iter().all(|kind| kind.1 != text) {
            kinds.push((Key::Mark(mark.kind), text.into()));
        }
    }
    words.extend(kinds);
    words
}

fn called(kind: MarkKind) -> &'static str {
    match kind {
        MarkKind::Value(_) => "paper",
        MarkKind::FromOurs(_) => "paper's change, from our start",
        MarkKind::Up => "paper: goes up to here",
        MarkKind::Down => "paper: goes down to here",
        MarkKind::Least(1) => "paper: least",
        MarkKind::Least(_) => "paper: next least",
    }
}
