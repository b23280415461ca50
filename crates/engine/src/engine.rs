//! The engine: ports, workers, and how the two are brought together while traffic flows.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use thread_priority::{
    Error as PriorityError, NormalThreadSchedulePolicy, RealtimeThreadSchedulePolicy,
    ScheduleParams, ThreadPriority, ThreadSchedulePolicy, set_thread_priority_and_policy,
    thread_native_id, thread_schedule_policy,
};
use weir_fabric::{Fabric, PortConfig, PortError, PortId, SourceGuard};
use weir_limits::WORKERS_MAX;
use weir_policy::schedule::Share;

use crate::crew::{Crew, Execution, Options, Realization, Roster};
use crate::dispatcher::{Dispatcher, Moved, set_helper};
use crate::filter::PortRules;
use crate::handle::{WokenFor, WorkerHandle};
use crate::lock::lock;
use crate::mtu::FrameLenMax;
use crate::police::Police;
use crate::poller::{QueueRef, Watch};
use crate::port::{Port, Side};
use crate::share::RateLimit;
use crate::shared::Shared;
use crate::stats::{Counter, PortCounters};
use crate::storm::{Storm, StormLimit};
use crate::switch::{Ports, Slot, slot};
use crate::worker::Worker;

/// A running switch. Dropping it stops the workers.
pub struct Engine {
    pub(crate) shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    dispatcher: Mutex<Dispatcher>,
}

/// What a worker has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerStats {
    /// Times it woke from sleep.
    pub wakeups: u64,
    /// And what for, in the order of [`WokenFor::ALL`].
    pub woken_for: [u64; WokenFor::ALL.len()],
    /// Bursts it forwarded.
    pub bursts: u64,
    /// Times it was told to look at a queue, between two bursts, though no kick had come.
    pub nudges: u64,
    /// CPU time of its thread (ns); `None` when the kernel does not say.
    pub cpu_ns: Option<u64>,
    /// The most that its timers have lately been late, and a quarter (ns): it sets them so much before a hold's
    /// end.
    pub timer_lead_ns: u64,
    /// Times that a timer was later than that: holds may have ended too late.
    pub late_timers: u64,
}

impl Engine {
    /// Starts `workers` workers, which share their work, and no port.
    pub fn start(workers: usize) -> io::Result<Arc<Self>> {
        Self::start_with(Options { workers, ..Options::default() })
    }

    /// Starts the workers, and no port.
    ///
    /// # Errors
    /// Of making threads, epoll sets and eventfds; [`io::ErrorKind::PermissionDenied`] where real-time
    /// threads are asked for and not allowed.
    pub fn start_with(options: Options) -> io::Result<Arc<Self>> {
        let workers = options.workers.clamp(1, WORKERS_MAX);
        let options = Options { workers, ..options };
        if options.execution == Execution::RtThreads {
            // By a thread that ends: this one is not to become a real-time thread.
            let tried =
                std::thread::Builder::new().spawn(|| set_priority(Priority::RealTime))?.join();
            tried.map_err(|_| io::Error::other("the attempt panicked"))??;
        }
        let engine = Arc::new(Self {
            shared: Arc::new(Shared::new(options)?),
            threads: Mutex::default(),
            dispatcher: Mutex::new(Dispatcher::new(options)),
        });
        if !options.per_pair() {
            for _ in 0..workers {
                engine.hire()?;
            }
        }
        Ok(engine)
    }

