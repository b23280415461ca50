//! `make test`: all checks, those that fail fastest first. Steps that compute run beside steps that wait.
//!
//! After a failure the other checks still run. The last line has the counts of all results.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs::{self, File},
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{self, Child, Command, ExitStatus, Stdio},
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use weir_bed::{
    error::{Error, Result, Tally},
    lab::Lab,
    packages,
    process::{run_in, wait_until},
    workspace::{Programs, Workspace},
};
use weir_benches::instructions::{self, Outcome};
use weir_system_tests::{
    frontends,
    guests::{self, SystemTest},
    xen,
};

use crate::{check, examples, guides, trials};

/// The options of `xtask test`.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Only steps and system tests whose name contains this.
    pub only: Option<String>,
    /// A built weir to test instead of this workspace's.
    pub weir: Option<PathBuf>,
}

impl Selection {
    fn includes(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| name.contains(only.as_str()))
    }

    /// Runs a step if it is selected.
    fn step(&self, name: &str, run: impl Fn() -> Result<Tally>) -> Tally {
        if self.includes(name) { timed(name, &run) } else { Tally::default() }
    }
}

/// Runs the selected steps.
pub fn run(workspace: &Workspace, selection: &Selection) -> Tally {
    let start = Instant::now();
    thread::spawn(|| {
        thread::sleep(WHOLE_LIMIT);
        let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        let names = running.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        println!("still running after {WHOLE_LIMIT:?}: {names}\n{}", threads_below(process::id()));
        process::exit(1);
    });
    let mut tally = selection.step("fmt", || check(workspace, "fmt", &["fmt", "--all", "--check"]));
    tally += side_by_side(&[&|| the_compiler(workspace, selection), &|| {
        beside_the_compiler(workspace, selection)
    }]);
    tally += side_by_side(&[
        &|| selection.step("unit", || unit_tests(workspace)),
        &|| guests(workspace, selection, "guests", guests::ALL, GUESTS_TOGETHER),
        &|| beside_guests(workspace, selection),
    ]);
    // These tests measure, so each runs alone.
    tally += guests(workspace, selection, "undisturbed guests", guests::UNDISTURBED, 1);
    tally += selection.step("guides", || guides::check(workspace, selection, false));
    println!("all of it took {:.0} s", start.elapsed().as_secs_f32());
    tally
}

/// A run that takes longer has come to a standstill.
const WHOLE_LIMIT: Duration = Duration::from_secs(75 * 60);

/// Names of what runs.
static RUNNING: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Runs `run`, and lists its name among the running steps meanwhile.
fn named<T>(name: &str, run: impl FnOnce() -> T) -> T {
    let running = || RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    running().insert(name.to_owned());
    let result = run();
    running().remove(name);
    result
}

/// Runs lists of steps at the same time.
fn side_by_side(lists: &[&(dyn Fn() -> Tally + Sync)]) -> Tally {
    std::thread::scope(|threads| {
        let lists: Vec<_> = lists.iter().map(|list| threads.spawn(list)).collect();
        lists.into_iter().fold(Tally::default(), |mut tally, list| {
            tally += list.join().unwrap_or_else(|_| Tally::failed("a step that panicked"));
            tally
        })
    })
}

/// Runs each item, `count` of them at the same time.
fn together<T: Sync>(count: usize, items: &[T], run: impl Fn(&T) -> Tally + Sync) -> Tally {
    let left = Mutex::new(items.iter());
    let next = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
    let some = || {
        let mut tally = Tally::default();
        while let Some(item) = next() {
            tally += run(item);
        }
        tally
    };
    side_by_side(&vec![&some as &(dyn Fn() -> Tally + Sync); count])
}

/// Steps that compute, most of them with all processors.
fn the_compiler(workspace: &Workspace, selection: &Selection) -> Tally {
    let mut tally = selection.step("clippy", || {
        let args = ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"];
        check(workspace, "clippy", &args)
    });
    tally += selection.step("doc", || {
        let args = ["doc", "--workspace", "--no-deps", "--quiet"];
        let denied = [("RUSTDOCFLAGS", "-D warnings")];
        Ok(checked("doc", cargo(workspace, &args, &denied, |_| ())?))
    });
    tally += selection.step("deny", || check::deny(workspace));
    tally += selection.step("build", || check(workspace, "build", BUILD_TESTS));
    tally +=
        selection.step("model", || tests(workspace, MODEL_CHECKS, &[("RUSTFLAGS", "--cfg loom")]));
    tally += selection.step("lab-soak", || {
        let weir = Programs::build(workspace)?.weir();
        let passed = shown(workspace, weir.as_os_str(), LAB_SOAK, &[], |_| ())?;
        Ok(checked("lab-soak", passed))
    });
    tally
}

