//! A running weir whose configuration file changes: `weir diff`, `weir reload`, SIGHUP.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use weir_limits::CONFIG_MEMORY_BYTES_MAX;
use weir_testing::{SetAtEnd, eventually};
use weir_vif::{Options, QueuePair, Vif, WaitFor};
use weir_wire::{Mac, Offload};

/// A running weir, with its file and its log. Dropping the value kills it.
struct Weir {
    process: Child,
    dir: PathBuf,
}

impl Weir {
    fn start(dir: &Path, config: &str, options: &[&str]) -> Self {
        Self::start_by(Command::new(env!("CARGO_BIN_EXE_weir")), dir, config, options)
    }

    fn start_by(mut command: Command, dir: &Path, config: &str, options: &[&str]) -> Self {
        write_config(dir, config);
        let log = fs::File::create(dir.join("log")).unwrap();
        command.arg("run").args(options).arg("weir.toml").current_dir(dir);
        let process = command.stdin(Stdio::null()).stderr(log).spawn().unwrap();
        let weir = Self { process, dir: dir.into() };
        eventually("weir serves", || UnixStream::connect(dir.join("control.sock")).ok());
        weir
    }

    fn command(&self, args: &[&str]) -> Output {
        let control = self.dir.join("control.sock");
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        // With a wide terminal no words are split, however long a file's path is.
        command.env("COLUMNS", "500").arg("--control").arg(control).args(args).output().unwrap()
    }

    /// Runs a command that must succeed; returns its output.
    fn does(&self, args: &[&str]) -> String {
        let output = self.command(args);
        assert!(output.status.success(), "{args:?}: {}", says(&output));
        says(&output)
    }

    /// Runs a command that must fail with this code; returns its output in one line.
    fn fails(&self, code: i32, args: &[&str]) -> String {
        let output = self.command(args);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", says(&output));
        says(&output).split_whitespace().filter(|word| *word != "│").collect::<Vec<_>>().join(" ")
    }

    fn hang_up(&self) {
        kill_process(Pid::from_child(&self.process), Signal::HUP).unwrap();
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap()
    }

    /// Waits for another line in the log.
    fn logs(&self, what: &str, before: usize) {
        let count = || self.log().matches(what).count();
        eventually(what, || (count() > before).then_some(()));
    }

    fn vifs(&self) -> String {
        self.does(&["vif", "list", "--json"])
    }
}

impl Drop for Weir {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn says(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

fn write_config(dir: &Path, config: &str) {
    let control = dir.join("control.sock");
    let text = match config.strip_prefix("[switch]\n") {
        Some(rest) => format!("[switch]\ncontrol = {control:?}\n{rest}"),
        None => format!("[switch]\ncontrol = {control:?}\n{config}"),
    };
    // The file is replaced atomically, as editors do, so weir never reads half a file.
    fs::write(dir.join("weir.toml.new"), text).unwrap();
    fs::rename(dir.join("weir.toml.new"), dir.join("weir.toml")).unwrap();
}

fn mac(last: u8) -> Mac {
    Mac([0x52, 0x54, 0, 0, 0, last])
}

fn guest(dir: &Path, name: &str, last: u8) -> Vif {
    let socket = dir.join(format!("{name}.sock"));
    eventually("weir serves a guest", || Vif::connect(&socket, &Options::new(mac(last))).ok())
}

/// The greatest number of frames in flight: the receiver has buffers for this many.
const UNDER_WAY_MAX: u64 = 100;

/// Sends numbered frames until it is stopped; returns their number.
fn send(pair: &mut QueuePair, to: Mac, received: &AtomicU64, stop: &AtomicBool) -> u64 {
    let mut number = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        if number >= received.load(Ordering::Relaxed) + UNDER_WAY_MAX {
            std::thread::yield_now();
            continue;
        }
        let numbered = number.to_be_bytes();
        let frame = [&to.0[..], &pair.mac().0, &[0x88, 0xb5], &numbered, &[0; 40]].concat();
        if pair.send(&frame, &Offload::NONE).is_ok() {
            number += 1;
        }
        pair.flush();
    }
    number
}

/// Counts frames in their order. A missing or repeated frame fails the test.
fn receive(pair: &mut QueuePair, received: &AtomicU64, stop: &AtomicBool) {
    let mut frame = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        while pair.recv_into(&mut frame).is_some() {
            if frame[..6] == pair.mac().0 && frame[12..14] == [0x88, 0xb5] {
                let number = u64::from_be_bytes(frame[14..22].try_into().unwrap());
                assert_eq!(number, received.load(Ordering::Relaxed), "a frame is missing or again");
                received.fetch_add(1, Ordering::Relaxed);
            }
        }
        pair.wait(WaitFor::Receive, Duration::from_millis(1)).unwrap();
    }
}

