//! Decides which worker serves which queue, by load (Zhang 2010: event channel dispatch).
//!
//! A [`Dispatch`] takes how busy each queue kept its worker, and says which queues move. There are two [aims](Aim):
//! equal load for all workers, or as few workers as suffice. A move must be worth its cost, and a queue that has moved
//! does not move again for a while. A queue that exceeds one worker gets a second one, if a worker is idle and the
//! queue is not marked as served alone.

use crate::attempt::HoldOff;
use crate::law::LAW;

/// A whole core, in the unit of loads (millionths).
pub const CORE: u32 = 1_000_000;

/// Load above which a worker is too busy: bursts would have to wait.
const HIGH: u32 = CORE / 5 * 4;
/// Sum of two workers' loads at or below which one of the two is superfluous.
const LOW: u32 = CORE / 2;
/// Smallest decrease of the larger of two loads that justifies a move.
const GAIN_MIN: u32 = CORE / 20;
/// Load below which a queue has no traffic worth moving.
const IDLE: u32 = CORE / 1000;
/// Load from which on a queue may exceed one worker.
const FULL: u32 = CORE / 10 * 9;
/// Largest load of a worker that can help with another's queue.
const SPARE: u32 = CORE / 10;
/// Steps for which a queue stays after a move.
const STAYS: u8 = 10;
/// Consecutive steps in which a worker must have been superfluous.
const UNDER_STEPS: u32 = 2;
/// Largest number of moves in one step.
const MOVES_MAX: usize = 16;

/// The aim of dispatching.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aim {
    /// All workers equally busy.
    Spread,
    /// As few workers as keep each below four fifths of a core. Where a worker exceeds that, loads
    /// are made equal first, since such a worker may have more to do than it shows.
    Pack,
}

/// A queue, and how busy it kept its worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    /// Number of the queue's worker.
    pub worker: usize,
    /// Time that the queue's bursts took, in millionths of a core, on both workers if it has two.
    pub load: u32,
    /// Steps for which the queue does not move again; [`Dispatch::step`] counts them down.
    pub stays: u8,
    /// Second worker that serves the queue.
    pub helper: Option<usize>,
    /// Forbids a second worker.
    pub alone: bool,
}

impl Queue {
    fn may_move(&self) -> bool {
        self.stays == 0 && self.helper.is_none()
    }
}

/// A change of a queue: another worker, a helper, or no helper any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Index of the queue in the slice given.
    pub queue: usize,
    /// Number of the new worker, or of the helper that the queue gains or loses.
    pub to: usize,
    /// Reason of the change.
    pub reason: Reason,
}

/// Reason why a queue moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The queue's worker was too busy, or much busier than another one.
    Relieved,
    /// The queue's worker and another one together had work for only one.
    Joined,
    /// The queue alone keeps its worker busy, so an idle worker helps.
    Helped,
    /// The queue's worker serves the queue alone again.
    Alone,
}

impl Reason {
    /// Returns the reason in words.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Relieved => "its worker was busier",
            Self::Joined => "one worker is enough for both",
            Self::Helped => "one worker is not enough for it",
            Self::Alone => "one worker is enough for it, or its helper has other work",
        }
    }
}

/// The policy of one switch, asked in regular steps.
#[derive(Debug)]
pub struct Dispatch {
    aim: Aim,
    workers: usize,
    /// Consecutive steps in which a worker was superfluous.
    under: u32,
    /// Back-off before queues are joined again, after a join that was wrong.
    hold_off: HoldOff,
    /// Steps since the last join.
    joined: u32,
    /// Load by worker, kept between steps.
    loads: Vec<u32>,
}

impl Dispatch {
    /// Returns a policy for `workers` workers.
    pub fn new(aim: Aim, workers: usize) -> Self {
        let workers = workers.max(1);
        let (hold_off, loads) = (HoldOff::default(), vec![0; workers]);
        Self { aim, workers, under: 0, hold_off, joined: u32::MAX, loads }
    }

