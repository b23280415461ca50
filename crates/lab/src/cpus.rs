//! CPUs, and the threads that compete for them.
//!
//! Real-time threads (`SCHED_FIFO`) run by priority, then first come first served, until they block. Fair threads
//! share the rest by weight: the thread with the least virtual run time runs next, for one time slice if others
//! wait. A thread that wakes up more than a granularity behind preempts (Xen's credits, Linux's CFS). A woken
//! thread prefers an idle CPU: its last one, then a near one.
//!
//! A CPU is slower while its SMT sibling works. A context switch has a cost, and so has a move from another cache.

use std::collections::BTreeSet;

use crate::calendar::Calendar;
use crate::random::Random;
use crate::topology::{CpuId, CpuSet, Distance, Topology};

/// A thread.
pub type ThreadId = usize;

/// Full speed, in thousandths of a ns of work per ns: with this unit, a CPU does a whole number of units each ns.
const FULL_SPEED: u64 = 1_000;
/// Weight of a fair thread whose virtual time passes like real time (Linux: `NICE_0_LOAD`).
pub const WEIGHT_USUAL: u32 = 1_024;

/// Scheduling class of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// A real-time thread is preempted only by a higher priority.
    Realtime {
        /// Priority; the higher one runs first.
        priority: u8,
    },
    /// A fair thread gets a share of the time that the real-time class leaves.
    Fair {
        /// Relative to [`WEIGHT_USUAL`]; at least 1.
        weight: u32,
    },
}

/// Parameters of CPUs and their scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheduling {
    /// Longest run of a fair thread while another waits (ns).
    pub slice_ns: u64,
    /// Lag in virtual time from which on a woken fair thread preempts another (ns).
    pub granularity_ns: u64,
    /// Cost of a context switch (ns).
    pub switch_ns: u64,
    /// Cost for a thread that last ran behind another cache of the same socket (ns).
    pub llc_refill_ns: u64,
    /// Cost for a thread that last ran on another socket (ns).
    pub socket_refill_ns: u64,
    /// Cost for a thread that has nothing of its memory in the cache of its core (ns): others have displaced it, or the
    /// thread comes from another core.
    pub cold_refill_ns: u64,
    /// Share of a core's cache that a thread displaces when it follows another thread of this core (per mille).
    pub footprint_permille: u32,
    /// Speed of a CPU whose sibling works (per mille).
    pub smt_permille: u32,
}

impl Scheduling {
    /// Returns a scheduler without costs, with slices of `slice_ns`.
    pub const fn ideal(slice_ns: u64) -> Self {
        Self {
            slice_ns,
            granularity_ns: slice_ns,
            switch_ns: 0,
            llc_refill_ns: 0,
            socket_refill_ns: 0,
            cold_refill_ns: 0,
            footprint_permille: 0,
            smt_permille: 1_000,
        }
    }
}

/// An event of CPUs and threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A thread has woken up.
    Runnable(ThreadId),
    /// A CPU has done its thread's work, if the run number still matches.
    Done(CpuId, u64),
    /// A time slice is over, if the turn number still matches.
    Slice(CpuId, u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Blocked,
    Waking,
    Ready,
    On(CpuId),
}

#[derive(Clone, Copy, Debug)]
struct Thread {
    class: Class,
    allowed: CpuSet,
    state: State,
    /// Work left (thousandths of a ns at full speed).
    work: u64,
    /// Virtual run time (ns).
    virtual_ns: u64,
    /// Position among ready threads.
    key: Key,
    last: Option<CpuId>,
    busy_ns: u64,
    /// An interrupt handler: it runs in any context, without a switch.
    handler: bool,
    /// The amount that had been displaced from its core's cache at its last start, in cache sizes.
    displaced: f64,
}

/// The cache of a core, which SMT siblings share.
#[derive(Clone, Copy, Debug, Default)]
struct Cache {
    /// The amount that threads have displaced so far, in cache sizes.
    displaced: f64,
    /// The last thread that started on the core.
    last: Option<ThreadId>,
}

