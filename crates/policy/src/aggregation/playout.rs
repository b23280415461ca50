//! Ramjee's playout estimator (Ramjee et al. 1994, algorithm 1), from which Thakur 2014 §III.B takes
//! the release time of a container.
//!
//! ```text
//! first packet:  P = T_o
//! later:         D_i = a D_(i-1) + (1 - a) n_i
//!                V_i = a V_(i-1) + (1 - a) |D_i - n_i|
//!                P   = D_i + 4 V_i, never above T_o
//! ```
//!
//! The paper prints both recurrences without the new sample n_i: a misprint, with which D and V would
//! forget and never learn. These are Ramjee's.

/// Weight of the past; the new sample has the rest.
const ALPHA: f64 = 0.99;
/// Number of mean deviations by which the playout time exceeds the mean.
const DEVIATIONS: f64 = 4.0;

/// Mean and mean deviation of a delay, both smoothed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Playout {
    estimate: Option<Estimate>,
}

#[derive(Clone, Copy, Debug)]
struct Estimate {
    /// D (ns).
    mean_ns: f64,
    /// V (ns).
    deviation_ns: f64,
}

impl Playout {
    /// Takes the delay of one more packet (ns). The first delay becomes the mean: an estimate that
    /// began at zero would take hundreds of packets to reach it.
    pub fn sample(&mut self, delay_ns: u64) {
        let delay_ns = delay_ns as f64;
        let Estimate { mean_ns, deviation_ns } =
            self.estimate.unwrap_or(Estimate { mean_ns: delay_ns, deviation_ns: 0.0 });
        let mean_ns = ALPHA * mean_ns + (1.0 - ALPHA) * delay_ns;
        let deviation_ns = ALPHA * deviation_ns + (1.0 - ALPHA) * (mean_ns - delay_ns).abs();
        self.estimate = Some(Estimate { mean_ns, deviation_ns });
    }

    /// Returns the playout time P (ns), at most `timeout_ns`, the paper's T_o. Returns `None`
    /// before the first sample, where the paper takes T_o.
    pub fn playout_ns(&self, timeout_ns: u64) -> Option<u64> {
        let Estimate { mean_ns, deviation_ns } = self.estimate?;
        // Rounding restores a mean of equal samples that lost its last bit. The cast saturates.
        let playout_ns = (mean_ns + DEVIATIONS * deviation_ns).round() as u64;
        Some(playout_ns.min(timeout_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(delays_ns: impl IntoIterator<Item = u64>) -> Playout {
        let mut playout = Playout::default();
        delays_ns.into_iter().for_each(|delay_ns| playout.sample(delay_ns));
        playout
    }

    #[test]
    fn nothing_is_known_before_the_first_sample() {
        assert_eq!(Playout::default().playout_ns(100), None);
    }

    #[test]
    fn equal_delays_are_the_playout_time() {
        for delay_ns in [0, 1, 7, 1_000_000_000] {
            assert_eq!(after([delay_ns; 1000]).playout_ns(u64::MAX), Some(delay_ns));
        }
    }

    #[test]
    fn the_recurrences_are_ramjees() {
        // D = 0.99 * 100 + 0.01 * 1100 = 110, V = 0.01 * |110 - 1100| = 9.9.
        assert_eq!(after([100, 1100]).playout_ns(u64::MAX), Some(150));
        // D = 0.99 * 110 + 0.01 * 100 = 109.9, V = 0.99 * 9.9 + 0.01 * 9.9 = 9.9.
        assert_eq!(after([100, 1100, 100]).playout_ns(u64::MAX), Some(150));
    }

    #[test]
    fn the_playout_time_never_exceeds_the_timeout() {
        assert_eq!(after([u64::MAX; 3]).playout_ns(500), Some(500));
        assert_eq!(after([0, 4_000_000, 0]).playout_ns(500), Some(500));
        assert_eq!(after([100; 3]).playout_ns(0), Some(0));
    }

    #[test]
    fn a_new_delay_is_learned_both_ways() {
        let rises = (0..1000).map(|i| if i < 500 { 10 } else { 1000 });
        assert!(after(rises).playout_ns(u64::MAX) >= Some(990));
        let falls = (0..2000).map(|i| if i < 500 { 1000 } else { 10 });
        assert!(after(falls).playout_ns(u64::MAX) <= Some(12));
    }
}
