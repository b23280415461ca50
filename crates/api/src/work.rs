//! The threads that ask the switch. A request can take long, and the thread that reads sockets does not wait for it.

use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError, Weak, mpsc};
use std::thread::{self, JoinHandle};

use axum::http::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use weir_engine::{beat, logs::Logs};
use weir_limits::{CONTROL_COMPILES, CONTROL_READERS, CONTROL_WORKERS};
use weir_switch::control::ControlHandler;

use crate::access::Caller;
use crate::problem::Problem;

/// Name of each thread.
const NAME: &str = "weir-control-work";

type Job = Box<dyn FnOnce(&dyn ControlHandler) + Send>;

/// The queues of the threads for readers, and of the others.
#[derive(Debug, Clone)]
struct Jobs {
    reads: mpsc::Sender<Job>,
    others: mpsc::Sender<Job>,
}

/// The threads. Once this is dropped they finish their present jobs and end.
#[derive(Debug)]
pub(crate) struct Workers {
    jobs: Option<Jobs>,
    threads: Vec<JoinHandle<()>>,
    turns: Arc<Turns>,
}

/// Gives the threads jobs.
#[derive(Debug, Clone)]
pub(crate) struct Work {
    jobs: Jobs,
    turns: Arc<Turns>,
}

/// The kinds of requests of which only a few run at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// A request of a caller that may only read.
    Read,
    /// A request of a caller that may write.
    Write,
    /// A request with a configuration, or with expressions, which take as long as libpcap does.
    Compile,
}

/// The turns to use a thread. Each kind of request has a limit, which leaves threads for the other
/// kinds. Each caller that only reads, or compiles, has a limit as well: a caller with many
/// requests waits for its own requests.
#[derive(Debug)]
struct Turns {
    reads: Arc<Semaphore>,
    writes: Arc<Semaphore>,
    compiles: Arc<Semaphore>,
    of_callers: Mutex<BTreeMap<(Kind, Caller), Weak<Semaphore>>>,
}

/// A turn. When it is dropped, the next request gets it.
#[derive(Debug)]
pub(crate) struct Turn {
    kind: Kind,
    // The thread is free first; then the caller's next request may come.
    _thread: OwnedSemaphorePermit,
    _caller: Option<OwnedSemaphorePermit>,
}

impl Turns {
    fn new() -> Self {
        let semaphore = |places| Arc::new(Semaphore::new(places));
        Self {
            reads: semaphore(CONTROL_READERS),
            writes: semaphore(CONTROL_WORKERS - CONTROL_READERS),
            compiles: semaphore(CONTROL_COMPILES),
            of_callers: Mutex::default(),
        }
    }

    fn of_caller(&self, kind: Kind, caller: Caller) -> Arc<Semaphore> {
        let mut all = self.of_callers.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, turn| turn.strong_count() > 0);
        if let Some(turn) = all.get(&(kind, caller)).and_then(Weak::upgrade) {
            return turn;
        }
        let turn = Arc::new(Semaphore::new(1));
        all.insert((kind, caller), Arc::downgrade(&turn));
        turn
    }

    /// Waits for the caller's own requests before it waits for others'.
    async fn next(&self, kind: Kind, caller: Caller) -> Option<Turn> {
        let (threads, is_shared) = match kind {
            Kind::Read => (&self.reads, true),
            Kind::Write => (&self.writes, false),
            Kind::Compile => (&self.compiles, true),
        };
        let caller = match is_shared {
            true => Some(self.of_caller(kind, caller).acquire_owned().await.ok()?),
            false => None,
        };
        let thread = Arc::clone(threads).acquire_owned().await.ok()?;
        Some(Turn { kind, _thread: thread, _caller: caller })
    }
}

impl Workers {
    pub(crate) fn start(handler: &Arc<dyn ControlHandler>) -> io::Result<Self> {
        let ((reads, to_read), (others, to_do)) = (mpsc::channel(), mpsc::channel());
        let logs = Arc::<Logs<1>>::default();
        let queues = [to_read, to_do].map(|queue| Arc::new(Mutex::new(queue)));
        let spawn = |number| {
            let queue = Arc::clone(&queues[usize::from(number >= CONTROL_READERS)]);
            let handler = Arc::clone(handler);
            let logs = Arc::clone(&logs);
            let run = move || work(&*handler, &queue, &logs);
            thread::Builder::new().name(NAME.into()).spawn(run)
        };
        let threads = (0..CONTROL_WORKERS).map(spawn).collect::<io::Result<_>>()?;
        let jobs = Some(Jobs { reads, others });
        Ok(Self { jobs, threads, turns: Arc::new(Turns::new()) })
    }

