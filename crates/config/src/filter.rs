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
mod tests;
