//! Cache lines of shared memory that a packet touches. valgrind's lackey reports the address that each instruction
//! reads or writes, and the example reports the mappings of guests' memory. A line counts once per burst, side and
//! stage. Accesses by the kernel are not included, nor are prefetched lines that are not used.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    io::{BufRead, BufReader},
    path::Path,
};

use weir_bed::{
    error::{Error, Result, check},
    packages::VALGRIND,
    process::{Placement, Process},
    workspace::{Programs, Workspace},
};

use super::{
    EXAMPLE, Row,
    stages::{STAGES, functions_at, stage_of},
};

/// Length of a cache line (bytes).
const LINE: u64 = 64;
/// Bursts per row; some of the first may be missed.
const BURSTS: u32 = 24;
/// Lines of the trace between two checks for the start of the measured bursts.
const LOOK: usize = 5_000;
/// Origins of accesses, besides weir's stages.
const DRIVERS: [&str; 2] = ["sender's driver", "receiver's driver"];
const ALL: &str = "weir, all";

const SHOWN: [Row; 8] = [
    Row::new("split 64 x1", "split", 64, 1),
    Row::new("x8", "split", 64, 8),
    Row::new("x32", "split", 64, 32),
    Row::new("1500 x32", "split", 1500, 32),
    Row::new("packed 64 x1", "packed", 64, 1),
    Row::new("x8", "packed", 64, 8),
    Row::new("x32", "packed", 64, 32),
    Row::new("1500 x32", "packed", 1500, 32),
];

/// Lines read, and lines written, per packet.
type Count = [f64; 2];

/// Output of the example before the counted bursts: the places of its functions and mappings.
#[derive(Debug, Default)]
struct Places {
    /// Addresses at which a worker's turn and the drivers' turn begin.
    turns: [u64; 2],
    /// Range of the program's addresses.
    program: (u64, u64),
    /// Ranges of guests' memory, each with its file and its offset in it.
    memory: Vec<(u64, u64, u64, u64)>,
}

/// One access to guests' memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Access {
    burst: u32,
    /// True for an access by weir, false for one by a driver.
    is_weirs: bool,
    instruction: u64,
    /// File and number of the line.
    line: (u64, u64),
    is_write: bool,
}

/// Returns a table with a line for each stage and driver, and a column for each kind of traffic.
pub(super) fn table(workspace: &Workspace) -> Result<String> {
    let program = Programs::build(workspace)?.example(EXAMPLE);
    let dir = workspace.target("instructions")?;
    let columns: Vec<BTreeMap<&str, Count>> =
        SHOWN.iter().map(|row| count(row, &program, &dir)).collect::<Result<_>>()?;
    let mut text = format!("{:<19}", "lines read/written");
    for row in &SHOWN {
        let _ = write!(text, "{:>13}", row.name);
    }
    text.push('\n');
    let stages = STAGES.iter().map(|(stage, _)| *stage);
    for name in stages.chain([ALL]).chain(DRIVERS) {
        if !columns.iter().any(|column| column.contains_key(name)) {
            continue;
        }
        let _ = write!(text, "{name:<19}");
        for column in &columns {
            let [read, written] = column.get(name).copied().unwrap_or_default();
            let _ = write!(text, "{:>13}", format!("{read:.2}/{written:.2}"));
        }
        text.push('\n');
    }
    Ok(text)
}

/// Returns the lines per packet of one kind of traffic, by stage and driver.
fn count(row: &Row, program: &Path, dir: &Path) -> Result<BTreeMap<&'static str, Count>> {
    let (said, log) = (dir.join("places"), dir.join("lackey.log"));
    let _ = fs::remove_file(&said);
    let command = format!(
        "exec {VALGRIND} --tool=lackey --trace-mem=yes --log-fd=3 {} {} {} {} {BURSTS} places 3>&1 >{}",
        program.display(),
        row.rings,
        row.frame_bytes,
        row.burst,
        said.display()
    );
    let argv = ["sh", "-c", &command];
    let (process, _stdin, trace) = Process::start_piped(&argv, &Placement::default(), &log)?;
    let mut tracer = Tracer::default();
    for (number, line) in BufReader::new(trace).lines().enumerate() {
        let line = line.map_err(Error::io("read", &log))?;
        match &tracer.places {
            Some(_) => tracer.line(&line),
            None if number.is_multiple_of(LOOK) => tracer.places = Places::read(&said),
            None => {}
        }
    }
    drop(process);
    let bursts = tracer.burst.saturating_sub(1);
    check(bursts > 0, || format!("no burst was seen; see {}", log.display()))?;
    let places = tracer.places.unwrap_or_default();
    let packets = f64::from(bursts) * f64::from(row.burst);
    // The last burst may be incomplete.
    let accesses: Vec<Access> =
        tracer.accesses.into_iter().filter(|access| (1..=bursts).contains(&access.burst)).collect();
    let lines = by_stage(&accesses, &places, program)?;
    Ok(lines.into_iter().map(|(name, lines)| (name, lines.map(|it| it as f64 / packets))).collect())
}

