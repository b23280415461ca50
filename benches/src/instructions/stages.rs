//! Instructions, and misses of the caches, per packet by stage of its path.
//!
//! callgrind counts by address. `addr2line` names the functions inlined there, and the first rule
//! that matches one of them gives the stage. A function of the C library counts for its caller.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fmt::Write as _,
    path::Path,
};

use weir_bed::{
    error::{Error, Result},
    packages::is_root,
    process::run_in,
    workspace::{Programs, Workspace},
};

use super::{EXAMPLE, Row, librte_vhost};

/// Stages in the order of a packet's path. A rule is a part of a file's path and the beginning of a function's name
/// in that file.
pub(super) const STAGES: [(&str, &[(&str, &str)]); 11] = [
    ("poll", &[]),
    (
        "chain",
        &[
            ("port-vhost/src/tx.rs", "fill"),
            ("ring/src/split/chain.rs", ""),
            ("ring/src/packed/chain.rs", ""),
            ("ring/src/packed/device.rs", "walk"),
            ("ring/src/packed/device.rs", "refill"),
            ("ring/src/split/device.rs", "refill"),
        ],
    ),
    (
        "header check",
        &[
            ("engine/src/frames/burst/add.rs", "add"),
            ("engine/src/frames/burst/add.rs", "look_closer"),
            ("wire/", ""),
        ],
    ),
    ("filter", &[("engine/src/switching/filter.rs", ""), ("crates/filter/", "")]),
    (
        "classify",
        &[("engine/src/switching/switch.rs", ""), ("crates/fabric/", ""), ("arc-swap", "")],
    ),
    ("reserve", &[("port-vhost/src/rx.rs", "reserve")]),
    (
        "copy",
        &[
            ("port-vhost/src/rx.rs", "place"),
            ("port-vhost/src/rx.rs", "copy"),
            ("port-vhost/src/rx.rs", "put"),
            ("engine/src/frames/gro.rs", ""),
            ("engine/src/frames/egress.rs", ""),
        ],
    ),
    (
        "publish",
        &[
            ("ring/src/device.rs", "publish"),
            ("ring/src/split/device.rs", "publish"),
            ("ring/src/packed/device.rs", "publish"),
            ("ring/src/packed/device.rs", "show"),
            ("port-vhost/src/queue.rs", "show"),
            ("engine/src/queue/fill.rs", ""),
            ("engine/src/queue/receive.rs", "finish"),
        ],
    ),
    (
        "hold and call",
        &[
            ("engine/src/calls/", ""),
            ("engine/src/guest/", ""),
            ("port-vhost/src/queue.rs", "call"),
            ("crates/policy/", ""),
            ("crates/calls/", ""),
        ],
    ),
    (
        "complete",
        &[
            ("port-vhost/src/tx.rs", "settle"),
            ("ring/src/device.rs", "complete"),
            ("ring/src/device.rs", "return"),
            ("ring/src/packed/device.rs", "return"),
            ("ring/src/split/device.rs", "complete"),
            ("ring/src/packed/device.rs", "complete"),
        ],
    ),
    (
        "counters",
        &[
            ("engine/src/frames/stats.rs", ""),
            ("hdrhistogram", ""),
            ("engine/src/queue/transmit.rs", "count"),
        ],
    ),
];

/// Order of the rules: a stage that is inlined into a wider one comes before it.
const ASKED: [&str; 10] = [
    "counters",
    "header check",
    "reserve",
    "complete",
    "chain",
    "filter",
    "classify",
    "publish",
    "hold and call",
    "copy",
];

/// Kinds of traffic shown by stage.
const SHOWN: [Row; 10] = [
    Row::new("split 64 x1", "split", 64, 1),
    Row::new("x8", "split", 64, 8),
    Row::new("x32", "split", 64, 32),
    Row::new("1500 x32", "split", 1500, 32),
    Row::new("filter x32", "split-filtered", 64, 32),
    Row::new("GSO x8", "split-gso", 16_000, 8),
    Row::new("packed 64 x1", "packed", 64, 1),
    Row::new("x8", "packed", 64, 8),
    Row::new("x32", "packed", 64, 32),
    Row::new("1500 x32", "packed", 1500, 32),
];

