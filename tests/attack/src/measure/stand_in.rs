//! Who works beside weir and does nothing to it: in the attacker's place, or in that of weir's own threads.

use std::{
    io,
    os::fd::OwnedFd,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use rustix::{
    event::{EventfdFlags, eventfd},
    process::{Signal, set_parent_process_death_signal},
    thread::ClockId,
    time::clock_gettime,
};

/// Work of a process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Work {
    /// Processors that it takes on average.
    pub cpus: f64,
    /// Threads that take them at the same time.
    pub threads: usize,
    /// Threads or processes that begin, do a part of the work, and end, a second; below 1, all work is done by those
    /// that are there.
    pub begun_per_s: f64,
    /// Processes begin, no threads.
    pub processes: bool,
}

/// How long work goes on before who does it rests, if there is less than all time allows.
const TURN: Duration = Duration::from_millis(1);

/// Works until the process's input ends.
pub fn work(work: Work) -> io::Result<()> {
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let threads = work.threads.clamp(1, 64);
    let share = (work.cpus / threads as f64).clamp(0.0, 1.0);
    for _ in 0..threads {
        let turn = if work.begun_per_s < 1.0 {
            TURN
        } else {
            Duration::from_secs_f64(threads as f64 / work.begun_per_s)
        };
        let busy = turn.mul_f64(share);
        let own = eventfd(0, EventfdFlags::empty())?;
        thread::spawn(move || {
            loop {
                let began = Instant::now();
                if work.begun_per_s < 1.0 {
                    busy_for(&own, busy);
                } else {
                    let _ = if work.processes { spawned(busy) } else { begun(&own, busy) };
                }
                thread::sleep(turn.saturating_sub(began.elapsed()));
            }
        });
    }
    io::stdin().read_line(&mut String::new()).map(drop)
}

/// A process that works for so long, and ends.
fn spawned(busy: Duration) -> io::Result<()> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["busy", &busy.as_nanos().to_string()]).status().map(drop)
}

/// The same, as the process itself.
pub fn busy(ns: u64) -> io::Result<()> {
    busy_for(&eventfd(0, EventfdFlags::empty())?, Duration::from_nanos(ns));
    Ok(())
}

/// A thread that works for so long, and ends.
fn begun(own: &OwnedFd, busy: Duration) -> io::Result<()> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().spawn_scoped(scope, || busy_for(own, busy))?;
        thread.join().map_err(|_| io::Error::other("it panicked"))
    })
}

/// Takes so much processor time, in system calls: who waits for the processor waits longer for such a thread.
fn busy_for(own: &OwnedFd, busy: Duration) {
    let cpu = || {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
    };
    let end = cpu() + busy;
    while cpu() < end {
        for _ in 0..16 {
            let _ = rustix::io::write(own, &1_u64.to_ne_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_begins_takes_the_time_that_it_is_told() {
        let process = || {
            let now = clock_gettime(ClockId::ProcessCPUTime);
            Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
        };
        let (own, before) = (eventfd(0, EventfdFlags::empty()).unwrap(), process());
        begun(&own, Duration::from_millis(20)).unwrap();
        assert!(process() - before >= Duration::from_millis(20));
    }
}
