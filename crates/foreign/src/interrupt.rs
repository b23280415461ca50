//! Closes that are cut short. A signal to its thread ends the wait of a socket that lingers. A close that no signal
//! ends (a file system's server has taken the request) keeps its thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use weir_limits::FOREIGN_CLOSE_NS_MAX;

use crate::Party;

const CLOSE_MAX: Duration = Duration::from_nanos(FOREIGN_CLOSE_NS_MAX);
/// The duration after which several signals have not ended a close.
const STUCK: Duration = Duration::from_nanos(10 * FOREIGN_CLOSE_NS_MAX);

/// Threads that close.
static CLOSING: Mutex<Closers> = Mutex::new(Closers { threads: Vec::new(), is_watched: false });

struct Closers {
    threads: Vec<Arc<At>>,
    is_watched: bool,
}

#[derive(Debug)]
struct At {
    tid: i32,
    party: Party,
    since: Mutex<Option<Instant>>,
    was_interrupted: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The mark of a thread that closes descriptors.
pub(crate) struct Closing(Arc<At>);

impl Closing {
    pub(crate) fn new(party: Party) -> Self {
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        let (since, was_interrupted) = (Mutex::new(None), AtomicBool::new(false));
        let at = Arc::new(At { tid, party, since, was_interrupted });
        let mut closers = lock(&CLOSING);
        closers.threads.push(Arc::clone(&at));
        if !closers.is_watched {
            let thread = thread::Builder::new().name("weir-closings".into());
            closers.is_watched = thread.stack_size(64 << 10).spawn(watch).is_ok();
        }
        Self(at)
    }

    /// Closes a descriptor; `true` if this was interrupted.
    pub(crate) fn close(&self, descriptor: Box<dyn Send>) -> bool {
        self.0.was_interrupted.store(false, Ordering::Relaxed);
        *lock(&self.0.since) = Some(Instant::now());
        drop(descriptor);
        *lock(&self.0.since) = None;
        self.0.was_interrupted.load(Ordering::Relaxed)
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        lock(&CLOSING).threads.retain(|at| !Arc::ptr_eq(at, &self.0));
    }
}

/// A party whose descriptor no signal has closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stuck {
    /// The party's name in logs.
    pub party: String,
    /// The number of the party's descriptors that are not closed, including this one.
    pub open: usize,
    /// The time since the close of this one began.
    pub since: Duration,
}

/// The parties whose descriptors do not close in time at present.
#[must_use]
pub fn stuck() -> Vec<Stuck> {
    // The parties' queues are read without this lock, which a closer takes to begin and to end.
    let closing = lock(&CLOSING).threads.clone();
    let late = |at: &Arc<At>| {
        let since = lock(&at.since).map(|since| since.elapsed())?;
        (since >= STUCK).then(|| Stuck {
            party: at.party.name().to_owned(),
            open: at.party.open(),
            since,
        })
    };
    closing.iter().filter_map(late).collect()
}

/// Interrupts closes that take too long, as long as there are any.
fn watch() {
    handle_signal();
    loop {
        thread::sleep(CLOSE_MAX);
        // While this lock is held, none of these threads ends.
        let mut closers = lock(&CLOSING);
        if closers.threads.is_empty() {
            closers.is_watched = false;
            return;
        }
        for at in &closers.threads {
            if lock(&at.since).is_some_and(|since| since.elapsed() >= CLOSE_MAX) {
                at.was_interrupted.store(true, Ordering::Relaxed);
                interrupt(at.tid);
            }
        }
    }
}

extern "C" fn on_signal(_: libc::c_int) {}

/// Installs a handler: an ignored signal interrupts nothing.
#[allow(unsafe_code)]
fn handle_signal() {
    static HANDLED: Once = Once::new();
    HANDLED.call_once(|| {
        // SAFETY: all zeros is a `sigaction` without flags and with an empty mask. The handler does nothing.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_signal as *const () as libc::sighandler_t;
            libc::sigaction(libc::SIGURG, &action, std::ptr::null_mut());
        }
    });
}

/// Ends the wait of one of this process's threads that closes a descriptor, if it waits. For a thread whose party holds
/// it up.
pub fn hurry(tid: i32) {
    handle_signal();
    interrupt(tid);
}

#[allow(unsafe_code)]
fn interrupt(tid: i32) {
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: tgkill reads no memory. The thread is one of this process, which has a handler.
    unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, libc::SIGURG) };
}
