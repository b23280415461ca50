//! A result of a check.

use std::borrow::Cow;

use serde::Serialize;

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

/// A finding: a fault, or something worth knowing.
pub(crate) fn finding(
    check: &'static str,
    subject: impl ToString,
    what: impl Into<String>,
    known_by: impl Into<String>,
    mend: impl Into<String>,
) -> Finding {
    Finding {
        check,
        wrong: true,
        subject: subject.to_string(),
        what: what.into(),
        known_by: known_by.into(),
        mend: mend.into().into(),
    }
}

pub(crate) fn note(found: Finding) -> Finding {
    Finding { wrong: false, ..found }
}
