//! Instructions per packet in weir, counted by callgrind. Other load does not change the count, so `make test`
//! notices when the data path grows.
//!
//! The count covers `measured` of the example `instructions` in `weir-port-vhost`, in the release profile: from one
//! guest's ring to another's, without drivers, sleep and wake-ups. Rows of security groups are counted by themselves,
//! in the example `cost` of `weir-groups`.

mod calls;
mod librte_vhost;
mod lines;
mod stages;

use std::{
    collections::BTreeMap,
    env,
    ffi::OsStr,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use serde::Deserialize;
use weir_bed::{
    error::{Error, Result, check},
    packages::{VALGRIND, is_root},
    process::run_in,
    workspace::{Programs, Workspace},
};

/// Prints instructions, misses of a core's caches and shared-memory lines by stage, and system calls per burst.
pub fn show(workspace: &Workspace) -> Result<()> {
    print!("{}", stages::table(workspace)?);
    print!("\n{}", stages::misses(workspace)?);
    print!("\n{}", lines::table(workspace)?);
    system_calls(workspace)?;
    Ok(())
}

const EXAMPLE: &str = "instructions";

/// The function that is counted with all its callees. The name is a pattern, since compilers append
/// to names.
const COUNTED: &str = "instructions::measured*";

/// Number of bursts counted in each row.
const BURSTS: u32 = 1000;

/// The recorded figures, below the workspace's root.
const RECORD: &str = "docs/instructions.toml";

/// Increase over the record that counts as a regression (percent).
const TOLERANCE_PERCENT: f64 = 3.0;

/// Command that records new figures.
const RECORD_COMMAND: &str = "cargo run -p xtask -- instructions --record";

/// Selects one variant of the C library's copies, whatever the CPU supports.
const TUNABLES: (&str, &str) =
    ("GLIBC_TUNABLES", "glibc.cpu.hwcaps=-AVX_Fast_Unaligned_Load,-ERMS");

/// A kind of traffic.
#[derive(Debug)]
struct Row {
    name: &'static str,
    /// Name of both guests' rings in the program. The name also says whether the sender has a
    /// filter of ten terms.
    rings: &'static str,
    /// Length of each frame (bytes).
    frame_bytes: u32,
    /// Frames that weir takes per burst.
    burst: u32,
}

impl Row {
    const fn new(name: &'static str, rings: &'static str, frame_bytes: u32, burst: u32) -> Self {
        Self { name, rings, frame_bytes, burst }
    }
}

const ROWS: [Row; 14] = [
    Row::new("instructions_per_packet_64_split_burst32", "split", 64, 32),
    Row::new("instructions_per_packet_64_split_burst1", "split", 64, 1),
    Row::new("instructions_per_packet_64_split_filtered_burst32", "split-filtered", 64, 32),
    Row::new("instructions_per_packet_64_split_1000_ports_burst32", "split-1000", 64, 32),
    Row::new("instructions_per_packet_64_packed_burst32", "packed", 64, 32),
    Row::new("instructions_per_packet_64_packed_burst1", "packed", 64, 1),
    Row::new("instructions_per_packet_64_packed_in_order_burst32", "packed-in-order", 64, 32),
    Row::new("instructions_per_packet_1500_split_burst32", "split", 1500, 32),
    Row::new("instructions_per_packet_1500_split_burst1", "split", 1500, 1),
    Row::new("instructions_per_packet_64_split_two_regions_burst32", "split-low", 64, 32),
    Row::new("instructions_per_packet_64_packed_two_regions_burst32", "packed-low", 64, 32),
    Row::new("instructions_per_packet_64_split_translated_burst32", "split-translated", 64, 32),
    Row::new("instructions_per_packet_1500_split_linux_burst32", "split-linux", 1500, 32),
    Row::new("instructions_per_packet_65000_split_linux_burst4", "split-gso-pages", 65_000, 4),
];

/// Instructions of security groups for a frame in bursts of 32, by the number of flows that take
/// turns. A row with flows counts both ends for known flows of UDP. The row with 0 flows counts one
/// end for the handshake and close of TCP.
const GROUPS: [(&str, u32); 3] = [
    ("instructions_per_packet_groups_one_flow", 1),
    ("instructions_per_packet_groups_1000_flows", 1000),
    ("instructions_per_packet_groups_handshakes", 0),
];

/// The example of these rows.
const GROUPS_EXAMPLE: &str = "cost";

/// Frames of the shorter of two runs, whose difference is counted: each of 1,000 flows has each place of a burst once.
const GROUPS_FRAMES: u32 = 32_000;

/// Rules of each end's groups.
const GROUPS_RULES: u32 = 64;

/// Name of the difference between a port after a capture and a port that was never captured, per
/// frame of a burst of 32.
const CAPTURE_OFF: &str = "capture_off_instructions";

/// The two cases: ports in the engine's table, after a capture and without one.
const CAPTURED: [Row; 2] = [
    Row::new("capture_off_once_captured", "split-once-captured", 64, 32),
    Row::new("capture_off_never_captured", "split-never-captured", 64, 32),
];

/// A figure's name and its value.
pub type Count = (&'static str, f64);

/// Builds the program and counts every row.
pub fn count(workspace: &Workspace) -> Result<Vec<Count>> {
    let programs = Programs::build(workspace)?;
    let dir = workspace.target("instructions")?;
    let [program, groups] = [EXAMPLE, GROUPS_EXAMPLE].map(|name| programs.example(name));
    let rows = ROWS.iter().map(|row| Ok((row.name, row.count(&program, &dir)?)));
    let of_groups = |&(name, flows)| Ok((name, count_groups(name, flows, &groups, &dir)?));
    rows.chain(GROUPS.iter().map(of_groups)).collect()
}

/// Returns the instructions for a frame, by the difference of two runs.
fn count_groups(name: &str, flows: u32, program: &Path, dir: &Path) -> Result<f64> {
    let run = |frames: u32| {
        let arguments = [flows, frames, GROUPS_RULES].map(|number| number.to_string());
        total(&callgrind(program, &arguments, name, dir, &[])?.1)
    };
    Ok((run(2 * GROUPS_FRAMES)? - run(GROUPS_FRAMES)?) / f64::from(GROUPS_FRAMES))
}

/// Runs callgrind with `options`. Returns what the program printed, and the profile, which stays in `dir`.
fn callgrind(
    program: &Path,
    arguments: &[String],
    name: &str,
    dir: &Path,
    options: &[&str],
) -> Result<(String, String)> {
    let out = dir.join(name.replace(' ', "_"));
    let mut argv = vec![
        String::from(VALGRIND),
        String::from("--tool=callgrind"),
        format!("--callgrind-out-file={}", out.display()),
    ];
    argv.extend(options.iter().map(|option| String::from(*option)));
    argv.push(program.display().to_string());
    argv.extend_from_slice(arguments);
    let (variable, value) = TUNABLES;
    let printed = run_in(&argv, dir, &[(variable, OsStr::new(value))])?;
    let profile = fs::read_to_string(&out).map_err(Error::io("read", &out))?;
    Ok((printed, profile))
}

/// Counts and prints the remaining cost of an ended capture. Returns true if there is none.
fn capture_off(workspace: &Workspace) -> Result<bool> {
    let program = Programs::build(workspace)?.example(EXAMPLE);
    let dir = workspace.target("instructions")?;
    let mut least = [f64::INFINITY; 2];
    // The count includes work that the switch does after it has lost time to other programs. The
    // smallest count includes the least of that work.
    for _ in 0..3 {
        for (least, row) in least.iter_mut().zip(CAPTURED) {
            *least = least.min(row.count(&program, &dir)?);
        }
        if difference(least[0], least[1]).1 {
            break;
        }
    }
    let (text, held) = difference(least[0], least[1]);
    print!("{text}");
    Ok(held)
}

/// Returns the row of [`CAPTURE_OFF`], and true if the difference is zero.
fn difference(once: f64, never: f64) -> (String, bool) {
    // Rounding removes costs that are not per packet: addresses differ from run to run.
    let more = (once - never).round() as i64;
    let verdict = if more > 0 { "  GREW" } else { "" };
    (format!("{CAPTURE_OFF:<44}{never:>10.1}{once:>10.1}{more:>+9}{verdict}\n"), more <= 0)
}

impl Row {
    /// Returns instructions per packet. callgrind's output stays in `dir`, for
    /// `callgrind_annotate`.
    fn count(&self, program: &Path, dir: &Path) -> Result<f64> {
        let (packets, profile) = self.profile(program, dir, &[])?;
        Ok(total(&profile)? / packets)
    }

    /// Runs callgrind with `options`. Returns the number of packets, and the profile.
    fn profile(&self, program: &Path, dir: &Path, options: &[&str]) -> Result<(f64, String)> {
        let toggle = format!("--toggle-collect={COUNTED}");
        let options = [&[toggle.as_str()][..], options].concat();
        let numbers = [self.frame_bytes, self.burst, BURSTS].map(|number| number.to_string());
        let arguments = [&[self.rings.to_owned()][..], &numbers].concat();
        let (packets, profile) = callgrind(program, &arguments, self.name, dir, &options)?;
        let packets: f64 =
            packets.trim().parse().map_err(|_| Error::parse("a number of packets", packets))?;
        check(total(&profile)? > 0.0 && packets > 0.0, || {
            format!("callgrind saw no call of {COUNTED} in {}", program.display())
        })?;
        Ok((packets, profile))
    }
}

/// Returns the total instructions of a callgrind profile, the first kind of event.
fn total(profile: &str) -> Result<f64> {
    let found = profile.lines().find_map(|line| line.strip_prefix("totals: "));
    let number = found.and_then(|numbers| numbers.split_whitespace().next()?.parse().ok());
    number.ok_or_else(|| Error::parse("the total of a callgrind profile", found.unwrap_or("none")))
}

/// The compiler of the program. Other compilers give other figures.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Compiler {
    /// `rustc`'s release.
    rustc: String,
    /// Target machine.
    target: String,
}

impl Compiler {
    fn installed() -> Result<Self> {
        let rustc = env::var("RUSTC").unwrap_or_else(|_| String::from("rustc"));
        Self::parse(&run_in(&[rustc.as_str(), "-vV"], Path::new("."), &[])?)
    }

    /// Parses the lines of `rustc -vV`.
    fn parse(text: &str) -> Result<Self> {
        let field = |name| {
            let value = text.lines().find_map(|line| line.strip_prefix(name));
            value.map(str::to_owned).ok_or_else(|| Error::parse(name, text))
        };
        Ok(Self { rustc: field("release: ")?, target: field("host: ")? })
    }
}

/// The file with the recorded figures.
#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Record {
    #[serde(flatten)]
    compiler: Compiler,
    /// Figures by name.
    figures: BTreeMap<String, f64>,
}

