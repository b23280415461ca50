//! Polling workers, few identifiers, two hosts, placement; guests that are threads of weir's driver, and a measured
//! machine's extras: tails, half sleeps, early timers.

use weir_lab::realization::{Identifiers, Placement};
use weir_lab::scenario::Thread;
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
    // Guest 2 of two asks. Guest 1 is signalled before it on either host, on its own CPU.
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
    // The signal is sent once on each way, and its handlers share the workers' CPU.
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

fn report(scenario: &Scenario) -> Report {
    run(scenario).unwrap()
}

/// Builds a sender whose frames are due every 20 us.
fn paced(kind: Kind) -> Scenario {
    let mut scenario = host(kind, vec![datagrams(A, B, every(20_000))]);
    scenario.realization = Realization {
        guests_are_threads: true,
        tx_calls_when_full: true,
        ..Realization::default()
    };
    scenario
}

#[test]
fn a_sender_whose_timers_are_late_sends_all_that_is_due() {
    let mut scenario = paced(Kind::Immediate);
    let in_time = report(&scenario);
    scenario.profile.timer_late_ns = 200_000;
    let late = report(&scenario);
    for report in [&in_time, &late] {
        let per_s = report.per_s(report.loads[0].received);
        assert!((per_s / 50_000.0 - 1.0).abs() < 0.01, "{per_s}");
    }
    assert!(late.guests[0].kicks * 5 < in_time.guests[0].kicks, "they go together");
    assert!(late.guests[0].cpu_ns < in_time.guests[0].cpu_ns);
}

#[test]
fn frames_count_from_when_their_sender_is_awake() {
    let mut scenario = paced(Kind::Immediate);
    let before = report(&scenario).loads[0].latency.mean_ns();
    scenario.profile.timer_late_ns += 5_000;
    let after = report(&scenario).loads[0].latency.mean_ns();
    assert!((after - before).abs() < 100.0, "{before} {after}");
}

#[test]
fn a_hold_ends_no_later_than_it_should_where_timers_are_set_ahead() {
    let mut scenario = paced(Kind::Backend);
    scenario.profile.timer_late_ns = 30_000;
    let longest = |scenario: &Scenario| report(scenario).guests[1].holds.max_ns();
    let late = longest(&scenario);
    scenario.realization.timers_ahead = true;
    // The first timers show how late they are.
    let ahead = longest(&scenario);
    let hold_ns = weir_policy::moderation::hold_ns_max(250_000);
    assert!(late > hold_ns && ahead <= hold_ns, "{late} {ahead} {hold_ns}");
}

#[test]
fn a_worker_that_awaits_answers_sleeps_through_none_and_pays_for_its_looks() {
    // The other queue answers sooner than a worker polls at most, and later than it polls for a queue's own next frame.
    let mut scenario = host(Kind::Immediate, vec![requests(A, B, 1)]);
    scenario.check_each_event = true;
    let sleeps = report(&scenario);
    scenario.realization.awaits_answers = true;
    let awaits = report(&scenario);
    let each = |report: &Report, count: u64| count as f64 / report.loads[0].received as f64;
    let wakeups = |report: &Report| each(report, report.workers[0].wakeups);
    let cpu_ns = |report: &Report| each(report, report.workers[0].cpu_ns);
    assert!(wakeups(&sleeps) > 0.9 && wakeups(&awaits) < 0.01, "{sleeps} {awaits}");
    assert!(awaits.loads[0].latency.mean_ns() < sleeps.loads[0].latency.mean_ns());
    assert!(awaits.cpus(awaits.workers[0].cpu_ns) > 0.99, "{awaits}");
    assert!(cpu_ns(&awaits) > 2.0 * cpu_ns(&sleeps), "{sleeps} {awaits}");
}

