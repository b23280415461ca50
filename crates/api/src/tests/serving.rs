//! The socket, the callers' rights, and events.

use super::*;
use weir_switch::events::{Event, PortGlance};

#[test]
fn the_socket_is_for_its_owner_only_and_goes_with_the_server() {
    let served = Served::new();
    let mode = std::fs::metadata(served.path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let second = ApiServer::start(&served.path(), Arc::new(Recorder::default()));
    assert!(matches!(second, Err(ListenError::InUse { .. })));
    let mut open = served.stream();
    served.client().vifs().unwrap();
    let path = served.path();
    let Served { server, dir: _dir, .. } = served;
    let start = Instant::now();
    drop(server);
    assert!(start.elapsed().as_secs() < limits::CONTROL_TIMEOUT_SECS, "waited for a silent client");
    assert_eq!(open.read(&mut [0]).unwrap_or(0), 0);
    assert!(!path.exists());
}

#[test]
fn a_socket_left_over_from_a_killed_weir_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("control.sock");
    drop(UnixListener::bind(&path).unwrap());
    assert!(matches!(Client::connect(&path), Err(ClientError::NotRunning { .. })));
    let _server = ApiServer::start(&path, Arc::new(Recorder::default())).unwrap();
    Client::connect(&path).unwrap().vifs().unwrap();
}

/// The settings for this text of `[switch]`.
pub(super) fn configured(text: &str) -> Serving {
    Serving::of(&api_of(text), false).unwrap()
}

fn api_of(text: &str) -> ApiConfig {
    let defaults = weir_config::Defaults {
        control: "/run/weir/control.sock".parse().unwrap(),
        control_named: true,
        keeper: None,
    };
    let text = format!("[switch]\n{text}\n");
    weir_config::Config::from_toml("a test", &text, &defaults).unwrap().switch.api
}

#[test]
fn a_group_may_open_the_socket() {
    let own = rustix::process::getegid().as_raw();
    let served = Served::with(configured(&format!("group = \"{own}\"\nadmin = [\"65533\"]")));
    let found = std::fs::metadata(served.path()).unwrap();
    assert_eq!(found.permissions().mode() & 0o777, 0o660);
    assert_eq!(std::os::unix::fs::MetadataExt::gid(&found), own);
    let nobody = Serving::of(&api_of("group = \"there-is-no-such-group\""), false).unwrap_err();
    assert!(matches!(nobody, ServingError::Account { key: "group", .. }), "{nobody:?}");
}

#[test]
fn who_may_not_write_reads_and_is_told_what_to_do() {
    let mut serving = Serving::default();
    serving.set_access(Access::nobody());
    let served = Served::with(serving);
    assert_eq!(served.raw(GET).0, 200);
    let long = format!("content-length: {}", limits::CONTROL_REQUEST_BYTES_MAX);
    for line in [
        "POST /v1/vifs",
        "PATCH /v1/vifs/x",
        "DELETE /v1/vifs/x",
        "PUT /v1/ports/x/filter",
        "PUT /v1/groups/x",
        "DELETE /v1/groups/x",
        "PUT /v1/configuration",
        "POST /v1/configuration/difference",
        "PUT /v1/stages",
        "POST /v1/upgrade",
        "POST /v1/captures",
        "POST /v1/ports/x/trace/live",
    ] {
        // The refusal comes before a byte of the body.
        let request = format!("{line} HTTP/1.1\r\nhost: w\r\n{long}\r\n\r\n");
        let (status, problem) = served.raw(request.as_bytes());
        assert_eq!(status, 403, "{line}");
        assert!(problem.contains("may not change the switch") && problem.contains("`admin`"));
    }
    // A reader's request is not longer than a frame.
    let request = format!("POST /v1/ports/x/trace HTTP/1.1\r\nhost: w\r\n{long}\r\n\r\n");
    assert_eq!(served.raw(request.as_bytes()).0, 413);
    assert_eq!(*served.handler.requests.lock().unwrap(), [first_vifs()]);
}

