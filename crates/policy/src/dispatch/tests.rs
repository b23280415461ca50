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
        // Both workers are busy with it.
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
    // One worker seems enough while there are two, and is too busy once alone.
    let mut dispatch = Dispatch::new(Aim::Pack, 2);
    let mut queues = queues(&[(0, 20), (1, 20)]);
    let (mut moves, mut joined) = (Vec::new(), Vec::new());
    for step in 0..2_000 {
        let together = queues[0].worker == queues[1].worker;
        queues.iter_mut().for_each(|queue| queue.load = PERCENT * if together { 50 } else { 20 });
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
