//! Decides whose transmit queue a worker serves next, and limits senders' rates.
//!
//! A [`Scheduler`] holds the queues of one worker that are ready, each with the *flow* it belongs
//! to: the sending port, by number. A queue is served one burst at a time, and the burst's cost is
//! charged to its flow:
//!
//! ```text
//! has work ──▶ wake() ──▶ next() ──▶ a burst is served ──▶ charge() ──▶ more? again()
//! ```
//!
//! Accounts belong to flows, not to queues: more queues bring no larger share, and a queue that
//! moves elsewhere takes no account with it.
//!
//! - [`Kind::Drr`]: worker time by weight (deficit round robin, Shreedhar & Varghese 1995, with costs that are known
//!   afterwards).
//! - [`Kind::RoundRobin`]: one burst each in turn, whatever it costs.
//! - [`Kind::Dwcs`]: window constraints (West & Schwan).
//!
//! [`TokenBucket`] limits a rate.

mod drr;
mod dwcs;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fmt;
use std::mem;
use std::str::FromStr;

use drr::Drr;
use dwcs::Dwcs;
use weir_limits::{WINDOW_LEN_MAX, WINDOW_PERIOD_NS_MAX, WINDOW_PERIOD_NS_MIN};

/// The rule that gives turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Worker time by weight.
    #[default]
    Drr,
    /// One burst each in turn.
    RoundRobin,
    /// Window constraints.
    Dwcs,
}

/// Error: the text names no [`Kind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no such schedule")]
pub struct UnknownKind;

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Drr, Self::RoundRobin, Self::Dwcs];
    /// Names of all kinds, in the same order.
    pub const NAMES: [&str; 3] = ["drr", "round-robin", "dwcs"];

    /// Returns the name that users write.
    pub const fn as_str(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Kind {
    type Err = UnknownKind;
    fn from_str(text: &str) -> Result<Self, UnknownKind> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text).ok_or(UnknownKind)
    }
}

/// A window constraint: of any `y` turns in a row, one each period, at most `x` may be late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    x: u16,
    y: u16,
    period_ns: u64,
}

/// Error: not a valid [`Window`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WindowError {
    /// There are more late turns than turns, no turns, or too many.
    #[error(
        "{x} of {y} is no window; there are 1 to {WINDOW_LEN_MAX} turns, of which so many or fewer are late"
    )]
    Turns {
        /// Turns that may be late.
        x: u16,
        /// Number of turns.
        y: u16,
    },
    /// The period is out of bounds.
    #[error("a period of {0} ns is not within {WINDOW_PERIOD_NS_MIN} to {WINDOW_PERIOD_NS_MAX} ns")]
    Period(u64),
}

impl Window {
    /// Returns the window "at most `x` of `y` turns late, one turn each `period_ns`".
    ///
    /// # Errors
    /// [`WindowError`]
    pub fn new(x: u16, y: u16, period_ns: u64) -> Result<Self, WindowError> {
        if x > y || !(1..=WINDOW_LEN_MAX).contains(&y) {
            return Err(WindowError::Turns { x, y });
        }
        if !(WINDOW_PERIOD_NS_MIN..=WINDOW_PERIOD_NS_MAX).contains(&period_ns) {
            return Err(WindowError::Period(period_ns));
        }
        Ok(Self { x, y, period_ns })
    }
}

/// A flow's entitlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Share of the worker's time, in proportion to other flows' weights ([`Kind::Drr`]); 0 counts
    /// as 1.
    pub weight: u16,
    /// Window constraint ([`Kind::Dwcs`]); a flow without one gets the time that windows leave.
    pub window: Option<Window>,
}

impl Default for Share {
    fn default() -> Self {
        Self { weight: 1, window: None }
    }
}

/// A queue and its flow.
#[derive(Clone, Copy, Debug)]
struct Entry<Q> {
    flow: usize,
    queue: Q,
}

/// A worker's ready queues. The caller must put a queue in at most once.
#[derive(Debug)]
pub struct Scheduler<Q> {
    turns: Turns<Q>,
}

