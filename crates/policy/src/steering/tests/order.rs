//! A model of workers, rings and drivers under constant moves: each step is a random choice, so
//! that all overlaps of bursts occur. The tests check that no frame goes into a queue while another
//! frame of its flow waits in another queue.

use std::cell::RefCell;
use std::collections::VecDeque;

use proptest::prelude::*;

use super::super::*;

const QUEUES: usize = 3;
const WORKERS: usize = 3;
const FLOWS_PER_WORKER: usize = 4;
const BURST: usize = 6;

/// A frame of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Frame {
    flow: usize,
    seq: u64,
}

#[derive(Default)]
struct Ring {
    placed: Vec<Frame>,
    taken: usize,
    /// Taken frames, as far as weir can see.
    seen: u64,
}

#[derive(Default)]
struct Rings(RefCell<[Ring; QUEUES]>);

impl Receiver for Rings {
    fn mark(&self, queue: usize) -> Mark {
        Mark { placed: self.0.borrow()[queue].placed.len() as u64, event: None }
    }

    fn has_taken(&self, queue: usize, placed: u64, _before: Mark) -> bool {
        self.0.borrow()[queue].seen >= placed
    }
}

/// Returns the hash of a flow. Some flows share an entry with another worker's flow, and some share
/// a slot of the flow table.
fn hash(flow: usize) -> u32 {
    let (worker, number) = (flow / FLOWS_PER_WORKER, flow % FLOWS_PER_WORKER);
    match number {
        0 | 1 => (number + worker * INDIRECTION_LEN) as u32,
        _ => (number + worker * weir_limits::STEERING_FLOWS_MAX) as u32,
    }
}

#[derive(Default)]
struct Worker {
    visit: Option<Visit>,
    /// Frames of the present burst, by queue.
    lists: [VecDeque<Frame>; QUEUES],
    frames: usize,
    /// Frames that found a queue full, to be looked up again before others.
    parked: VecDeque<Frame>,
}

#[derive(Default)]
struct World {
    rings: Rings,
    workers: [Worker; WORKERS],
    next_seq: [u64; WORKERS * FLOWS_PER_WORKER],
    /// Place of each flow's last frame.
    last: [Option<(usize, usize)>; WORKERS * FLOWS_PER_WORKER],
    now_secs: u32,
    /// The receiver's own table, if it gave one.
    given: Option<[u8; INDIRECTION_LEN]>,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    LookUp { worker: usize, flow: usize },
    Place { worker: usize, queue: usize, parks: bool },
    Leave { worker: usize },
    Take { queue: usize, count: usize, shows: bool },
    Move { entry: usize, queue: usize },
    Record { flow: usize, queue: usize },
    Wait,
    LookAfter,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let flow = 0..WORKERS * FLOWS_PER_WORKER;
    let step = prop_oneof![
        12 => (0..WORKERS, 0..FLOWS_PER_WORKER)
            .prop_map(|(worker, flow)| Step::LookUp { worker, flow }),
        8 => (0..WORKERS, 0..QUEUES, prop::bool::weighted(0.1))
            .prop_map(|(worker, queue, parks)| Step::Place { worker, queue, parks }),
        5 => (0..WORKERS).prop_map(|worker| Step::Leave { worker }),
        8 => (0..QUEUES, 0..6_usize, any::<bool>())
            .prop_map(|(queue, count, shows)| Step::Take { queue, count, shows }),
        3 => (0..5_usize, 0..QUEUES).prop_map(|(entry, queue)| Step::Move { entry, queue }),
        3 => (flow, 0..QUEUES).prop_map(|(flow, queue)| Step::Record { flow, queue }),
        1 => Just(Step::Wait),
        1 => Just(Step::LookAfter),
    ];
    prop::collection::vec(step, 50..600)
}

impl World {
    fn step(&mut self, steering: &Steering, step: Step) {
        match step {
            Step::LookUp { worker, flow } => self.look_up(steering, worker, flow),
            Step::Place { worker, queue, parks } => self.place(worker, queue, parks),
            Step::Leave { worker } => {
                for queue in 0..QUEUES {
                    self.place(worker, queue, false);
                }
                if let Some(visit) = self.workers[worker].visit.take() {
                    steering.leave(visit, &self.rings);
                }
                self.workers[worker].frames = 0;
            }
            Step::Take { queue, count, shows } => {
                let ring = &mut self.rings.0.borrow_mut()[queue];
                ring.taken = ring.placed.len().min(ring.taken + count);
                if shows {
                    ring.seen = ring.taken as u64;
                }
            }
            Step::Move { entry, queue } => match &mut self.given {
                None => {
                    steering.begin_move(entry, queue, &self.rings);
                }
                Some(table) => {
                    table[entry] = queue as u8;
                    steering.revise(table, &self.rings);
                }
            },
            Step::Record { flow, queue } => {
                steering.record(hash(flow), queue, self.now_secs, &self.rings);
            }
            Step::Wait => self.now_secs += weir_limits::STEERING_FLOW_IDLE_SECS,
            Step::LookAfter => steering.look_after(3, &self.rings),
        }
    }

