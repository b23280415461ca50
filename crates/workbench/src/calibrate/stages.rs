//! The cost of packets through a switch and two guests, first in batches, then one by one.
//!
//! Packets in batches show the least cost per packet. Single packets need a sleep, a kick and a call each, whose cost
//! is the difference. `weir lab validate` predicts other rates and other kinds of traffic.

use std::thread;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use weir_bench::rig::{self, Load};
use weir_config::{LatencyBudget, Moderation};
use weir_engine::stages::{self, Stage, StageCosts};
use weir_guestmem::ticks;
use weir_policy::moderation::Kind;
use weir_switch::stats::CallSettings;
use weir_vif::load::small;

use super::super::LabError;
use super::super::measure::{Counts, Flow, GuestCounts, Host, Setting, usable_cpus};
use super::cost::{Cost, median, paired};
use super::machine::Sleeps;
use super::played::Packet;

/// Time before the first round.
const WARM_UP: Duration = Duration::from_millis(200);
const ROUND: Duration = Duration::from_millis(200);
/// Entries of a ring. Half as many packets are in flight.
const RING: u16 = 1024;
const WINDOW: u32 = 512;
/// Length of a small packet (bytes). weir reads that much of a packet anyway, so no copy is counted.
const SMALL_BYTES: usize = 64;
const LARGE_BYTES: usize = 1514;
/// Rate of isolated packets (per second).
pub(super) const ALONE_PER_S: u64 = 7_000;

/// Stages whose cost per packet in a batch is a field of the profile: all but the last, a call.
const FIELDS: [(Stage, &str); Stage::ALL.len() - 1] = [
    (Stage::Take, "take_ns"),
    (Stage::Classify, "classify_ns"),
    (Stage::Copy, "place_ns"),
    (Stage::Publish, "publish_ns"),
];

const ALONE: &str = "what a packet that comes alone costs";

/// Costs of a packet in each round (ns).
#[derive(Default)]
struct Spent {
    /// Costs of all stages.
    stages: [Vec<f64>; Stage::ALL.len()],
    /// CPU time of the worker per wake-up, without the stages.
    sleep: Vec<f64>,
    /// Work of the guests: sender, then receiver.
    guests: [Vec<Did>; 2],
    /// All costs of a packet. A round without packets has no entry.
    packets: Vec<Packet>,
}

/// A guest's work in a round.
#[derive(Clone, Copy, Debug, Default)]
struct Did {
    cpu_ns: f64,
    sent: f64,
    received: f64,
    wakeups: f64,
    kicks: f64,
}

/// Measures all costs; `sleeps` were measured before. Also returns the costs of isolated packets in each round.
pub(super) fn measure(
    rounds: usize,
    sleeps: &Sleeps,
    bar: &ProgressBar,
) -> Result<(Vec<Cost>, Vec<Packet>), LabError> {
    let of = |bytes, rate| {
        bar.set_message(format!("packets of {bytes} bytes"));
        spent(rounds, bytes, rate).inspect(|_| bar.inc(1))
    };
    let runs = Runs {
        together: of(SMALL_BYTES, small::Rate::Window(WINDOW))?,
        large: of(LARGE_BYTES, small::Rate::Window(WINDOW))?,
        alone: of(SMALL_BYTES, small::Rate::PerSecond(ALONE_PER_S))?,
        sleeps,
    };
    let mut found = runs.of_stages();
    found.extend(runs.of_frames());
    found.extend(runs.of_sleeps());
    // A round without packets has no result.
    found.retain_mut(|cost| {
        cost.rounds.retain(|value| value.is_finite());
        !cost.rounds.is_empty()
    });
    Ok((found, runs.alone.packets))
}

/// Runs with small and large packets in batches and with isolated small packets, and the costs of sleeps alone.
struct Runs<'s> {
    together: Spent,
    large: Spent,
    alone: Spent,
    sleeps: &'s Sleeps,
}

