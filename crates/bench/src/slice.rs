//! One slice of a measurement: counters before and after, on a separate or a shared rig.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use weir_config::{WorkerCount, Workers};
use weir_engine::stages::{self, StageCosts};
use weir_switch::stats::SwitchStats;

use super::plan::{Measurement, Tells};
use crate::rig::{self, Guest, Load, Rig, Role, Setup, port};
use crate::steps::BenchError;

/// Workers of the measured switch.
pub(super) const WORKERS: u64 = 1;
/// Longest duration of a plain copy's measurement.
const MEMCPY_TIME: Duration = Duration::from_millis(100);

/// Length of each copy (bytes), like a large segment's.
const SEGMENT_BYTES: usize = 64 << 10;
/// Size of the source and target areas, which copies traverse in a circle (bytes). It is like a stream's window and a
/// ring's buffers.
const AREA_BYTES: usize = 2 << 20;

/// A distribution of round-trip or one-way times; see [`Load::latency_at`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Latency {
    /// Mean (ns).
    pub(super) mean_ns: f64,
    /// Median (ns).
    pub(super) p50_ns: u64,
    /// 99th percentile (ns).
    pub(super) p99_ns: u64,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Slice {
    pub(super) seconds: f64,
    /// Frames received by the receiver. A TSO frame counts once.
    pub(super) received: u64,
    /// Bytes of these frames, Ethernet headers included.
    pub(super) received_bytes: u64,
    /// Frames received by either guest: all frames of the switch, acknowledgements included.
    pub(super) switched: u64,
    /// Bytes of these frames.
    pub(super) switched_bytes: u64,
    /// Number of the worker's wake-ups from sleep.
    pub(super) wakeups: u64,
    /// CPU time of the worker (s).
    pub(super) switch_cpu_s: f64,
    /// CPU time of both guests' threads, which make and check the traffic (s).
    pub(super) guests_cpu_s: f64,
    pub(super) receiver_cpu_s: f64,
    /// Times of packets, if the traffic has them.
    pub(super) latency: Option<Latency>,
    /// Sum of the differences between the one-way times of successive packets (s).
    pub(super) delay_change_s: f64,
    /// Frames that did not arrive intact.
    pub(super) lost: u64,
    /// Number of times that a guest was notified of a frame later than its budget allows, by reason.
    pub(super) breaches: BTreeMap<String, u64>,
    /// Costs of the stages; empty if they are not measured.
    pub(super) stages: StageCosts,
    /// Throughput of a plain copy directly afterwards (Gbit per second of CPU time).
    pub(super) memcpy: Option<f64>,
}

struct Counters {
    at: Instant,
    received: u64,
    received_bytes: u64,
    switched: u64,
    switched_bytes: u64,
    wakeups: u64,
    lost: u64,
    breaches: BTreeMap<String, u64>,
    switch_cpu_ns: u64,
    guests_cpu_ns: u64,
    receiver_cpu_ns: u64,
    delay_change_ns: u64,
    stages: StageCosts,
}

impl Counters {
    fn read(rig: &Rig) -> Self {
        let stats = rig.stats();
        let rx = |role| port(&stats, role).map(|port| port.rx).unwrap_or_default();
        let (sender, receiver) = (rx(Role::Sender), rx(Role::Receiver));
        let loads = rig.guests().map(|guest| guest.stats.snapshot());
        Self {
            at: Instant::now(),
            received: receiver.frames,
            received_bytes: receiver.bytes,
            switched: sender.frames + receiver.frames,
            switched_bytes: sender.bytes + receiver.bytes,
            wakeups: stats.workers.iter().map(|worker| worker.wakeups).sum(),
            breaches: breaches(&stats),
            lost: loads.iter().map(|load| load.lost + load.invalid).sum(),
            switch_cpu_ns: stats.workers.iter().map(|worker| worker.cpu_ns).sum(),
            guests_cpu_ns: rig.guests().map(Guest::cpu_ns).iter().sum(),
            receiver_cpu_ns: rig.guest(Role::Receiver).cpu_ns(),
            delay_change_ns: loads.iter().map(|load| load.delay_change_ns).sum(),
            // The rig has one worker, so only the first entry is measured.
            stages: stages::costs().map(|(_, costs)| costs).next().unwrap_or_default(),
        }
    }
}

