//! The results of one front end, step by step.

use std::collections::BTreeMap;

use weir_bed::error::{Result, Tally};

/// The steps of a front end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// The guest has a carrier, weir reports `running`, and the cell's features are negotiated.
    Link,
    /// Short echo requests in both directions.
    Ping,
    /// Echo requests of 65,000 bytes.
    Fragments,
    /// TCP streams in both directions.
    Tcp,
    /// All earlier steps again after SIGKILL of weir.
    Reconnect,
    /// All dropped frames have an explanation.
    Drops,
}

impl Step {
    /// All steps in the order of the table's columns.
    pub const ALL: [Self; 6] =
        [Self::Link, Self::Ping, Self::Fragments, Self::Tcp, Self::Reconnect, Self::Drops];

    /// The heading of the step's column.
    pub fn name(self) -> &'static str {
        match self {
            Self::Link => "link",
            Self::Ping => "ping",
            Self::Fragments => "65,000 B",
            Self::Tcp => "TCP",
            Self::Reconnect => "reconnect",
            Self::Drops => "drops",
        }
    }
}

/// The result of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// The step passed, with a short text for the table.
    Held(String),
    /// The step does not apply to the front end, with the reason.
    LeftOut(&'static str),
    /// The step failed.
    Failed,
}

/// The results so far.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// The front end's version, if the cell knows it.
    pub version: Option<String>,
    found: BTreeMap<Step, Found>,
}

impl Record {
    /// Runs `step`, which returns the text for the table.
    pub fn step(&mut self, step: Step, run: impl FnOnce() -> Result<String>) -> Result<()> {
        let result = run();
        let found = result.as_ref().map_or(Found::Failed, |word| Found::Held(word.clone()));
        self.found.insert(step, found);
        result.map(drop)
    }

    /// Records that this front end has no such step.
    pub fn leave_out(&mut self, step: Step, why: &'static str) {
        self.found.insert(step, Found::LeftOut(why));
    }

    /// The result of `step`, if it was reached.
    pub fn of(&self, step: Step) -> Option<&Found> {
        self.found.get(&step)
    }

    /// The first step that was neither tried nor left out.
    pub fn missing(&self) -> Option<Step> {
        Step::ALL.into_iter().find(|step| !self.found.contains_key(step))
    }
}

/// The result of a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every step of the front end passed.
    Works,
    /// The front end cannot work, and weir gave this reason.
    Refused(String),
    /// The cell cannot be tried on this machine, with the reason.
    Skipped(String),
    /// A step failed or could not be carried out.
    Failed(String),
}

impl Verdict {
    /// The verdict in one word.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Works => "works",
            Self::Refused(_) => "refused",
            Self::Skipped(_) => "skipped",
            Self::Failed(_) => "FAILED",
        }
    }

    /// The reason beside that word, on one line.
    pub fn why(&self) -> Option<&str> {
        match self {
            Self::Works => None,
            Self::Refused(why) | Self::Skipped(why) | Self::Failed(why) => {
                why.lines().find(|line| !line.trim().is_empty())
            }
        }
    }

    /// Counts a front end as passed if it works or is refused as expected.
    pub fn tally(&self, cell: &str) -> Tally {
        match self {
            Self::Works | Self::Refused(_) => Tally::passed(),
            Self::Skipped(_) => Tally::skipped(),
            Self::Failed(why) => Tally::failed(format!("front end {cell}: {why}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_bed::error::Error;

    #[test]
    fn a_step_that_fails_and_one_that_is_not_reached_are_told_apart() {
        let mut record = Record::default();
        record.step(Step::Link, || Ok("packed".into())).unwrap();
        record.leave_out(Step::Ping, "no IP");
        assert!(record.step(Step::Fragments, || Err(Error::Check("lost".into()))).is_err());
        assert_eq!(record.of(Step::Link), Some(&Found::Held("packed".into())));
        assert_eq!(record.of(Step::Ping), Some(&Found::LeftOut("no IP")));
        assert_eq!(record.of(Step::Fragments), Some(&Found::Failed));
        assert_eq!(record.missing(), Some(Step::Tcp));
    }
}
