//! The rights of callers.
//!
//! A user that can open the socket may read: the file's permissions decide this. Root, the user who started weir, and
//! the configured users may write. Over TCP a token gives the right to read.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use axum::http::header::{HeaderMap, HeaderName, HeaderValue, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{Method, Request, StatusCode, header};
use weir_limits::{
    CONFIG_COST_BYTES_MAX, CONFIG_COST_OF_ADMINS_BYTES_MAX, CONTROL_TOKEN_LEN_MAX,
    CONTROL_TOKEN_LEN_MIN,
};

use crate::problem::Problem;

/// Users who may write.
#[derive(Debug, Clone)]
pub struct Access {
    admins: BTreeSet<u32>,
    /// Users among them who have full control of this process anyway.
    owners: BTreeSet<u32>,
}

impl Access {
    /// Root, the present user of this process, and `admins`.
    #[must_use]
    pub fn of_this_user(admins: impl IntoIterator<Item = u32>) -> Self {
        let own = rustix::process::geteuid().as_raw();
        let owners = BTreeSet::from([0, own]);
        Self { admins: admins.into_iter().chain(owners.iter().copied()).collect(), owners }
    }

    /// True if `caller` may write.
    pub(crate) fn may_write(&self, caller: Caller) -> bool {
        match caller {
            Caller::User(user) => self.admins.contains(&user),
            Caller::Network => false,
        }
    }

    /// The most bytes of memory that reading a configuration of this caller may take.
    pub(crate) fn configuration_cost_max(&self, caller: Caller) -> u64 {
        match caller {
            Caller::User(user) if self.owners.contains(&user) => CONFIG_COST_BYTES_MAX,
            Caller::User(_) | Caller::Network => CONFIG_COST_OF_ADMINS_BYTES_MAX,
        }
    }
}

/// The party at the other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Caller {
    /// A user of this machine, as the kernel reports it (`SO_PEERCRED`).
    User(u32),
    /// A client over TCP.
    Network,
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(user) => write!(f, "user {user}"),
            Self::Network => f.write_str("a client over TCP"),
        }
    }
}

/// The secret that a client over TCP needs.
#[derive(Clone)]
pub struct Token(String);

/// The reason why a text is no token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "a token has {CONTROL_TOKEN_LEN_MIN} to {CONTROL_TOKEN_LEN_MAX} printable characters, without spaces; this one does not"
)]
pub struct TokenError;

