//! `weir-bench`, which `weir bench` and `weir demo` start.

#![forbid(unsafe_code)]

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use clap::Parser;
use miette::Report;
use weir_bench::args::{Cli, Command};
use weir_bench::demo::{self, DemoError};
use weir_bench::{BenchError, run};

fn main() -> ExitCode {
    if let Some(ended) = weir_switch::compiler::run_if_asked() {
        return ended;
    }
    // The output is not locked, because the demo's display also writes to it and restores the terminal from any
    // thread.
    let mut out = io::stdout();
    let terminal = out.is_terminal();
    let Cli { command, bench } = Cli::parse();
    let result = match command {
        Some(Command::Demo(args)) => demo::run(&args, &mut out, terminal).map_err(Report::from),
        None => run(&bench, &mut out).map_err(Report::from),
    };
    let Err(report) = result else {
        return ExitCode::SUCCESS;
    };
    let output = match (report.downcast_ref(), report.downcast_ref()) {
        (Some(BenchError::Output(error)), _) | (_, Some(DemoError::Output(error))) => Some(error),
        _ => None,
    };
    weir_text::plain::ended(&report, output, 1)
}
