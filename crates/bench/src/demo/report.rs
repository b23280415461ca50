//! The output without a screen: a line of text each second, the table of results at the end, and the same as JSON.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write};
use std::thread;
use std::time::Duration;

use indicatif::ProgressBar;
use serde::Serialize;
use weir_text::{Table, bytes, decimal, time};

use super::phase::{DemoError, Outcome, Progress, Traffic, View};
use super::phase::{Latency, Sample, Trouble, or_dash};

struct Row {
    label: &'static str,
    cell: fn(&Outcome) -> String,
}

/// The rows. Phases are columns, since there are more figures than phases.
const ROWS: &[Row] = &[
    Row { label: "moderation", cell: |outcome| outcome.phase.moderation.to_string() },
    Row { label: "seconds", cell: |outcome| format!("{:.1}", outcome.figures.seconds()) },
    Row {
        label: "throughput, Gbit/s",
        cell: |outcome| format!("{:.3}", outcome.figures.gbit_per_s()),
    },
    Row { label: "packets/s", cell: |outcome| decimal(outcome.figures.packets_per_s()) },
    Row {
        label: "calls per packet",
        cell: |outcome| or_dash(outcome.figures.calls_per_packet(), |calls| format!("{calls:.3}")),
    },
    Row { label: "hold time p50", cell: |outcome| time(outcome.figures.hold.p50) },
    Row { label: "hold time p99", cell: |outcome| time(outcome.figures.hold.p99) },
    Row { label: "latency is", cell: |outcome| outcome.phase.traffic.latency().into() },
    Row {
        label: "latency p50",
        cell: |outcome| latency(&outcome.figures, |latency| latency.p50_ns),
    },
    Row {
        label: "latency p99",
        cell: |outcome| latency(&outcome.figures, |latency| latency.p99_ns),
    },
    Row { label: "lost, reordered", cell: |outcome| lost_reordered(&outcome.figures) },
    Row {
        label: "CPU s, switch",
        cell: |outcome| format!("{:.2}", outcome.figures.switch_cpu_s()),
    },
    Row {
        label: "CPU s, guests",
        cell: |outcome| format!("{:.2}", outcome.figures.guests_cpu_s()),
    },
    Row {
        label: "bytes/CPU s, switch",
        cell: |outcome| {
            or_dash(outcome.figures.bytes_per_cpu_s(), |number| bytes(number.round() as u64))
        },
    },
];

fn latency(figures: &Sample, of: fn(Latency) -> u64) -> String {
    figures.latency.map_or_else(|| "-".into(), |latency| time(of(latency)))
}

/// Returns the numbers of lost packets and of packets that arrived after a later one.
pub(super) fn lost_reordered(figures: &Sample) -> String {
    format!("{}, {}", decimal(figures.lost), decimal(figures.reordered))
}

/// The table, and errors.
pub(super) struct Summary<'o> {
    outcomes: &'o [Outcome],
}

impl<'o> Summary<'o> {
    pub(super) fn new(outcomes: &'o [Outcome]) -> Self {
        Self { outcomes }
    }
}

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.outcomes.is_empty() {
            return writeln!(f, "\nNothing was measured.");
        }
        let mut headers = vec!["<"];
        headers.extend(self.outcomes.iter().map(|o| o.phase.traffic.name()));
        let mut table = Table::new(&headers);
        for row in ROWS {
            let cells = self.outcomes.iter().map(row.cell);
            table.row(std::iter::once(row.label.into()).chain(cells).collect());
        }
        write!(f, "\n{table}")?;
        for outcome in self.outcomes {
            trouble(f, outcome)?;
        }
        Ok(())
    }
}

fn trouble(f: &mut fmt::Formatter<'_>, outcome: &Outcome) -> fmt::Result {
    let Trouble { retransmitted, invalid, dropped } = &outcome.figures.trouble;
    let sent_again = (*retransmitted, "sent again".to_owned());
    let damaged = (*invalid, "damaged".to_owned());
    let dropped = dropped.iter().map(|(reason, count)| (*count, format!("dropped ({reason})")));
    let told: Vec<_> = [sent_again, damaged]
        .into_iter()
        .chain(dropped)
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{} {what}", decimal(count)))
        .collect();
    if told.is_empty() {
        return Ok(());
    }
    let name = outcome.phase.traffic.name();
    writeln!(f, "{name}: packets {}", told.join(", "))
}

/// A summary of the demo, and the next step.
pub(super) struct Closing<'o> {
    outcomes: &'o [Outcome],
    /// Number of CPUs that this process may use.
    cpus: usize,
}

impl<'o> Closing<'o> {
    pub(super) fn new(outcomes: &'o [Outcome], cpus: usize) -> Self {
        Self { outcomes, cpus }
    }

    fn figures(&self, traffic: Traffic) -> Option<&Sample> {
        let mut outcomes = self.outcomes.iter();
        let outcome = outcomes.find(|outcome| outcome.phase.traffic == traffic)?;
        Some(&outcome.figures)
    }

