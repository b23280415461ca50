//! Clients that send bytes that no good client sends.

use super::*;

#[test]
fn what_is_no_http_is_refused_and_the_next_client_is_served() {
    let served = Served::new();
    let bad: [&[u8]; 6] = [
        b"garbage\r\n\r\n",
        b"\xff\xfe\x00\r\n\r\n",
        b"{\"request\":\"stats\"}\n",
        b"GET /v1/vifs HTTP/9.9\r\n\r\n",
        b"GET /v1/vifs HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        b"POST /v1/vifs HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
    ];
    for bytes in bad {
        let mut stream = served.stream();
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let text = String::from_utf8_lossy(&answer);
        assert!(text.is_empty() || text.contains(" 400 "), "{text}");
    }
    served.client().vifs().unwrap();
    assert_eq!(served.handler.requests.lock().unwrap().len(), 1);
}

#[test]
fn paths_methods_and_bodies_that_are_not_there_are_problems_that_help() {
    let served = Served::new();
    let with = |line: &str, body: &str| {
        let length = body.len();
        let text = format!("{line} HTTP/1.1\r\nhost: w\r\ncontent-length: {length}\r\n\r\n{body}");
        served.raw(text.as_bytes())
    };
    let deep = "[".repeat(60_000);
    let cases = [
        ("GET /v2/switch", "", 404, "openapi.json"),
        ("GET /v1/../../etc/passwd", "", 404, "openapi.json"),
        ("POST /v1/switch", "", 405, "openapi.json"),
        ("BREW /v1/vifs", "", 405, "openapi.json"),
        ("DELETE /v1/vifs/..%2fx", "", 400, "cannot be the name of a port"),
        ("DELETE /v1/vifs/%ff", "", 400, "UTF-8"),
        ("DELETE /v1/vifs/a%00b", "", 400, "cannot be the name of a port"),
        ("POST /v1/vifs", "", 400, "not understood"),
        ("POST /v1/vifs", "{\"name\":\"x\"}", 400, "missing field"),
        ("POST /v1/vifs", &deep, 400, "not understood"),
        ("PATCH /v1/vifs/x", "{\"force\":true}", 400, "unknown field"),
        ("PUT /v1/stages", "{\"on\":1}", 400, "send JSON such as"),
        ("PUT /v1/ports/x/filter", "[{\"direction\":\"up\",\"action\":\"drop\"}]", 400, "`up`"),
        ("PUT /v1/configuration?partly=perhaps", "", 400, "partly"),
        ("PUT /v1/configuration?all=true", "", 400, "all"),
    ];
    for (line, body, status, words) in cases {
        let (answered, problem) = with(line, body);
        assert_eq!(answered, status, "{line}: {problem}");
        assert!(problem.contains(words), "{line}: {problem}");
        let problem: Problem = serde_json::from_str(&problem).unwrap();
        assert_eq!(problem.status, status);
    }
    assert_eq!(*served.handler.requests.lock().unwrap(), []);
}

#[test]
fn a_body_is_refused_at_the_bound_and_before_it_is_sent() {
    let served = Served::new();
    let most = limits::CONTROL_REQUEST_BYTES_MAX;
    let head = |length: usize| {
        format!("PUT /v1/configuration HTTP/1.1\r\nhost: w\r\ncontent-length: {length}\r\n\r\n")
    };
    let fits = [head(most).as_bytes(), &b" ".repeat(most)].concat();
    assert_eq!(served.raw(&fits).0, 200);
    // No byte of the body is sent.
    assert_eq!(served.raw(head(most + 1).as_bytes()).0, 413);
    // The length is not declared.
    let chunk = format!("{:x}\r\n{}\r\n", 1 << 16, "x".repeat(1 << 16)).repeat((most >> 16) + 1);
    let head = "PUT /v1/configuration HTTP/1.1\r\nhost: w\r\ntransfer-encoding: chunked\r\n\r\n";
    assert_eq!(served.raw([head, &chunk].concat().as_bytes()).0, 413);
    assert_eq!(served.handler.requests.lock().unwrap().len(), 1);
}

#[test]
fn a_head_is_refused_at_its_bounds() {
    let served = Served::new();
    let with =
        |headers: &str| served.raw(format!("GET /v1/vifs HTTP/1.1\r\n{headers}\r\n").as_bytes()).0;
    let most = limits::CONTROL_HEADERS_MAX;
    assert_eq!(with(&"a: b\r\n".repeat(most)), 200);
    assert_eq!(with(&"a: b\r\n".repeat(most + 1)), 431);
    let long = limits::CONTROL_HEAD_BYTES_MAX;
    assert_eq!(with(&format!("a: {}\r\n", "b".repeat(long / 2))), 200);
    assert_eq!(with(&format!("a: {}\r\n", "b".repeat(long + 1))), 431);
    assert_eq!(served.handler.requests.lock().unwrap().len(), 2);
}

#[test]
fn several_requests_in_one_write_are_answered_in_order() {
    let served = Served::new();
    let mut stream = served.stream();
    let other = b"GET /v1/configuration HTTP/1.1\r\nhost: weir\r\n\r\n";
    stream.write_all(&[GET, other, GET].concat()).unwrap();
    let mut reader = BufReader::new(&stream);
    for words in ["web0", "weir.toml", "web0"] {
        let (status, body) = answer(&mut reader).unwrap();
        assert!(status == 200 && body.contains(words), "{body}");
    }
}