impl Slice {
    /// Measures for `time`, or until `stop` is set. In the latter case the result has no meaning.
    pub(super) fn measure(
        measurement: &Measurement,
        time: Duration,
        dir: &Path,
        stop: &AtomicBool,
    ) -> Result<Self, BenchError> {
        let rig = Rig::start(&setup(measurement), dir)?;
        stages::set_on(matches!(measurement.tells, Tells::Stages));
        let slice = Self::count(&rig, measurement.load, measurement.warm_up, time, stop);
        stages::set_on(false);
        rig.finish()?;
        slice.check(measurement.name, measurement.load, stop)?;
        let memcpy = measurement.memcpy.then(|| gbit_copied_per_cpu_s(time.min(MEMCPY_TIME)));
        Ok(Self { memcpy, ..slice })
    }

    /// Fails if a load with packets has delivered none, unless `stop` is set.
    pub(super) fn check(
        &self,
        measurement: &'static str,
        load: Load,
        stop: &AtomicBool,
    ) -> Result<(), BenchError> {
        let silent = load == Load::Silence || stop.load(Ordering::Relaxed);
        if self.received == 0 && !silent {
            let time = Duration::from_secs_f64(self.seconds);
            return Err(BenchError::NothingArrived { measurement, time });
        }
        Ok(())
    }

    /// Counts for `time` on a rig with this load, after `warm_up`.
    pub(super) fn count(
        rig: &Rig,
        load: Load,
        warm_up: Duration,
        time: Duration,
        stop: &AtomicBool,
    ) -> Self {
        rig::wait(warm_up, stop, || rig.has_failed());
        let latency = || rig.guest(load.latency_at()).stats.latency();
        let (before, earlier) = (Counters::read(rig), latency());
        rig::wait(time, stop, || rig.has_failed());
        let (after, mut latency) = (Counters::read(rig), latency());
        // `subtract` cannot fail: both histograms have the same bounds, and the later one includes the earlier one.
        let _ = latency.subtract(&earlier);
        let latency = (!latency.is_empty()).then(|| Latency {
            mean_ns: latency.mean(),
            p50_ns: latency.value_at_quantile(0.5),
            p99_ns: latency.value_at_quantile(0.99),
        });
        Self::between(&before, &after, latency)
    }

    fn between(before: &Counters, after: &Counters, latency: Option<Latency>) -> Self {
        let count = |of: fn(&Counters) -> u64| of(after).saturating_sub(of(before));
        let seconds = |ns: u64| ns as f64 / 1e9;
        Self {
            seconds: after.at.saturating_duration_since(before.at).as_secs_f64(),
            received: count(|counters| counters.received),
            received_bytes: count(|counters| counters.received_bytes),
            switched: count(|counters| counters.switched),
            switched_bytes: count(|counters| counters.switched_bytes),
            wakeups: count(|counters| counters.wakeups),
            switch_cpu_s: seconds(count(|counters| counters.switch_cpu_ns)),
            guests_cpu_s: seconds(count(|counters| counters.guests_cpu_ns)),
            receiver_cpu_s: seconds(count(|counters| counters.receiver_cpu_ns)),
            latency,
            delay_change_s: seconds(count(|counters| counters.delay_change_ns)),
            lost: count(|counters| counters.lost),
            breaches: (after.breaches.iter())
                .map(|(reason, count)| {
                    let earlier = before.breaches.get(reason).copied().unwrap_or(0);
                    (reason.clone(), count.saturating_sub(earlier))
                })
                .filter(|(_, count)| *count > 0)
                .collect(),
            stages: after.stages.since(&before.stages),
            memcpy: None,
        }
    }

    /// Returns the packets that arrived per second.
    pub(super) fn packets_per_s(&self) -> Option<f64> {
        ratio(self.received as f64, self.seconds)
    }

    /// Returns the packets per second of the worker's CPU time, the sum of both directions.
    pub(super) fn packets_per_cpu_s(&self) -> Option<f64> {
        ratio(self.switched as f64, self.switch_cpu_s)
    }

    /// Returns the throughput (Gbit per second).
    pub(super) fn gbit_per_s(&self) -> Option<f64> {
        ratio(gbit(self.received_bytes), self.seconds)
    }

    /// Returns the throughput (Gbit per second of the worker's CPU time), the sum of both directions.
    pub(super) fn gbit_per_cpu_s(&self) -> Option<f64> {
        ratio(gbit(self.switched_bytes), self.switch_cpu_s)
    }

    /// Returns the throughput of a plain copy (Gbit per second of CPU time).
    pub(super) fn memcpy_gbit_per_s(&self) -> Option<f64> {
        self.memcpy
    }

    /// Returns the ratio of the stream's to the plain copy's throughput, for the same CPU time.
    pub(super) fn stream_vs_memcpy(&self) -> Option<f64> {
        ratio(self.gbit_per_cpu_s()?, self.memcpy?)
    }

