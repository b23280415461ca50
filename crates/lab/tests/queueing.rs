//! The host's resources against queueing theory: mean waiting times agree within 1 %, except for time slices.
//!
//! Times are in ns; a mean service takes [`SERVICE_NS`]. Formulas: Kleinrock, *Queueing Systems* I (Wq: mean time
//! in the queue; rho: load of a server).

use weir_lab::calendar::Calendar;
use weir_lab::cpus::{self, Class, Cpus, Scheduling, WEIGHT_USUAL};
use weir_lab::link::Link;
use weir_lab::random::{Distribution, Random, Sampler};
use weir_lab::stats::{BatchMeans, Level, Times};
use weir_lab::topology::Topology;

/// Long, so that rounding to whole ns is negligible.
const SERVICE_NS: u64 = 100_000;
const TOLERANCE: f64 = 0.01;
/// Tolerance for slices of a hundredth of a service, which are not infinitely short.
const SLICES_TOLERANCE: f64 = 0.03;

fn arrivals(rho: f64, servers: usize, stream: u64) -> Sampler {
    let mean = (SERVICE_NS as f64 / rho / servers as f64).round() as u64;
    Sampler::new(Distribution::Exponential { mean }, Random::stream(1, stream))
}

fn services(distribution: Distribution, stream: u64) -> Sampler {
    Sampler::new(distribution, Random::stream(2, stream))
}

#[track_caller]
fn check(what: &str, rho: f64, waits: &BatchMeans, theory: f64) {
    check_within(TOLERANCE, what, rho, waits, theory);
}

#[track_caller]
fn check_within(tolerance: f64, what: &str, rho: f64, waits: &BatchMeans, theory: f64) {
    let (mean, half) = waits.estimate().expect("a long run");
    let off = (mean / theory - 1.0).abs();
    assert!(off < tolerance, "{what} at {rho}: {mean:.0} ± {half:.0} ns, in theory {theory:.0}");
    assert!(half < 3.0 * tolerance * theory, "{what} at {rho}: ± {half:.0} ns shows nothing");
}

enum Event {
    /// A customer of this kind arrives.
    Arrival(usize),
    Cpu(cpus::Event),
}

impl From<cpus::Event> for Event {
    fn from(event: cpus::Event) -> Self {
        Self::Cpu(event)
    }
}

/// Customers of one kind. Each of them is a thread while present.
struct Customers {
    class: Class,
    arrivals: Sampler,
    services: Sampler,
    /// Free threads for the next customers.
    free: Vec<usize>,
    /// Response time less service time.
    waits: BatchMeans,
}

impl Customers {
    fn new(class: Class, arrivals: Sampler, services: Sampler) -> Self {
        Self { class, arrivals, services, free: Vec::new(), waits: BatchMeans::default() }
    }
}

fn through_cpus(mut cpus: Cpus, mut kinds: Vec<Customers>, count: u64) -> Vec<Customers> {
    let mut calendar = Calendar::default();
    // By thread: its kind, time of arrival, and service time.
    let mut there = Vec::new();
    for (kind, customers) in kinds.iter_mut().enumerate() {
        calendar.after(customers.arrivals.draw(), Event::Arrival(kind));
    }
    let mut passed = 0;
    while passed < count {
        let event = calendar.next(u64::MAX).expect("arrivals never end");
        let now_ns = calendar.now_ns();
        match event {
            Event::Arrival(kind) => {
                let customers = &mut kinds[kind];
                let class = customers.class;
                let thread = customers.free.pop().unwrap_or_else(|| cpus.spawn(class, &[]));
                let service_ns = customers.services.draw();
                there.resize(there.len().max(thread + 1), (0, 0, 0));
                there[thread] = (kind, now_ns, service_ns);
                cpus.wake(&mut calendar, thread, service_ns, 0);
                calendar.after(customers.arrivals.draw(), Event::Arrival(kind));
            }
            Event::Cpu(event) => {
                let Some(thread) = cpus.happen(&mut calendar, event) else { continue };
                cpus.block(&mut calendar, thread);
                let (kind, came_ns, service_ns) = there[thread];
                kinds[kind].waits.record((now_ns - came_ns - service_ns) as f64);
                kinds[kind].free.push(thread);
                passed += 1;
            }
        }
    }
    kinds
}

const FIRST_COME: Class = Class::Realtime { priority: 0 };
const EXPONENTIAL: Distribution = Distribution::Exponential { mean: SERVICE_NS };

fn first_come(servers: usize, rho: f64, service: Distribution, count: u64) -> BatchMeans {
    let cpus = Cpus::new(Topology::flat(servers), Scheduling::ideal(1_000_000_000));
    let customers = Customers::new(FIRST_COME, arrivals(rho, servers, 0), services(service, 0));
    through_cpus(cpus, vec![customers], count).swap_remove(0).waits
}

