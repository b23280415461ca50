//! `weir demo --json`: the table at the end, for programs.

use std::collections::BTreeMap;
use std::time::Duration;

use indicatif::ProgressBar;
use serde::Serialize;

use super::phase::{DemoError, Outcome, Progress, View};

/// A column of the table; `docs/guide/json.md` explains the fields.
#[derive(Debug, Serialize)]
pub(super) struct Column<'o> {
    traffic: &'static str,
    moderation: String,
    seconds: f64,
    gbit_per_s: f64,
    packets_per_s: u64,
    calls_per_packet: Option<f64>,
    hold_p50_ns: u64,
    hold_p99_ns: u64,
    latency_is: &'static str,
    latency_p50_ns: Option<u64>,
    latency_p99_ns: Option<u64>,
    lost: u64,
    reordered: u64,
    switch_cpu_s: f64,
    guests_cpu_s: f64,
    bytes_per_cpu_s: Option<f64>,
    sent_again: u64,
    damaged: u64,
    dropped: &'o BTreeMap<String, u64>,
}

impl<'o> From<&'o Outcome> for Column<'o> {
    fn from(outcome: &'o Outcome) -> Self {
        let (traffic, figures) = (outcome.phase.traffic, &outcome.figures);
        Self {
            traffic: traffic.name(),
            moderation: outcome.phase.moderation.to_string(),
            seconds: figures.seconds(),
            gbit_per_s: figures.gbit_per_s(),
            packets_per_s: figures.packets_per_s(),
            calls_per_packet: figures.calls_per_packet(),
            hold_p50_ns: figures.hold.p50,
            hold_p99_ns: figures.hold.p99,
            latency_is: traffic.latency(),
            latency_p50_ns: figures.latency.map(|latency| latency.p50_ns),
            latency_p99_ns: figures.latency.map(|latency| latency.p99_ns),
            lost: figures.lost,
            reordered: figures.reordered,
            switch_cpu_s: figures.switch_cpu_s(),
            guests_cpu_s: figures.guests_cpu_s(),
            bytes_per_cpu_s: figures.bytes_per_cpu_s(),
            sent_again: figures.trouble.retransmitted,
            damaged: figures.trouble.invalid,
            dropped: &figures.trouble.dropped,
        }
    }
}

/// A view that shows only the demo's progress, on standard error.
pub(super) struct Quiet(ProgressBar);

impl Quiet {
    pub(super) fn new(total: Duration) -> Self {
        Self(crate::progress_of(total.as_secs()))
    }
}

impl View for Quiet {
    fn show(&mut self, progress: &Progress<'_>) -> Result<(), DemoError> {
        self.0.set_message(progress.phase().traffic.name());
        self.0.set_position(progress.elapsed.as_secs());
        Ok(())
    }

    fn wait(&mut self, time: Duration) -> Result<bool, DemoError> {
        std::thread::sleep(time);
        Ok(false)
    }
}
