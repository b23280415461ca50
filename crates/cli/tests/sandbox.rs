//! A confined weir, examined from outside. Tests that need root are counted as skipped without it.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use rustix::process::{Pid, Signal, geteuid, kill_process};
use weir_testing::eventually;
use weir_vif::{Options, QueuePair, Vif};
use weir_wire::{Mac, Offload};

/// A running weir. Dropping the value kills it.
struct Weir {
    process: Child,
    dir: PathBuf,
}

impl Weir {
    /// Starts weir with `config`, which lies beside the control socket in `dir`.
    fn start(dir: &Path, config: &str, options: &[&str]) -> Self {
        Self::start_by(Command::new(env!("CARGO_BIN_EXE_weir")), dir, config, options)
    }

    fn start_by(mut command: Command, dir: &Path, config: &str, options: &[&str]) -> Self {
        let (file, control) = (dir.join("weir.toml"), dir.join("control.sock"));
        fs::write(&file, format!("[switch]\ncontrol = {control:?}\n{config}")).unwrap();
        command.arg("run").args(options).arg(file).stderr(Stdio::piped());
        let process = command.spawn().unwrap();
        let weir = Self { process, dir: dir.into() };
        eventually("weir serves", || UnixStream::connect(&control).ok());
        weir
    }

    fn command(&self, args: &[&str]) -> Output {
        let control = self.dir.join("control.sock");
        let program = env!("CARGO_BIN_EXE_weir");
        Command::new(program).arg("--control").arg(control).args(args).output().unwrap()
    }

    /// Runs a command that must succeed; returns its output.
    fn does(&self, args: &[&str]) -> String {
        let output = self.command(args);
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        assert!(output.status.success(), "{args:?}: {}", text(output.stderr));
        text(output.stdout)
    }

    /// The status of each thread in `/proc`.
    fn threads(&self) -> Vec<Thread> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.process.id())).unwrap();
        let status = tasks.map(|task| fs::read_to_string(task.unwrap().path().join("status")));
        status.flatten().map(Thread).collect()
    }

    /// The helper's process. weir also has a child that starts compilers.
    fn helper(&self) -> Option<Pid> {
        let id = self.process.id();
        let name = |id: &str| fs::read_to_string(format!("/proc/{id}/comm")).unwrap_or_default();
        // A process that has just started has the name of its file.
        let children = eventually("each process has its name", || {
            let path = format!("/proc/{id}/task/{id}/children");
            let children = fs::read_to_string(path).unwrap();
            let mut children: Vec<_> = children.split_whitespace().map(str::to_owned).collect();
            children.retain(|id| name(id).trim() != "weir-compiler");
            let have_names = children.iter().all(|id| name(id).starts_with("weir-"));
            have_names.then_some(children)
        });
        assert!(children.len() <= 1, "{children:?}");
        children.first().and_then(|id| Pid::from_raw(id.parse().unwrap()))
    }

    /// Ends weir as an administrator does; returns its log.
    fn end(self) -> String {
        let (status, log) = self.ended();
        assert!(status.success(), "{:?}: {log}", status.signal());
        log
    }

    /// Ends a weir that has a TAP. While network namespaces end, the kernel takes half a second for each request about an
    /// interface, so that weir may have to end out of order, which removes the TAP as well.
    fn end_with_tap(self) {
        let (status, log) = self.ended();
        let is_late = status.code() == Some(6) && log.contains("ended out of order");
        assert!(status.success() || is_late, "{:?}: {log}", status.signal());
    }

    fn ended(mut self) -> (ExitStatus, String) {
        kill_process(Pid::from_child(&self.process), Signal::TERM).unwrap();
        let status = self.process.wait().unwrap();
        (status, self.log())
    }

    /// The log of a weir that has ended, with that of its helper.
    fn log(&mut self) -> String {
        let mut log = String::new();
        self.process.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        log
    }
}

impl Drop for Weir {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

struct Thread(String);

impl Thread {
    fn get(&self, key: &str) -> &str {
        let line = self.0.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(":\t"));
        line.unwrap_or_default()
    }

    fn uid(&self) -> u32 {
        self.get("Uid").split('\t').next().unwrap().parse().unwrap()
    }
}

fn guest(socket: &Path, last: u8) -> Vif {
    let options = || Options::new(Mac([0x52, 0x54, 0, 0, 0, last]));
    eventually("weir serves a guest", || Vif::connect(socket, &options()).ok())
}

/// Sends frames from `sender` until one has reached `receiver`.
fn talk(sender: &mut QueuePair, receiver: &mut QueuePair) {
    let frame = [&receiver.mac().0[..], &sender.mac().0, &[0x88, 0xb5], &[7; 46]].concat();
    eventually("a frame arrives", || {
        sender.send(&frame, &Offload::NONE).unwrap();
        sender.flush();
        let mut bytes = Vec::new();
        let arrived = std::iter::from_fn(|| receiver.recv_into(&mut bytes).map(|_| bytes.clone()))
            .any(|bytes| bytes.ends_with(&[7; 46]));
        arrived.then_some(())
    });
}

