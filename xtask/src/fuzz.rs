//! `make fuzz`: every fuzz target for its share of the time, from the corpus in the repository: one archive of tar
//! for each target, and below `target/` a folder of files.
//!
//! Targets have cargo-fuzz's layout, but need neither cargo-fuzz nor a nightly compiler: libFuzzer is a crate, and
//! its coverage comes from an LLVM pass in every release of rustc. `cargo +nightly fuzz run TARGET` adds the address
//! sanitizer.

use std::{
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use weir_bed::{
    error::{Error, Result, check},
    process,
    workspace::Workspace,
};

/// Compiler flags that report the edges of an input to libFuzzer.
const RUSTFLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions=on -Coverflow-checks=on \
    -Ccodegen-units=1";

/// An explicit target keeps the flags from build scripts.
const TRIPLE: &str = if cfg!(target_arch = "aarch64") {
    "aarch64-unknown-linux-gnu"
} else {
    "x86_64-unknown-linux-gnu"
};

/// The options of `make fuzz`.
#[derive(Clone, Debug)]
pub struct Selection {
    /// Only targets whose name contains this.
    pub only: Option<String>,
    /// Time of all targets together.
    pub time: Duration,
    /// Add inputs that reach new code to the repository's corpus, and write what was reached into the table of
    /// `fuzz/README.md`. A target without a corpus gets its first one.
    pub keep: bool,
}

/// The result of one target.
#[derive(Clone, Debug)]
struct Row {
    target: String,
    /// Number of inputs that were run.
    inputs: u64,
    /// Edges that the corpus reached before the run, in weir's code and its libraries.
    was: u64,
    /// The same with the run's inputs, and all edges of the program.
    covered: u64,
    edges: u64,
    /// The input that ended the program, written by libFuzzer.
    finding: Option<PathBuf>,
}

/// Runs the selected targets. False if an input ended a target.
pub fn run(workspace: &Workspace, selection: &Selection) -> Result<bool> {
    let root = workspace.root.join("fuzz");
    let chosen =
        |name: &String| selection.only.as_ref().is_none_or(|only| name.contains(only.as_str()));
    let targets: Vec<String> = targets(&root)?.into_iter().filter(chosen).collect();
    check(!targets.is_empty(), || String::from("no fuzz target has such a name"))?;
    build(&root, &targets)?;
    let each = selection.time / u32::try_from(targets.len()).unwrap_or(u32::MAX);
    let mut rows = Vec::new();
    for target in targets {
        rows.push(fuzz(&root, target, each, selection.keep)?);
    }
    if selection.keep {
        let page = root.join("README.md");
        let text = fs::read_to_string(&page).map_err(Error::io("read", &page))?;
        fs::write(&page, table(&text, &rows)).map_err(Error::io("write", &page))?;
    }
    Ok(report(&rows))
}

/// The names of the targets' files.
pub fn targets(root: &Path) -> Result<Vec<String>> {
    let dir = root.join("fuzz_targets");
    let entries = fs::read_dir(&dir).map_err(Error::io("list", &dir))?;
    let mut names: Vec<String> = entries
        .flatten()
        .filter_map(|entry| {
            entry.file_name().into_string().ok()?.strip_suffix(".rs").map(str::to_owned)
        })
        .collect();
    names.sort();
    Ok(names)
}

/// The target that takes the whole switch: a feature of the package.
const OF_SWITCH: &str = "control";

fn build(root: &Path, targets: &[String]) -> Result<()> {
    let mut command = Command::new(Workspace::cargo());
    command.args(["build", "--release", "--target", TRIPLE, "--target-dir", "target"]);
    command.args(targets.iter().flat_map(|target| ["--bin", target]));
    if !targets.iter().any(|target| target == OF_SWITCH) {
        command.arg("--no-default-features");
    }
    command.current_dir(root);
    let status = command.env("RUSTFLAGS", RUSTFLAGS).status().map_err(Error::io("build", root))?;
    check(status.success(), || String::from("the fuzz targets do not compile"))
}

/// Runs one target for `time`. New inputs go below `target/`, unless `keep` is set.
fn fuzz(root: &Path, target: String, time: Duration, keep: bool) -> Result<Row> {
    let program = root.join("target").join(TRIPLE).join("release").join(&target);
    let scratch = root.join("target").join("fuzz").join(&target);
    let (corpus, found) = (scratch.join("corpus"), scratch.join("found"));
    for dir in [&corpus, &found] {
        fs::create_dir_all(dir).map_err(Error::io("make", dir))?;
    }
    let archive = archive(root, &target);
    if archive.exists() || !keep {
        unpack(&archive, &corpus)?;
    }
    let log = scratch.join("log");
    let file = fs::File::create(&log).map_err(Error::io("make", &log))?;
    println!("{target}: {} s", time.as_secs());
    let status = Command::new(&program)
        .args([&found, &corpus])
        .arg(format!("-max_total_time={}", time.as_secs().max(1)))
        .arg(format!("-artifact_prefix={}/", scratch.display()))
        .args(["-print_final_stats=1", "-max_len=8192", "-timeout=30", "-rss_limit_mb=2048"])
        .stdout(Stdio::null())
        .stderr(file)
        .status()
        .map_err(Error::io("run", &program))?;
    if keep && status.success() {
        merge(&program, &corpus, &found)?;
        pack(&corpus, &archive)?;
    }
    let text = fs::read(&log).map_err(Error::io("read", &log))?;
    let text = String::from_utf8_lossy(&text);
    let finding = (!status.success()).then(|| finding(&text).unwrap_or(log));
    let inputs = after(&text, "stat::number_of_executed_units:").unwrap_or(0);
    let edges = counters(&text).unwrap_or(0);
    let covered = text.lines().rev().find_map(|line| after(line, " cov: ")).unwrap_or(0);
    let was = after(&text, "INITED cov:").unwrap_or(0);
    Ok(Row { target, inputs, was, covered, edges, finding })
}

/// The page with the rows of the targets that ran: a target's inputs are those of all its runs.
fn table(page: &str, rows: &[Row]) -> String {
    let with = |line: &str| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, name, inputs, ..] = cells[..] else { return line.to_owned() };
        // The row must contain numbers, to exclude rows of the table above it.
        let before = grouped(inputs);
        let row = rows.iter().find(|row| name.trim_matches('`') == row.target && row.edges > 0);
        row.zip(before).map_or(line.to_owned(), |(row, before)| {
            let Row { target, inputs, was, covered, edges, .. } = row;
            let [was, covered, edges] = [was, covered, edges].map(|it| thousands(*it));
            format!(
                "| `{target}` | {} | {was} | {covered} of {edges} |",
                thousands(before + inputs)
            )
        })
    };
    page.lines().map(|line| with(line) + "\n").collect()
}

