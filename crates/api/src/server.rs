//! The sockets: one thread reads and writes all of them, and sleeps if there is nothing to do.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use axum::body::Body;
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, Request, Response};
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::sleep;
use tower::ServiceExt;
use weir_engine::{beat, supervise};
use weir_foreign::{Foreign, Party, receive};
use weir_limits::{CONTROL_HEAD_BYTES_MAX, CONTROL_HEADERS_MAX};
use weir_switch::Hands;
use weir_switch::control::ControlHandler;
use weir_switch::unix_socket::{BoundListener, ListenError};

use crate::access::Caller;
use crate::api::{Api, Endless};

use crate::events::Hub;
use crate::places::{Of, Places, Ticket};
use crate::routes::router;
use crate::serving::Serving;
use crate::work::{Work, Workers};

/// The connection of a client on this machine. When it is dropped, its party's closer closes it.
struct ClientSocket {
    /// `Some` until the value is dropped.
    stream: Option<UnixStream>,
    party: Party,
}

impl ClientSocket {
    pub(crate) fn new(stream: UnixStream, party: Party) -> Self {
        Self { stream: Some(stream), party }
    }

    fn stream(self: Pin<&mut Self>) -> io::Result<(&mut UnixStream, &Party)> {
        let this = self.get_mut();
        let stream = this.stream.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        Ok((stream, &this.party))
    }
}

impl Drop for ClientSocket {
    fn drop(&mut self) {
        // A stream that cannot be taken off the reactor is closed with it.
        if let Some(Ok(stream)) = self.stream.take().map(UnixStream::into_std) {
            drop(Foreign::new(stream, &self.party));
        }
    }
}

impl AsyncRead for ClientSocket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        room: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let (stream, party) = self.stream()?;
        loop {
            ready!(stream.poll_read_ready(cx))?;
            let free = room.initialize_unfilled();
            match stream.try_io(Interest::READABLE, || receive(&*stream, free, party)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return Poll::Ready(read.map(|len| room.advance(len))),
            }
        }
    }
}

impl AsyncWrite for ClientSocket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(self.stream()?.0).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.stream()?.0).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.stream()?.0).poll_shutdown(cx)
    }
}

const NAME: &str = "weir-control";
/// Pause after `accept` failed, so that a full table of descriptors causes no busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A served control socket. Dropping it closes the connections, ends the threads and removes the socket.
#[derive(Debug)]
pub struct ApiServer {
    bound: BoundListener,
    stop: watch::Sender<bool>,
    reactor: Option<JoinHandle<()>>,
    _workers: Workers,
}

impl ApiServer {
    /// Listens on `path`, for the owner only, and answers requests through `handler`.
    ///
    /// # Errors
    /// [`ListenError::InUse`] if another weir serves the socket, and the rest of [`ListenError`].
    pub fn start(path: &Path, handler: Arc<dyn ControlHandler>) -> Result<Self, ListenError> {
        Self::start_with(path, handler, &Hands::Own, Serving::default())
    }

    /// Listens on a socket that `hands` make, with the settings `serving`.
    ///
    /// # Errors
    /// The errors of [`ApiServer::start`].
    pub fn start_with(
        path: &Path,
        handler: Arc<dyn ControlHandler>,
        hands: &Hands,
        serving: Serving,
    ) -> Result<Self, ListenError> {
        let failed = |step| move |source| ListenError::of(step, path, source);
        let bound = hands.bind_control(path, serving.group())?;
        let unix = bound.listener().try_clone().map_err(failed("duplicate"))?;
        let threads = failed("start a thread for");
        // The workers start before the thread below gives up the rights that the workers need.
        let workers = Workers::start(&handler).map_err(threads)?;
        let (stop, stopped) = watch::channel(false);
        let (places, parties) = (Places::default(), Mutex::default());
        let reactor = Reactor { unix, parties, serving, places, stopped };
        let reactor = workers.work().map(|work| {
            thread::Builder::new().name(NAME.into()).spawn(move || {
                weir_sandbox::narrow(weir_sandbox::Thread::Control);
                supervise(NAME, || reactor.run(&work));
            })
        });
        let reactor = reactor.transpose().map_err(failed("start a thread for"))?;
        Ok(Self { bound, stop, reactor, _workers: workers })
    }

    /// The socket's file.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.bound.path()
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        let _ = self.reactor.take().map(JoinHandle::join);
    }
}

