//! Cost of a look-up in a forwarding table with many addresses, compared to a small table.

use weir_bed::{
    error::{Error, Result},
    report::{Figure, Goal, Report, Samples},
};

use super::{Bench, SWITCH_CPU};

pub(super) fn lookups(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let rounds = bench.rounds(|_| {
        let mut measuring = bench.programs.lookup(SWITCH_CPU)?;
        let few: [f64; 3] = numbers(&measuring.line()?)?;
        let many: [f64; 4] = numbers(&measuring.line()?)?;
        let [_, few, few_read] = few;
        let [_, many, many_read, bytes] = many;
        Ok([few, many, (few + many_read - few_read) / few, bytes])
    })?;
    let of = |which: usize| rounds.iter().map(|round| round[which]).collect::<Samples>();
    let [few, many, limit, bytes] = [0, 1, 2, 3].map(of);
    let what = "a lookup in the forwarding table with 100,000 addresses, over one with 100";
    let ratio = many.ratio_to(&few);
    report.add(Figure::ratio("fdb_lookup_100k_vs_100", what, ratio).goal(Some(Goal::AtMost(1.5))));
    report.add(Figure::new("fdb_lookup_100_ns", "ns", "the same: the lookup among 100", few));
    report.add(Figure::new("fdb_lookup_100k_ns", "ns", "and among 100,000", many));
    let what = "the same if a lookup among 100,000 took one among 100, and one read of memory as large as the table more";
    report.add(Figure::ratio("fdb_lookup_100k_vs_100_limit", what, limit));
    let what = "a forwarding table of 262,144 entries, for each of 100,000 addresses in it";
    let figure = Figure::new("fdb_100k_bytes_per_entry", "B", what, bytes);
    report.add(figure.goal(Some(Goal::AtMost(128.0))));
    Ok(())
}

/// Returns the numbers among the words of a line.
fn numbers<const N: usize>(line: &str) -> Result<[f64; N]> {
    let numbers: Vec<_> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    numbers.try_into().map_err(|_| Error::parse("what lookups cost", line.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_line_are_read() {
        let line = "100 addresses: 12.10 ns a lookup, 1.20 ns a read";
        assert_eq!(numbers(line).unwrap(), [100.0, 12.1, 1.2]);
        assert!(numbers::<4>(line).is_err());
    }
}
