//! The back end's side of the socket.

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use weir_limits::VHOST_USER_OUTBOUND_BYTES_MAX;

use crate::error::{ConnectionError, ProtocolError};
use crate::frame::{self, FrameReader, Peeked, Takes, send_some};
use crate::message::FrontMessage;
use crate::payload::{IotlbMsg, Payload, VringState};
use crate::request::{Header, REPLY_FLAG, Request, RequestCode, VHOST_USER_BACKEND_IOTLB_MSG};

/// A request that has come in.
#[derive(Debug)]
pub struct Incoming {
    /// The request code that a reply has to name.
    pub request: RequestCode,
    /// The sender asks for a `REPLY_ACK` status. The wish counts only if `REPLY_ACK` was negotiated and the request has
    /// no [reply of its own](crate::Request::has_own_reply).
    pub need_reply: bool,
    /// The request itself.
    pub message: FrontMessage,
}

/// A request that was peeked at, and is still in the socket.
#[derive(Debug)]
pub struct Glimpse {
    /// The request.
    pub incoming: Incoming,
    /// The request's bytes, as they came.
    pub bytes: Vec<u8>,
    /// The receipt by which the request is taken from the socket.
    pub receipt: Receipt,
}

/// Names a request that is still in the socket.
#[derive(Debug)]
pub struct Receipt {
    len: usize,
    /// The number of descriptors that come with it.
    fds: RangeInclusive<usize>,
}

impl Receipt {
    /// The receipt of the request with these bytes, whatever descriptors it has.
    pub fn of(bytes: &[u8]) -> Self {
        Self { len: bytes.len(), fds: 0..=usize::MAX }
    }
}

/// The result of a [peek](Connection::peek).
#[derive(Debug)]
pub enum Peek {
    /// No request.
    Nothing,
    /// A part of a request, or one that was sent in pieces: it can only be [received](Connection::receive).
    Part,
    /// A whole request.
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

/// A reply that the socket has not yet taken whole.
#[derive(Debug)]
struct Outbound {
    bytes: Vec<u8>,
    sent: usize,
    /// Descriptors that go out with the first byte.
    fds: Vec<OwnedFd>,
}

impl Connection {
    /// A connection over a connected stream socket.
    pub fn new(stream: UnixStream) -> Self {
        Self {
            socket: stream.into(),
            reader: FrameReader::new(),
            takes: |_| true,
            outbound: VecDeque::new(),
            outbound_bytes: 0,
        }
    }

    /// Makes the connection accept only descriptors for which `takes` is true. A message with other descriptors is then
    /// an error.
    #[must_use]
    pub fn taking(self, takes: fn(BorrowedFd<'_>) -> bool) -> Self {
        Self { takes, ..self }
    }

    /// The next request; `None` if nothing, or only a part of one, has arrived. Requests may have piled up: call again
    /// until `None`, or come back while the socket is readable.
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

    /// Peeks at the next request. It stays in the socket until it is [consumed](Self::consume): a process that has the
    /// socket after this one finds it there. Not to be used in the middle of a request that is being
    /// [received](Self::receive).
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
        // A `REM_MEM_REG` can come with a descriptor that it does not need.
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

    /// Takes a request that was peeked at from the socket.
    ///
    /// # Errors
    /// As [`receive`](Self::receive); [`ConnectionError::Protocol`] if its descriptors differ from those that were
    /// seen.
    pub fn consume(&mut self, receipt: &Receipt) -> Result<(), ConnectionError> {
        frame::consume(&self.socket, receipt.len, &receipt.fds)
    }

    /// True if the next bytes in the socket are `bytes`.
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

    /// Replies with any body and descriptors. The part that the socket does not take now is kept, in order.
    ///
    /// # Errors
    /// [`ConnectionError::OutboundFull`] if too much is kept already, for a front end that sends request after request
    /// without reading a reply. [`ConnectionError::Closed`], [`ConnectionError::Socket`], or a body above the limit as
    /// [`ConnectionError::Protocol`].
    pub fn send_reply(
        &mut self,
        request: impl Into<RequestCode>,
        body: &[u8],
        fds: Vec<OwnedFd>,
    ) -> Result<(), ConnectionError> {
        self.send_bytes(reply_bytes(request, body)?, fds)
    }

    /// Sends a reply that was made [before](reply_bytes), as [`send_reply`](Self::send_reply) does.
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

    /// True if a part of a request has arrived, and [`receive`](Self::receive) has to wait for the rest.
    pub fn is_mid_message(&self) -> bool {
        self.reader.is_mid_message()
    }

    /// True if replies wait for the socket to become writable.
    pub fn wants_write(&self) -> bool {
        !self.outbound.is_empty()
    }

    /// Sends the waiting replies, as far as the socket takes them.
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

/// The bytes of a whole reply.
///
/// # Errors
/// [`ProtocolError::BodyTooLarge`]
pub fn reply_bytes(request: impl Into<RequestCode>, body: &[u8]) -> Result<Vec<u8>, ProtocolError> {
    let header = Header::new(request, REPLY_FLAG, body.len())?;
    Ok([&header.encode(), body].concat())
}

/// Asks a front end for a translation, over the channel that it gave by `SET_BACKEND_REQ_FD`. No answer is expected
/// there: an [`Update`](IotlbMsg::UPDATE) comes by the session. `false`, with nothing sent, if the socket is full.
///
/// # Errors
/// [`ConnectionError::Closed`], [`ConnectionError::Socket`]; [`ConnectionError::OutboundFull`] if the socket took only
/// a part, which a stream socket does not do with few bytes.
pub fn ask_for(
    channel: impl AsFd,
    iova: u64,
    size: u64,
    permission: u8,
) -> Result<bool, ConnectionError> {
    let message = IotlbMsg { iova, size, user: 0, permission, kind: IotlbMsg::MISS };
    let body = message.encode();
    let header = Header::new(VHOST_USER_BACKEND_IOTLB_MSG, 0, body.len())?;
    let bytes = [&header.encode(), &body[..]].concat();
    match send_some(channel, &bytes, &[]) {
        Ok(sent) if sent == bytes.len() => Ok(true),
        Ok(sent) => Err(ConnectionError::OutboundFull { queued: bytes.len() - sent }),
        Err(ConnectionError::Socket(Errno::AGAIN)) => Ok(false),
        Err(error) => Err(error),
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
