//! A thread for one interface's front end: it serves the connection, checks and maps the front end's memory, and closes
//! its descriptors. Each of these can take as long as the front end likes, at nobody else's expense. While the front end
//! is silent, its session has no thread.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, epoll, eventfd, poll};
use weir_engine::guest::GuestPort;
use weir_engine::{Engine, dear, lock};
use weir_fabric::PortId;
use weir_foreign::Foreign;
use weir_limits::{SESSION_QUIET_NS, SESSION_STALL_NS, SESSION_TURN_NS};
use weir_sandbox::descriptors;
use weir_vhost_user::ConnectionError;

use crate::error::{Refusal, StopReason};
use crate::keep::Keep;
use crate::port::Said;
use crate::port::VhostPort;
use crate::session::{Session, connection};

const STALL: Duration = Duration::from_nanos(SESSION_STALL_NS);
/// A session whose front end has been silent for this long needs no thread.
const QUIET: Duration = Duration::from_nanos(SESSION_QUIET_NS);

/// A session, as the thread that accepts has it: the request to the session to end, and the session itself while it has
/// no thread.
pub(crate) struct Handle {
    asked: AtomicBool,
    /// The session is left to another weir.
    leaves: AtomicBool,
    wake: Arc<OwnedFd>,
    /// The session's thread, while it runs.
    tid: AtomicI32,
    silent: Mutex<Option<Box<Session>>>,
}

impl Handle {
    /// Asks the session to end. A silent one ends when it has a thread again.
    pub(crate) fn ask(&self) {
        self.asked.store(true, Ordering::SeqCst);
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }

    /// Asks the session to end as if weir had been killed between two requests.
    pub(crate) fn ask_to_leave(&self) {
        self.leaves.store(true, Ordering::SeqCst);
        self.ask();
    }

    /// Interrupts a session that was asked to end and has not: it may be closing descriptors that its front end has
    /// sent.
    pub(crate) fn hurry(&self) {
        let tid = self.tid.load(Ordering::SeqCst);
        // A session that is left to another weir finishes its request.
        if tid != 0 && !self.leaves.load(Ordering::SeqCst) {
            weir_foreign::hurry(tid);
        }
    }

    /// Clears the event. Whoever asks the session to end has set the request before.
    fn quiet(&self) {
        let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::SeqCst)
    }

    /// Watches the connection of the session, once, if the session is silent.
    ///
    /// # Errors
    /// The error of epoll_ctl(2).
    pub(crate) fn watch(&self, epoll: &OwnedFd, token: epoll::EventData) -> io::Result<()> {
        let silent = lock(&self.silent);
        let Some(session) = silent.as_ref() else { return Ok(()) };
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        Ok(epoll::add(epoll, session.connection.as_fd(), token, flags)?)
    }

    #[cfg(test)]
    pub(crate) fn is_silent(&self) -> bool {
        lock(&self.silent).is_some()
    }

    /// Takes a silent session out of this process, as its own thread would, if it is left to another weir or the
    /// process exits: a thousand threads take longer than the exit may.
    pub(crate) fn leave_silent(&self) -> bool {
        let leaves = self.leaves.load(Ordering::SeqCst);
        let ends = leaves || weir_foreign::is_left_to_exit();
        let Some(mut session) = ends.then(|| lock(&self.silent).take()).flatten() else {
            return false;
        };
        if !leaves {
            session.stop();
        }
        // Dropping the session would stop the rings and tell the front end. Descriptors are closed by the exit.
        std::mem::forget(session);
        true
    }
}

/// A session that is about to have a thread.
enum Begins {
    New {
        port: Arc<VhostPort>,
        engine: Arc<Engine>,
        stream: Foreign<UnixStream>,
        /// The place where the connection is kept already.
        place: Option<u32>,
    },
    Again(Box<Session>),
}

/// Sessions of this process that are held back.
static HELD_BACK: AtomicU64 = AtomicU64::new(0);

/// True if one session is held back, and counted in [`HELD_BACK`].
#[derive(Debug, Default)]
struct HeldBack(bool);

impl HeldBack {
    fn set(&mut self, held_back: bool) {
        match (std::mem::replace(&mut self.0, held_back), held_back) {
            (false, true) => drop(HELD_BACK.fetch_add(1, Ordering::Relaxed)),
            (true, false) => drop(HELD_BACK.fetch_sub(1, Ordering::Relaxed)),
            _ => {}
        }
    }
}

impl Drop for HeldBack {
    fn drop(&mut self) {
        self.set(false);
    }
}

