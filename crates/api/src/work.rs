//! The threads that ask the switch. A request may take its time, and the thread that reads sockets does not wait for it.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};

use axum::http::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use weir_engine::beat;
use weir_limits::CONTROL_WORKERS;
use weir_switch::control::ControlHandler;

use crate::problem::Problem;

/// Name of each thread.
const NAME: &str = "weir-control-work";

type Job = Box<dyn FnOnce(&dyn ControlHandler) + Send>;

/// The threads. Dropped, they end when they have done what they do.
#[derive(Debug)]
pub(crate) struct Workers {
    jobs: Option<mpsc::Sender<Job>>,
    threads: Vec<JoinHandle<()>>,
    readers: Arc<Semaphore>,
}

/// Gives them something to do.
#[derive(Debug, Clone)]
pub(crate) struct Work {
    jobs: mpsc::Sender<Job>,
    /// One thread is left for those who may write.
    readers: Arc<Semaphore>,
}

impl Workers {
    pub(crate) fn start(handler: &Arc<dyn ControlHandler>) -> io::Result<Self> {
        let (jobs, queue) = mpsc::channel();
        let queue = Arc::new(Mutex::new(queue));
        let spawn = |_| {
            let (handler, queue) = (Arc::clone(handler), Arc::clone(&queue));
            thread::Builder::new().name(NAME.into()).spawn(move || work(&*handler, &queue))
        };
        let threads = (0..CONTROL_WORKERS).map(spawn).collect::<io::Result<_>>()?;
        let readers = Arc::new(Semaphore::new(CONTROL_WORKERS - 1));
        Ok(Self { jobs: Some(jobs), threads, readers })
    }

    pub(crate) fn work(&self) -> Option<Work> {
        Some(Work { jobs: self.jobs.clone()?, readers: Arc::clone(&self.readers) })
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

fn work(handler: &dyn ControlHandler, queue: &Mutex<mpsc::Receiver<Job>>) {
    // Whom it keeps waiting is its client.
    beat::watch_this_thread(NAME, false);
    loop {
        let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = beat::wait(next) else { return };
        if catch_unwind(AssertUnwindSafe(|| job(handler))).is_err() {
            tracing::error!("a request panicked (please report it)");
        }
    }
}

impl Work {
    /// The turn of somebody who may only read.
    pub(crate) async fn reader(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.readers).acquire_owned().await.ok()
    }

    /// Has `job` done, in this turn if it is a reader's.
    ///
    /// # Errors
    /// It panicked, or weir is ending.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        turn: Option<OwnedSemaphorePermit>,
        job: impl FnOnce(&dyn ControlHandler) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let failed = |help: &str| {
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "the request failed in weir")
                .with_help(help)
        };
        let (answer, wait) = oneshot::channel();
        let job = move |handler: &dyn ControlHandler| {
            let _turn = turn;
            // The client may have gone.
            let _ = answer.send(job(handler));
        };
        self.jobs.send(Box::new(job)).map_err(|_| failed("weir is ending"))?;
        wait.await.map_err(|_| failed("weir's log says more; please report it"))
    }
}
