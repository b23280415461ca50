//! The threads and processes of a weir with every feature that has one; and the start of a weir with many interfaces,
//! whose cost grows with their number and no faster, and its end.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write, pipe};
use std::net::TcpListener;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{Pid, Signal, kill_process};
use weir_testing::{Running, eventually};
use weir_vif::{Options, Vif};
use weir_wire::Mac;

/// The length to which `/proc` cuts a name.
const NAME_LEN_MAX: usize = 15;
/// Threads that do not run here, each with the feature that it needs.
const ELSEWHERE: [&str; 10] = [
    "weir-ahead",    // the start
    "calls-VIF",     // a front end that calls by pipe
    "weir-evpn",     // FRR
    "weir-xen",      // Xen
    "weir-bond",     // the carriers of a bond's uplinks
    "weir-loops",    // two ports that are joined
    "weir-leaves",   // SIGUSR2
    "weir-undoes",   // a main thread that stands still at the end
    "weir-closer",   // for a moment
    "weir-closings", // as long as that
];

fn cut(name: &str) -> String {
    let name = if name.starts_with("calls-") { "calls-VIF" } else { name };
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let name = if stem == "weir-worker-" { "weir-worker-N" } else { name };
    name.chars().take(NAME_LEN_MAX).collect()
}

/// The names in the first column of the table.
fn names() -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../SECURITY.md");
    let text = fs::read_to_string(path).unwrap();
    let (_, table) = text.split_once("\n| thread | close |").expect("the table");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let firsts = rows.map(|row| row.split('|').nth(1).unwrap());
    firsts.flat_map(|cell| cell.split('`').skip(1).step_by(2)).map(str::to_owned).collect()
}

/// These names as `/proc` has them.
fn listed() -> BTreeSet<String> {
    names().iter().map(|name| cut(name)).collect()
}

fn name_of(task: &Path) -> Option<String> {
    Some(cut(fs::read_to_string(task.join("comm")).ok()?.trim_end()))
}

/// The names of the threads of a process and its descendants.
fn running(process: u32, names: &mut BTreeSet<String>) {
    let Ok(tasks) = fs::read_dir(format!("/proc/{process}/task")) else { return };
    for task in tasks.flatten().map(|task| task.path()) {
        names.extend(name_of(&task));
        let children = fs::read_to_string(task.join("children")).unwrap_or_default();
        children.split_whitespace().for_each(|child| running(child.parse().unwrap(), names));
    }
}

/// Posts `json`; returns the connection after its status line.
fn post(control: &Path, line: &str, json: &str) -> UnixStream {
    let stream = UnixStream::connect(control).unwrap();
    let length = json.len();
    let head = format!("POST {line} HTTP/1.1\r\nhost: w\r\ncontent-length: {length}\r\n\r\n{json}");
    (&stream).write_all(head.as_bytes()).unwrap();
    let mut status = [0; 12];
    (&stream).read_exact(&mut status).unwrap();
    assert_eq!(&status, b"HTTP/1.1 200", "{line}");
    stream
}

#[test]
fn each_thread_that_runs_stands_in_the_table_of_the_security_policy() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let (control, keeper, token) = (at("control.sock"), at("keeper.sock"), at("token"));
    fs::write(&token, "0123456789abcdef0123").unwrap();
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let client = UnixListener::bind(at("client.sock")).unwrap();
    let config = format!(
        "[switch]\ncontrol = {control:?}\nworkers = 2\nkeeper = {keeper:?}\nplacement = \"dynamic\"\n\
         api_listen = \"{tcp}\"\napi_token_file = {token:?}\n\
         on_down = [\"/bin/true\"]\n\
         [vif.a]\nagent = {:?}\n[[vif.a.filter]]\ndirection = \"tx\"\naction = \"drop\"\nmatch = \"port 25\"\n\
         [vif.b]\nmode = \"client\"\nsocket = {:?}\n[vif.m]\nmirror = [\"a\"]\n\
         [uplink.out]\nkind = \"stream\"\npath = {:?}\n\
         [vif-on-demand.\"vm-*\"]\ndirectory = {:?}\n\
         [network.lan]\naddress = \"192.168.77.1/24\"\ndhcp = true\nrouter = \"192.168.77.2\"\n",
        at("a.agent"),
        at("client.sock"),
        at("out.sock"),
        at("vms"),
    );
    fs::write(at("weir.toml"), config).unwrap();
    let log = fs::File::create(at("log")).unwrap();
    let _keeper = Running(
        Command::new(env!("CARGO_BIN_EXE_weir-keeper"))
            .arg(&keeper)
            .stdin(Stdio::null())
            .spawn()
            .unwrap(),
    );
    eventually("the keeper listens", || weir_keeper::connect(&keeper).ok());
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.arg("run").arg(at("weir.toml")).stdin(Stdio::null()).stderr(log);
    let weir = Running(command.spawn().unwrap());
    eventually("weir serves", || UnixStream::connect(&control).ok());
    let options = Options::new(Mac([0x52, 0x54, 0, 0, 0, 1]));
    let _guest = eventually("weir serves a guest", || Vif::connect(at("a.sock"), &options).ok());
    let mut seen = BTreeSet::new();
    // A front end that is silent soon has no thread.
    running(weir.0.id(), &mut seen);
    let _front = client.accept().unwrap();
    let _agent = UnixStream::connect(at("a.agent")).unwrap();
    let _streams = [
        post(&control, "/v1/captures", "{\"ports\":[\"a\"]}"),
        post(&control, "/v1/ports/a/trace/live", "{\"frames\":9}"),
    ];

    let listed = listed();
    assert!(listed.len() > 20, "{listed:?}");
    // The keeper's process has the same name as its thread.
    let wanted: BTreeSet<_> =
        listed.iter().filter(|name| !ELSEWHERE.map(cut).contains(name)).cloned().collect();
    eventually(&format!("all of {wanted:?}"), || {
        running(weir.0.id(), &mut seen);
        wanted.is_subset(&seen).then_some(())
    });
    let unlisted: Vec<_> = seen.difference(&listed).collect();
    assert!(unlisted.is_empty(), "SECURITY.md lacks {unlisted:?}");
}

