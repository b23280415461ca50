//! Sockets: one thread that listens, accepts and connects for all interfaces, and a thread for each front end
//! ([`crate::front_end`]), which delays only its own (docs/design/front-ends.md#0025). A front end that is silent has
//! none: the one thread watches its connection.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::net::RecvFlags;
use weir_engine::guest::GuestPort;
use weir_engine::{Engine, beat, lock, supervise};
use weir_fabric::PortId;
use weir_foreign::{Foreign, Party};
use weir_limits::{
    ACCEPT_PAUSE_NS, SESSION_END_NS, SESSION_GRACE_NS, SESSION_LEAVE_NS, SESSIONS_AT_ONCE_MAX,
    SESSIONS_PER_SEC_MAX,
};

use weir_sandbox::descriptors;

use crate::front_end::{self, Handle};
use crate::keep::Keep;
use crate::port::Said;
use crate::port::VhostPort;

/// First and longest time between two attempts to connect to a front end.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(2);
/// The time between two signals to a session that must end but may still be closing slow
/// descriptors.
const HURRY: Duration = Duration::from_millis(20);
const EVENTS_MAX: usize = 64;
/// Front ends that are turned away at a time: more than can wait in a socket's queue.
const AT_ONCE: usize = 64;
const ACCEPT_PAUSE: Duration = Duration::from_nanos(ACCEPT_PAUSE_NS);
const GRACE: Duration = Duration::from_nanos(SESSION_GRACE_NS);
const END_MAX: Duration = Duration::from_nanos(SESSION_END_NS);
const LEAVE_MAX: Duration = Duration::from_nanos(SESSION_LEAVE_NS);
/// The time between two front ends of a socket that has used up its [`SESSIONS_AT_ONCE_MAX`].
const SESSION_EVERY: Duration = Duration::from_millis(1000 / SESSIONS_PER_SEC_MAX);

/// Connects to a socket without waiting. The party pays for closing the connection.
pub type Dial = Box<dyn Fn(&Path, &Party) -> io::Result<Foreign<UnixStream>> + Send>;

/// The socket by which an interface meets its front end.
pub enum Endpoint {
    /// weir listens; the front end connects, one at a time. The party that bound the socket removes it.
    Listener(Arc<Foreign<UnixListener>>),
    /// The front end listens; weir connects, and reconnects when the session ends.
    Connect {
        /// The socket.
        path: PathBuf,
        /// Makes the connection: [`weir_foreign::reach::connect`], or another process if this one is not allowed to.
        dial: Dial,
    },
    /// A session on a connected socket. No other one follows.
    Connected(UnixStream),
}

/// Error: the session thread has ended, so no interface can be added.
#[derive(Debug, thiserror::Error)]
#[error("the session thread has ended")]
pub struct ManagerGone;

/// Error: a front end's thread is stuck in one of its descriptors, or in its memory. The thread keeps the port's
/// number.
#[derive(Debug, thiserror::Error)]
#[error("the thread of its front end has not ended within {} s", END_MAX.as_secs())]
pub struct StillBusy;

pub(crate) enum Command {
    Add(Arc<VhostPort>, Source, Party),
    Remove(PortId, mpsc::Sender<()>),
    /// The thread of a front end is about to end, with the session.
    Ended(PortId, u64),
    /// The thread of a front end is about to end, and the session is silent.
    Silent(PortId, u64),
    /// The thread is to show that it goes on.
    Answer(mpsc::Sender<()>),
    /// Nobody is accepted any more, and all sessions end. The answer is the number of sessions that do not.
    Stop(mpsc::Sender<usize>),
    /// As `Stop`, but sessions are left to another weir.
    Leave(mpsc::Sender<usize>),
    #[cfg(test)]
    Panic,
    #[cfg(test)]
    IsSilent(PortId, mpsc::Sender<bool>),
}

/// Sends to the thread that accepts, and wakes it.
#[derive(Clone)]
pub(crate) struct Commands {
    sender: mpsc::Sender<Command>,
    wake: Arc<OwnedFd>,
}

