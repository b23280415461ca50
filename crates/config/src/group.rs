//! Security groups, `[group.NAME]`, and the groups of an interface.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::ops::Range;
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use toml::Spanned;
use toml::de::DeValue;
use utoipa::ToSchema;
use weir_groups::{Direction, GroupId, Other, Policy, Rule};
use weir_limits as limits;
use weir_wire::layers::protocol;

use super::error::Problem;
use super::keys::{Key, Rows};
use super::section::{Fault, FromToml, Located, Section, each, from_toml_string, missing};
use super::values::{
    GroupDefault, RuleDirection, SecurityGroup, ValueError, schema_as, serde_as_text,
};

/// All groups of a switch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Groups {
    /// All groups, in the order of the file.
    pub all: Vec<GroupConfig>,
    /// The sets of groups that other hosts know by an ID.
    pub ids: GroupIds,
}

/// `[group-ids]`: sets of groups, each with the ID by which other hosts know an interface that is in all of them and in
/// no other group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GroupIds(BTreeMap<u16, VifGroups>);

impl GroupIds {
    /// The name of the table.
    pub(super) const TABLE: &str = "group-ids";

    /// The IDs with their sets.
    pub fn iter(&self) -> impl Iterator<Item = (u16, &VifGroups)> {
        self.0.iter().map(|(id, groups)| (*id, groups))
    }

    /// The groups with this ID.
    pub(super) fn get(&self, id: u16) -> Option<&VifGroups> {
        self.0.get(&id)
    }

    /// Gives the ID these groups, or none.
    pub(super) fn put(&mut self, id: u16, groups: Option<&VifGroups>) {
        match groups {
            Some(groups) => drop(self.0.insert(id, groups.clone())),
            None => drop(self.0.remove(&id)),
        }
    }

    /// The ID of a set of groups, in any order.
    pub fn of(&self, groups: &VifGroups) -> Option<u16> {
        self.iter().find(|(_, it)| it.is_same_set(groups)).map(|(id, _)| id)
    }
}

impl FromToml for GroupIds {
    fn from_toml(value: &Spanned<DeValue<'_>>) -> Result<Self, Fault> {
        let DeValue::Table(table) = value.get_ref() else {
            return Err(Fault::wrong_type(value, "a table of IDs, each with its groups"));
        };
        let entries = table.iter().map(|(key, groups)| {
            let text = key.get_ref();
            // A number can be written in one way only, so that the parser finds an ID that is there
            // twice.
            let id = text.parse().ok().filter(|id: &u16| *id != 0 && id.to_string() == **text);
            let Some(id) = id else {
                let (min, max) = (1, u16::MAX.into());
                let error = ValueError::OutOfRange { min, max, value: text.to_string() };
                return Err(Fault::at(key.span(), error));
            };
            Ok((id, VifGroups::from_toml(groups)?))
        });
        let entries = each(entries)?;
        if entries.len() > limits::GROUP_IDS_MAX {
            let (min, max) = (0, limits::GROUP_IDS_MAX as u64);
            let (span, value) = (value.span(), format!("{} IDs", entries.len()));
            return Err(Fault::at(span, ValueError::OutOfRange { min, max, value }));
        }
        Ok(Self(entries.into_iter().collect()))
    }
}

/// `[group.NAME]`: the traffic that its interfaces can send and receive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupConfig {
    /// The group's name.
    pub name: SecurityGroup,
    /// The action for connections to the group's interfaces that match no rule.
    #[serde(default)]
    pub default_in: GroupDefault,
    /// The action for connections from the group's interfaces that match no rule.
    #[serde(default = "open")]
    pub default_out: GroupDefault,
    /// Refusals by a direction that the group closes are logged.
    #[serde(default)]
    pub log: bool,
    /// Connections that are allowed.
    #[serde(default)]
    pub rules: Vec<GroupRule>,
}

fn open() -> GroupDefault {
    GroupDefault::Allow
}

impl GroupConfig {
    /// The keys of the table with their values.
    pub(super) fn rows(&self) -> Rows {
        let Self { name: _, default_in, default_out, log, rules } = self;
        let rules = rules.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        vec![
            (Key::new("default_in", ""), Some(default_in.to_string())),
            (Key::new("default_out", ""), Some(default_out.to_string())),
            (Key::new("log", ""), log.then(|| true.to_string())),
            (Key::new("rules", ""), Some(rules).filter(|rules| !rules.is_empty())),
        ]
    }
}

