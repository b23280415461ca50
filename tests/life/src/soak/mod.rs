//! `make soak`: random events of all kinds, for hours.

mod events;
mod world;

use std::{
    io::IsTerminal as _,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};
use weir_bed::{
    error::{Error, Result},
    lab::Lab,
    report::Goal,
};

use self::world::World;
use crate::{account::Observed, bars::Bars, random::Random};

/// Options of a soak.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Duration.
    pub time: Duration,
    /// Seed of the events.
    pub seed: u64,
    /// True if Linux guests take part.
    pub real: bool,
}

/// Returns the random stream for an event. It depends on the seed and the event's number, never on
/// the time that events took.
fn chance(seed: u64, number: u64) -> Random {
    Random::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(number))
}

/// Runs a soak; figures go to `bars`.
pub fn run(lab: &Lab, wanted: Wanted, bars: &mut Bars) -> Result<()> {
    let mut world = World::begin(lab, wanted.real)?;
    println!(
        "everybody is there: {}",
        world.weirs.each_ref().map(|it| it.dir().display()).map(|dir| dir.to_string()).join(", ")
    );
    let (begun, bar) = (Instant::now(), progress(wanted.time));
    let mut number = 0;
    let mut failed = None;
    while begun.elapsed() < wanted.time && failed.is_none() {
        number += 1;
        let mut random = chance(wanted.seed, number);
        let event = events::draw(&mut random, wanted.real);
        let start = Instant::now();
        let result = (event.run)(&mut world, &mut random)
            .and_then(|said| world.settle().map(|()| said))
            .and_then(|said| world.look().map(|()| said));
        let line = |said: &str| {
            let minutes = begun.elapsed().as_secs_f64() / 60.0;
            let (wrong, sent, repeated) = world.totals();
            format!(
                "{minutes:7.2} min  {number:5}  {:<12} {:6.1} s  {sent} frames, {repeated} again, {} unaccounted, \
                 {} wrong chains  {said}",
                event.name,
                start.elapsed().as_secs_f64(),
                world.found.unaccounted,
                world.found.wrong_chains + wrong,
            )
        };
        match result {
            Ok(said) => bar.tell(&line(&said), begun.elapsed()),
            Err(error) => {
                bar.tell(&line("FAILED"), begun.elapsed());
                failed = Some(Error::Check(format!(
                    "event {number} ({}) of seed {}: {error}",
                    event.name, wanted.seed
                )));
            }
        }
    }
    report(world, number, begun.elapsed(), bars);
    failed.map_or(Ok(()), Err)
}

/// Descriptors and threads of the session of a guest that has moved to the other weir, which the first sample does
/// not include. A leak exceeds them within the hundreds of events of an hour.
const MOVED_FDS: f64 = 24.0;
const MOVED_THREADS: f64 = 1.0;

fn report(world: World<'_>, events: u64, took: Duration, bars: &mut Bars) {
    let (wrong, sent, repeated) = world.totals();
    println!("dropped with a reason: {}", world.reasons());
    let none = Some(Goal::AtMost(0.0));
    bars.add("soak_minutes", took.as_secs_f64() / 60.0, None);
    bars.add("soak_events", events as f64, None);
    bars.add("soak_frames", sent as f64, None);
    bars.add("soak_echo_requests", world.found.echoes as f64, None);
    bars.add("soak_unaccounted_frames", world.found.unaccounted as f64, none);
    bars.add("soak_wrong_chains", (world.found.wrong_chains + wrong) as f64, none);
    bars.add("soak_repeated_frames", repeated as f64, None);
    let most = |value: fn(Observed) -> u64| {
        let all = world.lives.iter().chain(&world.keepers);
        all.map(|lives| value(lives.clone().growth())).max().unwrap_or(0) as f64
    };
    bars.add("soak_rss_growth_mib", most(|it| it.own_kib) / 1024.0, Some(Goal::AtMost(8.0)));
    bars.add("soak_descriptor_growth", most(|it| it.fds), Some(Goal::AtMost(MOVED_FDS)));
    bars.add("soak_thread_growth", most(|it| it.threads), Some(Goal::AtMost(MOVED_THREADS)));
}

/// Log lines, and below them on a terminal the remaining time.
struct Progress(Option<ProgressBar>);

fn progress(time: Duration) -> Progress {
    let style = ProgressStyle::with_template("{bar:40} {elapsed} of {msg}, {eta} left");
    let bar = std::io::stderr().is_terminal().then(|| {
        let bar = ProgressBar::new(time.as_secs()).with_message(format!("{} s", time.as_secs()));
        style.map_or(bar.clone(), |style| bar.with_style(style))
    });
    Progress(bar)
}

