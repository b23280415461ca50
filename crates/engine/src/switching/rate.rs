//! Limits in bits and packets a second.

/// A rate, and a burst beyond it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// The number of bits or packets in a second.
    pub per_s: u64,
    /// The number of bits or packets that may come at once, after a pause.
    pub burst: u64,
}

/// The limits on a port's traffic in one direction, over all its queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateLimit {
    /// Limit in bits, from the Ethernet header to the end of the payload: each segment of a GSO frame has its own
    /// headers, as Linux's `tc` counts them.
    pub bits: Option<Rate>,
    /// Limit in packets: a GSO frame counts as its segments.
    pub packets: Option<Rate>,
}

impl RateLimit {
    /// No limits.
    pub const NONE: Self = Self { bits: None, packets: None };
}
