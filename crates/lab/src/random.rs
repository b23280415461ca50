//! Randomness that is the same everywhere: a specified generator, and logarithms that do not depend
//! on the platform.

use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};
use rand_xoshiro::{SplitMix64, Xoshiro256PlusPlus};

/// xoshiro256++ 1.0 (Blackman and Vigna 2019, <https://prng.di.unimi.it>), seeded by SplitMix64 as
/// its authors advise.
///
/// A test compares both with published vectors, so that an update of the library cannot change the
/// meaning of a seed.
#[derive(Clone, Debug)]
pub struct Random(Xoshiro256PlusPlus);

impl Random {
    /// Returns stream `number` of `seed`. Each user of randomness has its own stream, so that a
    /// change to one affects no other.
    pub fn stream(seed: u64, number: u64) -> Self {
        let number = SplitMix64::seed_from_u64(number).next_u64();
        Self(Xoshiro256PlusPlus::seed_from_u64(seed ^ number))
    }

    /// Returns 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a number in `(0, 1]`, a multiple of 2^-53.
    pub fn unit(&mut self) -> f64 {
        ((self.bits() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// Returns a whole number below `bound`, 0 if that is 0. One in 2^64 / `bound` is off by one.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64 // below `bound`
    }
}

/// Distribution of gaps (ns), costs (ns) or lengths (bytes).
#[derive(Clone, Debug, PartialEq)]
pub enum Distribution {
    /// A constant.
    Constant(u64),
    /// Uniform whole numbers from `min` to `max`, both included.
    Uniform {
        /// The smallest value.
        min: u64,
        /// The largest value.
        max: u64,
    },
    /// Exponential; gaps of this kind make Poisson arrivals.
    Exponential {
        /// The mean.
        mean: u64,
    },
    /// Pareto: one in `(x / min)^shape` values is larger than x.
    Pareto {
        /// The smallest value.
        min: u64,
        /// Shape: the smaller, the heavier the tail. The mean is finite above 1, the variance above
        /// 2.
        shape: f64,
    },
    /// Given values, in a loop.
    Trace(Vec<u64>),
}

impl Distribution {
    /// Returns the mean; the smallest value if there is none (Pareto with a `shape` of at most 1).
    pub fn mean(&self) -> f64 {
        match self {
            Self::Constant(value) => *value as f64,
            Self::Uniform { min, max } => (*min as f64 + *max as f64) / 2.0,
            Self::Exponential { mean } => *mean as f64,
            Self::Pareto { min, shape } if *shape > 1.0 => *min as f64 * shape / (shape - 1.0),
            Self::Pareto { min, .. } => *min as f64,
            Self::Trace(values) => {
                values.iter().map(|value| *value as f64).sum::<f64>() / values.len().max(1) as f64
            }
        }
    }

    /// Returns the reason why no value, or only 0, can be drawn; `None` if there is none.
    pub fn fault(&self) -> Option<&'static str> {
        match self {
            Self::Uniform { min, max } if min > max => Some("`min` is above `max`"),
            Self::Pareto { shape, .. } if !shape.is_finite() || *shape <= 0.0 => {
                Some("`shape` is not above 0")
            }
            Self::Constant(0)
            | Self::Uniform { max: 0, .. }
            | Self::Exponential { mean: 0 }
            | Self::Pareto { min: 0, .. } => Some("it has no value above 0"),
            Self::Trace(values) if values.iter().all(|value| *value == 0) => {
                Some("it has no value above 0")
            }
            _ => None,
        }
    }
}

/// A distribution with its random stream.
#[derive(Clone, Debug)]
pub struct Sampler {
    distribution: Distribution,
    random: Random,
    /// Position in a trace.
    at: usize,
}

impl Sampler {
    /// Returns a sampler of `distribution` that uses `random`.
    pub fn new(distribution: Distribution, random: Random) -> Self {
        Self { distribution, random, at: 0 }
    }

