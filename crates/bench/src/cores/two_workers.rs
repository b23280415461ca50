//! `weir bench --two-workers`: two workers against one.
//!
//! Four pairs of guests send 64 B packets as fast as they can. The guests' threads need cores too, so packets per
//! second would depend on the guests as much as on weir. The figure is therefore packets per second of worker CPU time,
//! times the number of workers: the rate if each worker had its own core. Both workers must have been busy:
//! `two_workers_least_busy`.
//!
//! There are two more measurements: simulated ports on the workers' own threads, which need no further core; and one
//! guest with one queue, for which the second worker helps the first.

use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use weir_engine::{Engine, Options, Realization as EngineRealization};
use weir_fabric::PortId;
use weir_vif::load::{End, LoadStats, small};
use weir_wire::Mac;

use super::super::figures::{FigureRow, Figures};
use super::super::plan::{SMALL_FRAME_BYTES, WINDOW};
use super::super::sharing::{ENDLESS, PlayedPort, Sends};
use super::crowd::{Crowd, Pair, Setup};
use crate::args::BenchArgs;
use crate::rig::{self, RigError};
use crate::steps::{BenchError, SLICES, progress, wait_for};

const PAIRS: usize = 4;
/// Time before counting, in which queues find their workers.
const SETTLE: Duration = Duration::from_millis(800);
/// Time before counting if queues are assigned explicitly.
const WARM_UP: Duration = Duration::from_millis(50);

/// The longest Ethernet frame: most of its copy takes place outside the helper's turn.
const LONG_FRAME_BYTES: usize = 1514;
/// Interval at which the queue gets its helper again, since dispatch by load may remove it.
const HELP: Duration = Duration::from_millis(5);

#[derive(Debug, Clone, Copy)]
struct Work {
    pairs: usize,
    frame_bytes: usize,
}

/// Four pairs of guests with small packets.
const SPREAD: Work = Work { pairs: PAIRS, frame_bytes: SMALL_FRAME_BYTES };
/// One pair with one queue.
const HOT: [Work; 2] = [
    Work { pairs: 1, frame_bytes: SMALL_FRAME_BYTES },
    Work { pairs: 1, frame_bytes: LONG_FRAME_BYTES },
];

/// Work done by a number of workers.
#[derive(Debug, Clone, Default, PartialEq)]
struct Did {
    packets: u64,
    seconds: f64,
    /// CPU time of each worker (s).
    cpu_s: Vec<f64>,
}

impl Did {
    /// Returns the packets per second if each worker had its own core.
    fn packets_per_s_of_cores(&self) -> f64 {
        let cpu_s: f64 = self.cpu_s.iter().sum();
        self.cpu_s.len() as f64 * self.packets as f64 / cpu_s
    }

    fn packets_per_s(&self) -> f64 {
        self.packets as f64 / self.seconds
    }

    /// Returns the ratio of the least to the largest CPU time of a worker.
    fn least_busy(&self) -> f64 {
        let most = self.cpu_s.iter().copied().fold(0.0, f64::max);
        self.cpu_s.iter().copied().fold(most, f64::min) / most
    }
}

struct Round {
    one: Did,
    two: Did,
    /// Packets with one worker and with two, through simulated ports.
    played: [Did; 2],
    /// One hot queue, of each kind in [`HOT`]: by one worker, and by a worker with a helper.
    hot: [[Did; 2]; 2],
}

impl Round {
    /// Returns the gain of a hot queue by a helper.
    fn helped_vs_alone(&self, kind: usize) -> f64 {
        let [alone, helped] = &self.hot[kind];
        helped.packets_per_s_of_cores() / alone.packets_per_s_of_cores()
    }
}

/// Measures and prints the result.
pub(super) fn run(args: &BenchArgs, out: &mut dyn Write) -> Result<(), BenchError> {
    let stop = rig::catch_signals()?;
    let dir = rig::temp_dir()?;
    let time = Duration::from_secs(args.seconds.into()) / SLICES;
    let progress = progress(4 + 2 * HOT.len());
    let mut rounds = Vec::new();
    for _ in 0..SLICES {
        let measure = |workers, work| {
            let did = slice(workers, work, time, dir.path());
            progress.inc(1);
            did
        };
        let (one, two) = (measure(1, SPREAD)?, measure(2, SPREAD)?);
        let play = |workers| {
            let rate = played(workers, time);
            progress.inc(1);
            rate
        };
        let played = [play(1)?, play(2)?];
        let helped =
            |work| -> Result<[Did; 2], BenchError> { Ok([measure(1, work)?, measure(2, work)?]) };
        let hot = [helped(HOT[0])?, helped(HOT[1])?];
        if stop.load(Ordering::Relaxed) {
            break;
        }
        rounds.push(Round { one, two, played, hot });
    }
    figures(&rounds).print(args, out)
}