/// callgrind's name for the code before `main`.
const START: &str = "(below main)";

/// A table of counts per packet.
struct Counted {
    name: &'static str,
    /// callgrind's options for these counts.
    options: &'static [&'static str],
    /// callgrind's events that are added up.
    events: &'static [&'static str],
}

const INSTRUCTIONS: Counted = Counted { name: "stage", options: &[], events: &["Ir"] };

/// The simulated caches are these on every machine: 32 KiB of the first level for code and for data each, and 1 MiB
/// behind them, which a core has alone.
const CACHES: &[&str] =
    &["--cache-sim=yes", "--I1=32768,8,64", "--D1=32768,8,64", "--LL=1048576,16,64"];

/// Misses that a worker's core would have by itself. The table of lines shows the cost of another
/// core's writes.
const MISSES: [Counted; 3] = [
    Counted { name: "code misses", options: CACHES, events: &["I1mr"] },
    Counted { name: "data misses", options: CACHES, events: &["D1mr", "D1mw"] },
    Counted { name: "beyond 1 MiB", options: CACHES, events: &["ILmr", "DLmr", "DLmw"] },
];

/// Count per packet of each stage.
type ByStage = BTreeMap<&'static str, f64>;

/// Returns a table of instructions, with a line for each stage and a column for each kind of traffic. Instructions in
/// no other stage count as poll: locks, a burst's borrowed data, and the bookkeeping at its end. The last line is
/// DPDK's vhost library.
pub fn table(workspace: &Workspace) -> Result<String> {
    let program = Programs::build(workspace)?.example(EXAMPLE);
    let dir = workspace.target("instructions")?;
    let mut text = tables(&[INSTRUCTIONS], &program, &dir)?;
    if is_root() {
        text += &librte_vhost::table(workspace, &program)?;
    } else {
        text += "skipped: needs root: the same for librte_vhost\n";
    }
    Ok(text)
}

/// Returns such tables of the misses of a core's caches.
pub(super) fn misses(workspace: &Workspace) -> Result<String> {
    let program = Programs::build(workspace)?.example(EXAMPLE);
    tables(&MISSES, &program, &workspace.target("instructions")?)
}

/// Returns a table for each of `all`, which have the same options.
fn tables(all: &[Counted], program: &Path, dir: &Path) -> Result<String> {
    let columns: Vec<Vec<ByStage>> =
        SHOWN.iter().map(|row| by_stage(row, all, program, dir)).collect::<Result<_>>()?;
    let mut text = String::new();
    for (nth, counted) in all.iter().enumerate() {
        let columns: Vec<_> = columns.iter().filter_map(|column| column.get(nth)).collect();
        write_table(counted.name, &columns, &mut text);
    }
    Ok(text)
}

fn write_table(name: &str, columns: &[&ByStage], text: &mut String) {
    let _ = write!(text, "{name:<14}");
    for row in &SHOWN {
        let _ = write!(text, "{:>13}", row.name);
    }
    text.push('\n');
    let mut line = |stage: &str, value: &dyn Fn(&ByStage) -> f64| {
        let _ = write!(text, "{stage:<14}");
        for column in columns {
            let _ = write!(text, "{:>13.1}", value(column));
        }
        text.push('\n');
    };
    for (stage, _) in STAGES {
        line(stage, &|column| column.get(stage).copied().unwrap_or(0.0));
    }
    line("all", &|column| column.values().sum());
    text.push('\n');
}