impl Record {
    fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).map_err(Error::io("read", path))?;
        toml::from_str(&text).map_err(|error| Error::Check(format!("{}: {error}", path.display())))
    }

    fn to_toml(&self) -> String {
        let Self { compiler: Compiler { rustc, target }, figures } = self;
        let mut text = format!(
            "# Instructions that weir takes for a packet, as callgrind counted them in the release\n\
             # build: from one guest's ring to another's, by ring format, frame length and burst;\n\
             # and of security groups by themselves.\n\
             # `make test` fails where one grows by more than {TOLERANCE_PERCENT} %.\n\
             # Written by `{RECORD_COMMAND}`.\n\
             rustc = \"{rustc}\"\ntarget = \"{target}\"\n\n[figures]\n"
        );
        for (name, value) in figures {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{name} = {value:.1}");
        }
        text
    }
}

/// Result of the comparison with the recorded figures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// No figure exceeds the tolerance.
    Held,
    /// Some figures exceed the tolerance or are not recorded.
    Grew,
    /// A comparison is impossible, for this reason.
    Incomparable(String),
}

/// Counts, prints a table, and compares with the recorded figures.
pub fn compare(workspace: &Workspace) -> Result<Outcome> {
    let record = Record::read(&path(workspace))?;
    let installed = Compiler::installed()?;
    if record.compiler != installed {
        let (then, now) = (&record.compiler, &installed);
        return Ok(Outcome::Incomparable(format!(
            "recorded with rustc {} for {}, this is {} for {}; to record anew: {RECORD_COMMAND}",
            then.rustc, then.target, now.rustc, now.target
        )));
    }
    let (table, grew) = table(&count(workspace)?, &record.figures);
    print!("{table}");
    if grew {
        println!("if that is as it should be: {RECORD_COMMAND}");
    }
    let left = !capture_off(workspace)?;
    let called = system_calls(workspace)?;
    Ok(if grew || left || called { Outcome::Grew } else { Outcome::Held })
}