/// Rank of all fair threads, behind every priority.
const FAIR_RANK: u16 = u8::MAX as u16 + 1;

/// Order of ready threads: class, then virtual time, then arrival.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    rank: u16,
    virtual_ns: u64,
    number: u64,
}

#[derive(Clone, Debug, Default)]
struct Cpu {
    running: Option<ThreadId>,
    /// Last thread on this CPU.
    last: Option<ThreadId>,
    /// Time up to which the thread's work is counted (ns).
    since_ns: u64,
    /// Number of the valid estimate of the work's end.
    run: u64,
    turn: u64,
    /// True if the slice ended while no thread was waiting.
    overdue: bool,
    /// End of the slice (ns).
    slice_until_ns: u64,
    /// Beginning of the present idle time, and length of the previous one (ns).
    idle_from_ns: u64,
    idle_ns: u64,
    /// The thread that the running handler interrupted, and the end of its slice (ns).
    interrupted: Option<(ThreadId, u64)>,
}

/// All CPUs of a host with their threads.
#[derive(Debug)]
pub struct Cpus {
    topology: Topology,
    scheduling: Scheduling,
    cpus: Vec<Cpu>,
    threads: Vec<Thread>,
    ready: BTreeSet<(Key, ThreadId)>,
    made_ready: u64,
    /// The caches, by core.
    caches: Vec<Cache>,
    /// Random choice among idle CPUs, if caches are ignored.
    blind: Option<Random>,
}

impl Cpus {
    /// Returns a host's CPUs, idle. `topology` must have been checked to have some.
    pub fn new(topology: Topology, scheduling: Scheduling) -> Self {
        let cpus = vec![Cpu::default(); topology.cpus().unwrap_or(1)];
        let (threads, ready) = (Vec::new(), BTreeSet::new());
        let caches = vec![Cache::default(); topology.core(cpus.len()) + 1];
        Self { topology, scheduling, cpus, threads, ready, made_ready: 0, caches, blind: None }
    }

    /// Makes a blocked thread that may run on the CPUs `allowed`; on any CPU if that is empty.
    pub fn spawn(&mut self, class: Class, allowed: &[CpuId]) -> ThreadId {
        let every: Vec<CpuId> = (0..self.cpus.len()).collect();
        let allowed = if allowed.is_empty() { &every } else { allowed };
        self.threads.push(Thread {
            class,
            allowed: CpuSet::new(allowed),
            state: State::Blocked,
            work: 0,
            virtual_ns: 0,
            key: Key::default(),
            last: None,
            busy_ns: 0,
            handler: false,
            displaced: 0.0,
        });
        self.threads.len() - 1
    }

    /// Wakes a blocked thread with `work_ns` of work at full speed. The thread is ready after
    /// `latency_ns`.
    pub fn wake<E: From<Event>>(
        &mut self,
        calendar: &mut Calendar<E>,
        thread: ThreadId,
        work_ns: u64,
        latency_ns: u64,
    ) {
        debug_assert_eq!(self.threads[thread].state, State::Blocked);
        self.threads[thread].work = work_ns.saturating_mul(FULL_SPEED);
        self.threads[thread].state = State::Waking;
        if latency_ns == 0 {
            self.runnable(calendar, thread);
        } else {
            calendar.after(latency_ns, Event::Runnable(thread));
        }
    }

    /// Handles an event. Returns the thread whose work is done by it. The caller must let that
    /// thread [go on](Self::go_on) or [block](Self::block) before any other event.
    pub fn happen<E: From<Event>>(
        &mut self,
        calendar: &mut Calendar<E>,
        event: Event,
    ) -> Option<ThreadId> {
        match event {
            Event::Runnable(thread) => self.runnable(calendar, thread),
            Event::Done(cpu, run) if self.cpus[cpu].run == run => {
                self.account(calendar.now_ns(), cpu);
                return self.cpus[cpu].running;
            }
            Event::Slice(cpu, turn) if self.cpus[cpu].turn == turn => {
                self.cpus[cpu].overdue = true;
                self.account(calendar.now_ns(), cpu);
                if self.waits_for(cpu) {
                    self.put_back(cpu);
                    self.take_up(calendar, cpu);
                }
            }
            Event::Done(..) | Event::Slice(..) => {}
        }
        None
    }