#[test]
fn an_admin_who_is_not_root_has_no_configuration_read_that_is_dear() {
    let own = rustix::process::geteuid().as_raw();
    let mut serving = Serving::default();
    serving.set_access(Access::admins_only([own]));
    let served = Served::with(serving);
    let asked = |text: &str| {
        let lines = [
            "POST /v1/configuration/difference",
            "POST /v1/configuration/saved",
            "PUT /v1/configuration",
        ];
        lines.map(|line| {
            let head =
                format!("{line} HTTP/1.1\r\nhost: w\r\ncontent-length: {}\r\n\r\n", text.len());
            served.raw([head.as_bytes(), text.as_bytes()].concat().as_slice())
        })
    };
    for (status, problem) in asked(&"k=1\n".repeat(limits::CONFIG_BYTES_MAX as usize / 4)) {
        assert!(status == 413 && problem.contains("ask as root"), "{status}: {problem}");
    }
    let good = asked("k=1\n").map(|(status, _)| status);
    assert_eq!(good, [200; 3]);
    assert_eq!(served.handler.requests.lock().unwrap().len(), good.len());
}

#[test]
fn over_tcp_the_token_reads_and_nobody_writes() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    std::fs::write(&file, "0123456789abcdef0123\n").unwrap();
    // The port is free, as far as this can be known.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let served =
        Served::with(configured(&format!("api_listen = \"{address}\"\napi_token_file = {file:?}")));
    let ask = |line: &str, token: &str| {
        let mut stream = TcpStream::connect(address).unwrap();
        let request = format!("{line} HTTP/1.1\r\nhost: w\r\n{token}\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        answer(&mut BufReader::new(&stream)).unwrap()
    };
    const GOOD: &str = "authorization: Bearer 0123456789abcdef0123";
    assert_eq!(ask("GET /v1/vifs", GOOD).0, 200);
    for wrong in ["x: y", "authorization: Bearer 0123456789abcdef0124", "authorization: Bearer "] {
        for line in ["GET /v1/vifs", "GET /openapi.json", "GET /nothing", "DELETE /v1/vifs/x"] {
            let (status, problem) = ask(line, wrong);
            assert!(status == 401 && problem.contains("api_token_file"), "{line}: {problem}");
        }
    }
    let (status, problem) = ask("DELETE /v1/vifs/x", GOOD);
    assert!(status == 403 && problem.contains("over TCP"), "{problem}");
    assert_eq!(*served.handler.requests.lock().unwrap(), [first_vifs()]);
}

#[test]
fn a_token_that_cannot_be_had_is_an_error_that_says_how_to_make_one() {
    let dir = tempfile::tempdir().unwrap();
    let with = |file: &std::path::Path| {
        let text = format!("api_listen = \"127.0.0.1:0\"\napi_token_file = {file:?}");
        Serving::of(&api_of(&text), false)
    };
    let missing = with(&dir.path().join("none")).unwrap_err();
    assert!(matches!(missing, ServingError::TokenFile { .. }), "{missing:?}");
    let short = dir.path().join("short");
    std::fs::write(&short, "abc").unwrap();
    let error = with(&short).unwrap_err();
    assert!(miette::Diagnostic::help(&error).unwrap().to_string().contains("openssl rand"));
    let long = dir.path().join("long");
    std::fs::write(&long, "a".repeat(1 << 20)).unwrap();
    assert!(matches!(with(&long).unwrap_err(), ServingError::Token { .. }));
}

