//! Which worker serves which queue, by load (Zhang 2010: event channel dispatch).
//!
//! Given how busy each queue kept its worker, a [`Dispatch`] says which queues move. There are two
//! [aims](Aim): the same load for all workers, or as few workers as suffice. Either way
//! a move must be worth it, and a queue that has moved stays for a while. A queue that alone is more
//! than a worker can do gets a second one, if one is idle, unless it is to be served by itself.

#[cfg(test)]
mod tests;

use crate::hold_off::HoldOff;
use crate::law::LAW;

/// A whole core, in the unit of loads: millionths.
pub const CORE: u32 = 1_000_000;

/// Above this a worker is too busy: what comes in a burst would wait.
const HIGH: u32 = CORE / 5 * 4;
/// Two workers whose loads fit into this are one too many.
const LOW: u32 = CORE / 2;
/// A move must make the larger of two loads smaller by this.
const GAIN_MIN: u32 = CORE / 20;
/// A queue that keeps its worker less busy than this has no traffic worth moving.
const IDLE: u32 = CORE / 1000;
/// A queue that keeps its worker so busy may have more than one can do.
const FULL: u32 = CORE / 10 * 9;
/// A worker with no more than this to do has time for another's queue.
const SPARE: u32 = CORE / 10;
/// Steps for which a queue stays where it was moved to.
const STAYS: u8 = 10;
/// Steps in a row in which two workers must have been one too many.
const UNDER_STEPS: u32 = 2;
/// Moves of one step.
const MOVES_MAX: usize = 16;

/// What dispatching is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aim {
    /// All workers equally busy.
    Spread,
    /// As few workers as keep each below four fifths of a core. Where one is above it, all share its work
    /// alike at first: it may have more to do than it shows.
    Pack,
}

/// A queue, and how busy it kept the worker that it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    /// Its worker's number.
    pub worker: usize,
    /// Time that its bursts took, in millionths of a core; of both its workers where it has two.
    pub load: u32,
    /// Steps for which it is not moved again; [`Dispatch::step`] counts them.
    pub stays: u8,
    /// A second worker that serves it.
    pub helper: Option<usize>,
    /// It is to have no other worker beside its own.
    pub alone: bool,
}

impl Queue {
    fn may_move(&self) -> bool {
        self.stays == 0 && self.helper.is_none()
    }
}

/// A queue is to have another worker, or a helper, or none any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Its index among those given.
    pub queue: usize,
    /// The worker's number; of the helper where it gets or loses one.
    pub to: usize,
    /// Why.
    pub reason: Reason,
}

/// Why a queue moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Its worker was too busy, or much busier than another.
    Relieved,
    /// Its worker and another were one too many.
    Joined,
    /// It keeps its worker busy by itself: another one, which is idle, is to serve it as well.
    Helped,
    /// Its worker is to serve it alone again.
    Alone,
}

impl Reason {
    /// In words.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Relieved => "its worker was busier",
            Self::Joined => "one worker is enough for both",
            Self::Helped => "one worker is not enough for it",
            Self::Alone => "one worker is enough for it, or its helper has other work",
        }
    }
}

/// The policy of one switch. It is asked in regular steps.
#[derive(Debug)]
pub struct Dispatch {
    aim: Aim,
    workers: usize,
    /// Steps in a row in which two workers were one too many.
    under: u32,
    /// Waiting longer before queues are joined, after a time when that was wrong.
    hold_off: HoldOff,
    /// Steps since queues were joined last.
    joined: u32,
    /// By worker; kept between steps.
    loads: Vec<u32>,
}

impl Dispatch {
    /// For `workers` workers.
    pub fn new(aim: Aim, workers: usize) -> Self {
        let workers = workers.max(1);
        let (hold_off, loads) = (HoldOff::default(), vec![0; workers]);
        Self { aim, workers, under: 0, hold_off, joined: u32::MAX, loads }
    }

    /// One step: what moves, given how busy each queue was since the last. Queues that move get their new
    /// worker in `queues`.
    pub fn step(&mut self, queues: &mut [Queue], moves: &mut Vec<Move>) {
        moves.clear();
        self.joined = self.joined.saturating_add(1);
        self.loads.fill(0);
        for queue in &mut *queues {
            queue.stays = queue.stays.saturating_sub(1);
            queue.worker = queue.worker.min(self.workers - 1);
            let helper = queue.helper.filter(|helper| *helper < self.workers);
            let halves = if helper.is_some() { 2 } else { 1 };
            for worker in [Some(queue.worker), helper].into_iter().flatten() {
                let load = &mut self.loads[worker];
                *load = load.saturating_add(queue.load / halves);
            }
        }
        // A worker that is too busy may have more to do than it shows: loads are made equal then.
        if self.aim == Aim::Spread || self.loads.iter().any(|load| *load > HIGH) {
            while moves.len() < MOVES_MAX && self.relieve(queues, moves) {}
        }
        if self.aim == Aim::Pack {
            if moves.is_empty() {
                self.join(queues, moves);
            } else {
                self.under = 0;
                // What was joined a short while ago should not have been.
                if std::mem::replace(&mut self.joined, u32::MAX) <= STAYS.into() {
                    self.hold_off.failed(&LAW);
                }
            }
        }
        self.help(queues, moves);
    }