/// The release build, and steps that mostly wait, and that other load makes slower but not wrong. Cargo locks each
/// profile's directory separately.
fn beside_the_compiler(workspace: &Workspace, selection: &Selection) -> Tally {
    install_what_tests_run(workspace, selection);
    let mut tally = selection.step("release", || {
        Programs::build(workspace)?;
        Ok(checked("release", true))
    });
    tally += selection.step("attack", || trials::survived(workspace, selection));
    tally += selection.step("soak", || trials::soak_short(workspace, selection));
    tally
}

/// System tests that run at the same time, beside the unit tests. With two, some of them had no CPU for 20 s.
const GUESTS_TOGETHER: usize = 1;

/// Runs system tests with guests, `count` at the same time.
fn guests(
    workspace: &Workspace,
    selection: &Selection,
    name: &str,
    all: &[SystemTest],
    count: usize,
) -> Tally {
    let selected: Vec<_> = all.iter().filter(|test| selection.includes(test.name)).collect();
    if selected.is_empty() {
        return Tally::default();
    }
    timed(name, &|| system_tests(workspace, selection, &selected, count))
}

/// Steps that other load makes slower but not wrong, and that together take as long as the guests.
fn beside_guests(workspace: &Workspace, selection: &Selection) -> Tally {
    let mut tally = selection.step("instructions", || count_instructions(workspace));
    tally += selection.step("examples", || examples::check(workspace, selection));
    tally += selection.step("frontends", || front_ends(workspace, selection));
    // Xen comes last, when most of the others have ended: xl waits for a back end for 10 s only.
    tally += selection.step("xen", || on_xen(workspace, selection));
    tally
}

/// Tests whose program is missing are skipped. As root the programs are installed.
fn install_what_tests_run(workspace: &Workspace, selection: &Selection) {
    if !selection.includes("unit") || !packages::is_root() {
        return;
    }
    for ensure in [packages::ensure, packages::ensure_for_examples, packages::ensure_browser] {
        if let Err(error) = ensure(workspace) {
            println!("{error}\nwhat needs these packages is skipped");
        }
    }
}

/// Runs a step and prints its duration, and how busy the machine was. An error counts as a failure.
pub fn timed(name: &str, run: &dyn Fn() -> Result<Tally>) -> Tally {
    let (start, before) = (Instant::now(), processors());
    let tally = named(name, run).unwrap_or_else(|error| {
        println!("{error}\n{name} ... FAILED");
        Tally::failed(format!("{name}: {error}"))
    });
    let busy = before.zip(processors()).map_or(0, |((busy_then, all_then), (busy, all))| {
        100 * busy.saturating_sub(busy_then) / all.saturating_sub(all_then).max(1)
    });
    let took = start.elapsed().as_secs_f32();
    println!("{name} took {took:.0} s, of which the processors were busy for {busy} %");
    tally
}

/// The time of all processors since the machine has started (`proc_stat(5)`): busy, and in all.
fn processors() -> Option<(u64, u64)> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    let words = text.lines().next()?.split_whitespace().skip(1);
    let times: Vec<u64> = words.take(8).filter_map(|word| word.parse().ok()).collect();
    let [_, _, _, idle, waiting, ..] = times[..] else { return None };
    let all: u64 = times.iter().sum();
    Some((all - idle - waiting, all))
}

/// A check by one run of cargo.
pub fn check(workspace: &Workspace, name: &str, args: &[&str]) -> Result<Tally> {
    Ok(checked(name, cargo(workspace, args, &[], |_| ())?))
}

/// Prints the result of a check, and counts it.
pub fn checked(name: &str, passed: bool) -> Tally {
    println!("{name} ... {}", if passed { "ok" } else { "FAILED" });
    if passed { Tally::passed() } else { Tally::failed(name) }
}

/// Runs a part of `make frontends`.
fn front_ends(workspace: &Workspace, selection: &Selection) -> Result<Tally> {
    if !packages::is_root() {
        println!("skipped: needs root: weir with other front ends");
        return Ok(Tally::skipped());
    }
    frontends::run_short(&Lab::prepare(workspace.clone(), selection.weir.clone())?)
}