impl Runs<'_> {
    /// Returns the worker's costs per packet and per burst.
    fn of_stages(&self) -> Vec<Cost> {
        let in_stage =
            |spent: &Spent, stage: usize| spent.stages.get(stage).cloned().unwrap_or_default();
        let more = |stage| {
            let (alone, together) = (in_stage(&self.alone, stage), in_stage(&self.together, stage));
            less(&alone, &together)
        };
        let burst = plus(&plus(&more(0), &more(1)), &plus(&more(2), &more(3)));
        let stages =
            FIELDS.into_iter().zip(&self.together.stages).map(|((stage, field), rounds)| {
                let how = format!("stage `{}` of packets of 64 bytes", stage.as_str());
                Cost::new(field, how, rounds.clone())
            });
        let apart = [
            Cost::new("burst_ns", format!("{ALONE} more in the stages before the last"), burst),
            Cost::new("call_ns", format!("{ALONE} more in the last stage"), more(4)),
        ];
        stages.chain(apart).collect()
    }

    /// Returns the guests' costs per packet and per byte.
    fn of_frames(&self) -> Vec<Cost> {
        let [send, receive] = self.of_each(&self.together);
        let [send_large, receive_large] = self.of_each(&self.large);
        let by_byte = |small: &[f64], large: &[f64]| {
            let bytes = (LARGE_BYTES - SMALL_BYTES) as f64;
            paired(small, large, |small, large| 1e3 * (large - small) / bytes)
        };
        vec![
            Cost::new("send_ps_per_byte", "those of 1514 bytes", by_byte(&send, &send_large)),
            Cost::new(
                "receive_ps_per_byte",
                "those of 1514 bytes",
                by_byte(&receive, &receive_large),
            ),
            Cost::new("send_ns", "CPU time of who sends many, but for sleeps", send),
            Cost::new("receive_ns", "CPU time of who receives many, but for sleeps", receive),
        ]
    }

    /// Returns the cost of a packet for its sender and its receiver (ns).
    fn of_each(&self, spent: &Spent) -> [Vec<f64>; 2] {
        let Sleeps { worker, guest, .. } = self.sleeps;
        spent.of_each_packet(median(&guest.sleep), median(&worker.write))
    }

    /// Returns the costs of sleeps, wake-ups and timers, with the kick that ends each sleep.
    ///
    /// A sleep's CPU time is spent on falling asleep and on waking up, and only the latter delays packets. The split
    /// is not measured: half is assumed, which leaves the sums correct.
    fn of_sleeps(&self) -> Vec<Cost> {
        let Sleeps { worker, timer_set, guest, timer, busy, busy_write } = self.sleeps;
        let [send, receive] = self.of_each(&self.together);
        let [sender, receiver] = &self.alone.guests;

        let kicked = less(&worker.latency, &worker.write);
        let kicked_p90 = less(&worker.latency_p90, &worker.write);
        let [worker_back, guest_back] =
            [paired(&worker.sleep, &kicked, back), paired(&guest.sleep, &guest.latency, back)];
        // A timer is set before the sleep. The additional cost when it fires belongs to the wake-up.
        let timer_fired = less(&less(&timer.sleep, &worker.sleep), timer_set);
        let timer_back = plus(&worker_back, &timer_fired);
        let wake_up = |kick: &[f64], call: &[f64]| {
            paired(&less(kick, &worker_back), &less(call, &guest_back), f64::midpoint)
        };

        let wakes = receiver
            .iter()
            .zip(&receive)
            .map(|(did, receive)| (did.cpu_ns - did.received * receive) / did.wakeups.max(1.0));
        let wakes: Vec<f64> = wakes.collect();
        let interrupt = before_service(&guest_back, &guest.sleep, &wakes);
        let end = less(&wakes, &interrupt);
        let sleep = before_service(&worker_back, &worker.sleep, &self.alone.sleep);
        let settle = less(&self.alone.sleep, &sleep);
        // A sender's sleep consists of the end of a poll, a timer, and the wake-up.
        let guest_timer = less(&less(&timer.sleep, &end), timer_set);
        let apart_ns = median(&timer.sleep);
        let kicks = sender
            .iter()
            .zip(&send)
            .map(|(did, send)| (did.cpu_ns - did.sent * send) / did.kicks.max(1.0) - apart_ns);
        let half: Vec<f64> = busy.iter().map(|cpu| cpu / 2.0).collect();

        let tenth = "the same, one in ten";
        let costs = [
            ("sleep_ns", format!("{ALONE} the worker but for the stages, before these"), sleep),
            ("settle_ns", "the same after them".into(), settle),
            ("interrupt_ns", format!("{ALONE} who receives it, before it is served"), interrupt),
            ("poll_end_ns", "the same after that".into(), end.clone()),
            ("kick_ns", format!("{ALONE} who sends it, but for its sleep"), kicks.collect()),
            (
                "wakeup_latency_ns",
                "from a kick or call to the sleeper, less CPU time".into(),
                wake_up(&kicked, &guest.latency),
            ),
            ("wakeup_latency_p90_ns", tenth.into(), wake_up(&kicked_p90, &guest.latency_p90)),
            (
                "timer_late_ns",
                "a ppoll for 100 us, how late it is, less CPU time".into(),
                less(&timer.late, &timer_back),
            ),
            ("timer_late_p90_ns", tenth.into(), less(&timer.late_p90, &timer_back)),
            (
                "guest_timer_ns",
                "CPU time of such a ppoll, but for poll_end and timer_set".into(),
                guest_timer,
            ),
            (
                "timer_missed_ns",
                "CPU time of a ppoll for 2 us, but for poll_end and timer_set".into(),
                less(&less(&timer.missed, &end), timer_set),
            ),
            (
                "timer_set_ns",
                "how much later another thread has the CPU after a ppoll with a timer".into(),
                timer_set.clone(),
            ),
            (
                "timer_fired_ns",
                "a ppoll that a timer ends, more than that and a sleep".into(),
                timer_fired,
            ),
            (
                "interrupt_busy_ns",
                "CPU time of a sleep while another runs: half".into(),
                half.clone(),
            ),
            ("poll_end_busy_ns", "the other half".into(), half),
            (
                "call_busy_ns",
                "a write to the eventfd of a sleeper whose CPU is busy".into(),
                busy_write.clone(),
            ),
            ("kick_busy_ns", "the same".into(), busy_write.clone()),
            ("switch_ns", "it is part of what sleeps cost".into(), vec![0.0]),
        ];
        costs.into_iter().map(|(field, how, rounds)| Cost::new(field, how, rounds)).collect()
    }
}

