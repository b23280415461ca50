//! `weir-pages DIR`: man pages and shell completions of all programs, from the definitions that parse their arguments.
//!
//! `DIR/man` gets a page for each program and each command, `DIR/bash`, `DIR/zsh` and `DIR/fish` a
//! file for each program, named as the shell looks for it. Packages are built with this program,
//! but no package contains it.

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

/// The text in the foot of each page.
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
fn programs() -> [(Command, &'static str); 6] {
    [
        (Cli::command(), ANYBODY),
        (weir_bench::args::Cli::command(), ANYBODY),
        (weir_workbench::args::LabCommand::command(), ANYBODY),
        (BackendArgs::command(), ADMINISTRATOR),
        (weir_agent::args::Args::command(), ADMINISTRATOR),
        (weir_keeper::Args::command(), ADMINISTRATOR),
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
            let (path, text) = match shell {
                // bash-completion looks for a file with the name of the command.
                Shell::Bash => {
                    (path.with_file_name(&name), text.replace(BASH_WORDS, BASH_SETTINGS))
                }
                Shell::Zsh => (path, zsh_settings(&text)),
                _ => (path, text + &fish_words(&command)),
            };
            fs::write(path, text)?;
        }
        // The shells complete `weir help`; a page for each of its commands would say nothing.
        let mut command = command.disable_help_subcommand(true);
        command.build();
        write_pages(command, section, &man)?;
    }
    Ok(())
}

/// A shell's file without the options that are weir's own: clap_complete names hidden ones, each on
/// its own line, or for bash in a list and, where they have a value, in a case.
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

/// The last line of each command in bash's file: it offers the words.
const BASH_WORDS: &str =
    "            COMPREPLY=( $(compgen -W \"${opts}\" -- \"${cur}\") )\n            return 0\n";

/// The same line, with no space behind `KEY=`, which the value follows. No word is offered as a
/// value.
const BASH_SETTINGS: &str = "            COMPREPLY=( $(compgen -W \"${opts}\" -- \"${cur}\") )
            if [[ ${COMP_WORDS[COMP_CWORD]} == '=' || ${prev} == '=' ]]; then
                COMPREPLY=()
            elif [[ ${COMPREPLY[0]} == *= ]]; then
                compopt -o nospace
            fi
            return 0\n";

/// Zsh's file, with no space behind `KEY=`.
fn zsh_settings(text: &str) -> String {
    let mut is_setting = false;
    let line = |line: &str| {
        let begins = line.starts_with('\'') && line.contains("=\\:\"");
        is_setting |= begins;
        let line = match begins {
            true => line.replacen(":((", ":{local -a keys; keys=(", 1),
            false => line.into(),
        };
        let ends = is_setting && line.contains("))' \\");
        is_setting &= !ends;
        let end = ");_describe -t settings setting keys -S \"\"}' \\";
        let line = if ends { line.replacen("))' \\", end, 1) } else { line };
        line + "\n"
    };
    text.lines().map(line).collect()
}

/// Lines of fish's file for the permitted words of arguments without a name, which clap_complete leaves out.
fn fish_words(command: &Command) -> String {
    let name = command.get_name();
    let function = name.replace('-', "_");
    let mut lines = String::new();
    for sub in command.get_subcommands() {
        let using = format!("__fish_{function}_using_subcommand {}", sub.get_name());
        let subs = sub.get_subcommands();
        let of_subs = subs
            .map(|it| (it, format!("{using}; and __fish_seen_subcommand_from {}", it.get_name())));
        for (command, using) in of_subs.chain([(sub, using.clone())]) {
            let words = command.get_positionals().flat_map(|it| it.get_possible_values());
            for word in words.filter(|it| !it.is_hide_set()) {
                let says = word.get_help().map(ToString::to_string).unwrap_or_default();
                let says = says.replace('\\', "\\\\").replace('\'', "\\'");
                let offer = format!("-f -a \"{}\" -d '{says}'", word.get_name());
                lines.push_str(&format!("complete -c {name} -n \"{using}\" {offer}\n"));
            }
        }
    }
    lines
}

/// The commands of `command` with pages of their own. `weir bench` and `weir lab` have those of the programs.
fn subcommands<'a>(command: &'a Command, page: &'a str) -> impl Iterator<Item = &'a Command> {
    let is_program = |name: &str| programs().iter().any(|(program, _)| program.get_name() == name);
    let shown = command.get_subcommands().filter(|sub| !sub.is_hide_set());
    shown.filter(move |sub| !is_program(&format!("{page}-{}", sub.get_name())))
}

