//! `weir bench --attach-detach`: resources that are left after interfaces were added and removed under traffic.
//!
//! A control request adds each interface. A guest connects, starts its rings and sends. Then the interface is
//! removed, half of the time with its guest connected. Two other guests exchange packets meanwhile. Descriptors,
//! threads and memory are those of the whole process, guests included.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use weir_config::{Execution, VifConfig};
use weir_switch::Switch;
use weir_switch::control::{ControlHandler, Request, Response};
use weir_vif::load::{End, LoadStats, small};

use super::super::figures::{FigureRow, Figures};
use super::crowd::{Crowd, Guest, Pair, Setup, vif};
use crate::args::BenchArgs;
use crate::rig::{self, RigError};
use crate::steps::{BenchError, SLICES, progress, wait_for};

/// Rate of packets between the two guests that are not removed.
const TRAFFIC: small::Rate = small::Rate::PerSecond(20_000);
/// Number of different interfaces that are added and removed.
const DIFFERENT: usize = 7;
/// Longest wait for the end of an interface: threads and descriptors end after the request.
const SETTLE: Duration = Duration::from_secs(5);
/// Time without a change after which the resources count as settled.
const REST: Duration = Duration::from_millis(100);
const POLL: Duration = Duration::from_millis(1);

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Holdings {
    fds: usize,
    threads: usize,
    /// Mappings of guests' memory.
    mappings: usize,
    /// The process's resident memory, without the guests' memory, whose rings are touched one after another.
    resident_bytes: u64,
}

impl Holdings {
    fn now() -> io::Result<Self> {
        let status = fs::read_to_string("/proc/self/status")?;
        let resident = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let kib = resident.and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok());
        let maps = fs::read_to_string("/proc/self/maps")?;
        Ok(Self {
            fds: fs::read_dir("/proc/self/fd")?.count(),
            threads: fs::read_dir("/proc/self/task")?.count(),
            mappings: maps.lines().filter(|line| line.contains("/memfd:")).count(),
            resident_bytes: 1024 * kib.unwrap_or(0),
        })
    }

    /// Returns true if there are no more resources than `before`, memory aside.
    fn is_within(&self, before: &Self) -> bool {
        self.fds <= before.fds && self.threads <= before.threads && self.mappings <= before.mappings
    }

    /// Returns the resources once they no longer change.
    fn at_rest() -> io::Result<Self> {
        let mut found = Self::now()?;
        let mut since = Instant::now();
        while since.elapsed() < REST {
            thread::sleep(POLL);
            let now = Self::now()?;
            if !(now.is_within(&found) && found.is_within(&now)) {
                (found, since) = (now, Instant::now());
            }
        }
        Ok(found)
    }

    /// Returns the resources once they are within `before`, or after a timeout.
    fn settled(before: &Self) -> io::Result<Self> {
        let start = Instant::now();
        loop {
            let now = Self::now()?;
            if now.is_within(before) || start.elapsed() > SETTLE {
                return Ok(now);
            }
            thread::sleep(POLL);
        }
    }
}

/// Resources left under one execution model.
#[derive(Debug, Clone, PartialEq)]
struct Left {
    execution: Execution,
    cycles: u32,
    fds: usize,
    threads: usize,
    mappings: usize,
    /// Growth of resident memory per interface (bytes), for each part of the run.
    bytes: Vec<f64>,
    /// Packets that arrived between the two other guests, and packets lost.
    arrived: u64,
    lost: u64,
    seconds: f64,
}

/// Measures and prints the result.
pub(super) fn run(args: &BenchArgs, out: &mut dyn Write) -> Result<(), BenchError> {
    let stop = rig::catch_signals()?;
    let mut all = Vec::new();
    for execution in [Execution::Tasklet, Execution::Threads] {
        let dir = rig::temp_dir()?;
        all.push(measure(execution, args.cycles, dir.path(), &stop)?);
        if stop.load(Ordering::Relaxed) {
            return Err(BenchError::Interrupted);
        }
    }
    figures(&all).print(args, out)
}

