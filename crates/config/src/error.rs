//! Rules that do not hold, and configuration problems as diagnostics that show the line.

use std::io;
use std::ops::Range;
use std::path::PathBuf;

use miette::{Diagnostic, LabeledSpan, NamedSource};
use thiserror::Error;
use weir_limits as limits;
use weir_text::count;
use weir_text::plain::{plain_in_place, plain_short};

use super::values::ValueError;

/// The reason why there is no configuration.
#[derive(Debug, Error, Diagnostic)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("cannot read {}", path.display())]
    #[diagnostic(help(
        "name a file that is there: `weir check FILE`, `weir run FILE`, `weir qemu-args --config FILE`"
    ))]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The path is not a regular file: a pipe or a device could keep weir waiting for ever.
    #[error("{} is not a regular file", path.display())]
    #[diagnostic(help("write the configuration to a file and name that"))]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The file is larger than any configuration.
    #[error("{} is larger than {} bytes", path.display(), limits::CONFIG_BYTES_MAX)]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// The text has problems.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Invalid(Box<InvalidConfig>),
}

/// A configuration's text with everything that is wrong with it.
#[derive(Debug, Error, Diagnostic)]
#[error("{source_name}: {found}")]
pub struct InvalidConfig {
    source_name: String,
    /// The number of problems, in words.
    found: String,
    #[source_code]
    text: NamedSource<String>,
    /// The problems in the order of the text, at least one.
    #[related]
    pub problems: Vec<Problem>,
    /// The number of problems that are not shown, in words.
    #[help]
    more: Option<String>,
}

/// The place of a table's header.
pub(super) const HEADER: &str = "";

/// A rule that does not hold.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{reason}")]
pub struct Fault {
    /// The keys, all of one table. The first is the one to change.
    pub keys: [&'static str; 2],
    /// The reason why the keys cannot have these values.
    pub reason: String,
    /// The remedy.
    pub help: String,
}

/// One problem, with its places in the text.
#[derive(Debug, Clone, Error, Diagnostic)]
#[error("{message}")]
pub struct Problem {
    /// The problem as a sentence, without its places.
    pub message: String,
    #[label(collection)]
    labels: Vec<LabeledSpan>,
    /// Advice on what to do about the problem.
    #[help]
    pub help: Option<String>,
}

impl ConfigError {
    pub(super) fn invalid(source_name: &str, text: &str, mut problems: Vec<Problem>) -> Self {
        problems.sort_by_key(Problem::offset);
        let all = problems.len();
        let at_least = if all >= limits::CONFIG_PROBLEMS_MAX { "at least " } else { "" };
        problems.truncate(limits::CONFIG_PROBLEMS_SHOWN_MAX);
        problems.iter_mut().for_each(|problem| problem.name_places_of_long_lines(text));
        let more = all - problems.len();
        let source_name = plain_short(source_name);
        let text = plain_in_place(text).into_owned();
        Self::Invalid(Box::new(InvalidConfig {
            found: format!("{at_least}{}", count(all, "problem")),
            text: NamedSource::new(&source_name, text).with_language("toml"),
            source_name,
            problems,
            more: (more > 0).then(|| format!("… and {more} more")),
        }))
    }

    /// The problems found in the text, one a line, each with the number of its line in the text.
    pub fn lines(&self) -> Vec<String> {
        let Self::Invalid(invalid) = self else { return Vec::new() };
        let text = invalid.text.inner();
        let line_of = |problem: &Problem| {
            text.get(..problem.offset()).unwrap_or(text).matches('\n').count() + 1
        };
        let line = |problem: &Problem| format!("line {}: {}", line_of(problem), problem.message);
        invalid.problems.iter().map(line).collect()
    }

    /// The problems found in the text; none if it could not be read.
    pub fn problems(&self) -> &[Problem] {
        match self {
            Self::Invalid(invalid) => &invalid.problems,
            Self::Read { .. } | Self::NotAFile { .. } | Self::TooLarge { .. } => &[],
        }
    }
}

impl Problem {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self { message: plain_short(&message.into()), labels: Vec::new(), help: None }
    }

    /// A problem with the value of `key` in the table called `title`.
    pub(super) fn bad_value(
        title: &str,
        key: &str,
        span: Range<usize>,
        error: &ValueError,
    ) -> Self {
        let key = if title.is_empty() { key.into() } else { format!("{title}.{key}") };
        let help = error.help().map(|help| plain_short(&help));
        Self { help, ..Self::new(format!("bad value for `{key}`")) }.label(span, error.to_string())
    }

    /// Adds a place in the text, in bytes, with words beside it.
    pub(super) fn label(mut self, span: Range<usize>, words: impl Into<String>) -> Self {
        if self.labels.len() < limits::CONFIG_PLACES_SHOWN_MAX {
            let words = plain_short(&words.into());
            self.labels.push(LabeledSpan::new_with_span(Some(words), span));
        }
        self
    }

    pub(super) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(plain_short(&help.into()));
        self
    }

    /// Names the places in the message if one is on a line that is too long to be shown.
    fn name_places_of_long_lines(&mut self, text: &str) {
        let line_of = |label: &LabeledSpan| {
            let before = text.get(..label.offset()).unwrap_or(text);
            let begin = before.rfind('\n').map_or(0, |at| at + 1);
            let len = text.get(begin..).and_then(|from| from.find('\n'));
            let number = before.matches('\n').count() + 1;
            (number, label.offset() - begin + 1, len.unwrap_or(text.len() - begin))
        };
        let is_long =
            |label: &LabeledSpan| line_of(label).2.max(label.len()) > limits::CONFIG_LINE_SHOWN_MAX;
        if !self.labels.iter().any(is_long) {
            return;
        }
        for label in std::mem::take(&mut self.labels) {
            let (line, column, _) = line_of(&label);
            let words = label.label().unwrap_or_default();
            self.message = format!("{}; line {line}, byte {column}: {words}", self.message);
        }
    }

    /// A problem with words of a command line, where values have no quotes or brackets.
    pub(super) fn of_command_line(mut self) -> Self {
        for label in &mut self.labels {
            let words = label.label().unwrap_or_default();
            let bare = words.replace(" in quotes", "").replace(" in brackets", "");
            if bare != words {
                label.set_label(Some(bare.replace(['"', '[', ']'], "")));
            }
        }
        self
    }

    fn offset(&self) -> usize {
        self.labels.iter().map(LabeledSpan::offset).min().unwrap_or(0)
    }
}
