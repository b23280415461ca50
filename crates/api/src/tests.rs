//! The server against a good client, and against raw bytes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use weir_config::{ApiConfig, GroupConfig, GroupDefault, PortName, VifChanges, VifConfig};
use weir_limits as limits;
use weir_switch::Hands;
use weir_switch::control::{
    ControlHandler, Extent, Part, Put, PutOutcome, ReloadOutcome, Request, Response, VifStatus,
};
use weir_switch::events::Glance;
use weir_switch::stats::{ConnectionPage, PortKind, PortState, PortStats, SwitchStats};
use weir_switch::unix_socket::ListenError;
use weir_testing::slow::{lingering, send_with};

use crate::access::Access;
use crate::*;

mod bytes;
mod page;
mod serving;

/// The longest wait before a test gives up.
const PATIENCE: Duration = Duration::from_secs(60);

/// The request for the interfaces of the first turn.
fn first_vifs() -> Request {
    Request::VifList(Part { limit: limits::CONTROL_PORTS_TOGETHER_MAX, ..Part::default() })
}

/// Answers with fixed values, and remembers its requests.
#[derive(Default)]
struct Recorder {
    requests: Mutex<Vec<Request>>,
    glance: Mutex<Glance>,
}

impl ControlHandler for Recorder {
    fn handle(&self, request: Request) -> Response {
        let response = match &request {
            Request::VifList(_) => Response::Vifs { total: 1, vifs: vec![status("web0")] },
            Request::Stats => {
                let stats = SwitchStats { version: "9.9".into(), ..SwitchStats::default() };
                Response::Stats { stats: Box::new(stats) }
            }
            Request::PortNames => Response::PortNames { names: vec![name("web0")] },
            Request::Ports(names) => {
                let mut port = PortStats::new(name("web0"), PortKind::Vif);
                port.drops.insert("rx_ring_full".into(), 7);
                let known = names.iter().filter(|it| **it == port.name);
                Response::Ports { ports: known.map(|_| port.clone()).collect() }
            }
            Request::VifDel { .. } | Request::GroupDel { .. } => {
                Response::not_found("no such interface", "look at `weir vif list`")
            }
            Request::ConfigFile => {
                Response::ConfigFile { path: Some("/etc/weir/weir.toml".into()) }
            }
            Request::Diff { .. } => Response::Difference { difference: Box::default() },
            Request::Saved { text } => Response::Text { text: format!("{text}# saved\n") },
            Request::Reload { .. } => Response::Reloaded {
                difference: Box::default(),
                outcome: ReloadOutcome::Applied { notes: vec!["a note".into()] },
            },
            Request::VifPut { .. } => Response::Put {
                put: Put { outcome: PutOutcome::Changed, changed: vec!["vlan".into()], note: None },
            },
            Request::VifShow { .. } => Response::not_found("no such interface", "look"),
            Request::VifOfTemplate { name, .. } => {
                Response::Vif { config: vif(name.as_str()).into() }
            }
            Request::VifExplain { .. } => panic!("a mistake in the switch"),
            Request::VifSet { .. } => Response::Noted { note: "later".into() },
            Request::Upgrade => Response::Noted { note: "process 7 serves".into() },
            Request::Trace { .. } => Response::error("nothing to trace"),
            Request::Addresses(_) => Response::Addresses { addresses: Vec::new(), total: 9 },
            Request::Connections { name, .. } => Response::Connections {
                page: ConnectionPage { vif: name.clone(), connections: Vec::new(), next: Some(9) },
            },
            Request::Flush { .. } => Response::Noted { note: "forgotten".into() },
            Request::GroupPut { .. } => Response::Noted { note: "nothing changed".into() },
            Request::VifAdd { .. } | Request::FilterSet { .. } | Request::Stages { .. } => {
                Response::Ok
            }
        };
        self.requests.lock().unwrap().push(request);
        response
    }

    fn glance(&self) -> Glance {
        self.glance.lock().unwrap().clone()
    }
}

