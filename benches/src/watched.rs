//! Cost of a thousand ports, and cost of observers of weir: scrapes, `weir top`, a capture.

use std::{
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use weir_bed::{
    address,
    error::{Error, Result, check},
    http::get_unix,
    process::{Process, allow_descriptors, run, wait_until},
    qemu::{Guest, GuestSpec},
    report::{Figure, Goal, Report, Samples},
    switch::Switch,
    testpmd::{HugePages, Testpmd, Traffic},
    tmux::Terminal,
    usage::Usage,
    weir::{self, Setup, Vif, Weir},
};

use super::{Bench, CLIENT_CPU, SWITCH_CPU, packet_rate, vif_programs::MACS};

/// Number of interfaces with silent guests.
const SILENT: u16 = 1000;

/// Index of the first silent interface. Two interfaces before it are for load. The guests of two others announce
/// themselves to all once, so that each interface has had a frame and an interrupt.
const FIRST_SILENT: u16 = 4;

/// Longest time until all interfaces have had a frame.
const PATIENCE: Duration = Duration::from_secs(60);

/// Time for adaptive switches to notice the load.
const WARM_UP: Duration = Duration::from_secs(1);

/// Shortest interval of Prometheus's scrapes.
const SCRAPE_INTERVAL: Duration = Duration::from_secs(1);

/// Answers per round.
const SCRAPES: u32 = 5;

/// Time for which packets are counted, which includes some scrapes.
const LOAD_TIME: Duration = Duration::from_secs(4);

/// Time for which the CPU time of `weir top` is counted.
const TOP_TIME: Duration = Duration::from_secs(15);

/// Duration of each part of a round of captures (s).
const CAPTURE_SECONDS: &str = "3";

/// A weir with a thousand silent guests.
struct Crowd {
    weir: Weir,
    _guests: Process,
}

impl Crowd {
    fn start(bench: &Bench<'_>, cpu: Option<usize>) -> Result<Self> {
        allow_descriptors(u64::from(FIRST_SILENT + SILENT) * DESCRIPTORS_PER_PORT)?;
        let mut setup = Setup { cpu, ..Setup::vifs((FIRST_SILENT + SILENT).into()) };
        for (vif, mac) in setup.vifs.iter_mut().skip(2).zip(MACS) {
            *vif = Vif { mac: Some(mac), ..Vif::default() };
        }
        let weir = Weir::start(bench.lab, &setup)?;
        let sockets: Vec<PathBuf> = (FIRST_SILENT..FIRST_SILENT + SILENT)
            .map(|port| weir.socket(port))
            .collect::<Result<_>>()?;
        let guests = bench.programs()?.attach(&sockets)?;
        let crowd = Self { weir, _guests: guests };
        let two = [crowd.weir.socket(2_u8)?, crowd.weir.socket(3_u8)?];
        bench.programs()?.paced(&two, 1_000, 64, 1, CLIENT_CPU)?.next()?;
        wait_until("each interface's histogram", PATIENCE, || {
            let series = crowd.metrics()?.matches("\nweir_port_hold_seconds_count{").count();
            Ok(series >= SILENT.into())
        })?;
        Ok(crowd)
    }

    fn control(&self) -> PathBuf {
        self.weir.dir().join("control.sock")
    }

    fn metrics(&self) -> Result<String> {
        get_unix(&self.control(), "/metrics")
    }
}

/// Measures the time from the request to the end of the answer.
pub(super) fn scrape(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    bench.note_other_load()?;
    let crowd = Crowd::start(bench, None)?;
    let (mut times, mut bytes) = (Samples::new(), 0);
    for _ in 0..bench.rounds * SCRAPES {
        let begin = Instant::now();
        bytes = crowd.metrics()?.len();
        let ms = 1_000.0 * begin.elapsed().as_secs_f64();
        println!("{ms:.1} ms");
        times.push(ms);
        thread::sleep(SCRAPE_INTERVAL);
    }
    let what =
        "GET /metrics on the control socket, 1,000 attached guests that have had a frame each";
    let figure = Figure::new("metrics_scrape_ms", "ms", what, times);
    report.add(figure.goal(Some(Goal::AtMost(50.0))));
    let what = "the length of this answer";
    report.add(Figure::new("metrics_scrape_bytes", "bytes", what, Samples::one(bytes as f64)));
    Ok(())
}

/// Compares a packet's cost for a worker that also serves a thousand silent ports with its cost for a worker that
/// does not.
pub(super) fn crowded_load(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let _pages = HugePages::reserve()?;
    let crowd = Crowd::start(bench, Some(SWITCH_CPU))?;
    let alone = Weir::start(bench.lab, &Setup { cpu: Some(SWITCH_CPU), ..Setup::vifs(2) })?;
    let rounds = bench.rounds(|round| {
        bench.note_other_load()?;
        let time = |weir: &Weir| {
            let rate = packet_rate::through(weir, &Traffic::default())?.per_busy_second;
            let rate =
                rate.ok_or_else(|| Error::Check("weir does not say how busy it was".into()))?;
            Ok::<_, Error>(1e9 / rate)
        };
        let (few, many) = (time(&alone)?, time(&crowd.weir)?);
        println!("round {round}: {few:.1} ns a packet with 2 ports, {many:.1} with 1,000");
        Ok([few, many])
    })?;
    let of = |which: usize| rounds.iter().map(|round| round[which]).collect::<Samples>();
    let (few, many) = (of(0), of(1));
    let what = "64 B through two ports: the worker's time for a packet beside 1,000 silent ones, over that without";
    let figure = Figure::ratio("ports_1000_time_vs_2", what, many.ratio_to(&few));
    report.add(figure.goal(Some(Goal::AtMost(1.15))));
    report.add(Figure::new("packet_ns_of_1000_ports", "ns", "by weir's own count", many));
    report.add(Figure::new("packet_ns_of_2_ports", "ns", "by weir's own count", few));
    Ok(())
}

/// Compares packets during scrapes with packets without scrapes, in turn.
pub(super) fn scraped_load(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    bench.note_other_load()?;
    let _pages = HugePages::reserve()?;
    let crowd = Crowd::start(bench, Some(SWITCH_CPU))?;
    let links = [&crowd.weir.link(0)?, &crowd.weir.link(1)?];
    let mut client = Testpmd::start(links, &Traffic::default(), CLIENT_CPU)?;
    client.circulate()?;
    thread::sleep(WARM_UP);
    let rounds = bench.rounds(|round| {
        let alone = client.packets_per_second(LOAD_TIME)?;
        let scraped = while_scraped(&crowd, || client.packets_per_second(LOAD_TIME))?;
        println!("round {round}: alone {alone:.0}, scraped {scraped:.0} packets/s");
        Ok(scraped / alone)
    })?;
    client.quit()?;
    let what = "64 B through two ports while /metrics of 1,000 others is read each second, over the same without";
    let figure = Figure::ratio("pps_while_scraped", what, rounds.into_iter().collect());
    report.add(figure.goal(Some(Goal::AtLeast(0.98))));
    Ok(())
}

/// Returns the result of `measure` while a thread scrapes.
fn while_scraped<T>(crowd: &Crowd, measure: impl FnOnce() -> Result<T>) -> Result<T> {
    let goes_on = AtomicBool::new(true);
    thread::scope(|scope| {
        let scraping = scope.spawn(|| {
            let mut due = Instant::now();
            while goes_on.load(Ordering::Relaxed) {
                crowd.metrics()?;
                due += SCRAPE_INTERVAL;
                while goes_on.load(Ordering::Relaxed) && Instant::now() < due {
                    thread::sleep(SCRAPE_INTERVAL / 50);
                }
            }
            Ok(())
        });
        let measured = measure();
        goes_on.store(false, Ordering::Relaxed);
        let panicked = |_| Error::Check("the thread that scrapes panicked".into());
        scraping.join().map_err(panicked)??;
        measured
    })
}

/// Measures the CPU time of `weir top` on a terminal.
pub(super) fn top(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let crowd = Crowd::start(bench, None)?;
    let (program, control) = (bench.lab.weir.display(), crowd.control());
    let command = format!("exec {program} top --control {}", control.display());
    let terminal = Terminal::start(crowd.weir.dir(), [120, 40], &command)?;
    terminal.await_screen("the list", PATIENCE, |screen| screen.contains("sent "))?;
    let (top, weir) = (Usage::of(terminal.pid()?), crowd.weir.usage());
    let [mut of_top, mut of_weir] = [Samples::new(), Samples::new()];
    for round in 1..=bench.rounds {
        bench.note_other_load()?;
        let (begin, before) = (Instant::now(), [top.cpu_time()?, weir.cpu_time()?]);
        thread::sleep(TOP_TIME);
        let now = [top.cpu_time()?, weir.cpu_time()?];
        let seconds = begin.elapsed().as_secs_f64();
        let [by_top, by_weir] = [0, 1].map(|who: usize| {
            let spent = now[who].saturating_sub(before[who]);
            100.0 * spent.as_secs_f64() / seconds
        });
        println!("round {round}: weir top {by_top:.2} %, weir {by_weir:.2} %");
        of_top.push(by_top);
        of_weir.push(by_weir);
    }
    let what = "weir top on a terminal, 1,000 interfaces, each second";
    let figure = Figure::new("top_cpu_percent", "% of a core", what, of_top);
    report.add(figure.goal(Some(Goal::AtMost(3.0))));
    let what = "all of weir meanwhile, which answers it and has nothing else to do";
    report.add(Figure::new("top_weir_cpu_percent", "% of a core", what, of_weir));
    Ok(())
}

/// Compares a worker's packets during a capture of all frames with packets without a capture.
pub(super) fn capture(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    bench.note_other_load()?;
    let program = bench.programs()?.example("captured");
    let rounds = bench.rounds.to_string();
    let said = run(&[&*program, &rounds, CAPTURE_SECONDS])?;
    print!("{said}");
    let rounds: Vec<_> = said.lines().filter_map(captured).collect();
    check(rounds.len() == bench.rounds as usize, || format!("rounds of a capture: {said}"))?;
    let what = "64 B for a second of a worker's time, all captured, 128 B of each, over the same without a capture";
    let of = |which: usize| rounds.iter().map(|round| round[which]).collect::<Samples>();
    let figure = Figure::ratio("capture_on_pps", what, of(0));
    report.add(figure.goal(Some(Goal::AtLeast(0.5))));
    let what =
        "frames that the capture says it lost, of all; a round where it says less is no round";
    report.add(Figure::new("capture_lost_share", "share", what, of(1)));
    let what = "the same frames by the clock: guests, worker and the thread that writes share this machine";
    report.add(Figure::ratio("capture_on_by_the_clock", what, of(2)));
    let what = "CPU time of the thread that writes, for each frame written";
    report.add(Figure::new("capture_writer_ns", "ns", what, of(3)));
    Ok(())
}

/// Parses the ratio, the share of lost frames, the ratio by the clock and the writer's time in ` 1 off 9/s  on 5/s
/// by the clock 0.9  writer 80 ns  0.556  written 3, lost 1`.
fn captured(line: &str) -> Option<[f64; 4]> {
    let (before, counts) = line.split_once("  written ")?;
    let mut parts = before.rsplit("  ");
    let ratio = parts.next()?.parse().ok()?;
    let writer = parts.next()?.strip_prefix("writer ")?.strip_suffix(" ns")?.parse().ok()?;
    let by_clock = parts.next()?.strip_prefix("by the clock ")?.parse().ok()?;
    let (written, lost) = counts.split_once(", lost ")?;
    let (written, lost): (f64, f64) = (written.parse().ok()?, lost.trim().parse().ok()?);
    Some([ratio, lost / (written + lost).max(1.0), by_clock, writer])
}

/// Time until guests and switch are silent.
const SETTLE: Duration = Duration::from_secs(3);

/// Time for which wake-ups are counted.
const WAKEUPS_TIME: Duration = Duration::from_secs(10);

/// Time for which CPU time is counted.
const CPU_TIME: Duration = Duration::from_secs(30);

/// Ports attached during the measurement of CPU time.
const SILENT_PORTS: usize = 4;

/// Ports of a small switch.
const FEW_PORTS: u16 = 2;

/// Ports attached during the measurement of memory.
const MANY_PORTS: u16 = 1000;

/// Descriptors per port of weir or of the program with its guests, rounded up: a listener, a connection, and eventfds
/// for calls, kicks and errors of two rings.
const DESCRIPTORS_PER_PORT: u64 = 16;

/// Counts the times that any of weir's threads ran, with two attached guests whose interfaces are up and silent (no
/// IPv6, no ARP).
pub(super) fn wakeups(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let weir = Weir::start(bench.lab, &Setup::vifs(2))?;
    let specs = [0, 1].map(|index| {
        let plug = weir.plug(index)?;
        Ok(GuestSpec { name: weir::name(index), cidr: address::cidr(index), vcpus: 1, plug })
    });
    let specs: Vec<_> = specs.into_iter().collect::<Result<_>>()?;
    let _guests = Guest::boot_all(&bench.lab.image, &specs, weir.dir())?;
    thread::sleep(SETTLE);
    let before = weir.usage().context_switches()?;
    thread::sleep(WAKEUPS_TIME);
    let switches = weir.usage().context_switches()?.saturating_sub(before);
    let rate = f64::from(u32::try_from(switches).unwrap_or(u32::MAX)) / WAKEUPS_TIME.as_secs_f64();
    let what = "two silent QEMU guests, 10 s: context switches of all threads";
    let figure = Figure::new("idle_wakeups_per_s", "/s", what, Samples::one(rate));
    report.add(figure.goal(Some(Goal::AtMost(1.0))));
    Ok(())
}

/// Measures the CPU time of all of weir's threads without traffic, in percent of a core with two decimals.
pub(super) fn cpu(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let weir = Weir::start(bench.lab, &Setup::vifs(SILENT_PORTS))?;
    let sockets: Vec<_> =
        (0_u16..).take(SILENT_PORTS).map(|port| weir.socket(port)).collect::<Result<_>>()?;
    let _guests = bench.programs()?.attach(&sockets)?;
    thread::sleep(SETTLE);
    let (start, before) = (Instant::now(), weir.usage().cpu_time()?);
    thread::sleep(CPU_TIME);
    let spent = weir.usage().cpu_time()?.saturating_sub(before);
    let percent = 100.0 * spent.as_secs_f64() / start.elapsed().as_secs_f64();
    println!("{} us of CPU in {} s", spent.as_micros(), CPU_TIME.as_secs());
    let percent = (100.0 * percent).round() / 100.0;
    let what = "four silent vif guests, 30 s: CPU of all threads, in hundredths of a percent";
    let figure = Figure::new("cpu_idle", "% of a core", what, Samples::one(percent));
    report.add(figure.goal(Some(Goal::AtMost(0.0))));
    Ok(())
}

/// Measures weir's memory with two ports, its start with many, and its memory for each attached port.
pub(super) fn memory(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    allow_descriptors(u64::from(MANY_PORTS) * DESCRIPTORS_PER_PORT)?;
    let (resident_before, tables_before) = {
        let weir = Weir::start(bench.lab, &Setup::vifs(FEW_PORTS.into()))?;
        thread::sleep(SETTLE);
        (weir.usage().resident_bytes()?, weir.usage().page_table_bytes()?)
    };
    let mib = f64::from(u32::try_from(resident_before >> 10).unwrap_or(u32::MAX)) / 1024.0;
    let what = "two interfaces without guests: RssAnon + RssFile of the switch's process";
    let figure = Figure::new("resident_mib_2_ports", "MiB", what, Samples::one(mib));
    report.add(figure.goal(Some(Goal::AtMost(9.0))));
    let start = Instant::now();
    let weir = Weir::start(bench.lab, &Setup::vifs(MANY_PORTS.into()))?;
    let started = start.elapsed().as_secs_f64();
    let spent = weir.usage().cpu_time()?.as_secs_f64();
    let what = "1,000 interfaces: until all sockets are there";
    let figure = Figure::new("start_1000_ports_s", "s", what, Samples::one(started));
    report.add(figure.goal(Some(Goal::AtMost(0.4))));
    let what = "the same: CPU of the switch's process";
    report.add(Figure::new("start_1000_ports_cpu_s", "s", what, Samples::one(spent)));
    let sockets: Vec<_> = (0..MANY_PORTS).map(|port| weir.socket(port)).collect::<Result<_>>()?;
    let _guests = bench.programs()?.attach(&sockets)?;
    thread::sleep(SETTLE);
    let per_port = |now: u64, before: u64| {
        let bytes = u32::try_from(now.saturating_sub(before)).unwrap_or(u32::MAX);
        Samples::one(f64::from(bytes) / f64::from(MANY_PORTS - FEW_PORTS))
    };
    let resident = per_port(weir.usage().resident_bytes()?, resident_before);
    let tables = per_port(weir.usage().page_table_bytes()?, tables_before);
    let what = "1,000 vif guests attached, less a weir with two interfaces: RssAnon + RssFile; not the guests' \
                memory, not page tables";
    let figure = Figure::new("bytes_per_idle_port", "bytes", what, resident);
    report.add(figure.goal(Some(Goal::AtMost(24_576.0))));
    let what = "the same: VmPTE";
    report.add(Figure::new("page_table_bytes_per_idle_port", "bytes", what, tables));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_of_captures_is_read() {
        let line = " 1  off   10000/s  on    6000/s  by the clock 0.900  writer 80 ns  0.600  written 300, lost 100";
        assert_eq!(captured(line), Some([0.6, 0.25, 0.9, 80.0]));
        assert_eq!(captured("capture_on_pps 0.600"), None);
    }
}
