//! The output of a command, or the reason why it failed.

use std::io::{self, Write};

use miette::Diagnostic;
use thiserror::Error;
use weir_api::ClientError;
use weir_config::{ConfigError, PortName, ValueError};
use weir_switch::stats::OtherStart;

use crate::vm_args::VmArgsError;

/// The reason why a command failed.
#[derive(Debug, Error, Diagnostic)]
pub enum CommandError {
    /// The configuration cannot be used.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Config(#[from] ConfigError),
    /// The running weir cannot be reached, or refuses.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Client(#[from] ClientError),
    /// The running weir was set up by a program, without a file.
    #[error("the running weir was not started with a file")]
    #[diagnostic(help("name the file: `weir reload FILE`"))]
    NoFile,
    /// The file has no counters of `weir stats`.
    #[error("{} has no counters: {why}", path.display())]
    #[diagnostic(help("`weir stats --json > FILE` writes them"))]
    NotStats {
        /// The file.
        path: std::path::PathBuf,
        /// The reason.
        why: String,
    },
    /// The file has counters of another start of weir.
    #[error(transparent)]
    #[diagnostic(help(
        "weir counts from zero when it starts: begin with a new `weir stats --json`"
    ))]
    OtherStart(#[from] OtherStart),
    /// No group has that name.
    #[error("there is no group {name}")]
    #[diagnostic(help("`weir group list` shows those there are"))]
    NoSuchGroup {
        /// The name.
        name: String,
    },
    /// Another of weir's programs cannot be started.
    #[error("cannot start {name}")]
    #[diagnostic(help(
        "the package weir-lab has it, and `cargo build --release -p weir-bench -p weir-workbench` builds it"
    ))]
    NoProgram {
        /// The program.
        name: &'static str,
        /// The reason.
        #[source]
        why: io::Error,
    },
    /// Some changes are impossible while weir runs.
    #[error("nothing changed: {} cannot change while weir runs", weir_text::count(*.number, "setting"))]
    Fixed {
        /// The number of settings.
        number: usize,
        /// The settings with reasons, and advice on how to resolve them.
        #[help]
        help: String,
    },
    /// A step of a reload failed.
    #[error("the reload failed and was undone: {failure}")]
    Undone {
        /// The failed step.
        failure: String,
        /// Advice on how to resolve the problem, and the remaining differences.
        #[help]
        help: Option<String>,
    },
    /// The file could not be saved and is unchanged.
    #[error("{} is not saved: {why}", path.display())]
    NotSaved {
        /// The file.
        path: std::path::PathBuf,
        /// The reason.
        why: String,
    },
    /// Settings have changed while the file was written. They stay in effect, and the file has the
    /// earlier settings.
    #[error("{} has what ran before: somebody has changed a setting meanwhile, which goes on", path.display())]
    #[diagnostic(help("save again; `weir diff` shows the setting"))]
    SavedBefore {
        /// The file.
        path: std::path::PathBuf,
    },
    /// Standard input is no terminal.
    #[error("nothing is saved: there is no terminal to ask at")]
    #[diagnostic(help("`weir save --yes` does not ask"))]
    NobodyToAsk,
    /// The interfaces cannot be expressed in the VM monitor's options.
    #[error(transparent)]
    #[diagnostic(transparent)]
    VmArgs(#[from] VmArgsError),
    /// The interface belongs to a Xen guest, not to a vhost-user front end.
    #[error("{name} is a Xen guest's interface, which needs no QEMU arguments")]
    #[diagnostic(help(
        "the guest's configuration has `vif=['mac=...,bridge=...,script=none']`: see the guide's xen.md"
    ))]
    XenVif {
        /// The interface.
        name: PortName,
    },
    /// There is no such interface.
    #[error("there is no interface called {name} in {source_name}")]
    UnknownVif {
        /// The name.
        name: PortName,
        /// The place that was searched for the name.
        source_name: String,
        /// The names that exist.
        #[help]
        help: String,
    },
    /// The environment gives no path for the control socket.
    #[error("cannot choose a path for the control socket: {0}")]
    #[diagnostic(help("name it with --control, or correct $XDG_RUNTIME_DIR"))]
    ControlPath(ValueError),
    /// The argument of `weir trace` describes no frame.
    #[error("{0}")]
    #[diagnostic(help("write it as in `weir trace --help`"))]
    Frame(String),
    /// A file of frames does not have the requested frame.
    #[error("{0}")]
    Frames(String),
    /// The output is a terminal, which cannot show pcapng.
    #[error("a terminal cannot show pcapng")]
    #[diagnostic(help("`weir capture PORT -w - | wireshark -k -i -`, or without -w for lines"))]
    Terminal,
    /// `weir doctor` or `weir check --host` has found and reported a fault.
    #[error("something is wrong")]
    Unwell,
    /// The output cannot be written.
    #[error("cannot write the output")]
    Output(#[from] io::Error),
}

/// Writes JSON for programs, or text for people.
pub(super) fn write_as(
    out: &mut dyn Write,
    json: bool,
    value: &impl serde::Serialize,
    text: impl std::fmt::Display,
) -> Result<(), CommandError> {
    if json { write_json(out, value) } else { Ok(write!(out, "{text}")?) }
}

pub(super) fn write_json(
    out: &mut dyn Write,
    value: &impl serde::Serialize,
) -> Result<(), CommandError> {
    serde_json::to_writer_pretty(&mut *out, value).map_err(io::Error::from)?;
    writeln!(out)?;
    Ok(())
}
