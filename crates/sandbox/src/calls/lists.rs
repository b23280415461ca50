//! What each kind of thread calls: learned from weir's tests under `strace -f`, with what libc may use in its place
//! on other machines. Most of it has no conditions: such a call costs no run of the filter (Linux 5.11).

use libc::*;

/// What any thread does: memory, locks, time, its beginning and its end, a line in the log, a panic.
#[rustfmt::skip]
pub(super) const ANY: &[c_long] = &[
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

/// What only asks, and about the process and its machine only. A C library may ask any of it anywhere.
#[rustfmt::skip]
pub(super) const ASK: &[c_long] = &[
    SYS_getuid, SYS_geteuid, SYS_getgid, SYS_getegid, SYS_getppid, SYS_uname, SYS_sysinfo, SYS_times,
    SYS_getrusage, SYS_getcpu, SYS_gettimeofday, SYS_clock_getres, SYS_getpriority, SYS_mincore,
    #[cfg(target_arch = "x86_64")] SYS_time, #[cfg(target_arch = "x86_64")] SYS_getrlimit,
];

/// Numbers of system calls that came with Linux 5.1 and later, the same on every architecture. What is on no list is
/// answered as a kernel answers that does not have it: a C library of tomorrow then does what it does today.
pub(super) const NEWER: std::ops::Range<c_long> = 424..512;

/// What takes a name, as a panic does that looks for the program for its backtrace: a thread that has no business with
/// files is refused it, and goes on.
#[rustfmt::skip]
pub(super) const FILES: &[c_long] = &[
    SYS_openat, SYS_readlinkat, SYS_statx, SYS_newfstatat, SYS_getcwd,
    #[cfg(target_arch = "x86_64")] SYS_readlink,
];

/// Rings, TAPs, packet sockets, timers, calls by AIO.
#[rustfmt::skip]
pub(super) const WORKER: &[c_long] = &[
    SYS_epoll_pwait, SYS_epoll_pwait2, SYS_epoll_ctl, SYS_timerfd_settime,
    #[cfg(target_arch = "x86_64")] SYS_epoll_wait,
    SYS_io_setup, SYS_io_submit, SYS_io_getevents, SYS_io_destroy,
    SYS_recvmsg, SYS_recvmmsg, SYS_recvfrom, SYS_sendmsg, SYS_sendmmsg, SYS_sendto,
    SYS_getsockname, SYS_getsockopt,
    SYS_sched_getscheduler, SYS_sched_getparam,
];

/// Messages with descriptors, memory that is mapped and judged, a thread that calls.
#[rustfmt::skip]
pub(super) const SESSION: &[c_long] = &[
    SYS_recvmsg, SYS_recvfrom, SYS_sendmsg, SYS_sendto, SYS_getsockopt, SYS_getsockname, SYS_getpeername, SYS_shutdown,
    SYS_eventfd2, SYS_epoll_ctl, SYS_io_setup, SYS_io_submit, SYS_io_getevents, SYS_io_destroy,
    SYS_memfd_create, SYS_ftruncate, SYS_fallocate, SYS_fstatfs,
];

/// A worker that is made.
#[rustfmt::skip]
pub(super) const HIRE: &[c_long] = &[
    SYS_epoll_create1, SYS_timerfd_create,
    SYS_sched_setscheduler, SYS_sched_get_priority_max, SYS_sched_get_priority_min,
];

/// Calls by pipe or by socket.
pub(super) const CALLER: &[c_long] = &[SYS_sendto, SYS_sendmsg];

/// Connections of the API's clients, by epoll.
#[rustfmt::skip]
pub(super) const CONTROL: &[c_long] = &[
    SYS_accept4, SYS_epoll_create1, SYS_epoll_pwait, SYS_epoll_ctl, SYS_eventfd2,
    #[cfg(target_arch = "x86_64")] SYS_epoll_wait,
    SYS_recvfrom, SYS_recvmsg, SYS_sendto, SYS_sendmsg, SYS_shutdown,
    SYS_getsockopt, SYS_setsockopt, SYS_getsockname, SYS_getpeername,
];

/// What is left: accepting, what the manager looks at and sets.
#[rustfmt::skip]
pub(super) const PROCESS: &[c_long] = &[
    SYS_accept4, SYS_socket, SYS_connect, SYS_setsockopt, SYS_getpeername,
    SYS_pipe2,
    SYS_getdents64, SYS_pread64, SYS_statfs,
    #[cfg(target_arch = "x86_64")] SYS_access,
    SYS_faccessat, SYS_faccessat2,
    SYS_sched_setaffinity, SYS_sched_setattr, SYS_sched_getattr,
    SYS_prlimit64, SYS_wait4, SYS_waitid,
    #[cfg(target_arch = "x86_64")] SYS_open,
];

/// Sockets, and files beside them that say what a network card had.
#[rustfmt::skip]
pub(super) const HELPER: &[c_long] = &[
    SYS_bind, SYS_listen, SYS_mkdirat, SYS_unlinkat, SYS_renameat2, SYS_flock, SYS_fchmod, SYS_fchmodat,
    SYS_fchownat,
    #[cfg(target_arch = "x86_64")] SYS_mkdir,
    #[cfg(target_arch = "x86_64")] SYS_unlink,
    #[cfg(target_arch = "x86_64")] SYS_chmod,
];

/// Packets with descriptors, from a socket that is listening.
pub(super) const KEEPER: &[c_long] = &[SYS_accept4, SYS_recvmsg, SYS_sendmsg, SYS_getsockopt];

/// Memory, the socket that is there, and files of names. No thread, no process, no signal, no other socket.
#[rustfmt::skip]
pub(super) const COMPILER: &[c_long] = &[
    SYS_brk, SYS_mmap, SYS_mprotect, SYS_mremap, SYS_munmap, SYS_madvise, SYS_futex, SYS_restart_syscall,
    SYS_openat, SYS_newfstatat, SYS_fstat, SYS_read, SYS_lseek, SYS_close,
    SYS_recvfrom, SYS_sendto, SYS_write, SYS_getrandom, SYS_rt_sigreturn, SYS_sigaltstack, SYS_exit_group,
];

/// What is asked of descriptors: not to block, not to be inherited, how much is to be read, whether it is a terminal, and
/// how wide. Any other question has the answer of a descriptor that does not know it.
pub(super) const IOCTLS: &[u64] = &[FIONBIO, FIOCLEX, FIONREAD, TCGETS, TCGETS2, TIOCGWINSZ];
