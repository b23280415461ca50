//! The checks of a port's frames: source guard, filter rules and security groups, with the frames that they dropped.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_config::{
    Addresses, Direction, FilterRule, GroupDefault, GuardMode, Guarding, PortName, RuleDirection,
};
use weir_engine::PortCounters;
use weir_engine::filter::{PortRules, Rule, Rules};
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

/// A filter rule of a port, and the traffic that it has decided about since the port's rules were set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RuleStats {
    /// The rule.
    #[serde(flatten)]
    pub rule: FilterRule,
    /// Frames that the rule decided about.
    pub packets: u64,
    /// Bytes of these frames, without VLAN tags.
    pub bytes: u64,
}

impl RuleStats {
    /// The counters of a port's rules. `configured` has the rules from which the engine's `running`
    /// ones were made.
    pub fn of(configured: &[FilterRule], running: &PortRules) -> Vec<Self> {
        let [mut tx, mut rx] = [&running.tx, &running.rx]
            .map(|rules| rules.as_deref().into_iter().flat_map(Rules::iter));
        let counted = |rule: &FilterRule| {
            let running: Option<&Rule> = match rule.direction {
                Direction::Tx => tx.next(),
                Direction::Rx => rx.next(),
            };
            let count = |of: fn(&Rule) -> u64| running.map_or(0, of);
            Self {
                rule: rule.clone(),
                packets: count(|rule| rule.packets.get()),
                bytes: count(|rule| rule.bytes.get()),
            }
        };
        configured.iter().map(counted).collect()
    }
}

/// A security group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GroupStats {
    /// The group's name.
    pub name: String,
    /// The action for connections to the group's interfaces that match no rule.
    pub default_in: GroupDefault,
    /// The action for connections from the group's interfaces that match no rule.
    pub default_out: GroupDefault,
    /// Refusals by a direction that the group closes are logged.
    #[serde(default)]
    pub log: bool,
    /// Connections that are allowed, such as `in tcp 80,443 from group:lb`.
    pub rules: Vec<String>,
    /// The interfaces in the group.
    pub vifs: Vec<PortName>,
}

/// A connection of an interface in groups.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConnectionStats {
    /// The protocol, by the word or number of a rule.
    pub protocol: String,
    /// The VLAN's tag, if the interface has tags.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
    /// The guest's address, with its port if the protocol has ports.
    pub own: String,
    /// The address of the other end, with its port.
    pub peer: String,
    /// The identifier of ICMP queries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identifier: Option<u16>,
    /// The direction in which it was opened, seen from the guest.
    pub opened: RuleDirection,
    /// Its state in a word, such as `established`.
    pub state: String,
    /// Milliseconds since its last packet, in steps of 17.
    pub idle_ms: u64,
}

/// Connections of an interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConnectionPage {
    /// The interface.
    pub vif: PortName,
    /// At most 1,000 connections, in no particular order.
    pub connections: Vec<ConnectionStats>,
    /// The `from` of the next page, if there may be more.
    pub next: Option<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_stand_beside_the_rules_they_are_of() {
        let texts = ["rx drop arp", "tx drop ip", "rx accept", "tx accept"];
        let configured = texts.map(|text| text.parse().unwrap());
        let running = weir_config::filter::port_rules(&configured).unwrap();
        running.tx.iter().flat_map(|rules| rules.iter()).zip(1..).for_each(|(rule, n)| {
            rule.packets.add(n);
        });
        let packets: Vec<_> =
            RuleStats::of(&configured, &running).iter().map(|rule| rule.packets).collect();
        assert_eq!(packets, [0, 1, 0, 2]);
    }
}