    /// Returns a quantile of the times of packets (us).
    pub(super) fn latency_us(&self, of: fn(Latency) -> u64) -> Option<f64> {
        self.latency.map(|latency| of(latency) as f64 / 1e3)
    }

    /// Returns the mean time (us).
    pub(super) fn mean_latency_us(&self) -> Option<f64> {
        self.latency.map(|latency| latency.mean_ns / 1e3)
    }

    /// Returns the mean difference between the one-way times of successive packets (us).
    pub(super) fn jitter_us(&self) -> Option<f64> {
        ratio(1e6 * self.delay_change_s, self.received as f64)
    }

    /// Returns the packets per CPU second of worker and receiver together, from the sender's ring to the receiver's
    /// application.
    pub(super) fn packets_per_delivering_cpu_s(&self) -> Option<f64> {
        ratio(self.received as f64, self.switch_cpu_s + self.receiver_cpu_s)
    }

    /// Returns the packets per second of the receiver's CPU time.
    pub(super) fn packets_per_receiver_cpu_s(&self) -> Option<f64> {
        ratio(self.received as f64, self.receiver_cpu_s)
    }

    /// Returns the CPU time of the worker and the guests per packet (us).
    pub(super) fn all_cpu_us_per_packet(&self) -> Option<f64> {
        ratio(1e6 * (self.switch_cpu_s + self.guests_cpu_s), self.received as f64)
    }

    /// Returns the CPU time of the worker per packet (us).
    pub(super) fn cpu_us_per_packet(&self) -> Option<f64> {
        ratio(1e6 * self.switch_cpu_s, self.switched as f64)
    }

    /// Returns the worker's wake-ups per packet.
    pub(super) fn wakeups_per_packet(&self) -> Option<f64> {
        ratio(self.wakeups as f64, self.switched as f64)
    }

    /// Returns the worker's wake-ups per second.
    pub(super) fn wakeups_per_s(&self) -> Option<f64> {
        ratio(self.wakeups as f64, self.seconds)
    }

    /// Returns the number of cores that the worker kept busy.
    pub(super) fn switch_cores(&self) -> f64 {
        ratio(self.switch_cpu_s, self.seconds).unwrap_or(0.0)
    }

    /// Returns the number of cores that the guests' threads kept busy.
    pub(super) fn guests_cores(&self) -> f64 {
        ratio(self.guests_cpu_s, self.seconds).unwrap_or(0.0)
    }
}

pub(super) fn setup(measurement: &Measurement) -> Setup {
    let workers = WorkerCount::try_from(WORKERS).expect("a constant that is a valid number");
    Setup {
        load: measurement.load,
        calls: measurement.calls,
        sender_calls: measurement.sender_calls,
        latency_budget: measurement.latency_budget,
        workers: Workers::Count(workers),
        packed: measurement.packed,
        containers: measurement.containers,
        filter: measurement.filter,
        places: measurement.places,
    }
}

/// Returns the late calls of all guests, by reason.
fn breaches(stats: &SwitchStats) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    for (reason, count) in stats.ports.iter().flat_map(|port| &port.budget_breaches) {
        *all.entry(reason.clone()).or_default() += count;
    }
    all
}

fn gbit(bytes: u64) -> f64 {
    bytes as f64 * 8.0 / 1e9
}

/// Returns the ratio; `None` for a zero denominator.
fn ratio(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| part / whole)
}

/// Returns the Gbit that this thread copies per second of its CPU time: the upper limit of a switch that copies once. `time` is the CPU time of the measurement.
fn gbit_copied_per_cpu_s(time: Duration) -> f64 {
    // The pages are written: untouched pages of zeros may all be the same page.
    let (from, mut to) = (vec![1_u8; AREA_BYTES], vec![2_u8; AREA_BYTES]);
    let mut copy = || {
        for (from, to) in from.chunks(SEGMENT_BYTES).zip(to.chunks_mut(SEGMENT_BYTES)) {
            black_box(to).copy_from_slice(black_box(from));
        }
    };
    // Fills the caches, as the stream does before it is counted.
    copy();
    let start = cpu_time();
    let mut rounds = 0_u64;
    loop {
        copy();
        rounds += 1;
        let spent = cpu_time().saturating_sub(start);
        if spent >= time && !spent.is_zero() {
            return rounds as f64 * AREA_BYTES as f64 * 8.0 / 1e9 / spent.as_secs_f64();
        }
    }
}

/// Returns this thread's CPU time.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}
