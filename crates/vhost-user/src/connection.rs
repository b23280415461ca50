//! The back end's side of the socket.

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use weir_limits::VHOST_USER_OUTBOUND_BYTES_MAX;

use crate::error::{ConnectionError, ProtocolError};
use crate::frame::{self, FrameReader, Peeked, Takes, send_some};
use crate::header::{Header, REPLY_FLAG};
use crate::message::FrontMessage;
use crate::payload::{Payload, VringState};
use crate::request::{Request, RequestCode};

/// A request as it came in.
#[derive(Debug)]
pub struct Incoming {
    /// What a reply has to name.
    pub request: RequestCode,
    /// The sender asks for a `REPLY_ACK` status. Counts only where `REPLY_ACK` is negotiated and
    /// the request has no [reply of its own](crate::Request::has_own_reply).
    pub need_reply: bool,
    /// The request itself.
    pub message: FrontMessage,
}

/// A request that was looked at, and is in the socket still.
#[derive(Debug)]
pub struct Glimpse {
    /// The request.
    pub incoming: Incoming,
    /// Its bytes, as they came.
    pub bytes: Vec<u8>,
    /// By which it is taken from the socket.
    pub receipt: Receipt,
}

/// Names a request that is in the socket still.
#[derive(Debug)]
pub struct Receipt {
    len: usize,
    /// Descriptors that come with it.
    fds: RangeInclusive<usize>,
}

impl Receipt {
    /// Of the request with these bytes, whatever descriptors it has.
    pub fn of(bytes: &[u8]) -> Self {
        Self { len: bytes.len(), fds: 0..=usize::MAX }
    }
}

/// What a [look](Connection::peek) has found.
#[derive(Debug)]
pub enum Peek {
    /// No request.
    Nothing,
    /// A part of one, or one that was sent in pieces: it can only be [received](Connection::receive).
    Part,
    /// A whole one.
    Whole(Glimpse),
}

/// A session's socket, for the back end. No call waits for the peer, whatever the socket's flags are. Watch it with
/// `poll` or `epoll` for reading, and for writing while [`wants_write`](Self::wants_write). After any error the
/// session is over: drop the connection.
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
    reader: FrameReader,
    takes: Takes,
    outbound: VecDeque<Outbound>,
    /// Bytes in `outbound` that are not sent yet.
    outbound_bytes: usize,
}

/// A reply that the socket hasn't taken whole.
#[derive(Debug)]
struct Outbound {
    bytes: Vec<u8>,
    sent: usize,
    /// Go out with the first byte.
    fds: Vec<OwnedFd>,
}

impl Connection {
    /// Speaks over a connected stream socket.
    pub fn new(stream: UnixStream) -> Self {
        Self {
            socket: stream.into(),
            reader: FrameReader::new(),
            takes: |_| true,
            outbound: VecDeque::new(),
            outbound_bytes: 0,
        }
    }

    /// The same, which takes descriptors of which `takes` says so; a message with others is an error.
    #[must_use]
    pub fn taking(self, takes: fn(BorrowedFd<'_>) -> bool) -> Self {
        Self { takes, ..self }
    }

    /// The next request. `None`: nothing, or only a part of one, has arrived. Requests may have
    /// piled up: call again until `None`, or come back while the socket is readable.
    ///
    /// # Errors
    /// [`ConnectionError::Closed`] at the ordinary end, [`ConnectionError::ClosedMidMessage`],
    /// [`ConnectionError::Protocol`], [`ConnectionError::Socket`]. File descriptors that came
    /// with a message that isn't returned are closed.
    pub fn receive(&mut self) -> Result<Option<Incoming>, ConnectionError> {
        let Some(frame) = self.reader.receive(&self.socket, self.takes)? else {
            return Ok(None);
        };
        let message = FrontMessage::decode(&frame.header, &frame.body, frame.fds)?;
        Ok(Some(Incoming {
            request: frame.header.request(),
            need_reply: frame.header.needs_reply(),
            message,
        }))
    }

    /// Looks at the next request and leaves it in the socket, until it is [consumed](Self::consume): whoever has the
    /// socket after this process finds it there. Not in the middle of one that is being [received](Self::receive).
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub fn peek(&mut self) -> Result<Peek, ConnectionError> {
        let frame = match frame::peek(&self.socket, self.takes, FrontMessage::descriptors)? {
            Peeked::Nothing => return Ok(Peek::Nothing),
            Peeked::Part => return Ok(Peek::Part),
            Peeked::Whole(frame) => frame,
        };
        let bytes = [&frame.header.encode(), &frame.body[..]].concat();
        let fds = frame.fds.len();
        // A descriptor that needs not be there may be.
        let spare = frame.header.request() == Request::RemMemReg;
        let receipt = Receipt { len: bytes.len(), fds: fds..=fds + usize::from(spare) };
        let message = FrontMessage::decode(&frame.header, &frame.body, frame.fds)?;
        let incoming = Incoming {
            request: frame.header.request(),
            need_reply: frame.header.needs_reply(),
            message,
        };
        Ok(Peek::Whole(Glimpse { incoming, bytes, receipt }))
    }

    /// Takes a request that was looked at.
    ///
    /// # Errors
    /// As [`receive`](Self::receive); [`ConnectionError::Protocol`] if its descriptors were not those that were seen.
    pub fn consume(&mut self, receipt: &Receipt) -> Result<(), ConnectionError> {
        frame::consume(&self.socket, receipt.len, &receipt.fds)
    }

    /// Whether the next bytes in the socket are these.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub fn begins_with(&mut self, bytes: &[u8]) -> Result<bool, ConnectionError> {
        Ok(match frame::peek(&self.socket, |_| true, |_, _| 0)? {
            Peeked::Whole(frame) => [&frame.header.encode(), &frame.body[..]].concat() == bytes,
            Peeked::Nothing | Peeked::Part => false,
        })
    }

