//! Receive queues of flows: no frame goes into a queue while another frame of its flow waits in
//! another queue.

use std::cell::RefCell;
use std::collections::VecDeque;

use weir_limits::{INDIRECTION_LEN, STEERING_FLOW_IDLE_SECS, STEERING_FLOWS_MAX};
use weir_policy::steering::{Mark, Receiver, Steering, Visit};

use super::Drill;
use crate::random::Random;

const FLOWS_PER_WORKER: usize = 4;
const BURST: usize = 6;
/// Looks after which an impossible change is given up.
const LOOKS_MAX: u32 = 3;

/// The rule that chooses queues.
pub(super) trait Rule {
    fn queue_for(&self, hash: u32, visit: &mut Visit, rings: &Rings) -> usize;
    fn leave(&self, visit: Visit, rings: &Rings);
    fn record(&self, hash: u32, queue: usize, now_secs: u32, rings: &Rings);
    fn begin_move(&self, entry: usize, queue: usize, rings: &Rings);
    fn look_after(&self, rings: &Rings);
}

impl Rule for Steering {
    fn queue_for(&self, hash: u32, visit: &mut Visit, rings: &Rings) -> usize {
        Self::queue_for(self, hash, visit, rings)
    }

    fn leave(&self, visit: Visit, rings: &Rings) {
        Self::leave(self, visit, rings);
    }

    fn record(&self, hash: u32, queue: usize, now_secs: u32, rings: &Rings) {
        Self::record(self, hash, queue, now_secs, rings);
    }

    fn begin_move(&self, entry: usize, queue: usize, rings: &Rings) {
        Self::begin_move(self, entry, queue, rings);
    }

    fn look_after(&self, rings: &Rings) {
        Self::look_after(self, LOOKS_MAX, rings);
    }
}

/// Receive queues, and workers that place frames in them.
#[derive(Clone, Debug)]
pub(crate) struct Steer {
    queues: usize,
    workers: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// A worker gets a frame of one of its flows.
    LookUp { worker: usize, flow: usize },
    /// The worker places its frames for a queue, or parks all its frames because the queue is full.
    Place { worker: usize, queue: usize, parks: bool },
    /// The worker places all its frames, and its burst ends.
    Leave { worker: usize },
    /// A driver takes frames, and weir learns of it or not.
    Take { queue: usize, frames: usize, shows: bool },
    /// An entry of the indirection table moves.
    Move { entry: usize, queue: usize },
    /// The guest sends a flow on a queue.
    Record { flow: usize, queue: usize },
    /// Flows become idle.
    Wait,
    /// Changes that are safe now are made.
    LookAfter,
}

impl Drill for Steer {
    type Step = Step;
    const NAME: &'static str = "steering of flows to receive queues";

    fn draw(random: &mut Random) -> Self {
        let (queues, workers) = (2 + random.below(3), 1 + random.below(3));
        Self { queues: queues as usize, workers: workers as usize } // small
    }

    fn step(&self, random: &mut Random) -> Step {
        let mut below = |bound: usize| random.below(bound as u64) as usize; // below `bound`
        let (worker, queue) = (below(self.workers), below(self.queues));
        match below(40) {
            0..12 => Step::LookUp { worker, flow: below(FLOWS_PER_WORKER) },
            12..20 => Step::Place { worker, queue, parks: below(10) == 0 },
            20..25 => Step::Leave { worker },
            25..32 => Step::Take { queue, frames: below(6), shows: below(2) == 0 },
            32..35 => Step::Move { entry: below(5), queue },
            35..38 => Step::Record { flow: below(self.workers * FLOWS_PER_WORKER), queue },
            38 => Step::Wait,
            _ => Step::LookAfter,
        }
    }

    fn play(&self, steps: &[Step]) -> Result<(), String> {
        let steering = Steering::new(self.queues).map_err(|error| error.to_string())?;
        self.play_with(steps, &steering)
    }
}

