//! `weir bench --vifs`: round trips and throughput of 1 to 32 interfaces (Raj 2006, Figs. 4 and 5), with workers
//! that sleep (`shared`) and workers that poll (`dedicated`).
//!
//! Each interface has a guest, and the guest's peer has its own interface. One worker is pinned to the last CPU. One
//! thread, pinned to the first CPU, polls the rings of all guests and never sleeps, so no guest's wake-up
//! counts.

use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use weir_config::Realization;

use super::super::figures::{FigureRow, Figures};
use super::super::report::median_and_spread;
use super::crowd::{Crowd, Frame, Pair, Setup, receive};
use crate::args::BenchArgs;
use crate::rig::{self, pin, two_cpus};
use crate::steps::{BenchError, SLICES, TIMEOUT, progress};

/// Numbers of interfaces with a peer.
const COUNTS: [usize; 6] = [1, 2, 4, 8, 16, 32];
/// Pause of a guest between an answer and its next request, in which an actual guest would use the answer.
const PAUSE: Duration = Duration::from_micros(500);
/// Time after which an answer counts as lost.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// Packets in flight between two guests at full speed, and packets per turn.
const WINDOW: u64 = 128;
const BURST: u64 = 32;
/// Time before counting.
const WARM_UP: Duration = Duration::from_millis(20);

/// Results of one realization with a number of interfaces.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Cell {
    /// Median round trip (us).
    round_trip_us: f64,
    packets_per_s: f64,
}

/// Results of both realizations with the same interfaces, measured directly one after the other.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Round {
    vifs: usize,
    shared: Cell,
    dedicated: Cell,
}

/// Measures and prints the result.
pub(super) fn run(args: &BenchArgs, out: &mut dyn Write) -> Result<(), BenchError> {
    let stop = rig::catch_signals()?;
    let dir = rig::temp_dir()?;
    let time = Duration::from_secs(args.seconds.into()) / SLICES;
    let progress = progress(COUNTS.len());
    let mut rounds = Vec::new();
    for _ in 0..SLICES {
        for vifs in COUNTS {
            let measure = |realization| cell(vifs, realization, time / 2, dir.path(), &stop);
            let [shared, dedicated] = [Realization::Shared, Realization::Dedicated].map(measure);
            if let (Some(shared), Some(dedicated)) = (shared?, dedicated?) {
                rounds.push(Round { vifs, shared, dedicated });
            }
            progress.inc(1);
        }
    }
    figures(&rounds).print(args, out)
}

fn figures(rounds: &[Round]) -> Figures {
    let mut figures = Vec::new();
    let mut each = |name: &str, unit, says: &str, of: fn(&Round) -> f64| {
        for vifs in COUNTS {
            let values = rounds.iter().filter(|round| round.vifs == vifs).map(of).collect();
            figures.extend(FigureRow::new(format!("{name}_{vifs}"), unit, says, values));
        }
    };
    each(
        "dedicated_rtt_vs_shared",
        "x",
        "median round trip of 64 B, so many guests with a request every 0.5 ms: a worker that polls / \
         one that sleeps",
        |round| round.dedicated.round_trip_us / round.shared.round_trip_us,
    );
    each("rtt_shared", "us", "the round trip where the worker sleeps", |round| {
        round.shared.round_trip_us
    });
    each("rtt_dedicated", "us", "the round trip where it polls", |round| {
        round.dedicated.round_trip_us
    });
    each("pps_shared", "packets/s", "64 B one way, 128 in flight from each guest", |round| {
        round.shared.packets_per_s
    });
    each("pps_dedicated", "packets/s", "the same where the worker polls", |round| {
        round.dedicated.packets_per_s
    });
    Figures {
        title: "1 to 32 interfaces, one worker on a core and all guests on another",
        figures,
        notes: Vec::new(),
    }
}

/// Measures a cell; `None` after an interruption.
fn cell(
    vifs: usize,
    realization: Realization,
    time: Duration,
    dir: &Path,
    stop: &AtomicBool,
) -> Result<Option<Cell>, BenchError> {
    let mut crowd = Crowd::start(&Setup { pairs: vifs, realization, ..Setup::default() }, dir)?;
    let cpus = two_cpus();
    if let Some([_, last]) = cpus {
        crowd.pin_workers(last);
    }
    let pairs = &mut crowd.pairs;
    let guests = || {
        if let Some([first, _]) = cpus {
            pin(None, first);
        }
        let times = round_trips_ns(pairs, time, stop)?;
        Ok::<_, BenchError>((times, packets_per_s(pairs, time, stop)))
    };
    let done = thread::scope(|scope| scope.spawn(guests).join());
    let (times, packets_per_s) = done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    if stop.load(Ordering::Relaxed) {
        return Ok(None);
    }
    let Some((median_ns, ..)) = median_and_spread(times) else {
        return Err(BenchError::NothingArrived { measurement: "vifs", time });
    };
    Ok(Some(Cell { round_trip_us: median_ns / 1e3, packets_per_s }))
}