/// Returns what each of `all` counts.
fn by_stage(row: &Row, all: &[Counted], program: &Path, dir: &Path) -> Result<Vec<ByStage>> {
    let mut options = vec!["--dump-instr=yes", "--compress-pos=no", "--compress-strings=no"];
    options.extend(all.iter().flat_map(|counted| counted.options).collect::<BTreeSet<_>>());
    let (packets, profile) = row.profile(program, dir, &options)?;
    let stages = |counted: &Counted| {
        let counts = by_address(&profile, program, &events(&profile, counted.events)?);
        let mut stages = ByStage::new();
        for ((_, count), functions) in counts.iter().zip(functions_at(program, counts.keys())?) {
            *stages.entry(stage_of(&functions)).or_default() += *count as f64 / packets;
        }
        Ok(stages)
    };
    all.iter().map(stages).collect()
}

/// Returns the places of these events among a line's counts.
fn events(profile: &str, wanted: &[&str]) -> Result<Vec<usize>> {
    let named = profile.lines().find_map(|line| line.strip_prefix("events: ")).unwrap_or_default();
    let place = |event: &&str| named.split_whitespace().position(|name| name == *event);
    let places: Option<Vec<_>> = wanted.iter().map(place).collect();
    places.ok_or_else(|| Error::parse("the events of a callgrind profile", named))
}

/// Returns the sum of `events`, given by their places, at each address of `program`, including callees in other
/// objects.
fn by_address(profile: &str, program: &Path, events: &[usize]) -> BTreeMap<u64, u64> {
    let own = program.to_string_lossy();
    let (mut object, mut function, mut callee) = (String::new(), String::new(), String::new());
    let (mut counts, mut is_call) = (BTreeMap::new(), false);
    for line in profile.lines() {
        if let Some(name) = line.strip_prefix("ob=") {
            name.clone_into(&mut object);
        } else if let Some(name) = line.strip_prefix("fn=") {
            name.clone_into(&mut function);
        } else if let Some(name) = line.strip_prefix("cob=") {
            name.clone_into(&mut callee);
        } else if line.starts_with("calls=") {
            is_call = true;
        } else if let Some(line) = line.strip_prefix("0x") {
            let is_of_library = !callee.is_empty() && callee != own;
            // This function calls the C library, which calls `main`: the whole program would count
            // twice.
            let is_start = function == START;
            let is_own = object == own && !is_start && (!is_call || is_of_library);
            let mut fields = line.split(' ');
            let address = fields.next().and_then(|field| u64::from_str_radix(field, 16).ok());
            // The number of the source's line comes first. Zeros at the end are left out.
            let all: Vec<u64> = fields.skip(1).map_while(|field| field.parse().ok()).collect();
            let count = events.iter().filter_map(|event| all.get(*event)).sum::<u64>();
            if let (true, Some(address), 1..) = (is_own, address, count) {
                *counts.entry(address).or_default() += count;
            }
            if is_call {
                callee.clear();
                is_call = false;
            }
        }
    }
    counts
}

/// Returns the functions at each address, from the innermost inlined one outwards, each with its
/// file.
pub(super) fn functions_at<'a>(
    program: &Path,
    addresses: impl Iterator<Item = &'a u64>,
) -> Result<Vec<Vec<(String, String)>>> {
    let mut argv =
        vec!["addr2line".into(), "-aifC".into(), "-e".into(), program.display().to_string()];
    argv.extend(addresses.map(|address| format!("{address:#x}")));
    let text = run_in(&argv, Path::new("."), &[] as &[(&str, &OsStr)])?;
    let mut all: Vec<Vec<(String, String)>> = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("0x") {
            all.push(Vec::new());
        } else if let (Some(functions), Some(file)) = (all.last_mut(), lines.next()) {
            functions.push((line.to_owned(), file.to_owned()));
        }
    }
    Ok(all)
}

pub(super) fn stage_of(functions: &[(String, String)]) -> &'static str {
    let meets = |rules: &[(&str, &str)]| {
        functions.iter().any(|(function, file)| {
            let name = own_name(function);
            rules.iter().any(|(path, begins)| file.contains(path) && name.starts_with(begins))
        })
    };
    let stages = ASKED.iter().filter_map(|asked| STAGES.iter().find(|(stage, _)| stage == asked));
    stages.into_iter().find(|(_, rules)| meets(rules)).map_or(STAGES[0].0, |(stage, _)| stage)
}

