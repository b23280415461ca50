//! Moves queues between workers by load: measures the load, asks [`weir_policy::dispatch`], and makes the moves.

use std::collections::{HashMap, VecDeque};

use weir_fabric::PortId;
use weir_policy::dispatch::{CORE, Dispatch, Move, Queue, Reason};

use crate::frames::port::QueueRef;
use crate::frames::port::Side;
use crate::switching::switch::{Ports, Slot};
use crate::working::crew::{Crew, Options, Realization};
use crate::working::shared::Shared;

/// Moves that are remembered.
const LOG_LEN: usize = 32;
/// The longest time (ns) between two steps for which a load is measured: after a longer time there
/// was no traffic.
const STEP_NS_MAX: u64 = 1_000_000_000;

/// A pair of queues that was given to another worker, or got or lost a helper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The time of the move (ns).
    pub at_ns: u64,
    /// The port of the pair.
    pub port: PortId,
    /// The number of the pair.
    pub queue: usize,
    /// The pair's former worker.
    pub from: usize,
    /// The pair's worker now, or its helper.
    pub to: usize,
    /// The load of the pair on its former worker, in millionths of a core.
    pub load: u32,
    /// The reason of the move.
    pub reason: &'static str,
}

/// The state of a pair at the last step.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    busy_ns: u64,
    stays: u8,
}

pub(crate) struct Dispatcher {
    policy: Option<Dispatch>,
    /// True if each VIF's egress has its own context (Raj 2006 §4.3.1): its bursts pass in sequence
    /// on its own cores. Bursts from uplinks use all cores.
    own_contexts: bool,
    at_ns: u64,
    seen: HashMap<(PortId, usize), Seen>,
    log: VecDeque<Moved>,
    moves: u64,
}

impl Dispatcher {
    pub(crate) fn new(options: Options) -> Self {
        Self {
            policy: options.aim().map(|aim| Dispatch::new(aim, options.workers)),
            own_contexts: options.realization == Realization::Dedicated,
            at_ns: 0,
            seen: HashMap::new(),
            log: VecDeque::with_capacity(LOG_LEN),
            moves: 0,
        }
    }

    pub(crate) fn moved(&self) -> (Vec<Moved>, u64) {
        (self.log.iter().copied().collect(), self.moves)
    }

    pub(crate) fn step(&mut self, shared: &Shared, now_ns: u64) {
        if self.policy.is_none() {
            return;
        }
        let elapsed_ns = now_ns.saturating_sub(std::mem::replace(&mut self.at_ns, now_ns));
        let ports = shared.ports.load();
        let (pairs, mut queues) = self.measure(shared, &ports, elapsed_ns);
        let Some(policy) = self.policy.as_mut().filter(|_| elapsed_ns <= STEP_NS_MAX) else {
            return;
        };
        let before = queues.clone();
        let mut moves = Vec::new();
        policy.step(&mut queues, &mut moves);
        for (&(_, port, queue), now) in pairs.iter().zip(&queues) {
            if let Some(seen) = self.seen.get_mut(&(port, queue)) {
                seen.stays = now.stays;
            }
        }
        for Move { queue: index, to, reason } in moves {
            let (Some(&pair), Some(was)) = (pairs.get(index), before.get(index)) else { continue };
            if !make(shared, pair, to, reason) {
                continue;
            }
            let (_, port, queue) = pair;
            let (from, load, reason) = (was.worker, was.load, reason.as_str());
            self.moves += 1;
            self.log.truncate(LOG_LEN - 1);
            self.log.push_front(Moved { at_ns: now_ns, port, queue, from, to, load, reason });
        }
    }

    /// The pairs that were busy in the last `elapsed_ns`, and their loads.
    fn measure<'p>(
        &mut self,
        shared: &Shared,
        ports: &'p Ports,
        elapsed_ns: u64,
    ) -> (Vec<BusyPair<'p>>, Vec<Queue>) {
        let mut seen = HashMap::with_capacity(self.seen.len());
        let (mut pairs, mut queues) = (Vec::new(), Vec::new());
        for (index, slot) in ports.iter().enumerate() {
            let Some(slot) = slot else { continue };
            let port = u16::try_from(index).ok().and_then(PortId::new);
            for (queue, pair) in slot.pairs.iter().enumerate() {
                let (Some(port), Some(worker)) = (port, pair.worker()) else { continue };
                let busy_ns = pair.busy_ns.get();
                let before = self.seen.get(&(port, queue)).copied();
                let Seen { busy_ns: before_ns, stays } =
                    before.unwrap_or(Seen { busy_ns, stays: 0 });
                let took_ns = busy_ns.saturating_sub(before_ns);
                seen.insert((port, queue), Seen { busy_ns, stays });
                if took_ns > 0 {
                    let load = took_ns.saturating_mul(CORE.into()) / elapsed_ns.max(1);
                    let helper = pair.helper();
                    let load_max = if helper.is_some() { 2 * CORE } else { CORE };
                    let load = u32::try_from(load).unwrap_or(load_max).min(load_max);
                    pairs.push((slot, port, queue));
                    let alone = self.own_contexts && !slot.port.is_uplink();
                    queues.push(Queue { worker, load, stays, helper, alone });
                    shared.crew.nudge_helper(pair, QueueRef { port, queue, side: Side::Tx });
                }
            }
        }
        self.seen = seen;
        (pairs, queues)
    }
}

/// A pair of queues, with its slot and port.
type BusyPair<'p> = (&'p Slot, PortId, usize);

/// Makes a move; `false` if nothing changes.
fn make(shared: &Shared, (slot, port, queue): BusyPair<'_>, to: usize, reason: Reason) -> bool {
    match reason {
        Reason::Relieved | Reason::Joined => {
            let assigned = shared.crew.assign(&slot.pairs, port, queue, to);
            assigned
                .inspect_err(|error| {
                    tracing::warn!(%port, queue, worker = to, %error, "a queue keeps its worker");
                })
                .is_ok()
        }
        Reason::Helped | Reason::Alone => {
            let helper = (reason == Reason::Helped).then_some(to);
            set_helper(&shared.crew, slot, QueueRef { port, queue, side: Side::Tx }, helper)
        }
    }
}

/// See [`Engine::set_helper`](crate::Engine::set_helper).
pub(crate) fn set_helper(crew: &Crew, slot: &Slot, queue: QueueRef, helper: Option<usize>) -> bool {
    let Some(pair) = slot.pairs.get(queue.queue) else { return false };
    if helper.is_some_and(|_| !slot.port.share_tx(queue.queue, true)) {
        return false;
    }
    crew.set_helper(pair, queue, helper);
    helper.is_some() || slot.port.share_tx(queue.queue, false)
}
