//! Reads TOML table by table, key by key. Each problem has its place in the text.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::Range;
use std::rc::Rc;
use std::str::FromStr;

use toml::Spanned;
use toml::de::{DeTable, DeValue};
use weir_limits as limits;
use weir_text::plain::plain_short;

use super::cost;
use super::error::{self, Problem};
use super::suggest;
use super::values::{
    BitRate, BondMode, BondUplinks, BurstSize, ChannelName, ContainerBytes, Direction, Dscp,
    Execution, FdbEntries, FilePath, FilterAction, ForgetSecs, GroupDefault, GroupName, GuardMode,
    HostAddress, InterfaceName, LacpRate, LateTurns, LatencyBudget, LeaseTime, MacAddress,
    MemoryMax, MirroredPorts, Mtu, NetworkName, OnDemandMax, OverlayDscp, Owner, PacketBurst,
    PacketRate, Period, PlacementMode, PortName, QueuePairs, Realization, RingSize, RuleDirection,
    RxFrames, RxUsecs, Schedule, SecurityGroup, SocketMode, SocketPath, SocketRole, TagProtocol,
    TemplateName, TrunkVids, UdpPort, UserName, ValueError, Vid, Vni, Weight, WorkerCount, Workers,
};

/// The label of a value that has the right form and is not allowed.
pub(super) const REFUSED: &str = "refused";

/// A value and its place in the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Located<T> {
    pub value: T,
    pub span: Range<usize>,
}

impl<T: Clone> Located<T> {
    /// A value that comes from no text.
    pub fn nowhere(value: &T) -> Self {
        Self { value: value.clone(), span: 0..0 }
    }
}

/// The text as a tree.
///
/// # Errors
/// The text is too costly, or it is not TOML. For a short text all mistakes are reported, for a long one only the
/// first: the parser keeps all mistakes in memory.
pub(super) fn document(text: &str) -> Result<Spanned<DeTable<'_>>, Vec<Problem>> {
    cost::check(text).map_err(|problem| vec![problem])?;
    let errors = match text.len() <= limits::CONFIG_MISTAKES_LEN_MAX {
        true => match DeTable::parse_recoverable(text) {
            (document, errors) if errors.is_empty() => return Ok(document),
            (_, errors) => errors,
        },
        false => match DeTable::parse(text) {
            Ok(document) => return Ok(document),
            Err(error) => vec![error],
        },
    };
    let problem = |error: &toml::de::Error| {
        let words = error.message().lines().next().unwrap_or_default().to_owned();
        let place = error.span().unwrap_or(0..0);
        let first = if words == DUPLICATE { first_place(text, place.start) } else { None };
        let problem = Problem::new("not valid TOML").label(place, words);
        match first {
            Some(first) => problem.label(first, "stands here already").help("join the two"),
            None => problem,
        }
    };
    Err(errors.iter().take(limits::CONFIG_PROBLEMS_MAX).map(problem).collect())
}

/// The parser's words about a header or a key that appears twice.
const DUPLICATE: &str = "duplicate key";

/// The first place of the header or key that appears again in the line at `second`.
fn first_place(text: &str, second: usize) -> Option<Range<usize>> {
    let mut end = 0;
    let lines: Vec<_> = text
        .split_inclusive('\n')
        .map(|line| {
            let start = end;
            end += line.len();
            (start, line.trim())
        })
        .take_while(|(start, _)| *start <= second)
        .collect();
    let ((_, again), before) = lines.split_last()?;
    let is_header = |line: &str| line.starts_with('[');
    let own = |line: &str| {
        let part =
            if is_header(line) { line.split_inclusive(']') } else { line.split_inclusive('=') }
                .next();
        part.unwrap_or_default().replace([' ', '\t'], "")
    };
    let table = match is_header(again) {
        true => 0,
        false => before.iter().rposition(|(_, line)| is_header(line)).map_or(0, |nth| nth + 1),
    };
    let (start, line) = before[table..].iter().find(|(_, line)| own(line) == own(again))?;
    let indent = text[*start..].len() - text[*start..].trim_start().len();
    let start = start + indent;
    Some(start..start + line.len())
}

