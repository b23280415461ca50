//! Confines itself and then makes the attempt that its argument names: for tests, which cannot confine their own
//! process.

#![forbid(unsafe_code)]

use std::path::Path;
use std::process::Command;

use rustix::fs::{Mode, OFlags};
use weir_sandbox::{Enforcement, Identity, Landlocked, Plan, Profile, SandboxError, Thread};

fn plan(enforcement: Enforcement) -> Plan<'static> {
    Plan { identity: None, readable: &[], writable: &[], profile: Profile::Switch, enforcement }
}

fn confine(enforcement: Enforcement) -> Landlocked {
    let proc = [Path::new("/proc"), Path::new("/no/such/path")];
    let files = weir_sandbox::confine(&Plan { readable: &proc, ..plan(enforcement) }).unwrap();
    println!("confined");
    files
}

fn status(of: &str, key: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{of}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap();
    line.trim_start_matches(':').trim().to_owned()
}

fn is_refused<T>(result: std::io::Result<T>) {
    let kind = result.map(drop).unwrap_err().kind();
    assert_eq!(kind, std::io::ErrorKind::PermissionDenied);
}

/// Runs `what` in a thread that has fewer rights than the others.
fn narrowed(thread: Thread, what: impl FnOnce() + Send + 'static) {
    let run = move || {
        weir_sandbox::narrow(thread);
        what();
    };
    std::thread::spawn(run).join().unwrap();
}

fn make_a_directory() {
    // The directory exists: even where `mkdir` is allowed nothing is made.
    assert_eq!(rustix::fs::mkdir("/", Mode::RWXU), Err(rustix::io::Errno::EXIST));
}

/// Makes the system calls by which present and future C libraries ask: each gets an answer, or an
/// error as from an old kernel or for a file.
fn ask() {
    use rustix::{io::Errno, process, system, termios, thread};
    let file = std::io::stdin();
    // The library asks by TCGETS, a newer one by TCGETS2.
    assert!(!termios::isatty(&file));
    assert_eq!(termios::tcgetwinsize(&file).map(drop), Err(Errno::NOTTY));
    // These requests are on no list.
    assert_eq!(termios::tcgetpgrp(&file), Err(Errno::NOTTY));
    assert_eq!(termios::tcflush(&file, termios::QueueSelector::IFlush), Err(Errno::NOTTY));
    assert_eq!(
        process::pidfd_open(process::getpid(), process::PidfdFlags::empty()).map(drop),
        Err(Errno::NOSYS)
    );
    let futexes = thread::futex::waitv(
        &[],
        thread::futex::WaitvFlags::empty(),
        None,
        rustix::thread::ClockId::Monotonic,
    );
    assert_eq!(futexes.map(drop), Err(Errno::NOSYS));
    // These calls ask about the process and the machine.
    let _ = (process::getuid(), process::geteuid(), process::getgid(), process::getppid());
    let _ = (system::uname(), system::sysinfo(), thread::sched_getcpu());
    println!("{}", std::thread::available_parallelism().is_ok());
}

fn start_a_process() {
    Command::new("/bin/true").status().unwrap();
}

fn list_a_directory() {
    std::fs::read_dir("/proc/self").unwrap().next().unwrap().unwrap();
}