#[test]
fn only_a_weir_that_takes_anothers_place_listens_beside_it() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    std::fs::write(&file, "0123456789abcdef0123456789abcdef").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let with = |port: u16, beside: bool| {
        let text = format!("api_listen = \"127.0.0.1:{port}\"\napi_token_file = {file:?}");
        Serving::of(&api_of(&text), beside)
    };
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    assert!(matches!(with(port, true).unwrap_err(), ServingError::Listen { .. }), "a stranger's");
    drop(free);
    let first = with(port, false).unwrap();
    assert!(matches!(with(port, false).unwrap_err(), ServingError::Listen { .. }));
    let next = with(port, true).unwrap();
    drop(first);
    assert!(matches!(with(port, false).unwrap_err(), ServingError::Listen { .. }));
    drop(next);
    with(port, false).unwrap();
}

/// A switch with ports of eight queues each, the last name first, and the ports that it was asked for at a time.
struct Many(usize, Mutex<Vec<Vec<PortName>>>);

impl Many {
    fn names(&self) -> Vec<PortName> {
        (0..self.0).rev().map(|n| name(&format!("a-port-with-a-name-{n:04}"))).collect()
    }

    fn asked(&self) -> Vec<Vec<PortName>> {
        std::mem::take(&mut self.1.lock().unwrap())
    }
}

impl ControlHandler for Many {
    fn handle(&self, request: Request) -> Response {
        let port = |name: &PortName| {
            let mut port = PortStats::new(name.clone(), PortKind::Vif);
            port.set_queues(vec![weir_switch::stats::QueuePairStats::default(); 8]);
            port
        };
        match request {
            Request::Stats => Response::Stats { stats: Box::default() },
            Request::PortNames => Response::PortNames { names: self.names() },
            Request::Ports(names) => {
                let ports = names.iter().map(port).collect();
                self.1.lock().unwrap().push(names);
                Response::Ports { ports }
            }
            _ => Response::Ok,
        }
    }
}

/// A reader of all counters has no more of a thread than these, and one of a part, or of one port, no other counters.
#[test]
fn a_turn_reads_a_few_ports_and_no_port_is_read_that_is_not_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("control.sock");
    let many = Arc::new(Many(limits::CONTROL_PORTS_MAX + 5, Mutex::default()));
    let _server = ApiServer::start(&path, Arc::clone(&many) as Arc<dyn ControlHandler>).unwrap();
    let get = |what: &str| {
        let mut stream = UnixStream::connect(&path).unwrap();
        let request = format!("GET {what} HTTP/1.1\r\nhost: w\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let (status, body) = answer(&mut BufReader::new(&stream)).unwrap();
        assert_eq!(status, 200, "{body}");
        body
    };
    let names_in = |ports: &serde_json::Value| {
        let ports: Vec<PortStats> = serde_json::from_value(ports.clone()).unwrap();
        ports.into_iter().map(|port| port.name).collect::<Vec<_>>()
    };
    let json = |what: &str| serde_json::from_str::<serde_json::Value>(&get(what)).unwrap();
    let all = many.names();
    assert_eq!(names_in(&json("/v1/switch")["ports"]), all);
    let of_switch = many.asked();
    get("/metrics");
    let of_metrics = many.asked();
    assert_eq!(json("/v1/drops").as_object().unwrap().len(), all.len());
    for asked in [of_switch, of_metrics, many.asked()] {
        assert!(asked.iter().all(|it| it.len() <= limits::CONTROL_PORTS_TOGETHER_MAX), "{asked:?}");
        assert_eq!(asked.concat(), all);
    }
    let mut sorted = all.clone();
    sorted.sort();
    let mut rest = &sorted[..];
    let mut after = String::new();
    while !rest.is_empty() {
        let part = names_in(&json(&format!("/v1/ports?limit=100{after}")));
        assert_eq!(part, rest[..rest.len().min(100)]);
        assert_eq!(many.asked().concat(), part);
        after = format!("&after={}", part[part.len() - 1]);
        rest = &rest[part.len()..];
    }
    for what in ["", "/queues", "/filter"] {
        get(&format!("/v1/ports/{}{what}", all[7]));
        assert_eq!(many.asked(), [vec![all[7].clone()]]);
    }
}