impl GroupConfig {
    /// Takes the values of `from` for these keys.
    pub(super) fn take(&mut self, keys: &BTreeSet<String>, from: &Self) {
        let Self { name: _, default_in, default_out, log, rules } = self;
        for key in keys {
            match key.as_str() {
                "default_in" => *default_in = from.default_in,
                "default_out" => *default_out = from.default_out,
                "log" => *log = from.log,
                _ => rules.clone_from(&from.rules),
            }
        }
    }
}

/// Connections that a group allows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct GroupRule {
    /// The direction in which the connections are opened.
    pub direction: RuleDirection,
    /// The protocol of the connections.
    pub protocol: RuleProtocol,
    /// Destination ports, or types of ICMP messages. Empty for all.
    pub values: RuleValues,
    /// The other end of the connections.
    pub other: RuleSide,
}

/// A protocol, by its word or number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RuleProtocol(Option<u8>);

impl RuleProtocol {
    const WORDS: [(&'static str, Option<u8>); 6] = [
        ("any", None),
        ("tcp", Some(protocol::TCP)),
        ("udp", Some(protocol::UDP)),
        ("sctp", Some(protocol::SCTP)),
        ("icmp", Some(protocol::ICMP)),
        ("icmpv6", Some(protocol::ICMPV6)),
    ];

    /// The key of the rule's values for this protocol, if the protocol has one.
    pub fn values_key(self) -> Option<&'static str> {
        match self.0? {
            protocol::ICMP | protocol::ICMPV6 => Some("types"),
            protocol::TCP | protocol::UDP | protocol::SCTP => Some("ports"),
            _ => None,
        }
    }
}

impl From<u8> for RuleProtocol {
    fn from(number: u8) -> Self {
        Self(Some(number))
    }
}

impl FromStr for RuleProtocol {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let word = Self::WORDS.iter().find(|(word, _)| *word == text).map(|(_, number)| *number);
        let number = || text.parse::<u8>().ok().map(Some);
        word.or_else(number).map(Self).ok_or_else(|| ValueError::Quantity {
            value: text.into(),
            expected: "a protocol: tcp, udp, icmp, icmpv6, sctp, any, or a number up to 255",
        })
    }
}

impl fmt::Display for RuleProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = Self::WORDS.iter().find(|(_, number)| *number == self.0);
        match (word, self.0) {
            (Some((word, _)), _) => f.write_str(word),
            (None, number) => write!(f, "{}", number.unwrap_or_default()),
        }
    }
}

/// Ports or types, as ranges.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuleValues(Vec<(u16, u16)>);

impl FromStr for RuleValues {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let bad = || ValueError::Quantity {
            value: text.into(),
            expected: "numbers and ranges with commas between them, such as \"80,443,8000-8100\"",
        };
        let range = |text: &str| {
            let (low, high) = text.split_once('-').unwrap_or((text, text));
            let (low, high) = (low.trim().parse().ok()?, high.trim().parse().ok()?);
            (low <= high).then_some((low, high))
        };
        let ranges: Option<Vec<_>> = text.split(',').map(|text| range(text.trim())).collect();
        let ranges = ranges.ok_or_else(bad)?;
        match ranges.len() <= limits::GROUP_VALUES_MAX {
            true => Ok(Self(ranges)),
            false => Err(ValueError::OutOfRange {
                min: 1,
                max: limits::GROUP_VALUES_MAX as u64,
                value: format!("{} ranges", ranges.len()),
            }),
        }
    }
}

impl fmt::Display for RuleValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts = self.0.iter().map(|(low, high)| match low == high {
            true => low.to_string(),
            false => format!("{low}-{high}"),
        });
        f.write_str(&texts.collect::<Vec<_>>().join(","))
    }
}

/// The other end of a connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum RuleSide {
    /// Any station.
    #[default]
    Any,
    /// An interface that is in the group, of this switch or, by `[group-ids]`, of another host.
    Group(SecurityGroup),
    /// An address in the network.
    Net(IpNet),
}

