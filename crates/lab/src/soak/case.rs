//! A random host with faults, and the search for a smaller one that fails as well.

use std::fmt;

use weir_policy::dispatch::Aim;
use weir_policy::moderation::Kind;

use crate::cpus::{Class, WEIGHT_USUAL};
use crate::faults::{Fault, Trouble};
use crate::host::{Error, run_with};
use crate::profile::Profile;
use crate::random::{Distribution, Random};
use crate::realization::Realization;
use crate::scenario::{
    Calls, Endpoint, Guest, GuestPoll, Load, LoadKind, OnOff, Scenario, Thread, Uplink,
};
use crate::topology::{CpuId, Topology};

/// Random stream that draws hosts; loads have the first streams.
const STREAM: u64 = u64::MAX;
/// Most events of a run; the rest is not simulated.
const EVENTS_MAX: u64 = 40_000;

/// Shortest run and fault that shrinking produces (ns).
const RUN_NS_MIN: u64 = 10_000;
const FAULT_NS_MIN: u64 = 1_000;

/// A host with its faults.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// The host.
    pub scenario: Scenario,
    /// The host's faults.
    pub faults: Vec<Fault>,
}

/// Random choices for a host.
struct Dice(Random);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0.below(bound)
    }

    /// Returns true once in `of`.
    fn one_in(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }

    /// Returns a number from 2^`low` up to 2^`high`, small and large ones equally often.
    fn scale(&mut self, low: u32, high: u32) -> u64 {
        let bits = u64::from(low) + self.below(u64::from(high - low));
        (1 << bits) + self.below(1 << bits)
    }

    /// Returns an index below `len`.
    fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize // below `len`
    }

    fn class(&mut self) -> Class {
        match self.one_in(3) {
            true => Class::Realtime { priority: 1 + self.below(3) as u8 },
            false => Class::Fair { weight: WEIGHT_USUAL << self.below(3) >> 1 },
        }
    }

    /// Returns the CPUs of a thread: one, several, or any.
    fn cpus(&mut self, cpus: usize) -> Vec<CpuId> {
        match self.below(4) {
            0 => Vec::new(),
            1 => (0..cpus).filter(|_| self.one_in(2)).collect(),
            _ => vec![self.index(cpus)],
        }
    }

    fn guest(&mut self, number: usize, cpus: usize) -> Guest {
        let calls = Calls {
            kind: Kind::ALL[self.index(Kind::ALL.len())],
            latency_budget_ns: self.below(2) * self.scale(10, 21),
            rx_ns: self.one_in(3).then(|| self.scale(0, 20)),
            rx_frames: self.one_in(3).then(|| 1 + self.below(64) as u32),
        };
        let mut guest = Guest::new(&format!("g{number}"), &[], calls);
        guest.cpus = self.cpus(cpus);
        // No real-time class, since a guest that never sleeps would keep its CPU for good.
        guest.class = Class::Fair { weight: WEIGHT_USUAL << self.below(3) >> 1 };
        guest.rx_ring = 2 << self.below(9);
        guest.tx_ring = 2 << self.below(9);
        guest.buffer_bytes = 256 << self.below(9);
        guest.queue_max = self.index(100);
        let interval_ns = self.scale(10, 19);
        let empty_polls = 1 + self.below(3) as u32;
        let periodic = !interval_ns.is_multiple_of(2);
        guest.poll = self.one_in(3).then_some(GuestPoll { interval_ns, empty_polls, periodic });
        guest
    }

    fn uplink(&mut self, number: usize) -> Uplink {
        Uplink {
            name: format!("u{number}"),
            bits_per_s: 100_000_000 << self.below(7),
            delay_ns: self.scale(8, 18),
            queue_max: self.index(300),
            ring: 1 + self.index(300),
            hold_ns: self.below(2) * self.scale(10, 19),
        }
    }

    fn load(&mut self, number: usize, ends: &[Endpoint], run_ns: u64) -> Load {
        let from = self.index(ends.len());
        let to = (from + 1 + self.index(ends.len() - 1)) % ends.len();
        // For most loads no frame exceeds a small ring.
        let long = if self.one_in(4) { 16 } else { 11 };
        let gap_ns = (run_ns / self.scale(4, 10)).max(500);
        let kind = match self.below(4) {
            0 => LoadKind::Requests {
                outstanding: 1 + self.below(8) as u32,
                request_bytes: self.scale(6, 10) as u32,
                answer_bytes: self.scale(6, long) as u32,
                think: Distribution::Exponential { mean: gap_ns },
                serve_ns: self.scale(0, 15),
            },
            1 => LoadKind::Stream {
                segment_bytes: self.scale(9, long) as u32,
                window: 1 + self.below(40) as u32,
            },
            _ => LoadKind::Datagrams {
                bytes: Distribution::Uniform { min: 60, max: self.scale(6, long) },
                gap: match self.one_in(3) {
                    true => Distribution::Constant(gap_ns),
                    false => Distribution::Exponential { mean: gap_ns },
                },
                on_off: self.one_in(2).then(|| OnOff {
                    on_ns: 1 + self.below(run_ns / 4),
                    off_ns: self.below(run_ns / 4),
                }),
            },
        };
        Load { name: format!("l{number}"), from: ends[from], to: ends[to], kind }
    }

    fn fault(&mut self, scenario: &Scenario, cpus: usize) -> Fault {
        let guest = self.index(scenario.guests.len());
        let trouble = match self.below(8) {
            0 => Trouble::NoBuffers { guest },
            1 => Trouble::AgentLost { guest },
            2 | 3 => Trouble::CpuTaken { cpu: self.index(cpus) },
            4 if !scenario.uplinks.is_empty() => {
                Trouble::LinkDown { uplink: self.index(scenario.uplinks.len()) }
            }
            5 => Trouble::ClockJumps,
            6 => Trouble::Suspend,
            _ => Trouble::GuestStalls { guest },
        };
        let ns = self.scale(8, 28).min(scenario.run_ns);
        Fault { at_ns: self.below(scenario.run_ns), ns, trouble }
    }
}

