//! Polling workers, few identifiers, two hosts, placement.

use weir_lab::realization::{Identifiers, Placement};
use weir_policy::placement::Policy;

use super::*;

/// Builds two hosts with a worker and `guests` guests each; guest i of the first asks guest i of
/// the second.
fn twins(guests: usize, realization: Realization) -> Scenario {
    let asks = |guest| Load {
        kind: LoadKind::Requests {
            outstanding: 1,
            request_bytes: 64,
            answer_bytes: 64,
            think: Distribution::Constant(MS),
            serve_ns: 0,
        },
        ..load(
            Endpoint::Guest(guest),
            Endpoint::Guest(guests + guest),
            LoadKind::Stream { segment_bytes: 64, window: 1 },
        )
    };
    let one = host(Kind::Immediate, Vec::new());
    let each = guests + 1;
    let guest = |at: usize| {
        let cpu = (at / guests) * each + 1 + at % guests;
        Guest::new(&format!("guest{at}"), &[cpu], calls(Kind::Immediate))
    };
    Scenario {
        topology: Topology {
            sockets: 2,
            llcs_per_socket: 1,
            cores_per_llc: each,
            threads_per_core: 1,
        },
        workers: [0, each].map(|cpu| Thread { cpus: vec![cpu], class: FAIR }).into(),
        guests: (0..2 * guests).map(guest).collect(),
        uplinks: vec![one.uplinks[0].clone(), one.uplinks[0].clone()],
        realization: Realization { twins: true, ..realization },
        loads: (0..guests).map(asks).collect(),
        ..one
    }
}

/// Returns the cost of a 64-byte probe from its sender's ring to its reader, without the worker's
/// wake-up and the call (ns).
fn one_way_ns(it: &Profile) -> u64 {
    let copy = 64 * it.copy_ps_per_byte / 1_000;
    let wire = (64 + 24) * 8 / 10 + DELAY_NS;
    let out = it.burst_ns + it.take_ns + it.classify_ns + it.uplink_place_ns + copy + it.publish_ns;
    let into =
        it.burst_ns + it.uplink_take_ns + it.classify_ns + it.place_ns + 2 * copy + it.publish_ns;
    let stack = it.receive_ns + 64 * it.receive_ps_per_byte / 1_000;
    out + wire + into + it.wakeup_latency_ns + it.interrupt_ns + stack
}

fn send_ns(it: &Profile) -> u64 {
    it.send_ns + 64 * it.send_ps_per_byte / 1_000
}

#[test]
fn a_polling_worker_adds_two_looks_to_what_lies_on_a_round_trip() {
    let report = report(&twins(1, Realization { dedicated: true, ..Realization::default() }));
    let it = Profile::example();
    // The worker looks at two warm queues: the guest's and the uplink's.
    let look = it.look_ns * 3 / 2;
    let way = send_ns(&it) + one_way_ns(&it) + 2 * look;
    // The server finds its ring empty before it answers.
    let latency = &report.loads[0].latency;
    assert_eq!(latency.max_ns(), 2 * way + it.poll_end_ns, "{report}");
    assert!(report.guests.iter().all(|guest| guest.late == 0), "{report}");
    assert!(report.workers.iter().all(|worker| report.cpus(worker.cpu_ns) > 0.999), "{report}");
}

#[test]
fn sharing_an_identifier_wakes_guests_in_vain() {
    // Guest 2 of two asks. Guest 1 is signalled before it on either host, on a CPU of its own.
    let waits = |count| {
        let identifiers = Some(Identifiers { count, cpu: 0 });
        let mut scenario =
            twins(2, Realization { identifiers, dedicated: true, ..Realization::default() });
        scenario.loads.remove(0);
        report(&scenario)
    };
    let (apart, shared) = (waits(2), waits(1));
    assert_eq!(apart.guests[0].interrupts, 0, "{apart}");
    assert!(shared.guests[0].interrupts > 0 && shared.guests[0].received == 0, "{shared}");
    let signal_ns = Profile::example().signal_far_ns;
    assert_eq!((apart.demux.max_ns(), shared.demux.max_ns()), (signal_ns, 2 * signal_ns));
    let more = |report: &Report| report.loads[0].latency.max_ns();
    // Once on each way, and the handlers share the workers' CPU.
    assert!(more(&shared) >= more(&apart) + 2 * signal_ns, "{shared}");
}

