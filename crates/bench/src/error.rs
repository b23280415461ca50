//! The reasons for which there is no result.

use std::io;
use std::time::Duration;

use miette::Diagnostic;
use thiserror::Error;

use crate::rig::RigError;

/// The reason for which there is no result.
#[derive(Debug, Error, Diagnostic)]
pub enum BenchError {
    /// The switch or a guest failed.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Rig(#[from] RigError),
    /// A port could not be added.
    #[error("cannot add a simulated port")]
    Port(#[from] weir_fabric::PortError),
    /// No measurement matches `--filter`.
    #[error("no measurement or figure has {filter:?} in its name")]
    NoSuchFigure {
        /// The text given.
        filter: String,
        /// The existing names.
        #[help]
        help: String,
    },
    /// There was no traffic.
    #[error("{measurement}: no packet arrived in {} ms", time.as_millis())]
    #[diagnostic(help(
        "the machine may be busy with other work; \
                       try more --seconds"
    ))]
    NothingArrived {
        /// Name of the measurement.
        measurement: &'static str,
        /// Duration of the wait.
        time: Duration,
    },
    /// The switch refuses a request.
    #[error("the switch refused {request}: {reason}")]
    Refused {
        /// The request.
        request: &'static str,
        /// The switch's answer.
        reason: String,
    },
    /// The measurement needs two CPUs.
    #[error("this takes two CPUs, and this process may use one")]
    OneProcessor,
    /// Interrupted before the first result.
    #[error("interrupted before the first result")]
    Interrupted,
    /// Output failed.
    #[error("cannot write the output")]
    Output(#[from] io::Error),
}
