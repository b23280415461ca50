//! Refusals: the reason, and the remedy (RFC 9457).

use std::collections::BTreeMap;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::openapi::response::Response as Described;
use utoipa::openapi::{Content, Ref, RefOr, ResponseBuilder};
use utoipa::{IntoResponses, ToSchema};
use weir_limits::CONTROL_CONNECTIONS_MAX;
use weir_switch::control::{self, Refusal};

/// A refusal, as `application/problem+json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// The status of the answer, in words.
    pub title: String,
    /// The status of the answer.
    pub status: u16,
    /// The refused request, and the reason.
    pub detail: String,
    /// The remedy.
    pub help: Option<String>,
}

/// The media type of a problem in JSON.
pub(crate) const PROBLEM_JSON: &str = "application/problem+json";

/// Types that stand for a [`Problem`] of a status in the list of a route's answers.
macro_rules! refusals {
    ($($name:ident = $status:literal;)+) => {$(
        pub(crate) enum $name {}

        impl IntoResponses for $name {
            fn responses() -> BTreeMap<String, RefOr<Described>> {
                let problem = Content::new(Some(Ref::from_schema_name("Problem")));
                let response = ResponseBuilder::new().content("application/json", problem);
                BTreeMap::from([($status.to_owned(), response.into())])
            }
        }
    )+};
}

refusals! {
    Bad = "400";
    NotAllowed = "403";
    Missing = "404";
    Conflict = "409";
}

impl Problem {
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        let title = status.canonical_reason().unwrap_or("Refused").into();
        Self { title, status: status.as_u16(), detail: detail.into(), help: None }
    }

    pub(crate) fn with_help(self, help: impl Into<String>) -> Self {
        Self { help: Some(help.into()), ..self }
    }

    /// A request that is malformed.
    pub(crate) fn bad(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// An answer of the switch that does not fit its question, which is a fault of weir's.
    pub(crate) fn unexpected() -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "the switch gave another answer")
            .with_help("please report it")
    }

    /// A request that has lost its place before its turn came.
    pub(crate) fn busy() -> Self {
        let detail = format!(
            "weir has {CONTROL_CONNECTIONS_MAX} connections, and of your requests this one waited longest for its turn"
        );
        Self::new(StatusCode::SERVICE_UNAVAILABLE, detail)
            .with_help("it was not carried out; ask again, by fewer connections at a time")
    }

    /// The refusal in the switch's answer; any other answer is unexpected.
    pub(crate) fn of(answer: control::Response) -> Self {
        let control::Response::Error { kind, message, help } = answer else {
            return Self::unexpected();
        };
        let status = match kind {
            Refusal::NotFound => StatusCode::NOT_FOUND,
            Refusal::Conflict => StatusCode::CONFLICT,
            Refusal::Later => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self { help, ..Self::new(status, message) }
    }

    /// The problem's bytes.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("strings and a number")
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status);
        let mut response = Response::new(Body::from(self.to_bytes()));
        *response.status_mut() = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let json = HeaderValue::from_static(PROBLEM_JSON);
        response.headers_mut().insert(header::CONTENT_TYPE, json);
        response
    }
}