impl Commands {
    pub(crate) fn send(&self, command: Command) -> Result<(), ManagerGone> {
        self.sender.send(command).map_err(|_| ManagerGone)?;
        self.wake();
        Ok(())
    }

    fn wake(&self) {
        // A full counter means that the thread will wake anyway.
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }
}

/// The thread that accepts. Dropping it ends all sessions.
pub struct Manager {
    commands: Mutex<Commands>,
    thread: Option<JoinHandle<()>>,
}

impl Manager {
    /// Starts the thread.
    pub fn start(engine: Arc<Engine>) -> io::Result<Self> {
        let (sender, receiver) = mpsc::channel();
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &*wake, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN)?;
        let commands = Commands { sender, wake };
        let mut sessions = Sessions {
            engine,
            epoll,
            commands: commands.clone(),
            received: receiver,
            entries: HashMap::new(),
            leaving: HashMap::new(),
            sessions: 0,
        };
        let name = "weir-sessions";
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
            // A kernel takes half a millisecond to install these filters: threads of sessions inherit them.
            weir_sandbox::narrow(weir_sandbox::Thread::Session);
            let run = || {
                // A panic may have left commands unhandled. The wake-up makes the next run handle them.
                sessions.commands.wake();
                sessions.run();
            };
            if !supervise(name, run) {
                // From now on no thread accepts front ends, and no other thread would end the sessions.
                sessions.stop(Handle::ask, END_MAX);
            }
        })?;
        Ok(Self { commands: Mutex::new(commands), thread: Some(thread) })
    }

    /// Makes the thread panic, as a bug in it would.
    #[cfg(test)]
    pub(crate) fn panic(&self) {
        lock(&self.commands).send(Command::Panic).unwrap();
    }

    /// True if the interface has a session without a thread.
    #[cfg(test)]
    pub(crate) fn is_silent(&self, port: PortId) -> bool {
        let (to, answer) = mpsc::channel();
        lock(&self.commands).send(Command::IsSilent(port, to)).unwrap();
        answer.recv().unwrap()
    }

    /// Puts an interface into service.
    pub fn add(&self, port: Arc<VhostPort>, endpoint: Endpoint) -> Result<(), ManagerGone> {
        self.add_all([(port, endpoint)])
    }

    /// Puts interfaces into service. The thread wakes once for all of them, since it looks at each interface that it
    /// has whenever it wakes.
    pub fn add_all(
        &self,
        all: impl IntoIterator<Item = (Arc<VhostPort>, Endpoint)>,
    ) -> Result<(), ManagerGone> {
        let commands = lock(&self.commands);
        for (port, endpoint) in all {
            let party = port.party.clone();
            let source = Source::of(endpoint, &party);
            commands.sender.send(Command::Add(port, source, party)).map_err(|_| ManagerGone)?;
        }
        commands.wake();
        Ok(())
    }

    /// Ends an interface's session and removes the interface. Returns when no thread uses the port any more.
    ///
    /// # Errors
    /// [`StillBusy`]: a thread can still use the port.
    pub fn remove(&self, port: PortId) -> Result<(), StillBusy> {
        let (done, wait) = mpsc::channel();
        if lock(&self.commands).send(Command::Remove(port, done)).is_err() {
            // The thread has ended, and all sessions with it.
            return Ok(());
        }
        match wait.recv_timeout(END_MAX) {
            Err(mpsc::RecvTimeoutError::Timeout) => Err(StillBusy),
            _ => Ok(()),
        }
    }

    /// True if the thread goes on within `patience`, or has ended.
    pub fn goes_on_within(&self, patience: Duration) -> bool {
        let (to, answer) = mpsc::channel();
        let asked = lock(&self.commands).send(Command::Answer(to));
        asked.is_err() || answer.recv_timeout(patience) != Err(mpsc::RecvTimeoutError::Timeout)
    }

    /// Stops accepting, and ends all sessions so that another weir can resume those that are kept: as if this
    /// process had been killed between two requests of each. Returns the number of sessions that did not end in time.
    pub fn leave(&self) -> usize {
        self.stop(Command::Leave)
    }

    /// Stops accepting, and ends all sessions. Front ends that come meanwhile do not delay this. Returns the number of
    /// sessions that did not end in time.
    pub fn end(&self) -> usize {
        self.stop(Command::Stop)
    }

    fn stop(&self, how: fn(mpsc::Sender<usize>) -> Command) -> usize {
        let (done, wait) = mpsc::channel();
        match lock(&self.commands).send(how(done)) {
            Ok(()) => wait.recv().unwrap_or(0),
            // The thread has ended, and all sessions with it.
            Err(ManagerGone) => 0,
        }
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.end();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// The source of an interface's sessions.
pub(crate) enum Source {
    Listener(Arc<Foreign<UnixListener>>),
    Connect { path: PathBuf, dial: Dial, retry_at: Option<Instant>, delay: Duration },
    Once(Option<Foreign<UnixStream>>),
}

impl Source {
    fn of(endpoint: Endpoint, party: &Party) -> Self {
        match endpoint {
            Endpoint::Listener(listener) => Self::Listener(listener),
            Endpoint::Connect { path, dial } => {
                Self::Connect { path, dial, retry_at: Some(Instant::now()), delay: RETRY_MIN }
            }
            Endpoint::Connected(stream) => Self::Once(Some(Foreign::new(stream, party))),
        }
    }
}

/// The number of front ends that may still connect to a socket in a row.
struct Turns {
    left: u32,
    at: Instant,
}

impl Turns {
    fn new(now: Instant) -> Self {
        Self { left: SESSIONS_AT_ONCE_MAX, at: now }
    }

    /// Counts one front end. `false`: the next one has to wait.
    fn take(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.at).as_millis() / SESSION_EVERY.as_millis();
        if passed > 0 {
            let passed = u32::try_from(passed).unwrap_or(u32::MAX);
            self.left = self.left.saturating_add(passed).min(SESSIONS_AT_ONCE_MAX);
            self.at = now;
        }
        self.left = self.left.saturating_sub(1);
        self.left > 0
    }
}

