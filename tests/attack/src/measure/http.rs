//! Answers of the HTTP API, in the parts that attacks need.

use std::io::{self, BufRead};

/// The status and the body of the next answer; `None` at the end of the connection. A body without a length is not
/// read.
pub fn answer(from: &mut impl BufRead) -> io::Result<Option<(u16, String)>> {
    let mut line = String::new();
    if from.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let no_http = || io::Error::new(io::ErrorKind::InvalidData, format!("not HTTP: {line:?}"));
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or_else(no_http)?;
    let mut length = 0;
    loop {
        let mut header = String::new();
        if from.read_line(&mut header)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let header = header.trim_end().to_ascii_lowercase();
        if header.is_empty() {
            break;
        }
        if let Some(value) = header.strip_prefix("content-length:") {
            length = value.trim().parse().map_err(|_| no_http())?;
        }
    }
    let mut body = vec![0; length];
    from.read_exact(&mut body)?;
    Ok(Some((status, String::from_utf8_lossy(&body).into_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_one_after_the_other() {
        let mut bytes =
            &b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 404 Not Found\r\n\r\n"[..];
        assert_eq!(answer(&mut bytes).unwrap(), Some((200, "ok".into())));
        assert_eq!(answer(&mut bytes).unwrap(), Some((404, String::new())));
        assert_eq!(answer(&mut bytes).unwrap(), None);
        assert!(answer(&mut &b"{}\n"[..]).is_err());
    }
}