impl Steer {
    fn play_with(&self, steps: &[Step], rule: &dyn Rule) -> Result<(), String> {
        let mut world = World::new(self);
        steps.iter().try_for_each(|step| world.step(rule, *step))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Frame {
    flow: usize,
    number: u64,
}

#[derive(Clone, Debug, Default)]
struct Ring {
    placed: Vec<Frame>,
    taken: usize,
    /// Taken frames, as far as weir can see.
    seen: u64,
}

#[derive(Debug, Default)]
pub(super) struct Rings(RefCell<Vec<Ring>>);

impl Receiver for Rings {
    fn mark(&self, queue: usize) -> Mark {
        let placed = self.0.borrow().get(queue).map_or(0, |ring| ring.placed.len() as u64);
        Mark { placed, event: None }
    }

    fn has_taken(&self, queue: usize, placed: u64, _before: Mark) -> bool {
        self.0.borrow().get(queue).is_some_and(|ring| ring.seen >= placed)
    }
}

/// Returns the hash of a flow. Some flows share an entry with another worker's flow, and some share
/// a slot of the flow table.
fn hash(flow: usize) -> u32 {
    let (worker, number) = (flow / FLOWS_PER_WORKER, flow % FLOWS_PER_WORKER);
    let apart = if number < 2 { INDIRECTION_LEN } else { STEERING_FLOWS_MAX };
    (number + worker * apart) as u32 // a few flows
}

#[derive(Debug, Default)]
struct Worker {
    visit: Option<Visit>,
    /// Frames of the present burst, by queue.
    lists: Vec<VecDeque<Frame>>,
    frames: usize,
    /// Frames that found a queue full, to be looked up again before others.
    parked: VecDeque<Frame>,
}

#[derive(Debug)]
struct World {
    rings: Rings,
    workers: Vec<Worker>,
    /// The number of each flow's next frame, and the place of its last frame.
    next: Vec<u64>,
    last: Vec<Option<(usize, usize)>>,
    now_secs: u32,
}

impl World {
    fn new(drill: &Steer) -> Self {
        let (queues, flows) = (drill.queues, drill.workers * FLOWS_PER_WORKER);
        let worker = || Worker { lists: vec![VecDeque::new(); queues], ..Worker::default() };
        Self {
            rings: Rings(RefCell::new(vec![Ring::default(); queues])),
            workers: (0..drill.workers).map(|_| worker()).collect(),
            next: vec![0; flows],
            last: vec![None; flows],
            now_secs: 0,
        }
    }

    fn step(&mut self, rule: &dyn Rule, step: Step) -> Result<(), String> {
        match step {
            Step::LookUp { worker, flow } => return self.look_up(rule, worker, flow),
            Step::Place { worker, parks: true, .. } => self.park(worker),
            Step::Place { worker, queue, .. } => return self.place(worker, queue),
            Step::Leave { worker } => {
                let queues = self.workers[worker].lists.len();
                (0..queues).try_for_each(|queue| self.place(worker, queue))?;
                if let Some(visit) = self.workers[worker].visit.take() {
                    rule.leave(visit, &self.rings);
                }
                self.workers[worker].frames = 0;
            }
            Step::Take { queue, frames, shows } => {
                let ring = &mut self.rings.0.borrow_mut()[queue];
                ring.taken = ring.placed.len().min(ring.taken + frames);
                if shows {
                    ring.seen = ring.taken as u64;
                }
            }
            Step::Move { entry, queue } => rule.begin_move(entry, queue, &self.rings),
            Step::Record { flow, queue } => {
                rule.record(hash(flow), queue, self.now_secs, &self.rings);
            }
            Step::Wait => self.now_secs += STEERING_FLOW_IDLE_SECS,
            Step::LookAfter => rule.look_after(&self.rings),
        }
        Ok(())
    }

    fn look_up(&mut self, rule: &dyn Rule, worker: usize, flow: usize) -> Result<(), String> {
        let flow = worker * FLOWS_PER_WORKER + flow;
        let Worker { visit, lists, frames, parked } = &mut self.workers[worker];
        if *frames == BURST {
            return Ok(());
        }
        let frame = parked.pop_front().unwrap_or_else(|| {
            let number = self.next[flow];
            self.next[flow] += 1;
            Frame { flow, number }
        });
        let visit = visit.get_or_insert_default();
        let queue = rule.queue_for(hash(frame.flow), visit, &self.rings);
        let list = lists.get_mut(queue).ok_or_else(|| format!("there is no queue {queue}"))?;
        list.push_back(frame);
        *frames += 1;
        Ok(())
    }

    /// Parks the rest of the burst, before earlier waiting frames, because a queue is full.
    fn park(&mut self, worker: usize) {
        let Worker { lists, parked, .. } = &mut self.workers[worker];
        let mut left: Vec<_> = lists.iter_mut().flat_map(std::mem::take).collect();
        left.sort_by_key(|frame| frame.number);
        left.into_iter().rev().for_each(|frame| parked.push_front(frame));
    }

    fn place(&mut self, worker: usize, queue: usize) -> Result<(), String> {
        let mut rings = self.rings.0.borrow_mut();
        for frame in std::mem::take(&mut self.workers[worker].lists[queue]) {
            let Frame { flow, number } = frame;
            if let Some((before, position)) = self.last[flow] {
                if before != queue && rings[before].taken <= position {
                    return Err(format!(
                        "frame {number} of flow {flow} goes into queue {queue}, and one before it waits in {before}"
                    ));
                }
                let before = rings[before].placed[position].number;
                if number != before + 1 {
                    return Err(format!("frame {number} of flow {flow} comes after {before}"));
                }
            }
            self.last[flow] = Some((queue, rings[queue].placed.len()));
            rings[queue].placed.push(frame);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::fails;
    use super::*;

    /// A faulty rule that moves entries at once.
    struct AtOnce(RefCell<[usize; INDIRECTION_LEN]>);

    impl Rule for AtOnce {
        fn queue_for(&self, hash: u32, _: &mut Visit, _: &Rings) -> usize {
            self.0.borrow()[hash as usize % INDIRECTION_LEN]
        }
        fn leave(&self, _: Visit, _: &Rings) {}
        fn record(&self, _: u32, _: usize, _: u32, _: &Rings) {}
        fn begin_move(&self, entry: usize, queue: usize, _: &Rings) {
            self.0.borrow_mut()[entry] = queue;
        }
        fn look_after(&self, _: &Rings) {}
    }

    #[test]
    fn a_rule_that_moves_flows_at_once_is_found() {
        let play = |drill: &Steer, steps: &[Step]| {
            drill.play_with(steps, &AtOnce(RefCell::new([0; INDIRECTION_LEN])))
        };
        let error = fails(50, play).expect("it is found");
        assert!(error.contains("waits in"), "{error}");
    }
}
