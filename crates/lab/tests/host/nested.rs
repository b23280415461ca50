//! A hypervisor around a guest, between weir and it.

use weir_lab::scenario::GuestPoll;
use weir_policy::moderation::Kind;

use super::*;

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
    // Half of the interval of the polls.
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
