use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use weir_config::{PortName, VifChanges, VifConfig};
use weir_limits as limits;

use super::line::{LineError, LineReader};
use super::*;
use crate::stats::SwitchStats;
use crate::unix_socket::ListenError;

/// How long anything may take before a test gives up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Answers with fixed values and remembers what it was asked.
#[derive(Default)]
struct Recorder {
    requests: Mutex<Vec<Request>>,
}

impl ControlHandler for Recorder {
    fn handle(&self, request: Request) -> Response {
        let response = match &request {
            Request::VifList => Response::Vifs {
                vifs: vec![VifStatus {
                    config: vif("web0"),
                    state: crate::stats::PortState::Running,
                    stopped_reason: None,
                    xen: false,
                }],
            },
            Request::Stats => {
                let stats = SwitchStats { version: "9.9".into(), ..SwitchStats::default() };
                Response::Stats { stats: Box::new(stats) }
            }
            Request::VifDel { .. } => Response::Error {
                message: "no such interface".into(),
                help: Some("look at `weir vif list`".into()),
            },
            Request::ConfigFile => {
                Response::ConfigFile { path: Some("/etc/weir/weir.toml".into()) }
            }
            Request::Diff { .. } => Response::Difference { difference: Box::default() },
            Request::Reload { .. } => Response::Reloaded {
                difference: Box::default(),
                outcome: ReloadOutcome::Applied { notes: vec!["a note".into()] },
            },
            Request::Ping
            | Request::VifExplain { .. }
            | Request::VifAdd { .. }
            | Request::VifSet { .. }
            | Request::FilterSet { .. }
            | Request::Stages { .. } => Response::Ok,
        };
        self.requests.lock().unwrap().push(request);
        response
    }
}

fn name(text: &str) -> PortName {
    text.parse().unwrap()
}

fn vif(text: &str) -> VifConfig {
    VifConfig::new(name(text), format!("/run/weir/{text}.sock").parse().unwrap())
}

struct Served {
    dir: TempDir,
    handler: Arc<Recorder>,
    server: ControlServer,
}

impl Served {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let handler = Arc::new(Recorder::default());
        let path = dir.path().join("control.sock");
        let server =
            ControlServer::start(&path, Arc::clone(&handler) as Arc<dyn ControlHandler>).unwrap();
        Self { dir, handler, server }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("control.sock")
    }

    fn client(&self) -> ControlClient {
        ControlClient::connect(self.server.path()).unwrap()
    }

    /// Sends bytes as they are and reads one line.
    fn raw(&self, bytes: &[u8]) -> String {
        let mut stream = UnixStream::connect(self.path()).unwrap();
        // A server that refuses early may close before all is written.
        let _ = stream.write_all(bytes);
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        line
    }
}

#[test]
fn requests_reach_the_handler_and_answers_the_client() {
    let served = Served::new();
    let mut client = served.client();
    let requests = [
        Request::Ping,
        Request::VifAdd { config: Box::new(vif("web0")) },
        Request::VifSet { name: name("web0"), changes: VifChanges::default().into() },
        Request::FilterSet {
            name: name("web0"),
            rules: ["tx drop port 25", "rx accept"].map(|rule| rule.parse().unwrap()).into(),
        },
    ];
    for request in &requests {
        client.request_ok(request).unwrap();
    }
    assert_eq!(client.vifs().unwrap()[0].config, vif("web0"));
    assert_eq!(client.stats().unwrap().version, "9.9");
    assert_eq!(served.handler.requests.lock().unwrap()[..4], requests);
}

#[test]
fn refusal_keeps_its_words_and_its_help() {
    let served = Served::new();
    let error = served.client().request_ok(&Request::VifDel { name: name("x") }).unwrap_err();
    let ClientError::Refused { message, help } = error else { panic!("{error:?}") };
    assert_eq!(message, "no such interface");
    assert_eq!(help.as_deref(), Some("look at `weir vif list`"));
}

#[test]
fn wire_format_is_one_json_object_on_a_line() {
    let served = Served::new();
    assert_eq!(served.raw(b"{\"request\":\"ping\"}\n"), "{\"response\":\"ok\"}\n");
    assert_eq!(
        served.raw(b"{\"request\":\"vif_del\",\"name\":\"web0\"}\n"),
        "{\"response\":\"error\",\"message\":\"no such interface\",\"help\":\"look at `weir vif list`\"}\n"
    );
}

#[test]
fn garbage_is_answered_with_an_error_and_the_connection_goes_on() {
    let served = Served::new();
    let mut stream = UnixStream::connect(served.path()).unwrap();
    let bad: [&[u8]; 8] = [
        b"garbage",
        b"",
        b"\xff\xfe\x00",
        b"[]",
        b"{\"request\":\"reboot\"}",
        b"{\"request\":\"vif_del\",\"name\":\"../x\"}",
        b"{\"request\":\"vif_del\",\"name\":\"x\",\"force\":true}",
        b"{\"request\":\"vif_add\",\"config\":{\"name\":\"x\"}}",
    ];
    for line in bad {
        stream.write_all(&[line, b"\n"].concat()).unwrap();
    }
    stream.write_all(b"{\"request\":\"ping\"}\n").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let answers: Vec<_> = BufReader::new(stream).lines().map(Result::unwrap).collect();
    assert_eq!(answers.len(), bad.len() + 1);
    for answer in &answers[..bad.len()] {
        assert!(answer.contains("\"response\":\"error\"") && answer.contains("not a request"));
    }
    assert_eq!(answers[bad.len()], "{\"response\":\"ok\"}");
    assert_eq!(*served.handler.requests.lock().unwrap(), [Request::Ping]);
}

