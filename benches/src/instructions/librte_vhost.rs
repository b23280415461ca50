//! Instructions of DPDK's vhost library to take a packet from one guest's ring and put it into another guest's.
//!
//! `dpdk-testpmd` under callgrind forwards packets between two vhost ports without reading or changing them. A second
//! instance plays both guests. Empty polls are counted first and subtracted.

use std::{fmt::Write as _, fs, path::Path, thread, time::Duration};

use weir_bed::{
    error::{Error, Result, check},
    packages::VALGRIND,
    process::run,
    switch::Switch,
    testpmd::{Rings, Testpmd, Traffic},
    workspace::Workspace,
};

use super::Row;
use crate::{CLIENT_CPU, SWITCH_CPU, peers::dpdk::TestpmdVhost};

/// Time for which empty polls are counted.
const IDLE: Duration = Duration::from_secs(1);

/// Time for which packets are counted.
const BUSY: Duration = Duration::from_secs(8);

/// Time for rings to run empty.
const REST: Duration = Duration::from_secs(2);

/// Frames per burst on either side.
const BURST: u32 = 32;

const DEQUEUE: &str = "rte_vhost_dequeue_burst";
const ENQUEUE: &str = "rte_vhost_enqueue_burst";

/// Rings, and weir's row for them.
const SHOWN: [(Rings, Row); 3] = [
    (Rings::Split, Row::new("split", "split", 64, BURST)),
    (Rings::Packed, Row::new("packed", "packed", 64, BURST)),
    (Rings::PackedInOrder, Row::new("packed, in order", "packed-in-order", 64, BURST)),
];

/// Number of calls of a function, with the instructions in it and its callees.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Calls {
    number: f64,
    instructions: f64,
}

/// Instructions per packet.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Cost {
    dequeue: f64,
    enqueue: f64,
}

/// Returns a table: instructions of the library and of all of weir, for a packet of 64 bytes.
pub fn table(workspace: &Workspace, program: &Path) -> Result<String> {
    let dir = workspace.target("instructions")?;
    let mut text = format!(
        "{:<18}{:>9}{:>9}{:>14}{:>10}{:>12}\n",
        "64 B x32", "dequeue", "enqueue", "librte_vhost", "all weir", "weir / it"
    );
    for (rings, row) in &SHOWN {
        let Cost { dequeue, enqueue } = cost(workspace, *rings, &dir)?;
        let (library, weir) = (dequeue + enqueue, row.count(program, &dir)?);
        let (name, ratio) = (row.name, weir / library);
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{name:<18}{dequeue:>9.1}{enqueue:>9.1}{library:>14.1}{weir:>10.1}{ratio:>12.2}"
        );
    }
    Ok(text)
}

fn cost(workspace: &Workspace, rings: Rings, dir: &Path) -> Result<Cost> {
    let out = dir.join("librte_vhost");
    let out_option = format!("--callgrind-out-file={}", out.display());
    let wrapper = [
        VALGRIND,
        "--tool=callgrind",
        // The threads take turns: the thread that answers a front end would otherwise wait for the polling thread.
        "--fair-sched=yes",
        "--instr-atstart=no",
        "--compress-strings=no",
        "--compress-pos=no",
        &out_option,
    ];
    let server = TestpmdVhost::start_wrapped(workspace, &wrapper, BURST, SWITCH_CPU)?;
    let (first, second) = (server.link(0)?, server.link(1)?);
    let traffic = Traffic { small_pages: true, rings, burst: BURST, ..Traffic::default() };
    let mut client = Testpmd::start([&first, &second], &traffic, CLIENT_CPU)?;
    let pid = server.pid().to_string();
    let control = |option: &[&str]| run(&[&["callgrind_control"], option, &[&pid]].concat());

    control(&["-i", "on"])?;
    thread::sleep(IDLE);
    control(&["-d"])?;
    client.circulate()?;
    thread::sleep(BUSY);
    client.pause()?;
    thread::sleep(REST);
    control(&["-i", "off"])?;
    let packets = client.received()?;
    control(&["-d"])?;
    let read = |number: u32| {
        let path = out.with_extension(number.to_string());
        fs::read_to_string(&path).map_err(Error::io("read", &path))
    };
    Cost::of(&read(1)?, &read(2)?, packets as f64)
}

impl Cost {
    /// Computes the cost from a profile of empty polls, and one with `packets`.
    fn of(idle: &str, busy: &str, packets: f64) -> Result<Self> {
        let (idle, dequeue) = (calls(idle, DEQUEUE), calls(busy, DEQUEUE));
        let enqueue = calls(busy, ENQUEUE);
        check(idle.number > 0.0 && enqueue.number > 0.0 && packets > 0.0, || {
            format!("callgrind saw {idle:?} and {enqueue:?}, and {packets} packets passed")
        })?;
        // Each burst with packets was enqueued at once.
        let found_nothing = dequeue.number - enqueue.number;
        let polls = found_nothing * idle.instructions / idle.number;
        let dequeue = (dequeue.instructions - polls) / packets;
        Ok(Self { dequeue, enqueue: enqueue.instructions / packets })
    }
}

/// Returns all calls of `function` in a profile without compressed names and positions.
fn calls(profile: &str, function: &str) -> Calls {
    let mut calls = Calls::default();
    let (mut callee, mut is_call) = ("", false);
    for line in profile.lines() {
        if let Some(name) = line.strip_prefix("cfn=") {
            callee = name;
        } else if let Some(rest) = line.strip_prefix("calls=") {
            is_call = callee == function;
            if is_call {
                calls.number += number(rest.split(' ').next());
            }
        } else if is_call {
            calls.instructions += number(line.split(' ').next_back());
            is_call = false;
        }
    }
    calls
}

fn number(text: Option<&str>) -> f64 {
    text.and_then(|text| text.parse().ok()).unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_one_function_are_summed_over_its_callers() {
        let profile = "fn=a\n0 3\ncfn=rte_vhost_dequeue_burst\ncalls=2 0 \n0 40\n0 7\n\
            cfn=b\ncalls=9 0 \n0 900\nfn=c\ncfn=rte_vhost_dequeue_burst\ncalls=1 0 \n0 20\n";
        assert_eq!(calls(profile, DEQUEUE), Calls { number: 3.0, instructions: 60.0 });
        assert_eq!(calls(profile, ENQUEUE), Calls::default());
    }

    #[test]
    fn polls_that_find_nothing_are_left_out() {
        let idle = "cfn=rte_vhost_dequeue_burst\ncalls=10 0 \n0 500\n";
        let busy = "cfn=rte_vhost_dequeue_burst\ncalls=6 0 \n0 1200\n\
            cfn=rte_vhost_enqueue_burst\ncalls=2 0 \n0 640\n";
        let cost = Cost::of(idle, busy, 10.0).expect("a cost");
        assert_eq!(cost, Cost { dequeue: 100.0, enqueue: 64.0 });
        assert!(Cost::of(busy, idle, 10.0).is_err());
    }
}