/// Files of a package's sources.
fn sources(dir: &Path, found: &mut Vec<std::path::PathBuf>) {
    for entry in fs::read_dir(dir).unwrap().flatten().map(|entry| entry.path()) {
        match entry.is_dir() {
            true if entry.ends_with("tests") || entry.ends_with("bench") => {}
            true => sources(&entry, found),
            false => found.push(entry),
        }
    }
}

/// Files of the sources of all packages.
fn all_sources() -> Vec<std::path::PathBuf> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = Vec::new();
    for package in fs::read_dir(crates).unwrap().flatten() {
        let source = package.path().join("src");
        if source.is_dir() {
            sources(&source, &mut files);
        }
    }
    files
}

/// A row of a thread that weir does not have any more would pass for ever.
#[test]
fn each_name_in_the_table_is_one_that_weir_gives() {
    let text: String =
        all_sources().iter().filter_map(|file| fs::read_to_string(file).ok()).collect();
    let is_given = |name: &str| {
        let name = name.trim_end_matches('N').trim_end_matches("VIF");
        // A constant, a name in its place, or the front of a name that a number follows.
        [format!("\"{name}\""), format!("\"{name}{{")].iter().any(|given| text.contains(given))
    };
    let names = names();
    let missing: Vec<_> = names.iter().filter(|name| !is_given(name)).collect();
    assert!(missing.is_empty(), "weir gives no thread or process these names: {missing:?}");
    let unlisted: Vec<_> = ELSEWHERE.iter().filter(|name| !names.contains(**name)).collect();
    assert!(unlisted.is_empty(), "the table lacks {unlisted:?}");
    assert!(!is_given("weir-nobody"));
}

/// Parts of the paths of sources whose threads run in no switch.
const NO_SWITCH: [&str; 9] = [
    "/tests.rs",
    "/agent/",
    "/bench/",
    "/doctor/",
    "/lab/",
    "/testing/",
    "/workbench/",
    "/cli/src/commands/",
    "/cli/src/top/",
];

/// The beginnings of a name that is written elsewhere in the file than in the call that uses it.
const ELSEWHERE_IN_FILE: [&str; 4] =
    ["NAME: &str = \"", "let name = \"", "stream(\"", "name: format!(\""];

/// The names that a file gives to threads.
fn given_in(code: &str) -> Vec<String> {
    let code = code.split("\nmod tests {").next().unwrap_or_default();
    let after = |mark: &str| {
        let texts = code.split(mark).skip(1).filter_map(|rest| rest.split('"').next());
        texts.map(str::to_owned).collect::<Vec<_>>()
    };
    let mut found = Vec::new();
    for builder in code.split("thread::Builder::new()").skip(1) {
        // A thread without a name has its parent's.
        let Some(name) = builder.trim_start().strip_prefix(".name(") else { continue };
        let name = name.strip_prefix("format!(").unwrap_or(name);
        let texts = match name.strip_prefix('"') {
            Some(text) => text.split('"').next().map(str::to_owned).into_iter().collect(),
            None => ELSEWHERE_IN_FILE.iter().flat_map(|mark| after(mark)).collect::<Vec<_>>(),
        };
        assert!(!texts.is_empty(), "the name of a thread is not found: {name:.60}");
        found.extend(texts);
    }
    found
}

