//! Lines of bounded length within bounded time, over a stream socket.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Why there is no line.
#[derive(Debug, thiserror::Error)]
pub(super) enum LineError {
    /// More bytes without a newline than allowed.
    #[error("line longer than {max} bytes")]
    TooLong {
        /// The bound.
        max: usize,
    },
    /// Nothing of it came in time.
    #[error("no line came in time")]
    Silent,
    /// It had begun, and was not all there in time.
    #[error("the rest of the line did not come in time")]
    TimedOut,
    /// The other side closed the socket within a line.
    #[error("connection closed within a line")]
    Truncated,
    /// The socket failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Reads lines from a socket and keeps what comes after a newline for the next one.
pub(super) struct LineReader<'s> {
    stream: &'s UnixStream,
    buffer: Vec<u8>,
    /// Bytes of `buffer` known to hold no newline.
    scanned: usize,
    len_max: usize,
}

impl<'s> LineReader<'s> {
    pub fn new(stream: &'s UnixStream, len_max: usize) -> Self {
        Self { stream, buffer: Vec::new(), scanned: 0, len_max }
    }

    /// The next line without its newline; `None` if the other side closed the socket between lines.
    /// The whole line must come within `timeout`, however it is cut into pieces.
    pub fn next_line(&mut self, timeout: Duration) -> Result<Option<Vec<u8>>, LineError> {
        let deadline = Instant::now() + timeout;
        let mut chunk = [0; 4096];
        loop {
            if let Some(line) = self.take_line() {
                return if line.len() < self.len_max {
                    Ok(Some(line))
                } else {
                    Err(self.too_long())
                };
            }
            if self.buffer.len() >= self.len_max {
                return Err(self.too_long());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.too_late());
            }
            self.stream.set_read_timeout(Some(left))?;
            match self.stream.read(&mut chunk) {
                Ok(0) if self.buffer.is_empty() => return Ok(None),
                Ok(0) => return Err(LineError::Truncated),
                Ok(len) => self.buffer.extend_from_slice(chunk.get(..len).unwrap_or(&chunk)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(self.too_late());
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn too_long(&self) -> LineError {
        LineError::TooLong { max: self.len_max }
    }

    fn too_late(&self) -> LineError {
        if self.buffer.is_empty() { LineError::Silent } else { LineError::TimedOut }
    }

    fn take_line(&mut self) -> Option<Vec<u8>> {
        let found = self.buffer.iter().skip(self.scanned).position(|byte| *byte == b'\n');
        let Some(offset) = found else {
            self.scanned = self.buffer.len();
            return None;
        };
        let rest = self.buffer.split_off(self.scanned + offset + 1);
        let mut line = std::mem::replace(&mut self.buffer, rest);
        self.scanned = 0;
        line.pop();
        Some(line)
    }
}

/// Writes `line` and a newline; gives up when the other side has not taken all of it within `timeout`.
pub(super) fn write_line(
    mut stream: &UnixStream,
    mut line: Vec<u8>,
    timeout: Duration,
) -> io::Result<()> {
    line.push(b'\n');
    let deadline = Instant::now() + timeout;
    let mut rest = line.as_slice();
    while !rest.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_write_timeout(Some(left))?;
        match stream.write(rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(len) => rest = rest.get(len..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
