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
            // bash-completion looks for a file with the name of the command.
            if shell == Shell::Bash {
                fs::rename(&path, path.with_file_name(&name))?;
            }
        }
        // The shells complete `weir help`; a page for each of its commands would say nothing.
        let mut command = command.disable_help_subcommand(true);
        command.build();
        write_pages(command, section, &man)?;
    }
    Ok(())
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