#[test]
fn a_worker_that_falls_asleep_spends_that_and_misses_no_kick() {
    let mut scenario = paced(Kind::Immediate);
    scenario.check_each_event = true;
    let before = report(&scenario);
    scenario.profile.settle_ns = 3_000;
    let after = report(&scenario);
    let more = (after.workers[0].cpu_ns - before.workers[0].cpu_ns) as f64;
    let each = more / after.workers[0].wakeups as f64;
    assert!((each / 3_000.0 - 1.0).abs() < 0.1, "{each}");
    assert_eq!(after.loads[0].received, before.loads[0].received);
}

#[test]
fn a_timer_is_set_once_for_a_hold_however_often_it_is_slept_meanwhile() {
    // Two or three frames come within a hold, too few for naps. They are long, so that their
    // completions are not held.
    let (bytes, gap) = (Distribution::Constant(1_000), every(100_000));
    let load = load(A, B, LoadKind::Datagrams { bytes, gap, on_off: None });
    let mut scenario = host(Kind::Backend, vec![load]);
    scenario.check_each_event = true;
    let before = report(&scenario);
    let (holds, wakeups) = (before.guests[1].rx_calls, before.workers[0].wakeups);
    assert!(2 * holds < wakeups && before.workers[0].naps == 0, "{holds} {before:?}");
    let mut more = |set_ns, fired_ns| {
        (scenario.profile.timer_set_ns, scenario.profile.timer_fired_ns) = (set_ns, fired_ns);
        let after = report(&scenario);
        assert_eq!(after.loads[0].received, before.loads[0].received);
        let more_ns = after.workers[0].cpu_ns - before.workers[0].cpu_ns;
        more_ns as f64 / (3_000 * holds) as f64
    };
    let [set, fired] = [more(3_000, 0), more(0, 3_000)];
    assert!((set - 1.0).abs() < 0.1 && (fired - 1.0).abs() < 0.1, "{set} {fired}");
}

#[test]
fn a_sender_sends_one_at_a_time_even_if_more_becomes_due_while_it_sets_its_timer() {
    let mut scenario = paced(Kind::Immediate);
    scenario.profile.timer_late_ns = 0;
    let before = report(&scenario);
    // The sender is back and has sent one frame. The wait for the next one is shorter than falling
    // asleep takes.
    scenario.profile.timer_set_ns = 15_000;
    let after = report(&scenario);
    assert!(after.guests[0].kicks * 10 > before.guests[0].kicks * 9, "one at a time");
    let more = (after.guests[0].cpu_ns - before.guests[0].cpu_ns) as f64;
    let each = more / after.guests[0].kicks as f64;
    assert!((each / 15_000.0 - 1.0).abs() < 0.1, "{each}");
}

#[test]
fn a_timer_that_fires_while_it_is_set_leaves_its_sender_the_cpu() {
    let mut scenario = paced(Kind::Immediate);
    scenario.guests[0].cpus = vec![1];
    scenario.guests[1].cpus = vec![1];
    // A thread keeps its CPU until it sleeps.
    let scheduling = &mut scenario.profile.scheduling;
    (scheduling.slice_ns, scheduling.granularity_ns) = (1_000_000_000, 1_000_000_000);
    let received = |scenario: &Scenario| report(scenario).loads[0].received;
    let before = received(&scenario);
    scenario.profile.timer_set_ns = 40_000;
    let after = received(&scenario);
    assert!(before > 100 && after < before / 10, "{before} {after}");
}

#[test]
fn what_a_missed_timer_costs_is_spent_for_each() {
    let mut scenario = paced(Kind::Immediate);
    scenario.profile.timer_late_ns = 0;
    scenario.profile.timer_set_ns = 30_000;
    let each = |scenario: &Scenario| {
        let report = report(scenario);
        report.guests[0].cpu_ns as f64 / report.guests[0].kicks as f64
    };
    let before = each(&scenario);
    scenario.profile.timer_missed_ns = scenario.profile.guest_timer_ns + 10_000;
    let more = each(&scenario) - before;
    assert!(more > 9_000.0, "{more}");
}