const TWO_GUESTS: &str = "[vif.a]\n[vif.b]\n";

#[test]
fn a_confined_weir_does_all_it_did_and_its_threads_have_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let config = format!(
        "workers = 2\n[vif.a]\nagent = {:?}\n[vif.b]\n[vif.c]\nsocket = {:?}\nmode = \"client\"\n",
        path("a.agent"),
        path("front")
    );
    let front = UnixListener::bind(path("front")).unwrap();
    let weir = Weir::start(dir.path(), &config, &[]);
    // weir connects to a front end that listens, through its helper.
    front.accept().unwrap();

    let (mut a, mut b) = (guest(&path("a.sock"), 1), guest(&path("b.sock"), 2));
    let (mut a, mut b) = (a.queue_pairs().remove(0), b.queue_pairs().remove(0));
    talk(&mut a, &mut b);
    UnixStream::connect(path("a.agent")).unwrap();
    weir.does(&["vif", "add", "d", "queues=2", &format!("agent={}", path("d.agent").display())]);
    let mut d = guest(&path("d.sock"), 4);
    talk(&mut d.queue_pairs()[0], &mut b);
    // Front ends that are silent soon have no thread.
    let threads = weir.threads();
    weir.does(&["vif", "set", "d", "latency_budget=1ms", "moderation=two-layer"]);
    weir.does(&["filter", "set", "a", "tx drop tcp dst port smtp"]);
    for args in
        [&["stats", "--json"][..], &["vif", "list"], &["explain", "a"], &["explain", "placement"]]
    {
        weir.does(args);
    }

    let names: Vec<_> = threads.iter().map(|thread| thread.get("Name")).collect();
    for name in
        ["weir", "weir-worker-0", "weir-session", "weir-sessions", "weir-manager", "weir-control"]
    {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
    let root = geteuid().is_root();
    for thread in &threads {
        assert_eq!((thread.get("Seccomp"), thread.get("NoNewPrivs")), ("2", "1"), "{}", thread.0);
        assert_eq!(thread.get("CapEff"), "0000000000000000", "{}", thread.0);
        assert_eq!(thread.get("CapPrm"), "0000000000000000", "{}", thread.0);
        assert!(!root || thread.uid() != 0, "{}", thread.0);
    }
    // Threads that read guests' data have fewer rights than the others.
    let filters = |name: &str| {
        let thread = threads.iter().find(|thread| thread.get("Name") == name).unwrap();
        thread.get("Seccomp_filters").parse::<u32>().unwrap()
    };
    for narrower in
        ["weir-worker-0", "weir-worker-1", "weir-sessions", "weir-session", "weir-control"]
    {
        assert!(filters(narrower) > filters("weir-manager"), "{narrower}");
    }
    // The kernel takes longer for a filter than for the whole rest of a session's beginning.
    assert_eq!(filters("weir-session"), filters("weir-sessions"));

    drop(d);
    weir.does(&["vif", "del", "d"]);
    assert!(!path("d.sock").exists() && !path("d.agent").exists());
    let log = weir.end();
    assert!(log.contains("confined"), "{log}");
    drop(front);
    let mut left: Vec<_> = fs::read_dir(dir.path())
        .unwrap()
        .map(|it| it.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    // Records of rings stay for the next weir, to which the same guests reconnect.
    assert_eq!(left, ["a.sock.rings", "b.sock.rings", "front", "front.rings", "weir.toml"]);
}

#[test]
fn a_socket_elsewhere_is_refused_with_what_to_do() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let named = other.path().join("named.sock");
    let weir = Weir::start(dir.path(), &format!("[vif.a]\nsocket = {named:?}\n"), &[]);
    UnixStream::connect(&named).unwrap();
    let socket = format!("socket={}", other.path().join("b.sock").display());
    let refused = weir.command(&["vif", "add", "b", &socket]);
    let says = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && says.contains("may not listen on"), "{says}");
    assert!(says.contains("--no-sandbox"), "{says}");
    weir.end();
    assert!(!named.exists());
    // Without a sandbox the socket is made.
    let weir = Weir::start(dir.path(), "", &["--no-sandbox"]);
    weir.does(&["vif", "add", "b", &socket]);
}

