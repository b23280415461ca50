//! The state of the machine during a round: one-way latency of a cache line between the CPUs of switch and client, and
//! the load of other programs.
//!
//! The host of a virtual machine moves its vCPUs: for hours they share a core or a cache, and for hours they do not.
//! A rate between two cores depends on that more than on the program. Each round is therefore between two samples,
//! and a round in which the speed has changed is dropped. On a busy machine, figures depend more on the sharing of
//! cores than on the switches.

use std::{
    cell::RefCell,
    fs,
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use weir_bed::{
    error::{Error, Result, check},
    report::Samples,
};

use super::{CLIENT_CPU, SWITCH_CPU, pin};

/// Smallest one-way latency between CPUs that count as far apart (ns). Measured on the EPYC: 44 to 57 near, 250 to 290
/// far; on the Xeon: 19 near, 108 to 206 far; nothing in between. The value is the geometric mean of 57 and 108.
const FAR_FROM_NS: f64 = 78.0;

/// Duration of a sample, and its limit if other load keeps a thread from its CPU.
const TIME: Duration = Duration::from_millis(20);
const PATIENCE: Duration = Duration::from_secs(10);

/// Round trips that are timed together. They take less time than there is between two interruptions.
const BATCH: u32 = 50;
const BATCHES_MIN: usize = 20;

/// Distance of two CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Speed {
    Near,
    Far,
}

impl Speed {
    /// Returns the speed for a one-way latency.
    fn of(bounce_ns: f64) -> Self {
        if bounce_ns < FAR_FROM_NS { Self::Near } else { Self::Far }
    }

    /// Returns the word in figures' names.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Near => "near",
            Self::Far => "far",
        }
    }
}

/// State of the machine during a row.
#[derive(Debug, Default)]
pub(super) struct Looks {
    /// Speed in each round that counts.
    pub(super) speeds: Vec<Speed>,
    /// One-way latency before, in and after each round that counts (ns).
    pub(super) bounces: Samples,
    /// Number of rounds in which the speed changed.
    pub(super) dropped: u32,
    /// One-way latencies in the present round (ns).
    current: Vec<f64>,
}

impl Looks {
    /// Ends a round. Returns true if it counts: all samples have found the same speed.
    fn end_round(&mut self) -> bool {
        let bounces = std::mem::take(&mut self.current);
        let mut speeds = bounces.iter().map(|ns| Speed::of(*ns));
        let first = speeds.next();
        let steady = speeds.all(|speed| Some(speed) == first);
        let all: Vec<_> = bounces.iter().map(|ns| format!("{ns:.0}")).collect();
        println!("cache line: {} ns{}", all.join(", "), if steady { "" } else { ": dropped" });
        if steady {
            self.speeds.extend(first);
            bounces.into_iter().for_each(|ns| self.bounces.push(ns));
        } else {
            self.dropped += 1;
        }
        steady
    }
}

/// The machine under observation.
pub(super) struct Machine<L = fn() -> Result<f64>> {
    look: L,
    looks: RefCell<Looks>,
}

impl<L: Fn() -> Result<f64>> Machine<L> {
    pub(super) fn new(look: L) -> Self {
        Self { look, looks: RefCell::default() }
    }

    /// Records the present one-way latency.
    pub(super) fn look(&self) -> Result<()> {
        let ns = (self.look)()?;
        self.looks.borrow_mut().current.push(ns);
        Ok(())
    }

    /// Returns the results of `measure` in `rounds` rounds of one speed each, given their numbers.
    /// Dropped rounds are repeated, at most `rounds` of them.
    pub(super) fn rounds<T>(
        &self,
        rounds: u32,
        mut measure: impl FnMut(u32) -> Result<T>,
    ) -> Result<Vec<T>> {
        let mut found = Vec::new();
        let mut round = 1;
        for _ in 0..2 * rounds {
            if round > rounds {
                break;
            }
            self.looks.borrow_mut().current.clear();
            self.look()?;
            let value = measure(round)?;
            self.look()?;
            if self.looks.borrow_mut().end_round() {
                found.push(value);
                round += 1;
            }
        }
        check(!found.is_empty(), || {
            format!("the machine's speed changed in {} rounds", 2 * rounds)
        })?;
        Ok(found)
    }

