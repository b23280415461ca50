//! Costs that are measured without a switch.

use std::hint::black_box;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, clock_gettime,
    timerfd_create, timerfd_settime,
};

use super::super::measure::{pin, usable_cpus};
use super::cost::{Cost, in_rounds, paired};
use crate::quiet::exact_timers;

const WAKE_UPS: u64 = 200;
/// Time in which a thread falls asleep.
const TO_SLEEP: Duration = Duration::from_micros(100);
/// Duration of a short sleep.
const SHORT_SLEEP: Duration = Duration::from_micros(10);
/// Longest sleep (s). It is reached only if the waking thread has failed.
const SLEEP_S_MAX: i64 = 5;
/// Time to find interruptions on each CPU in one round, and the shortest and the longest interruption that counts.
const TICKS_TIME: Duration = Duration::from_millis(50);
const TICK_MIN: Duration = Duration::from_micros(5);
const TICK_MAX: Duration = Duration::from_millis(1);
/// Polls of an epoll set per round.
const LOOKS: u32 = 5_000;
/// Timers per round, and the duration of each (ns).
const TIMERS: u64 = 100;
const TIMER_NS: u32 = 100_000;
/// A timeout that expires before the thread sleeps (ns).
const MISSED_NS: u32 = 2_000;
/// Expiry of a timer that must not fire during the measurement (s).
const FAR_S: i64 = 100;
/// Sizes of copies, from a small frame to a large segment (bytes).
const COPIED: [usize; 4] = [64, 1_514, 16 << 10, 64 << 10];
/// Size of the source and target areas, which copies traverse in a circle, as in a ring's buffers (bytes).
const AREA_BYTES: usize = 2 << 20;
/// Total of the copies of each size in one round (bytes).
const ROUND_BYTES: usize = 16 << 20;
/// Rows of pings per round, and round trips of a cache line per row.
const ROWS: u64 = 50;
const PINGS: u64 = 100;
/// Polls before a thread yields, for machines with one CPU.
const SPINS: u32 = 2_000;

/// Costs of sleeps and latencies of wake-ups, one value per round (ns).
pub(super) struct Sleeps {
    pub(super) worker: WakeUps,
    /// Additional cost of a timer before a sleep.
    pub(super) timer_set: Vec<f64>,
    pub(super) guest: WakeUps,
    pub(super) timer: Timers,
    /// CPU time of a guest's sleep while another thread uses the CPU.
    pub(super) busy: Vec<f64>,
    /// CPU time of the write that ends such a sleep.
    pub(super) busy_write: Vec<f64>,
}

/// Measures all costs of this module.
pub(super) fn measure(rounds: usize) -> io::Result<(Vec<Cost>, Sleeps)> {
    let cpus = Cpus::new();
    let [worker, guest, short] = wake_ups(&cpus, rounds)?;
    let mut costs = Vec::new();
    let warm = paired(&short.sleep, &guest.sleep, |short, long| 1e3 * (short / long).min(1.0));
    let how = "a sleep on a CPU that was idle for 10 us, of one that was for 100 us and more";
    costs.push(Cost::new("warm_permille", how, warm));
    let set = Set::new()?;
    let looks = in_rounds(rounds, || {
        let start = Instant::now();
        for _ in 0..LOOKS {
            set.wait(0)?;
        }
        Ok(nanos(start.elapsed()) / f64::from(LOOKS))
    })?;
    costs.push(Cost::new("poll_ns", "epoll_wait of an empty set, without waiting", looks));
    // The timers are measured on a separate thread, whose timer slack is a worker's.
    let timers = thread::scope(|scope| scope.spawn(|| timers(&cpus, &set, rounds)).join());
    let timer = timers.map_err(|_| panicked())??;
    costs.push(Cost::new("deadline_ns", "setting a timerfd", in_rounds(rounds, timer_set)?));
    costs.push(copies(rounds)?);
    if let [Some(a), Some(b)] = cpus.0 {
        let pings = in_rounds(rounds, || Ok(ping_pong(&cpus)))?;
        let how = format!("a line of cache between CPUs {a} and {b}");
        costs.push(Cost::new("far_cache_ns", how, pings));
    }
    let ticks: Vec<_> = (0..rounds).filter_map(|_| interruptions(&cpus)).collect();
    if !ticks.is_empty() {
        let (each, every) = ticks.into_iter().unzip();
        let how = "what interrupts a thread that does nothing but look at the clock";
        costs.push(Cost::new("tick_ns", how, each));
        costs.push(Cost::new("tick_every_ns", "how often that is", every));
    }
    let busy: io::Result<Vec<_>> = (0..rounds).map(|_| taking_turns(&cpus)).collect();
    let (busy, busy_write) = busy?.into_iter().unzip();
    let timer_set = in_rounds(rounds, || {
        Ok(until_another_runs(&cpus, Sleep::Timed)? - until_another_runs(&cpus, Sleep::Untimed)?)
    })?;
    Ok((costs, Sleeps { worker, timer_set, guest, timer, busy, busy_write }))
}

