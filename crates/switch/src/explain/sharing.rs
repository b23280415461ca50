//! What an interface had of the workers' time, what its weight entitles it to, and what kept it from more.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use weir_config::PortName;
use weir_text::{decimal, time};

/// Workers that were busy for so much of the time (%) had none left.
const FULL_PERCENT: u64 = 90;

/// A port's share of the workers' time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortShare {
    /// In proportion to others'.
    pub weight: u16,
    /// Worker time that was charged to it, in nanoseconds.
    pub worker_ns: u64,
}

/// An interface as a sender among others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharingExplanation {
    /// The interface.
    pub own: PortShare,
    /// All other ports, by name.
    pub others: BTreeMap<PortName, PortShare>,
    /// Workers that there are.
    pub workers: u64,
    /// When this was looked at, or from one look to the other, in nanoseconds.
    pub elapsed_ns: u64,
    /// Its queues waited so often for its rate.
    pub rate_waits: u64,
    /// Turns that were late though its window allows no more of them.
    pub window_violations: u64,
    /// Frames that waited for a receiver without buffers.
    pub parked: u64,
}

impl SharingExplanation {
    /// Counts from `before` on.
    pub(super) fn since(&mut self, before: &Self) {
        let others = self.others.iter_mut().map(|(name, now)| (now, before.others.get(name)));
        for (now, before) in others.chain([(&mut self.own, Some(&before.own))]) {
            let before = before.map_or(0, |before| before.worker_ns);
            now.worker_ns = now.worker_ns.saturating_sub(before);
        }
        let Self { elapsed_ns, rate_waits, window_violations, parked, .. } = self;
        for (now, before) in [
            (elapsed_ns, before.elapsed_ns),
            (rate_waits, before.rate_waits),
            (window_violations, before.window_violations),
            (parked, before.parked),
        ] {
            *now = now.saturating_sub(before);
        }
    }

    /// Those that sent, itself included.
    fn senders(&self) -> impl Iterator<Item = &PortShare> {
        self.others.values().chain([&self.own]).filter(|share| share.worker_ns > 0)
    }

    /// What kept it from sending more.
    fn limits(&self) -> Vec<String> {
        let Self { rate_waits, window_violations, parked, .. } = self;
        let mut limits = Vec::new();
        if *rate_waits > 0 {
            limits.push(format!("its rate (waits: {})", decimal(*rate_waits)));
        }
        if *parked > 0 {
            limits.push(format!("full receivers (frames that waited: {})", decimal(*parked)));
        }
        let busy_ns: u64 = self.senders().map(|share| share.worker_ns).sum();
        let there_was_ns = self.elapsed_ns.saturating_mul(self.workers);
        if busy_ns / FULL_PERCENT >= there_was_ns / 100 && busy_ns > 0 {
            limits.push("the schedule (the workers had no time left)".into());
        }
        if *window_violations > 0 {
            limits.push(format!("the schedule (turns too late: {})", decimal(*window_violations)));
        }
        limits
    }
}

impl fmt::Display for SharingExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PortShare { weight, worker_ns } = self.own;
        if worker_ns == 0 {
            return writeln!(f, "share: weight {weight}; it sent nothing");
        }
        let all_ns: u64 = self.senders().map(|share| share.worker_ns).sum();
        let weights: u64 = self.senders().map(|share| u64::from(share.weight)).sum();
        let percent = |part: u64, of: u64| 100.0 * part as f64 / of.max(1) as f64;
        let limits = self.limits();
        let limits = if limits.is_empty() { "nothing".into() } else { limits.join(", ") };
        writeln!(
            f,
            "share: {:.0}% of the workers' time ({}), entitled to {:.0}% (weight {weight} of {weights} of those \
             that sent); limited by {limits}",
            percent(worker_ns, all_ns),
            time(worker_ns),
            percent(weight.into(), weights),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(own_ns: u64, other_ns: u64) -> SharingExplanation {
        let other = |name: &str, weight, worker_ns| {
            (name.parse().unwrap(), PortShare { weight, worker_ns })
        };
        SharingExplanation {
            own: PortShare { weight: 1, worker_ns: own_ns },
            others: [other("b", 3, other_ns), other("idle", 100, 5)].into(),
            workers: 1,
            elapsed_ns: 1_000_000_000,
            ..SharingExplanation::default()
        }
    }

    #[test]
    fn who_is_below_its_share_and_kept_by_nothing_had_no_more() {
        let mut now = sample(100_000_000 + 7, 300_000_000);
        now.elapsed_ns *= 2;
        let before =
            SharingExplanation { own: PortShare { weight: 1, worker_ns: 7 }, ..sample(0, 0) };
        now.since(&before);
        insta::assert_snapshot!(now, @"share: 25% of the workers' time (100 ms), entitled to 25% (weight 1 of 4 of those that sent); limited by nothing");
    }

    #[test]
    fn every_limit_is_named() {
        let since = |change: fn(&mut SharingExplanation)| {
            let mut now = sample(450_000_000, 500_000_000);
            now.others.remove(&"idle".parse().unwrap());
            change(&mut now);
            now.to_string()
        };
        assert!(
            since(|_| ()).ends_with("limited by the schedule (the workers had no time left)\n")
        );
        assert!(since(|now| now.workers = 2).ends_with("limited by nothing\n"));
        let limited = since(|now| {
            now.workers = 2;
            (now.rate_waits, now.parked, now.window_violations) = (1200, 3, 1);
        });
        let expected = "its rate (waits: 1,200), full receivers (frames that waited: 3), the schedule (turns too late: 1)\n";
        assert!(limited.ends_with(expected), "{limited}");
    }

    #[test]
    fn who_sent_nothing_is_limited_by_nobody() {
        assert_eq!(sample(0, 1_000_000_000).to_string(), "share: weight 1; it sent nothing\n");
    }
}