/// Begins a session, with a thread. The connection may already be kept at `place`. `over` is called when the thread is
/// about to end: with true if the session is silent, and has not ended.
///
/// # Errors
/// No thread or descriptor is left; `stream` is closed.
pub(crate) fn start(
    port: Arc<VhostPort>,
    engine: Arc<Engine>,
    stream: Foreign<UnixStream>,
    place: Option<u32>,
    over: impl FnOnce(PortId, bool) + Send + 'static,
) -> io::Result<Arc<Handle>> {
    let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    // A resumed session had this descriptor before, so it is not refused one.
    let goes_on = port.keep().is_some_and(|keep| keep.connection().is_some());
    let wake = if goes_on { wake } else { descriptors::for_guest(wake)? };
    let wake = Arc::new(wake);
    let (asked, leaves) = (AtomicBool::default(), AtomicBool::default());
    let (tid, silent) = (AtomicI32::default(), Mutex::default());
    let handle = Arc::new(Handle { asked, leaves, wake, tid, silent });
    let begins = Begins::New { port, engine, stream, place };
    spawn(begins, Arc::clone(&handle), over).map_err(|(error, _)| error)?;
    Ok(handle)
}

/// Gives a silent session a thread again: its front end says something, or it is to end. The session is no longer
/// [watched](Handle::watch).
///
/// # Errors
/// No thread is left; the session stays silent.
pub(crate) fn go_on(
    handle: &Arc<Handle>,
    epoll: &OwnedFd,
    over: impl FnOnce(PortId, bool) + Send + 'static,
) -> io::Result<()> {
    let Some(session) = lock(&handle.silent).take() else { return Ok(()) };
    // A keeper can have the connection too, so that its close would not end the watch.
    let _ = epoll::delete(epoll, session.connection.as_fd());
    spawn(Begins::Again(session), Arc::clone(handle), over).map_err(|(error, begins)| {
        if let Begins::Again(session) = begins {
            *lock(&handle.silent) = Some(session);
        }
        error
    })
}

/// Starts a session's thread.
fn spawn(
    begins: Begins,
    handle: Arc<Handle>,
    over: impl FnOnce(PortId, bool) + Send + 'static,
) -> Result<(), (io::Error, Begins)> {
    // A thread that cannot be started would drop what it is given, and so close foreign descriptors here.
    let (give, taken) = mpsc::channel();
    let thread = move || {
        let Ok(begins) = taken.recv() else { return };
        handle.tid.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::SeqCst);
        let port = match &begins {
            Begins::New { port, .. } => Arc::clone(port),
            Begins::Again(session) => Arc::clone(session.port()),
        };
        // A session that unwinds stops its rings as any other.
        let silent = catch_unwind(AssertUnwindSafe(|| run(begins, &port, &handle)));
        let silent = silent.unwrap_or_else(|_| {
            let reason = StopReason::Internal("its session failed: a mistake in weir".into());
            port.log(Said::Ended, |unsaid| {
                tracing::error!(vif = port.name(), %reason, unsaid, "session ended");
            });
            port.session_ended(Some(&reason));
            None
        });
        let _ = silent.is_none().then(|| port.claim_no_more());
        let id = port.id();
        // The port can be taken apart as soon as the end is known.
        drop(port);
        handle.tid.store(0, Ordering::SeqCst);
        let is_silent = silent.is_some();
        *lock(&handle.silent) = silent;
        drop(handle);
        over(id, is_silent);
    };
    // The kernel shows 15 letters of a thread's name.
    match thread::Builder::new().name("weir-session".into()).spawn(thread) {
        Ok(_) => give.send(begins).map_err(|error| (io::ErrorKind::BrokenPipe.into(), error.0)),
        Err(error) => Err((error, begins)),
    }
}

/// Serves a session. Returns the session if it is silent; otherwise it has ended.
fn run(begins: Begins, port: &Arc<VhostPort>, handle: &Handle) -> Option<Box<Session>> {
    let session = match begins {
        // This thread serves no other front end.
        Begins::New { engine, stream, place, .. } => {
            begin(port, engine, stream.release(), place, handle)
        }
        Begins::Again(session) => Ok(session),
    };
    let mut spent_ns = 0;
    let reason = match session.map(|session| serve(session, port, handle, &mut spent_ns)) {
        Ok(Over::Silent(session)) => return Some(session),
        Ok(Over::Asked) => return None,
        Ok(Over::For(reason)) => reason,
        Err(refusal) => StopReason::NotTakenUp(refusal),
    };
    // A session that ends has unmapped all of its memory, but for what a worker holds.
    port.memory().end_session();
    lock(&port.allowance).end_session();
    port.spend(0, dear::thread_cpu_ns().saturating_sub(spent_ns));
    if matches!(reason, StopReason::Connection(ConnectionError::Closed)) {
        port.log(Said::Disconnected, |unsaid| {
            tracing::info!(vif = port.name(), unsaid, "front end disconnected");
        });
        port.session_ended(None);
    } else {
        port.log(Said::Ended, |unsaid| {
            tracing::warn!(vif = port.name(), %reason, unsaid, "session ended");
        });
        port.session_ended(Some(&reason));
    }
    None
}

