//! Counters of filter rules, for `weir stats`, `weir explain` and `weir filter list`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_config::{Direction, FilterRule};
use weir_engine::filter::{PortRules, Rule, Rules};

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
    /// The counters of a port: its configured rules, from which the engine's rules were made.
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
