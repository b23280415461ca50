//! Policing: refuses the frames for a receiver that exceed its rate. No frame waits.
//!
//! This is the generic cell rate algorithm (ITU-T I.371, virtual scheduling) in one atomic word:
//! the time at which the bucket will be full again. Workers that deliver to one receiver at the
//! same time share the word without a lock.
//!
//! [`TokenBucket`](crate::schedule::TokenBucket) solves the opposite task: it says how long a
//! *sender* has to wait, while a receiver's frames cannot wait.

use std::sync::atomic::{AtomicU64, Ordering};

use weir_limits::{BURST_MAX, FRAME_LEN_MAX, HEAD_LEN};

/// Units of time in a nanosecond, since a short frame at a high rate takes less than one. A `u64`
/// of these units lasts for nine years of the clock.
const PARTS_PER_NS: u64 = 64;
const PARTS_PER_S: u64 = PARTS_PER_NS * 1_000_000_000;

// The bits of a frame whose segments have a byte of payload each, and the longest headers.
const _: () = assert!(FRAME_LEN_MAX as u64 * (1 + HEAD_LEN as u64) * 8 < u64::MAX / PARTS_PER_S);
const _: () = assert!(BURST_MAX <= u64::BITS as usize);

/// A rate with a burst. The caller defines a token (a bit, a packet).
///
/// In any time `t` at most rate x t + burst passes. A frame longer than the burst passes if nothing
/// is owed, and then takes the place of the burst in that bound.
#[derive(Debug)]
pub struct Gcra {
    per_s: u64,
    burst: u64,
    /// Largest debt that still lets a frame pass: the burst's time at the rate.
    tolerance: u64,
    /// Time at which the bucket is full again.
    full_at: AtomicU64,
}

/// Result of [`Gcra::pass`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passed {
    /// Frames that pass: bit i is the i-th frame.
    pub frames: u64,
    /// Time at which the bucket is full again after these frames.
    full_at: u64,
}

impl Gcra {
    /// Returns a full bucket. A rate or burst of 0 counts as 1.
    pub fn new(per_s: u64, burst: u64) -> Self {
        let per_s = per_s.max(1);
        let burst = burst.max(1);
        let tolerance = u128::from(burst) * u128::from(PARTS_PER_S) / u128::from(per_s);
        let tolerance = u64::try_from(tolerance).unwrap_or(u64::MAX);
        Self { per_s, burst, tolerance, full_at: AtomicU64::new(0) }
    }

    /// Decides which of the first 64 frames pass now, and charges for them. `frames` gives the cost
    /// of each (tokens). Only frames with a bit in `which` count.
    pub fn pass(
        &self,
        now_ns: u64,
        which: u64,
        frames: impl Iterator<Item = u32> + Clone,
    ) -> Passed {
        let now = parts(now_ns);
        let mut before = self.full_at.load(Ordering::Relaxed);
        loop {
            let mut passed = Passed { frames: 0, full_at: before.max(now) };
            for (frame, tokens) in (0..u64::BITS).zip(frames.clone()) {
                let cost = self.cost(tokens);
                let owed = passed.full_at - now;
                if which >> frame & 1 != 0 && owed <= self.tolerance.saturating_sub(cost) {
                    passed.full_at = passed.full_at.saturating_add(cost);
                    passed.frames |= 1 << frame;
                }
            }
            if passed.frames == 0 {
                return passed;
            }
            // Relaxed ordering suffices: the word publishes no other data.
            let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
            let after = passed.full_at;
            match self.full_at.compare_exchange_weak(before, after, success, failure) {
                Ok(_) => return passed,
                Err(other) => before = other,
            }
        }
    }

    /// Returns whether one frame of `tokens` would pass now, without a charge.
    pub fn would_pass(&self, now_ns: u64, tokens: u32) -> bool {
        let owed = self.full_at.load(Ordering::Relaxed).saturating_sub(parts(now_ns));
        owed <= self.tolerance.saturating_sub(self.cost(tokens))
    }