    /// Starts one worker more, and says its number; `None` if there are as many as there may be.
    fn hire(&self) -> io::Result<Option<usize>> {
        let mut threads = self.threads.lock().unwrap_or_else(|e| e.into_inner());
        let Some((index, handle)) = self.shared.crew.add()? else { return Ok(None) };
        let shared = Arc::clone(&self.shared);
        let real_time = self.shared.crew.options.execution == Execution::RtThreads;
        let run = move || {
            if real_time && let Err(error) = set_priority(Priority::RealTime) {
                // It was allowed at the start.
                tracing::warn!(worker = index, %error, "no real-time priority: the worker runs as an ordinary thread");
            }
            weir_sandbox::narrow(weir_sandbox::Thread::Worker);
            Worker::new(shared, index, handle).run();
        };
        let thread = std::thread::Builder::new().name(format!("weir-worker-{index}")).spawn(run)?;
        threads.push(thread);
        Ok(Some(index))
    }

    /// How its work is done.
    pub fn options(&self) -> Options {
        self.shared.crew.options
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
        let slot = Slot::new(Arc::clone(&port) as Arc<dyn Port>, counters);
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

    /// The ports as workers see them now, by number.
    pub fn ports(&self) -> Arc<Ports> {
        self.shared.ports.load_full()
    }

    /// Takes a port out. Bursts under way may still reach it until they end.
    pub fn remove_port(&self, id: PortId) {
        let mut gone = None;
        let mut captured = lock(&self.shared.captured);
        captured.forget(id);
        self.shared.ports.rcu(|ports| {
            let mut ports = Ports::clone(ports);
            gone = ports.get_mut(id.index()).and_then(Option::take);
            ports
        });
        drop(captured);
        if let Some(slot) = gone {
            self.shared.crew.release(id, &slot.pairs);
        }
        self.shared.shares.set(id, Share::default(), RateLimit::NONE);
        // A port that is not there was removed before: the same end.
        let _ = self.shared.fabric.remove_port(id);
    }

    /// Replaces a port's filters between bursts. Does nothing without such a port.
    pub fn set_rules(&self, id: PortId, rules: &PortRules) {
        self.shared.change(id, |slot| slot.rules = rules.clone());
    }

    /// Sets a port's share of each worker, and its sending rate, until it is removed. The default is weight 1
    /// without limit.
    pub fn set_share(&self, id: PortId, share: Share, limit: RateLimit) {
        self.shared.shares.set(id, share, limit);
        // One that sleeps until a port may send again may not have to.
        for worker in self.shared.crew.iter() {
            worker.poller.wake();
        }
    }

    /// Limits what a port may receive from now on, starting with full buckets: excess frames are dropped and
    /// counted there ([`DropReason::PolicedRx`](crate::stats::DropReason::PolicedRx)). Does nothing without such a
    /// port.
    pub fn set_receive_limit(&self, id: PortId, limit: RateLimit) {
        let police = Police::new(limit).map(Arc::new);
        self.shared.change(id, |slot| slot.police.clone_from(&police));
    }

    /// Sets how much a port may have flooded. Its buckets are full.
    pub fn set_storm_limit(&self, id: PortId, limit: StormLimit) {
        let storm = Storm::new(limit).map(Arc::new);
        self.shared.change(id, |slot| slot.storm.clone_from(&storm));
    }

    /// Sets a port's MTU (bytes): longer frames either way are dropped, and counted there. A GSO frame counts by
    /// its segments.
    pub fn set_mtu(&self, id: PortId, mtu: Option<u16>) {
        self.shared.change(id, |slot| slot.frame_len_max = FrameLenMax::of_mtu(mtu));
    }

    /// Replaces a port's source guard between bursts. DHCP answers from the port count if it `gives_leases`, as an
    /// uplink always does.
    pub fn set_source_guard(
        &self,
        id: PortId,
        guard: Option<Arc<SourceGuard>>,
        gives_leases: bool,
    ) {
        self.shared.change(id, |slot| {
            slot.guard.clone_from(&guard);
            slot.gives_leases = gives_leases || slot.port.is_uplink();
        });
    }

    /// Watches `kick` for a queue of a port, until the result is dropped.
    ///
    /// # Errors
    /// Of adding it to a worker's epoll set, or of starting a worker for it; there is no such port.
    pub fn watch(&self, queue: QueueRef, kick: OwnedFd) -> io::Result<Watch> {
        self.with_worker(queue, |roster, worker| Crew::watch(roster, worker, queue, kick))?
    }

    /// Makes a queue's worker look at it without a kick.
    pub fn nudge(&self, queue: QueueRef) {
        // A port that is gone has nothing to look at.
        let _ = self.with_worker(queue, |_, worker| worker.poller.nudge(queue));
    }

    /// Both queues of a pair have one worker.
    fn with_worker<T>(
        &self,
        queue: QueueRef,
        then: impl FnOnce(&mut Roster, &WorkerHandle) -> T,
    ) -> io::Result<T> {
        let crew = &self.shared.crew;
        let mut roster = crew.roster();
        // Under the lock: a port that has been removed gets no worker any more.
        let ports = self.shared.ports.load();
        let pair = slot(&ports, queue.port).and_then(|slot| slot.pairs.get(queue.queue));
        let pair = pair.ok_or_else(|| io::Error::other("there is no such queue"))?;
        let worker = crew.worker_of(&mut roster, pair, queue, || self.hire())?;
        Ok(then(&mut roster, worker))
    }

    /// Whether queues move between workers by load: then call [`Engine::dispatch`] regularly under traffic.
    pub fn dispatches(&self) -> bool {
        self.shared.crew.options.aim().is_some()
    }

    /// Moves queues between workers, by how busy they kept them since the last call.
    pub fn dispatch(&self, now_ns: u64) {
        let mut dispatcher = self.dispatcher.lock().unwrap_or_else(|e| e.into_inner());
        dispatcher.step(&self.shared, now_ns);
    }

    /// The last queues that moved, the latest first, and how many have in all.
    pub fn moved(&self) -> (Vec<Moved>, u64) {
        let dispatcher = self.dispatcher.lock().unwrap_or_else(|e| e.into_inner());
        dispatcher.moved()
    }

    /// Gives a pair of queues to another worker, while traffic flows.
    ///
    /// # Errors
    /// Of watching its kick there; nothing has changed then.
    pub fn assign(&self, port: PortId, queue: usize, worker: usize) -> io::Result<()> {
        let ports = self.shared.ports.load();
        let Some(slot) = slot(&ports, port) else { return Ok(()) };
        self.shared.crew.assign(&slot.pairs, port, queue, worker)
    }

    /// Sets or removes a `helper` beside a queue pair's worker, under traffic. `false`, and no change, where the
    /// port's queues are for one worker at a time.
    pub fn set_helper(&self, port: PortId, queue: usize, helper: Option<usize>) -> bool {
        let ports = self.shared.ports.load();
        slot(&ports, port).is_some_and(|slot| {
            set_helper(&self.shared.crew, slot, QueueRef { port, queue, side: Side::Tx }, helper)
        })
    }

    /// The present or first worker of a queue pair; `None` without such a pair, or if its worker is yet to be made.
    pub fn worker_of(&self, port: PortId, queue: usize) -> Option<usize> {
        let ports = self.shared.ports.load();
        let pair = slot(&ports, port)?.pairs.get(queue)?;
        pair.worker().or_else(|| self.shared.crew.first_worker(port, queue))
    }

    /// Each worker's thread, by number; `None` for one that does not run yet.
    pub fn worker_threads(&self) -> Vec<Option<u32>> {
        let thread = |worker: &Arc<WorkerHandle>| match worker.thread_id.load(Ordering::Relaxed) {
            0 => None,
            id => Some(id),
        };
        self.shared.crew.iter().map(thread).collect()
    }

    /// What each worker has done.
    pub fn workers(&self) -> Vec<WorkerStats> {
        let stats = |worker: &Arc<WorkerHandle>| WorkerStats {
            wakeups: worker.wakeups(),
            woken_for: worker.woken_for.each_ref().map(Counter::get),
            bursts: worker.bursts.get(),
            nudges: worker.nudges.get(),
            cpu_ns: thread_cpu_ns(worker.thread_id.load(Ordering::Relaxed)),
            timer_lead_ns: worker.timer_lead_ns.load(Ordering::Relaxed),
            late_timers: worker.late_timers.get(),
        };
        self.shared.crew.iter().map(stats).collect()
    }

    /// Whether workers let frames wait for others: with cores of their own they look all the time.
    pub fn naps(&self) -> bool {
        self.shared.crew.options.realization != Realization::Dedicated
    }

    /// Wake-ups of all workers together. It stands still without traffic, or with so much that no worker sleeps.
    pub fn wakeups(&self) -> u64 {
        self.shared.crew.iter().map(|worker| worker.wakeups()).sum()
    }

    /// Makes the next worker that wakes from sleep ring [`Engine::bell`], once. For one thread at a time, which saw
    /// no traffic at [`Engine::wakeups`] = `seen`; `false`, and no ring, if a worker has woken up since.
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

impl Engine {
    /// Has workers that are [held](Options::held) serve.
    pub fn open(&self) {
        self.shared.gate.open();
    }

    /// Ends the workers, each behind its burst. Rings and devices stay as they are, for another process to go on with.
    pub fn halt(&self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        self.shared.gate.open();
        for worker in self.shared.crew.iter() {
            worker.poller.wake();
        }
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(|e| e.into_inner()));
        for thread in threads {
            // A worker that panicked has said so on standard error.
            let _ = thread.join();
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.halt();
    }
}

/// Whom a thread comes before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// Nobody: all share their CPUs.
    Usual,
    /// All but other real-time threads (`SCHED_FIFO`, the lowest priority that there is).
    RealTime,
}

/// Gives a priority to this thread, and to those that it starts from now on.
///
/// # Errors
/// That of `sched_setscheduler`: who may not.
pub fn set_priority(priority: Priority) -> io::Result<()> {
    let (policy, level) = match priority {
        Priority::Usual => (ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Other), 0),
        Priority::RealTime => {
            (ThreadSchedulePolicy::Realtime(RealtimeThreadSchedulePolicy::Fifo), 1)
        }
    };
    let level = ThreadPriority::from_posix(ScheduleParams { sched_priority: level });
    set_thread_priority_and_policy(thread_native_id(), level, policy).map_err(|error| match error {
        PriorityError::OS(code) => io::Error::from_raw_os_error(code),
        other => io::Error::other(format!("{other:?}")),
    })
}

