//! `weir capture`, `weir trace` and `weir doctor` on a running, confined weir.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use weir_testing::eventually;
use weir_vif::{Options, QueuePair, Vif};
use weir_wire::{Mac, Offload};

const A: Mac = Mac([0x52, 0x54, 0, 0, 0, 1]);
const B: Mac = Mac([0x52, 0x54, 0, 0, 0, 2]);

/// A weir with two guests. Dropping the value kills it.
struct Weir {
    process: Child,
    dir: TempDir,
}

impl Weir {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (file, control) = (dir.path().join("weir.toml"), dir.path().join("control.sock"));
        let filter = "[[vif.a.filter]]\ndirection = \"tx\"\naction = \"drop\"\nmatch = \"udp dst port 25\"\n";
        let config = format!(
            "[switch]\nworkers = 1\ncontrol = {control:?}\n[vif.a]\nmac = \"{A}\"\n{filter}[vif.b]\nmac = \"{B}\"\n"
        );
        fs::write(&file, config).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        let process = command.arg("run").arg(file).stderr(Stdio::null()).spawn().unwrap();
        let weir = Self { process, dir };
        eventually("weir serves", || UnixStream::connect(&control).ok());
        weir
    }

    fn guest(&self, vif: &str, mac: Mac) -> (Vif, QueuePair) {
        let socket = self.dir.path().join(format!("{vif}.sock"));
        let guest =
            eventually("its socket is there", || Vif::connect(&socket, &Options::new(mac)).ok());
        let mut guest = guest;
        let pair = guest.queue_pairs().remove(0);
        let state = format!("\"name\":\"{vif}\",\"kind\":\"vif\",\"state\":\"running\"");
        let is_running = || self.does(&["stats", "--json"]).split_whitespace().collect::<String>();
        eventually("its rings start", || is_running().contains(&state).then_some(()));
        (guest, pair)
    }

    fn prepared(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.arg("--control").arg(self.dir.path().join("control.sock")).args(args);
        command
    }

    fn command(&self, args: &[&str]) -> Output {
        self.prepared(args).output().unwrap()
    }

    /// Runs a command that must succeed; returns its output.
    fn does(&self, args: &[&str]) -> String {
        let output = self.command(args);
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }
}

