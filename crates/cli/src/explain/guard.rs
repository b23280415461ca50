//! From which addresses a guest may send, and what was dropped for it.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use weir_engine::PortCounters;

use crate::config::{Addresses, GuardMode, Guarding};
use crate::stats::by_reason;

/// An interface's source guard.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuardExplanation {
    /// How its addresses are known.
    pub mode: GuardMode,
    /// Those that are configured.
    pub addresses: Addresses,
    /// The guest may advertise itself as a router, and answer DHCP.
    pub router: bool,
    /// Frames that were dropped, by the reason's name, since the interface was added.
    pub drops: BTreeMap<String, u64>,
}

impl GuardExplanation {
    /// That of an interface; `None` where nobody asks.
    pub fn of(guarding: &Guarding, counters: &PortCounters) -> Option<Self> {
        let Guarding { mode, addresses, router } = guarding.clone();
        let drops = counters.drops().filter(|(reason, _)| reason.starts_with("source_guard_"));
        let drops = drops.map(|(reason, frames)| (reason.to_owned(), frames)).collect();
        (mode != GuardMode::Off).then_some(Self { mode, addresses, router, drops })
    }
}

/// A line.
impl fmt::Display for GuardExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "source guard: {}: {}", self.mode, self.addresses)?;
        if self.router {
            write!(f, "; a router")?;
        }
        let drops = by_reason(&self.drops);
        if !drops.is_empty() {
            write!(f, "; dropped: {drops}")?;
        }
        writeln!(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guard_is_told_with_its_addresses_and_what_it_dropped() {
        let mut guard = GuardExplanation {
            mode: GuardMode::Configured,
            addresses: "10.0.0.5, fd00::/64".parse().unwrap(),
            ..GuardExplanation::default()
        };
        assert_eq!(guard.to_string(), "source guard: configured: 10.0.0.5, fd00::/64\n");
        guard.router = true;
        guard.drops = BTreeMap::from([("source_guard_arp".into(), 3)]);
        let expected = "source guard: configured: 10.0.0.5, fd00::/64; a router; dropped: source_guard_arp 3\n";
        assert_eq!(guard.to_string(), expected);
    }
}
