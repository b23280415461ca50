//! Schedules in virtual time: simulated flows, and the service that each got.

use proptest::prelude::*;

use super::*;

const SECOND_NS: u64 = 1_000_000_000;

/// A flow's traffic.
#[derive(Clone, Copy)]
struct Played {
    /// Cost of a burst (ns).
    cost_ns: u64,
    /// Pause after each burst (ns); 0: always ready.
    pause_ns: u64,
    share: Share,
}

impl Played {
    fn always(cost_ns: u64) -> Self {
        Self { cost_ns, pause_ns: 0, share: Share::default() }
    }

    fn weight(self, weight: u16) -> Self {
        Self { share: Share { weight, ..self.share }, ..self }
    }

    fn window(self, x: u16, y: u16, period_ns: u64) -> Self {
        let window = Some(Window::new(x, y, period_ns).unwrap());
        Self { share: Share { window, ..self.share }, ..self }
    }
}

/// Service that a flow got.
#[derive(Clone, Copy, Debug, Default)]
struct Got {
    worker_ns: u64,
    bursts: u64,
    /// Longest time from ready to served (ns).
    waited_ns: u64,
    violations: u64,
}

/// Plays one worker with one queue for each of `flows`, for `time_ns`.
fn play(kind: Kind, flows: &[Played], time_ns: u64) -> Vec<Got> {
    let mut scheduler = Scheduler::new(kind);
    let mut got = vec![Got::default(); flows.len()];
    let mut ready_since: Vec<u64> = vec![0; flows.len()];
    let mut wakes: Vec<(u64, usize)> = Vec::new();
    for (flow, played) in flows.iter().enumerate() {
        scheduler.set_share(flow, played.share);
        wakes.push((0, flow));
    }
    let mut now_ns = 0;
    while now_ns < time_ns {
        wakes.sort_unstable();
        while let Some((_, flow)) = wakes.first().copied().filter(|(at, _)| *at <= now_ns) {
            let (at, _) = wakes.remove(0);
            ready_since[flow] = at;
            scheduler.wake(flow, flow, at);
        }
        let Some(flow) = scheduler.next(now_ns) else {
            now_ns = wakes.first().map_or(time_ns, |(at, _)| *at);
            continue;
        };
        let Played { cost_ns, pause_ns, .. } = flows[flow];
        let got = &mut got[flow];
        got.waited_ns = got.waited_ns.max(now_ns - ready_since[flow]);
        now_ns += cost_ns;
        got.worker_ns += cost_ns;
        got.bursts += 1;
        got.violations += scheduler.charge(flow, cost_ns);
        ready_since[flow] = now_ns;
        if pause_ns == 0 {
            scheduler.again(flow, flow);
        } else {
            wakes.push((now_ns + pause_ns, flow));
        }
    }
    got
}

/// Returns Jain's index (sum x)^2 / (n sum x^2) (Jain, Chiu & Hawe 1984).
fn jain_index(got: &[Got]) -> f64 {
    let times: Vec<_> = got.iter().map(|got| got.worker_ns as f64).collect();
    let (sum, squares) = times.iter().fold((0.0, 0.0), |(s, q), t| (s + t, q + t * t));
    sum * sum / (times.len() as f64 * squares)
}

/// Bursts of 64 frames from 64 bytes to 64 KiB.
const COSTS_NS: [u64; 8] = [3_000, 4_000, 6_000, 9_000, 16_000, 40_000, 120_000, 400_000];

#[test]
fn equal_weights_get_equal_worker_time_whatever_bursts_cost() {
    let flows = COSTS_NS.map(Played::always);
    let drr = play(Kind::Drr, &flows, SECOND_NS);
    assert!(jain_index(&drr) >= 0.99, "{}: {drr:?}", jain_index(&drr));
    // Round robin must fail here, or the test proves nothing.
    let turns = play(Kind::RoundRobin, &flows, SECOND_NS);
    assert!(jain_index(&turns) < 0.5);
}