fn name(text: &str) -> PortName {
    text.parse().unwrap()
}

fn vif(text: &str) -> VifConfig {
    VifConfig::new(name(text), format!("/run/weir/{text}.sock").parse().unwrap())
}

fn status(text: &str) -> VifStatus {
    VifStatus {
        config: vif(text),
        state: PortState::Running,
        stopped_reason: None,
        front_end: None,
        xen: false,
        origin: weir_switch::control::VifOrigin::File,
        unsaved: Vec::new(),
    }
}

struct Served {
    dir: TempDir,
    handler: Arc<Recorder>,
    server: ApiServer,
}

impl Served {
    fn new() -> Self {
        Self::with(Serving::default())
    }

    fn with(serving: Serving) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let handler = Arc::new(Recorder::default());
        let path = dir.path().join("control.sock");
        let for_server = Arc::clone(&handler) as Arc<dyn ControlHandler>;
        let server = ApiServer::start_with(&path, for_server, &Hands::Own, serving).unwrap();
        Self { dir, handler, server }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("control.sock")
    }

    fn client(&self) -> Client {
        Client::connect(self.server.path()).unwrap()
    }

    fn stream(&self) -> UnixStream {
        let stream = UnixStream::connect(self.path()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Sends raw bytes, and reads one answer.
    fn raw(&self, bytes: &[u8]) -> Answered {
        let stream = self.stream();
        // A server that refuses early can close before everything is written.
        let _ = (&stream).write_all(bytes);
        answer(&mut BufReader::new(&stream)).expect("an answer")
    }
}

/// An answer's status and body.
type Answered = (u16, String);

/// Reads an answer with a length; `None` at the end of the connection.
fn answer(from: &mut impl BufRead) -> Option<Answered> {
    let mut line = String::new();
    if from.read_line(&mut line).unwrap_or(0) == 0 {
        return None;
    }
    let status = line.split(' ').nth(1).expect("a status").parse().expect("a number");
    let mut length = 0;
    loop {
        let mut header = String::new();
        from.read_line(&mut header).unwrap();
        let header = header.trim().to_ascii_lowercase();
        if header.is_empty() {
            break;
        }
        if let Some(value) = header.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    from.read_exact(&mut body).unwrap();
    Some((status, String::from_utf8(body).unwrap()))
}

const GET: &[u8] = b"GET /v1/vifs HTTP/1.1\r\nhost: weir\r\n\r\n";

#[test]
fn a_question_is_asked_again_if_the_connection_was_closed_meanwhile() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("control.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let server = std::thread::spawn(move || {
        drop(listener.accept().unwrap());
        let (stream, _) = listener.accept().unwrap();
        let mut lines = BufReader::new(&stream).lines().map(Result::unwrap);
        assert!(
            lines.by_ref().take_while(|line| !line.is_empty()).any(|it| it.contains("/v1/vifs"))
        );
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2";
        (&stream).write_all(format!("{head}\r\n\r\n[]").as_bytes()).unwrap();
    });
    assert!(Client::connect(&path).unwrap().vifs().unwrap().is_empty());
    server.join().unwrap();
}

#[test]
fn requests_reach_the_switch_and_answers_the_client() {
    let served = Served::new();
    let mut client = served.client();
    client.add_vif(&vif("web0")).unwrap();
    let changes = VifChanges { mac_check: Some(false), ..VifChanges::default() };
    assert_eq!(client.change_vif(&name("web0"), &changes).unwrap().as_deref(), Some("later"));
    let rules = ["tx drop port 25", "rx accept"].map(|rule| rule.parse().unwrap());
    client.set_filter(&name("web0"), &rules).unwrap();
    client.set_stages(true).unwrap();
    assert_eq!(client.upgrade().unwrap().as_deref(), Some("process 7 serves"));
    assert_eq!(client.vifs().unwrap()[0].config, vif("web0"));
    assert_eq!(client.stats().unwrap().version, "9.9");
    let asked = [
        Request::VifAdd { config: vif("web0").into() },
        Request::VifSet { name: name("web0"), changes: changes.into() },
        Request::FilterSet { name: name("web0"), rules: rules.into() },
        Request::Stages { on: true },
        Request::Upgrade,
        first_vifs(),
        Request::Stats,
        Request::PortNames,
        Request::Ports(vec![name("web0")]),
    ];
    assert_eq!(*served.handler.requests.lock().unwrap(), asked);
}