/// Adds and removes interfaces `cycles` times. A fifth as many come first, which leave memory that can be reused.
fn measure(
    execution: Execution,
    cycles: u32,
    dir: &Path,
    stop: &AtomicBool,
) -> Result<Left, BenchError> {
    let setup = Setup { workers: 2, execution, ..Setup::default() };
    let Crowd { mut pairs, switch } = Crowd::start(&setup, dir)?;
    let Some(Pair { client, server }) = pairs.first_mut() else {
        return Err(BenchError::Interrupted);
    };
    let options = small::Options { rate: TRAFFIC, ..small::Options::default() };
    let (sends, receives) = (LoadStats::default(), LoadStats::default());
    let ended = AtomicBool::new(false);
    let (to, back) = (client.flow_to(server), client.flow_to(server).reversed());
    let (client, server) = (&mut client.queues[0], &mut server.queues[0]);
    thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            small::receive(
                End { pair: server, flow: &back, stats: &receives, stop: &ended },
                &options,
            )
        });
        let sender = scope.spawn(|| {
            small::send(End { pair: client, flow: &to, stats: &sends, stop: &ended }, &options)
        });
        let left = come_and_go(&switch, execution, cycles, dir, stop);
        ended.store(true, Ordering::Relaxed);
        for thread in [sender, receiver] {
            let result = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            result.map_err(|source| RigError::Load { guest: "guest", source })?;
        }
        let found = receives.snapshot();
        Ok(Left { arrived: found.rx_frames, lost: found.lost + found.invalid, ..left? })
    })
}

fn come_and_go(
    switch: &Switch,
    execution: Execution,
    cycles: u32,
    dir: &Path,
    stop: &AtomicBool,
) -> Result<Left, BenchError> {
    // The numbers differ from those of the other guests.
    let vifs = (2..2 + DIFFERENT).map(|number| Ok((number, vif(number, 1, dir)?)));
    let vifs = vifs.collect::<Result<Vec<_>, RigError>>()?;
    let progress = progress(1);
    let part = |part: u32| {
        for ((number, config), turn) in vifs.iter().cycle().zip(0..cycles / SLICES) {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            cycle(switch, *number, config, turn.is_multiple_of(2))?;
        }
        progress.set_position(part.into());
        Ok::<_, BenchError>(())
    };
    part(0)?;
    let warm = Holdings::at_rest()?;
    let start = Instant::now();
    let (mut bytes, mut before) = (Vec::new(), warm);
    for number in 1..=SLICES {
        part(number)?;
        let now = Holdings::settled(&warm)?;
        let grown = now.resident_bytes as f64 - before.resident_bytes as f64;
        bytes.push(grown / f64::from(cycles / SLICES));
        before = now;
    }
    Ok(Left {
        execution,
        cycles: cycles / SLICES * SLICES,
        fds: before.fds.saturating_sub(warm.fds),
        threads: before.threads.saturating_sub(warm.threads),
        mappings: before.mappings.saturating_sub(warm.mappings),
        bytes,
        arrived: 0,
        lost: 0,
        seconds: start.elapsed().as_secs_f64(),
    })
}

/// Adds, uses and removes one interface. Its guest disconnects first or is disconnected.
fn cycle(
    switch: &Switch,
    number: usize,
    config: &VifConfig,
    leaves_first: bool,
) -> Result<(), BenchError> {
    let request = |request, name| match switch.handle(request) {
        Response::Ok => Ok(()),
        other => Err(BenchError::Refused { request: name, reason: format!("{other:?}") }),
    };
    request(Request::VifAdd { config: Box::new(config.clone()) }, "an interface")?;
    let mut guest = Guest::connect(number, config)?;
    guest.announce();
    wait_for("the frame of a guest that came", || {
        let port = switch.vif(&config.name);
        port.is_some_and(|port| port.interface().counters().tx[0].frames.get() > 0)
    })?;
    let leaving = leaves_first.then_some(guest);
    drop(leaving);
    request(Request::VifDel { name: config.name.clone() }, "the end of an interface")
}

fn figures(all: &[Left]) -> Figures {
    let name = |left: &Left| match left.execution {
        Execution::Tasklet => "attach_detach",
        Execution::Threads | Execution::RtThreads => "attach_detach_threads",
    };
    let mut figures = Vec::new();
    for left in all {
        let Left { cycles, fds, threads, mappings, .. } = *left;
        let name = name(left);
        let mut figure = |suffix: &str, unit, says: String, values: Vec<f64>| {
            figures.extend(FigureRow::new(format!("{name}{suffix}"), unit, says, values));
        };
        figure(
            "",
            "left behind",
            format!(
                "descriptors, threads and mappings of guests' memory after {cycles} interfaces \
                 came and went"
            ),
            vec![(fds + threads + mappings) as f64],
        );
        let says = "growth of resident memory for each interface, part by part".into();
        figure("_bytes", "bytes", says, left.bytes.clone());
        let says = "came and went, each with a guest that connected and sent".into();
        figure("_per_s", "interfaces/s", says, vec![f64::from(cycles) / left.seconds]);
        let says = "arrived between two other guests meanwhile".into();
        figure("_traffic", "packets", says, vec![left.arrived as f64]);
        let says = "of theirs lost or damaged".into();
        figure("_traffic_lost", "packets", says, vec![left.lost as f64]);
    }
    Figures { title: "interfaces that come and go under traffic", figures, notes: Vec::new() }
}