#[derive(Debug)]
enum Turns<Q> {
    Drr(Drr<Q>),
    RoundRobin(VecDeque<Entry<Q>>),
    Dwcs(Dwcs<Q>),
}

impl<Q: Copy> Turns<Q> {
    #[inline]
    fn next(&mut self, now_ns: u64) -> Option<Entry<Q>> {
        match self {
            Self::Drr(drr) => drr.next(),
            Self::RoundRobin(ready) => ready.pop_front(),
            Self::Dwcs(dwcs) => dwcs.next(now_ns),
        }
    }
}

impl<Q: Copy> Scheduler<Q> {
    /// Returns a scheduler without queues, with the default [`Share`] for every flow.
    pub fn new(kind: Kind) -> Self {
        let turns = match kind {
            Kind::Drr => Turns::Drr(Drr::new()),
            Kind::RoundRobin => Turns::RoundRobin(VecDeque::new()),
            Kind::Dwcs => Turns::Dwcs(Dwcs::new()),
        };
        Self { turns }
    }

    /// Returns the rule.
    pub fn kind(&self) -> Kind {
        match &self.turns {
            Turns::Drr(_) => Kind::Drr,
            Turns::RoundRobin(_) => Kind::RoundRobin,
            Turns::Dwcs(_) => Kind::Dwcs,
        }
    }

    /// Changes the rule. Ready queues stay ready, in the order in which the old rule would have served them. Accounts
    /// begin anew: every flow has the default [`Share`] until [`Self::set_share`].
    pub fn change(&mut self, kind: Kind, now_ns: u64) {
        let mut old = mem::replace(self, Self::new(kind));
        while let Some(Entry { flow, queue }) = old.turns.next(now_ns) {
            self.wake(flow, queue, now_ns);
        }
    }

    /// Sets `flow`'s entitlement from now on.
    pub fn set_share(&mut self, flow: usize, share: Share) {
        match &mut self.turns {
            Turns::Drr(drr) => drr.set_weight(flow, share.weight),
            Turns::RoundRobin(_) => {}
            Turns::Dwcs(dwcs) => dwcs.set_window(flow, share.window),
        }
    }

    /// Returns the number of ready queues.
    #[inline]
    pub fn len(&self) -> usize {
        match &self.turns {
            Turns::Drr(drr) => drr.len(),
            Turns::RoundRobin(ready) => ready.len(),
            Turns::Dwcs(dwcs) => dwcs.ready.len(),
        }
    }

    /// Returns whether no queue is ready.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a queue of `flow` that had no work and has some now.
    pub fn wake(&mut self, flow: usize, queue: Q, now_ns: u64) {
        let entry = Entry { flow, queue };
        match &mut self.turns {
            Turns::Drr(drr) => drr.wake(entry),
            Turns::RoundRobin(ready) => ready.push_back(entry),
            Turns::Dwcs(dwcs) => dwcs.wake(entry, now_ns),
        }
    }

    /// Removes and returns the queue to serve now.
    #[inline]
    pub fn next(&mut self, now_ns: u64) -> Option<Q> {
        self.turns.next(now_ns).map(|entry| entry.queue)
    }

    /// Charges `flow` for a burst that took `cost_ns`. Returns the violations of the flow's window
    /// since the last charge.
    #[inline]
    pub fn charge(&mut self, flow: usize, cost_ns: u64) -> u64 {
        match &mut self.turns {
            Turns::Drr(drr) => drr.charge(flow, cost_ns),
            Turns::RoundRobin(_) => {}
            Turns::Dwcs(dwcs) => return dwcs.violations(flow),
        }
        0
    }

    /// Adds a queue again that was served and charged for, and has more work.
    #[inline]
    pub fn again(&mut self, flow: usize, queue: Q) {
        let entry = Entry { flow, queue };
        match &mut self.turns {
            Turns::Drr(drr) => drr.again(entry),
            Turns::RoundRobin(ready) => ready.push_back(entry),
            Turns::Dwcs(dwcs) => dwcs.ready.push_back(entry),
        }
    }
}

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

    /// Returns whether the bucket was full when its level was last computed.
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