/// A switch with this many interfaces, which may know of parts.
struct Listed {
    count: usize,
    has_parts: bool,
}

impl ControlHandler for Listed {
    fn handle(&self, request: Request) -> Response {
        let Request::VifList(part) = request else { return Response::Ok };
        assert!(part.limit <= limits::CONTROL_PORTS_TOGETHER_MAX, "in one turn: {part:?}");
        let all: Vec<_> = (0..self.count).map(|n| status(&format!("vif{n:04}"))).collect();
        let (vifs, total) = match self.has_parts {
            true => part.of(all, |vif| &vif.config.name),
            false => (all, self.count),
        };
        Response::Vifs { vifs, total }
    }
}

#[test]
fn a_client_has_each_interface_once_of_a_weir_with_parts_and_of_one_without() {
    const MOST: usize = limits::CONTROL_PORTS_MAX;
    let dir = tempfile::tempdir().unwrap();
    for (count, has_parts) in
        [(0, true), (MOST, true), (2 * MOST + 1, true), (MOST, false), (MOST + 1, false)]
    {
        let path = dir.path().join(format!("{count}-{has_parts}.sock"));
        let _server = ApiServer::start(&path, Arc::new(Listed { count, has_parts })).unwrap();
        let found = Client::connect(&path).unwrap().vifs().unwrap();
        let found: Vec<_> = found.iter().map(|vif| vif.config.name.to_string()).collect();
        let all: Vec<_> = (0..count).map(|n| format!("vif{n:04}")).collect();
        assert_eq!(found, all, "{has_parts}");
    }
}

#[test]
fn what_readers_leave_unread_is_bounded_and_keeps_no_change_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("control.sock");
    let _server =
        ApiServer::start(&path, Arc::new(Many(limits::PORTS_MAX, Mutex::default()))).unwrap();
    let whole = {
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: w\r\nconnection: close\r\n\r\n").unwrap();
        std::io::copy(&mut stream, &mut std::io::sink()).unwrap()
    };
    let fit = limits::CONTROL_UNREAD_BYTES_MAX / whole;
    assert!(fit > 2 && fit < 16, "{whole} bytes");
    // Each reader sees its answer begin, and reads no further.
    let begun: Vec<_> = (0..2 * fit)
        .map(|_| {
            let mut stream = UnixStream::connect(&path).unwrap();
            stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: w\r\n\r\n").unwrap();
            let mut first = [0; 15];
            stream.read_exact(&mut first).unwrap();
            assert_eq!(&first, b"HTTP/1.1 200 OK");
            stream
        })
        .collect();
    Client::connect(&path).unwrap().add_vif(&vif("web0")).unwrap();
    let mut kept = 0;
    for mut stream in begun {
        kept += u64::from(
            std::io::copy(&mut stream, &mut std::io::sink()).is_ok_and(|n| n + 15 > whole - 99),
        );
    }
    assert!(kept <= fit + 1, "{kept} answers of {whole} bytes were kept");
    assert!(kept > 0);
}

/// Reads events from an open stream.
struct Events(BufReader<UnixStream>);

impl Events {
    fn of(served: &Served) -> Self {
        let stream = served.stream();
        (&stream).write_all(b"GET /v1/events HTTP/1.1\r\nhost: weir\r\n\r\n").unwrap();
        let mut this = Self(BufReader::new(stream));
        // From the first comment on no event is missed.
        while this.line() != ": " {}
        this
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        assert_ne!(self.0.read_line(&mut line).unwrap(), 0, "the stream ends");
        line.trim_end_matches(['\r', '\n']).to_owned()
    }

    fn next(&mut self) -> Event {
        loop {
            if let Some(json) = self.line().strip_prefix("data: ") {
                return serde_json::from_str(json).unwrap();
            }
        }
    }
}

fn up(ports: usize) -> Glance {
    let port = |n| {
        (name(&format!("p{n}")), PortGlance { state: PortState::Running, ..PortGlance::default() })
    };
    Glance { ports: (0..ports).map(port).collect(), ..Glance::default() }
}