#[test]
fn guests_go_on_without_the_helper_and_the_administrator_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let weir = Weir::start(dir.path(), TWO_GUESTS, &[]);
    let sockets = ["a.sock", "b.sock"].map(|name| dir.path().join(name));
    let (mut a, mut b) = (guest(&sockets[0], 1), guest(&sockets[1], 2));
    let (mut a, mut b) = (a.queue_pairs().remove(0), b.queue_pairs().remove(0));
    talk(&mut a, &mut b);
    kill_process(weir.helper().unwrap(), Signal::KILL).unwrap();
    let refused = weir.command(&["vif", "add", "c"]);
    let says = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && says.contains("helper does not answer"), "{says}");
    let doctor = weir.command(&["doctor", "--json"]);
    let found = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(found.contains("the process weir-helper is a zombie"), "{found}");
    talk(&mut b, &mut a);
    weir.end();
}

#[test]
fn a_signal_to_all_processes_of_a_service_leaves_no_socket() {
    let dir = tempfile::tempdir().unwrap();
    let weir = Weir::start(dir.path(), TWO_GUESTS, &[]);
    kill_process(weir.helper().unwrap(), Signal::TERM).unwrap();
    weir.end();
    assert!(!dir.path().join("a.sock").exists());
}

#[test]
fn a_helper_ends_with_a_weir_that_is_killed_and_the_next_weir_has_its_sockets() {
    let dir = tempfile::tempdir().unwrap();
    let mut weir = Weir::start(dir.path(), TWO_GUESTS, &[]);
    weir.process.kill().unwrap();
    // The log ends when the helper has ended.
    weir.log();
    assert!(dir.path().join("a.sock").exists());
    let weir = Weir::start(dir.path(), TWO_GUESTS, &[]);
    guest(&dir.path().join("a.sock"), 1);
    weir.end();
}

#[test]
fn without_a_sandbox_weir_says_what_is_lost_and_keeps_it() {
    let dir = tempfile::tempdir().unwrap();
    let weir = Weir::start(dir.path(), TWO_GUESTS, &["--no-sandbox"]);
    assert_eq!(weir.helper(), None);
    for thread in weir.threads() {
        assert_eq!((thread.get("Seccomp"), thread.uid()), ("0", geteuid().as_raw()));
    }
    let log = weir.end();
    assert!(log.contains("no sandbox: weir keeps its user, its capabilities"), "{log}");
}

#[test]
fn a_trial_serves_and_says_that_it_is_one() {
    let dir = tempfile::tempdir().unwrap();
    let weir = Weir::start(dir.path(), TWO_GUESTS, &["--sandbox=log"]);
    guest(&dir.path().join("a.sock"), 1);
    let threads = weir.threads();
    assert!(threads.iter().all(|thread| thread.get("Seccomp") == "2"));
    let log = weir.end();
    assert!(log.contains("sandbox in log mode"), "{log}");
}

#[test]
fn threads_that_are_made_for_a_guest_serve_it() {
    let dir = tempfile::tempdir().unwrap();
    let weir = Weir::start(dir.path(), &format!("execution = \"threads\"\n{TWO_GUESTS}"), &[]);
    let (mut a, mut b) =
        (guest(&dir.path().join("a.sock"), 1), guest(&dir.path().join("b.sock"), 2));
    talk(&mut a.queue_pairs()[0], &mut b.queue_pairs()[0]);
    weir.end();
}

#[test]
fn a_start_that_fails_when_it_is_confined_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let weir = Weir::start(dir.path(), TWO_GUESTS, &[]);
    let [file, control, socket] =
        ["second.toml", "second.sock", "a.sock"].map(|name| dir.path().join(name));
    let text = format!("[switch]\ncontrol = {control:?}\n[vif.a]\nsocket = {socket:?}\n");
    fs::write(&file, text).unwrap();
    let second = Command::new(env!("CARGO_BIN_EXE_weir")).arg("run").arg(&file).output().unwrap();
    let says = String::from_utf8_lossy(&second.stderr).into_owned();
    assert_eq!(second.status.code(), Some(1), "{:?}: {says}", second.status.signal());
    assert!(says.contains("confined") && says.contains("another program serves"), "{says}");
    assert!(says.contains("stop it first"), "{says}");
    weir.end();
}

/// A network namespace. Dropping the value removes it.
struct Network(Child);

impl Network {
    fn new() -> Self {
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", "echo ready && exec sleep 600"]);
        let mut holder = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self(holder)
    }

