//! The results of all attacks: a table, and figures for `target/bench/report.json`.

use std::{collections::BTreeMap, fmt, fs, io, path::Path};

use serde_json::{Map, Value, json};

use super::trial::{Paired, Row};
use crate::attack::{Attack, Setting};

/// The goal of a figure.
#[derive(Clone, Copy, Debug)]
enum Bar {
    AtLeast(f64),
    AtMost(f64),
}

impl Bar {
    fn held(self, value: f64) -> bool {
        match self {
            Self::AtLeast(bar) => value >= bar,
            Self::AtMost(bar) => value <= bar,
        }
    }
}

impl fmt::Display for Bar {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(bar) => write!(out, ">= {bar}"),
            Self::AtMost(bar) => write!(out, "<= {bar}"),
        }
    }
}

const PPS: Bar = Bar::AtLeast(0.9);
const OWN_SHARE_PPS: Bar = Bar::AtLeast(0.45);
const P99: Bar = Bar::AtMost(2.0);
/// A p99 that misses its bar is a fault where it is worse than the machine's limit with this probability of an error.
const P99_CHANCE: f64 = 0.05;
/// The same for a first trial, whose few rounds prove nothing: the attack is then tried again.
const P99_DOUBT: f64 = 0.2;
const NEWCOMER_MS: Bar = Bar::AtMost(50.0);
/// Time of an answer of `weir stats` to root.
const CONTROL_MS: Bar = Bar::AtMost(200.0);
const SIGTERM_S: Bar = Bar::AtMost(2.0);
const RSS_MIB: Bar = Bar::AtMost(16.0);
const LOG_LINES: Bar = Bar::AtMost(10.0);
/// The counts of attacks of the class `settings`.
const COUNTED: [&str; 2] = ["failed_open_frames", "settings_lost"];
const ATTACKS: Bar = Bar::AtLeast(265.0);

/// The result of one attack.
#[derive(Clone, Debug)]
pub struct Result {
    /// The attack's class.
    pub class: &'static str,
    /// The attack.
    pub attack: &'static Attack,
    /// The setting in which it was tried.
    pub setting: Setting,
    /// The measurements; `Err` if the attack could not be tried.
    pub row: std::result::Result<Row, String>,
}

impl Result {
    /// The faults: failures and missed bars.
    pub fn faults(&self) -> Vec<String> {
        let row = match &self.row {
            Ok(row) => row,
            Err(error) => return vec![error.clone()],
        };
        let mut faults = row.failures.clone();
        let pps = if self.attack.own_share.is_some() { OWN_SHARE_PPS } else { PPS };
        let mut check = |name: &str, bar: Bar, value: Option<f64>| {
            if let Some(value) = value.filter(|value| !bar.held(*value)) {
                faults.push(format!("{name} {value:.2} (bar {bar})"));
            }
        };
        if self.is_compared() {
            check("pps", pps, row.pps);
            check("p99", P99, row.p99.filter(|_| self.is_worse_than_limit(P99_CHANCE)));
        }
        check("newcomer_ms", NEWCOMER_MS, row.pps.map(|_| row.newcomer_ms));
        check("control_ms", CONTROL_MS, row.pps.and(row.control_ms));
        check("sigterm_s", SIGTERM_S, row.pps.and(row.sigterm_s));
        if self.attack.administers.is_none() {
            check("rss_mib", RSS_MIB, Some(row.rss_mib));
            check("log_lines_per_s", LOG_LINES, row.pps.map(|_| row.log_lines_per_s));
        }
        let p99 = faults.iter_mut().find(|fault| fault.starts_with("p99 "));
        if let (Some(fault), Some(limit)) = (p99, row.p99_limit) {
            let Paired { worse, rounds } = row.against_limit;
            let told = "with the attacker at another weir";
            *fault += &format!(", {limit:.2} {told}, which is less in {worse} of {rounds} rounds");
        }
        faults
    }

    /// True if the only fault is that weir's end took longer than an end in order may take.
    pub fn only_ended_late(&self) -> bool {
        let is_late = |fault: &String| fault.contains("ended out of order");
        let of = |row: &Row| !row.failures.is_empty() && row.failures.iter().all(is_late);
        self.row.as_ref().is_ok_and(of)
    }

