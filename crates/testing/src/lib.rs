//! Helpers for tests and examples of several crates: the report of a skipped test (which `make test` counts), waits, a
//! network namespace with a veth pair, a guest's answers to ping, frames of multicast, the commands in documents, and
//! the form of a document in JSON.

#![forbid(unsafe_code)]

pub mod document;
pub mod echo;
pub mod multicast;
pub mod slow;

use std::{
    env, fs,
    io::{self, Write},
    panic,
    process::{Child, Command},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use nix::sched::{CloneFlags, unshare};

/// The mark of a skipped test's line. `xtask test` looks for it.
pub const SKIPPED: &str = "skipped test: ";

/// True for root. If false, the calling test is counted as skipped and must return.
pub fn is_root(why: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        skipped(&format!("needs root: {why}"));
    }
    root
}

/// True if `program`, from Debian's `package`, is in `PATH`. If false, the calling test is counted as skipped and
/// must return.
pub fn has(program: &str, package: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path).any(|dir| dir.join(program).exists());
    if !found {
        skipped(&format!("{program} is not installed: apt-get install {package}"));
    }
    found
}

/// Reports that the calling test was skipped, with the reason. The test must return then.
pub fn skipped(why: &str) {
    let thread = thread::current();
    let test = thread.name().unwrap_or("a test");
    // `println!` is captured by the test harness, which does not show the output of tests that pass.
    let mut out = io::stdout().lock();
    let _ =
        out.write_all(format!("{SKIPPED}{test}: {why}\n").as_bytes()).and_then(|()| out.flush());
}

/// Longest wait of [`eventually`]: longer than any event takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Calls `is` until it returns a value.
///
/// # Panics
/// If it returns none for a minute.
pub fn eventually<T>(what: &str, mut is: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(it) = is() {
            return it;
        }
        assert!(start.elapsed() < PATIENCE, "never happened: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Calls [`eventually`] with a condition.
///
/// # Panics
/// If it does not hold for a minute.
pub fn soon(what: &str, mut holds: impl FnMut() -> bool) {
    eventually(what, || holds().then_some(()));
}

/// Calls `act`, and returns how often a thread woke up meanwhile that sleeps for `each` time again and again. Other
/// load keeps that thread waiting as it keeps `act` waiting, so a test may compare this where it may compare no time.
pub fn sleeps_during<T>(each: Duration, act: impl FnOnce() -> T) -> (u32, T) {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            let mut sleeps = 0;
            while !is_over.load(Ordering::Relaxed) {
                thread::sleep(each);
                sleeps += 1;
            }
            sleeps
        });
        let done = {
            let _ends = SetAtEnd(&is_over);
            act()
        };
        (sleeper.join().unwrap_or(u32::MAX), done)
    })
}

/// Sets a flag when it is dropped. Threads that run until the flag is set then end even if the test has panicked, and
/// the scope that waits for them ends too.
#[derive(Debug)]
pub struct SetAtEnd<'a>(pub &'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A running process. Dropping the value kills it, so that none outlives a test that fails.
#[derive(Debug)]
pub struct Running(pub Child);

impl Running {
    /// Kills the process, and waits for its end.
    pub fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs `body` in a thread with its own network namespace; `None` if it was skipped for lack of root.
/// Sockets and devices made there stay there, whichever thread uses them.
///
/// # Panics
/// If there can be no such namespace, and as `body` panics.
pub fn in_new_network<T: Send>(why: &str, body: impl FnOnce() -> T + Send) -> Option<T> {
    if !is_root(why) {
        return None;
    }
    let in_thread = || {
        unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace");
        body()
    };
    let ended = thread::scope(|scope| scope.spawn(in_thread).join());
    Some(ended.unwrap_or_else(|panic| panic::resume_unwind(panic)))
}

/// Makes the veth pair `weir0` and `host0`, each end with this number of queues, in the test's own
/// network namespace. `host0` is up.
///
/// # Panics
/// If the pair cannot be made.
pub fn veth(queues: usize) {
    // The host's IPv6 sends frames of its own. Without IPv6 there is nothing to switch off.
    let _ = fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
    let many = format!("numrxqueues {queues} numtxqueues {queues}");
    ip(&format!("link add weir0 {many} type veth peer name host0 {many}"));
    ip("link set dev host0 up");
}

/// Waits until both ends of the veth pair are up: Linux sends nothing before it has noticed that.
///
/// # Panics
/// If they are not for a minute.
pub fn carrier() {
    for device in ["weir0", "host0"] {
        soon("the carrier is there", || {
            let link = ip(&format!("link show dev {device}"));
            link.contains("state UP") && !link.contains("qdisc noop ")
        });
    }
}

/// The output of `ip` with these arguments.
///
/// # Panics
/// If it fails.
pub fn ip(arguments: &str) -> String {
    let output = Command::new("ip").args(arguments.split_whitespace()).output().expect("ip");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {arguments}: {error}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
