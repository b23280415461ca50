//! The control socket: its users may do everything to the switch except stop it by mistake. Other users must not be
//! able to connect.

use std::{
    io::{BufReader, Read, Write},
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

use rustix::io::Errno;

use crate::{
    attack,
    attack::{Attack, Field, User},
    front::{Strike, harm},
    measure::switch::answer,
    random::Random,
};

/// The attacks of the class.
pub const ALL: &[Attack] = &[
    attack!(control_garbage, "sends bytes by chance, with and without ends of lines"),
    attack!(control_head_without_end, "sends a head that never ends, megabytes of it"),
    attack!(control_headers_without_end, "sends a thousand headers"),
    attack!(
        control_body_without_end,
        "sends a body in pieces that never end, and one that is announced as endless"
    ),
    attack!(
        control_head_byte_by_byte,
        "sends a request at ten bytes a second, on sixteen connections"
    ),
    attack!(
        control_body_byte_by_byte,
        "sends a body at ten bytes a second, on more connections than there are"
    ),
    attack!(control_connections_that_say_nothing, "opens 200 connections and says nothing",
        own_share: "who may open the socket may have the whole switch; threads of their own serve it"),
    attack!(control_connects_without_pause, "connects and hangs up as fast as it can"),
    attack!(control_answers_that_nobody_reads, "asks for statistics without pause and reads none"),
    attack!(control_events_that_nobody_reads, "opens streams of events and reads none"),
    attack!(control_statistics_without_pause, "asks for statistics without pause and reads them",
        own_share: "who may open the socket may have the whole switch; a thread of its own serves it"),
    attack!(
        control_pipelined,
        "sends a thousand requests at once, and hangs up at half of the answers"
    ),
    attack!(
        control_paths_that_are_not,
        "asks for paths and methods that there are not, up and down"
    ),
    attack!(control_smuggled, "hides a request in the body of another one, by lengths that differ"),
    attack!(control_json_that_is_deep, "sends bodies of 30,000 brackets"),
    attack!(
        control_strings_that_are_long,
        "sends names of 10,000 letters, controls and half characters"
    ),
    attack!(control_paths_that_climb, "adds interfaces whose names and sockets lead elsewhere"),
    attack!(
        control_interfaces_that_come_and_go,
        "adds and removes an interface twice a second, as scripts do"
    ),
    attack!(
        control_settings_without_pause,
        "changes filters, rates and VLANs of an interface without pause"
    ),
    attack!(control_metrics_without_pause, "asks for metrics without pause and reads them",
        own_share: "who may open the socket may have the whole switch; a thread of its own serves it"),
    attack!(
        control_pages_and_metrics_that_nobody_reads,
        "asks for the page, its files and metrics without pause and reads none"
    ),
    attack!(
        control_a_thousand_streams_of_events,
        "opens a thousand streams of events, one after the other, and keeps them open"
    ),
    attack!(
        reader_that_writes,
        "asks for all that changes or copies, as a user who may read",
        as_reader
    ),
    attack!(
        reader_that_reads_nothing,
        "opens streams of events, statistics and pages, and reads none, as a user who may read",
        as_reader
    ),
    attack!(control_by_another_user, "opens the control socket as another user", as_another_user),
    attack!(
        sockets_replaced_by_another_user,
        "removes and replaces sockets as another user",
        as_another_user
    ),
];

/// True if the attack uses connections from the administrator's share of the API. The
/// administrator's own request may then be lost. Users who may only read are attackers of another
/// class.
pub fn is_the_administrators(attack: &Attack) -> bool {
    attack.user == User::Own && ALL.iter().any(|it| it.name == attack.name)
}

pub fn open(field: &Field) -> Strike<UnixStream> {
    let socket = UnixStream::connect(field.control())?;
    for set in [UnixStream::set_read_timeout, UnixStream::set_write_timeout] {
        set(&socket, Some(Duration::from_secs(2)))?;
    }
    Ok(socket)
}

/// The text of a request with a body.
pub fn request(line: &str, body: &str) -> String {
    let length = body.len();
    format!("{line} HTTP/1.1\r\nhost: weir\r\ncontent-length: {length}\r\n\r\n{body}")
}

const STATISTICS: &str = "GET /v1/switch HTTP/1.1\r\nhost: weir\r\n\r\n";

/// Sends a request. Returns the status and the body of the answer.
pub fn ask(socket: &UnixStream, request: &str) -> Strike<(u16, String)> {
    let mut writer = socket;
    // weir may refuse a request before it has read all of it.
    let written = writer.write_all(request.as_bytes());
    match answer(&mut BufReader::new(socket))? {
        Some(answer) => Ok(answer),
        None => Err(written.err().unwrap_or_else(|| Errno::CONNRESET.into()).into()),
    }
}

/// Sends a request that weir must not carry out.
pub fn refused(socket: &UnixStream, request: &str) -> Strike {
    let (status, answer) = ask(socket, request)?;
    if (400..500).contains(&status) && answer.contains("\"detail\"") {
        return Ok(());
    }
    harm(format!(
        "{} was answered with {status} {answer}",
        request.chars().take(100).collect::<String>()
    ))
}

/// Writes `piece` again and again until weir stops reading.
fn without_end(socket: &mut UnixStream, piece: &[u8]) -> Strike {
    for _ in 0..(64 << 20) / piece.len() {
        if socket.write_all(piece).is_err() {
            return Ok(());
        }
    }
    harm("weir takes 64 MiB of a request")
}

fn control_garbage(field: &Field) -> Strike {
    let mut random = Random::new();
    let mut socket = open(field)?;
    let bytes: Vec<u8> = (0..2000).map(|_| random.next() as u8).collect();
    let _ = socket.write_all(&bytes);
    let _ = socket.write_all(b"\r\n\r\n{}\n[]\nnull\n");
    let _ = socket.read(&mut [0; 100]);
    Ok(())
}

fn control_head_without_end(field: &Field) -> Strike {
    without_end(&mut open(field)?, &[b'a'; 65_536])
}

fn control_headers_without_end(field: &Field) -> Strike {
    let mut socket = open(field)?;
    socket.write_all(b"GET /v1/switch HTTP/1.1\r\n")?;
    without_end(&mut socket, &b"a: b\r\n".repeat(1000))
}

fn control_body_without_end(field: &Field) -> Strike {
    let mut socket = open(field)?;
    let head = "PUT /v1/configuration HTTP/1.1\r\nhost: w\r\n";
    socket.write_all(head.as_bytes())?;
    socket.write_all(b"transfer-encoding: chunked\r\n\r\n")?;
    without_end(&mut socket, &[&b"10000\r\n"[..], &[b'a'; 65_536], b"\r\n"].concat())?;
    refused(&open(field)?, &format!("{head}content-length: 99999999999\r\n\r\n"))
}

/// Sends `begun`, and then a byte of `rest` every tenth of a second, on this many connections.
fn byte_by_byte(field: &Field, connections: usize, begun: &str, rest: &str) -> Strike {
    let mut sockets = (0..connections).map(|_| open(field)).collect::<Strike<Vec<_>>>()?;
    for socket in &mut sockets {
        let _ = socket.write_all(begun.as_bytes());
    }
    for byte in rest.as_bytes() {
        for socket in &mut sockets {
            let _ = socket.write_all(&[*byte]);
        }
        field.struck();
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

fn control_head_byte_by_byte(field: &Field) -> Strike {
    byte_by_byte(field, 16, "", "GET /v1/switch HTTP")
}

fn control_body_byte_by_byte(field: &Field) -> Strike {
    let head = "POST /v1/vifs HTTP/1.1\r\nhost: w\r\ncontent-length: 99\r\n\r\n";
    byte_by_byte(field, 40, head, "{\"name\":\"slow\"")
}

fn control_connections_that_say_nothing(field: &Field) -> Strike {
    let sockets: Vec<_> = (0..200).filter_map(|_| open(field).ok()).collect();
    std::thread::sleep(Duration::from_millis(20));
    drop(sockets);
    Ok(())
}

fn control_connects_without_pause(field: &Field) -> Strike {
    drop(open(field)?);
    Ok(())
}

fn control_answers_that_nobody_reads(field: &Field) -> Strike {
    let mut socket = open(field)?;
    for _ in 0..200 {
        if socket.write_all(STATISTICS.as_bytes()).is_err() {
            break;
        }
        field.struck();
    }
    Ok(())
}

fn control_events_that_nobody_reads(field: &Field) -> Strike {
    let mut sockets = (0..40).map(|_| open(field)).collect::<Strike<Vec<_>>>()?;
    for socket in &mut sockets {
        let _ = socket.write_all(b"GET /v1/events HTTP/1.1\r\nhost: weir\r\n\r\n");
        field.struck();
    }
    std::thread::sleep(Duration::from_millis(500));
    Ok(())
}

fn control_statistics_without_pause(field: &Field) -> Strike {
    let socket = open(field)?;
    loop {
        ask(&socket, STATISTICS)?;
        field.struck();
    }
}

fn control_metrics_without_pause(field: &Field) -> Strike {
    let socket = open(field)?;
    loop {
        let (status, metrics) = ask(&socket, &request("GET /metrics", ""))?;
        if status != 200 || !metrics.contains("weir_") {
            return harm(format!("metrics are answered with {status}"));
        }
        field.struck();
    }
}

/// The files of the page, and its requests.
const LOOKS: [&str; 6] =
    ["/", "/page/script.js", "/metrics", "/v1/switch", "/openapi.json", "/v1/addresses"];

fn control_pages_and_metrics_that_nobody_reads(field: &Field) -> Strike {
    let mut socket = open(field)?;
    for look in LOOKS.iter().cycle().take(200) {
        if socket.write_all(request(&format!("GET {look}"), "").as_bytes()).is_err() {
            break;
        }
        field.struck();
    }
    Ok(())
}

fn control_a_thousand_streams_of_events(field: &Field) -> Strike {
    let mut sockets = Vec::new();
    for _ in 0..1000 {
        let mut socket = open(field)?;
        let _ = socket.write_all(request("GET /v1/events", "").as_bytes());
        sockets.push(socket);
    }
    // A further connection is served. It replaces the one that has waited longest.
    let (status, _) = ask(&open(field)?, STATISTICS)?;
    if status == 200 { Ok(()) } else { harm(format!("statistics are answered with {status}")) }
}

fn reader_that_writes(field: &Field) -> Strike {
    for line in [
        "POST /v1/vifs",
        "PATCH /v1/vifs/a",
        "DELETE /v1/vifs/a",
        "PUT /v1/ports/a/filter",
        "PUT /v1/groups/a",
        "DELETE /v1/groups/a",
        "PUT /v1/configuration",
        "PUT /v1/stages",
        "POST /v1/captures",
        "POST /v1/ports/a/trace/live",
        "POST /v1/upgrade",
    ] {
        // A valid body, an invalid one, and an announced body that is never sent.
        let announced = format!("{line} HTTP/1.1\r\nhost: weir\r\ncontent-length: 9000\r\n\r\n");
        let right = "{\"ports\":[\"a\"],\"frames\":1,\"on\":true}";
        for whole in [request(line, right), request(line, "\u{1b}"), announced] {
            let (status, answer) = ask(&open(field)?, &whole)?;
            if status != 403 || !answer.contains("\"detail\"") {
                return harm(format!("who may read is answered {status} {answer} to {line}"));
            }
        }
    }
    let (status, _) = ask(&open(field)?, STATISTICS)?;
    if status == 200 { Ok(()) } else { harm(format!("who may read is answered {status}")) }
}

fn reader_that_reads_nothing(field: &Field) -> Strike {
    let mut sockets = (0..100).map(|_| open(field)).collect::<Strike<Vec<_>>>()?;
    for (socket, look) in
        sockets.iter_mut().zip(LOOKS.iter().chain(["/v1/events"; 2].iter()).cycle())
    {
        for _ in 0..8 {
            let _ = socket.write_all(request(&format!("GET {look}"), "").as_bytes());
        }
        field.struck();
    }
    std::thread::sleep(Duration::from_millis(300));
    Ok(())
}

fn control_pipelined(field: &Field) -> Strike {
    let socket = open(field)?;
    let mut writer = &socket;
    // The socket may be full of unread answers.
    let _ = writer.write_all(STATISTICS.repeat(1000).as_bytes());
    let mut reader = BufReader::new(&socket);
    for _ in 0..8 {
        match answer(&mut reader)? {
            Some((200, _)) => field.struck(),
            other => return harm(format!("a request of many was answered with {other:?}")),
        }
    }
    Ok(())
}

fn control_paths_that_are_not(field: &Field) -> Strike {
    let socket = open(field)?;
    let long = format!("GET /{}", "a/".repeat(4000));
    for line in [
        "POST /",
        "GET /page/",
        "GET /v1/../../etc/shadow",
        "GET /v1/ports/%2e%2e%2f%2e%2e",
        "DELETE /v1/switch",
        "BREW /v1/switch",
        "POST /openapi.json",
        "PUT /v1/vifs/x/filter",
        &long,
    ] {
        refused(&socket, &request(line, ""))?;
        field.struck();
    }
    Ok(())
}

fn control_smuggled(field: &Field) -> Strike {
    // Under either of the lengths, the second request must not be taken for a request.
    let hidden = "DELETE /v1/vifs/a HTTP/1.1\r\nhost: w\r\n\r\n";
    for lengths in [
        format!("content-length: 0\r\ncontent-length: {}", hidden.len()),
        format!("content-length: {}\r\ntransfer-encoding: identity", hidden.len()),
        "content-length: +0".into(),
        "transfer-encoding: chunked, identity".into(),
    ] {
        let socket = open(field)?;
        let outer = format!("GET /v1/vifs HTTP/1.1\r\nhost: w\r\n{lengths}\r\n\r\n{hidden}");
        let mut writer = &socket;
        let _ = writer.write_all(outer.as_bytes());
        let mut reader = BufReader::new(&socket);
        while let Ok(Some((status, body))) = answer(&mut reader) {
            if status == 200 && body.contains("\"note\"") {
                return harm(format!("a hidden request was done: {lengths}"));
            }
        }
        field.struck();
    }
    Ok(())
}

fn control_json_that_is_deep(field: &Field) -> Strike {
    for (open_with, close) in [("[", "]"), ("{\"name\":", "}")] {
        let times = 60_000 / (open_with.len() + close.len());
        let deep = format!("{}1{}", open_with.repeat(times), close.repeat(times));
        refused(&open(field)?, &request("POST /v1/vifs", &deep))?;
        field.struck();
    }
    Ok(())
}

fn control_strings_that_are_long(field: &Field) -> Strike {
    let socket = open(field)?;
    for name in ["a".repeat(10_000), "%07%1b[2J".repeat(100), "%ed%a0%80".into(), "%00".into()] {
        refused(&socket, &request(&format!("DELETE /v1/vifs/{name}"), ""))?;
        refused(&socket, &request(&format!("GET /v1/ports/{name}/policies"), ""))?;
    }
    for name in ["a".repeat(60_000), "\\u0007\\u001b[2J".repeat(100), "\\ud800".into()] {
        refused(&socket, &request("POST /v1/vifs", &format!("{{\"name\":\"{name}\"}}")))?;
    }
    Ok(())
}

fn control_paths_that_climb(field: &Field) -> Strike {
    for name in ["../../x", "/tmp/x", ".", "a/b", "a\\u0000b"] {
        added_and_refused(field, name)?;
    }
    Ok(())
}

/// Runs `weir vif add NAME` as a user would.
fn added_and_refused(field: &Field, name: &str) -> Strike {
    let output = field
        .weir()
        .args(["vif", "add", &name.replace("\\u0000", "\u{1}"), "--control"])
        .arg(field.control())
        .output()?;
    if output.status.success() { harm(format!("`vif add {name}` succeeds")) } else { Ok(()) }
}

fn control_interfaces_that_come_and_go(field: &Field) -> Strike {
    for verb in ["add", "del"] {
        let output =
            field.weir().args(["vif", verb, "guest", "--control"]).arg(field.control()).output()?;
        if !output.status.success() {
            return harm(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        field.struck();
        std::thread::sleep(Duration::from_millis(250));
    }
    Ok(())
}

fn control_settings_without_pause(field: &Field) -> Strike {
    let socket = open(field)?;
    let changes = [
        request("PATCH /v1/vifs/stormy", "{\"vlan\":{\"access\":2}}"),
        request("PATCH /v1/vifs/stormy", "{\"vlan\":{\"access\":1}}"),
        request("PUT /v1/ports/stormy/filter", "[]"),
        request("PUT /v1/stages", "{\"on\":true}"),
        request("PUT /v1/stages", "{\"on\":false}"),
        request("GET /v1/vifs", ""),
    ];
    loop {
        for change in &changes {
            let (status, answer) = ask(&socket, change)?;
            if status != 200 {
                return harm(format!("{status} {answer}"));
            }
        }
        field.struck();
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn control_by_another_user(field: &Field) -> Strike {
    let begin = Instant::now();
    match UnixStream::connect(field.control()) {
        Ok(_) => harm("another user opens the control socket"),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Ok(()),
        Err(error) => harm(format!("after {:?}: {error}", begin.elapsed())),
    }
}

fn sockets_replaced_by_another_user(field: &Field) -> Strike {
    for name in ["control.sock", "a.sock", "weir.toml", "weir.log"] {
        let path = field.dir().join(name);
        if std::fs::remove_file(&path).is_ok() || std::fs::rename(&path, field.file("x")).is_ok() {
            return harm(format!("another user removes {name}"));
        }
    }
    match std::os::unix::net::UnixListener::bind(field.dir().join("b.sock")) {
        Ok(_) => harm("another user takes a socket's place"),
        Err(_) => Ok(()),
    }
}