#[test]
fn an_interface_that_is_to_be_there_is_named_once_and_one_that_is_to_go_need_not_be_there() {
    let served = Served::new();
    let mut client = served.client();
    let put = client.put_vif(&vif("web0")).unwrap();
    assert_eq!((put.outcome, put.changed), (PutOutcome::Changed, vec!["vlan".to_owned()]));
    let note = client.remove_vif(&name("x"), true).unwrap();
    assert_eq!(note.as_deref(), Some("no such interface"));
    assert!(matches!(client.vif(&name("x")), Err(ClientError::Refused { .. })));
    let asked = [
        Request::VifPut { config: vif("web0").into() },
        Request::VifDel { name: name("x") },
        Request::VifShow { name: name("x") },
    ];
    assert_eq!(*served.handler.requests.lock().unwrap(), asked);
    let body = serde_json::to_string(&vif("web0")).unwrap();
    let head = "PUT /v1/vifs/other HTTP/1.1\r\nhost: weir\r\ncontent-length";
    let request = format!("{head}: {}\r\n\r\n{body}", body.len());
    let (status, says) = served.raw(request.as_bytes());
    assert!(status == 400 && says.contains("the path names other"), "{status} {says}");
    assert_eq!(served.handler.requests.lock().unwrap().len(), 3);
}

#[test]
fn a_group_is_sent_whole_and_what_is_left_out_has_its_default() {
    let served = Served::new();
    let mut client = served.client();
    let group: GroupConfig =
        serde_json::from_str("{\"name\":\"web\",\"rules\":[\"in tcp 80\"]}").unwrap();
    assert_eq!((group.default_in, group.default_out), (GroupDefault::Deny, GroupDefault::Allow));
    assert_eq!(client.put_group(&group).unwrap().as_deref(), Some("nothing changed"));
    assert!(client.remove_group(&group.name, false).is_err());
    assert!(client.remove_group(&group.name, true).unwrap().is_some());
    let gone = || Request::GroupDel { name: group.name.clone() };
    let asked = [Request::GroupPut { group: group.clone() }, gone(), gone()];
    assert_eq!(*served.handler.requests.lock().unwrap(), asked);
    for (body, says) in [
        ("{\"name\":\"db\"}", "the path names web"),
        ("{\"name\":\"web\",\"rule\":[]}", "unknown field"),
        ("{\"name\":\"web\",\"rules\":[\"in tcp x\"]}", "numbers and ranges"),
    ] {
        let head = "PUT /v1/groups/web HTTP/1.1\r\nhost: weir\r\ncontent-length";
        let (status, told) = served.raw(format!("{head}: {}\r\n\r\n{body}", body.len()).as_bytes());
        assert!(status == 400 && told.contains(says), "{status} {told}");
    }
    assert_eq!(served.handler.requests.lock().unwrap().len(), 3);
}

