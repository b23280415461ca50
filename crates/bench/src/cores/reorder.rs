//! `weir bench --reorder`: sequence numbers of many flows while queues and flows move.
//!
//! Two workers serve two guests with four queue pairs each. Every queue pair moves to the other worker again and again.
//! Entries of the receiver's indirection table move to other queues. The measurement counts packets that arrive late in
//! their flow or twice.

use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use weir_config::{PortName, Realization};
use weir_limits::INDIRECTION_LEN;
use weir_switch::Switch;

use super::super::figures::{FigureRow, Figures};
use super::super::plan::WINDOW;
use super::crowd::{Crowd, Frame, Pair, Setup, receive};
use crate::args::BenchArgs;
use crate::rig;
use crate::steps::{BenchError, TIMEOUT, progress_of};

const QUEUES: u8 = 4;
const WORKERS: usize = 2;
const FLOWS: u16 = 64;
/// Packets that are sent or received per turn.
const BURST: u64 = 64;
/// Packets of a flow before the next flow's turn. In between, the flow's old queue can empty, so its entry may
/// move.
const TRAIN: u64 = 64;
/// Interval of the moves.
const STEP: Duration = Duration::from_micros(200);
/// Entries to move per step: the limit of simultaneous moves.
const ENTRIES: usize = weir_limits::STEERING_CHANGES_MAX;

/// Packets between two updates of the progress.
const SHOWN: u64 = 1 << 16;

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Found {
    sent: u64,
    received: u64,
    reordered: u64,
    queue_moves: u64,
    entry_moves: u64,
    seconds: f64,
}

/// Measures and prints the result.
pub(super) fn run(args: &BenchArgs, out: &mut dyn Write) -> Result<(), BenchError> {
    let stop = rig::catch_signals()?;
    let dir = rig::temp_dir()?;
    let found = measure(args.packets, dir.path(), &stop)?;
    if found.received == 0 {
        return Err(BenchError::Interrupted);
    }
    found.figures().print(args, out)
}

fn measure(packets: u64, dir: &Path, stop: &AtomicBool) -> Result<Found, BenchError> {
    let setup = Setup {
        queues: QUEUES,
        workers: WORKERS as u64,
        realization: Realization::Shared,
        ..Setup::default()
    };
    let Crowd { mut pairs, switch } = Crowd::start(&setup, dir)?;
    let pair = &mut pairs[0];
    let names = [pair.client.port.clone(), pair.server.port.clone()];
    let ended = AtomicBool::new(false);
    let found = thread::scope(|scope| {
        let mover = scope.spawn(|| move_everything(&switch, &names, &ended));
        let found = count(pair, packets, stop);
        ended.store(true, Ordering::Relaxed);
        let queue_moves = mover.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let entry_moves =
            switch.vif(&names[1]).and_then(|port| Some(port.steering()?.moved_entries()));
        Found { queue_moves, entry_moves: entry_moves.unwrap_or(0), ..found }
    });
    Ok(found)
}

