//! The output of `--json` matches the guide.

use std::collections::BTreeSet;
use std::process::{Command, Output};

use clap::CommandFactory;
use serde_json::Value;
use weir::args::Cli;
use weir_testing::eventually;

use super::{Desk, documents};

const GUIDE: &str = "docs/guide/json.md";

/// Commands that print no table.
const NO_TABLE: &[&str] = &[
    "run",
    "check",
    "upgrade",
    "save",
    "qemu-args",
    "vif add",
    "vif set",
    "vif del",
    "filter set",
    "filter clear",
    "group show",
    "group flush",
    "libvirt define",
    "libvirt undefine",
    "libvirt check",
    "libvirt hook",
    "capture",
    "lab report",
    "lab calibrate",
    "lab soak",
    "lab check",
];

fn guide() -> String {
    documents().into_iter().find(|(path, _)| path == GUIDE).unwrap().1
}

/// The fields in the first column of the table that has this heading.
fn fields(heading: &str) -> BTreeSet<String> {
    let guide = guide();
    let table = guide.split(&format!("\n| `{heading}` |")).nth(1).expect(heading);
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let cells: Vec<_> = rows.filter_map(|row| row.split('|').nth(1)).collect();
    let names = cells.iter().flat_map(|cell| cell.split('`').skip(1).step_by(2));
    let of_top = names.filter(|name| !name.contains('.'));
    of_top.map(|name| name.trim_end_matches("[]").to_owned()).collect()
}

fn keys(value: &Value) -> BTreeSet<String> {
    let object = value.get(0).unwrap_or(value).as_object().expect("an object");
    object.keys().cloned().collect()
}

fn weir(args: &[&str]) -> Value {
    let run = || Command::new(env!("CARGO_BIN_EXE_weir")).args(args).output().unwrap();
    let says = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    // A measurement fails if other tests leave no time for it.
    let output = eventually("time to measure", || {
        Some(run()).filter(|output| !says(output).contains("machine may be busy"))
    });
    let says = says(&output);
    assert!(says.is_empty(), "{args:?} is not quiet without a terminal: {says}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{args:?}: {error}"))
}

fn leaves(command: &clap::Command, name: &str, found: &mut Vec<(String, bool)>) {
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
        let name = format!("{name} {}", sub.get_name()).trim().to_owned();
        match sub.has_subcommands() {
            true => leaves(sub, &name, found),
            false => found.push((name, sub.get_arguments().any(|arg| arg.get_id() == "json"))),
        }
    }
}

#[test]
fn each_command_that_prints_a_table_prints_json_that_the_guide_describes() {
    let mut found = Vec::new();
    leaves(&Cli::command(), "", &mut found);
    let guide = guide();
    for (name, has_json) in &found {
        assert_eq!(*has_json, !NO_TABLE.contains(&name.as_str()), "weir {name}");
        let described = guide.lines().any(|line| {
            line.split('`')
                .any(|it| it.starts_with(&format!("weir {name} ")) && it.ends_with("--json"))
        });
        assert!(!has_json || described, "{GUIDE} does not have `weir {name} --json`");
    }
    assert!(found.len() > 25, "{found:?}");
}

#[test]
fn json_has_the_fields_of_the_guide_and_is_alone_on_standard_output() {
    assert_eq!(keys(&weir(&["demo", "--json", "--seconds", "1"])), fields("weir demo --json"));
    let bench = weir(&["bench", "--json", "--seconds", "1", "--filter", "pps64_split"]);
    assert_eq!(keys(&bench), fields("weir bench --json"));
    let run = weir(&["lab", "run", "dong-fig12-15", "--json", "--seed", "1"]);
    assert_eq!(keys(&run), fields("weir lab run --json"));
    let listed: BTreeSet<_> =
        ["name", "points", "claims", "paper", "title"].map(str::to_owned).into();
    assert_eq!(keys(&weir(&["lab", "list", "--json"])), listed);
    assert!(guide().contains("an array of `name`, `points`, `claims`, `paper`, `title`"));
}

#[test]
fn types_of_the_running_switch_are_those_of_the_openapi_document() {
    let openapi: Value =
        serde_json::from_str(include_str!("../../../../docs/openapi.json")).unwrap();
    let types = openapi["components"]["schemas"].as_object().unwrap();
    let guide = guide();
    let section = guide.split("## Of a running switch").nth(1).unwrap();
    let rows =
        section.lines().filter(|line| line.starts_with("| `weir ") && line.contains("--json"));
    let cells: Vec<_> = rows.filter_map(|row| row.split('|').nth(2)).collect();
    let quoted = cells.iter().flat_map(|cell| cell.split('`').skip(1).step_by(2));
    let named: Vec<_> = quoted.filter(|name| name.starts_with(char::is_uppercase)).collect();
    assert!(named.len() >= 10, "{named:?}");
    assert!(named.iter().all(|name| types.contains_key(*name)), "{named:?}");
    // Some outputs are checked: each required field of the document is present, and no unknown one is.
    let desk = Desk::start();
    for (line, name) in [
        ("stats --json", "SwitchStats"),
        ("reload --json", "Reloaded"),
        ("vif list --json", "VifStatus"),
    ] {
        let output = desk.shell(&format!("weir {line}")).output().unwrap();
        let value: Value = serde_json::from_slice(&output.stdout).unwrap();
        let known: BTreeSet<_> =
            types[name]["properties"].as_object().unwrap().keys().cloned().collect();
        let missing: Vec<_> = types[name]["required"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let has = keys(&value);
        assert!(has.is_subset(&known), "{line}: {:?}", has.difference(&known));
        assert!(missing.iter().all(|key| has.contains(*key)), "{line}: {has:?}");
    }
}
