//! A process that works beside weir in place of the attacker, without an effect on weir.

use std::{
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::{Command, Stdio},
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
#[derive(Clone, Debug, Default)]
pub struct Work {
    /// CPUs that the process uses on average.
    pub cpus: f64,
    /// Number of threads that use these CPUs at the same time.
    pub threads: usize,
    /// Threads that start, do a part of the work, and end, per second. Below 1, the permanent threads do all work.
    pub begun_per_s: f64,
    /// Program of the processes that are started in place of threads. It is weir's, and finds no weir to connect to.
    pub program: Option<PathBuf>,
}

/// Work and rest together, for a thread that does not use all of a CPU.
const TURN: Duration = Duration::from_millis(1);

/// Works until the input of the process ends.
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
        let (own, program) = (eventfd(0, EventfdFlags::empty())?, work.program.clone());
        thread::spawn(move || {
            loop {
                let began = Instant::now();
                if work.begun_per_s < 1.0 {
                    busy_for(&own, busy);
                } else {
                    let _ = match &program {
                        Some(program) => spawned(program),
                        None => begun(&own, busy),
                    };
                }
                thread::sleep(turn.saturating_sub(began.elapsed()));
            }
        });
    }
    io::stdin().read_line(&mut String::new()).map(drop)
}

/// Starts a process of weir's program that connects to a weir that does not exist.
///
/// The program is weir's, because the time to start and end a process delays others, and grows with the program's size.
fn spawned(program: &Path) -> io::Result<()> {
    let mut command = Command::new(program);
    command.args(["vif", "del", "nobody", "--control", "/nonexistent"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().map(drop)
}

/// Starts a thread that works for the time `busy` and ends.
fn begun(own: &OwnedFd, busy: Duration) -> io::Result<()> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().spawn_scoped(scope, || busy_for(own, busy))?;
        thread.join().map_err(|_| io::Error::other("it panicked"))
    })
}

/// Uses CPU time in system calls. Other threads wait longer for the CPU after such a thread.
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
