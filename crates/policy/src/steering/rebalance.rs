//! Chooses entries of an indirection table to move, from the number of frames each has steered.
//!
//! The load of a queue is the load of its entries, and of the flows that follow their queue there. If the busiest queue
//! has [a quarter](IMBALANCE) more than the mean, one of its entries moves to the least busy queue: the entry that
//! lowers the higher of the two loads most. Entries do not move to and fro: each move makes the sum of the squared
//! loads smaller, so that steady load comes to rest; small gains are not taken; loads are smoothed; and an entry that
//! has moved stays for [`REST_NS`].

use weir_limits::{INDIRECTION_LEN, QUEUE_PAIRS_MAX};

/// Excess over the mean from which on a queue is too busy: 1/4.
pub const IMBALANCE: u64 = 4;
/// Least gain that justifies a move, as a part of the mean: 1/512. Beside an elephant flow, only
/// small flows can move, and each of them brings little.
const GAIN: u64 = 512;
/// Time for which an entry stays after a move or an attempt (ns).
pub const REST_NS: u64 = 2_000_000_000;
/// Most moves begun in one look, since the next look sees their effect. In a second they can be
/// more than half of the table.
const MOVES_MAX: usize = 8;
/// Mean load of a queue (frames/s) below which no move is worth it.
const IDLE_FRAMES_PER_S: u64 = 1_000;
/// Interval of looks (ns) beyond which they say nothing about the present load.
const GAP_NS_MAX: u64 = 1_000_000_000;

const NS_PER_SECOND: u128 = 1_000_000_000;

/// An entry of the indirection table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntryLoad {
    /// The entry's queue.
    pub queue: u8,
    /// Target of a pending move.
    pub moving_to: Option<u8>,
    /// Total of frames steered.
    pub frames: u64,
}

/// The input of one look.
#[derive(Clone, Copy, Debug)]
pub struct Look<'a> {
    /// Time of a monotonic clock (ns).
    pub now_ns: u64,
    /// The table.
    pub entries: &'a [EntryLoad; INDIRECTION_LEN],
    /// Frames that each queue in use has ever received, by the table or otherwise.
    pub queues: &'a [u64],
}

/// A move of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Time of the decision (ns).
    pub at_ns: u64,
    /// Index of the entry.
    pub entry: usize,
    /// The entry's present queue.
    pub from: usize,
    /// The entry's new queue.
    pub to: usize,
    /// Load of the entry (frames/s).
    pub frames_per_s: u64,
    /// Load of the old queue before (frames/s).
    pub from_frames_per_s: u64,
    /// Load of the new queue before (frames/s).
    pub to_frames_per_s: u64,
}

/// A total that only grows, and its rate.
#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    total: u64,
    per_s: u64,
}

impl Rate {
    /// Takes a new total after `elapsed_ns`; `None` makes the old total void. The rate is an
    /// average in which each look counts half as much as the next.
    fn update(&mut self, total: u64, elapsed_ns: Option<u64>) {
        let grown = total.saturating_sub(std::mem::replace(&mut self.total, total));
        self.per_s = elapsed_ns.filter(|ns| *ns > 0).map_or(0, |ns| {
            let now = u128::from(grown) * NS_PER_SECOND / u128::from(ns);
            self.per_s.midpoint(u64::try_from(now).unwrap_or(u64::MAX))
        });
    }
}

/// Chooses moves within one table.
#[derive(Clone, Debug)]
pub struct Rebalancer {
    entries: [Rate; INDIRECTION_LEN],
    /// End of each entry's rest (ns).
    rests_until_ns: [u64; INDIRECTION_LEN],
    queues: [Rate; QUEUE_PAIRS_MAX],
    looked_ns: Option<u64>,
}

impl Default for Rebalancer {
    fn default() -> Self {
        Self {
            entries: [Rate::default(); INDIRECTION_LEN],
            rests_until_ns: [0; INDIRECTION_LEN],
            queues: [Rate::default(); QUEUE_PAIRS_MAX],
            looked_ns: None,
        }
    }
}

impl Rebalancer {
    /// Takes a look. Returns the entries to move.
    pub fn look(&mut self, look: &Look<'_>) -> Vec<Move> {
        let before_ns = self.looked_ns.replace(look.now_ns);
        let elapsed_ns = before_ns.map(|before_ns| look.now_ns.saturating_sub(before_ns));
        let elapsed_ns = elapsed_ns.filter(|ns| *ns <= GAP_NS_MAX);
        for (rate, entry) in self.entries.iter_mut().zip(look.entries) {
            rate.update(entry.frames, elapsed_ns);
        }
        for (rate, total) in self.queues.iter_mut().zip(look.queues) {
            rate.update(*total, elapsed_ns);
        }
        if elapsed_ns.is_none() { Vec::new() } else { self.decide(look) }
    }

