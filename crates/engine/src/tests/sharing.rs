//! Ports that share a worker: senders that cost the worker time, on a running engine.

use std::sync::atomic::{AtomicU64, Ordering};

use weir_limits::BURST_MAX;
use weir_policy::schedule::{Kind, Share};

use super::*;

/// A sender that always has more frames, and costs the worker some time for each burst.
struct BusyPort {
    id: PortId,
    counters: Arc<PortCounters>,
    cost: Duration,
    frame_bytes: u64,
    /// Bursts with frames.
    bursts: AtomicU64,
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
        let (bursts, empty_takes, forwards) = Default::default();
        let left = AtomicU64::new(u64::MAX);
        Arc::new(BusyPort { id, counters, cost, frame_bytes, bursts, empty_takes, left, forwards })
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
