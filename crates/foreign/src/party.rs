//! A party's closer: a thread that runs while something is to be closed.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use weir_limits::FOREIGN_CLOSES_MAX;

use crate::interrupt;

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

    /// True if so many are not closed that no more may be taken from this party.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.open() >= FOREIGN_CLOSES_MAX
    }

    /// True if nobody else holds this party, and nothing of it is to be closed.
    #[must_use]
    pub fn is_forgotten(&self) -> bool {
        Arc::strong_count(&self.0) == 1 && self.open() == 0
    }

    /// Has `descriptor`, or an object that holds one, dropped by the closer. Returns at once.
    pub fn close(&self, descriptor: impl Send + 'static) {
        let mut queue = self.lock();
        queue.waiting.push_back(Box::new(descriptor));
        self.have_thread(&mut queue);
        drop(queue);
        self.0.bell.notify_one();
    }

    /// If no thread can be started, descriptors wait for the next attempt.
    fn have_thread(&self, queue: &mut Queue) {
        if queue.has_thread || queue.waiting.is_empty() {
            return;
        }
        let party = self.clone();
        let thread = thread::Builder::new().name("weir-closer".into()).stack_size(STACK_BYTES);
        queue.has_thread = thread.spawn(move || party.close_all()).is_ok();
    }

    fn close_all(&self) {
        let closing = interrupt::Closing::new(self.clone());
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
