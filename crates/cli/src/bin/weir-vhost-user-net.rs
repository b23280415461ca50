//! `weir-vhost-user-net`: one guest and one TAP interface in one process.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use miette::{IntoDiagnostic, Report};
use weir::commands;
use weir::vhost_user_net::{BackendArgs, Capabilities};

fn main() -> ExitCode {
    if let Some(ended) = weir_switch::run_helper_if_asked(weir::run::log_to_stderr) {
        return ended;
    }
    commands::exit_code(run())
}

fn run() -> Result<(), Report> {
    if Capabilities::wanted(std::env::args_os().skip(1)) {
        println!("{}", Capabilities::THIS.to_json().into_diagnostic()?);
        return Ok(());
    }
    weir::run::run_backend(&BackendArgs::parse())?;
    Ok(())
}