/// Counts and prints system calls. Returns true if a burst takes more than recorded.
fn system_calls(workspace: &Workspace) -> Result<bool> {
    if !is_root() {
        println!("skipped: needs root: system calls");
        return Ok(false);
    }
    let (table, grew) = calls::table(workspace)?;
    print!("\n{table}");
    Ok(grew)
}

/// Counts and writes the results to `docs/instructions.toml`. Returns its path.
pub fn record(workspace: &Workspace) -> Result<PathBuf> {
    let counts = count(workspace)?;
    let path = path(workspace);
    // The first record has no earlier figures for comparison.
    let before = Record::read(&path).map(|record| record.figures).unwrap_or_default();
    print!("{}", table(&counts, &before).0);
    let figures = counts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    let record = Record { compiler: Compiler::installed()?, figures };
    fs::write(&path, record.to_toml()).map_err(Error::io("write", &path))?;
    Ok(path)
}

fn path(workspace: &Workspace) -> PathBuf {
    workspace.root.join(RECORD)
}

/// Returns a row for each count with its recorded figure, and true if any has grown too much.
fn table(counts: &[Count], recorded: &BTreeMap<String, f64>) -> (String, bool) {
    let mut text = format!("{:<44}{:>10}{:>10}{:>9}\n", "figure", "recorded", "now", "change");
    let mut any_grew = false;
    for (name, now) in counts {
        let Some(before) = recorded.get(*name) else {
            text += &format!("{name:<44}{:>10}{now:>10.1}{:>9}  not recorded\n", "-", "-");
            any_grew = true;
            continue;
        };
        let percent = 100.0 * (now - before) / before;
        // A record of 0 or NaN counts as grown.
        let grew = percent.is_nan() || percent > TOLERANCE_PERCENT;
        any_grew |= grew;
        let verdict = match grew {
            true => "  GREW",
            false if percent < -TOLERANCE_PERCENT => "  better: worth recording",
            false => "",
        };
        text += &format!("{name:<44}{before:>10.1}{now:>10.1}{percent:>+8.1}%{verdict}\n");
    }
    (text, any_grew)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded() -> BTreeMap<String, f64> {
        [("a", 1000.0), ("b", 500.0)].map(|(name, value)| (name.to_owned(), value)).into()
    }

    #[test]
    fn a_figure_may_grow_by_three_percent_and_no_more() {
        assert!(!table(&[("a", 1030.0), ("b", 500.0)], &recorded()).1);
        let (text, grew) = table(&[("a", 1030.1), ("b", 500.0)], &recorded());
        assert!(grew);
        assert_eq!(text.lines().filter(|line| line.ends_with("GREW")).count(), 1, "{text}");
    }

    #[test]
    fn a_figure_that_shrank_holds_and_is_worth_recording() {
        let (text, grew) = table(&[("a", 900.0)], &recorded());
        assert!(!grew && text.contains("-10.0%  better"), "{text}");
    }

    #[test]
    fn a_figure_without_a_usable_record_is_not_held() {
        assert!(table(&[("new", 1.0)], &recorded()).1);
        assert!(table(&[("a", 1.0)], &[("a".to_owned(), 0.0)].into()).1);
        assert!(table(&[("a", 1.0)], &[("a".to_owned(), f64::NAN)].into()).1);
    }

    #[test]
    fn a_capture_that_has_ended_may_leave_no_instruction() {
        let (text, held) = difference(400.4, 400.0);
        assert!(held && text.ends_with("400.0     400.4       +0\n"), "{text}");
        assert!(difference(398.0, 400.0).1, "less is no harm");
        let (text, held) = difference(401.0, 400.0);
        assert!(!held && text.ends_with("+1  GREW\n"), "{text}");
    }

    #[test]
    fn what_is_written_is_read_again() {
        let compiler = Compiler { rustc: "1.95.0".into(), target: "x86_64".into() };
        let record = Record { compiler, figures: recorded() };
        assert_eq!(toml::from_str::<Record>(&record.to_toml()).unwrap(), record);
    }

    #[test]
    fn every_row_is_recorded_and_nothing_else() {
        let record = Record::read(&path(&Workspace::find().unwrap())).unwrap();
        let groups = GROUPS.map(|(name, _)| name);
        let mut names: Vec<_> = ROWS.iter().map(|row| row.name).chain(groups).collect();
        names.sort_unstable();
        assert_eq!(record.figures.keys().collect::<Vec<_>>(), names);
    }

    #[test]
    fn the_total_of_a_profile_is_read() {
        let profile = "events: Ir\nsummary: 5\n\nfn=(1) a\n3 5\n\ntotals: 7314980\n";
        assert_eq!(total(profile).unwrap(), 7_314_980.0);
        assert!(total("events: Ir\n").is_err());
    }

    #[test]
    fn the_compiler_is_known_by_release_and_target() {
        let text =
            "rustc 1.95.0 (abc 2026-01-01)\nhost: x86_64-unknown-linux-gnu\nrelease: 1.95.0\n";
        let target = String::from("x86_64-unknown-linux-gnu");
        assert_eq!(Compiler::parse(text).unwrap(), Compiler { rustc: "1.95.0".into(), target });
        assert!(Compiler::parse("").is_err());
    }
}
