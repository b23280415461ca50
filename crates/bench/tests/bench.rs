//! `weir-bench` and its demo as a user starts them, without a terminal.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

fn bench(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_weir-bench")).args(args).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn median(report: &Value, name: &str) -> f64 {
    let measurements = report["measurements"].as_array().unwrap();
    let mut figures = measurements.iter().flat_map(|m| m["figures"].as_array().unwrap());
    let figure = figures.find(|figure| figure["name"] == name);
    figure.unwrap_or_else(|| panic!("no {name} in {report}"))["median"].as_f64().unwrap()
}

#[test]
fn json_has_positive_figures_of_traffic_and_of_its_stages() {
    let output = bench(&["--seconds", "1", "--json", "--filter", "64_split"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["cores"].as_u64().unwrap() > 0);
    for name in [
        "pps64_split",
        "pps64_split_per_core",
        "stages64_split_take",
        "stages64_split_classify",
        "stages64_split_copy",
        "stages64_split_publish",
        "stages64_split_call",
        "stages64_split_burst",
    ] {
        assert!(median(&report, name) > 0.0, "{name} of {report}");
    }
    for measurement in report["measurements"].as_array().unwrap() {
        assert!(measurement["switch_cores"].as_f64().unwrap() > 0.0, "{measurement}");
        assert!(measurement["guests_cores"].as_f64().unwrap() > 0.0, "{measurement}");
    }
}

#[test]
fn a_table_and_nothing_else_is_printed_without_a_terminal() {
    let output = bench(&["--seconds", "1", "--filter", "rtt"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(text.contains("rtt_p50") && text.contains("rtt_p99"), "{text}");
    assert_eq!(stderr(&output), "");
}

#[test]
fn a_filter_that_means_nothing_says_what_there_is() {
    let output = bench(&["--filter", "nonsense"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("pps64_split"), "{}", stderr(&output));
}

/// All figures of a report by name. The report must have no other content.
fn figures(args: &[&str]) -> BTreeMap<String, f64> {
    let output = bench(args);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let figures = report["figures"].as_array().unwrap().iter();
    let named = |figure: &Value| {
        let rounds = figure["rounds"].as_array().unwrap();
        assert!(!rounds.is_empty() && figure["unit"].is_string(), "{figure}");
        (figure["name"].as_str().unwrap().to_owned(), figure["median"].as_f64().unwrap())
    };
    figures.map(named).collect()
}

#[test]
fn interfaces_that_come_and_go_leave_nothing_behind() {
    let found = figures(&["--attach-detach", "--cycles", "300", "--json"]);
    for name in ["attach_detach", "attach_detach_threads"] {
        assert_eq!(found[name], 0.0, "{name} of {found:?}");
        assert!(found[&format!("{name}_traffic")] > 0.0, "{found:?}");
    }
}

#[test]
fn packets_stay_in_order_while_everything_moves() {
    let found = figures(&["--reorder", "--packets", "100000", "--json"]);
    assert_eq!(found["reordered_packets_of"], 100_000.0, "{found:?}");
    assert_eq!((found["reordered_packets"], found["reordered_packets_lost"]), (0.0, 0.0));
    assert!(found["reordered_packets_entry_moves"] > 0.0, "{found:?}");
}

#[test]
fn figures_of_the_table_of_cores_are_all_there() {
    let found = figures(&["--sharing", "--seconds", "1", "--json"]);
    for name in ["jain_index", "weight_error", "victim_p99_vs_alone"] {
        assert!(found.contains_key(name), "{name} of {found:?}");
    }
    let found = figures(&["--filter-cost", "--seconds", "1", "--json"]);
    assert!(found["filter_cost"] > 0.0, "{found:?}");
}

#[test]
fn options_that_do_not_go_together_are_refused() {
    for args in [
        &["--reorder", "--vifs"][..],
        &["--two-workers", "--sharing"],
        &["--packets", "7"],
        &["--attach-detach", "--cycles", "3"],
    ] {
        let output = bench(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stderr(&output));
    }
}

/// Seconds of a demo that gets interrupted.
const LONG_S: &str = "60";

fn demo(temp_dir: &std::path::Path, seconds: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir-bench"));
    command
        .args(["demo", "--plain", "--seconds", seconds])
        .env("TMPDIR", temp_dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn text(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The cells of a row of the table; columns are two spaces or more apart.
fn row<'t>(text: &'t str, label: &str) -> Vec<&'t str> {
    let line = text.lines().find(|line| line.starts_with(label));
    let line = line.unwrap_or_else(|| panic!("no row {label:?} in\n{text}"));
    let cells = line[label.len()..].split("  ").map(str::trim);
    cells.filter(|cell| !cell.is_empty()).collect()
}

fn numbers(text: &str, label: &str) -> Vec<f64> {
    let number = |cell: &&str| cell.replace(',', "").parse().unwrap();
    row(text, label).iter().map(number).collect()
}

#[test]
fn two_seconds_of_the_demo_end_with_figures_of_every_phase() {
    let dir = tempfile::tempdir().unwrap();
    let output = demo(dir.path(), "2").output().unwrap();
    let text = text(&output);

    let phases = 4;
    for label in ["throughput, Gbit/s", "packets/s", "calls per packet"] {
        let figures = numbers(&text, label);
        assert_eq!(figures.len(), phases, "{label}\n{text}");
        assert!(figures.iter().all(|figure| *figure >= 0.0), "{text}");
    }
    assert!(numbers(&text, "packets/s").iter().all(|rate| *rate > 0.0));
    // The time of one phase can be zero, rounded to two places, if other processes have the CPUs.
    assert!(numbers(&text, "CPU s, guests").iter().sum::<f64>() > 0.0, "{text}");
    let bulk = numbers(&text, "throughput, Gbit/s")[0];
    assert!(bulk > 0.0, "{text}");
    // A receiver is called at most once for each packet. A phase may begin between a packet and its call.
    let packets = numbers(&text, "packets/s").into_iter().zip(numbers(&text, "seconds"));
    let packets = packets.map(|(rate, seconds)| (rate * seconds).max(1.0));
    let calls = numbers(&text, "calls per packet").into_iter().zip(packets);
    assert!(calls.into_iter().all(|(calls, packets)| calls <= 1.0 + 1.5 / packets), "{text}");
    let lost_reordered = row(&text, "lost, reordered");
    assert_eq!(lost_reordered.len(), phases, "{text}");
    // Packets can be lost if a guest waits long for a CPU, but none may overtake another.
    assert!(lost_reordered.iter().all(|cell| cell.ends_with(", 0")), "{text}");
    for label in [
        "moderation",
        "hold time p50",
        "hold time p99",
        "latency p50",
        "latency p99",
        "CPU s, switch",
        "bytes/CPU s, switch",
    ] {
        let cells = row(&text, label);
        assert_eq!(cells.len(), phases, "{label}\n{text}");
        assert!(!cells.contains(&"-"), "{text}");
        // A busy guest polls, and most of its frames are not held. The guest is busy in the first two phases. In the
        // third, of 10,000 packets/s, the guest is busy only if other processes have the CPUs and the guest falls
        // behind.
        let much = if numbers(&text, "packets/s")[2] < 9_990.0 { 3 } else { 2 };
        let held = if label == "hold time p50" { &cells[much..] } else { &cells[..] };
        assert!(!held.contains(&"0"), "{text}");
    }
    assert!(text.contains("weir run weir.toml") && text.contains("weir qemu-args"));
    let left = std::fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(left, 0, "sockets were left behind");
}

#[test]
fn interrupted_demo_prints_what_was_measured() {
    let dir = tempfile::tempdir().unwrap();
    let start = Instant::now();
    let mut child = demo(dir.path(), LONG_S).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut shown = String::new();
    // The first second of the first phase has passed.
    let is_of_a_second =
        |line: &str| line.split_whitespace().next().is_some_and(|s| s.parse::<u32>().is_ok());
    while !shown.lines().last().is_some_and(is_of_a_second) {
        assert!(lines.read_line(&mut shown).unwrap() > 0, "{shown}");
    }
    let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    lines.read_to_string(&mut shown).unwrap();
    let output = Output { stdout: shown.into_bytes(), ..child.wait_with_output().unwrap() };
    assert!(start.elapsed().as_secs() < LONG_S.parse().unwrap(), "it went on to its end");
    let text = text(&output);
    assert_eq!(row(&text, "lost, reordered").len(), 1, "{text}");
    assert!(numbers(&text, "packets/s")[0] > 0.0, "{text}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn missing_temporary_directory_is_explained() {
    let dir = tempfile::tempdir().unwrap();
    let output = demo(&dir.path().join("nowhere"), "2").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("nowhere") && text.contains("TMPDIR"), "{text}");
}