struct Entry {
    port: Arc<VhostPort>,
    /// The party that pays for closing everything that comes by its socket.
    party: Party,
    source: Source,
    session: Option<(u64, Arc<Handle>)>,
    /// The time of the next attempt to give the silent session a thread, since there was none. The
    /// session must go on.
    go_on_at: Option<Instant>,
    /// The time at which front ends that came during a session are turned away. The session can be at its end, so they
    /// wait in the socket's queue until then: in the queue they outlive weir.
    turn_away_at: Option<Instant>,
    turns: Turns,
    /// The time until which the socket is not watched.
    pause_until: Option<Instant>,
}

const WAKE: u64 = u64::MAX;
/// The bit by which an event of a silent session differs from one of its interface's listener.
const SILENT: u64 = 1 << 16;

/// The value that stands for an event of this interface's listener.
fn token(port: PortId) -> epoll::EventData {
    epoll::EventData::new_u64(port.get().into())
}

/// The value that stands for an event of this interface's silent session.
fn silent_token(port: PortId) -> epoll::EventData {
    epoll::EventData::new_u64(SILENT | u64::from(port.get()))
}

struct Sessions {
    engine: Arc<Engine>,
    epoll: OwnedFd,
    commands: Commands,
    received: mpsc::Receiver<Command>,
    entries: HashMap<PortId, Entry>,
    /// Sessions of interfaces that were removed, and the callers that wait for their end.
    leaving: HashMap<u64, (Arc<Handle>, mpsc::Sender<()>)>,
    /// The number of sessions begun so far.
    sessions: u64,
}

