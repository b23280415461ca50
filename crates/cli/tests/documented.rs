//! What the documents tell a reader to type: each configuration is one that weir takes, each command line of weir one
//! that it understands, and those that look at a running switch or change it are run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use clap::CommandFactory;
use weir::args::Cli;
use weir_testing::eventually;

/// Configurations that are no weir.toml: the lab's own, which its tests check.
const LAB: &str = "docs/guide/lab.md";

/// What follows the name of weir where it is no command: lines that weir prints.
const PRINTED: &[&str] = &["may"];

/// Commands that end by themselves, and need no file but weir.toml.
const RUN: &[&[&str]] = &[
    &["check"],
    &["diff"],
    &["explain"],
    &["filter"],
    &["qemu-args"],
    &["reload"],
    &["stats"],
    &["top", "--once"],
    &["trace"],
    &["vif"],
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The documents for users, with their paths.
fn documents() -> Vec<(String, String)> {
    let guide = fs::read_dir(root().join("docs/guide")).unwrap();
    let guide = guide.map(|entry| format!("docs/guide/{}", entry.unwrap().file_name().display()));
    let mut paths: Vec<_> = guide.chain(["README.md".into(), "docs/install.md".into()]).collect();
    paths.sort();
    let read = |path: String| {
        let text = fs::read_to_string(root().join(&path)).unwrap();
        (path, text)
    };
    paths.into_iter().map(read).collect()
}

/// A block of code: its language, the number of its first line, its lines.
struct Block<'a> {
    language: &'a str,
    first: usize,
    lines: Vec<&'a str>,
}

fn blocks(document: &str) -> Vec<Block<'_>> {
    let mut blocks = Vec::new();
    let mut open: Option<Block<'_>> = None;
    for (index, line) in document.lines().enumerate() {
        match (line.trim_start().strip_prefix("```"), open.as_mut()) {
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(language), None) => {
                open = Some(Block { language, first: index + 2, lines: Vec::new() });
            }
            (None, Some(block)) => block.lines.push(line),
            (None, None) => {}
        }
    }
    blocks
}

/// Text between backticks outside of blocks, which may go over a line's end.
fn spans(document: &str) -> Vec<String> {
    let mut prose = String::new();
    let mut inside = false;
    for line in document.lines() {
        if line.trim_start().starts_with("```") {
            inside = !inside;
        } else if !inside {
            prose += line.trim();
            prose.push(' ');
        }
    }
    let spans = prose.split('`').skip(1).step_by(2).map(str::to_owned);
    spans.filter(|span| !span.is_empty()).collect()
}

/// The words of a command of weir's in a line of a shell, without `weir`; `None` if there is no such command, or it has
/// words that stand for others.
fn weir_words(line: &str) -> Option<Vec<String>> {
    let line = line.strip_prefix("$ ").unwrap_or(line);
    let line = line.strip_prefix("sudo ").unwrap_or(line);
    let line = match line.split_once("$(weir ") {
        Some((_, inner)) => inner.split(')').next()?,
        None => line.strip_prefix("weir ")?,
    };
    let mut words = vec![String::new()];
    let (mut quote, mut before) = (None, ' ');
    for char in line.chars() {
        match (quote, char) {
            (Some(end), _) if char == end => quote = None,
            (None, '\'' | '"') => quote = Some(char),
            (Some(_), _) => words.last_mut()?.push(char),
            (None, '#' | '&' | '|' | '>' | ';') => break,
            // Columns of a table.
            (None, ' ') if before == ' ' => break,
            (None, ' ') => words.push(String::new()),
            (None, _) => words.last_mut()?.push(char),
        }
        before = char;
    }
    words.retain(|word| !word.is_empty());
    let stands_for_others = |word: &String| {
        let name = word.split('=').next_back().unwrap_or(word);
        word.contains("...")
            || word.contains('|')
            || word.contains('[')
            || name.len() > 1 && name.chars().all(|c| c.is_ascii_uppercase() || c == '_')
    };
    let printed = words.first().is_some_and(|word| PRINTED.contains(&word.as_str()));
    (!words.is_empty() && !printed && !words.iter().any(stands_for_others)).then_some(words)
}