    /// Gives more work (ns at full speed) to a thread whose work is done.
    pub fn go_on<E: From<Event>>(
        &mut self,
        calendar: &mut Calendar<E>,
        thread: ThreadId,
        work_ns: u64,
    ) {
        self.threads[thread].work = work_ns.saturating_mul(FULL_SPEED);
        if let State::On(cpu) = self.threads[thread].state {
            self.expect_end(calendar, cpu);
        }
    }

    /// Blocks a thread whose work is done.
    pub fn block<E: From<Event>>(&mut self, calendar: &mut Calendar<E>, thread: ThreadId) {
        let Thread { state, key, .. } = &mut self.threads[thread];
        match std::mem::replace(state, State::Blocked) {
            State::On(cpu) => {
                self.free(cpu);
                self.take_up(calendar, cpu);
            }
            // The thread has just woken another one, which has already taken the CPU.
            State::Ready => {
                self.ready.remove(&(*key, thread));
            }
            State::Blocked | State::Waking => {}
        }
    }

    /// Limits a thread's remaining work to `work_ns`.
    pub fn cut<E: From<Event>>(
        &mut self,
        calendar: &mut Calendar<E>,
        thread: ThreadId,
        work_ns: u64,
    ) {
        let state = self.threads[thread].state;
        if let State::On(cpu) = state {
            self.account(calendar.now_ns(), cpu);
        }
        let work = &mut self.threads[thread].work;
        *work = (*work).min(work_ns.saturating_mul(FULL_SPEED));
        if let State::On(cpu) = state {
            self.expect_end(calendar, cpu);
        }
    }

    /// Returns the CPU on which a thread runs or last ran.
    pub fn last_cpu(&self, thread: ThreadId) -> Option<CpuId> {
        self.threads[thread].last
    }

    /// Returns a thread's CPU time up to `now_ns` (ns), including the time lost to a sibling.
    pub fn busy_ns(&self, now_ns: u64, thread: ThreadId) -> u64 {
        let Thread { state, busy_ns, .. } = self.threads[thread];
        match state {
            State::On(cpu) => busy_ns + now_ns.saturating_sub(self.cpus[cpu].since_ns),
            _ => busy_ns,
        }
    }

    /// Returns whether a thread has work and no CPU.
    pub fn waits(&self, thread: ThreadId) -> bool {
        self.threads[thread].state == State::Ready
    }

    /// Returns whether a thread has no work.
    pub fn sleeps(&self, thread: ThreadId) -> bool {
        self.threads[thread].state == State::Blocked
    }

    /// Returns the distance of a thread's last CPU from another.
    pub fn distance(&self, from: Option<CpuId>, to: Option<CpuId>) -> Distance {
        match (from, to) {
            (Some(from), Some(to)) => self.topology.distance(from, to),
            _ => Distance::Near,
        }
    }

    /// Finds a CPU for a thread that has become ready, or lets it wait.
    fn runnable<E: From<Event>>(&mut self, calendar: &mut Calendar<E>, thread: ThreadId) {
        if let Class::Fair { weight } = self.threads[thread].class {
            self.place(calendar.now_ns(), thread, weight);
        }
        self.made_ready += 1;
        let number = self.made_ready;
        self.queue(thread, number);
        self.find_cpu(calendar, thread);
    }

    fn find_cpu<E: From<Event>>(&mut self, calendar: &mut Calendar<E>, thread: ThreadId) {
        let slice_ns = self.scheduling.slice_ns;
        if let Some(cpu) = self.idle_cpu(thread) {
            self.start(calendar, cpu, thread, slice_ns);
        } else if let Some(cpu) = self.victim(calendar.now_ns(), thread) {
            let Cpu { running, slice_until_ns, .. } = self.cpus[cpu];
            let handler = self.threads[thread].handler;
            self.put_back(cpu);
            self.start(calendar, cpu, thread, slice_ns);
            self.cpus[cpu].interrupted =
                running.filter(|_| handler).map(|running| (running, slice_until_ns));
        }
    }