/// Returns the last part of a path that is neither a closure nor a type argument.
fn own_name(function: &str) -> &str {
    let path = function.split("::{").next().unwrap_or(function);
    let path = path.split("::<").next().unwrap_or(path);
    // A path that begins with `<` names a type and its trait.
    let path = if path.starts_with('<') { path } else { path.split('<').next().unwrap_or(path) };
    path.rsplit("::").next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_of_its_address_and_a_librarys_of_its_caller() {
        let profile = "ob=/w/program\nfn=a\n0x10 3 5\n0x10 4 1\ncob=/lib/libc.so\ncfn=memcpy\n\
            calls=2 0x99 0\n0x14 4 40\ncfn=b\ncalls=1 0x20 0\n0x18 4 1000\n0x1c 5 2\n\
            fn=(below main)\ncob=/lib/libc.so\ncfn=start\ncalls=1 0x98 0\n0x20 1 1088\n\
            ob=/lib/libc.so\nfn=memcpy\n0x99 0 40\n";
        let counts = by_address(profile, Path::new("/w/program"), &[0]);
        assert_eq!(counts.into_iter().collect::<Vec<_>>(), [(0x10, 6), (0x14, 40), (0x1c, 2)]);
    }

    #[test]
    fn misses_are_counted_where_they_happen() {
        let profile = "events: Ir Dr Dw I1mr D1mr D1mw\nob=/w/program\nfn=a\n0x10 3 5 2 1 1 1\n\
            0x14 4 7 1 1 0 2 3\n0x18 5 9\ncob=/lib/libc.so\ncfn=memcpy\ncalls=2 0x99 0\n\
            0x1c 6 40 8 8 1 4 4\n";
        let at = |wanted: &[&str]| {
            let events = events(profile, wanted).unwrap();
            by_address(profile, Path::new("/w/program"), &events).into_iter().collect::<Vec<_>>()
        };
        assert_eq!(at(&["Ir"]), [(0x10, 5), (0x14, 7), (0x18, 9), (0x1c, 40)]);
        assert_eq!(at(&["D1mr", "D1mw"]), [(0x10, 1), (0x14, 5), (0x1c, 8)]);
        assert_eq!(at(&["I1mr"]), [(0x10, 1), (0x1c, 1)]);
        assert!(events(profile, &["DLmr"]).is_err(), "it was not counted");
    }

    #[test]
    fn the_stage_is_that_of_the_narrowest_rule() {
        let at = |functions: &[(&str, &str)]| {
            let owned = functions.iter().map(|(name, file)| ((*name).into(), (*file).into()));
            stage_of(&owned.collect::<Vec<_>>())
        };
        let add = ("weir_engine::burst::Burst::add", "/w/crates/engine/src/frames/burst/add.rs:1");
        let fill = ("weir_port_vhost::tx::fill_new", "/w/crates/port-vhost/src/tx.rs:2");
        let core = ("core::ptr::read::<u8>", "/rustc/library/core/src/ptr/mod.rs:3");
        assert_eq!(at(&[core, add, fill]), "header check");
        assert_eq!(at(&[core, fill]), "chain");
        assert_eq!(at(&[core]), "poll");
        let place = "place_each<core::slice::iter::Iter<weir_engine::gro::{impl#1}::iter>>";
        assert_eq!(at(&[core, (place, "/w/crates/port-vhost/src/rx.rs:4")]), "copy");
        let take = "<weir_port_vhost::port::VhostPort as weir_engine::Port>::take";
        assert_eq!(own_name(take), "take");
    }

    #[test]
    fn every_stage_but_the_rest_is_asked() {
        let mut asked = ASKED.to_vec();
        asked.sort_unstable();
        let mut stages: Vec<_> = STAGES.iter().skip(1).map(|(stage, _)| *stage).collect();
        stages.sort_unstable();
        assert_eq!(asked, stages);
    }
}