/// A thread's way to wait for its eventfd.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sleep {
    Untimed,
    /// The thread has a timer, which ends the sleep.
    Timed,
}

/// Returns the median time from the start of a thread's sleep to the run of another thread that waited for its CPU
/// (ns).
fn until_another_runs(cpus: &Cpus, sleep: Sleep) -> io::Result<f64> {
    let (sleeper, other) = (Set::new()?, Set::new()?);
    let (base, began, ended) = (Instant::now(), AtomicU64::new(0), AtomicBool::new(false));
    let now = || nanos(base.elapsed()) as u64;
    let falls = || -> io::Result<()> {
        cpus.pin(0);
        exact_timers();
        for _ in 0..WAKE_UPS {
            began.store(now(), Ordering::Relaxed);
            other.kick()?;
            match sleep {
                Sleep::Untimed if !sleeper.poll(SLEEP_S_MAX)? => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                Sleep::Untimed => {}
                Sleep::Timed => sleeper.wait_for(TIMER_NS)?,
            }
        }
        Ok(())
    };
    let waits = || -> io::Result<f64> {
        cpus.pin(0);
        let mut times = Vec::new();
        while other.poll(SLEEP_S_MAX)? && !ended.load(Ordering::Acquire) {
            times.push(now() as f64 - began.load(Ordering::Relaxed) as f64);
            if sleep == Sleep::Untimed {
                sleeper.kick()?;
            }
        }
        Ok(quantile(&times, 0.5))
    };
    thread::scope(|scope| {
        let waits = scope.spawn(waits);
        let fell = scope.spawn(falls).join().map_err(|_| panicked())?;
        ended.store(true, Ordering::Release);
        other.kick()?;
        let waited = waits.join().map_err(|_| panicked())?;
        fell.and(waited)
    })
}

/// Returns the mean length and interval of interruptions of a running thread on both CPUs (ns), if there are any.
/// Longer interruptions than the kernel's are preemptions.
fn interruptions(cpus: &Cpus) -> Option<(f64, f64)> {
    let look = |which| {
        cpus.pin(which);
        let (mut lost, mut count) = (0.0, 0_u32);
        let start = Instant::now();
        let mut last = Duration::ZERO;
        while last < TICKS_TIME {
            let now = start.elapsed();
            let gap = now.saturating_sub(last);
            if (TICK_MIN..TICK_MAX).contains(&gap) {
                lost += nanos(gap);
                count += 1;
            }
            last = now;
        }
        (lost, count)
    };
    let both = [0, 1]
        .map(|which| thread::scope(|scope| scope.spawn(|| look(which)).join().unwrap_or_default()));
    let (lost, count) = (both[0].0 + both[1].0, both[0].1 + both[1].1);
    let time = nanos(TICKS_TIME) * both.len() as f64;
    (count > 0).then(|| (lost / f64::from(count), time / f64::from(count)))
}

