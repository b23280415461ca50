//! Messages in both directions over a non-blocking stream, with bounded memory.

use std::io::{self, Read, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;
use weir_limits::AGENT_OUTBOUND_BYTES_MAX;

use crate::lines::{Lines, TooLong};
use crate::protocol::{DecodeError, EncodeError, decode, encode};

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
}
