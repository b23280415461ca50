//! The addresses from which a guest may send, and the frames that the source guard dropped.

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
    /// The source of the guest's addresses.
    pub mode: GuardMode,
    /// Configured addresses.
    pub addresses: Addresses,
    /// Addresses that DHCP has leased to the guest.
    pub leases: Vec<LeaseExplanation>,
    /// The guest may advertise itself as a router, and act as a DHCP server.
    pub router: bool,
    /// Dropped frames by the reason's name, since the interface was added.
    pub drops: BTreeMap<String, u64>,
}

/// An address with a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LeaseExplanation {
    /// The address.
    #[schema(value_type = String)]
    pub address: IpAddr,
    /// Seconds until the lease ends.
    pub seconds_left: u32,
}

impl GuardExplanation {
    /// The source guard of an interface.
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
