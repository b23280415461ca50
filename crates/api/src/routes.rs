//! Each path and method. Requests to the switch are parsed, made and answered on a thread of their own, because all of
//! this takes time, and filters open files.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequestParts, Path, Query, Request, State};
use axum::http::{HeaderValue, StatusCode, header, request::Parts};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Router};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;
use utoipa::openapi::OpenApi as Document;
use utoipa::{OpenApi, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use weir_config::PortName;
use weir_limits::{
    CONTROL_CONNECTIONS_MAX, CONTROL_REQUEST_BYTES_MAX, CONTROL_TIMEOUT_SECS, FRAME_LEN_MAX,
};
use weir_switch::control::{ControlHandler, Request as Ask, Response as Answer};
use weir_switch::stats::{Limit, PortStats, SwitchStats};

use crate::access::{Access, Caller, Token};
use crate::events::Hub;
use crate::metrics;
use crate::origin;
use crate::page;
use crate::places::{Places, Ticket};
use crate::problem::Problem;
use crate::work::{Kind, Work};

mod look;
mod read;
mod write;

pub use write::{ConfigurationSource, ConfigurationText, Done, Reloaded, Stages};

const BODY_TIMEOUT: Duration = Duration::from_secs(CONTROL_TIMEOUT_SECS);

/// The state with which requests are answered.
#[derive(Debug, Clone)]
pub(crate) struct Api {
    pub(crate) access: Access,
    pub(crate) token: Option<Token>,
    pub(crate) work: Work,
    pub(crate) places: Places,
    pub(crate) hub: Hub,
}

/// The answer is a stream without an end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Endless;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "weir",
        description = "A running weir: its state, and what the command `weir` does with it. Whoever may open the control socket may read; root, the user who started weir and those named by `admin` may write. A refusal is a `Problem`."
    ),
    components(schemas(Problem, weir_switch::events::Event))
)]
struct Described;

fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::with_openapi(Described::openapi())
        .routes(routes!(read::switch))
        .routes(routes!(read::ports))
        .routes(routes!(read::port))
        .routes(routes!(read::queues))
        .routes(routes!(read::policies))
        .routes(routes!(read::drops))
        .routes(routes!(read::addresses))
        .routes(routes!(read::connections))
        .routes(routes!(write::flush))
        .routes(routes!(read::metrics))
        .routes(routes!(read::events))
        .routes(routes!(look::trace))
        .routes(routes!(look::trace_live))
        .routes(routes!(look::capture))
        .routes(routes!(read::document))
        .routes(routes!(read::filter, write::set_filter))
        .routes(routes!(read::vifs, write::add_vif))
        .routes(routes!(read::vif, write::put_vif, write::change_vif, write::remove_vif))
        .routes(routes!(read::vif_of_template))
        .routes(routes!(read::configuration, write::reload))
        .routes(routes!(write::difference))
        .routes(routes!(write::saved))
        .routes(routes!(write::stages))
        .routes(routes!(write::upgrade))
}

/// The OpenAPI document.
#[must_use]
pub fn openapi() -> Document {
    routes().into_openapi()
}

/// The router that answers every request.
pub(crate) fn router(api: Api) -> Router {
    let (router, _) = routes().split_for_parts();
    router
        .fallback(async || {
            Problem::new(StatusCode::NOT_FOUND, "weir has no such path")
                .with_help("GET /openapi.json lists them")
        })
        .method_not_allowed_fallback(no_such_method)
        .layer(from_fn_with_state(api.clone(), admit))
        .merge(page::routes().method_not_allowed_fallback(no_such_method))
        .layer(from_fn(same_site))
        .with_state(api)
}

async fn no_such_method() -> Problem {
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "this path has no such method")
        .with_help("GET /openapi.json lists them")
}

/// Refuses requests that another site makes a browser send, and tells browsers how to handle an answer.
async fn same_site(Extension(caller): Extension<Caller>, request: Request, next: Next) -> Response {
    let mut response = match origin::refusal(&request, caller) {
        Some(problem) => problem.into_response(),
        None => next.run(request).await,
    };
    response.headers_mut().extend(page::HEADERS);
    response
}