/// A table that is being read. Keys that were not read are unknown: [`Section::finish`] reports them.
pub(super) struct Section<'t> {
    /// `vif.web0`; empty for the whole document.
    pub title: String,
    /// The table's name in its header.
    pub span: Range<usize>,
    table: &'t DeTable<'t>,
    asked: Vec<&'static str>,
    /// Keys whose values were refused.
    bad: Vec<&'static str>,
    /// Keys that are not read.
    hidden: Vec<&'static str>,
}

/// The places of a table's keys in the text.
pub(super) struct Places {
    pub title: String,
    pub header: Range<usize>,
    keys: BTreeMap<String, Range<usize>>,
    bad: Vec<&'static str>,
    /// The table of its template.
    pub template: Option<Rc<Places>>,
}

impl Places {
    /// The place of a key's value, or of the header if the table does not have the key.
    pub fn of(&self, key: &str) -> Range<usize> {
        let of_template = || self.template.as_ref().and_then(|template| template.keys.get(key));
        self.keys.get(key).or_else(of_template).unwrap_or(&self.header).clone()
    }

    /// Reports settings that do not fit together. A key whose value was refused has no second problem.
    pub fn report(&self, fault: &error::Fault, problems: &mut Vec<Problem>) {
        if !self.is_bad(fault) {
            let problem = Problem::new(format!("`{}`: {}", self.title, fault.reason));
            problems.push(problem.label(self.of(fault.keys[0]), REFUSED).help(&fault.help));
        }
    }

    /// True if the fault is about a value that was refused.
    pub fn is_bad(&self, fault: &error::Fault) -> bool {
        let of_template = self.template.as_ref().is_some_and(|template| template.is_bad(fault));
        of_template || fault.keys.iter().any(|key| self.bad.contains(key))
    }
}

impl<'t> Section<'t> {
    pub fn new(title: String, span: Range<usize>, table: &'t DeTable<'t>) -> Self {
        let (asked, bad, hidden) = Default::default();
        Self { title, span, table, asked, bad, hidden }
    }

    /// The value of `key` read as a `T`; `None` if it is absent, or bad, which is then reported.
    pub fn take<T: FromToml>(
        &mut self,
        key: &'static str,
        problems: &mut Vec<Problem>,
    ) -> Option<Located<T>> {
        let value = self.raw(key)?;
        match T::from_toml(value) {
            Ok(parsed) => Some(Located { value: parsed, span: value.span() }),
            Err(fault) => {
                self.bad.push(key);
                for Fault { span, error, .. } in std::iter::once(&fault).chain(&fault.more) {
                    problems.push(Problem::bad_value(&self.title, key, span.clone(), error));
                }
                None
            }
        }
    }

    /// The valid elements of a list, or a single value. Each invalid element is a problem.
    pub fn list<T: FromToml>(
        &mut self,
        key: &'static str,
        problems: &mut Vec<Problem>,
    ) -> Vec<Located<T>> {
        let Some(value) = self.raw(key) else { return Vec::new() };
        let items = match value.get_ref() {
            DeValue::Array(items) => items.iter().collect(),
            _ => vec![value],
        };
        let (mut good, mut shown) = (Vec::new(), 0);
        for item in items {
            match T::from_toml(item) {
                Ok(value) => good.push(Located { value, span: item.span() }),
                Err(fault) => {
                    self.is_refused(key);
                    shown += 1;
                    if shown <= limits::CONFIG_PROBLEMS_SHOWN_MAX {
                        problems.push(Problem::bad_value(
                            &self.title,
                            key,
                            fault.span,
                            &fault.error,
                        ));
                    }
                }
            }
        }
        good
    }

    /// As [`Section::take`], without the place.
    pub fn value<T: FromToml>(
        &mut self,
        key: &'static str,
        problems: &mut Vec<Problem>,
    ) -> Option<T> {
        self.take(key, problems).map(|located| located.value)
    }

    /// As [`Section::value`], with a default.
    pub fn take_or<T: FromToml>(
        &mut self,
        key: &'static str,
        default: T,
        problems: &mut Vec<Problem>,
    ) -> T {
        self.value(key, problems).unwrap_or(default)
    }

    /// True if the table has the key, with a valid value or not.
    pub fn has(&self, key: &str) -> bool {
        !self.hidden.contains(&key) && self.table.iter().any(|(name, _)| name.get_ref() == key)
    }

    /// True if the value of `key` is the text `word`.
    pub fn is_word(&mut self, key: &'static str, word: &str) -> bool {
        self.raw(key).is_some_and(|value| value.get_ref().as_str() == Some(word))
    }