/// A thread that no feature of the test above starts could be unlisted for ever.
#[test]
fn each_name_that_weir_gives_a_thread_stands_in_the_table() {
    let files = all_sources();
    let names = names();
    let (mut builders, mut given) = (0, BTreeSet::new());
    for file in files.iter().filter(|file| file.extension().is_some_and(|it| it == "rs")) {
        let path = file.display().to_string();
        if NO_SWITCH.iter().any(|part| path.contains(part)) {
            continue;
        }
        let found = given_in(&fs::read_to_string(file).unwrap());
        builders += usize::from(!found.is_empty());
        given.extend(found);
    }
    let in_table = |name: &str| match name.split_once('{') {
        Some(("calls-", _)) => names.contains("calls-VIF"),
        Some((stem, _)) => names.contains(&format!("{stem}N")),
        None => names.contains(name),
    };
    assert!(builders >= 20, "{given:?}");
    let unlisted: Vec<_> = given.iter().filter(|name| !in_table(name)).collect();
    assert!(unlisted.is_empty(), "SECURITY.md lacks {unlisted:?}");
    assert_eq!(given_in("thread::Builder::new().name(\"weir-new\".into())"), ["weir-new"]);
}

/// The number behind `key` in a file of `/proc`.
fn number(path: &str, key: &str) -> u64 {
    let text = fs::read_to_string(path).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// The costs of a start.
#[derive(Debug)]
struct Start {
    /// Lines of the log.
    lines: usize,
    /// The number of write(2) calls beyond one for each line of the log. Most of these calls wake
    /// another thread.
    other_writes: u64,
    /// Times that the threads which look after all interfaces woke.
    wakes: u64,
}

/// Starts a weir with this number of interfaces.
fn start(vifs: usize) -> Start {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let control = at("control.sock");
    let vifs: String = (0..vifs).map(|nth| format!("[vif.v{nth}]\n")).collect();
    let config = format!("[switch]\nworkers = 1\ncontrol = {control:?}\n{vifs}");
    fs::write(at("weir.toml"), config).unwrap();
    let log = fs::File::create(at("log")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    // The kernel counts the calls of a confined process for root alone.
    command.arg("run").arg("--no-sandbox").arg(at("weir.toml")).stdin(Stdio::null()).stderr(log);
    let weir = Running(command.spawn().unwrap());
    eventually("weir is ready", || {
        fs::read_to_string(at("log")).unwrap().contains("ready").then_some(())
    });
    drop(UnixStream::connect(&control).unwrap());
    let process = format!("/proc/{}", weir.0.id());
    let wakes = |task: &Path| {
        let name = fs::read_to_string(task.join("comm")).ok()?;
        let is_meant = ["weir-manager", "weir-sessions"].contains(&name.trim_end());
        let status = task.join("status");
        is_meant.then(|| number(status.to_str().unwrap(), "voluntary_ctxt_switches:"))
    };
    let tasks = fs::read_dir(format!("{process}/task")).unwrap().flatten();
    // The lines are read first: a line that comes later is one write more, never one write less.
    let lines = fs::read_to_string(at("log")).unwrap().lines().count();
    Start {
        lines,
        other_writes: number(&format!("{process}/io"), "syscw:").checked_sub(lines as u64).unwrap(),
        wakes: tasks.filter_map(|task| wakes(&task.path())).sum(),
    }
}

#[test]
fn an_interface_takes_one_line_of_the_log_and_wakes_nobody_for_itself() {
    const MORE: usize = 256;
    // On a busy machine a thread sleeps, and is woken by a write, where it would have found its work at once.
    let least = |vifs| (0..3).map(|_| start(vifs)).min_by_key(|it| it.other_writes).unwrap();
    let (few, many) = (least(2), least(2 + MORE));
    assert_eq!(many.lines, few.lines + MORE, "{few:?}, {many:?}");
    assert!(many.other_writes < few.other_writes + 32, "{few:?}, {many:?}");
    assert!(many.wakes < few.wakes + 32, "{few:?}, {many:?}");
}

#[test]
fn a_signal_ends_a_weir_whose_log_nobody_reads() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let control = at("control.sock");
    let config = format!("[switch]\nworkers = 1\ncontrol = {control:?}\n[vif.a]\n");
    fs::write(at("weir.toml"), config).unwrap();
    let (reader, mut writer) = pipe().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command
        .arg("run")
        .arg(at("weir.toml"))
        .stdin(Stdio::null())
        .stderr(writer.try_clone().unwrap());
    let mut weir = Running(command.spawn().unwrap());
    eventually("weir serves", || UnixStream::connect(&control).ok());
    // From here on, the pipe has no room for weir's log.
    let flags = fcntl_getfl(&writer).unwrap();
    fcntl_setfl(&writer, flags | OFlags::NONBLOCK).unwrap();
    while writer.write(&[b'\n'; 512]).is_ok() {}
    while writer.write(b"\n").is_ok() {}
    fcntl_setfl(&writer, flags).unwrap();
    kill_process(Pid::from_child(&weir.0), Signal::TERM).unwrap();
    let status = eventually("it ends", || weir.0.try_wait().unwrap());
    assert_eq!(status.code(), Some(6), "out of order");
    assert!(!control.exists() && !at("a.sock").exists(), "the sockets are left");
    drop(reader);
}
