//! Trees of real machines, for tests: `testing.sysfs` has the lines of each below its name.

use std::fs;
use std::io;
use std::path::Path;

use crate::parse_cpu_list;

const ALL: &str = include_str!("testing.sysfs");

/// Four cores, one cache.
pub const ONE_CACHE: &str = "one_cache";
/// Two sockets of eight cores with two threads each.
pub const TWO_SOCKETS_SMT: &str = "two_sockets_smt";
/// Two sockets of 24 cores; three cores share a cache.
pub const AMD_CCX: &str = "amd_ccx";
/// Six performance cores and eight efficiency cores, one cache.
pub const HYBRID: &str = "hybrid";
/// Two processors without information about caches and nodes.
pub const SMALL_VM: &str = "small_vm";

/// Makes the tree of a machine in `dir`. `fixture` is the machine's name, or has lines of its own.
///
/// # Errors
/// An unknown machine, a malformed line, or an error of the file system.
pub fn expand(fixture: &str, dir: &Path) -> io::Result<()> {
    let of_machine = ALL.split_once(&format!("\n[{fixture}]\n")).map(|(_, rest)| rest);
    let text = match of_machine {
        Some(rest) => rest.split("\n[").next().unwrap_or_default(),
        None if fixture.contains('=') => fixture,
        None => return Err(io::Error::new(io::ErrorKind::NotFound, fixture)),
    };
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    for line in lines {
        let bad = || io::Error::new(io::ErrorKind::InvalidData, line);
        let (path, content) = line.split_once(" = ").ok_or_else(bad)?;
        let paths = match path.split_once('{') {
            None => vec![path.to_owned()],
            Some((before, rest)) => {
                let (numbers, after) = rest.split_once('}').ok_or_else(bad)?;
                let numbers = parse_cpu_list(numbers).map_err(|_| bad())?;
                numbers.iter().map(|number| format!("{before}{number}{after}")).collect()
            }
        };
        for path in paths {
            let path = dir.join(path);
            fs::create_dir_all(path.parent().ok_or_else(bad)?)?;
            fs::write(path, format!("{content}\n"))?;
        }
    }
    Ok(())
}
