//! `dedicated`: an egress context for each VIF (Raj 2006 §4.3.1).

use weir_policy::dispatch::CORE;

use super::helper::{busy_under, helper};
use super::*;

#[test]
fn vifs_have_no_helper_and_uplinks_have() {
    for uplink in [false, true] {
        let change = |port: &mut FakePort| (port.shares, port.uplink) = (true, uplink);
        let (engine, port, mut step) = busy_under(Realization::Dedicated, change);
        let worker = engine.worker_of(port.id, 0);
        (0..20).for_each(|_| step(CORE));
        assert_eq!(helper(&engine, &port).is_some(), uplink);
        assert_eq!(engine.worker_of(port.id, 0), worker, "nothing is gained by another worker");
    }
}

#[test]
fn two_busy_vifs_of_one_worker_part_and_keep_their_workers() {
    const STEP_NS: u64 = SECOND_NS / 20;
    let (engine, port, mut step) = busy_under(Realization::Dedicated, |port| port.shares = true);
    let other = add(&engine, |port| port.shares = true);
    send(&engine, &other, [frame(3, 2, 0)]);
    let worker = engine.worker_of(port.id, 0).unwrap();
    engine.assign(other.id, 0, worker).unwrap();
    let mut both = |load: u32| {
        let table = engine.shared.ports.load();
        let pair = &table[other.id.index()].as_ref().unwrap().pairs[0];
        pair.busy_ns.add(STEP_NS * u64::from(load) / u64::from(CORE));
        step(load);
    };
    (0..5).for_each(|_| both(CORE / 2));
    assert_ne!(engine.worker_of(port.id, 0), engine.worker_of(other.id, 0));
    let moves = engine.moved().1;
    (0..40).for_each(|_| both(CORE));
    assert_eq!(engine.moved().1, moves, "neither is helped, nor moved again");
}

#[test]
fn frames_for_a_full_receiver_hold_up_their_own_vif_only() {
    let options = Options { realization: Realization::Dedicated, workers: 1, ..Options::default() };
    let engine = Engine::start_with(options).unwrap();
    let vif = || add(&engine, |port| port.peeks = true);
    let (stalls, passes, full, takes) = (vif(), vif(), vif(), vif());
    for (number, receiver) in [(3, &full), (4, &takes)] {
        send(&engine, receiver, [frame(number, 0xff, 0)]);
        eventually("all know it", || numbers(&stalls).len() == usize::from(number) - 2);
    }
    full.room.store(0, Ordering::SeqCst);
    let before = numbers(&takes).len();
    send(&engine, &stalls, (1..=20).map(|n| frame(1, 3, n)));
    eventually("they wait", || stalls.waiting.lock().unwrap().len() == 20);
    for n in 1..=100 {
        // The bursts alternate, interleaved, on the one worker.
        stalls.to_send.lock().unwrap().push_back(frame(1, 4, n));
        passes.to_send.lock().unwrap().push_back(frame(2, 4, n));
        engine.nudge(QueueRef { port: passes.id, queue: 0, side: Side::Tx });
        eventually("both arrive", || numbers(&takes).len() == before + 2 * usize::from(n));
    }
    let of = |sender: u8| {
        let got = takes.got.lock().unwrap();
        let its = got.iter().filter(|(_, frame)| frame[11] == sender && frame[14] > 0);
        its.map(|(_, frame)| frame[14]).collect::<Vec<_>>()
    };
    assert_eq!([of(1), of(2)], [(1..=100).collect::<Vec<_>>(), (1..=100).collect()]);
    assert_eq!(stalls.waiting.lock().unwrap().len(), 20, "nor are those lost that wait");
    full.room.store(100, Ordering::SeqCst);
    engine.nudge(QueueRef { port: full.id, queue: 0, side: Side::Rx });
    eventually("they arrive", || numbers(&full).ends_with(&(1..=20).collect::<Vec<_>>()));
}
