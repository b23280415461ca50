//! Filter expressions of a running weir: the process that compiles them, its limits, and the callers that wait.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use weir_limits::FILTER_EXPRESSION_LEN_MAX;
use weir_testing::eventually;

/// A running weir with its log. Dropping the value kills it.
struct Weir {
    process: Child,
    dir: PathBuf,
}

impl Weir {
    fn start(dir: &Path, config: &str) -> Self {
        let (file, control) = (dir.join("weir.toml"), dir.join("control.sock"));
        fs::write(&file, format!("[switch]\ncontrol = {control:?}\n{config}")).unwrap();
        let log = fs::File::create(dir.join("log")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        let process = command.arg("run").arg(file).stdin(Stdio::null()).stderr(log).spawn();
        let weir = Self { process: process.unwrap(), dir: dir.into() };
        eventually("weir serves", || UnixStream::connect(&control).ok());
        weir
    }

    fn command(&self, args: &[&str]) -> Output {
        let control = self.dir.join("control.sock");
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.arg("--control").arg(control).args(args).output().unwrap()
    }

    fn does(&self, args: &[&str]) {
        let output = self.command(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Sends a request, and does not wait for the answer. `weir filter` would compile the
    /// expression itself first.
    fn asks(&self, line: &str, body: &str) -> UnixStream {
        let stream = UnixStream::connect(self.dir.join("control.sock"));
        let mut stream = stream.unwrap_or_else(|error| panic!("{error}: {}", self.log()));
        let length = body.len();
        let request =
            format!("{line} HTTP/1.1\r\nhost: w\r\ncontent-length: {length}\r\n\r\n{body}");
        stream.write_all(request.as_bytes()).unwrap();
        stream
    }

    fn filters(&self, expression: &str) -> (u16, String) {
        answer(&self.asks("PUT /v1/ports/a/filter", &rule(expression)))
    }

    /// weir's child process of this name.
    fn child(&self, name: &str) -> Option<Pid> {
        fn named(parent: u32, name: &str) -> Option<Pid> {
            let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
            children.ok()?.split_whitespace().find_map(|child| {
                let found = fs::read_to_string(format!("/proc/{child}/comm")).ok()?;
                let child = child.parse().ok()?;
                if found.trim() == name { Pid::from_raw(child) } else { named(child as u32, name) }
            })
        }
        named(self.process.id(), name)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap()
    }
}

impl Drop for Weir {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn rule(expression: &str) -> String {
    format!("[{{\"direction\":\"tx\",\"match\":\"{expression}\",\"action\":\"drop\"}}]")
}

/// Status and body.
fn answer(stream: &UnixStream) -> (u16, String) {
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let status = line.split(' ').nth(1).unwrap().parse().unwrap();
    let mut length = 0;
    while line != "\r\n" {
        line.clear();
        reader.read_line(&mut line).unwrap();
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    (status, String::from_utf8(body).unwrap())
}

fn is_answered(stream: &UnixStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let peeked = rustix::net::recv(stream, &mut [0u8; 1][..], rustix::net::RecvFlags::PEEK);
    stream.set_nonblocking(false).unwrap();
    peeked.map_err(|errno| std::io::Error::from(errno).kind()) != Err(ErrorKind::WouldBlock)
}

/// An expression within weir's length limit for which libpcap takes some ten seconds. Each `n` gives a different one.
fn dear(n: u32) -> String {
    let ranges = (1..10).flat_map(|from| (from + 1..40).map(move |to| format!("{from}-{to}")));
    let mut expression = format!("portrange {n}-{n}");
    for range in ranges {
        if expression.len() + range.len() + 2 > FILTER_EXPRESSION_LEN_MAX {
            break;
        }
        expression += "||";
        expression += &range;
    }
    expression
}

#[test]
fn a_dear_expression_is_refused_in_its_time_and_only_who_asks_waits() {
    let dir = tempfile::tempdir().unwrap();
    let mut weir = Weir::start(dir.path(), "[vif.a]\n[vif.b]\n");
    // A refusal comes with advice.
    let (status, problem) = weir.filters(&dear(9));
    assert_eq!(status, 400, "{problem}");
    assert!(problem.contains("not done with it within 2 s"), "{problem}");
    // A configuration with so many slow expressions that it would take minutes is sent in each way that reads one.
    // There are more requests than weir has threads.
    let control = dir.path().join("control.sock");
    let mut text = format!("[switch]\ncontrol = {control:?}\n[vif.a]\n[vif.b]\n");
    for n in 0..30 {
        let expression = dear(n);
        text += &format!(
            "[[vif.a.filter]]\ndirection = \"tx\"\naction = \"drop\"\nmatch = \"{expression}\"\n"
        );
    }
    let under_way: Vec<_> = (0..4)
        .flat_map(|_| ["PUT /v1/configuration", "POST /v1/configuration/difference"])
        .map(|line| weir.asks(line, &text))
        .collect();
    for _ in 0..3 {
        weir.does(&["stats"]);
        weir.does(&["vif", "set", "b", "latency_budget=1ms"]);
    }
    assert!(!under_way.iter().any(is_answered), "nothing is shown where they are done");
    let since = Instant::now();
    kill_process(Pid::from_child(&weir.process), Signal::TERM).unwrap();
    weir.process.wait().unwrap();
    assert!(since.elapsed() < Duration::from_secs(60), "libpcap is waited for");
}

#[test]
fn a_file_with_a_dear_expression_is_refused_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("weir.toml");
    let (control, expression) = (dir.path().join("control.sock"), dear(9));
    let text = format!(
        "[switch]\ncontrol = {control:?}\n[vif.a]\n[[vif.a.filter]]\ndirection = \"tx\"\n\
         action = \"drop\"\nmatch = \"{expression}\"\n"
    );
    fs::write(&file, text).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_weir")).arg("run").arg(&file).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("within 2 s"), "{said}");
}

#[test]
fn what_compiles_has_neither_files_nor_sockets_nor_rights_and_names_are_known() {
    let dir = tempfile::tempdir().unwrap();
    let config = "[vif.a]\n[[vif.a.filter]]\ndirection = \"tx\"\naction = \"drop\"\nmatch = \"tcp port smtp\"\n";
    let weir = Weir::start(dir.path(), config);
    // weir's file had an expression, so the process exists.
    let compiler = weir.child("weir-compile").expect("it compiles");
    let proc = PathBuf::from(format!("/proc/{}", compiler.as_raw_nonzero()));
    let status = fs::read_to_string(proc.join("status")).unwrap();
    let has = |line: &str| status.lines().any(|it| it.split_whitespace().eq(line.split(' ')));
    for line in ["Seccomp: 2", "NoNewPrivs: 1", "CapEff: 0000000000000000", "Threads: 1"] {
        assert!(has(line), "{line}: {status}");
    }
    if rustix::process::geteuid().is_root() {
        assert!(!status.contains("Uid:\t0"), "{status}");
        let limits = fs::read_to_string(proc.join("limits")).unwrap();
        let space = limits.lines().find(|line| line.starts_with("Max address space")).unwrap();
        assert!(space.contains(&(weir_limits::FILTER_COMPILER_MIB << 20).to_string()), "{space}");
        let open = fs::read_dir(proc.join("fd")).unwrap();
        let targets = open.map(|fd| fs::read_link(fd.unwrap().path()).unwrap());
        let sockets = targets
            .filter(|target| target.to_string_lossy().starts_with("socket:"))
            .collect::<Vec<_>>();
        // The descriptors are standard input and its copy.
        assert!(sockets.len() == 2 && sockets[0] == sockets[1], "{sockets:?}");
    }
    // Services and protocols work by name, but hosts only by address, because no name server can be asked.
    for expression in ["tcp port https", "ip proto \\\\icmp", "ether host 52:54:00:00:00:01"] {
        let (status, problem) = weir.filters(expression);
        assert_eq!(status, 200, "{expression}: {problem}");
    }
    let (status, problem) = weir.filters("host weir.invalid");
    assert!(status == 400 && problem.contains("weir.invalid"), "{problem}");
    let (status, problem) = weir.filters("tcp prt 80");
    assert!(status == 400 && problem.contains("syntax error"), "{problem}");
}

#[test]
fn a_compiler_that_is_killed_is_replaced_and_without_its_starter_no_filter_is_taken() {
    let dir = tempfile::tempdir().unwrap();
    let weir = Weir::start(dir.path(), "[vif.a]\n");
    assert_eq!(weir.filters("tcp port 25").0, 200);
    for _ in 0..3 {
        let compiler = weir.child("weir-compile").expect("it compiles");
        kill_process(compiler, Signal::KILL).unwrap();
        let (status, problem) = weir.filters("tcp port 26");
        assert_eq!(status, 200, "{problem}");
    }
    let starter = weir.child("weir-compiler").unwrap();
    kill_process(starter, Signal::KILL).unwrap();
    // The compiler ends with its starter.
    let (status, problem) = eventually("it is refused", || {
        let refused = weir.filters("tcp port 27");
        (refused.0 != 200).then_some(refused)
    });
    assert!(status == 400 && problem.contains("start weir again"), "{problem}");
    let listed = weir.command(&["filter", "list", "a"]);
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.contains("tcp port 2"), "the rules stay: {listed}");
    weir.does(&["vif", "set", "a", "latency_budget=1ms"]);
    assert!(!weir.log().contains("panicked"), "{}", weir.log());
}
