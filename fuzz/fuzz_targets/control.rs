//! Bytes from a client on the control socket, for the server as weir runs it. The answers must be HTTP in order, and
//! the connection must end when the client closes its side.
//!
//! Byte 0 of the input is the offset at which the client pauses: the rest is sent by a second write.
#![cfg_attr(fuzzing, no_main)]

use std::io::{BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use weir_api::{ApiServer, Done, Problem};
use weir_switch::control::{ControlHandler, Request, Response};

/// A handler that checks each request and does nothing.
struct Echo;

impl ControlHandler for Echo {
    fn handle(&self, request: Request) -> Response {
        match request {
            // The JSON form must be read as the same value.
            Request::VifAdd { config } => {
                let text = serde_json::to_string(&config).expect("an interface as JSON");
                let again = serde_json::from_str(&text).expect("the interface again");
                assert_eq!(config, again);
            }
            Request::VifSet { changes, .. } => {
                let text = serde_json::to_string(&changes).expect("changes as JSON");
                assert_eq!(changes, serde_json::from_str(&text).expect("the changes again"));
            }
            _ => {}
        }
        Response::Noted { note: "it is done".into() }
    }
}

static SERVER: LazyLock<ApiServer> = LazyLock::new(|| {
    let path = std::env::temp_dir().join(format!("weir-fuzz-{}.sock", std::process::id()));
    ApiServer::start(&path, Arc::new(Echo)).expect("a control socket")
});

weir_fuzz::target!(|input: &[u8]| {
    let [pause, bytes @ ..] = input else { return };
    let mut client = UnixStream::connect(SERVER.path()).expect("the server accepts");
    let (first, second) = bytes.split_at(bytes.len().min(usize::from(*pause)));
    // The server may have refused the request and closed by then.
    let _ = client.write_all(first);
    let _ = client.write_all(second);
    let _ = client.shutdown(Shutdown::Write);
    // A stream of events has no end.
    client.set_read_timeout(Some(Duration::from_millis(200))).expect("a timeout");
    let mut answers = BufReader::new(client);
    let text = String::from_utf8_lossy(bytes).to_ascii_lowercase();
    while let Some((status, body)) = answer(&mut answers) {
        // Status 100 is no answer yet: the body may follow.
        if status == 100 {
            assert!(text.contains("expect") && body.is_empty(), "nobody asked for it");
            continue;
        }
        assert!((200..600).contains(&status), "status {status}");
        match status {
            200 => {
                // The page, the document, or a confirmation.
                let page = body.starts_with(b"<!doctype html>") && text.contains("get /");
                let done = serde_json::from_slice::<Done>(&body);
                let json = serde_json::from_slice::<serde_json::Value>(&body);
                assert!(page || body.is_empty() || done.is_ok() || json.is_ok(), "{body:?}");
            }
            _ if body.is_empty() => {}
            _ => {
                let problem: Problem = serde_json::from_slice(&body).expect("a problem as JSON");
                assert_eq!(problem.status, status);
            }
        }
    }
});

/// The next answer; `None` at the end or if no answer comes.
fn answer(from: &mut impl BufRead) -> Option<(u16, Vec<u8>)> {
    let mut line = String::new();
    from.read_line(&mut line).ok().filter(|length| *length > 0)?;
    // The line is incomplete if the connection ended before it.
    let line = line.strip_suffix("\r\n")?;
    let status = line.strip_prefix("HTTP/1.").expect("an answer").split(' ').nth(1);
    let status = status.expect("a status").parse().expect("a number");
    let mut length = 0;
    loop {
        let mut header = String::new();
        from.read_line(&mut header).ok().filter(|length| *length > 0)?;
        let header = header.trim_end().to_ascii_lowercase();
        if header.is_empty() {
            break;
        }
        // A stream has no end.
        if header.starts_with("transfer-encoding:") {
            return None;
        }
        if let Some(value) = header.strip_prefix("content-length:") {
            length = value.trim().parse().expect("a length");
        }
    }
    let mut body = vec![0; length];
    from.read_exact(&mut body).ok()?;
    Some((status, body))
}