    /// Gives a helper to a queue that is more than its worker can do, and takes one away that is not needed
    /// any more or has enough to do without it. Such queues keep the worker that they have.
    fn help(&mut self, queues: &mut [Queue], moves: &mut Vec<Move>) {
        for (index, queue) in queues.iter_mut().enumerate().filter(|(_, queue)| queue.stays == 0) {
            let (to, reason) = match queue.helper {
                Some(helper) => {
                    let others =
                        self.loads.get(helper).map(|load| load.saturating_sub(queue.load / 2));
                    if queue.load > HIGH && others.is_some_and(|others| others <= LOW) {
                        continue;
                    }
                    queue.helper = None;
                    (helper, Reason::Alone)
                }
                None if queue.load < FULL || queue.alone => continue,
                None => {
                    let others = (0..self.workers).filter(|worker| *worker != queue.worker);
                    let idlest = others.min_by_key(|worker| self.loads[*worker]);
                    let Some(to) = idlest.filter(|to| self.loads[*to] <= SPARE) else { continue };
                    // Until its load is known: nobody else is to have the same helper.
                    self.loads[to] = self.loads[to].saturating_add(queue.load / 2);
                    queue.helper = Some(to);
                    (to, Reason::Helped)
                }
            };
            queue.stays = STAYS;
            moves.push(Move { queue: index, to, reason });
        }
    }

    /// Moves one queue away from the busiest worker, if that is worth it.
    fn relieve(&mut self, queues: &mut [Queue], moves: &mut Vec<Move>) -> bool {
        let workers = 0..self.workers;
        let Some(from) = workers.clone().max_by_key(|worker| self.loads[*worker]) else {
            return false;
        };
        let before = self.loads[from];
        // (the larger of the two loads after it, queue, to)
        let mut best: Option<(u32, usize, usize)> = None;
        for to in workers.filter(|to| *to != from) {
            let candidates = queues
                .iter()
                .enumerate()
                .filter(|(_, queue)| queue.worker == from && queue.load > IDLE && queue.may_move());
            for (index, queue) in candidates {
                let after = (before - queue.load).max(self.loads[to].saturating_add(queue.load));
                if best.is_none_or(|(least, ..)| after < least) {
                    best = Some((after, index, to));
                }
            }
        }
        match best {
            Some((after, index, to)) if after.saturating_add(GAIN_MIN) <= before => {
                self.assign(queues, index, to, Reason::Relieved, moves);
                true
            }
            _ => false,
        }
    }

    /// Gives the queues of the worker with the least to do to others, where all of them fit.
    fn join(&mut self, queues: &mut [Queue], moves: &mut Vec<Move>) {
        let Some(fit) = self.fit(queues) else {
            self.under = 0;
            return;
        };
        self.under += 1;
        if self.under < UNDER_STEPS {
            return;
        }
        if self.hold_off.left > 0 {
            self.hold_off.tick();
            return;
        }
        self.under = 0;
        self.joined = 0;
        for (index, to) in fit {
            self.assign(queues, index, to, Reason::Joined, moves);
        }
    }

    /// Where the queues of the worker with the least to do could go.
    fn fit(&self, queues: &[Queue]) -> Option<Vec<(usize, usize)>> {
        let in_use = |worker: &usize| self.loads[*worker] > IDLE;
        let from = (0..self.workers).filter(in_use).min_by_key(|worker| self.loads[*worker])?;
        let mut loads = self.loads.clone();
        let moving = |queue: &Queue| queue.worker == from && queue.load > IDLE;
        let mut fit = Vec::new();
        for (index, queue) in queues.iter().enumerate().filter(|(_, queue)| moving(queue)) {
            let others = (0..self.workers).filter(|worker| *worker != from && in_use(worker));
            // Where there is the least room that is enough, so that others stay free.
            let to = others
                .filter(|worker| loads[*worker].saturating_add(queue.load) <= LOW)
                .max_by_key(|worker| loads[*worker])?;
            if !queue.may_move() || fit.len() == MOVES_MAX {
                return None;
            }
            loads[to] += queue.load;
            fit.push((index, to));
        }
        (!fit.is_empty()).then_some(fit)
    }

    fn assign(
        &mut self,
        queues: &mut [Queue],
        index: usize,
        to: usize,
        reason: Reason,
        moves: &mut Vec<Move>,
    ) {
        let queue = &mut queues[index];
        self.loads[queue.worker] -= queue.load;
        self.loads[to] = self.loads[to].saturating_add(queue.load);
        (queue.worker, queue.stays) = (to, STAYS);
        moves.push(Move { queue: index, to, reason });
    }
}