impl Case {
    /// Draws the case of a seed.
    pub fn draw(seed: u64) -> Self {
        let mut dice = Dice(Random::stream(seed, STREAM));
        let topology = Topology {
            sockets: 1 + dice.index(2),
            llcs_per_socket: 1 + dice.index(2),
            cores_per_llc: 1 + dice.index(2),
            threads_per_core: 1 + dice.index(2),
        };
        let cpus = topology.cpus().unwrap_or(1);
        let mut profile = Profile::example();
        profile.uplink_take_ns = dice.below(3_000);
        profile.receive_ns = dice.below(3_000);
        profile.timer_late_ns = dice.below(2) * dice.scale(8, 18);
        // Long runs see frames that are parked for too long.
        let run_ns = [2_000_000, 10_000_000, 40_000_000, 250_000_000][dice.index(4)];
        let guests = 2 + dice.index(4);
        let guests: Vec<_> = (0..guests).map(|number| dice.guest(number, cpus)).collect();
        let uplinks: Vec<_> = (0..dice.index(3)).map(|number| dice.uplink(number)).collect();
        let ends: Vec<_> = (0..guests.len())
            .map(Endpoint::Guest)
            .chain((0..uplinks.len()).map(Endpoint::Peer))
            .collect();
        let worker = |dice: &mut Dice| Thread { cpus: dice.cpus(cpus), class: dice.class() };
        let class = Class::Fair { weight: WEIGHT_USUAL };
        let mut scenario = Scenario {
            seed,
            topology,
            profile,
            workers: (0..1 + dice.index(3)).map(|_| worker(&mut dice)).collect(),
            guests,
            uplinks,
            rivals: (0..dice.index(3)).map(|_| Thread { cpus: dice.cpus(cpus), class }).collect(),
            first_worker: None,
            dispatch: [None, Some(Aim::Spread), Some(Aim::Pack)][dice.index(3)],
            realization: Realization::default(),
            loads: Vec::new(),
            start_ns: 0,
            warm_up_ns: 0,
            run_ns,
            law: &weir_policy::law::LAW,
            check_each_event: true,
        };
        scenario.loads =
            (0..1 + dice.index(6)).map(|number| dice.load(number, &ends, run_ns)).collect();
        let faults = (0..dice.index(8)).map(|_| dice.fault(&scenario, cpus)).collect();
        Self { scenario, faults }
    }

