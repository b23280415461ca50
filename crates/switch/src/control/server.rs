//! The switch's side: a thread that listens and one for each connection, so a silent client delays nobody. Both
//! sleep when idle.

use std::collections::BTreeMap;
use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use weir_config::SocketMode;
use weir_engine::{beat, supervise};
use weir_limits as limits;

use super::line::{LineError, LineReader, write_line};
use super::protocol::{Request, Response};
use crate::helper::Hands;
use crate::stats::Limit;
use crate::unix_socket::{BoundListener, ListenError};

const TIMEOUT: Duration = Duration::from_secs(limits::CONTROL_TIMEOUT_SECS);
/// Pause after `accept` failed, so that a full table of descriptors makes no busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What answers requests. Calls come from several threads at once.
pub trait ControlHandler: Send + Sync + 'static {
    /// Does what `request` asks, or says why not.
    fn handle(&self, request: Request) -> Response;
}

/// A served control socket. Dropping it closes the connections, ends the threads and removes the socket.
#[derive(Debug)]
pub struct ControlServer {
    bound: Arc<BoundListener>,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    stopping: AtomicBool,
    connections: Mutex<Connections>,
}

/// The open connections; each thread takes its own entry out when it is done.
#[derive(Debug, Default)]
struct Connections {
    next_id: u64,
    open: BTreeMap<u64, Connection>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Connection {
    stream: UnixStream,
    /// Who is at its other end.
    user: u32,
    /// A request of it is being carried out; otherwise it waits for its client.
    busy: Arc<AtomicBool>,
    /// Since when it waits for its client (ns of the monotonic clock).
    waits_since_ns: Arc<AtomicU64>,
}

impl ControlServer {
    /// Listens on `path`, for the owner only, and answers requests through `handler`.
    ///
    /// # Errors
    /// [`ListenError::InUse`] if another weir serves the socket, and the rest of [`ListenError`].
    pub fn start(path: &Path, handler: Arc<dyn ControlHandler>) -> Result<Self, ListenError> {
        Self::start_with(path, handler, &Hands::Own)
    }

    /// The same on a socket that `hands` make.
    ///
    /// # Errors
    /// As of [`ControlServer::start`].
    pub fn start_with(
        path: &Path,
        handler: Arc<dyn ControlHandler>,
        hands: &Hands,
    ) -> Result<Self, ListenError> {
        let bound = Arc::new(hands.bind(path, SocketMode::OWNER)?);
        let shared = Arc::new(Shared::default());
        let acceptor = {
            let (bound, shared) = (Arc::clone(&bound), Arc::clone(&shared));
            thread::Builder::new().name("weir-control".into()).spawn(move || {
                supervise("weir-control", || accept(&bound, &shared, &handler));
            })
        };
        let acceptor = acceptor.map_err(|source| ListenError::Io {
            step: "start a thread for",
            path: path.into(),
            source,
        })?;
        Ok(Self { bound, shared, acceptor: Some(acceptor) })
    }

