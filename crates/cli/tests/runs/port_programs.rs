//! Programs of `on_up` and `on_down`, with a guest that comes and goes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use weir_testing::{Running, eventually};
use weir_vif::{Options, Vif};
use weir_wire::Mac;

const MAC: Mac = Mac([0x52, 0x54, 0, 0, 0, 1]);

/// weir with an interface, and with programs that write down what they are told.
struct Host {
    dir: tempfile::TempDir,
    weir: Option<Running>,
    /// The process that `weir upgrade` has started.
    later: Option<Pid>,
    keeper: Option<Running>,
}

impl Drop for Host {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}\n{}", self.log(), self.weir(&["stats"]));
        }
        if let Some(later) = self.later {
            let _ = kill_process(later, Signal::KILL);
        }
    }
}

impl Host {
    fn new(up: &str, down: &str, keeper: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut host = Self { dir, weir: None, later: None, keeper: None };
        let note = |event: &str| {
            let events = host.at("events");
            format!("echo \"{event}: $WEIR_EVENT $WEIR_VIF $1\" >>{}", events.display())
        };
        host.write("up", &format!("{}\n{up}", note("up")));
        host.write("down", &format!("{}\n{down}", note("down")));
        host.configure("", keeper);
        if keeper {
            let mut command = Command::new(env!("CARGO_BIN_EXE_weir-keeper"));
            let keeper = command.arg(host.at("keeper.sock")).stdin(Stdio::null()).spawn().unwrap();
            host.keeper = Some(Running(keeper));
            eventually("the keeper listens", || weir_keeper::connect(&host.at("keeper.sock")).ok());
        }
        host.start();
        host
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, lines: &str) {
        fs::write(self.at(name), format!("#!/bin/sh\n{lines}\n")).unwrap();
        fs::set_permissions(self.at(name), fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn configure(&self, vif: &str, keeper: bool) {
        let keeper = match keeper {
            true => format!("keeper = {:?}\n", self.at("keeper.sock")),
            false => String::new(),
        };
        let config = format!(
            "[switch]\nworkers = 1\ncontrol = {:?}\n{keeper}on_up = [{:?}, \"as it is\"]\non_down = [{:?}]\n\
             [vif.web0]\n{vif}",
            self.at("control.sock"),
            self.at("up"),
            self.at("down"),
        );
        fs::write(self.at("weir.toml"), config).unwrap();
    }

    fn start(&mut self) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        let log = fs::File::options().create(true).append(true).open(self.at("log")).unwrap();
        command.arg("run").arg(self.at("weir.toml")).stdin(Stdio::null()).stderr(log);
        self.weir = Some(Running(command.spawn().unwrap()));
        eventually("weir serves", || UnixStream::connect(self.at("control.sock")).ok());
    }

    /// Ends weir by this signal.
    fn ends(&mut self, signal: Signal) -> ExitStatus {
        let mut weir = self.weir.take().unwrap();
        kill_process(Pid::from_child(&weir.0), signal).unwrap();
        eventually("weir ends", || weir.0.try_wait().unwrap())
    }

    fn weir(&self, args: &[&str]) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        let output =
            command.arg("--control").arg(self.at("control.sock")).args(args).output().unwrap();
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    }

    fn guest(&self) -> Vif {
        let socket = self.at("web0.sock");
        eventually("its socket is there", || Vif::connect(&socket, &Options::new(MAC)).ok())
    }

    fn events(&self) -> Vec<String> {
        let events = fs::read_to_string(self.at("events")).unwrap_or_default();
        events.lines().map(str::to_owned).collect()
    }

    fn await_events(&self, number: usize) -> Vec<String> {
        eventually("a program runs", || Some(self.events()).filter(|all| all.len() >= number))
    }

    fn log(&self) -> String {
        fs::read_to_string(self.at("log")).unwrap()
    }
}

const UP: &str = "up: up web0 as it is";
const DOWN: &str = "down: down web0 ";

#[test]
fn programs_run_when_a_guest_comes_and_goes_and_not_for_a_reload() {
    let mut host = Host::new("echo well done", "", false);
    let guest = host.guest();
    assert_eq!(host.await_events(1), [UP]);
    // A change of the interface leaves it up.
    host.configure("weight = 2\n", false);
    let said = host.weir(&["reload"]);
    assert!(said.contains("weight"), "{said}");
    drop(guest);
    assert_eq!(host.await_events(2), [UP, DOWN]);
    let _guest = host.guest();
    assert_eq!(host.await_events(3), [UP, DOWN, UP]);
    // The end is in order, and the port goes down with it.
    assert_eq!(host.ends(Signal::TERM).code(), Some(0), "{}", host.log());
    assert_eq!(host.await_events(4), [UP, DOWN, UP, DOWN]);
    assert!(host.log().contains("well done"), "{}", host.log());
}

#[test]
fn a_program_that_fails_is_named_by_doctor_until_it_has_run_well() {
    let host = Host::new("echo no such route; exit 7", "", false);
    let guest = host.guest();
    let said = eventually("doctor says so", || {
        Some(host.weir(&["doctor"])).filter(|said| said.contains("program-fails"))
    });
    let words = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("exit status: 7; it said: no such route"), "{said}");
    assert!(host.log().contains("a program for a port has failed"), "{}", host.log());
    host.write("up", "exit 0");
    drop(guest);
    let _guest = host.guest();
    eventually("all is well", || (!host.weir(&["doctor"]).contains("program-fails")).then_some(()));
}

#[test]
fn a_program_that_hangs_keeps_neither_guest_nor_control_nor_the_end_waiting() {
    let mut host = Host::new("sleep 600", "exec sleep 600", false);
    let guest = host.guest();
    assert_eq!(host.await_events(1), [UP]);
    // While the program hangs, weir answers and accepts another front end.
    assert!(host.weir(&["status"]).contains("1 running"));
    drop(guest);
    let _guest = host.guest();
    // Code 6 would be an end out of order.
    assert_eq!(host.ends(Signal::TERM).code(), Some(0), "{}", host.log());
}

#[test]
fn a_weir_that_goes_on_for_another_runs_no_program_again() {
    let mut host = Host::new("", "", true);
    let guest = host.guest();
    assert_eq!(host.await_events(1), [UP]);
    let is_noted = |host: &Host| {
        eventually("web0 runs", || host.weir(&["stats"]).contains("running").then_some(()))
    };
    is_noted(&host);
    host.ends(Signal::USR2);
    host.start();
    is_noted(&host);
    host.ends(Signal::KILL);
    host.start();
    is_noted(&host);
    let said = host.weir(&["upgrade"]);
    let number = said.split_once("process ").map(|(_, rest)| {
        rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse::<i32>().unwrap()
    });
    host.later = Pid::from_raw(number.unwrap_or_else(|| panic!("{said}")));
    is_noted(&host);
    // The guest goes. The record of a program that had run before would come first.
    drop(guest);
    assert_eq!(host.await_events(2), [UP, DOWN]);
}

#[test]
fn check_and_the_start_say_what_would_not_run() {
    let host = Host::new("", "", false);
    fs::set_permissions(host.at("up"), fs::Permissions::from_mode(0o777)).unwrap();
    fs::remove_file(host.at("down")).unwrap();
    let check = |file: &Path| host.weir(&["check", "--host", file.to_str().unwrap()]);
    let said = check(&host.at("weir.toml"));
    let words = said.split_whitespace().collect::<Vec<_>>().join(" ");
    for expected in
        ["`on_up` of [switch]: others may write", "`on_down` of [switch]:", "No such file"]
    {
        assert!(words.contains(expected), "{said}");
    }
}