/// Returns the CPU time of a sleep that another thread on the same, always busy CPU ends, and of the write that ends
/// it (ns).
fn taking_turns(cpus: &Cpus) -> io::Result<(f64, f64)> {
    let sets = [Set::new()?, Set::new()?];
    let play = |own: &Set, other: &Set, begins: bool| {
        cpus.pin(0);
        let (start, mut writes) = (cpu_time(), Duration::ZERO);
        if begins {
            other.kick()?;
        }
        for _ in 0..WAKE_UPS {
            if !own.poll(SLEEP_S_MAX)? {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let before = cpu_time();
            other.kick()?;
            writes += cpu_time().saturating_sub(before);
        }
        let each = |time: Duration| nanos(time) / WAKE_UPS as f64;
        let all = cpu_time().saturating_sub(start);
        Ok((each(all.saturating_sub(writes)), each(writes)))
    };
    let [first, second] = &sets;
    let (one, other) = thread::scope(|scope| {
        let one = scope.spawn(|| play(first, second, true));
        let other = scope.spawn(|| play(second, first, false));
        (one.join(), other.join())
    });
    let one: io::Result<(f64, f64)> = one.map_err(|_| panicked())?;
    let ((sleep, write), (other_sleep, other_write)) = (one?, other.map_err(|_| panicked())??);
    Ok((f64::midpoint(sleep, other_sleep), f64::midpoint(write, other_write)))
}

/// Sleeps ended by a timer (ns).
#[derive(Default)]
pub(super) struct Timers {
    /// Lateness of the wake-up: the median and the 90th percentile.
    pub(super) late: Vec<f64>,
    pub(super) late_p90: Vec<f64>,
    /// CPU time of a sleep.
    pub(super) sleep: Vec<f64>,
    /// CPU time of a sleep whose timeout expires before it begins.
    pub(super) missed: Vec<f64>,
}

fn timers(cpus: &Cpus, set: &Set, rounds: usize) -> io::Result<Timers> {
    cpus.pin(0);
    exact_timers();
    let mut timers = Timers::default();
    for _ in 0..rounds {
        let (mut late, cpu) = (Vec::new(), cpu_time());
        for _ in 0..TIMERS {
            let start = Instant::now();
            set.wait_for(TIMER_NS)?;
            late.push((nanos(start.elapsed()) - f64::from(TIMER_NS)).max(0.0));
        }
        let spent = |since: Duration| nanos(cpu_time().saturating_sub(since)) / TIMERS as f64;
        timers.sleep.push(spent(cpu));
        let cpu = cpu_time();
        for _ in 0..TIMERS {
            set.wait_for(MISSED_NS)?;
        }
        timers.missed.push(spent(cpu));
        timers.late.push(quantile(&late, 0.5));
        timers.late_p90.push(quantile(&late, 0.9));
    }
    Ok(timers)
}

/// Returns the cost of setting a timer (ns).
fn timer_set() -> io::Result<f64> {
    let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?;
    let start = Instant::now();
    for at in 0..LOOKS {
        let it_value = Timespec { tv_sec: FAR_S, tv_nsec: at.into() };
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        let when = Itimerspec { it_interval, it_value };
        timerfd_settime(&timer, TimerfdTimerFlags::empty(), &when)?;
    }
    Ok(nanos(start.elapsed()) / f64::from(LOOKS))
}

fn panicked() -> io::Error {
    io::Error::other("a thread that measures has panicked")
}

/// The first and the last usable CPU of this process. The last is `None` if there is only one.
struct Cpus([Option<usize>; 2]);

impl Cpus {
    fn new() -> Self {
        let usable = usable_cpus();
        let mut cpus = usable.iter().copied();
        Self([cpus.next(), cpus.next_back()])
    }

    /// Pins the calling thread to one of the CPUs, if there is one.
    fn pin(&self, which: usize) {
        if let Some(cpu) = self.0.get(which).copied().flatten() {
            pin(None, cpu);
        }
    }
}

/// An epoll set with an eventfd, like a worker's.
struct Set {
    epoll: OwnedFd,
    event: OwnedFd,
}

impl Set {
    fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        // Kicks are edge-triggered, so the eventfd is not read.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &event, epoll::EventData::new_u64(0), flags)?;
        Ok(Self { epoll, event })
    }

    /// Waits up to `seconds` for a write to the eventfd. Returns true if there was one.
    fn wait(&self, seconds: i64) -> io::Result<bool> {
        let timeout = Timespec { tv_sec: seconds, tv_nsec: 0 };
        let mut events = Vec::with_capacity(1);
        let space = rustix::buffer::spare_capacity(&mut events);
        Ok(epoll::wait(&self.epoll, space, Some(&timeout))? > 0)
    }

    /// Waits for `ns` in `ppoll`, as a worker with a deadline does.
    fn wait_for(&self, ns: u32) -> io::Result<()> {
        let timeout = Timespec { tv_sec: 0, tv_nsec: ns.into() };
        poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], Some(&timeout))?;
        Ok(())
    }

    /// Waits as [`wait`](Self::wait) does, but by `poll`, and then reads the eventfd.
    fn poll(&self, seconds: i64) -> io::Result<bool> {
        let timeout = Timespec { tv_sec: seconds, tv_nsec: 0 };
        let woken = poll(&mut [PollFd::new(&self.event, PollFlags::IN)], Some(&timeout))? > 0;
        if woken {
            rustix::io::read(&self.event, &mut [0; size_of::<u64>()])?;
        }
        Ok(woken)
    }

    fn kick(&self) -> io::Result<()> {
        rustix::io::write(&self.event, &1_u64.to_ne_bytes())?;
        Ok(())
    }
}

/// The kind of sleeper.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sleeper {
    /// A worker in `epoll_wait` on the last CPU, which does not read the eventfd.
    Worker,
    /// A guest's thread in `poll` on the first CPU, which reads the eventfd.
    Guest,
    /// A guest's thread whose sleep is as short as that of a sender with an immediate answer.
    ShortGuest,
}

/// Sleeps ended by a write to an eventfd (ns).
#[derive(Default)]
pub(super) struct WakeUps {
    pub(super) write: Vec<f64>,
    /// Latency from the start of the write to the sleeper's wake-up: the median and the 90th percentile.
    pub(super) latency: Vec<f64>,
    pub(super) latency_p90: Vec<f64>,
    /// CPU time of the sleeper.
    pub(super) sleep: Vec<f64>,
}

