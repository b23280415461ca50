//! A queue that two workers serve, and `dedicated`: an egress context for each VIF (Raj 2006 §4.3.1).

use weir_policy::dispatch::CORE;

use super::*;

/// An engine, and a port that keeps a worker this busy (millionths of a core) between two steps of dispatching.
fn busy(shares: bool) -> (Arc<Engine>, Arc<FakePort>, impl FnMut(u32)) {
    busy_under(Realization::default(), move |port| port.shares = shares)
}

/// As [`busy`], under `realization`, with `change` applied to the port.
pub(super) fn busy_under(
    realization: Realization,
    change: impl FnOnce(&mut FakePort),
) -> (Arc<Engine>, Arc<FakePort>, impl FnMut(u32)) {
    let options = Options { workers: 2, realization, ..Options::default() };
    let engine = Engine::start_with(options).unwrap();
    let port = add(&engine, change);
    let receiver = add(&engine, |_| {});
    send(&engine, &port, [frame(1, 2, 0)]);
    eventually("it has a worker", || numbers(&receiver).len() == 1);
    // Until then it would find the next frames without a kick.
    eventually("which asks for kicks", || port.armed.load(Ordering::SeqCst) > 0);
    let mut now_ns = SECOND_NS;
    engine.dispatch(now_ns);
    let (same, id) = (Arc::clone(&engine), port.id);
    let step = move |load: u32| {
        const STEP_NS: u64 = SECOND_NS / 20;
        now_ns += STEP_NS;
        let table = same.shared.ports.load();
        let pair = &table[id.index()].as_ref().unwrap().pairs[0];
        pair.busy_ns.add(STEP_NS * u64::from(load) / u64::from(CORE));
        same.dispatch(now_ns);
    };
    (engine, port, step)
}

pub(super) fn helper(engine: &Engine, port: &FakePort) -> Option<usize> {
    engine.shared.ports.load()[port.id.index()].as_ref().unwrap().pairs[0].helper()
}

#[test]
fn a_queue_has_a_helper_while_it_is_more_than_one_worker_can_do() {
    let (engine, port, mut step) = busy(true);
    step(CORE / 2);
    assert_eq!(helper(&engine, &port), None);
    step(CORE);
    assert_eq!(helper(&engine, &port), Some(1));
    assert_eq!(engine.worker_of(port.id, 0), Some(0), "and keeps its worker");
    // The time of both workers counts.
    (0..20).for_each(|_| step(CORE / 2 * 3));
    assert_eq!(helper(&engine, &port), Some(1));
    (0..20).for_each(|_| step(CORE / 4));
    assert_eq!(helper(&engine, &port), None);
    let (moved, _) = engine.moved();
    assert_eq!(moved.len(), 2);
    assert_eq!(moved[1].reason, "one worker is not enough for it");
}

#[test]
fn who_cannot_be_helped_is_left_alone() {
    let (engine, port, mut step) = busy(false);
    (0..20).for_each(|_| step(CORE));
    assert_eq!((helper(&engine, &port), engine.moved().1), (None, 0));
}

#[test]
fn a_helper_serves_the_queue_and_its_kicks_stay_with_the_worker() {
    let (engine, port, _) = busy(true);
    assert!(engine.set_helper(port.id, 0, Some(1)));
    let bursts = || engine.workers()[1].bursts;
    // The kick goes to its worker: the helper polls when it is nudged.
    port.to_send.lock().unwrap().push_back(frame(1, 2, 1));
    engine.set_helper(port.id, 0, Some(1));
    eventually("it is served", || bursts() == 1);
    engine.set_helper(port.id, 0, None);
    send(&engine, &port, [frame(1, 2, 2)]);
    eventually("it is served", || port.to_send.lock().unwrap().is_empty());
    assert_eq!(bursts(), 1);
}

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
