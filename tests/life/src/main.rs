//! Long-run tests of weir: SIGKILL, reload, upgrade, migration, hours of all of them, and their effects on guests.
//!
//! `life survive` measures each event separately and prints figures ([`bars`]); `life soak` mixes them at random for
//! hours. The measurements use [`traffic`]: numbered frames between guests of this process. [`real`] guests run
//! Linux.

#![forbid(unsafe_code)]

mod account;
mod bars;
mod killed;
mod log_cost;
mod moves;
mod random;
mod real;
mod replaced;
mod scene;
mod soak;
mod traffic;

use std::{path::PathBuf, process::ExitCode, sync::Arc, thread, time::Duration};

use clap::{Parser, Subcommand};
use weir_bed::{
    error::{Error, Result, check},
    lab::Lab,
    report::Goal,
    workspace::Workspace,
};
use weir_system_tests::guests::fabric::Scene;
use weir_vif::Features;

use crate::{
    bars::{Bars, quantile},
    traffic::{Build, Flow, Pace, Station, mac},
};

/// Effects on guests whose weir is killed, reloaded, upgraded, or left for days.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Measures each event by itself.
    Survive {
        /// weir's program.
        #[arg(long)]
        weir: PathBuf,
        /// Only parts whose name contains this text.
        #[arg(long)]
        only: Option<String>,
        /// Factor of the number of events per figure; figures are recorded only with 1.
        #[arg(long, default_value_t = 1.0)]
        scale: f64,
        /// Seed of the events; random by default.
        #[arg(long)]
        seed: Option<u64>,
    },
    /// Mixes all events at random, for hours.
    Soak {
        /// weir's program.
        #[arg(long)]
        weir: PathBuf,
        /// Duration (hours).
        #[arg(long, default_value_t = 2.0)]
        hours: f64,
        /// Seed of the events; random by default.
        #[arg(long)]
        seed: Option<u64>,
        /// Guests of this process only, no virtual machines.
        #[arg(long)]
        plain: bool,
        /// Do not record the figures.
        #[arg(long)]
        short: bool,
    },
    /// A guest that is killed.
    #[command(hide = true)]
    Guest { socket: PathBuf, index: usize, peer: usize },
    /// A program that takes memory (MiB).
    #[command(hide = true)]
    Press { mib: usize },
}

/// A part of `survive`.
struct Part {
    name: &'static str,
    /// Number of events.
    times: u32,
    run: fn(&Lab, u32, u64, &mut Bars) -> Result<()>,
}

const PARTS: &[Part] = &[
    Part { name: "killed", times: 320, run: killed::run },
    Part { name: "reload", times: 200, run: replaced::reload },
    Part { name: "upgrade", times: 200, run: replaced::upgrade },
    Part { name: "addresses", times: 30, run: real::addresses },
    Part { name: "groups", times: 120, run: real::in_groups },
    Part { name: "dirty_log", times: 15, run: log_cost::run },
    Part { name: "migration", times: 40, run: moves::run },
    Part { name: "fabric", times: 20, run },
];

fn main() -> ExitCode {
    let done = match Arguments::parse().task {
        Task::Survive { weir, only, scale, seed } => {
            survive(weir, only.as_deref(), scale, seed.unwrap_or_else(random::seed))
        }
        Task::Soak { weir, hours, seed, plain, short } => {
            let time = Duration::from_secs_f64(hours.clamp(0.0, 1e6) * 3600.0);
            let seed = seed.unwrap_or_else(random::seed);
            soak(weir, soak::Wanted { time, seed, real: !plain }, short)
        }
        Task::Guest { socket, index, peer } => guest(socket, index, peer),
        Task::Press { mib } => press(mib),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("life: {error}");
            ExitCode::FAILURE
        }
    }
}