#[test]
fn with_a_template_a_request_names_only_what_differs() {
    let served = Served::new();
    let sent = |method: &str, path: &str, body: &str| {
        let length = body.len();
        let head = format!("{method} {path} HTTP/1.1\r\nhost: weir\r\ncontent-length: {length}");
        served.raw(format!("{head}\r\n\r\n{body}").as_bytes())
    };
    let template: weir_config::TemplateName = "tenant".parse().unwrap();
    let made = served.client().vif_of_template(&template, &name("web0")).unwrap();
    assert_eq!(made, vif("web0"));
    let named = "{\"name\":\"web1\",\"queues\":2,\"template\":\"other\"}";
    assert_eq!(sent("POST", "/v1/vifs?template=tenant", named).0, 200);
    assert_eq!(sent("PUT", "/v1/vifs/web2?template=tenant", "{}").0, 200);
    let of = |name: PortName, keys: serde_json::Value| {
        let serde_json::Value::Object(keys) = keys else { panic!("keys") };
        Request::VifOfTemplate { template: template.clone(), name, keys }
    };
    let keys = serde_json::json!({ "name": "web1", "queues": 2 });
    let asked = [
        of(name("web0"), serde_json::json!({})),
        of(name("web1"), keys),
        Request::VifAdd { config: vif("web1").into() },
        of(name("web2"), serde_json::json!({})),
        Request::VifPut { config: vif("web2").into() },
    ];
    assert_eq!(*served.handler.requests.lock().unwrap(), asked);
    for (method, path, body) in [
        ("POST", "/v1/vifs?template=tenant", "{}"),
        ("POST", "/v1/vifs?template=tenant", "{\"name\":7}"),
        ("POST", "/v1/vifs?template=tenant", "[]"),
        ("POST", "/v1/vifs?template=Tenant", "{\"name\":\"web1\"}"),
        ("POST", "/v1/vifs?tenant", "{\"name\":\"web1\"}"),
        ("POST", "/v1/vifs", named),
        ("PUT", "/v1/vifs/web2?template=tenant", named),
        ("GET", "/v1/templates/a%20b/vifs/web0", ""),
    ] {
        let (status, says) = sent(method, path, body);
        assert_eq!(status, 400, "{method} {path} {body}: {says}");
    }
}

#[test]
fn a_refusal_keeps_its_words_and_its_help() {
    let served = Served::new();
    let error = served.client().remove_vif(&name("x"), false).unwrap_err();
    let ClientError::Refused { message, help } = error else { panic!("{error:?}") };
    assert_eq!(message, "no such interface");
    assert_eq!(help.as_deref(), Some("look at `weir vif list`"));
    let (status, problem) = served.raw(b"DELETE /v1/vifs/x HTTP/1.1\r\nhost: weir\r\n\r\n");
    assert_eq!(status, 404);
    let problem: Problem = serde_json::from_str(&problem).unwrap();
    assert_eq!((problem.title.as_str(), problem.status), ("Not Found", 404));
}

#[test]
fn parts_of_the_switch_have_paths_of_their_own() {
    let served = Served::new();
    let get =
        |path: &str| served.raw(format!("GET {path} HTTP/1.1\r\nhost: weir\r\n\r\n").as_bytes());
    for path in
        ["/v1/switch", "/v1/ports", "/v1/ports/web0", "/v1/ports/web0/queues", "/v1/addresses"]
    {
        assert_eq!(get(path).0, 200, "{path}");
    }
    assert_eq!(get("/v1/drops"), (200, "{\"web0\":{\"rx_ring_full\":7}}".into()));
    assert_eq!(get("/v1/ports/web0/filter"), (200, "[]".into()));
    let (status, problem) = get("/v1/ports/db0");
    assert!(status == 404 && problem.contains("no interface or uplink called db0"), "{problem}");
}

#[test]
fn connections_come_in_pages_and_can_be_forgotten() {
    let served = Served::new();
    let page = served.client().connections(&name("web0"), 7).unwrap();
    assert_eq!((page.vif, page.next), (name("web0"), Some(9)));
    assert_eq!(served.client().flush(None).unwrap().as_deref(), Some("forgotten"));
    served.client().flush(Some(&name("blue"))).unwrap();
    let path = "/v1/ports/web0/connections?from=-1";
    let (status, _) = served.raw(format!("GET {path} HTTP/1.1\r\nhost: weir\r\n\r\n").as_bytes());
    assert_eq!(status, 400);
    let expected = [
        Request::Connections { name: name("web0"), from: 7 },
        Request::Flush { of: None },
        Request::Flush { of: Some("blue".into()) },
    ];
    assert_eq!(*served.handler.requests.lock().unwrap(), expected);
}