/// Returns Wq by Pollaczek-Khinchine: Wq = rho S (1 + c2) / (2 (1 - rho)), c2 the service time's
/// squared coefficient of variation.
fn pollaczek_khinchine(rho: f64, c2: f64) -> f64 {
    rho * SERVICE_NS as f64 * (1.0 + c2) / (2.0 * (1.0 - rho))
}

/// Returns the probability of a wait by Erlang C.
fn erlang_c(servers: usize, rho: f64) -> f64 {
    let offered = rho * servers as f64;
    // Computes Erlang B by its recursion.
    let blocked = (1..=servers).fold(1.0, |b, n| offered * b / (n as f64 + offered * b));
    blocked / (1.0 - rho * (1.0 - blocked))
}

#[test]
fn m_m_1_on_a_cpu() {
    for (rho, count) in [(0.3, 1_000_000), (0.6, 3_000_000), (0.8, 6_000_000)] {
        let theory = pollaczek_khinchine(rho, 1.0);
        check("M/M/1", rho, &first_come(1, rho, EXPONENTIAL, count), theory);
    }
}

#[test]
fn m_d_1_on_a_cpu() {
    for (rho, count) in [(0.3, 1_000_000), (0.6, 2_000_000), (0.8, 4_000_000)] {
        let waits = first_come(1, rho, Distribution::Constant(SERVICE_NS), count);
        check("M/D/1", rho, &waits, pollaczek_khinchine(rho, 0.0));
    }
}

#[test]
fn m_g_1_on_a_cpu() {
    let uniform = Distribution::Uniform { min: 0, max: 2 * SERVICE_NS };
    // A Pareto of shape 4 has a squared coefficient of variation of 1/8.
    let pareto = Distribution::Pareto { min: SERVICE_NS * 3 / 4, shape: 4.0 };
    for (rho, count) in [(0.4, 2_000_000), (0.7, 4_000_000)] {
        for (service, c2) in [(uniform.clone(), 1.0 / 3.0), (pareto.clone(), 1.0 / 8.0)] {
            let waits = first_come(1, rho, service, count);
            check("M/G/1", rho, &waits, pollaczek_khinchine(rho, c2));
        }
    }
}

#[test]
fn m_m_c_on_several_cpus() {
    for (servers, rho, count) in
        [(2, 0.5, 2_000_000), (2, 0.8, 4_000_000), (4, 0.7, 4_000_000), (16, 0.9, 8_000_000)]
    {
        let spare = servers as f64 * (1.0 - rho);
        let theory = erlang_c(servers, rho) * SERVICE_NS as f64 / spare;
        check("M/M/c", rho, &first_come(servers, rho, EXPONENTIAL, count), theory);
    }
}

/// M/M/1 with preemptive priorities: a customer with priority waits as if alone, and the response
/// time of the others is S / ((1 - rho1) (1 - rho1 - rho2)).
#[test]
fn m_m_1_with_preemption() {
    let (first, second) = (0.3, 0.3);
    let cpus = Cpus::new(Topology::flat(1), Scheduling::ideal(1_000_000_000));
    let kinds = [(2, first), (1, second)].map(|(priority, rho)| {
        let stream = u64::from(priority);
        let class = Class::Realtime { priority };
        Customers::new(class, arrivals(rho, 1, stream), services(EXPONENTIAL, stream))
    });
    let kinds = through_cpus(cpus, kinds.into(), 4_000_000);
    check("with priority", first, &kinds[0].waits, pollaczek_khinchine(first, 1.0));
    let response = SERVICE_NS as f64 / ((1.0 - first) * (1.0 - first - second));
    check("without", second, &kinds[1].waits, response - SERVICE_NS as f64);
}

/// Processor sharing, which short time slices come close to: the mean response time is
/// S / (1 - rho), whatever the distribution.
#[test]
fn m_g_1_with_time_slices() {
    let rho = 0.5;
    let response = SERVICE_NS as f64 / (1.0 - rho);
    for service in [EXPONENTIAL, Distribution::Constant(SERVICE_NS)] {
        let scheduling = Scheduling::ideal(SERVICE_NS / 100);
        let class = Class::Fair { weight: WEIGHT_USUAL };
        let customers = Customers::new(class, arrivals(rho, 1, 0), services(service, 0));
        let cpus = Cpus::new(Topology::flat(1), scheduling);
        let kinds = through_cpus(cpus, vec![customers], 200_000);
        let (waits, theory) = (&kinds[0].waits, response - SERVICE_NS as f64);
        check_within(SLICES_TOLERANCE, "sharing", rho, waits, theory);
    }
}

enum OnLink {
    Arrival,
    Served,
    Arrived,
}

