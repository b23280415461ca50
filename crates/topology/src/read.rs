//! The tree `devices/system` of sysfs (Documentation/ABI/stable/sysfs-devices-system-cpu), and lists of processors in the
//! kernel's form (`cpulist`, Documentation/admin-guide/cputopology.rst).

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use thiserror::Error;
use weir_limits::{CACHE_INDEXES_MAX, CPUS_MAX, SYSFS_BYTES_MAX};
use weir_policy::placement::Cpu;

use crate::Topology;

impl Topology {
    /// Reads the machine's processors from `sysfs`, which is `/sys` for this machine.
    ///
    /// # Errors
    /// [`TopologyError`]: a file cannot be read or is malformed, or there is no list of processors.
    pub fn read(sysfs: &Path) -> Result<Self, TopologyError> {
        let system = sysfs.join("devices/system");
        let online_path = system.join("cpu/online");
        let online = cpus(&online_path)?.ok_or_else(|| TopologyError::Read {
            path: online_path,
            source: io::ErrorKind::NotFound.into(),
        })?;
        let nodes = nodes(&system.join("node"))?;
        let small = efficiency_cores(sysfs, &online)?;
        let mut caches_known = true;
        let mut found = Vec::with_capacity(online.len());
        for id in &online {
            let dir = system.join(format!("cpu/cpu{id}"));
            let core = core(&dir, *id)?;
            let node = nodes.get(id).copied().unwrap_or(0);
            let cache = cache(&dir.join("cache"), *id)?;
            caches_known &= cache.is_some();
            // -1 if the machine has none.
            let package = number(&dir.join("topology/physical_package_id"))?.unwrap_or(-1);
            let efficiency = small.contains(id);
            found.push((Cpu { id: *id, core, cache: *id, node, efficiency }, cache, package));
        }
        let mut unknown: BTreeMap<(i64, u16), u16> = BTreeMap::new();
        let cpus = found.into_iter().map(|(mut cpu, cache, package)| {
            // The first processor of a package and node is the lowest.
            let stands_for =
                cache.unwrap_or_else(|| *unknown.entry((package, cpu.node)).or_insert(cpu.id));
            cpu.cache = stands_for;
            cpu
        });
        Ok(Self { cpus: cpus.collect(), caches_known, nodes_known: !nodes.is_empty() })
    }
}

/// Returns the lowest thread of the processor's core. Older kernels have another name for the
/// threads.
fn core(dir: &Path, cpu: u16) -> Result<u16, TopologyError> {
    for name in ["core_cpus_list", "thread_siblings_list"] {
        if let Some(threads) = cpus_with(&dir.join("topology").join(name), cpu)? {
            return Ok(threads.first().copied().unwrap_or(cpu));
        }
    }
    Ok(cpu)
}

/// Returns the lowest processor that shares this processor's last-level cache, the cache of the highest level that
/// holds data; `None` without information about caches.
fn cache(dir: &Path, cpu: u16) -> Result<Option<u16>, TopologyError> {
    let mut last: Option<(i64, u16)> = None;
    for index in 0..CACHE_INDEXES_MAX {
        let dir = dir.join(format!("index{index}"));
        let Some(level) = number(&dir.join("level"))? else {
            continue;
        };
        if text(&dir.join("type"))?.as_deref() == Some("Instruction") {
            continue;
        }
        let shared = cpus_with(&dir.join("shared_cpu_list"), cpu)?;
        let Some(first) = shared.and_then(|shared| shared.first().copied()) else {
            continue;
        };
        if last.is_none_or(|(highest, _)| level > highest) {
            last = Some((level, first));
        }
    }
    Ok(last.map(|(_, first)| first))
}

