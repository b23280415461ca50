//! The wire format of xenstore's messages (`xen/include/public/io/xs_wire.h`): a header of four
//! 32-bit words in the machine's order, then mostly strings that end with NUL.

use weir_limits::{XENSTORE_PAYLOAD_MAX, XENSTORE_REQUEST_MAX};

/// Type of a message (`enum xsd_sockmsg_type`), as far as weir sends or receives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// Names of a node's children.
    Directory = 1,
    /// A node's value.
    Read = 2,
    /// Permissions of a node.
    GetPerms = 3,
    /// Asks for events.
    Watch = 4,
    /// Ends the events of a watch.
    Unwatch = 5,
    /// Opens a transaction.
    TransactionStart = 6,
    /// Commits (`T`) or drops (`F`) a transaction.
    TransactionEnd = 7,
    /// Sets a value; makes the node and its parents if need be.
    Write = 11,
    /// Makes an empty node.
    Mkdir = 12,
    /// Removes a node and all below it.
    Rm = 13,
    /// Sets a node's permissions.
    SetPerms = 14,
    /// From the server: a watched node, or one below it, may have changed.
    WatchEvent = 15,
    /// From the server: the request failed; the payload is the error's name.
    Error = 16,
}

impl Kind {
    const ALL: [Self; 13] = [
        Self::Directory,
        Self::Read,
        Self::GetPerms,
        Self::Watch,
        Self::Unwatch,
        Self::TransactionStart,
        Self::TransactionEnd,
        Self::Write,
        Self::Mkdir,
        Self::Rm,
        Self::SetPerms,
        Self::WatchEvent,
        Self::Error,
    ];

    fn from_wire(kind: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|known| *known as u32 == kind)
    }
}

/// `struct xsd_sockmsg`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Type of the message.
    pub kind: Kind,
    /// The number is chosen by the client and echoed in the reply.
    pub request: u32,
    /// The transaction; 0 for none.
    pub transaction: u32,
    /// Length of the payload (bytes).
    pub len: usize,
}

/// Reason why bytes are no valid message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// weir never asks for this type.
    #[error("xenstore message of unknown type {0}")]
    Kind(u32),
    /// The payload exceeds the protocol's limit.
    #[error("xenstore message of {0} bytes, more than {XENSTORE_PAYLOAD_MAX}")]
    TooLong(u32),
    /// The kernel takes no request of this length.
    #[error("xenstore request of {0} bytes with its header, more than {XENSTORE_REQUEST_MAX}")]
    RequestTooLong(usize),
    /// A path or token contains NUL, which would end it.
    #[error("NUL within a xenstore path or token")]
    Nul,
    /// The payload does not have the form of its type.
    #[error("xenstore payload of {kind:?} is malformed")]
    Payload {
        /// Type of the message.
        kind: Kind,
    },
}

impl Header {
    /// Length of a header (bytes).
    pub const LEN: usize = 16;

    /// Writes the header.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let len = u32::try_from(self.len).unwrap_or(u32::MAX);
        let words = [self.kind as u32, self.request, self.transaction, len];
        for (to, word) in bytes.chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    /// Reads a header.
    ///
    /// # Errors
    /// An unknown type, or a payload beyond the protocol's limit.
    pub fn from_bytes(bytes: [u8; Self::LEN]) -> Result<Self, WireError> {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = bytes;
        let word = u32::from_ne_bytes;
        let kind = word([a, b, c, d]);
        let len = word([m, n, o, p]);
        Ok(Self {
            kind: Kind::from_wire(kind).ok_or(WireError::Kind(kind))?,
            request: word([e, f, g, h]),
            transaction: word([i, j, k, l]),
            len: usize::try_from(len)
                .ok()
                .filter(|len| *len <= XENSTORE_PAYLOAD_MAX)
                .ok_or(WireError::TooLong(len))?,
        })
    }
}

/// Encodes a whole message: `strings`, each with its NUL, then `rest` without one.
pub(crate) fn encode(
    kind: Kind,
    request: u32,
    transaction: u32,
    strings: &[&str],
    rest: &[u8],
) -> Result<Vec<u8>, WireError> {
    let mut message = vec![0; Header::LEN];
    for string in strings {
        if string.contains('\0') {
            return Err(WireError::Nul);
        }
        message.extend_from_slice(string.as_bytes());
        message.push(0);
    }
    message.extend_from_slice(rest);
    if message.len() > XENSTORE_REQUEST_MAX {
        return Err(WireError::RequestTooLong(message.len()));
    }
    let header = Header { kind, request, transaction, len: message.len() - Header::LEN };
    if let Some(front) = message.first_chunk_mut() {
        *front = header.to_bytes();
    }
    Ok(message)
}

