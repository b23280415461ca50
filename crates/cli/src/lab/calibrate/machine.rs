//! Costs that need no switch.

use std::hint::black_box;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity, set_current_timer_slack};
use rustix::time::{ClockId, clock_gettime};

use super::{Cost, in_rounds};

/// Wake-ups of one round.
const WAKE_UPS: u64 = 200;
/// How long a sleeper is given to fall asleep.
const TO_SLEEP: Duration = Duration::from_micros(100);
/// Longest time that it sleeps (s): the one that was to wake it has failed.
const SLEEP_S_MAX: i64 = 5;
/// Looks at an epoll set in one round.
const LOOKS: u32 = 5_000;
/// Timers of one round, and how long each is set for.
const TIMERS: u64 = 100;
const TIMER_NS: u32 = 100_000;
/// How late the kernel may make a timer on purpose (ns): as `weir_engine` asks of it for its workers.
const TIMER_SLACK_NS: u64 = 1_000;
/// Sizes that are copied, from a small frame to a large segment (bytes).
const COPIED: [usize; 4] = [64, 1_514, 16 << 10, 64 << 10];
/// What source and target each go round in: a ring's buffers (bytes).
const AREA_BYTES: usize = 2 << 20;
/// Bytes copied of each size in one round.
const ROUND_BYTES: usize = 16 << 20;
/// Rows of pings in one round, and times that a line of cache goes there and back in one.
const ROWS: u64 = 50;
const PINGS: u64 = 100;
/// Looks before a thread lets others run, in case there is but one CPU.
const SPINS: u32 = 2_000;

/// All of them.
pub(super) fn measure(rounds: usize) -> io::Result<Vec<Cost>> {
    let cpus = Cpus::new()?;
    let mut costs = wake_ups(&cpus, rounds)?;
    let set = Set::new()?;
    let looks = in_rounds(rounds, || {
        let start = Instant::now();
        for _ in 0..LOOKS {
            set.wait(0)?;
        }
        Ok(nanos(start.elapsed()) / f64::from(LOOKS))
    })?;
    costs.push(Cost::new("poll_ns", "epoll_wait of an empty set, without waiting", looks));
    // On a thread of its own, whose timers may be as exact as a worker's.
    let late = thread::scope(|scope| scope.spawn(|| timers(&set, rounds)).join());
    let late = late.map_err(|_| panicked())??;
    costs.push(Cost::new("timer_late_ns", "ppoll for 100 us, how much longer it took", late));
    costs.push(copies(rounds)?);
    if let [Some(a), Some(b)] = cpus.0 {
        let pings = in_rounds(rounds, || Ok(ping_pong(&cpus)))?;
        let how = format!("a line of cache between CPUs {a} and {b}");
        costs.push(Cost::new("far_cache_ns", how, pings));
    }
    Ok(costs)
}

/// How late timers are (ns).
fn timers(set: &Set, rounds: usize) -> io::Result<Vec<f64>> {
    let _ = set_current_timer_slack(NonZeroU64::new(TIMER_SLACK_NS));
    in_rounds(rounds, || {
        let mut late = Vec::new();
        for _ in 0..TIMERS {
            let start = Instant::now();
            set.wait_for(TIMER_NS)?;
            late.push((nanos(start.elapsed()) - f64::from(TIMER_NS)).max(0.0));
        }
        Ok(median(late))
    })
}

fn panicked() -> io::Error {
    io::Error::other("a thread that measures has panicked")
}

/// The first and the last CPU of this process; the latter only if it is another one.
struct Cpus([Option<usize>; 2]);

impl Cpus {
    fn new() -> io::Result<Self> {
        let allowed = sched_getaffinity(None)?;
        let mut cpus = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
        Ok(Self([cpus.next(), cpus.next_back()]))
    }

    /// Keeps the calling thread on one of them, if it is there. Where that is refused, what is measured
    /// is what the scheduler makes of it.
    fn pin(&self, which: usize) {
        if let Some(cpu) = self.0.get(which).copied().flatten() {
            let mut set = CpuSet::new();
            set.set(cpu);
            let _ = sched_setaffinity(None, &set);
        }
    }
}

/// An epoll set with an eventfd, as a worker has one.
struct Set {
    epoll: OwnedFd,
    event: OwnedFd,
}

impl Set {
    fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        // Kicks are edge-triggered, and the eventfd is not read.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &event, epoll::EventData::new_u64(0), flags)?;
        Ok(Self { epoll, event })
    }

    /// Whether the eventfd is written to within so many seconds.
    fn wait(&self, seconds: i64) -> io::Result<bool> {
        let timeout = Timespec { tv_sec: seconds, tv_nsec: 0 };
        let mut events = Vec::with_capacity(1);
        let space = rustix::buffer::spare_capacity(&mut events);
        Ok(epoll::wait(&self.epoll, space, Some(&timeout))? > 0)
    }

    /// Waits for so long (ns), in `ppoll` as a worker with a deadline does.
    fn wait_for(&self, ns: u32) -> io::Result<()> {
        let timeout = Timespec { tv_sec: 0, tv_nsec: ns.into() };
        poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], Some(&timeout))?;
        Ok(())
    }

    fn kick(&self) -> io::Result<()> {
        rustix::io::write(&self.event, &1_u64.to_ne_bytes())?;
        Ok(())
    }
}

