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