/// Checks the token of a client over TCP.
async fn admit(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    request: Request,
    next: Next,
) -> Response {
    if caller == Caller::Network {
        let authorization = request.headers().get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
        if !api.token.as_ref().is_some_and(|token| token.is_in(authorization)) {
            let refusal = Problem::new(StatusCode::UNAUTHORIZED, "no token, or a wrong one")
                .with_help("send `Authorization: Bearer TOKEN` with the token of `api_token_file`");
            let mut response = refusal.into_response();
            let bearer = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, bearer);
            return response;
        }
    }
    next.run(request).await
}

/// The rights of the caller, and the kind of its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum For {
    Reader,
    Writer,
    /// A writer whose request has expressions.
    Compiler,
}

/// The caller. Callers that may write have threads that others cannot keep busy.
pub(crate) struct Asker {
    whose: For,
    caller: Caller,
    ticket: Arc<Ticket>,
}

impl Asker {
    fn of(parts: &Parts, api: &Api) -> Result<Self, Problem> {
        let caller = caller(parts);
        let whose = match api.access.may_write(caller) {
            true => For::Writer,
            false => For::Reader,
        };
        let ticket = parts.extensions.get().cloned().ok_or_else(Problem::unexpected)?;
        Ok(Self { whose, caller, ticket })
    }

    /// The most bytes of a request's body: a reader's is at most a frame.
    fn body_len_max(&self) -> usize {
        match self.whose {
            For::Reader => FRAME_LEN_MAX as usize,
            For::Writer | For::Compiler => CONTROL_REQUEST_BYTES_MAX,
        }
    }
}

/// A caller with the right to write.
struct Writer(Asker);

impl Writer {
    /// The caller of a request with expressions: its thread waits for libpcap.
    fn compiles(self) -> Asker {
        Asker { whose: For::Compiler, ..self.0 }
    }
}

impl FromRequestParts<Api> for Writer {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Problem> {
        let asker = Asker::of(parts, api)?;
        if asker.whose == For::Writer {
            return Ok(Self(asker));
        }
        let detail = match caller(parts) {
            Caller::User(user) => format!("user {user} may not change the switch"),
            Caller::Network => "a client over TCP may not change the switch".into(),
        };
        let help = "ask as root, or as a user whom `admin` of [switch] names";
        Err(Problem::new(StatusCode::FORBIDDEN, detail).with_help(help))
    }
}

fn caller(parts: &Parts) -> Caller {
    // Without a known caller nothing is allowed.
    parts.extensions.get().copied().unwrap_or(Caller::Network)
}

/// A caller with the right to read.
struct Reader(Asker);

impl FromRequestParts<Api> for Reader {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Problem> {
        Asker::of(parts, api).map(Self)
    }
}

/// The port in a path.
struct Named(PortName);

impl FromRequestParts<Api> for Named {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Problem> {
        let path = Path::<String>::from_request_parts(parts, api).await;
        let Path(text) = path.map_err(|error| Problem::bad(error.body_text()))?;
        let named = text.parse().map(Self);
        named.map_err(|error: weir_config::ValueError| {
            let problem = Problem::bad(error.to_string());
            match error.help() {
                Some(help) => problem.with_help(help),
                None => problem,
            }
        })
    }
}

/// The body of a request, which must come in time and not be too long.
async fn body(asker: &Asker, request: Request) -> Result<Bytes, Problem> {
    let most = asker.body_len_max();
    let too_long = || {
        let detail = format!("this request has at most {most} bytes");
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
    };
    let announced = request.headers().get(header::CONTENT_LENGTH);
    let announced = announced.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > most as u64) {
        return Err(too_long());
    }
    let limited = Limited::new(request.into_body(), most);
    asker.ticket.queues();
    let collected = timeout(BODY_TIMEOUT, limited.collect()).await;
    asker.ticket.works();
    match collected {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_long()),
        Ok(Err(error)) => Err(Problem::bad(format!("the request's body cannot be read: {error}"))),
        Err(_) => {
            let detail = format!("the request was not there within {CONTROL_TIMEOUT_SECS} s");
            Err(Problem::new(StatusCode::REQUEST_TIMEOUT, detail))
        }
    }
}

