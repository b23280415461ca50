//! Messages of weir to a service manager, and a stalled thread of weir.

use std::fs;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use rustix::process::{Pid, Signal, kill_process};
use weir_testing::{Running, eventually};
use weir_vif::{Options, Vif};
use weir_wire::Mac;

/// A running weir, and the service manager's end. Dropping the value kills weir.
struct Weir {
    process: Child,
    news: UnixDatagram,
    dir: PathBuf,
}

impl Weir {
    fn start(dir: &Path, config: &str, options: &[&str]) -> Self {
        let (file, control, notify) =
            (dir.join("weir.toml"), dir.join("control.sock"), dir.join("notify"));
        fs::write(&file, format!("[switch]\ncontrol = {control:?}\n{config}")).unwrap();
        let news = UnixDatagram::bind(&notify).unwrap();
        news.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.arg("run").args(options).arg(file).env("NOTIFY_SOCKET", notify);
        command.env("WATCHDOG_USEC", "600000").env_remove("WATCHDOG_PID");
        let log = fs::File::create(dir.join("log")).unwrap();
        let process = command.stdin(Stdio::null()).stderr(log).spawn().unwrap();
        Self { process, news, dir: dir.into() }
    }

    fn news(&self) -> String {
        let mut bytes = [0; 256];
        let len = self.news.recv(&mut bytes).expect("there is news");
        String::from_utf8(bytes[..len].to_vec()).unwrap()
    }

    /// The next message other than `WATCHDOG=1`.
    fn other_news(&self) -> String {
        std::iter::repeat_with(|| self.news()).find(|news| news != "WATCHDOG=1").unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap()
    }

    /// The thread of this name.
    fn thread(&self, name: &str) -> i32 {
        let is = |task: &PathBuf| {
            fs::read_to_string(task.join("comm")).is_ok_and(|found| found.trim() == name)
        };
        // A thread sets its name after it has started.
        eventually(name, || {
            let tasks = fs::read_dir(format!("/proc/{}/task", self.process.id())).ok()?;
            let task = tasks.flatten().map(|task| task.path()).find(is)?;
            task.file_name()?.to_str()?.parse().ok()
        })
    }

    /// The counters; `None` if weir does not answer.
    fn stats(&self) -> Option<serde_json::Value> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.arg("--control").arg(self.dir.join("control.sock")).args(["stats", "--json"]);
        serde_json::from_slice(&command.output().unwrap().stdout).ok()
    }
}

