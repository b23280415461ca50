//! `weir bench` as a user starts it.

use std::collections::BTreeMap;
use std::process::{Command, Output};

use serde_json::Value;

fn bench(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_weir")).arg("bench").args(args).output().unwrap()
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
