//! Throughput of plain copies by one core: the upper limit of a switch that copies once.
//!
//! Cost of a look-up in a forwarding table with many addresses, compared to a small table.

use std::{
    hint::black_box,
    thread,
    time::{Duration, Instant},
};

use weir_bed::{
    error::{Error, Result},
    report::{Figure, Goal, Report, Samples},
};

use super::{Bench, SWITCH_CPU, pin};

/// Length of each copy (bytes), like a large segment's.
pub(super) const SEGMENT_BYTES: usize = 64 << 10;

/// Size of a receive buffer of `vif` (bytes).
pub(super) const BUFFER_BYTES: usize = 2 << 10;

/// Size of the source and target areas, which copies traverse in a circle (bytes). It is like a stream's window and a
/// ring's buffers.
const AREA_BYTES: usize = 2 << 20;

/// Duration of the count, after an equal warm-up.
const TIME: Duration = Duration::from_millis(300);

/// Length of the header in a guest's first buffer (bytes).
const HEADER_BYTES: usize = 12;

/// Measures the throughput of a thread on CPU `cpu` (Gbit/s), with copies of at most `piece_bytes`.
pub(super) fn gbit_per_second(cpu: usize, piece_bytes: usize) -> Result<f64> {
    let copying = thread::spawn(move || {
        pin(cpu)?;
        // The pages are written: untouched pages of zeros may all be the same page.
        let (from, mut to) = (vec![1_u8; AREA_BYTES], vec![2_u8; AREA_BYTES]);
        copy_for(TIME, piece_bytes, &from, &mut to);
        Ok(copy_for(TIME, piece_bytes, &from, &mut to))
    });
    copying.join().map_err(|_| Error::Check("the copying thread panicked".into()))?
}

fn copy_for(time: Duration, piece_bytes: usize, from: &[u8], to: &mut [u8]) -> f64 {
    let start = Instant::now();
    let mut bytes = 0;
    while start.elapsed() < time {
        for (from, to) in from.chunks(SEGMENT_BYTES).zip(to.chunks_mut(SEGMENT_BYTES)) {
            // As in a guest's buffers, a header precedes the frame, and each buffer holds a piece.
            let whole = piece_bytes >= SEGMENT_BYTES;
            let to = if whole { to } else { &mut to[HEADER_BYTES..] };
            for (from, to) in from.chunks(piece_bytes).zip(to.chunks_mut(piece_bytes)) {
                let len = from.len().min(to.len());
                black_box(&mut to[..len]).copy_from_slice(black_box(&from[..len]));
                bytes += len;
            }
        }
    }
    bytes as f64 * 8.0 / start.elapsed().as_secs_f64() / 1e9
}

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
