//! The parts of every route: the callers, the bodies of requests, and the answers. Requests to the
//! switch are parsed, made and answered on their own thread, because all of this takes time, and
//! filters open files.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequestParts, Path, Query, Request};
use axum::http::{HeaderValue, StatusCode, header, request::Parts};
use axum::response::{IntoResponse, Response};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{self as http_body, Frame, SizeHint};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;
use weir_config::{PortName, ValueError};
use weir_limits::{
    CONTROL_PORTS_TOGETHER_MAX, CONTROL_REQUEST_BYTES_MAX, CONTROL_TIMEOUT_SECS, FRAME_LEN_MAX,
};
use weir_switch::control::{ControlHandler, Request as Ask, Response as Answer};
use weir_switch::stats::{Limits, PortStats, SwitchStats};

use crate::access::{Access, Caller, Token};
use crate::events::Hub;
use crate::places::{Places, Ticket};
use crate::problem::Problem;
use crate::routes::{ConfigurationSource, ConfigurationText, Done, Reloaded};
use crate::work::{Kind, Work};

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
    pub(crate) caller: Caller,
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

    /// The most bytes of a request's body. A request that only reads may have a frame as its body, and no more.
    fn body_len_max(&self) -> usize {
        match self.whose {
            For::Reader => FRAME_LEN_MAX as usize,
            For::Writer | For::Compiler => CONTROL_REQUEST_BYTES_MAX,
        }
    }
}

/// An answer, or a refusal.
pub(crate) type Answered = Result<Response, Problem>;
/// The part of a path behind `?`.
pub(crate) type Asks<T> = Result<Query<T>, axum::extract::rejection::QueryRejection>;

/// A caller with the right to write.
pub(crate) struct Writer(pub(crate) Api, pub(crate) Asker);

impl Writer {
    /// The caller of a request with expressions: its thread waits for libpcap.
    pub(crate) fn compiles(self) -> (Api, Asker) {
        (self.0, Asker { whose: For::Compiler, ..self.1 })
    }
}

