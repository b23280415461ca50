//! The engine: ports, workers, and how the two are brought together while traffic flows.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use weir_fabric::{Fabric, PortConfig, PortError, PortId};

use crate::poller::{QueueRef, Watch};
use crate::port::Port;
use crate::shared::{Shared, WorkerHandle};
use crate::stats::PortCounters;
use crate::switch::{Ports, Slot};
use crate::worker::Worker;

/// A running switch. Dropping it stops the workers.
pub struct Engine {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// What a worker has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerStats {
    /// Times it woke from sleep.
    pub wakeups: u64,
    /// Bursts it forwarded.
    pub bursts: u64,
    /// CPU time of its thread (ns); `None` when the kernel does not say.
    pub cpu_ns: Option<u64>,
    /// How late its timers have lately been at most (ns): it sets them so much before a hold's end.
    pub timer_lead_ns: u64,
    /// Times that a timer was later than that: holds may have ended too late.
    pub late_timers: u64,
}

impl Engine {
    /// Starts `workers` workers and no port.
    pub fn start(workers: usize) -> io::Result<Arc<Self>> {
        let shared = Arc::new(Shared::new(workers.max(1))?);
        let engine =
            Arc::new(Self { shared: Arc::clone(&shared), threads: Mutex::new(Vec::new()) });
        for index in 0..shared.workers.len() {
            let shared = Arc::clone(&shared);
            let thread = std::thread::Builder::new()
                .name(format!("weir-worker-{index}"))
                .spawn(move || Worker::new(shared, index).run())?;
            engine.threads.lock().unwrap_or_else(|e| e.into_inner()).push(thread);
        }
        Ok(engine)
    }

    /// The forwarding rules.
    pub fn fabric(&self) -> &Fabric {
        &self.shared.fabric
    }

    /// Adds a port that `make` builds, given its number and counters.
    pub fn add_port<P: Port + 'static>(
        &self,
        config: PortConfig,
        make: impl FnOnce(PortId, Arc<PortCounters>) -> Arc<P>,
    ) -> Result<(PortId, Arc<P>), PortError> {
        let id = self.shared.fabric.add_port(config)?;
        let counters = Arc::new(PortCounters::default());
        let port = make(id, Arc::clone(&counters));
        let slot = Slot { port: Arc::clone(&port) as Arc<dyn Port>, counters };
        self.shared.ports.rcu(|ports| {
            let mut ports = Ports::clone(ports);
            if ports.len() <= id.index() {
                ports.resize(id.index() + 1, None);
            }
            ports[id.index()] = Some(slot.clone());
            ports
        });
        Ok((id, port))
    }

    /// Takes a port out. Bursts under way may still reach it until they end.
    pub fn remove_port(&self, id: PortId) {
        self.shared.ports.rcu(|ports| {
            let mut ports = Ports::clone(ports);
            if let Some(slot) = ports.get_mut(id.index()) {
                *slot = None;
            }
            ports
        });
        // A port that is not there was removed before: the same end.
        let _ = self.shared.fabric.remove_port(id);
    }

    /// Watches `kick` for a queue of a port, until the result is dropped.
    pub fn watch(&self, queue: QueueRef, kick: OwnedFd) -> io::Result<Watch> {
        self.worker_of(queue).poller.watch(kick, queue)
    }

    /// Makes a queue's worker look at it without a kick.
    pub fn nudge(&self, queue: QueueRef) {
        self.worker_of(queue).poller.nudge(queue);
    }

    /// Both queues of a pair have one worker.
    fn worker_of(&self, queue: QueueRef) -> &WorkerHandle {
        let workers = &self.shared.workers;
        &workers[(queue.port.index() + queue.queue) % workers.len()]
    }

    /// What each worker has done.
    pub fn workers(&self) -> Vec<WorkerStats> {
        let stats = |worker: &WorkerHandle| WorkerStats {
            wakeups: worker.wakeups.get(),
            bursts: worker.bursts.get(),
            cpu_ns: thread_cpu_ns(worker.thread_id.load(Ordering::Relaxed)),
            timer_lead_ns: worker.timer_lead_ns.load(Ordering::Relaxed),
            late_timers: worker.late_timers.get(),
        };
        self.shared.workers.iter().map(stats).collect()
    }

    /// Times that workers woke from sleep, all together. While it stands still there is no traffic, or
    /// so much that no worker sleeps.
    pub fn wakeups(&self) -> u64 {
        self.shared.workers.iter().map(|worker| worker.wakeups.get()).sum()
    }

    /// Makes [`Engine::bell`] ring when a worker wakes from sleep, once. For one thread at a time, which
    /// found no traffic while [`Engine::wakeups`] was `seen`; `false` if a worker woke up since then, and
    /// nothing will ring.
    pub fn ring_at_traffic(&self, seen: u64) -> bool {
        self.shared.activity.ask();
        let quiet = self.wakeups() == seen;
        if !quiet {
            self.shared.activity.withdraw();
        }
        quiet
    }

    /// Readable once it rang, until [`Engine::ring_at_traffic`] is called again.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.shared.activity.bell()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        for worker in &self.shared.workers {
            worker.poller.wake();
        }
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(|e| e.into_inner()));
        for thread in threads {
            // A worker that panicked has said so on standard error.
            let _ = thread.join();
        }
    }
}

/// CPU time (ns) of a thread of this process; `None` when it has ended or the kernel does not say.
///
/// From `/proc/self/task/TID/schedstat`: time on a CPU, time waiting for one, time slices.
pub fn thread_cpu_ns(tid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/self/task/{tid}/schedstat")).ok()?;
    text.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;
    use crate::port::Side;

    fn rings(engine: &Engine, timeout: Option<&Timespec>) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(engine.bell(), PollFlags::IN)];
        poll(&mut fds, timeout).unwrap() > 0
    }

    #[test]
    fn the_bell_rings_once_when_a_worker_wakes_up() {
        const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
        let engine = Engine::start(2).unwrap();
        let queue = QueueRef { port: PortId::new(1).unwrap(), queue: 0, side: Side::Tx };
        let seen = engine.wakeups();
        assert!(engine.ring_at_traffic(seen));
        assert!(!rings(&engine, Some(&NOW)));
        engine.nudge(queue);
        assert!(rings(&engine, None));
        assert!(engine.wakeups() > seen);
        // Who has not seen that wake-up is not to wait for the next.
        assert!(!engine.ring_at_traffic(seen));
        assert!(!rings(&engine, Some(&NOW)));
        let woken = engine.wakeups();
        engine.nudge(queue);
        while engine.wakeups() == woken {
            std::thread::yield_now();
        }
        assert!(!rings(&engine, Some(&NOW)), "nobody asked");
    }
}
