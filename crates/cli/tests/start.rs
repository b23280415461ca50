//! The start of a weir with many interfaces, whose cost grows with their number and no faster; and its end.

use std::fs;
use std::io::{Write, pipe};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{Pid, Signal, kill_process};
use weir_testing::{Running, eventually};

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
    /// Calls of write(2) beside one for each line of the log. Most of these calls wake another thread.
    other_writes: u64,
    /// Times that the threads woke which look after all interfaces.
    wakes: u64,
}

/// Starts a weir with so many interfaces.
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
