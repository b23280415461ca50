//! A thread for one interface's front end: it speaks to it, checks and maps its memory, and closes its descriptors.
//! Each may take as long as the front end likes, at nobody else's expense.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use weir_engine::{Engine, dear};
use weir_limits::{
    SESSION_CPU_BURST_NS, SESSION_CPU_PERCENT, SESSION_STALL_NS, SESSION_TURN_NS,
    SESSIONS_CPU_PERCENT,
};
use weir_vhost_user::{Connection, ConnectionError};

use crate::error::StopReason;
use crate::logs::Said;
use crate::manager::{Command, Commands};
use crate::port::VhostPort;
use crate::session::Session;

const STALL: Duration = Duration::from_nanos(SESSION_STALL_NS);

/// How a session is asked to end.
#[derive(Debug)]
pub(crate) struct End {
    asked: AtomicBool,
    wake: OwnedFd,
}

impl End {
    pub(crate) fn ask(&self) {
        self.asked.store(true, Ordering::SeqCst);
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    fn is_asked(&self) -> bool {
        self.asked.load(Ordering::SeqCst)
    }
}

/// CPU time for sessions of one interface: `SESSION_CPU_PERCENT` of one CPU, or a part of what all throttled ones
/// share, and a little at once.
#[derive(Debug)]
pub(crate) struct Allowance {
    left_ns: i64,
    at: Instant,
}

impl Default for Allowance {
    fn default() -> Self {
        Self { left_ns: SESSION_CPU_BURST_NS as i64, at: Instant::now() }
    }
}

impl Allowance {
    /// `used_ns` were used until `now`, while sessions of `held_back` interfaces are, this one's among them if it is. For
    /// how long nothing more may be; `None`: it goes on.
    fn spend(&mut self, used_ns: u64, now: Instant, held_back: u64) -> Option<Duration> {
        let sharers = held_back.div_ceil(SESSIONS_CPU_PERCENT / SESSION_CPU_PERCENT).max(1);
        let passed_ns = now.saturating_duration_since(self.at).as_nanos() as u64;
        self.at = now;
        let gained_ns = (passed_ns / 100 * SESSION_CPU_PERCENT / sharers).min(SESSION_CPU_BURST_NS);
        let most_ns = SESSION_CPU_BURST_NS as i64;
        self.left_ns = (self.left_ns.saturating_add(gained_ns as i64)).min(most_ns);
        self.left_ns = self.left_ns.saturating_sub(used_ns as i64);
        let short_ns = u64::try_from(-self.left_ns).ok().filter(|short| *short > 0)?;
        let pause_ns = short_ns.saturating_mul(100).saturating_mul(sharers) / SESSION_CPU_PERCENT;
        Some(Duration::from_nanos(pause_ns))
    }
}

/// Sessions of this process that are held back.
static HELD_BACK: AtomicU64 = AtomicU64::new(0);

/// Whether one session is, and counts there.
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

/// Starts the thread.
///
/// # Errors
/// No thread or descriptor is left; `stream` is closed.
pub(crate) fn start(
    port: Arc<VhostPort>,
    engine: Arc<Engine>,
    stream: UnixStream,
    session: u64,
    commands: Commands,
) -> io::Result<Arc<End>> {
    let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let end = Arc::new(End { asked: AtomicBool::new(false), wake });
    let asked = Arc::clone(&end);
    let thread = move || {
        weir_sandbox::narrow(weir_sandbox::Thread::Session);
        let failed = Arc::clone(&port);
        // A session that unwinds stops its rings as any other.
        let run = AssertUnwindSafe(|| run(port, engine, stream, &asked));
        if catch_unwind(run).is_err() {
            let reason = StopReason::Internal("its session failed: a mistake in weir".into());
            failed.log(Said::Ended, |unsaid| {
                tracing::error!(vif = failed.name(), %reason, unsaid, "session ended");
            });
            failed.session_ended(Some(&reason));
        }
        let id = failed.id();
        // Who waits for the end may take the port apart.
        drop(failed);
        let _ = commands.send(Command::Ended(id, session));
    };
    // The kernel shows 15 letters.
    thread::Builder::new().name("weir-session".into()).spawn(thread)?;
    Ok(end)
}

fn run(port: Arc<VhostPort>, engine: Arc<Engine>, stream: UnixStream, end: &End) {
    port.log(Said::Connected, |unsaid| {
        tracing::info!(vif = port.name(), unsaid, "front end connected");
    });
    let session = Session::new(Connection::new(stream), Arc::clone(&port), engine);
    let Some(reason) = serve(session, &port, end) else { return };
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

/// Until the session is over, and why; `None` if weir ends it. It is gone then, with all it had.
fn serve(mut session: Session, port: &VhostPort, end: &End) -> Option<StopReason> {
    let mut cpu_ns = dear::thread_cpu_ns();
    let mut stall_at = None;
    let mut held_back = HeldBack::default();
    let mut turn_ns = cpu_ns;
    while !end.is_asked() {
        // Message by message: at its limit, other threads of its processor wait for no more than one.
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
                wait(all, left);
            }
        }
    }
    None
}

fn wait(fds: &mut [PollFd<'_>], at_most: Option<Duration>) {
    let timeout = at_most.map(|time| Timespec {
        tv_sec: time.as_secs() as i64,
        tv_nsec: i64::from(time.subsec_nanos()),
    });
    // EINTR is a look more.
    let _ = poll(fds, timeout.as_ref());
}

impl VhostPort {
    /// Its session has used `used_ns` of a processor. For how long it is to pause.
    fn spend(&self, used_ns: u64) -> Option<Duration> {
        weir_engine::lock(&self.allowance).spend(
            used_ns,
            Instant::now(),
            HELD_BACK.load(Ordering::Relaxed),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_gets_its_part_of_a_processor_and_a_little_at_once() {
        let mut allowance = Allowance::default();
        let start = allowance.at;
        assert_eq!(allowance.spend(SESSION_CPU_BURST_NS, start, 0), None);
        let ms = 1_000_000;
        let pause = allowance.spend(ms, start, 1).unwrap();
        assert_eq!(pause, Duration::from_nanos(ms * 100 / SESSION_CPU_PERCENT));
        assert_eq!(allowance.spend(0, start + pause, 1), None);
        let rested = start + Duration::from_secs(3600);
        assert_eq!(allowance.spend(SESSION_CPU_BURST_NS, rested, 0), None, "no more than that");
        assert!(allowance.spend(ms, rested, 1).is_some());
    }

    #[test]
    fn sessions_that_are_held_back_share_what_all_of_them_may_take() {
        let (floods, ms) = (20, 1_000_000);
        let pause = |held_back| {
            let mut allowance = Allowance::default();
            let start = allowance.at;
            allowance.spend(SESSION_CPU_BURST_NS + ms, start, held_back).unwrap()
        };
        // Each has a millisecond in its pause.
        let all = Duration::from_nanos(ms * floods * 100 / SESSIONS_CPU_PERCENT);
        assert_eq!(pause(floods), all);
        let few = SESSIONS_CPU_PERCENT / SESSION_CPU_PERCENT;
        assert_eq!(pause(few), pause(1), "as many as have their own part");
        let mut newcomer = Allowance::default();
        let start = newcomer.at;
        assert_eq!(
            newcomer.spend(SESSION_CPU_BURST_NS, start, floods),
            None,
            "who comes anew waits for none of them"
        );
    }
}