/// Sends `count` frames of random lengths over a link. Returns their waiting times, and the number
/// of drops.
fn through_link(rho: f64, bytes: Distribution, queue_max: usize, count: u64) -> (BatchMeans, u64) {
    const BITS_PER_S: u64 = 1_000_000_000;
    const DELAY_NS: u64 = 12_345;
    let mut link = Link::new(BITS_PER_S, DELAY_NS, queue_max);
    let (mut gaps, mut bytes) = (arrivals(rho, 1, 0), services(bytes, 0));
    let mut calendar = Calendar::default();
    let (mut waits, mut dropped) = (BatchMeans::default(), 0);
    calendar.after(gaps.draw(), OnLink::Arrival);
    for _ in 0..3 * count {
        let Some(event) = calendar.next(u64::MAX) else { break };
        let now_ns = calendar.now_ns();
        match event {
            OnLink::Arrival => {
                let length = bytes.draw();
                match link.send(now_ns, length, (now_ns, length)) {
                    Ok(Some(at_ns)) => calendar.at(at_ns, OnLink::Served),
                    Ok(None) => {}
                    Err(_) => dropped += 1,
                }
                calendar.after(gaps.draw(), OnLink::Arrival);
            }
            OnLink::Served => {
                let (arrives_ns, next_ns) = link.served(now_ns);
                calendar.at(arrives_ns, OnLink::Arrived);
                next_ns.into_iter().for_each(|at_ns| calendar.at(at_ns, OnLink::Served));
            }
            OnLink::Arrived => {
                let (came_ns, length) = link.arrived().expect("something was on the way");
                waits.record((now_ns - came_ns - DELAY_NS - length * 8) as f64);
            }
        }
    }
    (waits, dropped)
}

/// Length that takes [`SERVICE_NS`] at 1 Gbit/s (bytes).
const BYTES: u64 = SERVICE_NS / 8;

#[test]
fn m_d_1_and_m_g_1_on_a_link() {
    for rho in [0.4, 0.8] {
        let (waits, _) = through_link(rho, Distribution::Constant(BYTES), usize::MAX, 3_000_000);
        check("M/D/1 on a link", rho, &waits, pollaczek_khinchine(rho, 0.0));
    }
    let uniform = Distribution::Uniform { min: 0, max: 2 * BYTES };
    let (waits, _) = through_link(0.7, uniform, usize::MAX, 4_000_000);
    check("M/G/1 on a link", 0.7, &waits, pollaczek_khinchine(0.7, 1.0 / 3.0));
}

/// Little's law: the mean number of waiting frames is the rate of arrivals times the mean wait. It
/// holds for any run, and shows whether both are counted correctly.
#[test]
fn what_waits_on_a_link_is_the_rate_times_the_wait() {
    let mut link = Link::new(1_000_000_000, 0, usize::MAX);
    let (mut gaps, mut bytes) =
        (arrivals(0.7, 1, 0), services(Distribution::Exponential { mean: BYTES }, 0));
    let mut calendar = Calendar::default();
    let (mut waiting, mut times, mut there, mut served) =
        (Level::default(), Times::default(), 0, 0);
    calendar.after(gaps.draw(), OnLink::Arrival);
    while let Some(event) = calendar.next(100_000 * SERVICE_NS) {
        let now_ns = calendar.now_ns();
        match event {
            OnLink::Arrival => {
                let sent = link.send(now_ns, bytes.draw(), now_ns).expect("there is room");
                sent.into_iter().for_each(|at_ns| calendar.at(at_ns, OnLink::Served));
                there += 1;
                calendar.after(gaps.draw(), OnLink::Arrival);
            }
            OnLink::Served => {
                let (_, next_ns) = link.served(now_ns);
                next_ns.into_iter().for_each(|at_ns| calendar.at(at_ns, OnLink::Served));
                times.record(now_ns - link.arrived().expect("just served"));
                there -= 1;
                served += 1;
            }
            OnLink::Arrived => unreachable!("never made"),
        }
        waiting.set(now_ns, there);
    }
    let now_ns = calendar.now_ns();
    let theory = served as f64 / now_ns as f64 * times.mean_ns();
    assert!((waiting.mean(now_ns) / theory - 1.0).abs() < 1e-3, "{theory}");
}

/// M/M/1/K: with K places, including the one in service, a share of (1 - rho) rho^K / (1 -
/// rho^(K+1)) of arrivals finds all places taken.
#[test]
fn a_full_queue_drops_as_many_as_m_m_1_k() {
    const QUEUE: i32 = 7;
    let rho: f64 = 0.9;
    let count = 3_000_000;
    let bytes = Distribution::Exponential { mean: BYTES };
    let (waits, dropped) = through_link(rho, bytes, QUEUE as usize, count);
    assert!(waits.estimate().is_some());
    let places = QUEUE + 1;
    let theory = (1.0 - rho) * rho.powi(places) / (1.0 - rho.powi(places + 1));
    // A frame that passes makes three events, a dropped one makes one.
    let arrived = 3.0 * count as f64 / (3.0 - 2.0 * theory);
    let lost = dropped as f64 / arrived;
    assert!((lost / theory - 1.0).abs() < TOLERANCE, "{lost} are lost, in theory {theory}");
}
