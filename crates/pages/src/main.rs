//! `weir-pages DIR`: man pages and shell completions of all programs, from the definitions that parse their arguments.
//!
//! `DIR/man` gets a page for each program and each command, `DIR/bash`, `DIR/zsh` and `DIR/fish` a file for each
//! program, named as the shell looks for it. A package is built with it; no package contains it.

#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::io::{self, Error, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs};

use clap::{Command, CommandFactory};
use clap_complete::{Shell, generate_to};
use clap_mangen::Man;
use weir::args::Cli;
use weir::vhost_user_net::BackendArgs;

/// The section of man pages for commands that anybody runs, and for those of administrators.
const ANYBODY: &str = "1";
const ADMINISTRATOR: &str = "8";

/// In the foot of each page.
const SOURCE: &str = concat!("weir ", env!("CARGO_PKG_VERSION"));

fn main() -> ExitCode {
    let written = match env::args_os().skip(1).collect::<Vec<OsString>>().as_slice() {
        [directory] => write_all(Path::new(directory)),
        _ => Err(Error::new(ErrorKind::InvalidInput, "usage: weir-pages DIR")),
    };
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("weir-pages: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The programs, with the sections of their pages.
fn programs() -> [(Command, &'static str); 4] {
    [
        (Cli::command(), ANYBODY),
        (BackendArgs::command(), ADMINISTRATOR),
        (weir_agent::args::Args::command(), ADMINISTRATOR),
        (weir_keeper::program::Args::command(), ADMINISTRATOR),
    ]
}

fn write_all(directory: &Path) -> io::Result<()> {
    let subdirectory = |name: &str| -> io::Result<PathBuf> {
        let path = directory.join(name);
        fs::create_dir_all(&path)?;
        Ok(path)
    };
    let man = subdirectory("man")?;
    for (command, section) in programs() {
        let name = command.get_name().to_owned();
        for (shell, own) in [(Shell::Bash, "bash"), (Shell::Zsh, "zsh"), (Shell::Fish, "fish")] {
            let path = generate_to(shell, &mut command.clone(), &name, subdirectory(own)?)?;
            let text = without_hidden(&command, fs::read_to_string(&path)?);
            fs::remove_file(&path)?;
            // bash-completion looks for a file with the name of the command.
            let named = if shell == Shell::Bash { path.with_file_name(&name) } else { path };
            fs::write(named, text)?;
        }
        // The shells complete `weir help`; a page for each of its commands would say nothing.
        let mut command = command.disable_help_subcommand(true);
        command.build();
        write_pages(command, section, &man)?;
    }
    Ok(())
}

/// A shell's file without the options that are weir's own: clap_complete names hidden ones, each on a line of its own,
/// or for bash in a list and, where they have a value, in a case.
fn without_hidden(command: &Command, mut text: String) -> String {
    for hidden in command.get_arguments().filter(|it| it.is_hide_set()) {
        let Some(long) = hidden.get_long() else { continue };
        let own = [format!("'--{long}["), format!(" -l {long} ")];
        let (case, mut in_case) = (format!("--{long})"), false);
        let shown = text.lines().filter(|line| {
            in_case |= line.trim() == case;
            let is_own = in_case || own.iter().any(|own| line.contains(own));
            in_case &= line.trim() != ";;";
            !is_own
        });
        let shown: String = shown.map(|line| format!("{line}\n")).collect();
        text = shown.replace(&format!(" --{long}"), "");
    }
    command.get_subcommands().fold(text, |text, sub| without_hidden(sub, text))
}

/// The page of `command` and those of its commands, each with the program's name before it: `weir-vif-add.1`.
fn write_pages(command: Command, section: &str, directory: &Path) -> io::Result<()> {
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        write_pages(sub.clone(), section, directory)?;
    }
    Man::new(command).section(section).source(SOURCE).generate_to(directory).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each command with its page's name, and its options that a reader may know.
    fn commands(command: &Command, page: &str, found: &mut Vec<(String, String, Vec<String>)>) {
        let shown = command.get_arguments().filter(|it| !it.is_hide_set());
        let options = shown.filter_map(|it| it.get_long().map(str::to_owned)).collect();
        found.push((page.into(), command.get_name().into(), options));
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            commands(sub, &format!("{page}-{}", sub.get_name()), found);
        }
    }

    #[test]
    fn pages_and_completions_name_every_command_and_every_option_that_is_shown() {
        let directory = tempfile::tempdir().unwrap();
        write_all(directory.path()).unwrap();
        let read = |file: String| {
            fs::read_to_string(directory.path().join(&file)).unwrap_or_else(|_| panic!("{file}"))
        };
        let mut options_seen = 0;
        for (command, section) in programs() {
            let program = command.get_name().to_owned();
            let shells = [
                read(format!("bash/{program}")),
                read(format!("zsh/_{program}")),
                read(format!("fish/{program}.fish")),
            ];
            let mut found = Vec::new();
            let mut command = command.disable_help_subcommand(true);
            command.build();
            commands(&command, &program, &mut found);
            for (page, name, options) in found {
                let text = read(format!("man/{page}.{section}"));
                assert!(shells.iter().all(|shell| shell.contains(&name)), "{name}");
                for option in options {
                    let in_roff = format!("\\-\\-{}", option.replace('-', "\\-"));
                    assert!(text.contains(&in_roff), "{page}: {option}: {text}");
                    let forms =
                        [format!("--{option}"), format!("--{option}"), format!("-l {option}")];
                    for (shell, form) in shells.iter().zip(forms) {
                        assert!(shell.contains(&form), "{page}: {form}");
                    }
                    options_seen += 1;
                }
            }
            for text in shells {
                assert!(!text.contains("take-over"), "what is hidden is completed");
            }
        }
        assert!(options_seen > 100, "{options_seen}");
    }

    #[test]
    fn bash_reads_its_files() {
        let directory = tempfile::tempdir().unwrap();
        write_all(directory.path()).unwrap();
        for (command, _) in programs() {
            let file = directory.path().join("bash").join(command.get_name());
            let read = std::process::Command::new("bash").arg("-n").arg(&file).output().unwrap();
            assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
        }
    }

    #[test]
    fn each_program_and_each_command_has_its_page_and_each_shell_its_file() {
        let directory = tempfile::tempdir().unwrap();
        write_all(directory.path()).unwrap();
        for file in [
            "man/weir.1",
            "man/weir-run.1",
            "man/weir-vif-add.1",
            "man/weir-agent.8",
            "man/weir-keeper.8",
            "man/weir-vhost-user-net.8",
            "bash/weir",
            "zsh/_weir-agent",
            "fish/weir-vhost-user-net.fish",
        ] {
            let text = fs::read_to_string(directory.path().join(file)).expect(file);
            assert!(text.len() > 200, "{file}: {text}");
        }
        let page = fs::read_to_string(directory.path().join("man/weir-vif-add.1")).unwrap();
        assert!(page.contains("weir vif add") && page.contains("latency_budget=1ms"), "{page}");
        assert!(page.contains(SOURCE), "{page}");
        assert!(!directory.path().join("man/weir-help.1").exists());
    }
}
