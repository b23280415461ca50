//! Scales: positions of values, and ticks. A plot's legend: only the elements of the plot, on as many lines as needed.

use std::fmt::Write as _;

use super::chart::{Chart, MarkKind};
use super::svg::{Escaped, cut, width};
use super::svg::{MARGIN, key};

/// Most ticks on a scale.
const TICKS_MAX: f64 = 6.0;
/// Room for marks above the largest value, as a share of the scale.
const HEADROOM: f64 = 0.15;
/// Largest ratio between distances of points along x that are drawn to scale. Beyond it points would touch.
const UNEVEN_MAX: f64 = 12.0;

/// The scale of y.
#[derive(Clone, Debug, PartialEq)]
pub struct Scale {
    /// The value at the lower end.
    pub from: f64,
    /// The value at the upper end.
    pub to: f64,
    /// The distance of the ticks.
    step: f64,
}

impl Scale {
    /// Returns a scale for 0 and all `values`, which are finite. Without 0, small differences would look large.
    pub fn holding(values: impl Iterator<Item = f64>) -> Self {
        let (low, high) = values
            .fold((0.0, 0.0), |(low, high): (f64, f64), value| (low.min(value), high.max(value)));
        if low == high {
            return Self { from: 0.0, to: 1.0, step: 0.2 };
        }
        let room = HEADROOM * (high - low);
        let step = step_for(high - low + room);
        Self { from: (low / step).floor() * step, to: high + room, step }
    }

    /// Returns the position of a value, from 0 to 1.
    pub fn share(&self, value: f64) -> f64 {
        ((value - self.from) / (self.to - self.from)).clamp(0.0, 1.0)
    }

    /// Iterates over the ticks with their labels.
    pub fn ticks(&self) -> impl Iterator<Item = (f64, String)> + '_ {
        let first = (self.from / self.step).ceil();
        let count = ((self.to - self.from) / self.step).floor() as usize + 1;
        let largest = self.from.abs().max(self.to.abs());
        (0..count).map(move |number| {
            let tick = (first + number as f64) * self.step;
            (tick, short_beside(tick, largest))
        })
    }
}

/// Returns 1, 2 or 5 times a power of ten, such that `range` has few steps.
fn step_for(range: f64) -> f64 {
    let power = 10f64.powf((range / TICKS_MAX).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
    steps.into_iter().find(|step| range / step <= TICKS_MAX).unwrap_or(10.0 * power)
}

/// Returns the positions of points along x, from 0 to 1, if their names are increasing numbers of one unit.
pub fn numeric(points: &[String]) -> Option<Vec<f64>> {
    let numbers: Vec<f64> = points.iter().map(|point| number(point)).collect::<Option<_>>()?;
    let gaps: Vec<f64> = numbers.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let least = gaps.iter().copied().fold(f64::INFINITY, f64::min);
    let most = gaps.iter().copied().fold(0.0, f64::max);
    if gaps.is_empty() || least <= 0.0 {
        return None;
    }
    let (first, last) = (numbers.first()?, numbers.last()?);
    if most > UNEVEN_MAX * least {
        let last = gaps.len() as f64;
        return Some((0..=gaps.len()).map(|number| number as f64 / last).collect());
    }
    Some(numbers.iter().map(|number| (number - first) / (last - first)).collect())
}

/// Parses a number with or without a unit of time or rate, or a percent sign.
pub fn number(name: &str) -> Option<f64> {
    const UNITS: &[(&str, f64)] = &[
        ("", 1.0),
        ("%", 1.0),
        ("ns", 1e-9),
        ("us", 1e-6),
        ("ms", 1e-3),
        ("s", 1.0),
        ("k", 1e3),
        ("M", 1e6),
        ("G", 1e9),
        ("pps", 1.0),
        ("kpps", 1e3),
        ("Mpps", 1e6),
        ("Kbit", 1e3),
        ("Mbit", 1e6),
        ("Gbit", 1e9),
        ("B", 1.0),
        ("bytes", 1.0),
    ];
    let end = name.find(|letter: char| !letter.is_ascii_digit() && letter != '.');
    let (digits, unit) = name.split_at(end.unwrap_or(name.len()));
    let factor = UNITS.iter().find(|(known, _)| *known == unit.trim())?.1;
    digits.parse::<f64>().ok().map(|number| number * factor)
}

/// Formats a value with few letters.
pub fn short(value: f64) -> String {
    short_beside(value, value)
}

/// Formats a value with few letters, in the unit for `largest`.
fn short_beside(value: f64, largest: f64) -> String {
    let (value, unit) = match largest.abs() {
        size if size >= 1e9 => (value / 1e9, "G"),
        size if size >= 1e6 => (value / 1e6, "M"),
        size if size >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = match value.abs() {
        size if size < 10.0 => 2,
        size if size < 100.0 => 1,
        _ => 0,
    };
    let text = format!("{value:.digits$}");
    let text = match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => &text,
    };
    match text {
        "0" | "-0" => "0".into(),
        text => format!("{text}{unit}"),
    }
}

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
        Self { entries, lines: numeric(&chart.x).is_some() }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn scale(values: &[f64]) -> (f64, Vec<String>) {
        let scale = Scale::holding(values.iter().copied());
        (scale.from, scale.ticks().map(|tick| tick.1).collect())
    }

    #[test]
    fn a_scale_begins_at_zero_and_has_few_round_ticks_and_room_above() {
        assert_eq!(
            scale(&[3.0, 40.0]),
            (0.0, ["0", "10", "20", "30", "40"].map(String::from).into())
        );
        assert_eq!(scale(&[20e3]).1, ["0", "5k", "10k", "15k", "20k"].map(String::from));
        assert_eq!(scale(&[982.0, 986.0]).0, 0.0);
        assert_eq!(scale(&[-5.0, 5.0]).0, -6.0);
        for values in [&[][..], &[0.0, 0.0], &[7.0], &[1e-9, 1e12]] {
            let scale = Scale::holding(values.iter().copied());
            assert!((2..=8).contains(&scale.ticks().count()), "{values:?} {scale:?}");
            assert!(values.iter().all(|value| scale.share(*value) <= 1.0 / (1.0 + HEADROOM / 2.0)));
        }
    }

    #[test]
    fn names_that_are_numbers_stand_where_they_say() {
        let at = |points: &[&str]| {
            let points: Vec<_> = points.iter().map(|point| (*point).to_owned()).collect();
            numeric(&points)
        };
        assert_eq!(at(&["1", "3", "9"]), Some(vec![0.0, 0.25, 1.0]));
        assert_eq!(at(&["500us", "1ms", "1.5 ms"]), Some(vec![0.0, 0.5, 1.0]));
        assert_eq!(at(&["1", "10", "1000"]), Some(vec![0.0, 0.5, 1.0]), "else two of them touch");
        for named in
            [&["none", "BVIC"][..], &["3", "1"], &["1", "1"], &["1"], &[], &["UDP 50", "1"]]
        {
            assert_eq!(at(named), None, "{named:?}");
        }
    }

    #[test]
    fn short_numbers_are_short() {
        let all = [0.0, -0.001, 0.25, 12.34, 216.1, 9_999.0, 34_773.3, 2.5e6, 3e9].map(short);
        assert_eq!(all, ["0", "0", "0.25", "12.3", "216", "9999", "34.8k", "2.5M", "3G"]);
    }
}