/// Returns the node of each processor; none if the kernel knows no nodes.
fn nodes(dir: &Path) -> Result<BTreeMap<u16, u16>, TopologyError> {
    let mut nodes = BTreeMap::new();
    // Nodes are listed in the same form as processors.
    for node in cpus(&dir.join("online"))?.unwrap_or_default() {
        let members = cpus(&dir.join(format!("node{node}/cpulist")))?.unwrap_or_default();
        nodes.extend(members.into_iter().map(|cpu| (cpu, node)));
    }
    Ok(nodes)
}

/// Returns the efficiency cores: by Intel's two kinds of performance counters (`cpu_atom`), or by
/// the scheduler's capacity of a processor (a `cpu_capacity` below three quarters of the largest).
fn efficiency_cores(sysfs: &Path, online: &BTreeSet<u16>) -> Result<BTreeSet<u16>, TopologyError> {
    let devices = sysfs.join("devices");
    if cpus(&devices.join("cpu_core/cpus"))?.is_some()
        && let Some(small) = cpus(&devices.join("cpu_atom/cpus"))?
    {
        return Ok(small);
    }
    let mut capacities = BTreeMap::new();
    for cpu in online {
        let path = devices.join(format!("system/cpu/cpu{cpu}/cpu_capacity"));
        if let Some(capacity) = number(&path)? {
            capacities.insert(*cpu, capacity);
        }
    }
    let largest = capacities.values().copied().max().unwrap_or(0);
    let small = capacities
        .into_iter()
        .filter(|(_, capacity)| i128::from(*capacity) * 4 < i128::from(largest) * 3);
    Ok(small.map(|(cpu, _)| cpu).collect())
}

/// Reason why a machine's processors are unknown.
#[derive(Debug, Error)]
pub enum TopologyError {
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file exceeds its limit.
    #[error("{} is longer than {SYSFS_BYTES_MAX} bytes", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
    },
    /// A file has no valid list of processors.
    #[error("{}: {source}", path.display())]
    CpuList {
        /// The file.
        path: PathBuf,
        /// The fault.
        source: CpuListError,
    },
    /// A file has no valid number.
    #[error("{}: {text:?} is not a number", path.display())]
    Number {
        /// The file.
        path: PathBuf,
        /// The file's content.
        text: String,
    },
    /// The threads of a processor's core, or the sharers of its cache, do not include the processor
    /// itself.
    #[error("{} does not list its own CPU {cpu}", path.display())]
    NotItself {
        /// The file.
        path: PathBuf,
        /// The processor.
        cpu: u16,
    },
}

/// Reads a file's text, without its last newline; `None` if the file does not exist.
fn text(path: &Path) -> Result<Option<String>, TopologyError> {
    let read = |source| TopologyError::Read { path: path.into(), source };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(read(error)),
    };
    let mut text = String::new();
    // One byte more than allowed distinguishes "too long" from "just fits".
    file.take(SYSFS_BYTES_MAX + 1).read_to_string(&mut text).map_err(read)?;
    if text.len() as u64 > SYSFS_BYTES_MAX {
        return Err(TopologyError::TooLong { path: path.into() });
    }
    if text.ends_with('\n') {
        text.pop();
    }
    Ok(Some(text))
}

/// Reads a file's list of processors; `None` if the file does not exist.
fn cpus(path: &Path) -> Result<Option<BTreeSet<u16>>, TopologyError> {
    let parse = |text: String| {
        parse_cpu_list(&text).map_err(|source| TopologyError::CpuList { path: path.into(), source })
    };
    text(path)?.map(parse).transpose()
}

/// Reads a list like [`cpus`], which must include `cpu`.
fn cpus_with(path: &Path, cpu: u16) -> Result<Option<BTreeSet<u16>>, TopologyError> {
    match cpus(path)? {
        Some(cpus) if !cpus.contains(&cpu) => {
            Err(TopologyError::NotItself { path: path.into(), cpu })
        }
        cpus => Ok(cpus),
    }
}

