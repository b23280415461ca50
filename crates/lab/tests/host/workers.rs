//! Several workers and uplinks, queues that move between workers, the manager, which may hold all guests' calls
//! together, and the invariants of every run.

use weir_lab::cpus::Class;
use weir_lab::estimate;
use weir_lab::host::{Error, run, run_within};
use weir_lab::random::{Distribution, Random};
use weir_lab::scenario::{GuestPoll, Load, LoadKind, OnOff, Scenario, ScenarioError, Thread};
use weir_lab::topology::Topology;
use weir_policy::dispatch::Aim;
use weir_policy::moderation::Kind;

use super::*;

/// Largest part of a frame's cost for a worker here (ns).
const UPLINK_TAKE_NS: u64 = 5_000;

/// Builds `count` uplinks with small frames, each for its own guest; four overload two workers.
/// Each thread has a core.
fn uplinks(count: usize, workers: usize) -> Scenario {
    let one = host(Kind::Immediate, Vec::new());
    let gap = every(8_000);
    Scenario {
        topology: Topology::flat(count + workers),
        workers: (0..workers).map(|cpu| Thread { cpus: vec![cpu], class: FAIR }).collect(),
        guests: (0..count)
            .map(|at| Guest::new(&format!("guest{at}"), &[workers + at], calls(Kind::Immediate)))
            .collect(),
        uplinks: vec![one.uplinks[0].clone(); count],
        loads: (0..count)
            .map(|at| datagrams(Endpoint::Peer(at), Endpoint::Guest(at), gap.clone()))
            .collect(),
        profile: Profile { uplink_take_ns: UPLINK_TAKE_NS, ..one.profile },
        warm_up_ns: 300 * MS,
        ..one
    }
}

/// Returns the frames per second that all loads received.
fn received(report: &Report) -> f64 {
    report.per_s(report.loads.iter().map(|load| load.received).sum())
}

#[test]
fn a_worker_passes_what_its_cpu_can_and_two_twice_as_much() {
    let it = Profile::example();
    let copies = 2 * (64 * it.copy_ps_per_byte / 1_000);
    let frame_ns = UPLINK_TAKE_NS + it.classify_ns + it.place_ns + it.publish_ns + copies;
    // Two workers have two of the four uplinks each: guests are 0 to 3 and uplinks 4 to 7, in turn.
    for workers in [1, 2] {
        let report = report(&uplinks(4, workers));
        // Bursts, rounds and calls take the rest.
        about(received(&report), workers as f64 * 1e9 / frame_ns as f64, 0.03);
        assert_eq!(report.moves, 0);
    }
}

#[test]
fn what_workers_do_lies_within_what_was_reckoned() {
    let scenario = uplinks(1, 1);
    let work = estimate::work(&scenario);
    let report = report(&scenario);
    let did = report.cpus(report.workers[0].cpu_ns);
    assert!((work.least..work.most).contains(&did), "{did} CPUs, not within {work:?}");
    assert_eq!(report.workers[0].last_cpu, Some(0));
    // Twice the loads are twice the work; requests have no least work.
    let twice = estimate::work(&uplinks(2, 1));
    about(twice.least, 2.0 * work.least, 1e-9);
    about(twice.most, 2.0 * work.most, 1e-9);
    let asked = estimate::work(&host(Kind::Auto, vec![requests(A, B, 4)]));
    assert!(asked.least == 0.0 && asked.most > 0.0);
}

#[test]
fn each_load_knows_what_it_lost() {
    let report = report(&uplinks(4, 1));
    let of_loads: u64 = report.loads.iter().map(|load| load.dropped).sum();
    let by_reason: u64 = report.drops.iter().map(|(_, frames)| frames).sum();
    assert!(by_reason > 0);
    assert_eq!(of_loads, by_reason);
}

#[test]
fn queues_that_begin_with_one_worker_are_spread_until_all_have_as_much() {
    let in_turn = received(&report(&uplinks(4, 2)));
    let mut scenario = uplinks(4, 2);
    scenario.first_worker = Some(0);
    let one = received(&report(&scenario));
    about(one, in_turn / 2.0, 0.02);
    scenario.dispatch = Some(Aim::Spread);
    let spread = report(&scenario);
    about(received(&spread), in_turn, 0.02);
    assert_eq!(spread.moves, 0, "all moves are in the warm-up");
}