impl FromRequestParts<Api> for Writer {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Problem> {
        let asker = Asker::of(parts, api)?;
        if asker.whose == For::Writer {
            return Ok(Self(api.clone(), asker));
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
pub(crate) struct Reader(pub(crate) Api, pub(crate) Asker);

impl FromRequestParts<Api> for Reader {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Problem> {
        Asker::of(parts, api).map(|asker| Self(api.clone(), asker))
    }
}

/// The name in a path.
pub(crate) struct Named<N = PortName>(pub(crate) N);

impl<N: FromStr<Err = ValueError>> FromRequestParts<Api> for Named<N> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Problem> {
        let path = Path::<String>::from_request_parts(parts, api).await;
        let Path(text) = path.map_err(|error| Problem::bad(error.body_text()))?;
        let named = text.parse().map(Self);
        named.map_err(|error: ValueError| {
            let problem = Problem::bad(error.to_string());
            match error.help() {
                Some(help) => problem.with_help(help),
                None => problem,
            }
        })
    }
}

/// The body of a request, which must come in time and not be too long.
pub(crate) async fn body(asker: &Asker, request: Request) -> Result<Bytes, Problem> {
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
    asker.ticket.waits_without_end();
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
pub(crate) fn parsed<T: DeserializeOwned>(bytes: &[u8], example: &str) -> Result<T, Problem> {
    serde_json::from_slice(bytes).map_err(|error| {
        let problem = Problem::bad(format!("the request's body is not understood: {error}"));
        problem.with_help(format!("send JSON such as {example}"))
    })
}

/// A configuration's text, if reading it costs no more than the caller may use.
pub(crate) fn text(bytes: &Bytes, cost: fn(&str) -> u64, cost_max: u64) -> Result<String, Problem> {
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

/// The answer to a request to the switch that has this answer: what the switch shows, or what became of a change.
pub(crate) fn shown(answer: Answer) -> Result<Response, Problem> {
    Ok(match answer {
        Answer::Ok => json(&Done { note: None }),
        Answer::Noted { note } => json(&Done { note: Some(note) }),
        Answer::Put { put } => json(&put),
        Answer::Shown { vif } => json(&vif),
        Answer::Vif { config } => json(&config),
        Answer::Explained { explanation } => json(&explanation),
        Answer::UplinkExplained { explanation } => json(&explanation),
        Answer::PlacementExplained { explanation } => json(&explanation),
        Answer::OverlayExplained { explanation } => json(&explanation),
        Answer::ConfigFile { path } => json(&ConfigurationSource { path }),
        Answer::Difference { difference } => json(&difference),
        Answer::Text { text } => json(&ConfigurationText { text }),
        Answer::Reloaded { difference, outcome } => {
            json(&Reloaded { difference: *difference, outcome })
        }
        Answer::Addresses { addresses, total } => listed(json(&addresses), total),
        Answer::Connections { page } => json(&page),
        Answer::Traced { trace } => json(&trace),
        other => return Err(Problem::of(other)),
    })
}

/// A part of a list, with the number of all entries.
pub(crate) fn listed(mut response: Response, total: usize) -> Response {
    response.headers_mut().insert("x-total-count", total.into());
    response
}

/// The answer to a request that succeeded.
pub(crate) fn json(value: &impl Serialize) -> Response {
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
    /// Runs `job` for a caller. While the request waits for its turn, another connection can take
    /// its place. The request is then refused.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        asker: &Asker,
        job: impl FnOnce(&dyn ControlHandler) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let kind = match asker.whose {
            For::Writer => Kind::Write,
            For::Reader => Kind::Read,
            For::Compiler => Kind::Compile,
        };
        asker.ticket.queues();
        let turn = tokio::select! {
            turn = self.work.turn(kind, asker.caller) => turn,
            () = asker.ticket.is_refused() => return Err(Problem::busy()),
        };
        asker.ticket.works();
        self.work.ask(turn, Some(asker.caller), job).await
    }

    /// Answers a request with the result of `job`.
    pub(crate) async fn answer(
        &self,
        asker: &Asker,
        job: impl FnOnce(&dyn ControlHandler) -> Result<Response, Problem> + Send + 'static,
    ) -> Response {
        let answered = self.ask(asker, |handler| job(handler).into_response()).await;
        answered.unwrap_or_else(IntoResponse::into_response)
    }

    /// Answers with what the switch says to `ask`.
    pub(crate) async fn of_switch(&self, asker: &Asker, ask: Ask) -> Response {
        self.answer(asker, |handler| shown(handler.handle(ask))).await
    }

    /// Answers with the result of `show` for the counters of a port.
    pub(crate) async fn show<T: Serialize + 'static>(
        &self,
        asker: &Asker,
        name: PortName,
        show: fn(PortStats) -> T,
    ) -> Response {
        let job = move |handler: &dyn ControlHandler| {
            let port = ports(handler, vec![name.clone()])?.pop();
            let port = port.ok_or_else(|| {
                let detail = format!("there is no interface or uplink called {name}");
                Problem::new(StatusCode::NOT_FOUND, detail)
                    .with_help("GET /v1/ports lists those there are")
            })?;
            Ok(json(&show(port)))
        };
        self.answer(asker, job).await
    }

    /// Has `each` take in the counters of these ports, of a few in each turn: whoever waits has a turn in between.
    pub(crate) async fn of_ports<T: Send + 'static>(
        &self,
        asker: &Asker,
        names: &[PortName],
        mut so_far: T,
        each: fn(&mut T, Vec<PortStats>),
    ) -> Result<T, Problem> {
        for names in names.chunks(CONTROL_PORTS_TOGETHER_MAX) {
            let names = names.to_vec();
            let job = move |handler: &dyn ControlHandler| {
                each(&mut so_far, ports(handler, names)?);
                Ok::<_, Problem>(so_far)
            };
            so_far = self.ask(asker, job).await??;
        }
        Ok(so_far)
    }
}

/// The switch's counters without those of its ports, with those of the API; and the names of its ports.
pub(crate) fn counters(
    handler: &dyn ControlHandler,
    limits: Limits,
) -> Result<(SwitchStats, Vec<PortName>), Problem> {
    match handler.handle(Ask::Stats) {
        Answer::Stats { mut stats } => {
            stats.limits.extend(limits);
            Ok((*stats, port_names(handler)?))
        }
        other => Err(Problem::of(other)),
    }
}

pub(crate) fn port_names(handler: &dyn ControlHandler) -> Result<Vec<PortName>, Problem> {
    match handler.handle(Ask::PortNames) {
        Answer::PortNames { names } => Ok(names),
        other => Err(Problem::of(other)),
    }
}

fn ports(handler: &dyn ControlHandler, names: Vec<PortName>) -> Result<Vec<PortStats>, Problem> {
    match handler.handle(Ask::Ports(names)) {
        Answer::Ports { ports } => Ok(ports),
        other => Err(Problem::of(other)),
    }
}

/// A list of ports in JSON that is written by and by.
pub(crate) struct Listed {
    pieces: Pieces,
    is_begun: bool,
    /// The text behind the list.
    tail: Vec<u8>,
}

impl Listed {
    /// Begins behind `head`, JSON whose last part is an empty list.
    pub(crate) fn in_place_of_the_last(head: &impl Serialize) -> Self {
        let mut head = serde_json::to_vec(head).unwrap_or_default();
        let tail = head.split_off(head.iter().rposition(|byte| *byte == b']').unwrap_or(0));
        let mut pieces = Pieces::default();
        pieces.add(head);
        Self { pieces, is_begun: false, tail }
    }

    /// Adds ports at the end of the list.
    pub(crate) fn add(&mut self, ports: &[impl Serialize]) {
        let mut json = serde_json::to_vec(ports).unwrap_or_default();
        json.pop();
        if json.len() > 1 {
            // The first port of all has no comma before it.
            json[0] = b',';
            self.pieces.add(if self.is_begun { json } else { json.split_off(1) });
            self.is_begun = true;
        }
    }

    pub(crate) fn answer(mut self) -> Response {
        self.pieces.add(self.tail);
        written("application/json", Body::new(self.pieces))
    }
}

/// A body of pieces, none of which is copied.
#[derive(Default)]
pub(crate) struct Pieces(VecDeque<Bytes>);

impl Pieces {
    pub(crate) fn add(&mut self, bytes: impl Into<Vec<u8>>) {
        // The bytes may wait for their reader for seconds, so they keep no spare room.
        self.0.push_back(Vec::into_boxed_slice(bytes.into()).into());
    }
}

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.iter().map(|bytes| bytes.len() as u64).sum())
    }
}