#[test]
fn a_worker_apart_serves_the_uplink_alone() {
    let mut scenario = twins(1, Realization { uplink_apart: true, ..Realization::default() });
    scenario.topology.cores_per_llc = 3;
    scenario.workers = [0, 1, 3, 4].map(|cpu| Thread { cpus: vec![cpu], class: FAIR }).into();
    scenario.guests[0].cpus = vec![2];
    scenario.guests[1].cpus = vec![5];
    let report = report(&scenario);
    let frames: Vec<u64> = report.workers.iter().map(|worker| worker.frames).collect();
    // The first worker of each host sends, the last receives.
    assert!(frames.iter().all(|it| it.abs_diff(frames[0]) <= 1) && frames[0] > 10, "{report}");
    assert!(report.workers[1].waits.count() == 0 && report.workers[0].waits.count() > 10);
}

/// Builds two sockets of four cores, with a worker on one and a receiving guest on the other.
fn apart(policy: Policy, pin_vcpus: bool) -> Scenario {
    let mut scenario = host(Kind::Immediate, vec![datagrams(PEER, A, every(10_000))]);
    scenario.guests.truncate(1);
    scenario.topology = Topology { sockets: 2, ..Topology::flat(4) };
    scenario.workers[0].cpus = vec![0];
    scenario.guests[0].cpus = vec![4];
    let placement = Some(Placement { policy, look_ns: 500 * MS, pin_vcpus });
    scenario.realization = Realization { placement, ..Realization::default() };
    scenario.warm_up_ns = 5_000 * MS;
    scenario
}

#[test]
fn a_placer_brings_a_worker_into_the_cache_of_whom_it_serves() {
    let it = Profile::example();
    for policy in [Policy::Static, Policy::Dynamic] {
        let placed = apart(policy, false);
        let alone = Scenario { realization: Realization::default(), ..placed.clone() };
        let (alone, placed) = (report(&alone), report(&placed));
        let latency = |report: &Report| report.loads[0].latency.mean_ns();
        assert_eq!(latency(&alone) - latency(&placed), it.far_socket_ns as f64, "{policy:?}");
    }
}

#[test]
fn threads_that_ignore_caches_are_near_as_often_as_chance_has_it() {
    let mut scenario = apart(Policy::Static, false);
    scenario.realization = Realization { cache_blind: true, ..Realization::default() };
    (scenario.workers[0].cpus, scenario.guests[0].cpus) = (vec![], vec![]);
    scenario.profile.scheduling.socket_refill_ns = 0;
    scenario.profile.scheduling.switch_ns = 0;
    let blind = report(&scenario);
    scenario.topology = Topology::flat(8);
    let near = report(&scenario);
    let latency = |report: &Report| report.loads[0].latency.mean_ns();
    // The worker sleeps after its call, so all CPUs are idle, and half of them are near.
    let far_ns = Profile::example().far_socket_ns as f64 / 2.0;
    about(latency(&blind) - latency(&near), far_ns, 0.1);
}

#[test]
fn a_guest_that_polls_pays_a_look_for_a_wake_up_and_an_interrupt() {
    let waits = |guests_poll| {
        report(&twins(1, Realization { dedicated: true, guests_poll, ..Realization::default() }))
    };
    let (called, polls) = (waits(false), waits(true));
    let it = Profile::example();
    let saved = it.wakeup_latency_ns + it.interrupt_ns - it.look_ns;
    let latency = |report: &Report| report.loads[0].latency.max_ns();
    // The guests save this once on each way. The server does not ask for calls before it answers.
    assert_eq!(latency(&called) - latency(&polls), 2 * saved + it.poll_end_ns, "{polls}");
    assert!(polls.guests.iter().all(|guest| polls.cpus(guest.cpu_ns) > 0.999), "{polls}");
    assert_eq!(polls.guests[0].rx_calls, 0, "{polls}");
}
