//! A guest: a vhost-user driver with a thread that is one end of the traffic.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, JoinHandle};

use weir_limits::QUEUE_SIZE_SUGGESTED;
use weir_vif::load::{LoadError, LoadStats};
use weir_vif::{Features, Options, QueuePair, Vif};

use super::load::{Load, Role};
use super::{RigError, Setup, pin};

/// A guest whose interface is connected, and that does nothing yet.
pub(super) struct IdleGuest {
    role: Role,
    vif: Vif,
    pair: QueuePair,
}

impl IdleGuest {
    /// Connects to the switch at `socket`, with an interface as `setup` wants it.
    pub(super) fn connect(role: Role, setup: &Setup, socket: &Path) -> Result<Self, RigError> {
        let mut options = Options {
            queue_size: QUEUE_SIZE_SUGGESTED,
            containers: setup.containers,
            ..Options::new(role.station().mac)
        };
        if setup.packed {
            options.features = options.features | Features::RING_PACKED;
            options.required = options.required | Features::RING_PACKED;
        }
        let connect_error = |source| RigError::Connect { guest: role.name(), source };
        let mut vif = Vif::connect(socket, &options).map_err(connect_error)?;
        let pair = vif.queue_pairs().remove(0);
        Ok(Self { role, vif, pair })
    }

    /// Starts the guest's end of the traffic, on this processor if there is one to name.
    pub(super) fn start(self, load: Load, cpu: Option<usize>) -> Result<Guest, RigError> {
        let Self { role, vif, mut pair } = self;
        let stats = Arc::new(LoadStats::default());
        let stop = Arc::new(AtomicBool::new(false));
        let thread_id = Arc::new(AtomicU32::new(0));
        let thread = thread::Builder::new()
            .name(format!("guest-{}", role.name()))
            .spawn({
                let (stats, stop) = (Arc::clone(&stats), Arc::clone(&stop));
                let thread_id = Arc::clone(&thread_id);
                move || {
                    let tid = rustix::thread::gettid().as_raw_nonzero().get();
                    thread_id.store(tid.unsigned_abs(), Ordering::Relaxed);
                    if let Some(cpu) = cpu {
                        pin(None, cpu);
                    }
                    load.run(role, &mut pair, &stats, &stop)
                }
            })
            .map_err(|source| RigError::Thread { guest: role.name(), source })?;
        Ok(Guest { role, stats, stop, thread_id, thread: Some(thread), _vif: vif })
    }
}

/// A guest at work. Dropping it ends its thread, then its session.
pub struct Guest {
    role: Role,
    /// What its end of the traffic measures.
    pub stats: Arc<LoadStats>,
    stop: Arc<AtomicBool>,
    thread_id: Arc<AtomicU32>,
    thread: Option<JoinHandle<Result<(), LoadError>>>,
    _vif: Vif,
}

impl Guest {
    /// Time its thread had on a CPU until now, ns; 0 where the kernel does not say.
    pub fn cpu_ns(&self) -> u64 {
        let tid = self.thread_id.load(Ordering::Relaxed);
        weir_engine::thread_cpu_ns(tid).unwrap_or(0)
    }

    /// Whether its thread has ended, which nobody asked it to.
    pub(super) fn has_failed(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Asks its thread to end, and does not wait.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Waits for its thread to end.
    pub(super) fn finish(mut self) -> Result<(), RigError> {
        self.stop();
        match self.thread.take().map(JoinHandle::join) {
            None | Some(Ok(Ok(()))) => Ok(()),
            Some(Ok(Err(source))) => Err(RigError::Load { guest: self.role.name(), source }),
            Some(Err(panic)) => std::panic::resume_unwind(panic),
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            // Whoever drops it unfinished has another error to tell of.
            let _ = thread.join();
        }
    }
}
