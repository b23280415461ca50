//! `weir`: one match from command to function.

#![forbid(unsafe_code)]

use std::io;
use std::process::ExitCode;

use miette::Report;
use weir::args::{Cli, Command};
use weir::commands;
use weir_doctor::bridging;
use weir_switch::{compiler, host, programs, upgrade};
use weir_text::plain::{Obeyed, Plain};

fn main() -> ExitCode {
    let log = weir::run::log_to_stderr;
    let part = weir_switch::run_helper_if_asked(log)
        .or_else(upgrade::run_if_asked)
        .or_else(|| programs::run_if_asked(log))
        .or_else(compiler::run_if_asked)
        .or_else(bridging::run_if_asked)
        .or_else(|| host::tell_resolved_if_asked(log));
    if let Some(ended) = part {
        return ended;
    }
    commands::exit_code(run(Cli::parse_grouped()))
}

fn run(cli: Cli) -> Result<(), Report> {
    let defaults = commands::defaults(cli.control)?;
    let mut out = io::stdout();
    // These commands can print text from a file, a guest or another program.
    let plain = || Plain::new(io::stdout(), Obeyed::Lines);
    let terminal = commands::stdout_is_terminal();
    match cli.command {
        Command::Demo(it) => commands::become_program("weir-bench", Some("demo"), &it.args)?,
        Command::Bench(it) => commands::become_program("weir-bench", None, &it.args)?,
        Command::Lab(it) => commands::become_program("weir-lab", None, &it.args)?,
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
