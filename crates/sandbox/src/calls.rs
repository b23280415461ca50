//! System calls: a filter for the process, and narrower ones for threads that read others' data.
//!
//! The lists of each kind of thread were found by weir's tests under `strace -f`, with the calls that libc may use
//! in their place on other machines. Most have no conditions: such a call costs no run of the filter (Linux 5.11).

use std::{collections::BTreeMap, sync::OnceLock};

use libc::{c_int, c_long, *};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, apply_filter,
};

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
    /// The privileged work for processes of these kinds: sockets, network cards, other processes'
    /// threads.
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
        let helper = if profile == Profile::Helper { HELPER } else { &[] };
        let process: &[&[c_long]] = match profile {
            Profile::Keeper => &[ANY, FILES, KEEPER],
            _ => &[ANY, FILES, SESSION, WORKER, HIRE, PROCESS, helper],
        };
        let worker: &[&[c_long]] = &[ANY, FILES, WORKER];
        // These threads make workers, for their own queue pairs, and workers inherit their filter.
        let session: &[&[c_long]] = &[ANY, FILES, SESSION, WORKER, HIRE];
        let caller: &[&[c_long]] = &[ANY, FILES, CALLER];
        let control: &[&[c_long]] = &[ANY, FILES, CONTROL];
        // A library's harmless question that is on no list gets an error, and does not end the process.
        let asks = enforcement == Enforcement::Log && profile != Profile::Xen;
        let ioctl = if asks { known_ioctls()? } else { vec![] };
        let allow = |lists: &[&[c_long]]| -> Result<BpfProgram, BackendError> {
            let listed = lists.iter().copied().flatten().chain(ASK).copied();
            let newer = NEWER.filter(|_| enforcement == Enforcement::Kill);
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
                let newer = NEWER.filter(|call| !is_listed(call));
                let newer = newer.map(|call| (call, Vec::new())).collect();
                programs.push(refuse(newer, libc::ENOSYS)?);
            }
            // libc then makes threads by `clone`, whose flags the filter can see.
            programs.process.push(refuse(vec![(libc::SYS_clone3, Vec::new())], libc::ENOSYS)?);
            programs.process.push(refuse(refused(profile)?, libc::EACCES)?);
            let no_files = || FILES.iter().map(|call| (*call, Vec::new())).collect();
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
        let calls = COMPILER.iter().map(|call| (*call, Vec::new())).collect();
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

/// Returns true for an open that does more than read, or that truncates. Its flags are argument
/// `index`.
fn writing(index: u8) -> Result<Vec<SeccompRule>, BackendError> {
    let flags = [
        (libc::O_ACCMODE, libc::O_WRONLY),
        (libc::O_ACCMODE, libc::O_RDWR),
        (libc::O_CREAT, libc::O_CREAT),
        (libc::O_TRUNC, libc::O_TRUNC),
    ];
    flags.into_iter().map(|(mask, flags)| masked(index, mask, flags)).collect()
}

/// Requests that are not in [`IOCTLS`].
fn unknown_ioctls() -> Result<Vec<SeccompRule>, BackendError> {
    let differs = |request: &u64| {
        SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, *request)
    };
    let all: Result<Vec<_>, _> = IOCTLS.iter().map(differs).collect();
    Ok(vec![SeccompRule::new(all?)?])
}

fn known_ioctls() -> Result<Vec<SeccompRule>, BackendError> {
    let equals = |request: &u64| {
        let op = SeccompCmpOp::Eq;
        SeccompRule::new(vec![SeccompCondition::new(1, SeccompCmpArgLen::Dword, op, *request)?])
    };
    IOCTLS.iter().map(equals).collect()
}

/// The condition that the bits of argument `index` that are in `mask` equal `value`. Only the lower
/// 32 bits count.
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

/// Calls of any thread: memory, locks, time, its beginning and its end, a line in the log, a panic.
#[rustfmt::skip]
const ANY: &[c_long] = &[
    SYS_brk, SYS_mmap, SYS_mprotect, SYS_mremap, SYS_munmap, SYS_madvise,
    SYS_futex, SYS_membarrier, SYS_sched_yield, SYS_restart_syscall,
    SYS_clock_gettime, SYS_clock_nanosleep, SYS_nanosleep, SYS_getrandom,
    SYS_gettid, SYS_getpid, SYS_tgkill,
    SYS_set_robust_list, SYS_rseq, SYS_sigaltstack, SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigreturn,
    SYS_sched_getaffinity, SYS_clone3, SYS_prctl, SYS_seccomp, SYS_exit, SYS_exit_group,
    SYS_read, SYS_readv, SYS_write, SYS_writev, SYS_lseek, SYS_close, SYS_fcntl, SYS_fstat,
    SYS_ppoll,
    #[cfg(target_arch = "x86_64")] SYS_poll,
];

/// Calls that only ask, and only about the process and its machine. A C library may make any of them anywhere.
#[rustfmt::skip]
const ASK: &[c_long] = &[
    SYS_getuid, SYS_geteuid, SYS_getgid, SYS_getegid, SYS_getppid, SYS_uname, SYS_sysinfo, SYS_times,
    SYS_getrusage, SYS_getcpu, SYS_gettimeofday, SYS_clock_getres, SYS_getpriority, SYS_mincore,
    #[cfg(target_arch = "x86_64")] SYS_time, #[cfg(target_arch = "x86_64")] SYS_getrlimit,
];

