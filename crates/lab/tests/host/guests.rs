//! Interrupts, rings and CPUs.

use weir_lab::DropReason;
use weir_lab::scenario::{GuestPoll, Thread};
use weir_policy::moderation::Kind;

use super::*;

#[test]
fn the_latency_of_a_lone_frame_is_the_sum_of_what_lies_on_its_way() {
    let report = report(&host(Kind::Immediate, vec![datagrams(PEER, B, every(MS))]));
    let it = Profile::example();
    let wire = (64 + 24) * 8 / 10;
    let wakes = it.wakeup_latency_ns + it.sleep_ns + it.uplink_interrupt_ns;
    let copies = 2 * (64 * it.copy_ps_per_byte / 1_000);
    let frame = it.uplink_take_ns + it.classify_ns + it.place_ns + it.publish_ns + copies;
    let stack = it.receive_ns + 64 * it.receive_ps_per_byte / 1_000;
    let guest = it.wakeup_latency_ns + it.interrupt_ns + stack;
    let sum = wire + DELAY_NS + wakes + it.burst_ns + frame + guest;
    assert_eq!(report.loads[0].latency.max_ns(), sum);
    assert_eq!(report.loads[0].latency.mean_ns(), sum as f64);
}

#[test]
fn back_end_coalescing_gives_a_call_for_each_hold_and_no_more() {
    const GAP_NS: u64 = 10_000;
    let calls_a_second = |kind, hold_ns| {
        let mut scenario = host(kind, vec![datagrams(PEER, B, every(GAP_NS))]);
        scenario.guests[1].calls.rx_ns = Some(hold_ns);
        let report = report(&scenario);
        assert_eq!((report.guests[1].late, report.drops.len()), (0, 0), "{report}");
        (report.per_s(report.guests[1].rx_calls), report.cpus(report.guests[1].cpu_ns))
    };
    let (immediate, most_cpu) = calls_a_second(Kind::Immediate, 0);
    let mut cpu_before = most_cpu;
    for hold_ns in [50_000, 100_000, 200_000] {
        let (calls, cpu) = calls_a_second(Kind::Backend, hold_ns);
        // The next hold begins with the first frame after the call, which needs a timer and a
        // wake-up.
        let period_ns = 1e9 / calls;
        let range = hold_ns as f64..=(hold_ns + GAP_NS + 5_000) as f64;
        assert!(range.contains(&period_ns), "{hold_ns} ns: {period_ns} ns from call to call");
        assert!(calls < immediate / 5.0 && cpu < cpu_before, "{hold_ns} ns: {calls}, {cpu} CPUs");
        cpu_before = cpu;
    }
}

#[test]
fn a_guest_that_polls_takes_no_calls() {
    let mut scenario = host(Kind::Frontend, vec![datagrams(PEER, B, every(5_000))]);
    // After each poll of some twenty frames the timer restarts, or keeps its period.
    for (periodic, period_ns) in [(false, 118_000.0), (true, 100_000.0)] {
        scenario.guests[1].poll =
            Some(GuestPoll { interval_ns: 100_000, empty_polls: 2, periodic });
        let report = report(&scenario);
        let guest = &report.guests[1];
        assert_eq!(guest.rx_calls, 0, "{report}");
        about(report.per_s(guest.interrupts), 1e9 / period_ns, 0.05);
    }
    // A guest that polls for longer is still interrupted by a timer of that kind.
    scenario.profile.receive_ns = 4_500;
    let polls_on = report(&scenario);
    about(polls_on.per_s(polls_on.guests[1].interrupts), 1e4, 0.05);
}

#[test]
fn an_uplink_that_gathers_wakes_the_worker_once_for_each_time() {
    let wakeups = |hold_ns| {
        let mut scenario = host(Kind::Immediate, vec![datagrams(PEER, B, every(20_000))]);
        scenario.uplinks[0].hold_ns = hold_ns;
        let report = report(&scenario);
        report.per_s(report.workers[0].wakeups)
    };
    about(wakeups(0), 1e9 / 20_000.0, 0.01);
    about(wakeups(110_000), 1e9 / 120_000.0, 0.01);
}

#[test]
fn requests_that_wait_for_answers_are_not_slowed_down_by_auto() {
    for (from, to, outstanding) in [(A, B, 1), (PEER, B, 1), (A, PEER, 1), (A, B, 4)] {
        let answers = |kind| {
            let mut scenario = host(kind, vec![requests(from, to, outstanding)]);
            (scenario.warm_up_ns, scenario.run_ns) = (200 * MS, 300 * MS);
            report(&scenario).loads[0].received as f64
        };
        let (immediate, auto) = (answers(Kind::Immediate), answers(Kind::Auto));
        let slower = 1.0 - auto / immediate;
        assert!(slower < 0.05, "{outstanding} {from:?} to {to:?}: {:.1} %", 100.0 * slower);
    }
}

#[test]
fn a_program_at_work_does_not_keep_frames_from_the_stack() {
    let mut scenario =
        host(Kind::Immediate, vec![datagrams(PEER, B, every(100_000)), requests(PEER, B, 1)]);
    if let LoadKind::Requests { serve_ns, .. } = &mut scenario.loads[1].kind {
        *serve_ns = MS;
    }
    let report = report(&scenario);
    assert!(report.loads[0].latency.max_ns() < 50_000, "{report}");
    // The request takes its millisecond, plus the interrupts in that time.
    let answered_ns = report.loads[1].latency.mean_ns();
    assert!((1.0..1.2).contains(&(answered_ns / MS as f64)), "{answered_ns} ns");
}