    /// Plays the case. Returns the number of events.
    ///
    /// # Errors
    /// A broken invariant.
    pub fn run(&self) -> Result<u64, Error> {
        match run_with(&self.scenario, &self.faults, EVENTS_MAX) {
            Ok(report) => Ok(report.events),
            // The simulated part was correct.
            Err(Error::TooLong { events }) => Ok(events),
            Err(error) => Err(error),
        }
    }
}

impl Case {
    /// Returns cases that are each a bit smaller.
    pub(super) fn smaller(&self) -> Vec<Self> {
        let mut all = Vec::new();
        let mut with = |change: &dyn Fn(&mut Self)| {
            let mut case = self.clone();
            change(&mut case);
            all.push(case);
        };
        let Scenario { workers, guests, uplinks, rivals, loads, .. } = &self.scenario;
        shorter(&self.faults).for_each(|faults| with(&|case| case.faults.clone_from(&faults)));
        shorter(loads).for_each(|loads| with(&|case| case.scenario.loads.clone_from(&loads)));
        shorter(rivals).for_each(|rivals| with(&|case| case.scenario.rivals.clone_from(&rivals)));
        for workers in shorter(workers).filter(|workers| !workers.is_empty()) {
            with(&|case| case.scenario.workers.clone_from(&workers));
        }
        let (guests, uplinks) = (guests.len(), uplinks.len());
        (0..guests).filter(|it| !self.needs_guest(*it)).for_each(|guest| {
            with(&|case| case.without_guest(guest));
        });
        (0..uplinks).filter(|it| !self.needs_uplink(*it)).for_each(|uplink| {
            with(&|case| case.without_uplink(uplink));
        });
        if self.scenario.run_ns > RUN_NS_MIN {
            with(&|case| case.scenario.run_ns /= 2);
        }
        for fault in 0..self.faults.len() {
            if self.faults[fault].ns > FAULT_NS_MIN {
                with(&|case| case.faults[fault].ns /= 2);
            }
        }
        for guest in 0..guests {
            let Guest { poll, calls, .. } = &self.scenario.guests[guest];
            if poll.is_some() {
                with(&|case| case.scenario.guests[guest].poll = None);
            }
            if calls.rx_ns.is_some() || calls.rx_frames.is_some() {
                let calls = Calls { rx_ns: None, rx_frames: None, ..*calls };
                with(&|case| case.scenario.guests[guest].calls = calls);
            }
        }
        all
    }

    fn needs_guest(&self, guest: usize) -> bool {
        let mut ends = self.scenario.loads.iter().flat_map(|load| [load.from, load.to]);
        let of_guest = |fault: &Fault| guest_of(fault.trouble) == Some(guest);
        ends.any(|end| end == Endpoint::Guest(guest)) || self.faults.iter().any(of_guest)
    }

    fn needs_uplink(&self, uplink: usize) -> bool {
        let mut ends = self.scenario.loads.iter().flat_map(|load| [load.from, load.to]);
        let down = Trouble::LinkDown { uplink };
        ends.any(|end| end == Endpoint::Peer(uplink))
            || self.faults.iter().any(|fault| fault.trouble == down)
    }

    /// Removes a guest; the later ones move up.
    fn without_guest(&mut self, guest: usize) {
        self.scenario.guests.remove(guest);
        for load in &mut self.scenario.loads {
            for end in [&mut load.from, &mut load.to] {
                if let Endpoint::Guest(other) = end {
                    *other -= usize::from(*other > guest);
                }
            }
        }
        for fault in &mut self.faults {
            if let Trouble::GuestStalls { guest: other }
            | Trouble::NoBuffers { guest: other }
            | Trouble::AgentLost { guest: other } = &mut fault.trouble
            {
                *other -= usize::from(*other > guest);
            }
        }
    }

