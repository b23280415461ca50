//! Several workers, many interfaces: what the figures of dispatch and of realizations come from.
//!
//! | file | option | what |
//! |---|---|---|
//! | `two_workers.rs` | `--two-workers` | what two workers do against one, at many queues and at one |
//! | `reorder.rs` | `--reorder` | flows stay in order while all that can move moves |
//! | `vifs.rs` | `--vifs` | round trips and throughput of 1 to 32 interfaces (Raj 2006, Figs. 4 and 5) |
//! | `ping_pong.rs` | `--ping-pong` | how fast cores answer each other |
//! | `attach_detach.rs` | `--attach-detach` | what interfaces that come and go leave behind |
//! | `crowd.rs` | | a switch with pairs of guests |

use std::io::Write;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::BenchError;
use crate::args::BenchArgs;

mod attach_detach;
mod crowd;
mod ping_pong;
mod reorder;
mod two_workers;
mod vifs;

/// Measures, and prints the result.
type Measurement = fn(&BenchArgs, &mut dyn Write) -> Result<(), BenchError>;

/// The one that the command line names, if it names one of these.
pub(super) fn asked_for(args: &BenchArgs) -> Option<Measurement> {
    let all: [(bool, Measurement); 5] = [
        (args.two_workers, two_workers::run),
        (args.reorder, reorder::run),
        (args.vifs, vifs::run),
        (args.ping_pong, ping_pong::run),
        (args.attach_detach, attach_detach::run),
    ];
    all.into_iter().find(|(asked, _)| *asked).map(|(_, measurement)| measurement)
}

/// Two processors on which this process may run: the first and the last; `None` if there is but one.
fn two_cpus() -> Option<[usize; 2]> {
    let set = sched_getaffinity(None).ok()?;
    let mut cpus = (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu));
    Some([cpus.next()?, cpus.next_back()?])
}

/// Holds a thread, or this one, on a processor; one that may not be held runs where it likes.
fn pin(thread: Option<u32>, cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    let thread = thread.map(|id| i32::try_from(id).ok().and_then(Pid::from_raw));
    if !matches!(thread, Some(None)) {
        let _ = sched_setaffinity(thread.flatten(), &set);
    }
}
