//! What an interface may receive, and what it did not get for that.

use std::fmt;

use serde::{Deserialize, Serialize};
use weir_config::Receiving;
use weir_text::{decimal, time};

/// What an interface may receive, and what was dropped beyond it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceivingExplanation {
    /// As it is configured.
    pub limits: Receiving,
    /// Frames that were dropped for it.
    pub policed: u64,
    /// When this was looked at, or from one look to the other, in nanoseconds.
    pub elapsed_ns: u64,
}

impl ReceivingExplanation {
    /// Counts from `before` on.
    pub(super) fn since(&mut self, before: &Self) {
        self.policed = self.policed.saturating_sub(before.policed);
        self.elapsed_ns = self.elapsed_ns.saturating_sub(before.elapsed_ns);
    }
}

/// A line, where there is a limit.
impl fmt::Display for ReceivingExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Receiving { rate, packets_per_second, .. } = self.limits;
        let rate = rate.map(|rate| rate.to_string());
        let packets =
            packets_per_second.map(|rate| format!("{} packets/s", decimal(rate.get().into())));
        let limits: Vec<_> = rate.into_iter().chain(packets).collect();
        if limits.is_empty() {
            return Ok(());
        }
        writeln!(
            f,
            "receives at most {}: {} frames beyond that dropped in {}",
            limits.join(" and "),
            decimal(self.policed),
            time(self.elapsed_ns),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_told_with_what_it_cost() {
        let limits = Receiving { rate: Some("100Mbit".parse().unwrap()), ..Receiving::default() };
        let mut now = ReceivingExplanation { limits, policed: 5_234, elapsed_ns: 3_000_000_000 };
        now.since(&ReceivingExplanation { limits, policed: 1_000, elapsed_ns: 2_000_000_000 });
        assert_eq!(
            now.to_string(),
            "receives at most 100Mbit: 4,234 frames beyond that dropped in 1 s\n"
        );
        now.limits.packets_per_second = Some("2000".parse().unwrap());
        let text = now.to_string();
        assert!(text.starts_with("receives at most 100Mbit and 2,000 packets/s: "), "{text}");
        assert_eq!(ReceivingExplanation::default().to_string(), "");
    }
}