    /// The socket's file.
    pub fn path(&self) -> &Path {
        self.bound.path()
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        // Ends a sleeping `accept` with an error (Linux, `unix_accept`: receive shutdown).
        let woken = rustix::net::shutdown(self.bound.listener(), rustix::net::Shutdown::Read);
        if let (Ok(()), Some(acceptor)) = (woken, self.acceptor.take()) {
            let _ = acceptor.join();
        }
        let threads = {
            let mut connections = self.shared.lock();
            for connection in connections.open.values() {
                // Fails only if the client has gone, which is what is wanted.
                let _ = connection.stream.shutdown(Shutdown::Both);
            }
            std::mem::take(&mut connections.threads)
        };
        for thread in threads {
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// The table stays sound when a thread panics within it: it is changed by single operations.
    fn lock(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn accept(bound: &BoundListener, shared: &Arc<Shared>, handler: &Arc<dyn ControlHandler>) {
    loop {
        let stream = beat::wait(|| bound.listener().accept()).map(|(stream, _)| stream);
        if shared.stopping.load(Ordering::SeqCst) {
            return;
        }
        let admitted = stream.and_then(|stream| admit(stream, shared, handler));
        if admitted.is_err() {
            thread::sleep(ACCEPT_PAUSE);
        }
    }
}

/// Gives the connection a thread, or turns it away if there are too many.
fn admit(
    stream: UnixStream,
    shared: &Arc<Shared>,
    handler: &Arc<dyn ControlHandler>,
) -> io::Result<()> {
    let Some((id, turn)) = shared.lock().enter(&stream)? else {
        let refusal = format!(
            "weir has {} control connections and takes no more",
            limits::CONTROL_CONNECTIONS_MAX
        );
        return answer(&stream, &Response::error(refusal));
    };
    let spawned = thread::Builder::new().name("weir-control-client".into()).spawn({
        let (shared, handler) = (Arc::clone(shared), Arc::clone(handler));
        move || {
            // Whom it keeps waiting is its client.
            beat::watch_this_thread("weir-control-client", false);
            beat::asleep();
            // The connection ends with its error; the client has been told where it can be.
            let serve = || serve(&stream, &turn, &*handler, || shared.lock().open.len());
            let served = catch_unwind(AssertUnwindSafe(serve));
            shared.lock().open.remove(&id);
            if served.is_err() {
                tracing::error!("a request panicked; its connection ends (please report it)");
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
    });
    let mut connections = shared.lock();
    match spawned {
        Ok(thread) => connections.threads.push(thread),
        Err(error) => {
            connections.open.remove(&id);
            return Err(error);
        }
    }
    Ok(())
}

impl Connections {
    /// Admits a connection and numbers it; `None` at the maximum, if each has a request in progress.
    fn enter(&mut self, stream: &UnixStream) -> io::Result<Option<(u64, Turn)>> {
        self.threads.retain(|thread| !thread.is_finished());
        if self.open.len() >= limits::CONTROL_CONNECTIONS_MAX && !self.close_longest_waiting() {
            return Ok(None);
        }
        let id = self.next_id;
        let turn = Turn::default();
        turn.waits();
        let connection = Connection {
            stream: stream.try_clone()?,
            user: rustix::net::sockopt::socket_peercred(stream)?.uid.as_raw(),
            busy: Arc::clone(&turn.busy),
            waits_since_ns: Arc::clone(&turn.waits_since_ns),
        };
        self.open.insert(id, connection);
        self.next_id += 1;
        Ok(Some((id, turn)))
    }

    /// Of the connections that wait for their clients, closes the oldest of the user with most. Returns whether
    /// there was one.
    fn close_longest_waiting(&mut self) -> bool {
        let of_user = |user| self.open.values().filter(|it| it.user == user).count();
        let waiting = self.open.iter().filter(|(_, it)| !it.busy.load(Ordering::SeqCst));
        let first = waiting.max_by_key(|(id, it)| {
            let since_ns = it.waits_since_ns.load(Ordering::SeqCst);
            (of_user(it.user), std::cmp::Reverse((since_ns, **id)))
        });
        let Some(id) = first.map(|(id, _)| *id) else {
            return false;
        };
        if let Some(closed) = self.open.remove(&id) {
            // Its thread, which reads or writes, ends with that.
            let _ = closed.stream.shutdown(Shutdown::Both);
        }
        true
    }
}

/// Whose turn it is on a connection: weir's, or the client's.
#[derive(Debug, Default)]
struct Turn {
    busy: Arc<AtomicBool>,
    waits_since_ns: Arc<AtomicU64>,
}

impl Turn {
    /// The client's.
    fn waits(&self) {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let now_ns = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
        self.waits_since_ns.store(now_ns, Ordering::SeqCst);
        self.busy.store(false, Ordering::SeqCst);
    }

    /// weir's: it is not closed before it has done what it was asked for.
    fn works(&self) {
        self.busy.store(true, Ordering::SeqCst);
    }
}

/// Answers requests until the client closes, stays silent or sends too much. `open` counts connections.
fn serve(
    stream: &UnixStream,
    turn: &Turn,
    handler: &dyn ControlHandler,
    open: impl Fn() -> usize,
) -> io::Result<()> {
    let mut lines = LineReader::new(stream, limits::CONTROL_REQUEST_BYTES_MAX);
    loop {
        let line = match lines.next_line(TIMEOUT) {
            Ok(Some(line)) => line,
            Ok(None) | Err(LineError::Truncated | LineError::Silent) => return Ok(()),
            Err(LineError::Io(error)) => return Err(error),
            Err(error @ (LineError::TooLong { .. } | LineError::TimedOut)) => {
                return answer(stream, &Response::error(format!("request refused: {error}")));
            }
        };
        let response = match serde_json::from_slice(&line) {
            Ok(request) => {
                turn.works();
                beat::awake();
                let mut response = handler.handle(request);
                if let Response::Stats { stats } = &mut response {
                    let limit = Limit::new(open(), limits::CONTROL_CONNECTIONS_MAX);
                    stats.limits.insert("control_connections".to_owned(), limit);
                }
                turn.waits();
                beat::asleep();
                response
            }
            Err(error) => Response::Error {
                message: format!("not a request: {error}"),
                help: Some(
                    "send one JSON object on a line, such as {\"request\":\"stats\"}".into(),
                ),
            },
        };
        answer(stream, &response)?;
    }
}

fn answer(stream: &UnixStream, response: &Response) -> io::Result<()> {
    write_line(stream, serde_json::to_vec(response)?, TIMEOUT)
}