    /// Returns the observations since the last call.
    pub(super) fn seen(&self) -> Looks {
        let mut looks = self.looks.take();
        // A row without rounds has only the samples that were not assigned to a round.
        if looks.speeds.is_empty() && looks.dropped == 0 {
            looks.bounces = looks.current.drain(..).collect();
        }
        looks
    }
}

/// A cache line of its own, together with the adjacent line that is prefetched with it.
#[derive(Default)]
#[repr(align(128))]
struct Line(AtomicU64);

/// Measures the one-way latency between the CPUs (ns).
pub(super) fn bounce_ns() -> Result<f64> {
    let [there, back] = [const { Line(AtomicU64::new(0)) }; 2];
    let ended = AtomicBool::new(false);
    let answer = || {
        let (pinned, mut last) = (pin(SWITCH_CPU), 0);
        while pinned.is_ok() && !ended.load(Ordering::Relaxed) {
            let number = there.0.load(Ordering::Acquire);
            // A store of the same value would still take the line away from its reader.
            if number != last {
                back.0.store(number, Ordering::Release);
                last = number;
            }
            std::hint::spin_loop();
        }
        ended.store(true, Ordering::Relaxed);
        pinned
    };
    let ask = || {
        let batches = pin(CLIENT_CPU).map(|()| ask(&there, &back, &ended));
        ended.store(true, Ordering::Relaxed);
        batches
    };
    let (answered, batches) = thread::scope(|scope| {
        let (answering, asking) = (scope.spawn(answer), scope.spawn(ask));
        (answering.join(), asking.join())
    });
    let panicked = |_| Error::Check("a thread that bounces a cache line panicked".into());
    answered.map_err(panicked)??;
    undisturbed(batches.map_err(panicked)??)
        .ok_or_else(|| Error::Check(format!("no cache line bounced for {PATIENCE:?}")))
}

/// Returns the one-way latency of each batch (ns).
fn ask(there: &Line, back: &Line, ended: &AtomicBool) -> Vec<f64> {
    let (start, mut number, mut batches) = (Instant::now(), 0, Vec::new());
    let goes_on = |batches: &Vec<f64>| {
        let time = if batches.len() < BATCHES_MIN { PATIENCE } else { TIME };
        start.elapsed() < time
    };
    while goes_on(&batches) {
        let begin = Instant::now();
        for _ in 0..BATCH {
            number += 1;
            there.0.store(number, Ordering::Release);
            while back.0.load(Ordering::Acquire) != number {
                if ended.load(Ordering::Relaxed) {
                    return batches;
                }
                std::hint::spin_loop();
            }
        }
        batches.push(begin.elapsed().as_nanos() as f64 / f64::from(2 * BATCH));
    }
    batches
}

/// Returns the lower quartile: interruptions make batches up to a hundred times longer or more, and never shorter.
fn undisturbed(mut batches: Vec<f64>) -> Option<f64> {
    batches.sort_by(f64::total_cmp);
    let enough = batches.len() >= BATCHES_MIN;
    batches.get(batches.len() / 4).copied().filter(|_| enough)
}

/// Duration of a sample: 20 of the kernel's clock ticks for every CPU.
const LOAD_TIME: Duration = Duration::from_millis(200);

/// Load from which on the report marks figures as unreliable.
pub(super) const DISTURBING_PERCENT: f64 = 10.0;

/// Returns the present share of the machine's CPU time that other programs use (percent).
pub(super) fn percent() -> Result<f64> {
    let before = CpuTime::read()?;
    thread::sleep(LOAD_TIME);
    Ok(CpuTime::read()?.busy_percent_since(before))
}

/// Clock ticks of all CPUs together since the machine started.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct CpuTime {
    total: f64,
    idle: f64,
}

impl CpuTime {
    pub(super) fn read() -> Result<Self> {
        let path = Path::new("/proc/stat");
        let text = fs::read_to_string(path).map_err(Error::io("read", path))?;
        Self::parse(&text).ok_or_else(|| Error::parse("/proc/stat", text))
    }