/// Parses JSON; `example` is a valid value.
fn parsed<T: DeserializeOwned>(bytes: &[u8], example: &str) -> Result<T, Problem> {
    serde_json::from_slice(bytes).map_err(|error| {
        let problem = Problem::bad(format!("the request's body is not understood: {error}"));
        problem.with_help(format!("send JSON such as {example}"))
    })
}

/// A configuration's text, if reading it costs no more than the caller may use.
fn text(bytes: &Bytes, cost: fn(&str) -> u64, cost_max: u64) -> Result<String, Problem> {
    let text = std::str::from_utf8(bytes)
        .map_err(|error| Problem::bad(format!("a configuration is UTF-8 text: {error}")))?;
    match cost(text) > cost_max {
        false => Ok(text.to_owned()),
        true => Err(Problem::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "the configuration has too many keys and values for you to ask",
        )
        .with_help("ask as root, or as the user that weir runs as")),
    }
}

/// The answer to a request that succeeded.
fn json(value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(bytes) => written("application/json", bytes),
        Err(_) => Problem::unexpected().into_response(),
    }
}

pub(crate) fn written(content_type: &'static str, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    let content_type = HeaderValue::from_static(content_type);
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response
}

impl Api {
    /// Has `job` done for a caller. While it waits for its turn, another connection can take its place.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        asker: &Asker,
        job: impl FnOnce(&dyn ControlHandler) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let kind = match asker.whose {
            For::Writer => None,
            For::Reader => Some(Kind::Read),
            For::Compiler => Some(Kind::Compile),
        };
        let turn = match kind {
            None => None,
            Some(kind) => {
                asker.ticket.queues();
                let turn = self.work.turn(kind, asker.caller).await;
                asker.ticket.works();
                turn
            }
        };
        self.work.ask(turn, Some(asker.caller), job).await
    }

    /// Answers a request with the result of `job`.
    async fn answer(
        &self,
        asker: &Asker,
        job: impl FnOnce(&dyn ControlHandler) -> Result<Response, Problem> + Send + 'static,
    ) -> Response {
        let answered = self.ask(asker, |handler| job(handler).into_response()).await;
        answered.unwrap_or_else(IntoResponse::into_response)
    }

    /// Answers with the result of `show` for the counters.
    async fn show<T: Serialize>(
        &self,
        asker: &Asker,
        show: impl FnOnce(SwitchStats) -> Result<T, Problem> + Send + 'static,
    ) -> Response {
        let connections = self.places.taken();
        let job = move |handler: &dyn ControlHandler| {
            let stats = counters(handler, connections)?;
            Ok(json(&show(stats)?))
        };
        self.answer(asker, job).await
    }
}

/// The switch's counters, with those of the API.
fn counters(handler: &dyn ControlHandler, connections: usize) -> Result<SwitchStats, Problem> {
    match handler.handle(Ask::Stats) {
        Answer::Stats { mut stats } => {
            let limit = Limit::new(connections, CONTROL_CONNECTIONS_MAX);
            stats.limits.insert("control_connections".to_owned(), limit);
            Ok(*stats)
        }
        other => Err(Problem::of(other)),
    }
}

/// One port's counters.
fn of_port(stats: SwitchStats, name: &PortName) -> Result<PortStats, Problem> {
    let port = stats.ports.into_iter().find(|port| port.name == *name);
    port.ok_or_else(|| {
        let detail = format!("there is no interface or uplink called {name}");
        Problem::new(StatusCode::NOT_FOUND, detail).with_help("GET /v1/ports lists those there are")
    })
}
