//! The lines that the documents tell a reader to type. Each configuration must be valid, and each
//! command line of weir must be understood. Lines that read or change a running switch are run
//! here. Other lines have a test elsewhere, which a comment before the line's block names.
//! [`NOT_RUN`] lists each line that no test runs, with the reason.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::{CommandFactory, Parser};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use weir::args::Cli;
use weir_bench::args::DemoArgs;
use weir_testing::document::blocks;
use weir_testing::{Running, eventually};
use weir_workbench::args::LabCommand;

/// A document whose configurations are not of weir.toml, but the lab's own. The lab's tests check
/// them.
const LAB: &str = "docs/guide/lab.md";

/// Words that follow the name of weir in lines that weir prints, and that are no commands.
const PRINTED: &[&str] = &["may"];

/// Commands that end by themselves, and need no file except weir.toml.
const RUN: &[&[&str]] = &[
    &["addresses"],
    &["check"],
    &["diff"],
    &["explain"],
    &["filter"],
    &["group"],
    &["qemu-args"],
    &["reload"],
    &["stats"],
    &["top", "--once"],
    &["trace"],
    &["vif"],
];

/// Commands that only the prose has, as they are typed.
const NAMED: &[&str] =
    &["weir check --host weir.toml", "weir doctor", "weir save --yes", "weir upgrade"];

/// The exit code of `weir doctor` when something on the host is wrong, such as a weir of another test.
const UNWELL: i32 = 1;

/// Commands that run until Ctrl-C without frames, and options that make any command run until Ctrl-C.
const ENDLESS: &[&[&str]] = &[&["capture"], &["top"]];
const UNTIL_CTRL_C: &[&str] = &["--live", "-N", "--watch"];

/// The exit code of timeout(1) after it has ended a command.
const TIMED_OUT: i32 = 124;

/// The guide whose lines start the switch, and the beginnings of these lines.
const BY_HAND: &str = "docs/guide/keeper.md";
const STARTS: &[&str] = &["weir-keeper ", "weir run --keeper "];

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

/// Text between backticks outside of blocks. It can span a line's end.
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