    /// Parses the first line: `cpu user nice system idle iowait irq softirq steal guest
    /// guest_nice`, where `guest` is part of `user`.
    fn parse(stat: &str) -> Option<Self> {
        let numbers = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
        let ticks: Vec<f64> =
            numbers.take(8).map(|word| word.parse().ok()).collect::<Option<_>>()?;
        let idle = ticks.get(3)? + ticks.get(4)?;
        Some(Self { total: ticks.iter().sum(), idle })
    }

    pub(super) fn busy_percent_since(self, before: Self) -> f64 {
        let total = self.total - before.total;
        let idle = self.idle - before.idle;
        if total > 0.0 { (100.0 * (total - idle) / total).max(0.0) } else { 0.0 }
    }

    /// Returns the CPU time of the machine for each second.
    pub(super) fn busy_cores_since(self, before: Self) -> Result<f64> {
        let cpus = thread::available_parallelism().map(usize::from);
        let cpus = cpus.map_err(|source| Error::Io { what: "count CPUs".into(), source })?;
        Ok(self.busy_percent_since(before) / 100.0 * cpus as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_bounces_are_of_two_speeds() {
        assert!([18.9, 43.6, 48.2, 57.1].map(Speed::of).iter().all(|it| *it == Speed::Near));
        assert!([108.4, 206.2, 250.1, 290.0].map(Speed::of).iter().all(|it| *it == Speed::Far));
    }

    fn machine<const N: usize>(ns: [f64; N]) -> Machine<impl Fn() -> Result<f64>> {
        let ns = RefCell::new(ns.into_iter());
        Machine::new(move || Ok(ns.borrow_mut().next().unwrap()))
    }

    #[test]
    fn a_round_in_which_the_speed_changes_is_dropped_counted_and_made_up_for() {
        let machine = machine([24.0, 25.0, 50.0, 24.0, 280.0, 24.0, 281.0, 282.0, 283.0]);
        let mut value = 0;
        let found = machine.rounds(2, |round| {
            value += 1;
            machine.look()?;
            Ok((round, value))
        });
        assert_eq!(found.unwrap(), [(1, 1), (2, 3)]);
        let looks = machine.seen();
        assert_eq!((looks.speeds, looks.dropped), (vec![Speed::Near, Speed::Far], 1));
        assert_eq!(looks.bounces.values(), [24.0, 25.0, 50.0, 281.0, 282.0, 283.0]);
        assert_eq!(machine.seen().dropped, 0);
    }

    #[test]
    fn rounds_that_are_left_after_as_many_again_are_enough_but_none_are_not() {
        let [near, far] = [24.0, 280.0];
        let one_of_four = machine([near, far, near, near, far, near, far, near]);
        assert_eq!(one_of_four.rounds(2, Ok).unwrap(), [1]);
        let never = machine([near, far, near, far]);
        never.rounds(1, Ok).unwrap_err();
        assert_eq!(never.seen().dropped, 2);
    }

    #[test]
    fn a_row_without_rounds_has_its_looks() {
        let machine = machine([24.0]);
        machine.look().unwrap();
        assert_eq!(machine.seen().bounces.values(), [24.0]);
    }

    #[test]
    fn interruptions_do_not_count() {
        let mut batches = vec![280.0; 10];
        batches.extend([90_000.0; 20]);
        assert_eq!(undisturbed(batches), Some(280.0));
        assert_eq!(undisturbed(vec![280.0; BATCHES_MIN - 1]), None);
    }

    #[test]
    fn this_machine_can_be_looked_at() {
        if thread::available_parallelism().is_ok_and(|cpus| cpus.get() > SWITCH_CPU) {
            assert!(bounce_ns().unwrap() > 0.0);
        }
    }

    #[test]
    fn what_is_neither_idle_nor_waiting_is_busy() {
        let before = CpuTime::parse("cpu  10 0 10 80 0 0 0 0 5 0\ncpu0 1 1 1 1\n").unwrap();
        assert_eq!(before, CpuTime { total: 100.0, idle: 80.0 });
        let after = CpuTime { total: 140.0, idle: 110.0 };
        assert_eq!(after.busy_percent_since(before), 25.0);
        assert_eq!(before.busy_percent_since(before), 0.0);
    }

    #[test]
    fn this_machine_can_be_read() {
        assert!((0.0..=100.0).contains(&percent().unwrap()));
    }
}