    /// Returns the main result of each kind of traffic.
    fn highlights(&self) -> Vec<String> {
        let bulk = self.figures(Traffic::Bulk);
        let flood = self.figures(Traffic::Flood);
        let round_trip = self.figures(Traffic::RequestResponse);
        [
            bulk.map(|figures| format!("{:.1} Gbit/s of TCP", figures.gbit_per_s())),
            flood.map(|figures| format!("{} small packets/s", decimal(figures.packets_per_s()))),
            round_trip
                .and_then(|figures| figures.latency)
                .map(|latency| format!("round trips of {}", time(latency.p50_ns))),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

impl fmt::Display for Closing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let highlights = self.highlights();
        if highlights.is_empty() {
            return Ok(());
        }
        let cpus = match self.cpus {
            1 => "1 CPU".into(),
            cpus => format!("{cpus} CPUs"),
        };
        writeln!(
            f,
            "
You saw weir switch packets between two vhost-user guests, with one copy each:
{}.
All shared {cpus}; a VM, whose kernel copies the payload again, gets less.
Next, start a switch and plug in a VM of your own:
  echo '[vif.web0]' > weir.toml && weir run weir.toml
  qemu-system-x86_64 -accel kvm -drive file=disk.img $(weir qemu-args web0)",
            highlights.join(", ")
        )
    }
}

/// A column of the table of `weir demo --json`; `docs/guide/json.md` explains the fields.
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
        Self(crate::steps::progress_of(total.as_secs()))
    }
}

impl View for Quiet {
    fn show(&mut self, progress: &Progress<'_>) -> Result<(), DemoError> {
        self.0.set_message(progress.phase().traffic.name());
        self.0.set_position(progress.elapsed.as_secs());
        Ok(())
    }

    fn wait(&mut self, time: Duration) -> Result<bool, DemoError> {
        thread::sleep(time);
        Ok(false)
    }
}

/// Interval of the lines.
const LINE_EVERY: Duration = Duration::from_secs(1);
/// Shortest rest of a phase that gets a line. Figures of a shorter rest would not be reliable.
const REST_MIN: Duration = Duration::from_millis(200);

/// Prints a line each second.
pub(super) struct Plain<'o> {
    out: &'o mut dyn Write,
    /// Phase of the last line, and its counters.
    last: Option<(usize, Sample)>,
}

impl<'o> Plain<'o> {
    pub(super) fn new(out: &'o mut dyn Write) -> Self {
        Self { out, last: None }
    }

    fn heading(&mut self, progress: &Progress<'_>) -> io::Result<()> {
        let phase = progress.phase();
        if progress.current == 0 {
            writeln!(
                self.out,
                "weir demo: two guests on one switch, {} s; the last two columns are their CPU time\n",
                progress.total.as_secs()
            )?;
            line(
                self.out,
                [
                    "s",
                    "traffic",
                    "Gbit/s",
                    "packets/s",
                    "calls/pkt",
                    "hold p50",
                    "p99",
                    "switch",
                    "guests",
                ],
            )?;
        }
        let about = phase.traffic.about();
        writeln!(self.out, "   - {}: {about}", phase.traffic.name())
    }

    fn figures(&mut self, progress: &Progress<'_>, figures: &Sample) -> io::Result<()> {
        let cells = [
            format!("{:.0}", progress.elapsed.as_secs_f64()),
            progress.phase().traffic.name().into(),
            format!("{:.3}", figures.gbit_per_s()),
            decimal(figures.packets_per_s()),
            or_dash(figures.calls_per_packet(), |calls| format!("{calls:.3}")),
            time(figures.hold.p50),
            time(figures.hold.p99),
            format!("{:.0}%", figures.switch_cpus() * 100.0),
            format!("{:.0}%", figures.guests_cpus() * 100.0),
        ];
        line(self.out, cells.each_ref().map(String::as_str))?;
        self.out.flush()
    }
}

fn line(out: &mut dyn Write, cells: [&str; 9]) -> io::Result<()> {
    let [s, name, gbit, packets, calls, p50, p99, switch, guests] = cells;
    writeln!(
        out,
        "{s:>4} {name:<15} {gbit:>7} {packets:>10} {calls:>9} {p50:>8} {p99:>7} {switch:>6} {guests:>6}"
    )
}

impl View for Plain<'_> {
    fn show(&mut self, progress: &Progress<'_>) -> Result<(), DemoError> {
        let from = match self.last.take() {
            Some((phase, sample)) if phase == progress.current => sample,
            _ => {
                self.heading(progress)?;
                progress.samples.first().cloned().unwrap_or_default()
            }
        };
        let now = progress.now();
        let since = now.at.saturating_sub(from.at);
        let due = since >= LINE_EVERY || (progress.ended && since >= REST_MIN);
        if due {
            self.figures(progress, &from.until(&now))?;
        }
        self.last = Some((progress.current, if due { now } else { from }));
        Ok(())
    }

    fn wait(&mut self, time: Duration) -> Result<bool, DemoError> {
        thread::sleep(time);
        Ok(false)
    }
}
