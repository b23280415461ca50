//! `weir bench` as a user starts it.

use std::process::{Command, Output};

use serde_json::Value;

fn bench(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_weir")).arg("bench").args(args).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The median of the figure `name`.
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
