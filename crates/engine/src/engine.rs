//! The engine: ports and workers, which can be added, moved and removed while traffic flows.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use thread_priority::{
    Error as PriorityError, NormalThreadSchedulePolicy, RealtimeThreadSchedulePolicy,
    ScheduleParams, ThreadPriority, ThreadSchedulePolicy, set_thread_priority_and_policy,
    thread_native_id, thread_schedule_policy,
};
use weir_fabric::{Fabric, PortConfig, PortError, PortId};
use weir_limits::WORKERS_MAX;
use weir_policy::schedule::{Kind, Share};

use crate::frames::inbox::Inbox;
use crate::frames::port::QueueRef;
use crate::frames::port::{Port, Side};
use crate::frames::stats::{Counter, PortCounters};
use crate::switching::groups::PortGroups;
use crate::switching::limits::RateLimit;
use crate::switching::settings::PortSettings;
use crate::switching::switch::{Ports, Slot, slot};
use crate::threads::clock;
use crate::threads::lock::lock;
use crate::threads::slice;
use crate::working::crew::{Crew, Execution, Options, Realization, Roster};
use crate::working::crew::{WokenFor, WorkerHandle};
use crate::working::dispatcher::{Dispatcher, Moved, set_helper};
use crate::working::poller::Watch;
use crate::working::shared::Shared;
use crate::working::stalls::Retry;
use crate::working::worker::Worker;

/// The interval at which ending workers are checked while guests wait for the next weir.
const HALT_LOOK: Duration = Duration::from_micros(100);
/// The time that a worker has to end its burst before settings that belong together change.
const FENCE_PATIENCE: Duration = Duration::from_millis(500);

/// A running switch. Dropping it stops the workers.
pub struct Engine {
    pub(crate) shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    dispatcher: Mutex<Dispatcher>,
}

/// The counts of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerStats {
    /// Number of times that the worker woke from sleep.
    pub wakeups: u64,
    /// The worker's wake-ups by cause, in the order of [`WokenFor::ALL`].
    pub woken_for: [u64; WokenFor::ALL.len()],
    /// Number of bursts that the worker forwarded.
    pub bursts: u64,
    /// Number of times that the worker was nudged to poll a queue, between two bursts, without a kick.
    pub nudges: u64,
    /// CPU time of the worker's thread (ns); `None` if the kernel does not report it.
    pub cpu_ns: Option<u64>,
    /// The longest recent lateness of the worker's timers plus a quarter (ns). The worker sets its timers this much
    /// before the end of a hold.
    pub timer_lead_ns: u64,
    /// Timers that were later than `timer_lead_ns`: holds may have ended too late.
    pub late_timers: u64,
}

impl Engine {
    /// Starts `workers` workers, which share their work, without any port.
    pub fn start(workers: usize) -> io::Result<Arc<Self>> {
        Self::start_with(Options { workers, ..Options::default() })
    }

    /// Starts the workers, without any port.
    ///
    /// # Errors
    /// Errors from threads, epoll sets and eventfds; [`io::ErrorKind::PermissionDenied`] if real-time threads are
    /// requested but not allowed.
    pub fn start_with(options: Options) -> io::Result<Arc<Self>> {
        let workers = options.workers.clamp(1, WORKERS_MAX);
        let options = Options { workers, ..options };
        if options.execution == Execution::RtThreads {
            // The attempt is made in a thread that ends: this thread must not become a real-time thread.
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

    /// Starts one more worker, and returns its number; `None` at the maximum.
    fn hire(&self) -> io::Result<Option<usize>> {
        let mut threads = self.threads.lock().unwrap_or_else(|e| e.into_inner());
        let Some((index, handle)) = self.shared.crew.add()? else { return Ok(None) };
        let shared = Arc::clone(&self.shared);
        let real_time = self.shared.crew.options.execution == Execution::RtThreads;
        let run = move || {
            if real_time && let Err(error) = set_priority(Priority::RealTime) {
                // A real-time priority was allowed when the engine started.
                tracing::warn!(worker = index, %error, "no real-time priority: the worker runs as an ordinary thread");
            }
            if !real_time && let Err(error) = slice::set_own(slice::WORKER_NS) {
                tracing::debug!(worker = index, %error, "the worker has the usual time slice");
            }
            weir_sandbox::narrow(weir_sandbox::Thread::Worker);
            Worker::new(shared, index, handle).run();
        };
        let thread = std::thread::Builder::new().name(format!("weir-worker-{index}")).spawn(run)?;
        threads.push(thread);
        Ok(Some(index))
    }

    /// The configuration of the engine's workers.
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
        self.add_port_with(config, PortSettings::default(), make)
    }

    /// As [`add_port`](Self::add_port), with settings that hold from the port's first frame on. The workers' table is
    /// replaced once, however many settings there are.
    pub fn add_port_with<P: Port + 'static>(
        &self,
        config: PortConfig,
        settings: PortSettings,
        make: impl FnOnce(PortId, Arc<PortCounters>) -> Arc<P>,
    ) -> Result<(PortId, Arc<P>), PortError> {
        let id = self.shared.fabric.add_port(config)?;
        let counters = Arc::new(PortCounters::default());
        let port = make(id, Arc::clone(&counters));
        let mut slot = Slot::new(Arc::clone(&port) as Arc<dyn Port>, counters);
        settings.apply(&PortSettings::default(), &mut slot);
        let slot = slot.snooped_by(self.shared.fabric.snooping());
        let share = (settings.share, settings.send_limit);
        if share != (Share::default(), RateLimit::NONE) {
            // No worker has a queue of the port yet, so none has to wake up.
            self.shared.shares.set(id, share.0, share.1);
        }
        self.shared.ports.rcu(|ports| {
            let mut ports = Ports::clone(ports);
            if ports.len() <= id.index() {
                ports.resize(id.index() + 1, None);
            }
            ports[id.index()] = Some(slot.clone());
            ports
        });
        lock(&self.shared.settings).insert(id, settings);
        Ok((id, port))
    }