    /// From now on the key reads as if it were not there.
    pub fn hide(&mut self, key: &'static str) {
        self.hidden.push(key);
    }

    /// The place of a key's value, if it is there.
    pub fn place(&mut self, key: &'static str) -> Option<Range<usize>> {
        self.raw(key).map(Spanned::span)
    }

    /// The place of a known key that cannot be used here.
    pub fn refuse(&mut self, key: &'static str) -> Option<Range<usize>> {
        self.raw_entry(key).map(|(name, _)| name)
    }

    /// A problem: the value at `span` and the rest of the table do not fit together.
    pub fn does_not_fit(
        &self,
        span: Range<usize>,
        error: impl Display,
        help: impl Into<String>,
    ) -> Problem {
        Problem::new(format!("`{}`: {error}", self.title)).label(span, REFUSED).help(help)
    }

    /// True if the table has the key, with a valid value.
    pub fn has_good(&self, key: &str) -> bool {
        self.has(key) && !self.bad.contains(&key)
    }

    /// True if no value was refused.
    pub fn is_good(&self) -> bool {
        self.bad.is_empty()
    }

    /// The value of a key, with its place.
    pub fn located<T>(&mut self, key: &'static str, value: Option<T>) -> Option<Located<T>> {
        Some(Located { value: value?, span: self.place(key)? })
    }

    /// Marks the value of `key` as refused, so that `key` has no second problem.
    pub fn is_refused(&mut self, key: &'static str) {
        self.bad.push(key);
    }

    /// The places of the table's keys.
    pub fn places(&self) -> Places {
        let keys =
            self.table.iter().map(|(name, value)| (name.get_ref().to_string(), value.span()));
        Places {
            title: self.title.clone(),
            header: self.span.clone(),
            keys: keys.collect(),
            bad: self.bad.clone(),
            template: None,
        }
    }

    /// The tables inside the table `key`, in the order of the text: `[vif.a]` and `[vif.b]` for `vif`.
    pub fn subtables(
        &mut self,
        key: &'static str,
        problems: &mut Vec<Problem>,
    ) -> Vec<Section<'t>> {
        let Some(value) = self.raw(key) else {
            return Vec::new();
        };
        let example = format!("write a header with a name, such as [{key}.name0]");
        let DeValue::Table(table) = value.get_ref() else {
            problems.push(
                Problem::new(format!("`{key}` is not a table"))
                    .label(value.span(), format!("a {}", value.get_ref().type_str()))
                    .help(example),
            );
            return Vec::new();
        };
        let mut sections = Vec::new();
        for (name, value) in table {
            if problems.len() >= limits::CONFIG_PROBLEMS_MAX {
                break;
            }
            match value.get_ref() {
                DeValue::Table(table) => {
                    let title = format!("{key}.{}", name.get_ref());
                    sections.push(Section::new(title, name.span(), table));
                }
                _ => problems.push(
                    Problem::new(format!("`{key}.{}` is not a table", name.get_ref()))
                        .label(name.span(), "belongs into a table with a name")
                        .help(example.clone()),
                ),
            }
        }
        sections.sort_by_key(|section| section.span.start);
        sections
    }

    /// The tables in the array `key`, in the order of the text: each `[[vif.a.filter]]` for `filter`.
    pub fn tables(&mut self, key: &'static str, problems: &mut Vec<Problem>) -> Vec<Section<'t>> {
        let title = format!("{}.{key}", self.title);
        let Some(value) = self.raw(key) else {
            return Vec::new();
        };
        let not_tables = |value: &Spanned<DeValue<'_>>| {
            Problem::new(format!("`{title}` is not a list of tables"))
                .label(value.span(), format!("a {}", value.get_ref().type_str()))
                .help(format!("write the header [[{title}]] and its keys below, again for each"))
        };
        let DeValue::Array(values) = value.get_ref() else {
            problems.push(not_tables(value));
            return Vec::new();
        };
        let mut sections = Vec::new();
        for value in values {
            if problems.len() >= limits::CONFIG_PROBLEMS_MAX {
                break;
            }
            match value.get_ref() {
                DeValue::Table(table) => {
                    sections.push(Section::new(title.clone(), value.span(), table));
                }
                _ => problems.push(not_tables(value)),
            }
        }
        sections
    }

    /// The table `key`, if there is one.
    pub fn subtable(
        &mut self,
        key: &'static str,
        problems: &mut Vec<Problem>,
    ) -> Option<Section<'t>> {
        let (name, value) = self.raw_entry(key)?;
        match value.get_ref() {
            DeValue::Table(table) => Some(Section::new(key.into(), name, table)),
            other => {
                problems.push(
                    Problem::new(format!("`{key}` is not a table"))
                        .label(value.span(), format!("a {}", other.type_str()))
                        .help(format!("write the header [{key}] and its keys below")),
                );
                None
            }
        }
    }

    /// Reports the keys that were not read.
    pub fn finish(self, problems: &mut Vec<Problem>) {
        let place: String = match self.title.as_str() {
            "" => "the file".into(),
            title => format!("`{title}`"),
        };
        for (name, _) in self.table {
            if problems.len() >= limits::CONFIG_PROBLEMS_MAX {
                return;
            }
            let key = name.get_ref().as_ref();
            if self.asked.contains(&key) {
                continue;
            }
            let mut problem = Problem::new(format!("unknown key `{key}` in {place}"))
                .label(name.span(), "unknown key");
            // The list is complete, however long it is: nothing in it comes from the text.
            problem.help = Some(match suggest::closest(key, &self.asked) {
                Some(known) => format!("did you mean `{known}`?"),
                None => format!("{} can have: {}", plain_short(&place), self.asked.join(", ")),
            });
            problems.push(problem);
        }
    }

    fn raw(&mut self, key: &'static str) -> Option<&'t Spanned<DeValue<'t>>> {
        self.raw_entry(key).map(|(_, value)| value)
    }

    fn raw_entry(&mut self, key: &'static str) -> Option<(Range<usize>, &'t Spanned<DeValue<'t>>)> {
        if !self.asked.contains(&key) {
            self.asked.push(key);
        }
        if self.hidden.contains(&key) {
            return None;
        }
        let (name, value) = self.table.iter().find(|(name, _)| name.get_ref() == key)?;
        Some((name.span(), value))
    }
}