#[test]
fn deeply_nested_json_is_refused_without_harm() {
    let served = Served::new();
    let line = [&b"[".repeat(limits::CONTROL_REQUEST_BYTES_MAX - 2)[..], b"\n"].concat();
    assert!(served.raw(&line).contains("not a request"));
    served.client().request_ok(&Request::Ping).unwrap();
}

#[test]
fn oversize_request_is_refused_at_the_bound() {
    let served = Served::new();
    let padded = |len: usize| {
        let request = b"{\"request\":\"ping\"}";
        [&request[..], &b" ".repeat(len - 1 - request.len()), b"\n"].concat()
    };
    let fits = padded(limits::CONTROL_REQUEST_BYTES_MAX);
    assert_eq!(served.raw(&fits), "{\"response\":\"ok\"}\n");
    let too_long = padded(limits::CONTROL_REQUEST_BYTES_MAX + 1);
    assert!(served.raw(&too_long).contains("line longer than 2162688 bytes"));
    let endless = b"x".repeat(8 * limits::CONTROL_REQUEST_BYTES_MAX);
    assert!(served.raw(&endless).contains("line longer than 2162688 bytes"));
}

#[test]
fn the_largest_configuration_fits_into_a_request() {
    let served = Served::new();
    // Each of its characters is written with two.
    let text = "\"\n".repeat(limits::CONFIG_BYTES_MAX as usize / 2);
    let (difference, outcome) = served.client().reload(text.clone(), true).unwrap();
    assert!(difference.is_empty());
    assert_eq!(outcome, ReloadOutcome::Applied { notes: vec!["a note".into()] });
    served.client().diff(text.clone()).unwrap();
    let file = served.client().config_file().unwrap();
    assert_eq!(file.unwrap().to_str(), Some("/etc/weir/weir.toml"));
    let requests = served.handler.requests.lock().unwrap();
    let expected = [
        Request::Reload { text: text.clone(), partly: true },
        Request::Diff { text },
        Request::ConfigFile,
    ];
    assert!(*requests == expected, "another request");
}

#[test]
fn several_requests_in_one_write_are_answered_in_order() {
    let served = Served::new();
    let mut stream = UnixStream::connect(served.path()).unwrap();
    stream.write_all(b"{\"request\":\"ping\"}\n{\"request\":\"vif_list\"}\n").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 2);
    assert!(lines[0].contains("ok") && lines[1].contains("vifs"));
}

#[test]
fn silent_clients_keep_nobody_out_and_lose_their_places_in_turn() {
    let served = Served::new();
    let mut silent: Vec<_> = (0..limits::CONTROL_CONNECTIONS_MAX)
        .map(|_| UnixStream::connect(served.path()).unwrap())
        .collect();
    for stream in &mut silent {
        // Slow ones are no better than silent ones.
        stream.write_all(b"{").unwrap();
    }
    for _ in 0..3 {
        served.client().request_ok(&Request::Ping).unwrap();
    }
    // The first of them made room; those who still have a place are served.
    assert_eq!(silent[0].read(&mut [0]).unwrap(), 0);
    let last = silent.last_mut().unwrap();
    last.write_all(b"\"request\":\"ping\"}\n").unwrap();
    let mut line = String::new();
    BufReader::new(&*last).read_line(&mut line).unwrap();
    assert_eq!(line, "{\"response\":\"ok\"}\n");
    drop(silent);
    served.client().request_ok(&Request::Ping).unwrap();
}

#[test]
fn where_weir_works_for_everyone_who_has_a_place_one_more_is_turned_away() {
    /// Answers when all places are taken and the gate is opened.
    struct Slow(Arc<std::sync::Barrier>, Arc<std::sync::Barrier>);
    impl ControlHandler for Slow {
        fn handle(&self, _: Request) -> Response {
            self.0.wait();
            self.1.wait();
            Response::Ok
        }
    }
    let barrier = || Arc::new(std::sync::Barrier::new(limits::CONTROL_CONNECTIONS_MAX + 1));
    let (taken, gate) = (barrier(), barrier());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("control.sock");
    let handler = Arc::new(Slow(Arc::clone(&taken), Arc::clone(&gate)));
    let _server = ControlServer::start(&path, handler).unwrap();
    let mut places: Vec<_> =
        (0..limits::CONTROL_CONNECTIONS_MAX).map(|_| UnixStream::connect(&path).unwrap()).collect();
    for stream in &mut places {
        stream.write_all(b"{\"request\":\"ping\"}\n").unwrap();
    }
    taken.wait();
    let error = ControlClient::connect(&path).unwrap().request_ok(&Request::Ping).unwrap_err();
    assert!(matches!(error, ClientError::Refused { .. }), "{error:?}");
    gate.wait();
    // No request that weir has begun was lost.
    for stream in &mut places {
        let mut line = String::new();
        BufReader::new(&*stream).read_line(&mut line).unwrap();
        assert_eq!(line, "{\"response\":\"ok\"}\n");
    }
}

