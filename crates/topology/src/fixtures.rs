//! Trees of real machines, for tests: each a text with `path = content` lines.

use std::fs;
use std::io;
use std::path::Path;

use crate::parse_cpu_list;

/// Four cores, one cache.
pub const ONE_CACHE: &str = include_str!("../fixtures/one_cache.sysfs");
/// Two sockets of eight cores with two threads each.
pub const TWO_SOCKETS_SMT: &str = include_str!("../fixtures/two_sockets_smt.sysfs");
/// Two sockets of 24 cores; three cores share a cache.
pub const AMD_CCX: &str = include_str!("../fixtures/amd_ccx.sysfs");
/// Six performance cores and eight efficiency cores, one cache.
pub const HYBRID: &str = include_str!("../fixtures/hybrid.sysfs");
/// Two processors without information about caches and nodes.
pub const SMALL_VM: &str = include_str!("../fixtures/small_vm.sysfs");

/// Makes the tree of `fixture` in `dir`.
///
/// # Errors
/// A malformed line, or an error of the file system.
pub fn expand(fixture: &str, dir: &Path) -> io::Result<()> {
    let lines = fixture.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
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
