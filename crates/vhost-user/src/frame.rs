//! Whole messages over a Unix stream socket, with the file descriptors that belong to each.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use weir_limits::VHOST_USER_FDS_MAX;

use crate::error::{ConnectionError, ProtocolError};
use crate::request::{HEADER_LEN, Header};

/// Tells whether a received descriptor may be kept.
pub(crate) type Takes = fn(BorrowedFd<'_>) -> bool;

/// One whole message; its body is not checked.
pub(crate) struct Frame {
    pub(crate) header: Header,
    pub(crate) body: Vec<u8>,
    pub(crate) fds: Vec<OwnedFd>,
}

/// Collects one message at a time from a socket.
///
/// The reader never asks for a byte beyond the message. Descriptors are queued with the bytes with which they were
/// sent, so all that arrive belong to this message.
#[derive(Debug)]
pub(crate) struct FrameReader {
    /// Room for the header, and, once the header is known, for the body after it.
    buffer: Vec<u8>,
    /// Bytes of `buffer` that have arrived.
    filled: usize,
    header: Option<Header>,
    fds: Vec<OwnedFd>,
}

impl FrameReader {
    pub(crate) fn new() -> Self {
        Self { buffer: vec![0; HEADER_LEN], filled: 0, header: None, fds: Vec::new() }
    }

    /// Takes what the socket has, without waiting. `None`: the message is not complete yet.
    pub(crate) fn receive(
        &mut self,
        socket: impl AsFd,
        takes: Takes,
    ) -> Result<Option<Frame>, ConnectionError> {
        loop {
            if let Some(frame) = self.complete()? {
                return Ok(Some(frame));
            }
            let room = self.buffer.get_mut(self.filled..).unwrap_or_default();
            match receive_some(socket.as_fd(), room, &mut self.fds, takes) {
                Ok(0) => return Err(self.closed()),
                Ok(received) => self.filled += received,
                Err(ConnectionError::Socket(Errno::AGAIN)) => return Ok(None),
                Err(ConnectionError::Closed) => return Err(self.closed()),
                Err(error) => {
                    self.fds.clear();
                    return Err(error);
                }
            }
        }
    }

    pub(crate) fn is_mid_message(&self) -> bool {
        self.filled > 0
    }

    /// The message if it is whole. Makes room for the body when the header has become whole.
    fn complete(&mut self) -> Result<Option<Frame>, ProtocolError> {
        if self.filled < self.buffer.len() {
            return Ok(None);
        }
        let header = match self.header {
            Some(header) => header,
            None => {
                let Some(bytes) = self.buffer.first_chunk::<HEADER_LEN>() else {
                    return Ok(None);
                };
                let header = Header::decode(bytes).inspect_err(|_| self.fds.clear())?;
                self.header = Some(header);
                if header.body_len() > 0 {
                    self.buffer.resize(HEADER_LEN + header.body_len(), 0);
                    return Ok(None);
                }
                header
            }
        };
        let whole = std::mem::replace(self, Self::new());
        let body = whole.buffer.get(HEADER_LEN..).unwrap_or_default().to_vec();
        let fds = whole.fds;
        Ok(Some(Frame { header, body, fds }))
    }

    /// The end of the stream, which is an error inside a message only.
    fn closed(&mut self) -> ConnectionError {
        self.fds.clear();
        match self.filled {
            0 => ConnectionError::Closed,
            received => ConnectionError::ClosedMidMessage { received },
        }
    }
}

/// The result of a peek.
pub(crate) enum Peeked {
    /// Nothing.
    Nothing,
    /// A part of a message, or a message in more than one piece.
    Part,
    /// A message, which stays where it is.
    Whole(Frame),
}

/// Peeks at the next message. `fds_max` gives the number of descriptors that belong to a message of
/// this header and body: peeking at a message without descriptors also returns those of the next
/// message.
pub(crate) fn peek(
    socket: impl AsFd,
    takes: Takes,
    fds_max: impl FnOnce(&Header, &[u8]) -> usize,
) -> Result<Peeked, ConnectionError> {
    let mut head = [0; HEADER_LEN];
    let (received, _) = match peek_some(socket.as_fd(), &mut head) {
        Err(ConnectionError::Socket(Errno::AGAIN)) => return Ok(Peeked::Nothing),
        peeked => peeked?,
    };
    match received {
        0 => return Err(ConnectionError::Closed),
        HEADER_LEN => {}
        _ => return Ok(Peeked::Part),
    }
    let header = Header::decode(&head)?;
    let mut bytes = vec![0; HEADER_LEN + header.body_len()];
    let (received, mut fds) = peek_some(socket.as_fd(), &mut bytes)?;
    if received < bytes.len() {
        return Ok(Peeked::Part);
    }
    let body = bytes.split_off(HEADER_LEN);
    fds.truncate(fds_max(&header, &body));
    all_taken(&fds, takes)?;
    Ok(Peeked::Whole(Frame { header, body, fds }))
}

/// Takes a message of `len` bytes that was peeked at.
///
/// # Errors
/// The message has another number of descriptors: those that were seen were the next message's, or were not all.
pub(crate) fn consume(
    socket: impl AsFd,
    len: usize,
    fds: &RangeInclusive<usize>,
) -> Result<(), ConnectionError> {
    let (mut left, mut received) = (vec![0; len], Vec::new());
    while !left.is_empty() {
        match receive_some(socket.as_fd(), &mut left, &mut received, |_| true)? {
            0 => return Err(ConnectionError::Closed),
            taken => drop(left.drain(..taken)),
        }
    }
    match received.len() {
        taken if fds.contains(&taken) => Ok(()),
        taken => Err(ProtocolError::FdsLost { received: taken }.into()),
    }
}

/// Peeks at up to `room.len()` bytes, and at descriptors. Descriptors beyond a message's limit are left out.
fn peek_some(
    socket: BorrowedFd<'_>,
    room: &mut [u8],
) -> Result<(usize, Vec<OwnedFd>), ConnectionError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(VHOST_USER_FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC | RecvFlags::PEEK;
    let received = retry(|| recvmsg(socket, &mut [IoSliceMut::new(room)], &mut control, flags))?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    Ok((received.bytes, fds))
}

fn all_taken(fds: &[OwnedFd], takes: Takes) -> Result<(), ProtocolError> {
    let taken = fds.iter().all(|fd| takes(fd.as_fd()));
    if taken { Ok(()) } else { Err(ProtocolError::FdsRefused) }
}

/// Receives up to `room.len()` bytes, and adds their file descriptors to `fds`.
fn receive_some(
    socket: BorrowedFd<'_>,
    room: &mut [u8],
    fds: &mut Vec<OwnedFd>,
    takes: Takes,
) -> Result<usize, ConnectionError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(VHOST_USER_FDS_MAX))];
    // Descriptors beyond a message's limit, also in a later piece, are not taken: the kernel closes them.
    let left = VHOST_USER_FDS_MAX.saturating_sub(fds.len());
    let len = if left == 0 { 0 } else { rustix::cmsg_space!(ScmRights(left)) };
    let mut control = RecvAncillaryBuffer::new(space.get_mut(..len).unwrap_or_default());
    // Each call asks not to wait; the socket's flags stay as they are. They are shared with every other holder of the
    // socket, such as the process that passed it here.
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = retry(|| recvmsg(socket, &mut [IoSliceMut::new(room)], &mut control, flags))?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if received.flags.contains(ReturnFlags::CTRUNC) {
        let received = fds.len();
        return Err(ProtocolError::FdsLost { received }.into());
    }
    // The buffer's alignment has room for more descriptors than the limit.
    if fds.len() > VHOST_USER_FDS_MAX {
        let received = fds.len();
        return Err(ProtocolError::TooManyFds { received }.into());
    }
    all_taken(fds, takes)?;
    Ok(received.bytes)
}

/// Sends as much of `bytes` as the socket takes, without waiting, and `fds` with the first byte. Returns the number of
/// bytes.
pub(crate) fn send_some(
    socket: impl AsFd,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> Result<usize, ConnectionError> {
    let rights = SendAncillaryMessage::ScmRights(fds);
    let mut space = vec![MaybeUninit::uninit(); rights.size()];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(rights) {
        return Err(ConnectionError::Socket(Errno::NOBUFS));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    retry(|| sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, flags))
}

/// Repeats a call that a signal interrupted, and recognizes a disconnected peer.
fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, ConnectionError> {
    loop {
        match call() {
            Ok(value) => return Ok(value),
            Err(Errno::INTR) => {}
            // The peer closed with something of ours unread, or before we wrote.
            Err(Errno::CONNRESET | Errno::PIPE) => return Err(ConnectionError::Closed),
            Err(errno) => return Err(ConnectionError::Socket(errno)),
        }
    }
}
