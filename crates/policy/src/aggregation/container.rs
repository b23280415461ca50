//! The contents of a container, and when the container is due. Its release time is that of Ramjee's playout estimator
//! (Ramjee et al. 1994, algorithm 1), after Thakur 2014 §III.B.
//!
//! ```text
//! first packet:  P = T_o
//! later:         D_i = a D_(i-1) + (1 - a) n_i
//!                V_i = a V_(i-1) + (1 - a) |D_i - n_i|
//!                P   = D_i + 4 V_i, never above T_o
//! ```
//!
//! The paper prints both recurrences without the new sample n_i: a misprint, with which D and V would forget and never
//! learn. The code has Ramjee's recurrences.
//!
//! A spike begins as in Ramjee's algorithm 4, which Thakur 2014 §II names as the better one:
//!
//! ```text
//! n_i - n_(i-1) > 2 V + threshold
//! ```
//!
//! There the estimate follows the spike, because audio that arrives after its playout time is lost.
//! Here the estimate stays: the spike is a pause between bursts, and says nothing about the gaps in
//! the next burst. A second long delay in a row is no spike, so a rate that falls is learned.

use weir_limits::CONTAINER_BYTES_DEFAULT;

/// Weight of the past; the new sample has the rest.
const ALPHA: f64 = 0.99;
/// Number of mean deviations by which the playout time exceeds the mean.
const DEVIATIONS: f64 = 4.0;
/// Number of mean deviations beyond which a delay is a spike.
const SPIKE_DEVIATIONS: f64 = 2.0;

/// Mean and mean deviation of a delay, both smoothed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Playout {
    estimate: Option<Estimate>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Estimate {
    /// D (ns).
    mean_ns: f64,
    /// V (ns).
    deviation_ns: f64,
    /// The latest delay (ns), n_(i-1) of the next one.
    latest_ns: f64,
}

impl Playout {
    /// Takes the delay of one more packet (ns). The first delay becomes the mean: an estimate that
    /// began at zero would take hundreds of packets to reach it. A delay that exceeds the one
    /// before by 2 V and `spike_ns`, the threshold, is a spike, and the estimate stays.
    pub fn sample(&mut self, delay_ns: u64, spike_ns: u64) {
        let latest_ns = delay_ns as f64;
        let Some(before) = self.estimate else {
            self.estimate = Some(Estimate { mean_ns: latest_ns, deviation_ns: 0.0, latest_ns });
            return;
        };
        let spike_ns = spike_ns as f64 + SPIKE_DEVIATIONS * before.deviation_ns;
        if latest_ns - before.latest_ns > spike_ns {
            self.estimate = Some(Estimate { latest_ns, ..before });
            return;
        }
        let mean_ns = ALPHA * before.mean_ns + (1.0 - ALPHA) * latest_ns;
        let deviation_ns =
            ALPHA * before.deviation_ns + (1.0 - ALPHA) * (mean_ns - latest_ns).abs();
        self.estimate = Some(Estimate { mean_ns, deviation_ns, latest_ns });
    }

    /// Returns the playout time P (ns), at most `timeout_ns`, the paper's T_o. Returns `None`
    /// before the first sample, where the paper takes T_o.
    pub fn playout_ns(&self, timeout_ns: u64) -> Option<u64> {
        let Estimate { mean_ns, deviation_ns, .. } = self.estimate?;
        // The mean of equal samples can differ from them in its last bit, so it is rounded. The cast saturates.
        let playout_ns = (mean_ns + DEVIATIONS * deviation_ns).round() as u64;
        Some(playout_ns.min(timeout_ns))
    }
}

/// Limits that end a container before its timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of frames that fill a container.
    pub bytes: u32,
    /// Frames that fill a container; `None`: any number.
    pub frames: Option<u32>,
}

impl Default for Limits {
    /// One page, as in the paper, and any number of frames.
    fn default() -> Self {
        Self { bytes: CONTAINER_BYTES_DEFAULT, frames: None }
    }
}

/// The container that is being filled. It counts its frames and does not hold them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Container {
    content: Option<Content>,
}

#[derive(Clone, Copy, Debug)]
struct Content {
    /// Time at which the earliest frame reached weir (ns).
    earliest_ns: u64,
    /// Time of the latest addition (ns).
    latest_ns: u64,
    /// Number of additions.
    additions: u32,
    frames: u32,
    bytes: u64,
}

impl Container {
    /// Adds frames that came together at `now_ns`. The earliest of them reached weir at
    /// `arrived_ns`.
    pub fn add(&mut self, now_ns: u64, frames: u32, bytes: u64, arrived_ns: u64) {
        let before = self.content.unwrap_or(Content {
            earliest_ns: u64::MAX,
            latest_ns: now_ns,
            additions: 0,
            frames: 0,
            bytes: 0,
        });
        self.content = Some(Content {
            earliest_ns: before.earliest_ns.min(arrived_ns),
            latest_ns: now_ns,
            additions: before.additions.saturating_add(1),
            frames: before.frames.saturating_add(frames),
            bytes: before.bytes.saturating_add(bytes),
        });
    }