impl Sessions {
    fn run(&mut self) {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        loop {
            events.clear();
            let timeout = self.next_due();
            let spare = rustix::buffer::spare_capacity(&mut events);
            // EINTR is no event. Any other error of epoll_wait is a programming error, which would show as a session
            // thread that does nothing.
            let _ = beat::wait(|| epoll::wait(&self.epoll, spare, timeout.as_ref()));
            if events.iter().any(|event| event.data.u64() == WAKE) {
                let _ = rustix::io::read(&*self.commands.wake, &mut [0; 8]);
            }
            // Commands come first: a session that is over makes room for the next one.
            while let Ok(command) = self.received.try_recv() {
                match command {
                    Command::Add(port, source, party) => self.add(port, source, party),
                    Command::Remove(port, done) => self.remove(port, done),
                    Command::Ended(port, session) => self.ended(port, session),
                    Command::Silent(port, session) => self.silent(port, session),
                    Command::Answer(to) => {
                        let _ = to.send(());
                    }
                    Command::Stop(done) => {
                        let left = self.stop(Handle::ask, END_MAX);
                        let _ = done.send(left);
                        return;
                    }
                    Command::Leave(done) => {
                        let left = self.stop(Handle::ask_to_leave, LEAVE_MAX);
                        let _ = done.send(left);
                        return;
                    }
                    #[cfg(test)]
                    Command::Panic => panic!("asked for by a test"),
                    #[cfg(test)]
                    Command::IsSilent(port, to) => {
                        let session = self.entries.get(&port).and_then(|it| it.session.as_ref());
                        to.send(session.is_some_and(|(_, it)| it.is_silent())).unwrap();
                    }
                }
            }
            for event in &events {
                let (data, is_silent) =
                    (event.data.u64() & !SILENT, event.data.u64() & SILENT != 0);
                if let Some(id) = u16::try_from(data).ok().and_then(PortId::new) {
                    let party = self.entries.get(&id).map(|it| it.port.name().to_string());
                    let serve = || if is_silent { self.go_on(id) } else { self.accept(id) };
                    beat::serving(|| party.unwrap_or_default(), serve);
                }
            }
            self.do_due();
        }
    }

    fn add(&mut self, port: Arc<VhostPort>, mut source: Source, party: Party) {
        let id = port.id();
        let mut start = None;
        match &mut source {
            Source::Listener(listener) => {
                let flags = epoll::EventFlags::IN;
                let watched = listener
                    .set_nonblocking(true)
                    .and_then(|()| Ok(epoll::add(&self.epoll, &***listener, token(id), flags)?));
                if let Err(error) = watched {
                    tracing::error!(vif = port.name(), %error, "cannot watch the socket");
                }
            }
            Source::Connect { .. } => {}
            Source::Once(stream) => start = stream.take(),
        }
        let kept = port.keep().and_then(Keep::connection);
        let start = kept.map(|stream| Foreign::new(stream, &party)).or(start);
        let turns = Turns::new(Instant::now());
        let (turn_away_at, pause_until) = (None, None);
        let (session, go_on_at) = (None, None);
        let entry =
            Entry { port, party, source, session, go_on_at, turn_away_at, turns, pause_until };
        self.entries.insert(id, entry);
        if let Some(stream) = start {
            self.open(id, stream, None);
        }
    }

    fn remove(&mut self, id: PortId, done: mpsc::Sender<()>) {
        let entry = self.entries.remove(&id);
        if let Some(Entry { source: Source::Listener(listener), .. }) = &entry {
            // The listener can stay open for long, and other processes have it too.
            let _ = epoll::delete(&self.epoll, listener);
        }
        match entry.and_then(|entry| entry.session) {
            Some((session, handle)) => {
                handle.ask();
                self.give_thread(session, &handle);
                self.leaving.insert(session, (handle, done));
            }
            None => {
                let _ = done.send(());
            }
        }
    }

