//! A thread that writes calls to the descriptors of one front end, for workers, which must not wait.
//!
//! A pipe's reader can hold the pipe's mutex for as long as it likes, and even a non-blocking write
//! waits for the mutex; user-mode Linux knows no eventfds. So workers only ring:
//!
//! ```text
//! worker: Line::ring ── wanted, weir's own eventfd ──▶ thread of this VIF ── write, 8 bytes ──▶ front end
//! ```
//!
//! The thread and the eventfd exist while there are lines. A stuck thread harms its VIF only, which gets no second
//! thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::thread;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::{SendFlags, send};
use rustix::time::{ClockId, clock_gettime};
use weir_limits::CALL_STUCK_NS;

use crate::call::{CallError, Kind};

/// The lines of one VIF, and the thread that serves them.
#[derive(Debug)]
pub struct Proxy {
    /// Name of the thread.
    name: String,
    /// The state that lines and the thread share. It is dropped with the last of them.
    shared: Mutex<Weak<Shared>>,
}

#[derive(Debug)]
struct Shared {
    /// weir's own eventfd.
    bell: OwnedFd,
    state: Mutex<State>,
    /// Time since which the thread has been in a front end's hands (ns); 0 if it is not.
    since_ns: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    lines: Vec<Arc<Wire>>,
    /// The thread is running.
    running: bool,
}

/// A way for calls to one descriptor. Dropping it removes the descriptor; the thread closes it.
#[derive(Debug)]
pub struct Line {
    flags: Arc<Flags>,
    shared: Arc<Shared>,
}

/// The thread's part of a line. Nobody else holds it: dropping the last reference closes the
/// descriptor.
#[derive(Debug)]
struct Wire {
    fd: OwnedFd,
    kind: Kind,
    flags: Arc<Flags>,
}

#[derive(Debug, Default)]
struct Flags {
    /// A call is to be written.
    wanted: AtomicBool,
    /// The [`Line`] was dropped.
    gone: AtomicBool,
}

impl Proxy {
    /// Returns a proxy without lines and thread. `name`: the interface's.
    pub fn new(name: &str) -> Self {
        // The kernel shows 15 letters.
        Self { name: format!("calls-{name}"), shared: Mutex::default() }
    }

    /// Adds a line to `fd` of kind `kind`.
    ///
    /// # Errors
    /// [`CallError::Stuck`] if the thread is stuck in an earlier descriptor; no thread can be
    /// started; no descriptor is left.
    pub fn line(&self, fd: OwnedFd, kind: Kind) -> Result<Line, CallError> {
        let mut known = self.known();
        let shared = match known.upgrade() {
            Some(shared) => shared,
            None => {
                let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                    .map_err(io::Error::from)?;
                let (state, since_ns) = Default::default();
                let shared = Arc::new(Shared { bell, state, since_ns });
                *known = Arc::downgrade(&shared);
                shared
            }
        };
        drop(known);
        shared.check()?;
        let flags = Arc::<Flags>::default();
        let wire = Arc::new(Wire { fd, kind, flags: Arc::clone(&flags) });
        let mut state = shared.state();
        if !state.running {
            let served = Arc::clone(&shared);
            thread::Builder::new().name(self.name.clone()).spawn(move || {
                weir_sandbox::narrow(weir_sandbox::Thread::Caller);
                let serve = AssertUnwindSafe(|| served.serve());
                if catch_unwind(serve).is_err() {
                    // A panic is weir's fault, and costs its own interface only: the next line has
                    // another thread.
                    let lines = {
                        let mut state = served.state();
                        state.running = false;
                        std::mem::take(&mut state.lines)
                    };
                    // Without the lock, since closing may block. Its end also clears `since_ns`, if
                    // the panic came in a front end's hands.
                    served.in_their_hands(|| drop(lines));
                }
            })?;
            state.running = true;
        }
        state.lines.push(wire);
        drop(state);
        Ok(Line { flags, shared })
    }

