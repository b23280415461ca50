//! weir's system calls per burst, as `strace` reports them: a guest's kick, a burst that weir takes from a guest and
//! delivers, and a burst that it takes from an uplink. The example's `calls.rs` explains each part. Wake-ups are not
//! included.

use std::{
    collections::{BTreeMap, HashMap, hash_map::Entry},
    fmt::Write as _,
    fs,
    path::Path,
};

use weir_bed::{
    error::{Error, Result},
    netns::Netns,
    packages::STRACE,
    workspace::{Programs, Workspace},
};

use super::EXAMPLE;

/// Number of bursts for each figure.
const BURSTS: &str = "20";

/// Length of frames and frames per burst: 64 bytes, or one packet of 65,000 bytes that is segmented.
const TRAFFIC: [(&str, &str); 4] = [("64", "1"), ("64", "8"), ("64", "32"), ("gso", "1")];

/// A part of a burst's path between two uplinks, with its calls under each [`TRAFFIC`].
struct Row {
    name: &'static str,
    uplinks: [&'static str; 2],
    part: &'static str,
    recorded: [usize; 4],
}

/// The path of a burst from an uplink ends with the call to the guest. 65,000 bytes are 45 frames for AF_XDP and
/// VXLAN.
const ROWS: [Row; 10] = [
    Row::new("guest: its kick", ["guest", "guest"], "kick", [1, 1, 1, 1]),
    Row::new("guest to guest", ["guest", "guest"], "send", [1, 1, 1, 1]),
    Row::new("guest to TAP", ["tap", "packet"], "send", [1, 8, 32, 1]),
    Row::new("TAP to guest", ["packet", "tap"], "take", [3, 10, 34, 3]),
    Row::new("guest to AF_PACKET", ["packet", "far-packet"], "send", [1, 1, 1, 1]),
    Row::new("AF_PACKET to guest", ["packet", "far-packet"], "take", [2, 2, 3, 2]),
    Row::new("guest to AF_XDP", ["xdp", "far-packet"], "send", [1, 1, 1, 2]),
    Row::new("AF_XDP to guest", ["far-packet", "xdp"], "take", [1, 1, 1, 1]),
    Row::new("guest to VXLAN", ["vxlan", "far-vxlan"], "send", [1, 1, 1, 1]),
    Row::new("VXLAN to guest", ["vxlan", "far-vxlan"], "take", [2, 2, 2, 2]),
];

impl Row {
    const fn new(
        name: &'static str,
        uplinks: [&'static str; 2],
        part: &'static str,
        recorded: [usize; 4],
    ) -> Self {
        Self { name, uplinks, part, recorded }
    }
}

/// The calls of one part of one burst, with their numbers.
type Calls = BTreeMap<String, usize>;

/// Returns a table, and true if a row exceeds its record. Needs root.
pub(super) fn table(workspace: &Workspace) -> Result<(String, bool)> {
    let program = Programs::build(workspace)?.example(EXAMPLE);
    let dir = workspace.target("instructions")?;
    let mut ways = HashMap::new();
    let mut text = format!("{:<22}", "system calls a burst");
    for (frame, burst) in TRAFFIC {
        let _ = write!(text, "{:>9}", format!("{frame} x{burst}"));
    }
    text += "   those of x32\n";
    let mut any_grew = false;
    for row in &ROWS {
        let way = match ways.entry(row.uplinks) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(trace(&program, &dir, row.uplinks)?),
        };
        let _ = write!(text, "{:<22}", row.name);
        let counts: Vec<&Calls> = way.iter().filter_map(|parts| parts.get(row.part)).collect();
        if counts.len() != TRAFFIC.len() {
            return Err(Error::Check(format!("{}: not all of it was seen", row.name)));
        }
        let mut grew = false;
        for (calls, recorded) in counts.iter().zip(row.recorded) {
            let sum: usize = calls.values().sum();
            let _ = write!(text, "{sum:>9}");
            grew |= sum > recorded;
        }
        for (name, number) in counts[2] {
            let _ = write!(text, "   {number} {name}");
        }
        any_grew |= grew;
        text += if grew { "   GREW\n" } else { "\n" };
    }
    Ok((text, any_grew))
}

/// Returns the calls of each part between two uplinks, for each [`TRAFFIC`].
fn trace(
    program: &Path,
    dir: &Path,
    [first, second]: [&str; 2],
) -> Result<Vec<HashMap<String, Calls>>> {
    let (program, file) = (program.display().to_string(), dir.join("calls"));
    let trace_file = file.display().to_string();
    let mut all = Vec::new();
    for (frame, burst) in TRAFFIC {
        let netns = Netns::new()?;
        netns.ip(&["link", "add", "host0", "type", "veth", "peer", "name", "weir0"])?;
        netns.ip(&["link", "set", "host0", "up"])?;
        if [first, second].contains(&"tap") {
            netns.ip(&["link", "delete", "weir0"])?;
        }
        let said = netns.exec(&[
            STRACE,
            "-qq",
            "-s0",
            "-o",
            &trace_file,
            &program,
            "calls",
            first,
            second,
            frame,
            burst,
            BURSTS,
        ])?;
        let trace = fs::read_to_string(&file).map_err(Error::io("read", &file))?;
        all.push(usual(&said, &trace));
    }
    Ok(all)
}

/// Returns the usual calls of each part: among the bursts of the most frequent length, the median
/// by number of calls.
fn usual(said: &str, trace: &str) -> HashMap<String, Calls> {
    let mut parts: HashMap<&str, HashMap<&str, Vec<Calls>>> = HashMap::new();
    let names = trace.lines().filter_map(|line| line.split_once('(')).map(|(name, _)| name);
    let names: Vec<&str> = names.collect();
    // Calls between two marks and the next two are not counted.
    let between = names.split(|name| *name == "getppid").skip(1).step_by(2);
    for (line, names) in said.lines().zip(between) {
        let Some((part, frames)) = line.split_once(' ') else { continue };
        let mut calls = Calls::new();
        // Readings of a worker's CPU clock are left out: weir reads it for a slow call to a guest, and all calls are
        // slow under strace.
        for name in names.iter().filter(|name| **name != "clock_gettime") {
            *calls.entry((*name).to_owned()).or_default() += 1;
        }
        parts.entry(part).or_default().entry(frames).or_default().push(calls);
    }
    let usual = |bursts: HashMap<&str, Vec<Calls>>| {
        let mut bursts = bursts.into_values().max_by_key(Vec::len).unwrap_or_default();
        bursts.sort_by_key(|calls| calls.values().sum::<usize>());
        let middle = bursts.len() / 2;
        bursts.into_iter().nth(middle).unwrap_or_default()
    };
    parts.into_iter().map(|(part, bursts)| (part.to_owned(), usual(bursts))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parts_calls_are_those_between_its_marks_in_most_bursts() {
        let trace = "openat(1) = 3\ngetppid() = 1\nwritev(1) = 1\ngetppid() = 1\nwrite(1, \"\") = 5\n\
            getppid() = 1\nread(1) = 1\nclock_gettime(2) = 0\nread(1) = -1 EAGAIN\n--- SIGCHLD ---\ngetppid() = 1\n\
            write(1) = 5\ngetppid() = 1\nread(1) = 1\ngetppid() = 1\ngetppid() = 1\nread(1) = 1\n\
            read(1) = -1 EAGAIN\ngetppid() = 1\nexit_group(0) = ?\n";
        let found = usual("send 1\ntake 2\ntake 1\ntake 2\n", trace);
        assert_eq!(found["send"], Calls::from([("writev".to_owned(), 1)]));
        assert_eq!(found["take"], Calls::from([("read".to_owned(), 2)]));
    }
}