/// Begins a session, or resumes one that another weir has left.
fn begin(
    port: &Arc<VhostPort>,
    engine: Arc<Engine>,
    stream: UnixStream,
    place: Option<u32>,
    handle: &Handle,
) -> Result<Box<Session>, Refusal> {
    let wake = Arc::clone(&handle.wake);
    if let Some(left) = port.keep().and_then(Keep::take_left) {
        let session = Session::take_up(stream, left, Arc::clone(port), engine, wake);
        port.keep().into_iter().for_each(Keep::settle);
        let session = session?;
        tracing::info!(vif = port.name(), "front end taken over from a weir that is gone");
        return Ok(Box::new(session));
    }
    port.log(Said::Connected, |unsaid| {
        tracing::info!(vif = port.name(), unsaid, "front end connected");
    });
    let session = Session::new(connection(stream), Arc::clone(port), engine, wake);
    Ok(Box::new(session.kept(place)))
}

/// The reason why a session's thread ends.
enum Over {
    /// weir ends the session.
    Asked,
    /// The front end has nothing to say for now.
    Silent(Box<Session>),
    /// The session has ended for this reason.
    For(StopReason),
}

/// Serves until the session is over or silent. A session that is over is dropped with all it had.
fn serve(mut session: Box<Session>, port: &VhostPort, handle: &Handle, spent_ns: &mut u64) -> Over {
    let mut stall_at = None;
    let mut held_back = HeldBack::default();
    let mut turn_ns = 0;
    while !handle.is_asked() {
        // One message at a time: when a session is at its limit, other threads on its processor wait for no more than
        // one.
        if let Err(reason) = session.serve().and_then(|()| session.ask()) {
            return Over::For(reason);
        }
        let half = session.connection.is_mid_message() || session.connection.wants_write();
        stall_at = half.then(|| stall_at.unwrap_or_else(|| Instant::now() + STALL));
        let left = stall_at.map(|at| at.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Over::For(StopReason::Stalled);
        }
        let now_ns = dear::thread_cpu_ns();
        if now_ns.saturating_sub(turn_ns) > SESSION_TURN_NS {
            rustix::thread::sched_yield();
            turn_ns = now_ns;
        }
        let pause = port.spend(now_ns.saturating_sub(std::mem::replace(spent_ns, now_ns)), 0);
        held_back.set(pause.is_some());
        let flags = if session.connection.wants_write() { PollFlags::OUT } else { PollFlags::IN };
        match pause {
            Some(pause) => {
                port.note_throttled();
                let end = Instant::now() + pause;
                let left = || end.saturating_duration_since(Instant::now());
                // A worker that asks for a translation does not end the pause.
                while !handle.is_asked() && !left().is_zero() {
                    wait(&mut [PollFd::new(&handle.wake, PollFlags::IN)], Some(left()));
                    handle.quiet();
                }
            }
            None => {
                let socket = session.connection.as_fd();
                let all =
                    &mut [PollFd::new(&handle.wake, PollFlags::IN), PollFd::new(&socket, flags)];
                let due = session.asks_in().unwrap_or(QUIET);
                let has_come = wait(all, Some(left.unwrap_or(QUIET).min(due)));
                if session.has_iommu() {
                    handle.quiet();
                }
                // Most sessions are silent for hours, and a thread and its stack are of no use then. A session with a
                // virtual IOMMU is woken by workers.
                if !has_come && left.is_none() && !session.has_iommu() {
                    port.leave_records();
                    return Over::Silent(session);
                }
            }
        }
    }
    if handle.leaves.load(Ordering::SeqCst) {
        // Dropping the session would stop the rings and tell the front end.
        std::mem::forget(session);
    }
    Over::Asked
}

/// True if one of the descriptors is ready.
fn wait(fds: &mut [PollFd<'_>], at_most: Option<Duration>) -> bool {
    let timeout = at_most.and_then(|time| time.try_into().ok());
    // EINTR only means one more turn of the loop.
    poll(fds, timeout.as_ref()) != Ok(0)
}

impl VhostPort {
    /// Notes that the session has used `used_ns` of a processor, and the ones before it `left_ns`. Returns how long it
    /// has to pause.
    fn spend(&self, used_ns: u64, left_ns: u64) -> Option<Duration> {
        let [own_ns, others_ns] = self.memory().take_unmapping_ns();
        let (used_ns, left_ns) = (used_ns + own_ns, left_ns + others_ns);
        let held_back = HELD_BACK.load(Ordering::Relaxed);
        lock(&self.allowance).spend(used_ns, left_ns, Instant::now(), held_back)
    }
}
