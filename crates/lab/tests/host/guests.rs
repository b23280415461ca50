//! Interrupts, rings and CPUs of guests, streams, and segments that a guest's driver merges.

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

/// Builds a stream over a link of 1 Gbit/s with half a millisecond there and back.
fn over_the_link(window: u32, queue_max: usize) -> Scenario {
    let mut scenario = host(Kind::Immediate, vec![stream(PEER, B, window)]);
    scenario.uplinks[0].bits_per_s = 1_000_000_000;
    scenario.uplinks[0].delay_ns = 250_000;
    scenario.uplinks[0].queue_max = queue_max;
    (scenario.warm_up_ns, scenario.run_ns) = (100 * MS, 500 * MS);
    scenario
}

/// Throughput of the link with frames of 1514 bytes (bytes a second).
const LINK: f64 = 125e6 * 1_514.0 / (1_514.0 + 24.0);

#[test]
fn a_stream_with_a_wide_window_fills_the_link() {
    let report = report(&over_the_link(200, 1_000));
    about(report.per_s(report.loads[0].bytes), LINK, 0.01);
    assert_eq!((report.loads[0].retransmits, report.drops.len()), (0, 0), "{report}");
}

#[test]
fn a_stream_with_a_narrow_window_has_one_window_in_each_round() {
    let mut scenario = over_the_link(10, 1_000);
    // The budget is too short for naps.
    scenario.guests.iter_mut().for_each(|guest| guest.calls.latency_budget_ns = 20_000);
    let report = report(&scenario);
    // A round: there and back, a segment and the next one, with which it is acknowledged, and some
    // 15 us of work.
    let round_ns = 2.0 * 250_000.0 + 2.0 * 12_304.0 + 15_000.0;
    about(report.per_s(report.loads[0].bytes), 10.0 * 1_514.0 * 1e9 / round_ns, 0.05);
}

/// One thread of the client serves two streams in turn. Both get the same throughput, although the
/// window of one is a quarter of the other's, and the NIC finds frames of both in each of its
/// gatherings.
#[test]
fn a_client_that_serves_streams_in_turn_waits_for_the_slowest() {
    let calls = |client_threads| {
        let mut scenario = over_the_link(200, 1_000);
        scenario.loads.push(stream(PEER, A, 50));
        scenario.uplinks[0].hold_ns = 250_000;
        scenario.realization.client_threads = client_threads;
        let report = report(&scenario);
        let bytes = |at: usize| report.loads[at].bytes as f64;
        (bytes(0) / bytes(1), report.guests.iter().map(|guest| guest.rx_calls).sum::<u64>())
    };
    let (apart, in_turn) = (calls(0), calls(1));
    assert!(apart.0 > 2.0, "each by its own window: {apart:?}");
    about(in_turn.0, 1.0, 0.01);
    // With two threads, each of two streams behaves as with its own thread.
    assert_eq!(calls(2), apart);
    assert!(in_turn.1 > 0, "{in_turn:?}");
}

/// Two sockets of one client, each with room for some 70 frames, write half a buffer in turn. The
/// NIC's interrupts find frames of one or two of them. With senders at a rate, they find frames of
/// both each time.
#[test]
fn who_writes_until_the_buffer_is_full_sends_trains() {
    let report_of = |client_threads, kind: &dyn Fn() -> LoadKind| {
        let mut scenario = over_the_link(1, 1_000);
        scenario.realization.client_threads = client_threads;
        scenario.loads = vec![load(PEER, A, kind()), load(PEER, B, kind())];
        scenario.uplinks[0].hold_ns = 100_000;
        report(&scenario)
    };
    let socket = || LoadKind::Socket { bytes: 1_514, buffer_bytes: 124_928 };
    let trains = report_of(0, &socket);
    let rate = report_of(0, &|| LoadKind::Datagrams {
        bytes: Distribution::Constant(1_514),
        gap: every(2 * 12_304),
        on_off: None,
    });
    let sum = |report: &Report| report.loads.iter().map(|load| load.bytes).sum::<u64>();
    about(trains.per_s(sum(&trains)), LINK, 0.01);
    about(trains.loads[0].bytes as f64 / trains.loads[1].bytes as f64, 1.0, 0.02);
    // 71 frames of 1768 bytes fill the buffer, which is half free when 36 have left. In 100 us come 8.
    let calls = |report: &Report| report.guests.iter().map(|guest| guest.rx_calls).sum::<u64>();
    about(calls(&trains) as f64 / calls(&rate) as f64, (1.0 + 8.1 / 36.0) / 2.0, 0.1);
    assert_eq!(trains.drops.len(), 0, "{trains}");
    // One thread of the client writes to both in turn, and sleeps while the one whose turn it is has no room.
    let in_turn = report_of(1, &socket);
    about(in_turn.per_s(sum(&in_turn)), LINK, 0.01);
    about(calls(&in_turn) as f64 / calls(&rate) as f64, 1.0, 0.1);
    assert_eq!(calls(&report_of(2, &socket)), calls(&trains), "as if each had its own");
}