    /// Returns when the container has to go (ns): never while it is empty, at once (0) when it is
    /// full, otherwise `timeout_ns` after its earliest frame reached weir.
    pub fn due_ns(&self, limits: &Limits, timeout_ns: u64) -> u64 {
        let Some(content) = self.content else { return u64::MAX };
        let full = content.bytes >= limits.bytes.into()
            || limits.frames.is_some_and(|most| content.frames >= most);
        if full { 0 } else { content.earliest_ns.saturating_add(timeout_ns) }
    }

    /// Returns when the container will have gained nothing for `quiet_ns` (ns); never while it is
    /// empty.
    pub fn quiet_at_ns(&self, quiet_ns: u64) -> u64 {
        self.content.map_or(u64::MAX, |content| content.latest_ns.saturating_add(quiet_ns))
    }

    /// Returns whether only one addition was made.
    pub fn is_alone(&self) -> bool {
        self.content.is_some_and(|content| content.additions == 1)
    }

    /// Empties the container after it was handed over.
    pub fn clear(&mut self) {
        self.content = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The estimate after these delays, of which those above the threshold can be spikes.
    fn with_spikes(delays_ns: impl IntoIterator<Item = u64>, spike_ns: u64) -> Playout {
        let mut playout = Playout::default();
        delays_ns.into_iter().for_each(|delay_ns| playout.sample(delay_ns, spike_ns));
        playout
    }

    /// The estimate after these delays, none of them a spike.
    fn after(delays_ns: impl IntoIterator<Item = u64>) -> Playout {
        with_spikes(delays_ns, u64::MAX)
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

    #[test]
    fn a_spike_is_not_learned_and_a_second_long_delay_is() {
        let steady = || std::iter::repeat_n(100, 50);
        assert_eq!(with_spikes(steady().chain([1100]), 500).playout_ns(u64::MAX), Some(100));
        assert_eq!(with_spikes(steady().chain([1100, 100]), 500).playout_ns(u64::MAX), Some(100));
        assert_eq!(with_spikes(steady().chain([600]), 500), after(steady().chain([600])));
        // D = 0.99 * 100 + 0.01 * 1100 = 110, V = 0.01 * |110 - 1100| = 9.9.
        let twice = steady().chain([1100, 1100]);
        assert_eq!(with_spikes(twice, 500).playout_ns(u64::MAX), Some(150));
        // Twice the deviation of such delays, about 250, is added to the threshold.
        let wide = || (0..1000).map(|i| if i % 2 == 0 { 100 } else { 600 });
        assert_eq!(with_spikes(wide().chain([1500]), 500), after(wide().chain([1500])));
    }

    #[test]
    fn bursts_with_pauses_between_them_have_the_estimate_of_their_gaps() {
        for len in [2, 4, 40] {
            let trace = || (0..1000).map(|i| if i % len == len - 1 { 10_000 } else { 100 });
            assert_eq!(with_spikes(trace(), 5000).playout_ns(u64::MAX), Some(100));
            assert!(after(trace()).playout_ns(u64::MAX) > Some(800), "learned, pauses dominate");
        }
    }

    #[test]
    fn a_rate_that_falls_is_learned_although_spikes_are_not() {
        let falls = (0..1000).map(|i| if i < 500 { 100 } else { 10_000 });
        assert!(with_spikes(falls, 5000).playout_ns(u64::MAX) >= Some(9900));
    }

    const ANY: Limits = Limits { bytes: u32::MAX, frames: None };

    #[test]
    fn an_empty_container_is_never_due() {
        let mut container = Container::default();
        assert_eq!(container.due_ns(&Limits::default(), 0), u64::MAX);
        container.add(5, 64, 4096, 5);
        container.clear();
        assert_eq!(container.due_ns(&Limits::default(), 0), u64::MAX);
        assert_eq!(container.quiet_at_ns(0), u64::MAX);
        assert!(!container.is_alone());
    }

    #[test]
    fn the_timeout_counts_from_the_earliest_arrival() {
        let mut container = Container::default();
        container.add(10, 1, 60, 7);
        container.add(20, 1, 60, 4);
        assert_eq!(container.due_ns(&ANY, 100), 104);
        assert_eq!(container.quiet_at_ns(100), 120);
        container.add(30, 1, 60, 30);
        assert_eq!(container.due_ns(&ANY, 100), 104);
        assert_eq!(container.due_ns(&ANY, u64::MAX), u64::MAX);
    }

    #[test]
    fn a_full_container_is_due_at_once() {
        let mut container = Container::default();
        container.add(10, 3, 4095, 10);
        assert_eq!(container.due_ns(&Limits::default(), 100), 110);
        let limits = Limits { frames: Some(4), ..ANY };
        assert_eq!(container.due_ns(&limits, 100), 110);
        container.add(11, 1, 1, 11);
        assert_eq!(container.due_ns(&Limits::default(), 100), 0);
        assert_eq!(container.due_ns(&limits, 100), 0);
        assert_eq!(container.due_ns(&ANY, 100), 110);
    }

    #[test]
    fn frames_that_come_together_are_alone_until_others_join() {
        let mut container = Container::default();
        container.add(10, 20, 2000, 10);
        assert!(container.is_alone());
        container.add(11, 1, 60, 11);
        assert!(!container.is_alone());
    }
}
