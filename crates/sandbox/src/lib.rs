//! Confinement: the rights that this process keeps once it serves guests.
//!
//! | file | what |
//! |---|---|
//! | `identity.rs` | a user of its own, and no capability |
//! | `calls.rs` | its system calls: seccomp, by the kind of thread |
//! | `descriptors.rs` | the descriptors that guests may have |
//!
//! [`confine`] gives up the other rights, while the process has one thread; every later thread inherits the
//! confinement. Threads that read guests' and front ends' data give up more as they begin, by [`narrow`]. See
//! docs/design/front-ends.md#0027.

#![forbid(unsafe_code)]

mod calls;
pub mod descriptors;
mod identity;

use std::io;
use std::path::{Path, PathBuf};

pub use calls::{Enforcement, Profile, Thread};
pub use identity::Landlocked;
pub use identity::{Identity, IdentityError, group, groups, may_administer_networks, user};

/// The rights that a process keeps.
#[derive(Debug)]
pub struct Plan<'a> {
    /// The new user; `None` keeps the present one.
    pub identity: Option<Identity>,
    /// Files and trees that it may read. Missing ones are passed over.
    pub readable: &'a [&'a Path],
    /// Files and trees that it may open to read and write.
    pub writable: &'a [&'a Path],
    /// The system calls that it makes.
    pub profile: Profile,
    /// The result of a forbidden system call.
    pub enforcement: Enforcement,
}

/// The reason why a process is not confined.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The process already has threads, which would keep the rights that this one gives up.
    #[error("{0} threads run already")]
    Threads(usize),
    /// The number of threads cannot be read.
    #[error("cannot count threads in /proc/self/task")]
    Look(#[source] io::Error),
    /// The user cannot be changed.
    #[error("cannot {step}")]
    Identity {
        /// The step that failed.
        step: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// Landlock exists and fails.
    #[error("cannot restrict access to files")]
    Files(#[source] landlock::RulesetError),
    /// A file to be read cannot be opened.
    #[error("cannot open {} for a rule", path.display())]
    Path {
        /// The path.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// There is no seccomp, or it fails.
    #[error("cannot filter system calls")]
    Calls(#[from] seccompiler::Error),
    /// A filter cannot be made.
    #[error("cannot compile the system call filter")]
    Filter(#[from] seccompiler::BackendError),
}

/// Confines this process, which has one thread. After an error it is partly confined, and must end.
///
/// With [`Enforcement::Log`] access to files stays as it is, too: Landlock has no such mode.
pub fn confine(plan: &Plan<'_>) -> Result<Landlocked, SandboxError> {
    let threads = std::fs::read_dir("/proc/self/task").map_err(SandboxError::Look)?.count();
    if threads != 1 {
        return Err(SandboxError::Threads(threads));
    }
    let programs = calls::Programs::new(plan.profile, plan.enforcement)?;
    identity::give_up(plan.identity.as_ref(), identity::NONE)?;
    if plan.profile == Profile::Compiler {
        // A change of user resets this setting, and the filter refuses the call that makes it.
        identity::end_with_parent()?;
    }
    let files = match plan.enforcement {
        Enforcement::Kill => identity::restrict(plan.readable, plan.writable)?,
        Enforcement::Log => Landlocked::No,
    };
    programs.install()?;
    Ok(files)
}

/// Confines this process, the helper of a confined one. It keeps the capabilities for sockets in others' directories,
/// for network cards and for the placement of threads, as far as it has them, and makes no process. With `gives_away`
/// it can also give a socket to another user or group.
pub fn confine_helper(gives_away: bool) -> Result<(), SandboxError> {
    let programs = calls::Programs::new(Profile::Helper, Enforcement::Kill)?;
    let kept = match gives_away {
        true => identity::HELPERS | identity::GIVE_AWAY,
        false => identity::HELPERS,
    };
    identity::give_up(None, kept)?;
    Ok(programs.install()?)
}

/// Narrows a thread's system calls: from now on it only serves guests or front ends. Does nothing in a process that is
/// not confined. Ends the process if the kernel has no memory for the filter: a thread is never less confined than it
/// seems.
pub fn narrow(thread: Thread) {
    if let Err(error) = calls::narrow(thread) {
        eprintln!("weir ends: a thread cannot be confined: {error}");
        std::process::abort();
    }
}