/// Runs `make test-xen`.
fn on_xen(workspace: &Workspace, selection: &Selection) -> Result<Tally> {
    if packages::is_root() {
        let (weir, attachments) = (selection.weir.clone(), xen::ATTACHMENTS);
        let only = None;
        let (rounds, clock) = (None, xen::Clock::Host);
        let selection = xen::Selection { only, weir, attachments, rounds, clock };
        return xen::run(workspace, &selection);
    }
    println!("skipped: needs root here (`make test-xen` may do without): weir on a real Xen");
    Ok(Tally::skipped())
}

/// The model checks of the rings, with their own target directory, so that nothing else is rebuilt.
const MODEL_CHECKS: &[&str] = &[
    "-p",
    "weir-ring",
    "-p",
    "weir-netif",
    "-p",
    "weir-guestmem",
    "-p",
    "weir-engine",
    "--test",
    "model",
    "--profile",
    "model",
    "--target-dir",
    "target/loom",
];

/// A minute of `weir lab soak`, with a fixed seed: a new failure then has its cause in a change.
const LAB_SOAK: &[&str] = &["lab", "soak", "--seconds", "60", "--from", "1"];

/// Builds all tests. The examples, which `cargo test` would build too, are checked by clippy.
const BUILD_TESTS: &[&str] = &["test", "--no-run", "--workspace", "--tests"];

/// Programs of tests that run at the same time. Each has a thread for each processor, but most tests wait.
const TESTED_TOGETHER: usize = 2;

/// Runs `cargo test`. Each test counts, including those of suites behind a failed one.
pub fn tests(workspace: &Workspace, args: &[&str], environment: &[(&str, &str)]) -> Result<Tally> {
    let start = Instant::now();
    let build = [&["test", "--no-run"], args].concat();
    if !cargo(workspace, &build, environment, |_| ())? {
        return Ok(Tally::failed("tests that do not compile"));
    }
    println!("built in {:.0} s", start.elapsed().as_secs_f32());
    built_tests(workspace, args, environment)
}

fn built_tests(
    workspace: &Workspace,
    args: &[&str],
    environment: &[(&str, &str)],
) -> Result<Tally> {
    let mut suites = Suites::default();
    let run = [&["test", "--no-fail-fast"], args].concat();
    let passed = cargo(workspace, &run, environment, |line| suites.see(line))?;
    let mut tally = suites.tally();
    // A failure outside of suites has no line, such as an example of the documentation that does not compile.
    if !passed && tally.failed == 0 {
        tally += Tally::failed(format!("cargo {}", run.join(" ")));
    }
    Ok(tally)
}

/// Runs all tests of the workspace. `cargo test` would run one program after the other.
fn unit_tests(workspace: &Workspace) -> Result<Tally> {
    if !cargo(workspace, BUILD_TESTS, &[], |_| ())? {
        return Ok(Tally::failed("tests that do not compile"));
    }
    let cargo = Workspace::cargo();
    let format = ["--message-format", "json-render-diagnostics"];
    let told = run_in(&[&[&*cargo], BUILD_TESTS, &format].concat(), &workspace.root, &[])?;
    let mut programs: Vec<_> = told.lines().filter_map(Program::told).collect();
    if programs.is_empty() {
        return Err(Error::parse("programs of tests", told));
    }
    // The longest are integration tests, and the last ones to run should be short.
    programs
        .sort_by(|one, other| (!one.integrates, &one.name).cmp(&(!other.integrates, &other.name)));
    let logs = workspace.target("tests")?;
    let run = |program: &Program| {
        named(&program.name, || program.run(&logs)).unwrap_or_else(|error| {
            println!("{error}");
            Tally::failed(error.to_string())
        })
    };
    let mut tally = together(TESTED_TOGETHER, &programs, run);
    tally += built_tests(workspace, &["--workspace", "--doc"], &[])?;
    Ok(tally)
}

/// A program of tests that takes longer has come to a standstill: the longest takes three minutes.
const PROGRAM_LIMIT: Duration = Duration::from_secs(15 * 60);

/// A program of tests.
#[derive(Debug, PartialEq, Eq)]
struct Program {
    /// The names of package and target.
    name: String,
    /// True for the integration tests of a package.
    integrates: bool,
    path: PathBuf,
    /// The package's directory, in which cargo would run the program.
    dir: PathBuf,
}