/// All command lines of weir's, each with the place where it stands.
fn commands() -> Vec<(String, Vec<String>)> {
    let mut commands = Vec::new();
    for (path, text) in documents() {
        for block in blocks(&text) {
            for (index, line) in block.lines.iter().enumerate() {
                for part in line.split("&& ") {
                    let place = format!("{path}:{}", block.first + index);
                    commands.extend(weir_words(part).map(|words| (place, words)));
                }
            }
        }
        let of_prose = spans(&text);
        let words = of_prose.iter().filter_map(|span| weir_words(span));
        commands.extend(words.map(|words| (path.clone(), words)));
    }
    commands
}

struct Weir(Child);

impl Drop for Weir {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn each_documented_configuration_is_one_that_weir_takes() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("weir.toml");
    let mut checked = 0;
    for (path, text) in documents().iter().filter(|(path, _)| path != LAB) {
        for block in blocks(text).iter().filter(|block| block.language == "toml") {
            fs::write(&file, block.lines.join("\n")).unwrap();
            let check = Command::new(env!("CARGO_BIN_EXE_weir")).arg("check").arg(&file).output();
            let check = check.unwrap();
            let says = String::from_utf8_lossy(&check.stderr);
            assert!(check.status.success(), "{path}:{}: {says}", block.first);
            checked += 1;
        }
    }
    assert!(checked >= 5, "{checked}");
}

#[test]
fn each_documented_command_line_is_one_that_weir_understands() {
    let commands = commands();
    for (place, words) in &commands {
        let line = [&["weir".to_owned()], &words[..]].concat();
        if let Err(error) = Cli::command().try_get_matches_from(&line) {
            let asks = matches!(
                error.kind(),
                clap::error::ErrorKind::DisplayHelp
                    | clap::error::ErrorKind::DisplayVersion
                    | clap::error::ErrorKind::MissingRequiredArgument
                    | clap::error::ErrorKind::MissingSubcommand
                    | clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
            );
            assert!(asks, "{place}: {}: {error}", line.join(" "));
        }
    }
    assert!(commands.len() >= 50, "{}", commands.len());
}

#[test]
fn documented_commands_for_a_running_switch_work() {
    let dir = tempfile::tempdir().unwrap();
    let control = dir.path().join("control.sock");
    let config = format!(
        "[switch]\ncontrol = \"{0}/control.sock\"\n[vif.web0]\nsocket = \"{0}/web0.sock\"\n[vif.db0]\nsocket = \
         \"{0}/db0.sock\"\n",
        dir.path().display()
    );
    fs::write(dir.path().join("weir.toml"), config).unwrap();
    let weir = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.arg("--control").arg(&control).args(args).current_dir(dir.path());
        command.stdin(Stdio::null());
        command
    };
    let serves = weir(&["run", "weir.toml"]).stderr(Stdio::null()).spawn().unwrap();
    let _serves = Weir(serves);
    eventually("weir serves", || std::os::unix::net::UnixStream::connect(&control).ok());
    let mut ran = Vec::new();
    for (place, words) in commands() {
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        // Shorter ones name a command.
        let whole = place.contains(':') || words.len() > 2;
        let known = ran.contains(&words.join(" "));
        let waits_for_frames = words.contains(&"--live");
        if !whole || known || waits_for_frames || !RUN.iter().any(|run| words.starts_with(run)) {
            continue;
        }
        let line = [&["weir"], &words[..]].concat();
        if Cli::command().try_get_matches_from(&line).is_err() {
            // It names a command, and is none.
            continue;
        }
        let output = weir(&words).output().unwrap();
        let says = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{place}: weir {}: {says}", words.join(" "));
        ran.push(words.join(" "));
    }
    assert!(ran.len() >= 10, "{ran:?}");
}