#[test]
fn events_are_told_to_each_reader() {
    let served = Served::new();
    let (mut one, mut other) = (Events::of(&served), Events::of(&served));
    *served.handler.glance.lock().unwrap() = up(1);
    let port = name("p0");
    for reader in [&mut one, &mut other] {
        assert_eq!(reader.next(), Event::PortAdded { port: port.clone(), kind: PortKind::Vif });
        assert_eq!(reader.next(), Event::PortUp { port: port.clone() });
    }
    drop(one);
    *served.handler.glance.lock().unwrap() = up(0);
    assert_eq!(other.next(), Event::PortRemoved { port });
}

#[test]
fn a_reader_that_is_too_slow_is_told_how_many_events_it_lost() {
    let served = Served::new();
    let mut slow = Events::of(&served);
    // Each port makes two events: together more than a socket holds and the queue keeps.
    let ports = 10 * limits::EVENTS_WAITING_MAX;
    *served.handler.glance.lock().unwrap() = up(ports);
    let mut told = 0;
    let lost = loop {
        match slow.next() {
            Event::Lost { count } => break count,
            _ => told += 1,
        }
    };
    assert!(lost > 0 && told + lost as usize <= 2 * ports, "{told} told, {lost} lost");
    // The reader continues with the queue's first event, to the last of all, in the order of names.
    while slow.next() != (Event::PortUp { port: name("p9999") }) {}
}

