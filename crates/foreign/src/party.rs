//! A party's closer: a thread that runs while something is to be closed.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use weir_limits::{FOREIGN_CLOSE_NS_MAX, FOREIGN_CLOSES_MAX};

/// True if the process is about to exit, which closes everything.
static LEFT_TO_EXIT: AtomicBool = AtomicBool::new(false);

/// From now on, descriptors stay open until the process exits, which must be soon: a thread for each of a thousand
/// parties would take longer than the exit.
pub fn leave_to_exit() {
    LEFT_TO_EXIT.store(true, Ordering::Relaxed);
}

/// True if the process is about to exit.
pub fn is_left_to_exit() -> bool {
    LEFT_TO_EXIT.load(Ordering::Relaxed)
}

/// A thread with nothing to close ends after this time.
const IDLE: Duration = Duration::from_secs(1);
/// The time between two log lines about one party.
const SAY_EVERY: Duration = Duration::from_secs(60);
const STACK_BYTES: usize = 64 << 10;

/// The owner of descriptors: an interface, an agent's socket, a user of the API.
#[derive(Clone)]
pub struct Party(Arc<Shared>);

struct Shared {
    name: String,
    queue: Mutex<Queue>,
    bell: Condvar,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Closable>,
    /// A descriptor is being closed.
    closes: bool,
    has_thread: bool,
    said_at: Option<Instant>,
}

type Closable = Box<dyn Send>;

impl fmt::Debug for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Party").field(&self.0.name).finish()
    }
}

impl Queue {
    fn open(&self) -> usize {
        self.waiting.len() + usize::from(self.closes)
    }
}

impl Party {
    /// A party that logs call `name`.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self(Arc::new(Shared { name: name.into(), queue: Mutex::default(), bell: Condvar::new() }))
    }

    /// The party's name in logs.
    pub(crate) fn name(&self) -> &str {
        &self.0.name
    }

    /// The number of descriptors that were handed over and are not closed yet.
    #[must_use]
    pub fn open(&self) -> usize {
        let mut queue = self.lock();
        self.have_thread(&mut queue);
        queue.open()
    }

    /// True if no more may be taken from this party for now, because too many are still open.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.open() >= FOREIGN_CLOSES_MAX
    }

    /// True if nobody else holds this party, and nothing of it is to be closed.
    #[must_use]
    pub fn is_forgotten(&self) -> bool {
        Arc::strong_count(&self.0) == 1 && self.open() == 0
    }

    /// Makes the closer drop `descriptor`, or an object that holds one. Returns at once.
    pub fn close(&self, descriptor: impl Send + 'static) {
        if is_left_to_exit() {
            return std::mem::forget(descriptor);
        }
        let mut queue = self.lock();
        queue.waiting.push_back(Box::new(descriptor));
        self.have_thread(&mut queue);
        drop(queue);
        self.0.bell.notify_one();
    }

    /// Starts a thread unless one runs. If none can be started, descriptors wait for the next
    /// attempt.
    fn have_thread(&self, queue: &mut Queue) {
        if queue.has_thread || queue.waiting.is_empty() {
            return;
        }
        let party = self.clone();
        let thread = thread::Builder::new().name("weir-closer".into()).stack_size(STACK_BYTES);
        queue.has_thread = thread.spawn(move || party.close_all()).is_ok();
    }

    fn close_all(&self) {
        let closing = Closing::new(self.clone());
        while let Some(descriptor) = self.next() {
            let interrupted = closing.close(descriptor);
            let mut queue = self.lock();
            queue.closes = false;
            let said_lately = queue.said_at.is_some_and(|at| at.elapsed() < SAY_EVERY);
            if interrupted && !said_lately {
                queue.said_at = Some(Instant::now());
                let open = queue.open();
                drop(queue);
                tracing::warn!(
                    party = self.0.name,
                    open,
                    "a descriptor that was sent here did not close in time"
                );
            }
        }
    }

    /// The next descriptor to close; `None` ends the thread.
    fn next(&self) -> Option<Closable> {
        let idle = |queue: &mut Queue| queue.waiting.is_empty();
        let waited = self.0.bell.wait_timeout_while(self.lock(), IDLE, idle);
        let (mut queue, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let next = queue.waiting.pop_front();
        (queue.closes, queue.has_thread) = (next.is_some(), next.is_some());
        next
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.0.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const CLOSE_MAX: Duration = Duration::from_nanos(FOREIGN_CLOSE_NS_MAX);
/// The duration after which several signals have not ended a close.
const STUCK: Duration = Duration::from_nanos(10 * FOREIGN_CLOSE_NS_MAX);

/// Threads that close descriptors.
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

/// The mark of a thread that closes descriptors. A close that takes too long is cut short: a signal to its thread ends
/// the wait of a socket that lingers. A close that no signal ends (a file system's server has taken the request) keeps
/// its thread.
struct Closing(Arc<At>);

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
    /// The time since the close of this descriptor began.
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

/// Ends the wait of a thread of this process in the close of a descriptor, if it waits there: the
/// thread's party may hold it up.
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
