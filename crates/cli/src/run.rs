//! `weir run`: a switch in the foreground, until a signal ends it.

use std::io;
use std::sync::Arc;

use miette::Diagnostic;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use thiserror::Error;
use tracing_subscriber::EnvFilter;

use crate::args::RunArgs;
use crate::commands::CommandError;
use crate::config::{Config, Defaults};
use crate::control::{ControlHandler, ControlServer};
use crate::switch::{Switch, SwitchError};
use crate::unix_socket::ListenError;

/// Why `weir run` ended, or did not begin.
#[derive(Debug, Error, Diagnostic)]
pub enum RunError {
    /// The configuration cannot be used.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Config(#[from] CommandError),
    /// The switch cannot be started.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Switch(#[from] SwitchError),
    /// The control socket cannot be had.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Control(#[from] ListenError),
    /// Signals cannot be caught.
    #[error("cannot wait for signals")]
    Signals(#[source] io::Error),
}

/// Logs to standard error; `WEIR_LOG` chooses what (`WEIR_LOG=debug`, `WEIR_LOG=weir_port_vhost=debug`).
pub fn log_to_stderr() {
    let filter = EnvFilter::try_from_env("WEIR_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr);
    // It fails only if a log was installed before, which then serves as well.
    let _ = log.with_target(false).try_init();
}

/// Runs the switch of a configuration file.
///
/// # Errors
/// [`RunError`]
pub fn run(args: &RunArgs, defaults: &Defaults) -> Result<(), RunError> {
    let config = Config::load(&args.file, defaults).map_err(CommandError::from)?;
    log_to_stderr();
    let signals = catch_signals()?;
    let switch = Switch::start(&config)?;
    let handler = Arc::clone(&switch) as Arc<dyn ControlHandler>;
    let control = ControlServer::start(config.switch.control.as_path(), handler)?;
    tracing::info!(
        control = %config.switch.control,
        vifs = config.vifs.len(),
        uplinks = config.uplinks.len(),
        "ready"
    );
    wait_for_end(signals);
    drop(control);
    drop(switch);
    Ok(())
}

/// From here on SIGINT and SIGTERM wait for [`wait_for_end`].
///
/// # Errors
/// [`RunError::Signals`]
pub fn catch_signals() -> Result<Signals, RunError> {
    Signals::new([SIGINT, SIGTERM]).map_err(RunError::Signals)
}

/// Sleeps until SIGINT or SIGTERM.
pub fn wait_for_end(mut signals: Signals) {
    let signal = signals.forever().next();
    tracing::info!(signal, "ending");
}
