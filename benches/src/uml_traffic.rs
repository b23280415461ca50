//! Traffic of ordinary programs between two guests at native speed without KVM: user-mode Linux.
//!
//! On weir the guests have virtio-net by vhost-user. On the kernel's bridge they have the vector driver on a TAP,
//! with the settings of the kernel's guide. All loads of a contender run between the same two guests.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use weir_bed::{
    address,
    error::{Error, Result},
    iperf::{self, Tcp},
    qemu::Guest,
    report::{Figure, Goal, Report, Samples},
    switch::Switch,
    uml::{self, UserModeLinux, Wire},
    weir::{Setup, Weir},
};

use super::{
    Bench, Contender,
    machine::CpuTime,
    peers::tap_bridge::{self, TapBridge},
    request_response::RoundTrips,
};

/// Number of guests. Each has one virtual CPU.
const GUESTS: f64 = 2.0;

const TCP_SECONDS: u64 = 3;
const FLOWS: u8 = 16;
const ASK_SECONDS: u64 = 3;
const GRACE: Duration = Duration::from_secs(30);

/// A load of requests and answers.
struct Talk {
    port: u16,
    request_bytes: u32,
    answer_bytes: u32,
    connections: u32,
    /// `keep` for lasting connections, or `close` for a connection per request.
    how: &'static str,
}

/// Small values of a cache over lasting connections.
const CACHE: Talk =
    Talk { port: 11_211, request_bytes: 40, answer_bytes: 300, connections: 8, how: "keep" };

/// Pages over HTTP/1.0, with a connection for each.
const PAGES: Talk =
    Talk { port: 80, request_bytes: 200, answer_bytes: 16_384, connections: 4, how: "close" };

/// Results for a switch.
struct Run {
    /// Throughput of one connection and of many (Gbit/s).
    tcp: f64,
    flows: f64,
    /// CPU time of the switch per second, during the first load.
    cores: f64,
    /// CPU time of the machine per second.
    busy_cores: f64,
    cache: Talked,
    pages: Talked,
}

#[derive(Clone, Copy, Debug)]
struct Talked {
    /// Answers per second.
    rate: f64,
    p99_us: f64,
}

pub(super) fn measure(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let talk = bench.programs()?.example("talk");
    let programs =
        UserModeLinux::prepare(&bench.lab.workspace, &bench.lab.image, &[Path::new(&talk)])
            .map_err(Error::absent("user-mode Linux"))?;
    programs.runs_here().map_err(Error::absent("user-mode Linux"))?;
    let contenders = [Contender::Weir, Contender::TapBridge];
    let measure = |contender| run(bench, &programs, contender);
    let found = bench.interleaved("Gbit/s", contenders, measure, |run| run.tcp)?;
    let of = |runs: &Vec<Run>, value: fn(&Run) -> f64| runs.iter().map(value).collect::<Samples>();
    let mut add = |[ratio, weir_name, bridge_name]: [&'static str; 3],
                   unit: &'static str,
                   what: &'static str,
                   goal: Option<Goal>,
                   value: fn(&Run) -> f64| {
        let [weir, bridge] = [of(&found[0], value), of(&found[1], value)];
        report.add(Figure::ratio(ratio, what, weir.ratio_to(&bridge)).goal(goal));
        report.add(Figure::new(weir_name, unit, "weir", weir));
        report.add(Figure::new(bridge_name, unit, "TAPs on a bridge", bridge));
    };
    let names = ["uml_tcp_vs_bridge", "uml_tcp_gbit_weir", "uml_tcp_gbit_bridge"];
    let what = "two guests of user-mode Linux, one TCP connection";
    add(names, "Gbit/s", what, Some(Goal::AtLeast(1.3)), |run| run.tcp);
    let names = ["uml_flows_vs_bridge", "uml_flows_gbit_weir", "uml_flows_gbit_bridge"];
    add(names, "Gbit/s", "the same with 16 connections", None, |run| run.flows);
    let names = ["uml_cache_vs_bridge", "uml_cache_weir", "uml_cache_bridge"];
    let what = "40 B asked, 300 B answered, 8 connections, each asks when it has its answer";
    add(names, "/s", what, None, |run| run.cache.rate);
    let names = ["uml_cache_p99_vs_bridge", "uml_cache_p99_weir", "uml_cache_p99_bridge"];
    add(names, "us", "the same: 99th percentile", None, |run| run.cache.p99_us);
    let names = ["uml_pages_vs_bridge", "uml_pages_weir", "uml_pages_bridge"];
    let what = "200 B asked, 16 KiB answered, a connection each, 4 at a time";
    add(names, "/s", what, None, |run| run.pages.rate);
    let names = ["uml_pages_p99_vs_bridge", "uml_pages_p99_weir", "uml_pages_p99_bridge"];
    add(names, "us", "the same: 99th percentile", None, |run| run.pages.p99_us);
    let limit = of(&found[0], Run::limit).ratio_to(&of(&found[1], |run| run.tcp));
    let what = "one TCP connection, were weir's CPU time nothing and its guests' instead, a core each at most";
    report.add(Figure::ratio("uml_tcp_vs_bridge_limit", what, limit));
    let what = "weir itself, while one connection is measured";
    report.add(Figure::new("uml_tcp_cores_weir", "cores", what, of(&found[0], |run| run.cores)));
    Ok(())
}

impl Run {
    /// Returns the rate of one connection if the switch took no CPU time and the guests had this time instead, at the
    /// same cost per byte. A guest has at most one core.
    fn limit(&self) -> f64 {
        let guests = (self.busy_cores - self.cores).max(f64::MIN_POSITIVE);
        self.tcp * (self.busy_cores.min(GUESTS) / guests).max(1.0)
    }
}

fn run(bench: &Bench<'_>, programs: &UserModeLinux, contender: Contender) -> Result<Run> {
    let logs = bench.lab.workspace.run_dir("uml")?;
    let console = |index: u8| logs.join(format!("{index}.console"));
    let boot = |index: u8, wire: &Wire<'_>| {
        let mut guest = programs.boot(wire, &console(index))?;
        uml::set_addresses(&mut guest, index)?;
        Ok(guest)
    };
    match contender {
        Contender::Weir => {
            let weir = Weir::start(bench.lab, &Setup::vifs(2))?;
            let guest = |index: u8| boot(index, &Wire::VhostUser(&weir.link(index)?.socket));
            loads(&weir, [guest(0)?, guest(1)?])
        }
        _ => {
            let bridge = TapBridge::start(2)?;
            let guest = |index: u8| {
                let (name, placement) = (&*tap_bridge::tap(index), bridge.placement());
                boot(index, &Wire::Tap { name, placement })
            };
            loads(&bridge, [guest(0)?, guest(1)?])
        }
    }
}