#[test]
fn lists_come_in_parts_of_bounded_size_with_the_number_of_all() {
    let served = Served::new();
    let of =
        |path: &str| served.raw(format!("GET {path} HTTP/1.1\r\nhost: weir\r\n\r\n").as_bytes()).0;
    let get = |query: &str| of(&format!("/v1/addresses{query}"));
    for query in ["", "?after=7/52:54:00:00:00:01&limit=2", "?limit=99999999"] {
        assert_eq!(get(query), 200, "{query}");
    }
    for query in ["?after=7", "?after=x/52:54:00:00:00:01", "?limit=-1", "?page=1"] {
        assert_eq!(get(query), 400, "{query}");
    }
    let after = Some((7, "52:54:00:00:00:01".parse().unwrap()));
    for list in ["ports", "vifs"] {
        for (query, status) in [("", 200), ("?after=web0&limit=2", 200), ("?after=%2F", 400)] {
            assert_eq!(of(&format!("/v1/{list}{query}")), status, "{list}{query}");
        }
    }
    let addresses = |after, limit| Request::Addresses(Part { after, limit });
    let most = limits::CONTROL_ADDRESSES_MAX;
    let part = Part { after: Some(name("web0")), limit: 2 };
    let expected = [
        addresses(None, most),
        addresses(after, 2),
        addresses(None, 99_999_999),
        Request::PortNames,
        Request::Ports(vec![name("web0")]),
        Request::PortNames,
        first_vifs(),
        Request::VifList(part),
    ];
    assert_eq!(*served.handler.requests.lock().unwrap(), expected);
}

#[test]
fn the_largest_configuration_fits_into_a_request() {
    let served = Served::new();
    let text = "\"\n".repeat(limits::CONFIG_BYTES_MAX as usize / 2);
    let reloaded = served.client().reload(text.clone(), Extent::Possible).unwrap();
    assert!(reloaded.difference.is_empty());
    assert_eq!(reloaded.outcome, ReloadOutcome::Applied { notes: vec!["a note".into()] });
    served.client().diff(text.clone()).unwrap();
    let file = served.client().config_file().unwrap();
    assert_eq!(file.unwrap().to_str(), Some("/etc/weir/weir.toml"));
    let expected = [
        Request::Reload { text: text.clone(), extent: Extent::Possible },
        Request::Diff { text },
        Request::ConfigFile,
    ];
    assert!(*served.handler.requests.lock().unwrap() == expected, "another request");
}

#[test]
fn a_request_that_panics_is_answered_and_weir_goes_on() {
    let served = Served::new();
    for _ in 0..2 * limits::CONTROL_WORKERS {
        let error = served.client().explain(&name("web0")).unwrap_err();
        assert!(
            matches!(&error, ClientError::Refused { message, .. } if message.contains("failed"))
        );
    }
    served.client().vifs().unwrap();
}

#[test]
fn the_connections_of_the_api_are_shown_as_a_limit() {
    let served = Served::new();
    let _other = served.stream();
    let mut client = served.client();
    let end = Instant::now() + PATIENCE;
    while client.stats().unwrap().limits["control_connections"].used != 2 {
        assert!(Instant::now() < end);
    }
    let limit = client.stats().unwrap().limits["control_connections"];
    assert_eq!(limit.max, limits::CONTROL_CONNECTIONS_MAX as u64);
}

#[test]
fn a_client_without_a_server_asks_whether_weir_runs() {
    let error = Client::connect(std::path::Path::new("/nonexistent/c.sock")).unwrap_err();
    assert!(matches!(error, ClientError::NotRunning { .. }));
    let help = |error: &ClientError| miette::Diagnostic::help(error).unwrap().to_string();
    assert!(help(&error).starts_with("is weir running?"), "{}", help(&error));
    // The socket of another user's weir is there.
    let dir = tempfile::tempdir().unwrap();
    let system = dir.path().join("control.sock");
    std::fs::write(&system, "").unwrap();
    let error = ClientError::not_running(&dir.path().join("other.sock"), &system);
    let of_system = format!("--control {}", system.display());
    assert!(help(&error).ends_with(&of_system), "{}", help(&error));
}

