//! Segments that a guest's driver merges.

use weir_policy::moderation::Kind;

use super::*;

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
