//! `make test`: all checks, in the order in which they fail fastest.
//!
//! After a failure the other checks still run. The last line has the counts of all results.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};

use weir_bed::{
    error::{Error, Result, Tally},
    lab::Lab,
    packages,
    workspace::{Programs, Workspace},
};
use weir_benches::instructions::{self, Outcome};
use weir_system_tests::{
    frontends,
    guests::{self, SystemTest},
    xen,
};

use crate::{attack, check, examples, guides, life};

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
    let mut tally = selection.step("fmt", || check(workspace, "fmt", &["fmt", "--all", "--check"]));
    tally += side_by_side(
        || {
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
            tally += selection.step("build", || {
                let args = ["test", "--no-run", "--workspace"];
                check(workspace, "build", &args)
            });
            tally
        },
        || beside_the_compiler(workspace, selection),
    );
    install_what_tests_run(workspace, selection);
    tally += side_by_side(
        || selection.step("unit", || tests(workspace, &["--workspace"], &[])),
        || beside_unit_tests(workspace, selection),
    );
    tally += selection.step("examples", || examples::check(workspace, selection));
    tally += selection.step("guides", || guides::check(workspace, selection, false));
    let selected: Vec<_> =
        guests::ALL.iter().filter(|test| selection.includes(test.name)).collect();
    if !selected.is_empty() {
        tally += timed("guests", &|| system_tests(workspace, selection, &selected));
    }
    tally += selection.step("frontends", || front_ends(workspace, selection));
    tally += selection.step("xen", || on_xen(workspace, selection));
    println!("all of it took {:.0} s", start.elapsed().as_secs_f32());
    tally
}

/// Runs two lists of steps at the same time.
fn side_by_side(here: impl FnOnce() -> Tally, beside: impl FnOnce() -> Tally + Send) -> Tally {
    std::thread::scope(|threads| {
        let beside = threads.spawn(beside);
        let mut tally = here();
        tally += beside.join().unwrap_or_else(|_| Tally::failed("a step that panicked"));
        tally
    })
}

/// The release build, whose last crates leave a processor idle, and steps that mostly wait, and that other load makes
/// slower but not wrong. Cargo locks each profile's directory separately.
fn beside_the_compiler(workspace: &Workspace, selection: &Selection) -> Tally {
    let mut tally = selection.step("release", || {
        Programs::build(workspace)?;
        Ok(checked("release", true))
    });
    tally += selection.step("attack", || attack::survived(workspace, selection));
    tally += selection.step("soak", || life::soak_short(workspace, selection));
    tally
}

/// Steps that compute or count, and that other load makes slower but not wrong. Unit tests mostly wait.
fn beside_unit_tests(workspace: &Workspace, selection: &Selection) -> Tally {
    let mut tally =
        selection.step("model", || tests(workspace, MODEL_CHECKS, &[("RUSTFLAGS", "--cfg loom")]));
    tally += selection.step("instructions", || count_instructions(workspace));
    tally += selection.step("lab-soak", || {
        let weir = Programs::build(workspace)?.weir();
        let passed = shown(workspace, weir.as_os_str(), LAB_SOAK, &[], |_| ())?;
        Ok(checked("lab-soak", passed))
    });
    tally
}

/// Tests whose program is missing are skipped. As root the programs are installed.
fn install_what_tests_run(workspace: &Workspace, selection: &Selection) {
    if !selection.includes("unit") || !packages::is_root() {
        return;
    }
    if let Err(error) = packages::ensure(workspace) {
        println!("{error}\nwhat needs these packages is skipped");
    }
}

/// Runs a step and prints its duration. An error counts as a failure.
pub fn timed(name: &str, run: &dyn Fn() -> Result<Tally>) -> Tally {
    let start = Instant::now();
    let tally = run().unwrap_or_else(|error| {
        println!("{error}\n{name} ... FAILED");
        Tally::failed(format!("{name}: {error}"))
    });
    println!("{name} took {:.0} s", start.elapsed().as_secs_f32());
    tally
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

/// The model checks of the rings, with a target directory of their own, so that nothing else is rebuilt.
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

/// Runs `cargo test`. Each test counts, including those of suites behind a failed one.
pub fn tests(workspace: &Workspace, args: &[&str], environment: &[(&str, &str)]) -> Result<Tally> {
    let start = Instant::now();
    let build = [&["test", "--no-run"], args].concat();
    if !cargo(workspace, &build, environment, |_| ())? {
        return Ok(Tally::failed("tests that do not compile"));
    }
    println!("built in {:.0} s", start.elapsed().as_secs_f32());
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
            // A test may report it more than once.
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
            for test in selected {
                tally += test.tally(&lab);
            }
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
