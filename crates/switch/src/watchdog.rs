//! The watchdog: a thread that finds threads which make no progress while they have work.
//!
//! Each thread reports its activity by its beats ([`weir_engine::beat`]). A thread that reports the same for too
//! long, and does not sleep, is stalled: the log and `weir stats` name it, its activity and its state in the kernel.
//! The service manager gets a sign of life while any worker moves packets, and restarts weir when none does
//! (`WatchdogSec=` of systemd).
//!
//! | file | content |
//! |---|---|
//! | `judge.rs` | the decision which threads are stalled; pure |
//! | `kernel.rs` | a thread's state in the kernel |
//! | `service.rs` | messages to the service manager |

use std::io;
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use weir_engine::{beat, clock, panicked};
use weir_limits::{STANDS_STILL_NS, WATCHDOG_LOOK_NS};

use judge::{Judge, Verdict};

mod judge;
mod kernel;
mod service;
#[cfg(test)]
mod tests;

pub(crate) use judge::Still;
pub use service::Service;

/// The stalled threads, as of the last look.
static STILL: Mutex<Vec<Still>> = Mutex::new(Vec::new());

/// The stalled threads, as of the last look.
pub(crate) fn still() -> Vec<Still> {
    STILL.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// The watchdog's thread. Dropping this ends it.
#[derive(Debug)]
pub struct Watchdog {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Starts the thread. It tells `service` that weir is alive as often as the service manager requires, and calls
    /// `also` at each look.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(service: Service, mut also: impl FnMut() + Send + 'static) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel::<()>();
        let look = Duration::from_nanos(WATCHDOG_LOOK_NS);
        // With three messages in each period, two can be late or lost.
        let every = service.wants_news_every().map_or(look, |most| look.min(most / 3));
        let run = move || {
            let mut judge = Judge::new(every, Duration::from_nanos(STANDS_STILL_NS));
            while let Err(mpsc::RecvTimeoutError::Timeout) = stopped.recv_timeout(every) {
                let verdict = judge.look(clock::now_ns(), &beat::seen());
                let ended = panicked().values().any(|thread| thread.ended);
                if verdict.packets_move && !ended {
                    service.is_alive();
                }
                report(verdict);
                also();
            }
        };
        let thread = std::thread::Builder::new().name("weir-watchdog".into()).spawn(run)?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn report(verdict: Verdict) {
    let Verdict { mut still, went_on, .. } = verdict;
    let mut known = STILL.lock().unwrap_or_else(PoisonError::into_inner);
    for thread in &mut still {
        let before = known.iter().find(|it| it.id == thread.id);
        thread.kernel = match before {
            Some(before) => before.kernel.clone(),
            None => kernel::says(thread.id),
        };
        if before.is_none() {
            tracing::error!(
                thread = thread.name,
                seconds = thread.ns / 1_000_000_000,
                does = thread.place.as_str(),
                port = thread.port.map(|port| port.to_string()),
                waits_for = thread.party,
                kernel = thread.kernel,
                "a thread stands still"
            );
        }
    }
    for name in went_on {
        tracing::warn!(thread = name, "a thread that stood still goes on");
    }
    *known = still;
}