impl Drop for Weir {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn udp(src: Mac, dst: Mac, port: u16) -> Vec<u8> {
    let mut frame = [&dst.0[..], &src.0].concat();
    frame.extend([
        8, 0, 0x45, 0, 0, 28, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0x0f, 0xa0,
    ]);
    frame.extend(port.to_be_bytes());
    frame.extend([0, 8, 0, 0]);
    frame.resize(60, 0);
    frame
}

fn send(pair: &mut QueuePair, frame: &[u8]) {
    pair.send(frame, &Offload::NONE).unwrap();
    pair.flush();
}

/// The destination ports that tshark reads in a file.
fn ports_in(file: &std::path::Path) -> Vec<String> {
    let mut command = Command::new("tshark");
    let command = command.arg("-r").arg(file).args(["-T", "fields", "-e", "udp.dstport"]);
    let output = command.output().unwrap();
    text(&output.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn a_capture_ends_with_a_signal_and_its_file_is_whole() {
    let weir = Weir::start();
    let ((_a, mut a), (_b, mut b)) = (weir.guest("a", A), weir.guest("b", B));
    send(&mut b, &udp(B, Mac::BROADCAST, 1));
    eventually("a has it", || a.recv(|_| ()));
    let file = weir.dir.path().join("both.pcapng");
    let mut command = weir.prepared(&["capture", "a", "b", "--snap", "64", "-w"]);
    let capture = command.arg(&file).stderr(Stdio::piped()).spawn().unwrap();
    let has_begun = || fs::metadata(&file).is_ok_and(|file| file.len() > 0).then_some(());
    eventually("it has begun", has_begun);
    let begun = fs::metadata(&file).unwrap().len();
    for port in 100..110 {
        send(&mut a, &udp(A, B, port));
    }
    // A frame of 60 bytes, sent and received, takes more than 100 bytes in the file.
    let all = || fs::metadata(&file).is_ok_and(|file| file.len() > begun + 20 * 100).then_some(());
    eventually("the frames are in the file", all);
    kill_process(Pid::from_child(&capture), Signal::INT).unwrap();
    let output = capture.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(text(&output.stderr), "20 frames, none lost\n");
    if weir_testing::has("tshark", "tshark") {
        let mut ports = ports_in(&file);
        ports.sort();
        let sent = (100..110).flat_map(|port| [port.to_string(), port.to_string()]);
        assert_eq!(ports, sent.collect::<Vec<_>>());
    }
    // Frame 3 of the file is traced again.
    let path = file.to_str().unwrap();
    let traced = weir.does(&["trace", "a", "--pcap", path, "--number", "3"]);
    assert!(traced.contains("is behind b"), "{traced}");
    let output = weir.command(&["trace", "a", "--pcap", path, "--number", "21"]);
    assert!(text(&output.stderr).contains("there are 20 frames, and no frame 21"), "{output:?}");
}

#[test]
fn a_capture_shows_lines_and_reasons_of_drops() {
    let weir = Weir::start();
    let (_a, mut a) = weir.guest("a", A);
    let mut command = weir.prepared(&["capture", "a", "--drops", "-c", "2"]);
    let mut capture = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(capture.stdout.take().unwrap()).lines();
    let mut first = String::new();
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| lines.next().unwrap().unwrap());
        // Frames are sent until the capture has begun.
        while !reading.is_finished() {
            send(&mut a, &udp(A, B, 25));
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        first = reading.join().unwrap();
    });
    send(&mut a, &udp(A, B, 25));
    assert!(capture.wait().unwrap().success());
    let expected =
        format!(" a tx {A} > {B}, UDP 10.0.0.1:4000 > 10.0.0.2:25, 60 bytes, dropped: filtered_tx");
    assert!(first.ends_with(&expected), "{first}");
    let mut said = String::new();
    capture.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said, "2 frames, none lost\n");
    let kept = weir.dir.path().join("kept.pcapng");
    fs::write(&kept, "kept").unwrap();
    let refused = weir.command(&["capture", "z", "-w", kept.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(1));
    assert_eq!(fs::read_to_string(&kept).unwrap(), "kept", "what is refused writes nothing");
    let said = text(&refused.stderr);
    assert!(said.contains("there is no interface or uplink called z"), "{said}");
    assert!(said.contains("there are: "), "{said}");
}

#[test]
fn a_file_that_cannot_be_made_is_named() {
    let weir = Weir::start();
    let refused = weir.command(&["capture", "a", "-w", "/nowhere/a.pcapng"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("/nowhere/a.pcapng"), "{}", text(&refused.stderr));
}

#[test]
fn a_reader_that_leaves_takes_nothing_along() {
    let weir = Weir::start();
    let ((_a, mut a), (_b, mut b)) = (weir.guest("a", A), weir.guest("b", B));
    for _ in 0..6 {
        let mut command = weir.prepared(&["capture", "a", "-w", "-"]);
        let mut capture = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut first = [0; 16];
        capture.stdout.take().unwrap().read_exact(&mut first).unwrap();
        // The reader of the output has closed it.
        send(&mut a, &udp(A, Mac::BROADCAST, 7));
        eventually("it ends", || {
            send(&mut a, &udp(A, Mac::BROADCAST, 7));
            capture.try_wait().unwrap()
        });
    }
    let mut frame = Vec::new();
    eventually("frames flow", || b.recv_into(&mut frame).map(drop));
}

#[test]
fn a_trace_says_where_a_frame_goes_and_why_not() {
    let weir = Weir::start();
    let _guests = (weir.guest("a", A), weir.guest("b", B));
    let to_b = format!("eth.dst={B}, ip.dst=10.0.0.2, udp.dstport=");
    let said = weir.does(&["trace", "a", &format!("{to_b}25")]);
    assert!(
        said.contains("tx rule 1 of 1, `tx drop udp dst port 25`, matches and drops the frame"),
        "{said}"
    );
    let said = weir.does(&["trace", "a", &format!("{to_b}26"), "--json"]);
    assert!(
        said.split_whitespace().collect::<String>().contains("\"delivered\":[\"b\"]"),
        "{said}"
    );
    let said = weir.does(&["trace", "a", "--hex", "ffffffffffff 525400000009 88b5"]);
    assert!(said.contains("the port is held to another address"), "{said}");
    let bad = weir.command(&["trace", "a", "eth.dest=1"]);
    assert!(text(&bad.stderr).contains("`eth.dest` is not known here"));
}

#[test]
fn a_doctor_finds_nothing_in_health_and_what_was_done_to_it_otherwise() {
    let weir = Weir::start();
    let ((_a, mut a), _b) = (weir.guest("a", A), weir.guest("b", B));
    let healthy = weir.command(&["doctor"]);
    assert_eq!(healthy.status.code(), Some(0), "{}", text(&healthy.stdout));
    assert!(text(&healthy.stdout).ends_with(" checks: 0 faults\n"));

    // A guest that sends a false source address, and a socket whose file was removed.
    fs::remove_file(weir.dir.path().join("b.sock")).unwrap();
    let look = || {
        let output = weir.command(&["doctor", "--json"]);
        assert_eq!(output.status.code(), Some(5));
        let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let findings = found["findings"].as_array().unwrap().iter();
        let of = |it: &serde_json::Value| {
            let [check, port] =
                ["check", "subject"].map(|key| it[key].as_str().unwrap().to_owned());
            (check, port, it["wrong"].as_bool().unwrap())
        };
        // Other tests' weirs run beside this one.
        findings.map(of).filter(|(check, ..)| check != "other-weir").collect::<Vec<_>>()
    };
    let missing = ("waiting-socket-missing".to_owned(), "b".to_owned(), true);
    let lies = |now| ("src-mac".to_owned(), "a".to_owned(), now);
    std::thread::scope(|scope| {
        let looking = scope.spawn(look);
        while !looking.is_finished() {
            send(&mut a, &udp(B, Mac::BROADCAST, 1));
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        assert_eq!(looking.join().unwrap(), [missing.clone(), lies(true)]);
    });
    // The guest sends no more, and no frame of it has ever passed.
    assert_eq!(look(), [missing.clone(), lies(true)]);
    let said = weir.does(&["explain", "a"]);
    assert!(said.contains("no frame that it has sent since it was added has passed"), "{said}");
    // Since then it sends from its own address, so the finding is only a note.
    send(&mut a, &udp(A, Mac::BROADCAST, 1));
    let passed = || !weir.does(&["explain", "a"]).contains("no frame that it has sent");
    eventually("the frame passes", || passed().then_some(()));
    assert_eq!(look(), [missing.clone(), lies(false)]);

    // Somebody has changed the file, and nobody has reloaded it.
    let file = weir.dir.path().join("weir.toml");
    let good = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("{good}rat = 1")).unwrap();
    let bad = ("file-bad".to_owned(), "switch".to_owned(), true);
    assert_eq!(look(), [bad, missing.clone(), lies(false)]);
    fs::write(&file, good).unwrap();
    assert_eq!(look(), [missing, lies(false)]);

    let nowhere = weir.dir.path().join("nobody.sock");
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    let alone = command.arg("--control").arg(nowhere).arg("doctor").output().unwrap();
    assert_eq!(alone.status.code(), Some(5));
    assert!(text(&alone.stdout).contains("no weir answers on the control socket"));
}

#[test]
fn a_live_trace_tells_each_stage_of_the_next_frames_that_match() {
    let weir = Weir::start();
    let ((_a, mut a), (_b, mut b)) = (weir.guest("a", A), weir.guest("b", B));
    send(&mut b, &udp(B, Mac::BROADCAST, 1));
    eventually("a has it", || a.recv(|_| ()));
    let mut follow = |more: &[&str]| {
        let args = [&["trace", "a", "--live", "-c", "2"], more].concat();
        let mut command = weir.prepared(&args);
        let mut trace = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // Frames pass until enough of them have been followed.
        for n in 0.. {
            for (to, port) in [(B, 80), (B, 25), (B, 53)] {
                send(&mut a, &udp(A, to, port));
            }
            std::thread::sleep(std::time::Duration::from_millis(2));
            while b.recv(|_| ()).is_some() {}
            if trace.try_wait().unwrap().is_some() {
                break;
            }
            assert!(n < 30_000, "it does not end");
        }
        let output = trace.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(text(&output.stderr), "2 frames\n");
        text(&output.stdout)
    };
    let lines = follow(&["-f", "udp dst port 80"]);
    let frames = lines.lines().filter(|line| line.contains("UDP 10.0.0.1:4000 > 10.0.0.2:80"));
    assert_eq!(frames.count(), 2, "{lines}");
    for stage in ["reads      a", "taken      a", "delivery   b", "delivered  b", "returned   a"] {
        assert_eq!(lines.matches(stage).count(), 2, "{stage}: {lines}");
    }
    assert!(lines.contains("receive queue 0") && !lines.contains("dropped"), "{lines}");

    let json = follow(&["-f", "udp dst port 25", "--json"]);
    for line in json.lines() {
        let frame: serde_json::Value = serde_json::from_str(line).unwrap();
        let steps = frame["steps"].as_array().unwrap();
        assert_eq!(steps[2]["dropped"], "filtered_tx", "{line}");
        let after: Vec<_> = steps.iter().map(|step| step["after_ns"].as_u64().unwrap()).collect();
        assert!(after.is_sorted() && after[0] == 0, "{line}");
        assert_eq!(frame["length"], 60);
    }
    let refused = weir.command(&["trace", "nobody", "--live"]);
    assert!(text(&refused.stderr).contains("no interface or uplink called nobody"), "{refused:?}");
}

#[test]
fn a_mirror_is_made_and_ended_by_a_command() {
    let weir = Weir::start();
    let ((_a, mut a), (_b, mut b)) = (weir.guest("a", A), weir.guest("b", B));
    weir.does(&["vif", "set", "b", "mirror=a"]);
    let mut copied = 0;
    // The run is long enough for the delivering thread to do all of its work.
    for port in 1000..1200 {
        send(&mut a, &udp(A, Mac::BROADCAST, port));
        eventually("a copy comes", || b.recv(|_| ()));
        copied += 1;
    }
    assert_eq!(copied, 200);
    let listed = weir.does(&["vif", "list", "--json"]);
    assert!(
        listed.split_whitespace().collect::<String>().contains("\"mirror\":[\"a\"]"),
        "{listed}"
    );
    let refused = weir.command(&["vif", "set", "a", "mirror=b"]);
    let said = text(&refused.stderr);
    assert!(!refused.status.success() && said.contains("which is a mirror"), "{said}");
    weir.does(&["vif", "set", "b", "mirror=none"]);
    send(&mut a, &udp(A, B, 9));
    eventually("it is an interface as any other", || b.recv(|_| ()));
    send(&mut b, &udp(B, A, 9));
    eventually("which sends, too", || a.recv(|_| ()));
}

#[test]
fn a_second_weir_says_that_one_runs_and_leaves_everything_alone() {
    let weir = Weir::start();
    let (_a, _pair) = weir.guest("a", A);
    let sockets = || {
        let id = |name: &str| {
            let file = fs::metadata(weir.dir.path().join(name)).unwrap();
            std::os::unix::fs::MetadataExt::ino(&file)
        };
        ["control.sock", "a.sock", "b.sock"].map(id)
    };
    let before = sockets();
    let mut second = Command::new(env!("CARGO_BIN_EXE_weir"));
    second.env("COLUMNS", "500").arg("run").arg(weir.dir.path().join("weir.toml"));
    let output = second.output().unwrap();
    let says = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{says}");
    assert!(says.contains("runs already, and answers on"), "{says}");
    assert!(says.contains("weir upgrade"), "{says}");
    assert_eq!(sockets(), before);
    assert!(weir.does(&["stats", "a"]).contains("running"));
}

#[test]
fn an_explanation_begins_with_whether_traffic_passes_and_why_not() {
    let weir = Weir::start();
    let first = |name: &str| weir.does(&["explain", name]).lines().next().unwrap().to_owned();
    let waits = first("a");
    assert!(waits.starts_with("a: traffic does not pass: no VM is connected"), "{waits}");
    let (_a, mut pair) = weir.guest("a", A);
    let alone = first("a");
    assert!(alone.contains("none of them runs"), "{alone}");
    let (_b, _pair) = weir.guest("b", B);
    let idle = first("b");
    assert!(idle.starts_with("b: traffic can pass: nothing is in the way"), "{idle}");
    weir.does(&["filter", "set", "a", "tx drop"]);
    send(&mut pair, &udp(A, B, 53));
    let filtered = eventually("the frame is dropped", || {
        Some(first("a")).filter(|says| says.contains("a filter drops all that it sends"))
    });
    assert!(filtered.starts_with("a: traffic does not pass"), "{filtered}");
    let doctor = weir.command(&["doctor"]);
    assert!(text(&doctor.stdout).contains("filter-all"), "{}", text(&doctor.stdout));
    weir.does(&["filter", "clear", "a"]);
    weir.does(&["vif", "set", "a", "vlan=7"]);
    let moved = first("a");
    assert!(moved.contains("no other port is in VLAN 7"), "{moved}");
    let doctor = weir.command(&["doctor"]);
    assert!(text(&doctor.stdout).contains("vlan-alone"), "{}", text(&doctor.stdout));
}

#[test]
fn stats_count_since_an_earlier_reading_and_other_readers_see_all() {
    let weir = Weir::start();
    let (_a, mut a) = weir.guest("a", A);
    let (_b, mut b) = weir.guest("b", B);
    let sent_by_a = |json: &str| {
        let stats: serde_json::Value = serde_json::from_str(json).unwrap();
        let ports = stats["ports"].as_array().unwrap();
        ports.iter().find(|port| port["name"] == "a").unwrap()["tx"]["frames"].as_u64().unwrap()
    };
    let all = || sent_by_a(&weir.does(&["stats", "--json"]));
    let mut sends = |count: u64| {
        let before = all();
        for _ in 0..count {
            send(&mut a, &udp(A, B, 9));
            eventually("it comes", || b.recv(|_| ()));
        }
        eventually("they are counted", || (all() == before + count).then_some(()));
    };
    sends(3);
    let path = weir.dir.path().join("before.json");
    let reading = weir.does(&["stats", "--json"]);
    fs::write(&path, &reading).unwrap();
    sends(2);
    let before = path.to_str().unwrap();
    let since = weir.does(&["stats", "--json", "--since", before]);
    assert_eq!((sent_by_a(&since), all()), (2, 5));
    assert!(weir.does(&["stats", "a", "--since", before]).contains("\ncounted for "));

    let mut watch = weir.prepared(&["stats", "--json", "--watch", "1", "--reset"]);
    let mut watch = watch.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(sent_by_a(&lines.next().unwrap()), 0);
    sends(4);
    eventually("the watch counts", || (sent_by_a(&lines.next().unwrap()) == 4).then_some(()));
    watch.kill().unwrap();
    watch.wait().unwrap();
    assert_eq!(all(), 9);

    let fails = |file: &str| {
        let output = weir.command(&["stats", "--since", file]);
        assert_eq!(output.status.code(), Some(1));
        text(&output.stderr)
    };
    assert!(fails("/dev/null").contains("has no counters"));
    assert!(fails("/dev/zero").contains("has no counters"), "nothing is read without end");
    let (start, other) = ("\"started_unix_ms\": ", "\"started_unix_ms\": 1");
    assert!(reading.contains(start), "{reading}");
    fs::write(&path, reading.replacen(start, other, 1)).unwrap();
    assert!(fails(before).contains("of a weir that has ended"));
}