#[test]
fn worker_time_is_in_proportion_to_weights() {
    let flows = [(5_000, 1), (17_000, 2), (3_000, 4)];
    let flows = flows.map(|(cost_ns, weight)| Played::always(cost_ns).weight(weight));
    let got = play(Kind::Drr, &flows, SECOND_NS);
    let all: u64 = got.iter().map(|got| got.worker_ns).sum();
    for (got, weight) in got.iter().zip([1.0, 2.0, 4.0]) {
        let share = got.worker_ns as f64 / all as f64;
        assert!((share / (weight / 7.0) - 1.0).abs() < 0.01, "{share} of weight {weight}");
    }
}

#[test]
fn a_weight_that_changes_counts_from_the_next_round_on() {
    let mut scheduler = Scheduler::new(Kind::Drr);
    (0..2).for_each(|flow| scheduler.wake(flow, flow, 0));
    let serve = |scheduler: &mut Scheduler<usize>| {
        let mut worker_ns = [0; 2];
        for _ in 0..10_000 {
            let flow = scheduler.next(0).unwrap();
            worker_ns[flow] += 5_000;
            scheduler.charge(flow, 5_000);
            scheduler.again(flow, flow);
        }
        worker_ns[1] as f64 / worker_ns[0] as f64
    };
    assert!((serve(&mut scheduler) - 1.0).abs() < 0.01);
    scheduler.set_share(1, Share { weight: 3, window: None });
    assert!((serve(&mut scheduler) - 3.0).abs() < 0.03);
}

#[test]
fn a_guest_of_few_packets_waits_for_one_burst_of_a_flood_and_not_for_a_round() {
    let victim = Played { cost_ns: 1_000, pause_ns: 50_000, share: Share::default() };
    let flood = Played::always(6_000);
    let got = play(Kind::Drr, &[victim, flood, flood, flood], SECOND_NS);
    assert!(got[0].waited_ns <= 6_000, "{got:?}");
    assert!(got[0].bursts >= SECOND_NS / (1_000 + 50_000 + 6_000));
}

#[test]
fn who_comes_and_goes_gets_no_more_than_its_share() {
    // The greedy flow would take the whole worker: it is ready again before the others' next burst.
    let greedy = Played { cost_ns: 30_000, pause_ns: 1, share: Share::default() };
    let got = play(Kind::Drr, &[greedy, Played::always(5_000), Played::always(5_000)], SECOND_NS);
    assert!(got[0].worker_ns <= SECOND_NS / 3 + SECOND_NS / 100, "{got:?}");
    assert!(jain_index(&got) >= 0.99, "{got:?}");
}

#[test]
fn idleness_neither_saves_up_time_nor_starves_who_was_alone() {
    let mut scheduler = Scheduler::new(Kind::Drr);
    scheduler.wake(0, 0, 0);
    // Runs one flow alone for a long time, while the other is idle.
    for _ in 0..1_000_000 {
        assert_eq!(scheduler.next(0), Some(0));
        scheduler.charge(0, 6_000);
        scheduler.again(0, 0);
    }
    scheduler.wake(1, 1, 0);
    let mut worker_ns = [0; 2];
    for _ in 0..200 {
        let flow = scheduler.next(0).unwrap();
        worker_ns[flow] += 6_000_i64;
        scheduler.charge(flow, 6_000);
        scheduler.again(flow, flow);
        let ahead = worker_ns[1] - worker_ns[0];
        assert!(ahead.abs() <= 2 * (weir_limits::SCHEDULE_QUANTUM_NS + 6_000), "{worker_ns:?}");
    }
}

#[test]
fn more_queues_give_no_larger_share() {
    let mut scheduler = Scheduler::new(Kind::Drr);
    // Flow 0 has four queues, flow 1 one.
    let queues = [(0, 0), (0, 1), (0, 2), (0, 3), (1, 4)];
    queues.iter().for_each(|&(flow, queue)| scheduler.wake(flow, (flow, queue), 0));
    let (mut worker_ns, mut bursts) = ([0_u64; 2], [0_u64; 5]);
    for _ in 0..10_000 {
        let (flow, queue) = scheduler.next(0).unwrap();
        worker_ns[flow] += 7_000;
        bursts[queue] += 1;
        scheduler.charge(flow, 7_000);
        scheduler.again(flow, (flow, queue));
    }
    assert!((worker_ns[0] as f64 / worker_ns[1] as f64 - 1.0).abs() < 0.01, "{worker_ns:?}");
    assert!(bursts[..4].iter().all(|n| n.abs_diff(bursts[0]) <= 8), "{bursts:?}");
}

