//! A peer's faults, and the socket's failures.

use std::fmt;
use std::time::Duration;

use rustix::io::Errno;
use weir_limits::{MEM_TABLE_REGIONS_MAX, VHOST_USER_BODY_MAX, VHOST_USER_FDS_MAX};

use crate::request::{RequestCode, VERSION};

/// A number of bytes or file descriptors that a request may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// Exactly this number.
    Exactly(usize),
    /// One of these two numbers.
    Either(usize, usize),
    /// At least this number.
    AtLeast(usize),
    /// At most this number.
    AtMost(usize),
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(n) => write!(f, "{n}"),
            Self::Either(a, b) => write!(f, "{a} or {b}"),
            Self::AtLeast(n) => write!(f, "at least {n}"),
            Self::AtMost(n) => write!(f, "at most {n}"),
        }
    }
}

/// A message that breaks the protocol. The session it came on is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// The version bits of the header are not 1.
    #[error("{request}: protocol version {found}, expected {VERSION}")]
    Version {
        /// The message's request number.
        request: RequestCode,
        /// The version bits found.
        found: u32,
    },
    /// The header has flags that the spec doesn't define.
    #[error("{request}: undefined header flags in {flags:#x}")]
    UndefinedFlags {
        /// The message's request number.
        request: RequestCode,
        /// All flags of the header.
        flags: u32,
    },
    /// A request that has the reply flag.
    #[error("{request}: a request with the reply flag")]
    RequestWithReplyFlag {
        /// The message's request number.
        request: RequestCode,
    },
    /// A reply that has no reply flag.
    #[error("{request}: a reply without the reply flag")]
    ReplyWithoutReplyFlag {
        /// The message's request number.
        request: RequestCode,
    },
    /// The header announces (or a sender asked for) a body above the limit.
    #[error("{request}: body of {size} bytes, the limit is {VHOST_USER_BODY_MAX}")]
    BodyTooLarge {
        /// The message's request number.
        request: RequestCode,
        /// Size of the body in bytes.
        size: usize,
    },
    /// The body does not have its request's size.
    #[error("{request}: body of {actual} bytes, expected {expected}")]
    BodySize {
        /// The message's request number.
        request: RequestCode,
        /// Bytes the request has.
        expected: Expected,
        /// Bytes that came.
        actual: usize,
    },
    /// The message has another number of file descriptors than its request.
    #[error("{request}: {actual} file descriptors, expected {expected}")]
    FdCount {
        /// The message's request number.
        request: RequestCode,
        /// File descriptors the request has.
        expected: Expected,
        /// File descriptors that came.
        actual: usize,
    },
    /// More file descriptors than any request has. They are counted per message, while it arrives.
    #[error("{received} file descriptors with one message, the limit is {VHOST_USER_FDS_MAX}")]
    TooManyFds {
        /// File descriptors that came until then.
        received: usize,
    },
    /// The kernel could not deliver all file descriptors: there were more than any request has, or
    /// this process may not open more.
    #[error(
        "descriptors after the first {received} were lost: the message has too many, or weir has none left"
    )]
    FdsLost {
        /// File descriptors of the message that did arrive.
        received: usize,
    },
    /// The receiver has no room for the descriptors of a message.
    #[error(
        "weir has no descriptor left for guests: raise LimitNOFILE= in its unit, or `ulimit -n`"
    )]
    FdsRefused,
    /// A memory table with more regions than the spec allows.
    #[error("{request}: {regions} memory regions, the limit is {MEM_TABLE_REGIONS_MAX}")]
    RegionCount {
        /// The message's request number.
        request: RequestCode,
        /// Regions the table claims.
        regions: u32,
    },
    /// The `u64` of `SET_VRING_KICK`, `CALL` or `ERR` has bits above the index and the no-fd flag.
    #[error("{request}: undefined bits in {value:#x}")]
    VringFdWord {
        /// The message's request number.
        request: RequestCode,
        /// The `u64` as it came.
        value: u64,
    },
    /// A ring index that doesn't fit the eight bits that `SET_VRING_KICK`, `CALL` and `ERR` have.
    #[error("{request}: ring index {index} does not fit eight bits")]
    VringIndex {
        /// The message's request number.
        request: RequestCode,
        /// The index.
        index: u32,
    },
    /// `SET_VRING_ENABLE` with something else than 0 or 1.
    #[error("{request}: ring {index} takes 0 or 1, not {num}")]
    EnableValue {
        /// The message's request number.
        request: RequestCode,
        /// The ring.
        index: u32,
        /// The value that came.
        num: u32,
    },
}

/// The reason why a connection gives no more messages, or takes no more replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConnectionError {
    /// The peer closed the socket between two messages: the ordinary end of a session.
    #[error("the peer closed the connection")]
    Closed,
    /// The peer closed the socket inside a message.
    #[error("the peer closed the connection after {received} bytes of a message")]
    ClosedMidMessage {
        /// Bytes of the unfinished message, its header included.
        received: usize,
    },
    /// The peer broke the protocol.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// The peer sends requests but doesn't read replies.
    #[error("{queued} bytes of replies are unread, the next one does not fit")]
    OutboundFull {
        /// Bytes that already wait.
        queued: usize,
    },
    /// The socket failed.
    #[error("the vhost-user socket: {0}")]
    Socket(Errno),
}

/// The reason why a request of the front end failed. Except after [`Refused`](Self::Refused) later requests are
/// undefined: a late reply would be taken for the next request's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrontEndError {
    /// The connection ended, or the back end broke the protocol.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    /// The back end did not take the request, or did not answer, in time.
    #[error("{request}: no answer within {timeout:?}")]
    Timeout {
        /// The request that waits.
        request: RequestCode,
        /// The length of the wait.
        timeout: Duration,
    },
    /// The reply belongs to another request.
    #[error("reply to {found} while {expected} waits for one")]
    WrongReply {
        /// The request that waits.
        expected: RequestCode,
        /// The request the reply names.
        found: RequestCode,
    },
    /// The back end acknowledged the request with a failure (`REPLY_ACK`).
    #[error("{request}: refused with status {status}")]
    Refused {
        /// The refused request.
        request: RequestCode,
        /// The status, not zero.
        status: u64,
    },
}

impl From<ProtocolError> for FrontEndError {
    fn from(error: ProtocolError) -> Self {
        Self::Connection(error.into())
    }
}