/// A write to the eventfd of a sleeper, how long until it is awake, and what that costs it.
fn wake_ups(cpus: &Cpus, rounds: usize) -> io::Result<Vec<Cost>> {
    let (mut calls, mut latencies, mut sleeps) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let shared = Shared {
            set: Set::new()?,
            base: Instant::now(),
            awake: AtomicU64::new(0),
            ended: AtomicBool::new(false),
        };
        let (sleeper, waker) = thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                cpus.pin(1);
                let slept = shared.sleep();
                shared.ended.store(true, Ordering::Release);
                slept
            });
            let waker = scope.spawn(|| {
                cpus.pin(0);
                shared.wake()
            });
            let waker = waker.join();
            (sleeper.join(), waker)
        });
        let (call, latency) = waker.map_err(|_| panicked())??;
        calls.push(call);
        latencies.push(latency);
        sleeps.push(sleeper.map_err(|_| panicked())??);
    }
    Ok(vec![
        Cost::new("call_ns", "a write to the eventfd of a sleeping thread", calls),
        Cost::new("wakeup_latency_ns", "from that write to the thread", latencies),
        Cost::new("sleep_ns", "CPU time of that thread for each time", sleeps),
    ])
}

/// What a sleeper and the one that wakes it share.
struct Shared {
    set: Set,
    base: Instant,
    /// When the sleeper woke up last (ns since `base`), 0 before it does.
    awake: AtomicU64,
    /// The sleeper will not wake up again.
    ended: AtomicBool,
}

impl Shared {
    /// CPU time of falling asleep and waking up (ns).
    fn sleep(&self) -> io::Result<f64> {
        let start = cpu_time();
        for _ in 0..WAKE_UPS {
            if !self.set.wait(SLEEP_S_MAX)? {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.awake.store(nanos(self.base.elapsed()) as u64, Ordering::Release);
        }
        Ok(nanos(cpu_time().saturating_sub(start)) / WAKE_UPS as f64)
    }

    /// Time of a write, and from its begin to the sleeper (ns).
    fn wake(&self) -> io::Result<(f64, f64)> {
        let (mut call, mut latency) = (Vec::new(), Vec::new());
        for _ in 0..WAKE_UPS {
            thread::sleep(TO_SLEEP);
            self.awake.store(0, Ordering::Relaxed);
            let before = nanos(self.base.elapsed());
            self.set.kick()?;
            let after = nanos(self.base.elapsed());
            let woke = spin(|| match self.awake.load(Ordering::Acquire) {
                0 if !self.ended.load(Ordering::Acquire) => None,
                ns => Some(ns),
            });
            call.push(after - before);
            latency.push((woke as f64 - before).max(0.0));
        }
        Ok((median(call), median(latency)))
    }
}

/// A copy by size; the cost of a byte is that of the largest over that of the smallest.
fn copies(rounds: usize) -> io::Result<Cost> {
    let (from, mut to) = (vec![1_u8; AREA_BYTES], vec![2_u8; AREA_BYTES]);
    let mut each = COPIED.map(|_| Vec::new());
    for _ in 0..rounds {
        for (times, bytes) in each.iter_mut().zip(COPIED) {
            let (mut copied, start) = (0_usize, Instant::now());
            while copied < ROUND_BYTES {
                for (from, to) in from.chunks_exact(bytes).zip(to.chunks_exact_mut(bytes)) {
                    black_box(to).copy_from_slice(black_box(from));
                    copied += bytes;
                }
            }
            times.push(nanos(start.elapsed()) / (copied / bytes).max(1) as f64);
        }
    }
    let sizes = each.iter().zip(COPIED);
    let sizes: Vec<_> =
        sizes.map(|(times, bytes)| format!("{bytes} B {:.0} ns", median(times.clone()))).collect();
    let [small, .., large] = &each;
    let [small_bytes, .., large_bytes] = COPIED;
    let slope = |(small, large): (&f64, &f64)| {
        1e3 * (large - small).max(0.0) / (large_bytes - small_bytes) as f64
    };
    let rounds = small.iter().zip(large).map(slope).collect();
    Ok(Cost::new("copy_ps_per_byte", format!("copies within 2 MiB: {}", sizes.join(", ")), rounds))
}

/// A line of cache, from one thread to the other (ns): of many short rows of pings the fastest, in which
/// nothing else had one of the CPUs.
fn ping_pong(cpus: &Cpus) -> f64 {
    let turn = AtomicU64::new(0);
    let play = |first: u64| {
        cpus.pin(usize::from(first > 0));
        let (mut fastest, mut start) = (f64::INFINITY, Instant::now());
        for ping in 0..ROWS * PINGS {
            let mine = 2 * ping + first;
            spin(|| (turn.load(Ordering::Acquire) == mine).then_some(()));
            turn.store(mine + 1, Ordering::Release);
            if ping % PINGS == PINGS - 1 {
                fastest = fastest.min(nanos(start.elapsed()) / (2 * PINGS) as f64);
                start = Instant::now();
            }
        }
        fastest
    };
    thread::scope(|scope| {
        scope.spawn(|| play(1));
        // A thread of its own, since it stays on its CPU.
        let first = scope.spawn(|| play(0)).join();
        first.unwrap_or(f64::INFINITY)
    })
}

/// Looks until there is something.
fn spin<T>(look: impl Fn() -> Option<T>) -> T {
    loop {
        for _ in 0..SPINS {
            if let Some(found) = look() {
                return found;
            }
            std::hint::spin_loop();
        }
        thread::yield_now();
    }
}

fn nanos(time: Duration) -> f64 {
    time.as_nanos() as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// This thread's.
fn cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}