/// The numbers of system calls that came with Linux 5.1 and later, the same on every architecture. Calls that are on no
/// list get the answer of a kernel without them: a newer C library then does what an older one does.
const NEWER: std::ops::Range<c_long> = 424..512;

/// Calls with a file name. A panic makes such calls, to find the program for its backtrace. They fail in a thread that
/// has no business with files, and the thread continues.
#[rustfmt::skip]
const FILES: &[c_long] = &[
    SYS_openat, SYS_readlinkat, SYS_statx, SYS_newfstatat, SYS_getcwd,
    #[cfg(target_arch = "x86_64")] SYS_readlink,
];

/// Rings, TAPs, packet sockets, timers, calls by AIO.
#[rustfmt::skip]
const WORKER: &[c_long] = &[
    SYS_epoll_pwait, SYS_epoll_pwait2, SYS_epoll_ctl, SYS_timerfd_settime,
    #[cfg(target_arch = "x86_64")] SYS_epoll_wait,
    SYS_io_setup, SYS_io_submit, SYS_io_getevents, SYS_io_destroy,
    SYS_recvmsg, SYS_recvmmsg, SYS_recvfrom, SYS_sendmsg, SYS_sendmmsg, SYS_sendto,
    SYS_getsockname, SYS_getsockopt,
    SYS_sched_getscheduler, SYS_sched_getparam,
];

/// Sessions of front ends: connections, messages with descriptors, the mapping of memory, and a thread for calls.
#[rustfmt::skip]
const SESSION: &[c_long] = &[
    SYS_accept4, SYS_recvmsg, SYS_recvfrom, SYS_sendmsg, SYS_sendto, SYS_getsockopt, SYS_getsockname, SYS_getpeername,
    SYS_shutdown, SYS_eventfd2, SYS_epoll_ctl, SYS_io_setup, SYS_io_submit, SYS_io_getevents, SYS_io_destroy,
    SYS_memfd_create, SYS_ftruncate, SYS_fallocate, SYS_fstatfs,
];

/// Making a worker.
#[rustfmt::skip]
const HIRE: &[c_long] = &[
    SYS_epoll_create1, SYS_timerfd_create,
    SYS_sched_setscheduler, SYS_sched_get_priority_max, SYS_sched_get_priority_min,
    SYS_sched_setattr, SYS_sched_getattr,
];

/// Calls by pipe or by socket.
const CALLER: &[c_long] = &[SYS_sendto, SYS_sendmsg];

/// Connections of the API's clients, by epoll.
#[rustfmt::skip]
const CONTROL: &[c_long] = &[
    SYS_accept4, SYS_epoll_create1, SYS_epoll_pwait, SYS_epoll_ctl, SYS_eventfd2,
    #[cfg(target_arch = "x86_64")] SYS_epoll_wait,
    SYS_recvfrom, SYS_recvmsg, SYS_sendto, SYS_sendmsg, SYS_shutdown,
    SYS_getsockopt, SYS_setsockopt, SYS_getsockname, SYS_getpeername,
];

/// All other calls: those with which the manager asks for values and changes settings.
#[rustfmt::skip]
const PROCESS: &[c_long] = &[
    SYS_socket, SYS_connect, SYS_setsockopt, SYS_getpeername,
    SYS_pipe2,
    SYS_getdents64, SYS_pread64, SYS_statfs,
    #[cfg(target_arch = "x86_64")] SYS_access,
    SYS_faccessat, SYS_faccessat2,
    SYS_sched_setaffinity, SYS_sched_setattr, SYS_sched_getattr,
    SYS_prlimit64, SYS_wait4, SYS_waitid,
    #[cfg(target_arch = "x86_64")] SYS_open,
];

/// Sockets, notices of those that others make, and files that hold a network card's earlier settings.
#[rustfmt::skip]
const HELPER: &[c_long] = &[
    SYS_bind, SYS_listen, SYS_mkdirat, SYS_unlinkat, SYS_renameat2, SYS_flock, SYS_fchmod, SYS_fchmodat,
    SYS_fchownat, SYS_inotify_init1, SYS_inotify_add_watch,
    #[cfg(target_arch = "x86_64")] SYS_mkdir,
    #[cfg(target_arch = "x86_64")] SYS_unlink,
    #[cfg(target_arch = "x86_64")] SYS_chmod,
];

/// Packets with descriptors, from a listening socket.
const KEEPER: &[c_long] = &[SYS_accept4, SYS_recvmsg, SYS_sendmsg, SYS_getsockopt];

/// Memory, the open socket, and files of names. No thread, no process, no signal, no other socket.
#[rustfmt::skip]
const COMPILER: &[c_long] = &[
    SYS_brk, SYS_mmap, SYS_mprotect, SYS_mremap, SYS_munmap, SYS_madvise, SYS_futex, SYS_restart_syscall,
    SYS_openat, SYS_newfstatat, SYS_fstat, SYS_read, SYS_lseek, SYS_close,
    SYS_recvfrom, SYS_sendto, SYS_write, SYS_getrandom, SYS_rt_sigreturn, SYS_sigaltstack, SYS_exit_group,
];

/// Requests to descriptors: not to block, not to be inherited, the number of bytes to read, whether they are a
/// terminal, and its width. Any other request fails as for a descriptor that does not know it.
const IOCTLS: &[u64] = &[FIONBIO, FIOCLEX, FIONREAD, TCGETS, TCGETS2, TIOCGWINSZ];