impl FromStr for RuleSide {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        if text == "any" {
            return Ok(Self::Any);
        }
        if let Some(group) = text.strip_prefix("group:") {
            return group.parse().map(Self::Group);
        }
        let net = match text.parse::<IpAddr>() {
            Ok(address) => IpNet::from(address),
            Err(_) => text.parse::<IpNet>().map_err(|_| ValueError::Quantity {
                value: text.into(),
                expected: "the other end: \"any\", \"group:NAME\", an address or a prefix",
            })?,
        };
        match net.trunc() == net {
            true => Ok(Self::Net(net)),
            false => {
                Err(ValueError::HostBits { value: text.into(), network: net.trunc().to_string() })
            }
        }
    }
}

from_toml_string! {
    RuleSide = "the other end in quotes, such as \"group:lb\" or \"10.0.0.0/8\"";
}

impl fmt::Display for RuleSide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any"),
            Self::Group(group) => write!(f, "group:{group}"),
            Self::Net(net) if net.prefix_len() == net.max_prefix_len() => net.addr().fmt(f),
            Self::Net(net) => net.fmt(f),
        }
    }
}

impl fmt::Display for GroupRule {
    /// The rule as text, such as `in tcp 80,443 from group:lb`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { direction, protocol, values, other } = self;
        write!(f, "{direction} {protocol}")?;
        if !values.0.is_empty() {
            write!(f, " {values}")?;
        }
        write!(f, " {} {other}", side_key(*direction))
    }
}

impl FromStr for GroupRule {
    type Err = ValueError;

    /// Reads a rule as it is shown. All behind the direction can be left out.
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let expected = "a rule, such as \"in tcp 80,443 from group:lb\" or \"out icmp 8 to any\"";
        let bad = || ValueError::Quantity { value: text.into(), expected };
        let words: Vec<_> = text.split_whitespace().collect();
        let (direction, words) = words.split_first().ok_or_else(bad)?;
        let direction = direction.parse()?;
        let (words, other) = match words {
            [words @ .., key, other] if *key == side_key(direction) => (words, other.parse()?),
            words => (words, RuleSide::Any),
        };
        let protocol = words.first().map_or(Ok(RuleProtocol::default()), |word| word.parse())?;
        let values = match words {
            [] | [_] => RuleValues::default(),
            [_, values] if protocol.values_key().is_some() => values.parse()?,
            _ => return Err(bad()),
        };
        Ok(Self { direction, protocol, values, other })
    }
}

serde_as_text!(GroupRule);

/// The key that names the other end.
fn side_key(direction: RuleDirection) -> &'static str {
    match direction {
        RuleDirection::In => "from",
        RuleDirection::Out => "to",
    }
}

impl GroupRule {
    /// The keys of the rule in the file.
    pub(super) fn keys(&self) -> Vec<(&'static str, String)> {
        let mut keys = vec![
            ("direction", self.direction.to_string()),
            ("protocol", self.protocol.to_string()),
        ];
        if let Some(key) = self.protocol.values_key().filter(|_| !self.values.0.is_empty()) {
            keys.push((key, self.values.to_string()));
        }
        keys.push((side_key(self.direction), self.other.to_string()));
        keys
    }

    fn rule(&self) -> Rule {
        Rule {
            direction: match self.direction {
                RuleDirection::In => Direction::In,
                RuleDirection::Out => Direction::Out,
            },
            protocol: self.protocol.0,
            values: self.values.0.as_slice().into(),
            other: match &self.other {
                RuleSide::Any => Other::Anyone,
                RuleSide::Group(group) => Other::Group(GroupId::of(group.as_str())),
                RuleSide::Net(net) => Other::Prefix(net.addr(), net.prefix_len()),
            },
        }
    }
}

/// The groups of an interface.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
pub struct VifGroups(Vec<SecurityGroup>);

schema_as!(VifGroups, Vec<String>);

impl VifGroups {
    /// The groups, in the order of the configuration.
    pub fn as_slice(&self) -> &[SecurityGroup] {
        &self.0
    }

    /// True if the other list has the same groups, in any order. No list has a group twice.
    fn is_same_set(&self, other: &Self) -> bool {
        self.0.len() == other.0.len() && self.0.iter().all(|group| other.0.contains(group))
    }