#[test]
fn auto_saves_calls_where_nobody_waits() {
    let calls = |kind| {
        let mut scenario = host(kind, vec![datagrams(PEER, B, every(5_000))]);
        scenario.warm_up_ns = 100 * MS;
        let report = report(&scenario);
        assert_eq!(report.guests[1].late, 0);
        report.guests[1].rx_calls
    };
    assert!(calls(Kind::Auto) < calls(Kind::Immediate) / 10);
}

#[test]
fn a_guest_that_is_too_slow_receives_what_its_cpu_can_and_the_rest_is_dropped() {
    let mut scenario = host(Kind::Immediate, vec![datagrams(PEER, B, every(400))]);
    scenario.profile.uplink_take_ns = 100;
    let (report, it) = (report(&scenario), scenario.profile);
    // weir waits for buffers, so the guest kicks whenever it has refilled a poll's worth.
    let frame_ns = it.receive_ns + 64 * it.receive_ps_per_byte / 1_000 + it.kick_ns / 64;
    about(report.per_s(report.guests[1].received), 1e9 / frame_ns as f64, 0.01);
    assert!(report.drops.iter().any(|(reason, _)| *reason == DropReason::RxRingFull), "{report}");
    about(report.cpus(report.guests[1].cpu_ns), 1.0, 0.01);
}

#[test]
fn a_worker_that_is_too_slow_loses_frames_at_the_uplink() {
    let mut scenario = host(Kind::Immediate, vec![datagrams(PEER, B, every(1_000))]);
    scenario.profile.uplink_take_ns = 2_000;
    let report = report(&scenario);
    assert_eq!(report.drops.len(), 1, "{report}");
    assert_eq!(report.drops[0].0, DropReason::UplinkRingFull);
    about(report.cpus(report.workers[0].cpu_ns), 1.0, 0.01);
}

#[test]
fn a_sender_that_is_too_fast_for_its_cpu_drops_in_its_own_memory() {
    let report = report(&host(Kind::Immediate, vec![datagrams(A, PEER, every(100))]));
    assert_eq!(report.drops.len(), 1, "{report}");
    assert_eq!(report.drops[0].0, DropReason::SenderQueueFull);
    about(report.cpus(report.guests[0].cpu_ns), 1.0, 0.01);
}

#[test]
fn parked_frames_of_one_receiver_do_not_hold_up_those_for_another() {
    // Another thread takes B's CPU for good; A sends to B and to the peer.
    let loads = vec![datagrams(A, B, every(10_000)), datagrams(A, PEER, every(10_000))];
    let mut scenario = host(Kind::Immediate, loads);
    scenario.rivals = vec![Thread { cpus: vec![2], class: Class::Realtime { priority: 9 } }];
    scenario.warm_up_ns = 150 * MS;
    let report = report(&scenario);
    assert_eq!(report.loads[0].received, 0, "{report}");
    about(report.per_s(report.loads[1].received), 100_000.0, 0.01);
    // Frames for B wait in A's ring, are retried, and are dropped in the end.
    assert!(report.drops.iter().any(|(_, frames)| *frames > 1_000), "{report}");
}

#[test]
fn a_rival_of_the_same_weight_halves_a_guest_and_one_of_less_takes_less() {
    for (weight, share) in [(WEIGHT_USUAL, 0.5), (WEIGHT_USUAL / 4, 0.8)] {
        let mut scenario = host(Kind::Immediate, vec![datagrams(A, B, every(100))]);
        scenario.rivals = vec![Thread { cpus: vec![1], class: Class::Fair { weight } }];
        scenario.run_ns = 300 * MS;
        let report = report(&scenario);
        about(report.cpus(report.guests[0].cpu_ns), share, 0.03);
    }
}

#[test]
fn a_sibling_at_work_makes_a_guest_slower_and_another_cache_makes_frames_dearer() {
    let received = |topology: Topology, cpus: [usize; 2]| {
        let mut scenario = host(Kind::Immediate, vec![datagrams(PEER, B, every(400))]);
        scenario.topology = topology;
        scenario.workers[0].cpus = vec![cpus[0]];
        scenario.guests[1].cpus = vec![cpus[1]];
        scenario.guests[0].cpus.clear();
        let report = report(&scenario);
        report.per_s(report.guests[1].received)
    };
    let near = received(Topology::flat(4), [0, 1]);
    let smt = Topology { threads_per_core: 2, ..Topology::flat(2) };
    // The worker is busy, but not always.
    assert!(received(smt, [0, 1]) < 0.75 * near, "shares a core");
    let caches = Topology { llcs_per_socket: 2, ..Topology::flat(2) };
    let it = Profile::example();
    let frame_ns = it.receive_ns + 64 * it.receive_ps_per_byte / 1_000;
    let slower = frame_ns as f64 / (frame_ns + it.far_cache_ns) as f64;
    about(received(caches, [0, 2]), slower * near, 0.05);
}