/// Runs all loads from the first guest to the second.
fn loads(switch: &dyn Switch, [mut client, mut server]: [Guest; 2]) -> Result<Run> {
    iperf::serve(&mut server, iperf::PORT)?;
    let tcp = Tcp { omit_seconds: 1, ..Tcp::to(address::ip(1), TCP_SECONDS) };
    let flows = Tcp { streams: FLOWS, ..tcp.clone() };
    let (begin, before, machine) = (Instant::now(), switch.cpu_time()?, CpuTime::read()?);
    let gbit = tcp.run(&mut client)?.gbit_per_second();
    let spent = switch.cpu_time()?.saturating_sub(before);
    let cores = spent.as_secs_f64() / begin.elapsed().as_secs_f64();
    let busy_cores = CpuTime::read()?.busy_cores_since(machine)?;
    Ok(Run {
        tcp: gbit,
        cores,
        busy_cores,
        flows: flows.run(&mut client)?.gbit_per_second(),
        cache: CACHE.run(&mut client, &mut server)?,
        pages: PAGES.run(&mut client, &mut server)?,
    })
}

impl Talk {
    fn run(&self, client: &mut Guest, server: &mut Guest) -> Result<Talked> {
        let Self { port, request_bytes, answer_bytes, connections, how } = *self;
        let command = format!("talk serve {port} {request_bytes} {answer_bytes} >/dev/null 2>&1 &");
        iperf::serve_with(server, &command, port)?;
        let command = format!(
            "talk ask {}:{port} {request_bytes} {answer_bytes} {connections} {ASK_SECONDS} {how}",
            address::ip(1)
        );
        let printed = client.run(&command, Duration::from_secs(ASK_SECONDS) + GRACE)?;
        talked(&printed).ok_or_else(|| Error::parse("how requests were answered", printed))
    }
}

/// Parses `9 asked  9 answered  8.5 /s  p50 1.0 us  p99 2.0 us  p99.9 3.0 us`.
fn talked(line: &str) -> Option<Talked> {
    let (before, _) = line.split_once(" /s")?;
    let rate = before.split_whitespace().next_back()?.parse().ok()?;
    let [_, p99_us, _] = RoundTrips::parse(line)?.us;
    Some(Talked { rate, p99_us })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_switch_guests_have_its_time_but_no_more_than_a_core_each() {
        let nothing = Talked { rate: 0.0, p99_us: 0.0 };
        let run = |cores, busy_cores| {
            Run { tcp: 6.0, flows: 0.0, cores, busy_cores, cache: nothing, pages: nothing }.limit()
        };
        assert_eq!(run(0.5, 2.0), 8.0);
        assert_eq!(run(0.5, 2.5), 6.0);
        assert_eq!(run(1.0, 4.0), 6.0);
    }

    #[test]
    fn answers_a_second_and_their_times_are_read() {
        let line = "30 asked  30 answered  10.5 /s  p50 1.0 us  p99 2.0 us  p99.9 3.0 us\n";
        let Talked { rate, p99_us } = talked(line).unwrap();
        assert_eq!((rate, p99_us), (10.5, 2.0));
        assert!(talked("talk: Connection refused").is_none());
    }
}
