//! The switch's side: a thread that listens and one more for each connection, so that a client that
//! says nothing keeps nobody else waiting. Both sleep when there is nothing to do.

use std::collections::HashMap;
use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use weir_limits as limits;

use super::line::{LineError, LineReader, write_line};
use super::protocol::{Request, Response};
use crate::config::SocketMode;
use crate::unix_socket::{BoundListener, ListenError};

const TIMEOUT: Duration = Duration::from_secs(limits::CONTROL_TIMEOUT_SECS);
/// Pause after `accept` failed, so that a full table of descriptors makes no busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What answers requests. Calls come from several threads at once.
pub trait ControlHandler: Send + Sync + 'static {
    /// Does what `request` asks, or says why not.
    fn handle(&self, request: Request) -> Response;
}

/// A control socket that is being served. Dropping it closes the connections, ends the threads and
/// removes the socket.
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
    open: HashMap<u64, UnixStream>,
    threads: Vec<JoinHandle<()>>,
}

impl ControlServer {
    /// Listens on `path`, for the owner only, and answers requests through `handler`.
    ///
    /// # Errors
    /// [`ListenError::InUse`] if another weir serves the socket, and the rest of [`ListenError`].
    pub fn start(path: &Path, handler: Arc<dyn ControlHandler>) -> Result<Self, ListenError> {
        let bound = Arc::new(BoundListener::bind(path, SocketMode::OWNER)?);
        let shared = Arc::new(Shared::default());
        let acceptor = {
            let (bound, shared) = (Arc::clone(&bound), Arc::clone(&shared));
            thread::Builder::new()
                .name("weir-control".into())
                .spawn(move || accept(&bound, &shared, &handler))
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
            for stream in connections.open.values() {
                // Fails only if the client has gone, which is what is wanted.
                let _ = stream.shutdown(Shutdown::Both);
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
    for stream in bound.listener().incoming() {
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
    let Some(id) = shared.lock().enter(&stream)? else {
        let refusal = format!(
            "weir has {} control connections and takes no more",
            limits::CONTROL_CONNECTIONS_MAX
        );
        return answer(&stream, &Response::error(refusal));
    };
    let spawned = thread::Builder::new().name("weir-control-client".into()).spawn({
        let (shared, handler) = (Arc::clone(shared), Arc::clone(handler));
        move || {
            // The connection ends with its error; the client has been told where it can be.
            let _ = serve(&stream, &*handler);
            shared.lock().open.remove(&id);
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
    /// Takes a connection in and gives it a number; `None` if there are as many as there may be.
    fn enter(&mut self, stream: &UnixStream) -> io::Result<Option<u64>> {
        self.threads.retain(|thread| !thread.is_finished());
        if self.open.len() >= limits::CONTROL_CONNECTIONS_MAX {
            return Ok(None);
        }
        let id = self.next_id;
        self.open.insert(id, stream.try_clone()?);
        self.next_id += 1;
        Ok(Some(id))
    }
}

/// Answers one request after the other until the client closes, stays silent or sends too much.
fn serve(stream: &UnixStream, handler: &dyn ControlHandler) -> io::Result<()> {
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
            Ok(request) => handler.handle(request),
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
