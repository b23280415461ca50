//! What was found of one front end, step by step.

use std::collections::BTreeMap;

use weir_bed::{error::Result, tally::Tally};

/// What each front end has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// The guest has a carrier, weir says `running`, and the features are those that the cell is about.
    Link,
    /// Short echo requests, both ways.
    Ping,
    /// Echo requests of 65,000 bytes.
    Fragments,
    /// TCP streams, both ways.
    Tcp,
    /// All of it again after SIGKILL of weir.
    Reconnect,
    /// No frame was dropped that is not explained.
    Drops,
}

impl Step {
    /// In the order of the table's columns.
    pub const ALL: [Self; 6] =
        [Self::Link, Self::Ping, Self::Fragments, Self::Tcp, Self::Reconnect, Self::Drops];

    /// The head of its column.
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

/// What came of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// It held; a word about it.
    Held(String),
    /// The front end has nothing of the kind, and why.
    LeftOut(&'static str),
    /// It did not hold.
    Failed,
}

/// The steps so far.
#[derive(Clone, Debug, Default)]
pub struct Record {
    found: BTreeMap<Step, Found>,
}

impl Record {
    /// Tries `step`, which says what is to stand in the table.
    pub fn step(&mut self, step: Step, run: impl FnOnce() -> Result<String>) -> Result<()> {
        let result = run();
        let found = result.as_ref().map_or(Found::Failed, |word| Found::Held(word.clone()));
        self.found.insert(step, found);
        result.map(drop)
    }

    /// This front end has no such step.
    pub fn leave_out(&mut self, step: Step, why: &'static str) {
        self.found.insert(step, Found::LeftOut(why));
    }

    /// What came of `step`, if it was reached.
    pub fn of(&self, step: Step) -> Option<&Found> {
        self.found.get(&step)
    }

    /// The first step that nobody tried or left out.
    pub fn missing(&self) -> Option<Step> {
        Step::ALL.into_iter().find(|step| !self.found.contains_key(step))
    }
}

/// How a cell ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every step that the front end has held.
    Works,
    /// It cannot work, and weir said this of it.
    Refused(String),
    /// It cannot be tried here, and why.
    Skipped(String),
    /// A step did not hold, or could not be carried out.
    Failed(String),
}

impl Verdict {
    /// One word of it.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Works => "works",
            Self::Refused(_) => "refused",
            Self::Skipped(_) => "skipped",
            Self::Failed(_) => "FAILED",
        }
    }

    /// What is to be said beside that word, on one line.
    pub fn why(&self) -> Option<&str> {
        match self {
            Self::Works => None,
            Self::Refused(why) | Self::Skipped(why) | Self::Failed(why) => {
                why.lines().find(|line| !line.trim().is_empty())
            }
        }
    }

    /// A front end that works or is refused as it should be has passed.
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