impl Drop for Weir {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A stopped thread of another process. Dropping the value lets it continue.
struct Stopped(nix::unistd::Pid);

impl Stopped {
    fn at_once(thread: i32) -> Self {
        let thread = nix::unistd::Pid::from_raw(thread);
        ptrace::seize(thread, ptrace::Options::empty()).unwrap();
        ptrace::interrupt(thread).unwrap();
        waitpid(thread, Some(WaitPidFlag::__WALL)).unwrap();
        Self(thread)
    }
}

impl Stopped {
    /// Stops a sleeping thread at its next accept of a connection, which `connect` makes.
    fn at_accept<T>(process: u32, thread: i32, connect: impl FnOnce() -> T) -> (Self, T) {
        let stopped = Self::at_once(thread);
        ptrace::setoptions(stopped.0, ptrace::Options::PTRACE_O_TRACESYSGOOD).unwrap();
        let connected = connect();
        let mut runs = false;
        eventually("it accepts", || {
            let flags = WaitPidFlag::__WALL | WaitPidFlag::WNOHANG;
            if runs && waitpid(stopped.0, Some(flags)).unwrap() == WaitStatus::StillAlive {
                return None;
            }
            let call = fs::read_to_string(format!("/proc/{process}/task/{thread}/syscall")).ok()?;
            if call.split(' ').next()?.parse() == Ok(nix::libc::SYS_accept4) {
                return Some(());
            }
            ptrace::syscall(stopped.0, None).unwrap();
            runs = true;
            None
        });
        (stopped, connected)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = ptrace::detach(self.0, None);
    }
}

#[test]
fn a_service_manager_hears_that_weir_is_ready_alive_reloading_and_stopping() {
    let dir = tempfile::tempdir().unwrap();
    let mut weir = Weir::start(dir.path(), "[vif.a]\n", &[]);
    assert_eq!(weir.news(), "READY=1");
    UnixStream::connect(dir.path().join("a.sock")).unwrap();
    let since = Instant::now();
    for _ in 0..10 {
        assert_eq!(weir.news(), "WATCHDOG=1");
    }
    // The messages come in time, but no more often than necessary.
    assert!(since.elapsed() >= Duration::from_millis(1_500), "{:?}", since.elapsed());
    weir.signal(Signal::HUP);
    let reloading = weir.other_news();
    let usecs = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").expect("it reloads");
    assert!(usecs.parse::<u64>().unwrap() > 0);
    assert_eq!(weir.other_news(), "READY=1");
    weir.signal(Signal::TERM);
    assert_eq!(weir.other_news(), "STOPPING=1");
    assert!(weir.process.wait().unwrap().success(), "{}", weir.log());
    assert!(!weir.log().contains("stands still"), "{}", weir.log());
}

#[test]
fn a_worker_that_stands_still_is_named_and_the_service_manager_hears_nothing_until_it_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    // A worker with this setting polls all the time.
    let config = "workers = 1\nrealization = \"dedicated\"\n[vif.a]\n";
    let weir = Weir::start(dir.path(), config, &["--no-sandbox"]);
    let socket = dir.path().join("a.sock");
    let options = Options::new(Mac([0x52, 0x54, 0, 0, 0, 1]));
    let _guest = eventually("weir serves a guest", || Vif::connect(&socket, &options).ok());
    eventually("its queue is served", || {
        (weir.stats()?["ports"][0]["state"] == "running").then_some(())
    });
    assert_eq!(weir.other_news(), "READY=1");
    let worker = weir.thread("weir-worker-0");
    // The worker must not be stopped while it holds a lock that counting needs.
    let stopped = eventually("it stops where it keeps nobody waiting", || {
        let stopped = Stopped::at_once(worker);
        weir.stats().map(|_| stopped)
    });

    let still = eventually("it is found", || weir.stats()?["still"].get(0).cloned());
    assert_eq!(still["name"], "weir-worker-0", "{still}");
    assert!(still["seconds"].as_f64().unwrap() >= 5.0, "{still}");
    assert!(still["kernel"].as_str().unwrap().contains("state t"), "{still}");
    assert!(weir.log().contains("a thread stands still"), "{}", weir.log());
    weir.news.set_read_timeout(Some(Duration::from_millis(1_000))).unwrap();
    while weir.news.recv(&mut [0; 64]).is_ok() {}

    drop(stopped);
    weir.news.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    assert_eq!(weir.news(), "WATCHDOG=1");
    assert!(weir.stats().unwrap().get("still").is_none());
    assert!(weir.log().contains("goes on"), "{}", weir.log());
}

#[test]
fn a_thread_that_stands_still_for_one_party_does_not_silence_the_service_manager() {
    let dir = tempfile::tempdir().unwrap();
    let weir = Weir::start(dir.path(), "workers = 2\n[vif.a]\n", &["--no-sandbox"]);
    assert_eq!(weir.other_news(), "READY=1");
    let socket = dir.path().join("a.sock");
    eventually("weir listens", || socket.exists().then_some(()));
    for name in ["weir-sessions", "weir-manager", "weir-worker-1"] {
        // A thread that is stopped while it sleeps cannot be distinguished from a sleeping one, so this gives it
        // work.
        let stopped = Stopped::at_once(weir.thread(name));
        let _guest = UnixStream::connect(&socket);
        for _ in 0..10 {
            weir.news.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            assert_eq!(weir.news(), "WATCHDOG=1", "{name}");
        }
        assert!(weir.stats().is_some(), "{name}");
        drop(stopped);
    }
}