fn main() {
    let what = std::env::args().nth(1).unwrap_or_default();
    let what = what.as_str();
    // The directory is known from before, as in weir.
    let temporary = std::env::temp_dir();
    match what {
        "status" => {
            confine(Enforcement::Kill);
            // A thread can be made, and inherits the filter.
            std::thread::spawn(|| {
                assert_eq!(status("thread-self", "Seccomp"), "2");
                assert_eq!(status("thread-self", "NoNewPrivs"), "1");
                for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
                    assert_eq!(status("thread-self", set), "0000000000000000", "{set}");
                }
                list_a_directory();
                let traced = rustix::process::DumpableBehavior::Dumpable;
                let traced = rustix::process::set_dumpable_behavior(traced);
                assert_eq!(traced, Err(rustix::io::Errno::ACCESS));
            })
            .join()
            .unwrap();
        }
        "files" => {
            let files = confine(Enforcement::Kill);
            is_refused(std::fs::write(temporary.join("weir-made"), "x"));
            is_refused(std::fs::File::create("/proc/self/comm"));
            for flags in [OFlags::RDWR, OFlags::RDONLY | OFlags::TRUNC] {
                let opened = rustix::fs::open("/proc/self/comm", flags, Mode::empty());
                assert_eq!(opened.map(drop), Err(rustix::io::Errno::ACCESS), "{flags:?}");
            }
            if files == Landlocked::No {
                println!("no Landlock");
                return;
            }
            is_refused(std::fs::read("/etc/passwd"));
            is_refused(std::fs::read_dir("/"));
        }
        "sockets" => {
            confine(Enforcement::Kill);
            is_refused(std::net::TcpStream::connect("127.0.0.1:1"));
            is_refused(std::os::unix::net::UnixStream::connect("/run/none"));
        }
        "keeper" => {
            let plan = Plan { profile: Profile::Keeper, ..plan(Enforcement::Kill) };
            weir_sandbox::confine(&plan).unwrap();
            println!("confined");
            is_refused(std::fs::read("/proc/self/status"));
            is_refused(std::fs::read("/etc/passwd"));
            // A keeper closes descriptors in a thread, so it may make one.
            std::thread::spawn(|| std::thread::sleep(std::time::Duration::ZERO)).join().unwrap();
        }
        "a keeper connects" => {
            let plan = Plan { profile: Profile::Keeper, ..plan(Enforcement::Kill) };
            weir_sandbox::confine(&plan).unwrap();
            println!("confined");
            let _ = std::net::TcpStream::connect("127.0.0.1:1");
        }
        "directory" => {
            confine(Enforcement::Kill);
            make_a_directory();
        }
        "process" => {
            confine(Enforcement::Kill);
            start_a_process();
        }
        "log" => {
            assert_eq!(confine(Enforcement::Log), Landlocked::No);
            make_a_directory();
            start_a_process();
            narrowed(Thread::Worker, list_a_directory);
            std::fs::read("/etc/passwd").unwrap();
        }
        "thread's files" => {
            confine(Enforcement::Kill);
            for thread in [Thread::Worker, Thread::Caller] {
                narrowed(thread, || is_refused(std::fs::read("/proc/self/status")));
            }
            // A panic is reported and caught without opening a file.
            narrowed(Thread::Worker, || {
                std::panic::catch_unwind(|| panic!("a mistake")).unwrap_err();
            });
            std::fs::read("/proc/self/status").unwrap();
        }
        "a worker lists" => {
            confine(Enforcement::Kill);
            list_a_directory();
            // The thread may not open a directory by name; here it lists one that is already open.
            let dir = rustix::fs::Dir::new(std::fs::File::open("/proc/self").unwrap()).unwrap();
            narrowed(Thread::Worker, || dir.for_each(drop));
        }
        "a session lists" => {
            confine(Enforcement::Kill);
            let dir = rustix::fs::Dir::new(std::fs::File::open("/proc/self").unwrap()).unwrap();
            narrowed(Thread::Session, || dir.for_each(drop));
        }
        "asks" => {
            confine(Enforcement::Kill);
            ask();
            for thread in [Thread::Worker, Thread::Session, Thread::Caller, Thread::Control] {
                narrowed(thread, ask);
            }
        }
        "a keeper asks" => {
            let plan = Plan { profile: Profile::Keeper, ..plan(Enforcement::Kill) };
            weir_sandbox::confine(&plan).unwrap();
            println!("confined");
            ask();
        }
        "threads" => {
            let (_keeps, waits) = std::sync::mpsc::channel::<()>();
            std::thread::spawn(move || waits.recv());
            let refused = weir_sandbox::confine(&plan(Enforcement::Kill));
            assert!(matches!(refused, Err(SandboxError::Threads(2))), "{refused:?}");
            println!("not confined");
        }
        "user" => {
            let identity = Identity::nobodys().unwrap();
            let plan = Plan { identity: Some(identity), ..plan(Enforcement::Kill) };
            weir_sandbox::confine(&Plan { readable: &[Path::new("/proc")], ..plan }).unwrap();
            println!("confined");
            let number = identity.uid;
            let all = format!("{number}\t{number}\t{number}\t{number}");
            assert_eq!((status("self", "Uid"), status("self", "Gid")), (all.clone(), all));
            assert_eq!(status("self", "Groups"), "");
            assert_eq!(status("self", "CapBnd"), "0000000000000000");
            // If a process may not be traced, the files of its directory in `/proc` belong to root. The process itself
            // can still read them.
            assert!(std::fs::read_dir("/proc/self/fd").unwrap().count() > 2);
            std::fs::read_link("/proc/self/fd/0").unwrap();
            assert!(rustix::thread::set_thread_uid(rustix::process::Uid::ROOT).is_err());
        }
        other => panic!("{other}"),
    }
}
