//! From which addresses a guest may send, and what was dropped for it.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use weir_config::{Addresses, GuardMode, Guarding};
use weir_engine::PortCounters;
use weir_fabric::SourceGuard;

use crate::stats::by_reason;

/// An interface's source guard.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuardExplanation {
    /// How its addresses are known.
    pub mode: GuardMode,
    /// Those that are configured.
    pub addresses: Addresses,
    /// Those that DHCP has given it.
    pub leases: Vec<LeaseExplanation>,
    /// The guest may advertise itself as a router, and answer DHCP.
    pub router: bool,
    /// Frames that were dropped, by the reason's name, since the interface was added.
    pub drops: BTreeMap<String, u64>,
}

/// An address for a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseExplanation {
    /// The address.
    pub address: IpAddr,
    /// For how many seconds yet.
    pub seconds_left: u32,
}

impl GuardExplanation {
    /// That of an interface.
    pub fn of(
        guarding: &Guarding,
        guard: &SourceGuard,
        counters: &PortCounters,
        now_secs: u32,
    ) -> Self {
        let Guarding { mode, addresses, router } = guarding.clone();
        let drops = counters.drops().filter(|(reason, _)| reason.starts_with("source_guard_"));
        let drops = drops.map(|(reason, frames)| (reason.to_owned(), frames)).collect();
        let leases = guard.leases(now_secs).map(|lease| LeaseExplanation {
            address: lease.address,
            seconds_left: lease.until_secs.saturating_sub(now_secs),
        });
        Self { mode, addresses, leases: leases.collect(), router, drops }
    }
}

/// A line.
impl fmt::Display for GuardExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "source guard: {}", self.mode)?;
        if !self.addresses.as_slice().is_empty() {
            write!(f, ": {}", self.addresses)?;
        }
        for LeaseExplanation { address, seconds_left } in &self.leases {
            write!(f, ", {address} for {seconds_left} s")?;
        }
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
        let leased = LeaseExplanation { address: "10.0.0.6".parse().unwrap(), seconds_left: 3600 };
        let snooped = GuardExplanation {
            mode: GuardMode::Snooped,
            leases: vec![leased],
            ..GuardExplanation::default()
        };
        assert_eq!(snooped.to_string(), "source guard: snooped, 10.0.0.6 for 3600 s\n");
        guard.router = true;
        guard.drops = BTreeMap::from([("source_guard_arp".into(), 3)]);
        let expected = "source guard: configured: 10.0.0.5, fd00::/64; a router; dropped: source_guard_arp 3\n";
        assert_eq!(guard.to_string(), expected);
    }
}
