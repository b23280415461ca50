//! Several workers and many interfaces: the source of the figures on dispatch and realizations.
//!
//! | file | option | contents |
//! |---|---|---|
//! | `two_workers.rs` | `--two-workers` | two workers against one, with many queues and with one |
//! | `reorder.rs` | `--reorder` | order of flows while queues and entries move |
//! | `vifs.rs` | `--vifs` | round trips and throughput of 1 to 32 interfaces (Raj 2006, Figs. 4 and 5) |
//! | `ping_pong.rs` | `--ping-pong` | latency between cores |
//! | `attach_detach.rs` | `--attach-detach` | resources left behind by interfaces that come and go |
//! | `crowd.rs` | | a switch with pairs of guests |

use std::io::Write;

use crate::args::BenchArgs;
use crate::steps::BenchError;

mod attach_detach;
mod crowd;
mod ping_pong;
mod reorder;
mod two_workers;
mod vifs;

/// Measures and prints the result.
type Measurement = fn(&BenchArgs, &mut dyn Write) -> Result<(), BenchError>;

/// Returns the measurement that the command line names, if it is one of this module.
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
