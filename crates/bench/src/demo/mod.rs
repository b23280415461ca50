//! `weir demo`: a switch and its guests in one process, traffic between them, and its cost.
//!
//! Each phase has a [rig] of its own, so that counters and histograms belong to the phase.
//!
//! | file | contents |
//! |---|---|
//! | `phase.rs` | kinds of traffic; phases, their counters and figures, and the interface of a view |
//! | `screen.rs` | the live display |
//! | `report.rs` | lines of text, the table at the end, and the table as JSON |

use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use weir_config::Moderation;

use crate::args::DemoArgs;
use crate::rig::{self, Rig};

mod phase;
mod report;
mod screen;

pub use phase::DemoError;
use phase::{Outcome, Phase, Progress, TICK, Traffic, View};
use report::Plain;
use screen::Screen;

/// Returns the phases of a demo that takes `total`.
fn plan(total: Duration) -> Vec<Phase> {
    let shares: u32 = Traffic::ALL.iter().map(|traffic| traffic.share()).sum();
    Traffic::ALL
        .into_iter()
        .map(|traffic| Phase {
            traffic,
            moderation: Moderation::default(),
            duration: total * traffic.share() / shares,
        })
        .collect()
}

/// Runs the demo. `terminal` is true if standard output is a terminal.
///
/// # Errors
/// [`DemoError`]; the table of the earlier phases is printed.
pub fn run(args: &DemoArgs, out: &mut dyn Write, terminal: bool) -> Result<(), DemoError> {
    let stop = rig::catch_signals()?;
    let dir = rig::temp_dir()?;
    let total = Duration::from_secs(args.seconds.into());
    let plan = plan(total);
    let mut outcomes = Vec::new();
    if args.json {
        let result = drive(&plan, dir.path(), &stop, &mut report::Quiet::new(total), &mut outcomes);
        let columns: Vec<_> = outcomes.iter().map(report::Column::from).collect();
        serde_json::to_writer_pretty(&mut *out, &columns).map_err(io::Error::from)?;
        writeln!(out)?;
        return result;
    }
    let result = if args.plain || !terminal || !screen::has_keyboard() {
        drive(&plan, dir.path(), &stop, &mut Plain::new(out), &mut outcomes)
    } else {
        Screen::open()
            .map_err(DemoError::Terminal)
            .and_then(|mut screen| drive(&plan, dir.path(), &stop, &mut screen, &mut outcomes))
    };
    write!(out, "{}", report::Summary::new(&outcomes))?;
    result?;
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get());
    write!(out, "{}", report::Closing::new(&outcomes, cpus))?;
    out.flush()?;
    Ok(())
}