/// The words of a weir command in a shell line, without `weir`; `None` if there is no such command, or it has
/// placeholders.
fn weir_words(line: &str) -> Option<Vec<String>> {
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
            // Two spaces separate the columns of a table.
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

/// What the program that a line of weir is for makes of the line's words.
fn parsed(words: &[String]) -> Result<clap::ArgMatches, clap::Error> {
    let program = match words.first().map(String::as_str) {
        Some("lab") => LabCommand::command(),
        Some("demo") => return weir_bench::args::Cli::command().try_get_matches_from(named(words)),
        Some("bench") => weir_bench::args::Cli::command(),
        _ => return Cli::command().try_get_matches_from(named(words)),
    };
    program.try_get_matches_from(words)
}

/// The words behind a program's name.
fn named(words: &[String]) -> impl Iterator<Item = &str> {
    std::iter::once("weir").chain(words.iter().map(String::as_str))
}

fn begins(words: &[String], with: &[&str]) -> bool {
    words.len() >= with.len() && words.iter().zip(with).all(|(word, with)| word == with)
}

/// A line to type: a line of a block of commands, or a span of the prose that may be one.
struct Typed {
    place: String,
    line: String,
    in_block: bool,
    /// True if the comment before its block names another test.
    elsewhere: bool,
}

impl Typed {
    /// The words of each weir command in the line.
    fn commands(&self) -> Vec<Vec<String>> {
        self.line.split("&& ").filter_map(weir_words).collect()
    }

    /// True if the line has everything that a command needs. A span may only name a command.
    fn is_whole(&self) -> bool {
        let understood = |words: &Vec<String>| words.len() > 2 && parsed(words).is_ok();
        self.in_block || self.commands().iter().any(understood)
    }

    fn starts_the_switch(&self) -> bool {
        STARTS.iter().any(|start| self.line.starts_with(start))
    }

    /// True if [`documented_commands_for_a_running_switch_work_twice`] runs the line.
    fn runs_here(&self) -> bool {
        let known = |words: &Vec<String>| RUN.iter().chain(ENDLESS).any(|with| begins(words, with));
        let of_weir = self.line.starts_with("weir ") && self.commands().iter().any(known);
        !self.elsewhere && (of_weir || self.line.starts_with("curl ") || self.starts_the_switch())
    }

    fn is_endless(&self) -> bool {
        let until = |word: &&str| self.line.split_whitespace().any(|part| part == *word);
        let any_begins = |with: &&[&str]| self.commands().iter().any(|words| begins(words, with));
        UNTIL_CTRL_C.iter().any(until)
            || ENDLESS.iter().any(any_begins) && !RUN.iter().any(any_begins)
    }
}

/// All lines to type, each with its place in the documents.
fn typed() -> Vec<Typed> {
    let mut typed = Vec::new();
    for (path, text) in documents() {
        let mut add = |place: String, line, in_block, elsewhere| {
            typed.push(Typed { place, line, in_block, elsewhere });
        };
        for block in blocks(&text) {
            for (number, line) in block.commands() {
                add(format!("{path}:{number}"), line, true, block.run_by.is_some());
            }
        }
        spans(&text).into_iter().for_each(|line| add(path.clone(), line, false, false));
    }
    typed
}

/// A directory with a running switch, in which lines are typed.
struct Desk {
    dir: tempfile::TempDir,
    running: Vec<Running>,
    /// The process that has replaced the first weir.
    later: Cell<Option<Pid>>,
}

impl Drop for Desk {
    fn drop(&mut self) {
        if let Some(process) = self.later.get() {
            let _ = kill_process(process, Signal::KILL);
        }
    }
}

impl Desk {
    /// A desk whose switch was started as the guide says.
    fn start() -> Self {
        let (dir, later) = (tempfile::tempdir().unwrap(), Cell::default());
        let mut desk = Self { dir, running: Vec::new(), later };
        let here = desk.dir.path().to_owned();
        let config = format!(
            "[switch]\ncontrol = \"{0}/control.sock\"\n[group.web]\n[group.ssh]\n[group.lb]\n\
             [vif.web0]\nsocket = \"{0}/web0.sock\"\n[vif.db0]\nsocket = \"{0}/db0.sock\"\n",
            here.display()
        );
        fs::write(here.join("weir.toml"), config).unwrap();
        // This script passes the path of the test's control socket, which differs from the documents.
        let program = here.join("bin/weir");
        fs::create_dir(here.join("bin")).unwrap();
        let weir = env!("CARGO_BIN_EXE_weir");
        let control = here.join("control.sock");
        let script = format!("#!/bin/sh\nexec {weir} --control {} \"$@\"\n", control.display());
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let lines: Vec<_> =
            typed().into_iter().filter(|it| it.place.starts_with(BY_HAND)).collect();
        for start in STARTS {
            let typed = lines.iter().find(|it| it.line.starts_with(start)).expect(start);
            let line = typed.line.split(" &").next().unwrap();
            let mut command = desk.shell(&format!("exec {line}"));
            let quiet = command.stdout(Stdio::null()).stderr(Stdio::null());
            desk.running.push(Running(quiet.spawn().unwrap()));
        }
        eventually("weir serves", || UnixStream::connect(&control).ok());
        desk
    }

    /// A line as it is typed, except for paths outside the test and a program that needs a screen.
    fn shell(&self, line: &str) -> Command {
        let here = format!("{}/", self.dir.path().display());
        let line = line.replace("/tmp/", &here).replace("/run/weir/", &here);
        let line = line.replace("wireshark -k -i -", "wc -c");
        let built = Path::new(env!("CARGO_BIN_EXE_weir-keeper")).parent().unwrap();
        let path = std::env::var("PATH").unwrap();
        let mut command = Command::new("bash");
        command.args(["-o", "pipefail", "-c", &line]).current_dir(&here).stdin(Stdio::null());
        command.env("PATH", format!("{here}bin:{}:{path}", built.display()));
        command
    }

    /// Types a line, and Ctrl-C if it would not end.
    fn types(&self, typed: &Typed) {
        let endless = typed.is_endless();
        let mut command = self.shell(&typed.line);
        if endless {
            let inner = command.get_args().map(ToOwned::to_owned).collect::<Vec<_>>();
            let mut timed = Command::new("timeout");
            timed.args(["--signal=INT", "--kill-after=60", "1", "bash"]).args(inner);
            timed.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
            timed.current_dir(self.dir.path()).stdin(Stdio::null());
            command = timed;
        }
        let output = command.output().unwrap();
        let says = String::from_utf8_lossy(&output.stderr);
        let (place, line, status) = (&typed.place, &typed.line, output.status);
        let ended = endless && status.code() == Some(TIMED_OUT)
            || line == "weir doctor" && status.code() == Some(UNWELL);
        let said = String::from_utf8_lossy(&output.stdout);
        if let Some((_, process)) = said.split_once("process ").filter(|_| line == "weir upgrade") {
            let digits: String = process.chars().take_while(char::is_ascii_digit).collect();
            self.later.set(Pid::from_raw(digits.parse().unwrap()));
        }
        assert!(status.success() || ended, "{place}: {line}: {status}: {says}");
    }

    /// All that a command can change: the settings of each interface, and the file with what differs from it.
    fn state(&self) -> (Value, String) {
        let says = |line: &str| self.shell(line).output().unwrap().stdout;
        let mut vifs: Value = serde_json::from_slice(&says("weir vif list --json")).unwrap();
        let configs = vifs.as_array_mut().unwrap().iter_mut().map(|vif| vif["config"].take());
        let configs = configs.collect();
        let file = says("weir diff; cat weir.toml");
        (configs, String::from_utf8(file).unwrap())
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
    assert!(checked >= 12, "{checked}");
}

#[test]
fn each_documented_command_line_is_one_that_weir_understands() {
    let mut understood = 0;
    for typed in typed() {
        for words in typed.commands() {
            // A command for the service manager; tests/deb/steps.sh runs it.
            if words.first().is_some_and(|word| word == "tell-resolved") {
                continue;
            }
            if let Err(error) = parsed(&words) {
                use clap::error::ErrorKind as Kind;
                let asks = matches!(
                    error.kind(),
                    Kind::DisplayHelp
                        | Kind::DisplayVersion
                        | Kind::MissingRequiredArgument
                        | Kind::MissingSubcommand
                        | Kind::DisplayHelpOnMissingArgumentOrSubcommand
                );
                // A line of a block must be a whole command, while a span may only name one.
                let names = asks && !typed.in_block;
                assert!(names, "{}: weir {}: {error}", typed.place, words.join(" "));
            }
            understood += 1;
        }
    }
    assert!(understood >= 50, "{understood}");
}

#[test]
fn documented_commands_for_a_running_switch_work_twice() {
    let desk = Desk::start();
    let mut ran = Vec::new();
    let mut states = vec![desk.state()];
    let wanted = |it: &Typed| it.runs_here() && it.is_whole() && !it.starts_the_switch();
    let named = NAMED.iter().map(|line| {
        let place = "the prose".to_owned();
        Typed { place, line: (*line).to_owned(), in_block: true, elsewhere: false }
    });
    for typed in typed().into_iter().filter(wanted).chain(named) {
        if !ran.contains(&typed.line) {
            desk.types(&typed);
            let once = desk.state();
            desk.types(&typed);
            assert_eq!(desk.state(), once, "the second time: {}: {}", typed.place, typed.line);
            states.push(once);
            ran.push(typed.line);
        }
    }
    states.dedup();
    assert!(states.len() > 5, "the state tells of changes: {states:#?}");
    assert!(ran.len() >= 30, "{ran:#?}");
}

/// The language of blocks with output and explained formats, which nobody types.
const SHOWN: &str = "text";
/// The language of weir's configurations, each of which is checked.
const TOML: &str = "toml";

/// The beginnings of lines that no test runs, by document, with reasons.
const NOT_RUN: &[(&str, &str, &str)] = &[
    ("README.md", "make demo", "`make fresh` runs it on a new Debian"),
    ("docs/guide/agent.md", "strip ", "it makes a program smaller"),
    ("README.md", "make test", "it is what runs all others"),
    ("README.md", "sudo weir run", "the lines of keeper.md start the switch of this test"),
    (
        "docs/guide/benchmarks.md",
        "cargo run --release -p xtask -- bench",
        "`make bench` is all of it",
    ),
    (
        "docs/guide/configuration.md",
        "ssh -L",
        "it takes another host; the page's test opens the socket",
    ),
    (
        "docs/guide/migration.md",
        "qemu-system-x86_64 ...",
        "guest_moves_to_another_weir_and_back does it",
    ),
    ("docs/guide/kubevirt.md", "", "the domain is virt-launcher's, in a cluster"),
    (
        "docs/guide/libvirt.md",
        "",
        "it takes a libvirtd; cli/tests/libvirt.rs does as the page says",
    ),
    (
        "docs/guide/proxmox.md",
        "",
        "it takes Proxmox VE; cli/tests/plugged calls this hook as Proxmox VE does",
    ),
    ("docs/guide/migration.md", "migrate -d", "the same, by QEMU's other monitor"),
    (
        "docs/guide/without-root.md",
        "",
        "it takes Go and a user's systemd; cli/tests/runs/stream.rs runs gvproxy with these arguments",
    ),
    ("docs/guide/xen.md", "", "they are for dom0; tests/system/src/xen does as they do"),
    ("docs/install.md", "apt-get install -y make", "the job `package` of the workflow does it"),
    ("docs/install.md", "make deb", "tests/deb/run.sh tries what it makes"),
    ("docs/guide/first-vm.md", "cloud-hypervisor ", "it takes KVM; what weir prints for it is run"),
];

/// Sources that run blocks without naming the documents: they look for the comment in all documents.
const READS_ALL: &[&str] = &["tests/deb/steps.sh", "xtask/src/guides.rs", "xtask/src/examples.rs"];

fn is_there(by: &str, document: &str) -> bool {
    let name = Path::new(document).file_name().unwrap().to_str().unwrap();
    let source = fs::read_to_string(root().join(by));
    source.is_ok_and(|source| READS_ALL.contains(&by) || source.contains(name))
}

#[test]
fn each_line_that_a_reader_types_is_run_by_a_test() {
    let documents = documents();
    let blocks: Vec<_> = documents
        .iter()
        .flat_map(|(path, text)| blocks(text).into_iter().map(move |block| (path.as_str(), block)))
        .collect();
    let marked = blocks.iter().filter(|(_, block)| block.run_by.is_some());
    let run_elsewhere: BTreeSet<_> =
        marked.flat_map(|(_, block)| block.commands()).map(|(_, line)| line).collect();
    let (mut wrong, mut used) = (Vec::new(), BTreeSet::new());
    for (path, block) in &blocks {
        let place = |number: usize| format!("{path}:{number}");
        if let Some(by) = block.run_by {
            if !is_there(by, path) {
                wrong.push(format!("{}: {by} does not read it", place(block.first)));
            }
            continue;
        }
        let commands = block.commands();
        let not_run = |line: &str| {
            let mut reasons = NOT_RUN
                .iter()
                .filter(|(document, begin, _)| document == path && line.starts_with(begin));
            reasons.next()
        };
        if commands.is_empty() && ![SHOWN, TOML].contains(&block.language) {
            match not_run("") {
                Some(reason) => _ = used.insert(reason),
                None => wrong.push(format!(
                    "{}: a block of `{}` without a test: {:?}",
                    place(block.first),
                    block.language,
                    block.lines.first()
                )),
            }
        }
        for (number, line) in commands {
            let typed = Typed { place: place(number), line, in_block: true, elsewhere: false };
            if let Some(reason) = not_run(&typed.line) {
                used.insert(reason);
            } else if !typed.runs_here() && !run_elsewhere.contains(&typed.line) {
                wrong.push(format!("{}: no test runs it: {}", typed.place, typed.line));
            }
        }
    }
    let stale = NOT_RUN.iter().filter(|reason| !used.contains(reason));
    wrong.extend(stale.map(|(document, line, _)| format!("{document} has no line `{line}`")));
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The pages by whose first script guests have addresses, names and a way out, and the most commands of it: with the
/// package as root, and without root. The tests that run the pages try the guests.
const FEW: [(&str, usize); 2] = [("docs/guide/network.md", 3), ("docs/guide/without-root.md", 4)];

#[test]
fn guests_have_addresses_names_and_a_way_out_after_a_few_commands() {
    for (path, most) in FEW {
        let text = fs::read_to_string(root().join(path)).unwrap();
        let blocks = blocks(&text);
        let script = blocks.iter().find(|block| block.language == "sh").unwrap();
        let commands = script.commands();
        assert!(commands.len() <= most, "{path}: {commands:?}");
        let last = commands.last().map(|(_, line)| line.as_str());
        assert_eq!(last, Some("weir run weir.toml &"), "{path}");
    }
}

#[test]
fn a_domain_of_a_running_libvirt_is_in_weirs_network_after_two_commands() {
    let text = fs::read_to_string(root().join("docs/guide/libvirt.md")).unwrap();
    let blocks = blocks(&text);
    let shell: Vec<_> = blocks.iter().filter(|block| block.language == "sh").collect();
    let commands = shell.first().unwrap().commands();
    assert!(commands.len() <= 2, "{commands:?}");
    assert!(commands.last().unwrap().1.starts_with("weir libvirt define "), "{commands:?}");
    // The other commands look at the domain, and start it.
    let rest: Vec<_> = shell[1..].iter().flat_map(|block| block.commands()).collect();
    let is_more =
        |line: &str| !line.starts_with("virsh ") && !line.starts_with("weir libvirt check ");
    assert!(!rest.iter().any(|(_, line)| is_more(line)), "{rest:?}");
}

const GUIDE: &str = "docs/guide/json.md";

/// Commands that print no table.
const NO_TABLE: &[&str] = &[
    "run",
    "check",
    "upgrade",
    "save",
    "qemu-args",
    "vif add",
    "vif set",
    "vif del",
    "filter set",
    "filter clear",
    "group show",
    "group set",
    "group del",
    "group flush",
    "libvirt define",
    "libvirt undefine",
    "libvirt check",
    "libvirt hook",
    "libvirt install",
    "uplink bridge",
    "capture",
    "lab report",
    "lab calibrate",
    "lab soak",
    "lab check",
];

fn guide() -> String {
    documents().into_iter().find(|(path, _)| path == GUIDE).unwrap().1
}

/// The fields in the first column of the table that has this heading.
fn fields(heading: &str) -> BTreeSet<String> {
    let guide = guide();
    let table = guide.split(&format!("\n| `{heading}` |")).nth(1).expect(heading);
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let cells: Vec<_> = rows.filter_map(|row| row.split('|').nth(1)).collect();
    let names = cells.iter().flat_map(|cell| cell.split('`').skip(1).step_by(2));
    let of_top = names.filter(|name| !name.contains('.'));
    of_top.map(|name| name.trim_end_matches("[]").to_owned()).collect()
}

fn keys(value: &Value) -> BTreeSet<String> {
    let object = value.get(0).unwrap_or(value).as_object().expect("an object");
    object.keys().cloned().collect()
}

/// What `run` prints. A measurement fails if other tests leave no time for it.
fn printed<E: std::fmt::Display>(run: impl Fn(&mut Vec<u8>) -> Result<(), E>) -> Value {
    let output = eventually("time to measure", || {
        let mut output = Vec::new();
        match run(&mut output) {
            Ok(()) => Some(output),
            Err(error) if error.to_string().contains("no packet arrived") => None,
            Err(error) => panic!("{error}"),
        }
    });
    serde_json::from_slice(&output).unwrap_or_else(|error| panic!("{error}"))
}

fn lab(words: &str) -> Value {
    let command = LabCommand::try_parse_from(format!("weir-lab {words}").split(' ')).unwrap();
    printed(|out| weir_workbench::run(&command, out))
}

fn leaves(command: &clap::Command, name: &str, found: &mut Vec<(String, bool)>) {
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
        let name = format!("{name} {}", sub.get_name()).trim().to_owned();
        match sub.has_subcommands() {
            true => leaves(sub, &name, found),
            false => found.push((name, sub.get_arguments().any(|arg| arg.get_id() == "json"))),
        }
    }
}

#[test]
fn each_command_that_prints_a_table_prints_json_that_the_guide_describes() {
    let mut found = Vec::new();
    leaves(&Cli::command(), "", &mut found);
    found.retain(|(name, _)| !["demo", "bench", "lab"].contains(&name.as_str()));
    leaves(&LabCommand::command(), "lab", &mut found);
    let bench = weir_bench::args::Cli::command();
    found.push(("bench".into(), bench.get_arguments().any(|arg| arg.get_id() == "json")));
    leaves(&bench, "", &mut found);
    let guide = guide();
    for (name, has_json) in &found {
        assert_eq!(*has_json, !NO_TABLE.contains(&name.as_str()), "weir {name}");
        let described = guide.lines().any(|line| {
            line.split('`')
                .any(|it| it.starts_with(&format!("weir {name} ")) && it.ends_with("--json"))
        });
        assert!(!has_json || described, "{GUIDE} does not have `weir {name} --json`");
    }
    assert!(found.len() > 25, "{found:?}");
}

#[test]
fn json_has_the_fields_of_the_guide_and_is_alone_on_standard_output() {
    let demo = DemoArgs { seconds: 1, plain: false, json: true };
    let demo = printed(|out| weir_bench::demo::run(&demo, out, false));
    assert_eq!(keys(&demo), fields("weir demo --json"));
    let words = "weir-bench --json --seconds 1 --filter pps64_split".split(' ');
    let bench = weir_bench::args::Cli::try_parse_from(words).unwrap().bench;
    assert_eq!(keys(&printed(|out| weir_bench::run(&bench, out))), fields("weir bench --json"));
    assert_eq!(keys(&lab("run dong-fig12-15 --json --seed 1")), fields("weir lab run --json"));
    let listed: BTreeSet<_> =
        ["name", "points", "claims", "paper", "title"].map(str::to_owned).into();
    assert_eq!(keys(&lab("list --json")), listed);
    assert!(guide().contains("an array of `name`, `points`, `claims`, `paper`, `title`"));
}

#[test]
fn types_of_the_running_switch_are_those_of_the_openapi_document() {
    let openapi: Value =
        serde_json::from_str(include_str!("../../../../docs/openapi.json")).unwrap();
    let types = openapi["components"]["schemas"].as_object().unwrap();
    let guide = guide();
    let section = guide.split("## Of a running switch").nth(1).unwrap();
    let rows =
        section.lines().filter(|line| line.starts_with("| `weir ") && line.contains("--json"));
    let cells: Vec<_> = rows.filter_map(|row| row.split('|').nth(2)).collect();
    let quoted = cells.iter().flat_map(|cell| cell.split('`').skip(1).step_by(2));
    let named: Vec<_> = quoted.filter(|name| name.starts_with(char::is_uppercase)).collect();
    assert!(named.len() >= 10, "{named:?}");
    assert!(named.iter().all(|name| types.contains_key(*name)), "{named:?}");
    // Some outputs are checked: each required field of the document is present, and no unknown one is.
    let desk = Desk::start();
    for (line, name) in [
        ("stats --json", "SwitchStats"),
        ("reload --json", "Reloaded"),
        ("vif list --json", "VifStatus"),
    ] {
        let output = desk.shell(&format!("weir {line}")).output().unwrap();
        let value: Value = serde_json::from_slice(&output.stdout).unwrap();
        let known: BTreeSet<_> =
            types[name]["properties"].as_object().unwrap().keys().cloned().collect();
        let missing: Vec<_> = types[name]["required"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let has = keys(&value);
        assert!(has.is_subset(&known), "{line}: {:?}", has.difference(&known));
        assert!(missing.iter().all(|key| has.contains(*key)), "{line}: {has:?}");
    }
}
