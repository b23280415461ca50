//! The manager, which may hold all guests' calls together.

use weir_policy::moderation::Kind;

use super::*;

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
