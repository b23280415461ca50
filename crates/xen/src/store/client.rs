//! A client of xenstore: one request at a time, with events in between.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};

use weir_limits::XENSTORE_TRANSACTION_TRIES_MAX;

use super::wire::{ErrorName, Header, Kind, Permission, WatchEvent, WireError, encode, strings};

/// Reason why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The server refused the request.
    #[error("xenstore {kind:?} {path:?}: {name}")]
    Refused {
        /// The request.
        kind: Kind,
        /// The node of the request.
        path: String,
        /// The server's error name.
        name: ErrorName,
    },
    /// The connection failed and is unusable. A watch that the kernel refuses is such an error too.
    #[error("xenstore connection: {0}")]
    Io(#[from] io::Error),
    /// The request cannot be encoded, or the server sent an invalid message.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The reply belongs to another request: the connection is out of step.
    #[error("xenstore answered {got:?} (request {request}) to {asked:?} (request {expected})")]
    OutOfStep {
        /// Type of the request.
        asked: Kind,
        /// Number of the request.
        expected: u32,
        /// Type of the reply.
        got: Kind,
        /// Number in the reply.
        request: u32,
    },
    /// Other clients wrote between every two attempts.
    #[error("a xenstore transaction failed {XENSTORE_TRANSACTION_TRIES_MAX} times")]
    TooManyTries,
}

impl StoreError {
    /// Returns the server's error name, if the server refused.
    pub fn name(&self) -> Option<ErrorName> {
        match self {
            Self::Refused { name, .. } => Some(*name),
            _ => None,
        }
    }

    fn is(&self, wanted: ErrorName) -> bool {
        self.name() == Some(wanted)
    }
}

/// A connection to xenstore. Paths that do not begin with `/` are below the client's own
/// `/local/domain/ID`.
#[derive(Debug)]
pub struct Client<S> {
    stream: S,
    last_request: u32,
    /// Tokens of watches that have fired since the last call, each once. However often guests write, there are no more
    /// tokens than watches.
    fired: VecDeque<String>,
}

impl Client<File> {
    /// Opens `/dev/xen/xenbus`: xenstore through the kernel. Reads block; `poll` reports only whole
    /// messages.
    ///
    /// # Errors
    /// There is no such device, which means no Xen, or weir may not open it.
    pub fn open() -> io::Result<Self> {
        Ok(Self::new(OpenOptions::new().read(true).write(true).open("/dev/xen/xenbus")?))
    }
}

impl<S: AsFd> AsFd for Client<S> {
    /// Returns a descriptor that is readable when [`Client::receive`] would not block.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl<S: Read + Write> Client<S> {
    /// Returns a client on a stream that is connected to xenstore.
    pub fn new(stream: S) -> Self {
        Self { stream, last_request: 0, fired: VecDeque::new() }
    }

    /// Reads the value of `path`; `None` if there is no such node.
    ///
    /// # Errors
    /// As for all requests: the server refused, or the connection is unusable.
    pub fn read(&mut self, path: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.read_in(0, path)
    }

    /// Sets the value of `path`.
    pub fn write(&mut self, path: &str, value: &[u8]) -> Result<(), StoreError> {
        self.request(Kind::Write, 0, path, &[path], value).map(drop)
    }

