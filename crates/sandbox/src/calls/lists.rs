//! The system calls of each kind of thread: found by weir's tests under `strace -f`, with the calls that libc may use
//! in their place on other machines. Most have no conditions: such a call costs no run of the filter (Linux 5.11).

use libc::*;

/// Calls of any thread: memory, locks, time, its beginning and its end, a line in the log, a panic.
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

/// Calls that only ask, and only about the process and its machine. A C library may make any of them anywhere.
#[rustfmt::skip]
pub(super) const ASK: &[c_long] = &[
    SYS_getuid, SYS_geteuid, SYS_getgid, SYS_getegid, SYS_getppid, SYS_uname, SYS_sysinfo, SYS_times,
    SYS_getrusage, SYS_getcpu, SYS_gettimeofday, SYS_clock_getres, SYS_getpriority, SYS_mincore,
    #[cfg(target_arch = "x86_64")] SYS_time, #[cfg(target_arch = "x86_64")] SYS_getrlimit,
];

/// The numbers of system calls that came with Linux 5.1 and later, the same on every architecture. Calls that are on no
/// list get the answer of a kernel without them: a newer C library then does what an older one does.
pub(super) const NEWER: std::ops::Range<c_long> = 424..512;

/// Calls with a file name. A panic makes such calls, to find the program for its backtrace. They fail in a thread that
/// has no business with files, and the thread continues.
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

/// Accepting, messages with descriptors, memory that is mapped and judged, a thread that calls.
#[rustfmt::skip]
pub(super) const SESSION: &[c_long] = &[
    SYS_accept4, SYS_recvmsg, SYS_recvfrom, SYS_sendmsg, SYS_sendto, SYS_getsockopt, SYS_getsockname, SYS_getpeername,
    SYS_shutdown, SYS_eventfd2, SYS_epoll_ctl, SYS_io_setup, SYS_io_submit, SYS_io_getevents, SYS_io_destroy,
    SYS_memfd_create, SYS_ftruncate, SYS_fallocate, SYS_fstatfs,
];

/// Making a worker.
#[rustfmt::skip]
pub(super) const HIRE: &[c_long] = &[
    SYS_epoll_create1, SYS_timerfd_create,
    SYS_sched_setscheduler, SYS_sched_get_priority_max, SYS_sched_get_priority_min,
    SYS_sched_setattr, SYS_sched_getattr,
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

/// The rest: the manager's questions and settings.
#[rustfmt::skip]
pub(super) const PROCESS: &[c_long] = &[
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
pub(super) const HELPER: &[c_long] = &[
    SYS_bind, SYS_listen, SYS_mkdirat, SYS_unlinkat, SYS_renameat2, SYS_flock, SYS_fchmod, SYS_fchmodat,
    SYS_fchownat, SYS_inotify_init1, SYS_inotify_add_watch,
    #[cfg(target_arch = "x86_64")] SYS_mkdir,
    #[cfg(target_arch = "x86_64")] SYS_unlink,
    #[cfg(target_arch = "x86_64")] SYS_chmod,
];

/// Packets with descriptors, from a listening socket.
pub(super) const KEEPER: &[c_long] = &[SYS_accept4, SYS_recvmsg, SYS_sendmsg, SYS_getsockopt];

/// Memory, the open socket, and files of names. No thread, no process, no signal, no other socket.
#[rustfmt::skip]
pub(super) const COMPILER: &[c_long] = &[
    SYS_brk, SYS_mmap, SYS_mprotect, SYS_mremap, SYS_munmap, SYS_madvise, SYS_futex, SYS_restart_syscall,
    SYS_openat, SYS_newfstatat, SYS_fstat, SYS_read, SYS_lseek, SYS_close,
    SYS_recvfrom, SYS_sendto, SYS_write, SYS_getrandom, SYS_rt_sigreturn, SYS_sigaltstack, SYS_exit_group,
];

/// Requests to descriptors: not to block, not to be inherited, the number of bytes to read, whether they are a
/// terminal, and its width. Any other request fails as for a descriptor that does not know it.
pub(super) const IOCTLS: &[u64] = &[FIONBIO, FIOCLEX, FIONREAD, TCGETS, TCGETS2, TIOCGWINSZ];
