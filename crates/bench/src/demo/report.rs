//! The final output on the terminal: a table of results, and the next steps.

use std::fmt;

use weir_text::{Table, bytes, decimal, time};

use super::figures::{Latency, Sample, Trouble, or_dash};
use super::phase::Outcome;
use super::phase::Traffic;

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