impl Progress {
    fn tell(&self, line: &str, elapsed: Duration) {
        match &self.0 {
            Some(bar) => {
                bar.suspend(|| println!("{line}"));
                bar.set_position(elapsed.as_secs());
            }
            None => println!("{line}"),
        }
    }
}

/// Number of samples that are left out at the start, since a new program has not reached its size yet, and number of
/// samples per group.
const WARM_UP: usize = 2;
const TOGETHER: usize = 3;

/// Samples of one life of a program.
#[derive(Clone, Debug, Default)]
struct Life {
    seen: Vec<Observed>,
}

impl Life {
    /// Adds a sample.
    pub fn note(&mut self, seen: Observed) {
        self.seen.push(seen);
    }

    /// Returns the growth since the warm-up. The least of a group stands for the group, so that resources held for a
    /// moment do not count.
    pub fn growth(&self) -> Option<Observed> {
        let warm = self.seen.get(WARM_UP..)?;
        let least = |looks: &[Observed]| {
            let of = |value: fn(&Observed) -> u64| looks.iter().map(value).min().unwrap_or(0);
            Observed {
                own_kib: of(|it| it.own_kib),
                fds: of(|it| it.fds),
                threads: of(|it| it.threads),
            }
        };
        if warm.len() < 2 * TOGETHER {
            return None;
        }
        let (first, last) = (least(&warm[..TOGETHER]), least(&warm[warm.len() - TOGETHER..]));
        Some(Observed {
            own_kib: last.own_kib.saturating_sub(first.own_kib),
            fds: last.fds.saturating_sub(first.fds),
            threads: last.threads.saturating_sub(first.threads),
        })
    }

    /// Returns the last sample.
    pub fn last(&self) -> Option<Observed> {
        self.seen.last().copied()
    }
}

/// All lives of one program.
#[derive(Clone, Debug, Default)]
struct Lives {
    now: Life,
    most: Observed,
    /// Resources of the first and last lives after their warm-up.
    ends: Option<[Observed; 2]>,
}

impl Lives {
    /// Adds a sample of the present life.
    pub fn note(&mut self, seen: Observed) {
        self.now.note(seen);
    }

    /// Ends the present life.
    pub fn ended(&mut self) {
        let life = std::mem::take(&mut self.now);
        let growth = life.growth().unwrap_or_default();
        self.most = larger(self.most, growth);
        // A short life does not show the program's size.
        if let Some(last) = life.last().filter(|_| life.seen.len() > WARM_UP) {
            self.ends = Some([self.ends.map_or(last, |[first, _]| first), last]);
        }
    }

    /// Returns the largest growth of any life, or the growth from the first life to the last.
    pub fn growth(mut self) -> Observed {
        self.ended();
        let between = self.ends.map(|[first, last]| Observed {
            own_kib: last.own_kib.saturating_sub(first.own_kib),
            fds: last.fds.saturating_sub(first.fds),
            threads: last.threads.saturating_sub(first.threads),
        });
        larger(self.most, between.unwrap_or_default())
    }
}

fn larger(one: Observed, other: Observed) -> Observed {
    Observed {
        own_kib: one.own_kib.max(other.own_kib),
        fds: one.fds.max(other.fds),
        threads: one.threads.max(other.threads),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_happens_from_the_same_seed() {
        let names = |seed| -> Vec<_> {
            (0..200).map(|number| events::draw(&mut chance(seed, number), true).name).collect()
        };
        assert_eq!(names(5), names(5));
        assert_ne!(names(5), names(6));
        let drawn = names(7);
        assert!(events::ALL.iter().all(|event| drawn.contains(&event.name)));
        let plain = (0..200).map(|number| events::draw(&mut chance(7, number), false));
        assert!(plain.into_iter().all(|event| !event.real));
    }

    fn lives(kib: &[u64]) -> Lives {
        let mut lives = Lives::default();
        for &own_kib in kib {
            lives.note(Observed { own_kib, fds: 9, threads: 4 });
        }
        lives
    }

    #[test]
    fn a_leak_is_growth_and_a_peak_is_not() {
        let leak = lives(&[1, 50, 100, 110, 120, 130, 140, 150, 160]);
        assert_eq!(leak.growth(), Observed { own_kib: 40, fds: 0, threads: 0 });
        let peak = lives(&[1, 50, 100, 100, 900, 100, 100, 900, 100]);
        assert_eq!(peak.growth().own_kib, 0);
    }

    #[test]
    fn lives_that_are_each_larger_than_the_one_before_are_growth() {
        let mut all = lives(&[1, 50, 100]);
        for size in [150, 200] {
            all.ended();
            [1, 50, size].into_iter().for_each(|own_kib| {
                all.note(Observed { own_kib, fds: size, threads: 4 });
            });
        }
        assert_eq!(all.growth(), Observed { own_kib: 100, fds: 191, threads: 0 });
    }
}