    /// True if an attack that was survived has to be tried again, in more rounds.
    pub fn is_in_doubt(&self) -> bool {
        self.survived() && (!self.faults().is_empty() || self.is_worse_than_limit(P99_DOUBT))
    }

    /// True if the p99 misses its bar and is larger than the one of guests beside other processes that do weir's work.
    /// `chance` is the probability of an error.
    fn is_worse_than_limit(&self, chance: f64) -> bool {
        let of = |row: &Row| {
            row.p99.is_some_and(|p99| !P99.held(p99)) && row.against_limit.chance() <= chance
        };
        self.is_compared() && self.row.as_ref().is_ok_and(of)
    }

    /// True if weir, its guests and newcomers are as before.
    pub fn survived(&self) -> bool {
        self.row.as_ref().is_ok_and(|row| row.failures.is_empty())
    }

    /// True if the measured weir takes part in the attack. In the class `configuration` `weir check` reads the files
    /// in a process of the attacker, and the class `settings` upgrades a separate weir.
    fn is_compared(&self) -> bool {
        !matches!(self.class, "configuration" | "settings")
    }

    /// A row of the terminal's table.
    pub fn line(&self) -> String {
        let name = format!("{}::{}{}", self.class, self.attack.name, self.setting.suffix());
        let verdict = match self.faults() {
            faults if faults.is_empty() => "ok".to_owned(),
            faults => format!("FAILED: {}", faults.join("; ")),
        };
        let Ok(row) = &self.row else { return format!("{name:<64} {verdict}") };
        let [pps, p99, limit, newcomer, control, sigterm, rss, fds, log, strikes, cpus] =
            cells(row);
        format!(
            "{name:<64}{pps:>6}{p99:>7}{limit:>7}{newcomer:>9}{control:>8}{sigterm:>6}{rss:>7}{fds:>5}{log:>7}{strikes:>10}{cpus:>6}  {verdict}"
        )
    }
}

/// The figures of a row in both tables.
fn cells(row: &Row) -> [String; 11] {
    let ratio =
        |value: Option<f64>| value.map_or_else(|| "-".into(), |value| format!("{value:.2}"));
    [
        ratio(row.pps),
        ratio(row.p99),
        ratio(row.p99_limit),
        format!("{:.1}", row.newcomer_ms),
        ratio(row.control_ms),
        ratio(row.sigterm_s),
        format!("{:.1}", row.rss_mib),
        row.fds.to_string(),
        format!("{:.1}", row.log_lines_per_s),
        row.strikes.to_string(),
        format!("{:.2}", row.cpus),
    ]
}

/// The heading of the terminal's table.
pub fn head() -> String {
    format!(
        "{:<64}{:>6}{:>7}{:>7}{:>9}{:>8}{:>6}{:>7}{:>5}{:>7}{:>10}{:>6}",
        "attack",
        "pps",
        "p99",
        "limit",
        "new, ms",
        "ctl, ms",
        "end,s",
        "MiB",
        "fds",
        "log/s",
        "strikes",
        "CPUs"
    )
}

/// The figures by name.
pub fn figures(results: &[Result]) -> Map<String, Value> {
    let rows =
        || results.iter().filter_map(|result| Some((result.attack, result.row.as_ref().ok()?)));
    let compared = || {
        let these = results.iter().filter(|result| result.is_compared());
        these.filter_map(|result| Some((result.attack, result.row.as_ref().ok()?)))
    };
    let pps = |own: bool| {
        let these = compared().filter(move |(attack, _)| attack.own_share.is_some() == own);
        these.filter_map(|(_, row)| row.pps).reduce(f64::min)
    };
    let most = |of: fn(&Row) -> f64| rows().map(|(_, row)| of(row)).reduce(f64::max);
    let most_of_others = |of: fn(&Row) -> f64| {
        let others = rows().filter(|(attack, _)| attack.administers.is_none());
        others.map(|(_, row)| of(row)).reduce(f64::max)
    };
    // An attack in several settings counts as one attack.
    let mut attacks = BTreeMap::new();
    for result in results {
        *attacks.entry(result.attack.name).or_insert(true) &= result.survived();
    }
    let survived = attacks.values().filter(|survived| **survived).count();
    let all = [
        ("attacks_survived", Some(survived as f64)),
        ("attacks_total", Some(attacks.len() as f64)),
        ("attack_victim_pps_worst", pps(false)),
        ("attack_victim_pps_own_share_worst", pps(true)),
        ("attack_victim_p99_worst", compared().filter_map(|(_, row)| row.p99).reduce(f64::max)),
        (
            "attack_victim_p99_limit_worst",
            compared().filter_map(|(_, row)| row.p99_limit).reduce(f64::max),
        ),
        (
            "attack_victim_p99_beyond_limit",
            Some(results.iter().filter(|it| it.is_worse_than_limit(P99_CHANCE)).count() as f64),
        ),
        ("attack_new_frontend_ms_worst", most(|row| row.newcomer_ms)),
        ("attack_control_ms_worst", rows().filter_map(|(_, row)| row.control_ms).reduce(f64::max)),
        ("attack_sigterm_s_worst", rows().filter_map(|(_, row)| row.sigterm_s).reduce(f64::max)),
        ("attack_rss_growth_mib", most_of_others(|row| row.rss_mib)),
        ("attack_fds_left", most(|row| row.fds as f64)),
        ("attack_log_lines_per_s", most_of_others(|row| row.log_lines_per_s)),
    ];
    let counted = COUNTED.map(|name| {
        let these = rows().filter_map(|(_, row)| row.counted.get(name));
        (name, these.map(|count| *count as f64).reduce(|all, count| all + count))
    });
    let all = all.into_iter().chain(counted);
    all.filter_map(|(name, value)| Some((name.to_owned(), json!(value?)))).collect()
}

