//! What this process may still do once it serves guests.
//!
//! | file | what |
//! |---|---|
//! | `identity.rs` | whose it is: a user of its own, no capability |
//! | `files.rs` | what it may open: Landlock |
//! | `calls.rs`, `calls/lists.rs` | which system calls it makes: seccomp, by the kind of thread |
//! | `descriptors.rs` | which of its descriptors guests may have |
//!
//! [`confine`] takes it away, in the only thread that there is then; every thread inherits that. Threads that read
//! what guests and front ends write give up more as they begin, by [`narrow`]. See docs/design/0027-sandbox.md.

#![forbid(unsafe_code)]

mod calls;
pub mod descriptors;
mod files;
mod identity;

use std::io;
use std::path::{Path, PathBuf};

pub use calls::{Enforcement, Profile, Thread};
pub use files::Landlocked;
pub use identity::{Identity, IdentityError, group, user};

/// What is left to a process.
#[derive(Debug)]
pub struct Plan<'a> {
    /// Whose it is from now on; `None` for whose it was.
    pub identity: Option<Identity>,
    /// What it may read, with all below. What is not there is passed over.
    pub readable: &'a [&'a Path],
    /// What it may open to read and write, with all below.
    pub writable: &'a [&'a Path],
    /// Which system calls it makes.
    pub profile: Profile,
    /// What a forbidden one comes to.
    pub enforcement: Enforcement,
}

/// Why a process is not confined.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// It has threads already, which would keep what this one gives up.
    #[error("{0} threads run already")]
    Threads(usize),
    /// Whether it has is not to be seen.
    #[error("cannot count threads in /proc/self/task")]
    Look(#[source] io::Error),
    /// It is whose it was.
    #[error("cannot {step}")]
    Identity {
        /// What was tried.
        step: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// Landlock is there and refuses.
    #[error("cannot restrict access to files")]
    Files(#[source] landlock::RulesetError),
    /// What may be read cannot be opened.
    #[error("cannot open {} for a rule", path.display())]
    Path {
        /// The path.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// There is no seccomp, or it refuses.
    #[error("cannot filter system calls")]
    Calls(#[from] seccompiler::Error),
    /// A filter cannot be made.
    #[error("cannot compile the system call filter")]
    Filter(#[from] seccompiler::BackendError),
}

/// Confines this process, which has one thread. After an error it is as it happens to be then: it is to end.
///
/// With [`Enforcement::Log`] files stay as they are, too: Landlock has no such mode.
pub fn confine(plan: &Plan<'_>) -> Result<Landlocked, SandboxError> {
    let threads = std::fs::read_dir("/proc/self/task").map_err(SandboxError::Look)?.count();
    if threads != 1 {
        return Err(SandboxError::Threads(threads));
    }
    let programs = calls::Programs::new(plan.profile, plan.enforcement)?;
    identity::give_up(plan.identity.as_ref(), identity::NONE)?;
    if plan.profile == Profile::Compiler {
        // A change of user undoes it, and a filter refuses it.
        identity::end_with_parent()?;
    }
    let files = match plan.enforcement {
        Enforcement::Kill => files::restrict(plan.readable, plan.writable)?,
        Enforcement::Log => Landlocked::No,
    };
    programs.install()?;
    Ok(files)
}

/// Confines this process, the helper of a confined one: it keeps what makes sockets in others' directories, sets network
/// cards and places threads, of what it has, and makes no process. `gives_away`: it gives a socket to a group.
pub fn confine_helper(gives_away: bool) -> Result<(), SandboxError> {
    let programs = calls::Programs::new(Profile::Helper, Enforcement::Kill)?;
    let kept = match gives_away {
        true => identity::HELPERS | identity::GIVE_AWAY,
        false => identity::HELPERS,
    };
    identity::give_up(None, kept)?;
    Ok(programs.install()?)
}

/// Narrows a thread's system calls: from now on it only serves guests or front ends. Does nothing in a process that
/// is not confined. Ends the process if the kernel has no memory for the filter: a thread is never less confined
/// than it seems.
pub fn narrow(thread: Thread) {
    if let Err(error) = calls::narrow(thread) {
        eprintln!("weir ends: a thread cannot be confined: {error}");
        std::process::abort();
    }
}