#[test]
fn queues_that_one_worker_can_serve_are_packed() {
    let mut scenario = uplinks(4, 2);
    for load in &mut scenario.loads {
        if let LoadKind::Datagrams { gap, .. } = &mut load.kind {
            *gap = every(100_000);
        }
    }
    scenario.dispatch = Some(Aim::Pack);
    let report = report(&scenario);
    let busy: Vec<_> = report.workers.iter().map(|worker| worker.frames > 0).collect();
    assert_eq!(busy.iter().filter(|busy| **busy).count(), 1, "{report}");
}

#[test]
fn a_queue_that_moves_loses_nothing_and_keeps_its_order() {
    let mut scenario = uplinks(3, 2);
    // Loads come and go at their own times, so the best assignment changes all the time.
    for (number, load) in (1u64..).zip(&mut scenario.loads) {
        if let LoadKind::Datagrams { gap, on_off, .. } = &mut load.kind {
            let period_ns = 110 * MS * number;
            (*gap, *on_off) = (every(25_000), Some(OnOff { on_ns: period_ns, off_ns: period_ns }));
        }
    }
    (scenario.first_worker, scenario.dispatch) = (Some(0), Some(Aim::Spread));
    (scenario.warm_up_ns, scenario.run_ns) = (0, 1_200 * MS);
    // The run checks for lost frames at the end, and for order at each frame.
    assert!(report(&scenario).moves > 1);
    (scenario.run_ns, scenario.check_each_event) = (60 * MS, true);
    assert!(report(&scenario).moves > 0);
}

#[test]
fn loads_begin_at_times_that_the_seed_gives() {
    let first_ns = |seed| {
        let mut scenario = host(Kind::Immediate, vec![datagrams(PEER, B, every(MS))]);
        (scenario.seed, scenario.start_ns, scenario.warm_up_ns) = (seed, 40 * MS, 0);
        report(&scenario).loads[0].received
    };
    assert_eq!(first_ns(1), first_ns(1));
    let received: Vec<_> = (1..9).map(first_ns).collect();
    assert!(received.iter().all(|frames| (9..=49).contains(frames)), "{received:?}");
    assert!(received.iter().any(|frames| *frames != received[0]), "{received:?}");
}

/// Runs both guests under `auto` with these loads, long enough for the manager to decide.
fn looked_at(manager: bool, loads: Vec<Load>) -> Report {
    let mut scenario = host(Kind::Auto, loads);
    scenario.realization.manager = manager;
    (scenario.warm_up_ns, scenario.run_ns) = (2_000 * MS, 300 * MS);
    report(&scenario)
}

#[test]
fn what_nobody_waits_for_gathers_at_the_uplink_too() {
    let loads = || vec![datagrams(PEER, A, every(20_000)), datagrams(PEER, B, every(21_000))];
    let [with, without] = [true, false].map(|manager| looked_at(manager, loads()));
    let received = |report: &Report| report.loads.iter().map(|load| load.received).sum::<u64>();
    about(received(&with) as f64, received(&without) as f64, 0.01);
    let bursts = |report: &Report| report.workers[0].bursts;
    assert!(3 * bursts(&with) < bursts(&without), "{with}\n{without}");
    assert!(with.workers[0].cpu_ns < without.workers[0].cpu_ns);
    let late = |report: &Report| report.guests.iter().map(|guest| guest.late).sum::<u64>();
    assert!(late(&with) <= late(&without), "{with}");
}

#[test]
fn clients_who_wait_for_answers_are_as_fast_with_it() {
    let loads = || vec![requests(PEER, A, 8), requests(PEER, B, 8)];
    let [with, without] = [true, false].map(|manager| looked_at(manager, loads()));
    let answered = |report: &Report| report.loads.iter().map(|it| it.received).sum::<u64>() as f64;
    assert!(answered(&with) > 0.97 * answered(&without), "{with}\n{without}");
}

#[test]
fn a_ping_beside_a_flood_does_not_wait_at_the_uplink() {
    let loads = || vec![datagrams(PEER, A, every(20_000)), datagrams(PEER, B, every(MS))];
    let latency = |manager| looked_at(manager, loads()).loads[1].latency.mean_ns();
    about(latency(true), latency(false), 0.05);
}

const HYPERVISOR_NS: u64 = 300_000;

