//! `weir-agent --once`: shows a report for humans.

use std::io::{self, Write};
use std::thread;
use std::time::{Duration, Instant};

use weir_limits::AGENT_PERIOD_NS;

use crate::agent::elapsed_ns;
use crate::args::Args;
use crate::guest::{DEFER_HARD_IRQS, FLUSH_TIMEOUT, FileError, Guest, Nic};
use crate::protocol::Report;
use crate::report::Reporter;

/// Reason why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum OnceError {
    /// A file of the kernel cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// Output failed.
    #[error("output: {0}")]
    Output(#[from] io::Error),
}

/// Counts for a second and prints the counts.
pub fn run(args: &Args, out: &mut impl Write) -> Result<(), OnceError> {
    let guest = Guest::new(&args.root);
    let start = Instant::now();
    let interfaces = guest.interfaces()?;
    let mut reporter = Reporter::default();
    reporter.next(guest.sample(&interfaces, elapsed_ns(start))?);
    thread::sleep(Duration::from_nanos(AGENT_PERIOD_NS));
    let reports = reporter.next(guest.sample(&interfaces, elapsed_ns(start))?);

    writeln!(out, "weir-agent {} on Linux {}", env!("CARGO_PKG_VERSION"), guest.kernel()?)?;
    if interfaces.is_empty() {
        writeln!(out, "no interfaces of virtio-net or xen-netfront")?;
    }
    for interface in &interfaces {
        print_interface(interface, out)?;
        match reports.iter().find(|report| report.mac == interface.interface.mac) {
            Some(report) => print_report(report, out)?,
            None => writeln!(out, "  gone meanwhile")?,
        }
    }
    if let Some(report) = reports.first() {
        let share = report.cpu_ns as f64 / report.interval_ns.max(1) as f64;
        writeln!(out, "all CPUs in the kernel: {:.0}% of one", 100.0 * share)?;
    }
    Ok(())
}

fn print_interface(interface: &Nic, out: &mut impl Write) -> Result<(), OnceError> {
    let known = &interface.interface;
    write!(out, "{} {} {}: ", known.name, known.mac, interface.device())?;
    if known.can_defer {
        let (polls, interval_ns) =
            (interface.number(DEFER_HARD_IRQS)?, interface.number(FLUSH_TIMEOUT)?);
        writeln!(out, "{DEFER_HARD_IRQS} {polls}, {FLUSH_TIMEOUT} {interval_ns} ns")?;
    } else {
        writeln!(out, "cannot poll on a timer (that takes Linux 5.8 or later)")?;
    }
    Ok(())
}

fn print_report(report: &Report, out: &mut impl Write) -> Result<(), OnceError> {
    let packets = report.rx_packets;
    match report.interrupts {
        Some(interrupts) => {
            write!(out, "  in a second: {interrupts} interrupts, {packets} packets received")?;
            if packets > 0 {
                write!(out, ", {:.3} each", interrupts as f64 / packets as f64)?;
            }
            writeln!(out)?;
        }
        None => writeln!(
            out,
            "  in a second: {packets} packets received; interrupts are not counted by device"
        )?,
    }
    Ok(())
}
