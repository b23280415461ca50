//! A guest that connects again and again: the time until it is served.

use std::{
    os::fd::AsFd,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crate::front::{
    Strike,
    guest::{Guest, Plan},
    link::request,
};

/// Pause between two visits: weir limits a socket to ten front ends a second.
const PAUSE: Duration = Duration::from_millis(125);

/// The start of a visit, and the time until its rings were ready.
#[derive(Clone, Copy, Debug)]
pub struct Visit {
    /// The time of the connection.
    pub at: Instant,
    /// Time until weir had acknowledged the last message.
    pub took: Duration,
    /// True if it was served at all.
    pub served: bool,
}

/// A guest that connects and disconnects until it is dropped.
#[derive(Debug)]
pub struct Newcomer {
    visits: Arc<Mutex<Vec<Visit>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Newcomer {
    /// Starts the visits.
    pub fn start(socket: PathBuf) -> Self {
        let (visits, stop) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (all, over) = (Arc::clone(&visits), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                let visit = visit(&socket);
                all.lock().unwrap_or_else(PoisonError::into_inner).push(visit);
                std::thread::sleep(PAUSE);
            }
        });
        Self { visits, stop, thread: Some(thread) }
    }

    /// Ends the visits and returns them all.
    pub fn end(mut self) -> Vec<Visit> {
        self.join();
        std::mem::take(&mut self.visits.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn join(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Newcomer {
    fn drop(&mut self) {
        self.join();
    }
}

/// Connects and sends all messages of a front end until its rings are ready.
pub fn visit(socket: &Path) -> Visit {
    let at = Instant::now();
    let served = come(socket).is_ok();
    Visit { at, took: at.elapsed(), served }
}

fn come(socket: &Path) -> Strike {
    let plan = Plan { memory: 4 << 20, ..Plan::default() };
    let guest = Guest::negotiate(socket, plan)?;
    guest.share()?;
    for ring in 0..guest.rings() {
        guest.serve(ring)?;
    }
    let call = guest.calls.first().map(AsFd::as_fd);
    let acked = guest.link.acked(request::SET_VRING_CALL, &0_u64.to_le_bytes(), call.as_slice())?;
    if acked == 0 { Ok(()) } else { crate::front::harm("a newcomer's call descriptor is refused") }
}