    fn ended(&mut self, id: PortId, session: u64) {
        if let Some((_, done)) = self.leaving.remove(&session) {
            let _ = done.send(());
            return;
        }
        let Some(entry) = self.entries.get_mut(&id) else { return };
        entry.session.take_if(|(current, _)| *current == session);
        if let Source::Connect { retry_at, delay, .. } = &mut entry.source {
            *delay = RETRY_MIN;
            *retry_at = Some(Instant::now() + *delay);
        }
        if entry.turn_away_at.take().is_some() {
            self.look_again(id);
        }
    }

    /// Notes that a session has no thread, because its front end is silent.
    fn silent(&mut self, id: PortId, session: u64) {
        if let Some((handle, _)) = self.leaving.get(&session) {
            return self.give_thread(session, handle);
        }
        let current = self.entries.get(&id).and_then(|entry| entry.session.as_ref());
        let Some((_, handle)) = current.filter(|(current, _)| *current == session) else { return };
        if let Err(error) = handle.watch(&self.epoll, silent_token(id)) {
            tracing::debug!(%id, %error, "cannot watch a silent front end");
            self.go_on(id);
        }
    }

    /// Gives the silent session of an interface a thread again. If no thread can be made, the manager tries again.
    fn go_on(&mut self, id: PortId) {
        let Some(entry) = self.entries.get(&id) else { return };
        let Some((session, handle)) = &entry.session else { return };
        let started = front_end::go_on(handle, &self.epoll, self.when_over(*session));
        let again = started.map_err(|error| {
            entry.port.log(Said::AcceptFailed, |unsaid| {
                tracing::error!(vif = entry.port.name(), %error, unsaid, "cannot serve a front end");
            });
            Instant::now() + ACCEPT_PAUSE
        });
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.go_on_at = again.err();
        }
    }

    /// Gives a silent session a thread, since the session was asked to end. If no thread can be made, the next call
    /// tries again.
    fn give_thread(&self, session: u64, handle: &Arc<Handle>) {
        let _ = front_end::go_on(handle, &self.epoll, self.when_over(session));
    }

    /// Reports the end of a session's thread, and whether the session is silent or over.
    fn when_over(&self, session: u64) -> impl FnOnce(PortId, bool) + Send + 'static + use<> {
        let commands = self.commands.clone();
        move |id, is_silent| {
            let command = if is_silent { Command::Silent } else { Command::Ended };
            let _ = commands.send(command(id, session));
        }
    }

    /// Asks all sessions to end, and returns the number of those that do not.
    fn stop(&mut self, ask: fn(&Handle), patience: Duration) -> usize {
        let sessions = self.entries.values().filter_map(|entry| entry.session.clone());
        let sessions: HashMap<_, _> = sessions.collect();
        sessions.values().for_each(|handle| ask(handle));
        let mut left = sessions.len() + self.leaving.len();
        let left_silent = sessions.iter().filter(|(session, it)| self.leaves_silent(**session, it));
        left -= left_silent.count();
        let until = Instant::now() + patience;
        while left > 0 {
            let wait = until.saturating_duration_since(Instant::now()).min(HURRY);
            match self.received.recv_timeout(wait) {
                Ok(Command::Ended(_, session)) => {
                    left -= 1;
                    self.leaving.remove(&session).map(|(_, done)| done.send(()));
                }
                Ok(Command::Silent(_, session)) => {
                    let leaving = self.leaving.get(&session).map(|(handle, _)| handle);
                    let handle = sessions.get(&session).or(leaving);
                    left -= usize::from(handle.is_some_and(|it| self.leaves_silent(session, it)));
                }
                Ok(_) => {}
                Err(mpsc::RecvTimeoutError::Timeout) if Instant::now() < until => {
                    sessions.values().for_each(|handle| handle.hurry());
                    self.hurry_leaving();
                }
                Err(_) => {
                    tracing::warn!(left, "leaving sessions that do not end");
                    break;
                }
            }
        }
        left
    }

    /// True if a session that was asked to end is silent and left to another weir, and so has
    /// ended. A silent session that is not left to another weir gets a thread, so that it can end.
    fn leaves_silent(&self, session: u64, handle: &Arc<Handle>) -> bool {
        let is_left = handle.leave_silent();
        if !is_left {
            self.give_thread(session, handle);
        }
        is_left
    }

    fn hurry_leaving(&self) {
        for (session, (handle, _)) in &self.leaving {
            handle.hurry();
            self.give_thread(*session, handle);
        }
    }

    fn accept(&mut self, id: PortId) {
        let now = Instant::now();
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let Source::Listener(listener) = &entry.source else { return };
        if entry.session.is_some() {
            entry.turn_away_at = Some(now + GRACE);
            return self.look_no_more(id);
        }
        if entry.party.is_full() {
            entry.port.note_throttled();
            entry.pause_until = Some(now + ACCEPT_PAUSE);
            return self.look_no_more(id);
        }
        // A front end for which there is no room waits in the socket's queue.
        let room = room_for_session(&entry.port);
        // No work comes between the two calls: a connection that only weir has is lost with weir.
        let place = entry.port.keep().map(|keep| keep.expect(entry.port.offered_queue_pairs()));
        let accepted = room.and_then(|()| listener.accept());
        let accepted = accepted.map(|(stream, _)| Foreign::new(stream, &entry.party));
        let accepted = accepted.and_then(|stream| Ok(descriptors::for_guest(stream)?));
        if let (Some(place), Ok(stream), Some(keep)) = (place, &accepted, entry.port.keep()) {
            keep.met(place, stream);
        }
        let stream = match accepted {
            Ok(stream) => stream,
            Err(error) => {
                if let Some(keep) = entry.port.keep() {
                    keep.expect_no_more();
                }
                if error.kind() == io::ErrorKind::WouldBlock {
                    return;
                }
                entry.port.log(Said::AcceptFailed, |unsaid| {
                    tracing::warn!(vif = entry.port.name(), %error, unsaid, "cannot accept a connection");
                });
                entry.pause_until = Some(now + ACCEPT_PAUSE);
                return self.look_no_more(id);
            }
        };
        if !entry.turns.take(now) {
            entry.port.note_throttled();
            entry.pause_until = Some(now + SESSION_EVERY);
            self.look_no_more(id);
        }
        self.open(id, stream, place);
    }

    /// Stops watching the listener until [`Self::look_again`]: it stays readable, and this thread would spin.
    fn look_no_more(&self, id: PortId) {
        self.watch(id, epoll::EventFlags::empty());
    }

    /// Watches the listener again, unless the interface still has to wait.
    fn look_again(&self, id: PortId) {
        let waits = |entry: &Entry| entry.pause_until.or(entry.turn_away_at).is_some();
        if !self.entries.get(&id).is_some_and(waits) {
            self.watch(id, epoll::EventFlags::IN);
        }
    }

    fn watch(&self, id: PortId, flags: epoll::EventFlags) {
        if let Some(Entry { source: Source::Listener(listener), .. }) = self.entries.get(&id) {
            let _ = epoll::modify(&self.epoll, listener, token(id), flags);
        }
    }

    /// Begins a session; `place` is the place where its connection is kept already.
    fn open(&mut self, id: PortId, stream: Foreign<UnixStream>, place: Option<u32>) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        self.sessions += 1;
        let session = self.sessions;
        let (port, engine) = (Arc::clone(&entry.port), Arc::clone(&self.engine));
        let started = front_end::start(port, engine, stream, place, self.when_over(session));
        let Some(entry) = self.entries.get_mut(&id) else { return };
        match started {
            Ok(handle) => entry.session = Some((session, handle)),
            Err(error) => {
                if let (Some(place), Some(keep)) = (place, entry.port.keep()) {
                    keep.expect_no_more();
                    keep.remove(place);
                }
                entry.port.log(Said::AcceptFailed, |unsaid| {
                    tracing::error!(vif = entry.port.name(), %error, unsaid, "cannot serve a front end");
                });
            }
        }
    }

    /// The next time at which this thread has something to do without being woken.
    fn next_due(&self) -> Option<Timespec> {
        let due = self.entries.values().flat_map(|entry| {
            let retry_at = match entry.source {
                Source::Connect { retry_at, .. } if entry.session.is_none() => retry_at,
                _ => None,
            };
            [retry_at, entry.turn_away_at, entry.pause_until, entry.go_on_at].into_iter().flatten()
        });
        let now = Instant::now();
        let hurry_at = (!self.leaving.is_empty()).then(|| now + HURRY);
        let left = due.chain(hurry_at).min()?.saturating_duration_since(now);
        left.try_into().ok()
    }

    fn do_due(&mut self) {
        let now = Instant::now();
        self.hurry_leaving();
        let (mut opened, mut listened, mut going_on) = (Vec::new(), Vec::new(), Vec::new());
        for (id, entry) in &mut self.entries {
            if entry.turn_away_at.take_if(|until| *until <= now).is_some() {
                turn_away(entry);
                listened.push(*id);
            }
            if entry.pause_until.take_if(|until| *until <= now).is_some() {
                listened.push(*id);
            }
            if entry.go_on_at.take_if(|until| *until <= now).is_some() {
                going_on.push(*id);
            }
            let Source::Connect { path, dial, retry_at, delay } = &mut entry.source else {
                continue;
            };
            if entry.session.is_some() || retry_at.is_none_or(|at| at > now) {
                continue;
            }
            if entry.party.is_full() {
                *retry_at = Some(now + *delay);
                continue;
            }
            match room_for_session(&entry.port).and_then(|()| dial(path, &entry.party)) {
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
            self.open(id, stream, None);
        }
        listened.into_iter().for_each(|id| self.look_again(id));
        going_on.into_iter().for_each(|id| self.go_on(id));
    }
}

