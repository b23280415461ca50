//! What a core can copy when it does nothing else: the limit of a switch that copies once.

use std::{
    hint::black_box,
    thread,
    time::{Duration, Instant},
};

use super::pin;
use crate::error::{Error, Result};

/// Bytes copied at a time: a large segment's.
const SEGMENT_BYTES: usize = 64 << 10;

/// Bytes that source and destination each go round in: a stream's window, a ring's buffers.
const AREA_BYTES: usize = 2 << 20;

/// How long is counted, after as long to warm up.
const TIME: Duration = Duration::from_millis(300);

/// Gbit/s that a thread on CPU `cpu` copies.
pub(super) fn gbit_per_second(cpu: usize) -> Result<f64> {
    let copying = thread::spawn(move || {
        pin(cpu)?;
        // Not zeroes: pages that were never written may all be the same one.
        let (from, mut to) = (vec![1_u8; AREA_BYTES], vec![2_u8; AREA_BYTES]);
        copy_for(TIME, &from, &mut to);
        Ok(copy_for(TIME, &from, &mut to))
    });
    copying.join().map_err(|_| Error::Check("the copying thread panicked".into()))?
}

fn copy_for(time: Duration, from: &[u8], to: &mut [u8]) -> f64 {
    let start = Instant::now();
    let mut rounds = 0_u32;
    while start.elapsed() < time {
        for (from, to) in from.chunks(SEGMENT_BYTES).zip(to.chunks_mut(SEGMENT_BYTES)) {
            black_box(to).copy_from_slice(black_box(from));
        }
        rounds += 1;
    }
    let bits = f64::from(rounds) * from.len() as f64 * 8.0;
    bits / start.elapsed().as_secs_f64() / 1e9
}
