//! Configuration problems as diagnostics that show the line.

use std::io;
use std::ops::Range;
use std::path::PathBuf;

use miette::{Diagnostic, LabeledSpan, NamedSource};
use thiserror::Error;
use weir_limits as limits;

use super::values::ValueError;

/// Why there is no configuration.
#[derive(Debug, Error, Diagnostic)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("cannot read {}", path.display())]
    #[diagnostic(help("name the file: `weir run FILE`, `weir check FILE`, `--config FILE`"))]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
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
#[error("{source_name}: {}", count(problems.len(), "problem"))]
pub struct InvalidConfig {
    source_name: String,
    #[source_code]
    text: NamedSource<String>,
    /// In the order of the text, at least one.
    #[related]
    pub problems: Vec<Problem>,
}

/// One thing that is wrong, and where.
#[derive(Debug, Clone, Error, Diagnostic)]
#[error("{message}")]
pub struct Problem {
    /// What is wrong, as a sentence without the place.
    pub message: String,
    #[label(collection)]
    labels: Vec<LabeledSpan>,
    /// What to do about it.
    #[help]
    pub help: Option<String>,
}

/// "1 problem", "2 problems".
pub(crate) fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

impl ConfigError {
    pub(super) fn invalid(source_name: &str, text: &str, mut problems: Vec<Problem>) -> Self {
        problems.sort_by_key(Problem::offset);
        Self::Invalid(Box::new(InvalidConfig {
            source_name: source_name.into(),
            text: NamedSource::new(source_name, text.into()).with_language("toml"),
            problems,
        }))
    }

    /// The problems found in the text; none if it could not be read.
    pub fn problems(&self) -> &[Problem] {
        match self {
            Self::Invalid(invalid) => &invalid.problems,
            Self::Read { .. } | Self::TooLarge { .. } => &[],
        }
    }
}

impl Problem {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), labels: Vec::new(), help: None }
    }

    /// A value of `key` in the table called `title` is bad.
    pub(super) fn bad_value(
        title: &str,
        key: &str,
        span: Range<usize>,
        error: &ValueError,
    ) -> Self {
        let key = if title.is_empty() { key.into() } else { format!("{title}.{key}") };
        Self { help: error.help(), ..Self::new(format!("bad value for `{key}`")) }
            .label(span, error.to_string())
    }

    /// Adds a place in the text, in bytes, with words beside it.
    pub(super) fn label(mut self, span: Range<usize>, words: impl Into<String>) -> Self {
        self.labels.push(LabeledSpan::new_with_span(Some(words.into()), span));
        self
    }

    pub(super) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    fn offset(&self) -> usize {
        self.labels.iter().map(LabeledSpan::offset).min().unwrap_or(0)
    }
}