    /// Makes one step: appends the queues that move to `moves`, from the load of each queue since the last step. Writes
    /// the new workers into `queues`.
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
        // An overloaded worker may have more to do than it shows, so loads are made equal first.
        if self.aim == Aim::Spread || self.loads.iter().any(|load| *load > HIGH) {
            while moves.len() < MOVES_MAX && self.relieve(queues, moves) {}
        }
        if self.aim == Aim::Pack {
            if moves.is_empty() {
                self.join(queues, moves);
            } else {
                self.under = 0;
                // The overload shows that a recent join was wrong.
                if std::mem::replace(&mut self.joined, u32::MAX) <= STAYS.into() {
                    self.hold_off.failed(&LAW);
                }
            }
        }
        self.help(queues, moves);
    }

    /// Gives a helper to a queue that exceeds its worker. Removes a helper if the queue does not
    /// need it any more, or if the helper is busy with other queues. Such queues keep their worker.
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
                    // Reserves the helper until its load is known, so that no other queue gets it.
                    self.loads[to] = self.loads[to].saturating_add(queue.load / 2);
                    queue.helper = Some(to);
                    (to, Reason::Helped)
                }
            };
            queue.stays = STAYS;
            moves.push(Move { queue: index, to, reason });
        }
    }

    /// Moves one queue away from the busiest worker, if the move is worth it.
    fn relieve(&mut self, queues: &mut [Queue], moves: &mut Vec<Move>) -> bool {
        let workers = 0..self.workers;
        let Some(from) = workers.clone().max_by_key(|worker| self.loads[*worker]) else {
            return false;
        };
        let before = self.loads[from];
        // (larger of the two loads after the move, queue, target worker)
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

    /// Moves all queues of the least busy worker to others, if all of them fit.
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

    /// Returns moves of all queues of the least busy worker to others; `None` if not all of the queues fit.
    fn fit(&self, queues: &[Queue]) -> Option<Vec<(usize, usize)>> {
        let in_use = |worker: &usize| self.loads[*worker] > IDLE;
        let from = (0..self.workers).filter(in_use).min_by_key(|worker| self.loads[*worker])?;
        let mut loads = self.loads.clone();
        let moving = |queue: &Queue| queue.worker == from && queue.load > IDLE;
        let mut fit = Vec::new();
        for (index, queue) in queues.iter().enumerate().filter(|(_, queue)| moving(queue)) {
            let others = (0..self.workers).filter(|worker| *worker != from && in_use(worker));
            // The tightest fit keeps other workers free.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PERCENT: u32 = CORE / 100;

    /// Builds queues from their workers and loads in percent of a core.
    fn queues(of: &[(usize, u32)]) -> Vec<Queue> {
        of.iter()
            .map(|&(worker, load)| Queue { worker, load: load * PERCENT, ..Queue::default() })
            .collect()
    }

    fn loads(workers: usize, queues: &[Queue]) -> Vec<u32> {
        let of = |worker| queues.iter().filter(move |queue| queue.worker == worker);
        (0..workers).map(|worker| of(worker).map(|queue| queue.load / PERCENT).sum()).collect()
    }

    /// Steps until nothing has moved for a while. Returns the number of moves.
    fn settle(dispatch: &mut Dispatch, queues: &mut [Queue]) -> usize {
        let mut moves = Vec::new();
        (0..100)
            .map(|_| {
                dispatch.step(queues, &mut moves);
                moves.len()
            })
            .sum()
    }

    #[test]
    fn a_worker_that_is_too_busy_is_relieved_in_one_step() {
        let mut queues = queues(&[(0, 25), (0, 25), (0, 25), (0, 25)]);
        let mut moves = Vec::new();
        Dispatch::new(Aim::Pack, 2).step(&mut queues, &mut moves);
        assert_eq!(loads(2, &queues), [50, 50]);
        assert!(moves.iter().all(|moved| moved.to == 1 && moved.reason == Reason::Relieved));
    }

    #[test]
    fn little_to_do_is_for_one_worker() {
        let mut queues = queues(&[(0, 10), (1, 10), (2, 5), (3, 0)]);
        let mut dispatch = Dispatch::new(Aim::Pack, 4);
        assert_eq!(settle(&mut dispatch, &mut queues), 2);
        let busy = loads(4, &queues).into_iter().filter(|load| *load > 0).count();
        assert_eq!(busy, 1, "{queues:?}");
        assert_eq!(queues[3].worker, 3, "what has no traffic stays");
    }

    #[test]
    fn loads_that_one_worker_can_just_bear_stay_there() {
        let mut queues = queues(&[(0, 40), (0, 35)]);
        assert_eq!(settle(&mut Dispatch::new(Aim::Pack, 4), &mut queues), 0);
        // Two queues that together exceed half a core stay apart.
        let mut queues = self::queues(&[(0, 30), (1, 30)]);
        assert_eq!(settle(&mut Dispatch::new(Aim::Pack, 4), &mut queues), 0);
    }

    #[test]
    fn one_busy_queue_is_not_sent_to_and_fro() {
        for aim in [Aim::Spread, Aim::Pack] {
            let mut queues = queues(&[(0, 89), (1, 0)]);
            assert_eq!(settle(&mut Dispatch::new(aim, 2), &mut queues), 0);
            // The smaller queue leaves the shared worker if its move does less harm.
            let mut queues = self::queues(&[(0, 85), (0, 15)]);
            settle(&mut Dispatch::new(aim, 2), &mut queues);
            assert_ne!(queues[0].worker, queues[1].worker);
        }
    }

    #[test]
    fn a_queue_that_is_more_than_a_worker_can_do_is_helped_for_as_long_as_that_is_so() {
        for aim in [Aim::Spread, Aim::Pack] {
            let mut dispatch = Dispatch::new(aim, 3);
            let mut queues = queues(&[(0, 95), (1, 15), (2, 0)]);
            let mut moves = Vec::new();
            dispatch.step(&mut queues, &mut moves);
            assert_eq!(moves, [Move { queue: 0, to: 2, reason: Reason::Helped }]);
            // Both workers are busy with the queue.
            queues[0].load = 170 * PERCENT;
            assert_eq!(settle(&mut dispatch, &mut queues), 0);
            assert_eq!((queues[0].worker, queues[0].helper), (0, Some(2)));
            queues[0].load = 60 * PERCENT;
            dispatch.step(&mut queues, &mut moves);
            assert!(moves.contains(&Move { queue: 0, to: 2, reason: Reason::Alone }));
            assert_eq!((queues[0].worker, queues[0].helper), (0, None));
        }
    }

    #[test]
    fn there_is_no_help_from_who_has_work() {
        let mut queues = queues(&[(0, 100), (1, 30)]);
        assert_eq!(settle(&mut Dispatch::new(Aim::Spread, 2), &mut queues), 0);
        // A helper's own queue comes first when it gets busy.
        let mut queues = self::queues(&[(0, 100), (1, 5)]);
        let mut dispatch = Dispatch::new(Aim::Spread, 2);
        assert_eq!(settle(&mut dispatch, &mut queues), 1);
        queues[1].load = 60 * PERCENT;
        dispatch.step(&mut queues, &mut Vec::new());
        assert_eq!(queues[0].helper, None);
    }

    #[test]
    fn two_queues_do_not_get_the_same_helper() {
        let mut queues = queues(&[(0, 100), (1, 100), (2, 0)]);
        let mut moves = Vec::new();
        Dispatch::new(Aim::Pack, 3).step(&mut queues, &mut moves);
        assert_eq!(moves.len(), 1, "{moves:?}");
    }

    #[test]
    fn spreading_makes_loads_equal() {
        let mut queues = queues(&[(0, 20), (0, 20), (0, 10), (0, 10), (1, 0), (2, 0)]);
        settle(&mut Dispatch::new(Aim::Spread, 3), &mut queues);
        assert_eq!(loads(3, &queues), [20, 20, 20]);
    }

    #[test]
    fn joining_that_was_wrong_is_tried_more_and_more_rarely() {
        // Two workers seem one too many, and one worker alone is too busy.
        let mut dispatch = Dispatch::new(Aim::Pack, 2);
        let mut queues = queues(&[(0, 20), (1, 20)]);
        let (mut moves, mut joined) = (Vec::new(), Vec::new());
        for step in 0..2_000 {
            let together = queues[0].worker == queues[1].worker;
            queues
                .iter_mut()
                .for_each(|queue| queue.load = PERCENT * if together { 50 } else { 20 });
            dispatch.step(&mut queues, &mut moves);
            if moves.iter().any(|moved| moved.reason == Reason::Joined) {
                joined.push(step);
            }
        }
        assert!((3..15).contains(&joined.len()), "{joined:?}");
        let gaps: Vec<_> = joined.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(gaps.is_sorted() && gaps.last() > gaps.first(), "{gaps:?}");
    }

    #[test]
    fn workers_that_there_are_not_are_not_counted_on() {
        let mut queues = queues(&[(7, 10)]);
        let mut moves = Vec::new();
        Dispatch::new(Aim::Spread, 2).step(&mut queues, &mut moves);
        assert_eq!(queues[0].worker, 1);
    }

    proptest! {
        #[test]
        fn what_is_constant_comes_to_rest(
            of in prop::collection::vec((0usize..4, 0u32..60), 0..24),
            pack in any::<bool>(),
        ) {
            let aim = if pack { Aim::Pack } else { Aim::Spread };
            let mut dispatch = Dispatch::new(aim, 4);
            let mut queues = queues(&of);
            settle(&mut dispatch, &mut queues);
            settle(&mut dispatch, &mut queues);
            prop_assert_eq!(settle(&mut dispatch, &mut queues), 0, "{:?}", queues);
        }

        #[test]
        fn no_worker_is_left_busier_than_the_busiest_was(
            of in prop::collection::vec((0usize..4, 0u32..60), 0..24),
            pack in any::<bool>(),
        ) {
            let aim = if pack { Aim::Pack } else { Aim::Spread };
            let mut dispatch = Dispatch::new(aim, 4);
            let mut queues = queues(&of);
            let most = |queues: &[Queue]| loads(4, queues).into_iter().max().unwrap_or(0);
            let before = most(&queues);
            settle(&mut dispatch, &mut queues);
            prop_assert!(most(&queues) <= before.max(LOW / PERCENT));
        }

        #[test]
        fn loads_that_sway_move_little(
            of in prop::collection::vec((0usize..4, 1u32..15), 1..16),
            sway in prop::collection::vec(95u32..=105, 16..32),
        ) {
            let mut dispatch = Dispatch::new(Aim::Spread, 4);
            let mut queues = queues(&of);
            settle(&mut dispatch, &mut queues);
            let (mut moves, mut moved) = (Vec::new(), 0);
            for step in 0..1_000 {
                for (index, (queue, (_, load))) in queues.iter_mut().zip(&of).enumerate() {
                    queue.load = load * PERCENT / 100 * sway[(step + 7 * index) % sway.len()];
                }
                dispatch.step(&mut queues, &mut moves);
                moved += moves.len();
            }
            prop_assert!(moved <= 20, "{moved} moves in 1,000 steps");
        }
    }

    #[test]
    fn a_queue_that_is_to_be_served_by_itself_gets_no_helper() {
        for aim in [Aim::Spread, Aim::Pack] {
            let mut queues = queues(&[(0, 100), (1, 1)]);
            queues[0].alone = true;
            let mut dispatch = Dispatch::new(aim, 3);
            settle(&mut dispatch, &mut queues);
            assert_eq!(queues[0].helper, None);
            queues[0].alone = false;
            settle(&mut dispatch, &mut queues);
            assert!(queues[0].helper.is_some(), "else it would have had one");
        }
    }
}