impl Program {
    /// The program that a line of cargo's JSON names.
    fn told(line: &str) -> Option<Self> {
        let told: serde_json::Value = serde_json::from_str(line).ok()?;
        let path = told["executable"].as_str().filter(|_| told["profile"]["test"] == true)?;
        let dir = Path::new(told["manifest_path"].as_str()?).parent()?;
        let target = &told["target"];
        let package = dir.file_name()?.display();
        Some(Self {
            name: format!("{package}: {}", target["name"].as_str()?),
            integrates: target["kind"][0] == "test",
            path: path.into(),
            dir: dir.into(),
        })
    }

    /// Runs the tests, and prints what they have printed when all have ended.
    fn run(&self, logs: &Path) -> Result<Tally> {
        let log = logs.join(self.path.file_name().unwrap_or_default());
        let failed = Error::io("run the tests that write", &log);
        let ran = File::create(&log).and_then(|out| {
            let mut tests = Command::new(&self.path);
            tests.current_dir(&self.dir).env("CARGO_MANIFEST_DIR", &self.dir).stdin(Stdio::null());
            tests.stdout(out.try_clone()?).stderr(out).spawn()
        });
        let status = end_of(ran.map_err(failed)?, &self.name, PROGRAM_LIMIT)?;
        let told = fs::read(&log).map_err(Error::io("read", &log))?;
        let told = String::from_utf8_lossy(&told);
        println!("     Running {} ({})\n{told}", self.name, self.path.display());
        let mut suites = Suites::default();
        told.lines().for_each(|line| suites.see(line));
        let mut tally = suites.tally();
        if !status.success() && tally.failed == 0 {
            tally += Tally::failed(format!("{}: {status}", self.name));
        }
        Ok(tally)
    }
}

/// Waits for the end of a program. One that runs for longer than `limit` is ended, after a look at what it waits for.
fn end_of(mut child: Child, name: &str, limit: Duration) -> Result<ExitStatus> {
    let mut status = None;
    let ended = wait_until(name, limit, || {
        status = child.try_wait().map_err(Error::io("wait for", name.as_ref()))?;
        Ok(status.is_some())
    });
    if ended.is_err() {
        println!("{name} still runs after {limit:?}:\n{}", threads_below(child.id()));
        child.kill().map_err(Error::io("end", name.as_ref()))?;
    }
    child.wait().map_err(Error::io("wait for", name.as_ref()))
}

/// A process and those that it started: each thread with its name, state, and what it waits for (`proc_pid_stat(5)`).
fn threads_below(pid: u32) -> String {
    let read = |path: String| fs::read_to_string(path).unwrap_or_default();
    let command = read(format!("/proc/{pid}/cmdline")).replace('\0', " ");
    let mut told = format!("{pid} {command}\n");
    for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let look = |name| read(task.path().join(name).display().to_string());
        let stat = look("stat");
        let state = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next());
        let (name, waits, call) = (look("comm"), look("wchan"), look("syscall"));
        let words = [name.trim(), state.unwrap_or("?"), &waits, call.trim()].join(" ");
        told.push_str(&format!("    {words}\n"));
        for child in look("children").split_whitespace().filter_map(|child| child.parse().ok()) {
            told.push_str(&threads_below(child));
        }
    }
    told
}

/// The results of suites from their output.
#[derive(Debug, Default)]
struct Suites {
    done: Tally,
    /// True if the last suite has begun and not ended.
    runs: bool,
    /// True if the last suite is listing its failures.
    tells: bool,
    /// Tests of the last suite that have reported that they were skipped. The harness counts them as passed.
    skipped: BTreeSet<String>,
}

impl Suites {
    fn see(&mut self, line: &str) {
        if let Some((_, test)) = line.split_once(SKIPPED_TEST) {
            // A test may report the skip more than once.
            self.skipped.insert(test.split(": ").next().unwrap_or(test).to_owned());
        } else if let Some(more) = test_result(line) {
            self.done += skip(more, std::mem::take(&mut self.skipped).len());
            (self.runs, self.tells) = (false, false);
        } else if is_beginning(line) {
            self.end();
            self.runs = true;
        } else if line == "failures:" && !self.tells {
            self.tells = true;
            self.done.failures.push("tests:".to_owned());
        } else if let Some(told) = self.done.failures.last_mut().filter(|_| self.tells) {
            told.push('\n');
            told.push_str(line);
        }
    }

    /// Ends the last suite, which has crashed unless it has given its result.
    fn end(&mut self) {
        self.skipped.clear();
        if self.runs {
            self.done += Tally::failed("a suite that crashed");
        }
    }