impl Token {
    /// The token in a file with this text; spaces and newlines around it do not count.
    ///
    /// # Errors
    /// [`TokenError`]
    pub fn new(text: &str) -> Result<Self, TokenError> {
        let text = text.trim();
        let length = CONTROL_TOKEN_LEN_MIN..=CONTROL_TOKEN_LEN_MAX;
        match length.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic()) {
            true => Ok(Self(text.into())),
            false => Err(TokenError),
        }
    }

    /// True if the value of an `Authorization` header contains it. The comparison takes as long for a nearly right
    /// token as for any other of its length.
    pub(crate) fn is_in(&self, authorization: Option<&[u8]>) -> bool {
        let given = authorization.and_then(|value| value.strip_prefix(b"Bearer "));
        given.is_some_and(|given| {
            let pairs = given.iter().zip(self.0.as_bytes());
            given.len() == self.0.len() && pairs.fold(0, |found, (a, b)| found | (a ^ b)) == 0
        })
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

/// The relation of the asking page to weir's (W3C, "Fetch Metadata Request Headers").
const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// `navigate` if the browser shows the answer as a page.
const MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");

/// The reason to refuse a request before it is read any further, if there is one: protection against pages of other
/// sites, which could make a visitor's browser send requests to weir.
///
/// A browser reaches weir over TCP, or over a forward to the control socket (`ssh -L`), where it has a user's rights.
/// There the requested name (`Host`) must not be another site's, since any name can be made to lead here (DNS
/// rebinding). Over TCP another site does not have the token. A request that names its origin must come from weir's own
/// page.
pub(crate) fn refusal<T>(request: &Request<T>, caller: Caller) -> Option<Problem> {
    let headers = request.headers();
    let hosts = headers.get_all(header::HOST).iter().map(parsed);
    let hosts: Vec<_> =
        request.uri().authority().cloned().map(Some).into_iter().chain(hosts).collect();
    if let Caller::User(_) = caller
        && let Some(host) = hosts.iter().find(|host| !host.as_ref().is_some_and(is_own))
    {
        return Some(another_host(host.as_ref()));
    }
    let host = hosts.first().and_then(Option::as_ref);
    if headers.get_all(ORIGIN).iter().any(|origin| !is_of(origin, host)) {
        return Some(another_site());
    }
    let is_shown = request.method() == Method::GET && says(headers, &MODE, &["navigate"]);
    match headers.contains_key(SITE) && !is_shown && !says(headers, &SITE, &["same-origin", "none"])
    {
        true => Some(another_site()),
        false => None,
    }
}

fn parsed(value: &HeaderValue) -> Option<Authority> {
    Authority::try_from(value.as_bytes()).ok().filter(|authority| !authority.as_str().contains('@'))
}

/// True for an address, or a name without dots. Another site has a name with dots, and cannot make addresses lead here.
fn is_own(authority: &Authority) -> bool {
    let host = authority.host();
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    address.parse::<IpAddr>().is_ok() || !host.contains('.')
}

/// True if an `Origin` is that of a page from `host`; `null` stands for no page that weir knows.
fn is_of(origin: &HeaderValue, host: Option<&Authority>) -> bool {
    let origin = origin.to_str().ok();
    let rest = origin.and_then(|it| it.strip_prefix("http://").or(it.strip_prefix("https://")));
    rest.zip(host).is_some_and(|(rest, host)| rest.eq_ignore_ascii_case(host.as_str()))
}

/// True if the header is there once, with one of `values`.
fn says(headers: &HeaderMap, name: &HeaderName, values: &[&str]) -> bool {
    let mut all = headers.get_all(name).iter();
    let first = all.next().and_then(|value| value.to_str().ok());
    first.is_some_and(|first| values.contains(&first)) && all.next().is_none()
}

fn another_host(host: Option<&Authority>) -> Problem {
    let host = host.map_or("what `Host` says", |authority| authority.host());
    let detail = format!("weir is not known as {host}");
    Problem::new(StatusCode::MISDIRECTED_REQUEST, detail)
        .with_help("ask by address or by a name without dots, such as `localhost`")
}

fn another_site() -> Problem {
    let detail = "a page of another site has the browser ask this";
    Problem::new(StatusCode::FORBIDDEN, detail).with_help("open weir's own page")
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Access {
        pub(crate) fn nobody() -> Self {
            Self { admins: BTreeSet::new(), owners: BTreeSet::new() }
        }

        /// Access by which only these users, and root, may write.
        pub(crate) fn admins_only(admins: impl IntoIterator<Item = u32>) -> Self {
            Self { admins: admins.into_iter().collect(), owners: BTreeSet::new() }
        }
    }

    #[test]
    fn root_the_own_user_and_those_who_are_named_may_write_and_nobody_over_tcp() {
        let access = Access::of_this_user([7]);
        let own = rustix::process::geteuid().as_raw();
        for user in [0, own, 7] {
            assert!(access.may_write(Caller::User(user)), "{user}");
        }
        assert!(!access.may_write(Caller::User(8)) && !access.may_write(Caller::Network));
    }

    #[test]
    fn a_token_is_taken_whole_or_not_at_all() {
        let token = Token::new("  0123456789abcdef\n").unwrap();
        assert!(token.is_in(Some(b"Bearer 0123456789abcdef")));
        let wrong: [&[u8]; 6] = [
            b"Bearer 0123456789abcdeg",
            b"Bearer 0123456789abcdef0",
            b"Bearer 0123456789abcde",
            b"Bearer ",
            b"Basic 0123456789abcdef",
            b"0123456789abcdef",
        ];
        for value in wrong {
            assert!(!token.is_in(Some(value)), "{}", String::from_utf8_lossy(value));
        }
        assert!(!token.is_in(None));
        let refused = ["", "short", "with a space in it", "0123456789abcd\u{7}f"];
        assert!(refused.iter().all(|text| Token::new(text).is_err()));
        assert!(Token::new(&"x".repeat(CONTROL_TOKEN_LEN_MAX + 1)).is_err());
        assert!(!format!("{token:?}").contains("0123"), "a token is not printed");
    }

    /// Checks whether a user's request passes: its method and target, then its headers.
    fn passes(method: &str, target: &str, headers: &[(&str, &str)]) -> Result<(), u16> {
        passes_of(Caller::User(1000), method, target, headers)
    }

    fn passes_of(
        caller: Caller,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
    ) -> Result<(), u16> {
        let mut request = Request::builder().method(method).uri(target);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        match refusal(&request.body(()).unwrap(), caller) {
            None => Ok(()),
            Some(problem) => Err(problem.status),
        }
    }

    fn asked_for(host: &str) -> Result<(), u16> {
        passes("GET", "/v1/switch", &[("host", host)])
    }

    #[test]
    fn a_name_that_is_not_weirs_is_another_host() {
        for host in ["127.0.0.1:9101", "[::1]:9101", "localhost:9101", "weir", "hv7:80", "10.0.0.1"]
        {
            assert_eq!(asked_for(host), Ok(()), "{host}");
        }
        for host in ["evil.example", "evil.example:9101", "a@b", "a.", "10.0.0.1.x.org", ""] {
            assert_eq!(asked_for(host), Err(421), "{host}");
        }
        assert_eq!(passes("GET", "/", &[]), Ok(()), "a client without names");
        assert_eq!(passes("GET", "/", &[("host", "weir"), ("host", "evil.example")]), Err(421));
        assert_eq!(passes("GET", "http://evil.example/", &[("host", "weir")]), Err(421));
        let named = [("host", "weir.example.org:9101")];
        assert_eq!(passes_of(Caller::Network, "GET", "/metrics", &named), Ok(()), "it has a token");
    }

    #[test]
    fn what_another_site_sends_is_refused_and_a_link_to_the_page_is_none_of_that() {
        let from = |method, site: &[(&str, &str)]| {
            passes(method, "/v1/vifs", &[&[("host", "127.0.0.1:9101")], site].concat())
        };
        for site in [
            &[("sec-fetch-site", "same-origin")][..],
            &[("sec-fetch-site", "none"), ("sec-fetch-mode", "navigate")],
            &[("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")],
            &[("origin", "http://127.0.0.1:9101")],
            &[("origin", "https://127.0.0.1:9101")],
        ] {
            assert_eq!(from("GET", site), Ok(()), "{site:?}");
        }
        for site in [
            &[("sec-fetch-site", "cross-site")][..],
            &[("sec-fetch-site", "same-site"), ("sec-fetch-mode", "cors")],
            &[("sec-fetch-site", "none"), ("sec-fetch-site", "cross-site")],
            &[("origin", "http://evil.example")],
            &[("origin", "http://127.0.0.1:9102")],
            &[("origin", "http://127.0.0.1:9101.evil.example")],
            &[("origin", "null")],
            &[("origin", "")],
        ] {
            assert_eq!(from("GET", site), Err(403), "{site:?}");
            assert_eq!(from("POST", site), Err(403), "{site:?}");
        }
        let form = [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")];
        assert_eq!(from("POST", &form), Err(403));
    }
}