#[test]
fn a_timer_behind_another_one_of_its_cpu_need_not_be_set() {
    let other = [Endpoint::Guest(2), Endpoint::Guest(3)];
    let mut scenario = paced(Kind::Immediate);
    scenario.loads[0].kind = datagrams(A, B, every(500_000)).kind;
    scenario.profile.timer_set_ns = 10_000;
    scenario.profile.scheduling.switch_ns = 0;
    let of_sender = |scenario: &Scenario| report(scenario).guests[0].cpu_ns;
    let alone = of_sender(&scenario);
    scenario.guests.extend_from_within(..);
    // The added sender's timers are almost always the first.
    scenario.loads.push(datagrams(other[0], other[1], every(37_000)));
    scenario.guests[2].cpus = scenario.guests[0].cpus.clone();
    let beside = of_sender(&scenario);
    assert!(beside < alone, "{alone} {beside}");
}

#[test]
fn interruptions_make_a_tail_and_come_again_with_the_same_seed() {
    let mut scenario = paced(Kind::Immediate);
    let p99 = |scenario: &Scenario| report(scenario).loads[0].latency.quantile_ns(0.99);
    let without = p99(&scenario);
    (scenario.profile.tick_ns, scenario.profile.tick_every_ns) = (40_000, 1_000_000);
    let with = p99(&scenario);
    assert!(with > without + 20_000, "{without} {with}");
    assert_eq!(p99(&scenario), with);
    let report = report(&scenario);
    assert!((report.per_s(report.loads[0].received) / 50_000.0 - 1.0).abs() < 0.01);
}

#[test]
fn sleeps_that_are_short_cost_less_where_that_is_known() {
    let mut scenario = paced(Kind::Immediate);
    let cpu = |scenario: &Scenario| {
        let report = report(scenario);
        [report.guests[1].cpu_ns, report.workers[0].cpu_ns]
    };
    let before = cpu(&scenario);
    scenario.profile.warm_permille = 200;
    let after = cpu(&scenario);
    assert!(after[0] < before[0] && after[1] < before[1], "{before:?} {after:?}");
}

#[test]
fn threads_that_share_a_cpu_need_not_wake_it() {
    let mut scenario = paced(Kind::Immediate);
    scenario.guests[0].cpus = vec![1];
    scenario.guests[1].cpus = vec![1];
    scenario.profile.poll_end_ns = 5_000;
    scenario.profile.guest_timer_ns = 12_000;
    let dear = report(&scenario).guests[1].cpu_ns;
    (scenario.profile.interrupt_busy_ns, scenario.profile.poll_end_busy_ns) = (500, 500);
    let cheap = report(&scenario).guests[1].cpu_ns;
    assert!(cheap < dear, "{cheap} {dear}");
}

#[test]
fn a_tail_of_wake_ups_is_in_the_latencies() {
    let mut scenario = paced(Kind::Immediate);
    let p99 = |scenario: &Scenario| report(scenario).loads[0].latency.quantile_ns(0.99);
    let without = p99(&scenario);
    scenario.profile.wakeup_latency_p99_ns = 40_000;
    assert!(p99(&scenario) > without + 30_000);
}

#[test]
fn a_call_or_kick_that_need_not_wake_up_a_cpu_costs_less() {
    let mut scenario = host(Kind::Immediate, vec![datagrams(A, B, every(200_000))]);
    scenario.profile = Profile { call_ns: 8_000, kick_ns: 8_000, ..scenario.profile };
    let both = |scenario: &mut Scenario| {
        [0, 500].map(|busy_ns| {
            (scenario.profile.call_busy_ns, scenario.profile.kick_busy_ns) = (busy_ns, busy_ns);
            let report = report(scenario);
            (report.workers[0].cpu_ns, report.guests[0].cpu_ns)
        })
    };
    let [dear, cheap] = both(&mut scenario);
    assert_eq!(dear, cheap, "both are asleep, and their CPUs idle");
    scenario.rivals = [0, 2].map(|cpu| Thread { cpus: vec![cpu], class: FAIR }).into();
    let [dear, cheap] = both(&mut scenario);
    assert!(cheap.0 < dear.0 && cheap.1 < dear.1, "{cheap:?} {dear:?}");
}
