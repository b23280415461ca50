//! The program `weir-agent` in a simulated guest, with a Unix socket for its port.

mod fake_guest;

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use fake_guest::FakeGuest;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use weir_agent::host::{AgentLink, Event};
use weir_wire::Mac;

const MAC: &str = "52:54:00:00:00:01";
/// The unit of `/proc/stat`.
const TICK_NS: u64 = 10_000_000;
/// A time that only a thread that hangs exceeds.
const PATIENCE: Duration = Duration::from_secs(60);

struct Agent(Child);

impl Agent {
    fn start(guest: &FakeGuest) -> Self {
        let mut command = command(guest);
        Self(command.stderr(Stdio::null()).spawn().expect("the agent starts"))
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.0);
        kill_process(pid, signal).expect("the agent is there");
    }

    /// Returns the agent's exit code.
    fn end(mut self) -> Option<i32> {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if let Some(status) = self.0.try_wait().expect("a status") {
                return status.code();
            }
            thread::sleep(Duration::from_millis(5));
        }
        panic!("the agent does not end");
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn command(guest: &FakeGuest) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir-agent"));
    command.arg("--root").arg(guest.root());
    command.arg("--port").arg(guest.path("port"));
    command.arg("--state").arg(guest.path("agent.state"));
    command
}

fn output(command: &mut Command) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = command.output().expect("the agent starts");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (status.code(), text(stdout), text(stderr))
}

fn listen(guest: &FakeGuest) -> UnixListener {
    UnixListener::bind(guest.path("port")).expect("a socket")
}

/// weir's side, line by line.
struct Host {
    lines: BufReader<UnixStream>,
}

impl Host {
    fn accept(listener: &UnixListener) -> Self {
        let (stream, _) = listener.accept().expect("the agent connects");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        Self { lines: BufReader::new(stream) }
    }

    /// Accepts a connection, and welcomes the agent.
    fn greet(listener: &UnixListener) -> Self {
        let mut host = Self::accept(listener);
        host.welcome();
        host
    }

    fn welcome(&mut self) {
        let hello = self.next("hello");
        self.send(&json!({"message": "welcome", "version": 1, "session": hello["session"]}));
    }

    fn send(&mut self, message: &Value) {
        writeln!(self.lines.get_mut(), "{message}").expect("the agent is there");
    }

    fn set(&mut self, poll_ns: Option<u64>) {
        self.send(&json!({"message": "set", "mac": MAC, "poll_ns": poll_ns}));
        assert_eq!(
            self.next("applied"),
            json!({"message": "applied", "mac": MAC, "poll_ns": poll_ns, "error": null})
        );
    }

    /// Waits for the next message of this kind, and sends pings meanwhile.
    fn next(&mut self, kind: &str) -> Value {
        loop {
            let mut line = String::new();
            assert_ne!(self.lines.read_line(&mut line).expect("a line"), 0, "closed before {kind}");
            if line.trim().is_empty() {
                continue;
            }
            let message: Value = serde_json::from_str(&line).expect("JSON");
            if message["message"] == kind {
                return message;
            }
            self.send(&json!({"message": "ping"}));
        }
    }

