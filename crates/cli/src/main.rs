//! `weir`: one match from command to function.

#![forbid(unsafe_code)]

use std::io;
use std::process::ExitCode;

use miette::Report;
use weir::args::{Cli, Command};
use weir::commands;
use weir_doctor::bridging;
use weir_text::plain::{Obeyed, Plain};

fn main() -> ExitCode {
    if let Some(ended) = weir_switch::run_helper_if_asked(weir::run::log_to_stderr) {
        return ended;
    }
    if let Some(ended) = weir_switch::upgrade::run_if_asked() {
        return ended;
    }
    if let Some(ended) = weir_switch::programs::run_if_asked(weir::run::log_to_stderr) {
        return ended;
    }
    if let Some(ended) = weir_switch::compiler::run_if_asked() {
        return ended;
    }
    let told = || weir_switch::host::tell_resolved_if_asked(weir::run::log_to_stderr);
    if let Some(ended) = bridging::run_if_asked().or_else(told) {
        return ended;
    }
    commands::exit_code(run(Cli::parse_grouped()))
}

fn run(cli: Cli) -> Result<(), Report> {
    let defaults = commands::defaults(cli.control)?;
    // The output is not locked, because the demo's display also writes to it and restores the terminal from any
    // thread.
    let mut out = io::stdout();
    // These commands can print text from a file, a guest or another program.
    let plain = || Plain::new(io::stdout(), Obeyed::Lines);
    let terminal = commands::stdout_is_terminal();
    match cli.command {
        Command::Demo(args) => {
            weir_bench::demo::run(&args, &mut out, terminal)?;
        }
        Command::Bench(args) => {
            weir_bench::run(&args, &mut out)?;
        }
        Command::Lab(command) => weir_workbench::run(&command, &mut out)?,
        Command::Run(args) => weir::run::run(&args, &defaults)?,
        Command::Check(args) => commands::check(&args, &defaults, &mut plain())?,
        Command::Diff(args) => commands::diff(&args, &defaults, &mut plain())?,
        Command::Reload(args) => commands::reload(&args, &defaults, &mut plain())?,
        Command::Save(args) => commands::save(&args, &defaults, &mut plain())?,
        Command::Upgrade => commands::upgrade(&defaults, &mut plain())?,
        Command::QemuArgs(args) => commands::qemu_args(&args, &defaults, &mut out, terminal)?,
        Command::Libvirt(command) => weir_libvirt::run(command, &defaults, &mut plain())?,
        Command::Vif(command) => commands::vif(&command, &defaults, &mut plain())?,
        Command::Group(command) => commands::group(&command, &defaults, &mut plain())?,
        Command::Filter(command) => commands::filter(&command, &defaults, &mut plain())?,
        Command::Uplink(command) => bridging::run(&command, &mut plain())?,
        Command::Top(args) => weir::top::run(&args, &defaults, &mut out)?,
        Command::Status(args) => commands::status(&args, &defaults, &mut plain())?,
        Command::Stats(args) => commands::stats(&args, &defaults, &mut out, terminal)?,
        Command::Addresses(args) => commands::addresses(&args, &defaults, &mut plain())?,
        Command::Explain(args) => commands::explain(&args, &defaults, &mut plain())?,
        Command::Capture(args) => commands::capture(&args, &defaults, &mut plain())?,
        Command::Trace(args) => commands::trace(&args, &defaults, &mut plain())?,
        Command::Doctor(args) => commands::doctor(&args, &defaults, &mut plain())?,
    }
    Ok(())
}