    fn interfaces(&self) -> String {
        fs::read_to_string(format!("/proc/{}/net/dev", self.0.id())).unwrap()
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn root_a_tap_is_opened_before_and_goes_with_weir_and_comes_with_the_next() {
    if !weir_testing::is_root("a network namespace") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let network = Network::new();
    let config = "[vif.a]\n[uplink.lan]\nkind = \"tap\"\nname = \"weir0\"\nqueues = 2\n";
    for _ in 0..2 {
        let mut command = Command::new("nsenter");
        let holder = network.0.id().to_string();
        command.args(["-t", &holder, "--net", env!("CARGO_BIN_EXE_weir")]);
        let weir = Weir::start_by(command, dir.path(), config, &[]);
        assert!(network.interfaces().contains("weir0:"));
        let mut guest = guest(&dir.path().join("a.sock"), 1);
        let mut pair = guest.queue_pairs().remove(0);
        // The interface receives the guest's frames.
        let frame = [&[0xff; 6][..], &pair.mac().0, &[0x88, 0xb5], &[0; 46]].concat();
        eventually("the interface receives", || {
            pair.send(&frame, &Offload::NONE).unwrap();
            pair.flush();
            let stats = weir.does(&["stats", "--json"]);
            let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
            let text = stats.to_string();
            let interfaces = network.interfaces();
            let line = interfaces.lines().find(|line| line.trim().starts_with("weir0:")).unwrap();
            let packets: u64 = line.split_whitespace().nth(2).unwrap().parse().unwrap();
            assert!(text.contains("\"lan\""));
            (packets > 0).then_some(())
        });
        drop(guest);
        weir.end_with_tap();
        assert!(!network.interfaces().contains("weir0:"));
    }
}

const TRACED: &str = "WEIR_TRACED";

/// Traces the process that the environment names, as its user; does nothing if none is named.
#[test]
fn a_tracer() {
    let Ok(traced) = std::env::var(TRACED) else { return };
    let (uid, pid) = traced.split_once(' ').unwrap();
    let uid: u32 = uid.parse().unwrap();
    let user = rustix::process::Uid::from_raw(uid);
    rustix::thread::set_thread_res_uid(user, user, user).unwrap();
    // The tracer can trace a process that does not forbid it.
    let mut own = Command::new("sleep").arg("600").spawn().unwrap();
    let attach = |id: i32| nix::sys::ptrace::attach(nix::unistd::Pid::from_raw(id));
    let allowed = attach(i32::try_from(own.id()).unwrap());
    let refused = attach(pid.parse().unwrap());
    let memory = fs::File::open(format!("/proc/{pid}/mem")).map(drop);
    own.kill().unwrap();
    own.wait().unwrap();
    assert_eq!(allowed, Ok(()));
    assert_eq!(refused, Err(nix::Error::EPERM));
    assert_eq!(memory.unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
    println!("refused");
}

#[test]
fn root_nobody_traces_it_not_as_its_own_user() {
    if !weir_testing::is_root("to become weir's user") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let weir = Weir::start(dir.path(), "user = \"nobody\"\n", &[]);
    let uid = weir.threads()[0].uid();
    assert_ne!(uid, 0);
    let tracer = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_tracer", "--test-threads=1", "--nocapture"])
        .env(TRACED, format!("{uid} {}", weir.process.id()))
        .current_dir("/")
        .gid(uid)
        .output()
        .unwrap();
    let says = String::from_utf8_lossy(&[tracer.stdout, tracer.stderr].concat()).into_owned();
    assert!(tracer.status.success() && says.contains("refused"), "{says}");
}

#[test]
fn root_the_users_of_the_configuration_have_to_be_some() {
    if !weir_testing::is_root("to become another user") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for (user, says) in
        [("no-such-user", "there is no user no-such-user"), ("root", "as another user than root")]
    {
        let file = dir.path().join("weir.toml");
        let control = dir.path().join("c.sock");
        fs::write(&file, format!("[switch]\ncontrol = {control:?}\nuser = {user:?}\n")).unwrap();
        let weir = Command::new(env!("CARGO_BIN_EXE_weir")).arg("run").arg(&file).output().unwrap();
        let text = String::from_utf8_lossy(&weir.stderr).into_owned();
        assert!(!weir.status.success() && text.contains(says), "{text}");
    }
    // The owners of an interface's socket as well, and a template's before anybody takes it.
    let owners = [
        ("socket_group", "no-such", "there is no group no-such"),
        ("socket_user", "no-such", "there is no user no-such"),
        ("socket_user", "root", "the user root is root"),
    ];
    for (table, (key, name, says)) in
        ["vif.web0", "template.t"].iter().flat_map(|table| owners.map(|owner| (table, owner)))
    {
        let file = dir.path().join("weir.toml");
        let control = dir.path().join("c.sock");
        let text = format!("[{table}]\n{key} = {name:?}\n");
        fs::write(&file, format!("[switch]\ncontrol = {control:?}\n{text}")).unwrap();
        for command in [&["check", "--host"][..], &["run"]] {
            let mut weir = Command::new(env!("CARGO_BIN_EXE_weir"));
            let weir = weir.args(command).arg(&file).output().unwrap();
            let said = String::from_utf8_lossy(&[weir.stdout, weir.stderr].concat()).into_owned();
            let words = said.split_whitespace().collect::<Vec<_>>().join(" ");
            let says = words.contains(says) && words.contains(table);
            assert!(!weir.status.success() && says, "{command:?}: {said}");
        }
    }
}
