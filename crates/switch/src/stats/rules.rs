//! What filter rules decided about, of `weir stats`, `weir explain` and `weir filter list`.

use std::fmt;

use serde::{Deserialize, Serialize};
use weir_config::{Direction, FilterRule};
use weir_engine::filter::{PortRules, Rule, Rules};
use weir_text::{Table, bytes, decimal};

use super::PortStats;

/// A filter rule of a port, and what it decided about since the port has these rules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleStats {
    /// The rule.
    #[serde(flatten)]
    pub rule: FilterRule,
    /// Frames.
    pub packets: u64,
    /// Their bytes, without VLAN tags.
    pub bytes: u64,
}

impl RuleStats {
    /// Those of a port: its configured rules, of which the engine's were made.
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

/// The rules of ports as a table; nothing if there are none.
pub fn table<'s>(
    f: &mut dyn fmt::Write,
    ports: impl IntoIterator<Item = (&'s str, &'s [RuleStats])>,
) -> fmt::Result {
    let mut table = Table::new(&["<PORT", "<DIRECTION", "<ACTION", "PACKETS", "BYTES", "<MATCH"]);
    let mut any = false;
    for (port, rules) in ports {
        for RuleStats { rule, packets, bytes: len } in rules {
            any = true;
            table.row(vec![
                port.into(),
                rule.direction.to_string(),
                rule.action.to_string(),
                decimal(*packets),
                bytes(*len),
                match rule.expression.to_string().as_str() {
                    "" => "everything".into(),
                    expression => expression.into(),
                },
            ]);
        }
    }
    if any { write!(f, "\nfilters, the first that matches decides:\n{table}") } else { Ok(()) }
}

/// Of each port its name and its rules, for [`table`].
pub fn of_ports(ports: &[PortStats]) -> impl Iterator<Item = (&str, &[RuleStats])> {
    ports.iter().map(|port| (port.name.as_str(), port.filter.as_slice()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::{PortKind, SwitchStats};

    fn sample() -> SwitchStats {
        let counted = |text: &str, packets| RuleStats {
            rule: text.parse().unwrap(),
            packets,
            bytes: 1500 * packets,
        };
        let mut web0 = PortStats::new("web0".parse().unwrap(), PortKind::Vif);
        web0.filter = vec![counted("tx drop tcp dst port 25", 12), counted("rx accept", 1_234_567)];
        let db0 = PortStats::new("db0".parse().unwrap(), PortKind::Vif);
        SwitchStats { ports: vec![web0, db0], ..SwitchStats::default() }
    }

    #[test]
    fn rules_for_people() {
        let mut text = String::new();
        table(&mut text, of_ports(&sample().ports)).unwrap();
        insta::assert_snapshot!(text, @r#"

        filters, the first that matches decides:
        PORT  DIRECTION  ACTION    PACKETS   BYTES  MATCH
        web0  tx         drop           12   18 kB  tcp dst port 25
        web0  rx         accept  1,234,567  1.9 GB  everything
        "#);
        assert!(sample().to_string().ends_with(&text));
        let mut text = String::new();
        table(&mut text, of_ports(&sample().ports[1..])).unwrap();
        assert_eq!(text, "");
    }

    #[test]
    fn rules_survive_json() {
        let json = serde_json::to_string(&sample()).unwrap();
        assert!(json.contains(
            r#"{"direction":"tx","match":"tcp dst port 25","action":"drop","packets":12,"bytes":18000}"#
        ));
        assert_eq!(serde_json::from_str::<SwitchStats>(&json).unwrap(), sample());
    }

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