/// Reads a file's number; `None` if the file does not exist.
fn number(path: &Path) -> Result<Option<i64>, TopologyError> {
    let parse =
        |text: String| text.parse().map_err(|_| TopologyError::Number { path: path.into(), text });
    text(path)?.map(parse).transpose()
}

/// Error in a list.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CpuListError {
    /// A part is neither a number nor a range of two.
    #[error("{0:?} is neither a number nor a range such as 0-3")]
    Part(String),
    /// A range ends before it begins.
    #[error("the range {0} ends before it begins")]
    Backward(String),
    /// A number exceeds weir's limit.
    #[error("there is no CPU {0}: the largest number is {max}", max = CPUS_MAX - 1)]
    TooLarge(u64),
}

/// Reads a list such as `0-3,8`, with or without a final newline. The empty list is valid.
pub fn parse_cpu_list(text: &str) -> Result<BTreeSet<u16>, CpuListError> {
    let text = text.strip_suffix('\n').unwrap_or(text);
    let mut cpus = BTreeSet::new();
    if text.is_empty() {
        return Ok(cpus);
    }
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (cpu_number(first, part)?, cpu_number(last, part)?);
        if first > last {
            return Err(CpuListError::Backward(part.into()));
        }
        cpus.extend(first..=last);
    }
    Ok(cpus)
}

fn cpu_number(digits: &str, part: &str) -> Result<u16, CpuListError> {
    // `parse` would accept a sign.
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(CpuListError::Part(part.into()));
    }
    // A row of digits can only fail by its length.
    let number: u64 = digits.parse().unwrap_or(u64::MAX);
    let known = u16::try_from(number).ok().filter(|number| usize::from(*number) < CPUS_MAX);
    known.ok_or(CpuListError::TooLarge(number))
}

/// Writes processors in the kernel's form: `0-3,8`.
pub fn cpu_list(cpus: &BTreeSet<u16>) -> String {
    let mut ranges: Vec<(u16, u16)> = Vec::new();
    for cpu in cpus {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*cpu) => *last = *cpu,
            _ => ranges.push((*cpu, *cpu)),
        }
    }
    let texts = ranges.iter().map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    });
    texts.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lists_are_numbers_and_ranges() {
        let cpus = |numbers: &[u16]| Ok(numbers.iter().copied().collect());
        assert_eq!(parse_cpu_list("0-3,8\n"), cpus(&[0, 1, 2, 3, 8]));
        assert_eq!(parse_cpu_list("7"), cpus(&[7]));
        assert_eq!(parse_cpu_list("\n"), cpus(&[]));
        assert_eq!(parse_cpu_list("1023"), cpus(&[1023]));
    }

    #[test]
    fn what_is_no_list_is_refused_with_its_part() {
        let part = |text: &str| Err(CpuListError::Part(text.into()));
        for (list, bad) in
            [("0,", ""), ("a", "a"), ("0-", "0-"), ("1-2-3", "1-2-3"), ("+1", "+1"), ("0, 1", " 1")]
        {
            assert_eq!(parse_cpu_list(list), part(bad), "{list}");
        }
        assert_eq!(parse_cpu_list("0\n\n"), part("0\n"));
        assert_eq!(parse_cpu_list("3-1"), Err(CpuListError::Backward("3-1".into())));
        assert_eq!(parse_cpu_list("0-1024"), Err(CpuListError::TooLarge(1024)));
        assert_eq!(parse_cpu_list("0-99999999999999999999"), Err(CpuListError::TooLarge(u64::MAX)));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(
            cpus in proptest::collection::btree_set(0..CPUS_MAX as u16, 0..40)
        ) {
            prop_assert_eq!(parse_cpu_list(&cpu_list(&cpus)), Ok(cpus));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[0-9,\\-\\n x]{0,24}") {
            if let Ok(cpus) = parse_cpu_list(&text) {
                prop_assert!(cpus.iter().all(|cpu| usize::from(*cpu) < CPUS_MAX));
            }
        }
    }
}