    /// Returns the load of each queue in use once pending moves are made (frames/s).
    pub fn queue_frames_per_s(&self, look: &Look<'_>) -> Vec<u64> {
        let mut steered = vec![0; look.queues.len().min(QUEUE_PAIRS_MAX)];
        let mut loads = steered.clone();
        for (rate, entry) in self.entries.iter().zip(look.entries) {
            if let Some(steered) = steered.get_mut(usize::from(entry.queue)) {
                *steered += rate.per_s;
            }
            let to = entry.moving_to.unwrap_or(entry.queue);
            if let Some(load) = loads.get_mut(usize::from(to)) {
                *load += rate.per_s;
            }
        }
        for ((load, steered), queue) in loads.iter_mut().zip(steered).zip(&self.queues) {
            *load += queue.per_s.saturating_sub(steered);
        }
        loads
    }

    fn decide(&mut self, look: &Look<'_>) -> Vec<Move> {
        let mut loads = self.queue_frames_per_s(look);
        let mut moves: Vec<Move> = Vec::new();
        while moves.len() < MOVES_MAX {
            let Some(next) = self.next_move(look, &loads, &moves) else { break };
            loads[next.from] -= next.frames_per_s;
            loads[next.to] += next.frames_per_s;
            self.rests_until_ns[next.entry] = look.now_ns.saturating_add(REST_NS);
            moves.push(next);
        }
        moves
    }