/// The figures with their bars, for the terminal. True if all bars are met.
pub fn summary(results: &[Result]) -> (String, bool) {
    let figures = figures(results);
    let total = figures.get("attacks_total").and_then(Value::as_f64).unwrap_or(0.0);
    let bars = [
        ("attacks_survived", Bar::AtLeast(total)),
        ("attacks_total", ATTACKS),
        ("attack_victim_pps_worst", PPS),
        ("attack_victim_pps_own_share_worst", OWN_SHARE_PPS),
        ("attack_victim_p99_beyond_limit", Bar::AtMost(0.0)),
        ("attack_new_frontend_ms_worst", NEWCOMER_MS),
        ("attack_control_ms_worst", CONTROL_MS),
        ("attack_sigterm_s_worst", SIGTERM_S),
        ("attack_rss_growth_mib", RSS_MIB),
        ("attack_fds_left", Bar::AtMost(0.0)),
        ("attack_log_lines_per_s", LOG_LINES),
        (COUNTED[0], Bar::AtMost(0.0)),
        (COUNTED[1], Bar::AtMost(0.0)),
    ];
    let mut text = String::new();
    let mut all = true;
    for (name, bar) in bars {
        let Some(value) = figures.get(name).and_then(Value::as_f64) else { continue };
        all &= bar.held(value);
        let verdict = if bar.held(value) { "reached" } else { "missed" };
        text += &format!("{name:<40}{value:>10.2}  ({bar}: {verdict})\n");
    }
    for name in ["attack_victim_p99_worst", "attack_victim_p99_limit_worst"] {
        let Some(value) = figures.get(name).and_then(Value::as_f64) else { continue };
        text += &format!("{name:<40}{value:>10.2}\n");
    }
    (text, all)
}

/// Writes the figures into `bench/report.json` beside those of other tasks, and the table into `attack/report.md`.
pub fn write(target: &Path, results: &[Result]) -> io::Result<()> {
    let (bench, attack) = (target.join("bench"), target.join("attack"));
    fs::create_dir_all(&bench)?;
    fs::create_dir_all(&attack)?;
    let report = bench.join("report.json");
    let mut all: Map<String, Value> = match fs::read_to_string(&report) {
        Ok(text) => serde_json::from_str(&text)
            .map_err(|error| io::Error::other(format!("{}: {error}", report.display())))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Map::new(),
        Err(error) => return Err(error),
    };
    all.extend(figures(results));
    fs::write(report, format!("{:#}\n", Value::Object(all)))?;
    fs::write(attack.join("report.md"), markdown(results))
}