fn soak(weir: PathBuf, wanted: soak::Wanted, short: bool) -> Result<bool> {
    let lab = lab(weir)?;
    println!("seed {}", wanted.seed);
    let mut bars = Bars::default();
    let done = soak::run(&lab, wanted, &mut bars);
    if let Err(error) = &done {
        println!("failed: {error}");
    } else if !short {
        bars.write(&lab.workspace)?;
    }
    Ok(done.is_ok() && bars.missed() == 0)
}

/// Runs until killed.
fn guest(socket: PathBuf, index: usize, peer: usize) -> Result<bool> {
    /// The number of the flow, whose frames are not counted.
    const FLOW: u16 = 60_000;
    let pace = Pace { burst: 1, window: None };
    let flow = Arc::new(Flow::new(FLOW, mac(index), mac(peer), pace));
    let build = Build {
        socket,
        mac: mac(index),
        queues: 1,
        queue_size: 256,
        format: Features::NONE,
        dawdle: Duration::ZERO,
        tick: Duration::from_millis(2),
    };
    let station = Station::begin(&build, &[flow], &Arc::default())?;
    while station.check_alive().is_ok() {
        std::thread::sleep(Duration::from_millis(100));
    }
    station.check_alive().map(|()| true)
}

/// Runs until killed.
fn press(mib: usize) -> Result<bool> {
    let mut bytes = vec![1_u8; mib << 20];
    loop {
        for byte in bytes.iter_mut().step_by(4096) {
            *byte = byte.wrapping_add(1);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn lab(weir: PathBuf) -> Result<Lab> {
    let weir = std::path::absolute(&weir).map_err(Error::io("find", &weir))?;
    Lab::prepare(Workspace::find()?, Some(weir))
}

fn survive(weir: PathBuf, only: Option<&str>, scale: f64, seed: u64) -> Result<bool> {
    let wanted = |part: &&Part| only.is_none_or(|only| part.name.contains(only));
    check(PARTS.iter().any(|part| wanted(&part)), || {
        let names: Vec<_> = PARTS.iter().map(|part| part.name).collect();
        format!("no such part; there are {}", names.join(", "))
    })?;
    let lab = lab(weir)?;
    println!("seed {seed}");
    let mut good = true;
    for part in PARTS.iter().filter(wanted) {
        let times = (f64::from(part.times) * scale).ceil().max(1.0) as u32;
        println!("\n{}: {times}", part.name);
        let mut bars = Bars::default();
        if let Err(error) = (part.run)(&lab, times, seed, &mut bars) {
            println!("failed: {}: {error}", part.name);
            good = false;
            continue;
        }
        good &= bars.missed() == 0;
        if scale == 1.0 {
            bars.write(&lab.workspace)?;
        }
    }
    Ok(good)
}

/// Time between two moves.
const TRAFFIC: Duration = Duration::from_secs(1);

/// Moves a guest `moves` times.
fn run(lab: &Lab, moves: u32, _: u64, bars: &mut Bars) -> Result<()> {
    let mut scene = Scene::begin(lab)?;
    let (mut lost, mut reachable_ms, mut answered_ms) = (0, Vec::new(), Vec::new());
    for nth in 1..=moves {
        thread::sleep(TRAFFIC);
        let moved = scene.move_over()?;
        lost += moved.lost_connections;
        println!(
            "move {nth}: stood still for {} ms, answered {:.0} ms later at its new host and {:.0} ms at the old one, {} \
             connections lost",
            moved.downtime_ms, moved.answered_ms, moved.reached_ms, moved.lost_connections
        );
        reachable_ms.push((moved.reached_ms - moved.answered_ms).max(0.0));
        answered_ms.push(moved.answered_ms);
    }
    bars.add("fabric_migration_moves", f64::from(moves), None);
    bars.add("fabric_migration_lost_connections", f64::from(lost), Some(Goal::AtMost(0.0)));
    let reachable_ms = quantile(&mut reachable_ms, 0.95);
    bars.add("fabric_migration_reachable_ms", reachable_ms, Some(Goal::AtMost(200.0)));
    bars.add("fabric_migration_answered_ms", quantile(&mut answered_ms, 0.95), None);
    Ok(())
}