fn less(whole: &[f64], part: &[f64]) -> Vec<f64> {
    paired(whole, part, |whole, part| whole - part)
}

fn plus(one: &[f64], other: &[f64]) -> Vec<f64> {
    paired(one, other, |one, other| one + other)
}

/// Returns the part of a sleep that precedes service (ns): the wake-up, and half of the excess of the whole over
/// `sleep` alone, since the loop around the sleep works before and after it.
fn before_service(back: &[f64], sleep: &[f64], whole: &[f64]) -> Vec<f64> {
    let around = paired(whole, sleep, |whole, sleep| (whole - sleep).max(0.0) / 2.0);
    plus(back, &around)
}

/// Returns the part of a sleep's CPU time that is spent on the wake-up (ns), whose whole latency is `latency_ns`.
fn back(cpu_ns: f64, latency_ns: f64) -> f64 {
    (cpu_ns / 2.0).min(latency_ns)
}

/// Sends packets of `bytes` between two guests on the first CPU, through a worker on the last.
fn spent(rounds: usize, bytes: usize, rate: small::Rate) -> Result<Spent, LabError> {
    let cpus = usable_cpus();
    let (guests, worker_cpu) =
        (cpus.first().copied().unwrap_or(0), cpus.last().copied().unwrap_or(0));
    let options = small::Options { frame_bytes: bytes, rate, ..small::Options::default() };
    let flow = Flow {
        cpus: [guests; 2],
        traffic: Load::Small(options),
        frame_bytes: bytes as u32, // at most 1514
        first: true,
    };
    // An isolated packet has its own call only if calls are not held.
    let calls = CallSettings { moderation: Moderation(Kind::Immediate), ..CallSettings::default() };
    let setting = Setting {
        calls,
        latency_budget: LatencyBudget::DEFAULT,
        ring: RING,
        worker_cpu,
        flows: vec![flow],
        warm_up: WARM_UP,
        run: ROUND,
    };
    let dir = rig::temp_dir()?;
    let host = Host::start(&setting, dir.path())?;
    stages::set_on(true);
    thread::sleep(setting.warm_up);
    let mut spent = Spent::default();
    for _ in 0..rounds {
        let (before, marks) = (host.counts(), worker());
        let (start, ticks_before) = (Instant::now(), ticks::now());
        thread::sleep(setting.run);
        let ns = start.elapsed().as_nanos() as f64;
        let ns_per_tick = ns / ticks::now().saturating_sub(ticks_before).max(1) as f64;
        spent.round(&worker().since(&marks), ns_per_tick, &before, &host.counts());
    }
    stages::set_on(false);
    host.finish()?;
    Ok(spent)
}