    fn known(&self) -> MutexGuard<'_, Weak<Shared>> {
        self.shared.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Returns whether there are lines or the thread.
    #[cfg(test)]
    pub(crate) fn is_running(&self) -> bool {
        self.known().upgrade().is_some()
    }

    /// Returns the number of descriptors that were replaced and that the thread has not closed yet.
    pub fn unclosed(&self) -> usize {
        let Some(shared) = self.known().upgrade() else { return 0 };
        let gone = |line: &&Arc<Wire>| line.flags.gone.load(Ordering::SeqCst);
        shared.state().lines.iter().filter(gone).count()
    }

    /// Returns how long the thread has been stuck in a write (ns), if it is.
    pub fn stuck_ns(&self) -> Option<u64> {
        self.known().upgrade()?.stuck_ns()
    }
}

impl Line {
    /// Requests that a call is written, without waiting. Further calls before the write count as
    /// the same call.
    ///
    /// # Errors
    /// [`CallError::Stuck`]: the thread does not come back.
    pub fn ring(&self) -> Result<(), CallError> {
        if self.flags.wanted.swap(true, Ordering::SeqCst) {
            return self.shared.check();
        }
        self.shared.ring();
        Ok(())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.flags.gone.store(true, Ordering::SeqCst);
        self.shared.ring();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn ring(&self) {
        // This eventfd is weir's alone, so it does not block. A full counter wakes the thread as
        // well.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    fn stuck_ns(&self) -> Option<u64> {
        let since_ns = self.since_ns.load(Ordering::SeqCst);
        let stuck_ns = now_ns().saturating_sub(since_ns);
        (since_ns != 0 && stuck_ns >= CALL_STUCK_NS).then_some(stuck_ns)
    }

    #[cold]
    fn check(&self) -> Result<(), CallError> {
        self.stuck_ns().map_or(Ok(()), |ns| Err(CallError::Stuck { ms: ns / 1_000_000 }))
    }

    fn serve(&self) {
        loop {
            let mut ready = [PollFd::new(&self.bell, PollFlags::IN)];
            let _ = poll(&mut ready, None);
            let _ = rustix::io::read(&self.bell, &mut [0; 8]);
            let mut state = self.state();
            let all = std::mem::take(&mut state.lines).into_iter();
            let (gone, lines): (Vec<_>, Vec<_>) =
                all.partition(|line| line.flags.gone.load(Ordering::SeqCst));
            state.lines = lines;
            let lines = state.lines.clone();
            // A later line either finds the bell, or finds no thread and starts one.
            let over = state.lines.is_empty() && gone.is_empty();
            state.running = !over;
            drop(state);
            self.in_their_hands(|| drop(gone));
            if over {
                return;
            }
            for line in lines {
                if line.flags.wanted.swap(false, Ordering::SeqCst) {
                    self.in_their_hands(|| line.write());
                }
            }
            if self.state().lines.is_empty() {
                // Wakes the thread once more, so that it ends.
                self.ring();
            }
        }
    }

    /// Runs work that may take for ever.
    fn in_their_hands(&self, what: impl FnOnce()) {
        self.since_ns.store(now_ns(), Ordering::SeqCst);
        what();
        self.since_ns.store(0, Ordering::SeqCst);
    }
}

impl Wire {
    /// Writes the call. A full descriptor has unread calls, so one more says nothing. A descriptor
    /// whose other end is closed has no reader.
    fn write(&self) {
        let one = 1_u64.to_ne_bytes();
        if self.kind == Kind::UnixStream {
            let _ = send(&self.fd, &one, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        } else if is_writable(self.fd.as_fd()) {
            let _ = rustix::io::write(&self.fd, &one);
        }
    }
}

fn is_writable(fd: BorrowedFd<'_>) -> bool {
    let mut ready = [PollFd::from_borrowed_fd(fd, PollFlags::OUT)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut ready, Some(&at_once)) == Ok(1) && ready[0].revents().contains(PollFlags::OUT)
}

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // Neither field is ever negative, and weir does not run for centuries.
    (now.tv_sec as u64) * 1_000_000_000 + now.tv_nsec as u64
}