    pub(crate) fn work(&self) -> Option<Work> {
        Some(Work { jobs: self.jobs.clone()?, turns: Arc::clone(&self.turns) })
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.jobs.take();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn work(handler: &dyn ControlHandler, queue: &Mutex<mpsc::Receiver<Job>>, logs: &Logs<1>) {
    // A slow request holds up only its client.
    beat::watch_this_thread(NAME, beat::Role::Own);
    loop {
        let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = beat::wait(next) else { return };
        #[cfg(test)]
        let _counted = tests::Turn::begin();
        if catch_unwind(AssertUnwindSafe(|| job(handler))).is_err() {
            logs.say(0, |unsaid| {
                tracing::error!(unsaid, "a request panicked (please report it)");
            });
        }
    }
}

impl Work {
    /// Waits for the caller's turn for a request of this kind.
    pub(crate) async fn turn(&self, kind: Kind, caller: Caller) -> Option<Turn> {
        self.turns.next(kind, caller).await
    }

    /// Runs `job` on a thread, in this turn. Without a turn, a thread for readers runs it.
    ///
    /// # Errors
    /// The job panicked, or weir is ending.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        turn: Option<Turn>,
        caller: Option<Caller>,
        job: impl FnOnce(&dyn ControlHandler) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let failed = |help: &str| {
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "the request failed in weir")
                .with_help(help)
        };
        let (answer, wait) = oneshot::channel();
        let jobs = match turn.as_ref().map_or(Kind::Read, |turn| turn.kind) {
            Kind::Read => &self.jobs.reads,
            Kind::Write | Kind::Compile => &self.jobs.others,
        };
        let job = move |handler: &dyn ControlHandler| {
            let is_dear = turn.as_ref().is_some_and(|turn| turn.kind == Kind::Compile);
            let _turn = turn;
            // The client may have disconnected.
            let done = match caller {
                Some(caller) => beat::serving(|| caller.to_string(), || job(handler)),
                None => job(handler),
            };
            let _ = answer.send(done);
            if is_dear {
                weir_config::give_back();
            }
        };
        jobs.send(Box::new(job)).map_err(|_| failed("weir is ending"))?;
        wait.await.map_err(|_| failed("weir's log says more; please report it"))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use weir_engine::dear::thread_cpu_ns;

    use super::*;

    /// The number of turns, and the CPU time of the longest one (ns).
    pub(crate) static TURNS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

    /// A turn of a thread, from its beginning to the drop of the value.
    pub(super) struct Turn(u64);

    impl Turn {
        pub(super) fn begin() -> Self {
            Self(thread_cpu_ns())
        }
    }

    impl Drop for Turn {
        fn drop(&mut self) {
            TURNS[0].fetch_add(1, Ordering::SeqCst);
            TURNS[1].fetch_max(thread_cpu_ns() - self.0, Ordering::SeqCst);
        }
    }

    fn now<T>(future: impl Future<Output = T>) -> Option<T> {
        let mut future = std::pin::pin!(future);
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match future.as_mut().poll(&mut context) {
            std::task::Poll::Ready(ready) => Some(ready),
            std::task::Poll::Pending => None,
        }
    }

    #[test]
    fn a_caller_has_one_turn_of_each_kind_and_keeps_no_other_caller_waiting() {
        let turns = Turns::new();
        let [a, b] = [1, 2].map(Caller::User);
        for kind in [Kind::Read, Kind::Compile] {
            let first = now(turns.next(kind, a)).unwrap();
            assert!(now(turns.next(kind, a)).is_none(), "{kind:?}");
            assert!(now(turns.next(kind, b)).is_some(), "{kind:?}");
            drop(first);
            assert!(now(turns.next(kind, a)).is_some(), "{kind:?}");
        }
        assert!(
            turns.of_callers.lock().unwrap().len() <= 1,
            "callers without a turn are forgotten"
        );
    }

    #[test]
    fn all_turns_together_leave_a_thread_for_requests_that_need_none() {
        let turns = Turns::new();
        let mut taken = Vec::new();
        for kind in [Kind::Read, Kind::Compile] {
            taken.extend((0..64).map_while(|user| now(turns.next(kind, Caller::User(user)))));
        }
        assert_eq!(taken.len(), CONTROL_READERS + CONTROL_COMPILES);
        assert!(taken.len() < CONTROL_WORKERS);
    }
}
