//! The client's side: one request, one answer, blocking.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use miette::Diagnostic;
use thiserror::Error;
use weir_config::PortName;
use weir_config::reload::Difference;
use weir_limits as limits;

use super::line::{LineError, LineReader, write_line};
use super::protocol::{ReloadOutcome, Request, Response, VifStatus};
use crate::explain::Explanation;
use crate::stats::SwitchStats;

const TIMEOUT: Duration = Duration::from_secs(limits::CONTROL_TIMEOUT_SECS);
const RELOAD_TIMEOUT: Duration = Duration::from_secs(limits::RELOAD_TIMEOUT_SECS);

/// Why a request has no good answer.
#[derive(Debug, Error, Diagnostic)]
pub enum ClientError {
    /// Nobody serves the socket.
    #[error("no weir answers on {}", path.display())]
    #[diagnostic(help(
        "is weir running? start it with `weir run`, or name its socket with --control"
    ))]
    NotRunning {
        /// The control socket.
        path: PathBuf,
    },
    /// The socket belongs to somebody else.
    #[error("not allowed to use {}", path.display())]
    #[diagnostic(help("only the user who runs weir, and root, may control it"))]
    NotAllowed {
        /// The control socket.
        path: PathBuf,
    },
    /// The socket failed, or the answer did not come.
    #[error("no answer from weir on {}: {reason}", path.display())]
    NoAnswer {
        /// The control socket.
        path: PathBuf,
        /// What happened.
        reason: String,
    },
    /// The answer is none of this version's.
    #[error("weir on {} gave an answer that this version does not know", path.display())]
    #[diagnostic(help("use the same version for the switch and for the command"))]
    UnknownAnswer {
        /// The control socket.
        path: PathBuf,
    },
    /// weir refused.
    #[error("{message}")]
    Refused {
        /// Why.
        message: String,
        /// What to do about it.
        #[help]
        help: Option<String>,
    },
}

/// A connection to a running weir.
#[derive(Debug)]
pub struct ControlClient {
    stream: UnixStream,
    path: PathBuf,
}

impl ControlClient {
    /// Connects to the control socket at `path`.
    ///
    /// # Errors
    /// [`ClientError::NotRunning`], [`ClientError::NotAllowed`], [`ClientError::NoAnswer`]
    pub fn connect(path: &Path) -> Result<Self, ClientError> {
        match UnixStream::connect(path) {
            Ok(stream) => Ok(Self { stream, path: path.into() }),
            Err(error) => Err(match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                    ClientError::NotRunning { path: path.into() }
                }
                io::ErrorKind::PermissionDenied => ClientError::NotAllowed { path: path.into() },
                _ => ClientError::NoAnswer { path: path.into(), reason: error.to_string() },
            }),
        }
    }

    /// Sends `request` and waits for its answer. [`Response::Error`] becomes
    /// [`ClientError::Refused`].
    ///
    /// # Errors
    /// All of [`ClientError`] but those of [`ControlClient::connect`].
    pub fn request(&mut self, request: &Request) -> Result<Response, ClientError> {
        self.request_within(request, TIMEOUT)
    }

    fn request_within(
        &mut self,
        request: &Request,
        timeout: Duration,
    ) -> Result<Response, ClientError> {
        let no_answer = |reason: String| ClientError::NoAnswer { path: self.path.clone(), reason };
        let line = serde_json::to_vec(request).map_err(|error| no_answer(error.to_string()))?;
        // When this fails because the server closed the socket, its answer says why: read it.
        let written = write_line(&self.stream, line, TIMEOUT);
        let answer = LineReader::new(&self.stream, limits::CONTROL_RESPONSE_BYTES_MAX)
            .next_line(timeout)
            .and_then(|line| line.ok_or(LineError::Truncated))
            .map_err(|error| match &written {
                Ok(()) => no_answer(error.to_string()),
                Err(write_error) => no_answer(write_error.to_string()),
            })?;
        match serde_json::from_slice(&answer) {
            Ok(Response::Error { message, help }) => Err(ClientError::Refused { message, help }),
            Ok(response) => Ok(response),
            Err(_) => Err(self.unknown_answer()),
        }
    }

    /// Sends a request that is answered with [`Response::Ok`].
    pub fn request_ok(&mut self, request: &Request) -> Result<(), ClientError> {
        match self.request(request)? {
            Response::Ok => Ok(()),
            _ => Err(self.unknown_answer()),
        }
    }

    /// Sends a request that is answered with [`Response::Ok`] or [`Response::Noted`], and returns the note.
    pub fn request_noted(&mut self, request: &Request) -> Result<Option<String>, ClientError> {
        match self.request(request)? {
            Response::Ok => Ok(None),
            Response::Noted { note } => Ok(Some(note)),
            _ => Err(self.unknown_answer()),
        }
    }

    /// The interfaces of the switch.
    pub fn vifs(&mut self) -> Result<Vec<VifStatus>, ClientError> {
        match self.request(&Request::VifList)? {
            Response::Vifs { vifs } => Ok(vifs),
            _ => Err(self.unknown_answer()),
        }
    }

    /// What the policies of the interface `name` do, an uplink does, or where workers run.
    pub fn explain(&mut self, name: &PortName) -> Result<Explanation, ClientError> {
        match self.request(&Request::VifExplain { name: name.clone() })? {
            Response::Explained { explanation } => Ok(Explanation::Vif(explanation)),
            Response::UplinkExplained { explanation } => {
                Ok(Explanation::Uplink(Box::new(explanation)))
            }
            Response::PlacementExplained { explanation } => Ok(Explanation::Placement(explanation)),
            _ => Err(self.unknown_answer()),
        }
    }

    /// The file that weir was started with, if it was.
    ///
    /// # Errors
    /// As [`ControlClient::request`].
    pub fn config_file(&mut self) -> Result<Option<PathBuf>, ClientError> {
        match self.request(&Request::ConfigFile)? {
            Response::ConfigFile { path } => Ok(path),
            _ => Err(self.unknown_answer()),
        }
    }

    /// What a configuration of this text would change.
    ///
    /// # Errors
    /// As [`ControlClient::request`].
    pub fn diff(&mut self, text: String) -> Result<Difference, ClientError> {
        match self.request(&Request::Diff { text })? {
            Response::Difference { difference } => Ok(*difference),
            _ => Err(self.unknown_answer()),
        }
    }

    /// Changes the switch to what a configuration of this text says; `partly`, where not all of it can be done.
    ///
    /// # Errors
    /// As [`ControlClient::request`].
    pub fn reload(
        &mut self,
        text: String,
        partly: bool,
    ) -> Result<(Difference, ReloadOutcome), ClientError> {
        match self.request_within(&Request::Reload { text, partly }, RELOAD_TIMEOUT)? {
            Response::Reloaded { difference, outcome } => Ok((*difference, outcome)),
            _ => Err(self.unknown_answer()),
        }
    }

    /// The counters of the switch.
    pub fn stats(&mut self) -> Result<SwitchStats, ClientError> {
        match self.request(&Request::Stats)? {
            Response::Stats { stats } => Ok(*stats),
            _ => Err(self.unknown_answer()),
        }
    }

    fn unknown_answer(&self) -> ClientError {
        ClientError::UnknownAnswer { path: self.path.clone() }
    }
}
