//! The rights of a process: its user, its privileges beyond that user's, and the files that it may open. Landlock
//! restricts the files, as far as the kernel supports it.

use std::ffi::CString;
use std::path::Path;
use std::{fmt, io};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, Ruleset,
    RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};
use nix::unistd::{Gid, Group, Uid, User};
use rustix::fs::{Mode, OFlags, fstat, open};
use rustix::io::Errno;
use rustix::process::{
    DumpableBehavior, Signal, set_dumpable_behavior, set_parent_process_death_signal,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};
use weir_limits::SANDBOX_UID;

use crate::SandboxError;

/// A user and its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The user.
    pub uid: u32,
    /// The user's group, the only one.
    pub gid: u32,
}

/// The reason why there is no such user.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// No user has this name.
    #[error("there is no user {0}")]
    Unknown(String),
    /// No group has this name.
    #[error("there is no group {0}")]
    NoGroup(String),
    /// The user is root, or has root's group, which would be no change.
    #[error("the user {0} is root, or in root's group")]
    Root(String),
    /// The system cannot look the name up.
    #[error("cannot look up the user {name}")]
    Look {
        /// The name.
        name: String,
        /// The reason.
        source: io::Error,
    },
}

impl Identity {
    /// The user with this name or number.
    pub fn named(name: &str) -> Result<Self, IdentityError> {
        let found = match name.parse() {
            Ok(uid) => found(User::from_uid(Uid::from_raw(uid)))
                .map(|user| Some(user.map_or(Self { uid, gid: uid }, |user| Self::from(&user)))),
            Err(_) => found(User::from_name(name)).map(|user| user.as_ref().map(Self::from)),
        };
        let look =
            |errno: nix::Error| IdentityError::Look { name: name.into(), source: errno.into() };
        let found = found.map_err(look)?.ok_or_else(|| IdentityError::Unknown(name.into()))?;
        if found.uid == 0 || found.gid == 0 {
            return Err(IdentityError::Root(name.into()));
        }
        Ok(found)
    }

    /// A number that no user has, from the range that systemd sets apart for services without their
    /// own user.
    ///
    /// # Errors
    /// [`IdentityError::Look`]; [`IdentityError::Unknown`] if all numbers that are tried have users.
    pub fn nobodys() -> Result<Self, IdentityError> {
        let look = |errno: nix::Error| IdentityError::Look {
            name: SANDBOX_UID.to_string(),
            source: errno.into(),
        };
        for number in SANDBOX_UID..SANDBOX_UID + 16 {
            let user = found(User::from_uid(Uid::from_raw(number))).map_err(look)?;
            let group = found(Group::from_gid(Gid::from_raw(number))).map_err(look)?;
            if user.is_none() && group.is_none() {
                return Ok(Self { uid: number, gid: number });
            }
        }
        Err(IdentityError::Unknown(format!("{SANDBOX_UID} that is free")))
    }
}

/// The number of the group with this name or number.
///
/// # Errors
/// [`IdentityError::NoGroup`], [`IdentityError::Look`]
pub fn group(name: &str) -> Result<u32, IdentityError> {
    if let Some(number) = number(name) {
        return Ok(number);
    }
    let look = |errno: nix::Error| IdentityError::Look { name: name.into(), source: errno.into() };
    let group = found(Group::from_name(name)).map_err(look)?;
    group.map(|it| it.gid.as_raw()).ok_or_else(|| IdentityError::NoGroup(name.into()))
}

/// The number of the user with this name or number, root included.
///
/// # Errors
/// [`IdentityError::Unknown`], [`IdentityError::Look`]
pub fn user(name: &str) -> Result<u32, IdentityError> {
    if let Some(number) = number(name) {
        return Ok(number);
    }
    let look = |errno: nix::Error| IdentityError::Look { name: name.into(), source: errno.into() };
    let user = found(User::from_name(name)).map_err(look)?;
    user.map(|it| it.uid.as_raw()).ok_or_else(|| IdentityError::Unknown(name.into()))
}