/// Checks that there are descriptors for one more session, for everything that its front end can bring along.
fn room_for_session(port: &VhostPort) -> io::Result<()> {
    descriptors::room_for_guest()?;
    // The connection, its copy with a keeper, and the event that ends the session.
    Ok(port.claim(3)?)
}

/// Turns away all front ends that wait now. If closes of the same interface are stuck, these front
/// ends continue to wait.
fn turn_away(entry: &Entry) {
    let Source::Listener(listener) = &entry.source else { return };
    for _ in 0..AT_ONCE {
        if entry.party.is_full() || entry.port.claim_to_close().is_err() {
            return;
        }
        let Ok((stream, _)) = listener.accept() else { return };
        let stream = Foreign::new(stream, &entry.party);
        // The front end is counted before it sees the end of its connection.
        if !has_hung_up(&stream) {
            say_turned_away(&entry.port);
        }
    }
}

/// True if the other end has closed the connection without sending anything. A program that tests
/// whether somebody serves the socket does the same.
fn has_hung_up(stream: &UnixStream) -> bool {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    rustix::net::recv(stream, &mut [0; 1], flags).is_ok_and(|(_, bytes)| bytes == 0)
}

fn say_turned_away(port: &VhostPort) {
    port.note_turned_away();
    port.log(Said::TurnedAway, |unsaid| {
        tracing::warn!(vif = port.name(), unsaid, "refused a second front end");
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_back_too_often_waits_for_its_next_turn() {
        let start = Instant::now();
        let mut turns = Turns::new(start);
        let at_once = (0..2 * SESSIONS_AT_ONCE_MAX).filter(|_| turns.take(start)).count();
        assert_eq!(
            at_once,
            SESSIONS_AT_ONCE_MAX as usize - 1,
            "with the last one the pause begins"
        );
        assert!(!turns.take(start + SESSION_EVERY), "one in each period");
        let later = start + 100 * SESSION_EVERY;
        assert_eq!(
            (0..5).filter(|_| turns.take(later)).count(),
            5,
            "who was quiet has its turns back"
        );
    }
}
