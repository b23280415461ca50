//! System calls: a filter for the process, and narrower ones for threads that read others' data.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use libc::{c_int, c_long};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, apply_filter,
};

mod lists;

/// The result of a system call that is on no list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enforcement {
    /// The end of the process: a process that makes such a call is no longer weir.
    Kill,
    /// A line in the kernel's log. Nothing is forbidden.
    Log,
}

/// The task of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Guests over vhost-user, and uplinks. Another process does everything with names in the file system.
    Switch,
    /// Guests of Xen as well: opened devices, and ioctls.
    Xen,
    /// The privileged work for these: sockets, network cards, other processes' threads.
    Helper,
    /// Holding descriptors for another process, and nothing else.
    Keeper,
    /// Compiling expressions for another process, over one socket. A call that is not on its list fails and does not
    /// end the process: libc looks for names in many ways, and can do without.
    Compiler,
}

/// The data that a thread reads and that others can forge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thread {
    /// Rings and frames.
    Worker,
    /// Messages of a front end, and descriptors from it. The thread that accepts front ends has this filter, and the
    /// threads of their sessions inherit it.
    Session,
    /// No input: the thread writes to descriptors of front ends.
    Caller,
    /// Requests of the API's clients. The thread makes no other thread.
    Control,
}

/// The filters of one process.
#[derive(Debug)]
pub(crate) struct Programs {
    process: Vec<BpfProgram>,
    worker: Vec<BpfProgram>,
    session: Vec<BpfProgram>,
    caller: Vec<BpfProgram>,
    control: Vec<BpfProgram>,
}

static INSTALLED: OnceLock<Programs> = OnceLock::new();

/// A system call with the conditions on its arguments under which a rule applies.
type Call = (c_long, Vec<SeccompRule>);

impl Programs {
    pub(crate) fn new(profile: Profile, enforcement: Enforcement) -> Result<Self, BackendError> {
        if profile == Profile::Compiler {
            return Self::of_compiler(enforcement);
        }
        let helper = if profile == Profile::Helper { lists::HELPER } else { &[] };
        let process: &[&[c_long]] = match profile {
            Profile::Keeper => &[lists::ANY, lists::FILES, lists::KEEPER],
            _ => &[
                lists::ANY,
                lists::FILES,
                lists::SESSION,
                lists::WORKER,
                lists::HIRE,
                lists::PROCESS,
                helper,
            ],
        };
        let worker: &[&[c_long]] = &[lists::ANY, lists::FILES, lists::WORKER];
        // These threads make workers, for queue pairs of their own, and workers inherit their filter.
        let session: &[&[c_long]] =
            &[lists::ANY, lists::FILES, lists::SESSION, lists::WORKER, lists::HIRE];
        let caller: &[&[c_long]] = &[lists::ANY, lists::FILES, lists::CALLER];
        let control: &[&[c_long]] = &[lists::ANY, lists::FILES, lists::CONTROL];
        // A library's harmless question that is on no list gets an error, and does not end the process.
        let asks = enforcement == Enforcement::Log && profile != Profile::Xen;
        let ioctl = if asks { known_ioctls()? } else { vec![] };
        let allow = |lists: &[&[c_long]]| -> Result<BpfProgram, BackendError> {
            let listed = lists.iter().copied().flatten().chain(lists::ASK).copied();
            let newer = lists::NEWER.filter(|_| enforcement == Enforcement::Kill);
            let unconditional = listed.chain(newer).map(|call| (call, Vec::new()));
            let calls = unconditional.chain([
                // A clone may make a thread, and no process.
                (libc::SYS_clone, vec![masked(0, libc::CLONE_THREAD, libc::CLONE_THREAD)?]),
                (libc::SYS_ioctl, ioctl.clone()),
            ]);
            let other = match enforcement {
                Enforcement::Kill => SeccompAction::KillProcess,
                Enforcement::Log => SeccompAction::Log,
            };
            program(calls.collect(), other, SeccompAction::Allow)
        };
        let refuse = |calls: Vec<Call>, errno: c_int| {
            let refusal = SeccompAction::Errno(errno.unsigned_abs());
            program(calls, SeccompAction::Allow, refusal)
        };
        let mut programs = Self {
            process: vec![allow(process)?],
            worker: vec![allow(worker)?],
            session: vec![allow(session)?],
            caller: vec![allow(caller)?],
            control: vec![allow(control)?],
        };
        if enforcement == Enforcement::Kill {
            if profile != Profile::Xen {
                let unknown = vec![(libc::SYS_ioctl, unknown_ioctls()?)];
                programs.process.push(refuse(unknown, libc::ENOTTY)?);
            }
            let sets: [(&mut Vec<BpfProgram>, &[&[c_long]]); 5] = [
                (&mut programs.process, process),
                (&mut programs.worker, worker),
                (&mut programs.session, session),
                (&mut programs.caller, caller),
                (&mut programs.control, control),
            ];
            for (programs, lists) in sets {
                let is_listed = |call: &c_long| lists.iter().any(|list| list.contains(call));
                let newer = lists::NEWER.filter(|call| !is_listed(call));
                let newer = newer.map(|call| (call, Vec::new())).collect();
                programs.push(refuse(newer, libc::ENOSYS)?);
            }
            // libc then makes threads by `clone`, whose flags the filter can see.
            programs.process.push(refuse(vec![(libc::SYS_clone3, Vec::new())], libc::ENOSYS)?);
            programs.process.push(refuse(refused(profile)?, libc::EACCES)?);
            let no_files = || lists::FILES.iter().map(|call| (*call, Vec::new())).collect();
            programs.worker.push(refuse(no_files(), libc::EACCES)?);
            programs.caller.push(refuse(no_files(), libc::EACCES)?);
            programs.control.push(refuse(no_files(), libc::EACCES)?);
            if profile == Profile::Keeper {
                programs.process.push(refuse(no_files(), libc::EACCES)?);
            }
        }
        Ok(programs)
    }

