//! `weir doctor`: the faults of the host and the switch, the evidence, and the commands that repair them.
//!
//! | file | what |
//! |---|---|
//! | [`Facts`] | all facts that are read, as data |
//! | `host` | reads the host's state |
//! | `checks` | one function for each fault, from facts to findings |
//! | `reasons` | the reasons why an interface stopped, in words that help |

#![forbid(unsafe_code)]

mod checks;
mod facts;
mod host;
pub mod qemu;
mod reasons;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use serde::Serialize;

pub use checks::{CHECKS, Joined};
pub use facts::{Facts, Host, Link, Permissions, Qemu, SocketFile};
pub use host::{joined_by_a_bridge, look_at_host};

/// A result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The name of the check in the guide.
    pub check: &'static str,
    /// True if something does not work as it should; otherwise the finding is only worth knowing.
    pub wrong: bool,
    /// The interface or uplink, or `host` or `switch`.
    pub subject: String,
    /// The fault, in plain words.
    pub what: String,
    /// The evidence.
    pub known_by: String,
    /// The remedy, a command if there is one.
    pub mend: Cow<'static, str>,
}

/// A check: its name, under which the guide describes it, and its function.
pub struct Check {
    /// The name.
    pub name: &'static str,
    /// Looks for the fault in the facts.
    pub find: fn(&Facts, &mut Vec<Finding>),
}

/// The findings of all checks, faults first.
pub fn examine(facts: &Facts) -> Vec<Finding> {
    let mut found = Vec::new();
    for check in CHECKS {
        (check.find)(facts, &mut found);
    }
    found.sort_by_key(|finding| !finding.wrong);
    found
}

/// The findings as lines.
pub fn lines(found: &[Finding]) -> String {
    let mut text = String::new();
    for finding in found {
        let Finding { check, wrong, subject, what, known_by, mend } = finding;
        let mark = if *wrong { "wrong" } else { "note" };
        text += &format!(
            "{mark}: {subject}: {what}\n  known by: {known_by}\n  mend: {mend}\n  check: {check}\n"
        );
    }
    text
}
