//! Figures of an actual host, which [`Figure::of`] computes for a simulated one.

use hdrhistogram::Histogram;

use super::super::file::Figure;
use super::host::{Counts, GuestCounts};
use super::setting::Setting;

/// Returns the worker's time ready without a CPU from the first count to the last (percent of the time).
pub(super) fn waited_percent(counts: &[Counts]) -> f64 {
    let [before, .., after] = counts else { return 0.0 };
    let ns = after.at.saturating_duration_since(before.at).as_nanos() as f64;
    100.0 * after.worker_waited_ns.saturating_sub(before.worker_waited_ns) as f64 / ns
}

/// Returns a run's figure from several counts, the first at its start; `None` if built-in guests cannot measure it.
///
/// A latency is the median over the slices between counts: a pause of the whole machine for some milliseconds affects
/// few packets, but easily one in a hundred.
pub(super) fn value(figure: Figure, setting: &Setting, counts: &[Counts]) -> Option<f64> {
    let (before, after) = (counts.first()?, counts.last()?);
    let ns = after.at.saturating_duration_since(before.at).as_nanos() as f64;
    let per_s = |count: u64| count as f64 * 1e9 / ns;
    let percent = |cpu_ns: u64| 100.0 * cpu_ns as f64 / ns;
    let guests = |count: fn(&GuestCounts) -> u64| -> u64 {
        let pairs = after.guests.iter().zip(&before.guests);
        pairs.map(|(after, before)| count(after).saturating_sub(count(before))).sum()
    };
    let worker_ns = after.worker_cpu_ns.saturating_sub(before.worker_cpu_ns);
    let guests_ns = guests(|guest| guest.cpu_ns);
    let latency = |of: fn(&Histogram<u64>) -> f64| {
        let parts = counts.iter().zip(counts.iter().skip(1));
        let parts: Vec<_> = parts.filter_map(|(before, after)| latencies(before, after)).collect();
        (!parts.is_empty()).then(|| median(parts.iter().map(|part| of(part) / 1e3).collect()))
    };
    match figure {
        Figure::CpuPercent => Some(percent(worker_ns + guests_ns)),
        Figure::WorkerCpuPercent => Some(percent(worker_ns)),
        Figure::GuestCpuPercent => Some(percent(guests_ns)),
        Figure::MbitPerS => {
            let ends = after.guests.chunks_exact(2).zip(before.guests.chunks_exact(2));
            let bytes = ends.zip(&setting.flows).map(|((after, before), flow)| {
                let frames = |ends: &[GuestCounts]| ends.last().map_or(0, |it| it.load.rx_frames);
                frames(after).saturating_sub(frames(before)) * u64::from(flow.frame_bytes)
            });
            Some(8e-6 * per_s(bytes.sum()))
        }
        Figure::PacketsPerS => Some(per_s(guests(|guest| guest.load.rx_frames))),
        Figure::CpuUsPerPacket => {
            let received = guests(|guest| guest.load.rx_frames);
            (received > 0).then(|| (worker_ns + guests_ns) as f64 / 1e3 / received as f64)
        }
        Figure::CallsPerS => Some(per_s(after.calls.saturating_sub(before.calls))),
        Figure::InterruptsPerS => Some(per_s(guests(|guest| guest.pair.wakeups))),
        Figure::LatencyMeanUs => latency(|it| it.mean()),
        Figure::LatencyMedianUs => latency(|it| it.value_at_quantile(0.5) as f64),
        Figure::LatencyP99Us => latency(|it| it.value_at_quantile(0.99) as f64),
        Figure::JitterUs => latency(|it| {
            it.value_at_quantile(0.75).saturating_sub(it.value_at_quantile(0.25)) as f64
        }),
        // weir has no counters for these.
        Figure::SignalUs | Figure::RingWaitUs => None,
    }
}

/// Returns the latencies between two counts, if there are any.
fn latencies(before: &Counts, after: &Counts) -> Option<Histogram<u64>> {
    let mut latency = after.latency.clone()?;
    if let Some(before) = &before.latency {
        // `subtract` cannot fail: the later histogram includes the earlier one.
        let _ = latency.subtract(before);
    }
    (!latency.is_empty()).then_some(latency)
}

/// Returns the median: the mean of the two middle values if their number is even.
pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = |at: usize| values.get(at).copied();
    let (low, high) = (middle(values.len().saturating_sub(1) / 2), middle(values.len() / 2));
    low.zip(high).map_or(f64::NAN, |(low, high)| (low + high) / 2.0)
}
