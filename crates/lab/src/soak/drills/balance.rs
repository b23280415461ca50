//! Assignment of queues to workers: moves are worth it, a moved queue stays, and everything
//! settles.

use weir_policy::dispatch::{Aim, CORE, Dispatch, Move, Queue, Reason};

use super::Drill;
use crate::random::Random;

/// Rounds with constant loads at the end.
const STEADY_LOOKS: u32 = 400;
/// The last of these rounds, in which no queue moves any more.
const STILL_LOOKS: u32 = 50;
/// Rounds for which a moved queue stays.
const STAYS: u64 = 10;

/// The rule that moves queues.
pub(super) trait Rule {
    /// Takes one look. Moved queues have their new worker in `queues`.
    fn look(&mut self, queues: &mut [Queue], moves: &mut Vec<Move>);
}

impl Rule for Dispatch {
    fn look(&mut self, queues: &mut [Queue], moves: &mut Vec<Move>) {
        self.step(queues, moves);
    }
}

/// Workers and queues.
#[derive(Clone, Debug)]
pub(crate) struct Balance {
    aim: Aim,
    workers: usize,
    queues: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// Sets how busy a queue keeps its worker from now on (millionths of a core).
    Load { queue: usize, load: u32 },
    /// Asks the policy.
    Look,
}

impl Drill for Balance {
    type Step = Step;
    const NAME: &'static str = "dispatch of queues to workers";

    fn draw(random: &mut Random) -> Self {
        let aim = [Aim::Spread, Aim::Pack][random.below(2) as usize]; // below 2
        let (workers, queues) = (1 + random.below(4), 1 + random.below(12));
        Self { aim, workers: workers as usize, queues: queues as usize } // small
    }

    fn step(&self, random: &mut Random) -> Step {
        if random.below(3) > 0 {
            return Step::Look;
        }
        // Small and large loads equally often.
        let most = 1 << random.below(20);
        let load = (random.below(most) as u32).min(CORE); // below 2^20
        Step::Load { queue: random.below(self.queues as u64) as usize, load } // below it
    }

    fn play(&self, steps: &[Step]) -> Result<(), String> {
        self.play_with(steps, &mut Dispatch::new(self.aim, self.workers))
    }
}

/// State of workers and queues.
struct State {
    queues: Vec<Queue>,
    moves: Vec<Move>,
    looks: u64,
    /// Look at which each queue was last moved.
    moved: Vec<Option<u64>>,
}

impl Balance {
    fn play_with(&self, steps: &[Step], rule: &mut dyn Rule) -> Result<(), String> {
        let queues =
            (0..self.queues).map(|at| Queue { worker: at % self.workers, ..Queue::default() });
        let mut state = State {
            queues: queues.collect(),
            moves: Vec::new(),
            looks: 0,
            moved: vec![None; self.queues],
        };
        for step in steps {
            match *step {
                Step::Load { queue, load } => state.queues[queue].load = load,
                Step::Look => self.look(&mut state, rule)?,
            }
        }
        for look in 0..STEADY_LOOKS {
            self.look(&mut state, rule)?;
            if look >= STEADY_LOOKS - STILL_LOOKS
                && let Some(Move { queue, to, reason }) = state.moves.first()
            {
                let why = reason.as_str();
                return Err(format!(
                    "loads are steady, and queue {queue} still goes to {to}: {why}"
                ));
            }
        }
        Ok(())
    }

    /// Takes one look, and checks it.
    fn look(&self, state: &mut State, rule: &mut dyn Rule) -> Result<(), String> {
        let State { queues, moves, looks, moved } = state;
        *looks += 1;
        let before = queues.clone();
        let mut loads = vec![0u64; self.workers];
        for queue in &before {
            let load = u64::from(queue.load);
            let helped = queue.helper.map_or(0, |_| load / 2);
            loads[queue.worker] += load - helped;
            queue.helper.into_iter().for_each(|helper| loads[helper] += helped);
        }
        rule.look(queues, moves);
        let mut workers: Vec<_> = before.iter().map(|queue| queue.worker).collect();
        let mut helpers: Vec<_> = before.iter().map(|queue| queue.helper).collect();
        for Move { queue, to, reason } in moves.iter().copied() {
            if queue >= self.queues || to >= self.workers {
                return Err(format!("queue {queue} goes to worker {to}, which is not there"));
            }
            if moved[queue].is_some_and(|at| *looks - at < STAYS) {
                return Err(format!("queue {queue} moves again after less than {STAYS} looks"));
            }
            moved[queue] = Some(*looks);
            match reason {
                Reason::Helped if helpers[queue].is_some() || workers[queue] == to => {
                    return Err(format!(
                        "queue {queue} is to be helped by {to}, which it can't be"
                    ));
                }
                Reason::Helped => helpers[queue] = Some(to),
                Reason::Alone if helpers[queue] != Some(to) => {
                    return Err(format!("queue {queue} loses {to}, which does not help it"));
                }
                Reason::Alone => helpers[queue] = None,
                _ => {}
            }
            if matches!(reason, Reason::Helped | Reason::Alone) {
                continue;
            }
            let from = std::mem::replace(&mut workers[queue], to);
            let load = u64::from(before[queue].load);
            if reason == Reason::Relieved && loads[to] + load >= loads[from] {
                return Err(format!("queue {queue} goes to worker {to}, which is busier then"));
            }
            loads[from] -= load;
            loads[to] += load;
            if reason == Reason::Joined && loads[to] > u64::from(CORE) {
                return Err(format!("queue {queue} does not fit on worker {to}"));
            }
        }
        let said = workers.into_iter().zip(helpers);
        match queues.iter().map(|queue| (queue.worker, queue.helper)).eq(said) {
            true => Ok(()),
            false => Err("queues have other workers than the moves say".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::fails;
    use super::*;

    /// Chooses a queue and its new worker.
    type To = fn(&[Queue]) -> Option<(usize, usize)>;

    struct Double(To);

    impl Rule for Double {
        fn look(&mut self, queues: &mut [Queue], moves: &mut Vec<Move>) {
            moves.clear();
            if let Some((queue, to)) = (self.0)(queues) {
                queues[queue].worker = to;
                moves.push(Move { queue, to, reason: Reason::Relieved });
            }
        }
    }

    fn found(to: To) -> String {
        let play = |drill: &Balance, steps: &[Step]| drill.play_with(steps, &mut Double(to));
        fails(50, play).expect("a rule with a fault is found")
    }

    #[test]
    fn a_worker_that_is_not_there_is_found() {
        let error = found(|_| Some((0, 4)));
        assert!(error.contains("which is not there"), "{error}");
    }

    #[test]
    fn a_move_that_makes_things_worse_is_found() {
        let error = found(|queues| Some((0, queues[0].worker)));
        assert!(error.contains("which is busier then"), "{error}");
    }

    #[test]
    fn a_queue_that_never_rests_is_found() {
        // A faulty policy: it moves a queue between two workers whenever the move looks worth it.
        let error = found(|queues| {
            let busiest = queues.iter().map(|queue| queue.worker).max()?;
            let of = |worker| queues.iter().filter(move |queue| queue.worker == worker);
            let load = |worker| of(worker).map(|queue| u64::from(queue.load)).sum::<u64>();
            let first = queues.first()?;
            let to = if first.worker == 0 { busiest } else { 0 };
            let better = load(to) + u64::from(first.load) < load(first.worker);
            better.then_some((0, to))
        });
        assert!(error.contains("moves again"), "{error}");
    }
}
