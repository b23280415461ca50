//! Cost of wake-ups alone: the lower limit of a switch that sleeps until a guest kicks it and that calls sleeping
//! guests.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use rustix::{
    buffer::spare_capacity,
    event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll},
    io::{Errno, read, write},
    time::{ClockId, clock_gettime},
};
use weir_bed::error::{Error, Result};

use super::{pin, request_response::RoundTrips};

/// A thread that sleeps until it is woken, and its count of messages.
#[derive(Debug)]
struct Place {
    wake: OwnedFd,
    /// Requests or answers so far.
    given: AtomicU64,
}

impl Place {
    fn new() -> Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Self { wake: wake.map_err(failed("make an eventfd"))?, given: AtomicU64::new(0) })
    }

    fn give(&self, so_far: u64) -> Result<()> {
        self.given.store(so_far, Ordering::Release);
        write(&self.wake, &1_u64.to_ne_bytes()).map_err(failed("write to an eventfd"))?;
        Ok(())
    }

    fn given(&self) -> u64 {
        self.given.load(Ordering::Acquire)
    }

    /// Sleeps until woken, or for `timeout`.
    fn sleep(&self, timeout: Duration) -> Result<()> {
        let (tv_sec, tv_nsec) = (timeout.as_secs().cast_signed(), timeout.subsec_nanos().into());
        match poll(
            &mut [PollFd::new(&self.wake, PollFlags::IN)],
            Some(&Timespec { tv_sec, tv_nsec }),
        ) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(failed("sleep")(errno)),
        }
        match read(&self.wake, &mut [0; 8]) {
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(errno) => Err(failed("read an eventfd")(errno)),
        }
    }
}

/// The requesting and the answering thread, with the relay's ends to each.
#[derive(Debug)]
struct Places {
    asking: Place,
    answering: Place,
    asked: Place,
    answered: Place,
    stop: AtomicBool,
}

/// Interval at which threads check for the end.
const STOP_POLL: Duration = Duration::from_millis(100);

/// Measures round trips between two sleeping threads on `client_cpu`, with `rate` evenly spaced requests a second for
/// `seconds`. A third thread on `cpu` only passes wake-ups on. Its CPU time per second is returned, too.
pub(super) fn round_trips(
    cpu: usize,
    client_cpu: usize,
    rate: u32,
    seconds: u32,
) -> Result<(RoundTrips, f64)> {
    let place = Place::new;
    let (asking, answering, asked, answered) = (place()?, place()?, place()?, place()?);
    let stop = AtomicBool::new(false);
    let places = Arc::new(Places { asking, answering, asked, answered, stop });
    let passing = on(cpu, &places, pass);
    let answering = on(client_cpu, &places, answer);
    let asking = on(client_cpu, &places, move |places| ask(places, rate, seconds));
    let times = joined(asking);
    places.stop.store(true, Ordering::Release);
    let (cores, ()) = (joined(passing)?, joined(answering)?);
    Ok((times?, cores))
}

/// Runs `run` on its own thread, on CPU `cpu`.
fn on<T: Send + 'static>(
    cpu: usize,
    places: &Arc<Places>,
    run: impl FnOnce(&Places) -> Result<T> + Send + 'static,
) -> JoinHandle<Result<T>> {
    let places = Arc::clone(places);
    thread::spawn(move || {
        pin(cpu)?;
        run(&places)
    })
}

fn joined<T>(thread: JoinHandle<Result<T>>) -> Result<T> {
    thread.join().map_err(|_| Error::Check("a thread that passes wake-ups on panicked".into()))?
}

fn ask(places: &Places, rate: u32, seconds: u32) -> Result<RoundTrips> {
    let (gap, all) = (Duration::from_secs(1) / rate, u64::from(rate * seconds));
    let (start, mut asked_at, mut times) = (Instant::now(), Vec::new(), Vec::new());
    let end = Duration::from_secs(seconds.into()) + STOP_POLL;
    while (times.len() as u64) < all && start.elapsed() < end {
        let now = start.elapsed();
        let due = ((now.as_secs_f64() / gap.as_secs_f64()) as u64).min(all);
        if due > asked_at.len() as u64 {
            asked_at.resize(due as usize, now);
            places.asked.give(due)?;
        }
        let now = start.elapsed();
        let back = asked_at.iter().take(places.asking.given() as usize).skip(times.len());
        let new: Vec<_> = back.map(|at| (now - *at).as_secs_f64() * 1e6).collect();
        times.extend(new);
        let next = gap * (asked_at.len() as u32 + 1);
        places.asking.sleep(next.saturating_sub(start.elapsed()).min(STOP_POLL))?;
    }
    let (asked, answered) = (asked_at.len() as f64, times.len() as f64);
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times.get((answered * share) as usize).copied().unwrap_or(f64::NAN);
    Ok(RoundTrips { asked, answered, us: [at(0.5), at(0.99), at(0.999)] })
}

fn answer(places: &Places) -> Result<()> {
    let mut before = 0;
    while !places.stop.load(Ordering::Acquire) {
        let given = places.answering.given();
        if given > before {
            places.answered.give(given)?;
            before = given;
        }
        places.answering.sleep(STOP_POLL)?;
    }
    Ok(())
}

/// Passes wake-ups on. It sleeps as weir's workers do: one epoll set, an event per write, and no reads. Returns its
/// CPU time per second.
fn pass(places: &Places) -> Result<f64> {
    let set = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed("make an epoll set"))?;
    for from in [&places.asked, &places.answered] {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        let data = epoll::EventData::new_u64(0);
        epoll::add(&set, from.wake.as_fd(), data, flags).map_err(failed("watch an eventfd"))?;
    }
    let timeout = Timespec { tv_sec: 0, tv_nsec: STOP_POLL.subsec_nanos().into() };
    let (start, cpu_before) = (Instant::now(), cpu_time());
    let mut events = Vec::with_capacity(4);
    let mut passed = [0; 2];
    while !places.stop.load(Ordering::Acquire) {
        events.clear();
        match epoll::wait(&set, spare_capacity(&mut events), Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(failed("wait for events")(errno)),
        }
        let ways = [(&places.asked, &places.answering), (&places.answered, &places.asking)];
        for ((from, to), passed) in ways.into_iter().zip(&mut passed) {
            let given = from.given();
            if given > *passed {
                to.give(given)?;
                *passed = given;
            }
        }
    }
    let cpu = cpu_time().saturating_sub(cpu_before);
    Ok(cpu.as_secs_f64() / start.elapsed().as_secs_f64())
}

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
fn cpu_time() -> Duration {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(tv_sec.unsigned_abs(), u32::try_from(tv_nsec).unwrap_or_default())
}

fn count(eventfd: &OwnedFd) -> Result<u64> {
    let mut count = [0; 8];
    read(eventfd, &mut count).map_err(failed("read an eventfd"))?;
    Ok(u64::from_ne_bytes(count))
}

/// Makes an error for a failed system call.
fn failed(what: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::Io { what: what.into(), source: errno.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_is_answered_and_none_before_it_was_asked() {
        let (times, cores) = round_trips(0, 0, 100, 1).unwrap();
        assert_eq!((times.asked, times.answered), (100.0, 100.0));
        assert!(times.us[0] > 0.0 && times.us[0] <= times.us[1] && times.us[1] <= times.us[2]);
        assert!(cores > 0.0 && cores < 1.0);
    }
}
