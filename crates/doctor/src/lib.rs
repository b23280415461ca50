//! `weir doctor`: the faults of the host and the switch, the evidence, and the commands that repair them.
//!
//! | file | what |
//! |---|---|
//! | [`Facts`], [`Finding`] | all facts that are read, and all that is found, as data |
//! | `host` | reads the host's state |
//! | `checks` | one function for each fault, from facts to findings |
//! | [`bridging`] | a bridge for the host's card, with a way back |
//! | `reasons` | the reasons why an interface stopped, in words that help |

#![forbid(unsafe_code)]

pub mod bridging;
mod checks;
mod facts;
mod host;
pub mod qemu;
mod reasons;
#[cfg(test)]
mod tests;

pub use checks::{CHECKS, Check};
pub use facts::{BadFile, Closed, Facts, Finding, Host, Link, Permissions, Qemu, SocketFile};
pub use host::{Joined, joined_by_a_bridge, look_at_host, look_at_socket, watched};

/// The findings of all checks, faults first.
pub fn examine(facts: &Facts) -> Vec<Finding> {
    let mut found = Vec::new();
    for check in CHECKS {
        let others = found.len();
        (check.find)(facts, &mut found);
        found.iter_mut().skip(others).for_each(|it| it.check = check.name);
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