    /// Draws the next value, rounded to the nearest whole number.
    pub fn draw(&mut self) -> u64 {
        match &self.distribution {
            Distribution::Constant(value) => *value,
            Distribution::Uniform { min, max } => {
                let width = max.saturating_sub(*min).saturating_add(1);
                min.saturating_add(self.random.below(width))
            }
            Distribution::Exponential { mean } => {
                whole(-libm::log(self.random.unit()) * *mean as f64)
            }
            Distribution::Pareto { min, shape } => {
                whole(*min as f64 * libm::exp(-libm::log(self.random.unit()) / shape))
            }
            Distribution::Trace(values) => {
                let value = values.get(self.at).copied().unwrap_or(0);
                self.at = if self.at + 1 < values.len() { self.at + 1 } else { 0 };
                value
            }
        }
    }
}

/// Returns the nearest whole number, with saturation.
fn whole(value: f64) -> u64 {
    (value + 0.5) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_is_the_one_its_authors_published() {
        // The first outputs of the reference code from the state 1, 2, 3, 4.
        let mut seed = [0; 32];
        for (word, number) in seed.chunks_exact_mut(8).zip(1u64..) {
            word.copy_from_slice(&number.to_le_bytes());
        }
        let mut random = Random(Xoshiro256PlusPlus::from_seed(seed));
        let first: Vec<u64> = (0..4).map(|_| random.bits()).collect();
        assert_eq!(first, [41_943_041, 58_720_359, 3_588_806_011_781_223, 3_591_011_842_654_386]);
        // SplitMix64 from 1234567.
        let mut split = SplitMix64::seed_from_u64(1_234_567);
        assert_eq!(split.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(split.next_u64(), 3_203_168_211_198_807_973);
        // The first number of a stream, which must never change.
        assert_eq!(Random::stream(1, 2).bits(), 5_845_468_077_739_584_681);
    }

    #[test]
    fn seeds_and_streams_differ_and_repeat() {
        let first = |seed, number| Random::stream(seed, number).bits();
        assert_eq!(first(1, 0), first(1, 0));
        assert_ne!(first(1, 0), first(1, 1));
        assert_ne!(first(1, 0), first(2, 0));
    }

    fn mean(distribution: Distribution) -> f64 {
        let mut sampler = Sampler::new(distribution, Random::stream(7, 0));
        let draws = 200_000;
        (0..draws).map(|_| sampler.draw() as f64).sum::<f64>() / f64::from(draws)
    }

    #[test]
    fn distributions_have_the_means_that_they_should() {
        let near = |distribution: Distribution, expected: f64| {
            assert_eq!(distribution.mean(), expected);
            let got = mean(distribution.clone());
            assert!((got / expected - 1.0).abs() < 0.01, "{distribution:?}: {got}");
        };
        near(Distribution::Constant(10), 10.0);
        near(Distribution::Uniform { min: 100, max: 300 }, 200.0);
        near(Distribution::Exponential { mean: 5_000 }, 5_000.0);
        near(Distribution::Pareto { min: 1_000, shape: 3.0 }, 1_500.0);
        near(Distribution::Trace(vec![1, 2, 6]), 3.0);
    }

    #[test]
    fn bounds_are_kept_to_the_ends() {
        let mut dice = Sampler::new(Distribution::Uniform { min: 1, max: 6 }, Random::stream(0, 0));
        let seen: std::collections::BTreeSet<u64> = (0..1_000).map(|_| dice.draw()).collect();
        assert!(seen.into_iter().eq(1..=6));
        let tail = Distribution::Pareto { min: u64::MAX / 2, shape: 0.01 };
        assert!(Sampler::new(tail, Random::stream(0, 0)).draw() >= u64::MAX / 2);
        assert_eq!(Distribution::Uniform { min: 2, max: 1 }.fault(), Some("`min` is above `max`"));
        assert!(Distribution::Trace(Vec::new()).fault().is_some());
    }
}