/// Measures each kind of sleeper.
fn wake_ups(cpus: &Cpus, rounds: usize) -> io::Result<[WakeUps; 3]> {
    let mut all = [(); 3].map(|()| WakeUps::default());
    for _ in 0..rounds {
        let kinds = [Sleeper::Worker, Sleeper::Guest, Sleeper::ShortGuest];
        for (wake_ups, who) in all.iter_mut().zip(kinds) {
            wake_ups.round(cpus, who)?;
        }
    }
    Ok(all)
}

impl WakeUps {
    fn round(&mut self, cpus: &Cpus, who: Sleeper) -> io::Result<()> {
        let shared = Shared {
            who,
            set: Set::new()?,
            base: Instant::now(),
            awake: AtomicU64::new(0),
            ended: AtomicBool::new(false),
        };
        let here = usize::from(who == Sleeper::Worker);
        let (sleeper, waker) = thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                cpus.pin(here);
                let slept = shared.sleep();
                shared.ended.store(true, Ordering::Release);
                slept
            });
            let waker = scope.spawn(|| {
                cpus.pin(1 - here);
                exact_timers();
                shared.wake()
            });
            let waker = waker.join();
            (sleeper.join(), waker)
        });
        let (writes, latencies) = waker.map_err(|_| panicked())??;
        self.write.push(quantile(&writes, 0.5));
        self.latency.push(quantile(&latencies, 0.5));
        self.latency_p90.push(quantile(&latencies, 0.9));
        self.sleep.push(sleeper.map_err(|_| panicked())??);
        Ok(())
    }
}

/// State shared by a sleeper and the thread that wakes it.
struct Shared {
    who: Sleeper,
    set: Set,
    base: Instant,
    /// Time of the sleeper's last wake-up (ns since `base`); 0 before the first.
    awake: AtomicU64,
    /// True once the sleeper will not wake up again.
    ended: AtomicBool,
}

impl Shared {
    /// Returns the CPU time of falling asleep and waking up (ns).
    fn sleep(&self) -> io::Result<f64> {
        let start = cpu_time();
        for _ in 0..WAKE_UPS {
            let woken = match self.who {
                Sleeper::Worker => self.set.wait(SLEEP_S_MAX)?,
                Sleeper::Guest | Sleeper::ShortGuest => self.set.poll(SLEEP_S_MAX)?,
            };
            if !woken {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.awake.store(nanos(self.base.elapsed()) as u64, Ordering::Release);
        }
        Ok(nanos(cpu_time().saturating_sub(start)) / WAKE_UPS as f64)
    }

    /// Returns the durations of writes, and the times from their starts to the sleeper's wake-ups (ns).
    fn wake(&self) -> io::Result<(Vec<f64>, Vec<f64>)> {
        let (mut writes, mut latencies) = (Vec::new(), Vec::new());
        for _ in 0..WAKE_UPS {
            match self.who {
                Sleeper::ShortGuest => {
                    let start = Instant::now();
                    while start.elapsed() < SHORT_SLEEP {}
                }
                Sleeper::Worker | Sleeper::Guest => thread::sleep(TO_SLEEP),
            }
            self.awake.store(0, Ordering::Relaxed);
            let before = nanos(self.base.elapsed());
            self.set.kick()?;
            let after = nanos(self.base.elapsed());
            let woke = spin(|| match self.awake.load(Ordering::Acquire) {
                0 if !self.ended.load(Ordering::Acquire) => None,
                ns => Some(ns),
            });
            writes.push(after - before);
            latencies.push((woke as f64 - before).max(0.0));
        }
        Ok((writes, latencies))
    }
}

/// Measures copies by size. The cost per byte is the slope between the smallest and the largest size.
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
        sizes.map(|(times, bytes)| format!("{bytes} B {:.0} ns", quantile(times, 0.5))).collect();
    let [small, .., large] = &each;
    let [small_bytes, .., large_bytes] = COPIED;
    let slope = |(small, large): (&f64, &f64)| {
        1e3 * (large - small).max(0.0) / (large_bytes - small_bytes) as f64
    };
    let rounds = small.iter().zip(large).map(slope).collect();
    Ok(Cost::new("copy_ps_per_byte", format!("copies within 2 MiB: {}", sizes.join(", ")), rounds))
}

/// Returns the one-way latency of a cache line between threads (ns): the fastest of many short rows of pings, with
/// both CPUs undisturbed.
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
        // The thread is separate because it stays pinned.
        let first = scope.spawn(|| play(0)).join();
        first.unwrap_or(f64::INFINITY)
    })
}

/// Polls until there is a value.
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

fn quantile(values: &[f64], share: f64) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let at = (values.len() as f64 * share) as usize; // below its length, but for a share of 1
    values.get(at).or(values.last()).copied().unwrap_or(0.0)
}

/// Returns this thread's CPU time.
fn cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}