/// Sends `packets` packets and counts those that arrive.
fn count(pair: &mut Pair, packets: u64, stop: &AtomicBool) -> Found {
    let Pair { client, server } = pair;
    let mut frames: Vec<_> = (0..FLOWS).map(|flow| Frame::new(client, server, flow)).collect();
    let mut sent_of = [0_u64; FLOWS as usize];
    let mut next_of = [0_u64; FLOWS as usize];
    let mut found = Found::default();
    // Packets that count as lost and are therefore not in flight any more.
    let mut given_up = 0;
    let start = Instant::now();
    let mut progress = start;
    let bar = progress_of(packets);
    bar.set_message("packets");
    while (found.sent < packets && !stop.load(Ordering::Relaxed))
        || found.sent > found.received + given_up
    {
        let in_flight = found.sent.saturating_sub(found.received + given_up);
        if in_flight + BURST <= WINDOW.into() && !stop.load(Ordering::Relaxed) {
            for _ in 0..BURST.min(packets - found.sent) {
                let flow = (found.sent / TRAIN % u64::from(FLOWS)) as usize;
                let queue = &mut client.queues[flow % usize::from(QUEUES)];
                if !frames[flow].send(queue, sent_of[flow]) {
                    break;
                }
                sent_of[flow] += 1;
                found.sent += 1;
            }
            client.queues.iter_mut().for_each(weir_vif::QueuePair::flush);
        }
        let before = found.received;
        for queue in &mut server.queues {
            for (flow, seq) in (0..BURST).map_while(|_| receive(queue)) {
                let Some(next) = next_of.get_mut(usize::from(flow)) else { continue };
                found.received += 1;
                found.reordered += u64::from(seq < *next);
                *next = (*next).max(seq + 1);
            }
        }
        if found.received > before {
            progress = Instant::now();
            if found.received / SHOWN > before / SHOWN {
                bar.set_position(found.received);
            }
        } else if progress.elapsed() > TIMEOUT {
            given_up = found.sent.saturating_sub(found.received);
        }
    }
    Found { seconds: start.elapsed().as_secs_f64(), ..found }
}

/// Moves queues to other workers and entries to other queues until `ended`. Returns the number of queue moves.
fn move_everything(switch: &Switch, names: &[PortName; 2], ended: &AtomicBool) -> u64 {
    let [Some(client), Some(server)] = names.each_ref().map(|name| switch.vif(name)) else {
        return 0;
    };
    let engine = switch.engine();
    let (mut step, mut moves) = (0_usize, 0);
    while !ended.load(Ordering::Relaxed) {
        for (port, queue) in
            (0..usize::from(QUEUES)).flat_map(|queue| [(&client, queue), (&server, queue)])
        {
            let worker = (step + queue) % WORKERS;
            moves += u64::from(engine.assign(port.id(), queue, worker).is_ok());
        }
        if let Some(steering) = server.steering() {
            let first = step * ENTRIES;
            for place in first..first + ENTRIES {
                let (lap, entry) = (place / INDIRECTION_LEN, place % INDIRECTION_LEN);
                steering.begin_move(entry, (entry + lap) % usize::from(QUEUES), &*server);
            }
            // No change is given up.
            steering.look_after(u32::MAX, &*server);
        }
        step += 1;
        thread::sleep(STEP);
    }
    moves
}

impl Found {
    fn figures(&self) -> Figures {
        let lost = self.sent.saturating_sub(self.received);
        let figure = |name: &str, unit, value: f64, says: &str| {
            FigureRow::new(name, unit, says, vec![value])
        };
        let figures = [
            figure(
                "reordered_packets",
                "packets",
                self.reordered as f64,
                "after a later one of their flow",
            ),
            figure("reordered_packets_of", "packets", self.received as f64, "received"),
            figure("reordered_packets_lost", "packets", lost as f64, "sent and not received"),
            figure(
                "reordered_packets_queue_moves",
                "moves",
                self.queue_moves as f64,
                "of queue pairs between two workers meanwhile",
            ),
            figure(
                "reordered_packets_entry_moves",
                "moves",
                self.entry_moves as f64,
                "of entries of the receiver's indirection table between four queues",
            ),
            figure(
                "reordered_packets_per_s",
                "packets/s",
                self.received as f64 / self.seconds,
                "64 B, 64 flows",
            ),
        ];
        Figures {
            title: "packets of 64 flows while queues and flows move all the time",
            figures: figures.into_iter().flatten().collect(),
            notes: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_stay_in_order_while_queues_and_entries_move() {
        let dir = rig::temp_dir().unwrap();
        let found = measure(200_000, dir.path(), &AtomicBool::new(false)).unwrap();
        assert_eq!((found.sent, found.received, found.reordered), (200_000, 200_000, 0));
        assert!(found.queue_moves > 0 && found.entry_moves > 0, "{found:?}");
    }
}
