//! Tests whether a longer hold slows the load down, in alternating stretches with it and without.

use crate::law::Law;

/// Traffic of a stretch, from one delivery to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Passed {
    pub(crate) frames: u64,
    pub(crate) bytes: u64,
    pub(crate) ns: u64,
}

impl Passed {
    fn rates(self) -> (f64, f64) {
        let ns = self.ns.max(1) as f64;
        (self.frames as f64 / ns, self.bytes as f64 / ns)
    }

    /// Returns the frames per second.
    pub(crate) fn frame_rate(self) -> f64 {
        self.rates().0 * 1e9
    }
}

/// Returns by which share of the mean `held` is slower than `prompt`; negative if it is faster.
/// Exchanged arguments give the same value with the other sign, so that the mean loss of random
/// rates is zero.
///
/// Both frames and bytes count, since a bulk transfer would hide requests in the bytes and
/// datagrams would hide a bulk transfer in the frames. A gain of one makes up for a loss of the
/// other: held segments are merged into fewer frames with as many bytes. If neither loses, the
/// smaller gain counts.
fn loss(held: Passed, prompt: Passed) -> f64 {
    let ((frames, bytes), (frames_prompt, bytes_prompt)) = (held.rates(), prompt.rates());
    let share = |held: f64, prompt: f64| match held + prompt {
        0.0 => 0.0,
        sum => 2.0 * (prompt - held) / sum,
    };
    let (frames, bytes) = (share(frames, frames_prompt), share(bytes, bytes_prompt));
    let (worse, better) = (frames.max(bytes), frames.min(bytes));
    if worse > 0.0 { worse + better.min(0.0) } else { worse }
}

/// Returns the loss from which on a rate counts as another load's. Such a loss in both of the first
/// two pairs is harm, whatever the noise.
fn plain(law: &Law) -> f64 {
    2.0 * (1.0 - law.fell()) / (1.0 + law.fell())
}

/// The result of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    Unclear,
    Harmless,
    Harmful,
}

/// A comparison of the level `upper` with `lower`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trial {
    pub(crate) upper: usize,
    pub(crate) lower: usize,
    /// Number of stretches so far.
    stretches: u32,
    /// First stretch of the present pair.
    first: Passed,
    /// Set if one stretch of the present pair is exceptional.
    odd: bool,
    pairs: u32,
    /// Sum and sum of squares of the pairs' losses.
    sum: f64,
    squares: f64,
    /// Pairs whose loss is above the noise.
    plain: u32,
}

impl Trial {
    pub(crate) fn new(upper: usize, lower: usize) -> Self {
        Self {
            upper,
            lower,
            stretches: 0,
            first: Passed::default(),
            odd: false,
            pairs: 0,
            sum: 0.0,
            squares: 0.0,
            plain: 0,
        }
    }

    /// Returns the level of the present stretch: upper, lower, lower, upper and so on, so that a
    /// load that grows or fades favours neither.
    pub(crate) fn level(&self) -> usize {
        if self.holds_now() { self.upper } else { self.lower }
    }

    fn holds_now(&self) -> bool {
        matches!(self.stretches % 4, 0 | 3)
    }

    /// Takes the traffic of a stretch at [`Self::level`]. An `odd` stretch excludes its pair.
    pub(crate) fn stretch(&mut self, law: &Law, passed: Passed, odd: bool) -> Finding {
        let held = self.holds_now();
        self.stretches += 1;
        self.odd |= odd;
        if self.stretches % 2 == 1 {
            self.first = passed;
            return Finding::Unclear;
        }
        if std::mem::take(&mut self.odd) {
            return Finding::Unclear;
        }
        let loss = if held { loss(passed, self.first) } else { loss(self.first, passed) };
        self.pairs += 1;
        self.sum += loss;
        self.squares += loss * loss;
        self.plain += u32::from(loss > plain(law));
        self.finding(law)
    }

    /// Returns whether every pair has a plain loss, with enough pairs to exclude chance.
    pub(crate) fn always_slower(&self, law: &Law) -> bool {
        self.pairs >= law.pairs_min && self.plain == self.pairs
    }

