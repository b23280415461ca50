//! Workers: one for all queues or one for each pair, the share of each port, and a helper beside the owner of a queue.

use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use weir_fabric::Capacity;
use weir_limits::BURST_MAX;
use weir_policy::dispatch::CORE;
use weir_policy::schedule::{Kind, Share};

use super::*;
use crate::threads::slice;

/// A sender that always has more frames, and costs the worker some time for each burst.
struct BusyPort {
    id: PortId,
    counters: Arc<PortCounters>,
    cost: Duration,
    frame_bytes: u64,
    /// Bursts with frames.
    bursts: AtomicU64,
    /// Finished bursts that had frames.
    ended: AtomicU64,
    /// Takes that allowed no frames.
    empty_takes: AtomicU64,
    /// The maximum number of frames that the port has left.
    left: AtomicU64,
    /// True if the engine gets the port's frames; otherwise it learns only their number.
    forwards: AtomicBool,
}

impl Receiver for BusyPort {}

impl Port for BusyPort {
    fn take(&self, queue: usize, ask: Ask, scratch: &mut Scratch, forward: Forward<'_>) -> Taken {
        assert_eq!(ask.what, Take::New, "nothing waits");
        let buffer = HostBuffer::new(12 + self.frame_bytes as usize);
        let whole = buffer.slice(0, buffer.len()).unwrap();
        let mut burst = scratch.lend();
        let frames = (burst.frames_max as u64).min(self.left.load(Ordering::Relaxed));
        if self.forwards.load(Ordering::Relaxed) {
            for token in 0..frames {
                let pieces = Pieces::Only(whole);
                let chain = TakenChain { token, len: whole.len() as u32, pieces };
                burst.add(chain, 12, 0).unwrap();
            }
            forward(&mut burst);
        }
        self.left.fetch_sub(frames, Ordering::Relaxed);
        let kind = if frames > 0 { &self.bursts } else { &self.empty_takes };
        kind.fetch_add(1, Ordering::Relaxed);
        self.counters.tx[queue].frames.add(frames);
        self.counters.tx[queue].bytes.add(frames * self.frame_bytes);
        let start = Instant::now();
        while frames > 0 && start.elapsed() < self.cost {}
        self.ended.fetch_add(u64::from(frames > 0), Ordering::SeqCst);
        let more = self.left.load(Ordering::Relaxed) > 0;
        Taken { frames: frames as usize, more, ..Taken::default() }
    }

    fn deliver(&self, _: usize, _: &Burst<'_>, frames: &[Outgoing]) -> Delivered {
        Delivered { frames: frames.len(), ..Delivered::default() }
    }

    fn arm_tx(&self, _: usize) -> bool {
        self.left.load(Ordering::Relaxed) > 0
    }

    fn rx_queues(&self) -> usize {
        0
    }

    fn fail(&self, reason: &str) {
        panic!("{reason}");
    }
}

fn add_busy(engine: &Engine, cost: Duration, frame_bytes: u64) -> Arc<BusyPort> {
    let make = |id, counters| {
        let (bursts, ended, empty_takes, forwards) = Default::default();
        let left = AtomicU64::new(u64::MAX);
        Arc::new(BusyPort {
            id,
            counters,
            cost,
            frame_bytes,
            bursts,
            ended,
            empty_takes,
            left,
            forwards,
        })
    };
    engine.add_port(PortConfig::vif(), make).unwrap().1
}

fn kick(engine: &Engine, port: &BusyPort) {
    engine.nudge(QueueRef { port: port.id, queue: 0, side: Side::Tx });
}

/// The results of `count` for each port, all at about the same time: during the reading, their sum grew by `apart` at
/// most. The reading is repeated, because this thread can lose its CPU in between.
fn at_once(ports: &[Arc<BusyPort>], apart: u64, count: fn(&BusyPort) -> u64) -> Vec<u64> {
    let look = || ports.iter().map(|port| count(port)).collect::<Vec<_>>();
    let mut counts = Vec::new();
    eventually("all are seen at once", || {
        counts = look();
        look().iter().sum::<u64>() - counts.iter().sum::<u64>() <= apart
    });
    counts
}

/// Lets `ports` send until they have used `worker_ns` together. Returns the time that each port used.
fn run(engine: &Engine, ports: &[Arc<BusyPort>], worker_ns: u64) -> Vec<f64> {
    run_until(engine, ports, worker_ns, |_| true)
}