    fn of_compiler(enforcement: Enforcement) -> Result<Self, BackendError> {
        let other = match enforcement {
            Enforcement::Kill => SeccompAction::Errno(libc::EACCES.unsigned_abs()),
            Enforcement::Log => SeccompAction::Log,
        };
        let mut process = Vec::new();
        if enforcement == Enforcement::Kill {
            let refusal = SeccompAction::Errno(libc::EACCES.unsigned_abs());
            process.push(program(refused(Profile::Compiler)?, SeccompAction::Allow, refusal)?);
        }
        // This filter comes last: it refuses the calls by which filters are installed.
        let calls = lists::COMPILER.iter().map(|call| (*call, Vec::new())).collect();
        process.push(program(calls, other, SeccompAction::Allow)?);
        let (worker, session, caller, control) = (vec![], vec![], vec![], vec![]);
        Ok(Self { process, worker, session, caller, control })
    }

    /// Filters this thread, and all threads that it makes from now on.
    pub(crate) fn install(self) -> Result<(), seccompiler::Error> {
        let programs = INSTALLED.get_or_init(|| self);
        programs.process.iter().try_for_each(|program| apply_filter(program))
    }
}

pub(crate) fn narrow(thread: Thread) -> Result<(), seccompiler::Error> {
    let Some(programs) = INSTALLED.get() else { return Ok(()) };
    let programs = match thread {
        Thread::Worker => &programs.worker,
        Thread::Session => &programs.session,
        Thread::Caller => &programs.caller,
        Thread::Control => &programs.control,
    };
    // The last filter may forbid the calls by which the others are installed.
    programs.iter().rev().try_for_each(|program| apply_filter(program))
}

/// Calls that libc or libpcap may try and can do without: they fail, and do not end the process.
fn refused(profile: Profile) -> Result<Vec<Call>, BackendError> {
    let executable = || masked(2, libc::PROT_EXEC, libc::PROT_EXEC);
    let mut calls = vec![
        (libc::SYS_mmap, vec![executable()?]),
        (libc::SYS_mprotect, vec![executable()?]),
        // Nobody may make the process traceable again.
        (libc::SYS_prctl, vec![masked(0, -1, libc::PR_SET_DUMPABLE)?]),
    ];
    if profile == Profile::Switch {
        calls.push((libc::SYS_socket, Vec::new()));
        calls.push((libc::SYS_connect, Vec::new()));
    }
    if matches!(profile, Profile::Switch | Profile::Compiler) {
        calls.push((libc::SYS_openat, writing(2)?));
        #[cfg(target_arch = "x86_64")]
        calls.push((libc::SYS_open, writing(1)?));
    }
    Ok(calls)
}

/// True of an open that does more than read, or that truncates; its flags are argument `index`.
fn writing(index: u8) -> Result<Vec<SeccompRule>, BackendError> {
    let flags = [
        (libc::O_ACCMODE, libc::O_WRONLY),
        (libc::O_ACCMODE, libc::O_RDWR),
        (libc::O_CREAT, libc::O_CREAT),
        (libc::O_TRUNC, libc::O_TRUNC),
    ];
    flags.into_iter().map(|(mask, flags)| masked(index, mask, flags)).collect()
}

/// Requests that are not in [`lists::IOCTLS`].
fn unknown_ioctls() -> Result<Vec<SeccompRule>, BackendError> {
    let differs = |request: &u64| {
        SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, *request)
    };
    let all: Result<Vec<_>, _> = lists::IOCTLS.iter().map(differs).collect();
    Ok(vec![SeccompRule::new(all?)?])
}

fn known_ioctls() -> Result<Vec<SeccompRule>, BackendError> {
    let equals = |request: &u64| {
        let op = SeccompCmpOp::Eq;
        SeccompRule::new(vec![SeccompCondition::new(1, SeccompCmpArgLen::Dword, op, *request)?])
    };
    lists::IOCTLS.iter().map(equals).collect()
}

/// Of the lower 32 bits of argument `index`, those in `mask` equal `value`.
fn masked(index: u8, mask: c_int, value: c_int) -> Result<SeccompRule, BackendError> {
    let (mask, value) = (u64::from(mask.cast_unsigned()), u64::from(value.cast_unsigned()));
    let op = SeccompCmpOp::MaskedEq(mask);
    SeccompRule::new(vec![SeccompCondition::new(index, SeccompCmpArgLen::Dword, op, value)?])
}

fn program(
    calls: Vec<Call>,
    otherwise: SeccompAction,
    action: SeccompAction,
) -> Result<BpfProgram, BackendError> {
    let rules: BTreeMap<i64, Vec<SeccompRule>> = calls.into_iter().collect();
    SeccompFilter::new(rules, otherwise, action, std::env::consts::ARCH.try_into()?)?.try_into()
}
