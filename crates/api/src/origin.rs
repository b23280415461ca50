//! Protection against pages of other sites, which could make a visitor's browser send requests to weir.
//!
//! A browser reaches weir over TCP, or over a forward to the control socket (`ssh -L`), where it has a user's rights.
//! There the requested name (`Host`) must not be another site's, since any name can be made to lead here (DNS
//! rebinding). Over TCP another site does not have the token. A request that names its origin must come from weir's own
//! page.

use axum::http::header::{HeaderMap, HeaderName, HeaderValue, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{Method, Request, StatusCode, header};
use std::net::IpAddr;

use crate::access::Caller;
use crate::problem::Problem;

/// The relation of the asking page to weir's (W3C, "Fetch Metadata Request Headers").
const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// `navigate` if the browser shows the answer as a page.
const MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");

/// The reason to refuse a request before it is read any further, if there is one.
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

/// True for an address, or a name without dots: no other site can make these lead here.
fn is_own(authority: &Authority) -> bool {
    let host = authority.host();
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    address.parse::<IpAddr>().is_ok() || !host.contains('.')
}

/// True if an `Origin` is that of a page from `host`; `null` is no page that weir knows.
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