fn markdown(results: &[Result]) -> String {
    let mut text = format!("```\n{}```\n\n", summary(results).0);
    text += "| class | attack | what it tries | pps | p99 | its limit | newcomer, ms | `stats`, ms | SIGTERM, s | MiB | descriptors | log lines/s | strikes | its CPUs | verdict |\n\
             |---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|\n";
    for result in results {
        let Attack { name, tries, own_share, administers, .. } = result.attack;
        let told = [("Its own share", own_share), ("An administrator's", administers)];
        let told =
            told.into_iter().filter_map(|(what, why)| Some(format!(" *{what}: {}.*", (*why)?)));
        let own: String = told.collect();
        let faults = result.faults();
        let verdict = if faults.is_empty() { "ok".to_owned() } else { faults.join("; ") };
        let class = result.class;
        let cells = result.row.as_ref().map(cells).unwrap_or_default().join(" | ");
        text += &format!(
            "| {class} | `{name}{}` | {tries}.{own} | {cells} | {verdict} |\n",
            result.setting.suffix()
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(rows: &[Row]) -> Vec<Result> {
        let all = rows.iter().zip(crate::attack::all());
        let of = |(row, (class, attack, _)): (&Row, _)| {
            let setting = Setting::Usual;
            Result { class, attack, setting, row: Ok(Row::clone(row)) }
        };
        all.map(of).collect()
    }

    #[test]
    fn the_worst_of_all_is_what_counts() {
        let good = Row { pps: Some(1.0), p99: Some(1.0), ..Row::default() };
        let counted = [("failed_open_frames".to_owned(), 3)].into();
        let against_limit = Paired { worse: 5, rounds: 5 };
        let bad = Row { pps: Some(0.5), p99: Some(3.0), against_limit, fds: 2, ..Row::default() };
        let bad = Row { counted, ..bad };
        let dead = Row { failures: vec!["weir has ended".into()], ..Row::default() };
        let results = results(&[good.clone(), bad, dead]);
        let figures = figures(&results);
        let figure = |name: &str| figures.get(name).and_then(Value::as_f64);
        assert_eq!(figure("attacks_survived"), Some(2.0));
        assert_eq!(figure("attacks_total"), Some(3.0));
        assert_eq!(figure("attack_victim_pps_worst"), Some(0.5));
        assert_eq!(figure("attack_victim_p99_worst"), Some(3.0));
        assert_eq!(figure("attack_fds_left"), Some(2.0));
        assert_eq!((figure("failed_open_frames"), figure("settings_lost")), (Some(3.0), None));
        assert!(!summary(&results).1);
        let faults = results[1].faults();
        assert_eq!(faults, ["pps 0.50 (bar >= 0.9)", "p99 3.00 (bar <= 2)"]);
    }

    #[test]
    fn a_p99_is_a_fault_beyond_its_bar_and_the_machines_limit() {
        let row = |p99, worse, rounds| Row {
            p99: Some(p99),
            p99_limit: Some(2.5),
            against_limit: Paired { worse, rounds },
            ..Row::default()
        };
        let rows = [row(1.0, 5, 5), row(3.0, 4, 5), row(3.0, 8, 15), row(3.0, 12, 15)];
        let results = results(&rows);
        let doubts = results.iter().map(Result::is_in_doubt).collect::<Vec<_>>();
        assert_eq!(doubts, [false, true, false, true]);
        assert!(results[..3].iter().all(|result| result.faults().is_empty()));
        let told = "p99 3.00 (bar <= 2), 2.50 with the attacker at another weir, which is less in 12 of 15 rounds";
        assert_eq!(results[3].faults(), [told]);
        assert_eq!(figures(&results).get("attack_victim_p99_beyond_limit"), Some(&json!(1.0)));
    }

    #[test]
    fn what_others_wrote_into_the_report_stays() {
        let target = std::env::temp_dir().join(format!("weir-attack-{}", std::process::id()));
        fs::create_dir_all(target.join("bench")).unwrap();
        fs::write(target.join("bench/report.json"), r#"{"other": 7, "attacks_total": 9}"#).unwrap();
        write(&target, &results(&[Row::default()])).unwrap();
        let text = fs::read_to_string(target.join("bench/report.json")).unwrap();
        let json: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (json["other"].as_f64(), json["attacks_total"].as_f64()),
            (Some(7.0), Some(1.0))
        );
        fs::write(target.join("bench/report.json"), r#"{"other": 7"#).unwrap();
        write(&target, &results(&[Row::default()])).unwrap_err();
        let text = fs::read_to_string(target.join("bench/report.json")).unwrap();
        assert_eq!(text, r#"{"other": 7"#);
        fs::remove_dir_all(&target).unwrap();
    }
}