/// The file of the n-th reload: `a` and `b` never change; the others are added, changed and removed.
fn changing(n: usize) -> String {
    let mut text = String::from("[switch]\n");
    text.push_str(&format!("latency_budget = \"{}us\"\n", 200 + n % 3));
    text.push_str("[vif.a]\nlatency_budget = \"100us\"\n[vif.b]\nlatency_budget = \"100us\"\n");
    text.push_str("[vif.c]\n");
    text.push_str(match n % 6 {
        0 => "vlan = 10\n",
        1 => "moderation = \"immediate\"\nmtu = 1400\n",
        2 => "rate = \"1Gbit\"\nweight = 3\nrx_packets_per_second = 1000\n",
        3 => "source_guard = \"snooped\"\nbroadcasts_per_second = 10\n",
        4 => "queues = 4\nmac_check = false\nmemory_max = \"1GiB\"\n",
        _ => "[[vif.c.filter]]\ndirection = \"tx\"\naction = \"drop\"\nmatch = \"tcp port 25\"\n",
    });
    // One interface has a guest, and several have none.
    if n.is_multiple_of(2) {
        text.push_str("[vif.d]\n");
    }
    for other in 0..n % 5 {
        text.push_str(&format!("[vif.e{other}]\nvlan = {}\n", 100 + n % 7));
    }
    text
}

#[test]
fn interfaces_that_stay_lose_no_packet_while_others_come_change_and_go() {
    const RELOADS: usize = 60;
    let reloads = std::env::var("WEIR_RELOADS").ok().and_then(|text| text.parse().ok());
    let reloads = reloads.unwrap_or(RELOADS);
    let dir = tempfile::tempdir().unwrap();
    let weir = Weir::start(dir.path(), &changing(0), &[]);
    let (mut a, mut b) = (guest(dir.path(), "a", 1), guest(dir.path(), "b", 2));
    let _c = guest(dir.path(), "c", 3);
    let (mut a_pair, mut b_pair) = (a.queue_pairs().remove(0), b.queue_pairs().remove(0));
    let (received, stop_sending, stop) =
        (AtomicU64::new(0), AtomicBool::new(false), AtomicBool::new(false));
    // The broadcast lets the switch learn the address.
    b_pair
        .send(&[&[0xff; 6][..], &mac(2).0, &[0x88, 0xb6], &[0; 46]].concat(), &Offload::NONE)
        .unwrap();
    b_pair.flush();

    let sent = std::thread::scope(|scope| {
        let (stops, stops_sending) = (SetAtEnd(&stop), SetAtEnd(&stop_sending));
        let receiving = scope.spawn(|| receive(&mut b_pair, &received, &stop));
        let sending = scope.spawn(|| send(&mut a_pair, mac(2), &received, &stop_sending));
        let flows = || {
            let before = received.load(Ordering::Relaxed);
            eventually("frames flow", || {
                assert!(!receiving.is_finished() && !sending.is_finished());
                (received.load(Ordering::Relaxed) > before + 200).then_some(())
            });
        };
        flows();
        for n in 1..=reloads {
            // The guest is connected when its interface is removed.
            let _d = (n % 2 == 1).then(|| guest(dir.path(), "d", 4));
            write_config(dir.path(), &changing(n));
            match n % 3 {
                0 => {
                    let before = weir.log().matches("reloaded").count();
                    weir.hang_up();
                    weir.logs("reloaded", before);
                }
                _ => drop(weir.does(&["reload"])),
            }
            assert!(weir.does(&["diff"]).contains("nothing to change"));
            assert_eq!(dir.path().join("d.sock").exists(), n % 2 == 0);
            flows();
        }
        drop(stops_sending);
        let sent = sending.join().unwrap();
        eventually("all that was sent arrives", || {
            (receiving.is_finished() || received.load(Ordering::Relaxed) == sent).then_some(())
        });
        drop(stops);
        receiving.join().unwrap();
        sent
    });
    let lost = sent - received.load(Ordering::Relaxed);
    println!("reload_lost_packets {lost} of {sent} in {reloads} reloads");
    assert_eq!(lost, 0);
    let stats: serde_json::Value = serde_json::from_str(&weir.does(&["stats", "--json"])).unwrap();
    for port in stats["ports"].as_array().unwrap() {
        if ["a", "b"].contains(&port["name"].as_str().unwrap()) {
            assert_eq!(port["sessions"]["opened"], 1, "{port}");
            assert_eq!(port["drops"].as_object().unwrap().values().find(|n| **n != 0), None);
        }
    }
}

