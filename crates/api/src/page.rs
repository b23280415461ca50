//! The page: the switch as a browser shows it.
//!
//! The files are the same for everybody and contain nothing of the switch, so they need no token. They get their data
//! from the API, as any client does, and write it into the page as text.

use axum::http::header::{self, HeaderName, HeaderValue};
use axum::response::Response;
use axum::routing::get;
use axum::{Extension, Router};

use crate::access::Caller;
use crate::api::{Api, written};

const HTML: &str = include_str!("page/index.html");
const STYLE: &str = include_str!("page/style.css");
const SCRIPT: &str = include_str!("page/script.js");
const ICON: &str = include_str!("page/icon.svg");

/// The text in `index.html` that says whether a token is needed.
const NEEDS_TOKEN: &str = "data-token=\"needed\"";

/// Nothing but these files, no inline script or style, no frame around it, and no string that becomes markup.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; \
     form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
);

/// The files' paths.
pub(crate) fn routes() -> Router<Api> {
    let file = |content_type, text: &'static str| get(async move || shown(content_type, text));
    Router::new()
        .route("/", get(index))
        .route("/page/style.css", file("text/css; charset=utf-8", STYLE))
        .route("/page/script.js", file("text/javascript; charset=utf-8", SCRIPT))
        .route("/page/icon.svg", file("image/svg+xml", ICON))
}

async fn index(Extension(caller): Extension<Caller>) -> Response {
    let html = match caller {
        Caller::Network => HTML.to_owned(),
        // The browser comes by a forward to the socket.
        Caller::User(_) => HTML.replace(NEEDS_TOKEN, ""),
    };
    shown("text/html; charset=utf-8", html)
}

fn shown(content_type: &'static str, text: impl Into<axum::body::Body>) -> Response {
    let mut response = written(content_type, text);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, POLICY);
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response
}

/// Headers of every answer for a browser: the content is of its declared type, it is for weir's page alone, and it is
/// not kept.
pub(crate) const HEADERS: [(HeaderName, HeaderValue); 3] = [
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        HeaderValue::from_static("same-origin"),
    ),
    (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
];