#[test]
fn a_writer_goes_on_after_its_own_link_has_dropped_a_frame() {
    let mut scenario = over_the_link(1, 20);
    scenario.loads = vec![load(PEER, A, LoadKind::Socket { bytes: 1_514, buffer_bytes: 124_928 })];
    let report = report(&scenario);
    assert!(report.drops[0].1 > 100, "{report}");
    // 21 frames pass in each millisecond.
    about(report.per_s(report.loads[0].bytes), 21.0 * 1_514.0 * 1e3, 0.05);
}

/// A kernel's tick costs an interrupt each time, and a poll timer of the same pace is the tick.
#[test]
fn a_guest_has_its_tick_whether_it_polls_or_not() {
    let of = |tick_ns, interval_ns| {
        let mut scenario = host(Kind::Immediate, Vec::new());
        scenario.guests.truncate(1);
        scenario.guests[0].tick_ns = tick_ns;
        let poll = GuestPoll { interval_ns, empty_polls: 1_000, periodic: true };
        scenario.guests[0].poll = (interval_ns > 0).then_some(poll);
        let one = datagrams(PEER, A, every(20 * MS));
        scenario.loads = vec![one];
        report(&scenario).guests[0].interrupts
    };
    // 50 ms, and two or three frames with an interrupt each.
    assert!((2..=3).contains(&of(None, 0)));
    assert!((52..=54).contains(&of(Some(MS), 0)));
    assert!((49..=51).contains(&of(Some(MS), MS)));
    assert!((148..=153).contains(&of(Some(MS), MS / 2)), "a timer beside the tick");
}

#[test]
fn losses_are_found_sent_again_and_leave_most_of_the_link() {
    let report = report(&over_the_link(1_000, 60));
    let (load, drops) = (&report.loads[0], &report.drops);
    assert!(load.retransmits > 0 && !drops.is_empty(), "{report}");
    // Each dropped segment was sent again; few others were.
    let dropped: u64 = drops.iter().map(|(_, frames)| frames).sum();
    assert!((dropped..=2 * dropped + 100).contains(&load.retransmits), "{report}");
    assert!(report.per_s(load.bytes) > 0.75 * LINK, "{report}");
}

#[test]
fn a_stream_goes_on_after_its_receiver_was_away() {
    // Nothing gets through at first, since the guest's thread waits for its CPU.
    let mut scenario = over_the_link(50, 1_000);
    scenario.guests[1].rx_ring = 16;
    scenario.guests[1].cpus = vec![1];
    scenario.guests[0].cpus = vec![1];
    scenario.loads.push(datagrams(A, PEER, every(500)));
    let report = report(&scenario);
    assert!(report.loads[0].bytes > 1_000_000, "{report}");
}