const TWO: &str = "[vif.a]\nqueues = 2\n[vif.b]\n";

#[test]
fn a_bad_file_is_shown_with_its_lines_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let weir = Weir::start(dir.path(), TWO, &[]);
    let before = weir.vifs();
    write_config(dir.path(), "[vif.a]\nqueues = 900\n[vif.c]\n[vif.b]\ncolour = \"red\"\n");
    for command in ["diff", "reload"] {
        let refused = weir.fails(3, &[command]);
        for word in ["2 problems", "queues = 900", "unknown key `colour`", "weir.toml:4"] {
            assert!(refused.contains(word), "{word}: {refused}");
        }
    }
    weir.hang_up();
    weir.logs("not reloaded", 0);
    let log = weir.log();
    assert!(log.contains("line 4: bad value for `vif.a.queues`"), "{log}");
    // Files that are no configuration are refused too, and no caller blocks.
    let missing = dir.path().join("missing.toml").display().to_string();
    assert!(weir.fails(3, &["reload", &missing]).contains("cannot read"));
    assert!(weir.fails(3, &["reload", "/dev/zero"]).contains("is not a regular file"));
    fs::remove_file(dir.path().join("weir.toml")).unwrap();
    weir.hang_up();
    weir.logs("not reloaded", 1);
    assert_eq!(weir.vifs(), before);
}