    /// Moves a waking fair thread's virtual time near its competitors'. A sleep saves up at most
    /// one slice, and time without competitors is forgotten.
    fn place(&mut self, now_ns: u64, thread: ThreadId, weight: u32) {
        let allowed = self.threads[thread].allowed;
        let mut spread: Option<(u64, u64)> = None;
        let mut competes = |virtual_ns: u64| {
            let (low, high) = spread.unwrap_or((virtual_ns, virtual_ns));
            spread = Some((low.min(virtual_ns), high.max(virtual_ns)));
        };
        for cpu in (0..self.cpus.len()).filter(|&cpu| allowed.contains(cpu)) {
            self.account(now_ns, cpu);
            let running = self.cpus[cpu].running.map(|running| &self.threads[running]);
            if let Some(Thread { class: Class::Fair { .. }, virtual_ns, .. }) = running {
                competes(*virtual_ns);
            }
        }
        let fair = self.ready.range((Key { rank: FAIR_RANK, ..Key::default() }, 0)..);
        let waiting = fair.filter(|(_, waiting)| self.threads[*waiting].allowed.meets(&allowed));
        let (first, last) = (waiting.clone().next(), waiting.clone().next_back());
        first.into_iter().chain(last).for_each(|(key, _)| competes(key.virtual_ns));
        let Some((low, high)) = spread else { return };
        let slice_ns = self.scheduling.slice_ns;
        let turn_ns = slice_ns.saturating_mul(WEIGHT_USUAL.into()) / u64::from(weight.max(1));
        let (low, high) = (low.saturating_sub(slice_ns), high.saturating_add(turn_ns));
        let virtual_ns = &mut self.threads[thread].virtual_ns;
        *virtual_ns = (*virtual_ns).clamp(low, high);
    }

    fn queue(&mut self, thread: ThreadId, number: u64) {
        let Thread { class, virtual_ns, state, key, .. } = &mut self.threads[thread];
        let (rank, virtual_ns) = match *class {
            Class::Realtime { priority } => (u16::from(u8::MAX - priority), 0),
            Class::Fair { .. } => (FAIR_RANK, *virtual_ns),
        };
        *state = State::Ready;
        *key = Key { rank, virtual_ns, number };
        self.ready.insert((*key, thread));
    }

    /// Returns the CPU whose thread must make room for this one.
    fn victim(&mut self, now_ns: u64, thread: ThreadId) -> Option<CpuId> {
        let Thread { key, allowed, .. } = self.threads[thread];
        let mut found: Option<(Key, CpuId)> = None;
        for cpu in (0..self.cpus.len()).filter(|&cpu| allowed.contains(cpu)) {
            self.account(now_ns, cpu);
            let Cpu { running: Some(running), overdue, .. } = self.cpus[cpu] else { continue };
            let Thread { class, virtual_ns, key: old, .. } = self.threads[running];
            let gives_way = match class {
                Class::Fair { .. } if key.rank == old.rank => {
                    let ahead_ns = virtual_ns.saturating_sub(key.virtual_ns);
                    overdue || ahead_ns > self.scheduling.granularity_ns
                }
                _ => key.rank < old.rank,
            };
            let place = Key { virtual_ns, ..old };
            if gives_way && found.is_none_or(|(worst, _)| place > worst) {
                found = Some((place, cpu));
            }
        }
        found.map(|(_, cpu)| cpu)
    }

    /// Returns whether a ready thread comes before the CPU's fair thread, whose slice is over.
    fn waits_for(&self, cpu: CpuId) -> bool {
        let fair = |thread: ThreadId| matches!(self.threads[thread].class, Class::Fair { .. });
        self.cpus[cpu].running.is_some_and(fair)
            && self.ready.iter().any(|(_, waiting)| self.threads[*waiting].allowed.contains(cpu))
    }