/// A number with commas between groups of three digits.
fn thousands(number: u64) -> String {
    match number / 1000 {
        0 => number.to_string(),
        front => format!("{},{:03}", thousands(front), number % 1000),
    }
}

fn grouped(text: &str) -> Option<u64> {
    text.replace(',', "").parse().ok()
}

/// The number that follows the first `key`.
fn after(text: &str, key: &str) -> Option<u64> {
    let (_, rest) = text.split_once(key)?;
    let digits: String = rest.trim_start().chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// `INFO: Loaded 1 modules   (123456 inline 8-bit counters): ...`
fn counters(text: &str) -> Option<u64> {
    let (front, _) = text.split_once(" inline 8-bit counters")?;
    front.rsplit_once('(')?.1.parse().ok()
}

/// `Test unit written to PATH`
fn finding(text: &str) -> Option<PathBuf> {
    let (_, rest) = text.split_once("Test unit written to ")?;
    Some(PathBuf::from(rest.lines().next()?.trim()))
}

/// Adds the inputs of `found` whose coverage is not in `corpus`.
fn merge(program: &Path, corpus: &Path, found: &Path) -> Result<()> {
    let mut command = Command::new(program);
    command.arg("-merge=1").args([corpus, found]).stdout(Stdio::null()).stderr(Stdio::null());
    let status = command.status().map_err(Error::io("run", program))?;
    check(status.success(), || format!("the corpus of {} was not merged", program.display()))
}

fn report(rows: &[Row]) -> bool {
    println!("\n{:<20} {:>14} {:>8} {:>20}  finding", "target", "inputs", "was", "edges taken");
    for Row { target, inputs, was, covered, edges, finding } in rows {
        let finding =
            finding.as_ref().map_or(String::from("none"), |path| path.display().to_string());
        let taken = format!("{covered} of {edges}");
        println!("{target:<20} {inputs:>14} {was:>8} {taken:>20}  {finding}");
    }
    println!("{:<20} {:>14}", "all", rows.iter().map(|row| row.inputs).sum::<u64>());
    rows.iter().all(|row| row.finding.is_none())
}

/// Options with which the same files always make the same archive, whoever packs them.
const REPRODUCIBLE: [&str; 7] = [
    "--format=ustar",
    "--sort=name",
    "--mtime=@0",
    "--owner=0",
    "--group=0",
    "--numeric-owner",
    "--mode=0644",
];

/// Archive of a target's corpus; `root` is the folder `fuzz`.
fn archive(root: &Path, target: &str) -> PathBuf {
    root.join("corpus").join(target).with_extension("tar")
}

/// Makes `dir` the folder of the files in `archive`, and of no others.
fn unpack(archive: &Path, dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(Error::io("empty", dir)(error));
        }
        _ => fs::create_dir_all(dir).map_err(Error::io("make", dir))?,
    }
    let command = ["tar".as_ref(), "-xf".as_ref(), archive.as_os_str(), "-C".as_ref()];
    process::run(&[&command[..], &[dir.as_os_str()]].concat())?;
    Ok(())
}