#[test]
fn what_cannot_change_is_named_and_nothing_is_touched_unless_asked_for_partly() {
    let dir = tempfile::tempdir().unwrap();
    let weir = Weir::start(dir.path(), TWO, &[]);
    let before = weir.vifs();
    let elsewhere = tempfile::tempdir().unwrap();
    let socket = elsewhere.path().join("c.sock");
    let file = format!(
        "[switch]\nworkers = 3\n[vif.a]\nqueues = 4\nsocket_mode = \"0660\"\n[vif.c]\nsocket = {socket:?}\n[vif.d]\n"
    );
    write_config(dir.path(), &file);
    let shown = weir.does(&["diff"]);
    for line in
        ["! workers", "! socket_mode", "queues       2 -> 4", "! vif.c", "- vif.b", "+ vif.d"]
    {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    let refused = weir.fails(1, &["reload"]);
    for word in ["nothing changed: 3 settings", "switch.workers", "vif.a.socket_mode", "vif.c: "] {
        assert!(refused.contains(word), "{word}: {refused}");
    }
    weir.hang_up();
    weir.logs("not reloaded", 1);
    assert_eq!(weir.vifs(), before);

    let done = weir.does(&["reload", "--partly"]);
    let summary = "reloaded: 1 added, 1 removed, 1 changed; 3 settings need a restart";
    assert!(done.contains(summary), "{done}");
    let names: Vec<_> = weir.does(&["vif", "list"]).lines().skip(1).map(first_word).collect();
    assert_eq!(names, ["a", "d"]);
    assert!(!dir.path().join("b.sock").exists());
    // Without a sandbox a socket can be anywhere.
    drop(weir);
    let weir = Weir::start(dir.path(), "[vif.a]\n", &["--no-sandbox"]);
    write_config(dir.path(), &format!("[vif.a]\n[vif.c]\nsocket = {socket:?}\n"));
    weir.does(&["reload"]);
    UnixStream::connect(socket).unwrap();
}

fn first_word(line: &str) -> String {
    line.split_whitespace().next().unwrap().to_owned()
}

#[test]
fn a_step_that_fails_has_the_others_undone_and_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let weir = Weir::start(dir.path(), TWO, &[]);
    let mut a = guest(dir.path(), "a", 1);
    let before = weir.vifs();
    // The last of all sockets cannot be made.
    fs::write(dir.path().join("z.sock"), "not a socket").unwrap();
    write_config(dir.path(), "[vif.a]\nvlan = 7\n[vif.y]\n[vif.z]\n");
    let failed = weir.fails(1, &["reload"]);
    assert!(failed.contains("interface z: ") && failed.contains("is not a socket"), "{failed}");
    assert_eq!(weir.vifs(), before);
    assert!(!dir.path().join("y.sock").exists() && !dir.path().join("y.sock.rings").exists());

    // A new interface takes over the socket of a removed one. If the reload fails after the removal, the old one
    // comes back.
    let socket = dir.path().join("b.sock");
    let agent = dir.path().join("z.sock");
    let file =
        format!("[vif.a]\nvlan = 7\n[vif.y]\n[vif.b2]\nsocket = {socket:?}\nagent = {agent:?}\n");
    write_config(dir.path(), &file);
    let failed = weir.fails(1, &["reload"]);
    let note = "b was removed and added again, which disconnected its guest";
    assert!(failed.contains("interface b2: ") && failed.contains(note), "{failed}");
    let mut b = guest(dir.path(), "b", 2);
    assert!(!dir.path().join("y.sock").exists());
    // The guest of the interface that was only to be changed has noticed nothing.
    let (mut a, mut b) = (a.queue_pairs().remove(0), b.queue_pairs().remove(0));
    let frame = [&[0xff; 6][..], &mac(1).0, &[0x88, 0xb5], &[7; 46]].concat();
    eventually("a frame arrives", || {
        a.send(&frame, &Offload::NONE).unwrap();
        a.flush();
        b.recv(|_| ()).map(drop)
    });
    // Once the obstacle is removed, the reload succeeds.
    fs::remove_file(agent).unwrap();
    weir.does(&["reload"]);
    // The new interface has the socket of the old one.
    guest(dir.path(), "b", 2);
    assert!(weir.does(&["vif", "list"]).contains("b2"));
}