/// A table without a key that it needs.
pub(super) fn missing(section: &Section<'_>, key: &str, help: &str) -> Problem {
    Problem::new(format!("`{}` has no `{key}`", section.title))
        .label(section.span.clone(), format!("needs `{key}`"))
        .help(help)
}

/// Reports every value that is in more than one place. The message says that the value is repeated:
/// `what` names its kind, and `place` its table.
pub(super) fn report_repeated(
    (what, place, help): (&str, &str, &str),
    values: impl Iterator<Item = (String, Range<usize>)>,
    problems: &mut Vec<Problem>,
) {
    let mut places: BTreeMap<String, Vec<Range<usize>>> = BTreeMap::new();
    for (value, span) in values {
        places.entry(value).or_default().push(span);
    }
    for (value, spans) in places {
        let [first, again @ ..] = spans.as_slice() else {
            continue;
        };
        if again.is_empty() {
            continue;
        }
        let space = if place.is_empty() { "" } else { " " };
        let times = spans.len();
        let message = format!("the {what} {value}{space}{place} is used {times} times");
        let problem = Problem::new(message).label(first.clone(), "first used here").help(help);
        problems.push(
            again.iter().fold(problem, |problem, span| problem.label(span.clone(), "and here")),
        );
    }
}

/// A bad value, and the place of its bad part.
pub(super) struct Fault {
    pub span: Range<usize>,
    pub error: ValueError,
    /// The faults of further elements of a list.
    more: Vec<Fault>,
}

/// The values of a list, or the fault of each element that has one.
pub(super) fn each<T>(items: impl Iterator<Item = Result<T, Fault>>) -> Result<Vec<T>, Fault> {
    let (mut good, mut bad) = (Vec::new(), None::<Fault>);
    for item in items {
        match (item, &mut bad) {
            (Ok(value), _) => good.push(value),
            (Err(fault), None) => bad = Some(fault),
            (Err(fault), Some(first)) if first.more.len() < limits::CONFIG_PROBLEMS_SHOWN_MAX => {
                first.more.push(fault);
            }
            (Err(_), Some(_)) => {}
        }
    }
    bad.map_or(Ok(good), Err)
}

