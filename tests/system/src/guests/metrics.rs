//! weir's metrics, read by promtool and by a Prometheus with the files of the examples.

use std::{
    fs,
    net::SocketAddrV4,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use serde_json::Value;
use weir_bed::{
    error::{Error, Result, check},
    http::{encoded, free_address, get},
    lab::Lab,
    process::{Placement, Process, run, wait_until},
    weir::{Setup, Weir},
    workspace::Workspace,
};

use super::top;

/// Longest time until Prometheus has data.
const PATIENCE: Duration = Duration::from_secs(30);

/// The scrapes that a rate needs, and a few more.
const SOME_SCRAPES: Duration = Duration::from_secs(3);

/// Values for Grafana's variables.
const VARIABLES: [(&str, &str); 3] =
    [("$__rate_interval", "5s"), ("$instance", ".*"), ("$port", ".*")];

const DASHBOARD: &str = "grafana-weir.json";

/// The guide whose line for the check of metrics is run.
const GUIDE: &str = "docs/guide/monitoring.md";

/// The fallback of a panel without a series. With it a query would succeed without the metric.
const OR_ZERO: &str = " or vector(0)";

pub(super) fn prometheus_scrapes_weir_and_every_query_of_the_dashboard_has_data(
    lab: &Lab,
) -> Result<()> {
    let api = free_address()?;
    let weir = Weir::start(lab, &Setup { api: Some(api), ..top::setup() })?;
    let _traffic = top::traffic(lab, &weir)?;
    let prometheus = Prometheus::start(&lab.workspace, weir.dir(), api)?;
    prometheus.await_data("up{job=\"weir\"} == 1")?;
    prometheus.await_data("rate(weir_port_hold_seconds_count[5s]) > 0")?;
    // A filter drops frames over several scrapes.
    weir.control(&["filter", "set", "vif1", "rx drop udp"])?;
    thread::sleep(SOME_SCRAPES);
    prometheus.await_data("rate(weir_port_dropped_frames_total[5s]) > 0")?;
    weir.control(&["filter", "clear", "vif1"])?;
    prometheus.await_data("rate(weir_port_latency_seconds_count[5s]) > 0")?;
    // A budget of a microsecond is always exceeded.
    weir.control(&["vif", "set", "vif1", "latency_budget=1us"])?;
    prometheus.await_data("rate(weir_port_budget_breaches_total[5s]) > 0")?;

    let queries = queries(&read(&examples(&lab.workspace).join(DASHBOARD))?)?;
    check(queries.len() > 20, || format!("only {} queries", queries.len()))?;
    for query in &queries {
        let found = prometheus.query(query)?;
        // A division by zero gives NaN, which a panel does not show.
        let is_number = |series: &Value| series["value"][1].as_str().is_some_and(|it| it != "NaN");
        check(found.iter().any(is_number), || format!("no data for {query}: {found:?}"))?;
    }
    prometheus.rules_are_well()?;

    let guide = read(&lab.workspace.root.join(GUIDE))?;
    let line = guide.lines().find(|line| line.contains("promtool check metrics"));
    let line = line.ok_or_else(|| Error::parse("the line with promtool", GUIDE))?;
    let control = weir.dir().join("control.sock").to_string_lossy().into_owned();
    let line = format!("{} 2>&1", line.replace("/run/weir/control.sock", &control));
    let said = run(&["bash", "-o", "pipefail", "-c", &line])?;
    check(said.trim().is_empty(), || format!("{line}: {said}"))
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(Error::io("read", path))
}

fn examples(workspace: &Workspace) -> PathBuf {
    workspace.root.join("examples/prometheus")
}

/// A Prometheus that scrapes weir each second.
struct Prometheus {
    address: SocketAddrV4,
    process: std::cell::RefCell<Process>,
}

impl Prometheus {
    /// Starts Prometheus with the files of `examples/prometheus`, adapted to this weir's addresses and paths.
    fn start(workspace: &Workspace, dir: &Path, api: SocketAddrV4) -> Result<Self> {
        let read = |name: &str| read(&examples(workspace).join(name));
        let mut config = read("prometheus.yml")?;
        let (token, api) = (dir.join("api.token").display().to_string(), api.to_string());
        for (from, to) in [
            ("/etc/prometheus/weir.token", token.as_str()),
            ("127.0.0.1:9101", api.as_str()),
            ("scrape_interval: 5s", "scrape_interval: 1s"),
            ("evaluation_interval: 15s", "evaluation_interval: 1s"),
        ] {
            check(config.contains(from), || format!("prometheus.yml has no {from}"))?;
            // The comment contains some of the replaced texts, too.
            config = config.replace(from, to);
        }
        for (name, text) in
            [("prometheus.yml", config), ("weir-alerts.yml", read("weir-alerts.yml")?)]
        {
            let path = dir.join(name);
            fs::write(&path, text).map_err(Error::io("write", &path))?;
        }
        let address = free_address()?;
        let argv = [
            "prometheus".to_owned(),
            format!("--config.file={}", dir.join("prometheus.yml").display()),
            format!("--storage.tsdb.path={}", dir.join("prometheus").display()),
            format!("--web.listen-address={address}"),
            "--log.level=warn".to_owned(),
        ];
        let argv: Vec<_> = argv.iter().map(String::as_str).collect();
        let log = dir.join("prometheus.log");
        let process = Process::start_logged(&argv, &Placement::default(), &log)?;
        Ok(Self { address, process: process.into() })
    }

    /// The current series of a query.
    fn query(&self, query: &str) -> Result<Vec<Value>> {
        let target = format!("/api/v1/query?query={}", encoded(query));
        let text = get(self.address, &target)?;
        let answer: Value = serde_json::from_str(&text)
            .map_err(|_| Error::parse("an answer of Prometheus", text.as_str()))?;
        let found = answer["data"]["result"].as_array().cloned();
        found.ok_or_else(|| Error::parse("what a query gives", text))
    }

    fn await_data(&self, query: &str) -> Result<()> {
        wait_until(&format!("data for {query}"), PATIENCE, || {
            self.process.borrow_mut().check_alive()?;
            // Queries fail until Prometheus serves.
            Ok(self.query(query).is_ok_and(|found| !found.is_empty()))
        })
    }

    /// True if each alert has been evaluated without an error.
    fn rules_are_well(&self) -> Result<()> {
        let text = get(self.address, "/api/v1/rules")?;
        let answer: Value = serde_json::from_str(&text)
            .map_err(|_| Error::parse("the rules of Prometheus", text.as_str()))?;
        let groups = answer["data"]["groups"].as_array().into_iter().flatten();
        let rules: Vec<_> =
            groups.flat_map(|group| group["rules"].as_array().into_iter().flatten()).collect();
        let well = rules.iter().all(|rule| rule["health"] == "ok");
        check(well && rules.len() > 5, || format!("rules that are not well: {text}"))
    }
}

/// The queries of a dashboard's panels and variables.
fn queries(dashboard: &str) -> Result<Vec<String>> {
    let dashboard: Value = serde_json::from_str(dashboard)
        .map_err(|error| Error::parse("a dashboard", error.to_string()))?;
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let panels = list(&dashboard["panels"]);
    let targets = panels.iter().flat_map(|panel| list(&panel["targets"]));
    let asked = targets.filter_map(|target| Some(target["expr"].as_str()?.to_owned()));
    let variables = list(&dashboard["templating"]["list"]);
    let values = variables.iter().filter_map(|it| series_of(it["query"]["query"].as_str()?));
    Ok(asked.chain(values).map(|query| filled(&query)).collect())
}

/// `label_values(metric, label)` as a query.
fn series_of(query: &str) -> Option<String> {
    let (metric, label) =
        query.strip_prefix("label_values(")?.strip_suffix(')')?.rsplit_once(", ")?;
    Some(format!("count by ({label}) ({metric})"))
}

fn filled(query: &str) -> String {
    let query = query.replace(OR_ZERO, "");
    VARIABLES.iter().fold(query, |query, (name, text)| query.replace(name, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_those_of_panels_and_variables_without_variables() {
        let dashboard = r#"{"panels": [{"targets": [{"expr": "rate(a{port=~\"$port\"}[$__rate_interval]) or vector(0)"}]},
            {"title": "text"}], "templating": {"list": [{"query": "prometheus"},
            {"query": {"query": "label_values(b{instance=~\"$instance\"}, port)"}}]}}"#;
        let expected = ["rate(a{port=~\".*\"}[5s])", "count by (port) (b{instance=~\".*\"})"];
        assert_eq!(queries(dashboard).unwrap(), expected);
    }
}
