//! `[switch]`: the keys of the whole switch, and access to the HTTP API: users, sockets and the token.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use toml::Spanned;
use toml::de::DeValue;
use weir_limits::{ADMINS_MAX, PROGRAM_WORD_LEN_MAX, PROGRAM_WORDS_MAX};

use super::error::Problem;
use super::keys::{NEEDS_A_RESTART, keys};
use super::section::{Fault, FromToml, Section, each, from_toml_string};
use super::values::{
    Execution, FdbEntries, FilePath, GroupName, LatencyBudget, PlacementMode, Realization,
    Schedule, SocketPath, UserName, ValueError, Workers,
};

keys! {
    /// `[switch]`: what holds for the whole switch.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct SwitchConfig {
        /// Which threads do the work.
        execution: Execution = Execution::default(), [fixed(NEEDS_A_RESTART)];
        /// How they wait for it.
        realization: Realization = Realization::default(), [fixed(NEEDS_A_RESTART)];
        /// How many worker threads there are.
        workers: Workers = Workers::Auto, [fixed(NEEDS_A_RESTART)];
        /// The budget of every interface that has none of its own.
        latency_budget: LatencyBudget = LatencyBudget::DEFAULT, [];
        /// By which rule workers give turns to those who send.
        schedule: Schedule = Schedule::default(), [];
        /// Addresses that the forwarding table has room for.
        fdb_entries: FdbEntries = FdbEntries::default(), [fixed(NEEDS_A_RESTART)];
        /// The control socket.
        control: SocketPath = "/run/weir/control.sock".parse().expect("a constant that is a valid path"),
            [fixed(NEEDS_A_RESTART)];
        /// Where workers run.
        placement: PlacementConfig = PlacementConfig::default(), [];
        /// Who weir becomes when it was started with privileges.
        user: Option<UserName> = None, [fixed(NEEDS_A_RESTART)];
        /// The socket of the keeper, which holds what the next weir needs to go on with this one's front ends.
        keeper: Option<SocketPath> = None, [fixed(NEEDS_A_RESTART)];
        /// Whether the way to a front end that listens may lead by links that somebody else can make.
        allow_symlinks: bool = false, [fixed(NEEDS_A_RESTART)];
        /// The directory below which interfaces that are made while weir runs may have sockets that weir connects to.
        client_dir: Option<SocketPath> = None, [fixed(NEEDS_A_RESTART)];
        /// The group whose members may open the sockets of interfaces.
        socket_group: Option<GroupName> = None, [fixed(NEEDS_A_RESTART)];
        /// The program that runs when a port has come up.
        on_up: Option<Program> = None, [fixed(NEEDS_A_RESTART)];
        /// The program that runs when a port has gone down.
        on_down: Option<Program> = None, [fixed(NEEDS_A_RESTART)];
        /// Who may use the API, and over what.
        api: ApiConfig = ApiConfig::default(), [];
    }
}

keys! {
    /// `placement`, `pin_vcpus` and `move_irqs` of `[switch]`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct PlacementConfig {
        /// The placement of workers.
        mode: PlacementMode = PlacementMode::Off, [named("placement")];
        /// Whether weir can also place guests' virtual processors.
        pin_vcpus: bool = false, [];
        /// Whether the interrupts of uplinks' cards come to the processors of the workers.
        move_irqs: bool = true, [];
    }
}

impl SwitchConfig {
    /// A switch with every default, with this control socket.
    pub fn new(control: SocketPath) -> Self {
        Self { control, ..Self::default() }
    }
}

keys! {
    /// The keys of `[switch]` about the API.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ApiConfig {
        /// The group whose members can open the control socket, and read.
        group: Option<GroupName> = None, [fixed(NEEDS_A_RESTART)];
        /// The members who can write.
        admins: Admins = Admins::default(), [named("admin"), fixed(NEEDS_A_RESTART)];
        /// The address where the API also listens for TCP, for readers.
        listen: Option<ListenAddress> = None, [named("api_listen"), fixed(NEEDS_A_RESTART)];
        /// The file with the token that TCP clients must send.
        token_file: Option<FilePath> = None, [named("api_token_file"), fixed(NEEDS_A_RESTART)];
    }
}

