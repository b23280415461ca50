//! Packet filters of a port: `[[vif.NAME.filter]]`, and the same rules as text on the command line.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;
use weir_engine::filter::{Action, PortRules, Rules, RulesError};
use weir_filter::Program;
use weir_limits as limits;

use super::error::Problem;
use super::keys::{Key, Rows, Value};
use super::section::{Section, from_toml_string, missing};
use super::values::{Direction, FilterAction, ValueError, serde_as_text};

/// A rule. The first rule of a direction that matches a frame decides; unmatched frames pass.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FilterRule {
    /// The direction of the frames that the rule applies to.
    pub direction: Direction,
    /// The expression that a frame has to match; the empty one matches every frame.
    #[serde(rename = "match", default)]
    pub expression: Expression,
    /// The action on a frame that matches.
    pub action: FilterAction,
}

/// An expression of `pcap-filter(7)` that libpcap has compiled. Its text has single spaces.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Expression {
    text: String,
    program: Arc<Program>,
}

impl PartialEq for Expression {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Expression {}

impl Default for Expression {
    /// The empty expression, which every frame matches.
    fn default() -> Self {
        Self { text: String::new(), program: Arc::new(Program::all()) }
    }
}

impl FromStr for Expression {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let program = Arc::new(Program::compile(&text).map_err(ValueError::Filter)?);
        Ok(Self { text, program })
    }
}

impl Expression {
    /// True for the empty expression, which every frame matches.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// The program that libpcap compiled.
    pub fn program(&self) -> Arc<Program> {
        Arc::clone(&self.program)
    }
}

impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

serde_as_text!(Expression);

from_toml_string! {
    Expression = "an expression in quotes, such as \"tcp port 80\"";
}

impl FromStr for FilterRule {
    type Err = ValueError;

    /// Reads a direction, an action and an expression: `tx drop tcp dst port 25`. The expression can be left out.
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let not_a_rule = || ValueError::FilterRule { value: text.into() };
        let (direction, rest) =
            text.trim().split_once(char::is_whitespace).ok_or_else(not_a_rule)?;
        let rest = rest.trim_start();
        let (action, expression) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        Ok(Self {
            direction: direction.parse()?,
            action: action.parse()?,
            expression: expression.parse()?,
        })
    }
}

impl fmt::Display for FilterRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{} {} {}", self.direction, self.action, self.expression);
        f.write_str(text.trim_end())
    }
}

/// All rules of a port, as a request sends them.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct FilterRules(#[serde(deserialize_with = "rules_of_a_port")] pub Vec<FilterRule>);

/// Reads at most `FILTER_RULES_MAX` rules. Each rule is compiled as it is read, so one rule too many ends the reading.
pub(crate) fn rules_of_a_port<'de, D>(deserializer: D) -> Result<Vec<FilterRule>, D::Error>
where
    D: Deserializer<'de>,
{
    struct Bounded;
    impl<'de> Visitor<'de> for Bounded {
        type Value = Vec<FilterRule>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "at most {} rules", limits::FILTER_RULES_MAX)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
            let mut rules = Vec::new();
            while rules.len() < limits::FILTER_RULES_MAX {
                match seq.next_element()? {
                    Some(rule) => rules.push(rule),
                    None => return Ok(rules),
                }
            }
            // A rule too many is not compiled.
            match seq.next_element::<serde::de::IgnoredAny>()? {
                Some(_) => Err(A::Error::custom(format!(
                    "a port has more than {} filter rules",
                    limits::FILTER_RULES_MAX
                ))),
                None => Ok(rules),
            }
        }
    }
    deserializer.deserialize_seq(Bounded)
}

/// The rules as the engine runs them, with their counters at zero.
///
/// # Errors
/// [`RulesError`] if the rules are too many, or their programs are too long.
pub fn port_rules(rules: &[FilterRule]) -> Result<PortRules, RulesError> {
    if rules.len() > limits::FILTER_RULES_MAX {
        return Err(RulesError::TooMany(rules.len()));
    }
    let side = |direction| {
        let mut rules = rules.iter().filter(|rule| rule.direction == direction).peekable();
        if rules.peek().is_none() {
            return Ok(None);
        }
        let rules = rules.map(|rule| {
            let action = match rule.action {
                FilterAction::Accept => Action::Accept,
                FilterAction::Drop => Action::Drop,
            };
            (Arc::clone(&rule.expression.program), action)
        });
        Rules::new(rules).map(|rules| Some(Arc::new(rules)))
    };
    Ok(PortRules { tx: side(Direction::Tx)?, rx: side(Direction::Rx)? })
}

impl Value for Vec<FilterRule> {
    fn read(&mut self, key: &Key, section: &mut Section<'_>, problems: &mut Vec<Problem>) {
        let said = rules(section, problems);
        if section.has(key.name) {
            *self = said;
        }
    }