/// Packs the files of `dir`. The archive before stays until the new one is whole.
fn pack(dir: &Path, archive: &Path) -> Result<()> {
    let names = names(dir)?;
    check(!names.is_empty(), || format!("{} has no input", dir.display()))?;
    let new = archive.with_extension("new");
    let mut command: Vec<OsString> = vec!["tar".into()];
    command.extend(REPRODUCIBLE.map(OsString::from));
    command.extend(["-cf".into(), new.clone().into(), "-C".into(), dir.into(), "--".into()]);
    command.extend(names);
    process::run(&command)?;
    fs::rename(&new, archive).map_err(Error::io("write", archive))
}

fn names(dir: &Path) -> Result<Vec<OsString>> {
    let entries = fs::read_dir(dir).map_err(Error::io("list", dir))?;
    let mut names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_bed::workspace::Workspace;

    const LOG: &str = "INFO: Loaded 1 modules   (51234 inline 8-bit counters): 51234 [0x1, 0x2),\n\
        #4 INITED cov: 61 ft: 62 corp: 2/2b\n#900 NEW    cov: 345 ft: 700 corp: 9/30b\n\
        artifact_prefix='/x/'; Test unit written to /x/crash-0a\n\
        stat::number_of_executed_units: 123456\n";

    #[test]
    fn what_libfuzzer_prints_is_read() {
        assert_eq!(after(LOG, "stat::number_of_executed_units:"), Some(123_456));
        assert_eq!(counters(LOG), Some(51_234));
        assert_eq!(after(LOG, "INITED cov:"), Some(61));
        assert_eq!(LOG.lines().rev().find_map(|line| after(line, " cov: ")), Some(345));
        assert_eq!(finding(LOG), Some(PathBuf::from("/x/crash-0a")));
    }

    #[test]
    fn a_run_that_is_kept_changes_the_row_of_its_target_and_no_other_line() {
        let page = "| `a` | bytes | a named error |\n\n| `a` | 1,500 | 10 | 20 of 30 |\n| `b` | 7 | 1 | 2 of 3 |\n";
        let row = Row {
            target: "a".into(),
            inputs: 998_500,
            was: 1_012,
            covered: 12_771,
            edges: 109_306,
            finding: None,
        };
        let changed =
            page.replace("1,500 | 10 | 20 of 30", "1,000,000 | 1,012 | 12,771 of 109,306");
        assert_eq!(table(page, &[row]), changed);
    }

    /// The entries of an archive, each with its rights, owners, length and time, in their order.
    fn listed(archive: &Path) -> String {
        let list = ["tar", "--numeric-owner", "--full-time", "-tvf"].map(OsString::from);
        process::run(&[&list[..], &[archive.into()]].concat()).unwrap()
    }

    #[test]
    fn each_fuzz_target_has_an_archive_that_packs_again_to_the_same_entries() {
        let workspace = Workspace::find().unwrap();
        let root = workspace.root.join("fuzz");
        let targets = crate::fuzz::targets(&root).unwrap();
        let scratch = workspace.run_dir("corpus").unwrap();
        for target in &targets {
            let (committed, dir) = (archive(&root, target), scratch.join(target));
            unpack(&committed, &dir).unwrap();
            let inputs = names(&dir).unwrap().len();
            assert!(inputs >= 20, "{target}: {inputs} inputs");
            let again = dir.with_extension("tar");
            pack(&dir, &again).unwrap();
            // GNU tar 1.35 leaves device numbers empty where 1.34 writes zeros, so that bytes differ.
            let same = listed(&again) == listed(&committed);
            assert!(same, "{target}: cargo run -p xtask -- fuzz --only {target} --keep");
            let bytes = fs::read(&again).unwrap();
            unpack(&again, &dir).unwrap();
            pack(&dir, &again).unwrap();
            assert!(fs::read(&again).unwrap() == bytes, "{target}");
        }
        let files: Vec<OsString> =
            targets.iter().map(|target| format!("{target}.tar").into()).collect();
        assert_eq!(names(&root.join("corpus")).unwrap(), files, "fuzz/corpus");
        fs::remove_dir_all(scratch).unwrap();
    }

    #[test]
    fn a_missing_archive_is_an_error_and_an_old_input_does_not_stay() {
        let scratch = Workspace::find().unwrap().run_dir("corpus").unwrap();
        let (dir, packed) = (scratch.join("dir"), scratch.join("a.tar"));
        unpack(&packed, &dir).unwrap_err();
        pack(&dir, &packed).unwrap_err();
        fs::write(dir.join("input"), "1").unwrap();
        pack(&dir, &packed).unwrap();
        fs::write(dir.join("old"), "2").unwrap();
        unpack(&packed, &dir).unwrap();
        assert_eq!(names(&dir).unwrap(), ["input"]);
        fs::remove_dir_all(scratch).unwrap();
    }
}