/// Whether this thread has a real-time priority.
pub fn is_real_time() -> bool {
    matches!(thread_schedule_policy(), Ok(ThreadSchedulePolicy::Realtime(_)))
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

    fn rings(engine: &Engine, timeout: Option<&Timespec>) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(engine.bell(), PollFlags::IN)];
        poll(&mut fds, timeout).unwrap() > 0
    }

    #[test]
    fn the_bell_rings_once_when_a_worker_wakes_up() {
        const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
        // A second one could wake up late, and ring for what is asked next.
        let engine = Engine::start(1).unwrap();
        let wake = || engine.shared.crew.iter().for_each(|worker| worker.poller.wake());
        let seen = engine.wakeups();
        assert!(engine.ring_at_traffic(seen));
        assert!(!rings(&engine, Some(&NOW)));
        wake();
        assert!(rings(&engine, None));
        assert!(engine.wakeups() > seen);
        // Who has not seen that wake-up is not to wait for the next.
        assert!(!engine.ring_at_traffic(seen));
        assert!(!rings(&engine, Some(&NOW)));
        // When it wakes up for the second time it is done with the first.
        for _ in 0..2 {
            let woken = engine.wakeups();
            wake();
            while engine.wakeups() == woken {
                std::thread::yield_now();
            }
        }
        assert!(!rings(&engine, Some(&NOW)), "nobody asked");
    }
}
