//! `make soak`: random events of all kinds, for hours.

mod events;
mod growth;
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
}