    /// Takes the CPU from its thread, which stays ready. The thread's work so far is counted.
    fn put_back(&mut self, cpu: CpuId) {
        let Some(thread) = self.cpus[cpu].running else { return };
        let number = match self.threads[thread].class {
            // A preempted thread is the first of its priority.
            Class::Realtime { .. } => self.threads[thread].key.number,
            Class::Fair { .. } => {
                self.made_ready += 1;
                self.made_ready
            }
        };
        self.free(cpu);
        self.queue(thread, number);
    }

    fn free(&mut self, cpu: CpuId) {
        let now_ns = self.cpus[cpu].since_ns;
        self.account_siblings(now_ns, cpu);
        let state = &mut self.cpus[cpu];
        let ran = state.running.take();
        state.idle_from_ns = now_ns;
        state.last = ran.filter(|ran| !self.threads[*ran].handler).or(state.last);
        state.run += 1;
        state.turn += 1;
    }

    /// Gives a free CPU to the first ready thread that may run there.
    fn take_up<E: From<Event>>(&mut self, calendar: &mut Calendar<E>, cpu: CpuId) {
        let interrupted = self.interrupted(calendar.now_ns(), cpu);
        let may = |(_, thread): &&(Key, ThreadId)| self.threads[*thread].allowed.contains(cpu);
        let first = || Some((self.ready.iter().find(may)?.1, self.scheduling.slice_ns));
        match interrupted.or_else(first) {
            Some((thread, slice_ns)) => self.start(calendar, cpu, thread, slice_ns),
            None => self.retime_siblings(calendar, cpu),
        }
    }

    /// Gives a free CPU to a thread. A fair thread gets `slice_ns` if others wait.
    fn start<E: From<Event>>(
        &mut self,
        calendar: &mut Calendar<E>,
        cpu: CpuId,
        thread: ThreadId,
        slice_ns: u64,
    ) {
        let now_ns = calendar.now_ns();
        self.account_siblings(now_ns, cpu);
        self.ready.remove(&(self.threads[thread].key, thread));
        let another =
            !self.threads[thread].handler && self.cpus[cpu].last.is_some_and(|last| last != thread);
        let cold_ns = self.cold_ns(cpu, thread);
        let refill_ns = match self.distance(self.threads[thread].last, Some(cpu)) {
            Distance::Near => cold_ns,
            Distance::Socket => self.scheduling.llc_refill_ns,
            Distance::Host => self.scheduling.socket_refill_ns,
        };
        let switch_ns = if another { self.scheduling.switch_ns } else { 0 };
        let state = &mut self.threads[thread];
        let overhead = (refill_ns + switch_ns).saturating_mul(FULL_SPEED);
        state.work = state.work.saturating_add(overhead);
        state.state = State::On(cpu);
        state.last = Some(cpu);
        let fair = matches!(state.class, Class::Fair { .. });
        let of_cpu = &mut self.cpus[cpu];
        // If a thread directly follows another, the idle time is still the one before the other thread.
        if now_ns > of_cpu.idle_from_ns {
            of_cpu.idle_ns = now_ns - of_cpu.idle_from_ns;
        }
        let Cpu { running, since_ns, turn, overdue, slice_until_ns, .. } = of_cpu;
        *running = Some(thread);
        *slice_until_ns = now_ns.saturating_add(slice_ns);
        *since_ns = now_ns;
        *turn += 1;
        *overdue = false;
        if fair {
            calendar.after(slice_ns, Event::Slice(cpu, *turn));
        }
        self.expect_end(calendar, cpu);
        self.retime_siblings(calendar, cpu);
    }
}

impl Cpus {
    /// Makes an interrupt handler, which runs on one CPU, before all threads and without a switch.
    pub fn spawn_handler(&mut self, cpu: CpuId) -> ThreadId {
        let thread = self.spawn(Class::Realtime { priority: u8::MAX }, &[cpu]);
        self.threads[thread].handler = true;
        thread
    }