    fn show(&self, key: Key, rows: &mut Rows) {
        let rules: Vec<_> = self.iter().map(FilterRule::to_string).collect();
        rows.push((key, (!rules.is_empty()).then(|| rules.join("; "))));
    }
}

/// Reads the tables `[[PORT.filter]]` of a port.
fn rules(section: &mut Section<'_>, problems: &mut Vec<Problem>) -> Vec<FilterRule> {
    let mut rules = Vec::new();
    let tables = section.tables("filter", problems);
    let too_many = (tables.len() > limits::FILTER_RULES_MAX).then_some(tables.len());
    // A rule is compiled as it is read. If there are too many rules, none is compiled.
    for mut table in tables.into_iter().filter(|_| too_many.is_none()) {
        for (key, help) in [
            ("direction", "add `direction = \"tx\"` or `direction = \"rx\"`"),
            ("action", "add `action = \"accept\"` or `action = \"drop\"`"),
        ] {
            if !table.has(key) {
                problems.push(missing(&table, key, help));
            }
        }
        let direction = table.value("direction", problems);
        let action = table.value("action", problems);
        let expression = table.value("match", problems);
        table.finish(problems);
        if let (Some(direction), Some(action)) = (direction, action) {
            let expression = expression.unwrap_or_default();
            rules.push(FilterRule { direction, expression, action });
        }
    }
    let refused =
        too_many.map_or_else(|| port_rules(&rules).err(), |many| Some(RulesError::TooMany(many)));
    if let Some(error) = refused {
        problems.push(
            Problem::new(format!("`{}` has too much of a filter", section.title))
                .label(section.span.clone(), error.to_string())
                .help("one expression can stand for several: `port 25 or port 465`"),
        );
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{messages, refused};
    use crate::{PortName, Setting, VifChanges, VifConfig};

    fn rule(text: &str) -> FilterRule {
        text.parse().unwrap()
    }

    #[test]
    fn diagnostic_expression_that_libpcap_does_not_understand() {
        let text = "[vif.web0]\n\n[[vif.web0.filter]]\ndirection = \"tx\"\nmatch = \"tcp prot 25\"\naction = \"drop\"\n";
        insta::assert_snapshot!(refused(text), @r#"
      × weir.toml: 1 problem

    Error:
      × bad value for `vif.web0.filter.match`
       ╭─[weir.toml:5:9]
     4 │ direction = "tx"
     5 │ match = "tcp prot 25"
       ·         ──────┬──────
       ·               ╰── can't parse filter expression: syntax error
     6 │ action = "drop"
       ╰────
      help: pcap-filter(7) says how expressions are written; weir's limits are in its guide
    "#);
    }

    #[test]
    fn diagnostic_filter_table_with_everything_wrong() {
        let text =
            "[vif.web0]\n[[vif.web0.filter]]\ndirection = \"in\"\nmatch = 80\nmach = \"ip\"\n";
        insta::assert_snapshot!(refused(text), @r#"
      × weir.toml: 4 problems

    Error:
      × `vif.web0.filter` has no `action`
       ╭─[weir.toml:2:1]
     1 │ [vif.web0]
     2 │ [[vif.web0.filter]]
       · ─────────┬─────────
       ·          ╰── needs `action`
     3 │ direction = "in"
       ╰────
      help: add `action = "accept"` or `action = "drop"`

    Error:
      × bad value for `vif.web0.filter.direction`
       ╭─[weir.toml:3:13]
     2 │ [[vif.web0.filter]]
     3 │ direction = "in"
       ·             ──┬─
       ·               ╰── `in` is not one of `tx`, `rx`
     4 │ match = 80
       ╰────

    Error:
      × bad value for `vif.web0.filter.match`
       ╭─[weir.toml:4:9]
     3 │ direction = "in"
     4 │ match = 80
       ·         ─┬
       ·          ╰── expected an expression in quotes, such as "tcp port 80", found integer
     5 │ mach = "ip"
       ╰────

    Error:
      × unknown key `mach` in `vif.web0.filter`
       ╭─[weir.toml:5:1]
     4 │ match = 80
     5 │ mach = "ip"
       · ──┬─
       ·   ╰── unknown key
       ╰────
      help: did you mean `match`?
    "#);
    }

    #[test]
    fn filter_that_is_no_list_of_tables_is_refused() {
        for text in ["filter = \"tcp\"", "filter = [\"tcp\"]", "[vif.web0.filter]\nmatch = \"tcp\""]
        {
            let messages = messages(&format!("[vif.web0]\n{text}\n"));
            assert_eq!(messages, ["`vif.web0.filter` is not a list of tables"], "{text}");
        }
    }

    #[test]
    fn more_rules_than_a_port_has_are_refused() {
        let table = "[[vif.web0.filter]]\ndirection = \"tx\"\naction = \"drop\"\n";
        let most = format!("[vif.web0]\n{}", table.repeat(limits::FILTER_RULES_MAX));
        assert!(crate::tests::parse(&most).is_ok());
        assert_eq!(messages(&format!("{most}{table}")), ["`vif.web0` has too much of a filter"]);
    }

    #[test]
    fn no_rule_beyond_the_last_that_fits_is_compiled() {
        // The expression would be a syntax error.
        let wrong = "{\"direction\":\"tx\",\"match\":\"no such thing\",\"action\":\"drop\"}";
        let good = wrong.replace("no such thing", "arp");
        let list = |last: &str| {
            let rules = vec![good.as_str(); limits::FILTER_RULES_MAX - 1];
            format!("[{},{last}]", rules.join(","))
        };
        let read = |text: &str| serde_json::from_str::<crate::FilterRules>(text);
        assert_eq!(read(&list(&good)).unwrap().0.len(), limits::FILTER_RULES_MAX);
        assert!(read(&list(wrong)).unwrap_err().to_string().contains("syntax error"));
        let refused = read(&list(&format!("{good},{wrong}"))).unwrap_err().to_string();
        assert!(refused.contains("a port has more than 32 filter rules"), "{refused}");
        // The same bound holds for a whole interface in one request.
        let mut vif =
            serde_json::to_value(&crate::tests::parse("[vif.web0]").unwrap().vifs[0]).unwrap();
        vif["filter"] = serde_json::from_str(&list(&format!("{good},{wrong}"))).unwrap();
        let refused = serde_json::from_value::<crate::VifConfig>(vif).unwrap_err().to_string();
        assert!(refused.contains("a port has more than 32 filter rules"), "{refused}");
        // The same bound holds in a file.
        let table = "[[vif.web0.filter]]\ndirection = \"tx\"\naction = \"drop\"\n";
        let many = table.repeat(limits::FILTER_RULES_MAX);
        let text = format!("[vif.web0]\n{many}{table}match = \"no such thing\"\n");
        assert_eq!(messages(&text), ["`vif.web0` has too much of a filter"]);
    }

    #[test]
    fn rules_are_written_as_they_are_read() {
        for text in ["tx drop", "rx accept arp", "tx accept tcp port 80 and src net 10.0.0.0/8"] {
            assert_eq!(rule(text).to_string(), text);
        }
        assert_eq!(rule("  rx\tdrop  ip  or   arp "), rule("rx drop ip or arp"));
        for (text, words) in [
            ("", "`` is not a rule"),
            ("drop", "`drop` is not a rule"),
            ("in drop", "`in` is not one of `tx`, `rx`"),
            ("tx reject ip", "`reject` is not one of `accept`, `drop`"),
            ("tx drop no such thing", "syntax error"),
        ] {
            let error = text.parse::<FilterRule>().unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn rules_survive_json_and_json_is_checked_as_text_is() {
        let json = r#"{"direction":"tx","match":"tcp port 25","action":"drop"}"#;
        assert_eq!(serde_json::to_string(&rule("tx drop tcp port 25")).unwrap(), json);
        assert_eq!(serde_json::from_str::<FilterRule>(json).unwrap(), rule("tx drop tcp port 25"));
        for bad in [json.replace("tcp port", "tcp prot"), json.replace("match", "mach")] {
            assert!(serde_json::from_str::<FilterRule>(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn rules_go_to_their_directions_in_their_order() {
        let rules = port_rules(&["tx drop ip", "rx accept arp", "tx accept"].map(rule)).unwrap();
        let actions = |rules: &Option<Arc<Rules>>| {
            rules.as_ref().map(|rules| rules.iter().map(|rule| rule.action).collect::<Vec<_>>())
        };
        assert_eq!(actions(&rules.tx), Some(vec![Action::Drop, Action::Accept]));
        assert_eq!(actions(&rules.rx), Some(vec![Action::Accept]));
        let none = port_rules(&[]).unwrap();
        assert!(none.tx.is_none() && none.rx.is_none(), "costs nothing");
    }

    #[test]
    fn filters_can_be_given_to_a_new_interface_and_not_as_a_setting_of_one_in_use() {
        let name: PortName = "web0".parse().unwrap();
        let settings: [Setting; 1] =
            [r#"filter=[{direction="rx", action="drop", match="stp"}]"#.parse().unwrap()];
        let control = "/run/weir/control.sock".parse().unwrap();
        let vif = VifConfig::from_settings(&name, &settings, &control).unwrap();
        assert_eq!(vif.filter, [rule("rx drop stp")]);
        let error = VifChanges::from_settings(&name, &settings).unwrap_err();
        assert_eq!(error.problems()[0].message, "filters have a command of their own");
    }
}
