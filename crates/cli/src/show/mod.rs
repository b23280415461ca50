//! What people read of typed data: tables and lines.
//!
//! | file | of what |
//! |---|---|
//! | `stats.rs` | counters, and rules of filters |
//! | `difference.rs` | what a file would change of the running switch |
//! | `explain.rs` | an interface's policies, an uplink |
//! | `manager.rs` | the split of a latency budget, costs, agents |
//! | `status.rs` | the whole switch on one screen |
//! | `placement.rs` | where workers and virtual processors run |

use std::fmt;

use weir_switch::explain::Explanation;
use weir_switch::stats::{RuleStats, SwitchStats};

mod difference;
mod explain;
mod manager;
mod placement;
mod stats;
mod status;

pub use difference::difference;
pub use stats::of_ports;
pub use status::{Status, status};

/// The table of `weir stats`.
pub fn stats(of: &SwitchStats) -> String {
    text(|f| stats::stats(f, of))
}

/// What `weir explain` says, about frames and calls of one second.
pub fn explanation(of: &Explanation) -> String {
    text(|f| match of {
        Explanation::Vif(it) => {
            explain::verdict(f, it.name.as_str(), &it.verdict())?;
            explain::vif(f, it)
        }
        Explanation::Uplink(it) => {
            explain::verdict(f, it.name.as_str(), &it.verdict())?;
            explain::uplink(f, it)
        }
        Explanation::Overlay(it) => explain::overlay(f, it),
        Explanation::Placement(it) => placement::placement(f, it),
    })
}

/// The filter rules of ports with their names as a table; nothing if there are none.
pub fn rules<'s>(of: impl IntoIterator<Item = (&'s str, &'s [RuleStats])>) -> String {
    text(|f| stats::rules(f, of))
}

fn text(write: impl FnOnce(&mut String) -> fmt::Result) -> String {
    let mut text = String::new();
    write(&mut text).expect("writing to a string cannot fail");
    text
}