fn figures(rounds: &[Round]) -> Figures {
    let figure = |name: &str, unit, says: &str, of: fn(&Round) -> f64| {
        FigureRow::new(name, unit, says, rounds.iter().map(of).collect())
    };
    let figures = [
        figure(
            "two_workers_vs_one",
            "x",
            "4 pairs of guests, 64 B: packets for each second of the workers' CPU time, times the workers",
            |round| round.two.packets_per_s_of_cores() / round.one.packets_per_s_of_cores(),
        ),
        figure("two_workers_pps_one", "packets/s", "one worker with a core", |round| {
            round.one.packets_per_s_of_cores()
        }),
        figure("two_workers_pps_two", "packets/s", "two workers with a core each", |round| {
            round.two.packets_per_s_of_cores()
        }),
        figure(
            "two_workers_least_busy",
            "x",
            "CPU time of the worker with less / of the one with more",
            |round| round.two.least_busy(),
        ),
        figure(
            "two_workers_wall_vs_one",
            "x",
            "what arrives in a second, guests and workers sharing the machine",
            |round| round.two.packets_per_s() / round.one.packets_per_s(),
        ),
        figure("two_workers_wall_pps_one", "packets/s", "the same with one worker", |round| {
            round.one.packets_per_s()
        }),
        figure("two_workers_wall_pps_two", "packets/s", "the same with two workers", |round| {
            round.two.packets_per_s()
        }),
        figure(
            "two_workers_played_vs_one",
            "x",
            "4 senders and receivers played by the workers, 64 B: packets for each second of their CPU \
             time, times the workers",
            |Round { played: [one, two], .. }| {
                two.packets_per_s_of_cores() / one.packets_per_s_of_cores()
            },
        ),
        figure(
            "two_workers_played_wall_vs_one",
            "x",
            "the same by the clock",
            |Round { played: [one, two], .. }| two.packets_per_s() / one.packets_per_s(),
        ),
        figure("two_workers_played_pps_one", "packets/s", "by the clock, one worker", |round| {
            round.played[0].packets_per_s()
        }),
        figure("two_workers_played_pps_two", "packets/s", "by the clock, two workers", |round| {
            round.played[1].packets_per_s()
        }),
        figure(
            "hot_queue_helped_vs_alone_64",
            "x",
            "one queue, 64 B: packets for each second of the CPU time of its worker and its helper, times \
             two / of one worker",
            |round| round.helped_vs_alone(0),
        ),
        figure("hot_queue_helped_vs_alone_1514", "x", "the same with 1514 B", |round| {
            round.helped_vs_alone(1)
        }),
        figure(
            "hot_queue_least_busy_64",
            "x",
            "CPU time of the one with less / of the one with more",
            |round| round.hot[0][1].least_busy(),
        ),
    ];
    Figures {
        title: "two workers against one",
        figures: figures.into_iter().flatten().collect(),
        notes: Vec::new(),
    }
}

/// Counts packets between guests, with a thread for each end. The second worker helps if there is one pair only.
fn slice(workers: u64, work: Work, time: Duration, dir: &Path) -> Result<Did, BenchError> {
    let Crowd { mut pairs, switch } =
        Crowd::start(&Setup { pairs: work.pairs, workers, ..Setup::default() }, dir)?;
    let hot = pairs.first().filter(|_| work.pairs == 1 && workers == 2);
    let hot = hot.and_then(|pair| switch.vif(&pair.client.port)).map(|port| port.id());
    let options = small::Options {
        frame_bytes: work.frame_bytes,
        rate: small::Rate::Window(WINDOW),
        ..small::Options::default()
    };
    let ended = AtomicBool::new(false);
    let stats: Vec<_> =
        pairs.iter().map(|_| [LoadStats::default(), LoadStats::default()]).collect();
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for (Pair { client, server }, [sends, receives]) in pairs.iter_mut().zip(&stats) {
            let flow = client.flow_to(server);
            let (ended, options) = (&ended, &options);
            let (from, to) = (&mut client.queues[0], &mut server.queues[0]);
            threads.push(scope.spawn(move || {
                small::send(End { pair: from, flow: &flow, stats: sends, stop: ended }, options)
            }));
            let flow = flow.reversed();
            threads.push(scope.spawn(move || {
                small::receive(End { pair: to, flow: &flow, stats: receives, stop: ended }, options)
            }));
        }
        if let Some(port) = hot {
            let (engine, ended) = (switch.engine(), &ended);
            scope.spawn(move || keep_helped(engine, port, ended));
        }
        let read = || {
            let received: u64 =
                stats.iter().map(|[_, receiver]| receiver.snapshot().rx_frames).sum();
            (Instant::now(), received, cpu_ns(switch.engine()))
        };
        thread::sleep(SETTLE);
        let (began, before, cpu_before) = read();
        thread::sleep(time);
        let (at, after, cpu) = read();
        ended.store(true, Ordering::Relaxed);
        for thread in threads {
            let result = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            result.map_err(|source| RigError::Load { guest: "guest", source })?;
        }
        if after == before {
            return Err(BenchError::NothingArrived { measurement: "two_workers", time });
        }
        Ok(Did {
            packets: after - before,
            seconds: (at - began).as_secs_f64(),
            cpu_s: seconds_between(&cpu_before, &cpu),
        })
    })
}