    /// True if the interface is in no group.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A number made of the names in any order, the same on every host: 64 bits of FNV-1a.
    pub fn check(&self) -> u64 {
        let mut names: Vec<_> = self.0.iter().map(SecurityGroup::as_str).collect();
        names.sort_unstable();
        let bytes = names.iter().flat_map(|name| name.bytes().chain([0]));
        bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        })
    }

    /// The groups as rules know them.
    pub fn ids<C: FromIterator<GroupId>>(&self) -> C {
        self.0.iter().map(|name| GroupId::of(name.as_str())).collect()
    }

    fn of(names: Vec<SecurityGroup>) -> Result<Self, ValueError> {
        if names.is_empty() || names.len() > limits::VIF_GROUPS_MAX {
            let value = format!("{} groups", names.len());
            return Err(ValueError::OutOfRange {
                min: 1,
                max: limits::VIF_GROUPS_MAX as u64,
                value,
            });
        }
        let mut groups = Self::default();
        for name in names {
            if !groups.0.contains(&name) {
                groups.0.push(name);
            }
        }
        Ok(groups)
    }
}

impl TryFrom<Vec<String>> for VifGroups {
    type Error = ValueError;
    fn try_from(names: Vec<String>) -> Result<Self, ValueError> {
        match names.is_empty() {
            true => Ok(Self::default()),
            false => Self::of(names.iter().map(|name| name.parse()).collect::<Result<_, _>>()?),
        }
    }
}

impl From<VifGroups> for Vec<String> {
    fn from(groups: VifGroups) -> Self {
        groups.0.iter().map(ToString::to_string).collect()
    }
}

impl fmt::Display for VifGroups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&Vec::from(self.clone()).join(", "))
    }
}

impl FromToml for VifGroups {
    /// A list, or names with commas between them.
    fn from_toml(value: &Spanned<DeValue<'_>>) -> Result<Self, Fault> {
        let fault = |error| Fault::new(value, error);
        match value.get_ref() {
            DeValue::String(text) => {
                let names = text.split(',').map(|name| name.trim().parse());
                names.collect::<Result<_, _>>().and_then(Self::of).map_err(fault)
            }
            DeValue::Array(items) => {
                let names = items.iter().map(SecurityGroup::from_toml);
                each(names).and_then(|names| Self::of(names).map_err(fault))
            }
            other => {
                let expected = "groups in brackets, such as [\"web\", \"ssh\"]";
                Err(fault(ValueError::WrongType { expected, found: other.type_str() }))
            }
        }
    }
}

/// Reads a type from integers and texts alike.
macro_rules! from_number_or_text {
    ($($type:ty = $expected:literal;)+) => {
        $(impl FromToml for $type {
            fn from_toml(value: &Spanned<DeValue<'_>>) -> Result<Self, Fault> {
                let fault = |error| Fault::new(value, error);
                match value.get_ref() {
                    DeValue::String(text) => text.parse().map_err(fault),
                    DeValue::Integer(number) => number.as_str().parse().map_err(fault),
                    other => {
                        let found = other.type_str();
                        Err(fault(ValueError::WrongType { expected: $expected, found }))
                    }
                }
            }
        })+
    };
}

from_number_or_text! {
    RuleProtocol = "a protocol in quotes, such as \"tcp\"";
    RuleValues = "ports in quotes, such as \"80,443,8000-8100\"";
}

/// An interface names a group that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no group {0}")]
pub struct NoSuchGroup(pub SecurityGroup);

impl NoSuchGroup {
    /// Advice for the user.
    pub fn help(&self) -> String {
        let name = &self.0;
        format!(
            "add a table [group.{name}], or `weir group set {name}`; without rules it is closed inward"
        )
    }
}

/// The meaning of a group in a rule `to` it.
pub const TO_A_GROUP: &str =
    "they mean interfaces of this switch, and no guest of another host, whose groups are not known";

impl Groups {
    /// The group of that name.
    pub fn get(&self, name: &SecurityGroup) -> Option<&GroupConfig> {
        self.all.iter().find(|group| group.name == *name)
    }

    /// Checks that all groups of an interface exist.
    ///
    /// # Errors
    /// The first group that does not exist.
    pub fn check(&self, groups: &VifGroups) -> Result<(), NoSuchGroup> {
        let unknown = groups.0.iter().find(|name| self.get(name).is_none());
        unknown.map_or(Ok(()), |name| Err(NoSuchGroup(name.clone())))
    }

