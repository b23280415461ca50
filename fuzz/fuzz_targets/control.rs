//! Bytes of a client on the control socket, against the server as weir runs it: each line is answered by one line of
//! JSON, in order, and the connection ends when the client's side does.
//!
//! Byte 0 of the input is where the client pauses: what follows comes with a write of its own.
#![no_main]

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use weir_switch::control::{ControlHandler, ControlServer, Request, Response};

/// Says every request back, so that what was read can be compared.
struct Echo;

impl ControlHandler for Echo {
    fn handle(&self, request: Request) -> Response {
        Response::Noted { note: serde_json::to_string(&request).expect("a request as JSON") }
    }
}

static SERVER: LazyLock<ControlServer> = LazyLock::new(|| {
    let path = std::env::temp_dir().join(format!("weir-fuzz-{}.sock", std::process::id()));
    ControlServer::start(&path, Arc::new(Echo)).expect("a control socket")
});

fuzz_target!(|input: &[u8]| {
    let [pause, lines @ ..] = input else { return };
    let mut client = UnixStream::connect(SERVER.path()).expect("the server accepts");
    let (first, second) = lines.split_at(lines.len().min(usize::from(*pause)));
    // The server may have refused the line and closed by then.
    let _ = client.write_all(first);
    let _ = client.write_all(second);
    let _ = client.shutdown(Shutdown::Write);
    let mut answers = Vec::new();
    let _ = client.read_to_end(&mut answers);
    for answer in answers.split_inclusive(|byte| *byte == b'\n') {
        assert_eq!(answer.last(), Some(&b'\n'), "half an answer");
        match serde_json::from_slice(answer).expect("an answer as JSON") {
            Response::Noted { note } => {
                let again: Request = serde_json::from_str(&note).expect("the request again");
                assert_eq!(serde_json::to_string(&again).expect("JSON"), note);
            }
            Response::Error { .. } => {}
            other => panic!("nobody said {other:?}"),
        }
    }
});