#[test]
fn nobody_is_looked_at_while_nobody_reads() {
    struct Counts(std::sync::atomic::AtomicUsize);
    impl ControlHandler for Counts {
        fn handle(&self, _: Request) -> Response {
            Response::Ok
        }
        fn glance(&self) -> Glance {
            self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            Glance::default()
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("control.sock");
    let handler = Arc::new(Counts(0.into()));
    let looks = || handler.0.load(std::sync::atomic::Ordering::SeqCst);
    let for_server = Arc::clone(&handler) as Arc<dyn ControlHandler>;
    let _server = ApiServer::start(&path, for_server).unwrap();
    assert_eq!(looks(), 0);
    let stream = UnixStream::connect(&path).unwrap();
    (&stream).write_all(b"GET /v1/events HTTP/1.1\r\nhost: weir\r\n\r\n").unwrap();
    let end = Instant::now() + PATIENCE;
    while looks() < 3 {
        assert!(Instant::now() < end, "nobody looks");
        std::thread::yield_now();
    }
    drop(stream);
    // In two intervals nothing was polled.
    let pause = Duration::from_nanos(2 * limits::EVENTS_LOOK_NS);
    loop {
        let before = looks();
        std::thread::sleep(pause);
        if looks() == before {
            break;
        }
        assert!(Instant::now() < end, "it goes on looking");
    }
}

/// Prints what each request of a reader costs a weir of 1,000 interfaces: the longest turn of the thread that asks the
/// switch, the time of the thread that serves sockets, and the memory at most.
/// `cargo test --release -p weir-api --lib -- --ignored --nocapture what_readers_cost`
#[test]
#[ignore = "a measurement"]
fn what_readers_cost() {
    use std::sync::atomic::Ordering;

    use weir_config::{Config, Defaults, Setting};

    const COUNT: usize = 1000;
    let of_this = |path: &str| std::fs::read_to_string(format!("/proc/self/{path}")).unwrap();
    let memory = |figure: &str| {
        let status = of_this("status");
        let line = status.lines().find(|line| line.starts_with(figure)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    let names = (0..COUNT).map(|n| format!("v{n:03}"));
    let listed: String = names.clone().map(|name| format!("[vif.{name}]\nqueues = 8\n")).collect();
    for state in ["of the file", "added", "changed"] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control.sock");
        let control = weir_config::SocketPath::try_from(path.as_path()).unwrap();
        let defaults = Defaults { control: control.clone(), control_named: true, keeper: None };
        let vifs = if state == "added" { "" } else { &listed };
        let text = format!("[switch]\nworkers = 2\nfdb_entries = 1048576\n[template.t]\n{vifs}");
        let config = Config::from_toml("weir.toml", &text, &defaults).unwrap();
        let switch = weir_switch::Switch::start(&config).unwrap();
        let settings = |text: &str| [text.parse::<Setting>().unwrap()];
        for name in names.clone().map(|it| it.parse::<PortName>().unwrap()) {
            let request = match state {
                "added" => {
                    let config = VifConfig::from_settings(&name, &settings("queues=8"), &control);
                    Request::VifAdd { config: config.unwrap().into() }
                }
                "changed" => {
                    let changes = VifChanges::from_settings(&name, &settings("mtu=1400"));
                    Request::VifSet { name, changes: changes.unwrap().into() }
                }
                _ => break,
            };
            let response = switch.handle(request);
            assert!(matches!(response, Response::Ok | Response::Noted { .. }), "{response:?}");
        }
        let _server = ApiServer::start(&path, switch as Arc<dyn ControlHandler>).unwrap();
        let serving = |mut tasks: std::fs::ReadDir| {
            let named = |task: &PathBuf| {
                std::fs::read_to_string(task.join("comm"))
                    .is_ok_and(|it| it.trim() == "weir-control")
            };
            let task = tasks.find_map(|task| Some(task.unwrap().path()).filter(named)).unwrap();
            let times = std::fs::read_to_string(task.join("schedstat")).unwrap();
            times.split(' ').next().unwrap().parse::<u64>().unwrap()
        };
        let serving = || serving(std::fs::read_dir("/proc/self/task").unwrap());
        let frame = "x".repeat(60);
        for what in [
            "GET /v1/switch",
            "GET /v1/ports",
            "GET /v1/ports/v500",
            "GET /v1/ports/v500/policies",
            "GET /v1/ports/v500/connections",
            "GET /v1/ports/v500/filter",
            "GET /v1/ports/v500/queues",
            "GET /v1/drops",
            "GET /metrics",
            "GET /v1/addresses",
            "GET /v1/vifs",
            "GET /v1/vifs/v500",
            "GET /v1/templates/t/vifs/new",
            "GET /v1/configuration",
            "GET /openapi.json",
            "GET /",
            "POST /v1/ports/v500/trace",
            "GET /v1/events",
        ] {
            let ask = || {
                let mut stream = UnixStream::connect(&path).unwrap();
                let body = if what.starts_with("POST") { &frame[..] } else { "" };
                // The stream of events has no end.
                let patience = Duration::from_secs(if what.ends_with("events") { 2 } else { 60 });
                stream.set_read_timeout(Some(patience)).unwrap();
                let head = format!(
                    "HTTP/1.1\r\nhost: w\r\nconnection: close\r\ncontent-length: {}",
                    body.len()
                );
                stream.write_all(format!("{what} {head}\r\n\r\n{body}").as_bytes()).unwrap();
                std::io::copy(&mut stream, &mut std::io::sink()).unwrap_or(0)
            };
            ask();
            weir_config::give_back();
            std::fs::write("/proc/self/clear_refs", "5").unwrap();
            let (before, server) = (memory("VmRSS"), serving());
            work::tests::TURNS.iter().for_each(|it| it.store(0, Ordering::SeqCst));
            let bytes = (0..5).map(|_| ask()).max().unwrap();
            let [turns, longest] = [0, 1].map(|nth| work::tests::TURNS[nth].load(Ordering::SeqCst));
            println!(
                "{state:12} {what:32} {:3} turns, longest {:6} us, sockets {:6} us, {:6} KiB more, {bytes} bytes",
                turns / 5,
                longest / 1000,
                (serving() - server) / 5000,
                memory("VmHWM") - before,
            );
        }
    }
}