#[test]
fn a_thread_that_stands_still_for_one_party_is_named_with_that_party() {
    let dir = tempfile::tempdir().unwrap();
    let agent = dir.path().join("a.agent");
    let config = format!("workers = 1\n[vif.a]\nagent = {agent:?}\n");
    let weir = Weir::start(dir.path(), &config, &["--no-sandbox"]);
    assert_eq!(weir.other_news(), "READY=1");
    let socket = dir.path().join("a.sock");
    let of_agent = format!("the agent at {}", agent.display());
    let cases = [("weir-sessions", &socket, "a"), ("weir-manager", &agent, of_agent.as_str())];
    for (name, socket, party) in cases {
        eventually("weir listens", || socket.exists().then_some(()));
        let connect = || UnixStream::connect(socket).unwrap();
        let (stopped, _connected) =
            Stopped::at_accept(weir.process.id(), weir.thread(name), connect);
        let still = eventually("it is found", || weir.stats()?["still"].get(0).cloned());
        assert_eq!(still["name"], name, "{still}");
        assert_eq!(still["party"], party, "{still}");
        let named = |line: &str| {
            line.contains("a thread stands still")
                && line.contains(name)
                && line.contains(&format!("waits_for={party:?}"))
        };
        assert!(weir.log().lines().any(named), "{}", weir.log());
        drop(stopped);
        eventually("it goes on", || weir.stats()?.get("still").is_none().then_some(()));
    }
}

/// A weir whose orderly end waits for a stopped thread.
#[test]
fn a_signal_ends_weir_in_time_whichever_thread_stands_still_and_nothing_is_left() {
    for name in ["weir-worker-0", "weir-sessions", "weir-manager", "weir-control"] {
        for options in [&["--no-sandbox"][..], &[]] {
            let dir = tempfile::tempdir().unwrap();
            let mut weir = Weir::start(dir.path(), "workers = 1\n[vif.a]\n", options);
            assert_eq!(weir.other_news(), "READY=1");
            let socket = dir.path().join("a.sock");
            assert!(socket.exists());
            // Only root can trace a confined weir.
            if options.is_empty() && !rustix::process::geteuid().is_root() {
                continue;
            }
            let stopped = Stopped::at_once(weir.thread(name));
            let since = Instant::now();
            weir.signal(Signal::TERM);
            let status = eventually("it ends", || {
                // A traced thread has ended only after its tracer has waited for it.
                let _ = waitpid(stopped.0, Some(WaitPidFlag::__WALL | WaitPidFlag::WNOHANG));
                weir.process.try_wait().unwrap()
            });
            let log = weir.log();
            drop(stopped);
            assert!(since.elapsed() < Duration::from_secs(60), "{name}: {log}");
            assert_eq!(status.code(), Some(6), "{name} {options:?}: {status}: {log}");
            assert!(log.contains("ended out of order"), "{name}: {log}");
            eventually("nothing is left", || {
                let left = ["a.sock", "control.sock"].map(|name| dir.path().join(name).exists());
                (left == [false, false]).then_some(())
            });
        }
    }
}

/// A weir whose interfaces have a guest each.
struct Served {
    weir: Weir,
    _guests: Vec<Vif>,
    _keeper: Option<Running>,
    dir: tempfile::TempDir,
}