#[test]
fn what_came_by_hand_stays_and_what_was_changed_by_hand_goes_back_to_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let weir = Weir::start(dir.path(), TWO, &[]);
    weir.does(&["vif", "add", "tmp0"]);
    weir.does(&["vif", "set", "a", "weight=5"]);
    weir.does(&["filter", "set", "b", "tx drop tcp port 25"]);
    let shown = weir.does(&["diff"]);
    for line in ["weight  5 -> default", "filter  tx drop tcp port 25 -> default", "= vif.tmp0"] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    weir.does(&["reload"]);
    guest(dir.path(), "tmp0", 9);
    assert!(weir.does(&["diff"]).contains("nothing to change"));
    // The file can take over the interface, which is then removed with the file's entry.
    write_config(dir.path(), "[vif.a]\nqueues = 2\n[vif.b]\n[vif.tmp0]\n");
    weir.does(&["reload"]);
    write_config(dir.path(), TWO);
    let json: serde_json::Value = serde_json::from_str(&weir.does(&["diff", "--json"])).unwrap();
    assert_eq!(json["tables"][0]["kind"], "removed");
    weir.does(&["reload"]);
    assert!(!dir.path().join("tmp0.sock").exists());
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

    fn has(&self, interface: &str) -> bool {
        let interfaces = fs::read_to_string(format!("/proc/{}/net/dev", self.0.id())).unwrap();
        interfaces.contains(&format!("{interface}:"))
    }

    fn weir(&self, dir: &Path, config: &str, options: &[&str]) -> Weir {
        let mut command = Command::new("nsenter");
        let holder = self.0.id().to_string();
        command.args(["--net", "--target", &holder, env!("CARGO_BIN_EXE_weir")]);
        Weir::start_by(command, dir, config, options)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const LAN: &str = "[uplink.lan]\nkind = \"tap\"\nname = \"weir0\"\nqueues = 2\n";

#[test]
fn root_uplinks_come_change_and_go_under_traffic() {
    if !weir_testing::is_root("a network namespace") {
        return;
    }
    let (dir, network) = (tempfile::tempdir().unwrap(), Network::new());
    let weir = network.weir(dir.path(), TWO, &["--no-sandbox"]);
    let mut a = guest(dir.path(), "a", 1);
    let mut a = a.queue_pairs().remove(0);
    let frame = [&[0xff; 6][..], &mac(1).0, &[0x88, 0xb5], &[7; 46]].concat();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stops = SetAtEnd(&stop);
        let flooding = scope.spawn(|| {
            let mut sent = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                sent += u64::from(a.send(&frame, &Offload::NONE).is_ok());
                a.flush();
                std::thread::sleep(Duration::from_micros(50));
            }
            sent
        });
        let uplink = || {
            let stats = weir.does(&["stats", "--json"]);
            let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
            let ports = stats["ports"].as_array().unwrap().clone();
            ports.into_iter().find(|port| port["name"] == "lan")
        };
        for _ in 0..5 {
            write_config(dir.path(), &format!("{TWO}{LAN}"));
            weir.does(&["reload"]);
            assert!(network.has("weir0"));
            let received = || uplink().unwrap()["rx"]["frames"].as_u64();
            eventually("it receives the flood", || received().filter(|frames| *frames > 100));
            let more = "vlan = 9\nweight = 3\nrss_rebalance = false\n\
                        [[uplink.lan.filter]]\ndirection = \"rx\"\naction = \"drop\"\n";
            write_config(dir.path(), &format!("{TWO}{LAN}{more}"));
            let changed = weir.does(&["reload"]);
            for key in ["vlan", "weight", "rss_rebalance", "filter"] {
                assert!(changed.contains(key), "{key}: {changed}");
            }
            assert!(weir.does(&["diff"]).contains("nothing to change"));
            assert_eq!(uplink().unwrap()["vlan"]["access"], 9);
            write_config(dir.path(), TWO);
            weir.does(&["reload"]);
            eventually("the TAP is gone", || (!network.has("weir0")).then_some(()));
            assert!(uplink().is_none());
        }
        drop(stops);
        assert!(flooding.join().unwrap() > 0);
    });
    // If a socket cannot be made, the device that was opened first is closed again.
    fs::write(dir.path().join("z.sock"), "not a socket").unwrap();
    write_config(dir.path(), &format!("{TWO}{LAN}[vif.z]\n"));
    assert!(weir.fails(1, &["reload"]).contains("interface z"));
    assert!(!network.has("weir0"));
}