#[test]
fn queues_of_a_flow_take_turns_though_each_burst_costs_more_than_is_given() {
    let mut scheduler = Scheduler::new(Kind::Drr);
    let cost_ns = 5 * weir_limits::SCHEDULE_QUANTUM_NS.unsigned_abs();
    let flow_of = |queue: usize| usize::from(queue == 3);
    (0..4).for_each(|queue| scheduler.wake(flow_of(queue), queue, 0));
    let mut served = [0; 4];
    for _ in 0..60 {
        let queue = scheduler.next(0).unwrap();
        served[queue] += 1;
        scheduler.charge(flow_of(queue), cost_ns);
        scheduler.again(flow_of(queue), queue);
    }
    assert_eq!(served, [10, 10, 10, 30]);
}

#[test]
fn a_debt_of_any_size_is_paid_without_being_counted_round_by_round() {
    let mut scheduler = Scheduler::new(Kind::Drr);
    scheduler.wake(0, 0, 0);
    assert_eq!(scheduler.next(0), Some(0));
    scheduler.charge(0, u64::MAX);
    scheduler.charge(0, u64::MAX);
    scheduler.again(0, 0);
    assert_eq!(scheduler.next(0), Some(0));
}

#[test]
fn windows_are_kept_where_they_can_be() {
    // A burst fills a slot: eight flows that may have half of their turns late fill the worker.
    let slot = weir_limits::DWCS_SLOT_NS;
    for (flows, periods, x, y) in [(8, 10, 1, 2), (8, 10, 1, 4), (10, 10, 0, 1), (13, 10, 1, 4)] {
        let played = vec![Played::always(slot).window(x, y, periods * slot); flows];
        let demand = flows as f64 * (1.0 - f64::from(x) / f64::from(y)) / periods as f64;
        assert!(demand <= 1.0, "feasible, by West's bound");
        let got = play(Kind::Dwcs, &played, SECOND_NS);
        let violations: Vec<_> = got.iter().map(|got| got.violations).collect();
        assert_eq!(violations, vec![0; flows], "{flows} flows, {x}/{y}");
    }
}

#[test]
fn tight_windows_are_kept_beside_loose_ones_in_an_overload() {
    let slot = weir_limits::DWCS_SLOT_NS;
    // Twelve turns are due in ten slots; only the loose ones may miss some.
    let tight = Played::always(slot).window(0, 1, 10 * slot);
    let loose = Played::always(slot).window(1, 2, 10 * slot);
    let flows = [vec![tight; 4], vec![loose; 8]].concat();
    let got = play(Kind::Dwcs, &flows, SECOND_NS);
    assert!(got.iter().all(|got| got.violations == 0), "{got:?}");
    // An impossible schedule reports its violations.
    let got = play(Kind::Dwcs, &[tight; 12], SECOND_NS);
    assert!(got.iter().any(|got| got.violations > 0));
}

#[test]
fn what_windows_leave_goes_round_in_turn() {
    let slot = weir_limits::DWCS_SLOT_NS;
    let flows =
        [Played::always(slot).window(0, 1, 10 * slot), Played::always(slot), Played::always(slot)];
    let got = play(Kind::Dwcs, &flows, SECOND_NS);
    assert_eq!(got[0].violations, 0);
    assert!(got[1].bursts.abs_diff(got[2].bursts) <= 1, "{got:?}");
    assert!(got[1].bursts > SECOND_NS / slot / 4, "{got:?}");
}

#[test]
fn who_was_alone_owes_nothing_when_another_comes() {
    let slot = weir_limits::DWCS_SLOT_NS;
    let window = Share { weight: 1, window: Some(Window::new(0, 1, 10 * slot).unwrap()) };
    let mut scheduler = Scheduler::new(Kind::Dwcs);
    (0..2).for_each(|flow| scheduler.set_share(flow, window));
    scheduler.wake(0, 0, 0);
    let mut now_ns = 0;
    for _ in 0..10_000 {
        assert_eq!(scheduler.next(now_ns), Some(0));
        scheduler.again(0, 0);
        now_ns += slot;
    }
    scheduler.wake(1, 1, now_ns);
    let mut served = [0; 2];
    for _ in 0..100 {
        let flow = scheduler.next(now_ns).unwrap();
        served[flow] += 1;
        scheduler.again(flow, flow);
        now_ns += slot;
    }
    assert!(served[0] >= 40 && served[1] >= 40, "{served:?}");
}

