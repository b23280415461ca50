//! Sockets and sessions: one thread for all interfaces, asleep unless a front end says something.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use weir_engine::{Engine, lock};
use weir_fabric::PortId;
use weir_vhost_user::{Connection, ConnectionError};

use crate::error::StopReason;
use crate::port::VhostPort;
use crate::session::Session;

/// First and longest time between two attempts to connect to a front end.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(2);
const EVENTS_MAX: usize = 64;

/// Where an interface meets its front end.
#[derive(Debug)]
pub enum Endpoint {
    /// weir listens; the front end connects, one at a time. Whoever bound the socket removes it.
    Listener(UnixListener),
    /// The front end listens; weir connects, and reconnects when the session ends.
    Connect {
        /// The socket.
        path: PathBuf,
    },
    /// A session on a connected socket, once.
    Connected(UnixStream),
}

/// The session thread has ended, so that no interface can be added.
#[derive(Debug, thiserror::Error)]
#[error("the session thread has ended")]
pub struct ManagerGone;

enum Command {
    Add(Arc<VhostPort>, Source),
    Remove(PortId, mpsc::Sender<()>),
    Stop,
}

/// The thread that serves all sessions. Dropping it ends them.
pub struct Manager {
    commands: Mutex<mpsc::Sender<Command>>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Manager {
    /// Starts the thread.
    pub fn start(engine: Arc<Engine>) -> io::Result<Self> {
        let (sender, receiver) = mpsc::channel();
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &*wake, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN)?;
        let wake_side = Arc::clone(&wake);
        let thread = std::thread::Builder::new().name("weir-sessions".into()).spawn(move || {
            Sessions {
                engine,
                epoll,
                wake: wake_side,
                commands: receiver,
                entries: HashMap::new(),
            }
            .run();
        })?;
        Ok(Self { commands: Mutex::new(sender), wake, thread: Some(thread) })
    }

    /// Puts an interface into service.
    pub fn add(&self, port: Arc<VhostPort>, endpoint: Endpoint) -> Result<(), ManagerGone> {
        self.send(Command::Add(port, Source::from(endpoint)))
    }

    /// Ends an interface's session and forgets it. Returns when its memory is unmapped.
    pub fn remove(&self, port: PortId) {
        let (done, wait) = mpsc::channel();
        if self.send(Command::Remove(port, done)).is_ok() {
            // An error means that the thread has ended, and all sessions with it.
            let _ = wait.recv();
        }
    }