    fn without_uplink(&mut self, uplink: usize) {
        self.scenario.uplinks.remove(uplink);
        for load in &mut self.scenario.loads {
            for end in [&mut load.from, &mut load.to] {
                if let Endpoint::Peer(other) = end {
                    *other -= usize::from(*other > uplink);
                }
            }
        }
        for fault in &mut self.faults {
            if let Trouble::LinkDown { uplink: other } = &mut fault.trouble {
                *other -= usize::from(*other > uplink);
            }
        }
    }
}

const fn guest_of(trouble: Trouble) -> Option<usize> {
    match trouble {
        Trouble::GuestStalls { guest }
        | Trouble::NoBuffers { guest }
        | Trouble::AgentLost { guest } => Some(guest),
        Trouble::CpuTaken { .. }
        | Trouble::LinkDown { .. }
        | Trouble::ClockJumps
        | Trouble::Suspend => None,
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Scenario { topology, workers, guests, uplinks, rivals, loads, run_ns, .. } =
            &self.scenario;
        writeln!(f, "  {run_ns} ns on {topology:?}")?;
        workers.iter().enumerate().try_for_each(|(at, it)| writeln!(f, "  worker {at}: {it:?}"))?;
        rivals.iter().try_for_each(|it| writeln!(f, "  rival: {it:?}"))?;
        guests.iter().enumerate().try_for_each(|(at, it)| writeln!(f, "  guest {at}: {it:?}"))?;
        uplinks.iter().enumerate().try_for_each(|(at, it)| writeln!(f, "  uplink {at}: {it:?}"))?;
        loads.iter().try_for_each(|it| writeln!(f, "  load: {it:?}"))?;
        self.faults.iter().try_for_each(|fault| writeln!(f, "  {fault}"))
    }
}

/// Shrinks a case: takes the first of `smaller` that still `fails`, repeatedly, within `runs_max`
/// runs. Returns the last case, its failure, and the number of runs.
pub(super) fn shrink<C, E>(
    (mut case, mut error): (C, E),
    smaller: impl Fn(&C) -> Vec<C>,
    fails: impl Fn(&C) -> Option<E>,
    runs_max: u32,
) -> (C, E, u32) {
    let mut runs = 0;
    loop {
        let found = smaller(&case).into_iter().find_map(|smaller| {
            runs += 1;
            let error = if runs <= runs_max { fails(&smaller) } else { None };
            error.map(|error| (smaller, error))
        });
        match found {
            Some(found) => (case, error) = found,
            None => return (case, error, runs.min(runs_max)),
        }
    }
}

/// Returns the list without one part: halves first, then quarters, down to each element.
pub(super) fn shorter<T: Clone>(list: &[T]) -> impl Iterator<Item = Vec<T>> + '_ {
    let lens = std::iter::successors(Some(list.len().div_ceil(2)), |len| match len {
        0 | 1 => None,
        len => Some(len.div_ceil(2)),
    });
    lens.filter(|len| *len > 0).flat_map(move |len| {
        let starts = (0..list.len()).step_by(len);
        starts.map(move |at| {
            list.iter().take(at).chain(list.iter().skip(at + len)).cloned().collect()
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_fails_and_nothing_smaller_does() {
        let list: Vec<u32> = (0..100).collect();
        let fails = |list: &Vec<u32>| (list.contains(&17) && list.contains(&83)).then_some("both");
        let smaller = |list: &Vec<u32>| shorter(list).collect();
        let (left, error, runs) = shrink((list.clone(), "first"), smaller, fails, 1_000);
        assert_eq!((left, error), (vec![17, 83], "both"));
        assert!(runs < 1_000);
        let (left, error, runs) = shrink((list.clone(), "first"), smaller, fails, 0);
        assert_eq!((left, error, runs), (list, "first", 0));
    }

    #[test]
    fn nothing_is_shorter_than_an_empty_list() {
        assert_eq!(shorter::<u8>(&[]).count(), 0);
        assert!(shorter(&[1]).eq([vec![]]));
    }
}