#[test]
fn auto_costs_a_stream_from_outside_no_more_than_a_twentieth() {
    for window in [20, 200] {
        let bytes = |kind| {
            let mut scenario = host(kind, vec![stream(PEER, B, window)]);
            (scenario.warm_up_ns, scenario.run_ns) = (300 * MS, 200 * MS);
            report(&scenario).loads[0].bytes as f64
        };
        let (immediate, auto) = (bytes(Kind::Immediate), bytes(Kind::Auto));
        assert!(auto > 0.95 * immediate, "{window} segments: {auto} bytes of {immediate}");
    }
}

#[test]
fn segments_that_wait_for_buffers_are_looked_at_again_and_not_copied() {
    let mut scenario = host(Kind::Immediate, vec![stream(A, B, 64)]);
    let LoadKind::Stream { segment_bytes, .. } = &mut scenario.loads[0].kind else { panic!() };
    *segment_bytes = 65_000;
    // The receiver's processor is the limit.
    scenario.profile.receive_ns = 30_000;
    let report = report(&scenario);
    // The ring has room for 16 of the window's 64 segments.
    assert_eq!(report.guests[1].in_ring_max, 16, "{report}");
    let segments = report.loads[0].bytes / 65_000;
    let forward_ns = scenario.profile.forward_ns(65_000, false, false);
    let ns = report.workers[0].cpu_ns / segments;
    assert!(ns < 2 * forward_ns, "{ns} ns of a worker's for a segment, {forward_ns} to forward it");
}

/// A stream whose whole window the NIC gathers and shows at once.
fn in_trains(window: u32, lro: bool) -> Scenario {
    let mut scenario = host(Kind::Immediate, vec![stream(PEER, B, window)]);
    scenario.uplinks[0].hold_ns = 200_000;
    scenario.guests[1].lro = lro;
    (scenario.warm_up_ns, scenario.run_ns) = (100 * MS, 200 * MS);
    scenario
}

/// Returns the numbers of segments and acknowledgements read.
fn segments_and_acks(report: &Report) -> (u64, u64) {
    let segments = report.guests[1].received;
    (segments, report.loads[0].received - segments)
}

#[test]
fn a_train_is_acknowledged_once_and_goes_through_the_stack_once() {
    const WINDOW: u32 = 16;
    let report = report(&in_trains(WINDOW, true));
    let (segments, acks) = segments_and_acks(&report);
    about(segments as f64, f64::from(WINDOW) * acks as f64, 0.01);
    assert_eq!(report.guests[1].rx_calls, acks);
    // The guest's whole work for a train.
    let it = Profile::example();
    let bytes = |bytes: u64, ps: u64| bytes * ps / 1_000;
    let segment = bytes(1_514, it.receive_ps_per_byte);
    let merged = u64::from(WINDOW - 1) * (it.merge_ns + segment);
    let ack = it.send_ns + bytes(66, it.send_ps_per_byte) + it.kick_ns;
    let train =
        it.interrupt_ns + it.receive_ns + segment + merged + it.poll_end_ns + ack + it.interrupt_ns;
    about(report.guests[1].cpu_ns as f64, (train * acks) as f64, 0.02);
}

#[test]
fn without_it_every_second_segment_is_acknowledged() {
    let (segments, acks) = segments_and_acks(&report(&in_trains(16, false)));
    about(segments as f64, 2.0 * acks as f64, 0.01);
}

#[test]
fn what_is_merged_has_no_more_than_an_ip_packet_may() {
    // 43 segments of 1514 bytes fit into 65535, and 60 do not.
    let (segments, acks) = segments_and_acks(&report(&in_trains(60, true)));
    about(segments as f64, 30.0 * acks as f64, 0.01);
}

#[test]
fn losses_are_found_through_merged_segments() {
    let mut scenario = in_trains(1_000, true);
    (scenario.uplinks[0].bits_per_s, scenario.uplinks[0].queue_max) = (1_000_000_000, 60);
    scenario.run_ns = 500 * MS;
    let report = report(&scenario);
    assert!(report.loads[0].retransmits > 0, "{report}");
    let link = 125e6 * 1_514.0 / (1_514.0 + 24.0);
    assert!(report.per_s(report.loads[0].bytes) > 0.5 * link, "{report}");
}