/// Users who can write, besides root and the user who started weir.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Admins(Vec<UserName>);

impl Admins {
    /// The names of the users.
    pub fn as_slice(&self) -> &[UserName] {
        &self.0
    }
}

impl fmt::Display for Admins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.iter().map(UserName::as_str).collect::<Vec<_>>().join(", "))
    }
}

/// A program of the administrator's: the absolute path of its file, and its arguments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
pub struct Program {
    path: FilePath,
    arguments: Vec<String>,
}

impl Program {
    /// The program's file.
    pub fn path(&self) -> &Path {
        self.path.as_path()
    }

    /// The program's arguments.
    pub fn arguments(&self) -> &[String] {
        &self.arguments
    }
}

impl TryFrom<Vec<String>> for Program {
    type Error = ValueError;
    fn try_from(words: Vec<String>) -> Result<Self, ValueError> {
        let count = words.len();
        let mut words = words.into_iter();
        let path = words.next().unwrap_or_default().parse()?;
        let arguments: Vec<_> = words.collect();
        let bound = |value: String, max: usize| {
            Err(ValueError::OutOfRange { min: 1, max: max as u64, value })
        };
        if count > PROGRAM_WORDS_MAX {
            return bound(format!("{count} words"), PROGRAM_WORDS_MAX);
        }
        match arguments.iter().find(|it| it.len() > PROGRAM_WORD_LEN_MAX || it.contains('\0')) {
            Some(word) => {
                bound(format!("{} bytes of an argument", word.len()), PROGRAM_WORD_LEN_MAX)
            }
            None => Ok(Self { path, arguments }),
        }
    }
}

impl From<Program> for Vec<String> {
    fn from(program: Program) -> Self {
        std::iter::once(program.path.to_string()).chain(program.arguments).collect()
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", Vec::from(self.clone()))
    }
}

impl FromToml for Program {
    fn from_toml(value: &Spanned<DeValue<'_>>) -> Result<Self, Fault> {
        const EXPECTED: &str =
            "a program and its arguments in brackets, such as [\"/etc/weir/up\"]";
        let DeValue::Array(words) = value.get_ref() else {
            return Err(Fault::wrong_type(value, EXPECTED));
        };
        let word = |word: &Spanned<DeValue<'_>>| match word.get_ref().as_str() {
            Some(text) => Ok(text.to_owned()),
            None => Err(Fault::wrong_type(word, EXPECTED)),
        };
        let words = each(words.iter().map(word))?;
        Self::try_from(words).map_err(|error| Fault::new(value, error))
    }
}

/// An address of this host, with a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListenAddress(SocketAddr);

impl ListenAddress {
    /// The address.
    pub const fn get(self) -> SocketAddr {
        self.0
    }
}