/// The state of the thread.
struct Reactor {
    unix: Foreign<UnixListener>,
    /// The parties at whose expense the descriptors of each user are closed.
    parties: Mutex<BTreeMap<Caller, Party>>,
    serving: Serving,
    places: Places,
    stopped: watch::Receiver<bool>,
}

impl Reactor {
    fn run(&self, work: &Work) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .on_thread_park(beat::asleep)
            .on_thread_unpark(beat::awake)
            .build();
        let served = runtime.and_then(|runtime| runtime.block_on(self.serve(work)));
        if let Err(error) = served {
            // The thread starts again.
            panic!("cannot serve the control socket: {error}");
        }
    }

    async fn serve(&self, work: &Work) -> io::Result<()> {
        let unix = self.unix.try_clone()?;
        unix.set_nonblocking(true)?;
        let unix = tokio::net::UnixListener::from_std(unix.release())?;
        let tcp = match self.serving.tcp() {
            None => None,
            Some((listener, _)) => {
                let listener = listener.try_clone()?;
                listener.set_nonblocking(true)?;
                Some(tokio::net::TcpListener::from_std(listener)?)
            }
        };
        let service = router(Api {
            access: self.serving.access().clone(),
            token: self.serving.tcp().map(|(_, token)| token.clone()),
            work: work.clone(),
            places: self.places.clone(),
            hub: Hub::new(work.clone()),
        });
        // All routes exist now: what has made them is not needed again.
        weir_switch::give_back_start();
        let mut stopped = self.stopped.clone();
        loop {
            let accept_tcp = async {
                match &tcp {
                    Some(tcp) => tcp.accept().await,
                    None => std::future::pending().await,
                }
            };
            let admitted = tokio::select! {
                accepted = unix.accept() => accepted.and_then(|(stream, _)| {
                    let (of, stream) = self.meet(stream)?;
                    self.admit(stream, of, &service);
                    Ok(())
                }),
                accepted = accept_tcp => accepted.map(|(stream, _)| {
                    let of = Of { caller: Caller::Network, process: None };
                    self.admit(stream, of, &service);
                }),
                _ = stopped.wait_for(|stopped| *stopped) => return Ok(()),
            };
            if admitted.is_err() {
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }

    /// Identifies the client of a new connection.
    fn meet(&self, stream: tokio::net::UnixStream) -> io::Result<(Of, ClientSocket)> {
        let peer = stream.peer_cred();
        // The kernel does not always give the user.
        let caller = peer.as_ref().map_or(Caller::Network, |it| Caller::User(it.uid()));
        let mut parties = self.parties.lock().unwrap_or_else(PoisonError::into_inner);
        parties.retain(|_, party| !party.is_forgotten());
        let party = parties.entry(caller).or_insert_with(|| match caller {
            Caller::User(user) => Party::new(format!("user {user} of the control socket")),
            Caller::Network => Party::new("the control socket"),
        });
        let stream = ClientSocket::new(stream, party.clone());
        Ok((Of { caller, process: peer?.pid() }, stream))
    }

    /// Serves a new connection. A connection without a place, which cannot happen, ends at once.
    fn admit<S>(&self, stream: S, of: Of, service: &axum::Router)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        if let Some(ticket) = self.places.enter(of) {
            tokio::spawn(connection(stream, of.caller, Arc::new(ticket), service.clone()));
        }
    }
}

/// Serves one connection until its client closes it, is too late, or loses its place.
async fn connection<S>(stream: S, caller: Caller, ticket: Arc<Ticket>, service: axum::Router)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let ticket = &ticket;
    let answer = |mut request: Request<Incoming>| {
        let service = service.clone();
        async move {
            ticket.works();
            request.extensions_mut().insert(caller);
            request.extensions_mut().insert(Arc::clone(ticket));
            let mut response: Response<Body> = match service.oneshot(request.map(Body::new)).await {
                Ok(response) => response,
                Err(never) => match never {},
            };
            match response.extensions().get::<Endless>() {
                Some(Endless) => ticket.waits_without_end(),
                None => ticket.waits(response.body().size_hint().exact().unwrap_or(0)),
            }
            if ticket.is_lost() {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(response)
        }
    };
    let connection = http1::Builder::new()
        .header_read_timeout(None)
        .max_buf_size(CONTROL_HEAD_BYTES_MAX)
        .max_headers(CONTROL_HEADERS_MAX)
        .serve_connection(TokioIo::new(stream), service_fn(answer));
    tokio::select! {
        // The connection ends with its error, which was sent to the client if possible.
        _ = pin!(connection) => {}
        () = ticket.is_over() => {}
    }
}