impl Served {
    fn start(interfaces: usize, is_kept: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keeper.sock");
        let keeper = is_kept.then(|| {
            let process =
                Command::new(env!("CARGO_BIN_EXE_weir-keeper")).arg(&path).spawn().unwrap();
            eventually("the keeper listens", || weir_keeper::connect(&path).ok());
            Running(process)
        });
        let kept = if is_kept { format!("keeper = {path:?}\n") } else { String::new() };
        let vifs = (0..interfaces).map(|n| format!("[vif.v{n}]\n")).collect::<String>();
        let weir = Weir::start(dir.path(), &format!("workers = 1\n{kept}{vifs}"), &[]);
        assert_eq!(weir.other_news(), "READY=1");
        let guest = |n: usize| {
            let [high, low] = (n as u16).to_be_bytes();
            let options = Options::new(Mac([0x52, 0x54, 0, 0, high, low]));
            let socket = dir.path().join(format!("v{n}.sock"));
            eventually("weir serves a guest", || Vif::connect(&socket, &options).ok())
        };
        let guests = (0..interfaces).map(guest).collect();
        Self { weir, _guests: guests, _keeper: keeper, dir }
    }
}

/// Beside programs that take all processors, with a front end at each of a thousand interfaces:
/// `cargo test --release -p weir --test watchdog -- --ignored --nocapture how_long_an_end_takes`
#[test]
#[ignore = "a measurement, which needs release and minutes"]
fn how_long_an_end_takes() {
    for (is_kept, load) in [(false, 0), (true, 0), (false, 15), (true, 15)] {
        for _ in 0..3 {
            let mut served = Served::start(1_000, is_kept);
            let ends = AtomicBool::new(false);
            let (took, status) = std::thread::scope(|scope| {
                for _ in 0..load {
                    scope.spawn(|| {
                        while !ends.load(Ordering::Relaxed) {
                            std::hint::spin_loop();
                        }
                    });
                }
                std::thread::sleep(Duration::from_millis(500));
                let since = Instant::now();
                served.weir.signal(Signal::TERM);
                let status = served.weir.process.wait().unwrap();
                ends.store(true, Ordering::Relaxed);
                (since.elapsed(), status)
            });
            println!("keeper {is_kept}, {load} others that compute: {took:.2?}, {status}");
        }
    }
}

/// The system calls that the main thread, the thread of sessions and the helper make one after another at the end of a
/// weir with so many interfaces, each with a silent guest, and perhaps with a keeper; and the threads that begin then.
/// `None` if the machine was too busy for an end in order.
fn steps_of_an_end(interfaces: usize, is_kept: bool) -> Option<(usize, usize)> {
    let mut served = Served::start(interfaces, is_kept);
    let Served { weir, dir, .. } = &mut served;
    let id = weir.process.id();
    eventually("sessions are silent", || {
        let tasks = fs::read_dir(format!("/proc/{id}/task")).unwrap();
        let name = |task: PathBuf| fs::read_to_string(task.join("comm")).unwrap_or_default();
        let mut names = tasks.map(|task| name(task.unwrap().path()));
        names.all(|name| name.trim() != "weir-session").then_some(())
    });
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
    let name = |id: &&str| fs::read_to_string(format!("/proc/{id}/comm")).unwrap_or_default();
    let helper = children.split_whitespace().find(|id| name(id).trim() == "weir-helper").unwrap();
    let calls = dir.path().join("calls");
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-o"]).arg(&calls).args(["-p", &id.to_string(), "-p", helper]);
    let mut strace = Running(command.spawn().unwrap());
    let in_order = [id.to_string(), weir.thread("weir-sessions").to_string(), helper.to_owned()];
    eventually("all threads are traced", || {
        let tasks = fs::read_dir(format!("/proc/{id}/task")).unwrap();
        let tasks = tasks.map(|task| task.unwrap().path());
        let helper = Path::new("/proc").join(helper);
        let traced = |task: PathBuf| {
            let status = fs::read_to_string(task.join("status")).unwrap_or_default();
            !status.contains("TracerPid:\t0\n")
        };
        tasks.chain([helper]).all(traced).then_some(())
    });
    weir.signal(Signal::TERM);
    let status = eventually("it ends", || weir.process.try_wait().unwrap());
    assert!(status.success() || status.code() == Some(6), "{status}: {}", weir.log());
    eventually("its calls are written", || strace.0.try_wait().unwrap());
    let calls = fs::read_to_string(calls).unwrap();
    let calls = calls.lines().filter(|line| !line.contains(" resumed>"));
    let (mut steps, mut threads) = (0, 0);
    for line in calls {
        let (thread, call) = line.split_once(' ').unwrap();
        steps += usize::from(in_order.iter().any(|it| it == thread));
        threads += usize::from(call.trim_start().starts_with("clone"));
    }
    status.success().then_some((steps, threads))
}

