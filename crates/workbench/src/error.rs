//! Problems with experiments and profiles, as diagnostics that show the line.

use std::io;
use std::ops::Range;
use std::path::PathBuf;

use miette::{Diagnostic, LabeledSpan, NamedSource};
use thiserror::Error;
use weir_bench::rig::RigError;
use weir_lab::host;
use weir_limits as limits;

/// Why the lab has no result.
#[derive(Debug, Error, Diagnostic)]
pub enum LabError {
    /// A file could not be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A file is larger than any experiment.
    #[error("{} is larger than {} bytes", path.display(), limits::CONFIG_BYTES_MAX)]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// There is no such experiment.
    #[error("there is no experiment called `{name}`")]
    #[diagnostic(help("`weir lab list` lists them; a file of your own is named with its `.toml`"))]
    Unknown {
        /// The name.
        name: String,
    },
    /// The text has a problem.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Invalid(#[from] Box<Invalid>),
    /// It cannot finish within bounds; nothing has been run.
    #[error("{experiment} would take about {what}; at most {max} may be run")]
    #[diagnostic(help(
        "shorten `run` and `warm_up`, lower the rates, or remove seeds or values of a sweep"
    ))]
    TooLong {
        /// Which experiment.
        experiment: String,
        /// How much of what.
        what: String,
        /// The bound.
        max: u64,
    },
    /// What would have to be played for a plan cannot finish within bounds; nothing has been.
    #[error("planning {host} would take about {what}; at most {max} may be run")]
    #[diagnostic(help(
        "shorten `run` and `warm_up`, remove seeds, or name fewer of `execution`, `realization` and \
         `placement` in `[limits]`"
    ))]
    PlanTooLong {
        /// The host's file.
        host: String,
        /// How much of what.
        what: String,
        /// The bound.
        max: u64,
    },
    /// Nothing that was played does all that a host's file asks for; the nearest has been printed.
    #[error("no plan meets every limit of {host}; the nearest: {nearest}")]
    NoPlan {
        /// The host's file.
        host: String,
        /// What is wrong with the one that comes nearest.
        nearest: String,
    },
    /// This machine's processors cannot be read.
    #[error("cannot read this machine's processors")]
    #[diagnostic(help("write a `[topology]` with `sockets` and so on in place of \"this\""))]
    Topology(#[from] weir_topology::TopologyError),
    /// A run has failed.
    #[error("{experiment}, {point}, seed {seed}")]
    Run {
        /// Which experiment.
        experiment: String,
        /// Where in its sweeps.
        point: String,
        /// With which seed.
        seed: u64,
        /// What happened.
        source: Box<host::Error>,
    },
    /// A seed of the soak breaks an invariant; what is known of it has been printed.
    #[error("seed {seed} breaks an invariant")]
    #[diagnostic(help("`weir lab soak --seed {seed}` plays it again"))]
    Broken {
        /// The seed.
        seed: u64,
    },
    /// An experiment was to be measured, and cannot be here.
    #[error("{experiment} cannot be measured here: {why}")]
    #[diagnostic(help("run it without `--measured` to simulate it"))]
    NotMeasured {
        /// Which.
        experiment: String,
        /// Why not: of its first point.
        why: String,
    },
    /// What was predicted is too far from what was measured; the table has been printed.
    #[error("predictions are off by {median} % in the median, by {worst} % at worst")]
    #[diagnostic(help("use a release build on an idle machine"))]
    Unlike {
        /// Median error (percent).
        median: f64,
        /// Worst (percent).
        worst: f64,
    },
    /// Interrupted before all was measured.
    #[error("interrupted before the measurement ended")]
    Interrupted,
    /// This machine cannot be measured.
    #[error("cannot measure this machine")]
    Calibrate(#[source] io::Error),
    /// A switch to be measured cannot be had.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Rig(Box<RigError>),
    /// A file of a report cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Two experiments would be written to the same files.
    #[error("two experiments are called `{name}`, so one's files would overwrite the other's")]
    SameName {
        /// The name.
        name: String,
    },
    /// The output cannot be written.
    #[error("cannot write the output")]
    Output(#[from] io::Error),
}

impl From<RigError> for LabError {
    fn from(error: RigError) -> Self {
        Self::Rig(Box::new(error))
    }
}

/// One thing that is wrong with a text, and where.
#[derive(Debug, Error, Diagnostic)]
#[error("{source_name}: {message}")]
pub struct Invalid {
    source_name: String,
    message: String,
    #[source_code]
    text: NamedSource<String>,
    #[label(collection)]
    labels: Vec<LabeledSpan>,
}

/// A value that makes no sense, and the path to it.
pub struct Problem {
    /// Keys and numbers of elements, with dots between them.
    pub path: String,
    /// What is wrong, and what was expected.
    pub message: String,
}

impl Problem {
    /// `message` about what stands at `path`.
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: path.into(), message: message.into() }
    }
}

/// A text and where it is from.
#[derive(Clone, Copy, Debug)]
pub struct Source<'t> {
    /// A file or an experiment's name.
    pub name: &'t str,
    /// Its TOML.
    pub text: &'t str,
}

impl Source<'_> {
    /// `message` about a place in it, in bytes, or about all of it.
    pub fn invalid(self, message: &str, span: Option<Range<usize>>) -> LabError {
        let label = |span| LabeledSpan::new_with_span(Some("here".into()), span);
        LabError::Invalid(Box::new(Invalid {
            source_name: self.name.to_owned(),
            message: message.trim_end().replace('\n', "; "),
            text: NamedSource::new(self.name, self.text.to_owned()).with_language("toml"),
            labels: span.map(label).into_iter().collect(),
        }))
    }

    /// What the TOML parser says.
    pub fn toml(self, error: &toml::de::Error) -> LabError {
        self.invalid(error.message(), error.span())
    }
}