#[test]
fn an_answer_that_is_read_byte_by_byte_is_cut_off_after_a_time() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let reader = std::thread::spawn(move || {
        let mut read = 0_usize;
        while let Ok(1) = theirs.read(&mut [0]) {
            read += 1;
            std::thread::sleep(Duration::from_millis(5));
        }
        read
    });
    let error = super::line::write_line(&ours, vec![b'x'; 8 << 20], Duration::from_millis(300))
        .unwrap_err();
    assert!(
        matches!(error.kind(), std::io::ErrorKind::TimedOut | std::io::ErrorKind::WouldBlock),
        "{error}"
    );
    drop(ours);
    drop(reader);
}

#[test]
fn dropping_the_server_ends_open_connections_and_removes_the_socket() {
    let served = Served::new();
    let mut open = UnixStream::connect(served.path()).unwrap();
    served.client().request_ok(&Request::Ping).unwrap();
    let path = served.path();
    let Served { server, dir: _dir, .. } = served;
    let start = Instant::now();
    drop(server);
    assert!(start.elapsed().as_secs() < limits::CONTROL_TIMEOUT_SECS, "waited for a silent client");
    assert_eq!(open.read(&mut [0; 1]).unwrap_or(0), 0);
    assert!(!path.exists());
}

#[test]
fn socket_is_for_its_owner_only() {
    let served = Served::new();
    let mode = std::fs::metadata(served.path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn second_weir_on_the_same_socket_does_not_start() {
    let served = Served::new();
    let second = ControlServer::start(&served.path(), Arc::new(Recorder::default()));
    assert!(matches!(second, Err(ListenError::InUse { .. })));
    served.client().request_ok(&Request::Ping).unwrap();
}

#[test]
fn socket_left_over_from_a_killed_weir_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("control.sock");
    drop(UnixListener::bind(&path).unwrap());
    assert!(matches!(ControlClient::connect(&path), Err(ClientError::NotRunning { .. })));
    let _server = ControlServer::start(&path, Arc::new(Recorder::default())).unwrap();
    ControlClient::connect(&path).unwrap().request_ok(&Request::Ping).unwrap();
}

#[test]
fn client_without_a_server_asks_whether_weir_runs() {
    let error = ControlClient::connect(std::path::Path::new("/nonexistent/c.sock")).unwrap_err();
    assert!(matches!(error, ClientError::NotRunning { .. }));
    let help = miette::Diagnostic::help(&error).unwrap().to_string();
    assert!(help.starts_with("is weir running?"), "{help}");
}

#[test]
fn client_names_a_server_that_hangs_up_or_speaks_otherwise() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let server = std::thread::spawn(move || {
        let (first, _) = listener.accept().unwrap();
        drop(first);
        let (mut second, _) = listener.accept().unwrap();
        BufReader::new(second.try_clone().unwrap()).read_line(&mut String::new()).unwrap();
        second.write_all(b"HTTP/1.1 400 Bad Request\r\n").unwrap();
    });
    let error = ControlClient::connect(&path).unwrap().stats().unwrap_err();
    assert!(matches!(error, ClientError::NoAnswer { .. }), "{error:?}");
    let error = ControlClient::connect(&path).unwrap().stats().unwrap_err();
    assert!(matches!(error, ClientError::UnknownAnswer { .. }), "{error:?}");
    server.join().unwrap();
}

#[test]
fn line_must_be_whole_in_time_however_it_is_cut() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let timeout = Duration::from_millis(200);
    let drip = std::thread::spawn(move || {
        // Each byte comes in time, the line does not.
        while theirs.write_all(b"x").is_ok() {
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    let start = Instant::now();
    let result = LineReader::new(&ours, usize::MAX).next_line(timeout);
    assert!(matches!(result, Err(LineError::TimedOut)), "{result:?}");
    assert!(start.elapsed() >= timeout);
    drop(ours);
    drip.join().unwrap();
}

#[test]
fn silence_between_lines_is_told_from_a_line_that_stops() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.write_all(b"one\ntwo").unwrap();
    let mut lines = LineReader::new(&ours, 1024);
    let timeout = Duration::from_millis(20);
    assert_eq!(lines.next_line(PATIENCE).unwrap().as_deref(), Some(&b"one"[..]));
    assert!(matches!(lines.next_line(timeout), Err(LineError::TimedOut)));
    theirs.write_all(b"\n").unwrap();
    assert_eq!(lines.next_line(PATIENCE).unwrap().as_deref(), Some(&b"two"[..]));
    assert!(matches!(lines.next_line(timeout), Err(LineError::Silent)));
    theirs.write_all(b"thr").unwrap();
    drop(theirs);
    assert!(matches!(lines.next_line(PATIENCE), Err(LineError::Truncated)));
}