    /// Returns whether one frame passes now, and charges for it. Unlike [`pass`](Self::pass), it
    /// never passes a frame of more `tokens` than the burst.
    pub fn pass_within_burst(&self, now_ns: u64, tokens: u32) -> bool {
        u64::from(tokens) <= self.burst && self.pass(now_ns, 1, [tokens].into_iter()).frames != 0
    }

    /// Returns the result of [`pass_within_burst`](Self::pass_within_burst) without a charge.
    pub fn would_pass_within_burst(&self, now_ns: u64, tokens: u32) -> bool {
        u64::from(tokens) <= self.burst && self.would_pass(now_ns, tokens)
    }

    /// Gives back the cost (tokens) of frames in `passed` that were not delivered.
    ///
    /// Nothing is given back if the bucket may have been full since: then time has paid for the frames. (A worker that
    /// loses its core after it has read the clock may give back a cost that time has paid. Then frames of this cost
    /// pass once more than they should.)
    pub fn give_back(&self, now_ns: u64, passed: &Passed, frames: impl Iterator<Item = u32>) {
        if parts(now_ns) <= passed.full_at {
            // Other workers have only added to this value, so the cost is still in it.
            let cost = frames.map(|tokens| self.cost(tokens)).sum();
            self.full_at.fetch_sub(cost, Ordering::Relaxed);
        }
    }

    /// Returns the time that `tokens` take at the rate, rounded up. No frame has enough bits to
    /// overflow it.
    fn cost(&self, tokens: u32) -> u64 {
        u64::from(tokens).saturating_mul(PARTS_PER_S).div_ceil(self.per_s)
    }
}