/// Lets `ports` send as [`run`] does, and then continues until `is` accepts the times, or this takes too long: a burst
/// may have been charged for the time of another virtual machine on the host, for which later bursts compensate.
fn run_until(
    engine: &Engine,
    ports: &[Arc<BusyPort>],
    worker_ns: u64,
    is: impl Fn(&[f64]) -> bool,
) -> Vec<f64> {
    // The time of one burst of the most expensive port, and of a part of another.
    const APART_NS: u64 = 200_000;
    ports.iter().for_each(|port| kick(engine, port));
    let used = || at_once(ports, APART_NS, |port| port.counters.worker_ns.get());
    eventually("all have begun", || used().iter().all(|ns| *ns > 0));
    let before = used();
    let end = Instant::now() + PATIENCE;
    loop {
        let since =
            used().iter().zip(&before).map(|(now, before)| now - before).collect::<Vec<_>>();
        let enough = since.iter().sum::<u64>() >= worker_ns;
        let since = since.iter().map(|ns| *ns as f64).collect::<Vec<_>>();
        let late = Instant::now() > end;
        if late || enough && is(&since) {
            assert!(enough, "{since:?}");
            return since;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn jain_index(used: &[f64]) -> f64 {
    let (sum, squares) = used.iter().fold((0.0, 0.0), |(s, q), t| (s + t, q + t * t));
    sum * sum / (used.len() as f64 * squares)
}

const COSTS_US: [u64; 8] = [2, 3, 5, 10, 20, 50, 100, 150];

#[test]
fn behind_a_fence_no_burst_goes_on_that_began_before_it() {
    let engine = Engine::start(2).unwrap();
    assert!(engine.fence(), "workers that sleep use nothing");
    let port = add_busy(&engine, Duration::from_millis(5), 60);
    kick(&engine, &port);
    while port.bursts.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    for _ in 0..10 {
        let begun = port.bursts.load(Ordering::SeqCst);
        assert!(engine.fence());
        assert!(port.ended.load(Ordering::SeqCst) >= begun);
    }
    port.left.store(0, Ordering::SeqCst);
}

#[test]
fn equal_weights_get_equal_worker_time_whatever_bursts_cost() {
    let engine = Engine::start(1).unwrap();
    let ports = COSTS_US.map(|us| add_busy(&engine, Duration::from_micros(us), 64));
    let is_even = |used: &[f64]| jain_index(used) >= 0.99;
    let used = run_until(&engine, &ports, 400_000_000, is_even);
    assert!(is_even(&used), "{}: {used:?}", jain_index(&used));
}

#[test]
fn round_robin_gives_one_burst_each() {
    let engine = Engine::start_with(Options {
        schedule: Kind::RoundRobin,
        workers: 1,
        ..Options::default()
    })
    .unwrap();
    let ports = COSTS_US.map(|us| add_busy(&engine, Duration::from_micros(us), 64));
    run(&engine, &ports, 1_000_000);
    let ports_count = ports.len() as u64;
    let bursts = || at_once(&ports, ports_count, |port| port.bursts.load(Ordering::Relaxed));
    let before = bursts();
    let used = run(&engine, &ports, 200_000_000);
    assert!(jain_index(&used) < 0.7, "{used:?}");
    let bursts = bursts().iter().zip(before).map(|(now, before)| now - before).collect::<Vec<_>>();
    let most = bursts.iter().max().unwrap();
    // A round may pass during each of the two checks.
    assert!(bursts.iter().all(|n| n + 4 >= *most), "{bursts:?}");
}

#[test]
fn weights_that_change_while_traffic_flows_count() {
    let engine = Engine::start(1).unwrap();
    let ports = [7, 20, 3].map(|us| add_busy(&engine, Duration::from_micros(us), 64));
    run(&engine, &ports, 10_000_000);
    for (port, weight) in ports.iter().zip([1, 2, 4]) {
        engine.change_settings(port.id, |settings| settings.share = Share { weight, window: None });
    }
    run(&engine, &ports, 10_000_000);
    let errors = |used: &[f64]| {
        let all: f64 = used.iter().sum();
        [0, 1, 2].map(|n| used[n] / all / (f64::from(1 << n) / 7.0) - 1.0)
    };
    let is_right = |used: &[f64]| errors(used).iter().all(|error| error.abs() <= 0.03);
    let used = run_until(&engine, &ports, 400_000_000, is_right);
    assert!(is_right(&used), "{:?} of {used:?}", errors(&used));
}

#[test]
fn a_schedule_that_changes_while_traffic_flows_holds_from_then_on() {
    let schedule = Kind::RoundRobin;
    let engine =
        Engine::start_with(Options { schedule, workers: 1, ..Options::default() }).unwrap();
    let ports = [7, 20, 3].map(|us| add_busy(&engine, Duration::from_micros(us), 64));
    for (port, weight) in ports.iter().zip([1, 1, 2]) {
        engine.change_settings(port.id, |settings| settings.share = Share { weight, window: None });
    }
    let shares = |used: &[f64]| {
        let all: f64 = used.iter().sum();
        [0, 1, 2].map(|n| used[n] / all)
    };
    let is = |used: &[f64], wanted: [f64; 3]| {
        shares(used).iter().zip(wanted).all(|(share, wanted)| (share / wanted - 1.0).abs() <= 0.1)
    };
    let by_cost = |used: &[f64]| shares(used)[1] > 0.5;
    let used = run_until(&engine, &ports, 50_000_000, by_cost);
    assert!(by_cost(&used), "{used:?}");
    assert_eq!(engine.set_schedule(Kind::Drr), Kind::RoundRobin);
    let by_weight = |used: &[f64]| is(used, [0.25, 0.25, 0.5]);
    let used = run_until(&engine, &ports, 200_000_000, by_weight);
    assert!(by_weight(&used), "{used:?}");
    assert_eq!(engine.set_schedule(Kind::RoundRobin), Kind::Drr);
    let used = run_until(&engine, &ports, 200_000_000, by_cost);
    assert!(by_cost(&used), "{used:?}");
}

#[test]
fn a_limited_port_gets_its_rate_and_the_worker_sleeps_between() {
    const PACKETS: Rate = Rate { per_s: 20_000, burst: 100 };
    let engine = Engine::start(2).unwrap();
    let port = add_busy(&engine, Duration::ZERO, 1500);
    let limit = RateLimit { bits: None, packets: Some(PACKETS) };
    let start = Instant::now();
    engine.change_settings(port.id, |settings| settings.send_limit = limit);
    kick(&engine, &port);
    // Another queue of the port, on another worker, uses the same bucket.
    engine.nudge(QueueRef { port: port.id, queue: 1, side: Side::Tx });
    let sent = || port.counters.tx.iter().map(|queue| queue.frames.get()).sum::<u64>();
    for reached in [500, 1_000, 2_000, 4_000] {
        eventually("it goes on", || sent() >= reached);
        let frames = sent() as f64;
        let may = PACKETS.per_s as f64 * start.elapsed().as_secs_f64() + PACKETS.burst as f64;
        assert!(frames <= may, "{frames} of {may}");
    }
    // Each wait is one poll without a frame, then a burst. With two workers, the other worker's poll may come first.
    let waits = port.counters.rate_waits.get();
    assert!(waits > 0);
    assert!(waits <= sent(), "{waits}: it looks on instead of sleeping");
    assert_eq!(sum_of_drops(&port.counters), 0);
}

fn sum_of_drops(counters: &PortCounters) -> u64 {
    counters.drops().map(|(_, n)| n).sum()
}

#[test]
fn bytes_are_limited_as_they_turn_out_to_be() {
    const FRAME_BYTES: u64 = 1500;
    let engine = Engine::start(1).unwrap();
    let port = add_busy(&engine, Duration::ZERO, FRAME_BYTES);
    port.forwards.store(true, Ordering::Relaxed);
    let bits = Rate { per_s: 800_000_000, burst: 8 * 200_000 };
    let start = Instant::now();
    engine.change_settings(port.id, |settings| {
        settings.send_limit = RateLimit { bits: Some(bits), packets: None }
    });
    kick(&engine, &port);
    eventually("ten bursts' bytes", || port.counters.tx[0].bytes.get() >= 2_000_000);
    let sent = port.counters.tx[0].bytes.get() as f64;
    let may = 100e6 * start.elapsed().as_secs_f64() + 200e3 + BURST_MAX as f64 * FRAME_BYTES as f64;
    assert!(sent <= may, "{sent} of {may}");
}

#[test]
fn a_limit_that_is_lifted_holds_nobody_up() {
    let engine = Engine::start(1).unwrap();
    let port = add_busy(&engine, Duration::ZERO, 1500);
    port.left.store(1_000, Ordering::Relaxed);
    // The next frame would be allowed only in an hour.
    let packets = Some(Rate { per_s: 1, burst: 3_600 });
    engine.change_settings(port.id, |settings| {
        settings.send_limit = RateLimit { bits: None, packets }
    });
    kick(&engine, &port);
    eventually("all go", || port.counters.tx[0].frames.get() == 1_000);
    port.left.store(10_000, Ordering::Relaxed);
    kick(&engine, &port);
    eventually("it has to wait", || port.counters.rate_waits.get() > 0);
    assert!(port.left.load(Ordering::Relaxed) > 0);
    engine.change_settings(port.id, |settings| settings.send_limit = RateLimit::NONE);
    eventually("the rest goes", || port.left.load(Ordering::Relaxed) == 0);
}

#[test]
fn a_limited_port_takes_nothing_from_others() {
    let engine = Engine::start(1).unwrap();
    let limited = add_busy(&engine, Duration::ZERO, 1500);
    let (a, b) = (add(&engine, |_| {}), add(&engine, |_| {}));
    let packets = Some(Rate { per_s: 1, burst: 1 });
    let start = Instant::now();
    engine.change_settings(limited.id, |settings| {
        settings.send_limit = RateLimit { bits: None, packets }
    });
    kick(&engine, &limited);
    eventually("it has to wait", || limited.counters.rate_waits.get() > 0);
    for number in 1..50 {
        send(&engine, &a, [frame(1, 0xff, number)]);
        eventually("b has it", || numbers(&b).len() == usize::from(number));
    }
    let sent = limited.counters.tx[0].frames.get();
    assert!(sent <= 1 + start.elapsed().as_secs(), "{sent}");
}

#[test]
fn who_is_late_more_often_than_it_may_be_is_counted() {
    use weir_policy::schedule::Window;
    let engine =
        Engine::start_with(Options { schedule: Kind::Dwcs, workers: 1, ..Options::default() })
            .unwrap();
    let ports = [200, 200].map(|us| add_busy(&engine, Duration::from_micros(us), 64));
    // Neither port can have a turn in each period while the other's turn lasts twice as long.
    let window = Some(Window::new(0, 1, 100_000).unwrap());
    for port in &ports {
        engine.change_settings(port.id, |settings| settings.share = Share { weight: 1, window });
    }
    run(&engine, &ports, 20_000_000);
    assert!(ports.iter().all(|port| port.counters.window_violations.get() > 0));
}

const RT_THREADS: Options = Options {
    execution: Execution::RtThreads,
    realization: Realization::Adaptive,
    schedule: weir_policy::schedule::Kind::Drr,
    workers: 1,
    cpu_clock: CpuClock::Thread,
    held: false,
    fdb: Capacity::MIN,
};

/// `SCHED_FIFO` of `linux/sched.h`.
const SCHED_FIFO: &str = "1";

/// The scheduling policy of a thread of this process: field 41 of its `stat` (proc(5)), the 39th after the
/// name.
fn policy_of(thread: u32) -> String {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    fields.split_whitespace().nth(38).unwrap().to_owned()
}

#[test]
fn real_time_threads_serve_pairs_of_queues_and_make_nobody_else_one() {
    let engine = match Engine::start_with(RT_THREADS) {
        // The other test covers this case.
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => return,
        started => started.unwrap(),
    };
    let (a, b) = (add(&engine, |_| {}), add(&engine, |_| {}));
    send(&engine, &a, [frame(1, 0xff, 7)]);
    eventually("it arrives", || numbers(&b) == [7]);
    let worker = engine.worker_threads()[0].unwrap();
    assert_eq!(policy_of(worker), SCHED_FIFO);
    let this = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
    assert_ne!(policy_of(this), SCHED_FIFO);
}

#[test]
fn real_time_threads_that_are_not_allowed_are_refused_at_the_start() {
    if getrlimit(Resource::Rtprio).current != Some(0) {
        return;
    }
    // Capabilities belong to a thread, and the threads that it starts inherit them.
    let started = std::thread::spawn(|| {
        let mut sets = capabilities(None).unwrap();
        sets.effective.remove(CapabilitySet::SYS_NICE);
        set_capabilities(None, sets).unwrap();
        Engine::start_with(RT_THREADS).map(drop)
    });
    let error = started.join().unwrap().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied, "{error}");
}

#[test]
fn workers_have_a_short_time_slice_and_nobody_else() {
    let engine = Engine::start(1).unwrap();
    eventually("a worker", || engine.worker_threads()[0].is_some());
    let worker = engine.worker_threads()[0].unwrap();
    let usual = slice::of(0).unwrap();
    // Before Linux 6.12 all threads have the same slice, and none is told.
    let short = if usual == 0 { 0 } else { slice::WORKER_NS };
    eventually("its slice", || slice::of(worker).unwrap() == short);
    assert!(usual == 0 || usual > slice::WORKER_NS);
    assert_eq!(slice::of(0).unwrap(), usual);
}

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
    // Until then the worker would find the next frames without a kick.
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
        // The bursts of both ports alternate on the one worker.
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