/// Returns the total of lines, by stage and driver.
fn by_stage(
    accesses: &[Access],
    places: &Places,
    program: &Path,
) -> Result<BTreeMap<&'static str, [usize; 2]>> {
    let (from, to) = places.program;
    let own: BTreeSet<u64> = accesses
        .iter()
        .filter(|access| access.is_weirs && (from..to).contains(&access.instruction))
        .map(|access| access.instruction)
        .collect();
    let mut stages = BTreeMap::new();
    if !own.is_empty() {
        let relative: Vec<u64> = own.iter().map(|address| address - from).collect();
        let functions = functions_at(program, relative.iter())?;
        stages.extend(own.into_iter().zip(functions.iter().map(|functions| stage_of(functions))));
    }
    // weir reads descriptors of both guests, and frames of the sender.
    let mut read = BTreeMap::<u64, usize>::new();
    for access in accesses.iter().filter(|access| access.is_weirs && !access.is_write) {
        *read.entry(access.line.0).or_default() += 1;
    }
    let sender = read.into_iter().max_by_key(|(_, lines)| *lines).map(|(file, _)| file);
    let mut seen = BTreeSet::new();
    let mut counts = BTreeMap::<&str, [usize; 2]>::new();
    for access in accesses {
        let Access { burst, line, is_write, .. } = *access;
        let driver = if Some(line.0) == sender { DRIVERS[0] } else { DRIVERS[1] };
        // Addresses outside the program are in the C library, which copies.
        let stage = stages.get(&access.instruction).copied().unwrap_or("copy");
        let names = match access.is_weirs {
            true => [Some(stage), Some(ALL)],
            false => [Some(driver), None],
        };
        for name in names.into_iter().flatten() {
            if seen.insert((name, burst, line, is_write)) {
                counts.entry(name).or_default()[usize::from(is_write)] += 1;
            }
        }
    }
    Ok(counts)
}

impl Places {
    /// Reads the example's file, once it is complete.
    fn read(said: &Path) -> Option<Self> {
        Self::parse(&fs::read_to_string(said).ok()?)
    }

    /// Parses lines of `/proc/self/maps`, followed by `turns A B`.
    fn parse(text: &str) -> Option<Self> {
        let number = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok();
        let mut places = Self::default();
        let (maps, turns) = text.split_once("turns ")?;
        let (first, second) = turns.lines().next()?.split_once(' ')?;
        places.turns = [number(first)?, number(second)?];
        for line in maps.lines() {
            let fields: Vec<_> = line.split_whitespace().collect();
            let [range, _, offset, _, file, path @ ..] = fields.as_slice() else { continue };
            let (from, to) = range.split_once('-')?;
            let (from, to, offset) = (number(from)?, number(to)?, number(offset)?);
            let path = path.first().copied().unwrap_or_default();
            if path.starts_with("/memfd:") {
                places.memory.push((from, to, file.parse().ok()?, offset));
            } else if path.ends_with(EXAMPLE) {
                let start = if places.program.1 == 0 { from } else { places.program.0 };
                places.program = (start, to);
            }
        }
        Some(places)
    }
}

/// State of the trace so far.
#[derive(Debug, Default)]
struct Tracer {
    places: Option<Places>,
    burst: u32,
    is_weirs: bool,
    instruction: u64,
    accesses: BTreeSet<Access>,
}

impl Tracer {
    /// Reads a line of lackey: `I  4016c80,3`, ` L 1ffeff,8`, ` S ...`, or ` M ...` (read and written).
    fn line(&mut self, line: &str) {
        let Some(places) = &self.places else { return };
        let mut words = line.split_whitespace();
        let (Some(kind), Some((address, len))) =
            (words.next(), words.next().and_then(|word| word.split_once(',')))
        else {
            return;
        };
        let (Ok(address), Ok(len)) = (u64::from_str_radix(address, 16), len.parse::<u64>()) else {
            return;
        };
        if kind == "I" {
            self.instruction = address;
            if address == places.turns[0] {
                (self.burst, self.is_weirs) = (self.burst + 1, true);
            } else if address == places.turns[1] {
                self.is_weirs = false;
            }
            return;
        }
        let of = |(from, to, ..): &&(u64, u64, u64, u64)| (*from..*to).contains(&address);
        let Some((from, _, file, offset)) = places.memory.iter().find(of) else { return };
        let at = address - from + offset;
        for line in at / LINE..=(at + len.max(1) - 1) / LINE {
            for (is_write, kinds) in [(false, ["L", "M"]), (true, ["S", "M"])] {
                if kinds.contains(&kind) {
                    let Self { burst, is_weirs, instruction, .. } = *self;
                    let line = (*file, line);
                    self.accesses.insert(Access { burst, is_weirs, instruction, line, is_write });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "00108000-00200000 r--p 00000000 08:01 7  /t/examples/instructions\n\
        00200000-00300000 r-xp 000f8000 08:01 7  /t/examples/instructions\n\
        10000-12000 rw-s 00001000 00:01 42  /memfd:guest (deleted)\n\
        20000-22000 rw-s 00000000 00:01 42  /memfd:guest (deleted)\n\
        turns 0x200010 0x200020\n";

    #[test]
    fn a_line_counts_once_for_a_burst_wherever_it_is_mapped() {
        let mut tracer = Tracer { places: Places::parse(SAID), ..Tracer::default() };
        assert_eq!(tracer.places.as_ref().unwrap().program, (0x10_8000, 0x30_0000));
        let trace = [
            "I  200010,3",
            "I  5000000,1",
            " L 10040,8",
            " L 10078,16",
            " L 10044,2",
            " S 30000,8",
            "I  200020,3",
            " M 21040,8",
            " S 9000,8",
            "I  200010,3",
            " L 10040,8",
        ];
        trace.iter().for_each(|line| tracer.line(line));
        let places = tracer.places.take().unwrap();
        let accesses: Vec<_> =
            tracer.accesses.into_iter().filter(|access| access.burst == 1).collect();
        let counts = by_stage(&accesses, &places, Path::new("/none")).unwrap();
        let expected = [("copy", [2, 0]), ("sender's driver", [1, 1]), (ALL, [2, 0])];
        assert_eq!(counts.into_iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn places_are_known_once_all_is_written() {
        assert!(Places::parse(&SAID[..SAID.len() - 30]).is_none());
        assert_eq!(Places::parse(SAID).unwrap().turns, [0x20_0010, 0x20_0020]);
    }
}