    /// Returns what a thread that starts on `cpu` pays for memory that is not in the core's cache
    /// (ns). A cache replaces at random, so that each displacement leaves the same share of what
    /// was left. A thread on a sibling pays at once for what it loses.
    fn cold_ns(&mut self, cpu: CpuId, thread: ThreadId) -> u64 {
        let Scheduling { cold_refill_ns, footprint_permille, .. } = self.scheduling;
        let Thread { handler, last, displaced, .. } = self.threads[thread];
        if handler || cold_refill_ns == 0 {
            return 0;
        }
        let core = self.topology.core(cpu);
        let stays = last.is_some_and(|last| self.topology.core(last) == core);
        let Cache { displaced: before, last } = self.caches[core];
        let lost = |displaced: f64, now: f64| 1.0 - libm::exp(displaced - now);
        let cost_ns = |lost: f64| (lost * cold_refill_ns as f64) as u64;
        let own_ns = cost_ns(if stays { lost(displaced, before) } else { 1.0 });
        let beside = |sibling: CpuId| self.cpus[sibling].running.filter(|_| sibling != cpu);
        let beside: Vec<ThreadId> = self.topology.core_of(cpu).filter_map(beside).collect();
        let alone = last == Some(thread) && beside.is_empty();
        let now = before + if alone { 0.0 } else { f64::from(footprint_permille) / 1_000.0 };
        for other in beside {
            let other = &mut self.threads[other];
            if !other.handler {
                let ns = cost_ns(lost(other.displaced, now));
                other.work = other.work.saturating_add(ns.saturating_mul(FULL_SPEED));
                other.displaced = now;
            }
        }
        self.caches[core] = Cache { displaced: now, last: Some(thread) };
        self.threads[thread].displaced = now;
        own_ns
    }

    /// Returns the thread that a handler on `cpu` interrupted, and the rest of its slice (ns). The
    /// thread continues unless a newly ready thread would have preempted it.
    fn interrupted(&mut self, now_ns: u64, cpu: CpuId) -> Option<(ThreadId, u64)> {
        let (interrupted, until_ns) = self.cpus[cpu].interrupted.take()?;
        let Thread { state, key, allowed, .. } = self.threads[interrupted];
        let may = |thread: ThreadId| self.threads[thread].allowed.contains(cpu);
        let (first, _) = self.ready.iter().find(|(_, thread)| may(*thread))?;
        let ahead_ns = key.virtual_ns.saturating_sub(first.virtual_ns);
        let goes_on = state == State::Ready
            && allowed.contains(cpu)
            && first.rank == key.rank
            && ahead_ns <= self.scheduling.granularity_ns;
        let left_ns = until_ns.saturating_sub(now_ns);
        (goes_on && left_ns > 0).then_some((interrupted, left_ns))
    }

    /// Counts the work of the CPU's thread.
    fn account(&mut self, now_ns: u64, cpu: CpuId) {
        let speed = self.speed(cpu);
        let Cpu { running, since_ns, .. } = &mut self.cpus[cpu];
        let elapsed_ns = now_ns.saturating_sub(std::mem::replace(since_ns, now_ns));
        let Some(thread) = *running else { return };
        let thread = &mut self.threads[thread];
        thread.work = thread.work.saturating_sub(elapsed_ns.saturating_mul(speed));
        thread.busy_ns += elapsed_ns;
        if let Class::Fair { weight } = thread.class {
            let passed = u128::from(elapsed_ns) * u128::from(WEIGHT_USUAL);
            thread.virtual_ns += (passed / u128::from(weight.max(1))) as u64; // not above elapsed * 1024
        }
    }

    fn speed(&self, cpu: CpuId) -> u64 {
        let works = |other: CpuId| other != cpu && self.cpus[other].running.is_some();
        if self.topology.core_of(cpu).any(works) {
            u64::from(self.scheduling.smt_permille).clamp(1, FULL_SPEED)
        } else {
            FULL_SPEED
        }
    }