#[test]
fn a_client_names_a_server_that_hangs_up_or_speaks_otherwise() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let server = std::thread::spawn(move || {
        // The client tries a closed connection anew, once.
        drop([listener.accept().unwrap(), listener.accept().unwrap()]);
        for bytes in
            [&b"{\"response\":\"ok\"}\n"[..], b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"]
        {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(bytes);
        }
    });
    let asked = || Client::connect(&path).and_then(|mut client| client.stats());
    let error = asked().unwrap_err();
    assert!(matches!(error, ClientError::NoAnswer { .. }), "{error:?}");
    for _ in 0..2 {
        let error = asked().unwrap_err();
        assert!(matches!(error, ClientError::UnknownAnswer { .. }), "{error:?}");
    }
    server.join().unwrap();
}

/// The document in the repository.
const DOCUMENT: &str = include_str!("../../../docs/openapi.json");

#[test]
fn the_document_is_that_of_the_types_and_is_served() {
    let document = serde_json::to_value(openapi()).unwrap();
    assert!(
        weir_testing::document::in_lines(&document, 3) == DOCUMENT,
        "run: cargo run -p weir-api --example openapi > docs/openapi.json"
    );
    let (status, served) = Served::new().raw(b"GET /openapi.json HTTP/1.1\r\nhost: weir\r\n\r\n");
    let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    assert_eq!((status, value(&served)), (200, document));
}

#[test]
fn the_guide_names_every_path_with_its_methods() {
    let guide = include_str!("../../../docs/guide/configuration.md");
    let rows: Vec<_> = guide.lines().filter(|line| line.starts_with("| `/")).collect();
    let document: serde_json::Value = serde_json::from_str(DOCUMENT).unwrap();
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.len() > 15, "{}", paths.len());
    for (path, methods) in paths {
        let named = format!(
            "`{}`",
            path.replace("{port}", "NAME")
                .replace("{vif}", "NAME")
                .replace("{group}", "NAME")
                .replace("{template}", "TEMPLATE")
        );
        let row = rows.iter().find(|row| row.contains(&named));
        let row = row.unwrap_or_else(|| panic!("the guide lacks {path}"));
        for method in methods.as_object().unwrap().keys() {
            assert!(row.contains(&method.to_uppercase()), "{method} {path}: {row}");
        }
    }
}

#[test]
fn slow_descriptors_in_requests_keep_no_other_client_waiting_nor_the_end() {
    let served = Served::new();
    let get = b"GET /v1/stats HTTP/1.1\r\nhost: weir\r\n\r\n";
    let mut readers = Vec::new();
    let mut clients = Vec::new();
    let twice = get.repeat(2);
    let body = b"POST /v1/vifs HTTP/1.1\r\nhost: weir\r\ncontent-length: 9\r\n\r\n{";
    // The descriptor comes in the request, in half of it, after it, and in an incomplete body.
    for (with, after) in [(&get[..], &b""[..]), (&get[..9], &get[9..]), (&twice, b""), (body, b"")]
    {
        let (slow, reader) = lingering();
        let stream = served.stream();
        send_with(&stream, with, slow).unwrap();
        (&stream).write_all(after).unwrap();
        readers.push(reader);
        clients.push(stream);
    }
    let began = Instant::now();
    assert!(served.client().stats().is_ok());
    drop(clients);
    assert!(served.client().stats().is_ok());
    // The descriptor is unread at the end.
    let (slow, reader) = lingering();
    let stream = served.stream();
    send_with(&stream, b"G", slow).unwrap();
    drop(stream);
    drop(served);
    assert!(began.elapsed() < PATIENCE, "a close takes ten minutes");
    drop((reader, readers));
}
