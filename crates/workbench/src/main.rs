//! `weir-lab`, which `weir lab` starts.

#![forbid(unsafe_code)]

use std::io;
use std::process::ExitCode;

use clap::Parser;
use miette::Report;
use weir_workbench::args::LabCommand;
use weir_workbench::{LabError, run};

/// Exit code if an experiment or a profile has problems, as that of `weir` for a configuration.
const EXIT_INVALID: u8 = 3;

fn main() -> ExitCode {
    if let Some(ended) = weir_switch::compiler::run_if_asked() {
        return ended;
    }
    let Err(error) = run(&LabCommand::parse(), &mut io::stdout()) else {
        return ExitCode::SUCCESS;
    };
    let code = if matches!(error, LabError::Invalid(_)) { EXIT_INVALID } else { 1 };
    let report = Report::from(error);
    let output = match report.downcast_ref() {
        Some(LabError::Output(error)) => Some(error),
        _ => None,
    };
    weir_text::plain::ended(&report, output, code)
}
