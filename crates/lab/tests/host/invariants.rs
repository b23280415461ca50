//! Invariants of every run.

use weir_lab::cpus::Class;
use weir_lab::estimate;
use weir_lab::host::{Error, run, run_within};
use weir_lab::random::{Distribution, Random};
use weir_lab::scenario::{GuestPoll, Load, LoadKind, OnOff, Scenario, ScenarioError, Thread};
use weir_lab::topology::Topology;
use weir_policy::moderation::Kind;

use super::*;

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
