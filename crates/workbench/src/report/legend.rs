//! A plot's legend: only what is in the plot, in as many lines as it takes.

use std::fmt::Write as _;

use super::axis;
use super::chart::{Chart, MarkKind};
use super::svg::{MARGIN, key};
use super::text::{Escaped, cut, width};

const SIZE: f64 = 12.0;
const LINE: f64 = 20.0;
/// Room for a key, and between two entries.
const KEY: f64 = 38.0;
const GAP: f64 = 12.0;
/// Most letters of an entry.
const LETTERS_MAX: usize = 48;

/// Something that is drawn.
#[derive(Clone, Copy, Debug)]
pub enum Key {
    /// A series, by its number.
    Series(usize),
    /// What the paper says.
    Mark(MarkKind),
    /// What was measured.
    Measured,
    /// The least and most of the seeds.
    Whisker,
}

/// Entries with their places.
#[derive(Debug)]
pub struct Legend {
    /// Where each begins, in which line, and its words.
    entries: Vec<(f64, usize, Key, String)>,
    /// Whether series are lines.
    lines: bool,
}

impl Legend {
    /// What `chart` shows, in lines of at most `width_max`.
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

    /// How high it is.
    pub fn height(&self) -> f64 {
        self.entries.last().map_or(0.0, |entry| LINE * (entry.1 + 1) as f64)
    }

    /// Draws it below `top`.
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