/// A guest that sends requests, and its peer that answers.
struct Talk<'p> {
    pair: &'p mut Pair,
    request: Frame,
    answer: Frame,
    seq: u64,
    /// Time of the pending request.
    asked: Option<Instant>,
    next_at: Instant,
}

impl Talk<'_> {
    /// Answers, sends requests, and returns the round-trip time of an arrived answer.
    fn step(&mut self) -> Option<Duration> {
        let (client, server) = (&mut self.pair.client.queues[0], &mut self.pair.server.queues[0]);
        if let Some((_, seq)) = receive(server) {
            self.answer.send(server, seq);
            server.flush();
        }
        let now = Instant::now();
        match self.asked {
            Some(asked) => match receive(client) {
                Some((_, seq)) if seq == self.seq => {
                    (self.asked, self.next_at) = (None, now + PAUSE);
                    return Some(now - asked);
                }
                _ => self.asked = Some(asked).filter(|asked| now - *asked < ANSWER_TIMEOUT),
            },
            None if now >= self.next_at => {
                self.seq += 1;
                self.asked = Some(now);
                self.request.send(client, self.seq);
                client.flush();
            }
            None => {}
        }
        None
    }
}

/// Returns round-trip times (ns). Guests send requests at different times.
fn round_trips_ns(
    pairs: &mut [Pair],
    time: Duration,
    stop: &AtomicBool,
) -> Result<Vec<f64>, BenchError> {
    let start = Instant::now();
    let stagger = PAUSE / pairs.len().max(1) as u32;
    let mut talks: Vec<_> = pairs
        .iter_mut()
        .enumerate()
        .map(|(number, pair)| Talk {
            request: Frame::new(&pair.client, &pair.server, 0),
            answer: Frame::new(&pair.server, &pair.client, 0),
            pair,
            seq: 0,
            asked: None,
            next_at: start + stagger * number as u32,
        })
        .collect();
    let mut times = Vec::new();
    let is_over = |times: &[f64]| {
        let enough = if times.is_empty() { TIMEOUT } else { WARM_UP + time };
        start.elapsed() > enough || stop.load(Ordering::Relaxed)
    };
    while !is_over(&times) {
        for talk in &mut talks {
            if let Some(took) = talk.step()
                && start.elapsed() > WARM_UP
            {
                times.push(took.as_nanos() as f64);
            }
        }
    }
    // Waits for the remaining answers, so that none arrives in the next measurement.
    let ended = Instant::now();
    while talks.iter().any(|talk| talk.asked.is_some()) {
        if ended.elapsed() > ANSWER_TIMEOUT {
            return Err(BenchError::NothingArrived { measurement: "vifs", time: ANSWER_TIMEOUT });
        }
        for talk in &mut talks {
            talk.next_at = ended + 2 * ANSWER_TIMEOUT;
            talk.step();
        }
    }
    Ok(times)
}

/// Returns the packets that arrive per second while all guests send to their peers at full speed.
fn packets_per_s(pairs: &mut [Pair], time: Duration, stop: &AtomicBool) -> f64 {
    let mut streams: Vec<_> = pairs
        .iter_mut()
        .map(|pair| (Frame::new(&pair.client, &pair.server, 0), pair, 0_u64, 0_u64))
        .collect();
    let mut received_before = None;
    let start = Instant::now();
    loop {
        for (frame, pair, sent, received) in &mut streams {
            let (client, server) = (&mut pair.client.queues[0], &mut pair.server.queues[0]);
            if *sent - *received + BURST <= WINDOW {
                *sent += (0..BURST).take_while(|_| frame.send(client, 0)).count() as u64;
                client.flush();
            }
            *received += (0..BURST).map_while(|_| receive(server)).count() as u64;
        }
        let elapsed = start.elapsed();
        let received = || streams.iter().map(|(.., received)| *received).sum::<u64>();
        match received_before {
            None if elapsed >= WARM_UP => received_before = Some((elapsed, received())),
            Some((began, before)) if elapsed >= began + time || stop.load(Ordering::Relaxed) => {
                return (received() - before) as f64 / (elapsed - began).as_secs_f64();
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_realizations_answer_and_carry() {
        let dir = rig::temp_dir().unwrap();
        let stop = AtomicBool::new(false);
        for realization in [Realization::Shared, Realization::Dedicated] {
            let time = Duration::from_millis(50);
            let cell = cell(2, realization, time, dir.path(), &stop).unwrap().unwrap();
            assert!(cell.round_trip_us > 0.0 && cell.packets_per_s > 0.0, "{cell:?}");
        }
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        let cell = |round_trip_us| Cell { round_trip_us, packets_per_s: 1.0 };
        let round =
            |shared, dedicated| Round { vifs: 8, shared: cell(shared), dedicated: cell(dedicated) };
        let found = figures(&[round(10.0, 4.0), round(100.0, 30.0), round(20.0, 12.0)]).figures;
        assert_eq!((found[0].name.as_str(), found[0].median), ("dedicated_rtt_vs_shared_8", 0.4));
    }
}
