//! Messages in both directions over a non-blocking stream, with bounded memory.

use std::io::{self, Read, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;
use weir_limits::{AGENT_LINE_BYTES_MAX, AGENT_OUTBOUND_BYTES_MAX};

use crate::protocol::{DecodeError, EncodeError, decode, encode};

/// Error: a line is longer than `AGENT_LINE_BYTES_MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a line has more than {AGENT_LINE_BYTES_MAX} bytes")]
pub struct TooLong;

/// Collects bytes and returns lines. It never keeps more than one line's worth of bytes.
#[derive(Debug)]
struct Lines {
    /// Buffer of `AGENT_LINE_BYTES_MAX` bytes.
    buffer: Box<[u8]>,
    /// Pending bytes: `buffer[start..end]`.
    start: usize,
    end: usize,
    /// End of the part that is known to hold no newline.
    scanned: usize,
}

impl Lines {
    pub(crate) fn new() -> Self {
        Self { buffer: vec![0; AGENT_LINE_BYTES_MAX].into(), start: 0, end: 0, scanned: 0 }
    }

    /// Reads once, up to the free room, and returns the number of bytes: 0 at the stream's end.
    /// Call it when [`Lines::next_line`] has no whole line.
    pub(crate) fn fill(&mut self, source: &mut impl Read) -> io::Result<usize> {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let room = self.buffer.get_mut(self.end..).unwrap_or_default();
        let room_len = room.len();
        let len = source.read(room)?.min(room_len);
        self.end += len;
        Ok(len)
    }

    /// Returns the next non-empty line, without its newline; `None` if it is incomplete.
    pub(crate) fn next_line(&mut self) -> Result<Option<&[u8]>, TooLong> {
        loop {
            let pending = self.buffer.get(self.start..self.end).unwrap_or_default();
            let mut unseen = pending.iter().skip(self.scanned);
            let Some(offset) = unseen.position(|byte| *byte == b'\n') else {
                self.scanned = pending.len();
                return if pending.len() < AGENT_LINE_BYTES_MAX { Ok(None) } else { Err(TooLong) };
            };
            let (line_start, len) = (self.start, self.scanned + offset);
            self.start += len + 1;
            self.scanned = 0;
            if len > 0 {
                return Ok(self.buffer.get(line_start..line_start + len));
            }
        }
    }
}

/// Reason why a channel is unusable.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The other side closed the connection.
    #[error("no connection to the peer")]
    Closed,
    /// The other side sent a line that is too long.
    #[error(transparent)]
    TooLong(#[from] TooLong),
    /// The other side sent a line that is not a message.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// A message cannot be encoded.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// The other side does not read.
    #[error("the peer left {len} bytes unread")]
    Unread {
        /// Number of waiting bytes.
        len: usize,
    },
    /// The stream failed.
    #[error("connection: {0}")]
    Io(#[from] io::Error),
}

/// One side of a connection.
#[derive(Debug)]
pub(crate) struct Channel<S> {
    stream: S,
    inbound: Lines,
    outbound: Vec<u8>,
}

impl<S: Read + Write> Channel<S> {
    /// Returns a channel over `stream`, which must not block.
    pub(crate) fn new(stream: S) -> Self {
        Self { stream, inbound: Lines::new(), outbound: Vec::new() }
    }

    pub(crate) fn stream(&self) -> &S {
        &self.stream
    }

    /// Returns the next complete message; `None` if [`Channel::fill`] must be called first.
    pub(crate) fn next<M: DeserializeOwned>(&mut self) -> Result<Option<M>, ChannelError> {
        match self.inbound.next_line()? {
            Some(line) => Ok(Some(decode(line)?)),
            None => Ok(None),
        }
    }

    /// Reads once. Returns the number of bytes; `None` if there is nothing to read now.
    pub(crate) fn fill(&mut self) -> Result<Option<usize>, ChannelError> {
        loop {
            match self.inbound.fill(&mut self.stream) {
                Ok(0) => return Err(ChannelError::Closed),
                Ok(len) => return Ok(Some(len)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if hung_up(&error) => return Err(ChannelError::Closed),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sends `message`, or keeps it until the other side reads.
    pub(crate) fn send(&mut self, message: &impl Serialize) -> Result<(), ChannelError> {
        if self.outbound.len() >= AGENT_OUTBOUND_BYTES_MAX {
            return Err(ChannelError::Unread { len: self.outbound.len() });
        }
        encode(message, &mut self.outbound)?;
        self.flush()
    }

    /// Ends a partial line that an earlier agent may have left on this port.
    pub(crate) fn end_line(&mut self) {
        self.outbound.push(b'\n');
    }

    /// Returns true if bytes wait for the stream to become writable.
    pub(crate) fn wants_write(&self) -> bool {
        !self.outbound.is_empty()
    }

    /// Writes as much as the stream takes.
    pub(crate) fn flush(&mut self) -> Result<(), ChannelError> {
        while !self.outbound.is_empty() {
            match self.stream.write(&self.outbound) {
                Ok(0) => break,
                Ok(len) => drop(self.outbound.drain(..len.min(self.outbound.len()))),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if hung_up(&error) => return Err(ChannelError::Closed),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Returns true if the error means a hang-up. A terminal whose other side was closed reports `EIO`.
fn hung_up(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset};
    matches!(error.kind(), BrokenPipe | ConnectionReset) || error.raw_os_error() == Some(libc::EIO)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use proptest::prelude::*;

    use super::*;
    use crate::protocol::HostMessage;

    #[test]
    fn a_peer_that_never_reads_is_given_up_with_bounded_memory() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut channel = Channel::new(ours);
        let error = loop {
            if let Err(error) = channel.send(&HostMessage::Ping) {
                break error;
            }
        };
        assert!(matches!(error, ChannelError::Unread { .. }), "{error}");
        assert!(channel.outbound.len() < 2 * AGENT_OUTBOUND_BYTES_MAX);
        drop(theirs);
        assert!(matches!(channel.flush(), Err(ChannelError::Closed)));
    }

    #[test]
    fn messages_arrive_in_order_and_then_the_end() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (mut ours, mut theirs) = (Channel::new(ours), Channel::new(theirs));
        ours.end_line();
        ours.send(&HostMessage::Ping).unwrap();
        ours.send(&HostMessage::Bye).unwrap();
        drop(ours);
        assert!(theirs.next::<HostMessage>().unwrap().is_none());
        theirs.fill().unwrap();
        assert_eq!(theirs.next().unwrap(), Some(HostMessage::Ping));
        assert_eq!(theirs.next().unwrap(), Some(HostMessage::Bye));
        assert!(matches!(theirs.fill(), Err(ChannelError::Closed)));
    }

    /// Returns all lines of `bytes`, which come in pieces of at most `piece` bytes.
    fn lines(bytes: &[u8], piece: usize) -> Result<Vec<Vec<u8>>, TooLong> {
        let mut lines = Lines::new();
        let mut out = Vec::new();
        let mut rest = bytes;
        loop {
            while let Some(line) = lines.next_line()? {
                out.push(line.to_vec());
            }
            assert!(lines.buffer.len() == AGENT_LINE_BYTES_MAX);
            let len = lines.fill(&mut rest.take(piece as u64)).unwrap();
            if len == 0 {
                return Ok(out);
            }
            rest = &rest[len..];
        }
    }

    #[test]
    fn lines_are_put_together_and_empty_ones_passed_over() {
        assert_eq!(lines(b"\nab\n\ncd\nrest", 1), Ok(vec![b"ab".to_vec(), b"cd".to_vec()]));
    }

    #[test]
    fn the_longest_line_passes_and_one_byte_more_does_not() {
        let mut bytes = vec![b'x'; AGENT_LINE_BYTES_MAX - 1];
        bytes.push(b'\n');
        assert_eq!(lines(&bytes, usize::MAX).map(|lines| lines.len()), Ok(1));
        bytes.insert(0, b'x');
        assert_eq!(lines(&bytes, 1000), Err(TooLong));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn pieces_make_no_difference(
            bytes in prop::collection::vec(prop_oneof![1 => Just(b'\n'), 20 => any::<u8>()], 0..2 * AGENT_LINE_BYTES_MAX),
            piece in 1_usize..5000,
        ) {
            prop_assert_eq!(lines(&bytes, piece), lines(&bytes, usize::MAX));
        }
    }
}