#[test]
fn silent_and_slow_clients_keep_nobody_out_and_lose_their_places_in_turn() {
    let served = Served::new();
    let mut slow: Vec<_> = (0..limits::CONTROL_CONNECTIONS_MAX).map(|_| served.stream()).collect();
    for (stream, n) in slow.iter_mut().zip(0..) {
        // One client is silent, one stops within a head, one within a body.
        let begun: &[u8] = match n % 3 {
            0 => b"",
            1 => b"GET /v1/v",
            _ => b"POST /v1/vifs HTTP/1.1\r\nhost: w\r\ncontent-length: 99\r\n\r\n{",
        };
        stream.write_all(begun).unwrap();
    }
    for _ in 0..3 {
        served.client().vifs().unwrap();
    }
    // Each new connection has taken the place of a silent one, and the last one still has its place.
    assert_eq!(slow[0].read(&mut [0]).unwrap(), 0);
    let last = slow.len() - 1;
    let rest: &[u8] = match last % 3 {
        0 => GET,
        1 => b"ifs HTTP/1.1\r\nhost: weir\r\n\r\n",
        _ => unreachable!("the bound is a multiple of 16"),
    };
    slow[last].write_all(rest).unwrap();
    assert_eq!(answer(&mut BufReader::new(&slow[last])).unwrap().0, 200);
}

#[test]
fn a_client_that_is_too_slow_is_cut_off_and_one_with_half_a_body_is_told() {
    let served = Served::new();
    let begun = Instant::now();
    let (mut silent, mut drips) = (served.stream(), served.stream());
    let half = served.stream();
    (&half).write_all(b"POST /v1/vifs HTTP/1.1\r\nhost: w\r\ncontent-length: 9\r\n\r\n{").unwrap();
    while drips.write_all(b"x").is_ok() {
        std::thread::sleep(Duration::from_millis(50));
        assert!(begun.elapsed() < PATIENCE);
    }
    assert_eq!(silent.read(&mut [0]).unwrap(), 0);
    let (status, problem) = answer(&mut BufReader::new(&half)).unwrap();
    assert!(status == 408 && problem.contains("within 5 s"), "{problem}");
    assert!(begun.elapsed() >= Duration::from_secs(limits::CONTROL_TIMEOUT_SECS));
}

#[test]
fn an_answer_that_nobody_reads_is_given_up() {
    let served = Served::new();
    let mut stream = served.stream();
    let begun = Instant::now();
    // The socket cannot hold this many answers.
    let many = b"GET /openapi.json HTTP/1.1\r\nhost: weir\r\n\r\n".repeat(200);
    let _ = stream.write_all(&many);
    let mut client = served.client();
    let used = |client: &mut Client| client.stats().unwrap().limits["control_connections"].used;
    while used(&mut client) > 1 {
        std::thread::sleep(Duration::from_millis(100));
        assert!(begun.elapsed() < PATIENCE, "its connection stays");
    }
}

#[test]
fn a_new_connection_has_a_place_and_the_request_that_waits_longest_for_its_turn_is_refused() {
    /// Answers once the gate is opened.
    struct Slow(Arc<Barrier>, Arc<Barrier>);
    impl ControlHandler for Slow {
        fn handle(&self, request: Request) -> Response {
            if matches!(request, Request::Stages { on: true }) {
                self.0.wait();
                self.1.wait();
            }
            Response::Ok
        }
    }
    /// Opens the gate when it is dropped, also in a test that fails: the server's end waits for the requests behind it.
    struct Opens(Arc<Barrier>);
    impl Drop for Opens {
        fn drop(&mut self) {
            self.0.wait();
        }
    }
    const RUN: usize = limits::CONTROL_WORKERS - limits::CONTROL_READERS;
    let barrier = || Arc::new(Barrier::new(RUN + 1));
    let (taken, gate) = (barrier(), barrier());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("control.sock");
    let handler = Arc::new(Slow(Arc::clone(&taken), Arc::clone(&gate)));
    let _server = ApiServer::start(&path, handler).unwrap();
    let stages = |on: bool| {
        let body = format!("{{\"on\":{on}}}");
        let length = body.len();
        format!("PUT /v1/stages HTTP/1.1\r\nhost: w\r\ncontent-length: {length}\r\n\r\n{body}")
    };
    let mut places: Vec<_> =
        (0..limits::CONTROL_CONNECTIONS_MAX).map(|_| UnixStream::connect(&path).unwrap()).collect();
    // As many requests run as there are threads for those who may write; the others wait for a thread.
    for (stream, n) in places.iter_mut().zip(0..) {
        stream.write_all(stages(n < RUN).as_bytes()).unwrap();
        if n + 1 == RUN {
            taken.wait();
        }
    }
    let opens = Opens(gate);
    let (run, wait) = places.split_at(RUN);
    for stream in wait {
        stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    }
    // Until a waiting request has been read, its connection is closed if it loses its place.
    let (end, mut more) = (Instant::now() + PATIENCE, Vec::new());
    let (status, refused) = loop {
        assert!(Instant::now() < end, "{} more have a place", more.len());
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(stages(false).as_bytes()).unwrap();
        more.push(stream);
        if let Some(refused) = wait.iter().find_map(|it| answer(&mut BufReader::new(it))) {
            break refused;
        }
    };
    assert!(status == 503 && refused.contains("waited longest"), "{refused}");
    drop(opens);
    // A request that runs keeps its place, and the last connection has one.
    for stream in run.iter().chain(more.last()) {
        assert_eq!(answer(&mut BufReader::new(stream)).unwrap().0, 200);
    }
}