impl Fault {
    pub(super) fn new(value: &Spanned<DeValue<'_>>, error: ValueError) -> Self {
        Self::at(value.span(), error)
    }

    /// A bad part of a value, at its place.
    pub(super) fn at(span: Range<usize>, error: ValueError) -> Self {
        Self { span, error, more: Vec::new() }
    }

    pub(super) fn wrong_type(value: &Spanned<DeValue<'_>>, expected: &'static str) -> Self {
        Self::new(value, ValueError::WrongType { expected, found: value.get_ref().type_str() })
    }
}

/// A type that a configuration value can be read as.
pub(super) trait FromToml: Sized {
    /// # Errors
    /// The fault, and the part of the value that has it.
    fn from_toml(value: &Spanned<DeValue<'_>>) -> Result<Self, Fault>;
}

/// Types written as a string in quotes.
macro_rules! from_toml_string {
    ($($type:ty = $expected:expr;)+) => {
        $(impl $crate::section::FromToml for $type {
            fn from_toml(
                value: &toml::Spanned<toml::de::DeValue<'_>>,
            ) -> Result<Self, $crate::section::Fault> {
                let text = value.get_ref().as_str();
                let text =
                    text.ok_or_else(|| $crate::section::Fault::wrong_type(value, $expected))?;
                text.parse().map_err(|error| $crate::section::Fault::new(value, error))
            }
        })+
    };
}

pub(super) use from_toml_string;

from_toml_string! {
    PortName = "a name in quotes";
    NetworkName = "the name of a network in quotes, such as \"blue\"";
    SecurityGroup = "the name of a group in quotes, such as \"web\"";
    TemplateName = "the name of a template in quotes, such as \"tenant\"";
    GroupDefault = GroupDefault::EXPECTED;
    RuleDirection = RuleDirection::EXPECTED;
    HostAddress = "an address in quotes, such as \"192.0.2.1\"";
    ChannelName = ChannelName::EXPECTED;
    Owner = Owner::EXPECTED;
    TagProtocol = TagProtocol::EXPECTED;
    BondMode = BondMode::EXPECTED;
    LacpRate = LacpRate::EXPECTED;
    UserName = "a user in quotes, such as \"weir\"";
    GroupName = "a group in quotes, such as \"weir\"";
    FilePath = "a path in quotes, such as \"/etc/weir/token\"";
    InterfaceName = "the name of an interface in quotes, such as \"weir0\"";
    SocketPath = "a path in quotes, such as \"/run/weir/web0.sock\"";
    SocketMode = "an octal mode in quotes, such as \"0660\"";
    LatencyBudget = "a duration in quotes, such as \"250us\"";
    MacAddress = "a MAC address in quotes, such as \"52:54:00:12:34:56\"";
    SocketRole = SocketRole::EXPECTED;
    Execution = Execution::EXPECTED;
    Realization = Realization::EXPECTED;
    PlacementMode = PlacementMode::EXPECTED;
    Direction = Direction::EXPECTED;
    FilterAction = FilterAction::EXPECTED;
    GuardMode = GuardMode::EXPECTED;
    Schedule = "the name of a schedule in quotes, such as \"drr\"";
    BitRate = "a rate in quotes, such as \"1Gbit\"";
    BurstSize = "a number of bytes in quotes, such as \"256KiB\"";
    MemoryMax = "a number of bytes in quotes, such as \"64GiB\"";
    LeaseTime = "a duration in quotes, such as \"1h\"";
    Period = "a duration in quotes, such as \"1ms\"";
    LateTurns = "a fraction in quotes, such as \"1/4\"";
}

/// Types written as an integer.
macro_rules! from_toml_integer {
    ($($type:ty = $expected:literal;)+) => {
        $(impl FromToml for $type {
            fn from_toml(value: &Spanned<DeValue<'_>>) -> Result<Self, Fault> {
                let DeValue::Integer(integer) = value.get_ref() else {
                    return Err(Fault::wrong_type(value, $expected));
                };
                u64::from_str_radix(integer.as_str(), integer.radix())
                    .map_err(|_| <$type>::out_of_range(integer.to_string()))
                    .and_then(<$type>::try_from)
                    .map_err(|error| Fault::new(value, error))
            }
        })+
    };
}

from_toml_integer! {
    Vid = "a VLAN id, such as 10";
    Mtu = "a number of bytes, such as 1500";
    Vni = "a network's number (VNI), such as 100";
    UdpPort = "a UDP port, such as 4789";
    Dscp = "a DSCP, such as 46, or \"inherit\"";
    QueuePairs = "a number of queues, such as 2";
    RingSize = "256, 512 or 1024";
    FdbEntries = "a number of addresses, such as 131072";
    RxUsecs = "a number of microseconds, such as 200";
    RxFrames = "a number of frames, such as 32";
    ContainerBytes = "a number of bytes, such as 4096";
    WorkerCount = "\"auto\" or a number of workers, such as 2";
    Weight = "a weight, such as 2";
    OnDemandMax = "a number of interfaces, such as 16";
    ForgetSecs = "a number of seconds, such as 60";
    PacketRate = "a number of packets, such as 100000";
    PacketBurst = "a number of packets, such as 256";
}

impl FromToml for bool {
    fn from_toml(value: &Spanned<DeValue<'_>>) -> Result<Self, Fault> {
        value.get_ref().as_bool().ok_or_else(|| Fault::wrong_type(value, "true or false"))
    }
}

impl FromToml for Workers {
    fn from_toml(value: &Spanned<DeValue<'_>>) -> Result<Self, Fault> {
        match value.get_ref().as_str() {
            Some("auto") => Ok(Self::Auto),
            Some(word) => Err(Fault::new(
                value,
                ValueError::NotAChoice { value: word.into(), choices: &["auto"] },
            )),
            None => WorkerCount::from_toml(value).map(Self::Count),
        }
    }
}

impl FromToml for OverlayDscp {
    fn from_toml(value: &Spanned<DeValue<'_>>) -> Result<Self, Fault> {
        match value.get_ref().as_str() {
            Some("inherit") => Ok(Self::Inherit),
            Some(word) => Err(Fault::new(
                value,
                ValueError::NotAChoice { value: word.into(), choices: &["inherit"] },
            )),
            None => Dscp::from_toml(value).map(Self::Fixed),
        }
    }
}

impl FromToml for MirroredPorts {
    fn from_toml(value: &Spanned<DeValue<'_>>) -> Result<Self, Fault> {
        port_names(value, "ports in brackets, such as [\"web0\", \"lan\"]")
    }
}

impl FromToml for BondUplinks {
    fn from_toml(value: &Spanned<DeValue<'_>>) -> Result<Self, Fault> {
        port_names(value, "uplinks in brackets, such as [\"eth0\", \"eth1\"]")
    }
}

/// Names of ports: a list, or a text with commas between them.
fn port_names<T>(value: &Spanned<DeValue<'_>>, expected: &'static str) -> Result<T, Fault>
where
    T: FromStr<Err = ValueError> + TryFrom<Vec<PortName>, Error = ValueError>,
{
    match value.get_ref() {
        DeValue::String(names) => names.parse().map_err(|error| Fault::new(value, error)),
        DeValue::Array(items) => {
            let names = each(items.iter().map(PortName::from_toml))?;
            names.try_into().map_err(|error| Fault::new(value, error))
        }
        _ => Err(Fault::wrong_type(value, expected)),
    }
}

impl FromToml for TrunkVids {
    fn from_toml(value: &Spanned<DeValue<'_>>) -> Result<Self, Fault> {
        match value.get_ref() {
            DeValue::String(word) if word == "all" => Ok(Self::All),
            DeValue::Array(items) if items.is_empty() => {
                Err(Fault::new(value, ValueError::TrunkEmpty))
            }
            DeValue::Array(items) => {
                let vids = each(items.iter().map(Vid::from_toml))?;
                Ok(Self::Only(vids.into_iter().collect()))
            }
            // A command line has the VIDs in this form.
            DeValue::String(vids) if vids.starts_with(|c: char| c.is_ascii_digit()) => {
                let vid = |text: &str| {
                    let number = text.trim().parse::<u64>();
                    number.map_err(|_| Vid::out_of_range(text.into())).and_then(Vid::try_from)
                };
                let vids =
                    vids.split(',').map(|text| vid(text).map_err(|error| Fault::new(value, error)));
                Ok(Self::Only(each(vids)?.into_iter().collect()))
            }
            _ => {
                Err(Fault::wrong_type(value, "VLAN ids in brackets, such as [10, 20], or \"all\""))
            }
        }
    }
}
