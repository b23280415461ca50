//! A rate limit: a token bucket in exact integers.

/// Nanoseconds of a second, and parts of a token.
const NS_PER_S: u128 = 1_000_000_000;

/// Tokens that come at a rate and are kept up to a burst. The caller defines a token (a bit, a
/// packet).
///
/// The level is in parts, 10^9 to a token. The parts that come in a nanosecond equal the tokens
/// that come in a second. So no time and no part of a token is ever rounded away, however often the
/// bucket is asked.
///
/// In any time `t` at most rate x t + burst is taken, if nobody takes more than is
/// [`available`](Self::available). Taking more leaves a debt, which later tokens pay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    rate_per_s: u64,
    burst: u64,
    /// Level in parts; negative while some is owed.
    level: i128,
    /// Time of the level (ns).
    at_ns: u64,
}

impl TokenBucket {
    /// Returns a full bucket. A rate or burst of 0 counts as 1.
    pub fn new(rate_per_s: u64, burst: u64, now_ns: u64) -> Self {
        let (rate_per_s, burst) = (rate_per_s.max(1), burst.max(1));
        let mut bucket = Self { rate_per_s, burst, level: 0, at_ns: now_ns };
        bucket.level = bucket.full();
        bucket
    }

    /// Returns the level of a full bucket, in parts.
    fn full(&self) -> i128 {
        parts(self.burst)
    }

    /// Returns the tokens available now. A time before the last one counts as the last one.
    pub fn available(&mut self, now_ns: u64) -> u64 {
        let passed_ns = now_ns.saturating_sub(self.at_ns);
        self.at_ns = self.at_ns.max(now_ns);
        let came = i128::from(self.rate_per_s).saturating_mul(passed_ns.into());
        self.level = self.level.saturating_add(came).min(self.full());
        u64::try_from(self.level / parts(1)).unwrap_or(0)
    }

    /// Returns whether the bucket was full at the last question.
    pub fn is_full(&self) -> bool {
        self.level >= self.full()
    }

    /// Takes tokens. The level may become negative.
    pub fn take(&mut self, tokens: u64) {
        self.level = self.level.saturating_sub(parts(tokens));
    }

    /// Gives back tokens that were taken and not used.
    pub fn give_back(&mut self, tokens: u64) {
        self.level = self.level.saturating_add(parts(tokens)).min(self.full());
    }

    /// Returns when `tokens` will be available (ns), or a full bucket if that is fewer.
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
