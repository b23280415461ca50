//! Throughput of plain copies by one core: the upper limit of a switch that copies once.

use std::{
    hint::black_box,
    thread,
    time::{Duration, Instant},
};

use weir_bed::error::{Error, Result};

use super::pin;

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