#[test]
fn windows_have_bounds() {
    assert_eq!(Window::new(2, 1, 1_000_000), Err(WindowError::Turns { x: 2, y: 1 }));
    assert_eq!(Window::new(0, 0, 1_000_000), Err(WindowError::Turns { x: 0, y: 0 }));
    assert!(Window::new(0, WINDOW_LEN_MAX + 1, 1_000_000).is_err());
    assert_eq!(Window::new(1, 2, 1), Err(WindowError::Period(1)));
    assert!(Window::new(1, 1, WINDOW_PERIOD_NS_MAX).is_ok());
}

#[test]
fn a_window_begins_when_it_is_given() {
    let mut scheduler = Scheduler::new(Kind::Dwcs);
    scheduler.wake(0, 0, SECOND_NS);
    scheduler.set_share(0, Played::always(1).window(0, 1, 1_000_000).share);
    assert_eq!(scheduler.next(2 * SECOND_NS), Some(0));
    assert_eq!(scheduler.charge(0, 1), 0, "no period has ended since");
    scheduler.again(0, 0);
    assert_eq!(scheduler.next(2 * SECOND_NS + 5_000_000), Some(0));
    assert!(scheduler.charge(0, 1) > 0, "now there are periods without a turn");
}

#[test]
fn a_rule_that_changes_keeps_each_ready_queue_once_and_holds_from_then_on() {
    const QUEUES: usize = 6;
    let weights = [1, 2, 3];
    for (from, to) in Kind::ALL.into_iter().flat_map(|from| Kind::ALL.map(|to| (from, to))) {
        let mut scheduler = Scheduler::new(from);
        (0..QUEUES).for_each(|queue| scheduler.wake(queue % 3, queue, 0));
        for turn in 0..10 {
            let queue = scheduler.next(turn).unwrap();
            scheduler.charge(queue % 3, 300_000);
            scheduler.again(queue % 3, queue);
        }
        scheduler.change(to, 10);
        assert_eq!((scheduler.kind(), scheduler.len()), (to, QUEUES));
        for (flow, weight) in weights.into_iter().enumerate() {
            scheduler.set_share(flow, Share { weight, window: None });
        }
        let mut served = [0_u64; QUEUES];
        for turn in 0..6_000 {
            let queue = scheduler.next(turn).unwrap();
            served[queue] += 1;
            scheduler.charge(queue % 3, 300_000);
            scheduler.again(queue % 3, queue);
        }
        for (queue, served) in served.into_iter().enumerate() {
            let due = if to == Kind::Drr { 500 * u64::from(weights[queue % 3]) } else { 1_000 };
            assert!(served.abs_diff(due) <= 20, "{from} to {to}: {queue} had {served} of {due}");
        }
        while let Some(queue) = scheduler.next(0) {
            assert!(std::mem::take(&mut served[queue]) > 0, "{queue} is there twice");
        }
        assert_eq!(served, [0; QUEUES], "{from} to {to}: a queue is lost");
    }
}

#[test]
fn kinds_have_names_of_their_own() {
    for kind in Kind::ALL {
        assert_eq!(kind.as_str().parse(), Ok(kind));
    }
    assert_eq!("DRR".parse::<Kind>(), Err(UnknownKind));
}

