//! `weir bench --ping-pong`: latency between two cores by polling, by the CPU's instructions that wait for a cache
//! line (if it has them), and by wake-ups.
//!
//! These are lower limits of a switch's latency: a polling worker sees a request after the transfer of a cache line,
//! and a sleeping worker after the kernel's wake-up.

use std::hint;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use weir_guestmem::monitor::Monitor;

use super::super::figures::{FigureRow, Figures};
use super::super::report::median_and_spread;
use crate::args::BenchArgs;
use crate::rig::{self, pin, two_cpus};
use crate::steps::{BenchError, SLICES, progress};

/// Interval at which a sleeping thread checks for its end.
const STOP_POLL: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// Polled rounds between two readings of the clock.
const ROUNDS: u64 = 100;
/// Pause between two signals, so that the waiting thread is asleep.
const PAUSE: Duration = Duration::from_micros(100);

/// A thread that answers another.
struct Court {
    /// Number of the last ball served.
    ball: Line,
    /// Number of the last ball returned.
    back: Line,
    /// The eventfd is signalled with a ball if the answering thread sleeps.
    bell: OwnedFd,
    ended: AtomicBool,
}

/// A cache line of its own, together with the adjacent line that is prefetched with it.
#[repr(align(128))]
#[derive(Default)]
struct Line(AtomicU64);

/// The answering thread's way to wait.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waits {
    Polling,
    /// Waits for a write to the ball's line, by the CPU's instructions for it.
    Monitoring(Monitor),
    Asleep,
}

impl Court {
    fn new() -> io::Result<Self> {
        Ok(Self {
            ball: Line::default(),
            back: Line::default(),
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            ended: AtomicBool::new(false),
        })
    }

    /// Returns each ball until the end.
    fn answer(&self, waits: Waits) -> io::Result<()> {
        while !self.ended.load(Ordering::Relaxed) {
            if waits == Waits::Asleep {
                let mut fds = [PollFd::new(&self.bell, PollFlags::IN)];
                poll(&mut fds, Some(&STOP_POLL))?;
                // After a timeout there is nothing to read.
                let _ = rustix::io::read(&self.bell, &mut [0; 8]);
            }
            let ball = self.ball.0.load(Ordering::Acquire);
            self.back.0.store(ball, Ordering::Release);
            match waits {
                Waits::Monitoring(monitor) => monitor.wait(&self.ball.0, ball),
                Waits::Polling | Waits::Asleep => hint::spin_loop(),
            }
        }
        Ok(())
    }

    /// Serves a ball and waits for its return. Returns false if it does not return.
    fn rally(&self, number: u64, waits: Waits, stop: &AtomicBool) -> io::Result<bool> {
        self.ball.0.store(number, Ordering::Release);
        if waits == Waits::Asleep {
            rustix::io::write(&self.bell, &1_u64.to_ne_bytes())?;
        }
        while self.back.0.load(Ordering::Acquire) != number {
            if stop.load(Ordering::Relaxed) {
                return Ok(false);
            }
            hint::spin_loop();
        }
        Ok(true)
    }
}

/// Returns the median round trip (ns) with one thread on each CPU; `None` after an interruption.
fn round_trip_ns(
    waits: Waits,
    cpus: [usize; 2],
    time: Duration,
    stop: &AtomicBool,
) -> io::Result<Option<f64>> {
    let court = Court::new()?;
    thread::scope(|scope| {
        let answering = scope.spawn(|| {
            pin(None, cpus[1]);
            court.answer(waits)
        });
        let serving = scope.spawn(|| {
            pin(None, cpus[0]);
            let times = serve(&court, waits, time, stop);
            court.ended.store(true, Ordering::Relaxed);
            times
        });
        let times = serving.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let answered = answering.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        answered?;
        Ok(median_and_spread(times?).map(|(median, ..)| median))
    })
}

/// Returns times of round trips (ns): of single ones if each needs a system call, or else means of [`ROUNDS`].
fn serve(court: &Court, waits: Waits, time: Duration, stop: &AtomicBool) -> io::Result<Vec<f64>> {
    let rounds = if waits == Waits::Asleep { 1 } else { ROUNDS };
    let (mut number, mut times) = (0, Vec::new());
    let start = Instant::now();
    while start.elapsed() < time {
        if waits == Waits::Asleep {
            thread::sleep(PAUSE);
        }
        let begun = Instant::now();
        for _ in 0..rounds {
            number += 1;
            if !court.rally(number, waits, stop)? {
                return Ok(Vec::new());
            }
        }
        times.push(begun.elapsed().as_nanos() as f64 / rounds as f64);
    }
    Ok(times)
}

/// Measures and prints the result.
pub(super) fn run(args: &BenchArgs, out: &mut dyn Write) -> Result<(), BenchError> {
    let stop = rig::catch_signals()?;
    let cpus = two_cpus().ok_or(BenchError::OneProcessor)?;
    let time = Duration::from_secs(args.seconds.into()) / SLICES;
    let monitor = Monitor::of_this_processor();
    let [mut polled, mut monitored, mut woken] = [const { Vec::new() }; 3];
    let progress = progress(1);
    progress.set_message("round trips");
    for _ in 0..SLICES {
        polled.extend(round_trip_ns(Waits::Polling, cpus, time, &stop)?);
        if let Some(monitor) = monitor {
            monitored.extend(round_trip_ns(Waits::Monitoring(monitor), cpus, time, &stop)?);
        }
        woken.extend(round_trip_ns(Waits::Asleep, cpus, time, &stop)?);
        progress.inc(1);
    }
    progress.finish_and_clear();
    let figures = [
        FigureRow::new("ping_pong_poll_poll", "ns", "there and back, both threads polling", polled),
        FigureRow::new(
            "ping_pong_poll_monitor",
            "ns",
            "the answering thread waits for the line by umwait or mwaitx; the other polls for the answer",
            monitored,
        ),
        FigureRow::new(
            "ping_pong_poll_interrupt",
            "ns",
            "the answering thread asleep, woken by an eventfd; the other polls for the answer",
            woken,
        ),
    ];
    let figures = figures.into_iter().flatten().collect();
    let notes = vec![monitor_wait(monitor)];
    Figures { title: "two threads on two cores that answer each other", figures, notes }
        .print(args, out)
}

/// Describes the CPU's instructions that wait for a cache line without polling.
fn monitor_wait(monitor: Option<Monitor>) -> String {
    match monitor {
        Some(monitor) => format!("ping_pong_poll_monitor is by {}", monitor.name()),
        None => "umwait and mwaitx: this processor has neither".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ball_comes_back_however_the_other_waits() {
        let Some(cpus) = two_cpus() else { return };
        let stop = AtomicBool::new(false);
        let monitoring = Monitor::of_this_processor().map(Waits::Monitoring);
        for waits in [Waits::Polling, Waits::Asleep].into_iter().chain(monitoring) {
            let time = Duration::from_millis(20);
            let ns = round_trip_ns(waits, cpus, time, &stop).unwrap();
            assert!(ns.is_some_and(|ns| ns > 0.0), "{ns:?}");
        }
    }
}