/// The groups of a process that is started for this user and group: those of the user, and `gid`.
pub fn groups(uid: u32, gid: u32) -> Vec<u32> {
    let user = found(User::from_uid(Uid::from_raw(uid))).ok().flatten();
    let of_user = user.and_then(|user| {
        let name = CString::new(user.name).ok()?;
        nix::unistd::getgrouplist(&name, user.gid).ok()
    });
    let of_user = of_user.into_iter().flatten().map(Gid::as_raw);
    of_user.chain([gid]).collect()
}

/// The number that `name` is. The largest one means nobody (chown(2)), and is no user's or group's.
fn number(name: &str) -> Option<u32> {
    name.parse().ok().filter(|number| *number != u32::MAX)
}

/// The entry; `None` if there is no list to look in, as in a small root (getpwnam(3) names these errors).
fn found<T>(looked: nix::Result<Option<T>>) -> nix::Result<Option<T>> {
    use nix::errno::Errno::{EBADF, ENOENT, EPERM, ESRCH};
    match looked {
        Err(ENOENT | ESRCH | EBADF | EPERM) => Ok(None),
        looked => looked,
    }
}

impl From<&User> for Identity {
    fn from(user: &User) -> Self {
        Self { uid: user.uid.as_raw(), gid: user.gid.as_raw() }
    }
}

/// No capability.
pub(crate) const NONE: CapabilitySet = CapabilitySet::empty();

/// Capabilities that the work of weir's helper needs.
pub(crate) const HELPERS: CapabilitySet = CapabilitySet::DAC_OVERRIDE
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::NET_ADMIN)
    .union(CapabilitySet::SYS_NICE);

/// A further capability, for a socket that belongs to another user or group.
pub(crate) const GIVE_AWAY: CapabilitySet = CapabilitySet::CHOWN;

/// True if this process may change the interfaces and rules of its network namespace.
pub fn may_administer_networks() -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::NET_ADMIN))
}

/// Makes this process `identity`'s. It keeps the rights of that user, and those capabilities of `kept` that it had. It
/// gets none from a program that it starts, is not traced, and leaves no core.
pub(crate) fn give_up(
    identity: Option<&Identity>,
    kept: CapabilitySet,
) -> Result<(), SandboxError> {
    let cannot = |step| move |errno: Errno| SandboxError::Identity { step, source: errno.into() };
    for capability in CapabilitySet::all() {
        match remove_capability_from_bounding_set(capability) {
            // The process may not drop the capability, or the kernel does not know it.
            Ok(()) | Err(Errno::PERM | Errno::INVAL) => {}
            Err(errno) => return Err(cannot("give up a capability")(errno)),
        }
    }
    if let Some(&Identity { uid, gid }) = identity {
        let (uid, gid) = (rustix::process::Uid::from_raw(uid), rustix::process::Gid::from_raw(gid));
        set_thread_groups(&[]).map_err(cannot("leave groups"))?;
        set_thread_res_gid(gid, gid, gid).map_err(cannot("change the group"))?;
        set_thread_res_uid(uid, uid, uid).map_err(cannot("change the user"))?;
    }
    clear_ambient_capability_set().map_err(cannot("give up capabilities"))?;
    let had = capabilities(None).map_err(cannot("look at capabilities"))?;
    let kept = kept & had.permitted;
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: NONE };
    set_capabilities(None, sets).map_err(cannot("give up capabilities"))?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(cannot("forbid tracing"))?;
    set_no_new_privs(true).map_err(cannot("refuse new privileges"))
}

/// Makes the kernel kill this process when its parent ends.
pub(crate) fn end_with_parent() -> Result<(), SandboxError> {
    let step = "end with the process that started it";
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|errno| SandboxError::Identity { step, source: errno.into() })
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_in_no_list_is_nobody_and_not_a_mistake() {
        assert!(matches!(found::<User>(Err(nix::errno::Errno::ENOENT)), Ok(None)));
        assert!(found::<User>(Err(nix::errno::Errno::EIO)).is_err());
    }
}
