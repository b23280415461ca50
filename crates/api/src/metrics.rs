//! The counters in the text format of Prometheus: names with units, a help text each, `_total` for what only grows.
//!
//! Whoever scrapes gets a series for each queue pair, drop reason and filter verdict that there is, and none that there
//! may be: a port that never dropped a frame has no series of drops.

use std::fmt::{Display, Write as _};

use weir_switch::stats::{HoldTimes, PortKind, PortState, PortStats, QueueStats, SwitchStats};

/// The type of the text.
pub(crate) const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What a series is.
#[derive(Clone, Copy)]
enum Kind {
    Counter,
    Gauge,
}

/// The text, as it grows.
#[derive(Default)]
struct Text(String);

impl Text {
    /// A metric, with all its series: labels and a value each. Without any there is no metric.
    fn family<V: Display>(
        &mut self,
        (name, kind, help): (&str, Kind, &str),
        series: impl IntoIterator<Item = (Vec<(&'static str, String)>, V)>,
    ) {
        let mut is_first = true;
        for (labels, value) in series {
            if std::mem::take(&mut is_first) {
                let kind = match kind {
                    Kind::Counter => "counter",
                    Kind::Gauge => "gauge",
                };
                // Writing to a string does not fail.
                let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
            }
            let labels: Vec<_> = labels.iter().map(|(key, text)| label(key, text)).collect();
            let braces = match labels.is_empty() {
                true => String::new(),
                false => format!("{{{}}}", labels.join(",")),
            };
            let _ = writeln!(self.0, "{name}{braces} {value}");
        }
    }
}

/// A label, of whatever text.
fn label(key: &str, text: &str) -> String {
    let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("{key}=\"{text}\"")
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// All metrics of a switch.
pub(crate) fn metrics(stats: &SwitchStats) -> String {
    let mut text = Text::default();
    of_switch(stats, &mut text);
    of_ports(&stats.ports, &mut text);
    of_queues(&stats.ports, &mut text);
    text.0
}

fn of_switch(stats: &SwitchStats, text: &mut Text) {
    use Kind::{Counter, Gauge};
    let version = vec![("version", stats.version.clone())];
    text.family(("weir_build_info", Gauge, "weir's version."), [(version, 1)]);
    let uptime = ("weir_uptime_seconds", Gauge, "Time since the switch started.");
    text.family(uptime, [(vec![], stats.uptime_s)]);
    let still =
        ("weir_threads_standing_still", Gauge, "Threads that have something to do and do nothing.");
    text.family(still, [(vec![], stats.still.len())]);
    let panics = stats.panicked.iter().map(|it| (vec![("thread", it.name.clone())], it.panics));
    text.family(
        ("weir_thread_panics_total", Counter, "Panics of threads, which are weir's mistakes."),
        panics,
    );
    let moved =
        ("weir_queues_moved_total", Counter, "Queue pairs that were given to another worker.");
    text.family(moved, [(vec![], stats.queues_moved)]);
    let worker = |value: fn(&weir_switch::stats::WorkerStats) -> f64| {
        stats.workers.iter().map(move |it| (vec![("worker", it.id.to_string())], value(it)))
    };
    let cpu = ("weir_worker_cpu_seconds_total", Counter, "Processor time of workers.");
    text.family(cpu, worker(|it| seconds(it.cpu_ns)));
    let wakeups = ("weir_worker_wakeups_total", Counter, "How often workers woke from sleep.");
    text.family(wakeups, worker(|it| it.wakeups as f64));
    let late = (
        "weir_worker_late_timers_total",
        Counter,
        "Timers that were later than workers allow for.",
    );
    text.family(late, worker(|it| it.late_timers as f64));
    let limits =
        || stats.limits.iter().map(|(name, limit)| (vec![("limit", name.clone())], *limit));
    let used =
        ("weir_limit_used", Gauge, "How much is used of what the whole switch is bounded in.");
    text.family(used, limits().map(|(labels, limit)| (labels, limit.used)));
    let most =
        ("weir_limit_max", Gauge, "How much may be used of what the whole switch is bounded in.");
    text.family(most, limits().map(|(labels, limit)| (labels, limit.max)));
}

fn of_ports(ports: &[PortStats], text: &mut Text) {
    use Kind::{Counter, Gauge};
    let name = |port: &PortStats| vec![("port", port.name.to_string())];
    let each = |value: fn(&PortStats) -> f64| ports.iter().map(move |it| (name(it), value(it)));
    let kind = |port: &PortStats| match port.kind {
        PortKind::Vif => "vif".to_owned(),
        PortKind::Uplink => "uplink".to_owned(),
    };
    let info = ports.iter().map(|it| ([name(it), vec![("kind", kind(it))]].concat(), 1));
    text.family(("weir_port_info", Gauge, "Ports, and what they are."), info);
    let up = ("weir_port_up", Gauge, "Whether packets can flow.");
    text.family(up, each(|it| f64::from(u8::from(it.state == PortState::Running))));
    let stopped = ("weir_port_stopped", Gauge, "Whether weir has ended the port's service.");
    text.family(stopped, each(|it| f64::from(u8::from(it.state == PortState::Stopped))));
    let cpu = (
        "weir_port_worker_seconds_total",
        Counter,
        "Worker time that what the port sent has taken.",
    );
    text.family(cpu, each(|it| seconds(it.worker_ns)));
    let parked = (
        "weir_port_parked_frames_total",
        Counter,
        "Frames that waited for a receiver without buffers.",
    );
    text.family(parked, each(|it| it.parked as f64));
    let waits =
        ("weir_port_rate_waits_total", Counter, "How often a queue waited for the port's rate.");
    text.family(waits, each(|it| it.rate_waits as f64));
    let budget =
        ("weir_port_latency_budget_seconds", Gauge, "The longest time that a frame may be held.");
    let vifs = || ports.iter().filter(|it| it.kind == PortKind::Vif);
    text.family(budget, vifs().map(|it| (name(it), seconds(it.latency_budget_ns))));
    // Not one metric with a label `quantile`, which Prometheus keeps for summaries.
    for (metric, help, value) in [
        (
            "weir_port_hold_p50_seconds",
            "Median hold of calls.",
            (|it| it.p50) as fn(&HoldTimes) -> u64,
        ),
        ("weir_port_hold_p99_seconds", "Hold of calls that 1 % exceed.", |it| it.p99),
        ("weir_port_hold_max_seconds", "Longest hold of a call.", |it| it.max),
    ] {
        let series = vifs().map(|it| (name(it), seconds(value(&it.hold_ns))));
        text.family((metric, Gauge, help), series);
    }
    let failed = (
        "weir_port_sessions_failed_total",
        Counter,
        "Connections of front ends that weir ended for an error.",
    );
    text.family(failed, vifs().map(|it| (name(it), it.sessions.failed)));
    let by_reason = |of: fn(&PortStats) -> &std::collections::BTreeMap<String, u64>| {
        ports.iter().flat_map(move |it| {
            let labels =
                move |reason: &String| [name(it), vec![("reason", reason.clone())]].concat();
            of(it).iter().map(move |(reason, count)| (labels(reason), *count))
        })
    };
    let drops = ("weir_port_dropped_frames_total", Counter, "Dropped frames, by reason.");
    text.family(drops, by_reason(|it| &it.drops));
    let breaches = (
        "weir_port_budget_breaches_total",
        Counter,
        "Guests notified later than their budget, by reason.",
    );
    text.family(breaches, by_reason(|it| &it.budget_breaches));
}

fn of_queues(ports: &[PortStats], text: &mut Text) {
    let mut family = |name, help, value: fn(&QueueStats) -> u64| {
        let series = ports.iter().flat_map(|port| {
            port.queues.iter().zip(0_usize..).flat_map(move |(pair, queue)| {
                [("rx", pair.rx), ("tx", pair.tx)].map(|(direction, stats)| {
                    let labels = vec![
                        ("port", port.name.to_string()),
                        ("queue", queue.to_string()),
                        ("direction", direction.to_owned()),
                    ];
                    (labels, value(&stats))
                })
            })
        });
        text.family((name, Kind::Counter, help), series);
    };
    family("weir_queue_frames_total", "Frames into (rx) and out of (tx) the port.", |it| it.frames);
    family("weir_queue_bytes_total", "Bytes of these frames.", |it| it.bytes);
    family("weir_queue_calls_total", "Interrupts given to the guest.", |it| it.calls);
    family("weir_queue_kicks_total", "Notifications received from the guest.", |it| it.kicks);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use weir_switch::stats::{Limit, PanickedThread, QueuePairStats, WorkerStats};

    use super::*;

    fn switch() -> SwitchStats {
        let mut port = PortStats::new("web0".parse().unwrap(), PortKind::Vif);
        port.state = PortState::Running;
        port.latency_budget_ns = 250_000;
        port.hold_ns = HoldTimes { p50: 1_000, p99: 200_000, max: 250_000 };
        port.drops.insert("rx_ring_full".into(), 7);
        port.budget_breaches.insert("no_cpu".into(), 1);
        let rx = QueueStats { frames: 3, bytes: 180, ..QueueStats::default() };
        port.set_queues(vec![QueuePairStats { rx, tx: QueueStats::default() }; 2]);
        let uplink = PortStats::new("lan".parse().unwrap(), PortKind::Uplink);
        SwitchStats {
            version: "9\"\\\n".into(),
            uptime_s: 1.5,
            workers: vec![WorkerStats { cpu_ns: 2_500_000_000, ..WorkerStats::default() }],
            panicked: vec![PanickedThread { name: "weir-manager".into(), panics: 1, ended: false }],
            limits: [("ports".to_owned(), Limit::new(2, 4096))].into(),
            ports: vec![port, uplink],
            ..SwitchStats::default()
        }
    }

    #[test]
    fn series_have_their_labels_and_units() {
        let text = metrics(&switch());
        for line in [
            "weir_build_info{version=\"9\\\"\\\\\\n\"} 1",
            "weir_uptime_seconds 1.5",
            "weir_worker_cpu_seconds_total{worker=\"0\"} 2.5",
            "weir_port_up{port=\"web0\"} 1",
            "weir_port_up{port=\"lan\"} 0",
            "weir_port_dropped_frames_total{port=\"web0\",reason=\"rx_ring_full\"} 7",
            "weir_port_hold_p99_seconds{port=\"web0\"} 0.0002",
            "weir_queue_bytes_total{port=\"web0\",queue=\"1\",direction=\"rx\"} 180",
            "weir_limit_max{limit=\"ports\"} 4096",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}: {text}");
        }
        assert!(!text.contains("latency_budget_seconds{port=\"lan\"}"), "an uplink has no budget");
    }

    #[test]
    fn every_metric_is_said_once_with_its_help_and_counters_alone_end_in_total() {
        let text = metrics(&switch());
        let mut known = BTreeSet::new();
        let mut now = "";
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (name, help) = help.split_once(' ').unwrap();
                assert!(known.insert(name) && help.ends_with('.'), "{line}");
                let (typed, kind) =
                    lines.next().unwrap().strip_prefix("# TYPE ").unwrap().split_once(' ').unwrap();
                assert_eq!((typed, kind == "counter"), (name, name.ends_with("_total")), "{line}");
                now = name;
            } else {
                let (name, value) = line.split_at(line.find(['{', ' ']).unwrap());
                assert_eq!(name, now);
                assert!(value.rsplit(' ').next().unwrap().parse::<f64>().is_ok(), "{line}");
            }
        }
        assert!(known.len() > 20, "{known:?}");
    }

    #[test]
    fn what_there_is_nothing_of_is_no_metric() {
        let text = metrics(&SwitchStats::default());
        assert!(!text.contains("weir_port_") && text.contains("weir_uptime_seconds 0"), "{text}");
    }
}
