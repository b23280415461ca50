//! The indirection table of a port with several receive queues: the load of its entries, and their moves.

use std::collections::VecDeque;

use weir_engine::Port;
use weir_engine::stats::PortCounters;
use weir_limits::INDIRECTION_LEN;
use weir_policy::steering::rebalance::{EntryLoad, Look, Move, Rebalancer};

use crate::explain::{MoveExplanation, SteeringExplanation, SteeringQueue};

/// Looks closer together than this (ns) do not measure the load well.
const LOOK_NS_MIN: u64 = 50_000_000;
/// A move that stays pending for this many looks is given up: its flows never let the queue drain.
const LOOKS_MAX: u32 = 5;
/// Moves that are remembered for explaining.
const MOVES_REMEMBERED: usize = 8;

/// Rebalances one port's table.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// Made when the port first has a choice of queues: it has 3 KiB, and most ports have one queue.
    rebalancer: Option<Box<Rebalancer>>,
    looked_ns: Option<u64>,
    moves: VecDeque<Move>,
}

/// A port's counters.
struct Seen {
    entries: [EntryLoad; INDIRECTION_LEN],
    queues: Vec<u64>,
}

impl Seen {
    /// The port's counters; `None` if there is no choice of queues.
    fn of(port: &dyn Port, counters: &PortCounters) -> Option<Self> {
        let queues = port.rx_queues();
        let entries = port.steering().filter(|_| queues > 1)?.entries();
        let received = counters.rx.iter().take(queues).map(|queue| queue.frames.get());
        Some(Self { entries, queues: received.collect() })
    }

    fn look(&self, now_ns: u64) -> Look<'_> {
        Look { now_ns, entries: &self.entries, queues: &self.queues }
    }
}

impl Table {
    /// Advances pending moves, and begins others if the port `rebalances`.
    pub(super) fn look(
        &mut self,
        now_ns: u64,
        port: &dyn Port,
        counters: &PortCounters,
        rebalances: bool,
    ) {
        let Some(steering) = port.steering() else { return };
        if self.looked_ns.is_some_and(|before_ns| now_ns < before_ns + LOOK_NS_MIN) {
            return;
        }
        self.looked_ns = Some(now_ns);
        let Some(seen) = Seen::of(port, counters) else {
            *self = Self::default();
            return;
        };
        let rebalancer = self.rebalancer.get_or_insert_default();
        for wanted in rebalancer.look(&seen.look(now_ns)) {
            if rebalances && steering.begin_move(wanted.entry, wanted.to, port) {
                self.moves.truncate(MOVES_REMEMBERED - 1);
                self.moves.push_front(wanted);
            }
        }
        steering.look_after(LOOKS_MAX, port);
    }

    /// The table's explanation; `None` if there is no choice of queues.
    pub(super) fn explain(
        &self,
        now_ns: u64,
        port: &dyn Port,
        counters: &PortCounters,
        rebalances: bool,
    ) -> Option<SteeringExplanation> {
        let seen = Seen::of(port, counters)?;
        let look = seen.look(now_ns);
        let loads = match &self.rebalancer {
            Some(rebalancer) => rebalancer.queue_frames_per_s(&look),
            None => Rebalancer::default().queue_frames_per_s(&look),
        };
        let queue = |(queue, frames_per_s): (usize, u64)| {
            let its = |entry: &&EntryLoad| usize::from(entry.queue) == queue;
            let entries = || seen.entries.iter().filter(its);
            let moving = entries().filter(|entry| entry.moving_to.is_some());
            SteeringQueue { entries: entries().count(), moving: moving.count(), frames_per_s }
        };
        let explain = |made: &Move| MoveExplanation {
            ago_ns: now_ns.saturating_sub(made.at_ns),
            entry: made.entry,
            from: made.from,
            to: made.to,
            frames_per_s: made.frames_per_s,
            from_frames_per_s: made.from_frames_per_s,
            to_frames_per_s: made.to_frames_per_s,
        };
        let steering = port.steering()?;
        Some(SteeringExplanation {
            rebalances,
            given: steering.is_given(),
            moved_entries: steering.moved_entries(),
            queues: loads.into_iter().enumerate().map(queue).collect(),
            moves: self.moves.iter().map(explain).collect(),
        })
    }
}

/// True if the port can have several receive queues.
pub(super) fn steers(port: &dyn Port, queues_max: usize) -> bool {
    queues_max > 1 && port.steering().is_some()
}

#[cfg(test)]
mod tests;