    /// Replies with a number: features, queues, memory slots, status.
    pub fn reply_u64(
        &mut self,
        request: impl Into<RequestCode>,
        value: u64,
    ) -> Result<(), ConnectionError> {
        self.send_reply(request, &value.encode(), Vec::new())
    }

    /// Replies with a ring's state: `GET_VRING_BASE`.
    pub fn reply(
        &mut self,
        request: impl Into<RequestCode>,
        state: VringState,
    ) -> Result<(), ConnectionError> {
        self.send_reply(request, &state.encode(), Vec::new())
    }

    /// Acknowledges a request (`REPLY_ACK`): a `u64`, zero for success.
    pub fn ack(
        &mut self,
        request: impl Into<RequestCode>,
        ok: bool,
    ) -> Result<(), ConnectionError> {
        self.reply_u64(request, u64::from(!ok))
    }

    /// Replies with any body and descriptors. What the socket doesn't take now is kept, in order.
    ///
    /// # Errors
    /// [`ConnectionError::OutboundFull`] if too much is kept already, which takes a front end that
    /// sends request after request without reading a reply. [`ConnectionError::Closed`],
    /// [`ConnectionError::Socket`], or a body above the limit as [`ConnectionError::Protocol`].
    pub fn send_reply(
        &mut self,
        request: impl Into<RequestCode>,
        body: &[u8],
        fds: Vec<OwnedFd>,
    ) -> Result<(), ConnectionError> {
        self.send_bytes(reply_bytes(request, body)?, fds)
    }

    /// Sends a reply that is made [already](reply_bytes), as [`send_reply`](Self::send_reply) does.
    ///
    /// # Errors
    /// As [`send_reply`](Self::send_reply).
    pub fn send_bytes(&mut self, bytes: Vec<u8>, fds: Vec<OwnedFd>) -> Result<(), ConnectionError> {
        let queued = self.outbound_bytes;
        if queued + bytes.len() > VHOST_USER_OUTBOUND_BYTES_MAX {
            return Err(ConnectionError::OutboundFull { queued });
        }
        self.outbound_bytes += bytes.len();
        self.outbound.push_back(Outbound { bytes, sent: 0, fds });
        self.flush()
    }

    /// Whether a part of a request has arrived, and [`receive`](Self::receive) has to wait for the rest.
    pub fn is_mid_message(&self) -> bool {
        self.reader.is_mid_message()
    }

    /// Whether replies wait for the socket to become writable.
    pub fn wants_write(&self) -> bool {
        !self.outbound.is_empty()
    }

    /// Sends what waits, as far as the socket takes it.
    ///
    /// # Errors
    /// [`ConnectionError::Closed`], [`ConnectionError::Socket`].
    pub fn flush(&mut self) -> Result<(), ConnectionError> {
        while let Some(reply) = self.outbound.front_mut() {
            let fds: Vec<_> = reply.fds.iter().map(AsFd::as_fd).collect();
            let rest = reply.bytes.get(reply.sent..).unwrap_or_default();
            let sent = match send_some(&self.socket, rest, &fds) {
                Ok(sent) => sent,
                Err(ConnectionError::Socket(Errno::AGAIN)) => return Ok(()),
                Err(error) => return Err(error),
            };
            reply.fds.clear();
            reply.sent += sent;
            self.outbound_bytes -= sent;
            if reply.sent == reply.bytes.len() {
                self.outbound.pop_front();
            }
        }
        Ok(())
    }
}

/// A whole reply.
///
/// # Errors
/// [`ProtocolError::BodyTooLarge`]
pub fn reply_bytes(request: impl Into<RequestCode>, body: &[u8]) -> Result<Vec<u8>, ProtocolError> {
    let header = Header::new(request, REPLY_FLAG, body.len())?;
    Ok([&header.encode(), body].concat())
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
