//! A queue that two workers serve.

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