/// An end repeats its steps for each of a thousand interfaces, and has two seconds for all of them.
#[test]
fn root_an_end_takes_few_steps_for_each_interface() {
    const FEW: usize = 16;
    const MORE: usize = 40;
    if !weir_testing::is_root("strace of a confined weir") || !weir_testing::has("strace", "strace")
    {
        return;
    }
    for is_kept in [false, true] {
        let [few, many] =
            [10, 10 + MORE].map(|n| eventually("an end", || steps_of_an_end(n, is_kept)));
        println!(
            "kept {is_kept}: calls and threads of 10 interfaces {few:?}, of {} {many:?}",
            10 + MORE
        );
        assert!(many.0 <= few.0 + MORE * FEW, "{is_kept} {few:?}, {many:?}");
        assert!(many.1 < few.1 + MORE / 4, "{is_kept} {few:?}, {many:?}");
    }
}

/// A worker that polls all the time says that it serves; one without traffic says that it sleeps.
#[test]
fn neither_an_upgrade_nor_a_signal_makes_weir_leave_while_a_worker_stands_still() {
    for realization in ["dedicated", "shared"] {
        leaves_only_if_all_workers_go_on(realization);
    }
}

fn leaves_only_if_all_workers_go_on(realization: &str) {
    let dir = tempfile::tempdir().unwrap();
    let keeper = dir.path().join("keeper.sock");
    let mut kept = Command::new(env!("CARGO_BIN_EXE_weir-keeper")).arg(&keeper).spawn().unwrap();
    eventually("the keeper listens", || weir_keeper::connect(&keeper).ok());
    let config =
        format!("workers = 1\nrealization = {realization:?}\nkeeper = {keeper:?}\n[vif.a]\n");
    let mut weir = Weir::start(dir.path(), &config, &["--no-sandbox"]);
    assert_eq!(weir.other_news(), "READY=1");
    let socket = dir.path().join("a.sock");
    let options = Options::new(Mac([0x52, 0x54, 0, 0, 0, 1]));
    let _guest = eventually("weir serves a guest", || Vif::connect(&socket, &options).ok());
    eventually("its queue is served", || {
        (weir.stats()?["ports"][0]["state"] == "running").then_some(())
    });
    let worker = weir.thread("weir-worker-0");
    let stopped = eventually("it stops where it keeps nobody waiting", || {
        let stopped = Stopped::at_once(worker);
        weir.stats().map(|_| stopped)
    });
    let mut upgrade = Command::new(env!("CARGO_BIN_EXE_weir"));
    upgrade
        .arg("--control")
        .arg(dir.path().join("control.sock"))
        .arg("upgrade")
        .env("COLUMNS", "500");
    let refused = upgrade.output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("weir-worker-0"), "{said}");
    assert!(said.contains("serves a, and does not go on"), "{said}");
    assert!(weir.stats().is_some());
    let before = weir.log().len();
    weir.signal(Signal::USR2);
    eventually("the signal is refused", || {
        weir.log()[before..].contains("not left to the next weir").then_some(())
    });
    assert!(weir.process.try_wait().unwrap().is_none() && weir.stats().is_some(), "{}", weir.log());
    drop(stopped);
    weir.signal(Signal::USR2);
    let status = eventually("it leaves", || weir.process.try_wait().unwrap());
    assert!(status.success(), "{}", weir.log());
    kept.kill().unwrap();
    kept.wait().unwrap();
}
