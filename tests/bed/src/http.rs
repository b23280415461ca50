//! A minimal HTTP client for programs on this machine.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

use crate::error::{Error, Result, check};

/// Longest time for an answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// The address of a port of this machine on which no program listens now.
pub fn free_address() -> Result<SocketAddrV4> {
    let failed = |source| Error::Io { what: "find a free port".into(), source };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
    let port = listener.local_addr().map_err(failed)?.port();
    Ok(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))
}

/// The body of the answer to `GET target` at `address`.
pub fn get(address: SocketAddrV4, target: &str) -> Result<String> {
    let failed = |source| Error::Io { what: format!("ask {address} for {target}"), source };
    let stream = TcpStream::connect(address).map_err(failed)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    exchange(stream, target)
}

/// The answer of the server at a Unix socket.
pub fn get_unix(socket: &Path, target: &str) -> Result<String> {
    let stream = UnixStream::connect(socket).map_err(Error::io("connect to", socket))?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(Error::io("set up", socket))?;
    exchange(stream, target)
}

/// `text` as a part of a query.
pub fn encoded(text: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    text.bytes().map(byte).collect()
}

/// Sends one request as HTTP/1.0: the answer ends with the connection.
fn exchange(mut stream: impl Read + Write, target: &str) -> Result<String> {
    let failed = |source| Error::Io { what: format!("ask for {target}"), source };
    let request = format!("GET {target} HTTP/1.0\r\nhost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).map_err(failed)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).map_err(failed)?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) =
        answer.split_once("\r\n\r\n").ok_or_else(|| Error::parse("an answer", &*answer))?;
    let good = head.split(' ').nth(1) == Some("200");
    check(good, || format!("{target}: {}: {body}", head.lines().next().unwrap_or_default()))?;
    Ok(body.to_owned())
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn an_answer_is_its_body_and_a_refusal_an_error() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, listener.local_addr().unwrap().port());
        let served = thread::spawn(move || {
            for answer in
                ["HTTP/1.0 200 OK\r\na: b\r\n\r\nbody\r\n\r\n", "HTTP/1.1 404 No\r\n\r\nno"]
            {
                let mut stream = listener.accept().unwrap().0;
                let mut request = [0; 1024];
                assert!(stream.read(&mut request).unwrap() > 0);
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        assert_eq!(get(address, "/a").unwrap(), "body\r\n\r\n");
        assert!(get(address, "/a").unwrap_err().to_string().contains("404"));
        served.join().unwrap();
    }

    #[test]
    fn a_query_has_no_characters_of_its_own() {
        assert_eq!(encoded("sum(a{b=\"c\"}) + 1"), "sum%28a%7Bb%3D%22c%22%7D%29%20%2B%201");
    }
}