/// Splits a payload into its strings. A last string without NUL counts too, since servers differ in
/// that.
pub(crate) fn strings(kind: Kind, payload: &[u8]) -> Result<Vec<String>, WireError> {
    let payload = payload.strip_suffix(&[0]).unwrap_or(payload);
    if payload.is_empty() {
        return Ok(Vec::new());
    }
    let string = |bytes: &[u8]| String::from_utf8(bytes.to_vec());
    payload
        .split(|byte| *byte == 0)
        .map(|bytes| string(bytes).map_err(|_| WireError::Payload { kind }))
        .collect()
}

/// An event: a watched node, or one below it, may have changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchEvent {
    /// The node: relative if the watch's path was.
    pub path: String,
    /// Token given to [`Client::watch`](super::Client::watch).
    pub token: String,
}

impl WatchEvent {
    pub(crate) fn from_payload(payload: &[u8]) -> Result<Self, WireError> {
        let mut strings = strings(Kind::WatchEvent, payload)?.into_iter();
        match (strings.next(), strings.next()) {
            (Some(path), Some(token)) => Ok(Self { path, token }),
            _ => Err(WireError::Payload { kind: Kind::WatchEvent }),
        }
    }
}

/// One entry of a node's permissions: a letter and a domain. The first entry names the owner, who
/// may do everything, and the permissions of everybody else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permission {
    /// The domain.
    pub domain: u16,
    /// Permission to read.
    pub read: bool,
    /// Permission to write.
    pub write: bool,
}

impl Permission {
    pub(crate) fn parse(text: &str) -> Result<Self, WireError> {
        let malformed = || WireError::Payload { kind: Kind::GetPerms };
        let letter = text.chars().next().ok_or_else(malformed)?;
        let (read, write) = match letter {
            'n' => (false, false),
            'r' => (true, false),
            'w' => (false, true),
            'b' => (true, true),
            _ => return Err(malformed()),
        };
        let domain = text.get(1..).and_then(|domain| domain.parse().ok()).ok_or_else(malformed)?;
        Ok(Self { domain, read, write })
    }
}

impl std::fmt::Display for Permission {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let letter = match (self.read, self.write) {
            (false, false) => 'n',
            (true, false) => 'r',
            (false, true) => 'w',
            (true, true) => 'b',
        };
        write!(f, "{letter}{}", self.domain)
    }
}

/// An error by the server's name (`xsd_errors`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the names are errno's")]
pub enum ErrorName {
    #[error("EINVAL")]
    Einval,
    #[error("EACCES")]
    Eacces,
    #[error("EEXIST")]
    Eexist,
    #[error("EISDIR")]
    Eisdir,
    #[error("ENOENT")]
    Enoent,
    #[error("ENOMEM")]
    Enomem,
    #[error("ENOSPC")]
    Enospc,
    #[error("EIO")]
    Eio,
    #[error("ENOTEMPTY")]
    Enotempty,
    #[error("ENOSYS")]
    Enosys,
    #[error("EROFS")]
    Erofs,
    #[error("EBUSY")]
    Ebusy,
    #[error("EAGAIN")]
    Eagain,
    #[error("EISCONN")]
    Eisconn,
    #[error("E2BIG")]
    E2big,
    /// An error name that no version of the protocol defines.
    #[error("an error of unknown name")]
    Unknown,
}

impl ErrorName {
    const ALL: [Self; 15] = [
        Self::Einval,
        Self::Eacces,
        Self::Eexist,
        Self::Eisdir,
        Self::Enoent,
        Self::Enomem,
        Self::Enospc,
        Self::Eio,
        Self::Enotempty,
        Self::Enosys,
        Self::Erofs,
        Self::Ebusy,
        Self::Eagain,
        Self::Eisconn,
        Self::E2big,
    ];

    pub(crate) fn from_payload(payload: &[u8]) -> Self {
        let name = payload.strip_suffix(&[0]).unwrap_or(payload);
        let named = |error: &Self| error.to_string().as_bytes() == name;
        Self::ALL.into_iter().find(named).unwrap_or(Self::Unknown)
    }
}
