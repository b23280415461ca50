//! `weir doctor`: what is wrong with the host and the switch, how that is known, and the command that mends it.
//!
//! | file | what |
//! |---|---|
//! | [`Facts`] | all that is looked at, as data |
//! | `host` | looks at the host |
//! | `checks` | one function for each fault, from facts to findings |
//! | `reasons` | why an interface stopped, in words that help |

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

/// Something that one check has found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The check, as the guide calls it.
    pub check: &'static str,
    /// Whether something does not work as it should; otherwise something is worth knowing.
    pub wrong: bool,
    /// The interface, the uplink, or `host` or `switch`.
    pub subject: String,
    /// What is wrong, in plain words.
    pub what: String,
    /// What says so.
    pub known_by: String,
    /// What to do, a command where there is one.
    pub mend: Cow<'static, str>,
}

/// A check: a name that the guide has too, and what it finds.
pub struct Check {
    /// The name.
    pub name: &'static str,
    /// Looks for the fault in the facts.
    pub find: fn(&Facts, &mut Vec<Finding>),
}

/// Everything that all checks find, what is wrong first.
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