    fn look_up(&mut self, steering: &Steering, worker: usize, flow: usize) {
        let flow = worker * FLOWS_PER_WORKER + flow;
        let Worker { visit, lists, frames, parked } = &mut self.workers[worker];
        if *frames == BURST {
            return;
        }
        let frame = parked.pop_front().unwrap_or_else(|| {
            let seq = self.next_seq[flow];
            self.next_seq[flow] += 1;
            Frame { flow, seq }
        });
        let visit = visit.get_or_insert_default();
        let queue = steering.queue_for(hash(frame.flow), visit, &self.rings);
        lists[queue].push_back(frame);
        *frames += 1;
    }

    /// Places the frames of a list. Where the queue is full, the rest of the burst waits.
    fn place(&mut self, worker: usize, queue: usize, parks: bool) {
        let worker = &mut self.workers[worker];
        if parks {
            // The frames keep their order, and go before frames that waited behind them.
            let mut left: Vec<_> = worker.lists.iter_mut().flat_map(std::mem::take).collect();
            left.sort_by_key(|frame| frame.seq);
            for frame in left.into_iter().rev() {
                worker.parked.push_front(frame);
            }
            return;
        }
        let mut rings = self.rings.0.borrow_mut();
        for frame in std::mem::take(&mut worker.lists[queue]) {
            if let Some((before, position)) = self.last[frame.flow] {
                assert!(
                    before == queue || rings[before].taken > position,
                    "{frame:?} goes into queue {queue}, and one before it waits in {before}"
                );
                let before = rings[before].placed[position];
                assert_eq!(frame.seq, before.seq + 1, "of flow {}", frame.flow);
            }
            self.last[frame.flow] = Some((queue, rings[queue].placed.len()));
            rings[queue].placed.push(frame);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_flow_is_never_reordered(steps in steps()) {
        let steering = Steering::new(QUEUES).unwrap();
        let mut world = World::default();
        for step in steps {
            world.step(&steering, step);
        }
    }

    /// A receiver gets its table in the end, however often it revises it.
    #[test]
    fn a_receivers_own_table_reorders_no_flow(steps in steps()) {
        let steering = Steering::new(QUEUES).unwrap();
        let table = [2; INDIRECTION_LEN];
        steering.give(&table);
        let mut world = World { given: Some(table), ..World::default() };
        for step in steps {
            world.step(&steering, step);
        }
        for worker in 0..WORKERS {
            world.step(&steering, Step::Leave { worker });
        }
        for queue in 0..QUEUES {
            world.step(&steering, Step::Take { queue, count: usize::MAX / 2, shows: true });
        }
        steering.look_after(u32::MAX, &world.rings);
        steering.look_after(u32::MAX, &world.rings);
        let queues = steering.entries().map(|entry| entry.queue);
        assert_eq!(Some(queues), world.given);
    }

    /// Once drivers have taken all frames, the next look-up makes the pending moves.
    #[test]
    fn what_is_pending_is_made_when_the_rings_are_empty(steps in steps()) {
        let steering = Steering::new(QUEUES).unwrap();
        let mut world = World::default();
        for step in steps {
            world.step(&steering, step);
        }
        for worker in 0..WORKERS {
            world.step(&steering, Step::Leave { worker });
        }
        for queue in 0..QUEUES {
            world.step(&steering, Step::Take { queue, count: usize::MAX / 2, shows: true });
        }
        let pending = steering.entries();
        steering.look_after(u32::MAX, &world.rings);
        for (now, before) in steering.entries().iter().zip(pending) {
            assert_eq!(now.moving_to, None);
            assert_eq!(now.queue, before.moving_to.unwrap_or(before.queue));
        }
    }
}

#[test]
fn a_flow_does_not_go_back_to_an_entry_that_is_about_to_move() {
    let steering = Steering::new(QUEUES).unwrap();
    let rings = Rings::default();
    let place = || rings.0.borrow_mut()[0].placed.push(Frame { flow: 0, seq: 0 });
    let (flow, other) = (0, weir_limits::STEERING_FLOWS_MAX as u32);
    steering.record(flow, 0, 0, &rings);
    place();
    // From here on the move waits for the first frame.
    assert!(steering.begin_move(0, 1, &rings));
    steering.look_after(10, &rings);
    // The flow follows its own queue past the move, and then loses its slot.
    let mut visit = Visit::default();
    assert_eq!(steering.queue_for(flow, &mut visit, &rings), 0);
    place();
    steering.leave(visit, &rings);
    rings.0.borrow_mut()[0].seen = 1;
    steering.record(other, 0, weir_limits::STEERING_FLOW_IDLE_SECS, &rings);
    let mut visit = Visit::default();
    assert_eq!(steering.queue_for(flow, &mut visit, &rings), 0, "the second frame waits there");
    steering.leave(visit, &rings);
}
