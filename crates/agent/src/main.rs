//! `weir-agent`: the coalescing client inside a Linux guest.

#![forbid(unsafe_code)]

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use weir_agent::agent::{self, AgentError};
use weir_agent::args::Args;

/// Exit code for a missing port to the host.
const EXIT_NO_PORT: u8 = 3;

fn main() -> ExitCode {
    let args = Args::parse();
    let result = if args.once {
        agent::run_once(&args, &mut io::stdout())
            .map_err(|error| (1, Box::<dyn Error>::from(error)))
    } else {
        agent::run(&args).map_err(|error| {
            let code = if matches!(error, AgentError::Port(_)) { EXIT_NO_PORT } else { 1 };
            (code, error.into())
        })
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err((code, error)) => {
            let _ = writeln!(io::stderr(), "weir-agent: {error}");
            code.into()
        }
    }
}