/// Sends a frame each 20 us to a guest, in a nested hypervisor or not.
fn to_guest(nested: bool, poll_ns: Option<u64>) -> Scenario {
    let mut scenario = host(Kind::Frontend, vec![datagrams(PEER, B, every(20_000))]);
    scenario.run_ns = 300 * MS;
    scenario.guests[1].hypervisor_poll_ns = nested.then_some(HYPERVISOR_NS);
    scenario.guests[1].poll =
        poll_ns.map(|interval_ns| GuestPoll { interval_ns, empty_polls: 1_000, periodic: false });
    scenario
}

#[test]
fn a_frame_waits_for_the_hypervisor_and_then_for_the_guest() {
    let [nested, plain] = [true, false].map(|nested| report(&to_guest(nested, Some(70_000))));
    let mean_ns = |report: &Report| report.loads[0].latency.mean_ns();
    // The mean wait is half of the interval between polls.
    about(mean_ns(&nested) - mean_ns(&plain), HYPERVISOR_NS as f64 / 2.0, 0.1);
    let more = nested.guests[1].interrupts - plain.guests[1].interrupts;
    about(more as f64, (nested.ns / HYPERVISOR_NS) as f64, 0.1);
}

#[test]
fn a_guest_that_does_not_poll_is_called_by_its_hypervisor_and_never_by_weir() {
    let report = report(&to_guest(true, None));
    let polls = report.ns / HYPERVISOR_NS;
    about(report.guests[1].rx_calls as f64, polls as f64, 0.01);
    about(report.guests[1].interrupts as f64, 2.0 * polls as f64, 0.01);
    assert_eq!(report.workers[0].frames, report.guests[1].suppressed, "a frame comes alone");
}

/// An overloaded host with a bit of everything: small rings, a short queue, fewer CPUs than
/// threads.
fn crowded(kind: Kind, seed: u64) -> Scenario {
    let bytes = Distribution::Uniform { min: 60, max: 3_000 };
    let gap = Distribution::Exponential { mean: 1_500 };
    let on_off = Some(OnOff { on_ns: 2 * MS, off_ns: MS });
    let loads = vec![
        load(A, B, LoadKind::Datagrams { bytes: bytes.clone(), gap: gap.clone(), on_off }),
        load(PEER, B, LoadKind::Datagrams { bytes, gap, on_off: None }),
        requests(PEER, A, 8),
        requests(A, B, 2),
        stream(PEER, A, 64),
        stream(B, A, 64),
        stream(A, PEER, 64),
    ];
    let mut scenario = host(kind, loads);
    scenario.seed = seed;
    scenario.topology =
        Topology { sockets: 2, llcs_per_socket: 1, cores_per_llc: 1, threads_per_core: 2 };
    scenario.workers = vec![
        Thread { cpus: vec![0, 1], class: Class::Realtime { priority: 1 } },
        Thread { cpus: Vec::new(), class: FAIR },
    ];
    scenario.rivals = vec![Thread { cpus: Vec::new(), class: FAIR }; 2];
    for guest in &mut scenario.guests {
        guest.cpus.clear();
        (guest.rx_ring, guest.tx_ring, guest.queue_max) = (16, 32, 40);
    }
    scenario.uplinks[0].queue_max = 20;
    scenario.uplinks[0].ring = 30;
    scenario.uplinks[0].hold_ns = 30_000;
    (scenario.warm_up_ns, scenario.run_ns) = (5 * MS, 30 * MS);
    scenario
}

#[test]
fn no_frame_is_lost_no_flow_reordered_and_no_hold_too_long_under_any_policy() {
    for &kind in Kind::ALL {
        for seed in 0..3 {
            let report = report(&crowded(kind, seed));
            let received: u64 = report.loads.iter().map(|load| load.received).sum();
            assert!(received > 1_000 && !report.drops.is_empty(), "{report}");
        }
    }
}