fn parts(ns: u64) -> u64 {
    ns.saturating_mul(PARTS_PER_NS)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;
    const ALL: u64 = u64::MAX;

    /// Passes `frames` at once. Returns the tokens that passed.
    fn pass(bucket: &Gcra, now_ns: u64, frames: &[u32]) -> (Passed, u64) {
        let passed = bucket.pass(now_ns, ALL, frames.iter().copied());
        let tokens = frames.iter().enumerate().filter(|(i, _)| passed.frames >> i & 1 != 0);
        (passed, tokens.map(|(_, tokens)| u64::from(*tokens)).sum())
    }

    proptest! {
        #[test]
        fn no_window_passes_more_than_rate_and_burst(
            rate in 1_000..2_000_000_000_000_u64,
            burst in 1_000..10_000_000_u64,
            bursts in prop::collection::vec(
                (0..2_000_000_u64, prop::collection::vec(1..1_000_u32, 1..64), any::<u64>()), 1..60),
        ) {
            let bucket = Gcra::new(rate, burst);
            let mut now_ns = 5 * SECOND_NS;
            let mut got: Vec<(u64, u64)> = Vec::new();
            for (pause_ns, frames, undone) in bursts {
                now_ns += pause_ns;
                let (passed, tokens) = pass(&bucket, now_ns, &frames);
                // Some of these frames are not delivered.
                let undone = undone & passed.frames;
                let lost: Vec<u32> =
                    frames.iter().enumerate().filter(|(i, _)| undone >> i & 1 != 0).map(|(_, t)| *t).collect();
                bucket.give_back(now_ns + pause_ns / 7, &passed, lost.iter().copied());
                got.push((now_ns, tokens - lost.iter().map(|t| u64::from(*t)).sum::<u64>()));
            }
            for (from, (start_ns, _)) in got.iter().enumerate() {
                let mut sum = 0;
                for (end_ns, tokens) in &got[from..] {
                    sum += tokens;
                    let came = u128::from(rate) * u128::from(end_ns - start_ns) / u128::from(SECOND_NS);
                    prop_assert!(u128::from(sum) <= came + 1 + u128::from(burst));
                }
            }
        }

        #[test]
        fn who_always_has_more_gets_the_rate(
            rate in 100_000..10_000_000_000_u64,
            frame in 480..12_144_u32,
            pause_ns in 1_000..100_000_u64,
        ) {
            let burst = 64 * u64::from(frame) + rate / 1_000;
            let bucket = Gcra::new(rate, burst);
            let (mut passed, mut offered, time_ns) = (0, 0, SECOND_NS / 50);
            for step in 0..time_ns / pause_ns {
                passed += pass(&bucket, step * pause_ns, &[frame; 64]).1;
                offered += 64 * u64::from(frame);
            }
            let came = rate * (time_ns - 2 * pause_ns) / SECOND_NS + burst - u64::from(frame);
            // Rounding loses at most one unit of time per frame.
            let least = came.min(offered);
            prop_assert!(passed + least / 500 + 64 * u64::from(frame) >= least, "{passed} of {least}");
        }

        #[test]
        fn what_is_given_back_at_once_was_never_taken(
            frames in prop::collection::vec(1..1_000_u32, 1..64),
            then in prop::collection::vec(1..1_000_u32, 1..64),
        ) {
            let (used, fresh) = (Gcra::new(1_000_000, 20_000), Gcra::new(1_000_000, 20_000));
            let (passed, _) = pass(&used, 7, &frames);
            let back = frames.iter().enumerate().filter(|(i, _)| passed.frames >> i & 1 != 0);
            used.give_back(7, &passed, back.map(|(_, tokens)| *tokens));
            prop_assert_eq!(pass(&used, 7, &then), pass(&fresh, 7, &then));
        }
    }

    #[test]
    fn a_frame_longer_than_the_burst_passes_alone_and_is_owed() {
        let bucket = Gcra::new(1_000_000, 1_000);
        assert_eq!(pass(&bucket, 0, &[100_000, 100_000, 1]).0.frames, 0b001);
        assert_eq!(pass(&bucket, SECOND_NS / 10 - 1, &[100_000]).0.frames, 0);
        assert_eq!(pass(&bucket, SECOND_NS / 10, &[100_000]).0.frames, 1);
    }

    #[test]
    fn within_the_burst_a_frame_of_more_never_passes_and_one_of_all_of_it_does() {
        for (rate, burst) in [(3, 10), (1, 1), (7, 64)] {
            let bucket = Gcra::new(rate, burst);
            for now_ns in [0, 1000 * SECOND_NS] {
                let beyond = burst as u32 + 1;
                assert!(!bucket.would_pass_within_burst(now_ns, beyond));
                assert!(!bucket.pass_within_burst(now_ns, beyond));
                assert!(bucket.would_pass_within_burst(now_ns, burst as u32));
                assert!(bucket.pass_within_burst(now_ns, burst as u32));
                assert!(!bucket.pass_within_burst(now_ns, 1), "all was paid for");
            }
        }
    }

    #[test]
    fn only_those_asked_about_pass() {
        let bucket = Gcra::new(1_000, 3);
        let passed = bucket.pass(0, 0b1010, [1; 4].into_iter());
        assert_eq!(passed.frames, 0b1010);
        assert_eq!(pass(&bucket, 0, &[1, 1]).0.frames, 0b01);
    }

    #[test]
    fn what_time_has_paid_for_is_not_given_back() {
        let bucket = Gcra::new(1_000, 10);
        let (passed, _) = pass(&bucket, 0, &[1; 10]);
        // The bucket is full again, and then empty.
        assert_eq!(pass(&bucket, SECOND_NS, &[1; 20]).1, 10);
        bucket.give_back(SECOND_NS, &passed, [1; 10].into_iter());
        assert_eq!(pass(&bucket, SECOND_NS, &[1; 10]).1, 0);
    }

    #[test]
    fn workers_at_the_same_time_share_one_burst() {
        let bucket = Gcra::new(1, 100_000);
        let passed = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..5_000 {
                        let (_, tokens) = pass(&bucket, 0, &[1; 16]);
                        passed.fetch_add(tokens, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(passed.into_inner(), 100_000);
    }

    #[test]
    fn extremes_do_not_overflow() {
        for (rate, burst) in [(u64::MAX, u64::MAX), (0, 0), (1, u64::MAX), (u64::MAX, 1)] {
            let bucket = Gcra::new(rate, burst);
            for now_ns in [0, u64::MAX / 2, u64::MAX] {
                let (passed, _) = pass(&bucket, now_ns, &[u32::MAX; 64]);
                bucket.give_back(now_ns, &passed, std::iter::empty());
            }
        }
    }
}
