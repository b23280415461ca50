//! Frames as they pass, and the predicted way of a frame.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::thread;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::StatusCode;
use hyper::body::{self as http_body, Frame};
use miette::Diagnostic;
use tokio::sync::mpsc;
use weir_config::PortName;
use weir_switch::capture::{CaptureRefused, CaptureRequest};
use weir_switch::control::Request as Ask;
use weir_switch::trace::{FollowRequest, FollowedFrame, Trace};

use crate::api::{Answered, Endless, Named, Reader, Writer, body, parsed, written};
use crate::problem::{Bad, Conflict, Missing, NotAllowed, Problem};

/// Pieces of a capture that wait for a slow client: further frames wait in rings.
const PIECES: usize = 4;

/// Predicts the way of a frame that the port sends. Nothing is sent.
#[utoipa::path(
    post, path = "/v1/ports/{port}/trace", params(("port" = PortName, Path)),
    request_body(
        content = Vec<u8>, content_type = "application/octet-stream",
        description = "The frame, from its destination address on."
    ),
    responses((status = 200, body = Trace), Missing, Conflict)
)]
pub(super) async fn trace(
    Reader(api, asker): Reader,
    Named(name): Named,
    request: Request,
) -> Answered {
    let frame = body(&asker, request).await?.to_vec();
    Ok(api.of_switch(&asker, Ask::Trace { name, frame }).await)
}

/// Follows the next frames that the port sends, with the time of each stage: each is a line of JSON. Traffic is not
/// held up. Ends after the requested number of frames, or when the client closes the connection.
#[utoipa::path(
    post, path = "/v1/ports/{port}/trace/live", params(("port" = PortName, Path)),
    request_body = FollowRequest,
    responses(
        (status = 200, content_type = "application/x-ndjson", body = FollowedFrame),
        Bad, NotAllowed, Missing, Conflict
    )
)]
pub(super) async fn trace_live(writer: Writer, Named(name): Named, request: Request) -> Answered {
    const EXAMPLE: &str = "{\"filter\":\"tcp port 80\",\"frames\":10}";
    let (api, asker) = writer.compiles();
    let bytes = body(&asker, request).await?;
    let begun = api.ask(&asker, move |handler| {
        let trace = handler.follow(&name, &parsed(&bytes, EXAMPLE)?).map_err(refused)?;
        let write = |pieces, goes_on: &dyn Fn() -> bool| trace.write_to(pieces, goes_on).map(drop);
        stream("weir-follow", write).map_err(|_| Problem::unexpected())
    });
    let mut response = written("application/x-ndjson", begun.await??);
    response.extensions_mut().insert(Endless);
    Ok(response)
}

/// Copies frames as they pass, as pcapng, until the client closes the connection. Traffic is not held up. Frames for
/// which the client is too slow are counted in the stream.
#[utoipa::path(
    post, path = "/v1/captures", request_body = CaptureRequest,
    responses(
        (status = 200, content_type = "application/x-pcapng", body = Vec<u8>),
        Bad, NotAllowed, Missing, Conflict
    )
)]
pub(super) async fn capture(writer: Writer, request: Request) -> Answered {
    const EXAMPLE: &str = "{\"ports\":[\"web0\"]}";
    let (api, asker) = writer.compiles();
    let bytes = body(&asker, request).await?;
    let begun = api.ask(&asker, move |handler| {
        let recording = handler.capture(parsed(&bytes, EXAMPLE)?).map_err(refused)?;
        let write =
            |pieces, goes_on: &dyn Fn() -> bool| recording.write_to(pieces, goes_on).map(drop);
        stream("weir-capture", write).map_err(|_| Problem::unexpected())
    });
    let mut response = written("application/x-pcapng", begun.await??);
    response.extensions_mut().insert(Endless);
    Ok(response)
}

fn refused(refused: CaptureRefused) -> Problem {
    let status = match refused {
        CaptureRefused::NoSuchPort(_) => StatusCode::NOT_FOUND,
        CaptureRefused::Frames(_) => StatusCode::BAD_REQUEST,
        CaptureRefused::NoSwitch | CaptureRefused::Engine(_) => StatusCode::CONFLICT,
    };
    let help = refused.help().map(|help| help.to_string());
    Problem { help, ..Problem::new(status, refused.to_string()) }
}

/// Starts a thread that writes the body of an answer.
fn stream(
    name: &str,
    write: impl FnOnce(Pieces, &dyn Fn() -> bool) -> io::Result<()> + Send + 'static,
) -> io::Result<Body> {
    let (sender, pieces) = mpsc::channel(PIECES);
    thread::Builder::new().name(name.into()).spawn(move || {
        let goes_on = sender.clone();
        // The thread ends when the client has disconnected.
        let _ = write(Pieces(sender), &|| !goes_on.is_closed());
    })?;
    Ok(Body::new(Stream(pieces)))
}

/// Writes into the stream; waits while the client does not read.
struct Pieces(mpsc::Sender<Bytes>);

impl io::Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = Bytes::copy_from_slice(bytes);
        self.0.blocking_send(piece).map_err(|_| io::ErrorKind::BrokenPipe)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The stream as a body.
struct Stream(mpsc::Receiver<Bytes>);

impl http_body::Body for Stream {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.0.poll_recv(context).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}