/// The page of `command` and those of its commands, each with the program's name before it: `weir-vif-add.1`.
fn write_pages(command: Command, section: &str, directory: &Path) -> io::Result<()> {
    for sub in subcommands(&command, command.get_display_name().unwrap_or_default()) {
        write_pages(sub.clone(), section, directory)?;
    }
    Man::new(command).section(section).source(SOURCE).generate_to(directory).map(drop)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use weir_config::{Key, VifChanges, VifConfig};

    use super::*;

    /// Each command with its page's name, and its options that a reader may know.
    fn commands(command: &Command, page: &str, found: &mut Vec<(String, String, Vec<String>)>) {
        let shown = command.get_arguments().filter(|it| !it.is_hide_set());
        let options = shown.filter_map(|it| it.get_long().map(str::to_owned)).collect();
        found.push((page.into(), command.get_name().into(), options));
        for sub in subcommands(command, page) {
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

    /// The words, each at the beginning of a line of `text`.
    fn first_words(text: &str) -> BTreeSet<String> {
        text.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
    }

    /// Words before `=` and `end` in `text`.
    fn settings(text: &str, end: &str) -> BTreeSet<String> {
        let before = text.split(&format!("={end}")).collect::<Vec<_>>();
        let word = |text: &str| {
            let is_of_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
            text.rsplit(|c| !is_of_word(c)).next().unwrap_or_default().to_owned()
        };
        before[..before.len() - 1].iter().map(|text| word(text)).collect()
    }

    #[test]
    fn the_keys_of_the_table_are_those_of_the_help_each_completion_the_pages_and_the_guide() {
        let directory = tempfile::tempdir().unwrap();
        write_all(directory.path()).unwrap();
        let read = |file: &str| fs::read_to_string(directory.path().join(file)).unwrap();
        let (zsh, fish) = (read("zsh/_weir"), read("fish/weir.fish"));
        let names = |keys: &mut dyn Iterator<Item = Key>| -> BTreeSet<String> {
            keys.map(|key| key.name.to_owned()).collect()
        };
        let of_add = names(&mut VifConfig::keys());
        let of_set = names(&mut VifChanges::keys());
        assert!(of_add.is_superset(&of_set) && of_set.contains("native"), "{of_set:?}");
        let mut zsh_lists = zsh.split("setting keys -S").filter(|list| list.contains("keys=("));
        for (name, keys) in [("add", of_add.clone()), ("set", of_set)] {
            let mut command = Cli::command();
            let vif = command.find_subcommand_mut("vif").unwrap();
            let help = vif.find_subcommand_mut(name).unwrap().render_long_help().to_string();
            let (_, listed) = help.split_once("\nKeys:\n").unwrap();
            assert_eq!(first_words(listed), keys, "help of {name}");

            let page = read(&format!("man/weir-vif-{name}.1"));
            let (_, listed) = page.split_once("\nKeys:\n").unwrap();
            let listed = listed.split("\n.SH").next().unwrap();
            let words = first_words(&listed.replace("\n.br", ""));
            assert_eq!(words, keys, "page of {name}");

            let offered = |words: &str, prev: &str| {
                let complete = format!(
                    "source \"$1\"; COMP_WORDS=(weir vif {name} web0 {words}); \
                     COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _weir weir '' {prev}; \
                     printf '%s\\n' \"${{COMPREPLY[@]}}\""
                );
                let mut shell = std::process::Command::new("bash");
                shell.args(["-c", &complete, "bash"]).arg(directory.path().join("bash/weir"));
                String::from_utf8(shell.output().unwrap().stdout).unwrap()
            };
            assert_eq!(settings(&offered("''", "web0"), "\n"), keys, "bash for {name}");
            assert_eq!([offered("mtu =", "mtu"), offered("mtu = ''", "=")], ["\n"; 2]);

            let list = zsh_lists.next().unwrap();
            let (_, list) = list.split_once("keys=(").unwrap();
            assert_eq!(settings(list, "\\:\""), keys, "zsh for {name}");

            let of_command = format!("vif; and __fish_seen_subcommand_from {name}\" -f -a");
            let lines = fish.lines().filter(|line| line.contains(&of_command));
            let lines: String = lines.map(|line| format!("{line}\n")).collect();
            assert_eq!(settings(&lines, "\" -d"), keys, "fish for {name}");
            assert!(lines.contains("-a \"mtu=\" -d 'The MTU, which the guest is told"), "{lines}");
        }
        let guide = include_str!("../../../docs/guide/configuration.md");
        let (_, section) = guide.split_once("\n## `[vif.NAME]`\n").unwrap();
        let rows = section.split("\n## ").next().unwrap().lines();
        let rows = rows.filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
        let of_guide: BTreeSet<_> =
            rows.flat_map(|names| names.split(',')).map(|it| it.replace(['`', ' '], "")).collect();
        // `by` is set by programs, and is not for readers.
        assert_eq!(of_guide, &of_add - &BTreeSet::from(["by".to_owned()]));
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