    /// Sets the end of the CPU's present work.
    fn expect_end<E: From<Event>>(&mut self, calendar: &mut Calendar<E>, cpu: CpuId) {
        let speed = self.speed(cpu);
        let Cpu { running: Some(thread), run, .. } = &mut self.cpus[cpu] else { return };
        *run += 1;
        let left_ns = self.threads[*thread].work.div_ceil(speed);
        calendar.after(left_ns, Event::Done(cpu, *run));
    }

    /// Counts the siblings' work, before `cpu` starts or stops and their speed changes.
    fn account_siblings(&mut self, now_ns: u64, cpu: CpuId) {
        for sibling in self.topology.core_of(cpu).filter(|sibling| *sibling != cpu) {
            self.account(now_ns, sibling);
        }
    }

    fn retime_siblings<E: From<Event>>(&mut self, calendar: &mut Calendar<E>, cpu: CpuId) {
        for sibling in self.topology.core_of(cpu).filter(|sibling| *sibling != cpu) {
            self.expect_end(calendar, sibling);
        }
    }
}

impl Cpus {
    /// Makes woken threads go to any idle CPU at random from now on.
    pub fn ignore_caches(&mut self, random: Random) {
        self.blind = Some(random);
    }

    /// Restricts a thread to the CPUs `allowed`. It leaves its present CPU at once if necessary.
    pub fn allow<E: From<Event>>(
        &mut self,
        calendar: &mut Calendar<E>,
        thread: ThreadId,
        allowed: &[CpuId],
    ) {
        self.threads[thread].allowed = CpuSet::new(allowed);
        let cpu = match self.threads[thread].state {
            State::On(cpu) if !self.threads[thread].allowed.contains(cpu) => cpu,
            State::Ready => return self.find_cpu(calendar, thread),
            State::On(_) | State::Blocked | State::Waking => return,
        };
        self.account(calendar.now_ns(), cpu);
        self.put_back(cpu);
        self.find_cpu(calendar, thread);
        self.take_up(calendar, cpu);
    }

    /// Returns whether another thread is on the last CPU of this sleeping thread.
    pub fn is_taken(&self, thread: ThreadId) -> bool {
        let cpu = self.threads[thread].last.and_then(|cpu| self.cpus.get(cpu));
        cpu.is_some_and(|cpu| cpu.running.is_some_and(|running| running != thread))
    }

    /// Returns the present or last idle time of a thread's last CPU (ns).
    pub fn idle_ns(&self, now_ns: u64, thread: ThreadId) -> u64 {
        let cpu = self.threads[thread].last.and_then(|cpu| self.cpus.get(cpu));
        cpu.map_or(u64::MAX, |cpu| match cpu.running {
            None => now_ns.saturating_sub(cpu.idle_from_ns),
            Some(_) => cpu.idle_ns,
        })
    }

    /// Returns whether another thread waits for this thread's CPU.
    pub fn is_wanted(&self, thread: ThreadId) -> bool {
        match self.threads[thread].state {
            State::On(cpu) => self.waits_for(cpu),
            _ => false,
        }
    }

    /// Returns an idle CPU for the thread: nearest to its last one, on an idle core if possible; a
    /// random one if caches are ignored.
    pub(super) fn idle_cpu(&mut self, thread: ThreadId) -> Option<CpuId> {
        let Thread { allowed, last, .. } = self.threads[thread];
        let idle = self.cpus.iter().enumerate().filter(|(_, cpu)| cpu.running.is_none());
        let idle = idle.map(|(cpu, _)| cpu).filter(|&cpu| allowed.contains(cpu));
        if let Some(random) = &mut self.blind {
            let idle: Vec<CpuId> = idle.collect();
            let any = random.below(idle.len().max(1) as u64) as usize; // below its length
            return idle.get(any).copied();
        }
        idle.min_by_key(|&cpu| {
            let busy_core = self.speed(cpu) < FULL_SPEED;
            (self.distance(last, Some(cpu)), busy_core, Some(cpu) != last, cpu)
        })
    }
}

#[cfg(test)]
mod tests;
