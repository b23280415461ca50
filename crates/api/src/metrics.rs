//! The counters in the text format of Prometheus: names with units, a help text each, `_total` for counters that only
//! grow.
//!
//! There is a series for each queue pair, drop reason and filter verdict that occurs, and none for those that could
//! occur: a port that never dropped a frame has no series of drops.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};

use weir_switch::stats::{
    PortKind, PortState, PortStats, QueueStats, SwitchStats, TIME_BOUNDS_NS, Times, WorkerStats,
};

use crate::api::Pieces;

/// The type of the text.
pub(crate) const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The type of a metric.
#[derive(Clone, Copy)]
enum Kind {
    Counter,
    Gauge,
}

/// A label's name and text.
type Label<'a> = (&'static str, Cow<'a, str>);

/// A metric's name and help.
type Named = (&'static str, &'static str);

/// No labels.
const NONE: [Label<'static>; 0] = [];

/// The growing text. A thousand interfaces have 50,000 lines, so a line must not allocate memory.
#[derive(Default)]
pub(crate) struct Text {
    /// The lines of the present metric.
    lines: String,
    /// The lines of each metric before, in pieces: those of the switch, and then those of a few ports each.
    metrics: Vec<Vec<String>>,
    /// The number of the present metric, and of the first one of ports.
    now: usize,
    of_ports: usize,
}

impl Text {
    /// Writes a metric with all its series: labels and a value each. A metric without series is left out.
    fn family<'a, V: Display>(
        &mut self,
        kind: Kind,
        (name, help): Named,
        series: impl IntoIterator<Item = (impl AsRef<[Label<'a>]>, V)>,
    ) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        };
        let mut head = self.begin().then_some(kind);
        for (labels, value) in series {
            self.head(name, help, head.take());
            self.line([name, ""], labels.as_ref(), None, value);
        }
        self.end();
    }

    /// Writes distributions of times, which come in ns and are written in seconds.
    fn histograms<'a>(
        &mut self,
        (name, help): Named,
        series: impl IntoIterator<Item = (impl AsRef<[Label<'a>]>, Times)>,
    ) {
        let bounds = TIME_BOUNDS_NS.map(|ns| seconds(ns).to_string());
        let mut head = self.begin().then_some("histogram");
        for (labels, times) in series {
            let labels = labels.as_ref();
            self.head(name, help, head.take());
            for (bound, at_most) in bounds.iter().zip(times.at_most) {
                self.line([name, "_bucket"], labels, Some(bound), at_most);
            }
            self.line([name, "_bucket"], labels, Some("+Inf"), times.count);
            self.line([name, "_sum"], labels, None, seconds(times.sum));
            self.line([name, "_count"], labels, None, times.count);
        }
        self.end();
    }

    /// True if the metric has no series yet.
    fn begin(&mut self) -> bool {
        if self.now == self.metrics.len() {
            self.metrics.push(Vec::new());
        }
        self.metrics[self.now].is_empty()
    }

    fn end(&mut self) {
        let lines = std::mem::take(&mut self.lines);
        if !lines.is_empty() {
            self.metrics[self.now].push(lines);
        }
        self.now += 1;
    }

    /// Writes the lines before the first series.
    fn head(&mut self, name: &str, help: &str, kind: Option<&str>) {
        if let Some(kind) = kind {
            // Writing to a string does not fail, here and below.
            let _ = writeln!(self.lines, "# HELP {name} {help}\n# TYPE {name} {kind}");
        }
    }

    fn line(
        &mut self,
        name: [&str; 2],
        labels: &[Label<'_>],
        at_most: Option<&str>,
        value: impl Display,
    ) {
        self.lines.extend(name);
        let mut before = '{';
        let labels = labels.iter().map(|(key, text)| (*key, &**text));
        for (key, text) in labels.chain(at_most.map(|bound| ("le", bound))) {
            self.lines.push(before);
            self.lines.extend([key, "=\""]);
            self.text(text);
            self.lines.push('"');
            before = ',';
        }
        if before == ',' {
            self.lines.push('}');
        }
        let _ = writeln!(self.lines, " {value}");
    }

    /// Writes the text of a label, escaped.
    fn text(&mut self, text: &str) {
        if !text.contains(['\\', '"', '\n']) {
            return self.lines.push_str(text);
        }
        for char in text.chars() {
            match char {
                '\\' | '"' => self.lines.extend(['\\', char]),
                '\n' => self.lines.push_str("\\n"),
                other => self.lines.push(other),
            }
        }
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

impl Text {
    /// The metrics of a switch without those of its ports.
    pub(crate) fn of_switch(stats: &SwitchStats) -> Self {
        let mut text = Self::default();
        of_switch(stats, &mut text);
        Self { of_ports: text.now, ..text }
    }

    /// Adds the series of ports.
    pub(crate) fn add(&mut self, ports: &[PortStats]) {
        self.now = self.of_ports;
        of_ports(ports, self);
        of_calls(ports, self);
        of_queues(ports, self);
    }

    pub(crate) fn pieces(self) -> Pieces {
        let mut pieces = Pieces::default();
        self.metrics.into_iter().flatten().for_each(|lines| pieces.add(lines));
        pieces
    }
}

fn of_switch(stats: &SwitchStats, text: &mut Text) {
    use Kind::{Counter, Gauge};
    let version = [("version", Cow::from(&stats.version))];
    text.family(Gauge, ("weir_build_info", "weir's version."), [(version, 1)]);
    let uptime = ("weir_uptime_seconds", "Time since the switch started.");
    text.family(Gauge, uptime, [(NONE, stats.uptime_s)]);
    let still =
        ("weir_threads_standing_still", "Threads that have something to do and do nothing.");
    text.family(Gauge, still, [(NONE, stats.still.len())]);
    let unclosed =
        ("weir_descriptors_unclosed", "Descriptors that a party has sent and that do not close.");
    let parties = stats.unclosed.iter();
    let parties = parties.map(|it| ([("party", Cow::from(&it.party))], it.descriptors));
    text.family(Gauge, unclosed, parties);
    let panics = stats.panicked.iter().map(|it| ([("thread", Cow::from(&it.name))], it.panics));
    let panicked = ("weir_thread_panics_total", "Panics of threads, which are weir's mistakes.");
    text.family(Counter, panicked, panics);
    let moved = ("weir_queues_moved_total", "Queue pairs that were given to another worker.");
    text.family(Counter, moved, [(NONE, stats.queues_moved)]);
    let loops =
        ("weir_loops_found_total", "Loops that were found, each of which has blocked a port.");
    text.family(Counter, loops, [(NONE, stats.loops.found)]);
    let worker = |value: fn(&WorkerStats) -> f64| {
        let labels = |it: &WorkerStats| [("worker", Cow::from(it.id.to_string()))];
        stats.workers.iter().map(move |it| (labels(it), value(it)))
    };
    let cpu = ("weir_worker_cpu_seconds_total", "Processor time of workers.");
    text.family(Counter, cpu, worker(|it| seconds(it.cpu_ns)));
    let wakeups = ("weir_worker_wakeups_total", "How often workers woke from sleep, and what for.");
    let woken_for = stats.workers.iter().flat_map(|it| {
        let worker = Cow::from(it.id.to_string());
        let labels = move |what| [("worker", worker.clone()), ("reason", Cow::from(what))];
        it.wakeups_for.iter().map(move |(what, times)| (labels(what), *times))
    });
    text.family(Counter, wakeups, woken_for);
    let late = ("weir_worker_late_timers_total", "Timers that were later than workers allow for.");
    text.family(Counter, late, worker(|it| it.late_timers as f64));
    let limits = || stats.limits.iter().map(|(name, limit)| ([("limit", Cow::from(name))], *limit));
    let used = ("weir_limit_used", "How much is used of what the whole switch is bounded in.");
    text.family(Gauge, used, limits().map(|(labels, limit)| (labels, limit.used)));
    let most = ("weir_limit_max", "How much may be used of what the whole switch is bounded in.");
    text.family(Gauge, most, limits().map(|(labels, limit)| (labels, limit.max)));
}

/// The label of a port.
fn name(port: &PortStats) -> Label<'_> {
    ("port", Cow::from(port.name.as_str()))
}

fn vifs(ports: &[PortStats]) -> impl Iterator<Item = &PortStats> {
    ports.iter().filter(|it| it.kind == PortKind::Vif)
}

fn of_ports(ports: &[PortStats], text: &mut Text) {
    use Kind::{Counter, Gauge};
    let each = |value: fn(&PortStats) -> f64| ports.iter().map(move |it| ([name(it)], value(it)));
    let kind = |port: &PortStats| match port.kind {
        PortKind::Vif => "vif",
        PortKind::Uplink => "uplink",
        PortKind::Own => "own",
    };
    let info = ports.iter().map(|it| ([name(it), ("kind", Cow::from(kind(it)))], 1));
    text.family(Gauge, ("weir_port_info", "Ports, and what they are."), info);
    let up = ("weir_port_up", "Whether packets can flow.");
    text.family(Gauge, up, each(|it| f64::from(u8::from(it.state == PortState::Running))));
    let stopped = ("weir_port_stopped", "Whether weir has ended the port's service.");
    text.family(Gauge, stopped, each(|it| f64::from(u8::from(it.state == PortState::Stopped))));
    let blocked = ("weir_port_blocked", "Whether the port is blocked, as part of a loop.");
    text.family(Gauge, blocked, each(|it| f64::from(u8::from(it.blocked.is_some()))));
    let cpu = ("weir_port_worker_seconds_total", "Worker time that what the port sent has taken.");
    text.family(Counter, cpu, each(|it| seconds(it.worker_ns)));
    let parked =
        ("weir_port_parked_frames_total", "Frames that waited for a receiver without buffers.");
    text.family(Counter, parked, each(|it| it.parked as f64));
    let waits = ("weir_port_rate_waits_total", "How often a queue waited for the port's rate.");
    text.family(Counter, waits, each(|it| it.rate_waits as f64));
    let failed = (
        "weir_port_sessions_failed_total",
        "Connections of front ends that weir ended for an error.",
    );
    text.family(Counter, failed, vifs(ports).map(|it| ([name(it)], it.sessions.failed)));
    let drops = ("weir_port_dropped_frames_total", "Dropped frames, by reason.");
    text.family(Counter, drops, by_reason(ports, |it| &it.drops));
}

/// Writes counters of ports that have a reason each.
fn by_reason(
    ports: &[PortStats],
    of: fn(&PortStats) -> &BTreeMap<String, u64>,
) -> impl Iterator<Item = ([Label<'_>; 2], u64)> {
    ports.iter().flat_map(move |it| {
        let labels = move |reason| [name(it), ("reason", Cow::from(reason))];
        of(it).iter().map(move |(reason, count)| (labels(reason), *count))
    })
}

/// Writes the times of calls to guests. There is no sum over interfaces: it would fall when one is removed.
fn of_calls(ports: &[PortStats], text: &mut Text) {
    let budget = ("weir_port_latency_budget_seconds", "The longest time that a frame may be held.");
    let budgets = vifs(ports).map(|it| ([name(it)], seconds(it.latency_budget_ns)));
    text.family(Kind::Gauge, budget, budgets);
    let now =
        ("weir_port_hold_now_seconds", "How long the policy would hold a frame that came now.");
    let decided =
        vifs(ports).filter_map(|it| Some(([name(it)], seconds(it.decision.as_ref()?.hold_ns))));
    text.family(Kind::Gauge, now, decided);
    let breaches =
        ("weir_port_budget_breaches_total", "Guests notified later than their budget, by reason.");
    text.family(Kind::Counter, breaches, by_reason(ports, |it| &it.budget_breaches));
    let mut times = |named, of: fn(&PortStats) -> Times| {
        let some = vifs(ports).map(|it| ([name(it)], of(it))).filter(|(_, it)| it.count > 0);
        text.histograms(named, some);
    };
    let hold = ("weir_port_hold_seconds", "How long notifications of the guest were held back.");
    times(hold, |it| it.hold_ns);
    let latency = (
        "weir_port_latency_seconds",
        "From a frame's arrival in its sender's ring, at the earliest, to the guest's notification.",
    );
    times(latency, |it| it.latency_ns);
    let jitter = (
        "weir_port_jitter_seconds",
        "Mean difference between the latencies of two notifications in a row, of the last ones.",
    );
    let jitters = vifs(ports).map(|it| ([name(it)], seconds(it.jitter_ns)));
    text.family(Kind::Gauge, jitter, jitters);
}

fn of_queues(ports: &[PortStats], text: &mut Text) {
    let mut family = |name_and_help, value: fn(&QueueStats) -> u64| {
        let series = ports.iter().flat_map(|port| {
            port.queues.iter().zip(0_usize..).flat_map(move |(pair, queue)| {
                [("rx", pair.rx), ("tx", pair.tx)].map(|(direction, stats)| {
                    let queue = ("queue", Cow::from(queue.to_string()));
                    ([name(port), queue, ("direction", Cow::from(direction))], value(&stats))
                })
            })
        });
        text.family(Kind::Counter, name_and_help, series);
    };
    family(("weir_queue_frames_total", "Frames into (rx) and out of (tx) the port."), |it| {
        it.frames
    });
    family(("weir_queue_bytes_total", "Bytes of these frames."), |it| it.bytes);
    family(("weir_queue_calls_total", "Interrupts given to the guest."), |it| it.calls);
    family(("weir_queue_kicks_total", "Notifications received from the guest."), |it| it.kicks);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use weir_switch::stats::{
        BlockStats, Limit, LoopStats, PanickedThread, PortDecision, QueuePairStats, Unclosed,
        WorkerStats,
    };

    use super::*;

    /// All metrics of a switch, whose ports come one by one.
    fn metrics(stats: &SwitchStats) -> String {
        let mut text = Text::of_switch(stats);
        stats.ports.chunks(1).for_each(|ports| text.add(ports));
        text.metrics.concat().concat()
    }

    fn switch() -> SwitchStats {
        let mut port = PortStats::new("web0".parse().unwrap(), PortKind::Vif);
        port.state = PortState::Running;
        port.latency_budget_ns = 250_000;
        port.hold_ns = Times {
            count: 4,
            sum: 400_000,
            at_most: [1, 1, 1, 1, 2, 4, 4, 4, 4, 4],
            ..Times::default()
        };
        port.latency_ns = port.hold_ns;
        port.jitter_ns = 30_000;
        port.decision = Some(PortDecision { hold_ns: 2_000, reason: "a test".into() });
        port.drops.insert("rx_ring_full".into(), 7);
        port.budget_breaches.insert("no_cpu".into(), 1);
        let rx = QueueStats { frames: 3, bytes: 180, ..QueueStats::default() };
        port.set_queues(vec![QueuePairStats { rx, tx: QueueStats::default() }; 2]);
        let mut uplink = PortStats::new("lan".parse().unwrap(), PortKind::Uplink);
        let with = "web0".parse().unwrap();
        let block = BlockStats { with, vlan: 1, seconds: 1.0, retry_s: 9.0, tries: 0 };
        uplink.blocked = Some(block);
        SwitchStats {
            version: "9\"\\\n".into(),
            uptime_s: 1.5,
            workers: vec![WorkerStats {
                cpu_ns: 2_500_000_000,
                wakeups_for: [("kick".into(), 3)].into(),
                ..WorkerStats::default()
            }],
            panicked: vec![PanickedThread { name: "weir-manager".into(), panics: 1, ended: false }],
            loops: LoopStats { suspected: 2, found: 1 },
            unclosed: vec![Unclosed { party: "web0".into(), descriptors: 64, seconds: 9.0 }],
            limits: [("ports".to_owned(), Limit::new(2, 4096))].into(),
            ports: vec![port.clone(), uplink, PortStats { name: "db0".parse().unwrap(), ..port }],
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
            "weir_port_blocked{port=\"lan\"} 1",
            "weir_port_blocked{port=\"web0\"} 0",
            "weir_loops_found_total 1",
            "weir_port_dropped_frames_total{port=\"web0\",reason=\"rx_ring_full\"} 7",
            "weir_port_hold_now_seconds{port=\"web0\"} 0.000002",
            "# TYPE weir_port_hold_seconds histogram",
            "weir_port_hold_seconds_bucket{port=\"web0\",le=\"0.000005\"} 1",
            "weir_port_hold_seconds_bucket{port=\"web0\",le=\"0.00025\"} 4",
            "weir_port_hold_seconds_bucket{port=\"web0\",le=\"+Inf\"} 4",
            "weir_port_hold_seconds_sum{port=\"web0\"} 0.0004",
            "weir_port_hold_seconds_count{port=\"web0\"} 4",
            "weir_port_latency_seconds_bucket{port=\"db0\",le=\"0.0001\"} 2",
            "weir_port_jitter_seconds{port=\"db0\"} 0.00003",
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
        let (mut now, mut suffixes) = ("", &[""][..]);
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (name, help) = help.split_once(' ').unwrap();
                assert!(known.insert(name) && help.ends_with('.'), "{line}");
                let (typed, kind) =
                    lines.next().unwrap().strip_prefix("# TYPE ").unwrap().split_once(' ').unwrap();
                assert_eq!((typed, kind == "counter"), (name, name.ends_with("_total")), "{line}");
                now = name;
                suffixes = match kind {
                    "histogram" => &["_bucket", "_sum", "_count"],
                    _ => &[""],
                };
            } else {
                let (name, value) = line.split_at(line.find(['{', ' ']).unwrap());
                let suffix = name.strip_prefix(now);
                assert!(suffix.is_some_and(|it| suffixes.contains(&it)), "{line} of {now}");
                assert!(value.rsplit(' ').next().unwrap().parse::<f64>().is_ok(), "{line}");
            }
        }
        assert!(known.len() > 20, "{known:?}");
    }

    /// Sets each whole number of `value` to 7.
    fn sevens(value: &mut serde_json::Value) {
        match value {
            serde_json::Value::Number(number) if number.is_u64() => *value = 7.into(),
            serde_json::Value::Array(list) => list.iter_mut().for_each(sevens),
            serde_json::Value::Object(map) => map.values_mut().for_each(sevens),
            _ => {}
        }
    }

    #[test]
    fn what_is_a_counter_here_is_zero_in_a_difference_of_equal_readings() {
        let mut value = serde_json::to_value(switch()).unwrap();
        sevens(&mut value);
        let stats: SwitchStats = serde_json::from_value(value).unwrap();
        let [all, none] = [stats.clone(), stats.clone().since(&stats).unwrap()].map(|it| {
            let text = metrics(&it);
            let mut counts = Vec::new();
            for line in text.lines().filter(|line| !line.starts_with("# HELP")) {
                if let Some(typed) = line.strip_prefix("# TYPE ") {
                    let is_counter = !typed.ends_with(" gauge");
                    counts.push((is_counter && !typed.contains("panics"), Vec::new()));
                } else if let Some((true, lines)) = counts.last_mut() {
                    lines.push(line.to_owned());
                }
            }
            counts.into_iter().flat_map(|(_, lines)| lines).collect::<Vec<_>>()
        });
        let counted = |lines: &[String]| lines.iter().filter(|it| !it.ends_with(" 0")).count();
        assert!(counted(&all) > 40, "{all:?}");
        assert_eq!(counted(&none), 0, "{none:?}");
    }

    /// The text of a file of the repository.
    fn document(path: &str) -> String {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        std::fs::read_to_string(root.join(path)).expect(path)
    }

    /// Each metric with its kind.
    fn families(text: &str) -> BTreeSet<(String, String)> {
        let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
        types.map(|(name, kind)| (name.into(), kind.into())).collect()
    }

    #[test]
    fn the_guide_names_every_metric_with_its_kind() {
        let guide = document("docs/guide/monitoring.md");
        let table = guide.split("| metric | type | labels |").nth(1).expect("the table");
        let mut named = BTreeSet::new();
        for row in table.lines().skip(2).take_while(|line| line.starts_with('|')) {
            let mut cells = row.split('|').skip(1).map(str::trim);
            let (names, kind) = (cells.next().unwrap(), cells.next().unwrap());
            let names: Vec<_> = names.split('`').skip(1).step_by(2).collect();
            // `..._wakeups_total` after `weir_worker_cpu_seconds_total` stands for `weir_worker_wakeups_total`.
            let stem = names[0].splitn(3, '_').take(2).collect::<Vec<_>>().join("_");
            named.extend(names.iter().map(|it| (it.replace("...", &stem), kind.to_owned())));
        }
        assert_eq!(named, families(&metrics(&switch())));
    }

    #[test]
    fn alerts_and_dashboard_ask_for_metrics_that_there_are() {
        let known = families(&metrics(&switch()));
        let series = |name: &str| {
            known.iter().any(|(family, kind)| match kind.as_str() {
                "histogram" => ["_bucket", "_sum", "_count"]
                    .iter()
                    .any(|suffix| name.strip_suffix(suffix) == Some(family.as_str())),
                _ => name == family,
            })
        };
        for file in ["weir-alerts.yml", "weir-alerts.test.yml", "grafana-weir.json"] {
            let text = document(&format!("examples/prometheus/{file}"));
            let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let asked: BTreeSet<_> = words.filter(|word| word.starts_with("weir_")).collect();
            assert!(asked.len() > 5, "{file}: {asked:?}");
            for name in asked {
                assert!(series(name), "{file} asks for {name}");
            }
        }
    }

    #[test]
    fn what_there_is_nothing_of_is_no_metric() {
        let text = metrics(&SwitchStats::default());
        assert!(!text.contains("weir_port_") && text.contains("weir_uptime_seconds 0"), "{text}");
    }
}
