//! Tables, numbers and units for people; [`plain`]: text from outside, made safe for a terminal.
//!
//! The crate is for programs: the switch itself writes no text.

#![forbid(unsafe_code)]

use std::fmt;
use std::time::Duration;

use comfy_table::{CellAlignment, ColumnConstraint, TableStyle};

pub mod plain;

/// Columns as wide as their widest cell, two spaces apart.
pub struct Table(comfy_table::Table);

impl Table {
    /// Makes a table with these headers; a `<` in front aligns the column left instead of right.
    pub fn new(headers: &[&'static str]) -> Self {
        let mut table = comfy_table::Table::new();
        let names = headers.iter().map(|header| header.trim_start_matches('<'));
        table.load_style(TableStyle::new()).set_header(names);
        for (column, header) in table.column_iter_mut().zip(headers) {
            let left = header.starts_with('<');
            column.set_padding((0, 2));
            column.set_cell_alignment(if left {
                CellAlignment::Left
            } else {
                CellAlignment::Right
            });
        }
        Self(table)
    }

    /// Adds a row, a cell for each header.
    pub fn row(&mut self, cells: Vec<String>) {
        self.0.add_row(cells);
    }

    /// Hides columns of `dispensable`, in its order, until the lines have at most `width` characters or no such column
    /// is left. Returns the headers of the hidden columns.
    pub fn fit(&mut self, width: usize, dispensable: &[usize]) -> Vec<String> {
        let mut hidden = Vec::new();
        for index in dispensable {
            if self.to_string().lines().all(|line| line.chars().count() <= width) {
                break;
            }
            let Some(column) = self.0.column_mut(*index) else { continue };
            column.set_constraint(ColumnConstraint::Hidden);
            let header = self.0.header().and_then(|row| row.cell_iter().nth(*index));
            hidden.extend(header.map(comfy_table::Cell::content));
        }
        hidden
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.0.trim_fmt())
    }
}

/// Writes "1 problem", "2 problems".
pub fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// Writes `12_345_678` as `12,345,678`.
pub fn decimal(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Writes bytes in decimal units, like network rates: `1.5 GB`.
pub fn bytes(number: u64) -> String {
    scaled(number, &["B", "kB", "MB", "GB", "TB", "PB", "EB"])
}

/// Writes a number in three digits: `1.2 M`.
pub fn short(number: u64) -> String {
    scaled(number, &["", "k", "M", "G", "T", "P", "E"]).trim_end().into()
}

/// Writes nanoseconds in the unit that fits: `250 us`.
pub fn time(ns: u64) -> String {
    const NS_PER_S: u64 = 1_000_000_000;
    if ns == 0 {
        "0".into()
    } else if ns >= 1_000 * NS_PER_S {
        format!("{} s", decimal(ns / NS_PER_S))
    } else {
        scaled(ns, &["ns", "us", "ms", "s"])
    }
}

/// Writes the time since something ended, to follow its name: `, 3 s ago`, or nothing if that is
/// not known.
pub fn ago(seconds: Option<u64>) -> String {
    let time = |seconds: u64| time(seconds.saturating_mul(1_000_000_000));
    seconds.map_or_else(String::new, |seconds| format!(", {} ago", time(seconds.max(1))))
}

/// Writes three significant digits and the unit. Each unit is a thousand times the one before.
fn scaled(number: u64, units: &[&str]) -> String {
    let mut value = number as f64;
    let mut unit = 0;
    // 999.5 would be rounded to 1000 of its unit.
    while value >= 999.5 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    let unit = units.get(unit).copied().unwrap_or_default();
    let tenths = (value * 10.0).round();
    if value >= 99.95 || tenths % 10.0 == 0.0 {
        format!("{value:.0} {unit}")
    } else {
        format!("{value:.1} {unit}")
    }
}

/// Writes a part of a whole, or `-` for an empty whole.
pub fn ratio(part: u64, whole: u64) -> String {
    if whole == 0 { "-".into() } else { format!("{:.3}", part as f64 / whole as f64) }
}

/// Writes seconds as `1d01h`, `1h02m`, `1m05s` or `5s`.
pub fn uptime(seconds: f64) -> String {
    let seconds = Duration::try_from_secs_f64(seconds).unwrap_or_default().as_secs();
    let (days, hours) = (seconds / 86_400, seconds / 3_600 % 24);
    let (minutes, seconds) = (seconds / 60 % 60, seconds % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m{seconds:02}s"),
        (0, _, _) => format!("{hours}h{minutes:02}m"),
        _ => format!("{days}d{hours:02}h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_size_and_unit() {
        let times = [0, 1, 999, 1_000, 250_000, 999_499, 999_950, 12_340_000_000, u64::MAX];
        assert_eq!(
            times.map(time),
            [
                "0",
                "1 ns",
                "999 ns",
                "1 us",
                "250 us",
                "999 us",
                "1 ms",
                "12.3 s",
                "18,446,744,073 s"
            ]
        );
        assert_eq!([0, 999, 1_500, u64::MAX].map(bytes), ["0 B", "999 B", "1.5 kB", "18.4 EB"]);
        assert_eq!([0, 999, 1_500, 12_345_678].map(short), ["0", "999", "1.5 k", "12.3 M"]);
        assert_eq!([0, 999, 1_000, 1_234_567].map(decimal), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([5.0, 65.0, 3_725.0, 90_000.0].map(uptime), ["5s", "1m05s", "1h02m", "1d01h"]);
        assert_eq!(uptime(f64::NAN), "0s");
    }
}
