//! Measurements of a run: levels over time, times with quantiles, and means with confidence
//! intervals.

use hdrhistogram::Histogram;

/// Significant decimal digits of a quantile.
const DIGITS: u8 = 3;
/// Longest time in quantiles (ns); longer times count as this.
const TIME_NS_MAX: u64 = 1_000_000_000_000;
/// Least number of batches for batch means; there are always fewer than twice as many.
const BATCHES: usize = 32;
/// Student's t for 31 degrees of freedom and 95 %.
const T_95: f64 = 2.04;

/// The mean of a level (a queue's length) over time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Level {
    from_ns: u64,
    since_ns: u64,
    level: u64,
    max: u64,
    /// Integral of the level (level times ns).
    area: u128,
}

impl Level {
    /// Sets the level from `now_ns` on.
    pub fn set(&mut self, now_ns: u64, level: u64) {
        self.area += u128::from(self.level) * u128::from(now_ns.saturating_sub(self.since_ns));
        (self.since_ns, self.level, self.max) = (now_ns, level, self.max.max(level));
    }

    /// Forgets the time before `now_ns`, and keeps the level.
    pub fn restart(&mut self, now_ns: u64) {
        *self = Self { from_ns: now_ns, since_ns: now_ns, max: self.level, area: 0, ..*self };
    }

    /// Returns the mean up to `now_ns`; 0 if no time has passed.
    pub fn mean(&self, now_ns: u64) -> f64 {
        let last = u128::from(self.level) * u128::from(now_ns.saturating_sub(self.since_ns));
        (self.area + last) as f64 / now_ns.saturating_sub(self.from_ns).max(1) as f64
    }

    /// Returns the highest level.
    pub fn max(&self) -> u64 {
        self.max
    }
}

/// Times (ns): their exact mean and maximum, and quantiles to three digits.
#[derive(Clone, Debug)]
pub struct Times {
    histogram: Histogram<u64>,
    sum: u128,
    max: u64,
}

impl Default for Times {
    fn default() -> Self {
        let histogram = Histogram::new_with_max(TIME_NS_MAX, DIGITS).expect("up to five digits");
        Self { histogram, sum: 0, max: 0 }
    }
}

impl Times {
    /// Adds a time (ns).
    pub fn record(&mut self, ns: u64) {
        self.histogram.saturating_record(ns);
        self.sum += u128::from(ns);
        self.max = self.max.max(ns);
    }

    /// Adds all times of another.
    pub fn merge(&mut self, other: &Self) {
        self.histogram.add(&other.histogram).expect("both have the same bounds");
        self.sum += other.sum;
        self.max = self.max.max(other.max);
    }

    /// Returns the number of times.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Returns the mean (ns); 0 without times.
    pub fn mean_ns(&self) -> f64 {
        self.sum as f64 / self.count().max(1) as f64
    }

    /// Returns the longest time (ns).
    pub fn max_ns(&self) -> u64 {
        self.max
    }

    /// Returns the time (ns) that the share `quantile` of the times does not exceed.
    pub fn quantile_ns(&self, quantile: f64) -> u64 {
        self.histogram.value_at_quantile(quantile)
    }
}

/// A mean of correlated values, such as waiting times, with a confidence interval by batch means (Law, *Simulation
/// Modeling and Analysis*): means of long consecutive batches hardly correlate.
///
/// At twice the number of batches needed, neighbours merge.
#[derive(Clone, Debug)]
pub struct BatchMeans {
    /// Sums of complete batches of `size` values.
    sums: Vec<f64>,
    size: u64,
    /// Sum of the present batch.
    sum: f64,
    count: u64,
}

impl Default for BatchMeans {
    fn default() -> Self {
        Self { sums: Vec::with_capacity(2 * BATCHES), size: 1, sum: 0.0, count: 0 }
    }
}

impl BatchMeans {
    /// Adds a value.
    pub fn record(&mut self, value: f64) {
        self.sum += value;
        self.count += 1;
        if self.count < self.size {
            return;
        }
        self.sums.push(std::mem::take(&mut self.sum));
        self.count = 0;
        if self.sums.len() == 2 * BATCHES {
            self.sums = self.sums.chunks(2).map(|pair| pair.iter().sum()).collect();
            self.size *= 2;
        }
    }

    /// Returns the mean of all complete batches, and half the width of its 95 % confidence
    /// interval; `None` before there are enough.
    pub fn estimate(&self) -> Option<(f64, f64)> {
        if self.sums.len() < BATCHES {
            return None;
        }
        let batches = self.sums.len() as f64;
        let means = || self.sums.iter().map(|sum| sum / self.size as f64);
        let mean = means().sum::<f64>() / batches;
        let squares: f64 = means().map(|each| (each - mean) * (each - mean)).sum();
        Some((mean, T_95 * (squares / (batches - 1.0) / batches).sqrt()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn a_level_counts_for_as_long_as_it_stands() {
        let mut level = Level::default();
        level.set(10, 4);
        level.set(20, 1);
        assert_eq!((level.mean(40), level.max()), ((4.0 * 10.0 + 20.0) / 40.0, 4));
        level.restart(40);
        assert_eq!((level.mean(50), level.max()), (1.0, 1));
    }

    #[test]
    fn quantiles_are_right_to_three_digits_and_the_mean_is_exact() {
        let mut times = Times::default();
        (1..=100_000).for_each(|ns| times.record(ns));
        assert_eq!((times.mean_ns(), times.max_ns()), (50_000.5, 100_000));
        assert!(times.quantile_ns(0.99).abs_diff(99_000) <= 99);
    }

    #[test]
    fn the_interval_covers_the_mean_as_often_as_it_says() {
        let mut covered = 0;
        for seed in 0..400 {
            let mut random = Random::stream(seed, 0);
            let mut means = BatchMeans::default();
            let mut value = 0.0;
            // Each value depends on the one before; their mean is 0.
            for _ in 0..20_000 {
                value = 0.9 * value + random.unit() - 0.5;
                means.record(value);
            }
            let (mean, half) = means.estimate().unwrap();
            covered += u32::from(mean.abs() <= half);
        }
        assert!((364..=396).contains(&covered), "{covered} of 400 are not about 95 %");
    }
}