impl Spent {
    fn round(&mut self, marks: &StageCosts, ns_per_tick: f64, before: &Counts, after: &Counts) {
        let mut all_ns = 0.0;
        for (rounds, stage) in self.stages.iter_mut().zip(Stage::ALL) {
            // NaN without frames.
            let ns = marks.per_frame(stage).map_or(f64::NAN, |ticks| ticks * ns_per_tick);
            all_ns += ns;
            rounds.push(ns);
        }
        let cpu_ns = after.worker_cpu_ns.saturating_sub(before.worker_cpu_ns) as f64;
        let wakeups = after.wakeups.saturating_sub(before.wakeups) as f64;
        self.sleep.push((cpu_ns - all_ns * marks.frames as f64) / wakeups.max(1.0));
        let pairs = before.guests.iter().zip(&after.guests);
        for (rounds, (before, after)) in self.guests.iter_mut().zip(pairs) {
            rounds.push(Did::between(before, after));
        }
        self.packets.extend(Packet::measured(before, after));
    }

    /// Returns the cost of a packet for its sender and its receiver by round (ns). The two costs are unknowns of two
    /// equations, since both guests send and receive.
    fn of_each_packet(&self, interrupt_ns: f64, kick_ns: f64) -> [Vec<f64>; 2] {
        let [begins, answers] = &self.guests;
        let left = |did: &Did| did.cpu_ns - did.wakeups * interrupt_ns - did.kicks * kick_ns;
        let solved = begins.iter().zip(answers).map(|(a, b)| {
            let determinant = a.sent * b.received - a.received * b.sent;
            let send = (left(a) * b.received - left(b) * a.received) / determinant;
            let receive = (a.sent * left(b) - b.sent * left(a)) / determinant;
            (send, receive)
        });
        let (send, receive) = solved.unzip();
        [send, receive]
    }
}

impl Did {
    fn between(before: &GuestCounts, after: &GuestCounts) -> Self {
        let count = |of: fn(&GuestCounts) -> u64| of(after).saturating_sub(of(before)) as f64;
        Self {
            cpu_ns: count(|it| it.cpu_ns),
            sent: count(|it| it.pair.tx_frames),
            received: count(|it| it.pair.rx_frames),
            wakeups: count(|it| it.pair.wakeups),
            kicks: count(|it| it.pair.kicks),
        }
    }
}

fn worker() -> StageCosts {
    stages::costs().map(|(_, costs)| costs).next().unwrap_or_default()
}
