//! Cost of weir while its guests do nothing.

use std::{
    thread,
    time::{Duration, Instant},
};

use weir_bed::{
    address,
    error::Result,
    process::allow_descriptors,
    qemu::{Guest, GuestSpec},
    report::{Figure, Goal, Report, Samples},
    switch::Switch,
    weir::{self, Setup, Weir},
};

use super::Bench;

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
pub(super) const DESCRIPTORS_PER_PORT: u64 = 16;

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
    let _guests = bench.programs.attach(&sockets)?;
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
    let _guests = bench.programs.attach(&sockets)?;
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