    /// The ports as workers see them now, by number.
    pub fn ports(&self) -> Arc<Ports> {
        self.shared.ports.load_full()
    }

    /// Removes a port. Bursts under way can still reach it until they end.
    pub fn remove_port(&self, id: PortId) {
        let mut gone = None;
        let mut settings = lock(&self.shared.settings);
        let had_groups = settings.remove(&id).is_some_and(|it| it.groups.is_some());
        let mut captured = lock(&self.shared.captured);
        captured.forget(id);
        self.shared.ports.rcu(|ports| {
            let mut ports = Ports::clone(ports);
            gone = ports.get_mut(id.index()).and_then(Option::take);
            if had_groups {
                regroup(&mut ports);
            }
            ports
        });
        drop((captured, settings));
        if let Some(slot) = gone {
            self.shared.crew.release(id, &slot.pairs);
        }
        self.shared.shares.set(id, Share::default(), RateLimit::NONE);
        // A port that does not exist was removed before, with the same result.
        let _ = self.shared.fabric.remove_port(id);
    }

    /// Changes a port's settings between bursts. A setting that does not change keeps its state:
    /// the level of buckets, the counters of rules. Connections go on as far as the rules of all
    /// groups then allow. Does nothing if there is no such port.
    pub fn change_settings(&self, id: PortId, change: impl FnOnce(&mut PortSettings)) {
        let mut settings = lock(&self.shared.settings);
        let Some(now) = settings.get_mut(&id) else { return };
        let before = now.clone();
        change(now);
        if !now.leaves_the_table(&before) {
            self.shared.change_all(|ports| {
                if let Some(Some(slot)) = ports.get_mut(id.index()) {
                    now.apply(&before, slot);
                }
                if now.has_left_a_group(&before) {
                    regroup(ports);
                }
            });
        }
        if (now.share, now.send_limit) != (before.share, before.send_limit) {
            self.shared.shares.set(id, now.share, now.send_limit);
            // A worker that sleeps until a port may send again can now be due earlier.
            self.wake();
        }
    }

    /// Marks each connection for a check against the rules at its next frame, because the groups of
    /// other hosts' guests have changed their meaning.
    pub fn regroup(&self) {
        self.shared.change_all(regroup);
    }

    /// The rules of a port's security groups, and its connections; `None` without groups.
    pub fn groups(&self, id: PortId) -> Option<Arc<PortGroups>> {
        slot(&self.shared.ports.load(), id)?.groups.clone()
    }

    /// From now on, frames of a port come in by another port, `by`, whose settings then hold for
    /// them. With `None`, they come in by the port itself. Counters stay the port's own.
    pub fn set_comes_in_by(&self, id: PortId, by: Option<PortId>) {
        self.shared.change(id, |slot| slot.in_bond.get_or_insert_default().comes_in_by = by);
    }

    /// From now on, the inbox gets the frames for it that come in by a port.
    pub fn set_inbox(&self, id: PortId, inbox: Option<Arc<Inbox>>) {
        self.shared
            .change(id, |slot| slot.in_bond.get_or_insert_default().inbox.clone_from(&inbox));
    }

    /// A port's share of each worker, as its settings say.
    pub fn share(&self, id: PortId) -> Share {
        lock(&self.shared.settings).get(&id).map_or_else(Share::default, |settings| settings.share)
    }

    /// The rule by which workers give turns.
    pub fn schedule(&self) -> Kind {
        self.shared.shares.schedule()
    }