    /// The policy of an interface in these groups; `None` without groups. A group that does not exist allows nothing.
    pub fn policy(&self, groups: &VifGroups) -> Option<Policy> {
        if groups.is_empty() {
            return None;
        }
        let each: Vec<_> = groups.0.iter().map(|name| self.get(name)).collect();
        let open = |default: fn(&GroupConfig) -> GroupDefault| {
            each.iter().all(|group| group.is_some_and(|it| default(it) == GroupDefault::Allow))
        };
        let rules = each.iter().flatten().flat_map(|group| &group.rules).map(GroupRule::rule);
        Some(Policy {
            allow_in: open(|group| group.default_in),
            allow_out: open(|group| group.default_out),
            rules: rules.collect(),
            log: [Direction::In, Direction::Out]
                .into_iter()
                .any(|direction| self.closing(groups, direction).any(|group| group.log)),
            groups: groups.ids(),
            set_id: self.ids.of(groups).unwrap_or(0),
            generation: 0,
        })
    }

    /// The groups among these that close a direction.
    pub fn closing<'g>(
        &'g self,
        groups: &'g VifGroups,
        direction: Direction,
    ) -> impl Iterator<Item = &'g GroupConfig> {
        let closes = move |group: &&GroupConfig| {
            let default = match direction {
                Direction::In => group.default_in,
                Direction::Out => group.default_out,
            };
            default == GroupDefault::Deny
        };
        groups.0.iter().filter_map(|name| self.get(name)).filter(closes)
    }

    /// The groups among these with a rule `to` a group, which means interfaces of this switch only.
    pub fn with_rules_to_a_group<'g>(
        &'g self,
        groups: &'g [SecurityGroup],
    ) -> impl Iterator<Item = &'g SecurityGroup> {
        let is_to = |rule: &GroupRule| {
            rule.direction == RuleDirection::Out && matches!(rule.other, RuleSide::Group(_))
        };
        let has = move |name: &&_| self.get(name).is_some_and(|it| it.rules.iter().any(is_to));
        groups.iter().filter(has)
    }

    /// A sentence about rules that do not mean guests of other hosts, for a switch with an overlay.
    pub fn note_over_hosts(&self) -> Option<String> {
        let all: Vec<_> = self.all.iter().map(|group| group.name.clone()).collect();
        let groups: Vec<_> = self.with_rules_to_a_group(&all).map(SecurityGroup::as_str).collect();
        (!groups.is_empty()).then(|| {
            let groups = groups.join(", ");
            format!("rules `to` a group, of {groups}: {TO_A_GROUP}; allow a prefix for the others")
        })
    }

    /// The rule at index `place` of the policy of `groups`: its group, its number in the group, and its text.
    pub fn rule_at(
        &self,
        groups: &VifGroups,
        place: usize,
    ) -> Option<(&GroupConfig, usize, &GroupRule)> {
        let each = groups.0.iter().filter_map(|name| self.get(name));
        let mut rules = each
            .flat_map(|group| group.rules.iter().enumerate().map(move |(n, it)| (group, n, it)));
        rules.nth(place)
    }
}

/// Reads the tables `[group.NAME]`, to which the `ids` belong.
pub(super) fn groups(
    sections: Vec<Section<'_>>,
    ids: Option<Located<GroupIds>>,
    problems: &mut Vec<Problem>,
) -> Groups {
    if let Some(one_more) = sections.get(limits::GROUPS_MAX) {
        problems.push(
            Problem::new(format!("{} groups are too many", sections.len()))
                .label(one_more.span.clone(), format!("one more than {}", limits::GROUPS_MAX)),
        );
        return Groups::default();
    }
    let mut named = Vec::new();
    let all = sections.into_iter().filter_map(|section| group(section, &mut named, problems));
    let all = all.collect();
    let (ids, ids_at) = ids.map_or_else(Default::default, |ids| (ids.value, ids.span));
    for (id, set) in ids.iter() {
        let table = || GroupIds::TABLE.to_owned();
        named.extend(set.0.iter().map(|name| (table(), name.clone(), ids_at.clone())));
        if let Some(first) = ids.of(set).filter(|first| *first != id) {
            problems.push(
                Problem::new(format!("IDs {first} and {id} have the same groups"))
                    .label(ids_at.clone(), format!("{set}"))
                    .help("a set has one ID, the same on every host: keep one"),
            );
        }
    }
    let groups = Groups { all, ids };
    for (table, name, span) in named {
        if groups.get(&name).is_none() {
            let error = NoSuchGroup(name);
            let problem = Problem::new(format!("`{table}`: {error}")).help(error.help());
            problems.push(problem.label(span, "not there"));
        }
    }
    groups
}

