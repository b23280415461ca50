//! Streams.
//!
//! Segments that a guest's driver merges.

use weir_policy::moderation::Kind;

use super::*;

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
    // There and back, a segment and the next, with which it is acknowledged, and some 15 us of
    // work.
    let round_ns = 2.0 * 250_000.0 + 2.0 * 12_304.0 + 15_000.0;
    about(report.per_s(report.loads[0].bytes), 10.0 * 1_514.0 * 1e9 / round_ns, 0.05);
}

/// One thread of the client serves two streams in turn: they have the same, though one's window is a quarter of the
/// other's, and the NIC finds both in each of its gatherings.
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
    // Two streams of two threads are as if each had its own.
    assert_eq!(calls(2), apart);
    assert!(in_turn.1 > 0, "{in_turn:?}");
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
