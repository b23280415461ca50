//! A rate limit: a token bucket in exact integers.

/// Nanoseconds of a second: a token has so many parts.
const NS_PER_S: u128 = 1_000_000_000;

/// Tokens that come at a rate and are kept up to a burst. What a token is (a bit, a packet) is the
/// caller's.
///
/// The level is counted in parts of which a token has 10^9. In one nanosecond as many come as tokens in a
/// second, so that no time and no part of a token is ever rounded away, however often it is asked.
///
/// What is taken in any time `t` is at most rate x t + burst, if no more is taken than is
/// [`available`](Self::available). More may be taken: it is owed, and comes out of what follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    rate_per_s: u64,
    burst: u64,
    /// In parts; negative while some is owed.
    level: i128,
    /// As of when (ns).
    at_ns: u64,
}

impl TokenBucket {
    /// A full bucket; neither may be 0, which counts as 1.
    pub fn new(rate_per_s: u64, burst: u64, now_ns: u64) -> Self {
        let (rate_per_s, burst) = (rate_per_s.max(1), burst.max(1));
        let mut bucket = Self { rate_per_s, burst, level: 0, at_ns: now_ns };
        bucket.level = bucket.full();
        bucket
    }

    /// Its parts when it is full.
    fn full(&self) -> i128 {
        parts(self.burst)
    }

    /// Tokens there are now. A time before the last one counts as that.
    pub fn available(&mut self, now_ns: u64) -> u64 {
        let passed_ns = now_ns.saturating_sub(self.at_ns);
        self.at_ns = self.at_ns.max(now_ns);
        let came = i128::from(self.rate_per_s).saturating_mul(passed_ns.into());
        self.level = self.level.saturating_add(came).min(self.full());
        u64::try_from(self.level / parts(1)).unwrap_or(0)
    }

    /// Whether it held as many as it can when it was last asked.
    pub fn is_full(&self) -> bool {
        self.level >= self.full()
    }

    /// Takes tokens, which may leave it owing some.
    pub fn take(&mut self, tokens: u64) {
        self.level = self.level.saturating_sub(parts(tokens));
    }

    /// Takes back what was taken and not used.
    pub fn give_back(&mut self, tokens: u64) {
        self.level = self.level.saturating_add(parts(tokens)).min(self.full());
    }

    /// When there will be `tokens` (ns), or as many as it holds if that is fewer.
    pub fn ready_at(&self, tokens: u64) -> u64 {
        let missing = parts(tokens).min(self.full()).saturating_sub(self.level);
        let Ok(missing) = u128::try_from(missing) else { return self.at_ns };
        let wait_ns = missing.div_ceil(self.rate_per_s.into());
        self.at_ns.saturating_add(u64::try_from(wait_ns).unwrap_or(u64::MAX))
    }
}

fn parts(tokens: u64) -> i128 {
    // 2^64 times 2^30.
    i128::from(tokens) * NS_PER_S as i128
}