/// Runs the phases in order until the last one, or until the user ends the demo.
fn drive(
    plan: &[Phase],
    dir: &Path,
    stop: &AtomicBool,
    view: &mut dyn View,
    outcomes: &mut Vec<Outcome>,
) -> Result<(), DemoError> {
    let total = plan.iter().map(|phase| phase.duration).sum();
    let mut before = Duration::ZERO;
    for (current, phase) in plan.iter().enumerate() {
        let rig = Rig::start(&phase::setup(*phase), dir)?;
        let mut samples = vec![phase::sample(*phase, &rig)];
        let mut ended = false;
        while !ended {
            let left = phase.duration.saturating_sub(rig.elapsed());
            let enough = view.wait(left.min(TICK))? || stop.load(Ordering::Relaxed);
            ended = enough || rig.elapsed() >= phase.duration || rig.has_failed();
            if enough {
                stop.store(true, Ordering::Relaxed);
            }
            let sample = phase::sample(*phase, &rig);
            let elapsed = before + sample.at.min(phase.duration);
            samples.push(sample);
            view.show(&Progress {
                plan,
                current,
                samples: &samples,
                ended,
                outcomes,
                elapsed,
                total,
            })?;
        }
        rig.finish()?;
        if let [first, .., last] = samples.as_slice() {
            let figures = first.until(last);
            // A phase that ended before any frame arrived has no report.
            if figures.frames > 0 {
                outcomes.push(Outcome { phase: *phase, figures });
            }
        }
        if stop.load(Ordering::Relaxed) {
            break;
        }
        before += phase.duration;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    //! The demo's output for given counters.

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use weir_switch::stats::Times;

    use super::phase::{Latency, Sample, Trouble};
    use super::*;

    /// Returns the counters after `tenths` of a second with `frames` and `bytes` each second.
    fn sample(tenths: u32, frames: u64, bytes: u64) -> Sample {
        let n = u64::from(tenths);
        Sample {
            at: TICK * tenths,
            frames: frames * n / 10,
            bytes: bytes * n / 10,
            calls: frames * n / 40,
            hold: Times { p50: 11_000, p99: 45_000, max: 300_000, ..Times::default() },
            latency: Some(Latency { p50_ns: 152_000, p99_ns: 990_000 }),
            switch_cpu_ns: 95_000_000 * n,
            guests_cpu_ns: 104_000_000 * n,
            ..Sample::default()
        }
    }

    fn outcome(phase: Phase, frames: u64, bytes: u64) -> Outcome {
        let figures = sample(0, frames, bytes).until(&sample(60, frames, bytes));
        Outcome { phase, figures }
    }

    fn outcomes() -> Vec<Outcome> {
        let rates = [
            (50_000, 3_250_000_000),
            (1_234_567, 79_012_345),
            (10_000, 640_000),
            (25_000, 1_600_000),
        ];
        plan(Duration::from_secs(20))
            .into_iter()
            .zip(rates)
            .map(|(phase, (frames, bytes))| outcome(phase, frames, bytes))
            .collect()
    }

    #[test]
    fn phases_fill_the_time() {
        for seconds in [1, 2, 20, 3600] {
            let total = Duration::from_secs(seconds);
            let planned: Duration = plan(total).iter().map(|phase| phase.duration).sum();
            assert!(planned <= total && planned > total - Duration::from_micros(1));
        }
    }

    #[test]
    fn figures_are_differences_over_time() {
        let (from, to) = (sample(10, 1_000, 64_000), sample(30, 1_000, 64_000));
        let figures = from.until(&to);
        assert_eq!((figures.frames, figures.packets_per_s()), (2_000, 1_000));
        assert!((figures.gbit_per_s() - 0.000_512).abs() < 1e-9);
        assert_eq!(figures.calls_per_packet(), Some(0.25));
        assert!((figures.switch_cpus() - 0.95).abs() < 1e-9);
        let bytes_per_cpu_s = figures.bytes_per_cpu_s().unwrap();
        assert!((bytes_per_cpu_s - 64_000.0 / 0.95).abs() < 1e-6);
        let nothing = from.until(&from);
        assert_eq!((nothing.packets_per_s(), nothing.calls_per_packet()), (0, None));
    }

    #[test]
    fn table_for_people() {
        let mut outcomes = outcomes();
        outcomes[0].figures.trouble = Trouble {
            retransmitted: 12_345,
            invalid: 0,
            dropped: [("rx_ring_full".into(), 7)].into(),
        };
        insta::assert_snapshot!(report::Summary::new(&outcomes).to_string(), @r#"
                             bulk TCP  64-byte flood  64-byte paced  request-reply
    moderation                   auto           auto           auto           auto
    seconds                       6.0            6.0            6.0            6.0
    throughput, Gbit/s         26.000          0.632          0.005          0.013
    packets/s                  50,000      1,234,567         10,000         25,000
    calls per packet            0.250          0.250          0.250          0.250
    hold time p50               11 us          11 us          11 us          11 us
    hold time p99               45 us          45 us          45 us          45 us
    latency is           frame to ACK        one way        one way     round trip
    latency p50                152 us         152 us         152 us         152 us
    latency p99                990 us         990 us         990 us         990 us
    lost, reordered              0, 0           0, 0           0, 0           0, 0
    CPU s, switch                5.70           5.70           5.70           5.70
    CPU s, guests                6.24           6.24           6.24           6.24
    bytes/CPU s, switch        3.4 GB        83.2 MB         674 kB         1.7 MB
    bulk TCP: packets 12,345 sent again, 7 dropped (rx_ring_full)
    "#);
    }

    #[test]
    fn closing_words_name_the_figures_and_the_next_step() {
        insta::assert_snapshot!(report::Closing::new(&outcomes(), 2).to_string(), @r#"
    You saw weir switch packets between two vhost-user guests, with one copy each:
    26.0 Gbit/s of TCP, 1,234,567 small packets/s, round trips of 152 us.
    All shared 2 CPUs; a VM, whose kernel copies the payload again, gets less.
    Next, start a switch and plug in a VM of your own:
      echo '[vif.web0]' > weir.toml && weir run weir.toml
      qemu-system-x86_64 -accel kvm -drive file=disk.img $(weir qemu-args web0)
    "#);
    }

    #[test]
    fn report_fits_a_terminal_of_80_by_24_with_the_prompt() {
        let outcomes = outcomes();
        let (table, closing) =
            (report::Summary::new(&outcomes), report::Closing::new(&outcomes, 256));
        let text = format!("{table}{closing}");
        assert!(text.lines().count() <= 23, "{text}");
        assert!(text.lines().all(|line| line.chars().count() < 80), "{text}");
    }

    #[test]
    fn table_of_an_interrupted_demo_has_the_phases_that_ran() {
        let text = report::Summary::new(&outcomes()[..1]).to_string();
        assert!(text.contains("bulk TCP") && !text.contains("flood"));
        assert_eq!(report::Summary::new(&[]).to_string(), "\nNothing was measured.\n");
        assert_eq!(report::Closing::new(&[], 2).to_string(), "");
    }

    fn screen(width: u16, height: u16) -> Terminal<TestBackend> {
        let plan = plan(Duration::from_secs(20));
        let samples: Vec<_> =
            (0..=35).map(|tenths| sample(tenths, 1_234_567, 79_012_345)).collect();
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        let progress = Progress {
            plan: &plan,
            current: 1,
            samples: &samples,
            ended: false,
            outcomes: &outcomes()[..1],
            elapsed: Duration::from_millis(9_500),
            total: Duration::from_secs(20),
        };
        terminal.draw(|frame| screen::draw(frame, &progress)).unwrap();
        terminal
    }

    #[test]
    fn display_fits_80_by_24() {
        insta::assert_snapshot!(screen(80, 24).backend(), @r#"
    " weir demo   two guests, one switch, every packet copied once       9 s of 20 s "
    "                                                                                "
    "╭ 64-byte flood: UDP as fast as it goes, at most 512 in flight ────────────────╮"
    "│                                                                              │"
    "│ ▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃                                │"
    "│ █████████████████████████████████████████████                                │"
    "│ █████████████████████████████████████████████                                │"
    "│ █████████████████████████████████████████████                                │"
    "│ █████████████████████████████████████████████                                │"
    "│ █████████████████████████████████████████████                                │"
    "│ █████████████████████████████████████████████                                │"
    "╰───────────────────────────────────────────────────────── 1,234,567 packets/s ╯"
    "  throughput        0.632 Gbit/s          hold time   p50 11 us, p99 45 us      "
    "  packets           1,234,567 packets/s   one way     p50 152 us, p99 990 us    "
    "  calls per packet  0.250                 switch CPU  95%                       "
    "  lost, reordered   0, 0                  guests CPU  104%                      "
    "                                                                                "
    "                  Gbit/s  packets/s calls/pkt hold p50 latency p50 switch CPU   "
    " ✓ bulk TCP       26.000     50,000     0.250    11 us      152 us     5.70 s   "
    " ▶ 64-byte flood   0.632  1,234,567     0.250    11 us      152 us     3.33 s   "
    " · 64-byte paced                                                                "
    " · request-reply                                                                "
    "                                                                                "
    " Ctrl-C ends it here and prints what was measured                               "
    "#);
    }

    #[test]
    fn display_fits_120_by_40() {
        insta::assert_snapshot!(screen(120, 40).backend(), @r#"
    " weir demo   two guests, one switch, every packet copied once                                               9 s of 20 s "
    "                                                                                                                        "
    "╭ 64-byte flood: UDP as fast as it goes, at most 512 in flight ────────────────────────────────────────────────────────╮"
    "│                                                                                                                      │"
    "│                                                                                                                      │"
    "│ ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁                                                 │"
    "│ ████████████████████████████████████████████████████████████████████                                                 │"
    "│ ████████████████████████████████████████████████████████████████████                                                 │"
    "│ ████████████████████████████████████████████████████████████████████                                                 │"
    "│ ████████████████████████████████████████████████████████████████████                                                 │"
    "│ ████████████████████████████████████████████████████████████████████                                                 │"
    "│ ████████████████████████████████████████████████████████████████████                                                 │"
    "│ ████████████████████████████████████████████████████████████████████                                                 │"
    "│ ████████████████████████████████████████████████████████████████████                                                 │"
    "│ ████████████████████████████████████████████████████████████████████                                                 │"
    "│ ████████████████████████████████████████████████████████████████████                                                 │"
    "│ ████████████████████████████████████████████████████████████████████                                                 │"
    "╰───────────────────────────────────────────────────────────────────────────────────────────────── 1,234,567 packets/s ╯"
    "  throughput        0.632 Gbit/s          hold time   p50 11 us, p99 45 us                                              "
    "  packets           1,234,567 packets/s   one way     p50 152 us, p99 990 us                                            "
    "  calls per packet  0.250                 switch CPU  95%                                                               "
    "  lost, reordered   0, 0                  guests CPU  104%                                                              "
    "                                                                                                                        "
    "                  Gbit/s  packets/s calls/pkt hold p50 latency p50 switch CPU                                           "
    " ✓ bulk TCP       26.000     50,000     0.250    11 us      152 us     5.70 s                                           "
    " ▶ 64-byte flood   0.632  1,234,567     0.250    11 us      152 us     3.33 s                                           "
    " · 64-byte paced                                                                                                        "
    " · request-reply                                                                                                        "
    "                                                                                                                        "
    " Ctrl-C ends it here and prints what was measured                                                                       "
    "                                                                                                                        "
    "                                                                                                                        "
    "                                                                                                                        "
    "                                                                                                                        "
    "                                                                                                                        "
    "                                                                                                                        "
    "                                                                                                                        "
    "                                                                                                                        "
    "                                                                                                                        "
    "                                                                                                                        "
    "#);
    }

    #[test]
    fn display_survives_any_size() {
        for (width, height) in [(1, 1), (10, 3), (40, 10), (500, 200)] {
            screen(width, height);
        }
    }
}
