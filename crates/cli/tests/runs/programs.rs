//! The programs as a user starts them: output, diagnostics and exit codes.

use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use weir_api::{ApiServer, Client};
use weir_bed::libvirt;
use weir_switch::control::{ControlHandler, Request, Response};
use weir_testing::Running;

fn weir(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_weir")).args(args).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn file_with(dir: &Path, text: &str) -> String {
    let path = dir.join("weir.toml");
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().into()
}

#[test]
fn an_argument_that_is_no_text_is_refused_and_does_not_panic() {
    let argument = OsStr::from_bytes(b"\xff");
    let output = Command::new(env!("CARGO_BIN_EXE_weir")).arg(argument).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn bench_demo_and_lab_are_programs_beside_weir() {
    let dir = tempfile::tempdir().unwrap();
    let own = dir.path().join("weir");
    let built = env!("CARGO_BIN_EXE_weir");
    fs::hard_link(built, &own).or_else(|_| fs::copy(built, &own).map(drop)).unwrap();
    let weir = |args: &[&str]| Command::new(&own).args(args).env("PATH", "/").output().unwrap();
    let none = weir(&["lab", "list"]);
    assert_eq!(none.status.code(), Some(1));
    assert!(stderr(&none).contains("package weir-lab"), "{}", stderr(&none));
    for program in ["weir-bench", "weir-lab"] {
        let script = dir.path().join(program);
        fs::write(&script, "#!/bin/sh\necho ${0##*/} \"$@\"\nexit 7\n").unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    }
    for (args, started) in [
        (&["demo", "--plain"][..], "weir-bench demo --plain\n"),
        (&["bench", "--help"], "weir-bench --help\n"),
        (&["lab", "run", "--seed", "1", "x"], "weir-lab run --seed 1 x\n"),
        (&["lab"], "weir-lab\n"),
    ] {
        let output = weir(args);
        assert_eq!((stdout(&output).as_str(), output.status.code()), (started, Some(7)));
    }
}

#[test]
fn check_says_what_a_good_file_sets_up() {
    let dir = tempfile::tempdir().unwrap();
    let file = file_with(dir.path(), "[switch]\nworkers = 2\n[vif.a]\n[vif.b]\n");
    let output = weir(&["check", &file]);
    assert_eq!(
        stdout(&output),
        format!("{file}: good: 2 interfaces, 0 uplinks, 2 workers, latency budget 250 us\n")
    );
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn check_notes_a_mirror_of_a_port_that_does_not_exist() {
    let dir = tempfile::tempdir().unwrap();
    let file = file_with(dir.path(), "[vif.a]\nmirror = [\"b\", \"nobody\"]\n[vif.b]\n");
    let output = weir(&["check", &file]);
    let note =
        "note: there is no port nobody yet: a gets copies when it comes, and is in no VLAN\n";
    assert!(stdout(&output).ends_with(note), "{}", stdout(&output));
}

#[test]
fn check_says_which_vifs_of_xen_guests_are_served() {
    let dir = tempfile::tempdir().unwrap();
    for (text, says) in [
        ("[xen]\n", "Xen: every vif of this domain, where /dev/xen/xenbus is\n"),
        ("[xen]\nbridges = [\"br0\"]\n", "Xen: vifs of br0, where /dev/xen/xenbus is\n"),
    ] {
        let output = weir(&["check", &file_with(dir.path(), text)]);
        assert!(stdout(&output).ends_with(says), "{}", stdout(&output));
        assert_eq!(output.status.code(), Some(0));
    }
}

#[test]
fn check_shows_the_line_and_exits_with_3() {
    let dir = tempfile::tempdir().unwrap();
    let file = file_with(dir.path(), "[vif.a]\nqueue = 2\n");
    let output = weir(&["check", &file]);
    let text = stderr(&output);
    assert!(text.contains("weir.toml:2:1") && text.contains("did you mean `queues`?"), "{text}");
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(stdout(&output), "");
    // A switch that is started with this file fails too.
    assert_eq!(weir(&["run", &file]).status.code(), Some(3));
}

#[test]
fn wrong_command_line_exits_with_2() {
    assert_eq!(weir(&["frobnicate"]).status.code(), Some(2));
    assert_eq!(weir(&["vif", "add", "Bad Name"]).status.code(), Some(2));
}

#[test]
fn commands_without_a_running_weir_ask_for_it_and_exit_with_4() {
    let dir = tempfile::tempdir().unwrap();
    let control = dir.path().join("c.sock");
    let control = control.to_str().unwrap();
    for args in [&["stats"][..], &["vif", "list"], &["vif", "del", "a"], &["explain", "a"]] {
        let output = weir(&[&["--control", control], args].concat());
        assert_eq!(output.status.code(), Some(4), "{args:?}");
        assert!(stderr(&output).contains("is weir running?"), "{args:?}");
    }
}

#[test]
fn qemu_args_without_a_terminal_are_one_line_for_the_shell() {
    let dir = tempfile::tempdir().unwrap();
    let file = file_with(dir.path(), "[vif.a]\nsocket = \"/run/a.sock\"\n");
    let output = weir(&["qemu-args", "a", "--config", &file]);
    let text = stdout(&output);
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains("-m 1G -object memory-backend-memfd,") && !text.contains('\\'));
    // The output has KVM's arguments, or the reason why this host has no KVM.
    let kvm = std::fs::File::options().read(true).write(true).open("/dev/kvm").is_ok();
    assert_eq!(text.starts_with("-accel kvm -cpu max "), kvm, "{text}");
    assert_eq!(stderr(&output).contains("QEMU emulates the processor"), !kvm);

    let output = weir(&["qemu-args", "b", "--config", &file]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("it has: a"), "{}", stderr(&output));
}

const QEMU: &str = "qemu-system-x86_64";

/// The installed QEMU, or that of the system that `make hooks` names: its output after some lines to its monitor.
fn qemu<'a>(args: impl IntoIterator<Item = &'a str>, monitor: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let words = args.into_iter().map(|word| format!("'{word}'")).collect::<Vec<_>>();
    let line = format!("exec {QEMU} {}", words.join(" "));
    let argv: Vec<String> = match libvirt::root() {
        None => ["sh".into(), "-c".into(), line].into(),
        Some(root) => {
            let script = dir.path().join("script");
            std::fs::write(&script, line).unwrap();
            libvirt::command(&script, Some(&root), &[])
        }
    };
    let mut qemu = Command::new(&argv[0]);
    qemu.args(&argv[1..]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut qemu = qemu.spawn().unwrap();
    qemu.stdin.take().unwrap().write_all(monitor.as_bytes()).unwrap();
    let output = qemu.wait_with_output().unwrap();
    assert!(output.status.success(), "{argv:?}: {}", stdout(&output));
    stdout(&output)
}

/// Command lines as the programs write them (qemu-server's tests, vmspawn.c, Incus's template of a configuration).
#[test]
fn what_qemu_args_prints_for_other_programs_starts_beside_their_own_arguments() {
    if libvirt::root().is_none() && !weir_testing::has(QEMU, "qemu-system-x86") {
        return;
    }
    let version = qemu(["--version"], "");
    let version = version.split_whitespace().nth(3).unwrap();
    let version = version.split('.').take(2).collect::<Vec<_>>().join(".");
    let dir = tempfile::tempdir().unwrap();
    let [control, socket, own] =
        ["c.sock", "a.sock", "qemu.conf"].map(|name| dir.path().join(name));
    let file = file_with(
        dir.path(),
        &format!(
            "[switch]\ncontrol = {control:?}\n[vif.a]\nsocket = {socket:?}\naccess_platform = true\n"
        ),
    );
    let memory = "[object \"mem0\"]\nqom-type = \"memory-backend-memfd\"\nsize = \"64M\"\nshare = \"on\"\n\
                  [numa]\ntype = \"node\"\nnodeid = \"0\"\nmemdev = \"mem0\"\n";
    std::fs::write(&own, memory).unwrap();
    let mut running =
        Command::new(env!("CARGO_BIN_EXE_weir")).args(["run", &file]).spawn().unwrap();
    weir_testing::eventually("weir's socket", || socket.exists().then_some(()));
    let incus = format!("-machine q35 -m 64M -readconfig {}", own.display());
    for (options, before, begin, end, shared) in [
        ("--for proxmox --memory 64M", "-m 64 -machine hpet=off,type=pc", "args: ", "", "weir-mem"),
        (
            "--for vmspawn --memory 64M",
            "-machine q35 -m 64M",
            "SYSTEMD_VMSPAWN_QEMU_EXTRA='",
            "'",
            "weir-mem",
        ),
        ("--for incus", &*incus, "raw.qemu: '", "'", "mem0"),
        ("--no-memory", &*incus, "-chardev", "", "mem0"),
        // Whatever else is in front of the arguments for QEMU is the same.
        ("--memory 64M --iommu", "-m 64M", "-machine q35 ", "", "weir-mem"),
        (
            "--for proxmox --memory 64M --iommu",
            "-m 64 -machine hpet=off,type=q35",
            "args: ",
            "",
            "weir-mem",
        ),
        (
            "--for vmspawn --memory 64M --iommu",
            "-machine q35 -m 64M",
            "SYSTEMD_VMSPAWN_QEMU_EXTRA='",
            "'",
            "weir-mem",
        ),
        ("--for incus --iommu", &*incus, "raw.qemu: '", "'", "mem0"),
    ] {
        let args = ["qemu-args", "a", "--config", &file, "--qemu-version", &version];
        let args = args.into_iter().chain(options.split(' ')).collect::<Vec<_>>();
        let text = stdout(&weir(&args));
        let part =
            text.lines().find(|line| line.contains(begin)).unwrap().split_once(begin).unwrap().1;
        let part = if begin.starts_with('-') { format!("{begin}{part}") } else { part.into() };
        let part = part.strip_suffix(end).unwrap();
        let begun = "-S -nodefaults -display none -monitor stdio".split(' ');
        let begun = begun.chain(before.split(' ')).chain(part.split_whitespace());
        let said = qemu(begun, "info network\ninfo memdev\ninfo qtree\nquit\n");
        let memory = said.split(&format!("memory backend: {shared}")).nth(1);
        assert!(memory.is_some_and(|it| it.contains("share: true")), "{args:?}: {said}");
        assert!(said.contains("weir-a: index=0,type=vhost-user"), "{args:?}: {said}");
        let options = ["dev: intel-iommu", "ats = true", "iommu_platform = true"];
        let has = options.iter().all(|option| said.contains(option));
        assert_eq!(has, args.contains(&"--iommu"), "{args:?}: {said}");
    }
    running.kill().unwrap();
    running.wait().unwrap();
}

/// A guest that attaches XDP takes receive offloads back, and QEMU tells no back end of it.
#[test]
fn options_for_a_guest_with_xdp_are_the_guides_and_qemu_has_them() {
    let help = stdout(&weir(&["qemu-args", "--help"]));
    let lines = help.lines().filter_map(|line| line.trim_start().strip_prefix(','));
    let lines: Vec<_> = lines.filter_map(|line| line.split_whitespace().next()).collect();
    let (refuses, accepts) = (lines[0], lines[1..].join(","));
    let guide = include_str!("../../../../docs/guide/frontends.md");
    let offloads = accepts.strip_suffix(refuses).unwrap().trim_end_matches(',');
    for options in [refuses, offloads] {
        assert!(guide.contains(&format!("`{options}`")), "{options}");
    }
    if libvirt::root().is_none() && !weir_testing::has(QEMU, "qemu-system-x86") {
        return;
    }
    let device = format!("virtio-net-pci,netdev=n,{accepts}");
    let begun = ["-S", "-nodefaults", "-display", "none", "-monitor", "stdio"];
    let plugged = ["-netdev", "hubport,id=n,hubid=0", "-device", &device];
    let said = qemu(begun.into_iter().chain(plugged), "info qtree\nquit\n");
    for option in accepts.split(',') {
        let off = option.replace("=off", " = false");
        assert!(said.contains(&off), "{off}: {said}");
    }
}

struct RefusesAll;

impl ControlHandler for RefusesAll {
    fn handle(&self, request: Request) -> Response {
        match request {
            Request::VifList(_) => Response::Vifs { vifs: Vec::new(), total: 0 },
            _ => Response::error("not today"),
        }
    }
}

#[test]
fn commands_talk_to_the_weir_of_the_control_option() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.sock");
    let _server = ApiServer::start(&path, Arc::new(RefusesAll)).unwrap();
    let control = path.to_str().unwrap();
    let output = weir(&["vif", "list", "--json", "--control", control]);
    assert_eq!((stdout(&output).as_str(), output.status.code()), ("[]\n", Some(0)));
    let output = weir(&["vif", "add", "a", "--control", control]);
    assert!(stderr(&output).contains("not today"));
    assert_eq!(output.status.code(), Some(1));
    let output = weir(&["stats", "--stages", "on", "--control", control]);
    assert!(stderr(&output).contains("not today"));
    // Bad settings are found before weir is contacted.
    let output = weir(&["vif", "add", "a", "queues=99", "--control", control]);
    assert!(stderr(&output).contains("must be 1 to 8, not 99"), "{}", stderr(&output));
    assert_eq!(output.status.code(), Some(3));
}

