//! The files that a process may open: Landlock, as far as the kernel has it.

use std::fmt;
use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, Ruleset,
    RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};
use rustix::fs::{Mode, OFlags, fstat, open};
use rustix::io::Errno;

use crate::SandboxError;

/// The Landlock version for which the rules are written. On an older kernel the newer rules are left out.
const NEWEST: ABI = ABI::V6;

/// The extent to which access to files is restricted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Landlocked {
    /// Access is restricted as requested.
    Whole,
    /// Access is restricted as far as this kernel can.
    Partly,
    /// Access is not restricted: the kernel has no Landlock, or it was not requested.
    No,
}

impl fmt::Display for Landlocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Whole => "whole",
            Self::Partly => "as far as this kernel has it",
            Self::No => "not here",
        })
    }
}

/// Restricts this process: it can then open only `readable` for reading and `writable` for reading and writing. It
/// cannot make, remove, rename or execute files, bind or connect TCP ports, or reach abstract sockets and processes
/// outside.
pub(crate) fn restrict(readable: &[&Path], writable: &[&Path]) -> Result<Landlocked, SandboxError> {
    let rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))
        .and_then(|rules| rules.handle_access(AccessNet::from_all(NEWEST)))
        .and_then(|rules| rules.scope(Scope::from_all(NEWEST)))
        .and_then(Ruleset::create)
        .map_err(SandboxError::Files)?;
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let write = read | AccessFs::WriteFile | AccessFs::IoctlDev;
    let rules = allow(rules, readable, read)?;
    let rules = allow(rules, writable, write)?;
    let status = rules.restrict_self().map_err(SandboxError::Files)?;
    Ok(match status.ruleset {
        RulesetStatus::FullyEnforced => Landlocked::Whole,
        RulesetStatus::PartiallyEnforced => Landlocked::Partly,
        RulesetStatus::NotEnforced => Landlocked::No,
    })
}

fn allow(
    mut rules: RulesetCreated,
    paths: &[&Path],
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated, SandboxError> {
    for path in paths {
        let failed =
            |errno: Errno| SandboxError::Path { path: (*path).into(), source: errno.into() };
        let file = match open(*path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => continue,
            Err(errno) => return Err(failed(errno)),
        };
        let mode = fstat(&file).map_err(failed)?.st_mode;
        let is_dir = rustix::fs::FileType::from_raw_mode(mode).is_dir();
        let access = if is_dir { access } else { access & AccessFs::from_file(NEWEST) };
        let rule = PathBeneath::new(file, access);
        rules = rules.add_rule(rule).map_err(|error: RulesetError| SandboxError::Files(error))?;
    }
    Ok(rules)
}
