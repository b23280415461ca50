//! Cost of sleeps alone: the lower limit of a switch that sleeps between bursts and calls sleeping guests.

use std::{
    os::fd::OwnedFd,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    io::{Errno, read, write},
    time::{ClockId, clock_gettime},
};
use weir_bed::error::{Error, Result};

use super::pin;

/// Duration of the count.
const TIME: Duration = Duration::from_secs(1);

/// Value of the eventfd that ends the called thread.
const END: u64 = 1 << 32;

/// Measures the CPU time per second of a thread on CPU `cpu` that only sleeps by a timer `sleeps` times a second and
/// calls a sleeping thread on CPU `called_cpu` `calls` times a second.
pub(super) fn cores(cpu: usize, called_cpu: usize, sleeps: f64, calls: f64) -> Result<f64> {
    let call = eventfd(0, EventfdFlags::CLOEXEC).map_err(failed("make an eventfd"))?;
    let call = Arc::new(call);
    let called = {
        let call = Arc::clone(&call);
        thread::spawn(move || {
            pin(called_cpu)?;
            while count(&call)? < END {}
            Ok(())
        })
    };
    let sleeping = {
        let call = Arc::clone(&call);
        thread::spawn(move || {
            pin(cpu)?;
            // The timer slack of weir's workers. The kernel's default of 50 us would be added to every sleep.
            let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1_000));
            sleep_and_call(&call, sleeps, calls)
        })
    };
    let panicked = |_| Error::Check("a sleeping thread panicked".into());
    let cores = sleeping.join().map_err(panicked)?;
    write(&*call, &END.to_ne_bytes()).map_err(failed("write to an eventfd"))?;
    called.join().map_err(panicked)??;
    cores
}

fn sleep_and_call(call: &OwnedFd, sleeps: f64, calls: f64) -> Result<f64> {
    let never = eventfd(0, EventfdFlags::CLOEXEC).map_err(failed("make an eventfd"))?;
    let period = Duration::from_secs_f64(1.0 / sleeps.max(1.0));
    let (start, cpu_before) = (Instant::now(), cpu_time());
    let (mut due, mut slept) = (period, 0.0);
    let mut called = 0.0;
    while start.elapsed() < TIME {
        let left = due.saturating_sub(start.elapsed());
        let timeout = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&never, PollFlags::IN)], Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(failed("sleep")(errno)),
        }
        // After a sleep that ended late, the next sleep has the usual length.
        due = start.elapsed() + period;
        slept += 1.0;
        while called * sleeps < slept * calls {
            write(call, &1_u64.to_ne_bytes()).map_err(failed("write to an eventfd"))?;
            called += 1.0;
        }
    }
    let cpu = cpu_time().saturating_sub(cpu_before);
    // The number of sleeps is lower if some ended late. The result is scaled to `sleeps`.
    let share = sleeps * start.elapsed().as_secs_f64() / slept;
    Ok(cpu.as_secs_f64() / start.elapsed().as_secs_f64() * share)
}

/// Returns the CPU time of the calling thread.
pub(super) fn cpu_time() -> Duration {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(tv_sec.unsigned_abs(), u32::try_from(tv_nsec).unwrap_or_default())
}

fn count(eventfd: &OwnedFd) -> Result<u64> {
    let mut count = [0; 8];
    read(eventfd, &mut count).map_err(failed("read an eventfd"))?;
    Ok(u64::from_ne_bytes(count))
}

/// Makes an error for a failed system call.
pub(super) fn failed(what: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::Io { what: what.into(), source: errno.into() }
}