    /// The counts after the last line of output.
    fn tally(mut self) -> Tally {
        self.end();
        self.done
    }
}

/// The text that `weir_testing::skipped` prints. The harness may have begun the line.
const SKIPPED_TEST: &str = "skipped test: ";

/// Moves `skipped` tests from the passed to the skipped ones.
fn skip(mut tally: Tally, skipped: usize) -> Tally {
    let skipped = u32::try_from(skipped).unwrap_or(u32::MAX).min(tally.passed);
    tally.passed -= skipped;
    tally.skipped += skipped;
    tally
}

/// True if the line is like `running 5 tests`.
fn is_beginning(line: &str) -> bool {
    let count = line.strip_prefix("running ").and_then(|rest| rest.split_once(" test"));
    count.is_some_and(|(count, rest)| count.parse::<u32>().is_ok() && ["", "s"].contains(&rest))
}

/// Checks that the data path takes no more instructions than recorded.
fn count_instructions(workspace: &Workspace) -> Result<Tally> {
    let skipped = |why: &str| {
        println!("skipped: instructions: {why}");
        Tally::skipped()
    };
    // System calls are counted only as root. `compare` prints that.
    let is_root = packages::is_root();
    let needed = [packages::VALGRIND, packages::STRACE];
    let needed = if is_root { &needed[..] } else { &needed[..1] };
    if !needed.iter().all(|tool| Path::new(tool).exists()) {
        if !is_root {
            return Ok(skipped("needs valgrind"));
        }
        packages::ensure(workspace)?;
    }
    Ok(match instructions::compare(workspace) {
        Ok(Outcome::Incomparable(why)) => skipped(&why),
        Ok(outcome) => {
            let mut tally = checked("instructions", outcome == Outcome::Held);
            tally.skipped += u32::from(!is_root);
            tally
        }
        Err(error) => {
            println!("{error}\ninstructions ... FAILED");
            Tally::failed(format!("instructions: {error}"))
        }
    })
}

fn system_tests(
    workspace: &Workspace,
    selection: &Selection,
    selected: &[&SystemTest],
    count: usize,
) -> Result<Tally> {
    let mut tally = Tally::default();
    let weir = match &selection.weir {
        Some(weir) => weir.clone(),
        None => Programs::build(workspace)?.weir(),
    };
    if !packages::is_root() {
        println!("skipped: needs root: {} system tests with real guests", selected.len());
        let missing = packages::missing();
        if !missing.is_empty() {
            println!("skipped: these packages are missing too: {}", missing.join(" "));
        }
        tally.skipped += u32::try_from(selected.len()).unwrap_or(u32::MAX);
        return Ok(tally);
    }
    match Lab::prepare(workspace.clone(), Some(weir)) {
        Ok(lab) => {
            tally += together(count, selected, |test| named(test.name, || test.tally(&lab)));
        }
        Err(error) => {
            let what = format!("system tests could not be prepared: {error}");
            println!("{what}");
            tally.failed += u32::try_from(selected.len()).unwrap_or(u32::MAX);
            tally.failures.push(what);
        }
    }
    Ok(tally)
}

/// Runs cargo as [`shown`] does.
fn cargo(
    workspace: &Workspace,
    args: &[&str],
    environment: &[(&str, &str)],
    see: impl FnMut(&str),
) -> Result<bool> {
    shown(workspace, Workspace::cargo().as_ref(), args, environment, see)
}

/// Runs a program in the workspace, prints its output, and gives each line of its standard output to `see`. True if
/// the program has succeeded.
pub fn shown(
    workspace: &Workspace,
    program: &OsStr,
    args: &[&str],
    environment: &[(&str, &str)],
    mut see: impl FnMut(&str),
) -> Result<bool> {
    let set = environment.iter().map(|(name, value)| format!("{name}='{value}' "));
    let name = Path::new(program).file_name().unwrap_or(program).display();
    let what = format!("{}{name} {}", set.collect::<String>(), args.join(" "));
    println!("$ {what}");
    let failed = |source| Error::Io { what: what.clone(), source };
    let mut child = Command::new(program)
        .args(args)
        .envs(environment.iter().copied())
        .current_dir(&workspace.root)
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    for line in child.stdout.take().into_iter().flat_map(|out| BufReader::new(out).split(b'\n')) {
        // A test may print any bytes.
        let line = line.map_err(failed)?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        see(&line);
    }
    Ok(child.wait().map_err(failed)?.success())
}

