//! Access to the HTTP API: users, sockets and the token.

use std::fmt;
use std::net::SocketAddr;
use std::ops::Range;
use std::str::FromStr;

use toml::Spanned;
use toml::de::DeValue;
use weir_limits::ADMINS_MAX;

use super::error::Problem;
use super::section::{Fault, FromToml, Section};
use super::values::{FilePath, GroupName, UserName, ValueError};

/// The keys of `[switch]` about the API.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ApiConfig {
    /// The group whose members may open the control socket, and read.
    pub group: Option<GroupName>,
    /// Members of the group who may write.
    pub admins: Admins,
    /// The address at which the API also listens for TCP, for readers.
    pub listen: Option<ListenAddress>,
    /// The file with the token that clients over TCP have to know.
    pub token_file: Option<FilePath>,
}

/// Users who may write, beside root and the user who started weir.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Admins(Vec<UserName>);

impl Admins {
    /// The names of the users.
    pub fn as_slice(&self) -> &[UserName] {
        &self.0
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

impl FromToml for Admins {
    fn from_toml(value: &Spanned<DeValue<'_>>) -> Result<Self, Fault> {
        const EXPECTED: &str = "users in brackets, such as [\"alice\"]";
        let fault = |error| Fault { span: value.span(), error };
        let DeValue::Array(users) = value.get_ref() else {
            let found = value.get_ref().type_str();
            return Err(fault(ValueError::WrongType { expected: EXPECTED, found }));
        };
        if users.len() > ADMINS_MAX {
            let (max, value) = (ADMINS_MAX as u64, format!("{} users", users.len()));
            return Err(fault(ValueError::OutOfRange { min: 0, max, value }));
        }
        users.iter().map(UserName::from_toml).collect::<Result<_, _>>().map(Self)
    }
}

impl ApiConfig {
    /// Reads the keys of `[switch]` about the API.
    pub(super) fn read(section: &mut Section<'_>, problems: &mut Vec<Problem>) -> Self {
        let group_at = section.place("group");
        let group = section.value("group", problems);
        let admins = section.take("admin", problems);
        let listen_at = section.place("api_listen");
        let listen = section.value("api_listen", problems);
        let token_file = section.take("api_token_file", problems);
        let mut needs = |what: &str, at: Range<usize>, other: &str, help: &str| {
            let problem = Problem::new(format!("`switch.{what}` needs `{other}`"));
            problems.push(problem.label(at, format!("means nothing without `{other}`")).help(help));
        };
        if let Some(admins) = admins.as_ref().filter(|_| group_at.is_none()) {
            let help = "`group` names those who can open the control socket: only its members can be admins";
            needs("admin", admins.span.clone(), "group", help);
        }
        match (&token_file, listen_at) {
            (None, Some(at)) if !section.has("api_token_file") => {
                let help =
                    "TCP does not say who connects: a client over TCP sends the token of this file";
                needs("api_listen", at, "api_token_file", help);
            }
            (Some(file), None) => {
                let help = "name an address as well, for example \"127.0.0.1:9101\"";
                needs("api_token_file", file.span.clone(), "api_listen", help);
            }
            _ => {}
        }
        let admins = admins.map(|located| located.value).unwrap_or_default();
        let token_file = token_file.map(|located| located.value);
        Self { group, admins, listen, token_file }
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
