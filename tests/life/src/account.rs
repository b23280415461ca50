//! Drops that weir reports, over the lives of many weirs.

use std::collections::BTreeMap;

use weir_bed::{error::Result, weir_stats::Stats};

/// Drops by port and reason.
type Drops = BTreeMap<(String, String), u64>;

/// Frames counted with a reason.
#[derive(Debug, Default)]
pub struct Account {
    /// Drops of weirs that have ended.
    past: Drops,
    /// Drops of the running weir, when it was last asked.
    now: Drops,
}

impl Account {
    /// Takes the running weir's counters.
    pub fn note(&mut self, stats: &Stats) -> Result<()> {
        self.now = stats.drops()?;
        Ok(())
    }

    /// Records the end of the running weir: the next one counts from zero.
    pub fn ended(&mut self) {
        for (at, count) in std::mem::take(&mut self.now) {
            *self.past.entry(at).or_default() += count;
        }
    }

    /// Returns the total at the ports that `among` selects.
    pub fn total(&self, among: impl Fn(&str) -> bool) -> u64 {
        let all = self.past.iter().chain(&self.now);
        all.filter(|((port, _), _)| among(port)).map(|(_, count)| count).sum()
    }

    /// Returns the drops of all ports by reason, as text.
    pub fn reasons(&self) -> String {
        let mut reasons = BTreeMap::<_, u64>::new();
        for ((_, reason), count) in self.past.iter().chain(&self.now) {
            *reasons.entry(reason).or_default() += count;
        }
        let words: Vec<_> =
            reasons.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
        if words.is_empty() { String::from("none") } else { words.join(", ") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(drops: &str) -> Stats {
        let ports = r#"[{"name":"a","drops":DROPS},{"name":"b","drops":{"x":1,"y":0}}]"#;
        Stats::parse(&format!("{{\"ports\":{}}}", ports.replace("DROPS", drops))).unwrap()
    }

    #[test]
    fn drops_of_all_lives_count_and_none_twice() {
        let mut account = Account::default();
        account.note(&stats(r#"{"x":2}"#)).unwrap();
        account.note(&stats(r#"{"x":3}"#)).unwrap();
        assert_eq!(account.total(|_| true), 4);
        account.ended();
        account.note(&stats(r#"{"y":1}"#)).unwrap();
        assert_eq!(account.total(|port| port == "a"), 4);
        assert_eq!(account.total(|_| true), 6);
        assert_eq!(account.reasons(), "5 x, 1 y");
    }
}
