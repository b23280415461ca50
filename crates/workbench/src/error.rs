//! Problems with experiments and profiles, as diagnostics that show the line.

use std::io;
use std::ops::Range;
use std::path::PathBuf;

use miette::{Diagnostic, LabeledSpan, NamedSource};
use thiserror::Error;
use weir_bench::rig::RigError;
use weir_lab::host;
use weir_limits as limits;

/// The reason why the lab has no result.
#[derive(Debug, Error, Diagnostic)]
pub enum LabError {
    /// A file could not be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file exceeds the bound.
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
    /// The experiment exceeds the bounds; nothing has been run.
    #[error("{experiment} would take about {what}; at most {max} may be run")]
    #[diagnostic(help(
        "shorten `run` and `warm_up`, lower the rates, or remove seeds or values of a sweep"
    ))]
    TooLong {
        /// Name of the experiment.
        experiment: String,
        /// Amount and quantity.
        what: String,
        /// The bound.
        max: u64,
    },
    /// The simulations for a plan exceed the bounds. None has been run.
    #[error("planning {host} would take about {what}; at most {max} may be run")]
    #[diagnostic(help(
        "shorten `run` and `warm_up`, remove seeds, or name fewer of `execution`, `realization` and \
         `placement` in `[limits]`"
    ))]
    PlanTooLong {
        /// The host's file.
        host: String,
        /// Amount and quantity.
        what: String,
        /// The bound.
        max: u64,
    },
    /// No simulated plan meets every limit of a host's file. The nearest plan has been printed.
    #[error("no plan meets every limit of {host}; the nearest: {nearest}")]
    NoPlan {
        /// The host's file.
        host: String,
        /// Unmet limits of the nearest plan.
        nearest: String,
    },
    /// The CPUs of this machine cannot be read.
    #[error("cannot read this machine's processors")]
    #[diagnostic(help("write a `[topology]` with `sockets` and so on in place of \"this\""))]
    Topology(#[from] weir_topology::TopologyError),
    /// A run has failed.
    #[error("{experiment}, {point}, seed {seed}")]
    Run {
        /// Name of the experiment.
        experiment: String,
        /// Point of the experiment's sweeps.
        point: String,
        /// The seed.
        seed: u64,
        /// The error.
        source: Box<host::Error>,
    },
    /// A seed of the soak breaks an invariant. The details have been printed.
    #[error("seed {seed} breaks an invariant")]
    #[diagnostic(help("`weir lab soak --seed {seed}` plays it again"))]
    Broken {
        /// The seed.
        seed: u64,
    },
    /// This machine cannot measure an experiment.
    #[error("{experiment} cannot be measured here: {why}")]
    #[diagnostic(help("run it without `--measured` to simulate it"))]
    NotMeasured {
        /// Name of the experiment.
        experiment: String,
        /// Reason, for its first point.
        why: String,
    },
    /// The predictions are too far from the measurements. The table has been printed.
    #[error("predictions are off by {median} % in the median, by {worst} % at worst")]
    #[diagnostic(help("use a release build on an idle machine"))]
    Unlike {
        /// Median error (percent).
        median: f64,
        /// Largest error (percent).
        worst: f64,
    },
    /// The measurement was interrupted.
    #[error("interrupted before the measurement ended")]
    Interrupted,
    /// This machine cannot be measured.
    #[error("cannot measure this machine")]
    Calibrate(#[source] io::Error),
    /// The switch for a measurement is not available.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Rig(Box<RigError>),
    /// A file of a report cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Two experiments have the same output files.
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

/// An error in a text, with its place.
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

/// An invalid value, and its path.
pub struct Problem {
    /// Keys and numbers of elements, with dots between them.
    pub path: String,
    /// The fault, and what was expected.
    pub message: String,
}

impl Problem {
    /// Returns a problem of the value at `path`.
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: path.into(), message: message.into() }
    }
}

/// A text and its origin.
#[derive(Clone, Copy, Debug)]
pub struct Source<'t> {
    /// A file or an experiment's name.
    pub name: &'t str,
    /// The TOML text.
    pub text: &'t str,
}

impl Source<'_> {
    /// Returns an error about a range of the text (bytes), or about the whole text.
    pub fn invalid(self, message: &str, span: Option<Range<usize>>) -> LabError {
        let label = |span| LabeledSpan::new_with_span(Some("here".into()), span);
        LabError::Invalid(Box::new(Invalid {
            source_name: self.name.to_owned(),
            message: message.trim_end().replace('\n', "; "),
            text: NamedSource::new(self.name, self.text.to_owned()).with_language("toml"),
            labels: span.map(label).into_iter().collect(),
        }))
    }

    /// Converts an error of the TOML parser.
    pub fn toml(self, error: &toml::de::Error) -> LabError {
        self.invalid(error.message(), error.span())
    }
}
