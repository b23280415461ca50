//! Throughput of plain copies by one core: the upper limit of a switch that copies once.

use std::hint::black_box;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Length of each copy (bytes), like a large segment's.
const SEGMENT_BYTES: usize = 64 << 10;
/// Size of the source and target areas, which copies traverse in a circle (bytes). It is like a stream's window and a
/// ring's buffers.
const AREA_BYTES: usize = 2 << 20;

/// Returns the Gbit that this thread copies per second of its CPU time. `time` is the CPU time of the measurement.
pub(super) fn gbit_per_cpu_s(time: Duration) -> f64 {
    // The pages are written: untouched pages of zeros may all be the same page.
    let (from, mut to) = (vec![1_u8; AREA_BYTES], vec![2_u8; AREA_BYTES]);
    let mut copy = || {
        for (from, to) in from.chunks(SEGMENT_BYTES).zip(to.chunks_mut(SEGMENT_BYTES)) {
            black_box(to).copy_from_slice(black_box(from));
        }
    };
    // Fills the caches, as the stream does before it is counted.
    copy();
    let start = cpu_time();
    let mut rounds = 0_u64;
    loop {
        copy();
        rounds += 1;
        let spent = cpu_time().saturating_sub(start);
        if spent >= time && !spent.is_zero() {
            return rounds as f64 * AREA_BYTES as f64 * 8.0 / 1e9 / spent.as_secs_f64();
        }
    }
}

/// Returns this thread's CPU time.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}