proptest! {
    /// Every ready queue is served before all have had a few rounds of the largest weight, and none
    /// is lost or doubled, whatever bursts cost.
    #[test]
    fn no_queue_is_lost_or_starved(
        kind in prop::sample::select(&Kind::ALL),
        costs in prop::collection::vec(500_u64..1_000_000, 1..20),
        weights in prop::collection::vec(0_u16..=weir_limits::WEIGHT_MAX, 20),
    ) {
        let mut scheduler = Scheduler::new(kind);
        for (flow, &weight) in weights.iter().enumerate().take(costs.len()) {
            scheduler.set_share(flow, Share { weight, window: None });
            scheduler.wake(flow, flow, 0);
        }
        let mut served = vec![0_u64; costs.len()];
        let mut spent_ns = 0;
        // A round of all weights, and the largest burst of each.
        let enough_ns = 3 * (costs.len() as u64)
            * (u64::from(weir_limits::WEIGHT_MAX) * weir_limits::SCHEDULE_QUANTUM_NS as u64 + 1_000_000);
        while spent_ns <= enough_ns && served.contains(&0) {
            let flow = scheduler.next(spent_ns).unwrap();
            served[flow] += 1;
            spent_ns += costs[flow];
            scheduler.charge(flow, costs[flow]);
            scheduler.again(flow, flow);
            prop_assert_eq!(scheduler.len(), costs.len());
        }
        prop_assert!(served.iter().all(|n| *n > 0), "{:?}", served);
    }

    /// Takers that keep to the available tokens never get more than rate x t + burst. Takers that
    /// always want more never get less than rate x t.
    #[test]
    fn a_bucket_gives_its_rate_and_no_more(
        rate in 1_u64..=weir_limits::RATE_BITS_MAX,
        burst in 1_u64..=1 << 40,
        steps in prop::collection::vec((0_u64..5_000_000, 1_u64..1 << 20), 1..200),
    ) {
        let start_ns = 12_345;
        let mut bucket = TokenBucket::new(rate, burst, start_ns);
        bucket.take(burst);
        let (mut now_ns, mut taken, mut overflowed) = (start_ns, u128::from(burst), false);
        for (pause_ns, wanted) in steps {
            now_ns += pause_ns;
            // Less than a token was left.
            overflowed |= u128::from(pause_ns) * u128::from(rate) > u128::from(burst - 1) * NS;
            let available = bucket.available(now_ns);
            let take = if overflowed { available.min(wanted) } else { available };
            bucket.take(take);
            taken += u128::from(take);
            let came = u128::from(now_ns - start_ns) * u128::from(rate) / NS;
            prop_assert!(taken <= came + u128::from(burst));
            if !overflowed {
                prop_assert_eq!(taken, came + u128::from(burst), "exactly, to the token");
            }
        }
    }

    /// The time that `ready_at` returns is exact: enough tokens then, too few a nanosecond before.
    #[test]
    fn a_bucket_knows_when_it_has_enough(
        rate in 1_u64..=weir_limits::RATE_BITS_MAX,
        burst in 1_u64..=1 << 40,
        taken in 0_u64..1 << 41,
        wanted in 1_u64..1 << 40,
    ) {
        let mut bucket = TokenBucket::new(rate, burst, 7);
        bucket.take(taken);
        let at_ns = bucket.ready_at(wanted);
        let wanted = wanted.min(burst);
        if at_ns > 7 {
            prop_assert!(bucket.clone().available(at_ns - 1) < wanted);
        }
        prop_assert!(bucket.available(at_ns) >= wanted);
    }
}

const NS: u128 = SECOND_NS as u128;

#[test]
fn what_was_owed_comes_out_of_what_follows() {
    let mut bucket = TokenBucket::new(1_000, 10, 0);
    bucket.take(30);
    assert_eq!(bucket.available(19_999_999), 0);
    assert_eq!(bucket.available(21_000_000), 1);
    bucket.give_back(5);
    assert_eq!(bucket.available(21_000_000), 6);
    bucket.give_back(100);
    assert_eq!(bucket.available(SECOND_NS), 10, "never more than its burst");
    // A clock that goes back adds nothing.
    assert_eq!(bucket.available(0), 10);
}

#[test]
fn a_bucket_neither_overflows_nor_forgets() {
    let mut bucket = TokenBucket::new(u64::MAX, u64::MAX, 0);
    bucket.take(u64::MAX);
    bucket.take(u64::MAX);
    assert_eq!(bucket.available(u64::MAX), u64::MAX);
    // A third of a token comes each nanosecond, and the bucket is asked each nanosecond.
    let mut bucket = TokenBucket::new(333_333_333, 1 << 20, 0);
    bucket.take(1 << 20);
    let taken: u64 = (1..=3_000_000)
        .map(|now_ns| {
            let available = bucket.available(now_ns);
            bucket.take(available);
            available
        })
        .sum();
    assert_eq!(taken, 999_999);
}