    /// Waits until the agent has closed the connection.
    fn closed(mut self) {
        let mut rest = String::new();
        loop {
            match self.lines.read_line(&mut rest) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

fn eventually(what: &str, holds: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < until, "not {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn hello_set_applied_report_and_restored_on_sigterm() {
    let guest = FakeGuest::new();
    let listener = listen(&guest);
    let agent = Agent::start(&guest);
    let mut host = Host::accept(&listener);
    let hello = host.next("hello");
    assert_eq!(hello["version"], 1);
    assert_eq!(hello["kernel"], "6.18.44");
    assert_eq!(hello["interfaces"], json!([{"mac": MAC, "name": "eth0", "can_defer": true}]));
    host.send(&json!({"message": "welcome", "version": 1, "session": hello["session"]}));
    host.set(Some(1_000_000));
    assert_eq!(guest.settings("eth0"), ("3".to_owned(), "1000000".to_owned()));

    // The first report concerns the time before. A later one may come between two files.
    host.next("report");
    guest.count(700, 3000);
    let (mut interrupts, mut packets, mut cpu_ns) = (0, 0, 0);
    while interrupts < 700 || packets < 3000 || cpu_ns < 700 * TICK_NS {
        let report = host.next("report");
        assert_eq!(report["mac"], MAC);
        interrupts += report["interrupts"].as_u64().expect("a number");
        packets += report["rx_packets"].as_u64().expect("a number");
        cpu_ns += report["cpu_ns"].as_u64().expect("a number");
        assert!(report["interval_ns"].as_u64() > Some(0));
    }
    assert_eq!((interrupts, packets, cpu_ns), (700, 3000, 700 * TICK_NS));

    agent.signal(Signal::TERM);
    host.next("bye");
    assert!(guest.is_as_found("eth0"));
    assert_eq!(agent.end(), Some(0));
    assert!(!guest.path("agent.state").exists());
}

#[test]
fn a_host_that_goes_away_and_comes_back() {
    let guest = FakeGuest::new();
    let listener = listen(&guest);
    let agent = Agent::start(&guest);
    let mut host = Host::greet(&listener);
    host.set(Some(250_000));
    drop((host, listener));
    eventually("restored", || guest.is_as_found("eth0"));

    fs::remove_file(guest.path("port")).expect("removed");
    let listener = listen(&guest);
    let mut host = Host::greet(&listener);
    host.set(Some(250_000));
    assert!(!guest.is_as_found("eth0"));
    agent.signal(Signal::INT);
    assert_eq!(agent.end(), Some(0));
    assert!(guest.is_as_found("eth0"));
}

#[test]
fn a_host_that_says_nothing_loses_its_settings_and_may_begin_anew() {
    let guest = FakeGuest::new();
    let listener = listen(&guest);
    let _agent = Agent::start(&guest);
    let mut host = Host::greet(&listener);
    host.set(Some(250_000));
    // The connection stays open.
    eventually("restored", || guest.is_as_found("eth0"));
    host.welcome();
    host.set(Some(300_000));
    assert!(!guest.is_as_found("eth0"));
}

#[test]
fn bye_and_none_restore() {
    let guest = FakeGuest::new();
    let listener = listen(&guest);
    let _agent = Agent::start(&guest);
    let mut host = Host::greet(&listener);
    host.set(Some(250_000));
    host.set(None);
    assert!(guest.is_as_found("eth0"));
    host.set(Some(250_000));
    host.send(&json!({"message": "bye"}));
    eventually("restored", || guest.is_as_found("eth0"));
}

#[test]
fn an_agent_that_was_killed_is_made_good_by_the_next() {
    let guest = FakeGuest::new();
    let listener = listen(&guest);
    let agent = Agent::start(&guest);
    let mut host = Host::greet(&listener);
    host.set(Some(250_000));
    agent.signal(Signal::KILL);
    assert_eq!(agent.end(), None);
    host.closed();
    assert!(!guest.is_as_found("eth0"));

    let agent = Agent::start(&guest);
    let mut host = Host::accept(&listener);
    host.next("hello");
    assert!(guest.is_as_found("eth0"), "before the hello");
    agent.signal(Signal::TERM);
    assert_eq!(agent.end(), Some(0));
    assert!(guest.is_as_found("eth0"));
}

#[test]
fn a_setting_that_cannot_be_done_is_answered_with_the_reason() {
    let guest = FakeGuest::new();
    let listener = listen(&guest);
    let _agent = Agent::start(&guest);
    let mut host = Host::greet(&listener);
    host.send(&json!({"message": "set", "mac": MAC, "poll_ns": 1}));
    let applied = host.next("applied");
    assert_eq!(applied["error"], "an interval of 1 ns is outside 10000 to 10000000 ns");
    host.send(&json!({"message": "set", "mac": "02:00:00:00:00:09", "poll_ns": null}));
    let applied = host.next("applied");
    assert_eq!(
        applied["error"],
        "no interface of virtio-net or xen-netfront has the address 02:00:00:00:00:09"
    );
    assert!(guest.is_as_found("eth0"));
}

#[test]
fn garbage_is_refused_and_leaves_nothing_changed() {
    let guest = FakeGuest::new();
    let listener = listen(&guest);
    let _agent = Agent::start(&guest);
    let endless = "x".repeat(5000);
    for garbage in ["garbage\n", "{\"message\":\"fly\"}\n", endless.as_str()] {
        let mut host = Host::greet(&listener);
        host.set(Some(250_000));
        host.lines.get_mut().write_all(garbage.as_bytes()).expect("written");
        host.closed();
        assert!(guest.is_as_found("eth0"));
    }
}

#[test]
fn an_interface_that_comes_later_begins_anew() {
    let guest = FakeGuest::new();
    let listener = listen(&guest);
    let _agent = Agent::start(&guest);
    let mut host = Host::greet(&listener);
    host.set(Some(250_000));
    guest.add("eth1", "52:54:00:00:00:02", "virtio3", "virtio_net");
    let hello = host.next("hello");
    assert!(guest.is_as_found("eth0"));
    assert_eq!(hello["interfaces"].as_array().map(Vec::len), Some(2));
}

#[test]
fn both_halves_understand_each_other() {
    let guest = FakeGuest::new();
    let listener = listen(&guest);
    let agent = Agent::start(&guest);
    let (stream, _) = listener.accept().expect("the agent connects");
    let mac: Mac = MAC.parse().expect("an address");
    let mut link = AgentLink::new(stream, vec![mac]).expect("a link");
    let start = Instant::now();
    let now_ns = || u64::try_from(start.elapsed().as_nanos()).expect("a short test");
    // The run is so long that the agent would miss pings if none came. On a busy machine one side may take the other
    // for dead: then the agent greets again.
    let (mut applied, mut reports) = (false, 0);
    while !applied || reports < 4 {
        assert!(start.elapsed() < PATIENCE, "applied {applied}, {reports} reports");
        let gone = link.tick(now_ns()).expect("a link that is well");
        let events = link.readable(now_ns()).expect("a link that is well");
        for event in gone.into_iter().chain(events) {
            match event {
                Event::Hello(hello) => {
                    assert!(hello.interfaces.iter().all(|known| known.can_defer));
                    (applied, reports) = (false, 0);
                    link.set(mac, Some(500_000)).expect("sent");
                }
                Event::Applied(is) => {
                    assert_eq!((is.poll_ns, is.error), (Some(500_000), None));
                    applied = true;
                }
                Event::Report(_) => reports += 1,
                Event::Gone => (applied, reports) = (false, 0),
            }
        }
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(guest.settings("eth0").1, "500000");
    link.bye();
    eventually("restored", || guest.is_as_found("eth0"));
    agent.signal(Signal::TERM);
    assert_eq!(agent.end(), Some(0));
}

#[test]
fn once_shows_what_would_be_reported_and_changes_nothing() {
    let guest = FakeGuest::new();
    let (code, stdout, stderr) = output(command(&guest).arg("--once"));
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    assert!(stdout.contains(
        "eth0 52:54:00:00:00:01 virtio2: napi_defer_hard_irqs 1, gro_flush_timeout 20000 ns"
    ));
    assert!(stdout.contains("0 interrupts, 0 packets received"), "{stdout}");
    assert!(guest.is_as_found("eth0") && !guest.path("agent.lock").exists());
}

#[test]
fn exit_codes_tell_a_missing_port_from_a_second_agent_and_from_wrong_usage() {
    let guest = FakeGuest::new();
    let (code, _, stderr) = output(&mut command(&guest));
    assert_eq!(code, Some(3), "{stderr}");
    assert!(stderr.contains("-device virtserialport,chardev=agent,name=org.weir.agent.0"));

    let listener = listen(&guest);
    let _agent = Agent::start(&guest);
    Host::greet(&listener);
    let (code, _, stderr) = output(&mut command(&guest));
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("another weir-agent is running"), "{stderr}");

    let (code, _, stderr) = output(command(&guest).args(["--vsock", "1024"]));
    assert_eq!(code, Some(2), "{stderr}");
}