    fn send(&self, command: Command) -> Result<(), ManagerGone> {
        lock(&self.commands).send(command).map_err(|_| ManagerGone)?;
        // A full counter means that the thread will wake anyway.
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
        Ok(())
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        let _ = self.send(Command::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Where sessions of one interface come from.
enum Source {
    Listener(UnixListener),
    Connect { path: PathBuf, retry_at: Option<Instant>, delay: Duration },
    Once(Option<UnixStream>),
}

impl From<Endpoint> for Source {
    fn from(endpoint: Endpoint) -> Self {
        match endpoint {
            Endpoint::Listener(listener) => Self::Listener(listener),
            Endpoint::Connect { path } => {
                Self::Connect { path, retry_at: Some(Instant::now()), delay: RETRY_MIN }
            }
            Endpoint::Connected(stream) => Self::Once(Some(stream)),
        }
    }
}

/// Connects without waiting: a front end that listens but does not accept must not keep this
/// thread from the others.
fn connect(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // EAGAIN, the listener's queue is full, is an error as any other: it is tried again.
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

struct Entry {
    port: Arc<VhostPort>,
    source: Source,
    session: Option<Session>,
}

const WAKE: u64 = u64::MAX;

/// What an event is about: an interface's listener, or its session.
fn token(port: PortId, session: bool) -> epoll::EventData {
    epoll::EventData::new_u64(u64::from(port.get()) << 1 | u64::from(session))
}

struct Sessions {
    engine: Arc<Engine>,
    epoll: OwnedFd,
    wake: Arc<OwnedFd>,
    commands: mpsc::Receiver<Command>,
    entries: HashMap<PortId, Entry>,
}

impl Sessions {
    fn run(mut self) {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        loop {
            events.clear();
            let timeout = self.next_retry();
            let spare = rustix::buffer::spare_capacity(&mut events);
            // EINTR is no event; anything else that epoll_wait can say is a programming error
            // that would show as a session thread that does nothing.
            let _ = epoll::wait(&self.epoll, spare, timeout.as_ref());
            for event in &events {
                match event.data.u64() {
                    WAKE => {
                        let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
                    }
                    data => self.event(data),
                }
            }
            while let Ok(command) = self.commands.try_recv() {
                match command {
                    Command::Add(port, source) => self.add(port, source),
                    Command::Remove(port, done) => {
                        self.entries.remove(&port);
                        let _ = done.send(());
                    }
                    Command::Stop => return,
                }
            }
            self.connect_due();
        }
    }

    fn add(&mut self, port: Arc<VhostPort>, mut source: Source) {
        let id = port.id();
        let mut start = None;
        match &mut source {
            Source::Listener(listener) => {
                let flags = epoll::EventFlags::IN;
                let watched = listener.set_nonblocking(true).and_then(|()| {
                    Ok(epoll::add(&self.epoll, &*listener, token(id, false), flags)?)
                });
                if let Err(error) = watched {
                    tracing::error!(vif = port.name(), %error, "cannot watch the socket");
                }
            }
            Source::Connect { .. } => {}
            Source::Once(stream) => start = stream.take(),
        }
        self.entries.insert(id, Entry { port, source, session: None });
        if let Some(stream) = start {
            self.open(id, stream);
        }
    }

    fn event(&mut self, data: u64) {
        let Some(id) = u16::try_from(data >> 1).ok().and_then(PortId::new) else {
            return;
        };
        if data & 1 == 0 {
            self.accept(id);
        } else {
            self.serve(id);
        }
    }

    fn accept(&mut self, id: PortId) {
        let Some(Entry { source: Source::Listener(listener), session, port }) =
            self.entries.get(&id)
        else {
            return;
        };
        match listener.accept() {
            Ok((stream, _)) if session.is_none() => self.open(id, stream),
            Ok(_) => tracing::warn!(vif = port.name(), "a second front end was turned away"),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => tracing::warn!(vif = port.name(), %error, "accept failed"),
        }
    }

    fn open(&mut self, id: PortId, stream: UnixStream) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        let connection = Connection::new(stream);
        let flags = epoll::EventFlags::IN;
        if let Err(error) = epoll::add(&self.epoll, connection.as_fd(), token(id, true), flags) {
            tracing::error!(vif = entry.port.name(), %error, "cannot watch the session");
            return;
        }
        tracing::info!(vif = entry.port.name(), "front end connected");
        let (port, engine) = (Arc::clone(&entry.port), Arc::clone(&self.engine));
        entry.session = Some(Session::new(connection, port, engine));
        // It may have spoken already.
        self.serve(id);
    }

    fn serve(&mut self, id: PortId) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        let Some(session) = entry.session.as_mut() else {
            return;
        };
        match session.serve() {
            Ok(()) => {
                let mut flags = epoll::EventFlags::IN;
                if session.connection.wants_write() {
                    flags = epoll::EventFlags::OUT;
                }
                let fd = session.connection.as_fd();
                // It is in the set: `open` added it.
                let _ = epoll::modify(&self.epoll, fd, token(id, true), flags);
            }
            Err(reason) => {
                // First of all: what is said of the session's end is true then.
                entry.session = None;
                if matches!(reason, StopReason::Connection(ConnectionError::Closed)) {
                    tracing::info!(vif = entry.port.name(), "front end disconnected");
                    entry.port.session_ended(None);
                } else {
                    tracing::warn!(vif = entry.port.name(), %reason, "session ended");
                    entry.port.session_ended(Some(&reason));
                }
                if let Source::Connect { retry_at, delay, .. } = &mut entry.source {
                    *delay = RETRY_MIN;
                    *retry_at = Some(Instant::now() + *delay);
                }
            }
        }
    }

    fn next_retry(&self) -> Option<Timespec> {
        let due = self.entries.values().filter_map(|entry| match entry.source {
            Source::Connect { retry_at, .. } => retry_at,
            _ => None,
        });
        let left = due.min()?.saturating_duration_since(Instant::now());
        Some(Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) })
    }

    fn connect_due(&mut self) {
        let now = Instant::now();
        let mut opened = Vec::new();
        for (id, entry) in &mut self.entries {
            let Source::Connect { path, retry_at, delay } = &mut entry.source else {
                continue;
            };
            if entry.session.is_some() || retry_at.is_none_or(|at| at > now) {
                continue;
            }
            match connect(path) {
                Ok(stream) => {
                    *retry_at = None;
                    opened.push((*id, stream));
                }
                Err(error) => {
                    tracing::debug!(vif = entry.port.name(), path = %path.display(), %error, "cannot connect yet");
                    *retry_at = Some(now + *delay);
                    *delay = (*delay * 2).min(RETRY_MAX);
                }
            }
        }
        for (id, stream) in opened {
            self.open(id, stream);
        }
    }
}