    /// Judges the pairs, by one rule for all trials. A mean loss within the law's tolerance is
    /// harmless once the error is as small, or after half of all pairs. A larger loss is harm if it
    /// exceeds chance. Few pairs estimate the error badly, so the last pair needs half as many
    /// errors as the first.
    fn finding(&self, law: &Law) -> Finding {
        if self.plain >= 2 && self.plain == self.pairs {
            return Finding::Harmful;
        }
        let (first, last) = (law.pairs_min, law.pairs_max());
        if self.pairs < first {
            return Finding::Unclear;
        }
        let pairs = f64::from(self.pairs);
        let mean = self.sum / pairs;
        let variance = (self.squares - pairs * mean * mean).max(0.0) / (pairs - 1.0).max(1.0);
        let error = (variance / pairs).sqrt();
        if mean <= law.loss() {
            let sure = mean + error <= 2.0 * law.loss() || self.pairs >= last / 2;
            return if sure { Finding::Harmless } else { Finding::Unclear };
        }
        let passed = f64::from(self.pairs - first) / f64::from(last - first).max(1.0);
        if mean > f64::from(law.errors) * (1.0 - passed / 2.0) * error {
            Finding::Harmful
        } else if self.pairs < last {
            Finding::Unclear
        } else {
            Finding::Harmless
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::law::LAW;

    fn passed(frames: u64, bytes: u64) -> Passed {
        Passed { frames, bytes, ns: 1_000_000 }
    }

    /// Number of frames that makes a stretch odd.
    const ODD: u64 = 7;

    /// Runs a trial in which each stretch passes the frames that `frames` returns.
    fn outcome(frames: impl Fn(bool, u32) -> u64) -> (Finding, u32) {
        let mut trial = Trial::new(3, 0);
        loop {
            let frames = frames(trial.level() == 3, trial.stretches);
            match trial.stretch(&LAW, passed(frames, 64 * frames), frames == ODD) {
                Finding::Unclear => {}
                finding => return (finding, trial.pairs),
            }
        }
    }

    #[test]
    fn equal_rates_are_harmless_and_a_tenth_less_is_harm_after_four_pairs() {
        assert_eq!(outcome(|_, _| 1_000), (Finding::Harmless, LAW.pairs_min));
        assert_eq!(outcome(|held, _| if held { 900 } else { 1_000 }), (Finding::Harmful, 4));
    }

    #[test]
    fn half_the_rate_is_harm_after_two_pairs() {
        assert_eq!(outcome(|held, _| if held { 500 } else { 1_000 }), (Finding::Harmful, 2));
    }

    #[test]
    fn odd_stretches_are_not_judged_by() {
        assert_eq!(outcome(|_, at| if at == 3 { ODD } else { 1_000 }), (Finding::Harmless, 4));
    }

    #[test]
    fn a_load_that_grows_or_fades_is_not_taken_for_harm() {
        assert_eq!(outcome(|_, at| 1_000 + 50 * u64::from(at)).0, Finding::Harmless);
        assert_eq!(outcome(|_, at| 3_000 - 50 * u64::from(at)).0, Finding::Harmless);
    }

    #[test]
    fn noise_alone_is_not_harm_and_does_not_hide_it() {
        // Noise of +-20 %: both stretches of a pair have the same, and pairs differ.
        let noise = |at: u32| [1_000, 800, 1_200, 900, 1_100, 1_000][(at as usize / 2 * 5) % 6];
        assert_eq!(outcome(|_, at| noise(at)).0, Finding::Harmless);
        let harmed = |held: bool, at| if held { noise(at) * 9 / 10 } else { noise(at) };
        assert_eq!(outcome(harmed).0, Finding::Harmful);
    }

    #[test]
    fn what_varies_by_itself_neither_loses_nor_gains_on_average() {
        for (frames, bytes) in [(1_300, 83_200), (700, 44_800), (1_300, 44_800), (0, 0)] {
            let (one, other) = (passed(frames, bytes), passed(1_000, 64_000));
            assert_eq!(loss(one, other), -loss(other, one), "{frames} {bytes}");
        }
    }

    #[test]
    fn fewer_frames_with_as_many_more_bytes_are_no_loss() {
        assert_eq!(loss(passed(500, 200_000), passed(1_000, 100_000)), 0.0);
        assert!(loss(passed(500, 100_000), passed(1_000, 100_000)) > 0.4);
        assert!(loss(passed(1_000, 50_000), passed(1_000, 100_000)) > 0.4);
        assert_eq!(loss(Passed::default(), Passed::default()), 0.0);
    }
}