impl FromStr for ListenAddress {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let parsed = text.parse().map(Self);
        parsed.map_err(|_| ValueError::ListenAddress { value: text.into() })
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

from_toml_string! {
    ListenAddress = "an address in quotes, such as \"127.0.0.1:9101\"";
}

impl FromToml for Admins {
    fn from_toml(value: &Spanned<DeValue<'_>>) -> Result<Self, Fault> {
        const EXPECTED: &str = "users in brackets, such as [\"alice\"]";
        let fault = |error| Fault::new(value, error);
        let DeValue::Array(users) = value.get_ref() else {
            let found = value.get_ref().type_str();
            return Err(fault(ValueError::WrongType { expected: EXPECTED, found }));
        };
        if users.len() > ADMINS_MAX {
            let (max, value) = (ADMINS_MAX as u64, format!("{} users", users.len()));
            return Err(fault(ValueError::OutOfRange { min: 0, max, value }));
        }
        each(users.iter().map(UserName::from_toml)).map(Self)
    }
}

/// Reports keys about the API that mean nothing without another key.
pub(super) fn check(section: &mut Section<'_>, problems: &mut Vec<Problem>) {
    let needs = [
        (
            "admin",
            "group",
            "`group` names those who can open the control socket: only its members can be admins",
        ),
        (
            "api_listen",
            "api_token_file",
            "TCP does not say who connects: a client over TCP sends the token of this file",
        ),
        ("api_token_file", "api_listen", "name an address as well, for example \"127.0.0.1:9101\""),
    ];
    for (key, other, help) in needs {
        if let Some(at) = section.place(key).filter(|_| !section.has(other)) {
            problems.push(
                Problem::new(format!("`switch.{key}` needs `{other}`"))
                    .label(at, format!("means nothing without `{other}`"))
                    .help(help),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{parse, refused};

    fn read(keys: &str) -> ApiConfig {
        parse(&format!("[switch]\n{keys}\n")).unwrap().switch.api
    }

    #[test]
    fn who_may_ask_is_read_and_is_nobody_by_default() {
        assert_eq!(read(""), ApiConfig::default());
        let api = read(
            "group = \"kvm\"\nadmin = [\"alice\", \"1000\"]\n\
             api_listen = \"[::1]:9101\"\napi_token_file = \"/etc/weir/token\"",
        );
        let ApiConfig { group, admins, listen, token_file } = api;
        assert_eq!(group.unwrap().as_str(), "kvm");
        assert_eq!(
            admins.as_slice().iter().map(UserName::as_str).collect::<Vec<_>>(),
            ["alice", "1000"]
        );
        assert_eq!(listen.unwrap().get(), "[::1]:9101".parse().unwrap());
        assert_eq!(token_file.unwrap().as_str(), "/etc/weir/token");
    }

    #[test]
    fn a_program_is_an_absolute_path_with_arguments_and_no_line_for_a_shell() {
        let with = |value: &str| format!("[switch]\non_up = {value}\n");
        let read = |value: &str| parse(&with(value)).unwrap().switch.on_up.unwrap();
        let program = read("[\"/etc/weir/up\", \"a b\", \"$(reboot)\"]");
        assert_eq!(program.path(), Path::new("/etc/weir/up"));
        assert_eq!(program.arguments(), ["a b", "$(reboot)"]);
        assert_eq!(read(&program.to_string()), program, "it is written as it is read");
        let many = format!("[\"/p\"{}]", ", \"a\"".repeat(PROGRAM_WORDS_MAX));
        let long = format!("[\"/p\", \"{}\"]", "a".repeat(PROGRAM_WORD_LEN_MAX + 1));
        for (value, says) in [
            ("\"/etc/weir/up --now\"", "a program and its arguments in brackets"),
            ("[]", "not the absolute path"),
            ("[\"up\"]", "not the absolute path"),
            ("[\"/up\", 7]", "a program and its arguments in brackets"),
            (&many, "must be 1 to 16"),
            (&long, "must be 1 to 255"),
        ] {
            let shown = refused(&with(value));
            assert!(shown.contains(says), "{value}: {shown}");
        }
    }

    #[test]
    fn what_would_open_the_api_by_mistake_is_refused() {
        let many = format!("group = \"a\"\nadmin = [{}]", "\"a\",".repeat(ADMINS_MAX + 1));
        for (keys, says) in [
            ("admin = [\"alice\"]", "`switch.admin` needs `group`"),
            ("api_listen = \"127.0.0.1:1\"", "`switch.api_listen` needs `api_token_file`"),
            ("api_token_file = \"/t\"", "`switch.api_token_file` needs `api_listen`"),
            ("group = \"a:b\"", "cannot be the name of a group"),
            ("group = \"a\"\nadmin = \"alice\"", "users in brackets"),
            ("group = \"a\"\nadmin = [7]", "a user in quotes"),
            ("api_listen = \"localhost:1\"\napi_token_file = \"/t\"", "not an address with a port"),
            ("api_listen = \"127.0.0.1:1\"\napi_token_file = \"t\"", "not the absolute path"),
            (&many, "must be 0 to 64"),
        ] {
            let shown = refused(&format!(
                "[switch]
{keys}
"
            ));
            assert!(shown.contains(says), "{keys}: {shown}");
        }
    }
}