    /// Changes the rule by which workers give turns, between two bursts, and returns the old one. Shares stay.
    pub fn set_schedule(&self, schedule: Kind) -> Kind {
        let old = self.shared.shares.set_schedule(schedule);
        self.wake();
        old
    }

    /// Watches `kick` for a queue of a port, until the result is dropped.
    ///
    /// # Errors
    /// Errors from adding the kick to a worker's epoll set, or from starting a worker for it; there is no such port.
    pub fn watch(&self, queue: QueueRef, kick: OwnedFd) -> io::Result<Watch> {
        self.with_worker(queue, |roster, worker| Crew::watch(roster, worker, queue, kick))?
    }

    /// Makes a queue's worker poll the queue without a kick.
    pub fn nudge(&self, queue: QueueRef) {
        // A removed port has no queue to poll.
        let _ = self.with_worker(queue, |_, worker| worker.poller.nudge(queue));
    }

    /// Calls `then` with the worker of a pair, which serves both queues of the pair.
    fn with_worker<T>(
        &self,
        queue: QueueRef,
        then: impl FnOnce(&mut Roster, &WorkerHandle) -> T,
    ) -> io::Result<T> {
        let crew = &self.shared.crew;
        let mut roster = crew.roster();
        // The ports are read under the lock: a port that has been removed gets no worker any more.
        let ports = self.shared.ports.load();
        let pair = slot(&ports, queue.port).and_then(|slot| slot.pairs.get(queue.queue));
        let pair = pair.ok_or_else(|| io::Error::other("there is no such queue"))?;
        let worker = crew.worker_of(&mut roster, pair, queue, || self.hire())?;
        Ok(then(&mut roster, worker))
    }

    /// True if queues move between workers by load: [`Engine::dispatch`] must then be called regularly under traffic.
    pub fn dispatches(&self) -> bool {
        self.shared.crew.options.aim().is_some()
    }

    /// Moves queues between workers, by the load of each queue since the last call.
    pub fn dispatch(&self, now_ns: u64) {
        let mut dispatcher = self.dispatcher.lock().unwrap_or_else(|e| e.into_inner());
        dispatcher.step(&self.shared, now_ns);
    }

    /// The queues that moved last, the latest first, and the number of all moves.
    pub fn moved(&self) -> (Vec<Moved>, u64) {
        let dispatcher = self.dispatcher.lock().unwrap_or_else(|e| e.into_inner());
        dispatcher.moved()
    }

    /// Gives a pair of queues to another worker, while traffic flows.
    ///
    /// # Errors
    /// Errors from watching the pair's kick at the new worker; nothing has changed then.
    pub fn assign(&self, port: PortId, queue: usize, worker: usize) -> io::Result<()> {
        let ports = self.shared.ports.load();
        let Some(slot) = slot(&ports, port) else { return Ok(()) };
        self.shared.crew.assign(&slot.pairs, port, queue, worker)
    }

    /// Adds a `helper` to a queue pair's worker or removes it, under traffic. Returns `false`, and changes nothing, if
    /// only one worker at a time can serve the port's queues.
    pub fn set_helper(&self, port: PortId, queue: usize, helper: Option<usize>) -> bool {
        let ports = self.shared.ports.load();
        slot(&ports, port).is_some_and(|slot| {
            set_helper(&self.shared.crew, slot, QueueRef { port, queue, side: Side::Tx }, helper)
        })
    }

    /// The present or first worker of a queue pair; `None` without such a pair, or if its worker does not exist yet.
    pub fn worker_of(&self, port: PortId, queue: usize) -> Option<usize> {
        let ports = self.shared.ports.load();
        let pair = slot(&ports, port)?.pairs.get(queue)?;
        pair.worker().or_else(|| self.shared.crew.first_worker(port, queue))
    }

    /// Wakes all workers: each begins a new turn.
    pub fn wake(&self) {
        for worker in self.shared.crew.iter() {
            worker.poller.wake();
        }
    }

    /// The ports of which a worker serves a queue.
    pub fn served_by(&self, worker: usize) -> Vec<PortId> {
        let ports = self.shared.ports.load();
        let all = ports.iter().enumerate().filter_map(|(port, slot)| {
            slot.as_ref()?.pairs.iter().find(|pair| pair.is_served_by(worker))?;
            PortId::new(u16::try_from(port).ok()?)
        });
        all.collect()
    }

    /// Each worker's thread id, by number; `None` for a worker that does not run yet.
    pub fn worker_threads(&self) -> Vec<Option<u32>> {
        let thread = |worker: &Arc<WorkerHandle>| match worker.thread_id.load(Ordering::Relaxed) {
            0 => None,
            id => Some(id),
        };
        self.shared.crew.iter().map(thread).collect()
    }

    /// The counts of each worker.
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