    /// Returns the move that relieves the busiest queue most, if one is worth it.
    fn next_move(&self, look: &Look<'_>, loads: &[u64], moves: &[Move]) -> Option<Move> {
        let (from, &busiest) = loads.iter().enumerate().max_by_key(|(_, load)| **load)?;
        let (to, &idlest) = loads.iter().enumerate().min_by_key(|(_, load)| **load)?;
        let mean = loads.iter().sum::<u64>() / loads.len() as u64;
        if mean < IDLE_FRAMES_PER_S || busiest <= mean + mean / IMBALANCE {
            return None;
        }
        let gap = busiest - idlest;
        // Decrease of the higher of the two loads.
        let gain = |frames_per_s: u64| frames_per_s.min(gap.saturating_sub(frames_per_s));
        let movable = look.entries.iter().enumerate().filter(|(entry, load)| {
            usize::from(load.queue) == from
                && load.moving_to.is_none()
                && self.rests_until_ns[*entry] <= look.now_ns
                && moves.iter().all(|made| made.entry != *entry)
        });
        let rates = movable.map(|(entry, _)| (entry, self.entries[entry].per_s));
        let (entry, frames_per_s) = rates.max_by_key(|(_, per_s)| gain(*per_s))?;
        (gain(frames_per_s) > mean / GAIN).then_some(Move {
            at_ns: look.now_ns,
            entry,
            from,
            to,
            frames_per_s,
            from_frames_per_s: busiest,
            to_frames_per_s: idlest,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LOOK_NS: u64 = 100_000_000;

    /// Tables whose moves take effect at once.
    struct Rig {
        rebalancer: Rebalancer,
        entries: [EntryLoad; INDIRECTION_LEN],
        queues: Vec<u64>,
        now_ns: u64,
    }

    impl Rig {
        fn new(queues: usize) -> Self {
            let entry = |entry| EntryLoad { queue: (entry % queues) as u8, ..EntryLoad::default() };
            Self {
                rebalancer: Rebalancer::default(),
                entries: std::array::from_fn(entry),
                queues: vec![0; queues],
                now_ns: 0,
            }
        }

        /// Takes one look after each entry has steered `frames(entry)` further frames.
        fn step(&mut self, frames: impl Fn(usize) -> u64) -> Vec<Move> {
            for (number, entry) in self.entries.iter_mut().enumerate() {
                entry.frames += frames(number);
                self.queues[usize::from(entry.queue)] += frames(number);
            }
            self.now_ns += LOOK_NS;
            let (now_ns, entries, queues) = (self.now_ns, &self.entries, &self.queues);
            let moves = self.rebalancer.look(&Look { now_ns, entries, queues });
            for made in &moves {
                assert_eq!(usize::from(self.entries[made.entry].queue), made.from);
                self.entries[made.entry].queue = made.to as u8;
            }
            moves
        }

        fn loads(&self, frames: impl Fn(usize) -> u64) -> Vec<u64> {
            let mut loads = vec![0; self.queues.len()];
            for (number, entry) in self.entries.iter().enumerate() {
                loads[usize::from(entry.queue)] += frames(number);
            }
            loads
        }

        fn busiest(&self, frames: impl Fn(usize) -> u64) -> u64 {
            self.loads(frames).into_iter().max().unwrap()
        }
    }

    #[test]
    fn a_change_of_load_is_evened_out_within_a_second() {
        for queues in 2..=QUEUE_PAIRS_MAX {
            let mut rig = Rig::new(queues);
            for _ in 0..10 {
                assert_eq!(rig.step(|_| 1_000), []);
            }
            // All busy entries are now on one queue.
            let busy = |entry: usize| if entry % queues == 1 { 1_000 * queues as u64 } else { 10 };
            for _ in 0..10 {
                rig.step(busy);
            }
            let mean = rig.loads(busy).iter().sum::<u64>() / queues as u64;
            let busiest = rig.busiest(busy);
            assert!(busiest <= mean * 3 / 2, "{queues} queues: {busiest} of {mean}");
        }
    }

    #[test]
    fn what_shares_a_queue_with_an_elephant_moves_and_the_elephant_stays() {
        let mut rig = Rig::new(2);
        let frames = |entry| if entry == 0 { 100_000 } else { 500 };
        for _ in 0..100 {
            rig.step(frames);
        }
        assert_eq!(rig.entries[0].queue, 0);
        let alone = rig.entries.iter().filter(|entry| entry.queue == 0).count();
        assert!(alone < 40, "{alone} entries share the queue");
    }

    #[test]
    fn noise_moves_nothing() {
        let mut rig = Rig::new(4);
        for look in 0..200 {
            let noisy = |entry: usize| 1_000 + (entry as u64 * 7919 + look * 104_729) % 500;
            assert_eq!(rig.step(noisy), [], "look {look}");
        }
    }

    #[test]
    fn no_traffic_and_a_long_pause_move_nothing() {
        let mut rig = Rig::new(2);
        let one_queue = |entry: usize| if entry.is_multiple_of(2) { 10_000 } else { 0 };
        assert_eq!(rig.step(one_queue), []);
        rig.now_ns += 10 * GAP_NS_MAX;
        assert_eq!(rig.step(one_queue), []);
        let mut rig = Rig::new(2);
        for _ in 0..20 {
            assert_eq!(rig.step(|entry| u64::from(entry < 2 && entry == 0)), []);
        }
    }

    #[test]
    fn what_is_about_to_move_counts_where_it_goes() {
        let mut rig = Rig::new(2);
        let one_queue = |entry: usize| if entry.is_multiple_of(2) { 1_000 } else { 0 };
        rig.step(one_queue);
        for entry in rig.entries.iter_mut().step_by(4) {
            entry.moving_to = Some(1);
        }
        for _ in 0..20 {
            assert_eq!(rig.step(one_queue), []);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn steady_load_comes_to_rest_and_never_gets_worse(
            queues in 2..=QUEUE_PAIRS_MAX,
            frames in proptest::collection::vec(0..20_000_u64, INDIRECTION_LEN),
        ) {
            let mut rig = Rig::new(queues);
            let frames = |entry: usize| frames[entry];
            // The smoothed rates reach the true ones.
            for _ in 0..64 {
                rig.step(frames);
            }
            let mut busiest = rig.busiest(frames);
            let mut moves = 0;
            for look in 0..400 {
                let made = rig.step(frames);
                prop_assert!(rig.busiest(frames) <= busiest);
                busiest = rig.busiest(frames);
                moves += made.len();
                prop_assert!(look < 200 || made.is_empty(), "still moving at look {}", look);
            }
            prop_assert!(moves <= INDIRECTION_LEN);
        }

        #[test]
        fn no_entry_moves_twice_before_it_has_rested(
            queues in 2..=QUEUE_PAIRS_MAX,
            seeds in proptest::collection::vec(any::<u64>(), 60),
        ) {
            let mut rig = Rig::new(queues);
            let mut moved = [None; INDIRECTION_LEN];
            for seed in seeds {
                let frames = |entry: usize| {
                    seed.rotate_left(entry as u32 % 64).wrapping_mul(entry as u64 | 1) % 5_000
                };
                for made in rig.step(frames) {
                    let now_ns = rig.now_ns;
                    let before_ns: Option<u64> = moved[made.entry].replace(now_ns);
                    prop_assert!(before_ns.is_none_or(|before_ns| now_ns - before_ns >= REST_NS));
                }
            }
        }
    }
}