/// The counts in `test result: ok. 5 passed; 0 failed; 1 ignored; ...`.
fn test_result(line: &str) -> Option<Tally> {
    let counts = line.strip_prefix("test result: ")?.split_once(". ")?.1;
    let count = |name: &str| {
        let part = counts.split("; ").find(|part| part.ends_with(name))?;
        part.split_whitespace().next()?.parse().ok()
    };
    Some(Tally {
        passed: count(" passed")?,
        failed: count(" failed")?,
        skipped: count(" ignored")?,
        failures: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargos_counts_are_read() {
        let line = "test result: FAILED. 21 passed; 2 failed; 1 ignored; 0 measured; \
                    0 filtered out; finished in 0.19s";
        let tally = Tally { passed: 21, failed: 2, skipped: 1, failures: Vec::new() };
        assert_eq!(test_result(line), Some(tally));
        assert_eq!(test_result("test a::b ... ok"), None);
    }

    #[test]
    fn a_test_that_says_it_was_skipped_has_not_passed() {
        let result = "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out";
        let one = "skipped test: tests::root_a: needs root: a TAP";
        let begun = "test tests::root_b ... skipped test: tests::root_b: needs root: a TAP";
        let tally = seen(&["running 4 tests", one, begun, result, "running 4 tests", result]);
        assert_eq!((tally.passed, tally.failed, tally.skipped), (4, 0, 4));
    }

    #[test]
    fn a_suite_that_crashes_has_failed() {
        let result = "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out";
        let begins = "running 2 tests";
        assert_eq!(counts(&[begins, result, "running 1 test", result]), (4, 0));
        assert_eq!(counts(&[begins, "test a ... ok", begins, result]), (2, 1));
        assert_eq!(counts(&[begins, result, begins, "running out of tests"]), (2, 1));
    }

    #[test]
    fn what_failed_is_told_with_what_it_printed() {
        let result =
            "test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out";
        let printed = ["---- a stdout ----", "it did", "", "failures:", "    a", ""];
        let lines = [&["running 2 tests", "", "failures:", ""][..], &printed, &[result, "more"]];
        let tally = seen(&lines.concat());
        assert_eq!((tally.passed, tally.failed), (1, 1));
        assert_eq!(tally.failures, [format!("tests:\n\n{}", printed.join("\n"))]);
    }

    #[test]
    fn cargo_tells_which_programs_have_tests() {
        let line = |kind: &str, test: bool| {
            serde_json::json!({
                "manifest_path": "/w/cli/Cargo.toml",
                "target": { "kind": [kind], "name": "runs" },
                "profile": { "test": test },
                "executable": "/t/runs-1",
            })
            .to_string()
        };
        let (name, path, dir) = ("cli: runs".into(), "/t/runs-1".into(), "/w/cli".into());
        let program = Program { name, integrates: true, path, dir };
        assert_eq!(Program::told(&line("test", true)), Some(program));
        assert!(Program::told(&line("lib", true)).is_some_and(|it| !it.integrates));
        assert_eq!(Program::told(&line("bin", false)), None);
    }

    #[test]
    fn a_program_that_tells_of_no_failure_and_fails_has_failed() {
        let dir = Workspace::find().unwrap().target("tests").unwrap();
        let program = |path: &str| Program {
            name: path.into(),
            integrates: false,
            path: path.into(),
            dir: dir.clone(),
        };
        let run = |path| program(path).run(&dir);
        let counts = |path| run(path).map(|it| (it.passed, it.failed)).unwrap();
        assert_eq!((counts("/bin/true"), counts("/bin/false")), ((0, 0), (0, 1)));
        assert!(run("/nowhere/tests").is_err());
    }

    #[test]
    fn a_program_that_stands_still_is_ended_and_has_failed() {
        let child = Command::new("sleep").arg("1000").spawn().unwrap();
        assert!(!end_of(child, "sleep", Duration::from_millis(300)).unwrap().success());
        let told = threads_below(std::process::id());
        assert!(told.contains("steps::tests::a R"), "{told}");
    }

    fn seen(lines: &[&str]) -> Tally {
        let mut suites = Suites::default();
        lines.iter().for_each(|line| suites.see(line));
        suites.tally()
    }

    fn counts(lines: &[&str]) -> (u32, u32) {
        let tally = seen(lines);
        (tally.passed, tally.failed)
    }
}
