//! A thread for one interface's front end: it serves the connection, checks and maps the front end's memory, and closes
//! its descriptors. Each of these can take as long as the front end likes, at nobody else's expense.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use weir_engine::guest::GuestPort;
use weir_engine::{Engine, dear};
use weir_fabric::PortId;
use weir_foreign::Foreign;
use weir_guestmem::Stack;
use weir_limits::{SESSION_QUIET_NS, SESSION_STALL_NS, SESSION_TURN_NS};
use weir_sandbox::descriptors;
use weir_vhost_user::{Connection, ConnectionError};

use crate::error::{Refusal, StopReason};
use crate::keep::Keep;
use crate::logs::Said;
use crate::port::VhostPort;
use crate::session::Session;

const STALL: Duration = Duration::from_nanos(SESSION_STALL_NS);
/// A session that has been silent for this long gives its stack's unused pages back.
const QUIET: Duration = Duration::from_nanos(SESSION_QUIET_NS);

/// The request to a session to end.
#[derive(Debug)]
pub(crate) struct End {
    asked: AtomicBool,
    /// The session is left to another weir.
    leaves: AtomicBool,
    wake: OwnedFd,
    /// The session's thread, once it runs.
    tid: AtomicI32,
}

impl End {
    pub(crate) fn ask(&self) {
        self.asked.store(true, Ordering::SeqCst);
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
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

    fn is_asked(&self) -> bool {
        self.asked.load(Ordering::SeqCst)
    }
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

/// Starts the thread. The connection may already be kept at `place`. `ended` is called when the thread is about to end.
///
/// # Errors
/// No thread or descriptor is left; `stream` is closed.
pub(crate) fn start(
    port: Arc<VhostPort>,
    engine: Arc<Engine>,
    stream: Foreign<UnixStream>,
    place: Option<u32>,
    ended: impl FnOnce(PortId) + Send + 'static,
) -> io::Result<Arc<End>> {
    let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    // A resumed session had this descriptor before, so it is not refused one.
    let goes_on = port.keep().is_some_and(|keep| keep.connection().is_some());
    let wake = if goes_on { wake } else { descriptors::for_guest(wake)? };
    let (asked, leaves) = (AtomicBool::default(), AtomicBool::default());
    let end = Arc::new(End { asked, leaves, wake, tid: AtomicI32::default() });
    let (asked, gone) = (Arc::clone(&end), Arc::clone(&end));
    let thread = move |stack: &Stack| {
        asked.tid.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::SeqCst);
        // This thread serves no other front end.
        let stream = stream.release();
        let failed = Arc::clone(&port);
        // A session that unwinds stops its rings as any other.
        let run = AssertUnwindSafe(|| run(port, engine, stream, place, &asked, stack));
        if catch_unwind(run).is_err() {
            let reason = StopReason::Internal("its session failed: a mistake in weir".into());
            failed.log(Said::Ended, |unsaid| {
                tracing::error!(vif = failed.name(), %reason, unsaid, "session ended");
            });
            failed.session_ended(Some(&reason));
        }
        let id = failed.id();
        // The port can be taken apart as soon as the end is known.
        drop(failed);
        gone.tid.store(0, Ordering::SeqCst);
        ended(id);
    };
    // The kernel shows 15 letters of a thread's name.
    weir_guestmem::spawn("weir-session", thread)?;
    Ok(end)
}

fn run(
    port: Arc<VhostPort>,
    engine: Arc<Engine>,
    stream: UnixStream,
    place: Option<u32>,
    end: &End,
    stack: &Stack,
) {
    let Some(reason) = begin(&port, engine, stream, place).map_or_else(
        |refusal| Some(StopReason::NotTakenUp(refusal)),
        |session| serve(session, &port, end, stack),
    ) else {
        return;
    };
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
}

/// A connection whose descriptors may not lie in the reserve.
pub(crate) fn connection(stream: UnixStream) -> Connection {
    Connection::new(stream).taking(|fd| descriptors::for_guest(fd).is_ok())
}

/// Begins a session, or resumes one that another weir has left.
fn begin(
    port: &Arc<VhostPort>,
    engine: Arc<Engine>,
    stream: UnixStream,
    place: Option<u32>,
) -> Result<Session, Refusal> {
    if let Some(left) = port.keep().and_then(Keep::take_left) {
        let session = Session::take_up(stream, left, Arc::clone(port), engine);
        port.keep().into_iter().for_each(Keep::settle);
        let session = session?;
        tracing::info!(vif = port.name(), "front end taken over from a weir that is gone");
        return Ok(session);
    }
    port.log(Said::Connected, |unsaid| {
        tracing::info!(vif = port.name(), unsaid, "front end connected");
    });
    Ok(Session::new(connection(stream), Arc::clone(port), engine).kept(place))
}

/// Serves until the session is over, and returns the reason; `None` if weir ends it. The session is dropped with all it
/// had.
fn serve(mut session: Session, port: &VhostPort, end: &End, stack: &Stack) -> Option<StopReason> {
    let mut cpu_ns = dear::thread_cpu_ns();
    let mut stall_at = None;
    let mut held_back = HeldBack::default();
    let mut turn_ns = cpu_ns;
    let mut is_small = false;
    while !end.is_asked() {
        // One message at a time: when a session is at its limit, other threads on its processor wait for no more than
        // one.
        if let Err(reason) = session.serve() {
            return Some(reason);
        }
        let half = session.connection.is_mid_message() || session.connection.wants_write();
        stall_at = half.then(|| stall_at.unwrap_or_else(|| Instant::now() + STALL));
        let left = stall_at.map(|at| at.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Some(StopReason::Stalled);
        }
        let now_ns = dear::thread_cpu_ns();
        if now_ns.saturating_sub(turn_ns) > SESSION_TURN_NS {
            rustix::thread::sched_yield();
            turn_ns = now_ns;
        }
        let pause = port.spend(now_ns.saturating_sub(cpu_ns));
        cpu_ns = now_ns;
        held_back.set(pause.is_some());
        let flags = if session.connection.wants_write() { PollFlags::OUT } else { PollFlags::IN };
        match pause {
            Some(pause) => {
                port.note_throttled();
                wait(&mut [PollFd::new(&end.wake, PollFlags::IN)], Some(pause));
            }
            None => {
                let socket = session.connection.as_fd();
                let all = &mut [PollFd::new(&end.wake, PollFlags::IN), PollFd::new(&socket, flags)];
                // Most sessions are silent for hours, and what their requests took of the stack is of no use then.
                let quiet = (!is_small && left.is_none()).then_some(QUIET);
                let has_come = wait(all, left.or(quiet));
                is_small = !has_come && left.is_none();
                if is_small {
                    stack.leave();
                }
            }
        }
    }
    if end.leaves.load(Ordering::SeqCst) {
        // Dropping the session would stop the rings and tell the front end.
        std::mem::forget(session);
    }
    None
}

/// True if one of them is ready.
fn wait(fds: &mut [PollFd<'_>], at_most: Option<Duration>) -> bool {
    let timeout = at_most.map(|time| Timespec {
        tv_sec: time.as_secs() as i64,
        tv_nsec: i64::from(time.subsec_nanos()),
    });
    // EINTR only means one more turn of the loop.
    poll(fds, timeout.as_ref()) != Ok(0)
}

impl VhostPort {
    /// Notes that the session has used `used_ns` of a processor. Returns how long it has to pause.
    fn spend(&self, used_ns: u64) -> Option<Duration> {
        weir_engine::lock(&self.allowance).spend(
            used_ns,
            Instant::now(),
            HELD_BACK.load(Ordering::Relaxed),
        )
    }
}