/// A host like that of [`crowded`], changed at random.
fn random(seed: u64) -> Scenario {
    let mut random = Random::stream(seed, u64::MAX);
    let mut scenario = crowded(Kind::Auto, seed);
    for guest in &mut scenario.guests {
        guest.rx_ring = 2 << random.below(9);
        guest.tx_ring = 2 << random.below(9);
        guest.buffer_bytes = 256 << random.below(9);
        guest.queue_max = random.below(100) as usize;
        guest.calls.kind = Kind::ALL[random.below(Kind::ALL.len() as u64) as usize];
        guest.calls.latency_budget_ns = random.below(2 * MS);
        guest.calls.rx_ns = (random.below(2) == 0).then(|| random.below(MS));
        guest.calls.rx_frames = (random.below(3) == 0).then(|| 1 + random.below(64) as u32);
        let interval_ns = 1 + random.below(MS);
        let poll =
            GuestPoll { interval_ns, empty_polls: 2, periodic: !interval_ns.is_multiple_of(2) };
        guest.poll = (random.below(3) == 0).then_some(poll);
    }
    let uplink = &mut scenario.uplinks[0];
    uplink.hold_ns = random.below(2) * random.below(500_000);
    (uplink.ring, uplink.queue_max) = (1 + random.below(300) as usize, random.below(50) as usize);
    scenario.profile.uplink_take_ns = random.below(3_000);
    scenario.profile.receive_ns = random.below(3_000);
    scenario.profile.timer_late_ns = random.below(300_000);
    scenario.rivals.truncate(random.below(3) as usize);
    scenario.workers.truncate(1 + random.below(2) as usize);
    scenario.loads.retain(|_| random.below(3) > 0);
    scenario.guests.iter_mut().for_each(|guest| guest.lro = random.below(2) > 0);
    scenario.first_worker = (random.below(2) > 0).then_some(0);
    scenario.start_ns = random.below(MS);
    (scenario.warm_up_ns, scenario.run_ns) = (random.below(MS), 10 * MS);
    scenario
}

#[test]
fn hosts_by_chance_keep_every_invariant() {
    for seed in 0..200 {
        if let Err(error) = run(&random(seed)) {
            panic!("seed {seed}: {error}");
        }
    }
}

#[test]
fn frames_are_conserved_after_every_event() {
    let mut scenario = crowded(Kind::Auto, 1);
    scenario.check_each_event = true;
    report(&scenario);
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_seed_others() {
    let printed = |seed| report(&crowded(Kind::Auto, seed)).to_string();
    let first = printed(1);
    assert_eq!(first, printed(1));
    assert_ne!(first, printed(2));
}

#[test]
fn what_makes_no_sense_is_refused_with_its_place() {
    let refused = |change: &dyn Fn(&mut Scenario)| {
        let mut scenario = host(Kind::Auto, vec![datagrams(A, B, every(1_000))]);
        change(&mut scenario);
        match run(&scenario) {
            Err(Error::Scenario(error)) => error,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(refused(&|it| it.workers.clear()), ScenarioError::NoWorker);
    assert_eq!(refused(&|it| it.topology.sockets = 0), ScenarioError::Cpus);
    let error = refused(&|it| it.first_worker = Some(1));
    assert_eq!(error, ScenarioError::NoSuchWorker { worker: 1, workers: 1 });
    let error = refused(&|it| it.guests[1].cpus.push(3)).to_string();
    assert_eq!(error, "b may run on CPU 3, and the host has 3");
    let error = refused(&|it| it.loads[0].to = Endpoint::Guest(2)).to_string();
    assert!(error.contains("there is no Guest(2)"), "{error}");
    let error = refused(&|it| it.loads[0].to = A).to_string();
    assert!(error.contains("has one endpoint as source and destination"), "{error}");
    let error = refused(&|it| it.loads[0] = datagrams(A, B, every(0))).to_string();
    assert!(error.contains("`gap`: it has no value above 0"), "{error}");
    let error = refused(&|it| it.guests[0].rx_ring = 1).to_string();
    assert_eq!(error, "a: `rx_ring` is 1; it must lie between 2 and 32768");
    let never: Vec<Load> = vec![load(A, B, LoadKind::Stream { segment_bytes: 5, window: 1 })];
    let error = refused(&|it| it.loads.clone_from(&never)).to_string();
    assert!(error.contains("`segment_bytes` is 5"), "{error}");
}

#[test]
fn a_run_ends_where_it_has_had_its_events() {
    let scenario = host(Kind::Auto, vec![datagrams(A, B, every(10_000))]);
    let events = report(&scenario).events;
    let within = |events_max| run_within(&scenario, events_max).map(|report| report.events);
    assert_eq!(within(events), Ok(events));
    assert_eq!(within(events - 1), Err(Error::TooLong { events: events - 1 }));
    assert!(events < estimate::events(&scenario));
}