fn group(
    mut section: Section<'_>,
    named: &mut Vec<(String, SecurityGroup, Range<usize>)>,
    problems: &mut Vec<Problem>,
) -> Option<GroupConfig> {
    let name = section.title.strip_prefix("group.").unwrap_or_default().parse::<SecurityGroup>();
    let name = name.map_err(|error| {
        let mut problem = Problem::new("bad name of a group");
        problem.help = error.help();
        problems.push(problem.label(section.span.clone(), error.to_string()));
    });
    let default_in = section.take_or("default_in", GroupDefault::Deny, problems);
    let default_out = section.take_or("default_out", GroupDefault::Allow, problems);
    let log = section.take_or("log", false, problems);
    let mut rules = Vec::new();
    for table in section.tables("rules", problems) {
        let span = table.span.clone();
        let Some(rule) = rule(table, named, problems) else { continue };
        let (default, key) = match rule.direction {
            RuleDirection::In => (default_in, "default_in"),
            RuleDirection::Out => (default_out, "default_out"),
        };
        if default == GroupDefault::Allow {
            problems.push(
                Problem::new(format!("`{}` has a rule for what is open", section.title))
                    .label(span, "allows what is allowed already")
                    .help(format!(
                        "rules only allow: add `{key} = \"deny\"`, or leave the rule out"
                    )),
            );
        }
        rules.push(rule);
    }
    if rules.len() > limits::GROUP_RULES_MAX {
        problems.push(
            Problem::new(format!("`{}` has {} rules", section.title, rules.len()))
                .label(section.span.clone(), format!("at most {}", limits::GROUP_RULES_MAX))
                .help("an interface may be in several groups, whose rules add up"),
        );
    }
    section.finish(problems);
    Some(GroupConfig { name: name.ok()?, default_in, default_out, log, rules })
}

fn rule(
    mut table: Section<'_>,
    named: &mut Vec<(String, SecurityGroup, Range<usize>)>,
    problems: &mut Vec<Problem>,
) -> Option<GroupRule> {
    if !table.has("direction") {
        let help = "add `direction = \"in\"` or `direction = \"out\"`";
        problems.push(missing(&table, "direction", help));
    }
    let direction = table.value::<RuleDirection>("direction", problems);
    let protocol = table.take_or("protocol", RuleProtocol::default(), problems);
    let bad_protocol = table.has("protocol") && protocol == RuleProtocol::default();
    let mut values = RuleValues::default();
    for key in ["ports", "types"] {
        if let Some(located) = table.take::<RuleValues>(key, problems) {
            if protocol.values_key() != Some(key) && !bad_protocol {
                let help = match key {
                    "ports" => "TCP, UDP and SCTP have ports: add `protocol = \"tcp\"`",
                    _ => "ICMP has types: add `protocol = \"icmp\"` or `protocol = \"icmpv6\"`",
                };
                let what = format!("`{}`: protocol {protocol} has no {key}", table.title);
                problems.push(Problem::new(what).label(located.span, "has no effect").help(help));
            }
            values = located.value;
        }
    }
    let mut other = RuleSide::default();
    for key in ["from", "to"] {
        if let Some(located) = table.take::<RuleSide>(key, problems) {
            if direction.is_some_and(|direction| side_key(direction) != key) {
                problems.push(
                    Problem::new(format!("`{}`: `{key}` is of the other direction", table.title))
                        .label(located.span.clone(), "does not fit `direction`")
                        .help(
                            "a rule for what comes in says `from`, one for what goes out says `to`",
                        ),
                );
            }
            if let RuleSide::Group(group) = &located.value {
                named.push((table.title.clone(), group.clone(), located.span));
            }
            other = located.value;
        }
    }
    table.finish(problems);
    Some(GroupRule { direction: direction?, protocol, values, other })
}

#[cfg(test)]
mod tests;
