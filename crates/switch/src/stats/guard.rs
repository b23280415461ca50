//! From which addresses a guest may send, and what was dropped for it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_config::{Addresses, GuardMode, Guarding};
use weir_engine::PortCounters;
use weir_fabric::SourceGuard;

/// An interface's source guard.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LeaseExplanation {
    /// The address.
    #[schema(value_type = String)]
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
