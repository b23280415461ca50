//! One line of text each second.

use std::io::{self, Write};
use std::thread;
use std::time::Duration;

use weir_text::{decimal, time};

use super::figures::{Sample, or_dash};
use super::phase::{DemoError, Progress, View};

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