    /// True if workers let frames wait for others: workers with cores of their own poll all the time.
    pub fn naps(&self) -> bool {
        self.shared.crew.options.realization != Realization::Dedicated
    }

    /// Wake-ups of all workers together. The number does not change without traffic, nor under traffic so heavy that no
    /// worker sleeps.
    pub fn wakeups(&self) -> u64 {
        self.shared.crew.iter().map(|worker| worker.wakeups()).sum()
    }

    /// Makes the next worker that wakes up ring [`Engine::bell`], once. Only one thread at a time
    /// may call this function. The thread saw no traffic when [`Engine::wakeups`] was `seen`. If a
    /// worker has woken up since, the function returns `false` and rings nothing.
    pub fn ring_at_traffic(&self, seen: u64) -> bool {
        self.shared.activity.ask();
        let quiet = self.wakeups() == seen;
        if !quiet {
            self.shared.activity.withdraw();
        }
        quiet
    }

    /// A descriptor that is readable after the bell has rung, until [`Engine::ring_at_traffic`] is called again.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.shared.activity.bell()
    }
}

impl Engine {
    /// Lets workers that are [held](Options::held) serve their queues.
    pub fn open(&self) {
        self.shared.gate.open();
    }

    /// Waits until no worker uses what it read before: each has ended the burst that was under way.
    /// `false` if a worker stands still. A worker that is [held](Options::held) stands still, too.
    pub fn fence(&self) -> bool {
        let (end, passed) = (Instant::now() + FENCE_PATIENCE, Arc::new(()));
        let fence = || Retry::Fence(Arc::clone(&passed));
        self.shared.crew.iter().for_each(|worker| worker.tell(fence()));
        while Arc::strong_count(&passed) > 1 {
            if Instant::now() >= end {
                tracing::warn!("a worker stands still: its burst may see settings of two moments");
                return false;
            }
            std::thread::sleep(HALT_LOOK);
        }
        // Everything that workers did before they dropped the note has happened by now.
        std::sync::atomic::fence(Ordering::Acquire);
        true
    }

    /// Ends the workers, each after its burst. Rings and devices stay as they are, so that another process can
    /// continue.
    pub fn halt(&self) {
        for thread in self.stopping() {
            // A worker that panicked has reported it on standard error.
            let _ = thread.join();
        }
    }

    /// As [`halt`](Self::halt), for at most `patience`. `false` if a worker stands still, and may touch rings later.
    pub fn halt_within(&self, patience: Duration) -> bool {
        let (end, threads) = (Instant::now() + patience, self.stopping());
        while !threads.iter().all(JoinHandle::is_finished) {
            if Instant::now() >= end {
                return false;
            }
            std::thread::sleep(HALT_LOOK);
        }
        true
    }

    /// Asks all workers to end.
    fn stopping(&self) -> Vec<JoinHandle<()>> {
        self.shared.stopping.store(true, Ordering::Relaxed);
        self.shared.gate.open();
        self.wake();
        std::mem::take(&mut *self.threads.lock().unwrap_or_else(|e| e.into_inner()))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.halt();
    }
}

/// The scheduling priority of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// No priority: all such threads share their CPUs.
    Usual,
    /// Priority over all but other real-time threads (`SCHED_FIFO` at its lowest priority).
    RealTime,
}

/// Marks each connection of all ports for a check against the rules at its next frame.
fn regroup(ports: &mut Ports) {
    for slot in ports.iter_mut().flatten() {
        if let Some(groups) = &mut slot.groups {
            *groups = Arc::new(groups.anew(clock::now_ns()));
        }
    }
}

/// Sets the priority of this thread, and of the threads that it starts from now on.
///
/// # Errors
/// The error of `sched_setscheduler`: a lack of permission.
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

/// True if this thread has a real-time priority.
pub fn is_real_time() -> bool {
    matches!(thread_schedule_policy(), Ok(ThreadSchedulePolicy::Realtime(_)))
}

/// CPU time (ns) of a thread of this process; `None` if it has ended or the kernel does not report it.
///
/// The number is from `/proc/self/task/TID/schedstat`: time on a CPU, time waiting for one, time slices.
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
        // A second worker could wake up late, and ring for the next request.
        let engine = Engine::start(1).unwrap();
        let wake = || engine.shared.crew.iter().for_each(|worker| worker.poller.wake());
        let seen = engine.wakeups();
        assert!(engine.ring_at_traffic(seen));
        assert!(!rings(&engine, Some(&NOW)));
        wake();
        assert!(rings(&engine, None));
        assert!(engine.wakeups() > seen);
        // A caller that has not seen that wake-up must not wait for the next.
        assert!(!engine.ring_at_traffic(seen));
        assert!(!rings(&engine, Some(&NOW)));
        // When the worker wakes up for the second time, its first wake-up is over.
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