#[test]
fn root_a_confined_weir_lets_uplinks_go_and_names_those_it_cannot_open() {
    if !weir_testing::is_root("a network namespace") {
        return;
    }
    let (dir, network) = (tempfile::tempdir().unwrap(), Network::new());
    let weir = network.weir(dir.path(), &format!("{TWO}{LAN}"), &[]);
    let other = LAN.replace("lan", "wan").replace("weir0", "weir1");
    write_config(dir.path(), &format!("{TWO}{other}"));
    let refused = weir.fails(1, &["reload"]);
    assert!(refused.contains("uplink.wan: a confined weir opens no devices"), "{refused}");
    assert!(network.has("weir0"));
    let wider = LAN.replace("queues = 2", "queues = 1");
    write_config(dir.path(), &format!("{TWO}{wider}"));
    assert!(weir.fails(1, &["reload"]).contains("uplink.lan.queues: the device is open"));
    write_config(dir.path(), TWO);
    assert!(weir.does(&["reload"]).contains("- uplink.lan  comes back only with a restart"));
    eventually("the TAP is gone", || (!network.has("weir0")).then_some(()));
    guest(dir.path(), "a", 1);
}

/// A value of `/proc/PID/status` in bytes.
fn memory(weir: &Weir, figure: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", weir.process.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with(figure)).unwrap();
    1024 * line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
}

#[test]
fn a_difference_keeps_nobody_waiting_and_gives_back_what_it_took() {
    let dir = tempfile::tempdir().unwrap();
    let weir = Weir::start(dir.path(), "[switch]\nworkers = 1\n", &[]);
    let whole = dir.path().join("whole.toml");
    let rules = "[[vif.a.filter]]\ndirection = \"tx\"\naction = \"drop\"\n".repeat(15_000);
    fs::write(&whole, format!("[vif.a]\n{rules}")).unwrap();
    weir.does(&["stats"]);
    let before = memory(&weir, "VmRSS");
    let ask = |text: &str| {
        let mut stream = UnixStream::connect(dir.path().join("control.sock")).unwrap();
        let head = format!(
            "POST /v1/configuration/difference HTTP/1.1\r\nhost: w\r\ncontent-length: {}\r\nconnection: \
             close\r\n\r\n",
            text.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        // weir does not read the body of a request that it refuses because of its head.
        let _ = stream.write_all(text.as_bytes());
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    };
    let answered = AtomicU64::new(0);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let ends = SetAtEnd(&ended);
            let answer = ask(&fs::read_to_string(&whole).unwrap());
            drop(ends);
            assert!(answer.contains("has too much of a filter"), "{answer}");
        });
        while !ended.load(Ordering::SeqCst) {
            weir.does(&["stats"]);
            answered.fetch_add(u64::from(!ended.load(Ordering::SeqCst)), Ordering::SeqCst);
        }
    });
    assert!(answered.load(Ordering::SeqCst) > 0, "nobody was served meanwhile");
    let peak = memory(&weir, "VmHWM") - before;
    assert!(peak > CONFIG_MEMORY_BYTES_MAX, "{peak}: it was not read at all");
    let kept = || memory(&weir, "VmRSS").saturating_sub(before);
    eventually("memory is given back", || (kept() < CONFIG_MEMORY_BYTES_MAX / 2).then_some(()));
}

#[test]
fn root_an_uplink_whose_interface_has_gone_comes_back_by_a_reload_or_is_named() {
    if !weir_testing::is_root("a network namespace") {
        return;
    }
    for (options, comes_back) in [(&["--no-sandbox"][..], true), (&[], false)] {
        let (dir, network) = (tempfile::tempdir().unwrap(), Network::new());
        let weir = network.weir(dir.path(), &format!("{TWO}{LAN}"), options);
        let holder = network.0.id().to_string();
        let delete = ["--net", "--target", &holder, "ip", "link", "del", "weir0"];
        assert!(Command::new("nsenter").args(delete).status().unwrap().success());
        let explained = || weir.does(&["explain", "lan"]);
        eventually("the uplink stops", || {
            explained().contains("the way behind it is closed").then_some(())
        });
        // The other changes of the file are still made.
        write_config(dir.path(), &format!("{TWO}{LAN}[vif.late]\n"));
        let said = weir.does(&["reload"]);
        assert!(weir.vifs().contains("late"), "{said}");
        assert_eq!(network.has("weir0"), comes_back, "{said}");
        assert_eq!(said.contains("uplink lan stays closed"), !comes_back, "{said}");
        assert_eq!(explained().contains("is closed"), !comes_back, "{}", explained());
    }
}