/// Keeps the other worker as helper of a port's only queue until `ended`.
fn keep_helped(engine: &Engine, port: PortId, ended: &AtomicBool) {
    while !ended.load(Ordering::Relaxed) {
        let worker = engine.worker_of(port, 0).unwrap_or(0);
        engine.set_helper(port, 0, Some(1 - worker));
        thread::sleep(HELP);
    }
}

/// Counts packets between ports without threads.
fn played(workers: usize, time: Duration) -> Result<Did, BenchError> {
    let options = Options { workers, realization: EngineRealization::Shared, ..Options::default() };
    let engine = Engine::start_with(options)?;
    let mac = |number: usize| Mac([0x52, 0x54, 0, 2, 0, number as u8]);
    let mut sinks = Vec::new();
    let mut senders = Vec::new();
    for pair in 0..PAIRS {
        let [from, to] = [2 * pair, 2 * pair + 1].map(mac);
        let sends = Sends { from: to, to: Mac::BROADCAST, len: SMALL_FRAME_BYTES };
        let sink = PlayedPort::add(&engine, sends)?;
        let sender = PlayedPort::add(&engine, Sends { from, to, len: SMALL_FRAME_BYTES })?;
        // Frames to the sink are flooded until the switch knows its address.
        sink.send(&engine, 1);
        wait_for("a sink's place", || sender.received() > 0)?;
        engine.assign(sender.id(), 0, pair % workers)?;
        sinks.push(sink);
        senders.push(sender);
    }
    senders.iter().for_each(|sender| sender.send(&engine, ENDLESS));
    let received = || sinks.iter().map(|sink| sink.received()).sum::<u64>();
    thread::sleep(WARM_UP);
    let (began, before, cpu_before) = (Instant::now(), received(), cpu_ns(&engine));
    thread::sleep(time);
    wait_for("the next packet", || received() > before)?;
    Ok(Did {
        packets: received() - before,
        seconds: began.elapsed().as_secs_f64(),
        cpu_s: seconds_between(&cpu_before, &cpu_ns(&engine)),
    })
}

/// Returns each worker's CPU time so far (ns).
fn cpu_ns(engine: &Engine) -> Vec<u64> {
    engine.workers().into_iter().map(|worker| worker.cpu_ns.unwrap_or(0)).collect()
}

fn seconds_between(before: &[u64], after: &[u64]) -> Vec<f64> {
    after.iter().zip(before).map(|(now, then)| now.saturating_sub(*then) as f64 / 1e9).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_workers_do_is_counted_for_their_cpu_time() {
        let did = |packets, cpu_s: &[f64]| Did { packets, seconds: 2.0, cpu_s: cpu_s.into() };
        let round = Round {
            one: did(1_000_000, &[0.5]),
            two: did(1_500_000, &[0.25, 0.5]),
            played: [did(10_000_000, &[2.0]), did(12_000_000, &[1.5, 1.5])],
            hot: [
                [did(1_000_000, &[1.0]), did(1_500_000, &[1.0, 1.0])],
                [did(100_000, &[0.5]), did(300_000, &[1.0, 0.6])],
            ],
        };
        assert_eq!(round.one.packets_per_s_of_cores(), 2e6);
        assert_eq!(round.two.least_busy(), 0.5);
        let medians: Vec<_> = figures(&[round]).figures.iter().map(|row| row.median).collect();
        assert_eq!(
            medians,
            [2.0, 2e6, 4e6, 0.5, 1.5, 5e5, 7.5e5, 1.6, 1.2, 5e6, 6e6, 1.5, 1.875, 1.0]
        );
    }

    #[test]
    fn both_workers_are_at_work() {
        let dir = rig::temp_dir().unwrap();
        for work in [SPREAD, HOT[1]] {
            let did = slice(2, work, Duration::from_millis(300), dir.path()).unwrap();
            assert!(did.packets > 0 && did.cpu_s.len() == 2 && did.least_busy() > 0.0, "{did:?}");
        }
        assert!(played(2, Duration::from_millis(20)).unwrap().packets > 0);
    }
}