struct DoesItLater;

impl ControlHandler for DoesItLater {
    fn handle(&self, _: Request) -> Response {
        Response::Noted { note: "from tomorrow on".into() }
    }
}

#[test]
fn what_holds_from_later_on_is_told_to_who_sets_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.sock");
    let _server = ApiServer::start(&path, Arc::new(DoesItLater)).unwrap();
    let control = path.to_str().unwrap();
    let output = weir(&["vif", "set", "a", "queues=4", "--control", control]);
    assert_eq!(stdout(&output), "a: changed\nnote: from tomorrow on\n", "{}", stderr(&output));
    for (setting, problem) in [
        ("queues=0", "must be 1 to 8, not 0"),
        ("rx_rate=1bit", "is not within 64kbit to 1000Gbit"),
        ("socket=/run/a.sock", "cannot change while the interface exists"),
    ] {
        let output = weir(&["vif", "set", "a", setting, "--control", control]);
        assert!(stderr(&output).contains(problem), "{}", stderr(&output));
        assert_eq!(output.status.code(), Some(3));
    }
}

#[test]
fn spec_backend_conventions_print_capabilities() {
    let output = Command::new(env!("CARGO_BIN_EXE_weir-vhost-user-net"))
        .args(["--print-capabilities", "--nonsense"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(stdout(&output).contains("\"type\": \"net\""));
}

#[test]
fn a_weir_starts_although_the_one_before_it_holds_its_socket_a_moment_longer_than_it_answers() {
    let dir = tempfile::tempdir().unwrap();
    let file = file_with(dir.path(), "[vif.a]\n");
    let control = dir.path().join("c.sock");
    let killed = std::os::unix::net::UnixListener::bind(&control).unwrap();
    let control = control.to_str().unwrap();
    let mut run = Command::new(env!("CARGO_BIN_EXE_weir"));
    let run = run.args(["--control", control, "run", &file]).stderr(Stdio::null());
    let _running = Running(run.spawn().unwrap());
    // The question of that connection is never answered.
    let (asked, _) = killed.accept().unwrap();
    drop((asked, killed));
    weir_testing::eventually("weir answers", || {
        weir(&["--control", control, "stats"]).status.success().then_some(())
    });
}

#[test]
fn filters_are_set_listed_and_cleared_while_weir_runs() {
    let dir = tempfile::tempdir().unwrap();
    let file = file_with(
        dir.path(),
        "[vif.a]\n[[vif.a.filter]]\ndirection = \"tx\"\nmatch = \"port 25\"\naction = \"drop\"\n",
    );
    let control = dir.path().join("c.sock");
    let control = control.to_str().unwrap();
    let weir = |args: &[&str]| weir(&[&["--control", control], args].concat());
    let mut run = Command::new(env!("CARGO_BIN_EXE_weir"));
    let run = run.args(["--control", control, "run", &file]).stderr(std::process::Stdio::null());
    let _running = Running(run.spawn().unwrap());
    let started = std::time::Instant::now();
    while weir(&["stats"]).status.code() != Some(0) {
        assert!(started.elapsed().as_secs() < 60, "weir does not answer");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let list = || stdout(&weir(&["filter", "list", "a"]));
    assert!(list().contains("tx         drop          0    0 B  port 25"), "{}", list());
    let set = weir(&["filter", "set", "a", "rx accept arp or ip", "rx drop"]);
    assert_eq!(stdout(&set), "a: 2 rules set\n", "{}", stderr(&set));
    assert!(list().contains("rx         drop          0    0 B  everything"), "{}", list());
    assert!(!list().contains("port 25"));
    let bad = weir(&["filter", "set", "a", "rx drop tcp prot 80"]);
    assert_eq!(bad.status.code(), Some(2));
    assert!(stderr(&bad).contains("syntax error"), "{}", stderr(&bad));
    assert_eq!(weir(&["filter", "clear", "b"]).status.code(), Some(1));
    assert_eq!(weir(&["filter", "clear", "a"]).status.code(), Some(0));
    assert_eq!(list(), "no rules, everything passes\n");
}

#[test]
fn a_switch_with_more_interfaces_than_the_soft_limit_has_descriptors_starts_and_shows_its_limit() {
    let dir = tempfile::tempdir().unwrap();
    let control = dir.path().join("control.sock");
    let vifs: String = (0..80).map(|n| format!("[vif.v{n}]\n")).collect();
    let text = format!("[switch]\ncontrol = {:?}\n{vifs}", control.to_str().unwrap());
    let file = file_with(dir.path(), &text);
    let script = "ulimit -Sn 64 && exec \"$0\" run \"$1\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_weir"), &file]);
    let mut weir = Running(command.stderr(std::process::Stdio::null()).spawn().unwrap());
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let stats = loop {
        assert_eq!(weir.0.try_wait().unwrap(), None, "it has ended");
        let client = Client::connect(&control);
        if let Ok(stats) = client.and_then(|mut client| client.stats()) {
            break stats;
        }
        assert!(std::time::Instant::now() < end, "it never answers");
        std::thread::sleep(std::time::Duration::from_millis(20));
    };
    assert_eq!(stats.limits["ports"].used, 80);
    let descriptors = stats.limits["descriptors"];
    assert!(descriptors.used > 80 && descriptors.max > 80, "{descriptors:?}");
}
