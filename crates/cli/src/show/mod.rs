//! Text for people, made from typed data: tables and lines.
//!
//! | file | content |
//! |---|---|
//! | `stats.rs` | counters, and rules of filters |
//! | `difference.rs` | the changes that a file would make to the running switch |
//! | `explain.rs` | an interface's policies, an uplink |
//! | `manager.rs` | the split of a latency budget, costs, agents; places of workers and virtual processors |
//! | `status.rs` | the whole switch on one screen |

use std::fmt;

use weir_switch::explain::Explanation;
use weir_switch::stats::{RuleStats, SwitchStats};

mod difference;
pub(crate) mod explain;
mod manager;
mod stats;
mod status;

pub use difference::{difference, saved};
pub use stats::{of_ports, vlan};
pub use status::{Status, status};

/// The table of `weir stats`, in lines of at most `width` characters if there is a width.
pub fn stats(of: &SwitchStats, width: Option<usize>) -> String {
    text(|f| stats::stats(f, of, width))
}

/// The output of `weir explain`, with the frames and calls of one second.
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
        Explanation::Placement(it) => manager::placement(f, it),
    })
}

/// The filter rules of named ports as a table; empty if there are none.
pub fn rules<'s>(of: impl IntoIterator<Item = (&'s str, &'s [RuleStats])>) -> String {
    text(|f| stats::rules(f, of))
}

fn text(write: impl FnOnce(&mut String) -> fmt::Result) -> String {
    let mut text = String::new();
    write(&mut text).expect("writing to a string cannot fail");
    text
}