    /// Lists the names of `path`'s children; none if there is no such node.
    pub fn directory(&mut self, path: &str) -> Result<Vec<String>, StoreError> {
        match self.request(Kind::Directory, 0, path, &[path], &[]) {
            Ok(payload) => Ok(strings(Kind::Directory, &payload)?),
            Err(error) if error.is(ErrorName::Enoent) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Makes an empty node, if it does not exist.
    pub fn mkdir(&mut self, path: &str) -> Result<(), StoreError> {
        self.request(Kind::Mkdir, 0, path, &[path], &[]).map(drop)
    }

    /// Removes a node and all below it, if it exists.
    pub fn rm(&mut self, path: &str) -> Result<(), StoreError> {
        match self.request(Kind::Rm, 0, path, &[path], &[]) {
            Err(error) if !error.is(ErrorName::Enoent) => Err(error),
            _ => Ok(()),
        }
    }

    /// Returns the permissions of `path`: first the owner, with the permissions of everybody else.
    pub fn permissions(&mut self, path: &str) -> Result<Vec<Permission>, StoreError> {
        let payload = self.request(Kind::GetPerms, 0, path, &[path], &[])?;
        let texts = strings(Kind::GetPerms, &payload)?;
        Ok(texts.iter().map(|text| Permission::parse(text)).collect::<Result<_, _>>()?)
    }

    /// Sets the permissions of `path`.
    pub fn set_permissions(
        &mut self,
        path: &str,
        permissions: &[Permission],
    ) -> Result<(), StoreError> {
        let texts: Vec<String> = permissions.iter().map(Permission::to_string).collect();
        let all: Vec<&str> =
            std::iter::once(path).chain(texts.iter().map(String::as_str)).collect();
        self.request(Kind::SetPerms, 0, path, &all, &[]).map(drop)
    }

    /// Asks for an event with `token` whenever `path` or a node below it changes. One event comes
    /// at once.
    pub fn watch(&mut self, path: &str, token: &str) -> Result<(), StoreError> {
        self.request(Kind::Watch, 0, path, &[path, token], &[]).map(drop)
    }

    /// Ends the events of such a watch; waiting ones are dropped.
    pub fn unwatch(&mut self, path: &str, token: &str) -> Result<(), StoreError> {
        self.request(Kind::Unwatch, 0, path, &[path, token], &[])?;
        self.fired.retain(|fired| fired != token);
        Ok(())
    }

    /// Runs `change` in a transaction. All of its writes happen or none, and the values that it
    /// read were valid until the end. If others wrote in between, `change` runs again.
    ///
    /// # Errors
    /// An error of `change` drops the transaction. Otherwise as for [`read`](Self::read).
    pub fn transaction<T>(
        &mut self,
        mut change: impl FnMut(&mut Transaction<'_, S>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        for _ in 0..XENSTORE_TRANSACTION_TRIES_MAX {
            let payload = self.request(Kind::TransactionStart, 0, "", &[""], &[])?;
            let id = strings(Kind::TransactionStart, &payload)?
                .first()
                .and_then(|id| id.parse().ok())
                .filter(|id| *id != 0)
                .ok_or(WireError::Payload { kind: Kind::TransactionStart })?;
            let mut transaction = Transaction { client: self, id };
            let done = match change(&mut transaction) {
                Ok(done) => done,
                Err(error) => {
                    // The first error is reported; the server drops the rest with the connection.
                    let _ = self.request(Kind::TransactionEnd, id, "", &["F"], &[]);
                    return Err(error);
                }
            };
            match self.request(Kind::TransactionEnd, id, "", &["T"], &[]) {
                Ok(_) => return Ok(done),
                Err(error) if error.is(ErrorName::Eagain) => {}
                Err(error) => return Err(error),
            }
        }
        Err(StoreError::TooManyTries)
    }

    /// Returns the token of a watch that fired, among the messages read so far. Several events of one watch give one
    /// token: the caller finds the changes.
    pub fn next_fired(&mut self) -> Option<String> {
        self.fired.pop_front()
    }

    /// Returns the number of tokens that wait.
    pub fn fired(&self) -> usize {
        self.fired.len()
    }

    /// Reads one message, which must be an event, and keeps it for
    /// [`next_fired`](Self::next_fired). Blocks until there is one.
    ///
    /// # Errors
    /// The connection failed, or the server sent an unexpected reply.
    pub fn receive(&mut self) -> Result<(), StoreError> {
        let (header, payload) = self.message()?;
        if header.kind == Kind::WatchEvent {
            return self.keep(&payload);
        }
        Err(StoreError::OutOfStep {
            asked: Kind::WatchEvent,
            expected: 0,
            got: header.kind,
            request: header.request,
        })
    }

    fn read_in(&mut self, transaction: u32, path: &str) -> Result<Option<Vec<u8>>, StoreError> {
        match self.request(Kind::Read, transaction, path, &[path], &[]) {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.is(ErrorName::Enoent) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn request(
        &mut self,
        kind: Kind,
        transaction: u32,
        path: &str,
        strings: &[&str],
        rest: &[u8],
    ) -> Result<Vec<u8>, StoreError> {
        self.last_request = self.last_request.wrapping_add(1);
        let expected = self.last_request;
        // The kernel needs a request in one write: it collects parts from all writers.
        self.stream.write_all(&encode(kind, expected, transaction, strings, rest)?)?;
        loop {
            let (header, payload) = self.message()?;
            if header.kind == Kind::WatchEvent {
                self.keep(&payload)?;
                continue;
            }
            // Linux answers (UN)WATCH itself, and without a number.
            let ours = header.request == expected
                || (header.request == 0 && matches!(kind, Kind::Watch | Kind::Unwatch));
            return match header.kind {
                got if ours && got == kind => Ok(payload),
                Kind::Error if ours => Err(StoreError::Refused {
                    kind,
                    path: path.to_owned(),
                    name: ErrorName::from_payload(&payload),
                }),
                got => Err(StoreError::OutOfStep {
                    asked: kind,
                    expected,
                    got,
                    request: header.request,
                }),
            };
        }
    }

    fn message(&mut self) -> Result<(Header, Vec<u8>), StoreError> {
        let mut bytes = [0; Header::LEN];
        self.stream.read_exact(&mut bytes)?;
        let header = Header::from_bytes(bytes)?;
        let mut payload = vec![0; header.len];
        self.stream.read_exact(&mut payload)?;
        Ok((header, payload))
    }

    fn keep(&mut self, payload: &[u8]) -> Result<(), StoreError> {
        let WatchEvent { token, .. } = WatchEvent::from_payload(payload)?;
        if !self.fired.contains(&token) {
            self.fired.push_back(token);
        }
        Ok(())
    }
}

/// Requests that take effect together: see [`Client::transaction`].
#[derive(Debug)]
pub struct Transaction<'c, S> {
    client: &'c mut Client<S>,
    id: u32,
}

impl<S: Read + Write> Transaction<'_, S> {
    /// See [`Client::read`].
    pub fn read(&mut self, path: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.client.read_in(self.id, path)
    }

    /// See [`Client::write`].
    pub fn write(&mut self, path: &str, value: &[u8]) -> Result<(), StoreError> {
        self.client.request(Kind::Write, self.id, path, &[path], value).map(drop)
    }
}
