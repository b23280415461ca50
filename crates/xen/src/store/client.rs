//! A client of xenstore: one request at a time, with events that come in between.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};

use weir_limits::XENSTORE_TRANSACTION_TRIES_MAX;

use super::wire::{ErrorName, Header, Kind, Permission, WatchEvent, WireError, encode, strings};

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The server refused it.
    #[error("xenstore {kind:?} {path:?}: {name}")]
    Refused {
        /// The request.
        kind: Kind,
        /// The node it was about.
        path: String,
        /// The server's word for it.
        name: ErrorName,
    },
    /// The connection failed; it is of no more use. A watch that the kernel refuses is such an error too.
    #[error("xenstore connection: {0}")]
    Io(#[from] io::Error),
    /// The request can't be sent, or the server sent what is no message.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The reply is to another request: the connection is out of step.
    #[error("xenstore answered {got:?} (request {request}) to {asked:?} (request {expected})")]
    OutOfStep {
        /// What was asked.
        asked: Kind,
        /// Its number.
        expected: u32,
        /// What came.
        got: Kind,
        /// Its number.
        request: u32,
    },
    /// Others wrote each time in between.
    #[error("a xenstore transaction failed {XENSTORE_TRANSACTION_TRIES_MAX} times")]
    TooManyTries,
}

impl StoreError {
    /// The server's word for what was wrong, if it was the server that refused.
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
    /// Tokens of watches that fired since they were last looked at, each once: however often guests
    /// write, there are no more of them than watches.
    fired: VecDeque<String>,
}

impl Client<File> {
    /// Opens `/dev/xen/xenbus`: xenstore by way of the kernel. Reads block; whatever `poll` reports is
    /// whole messages.
    ///
    /// # Errors
    /// There is no such device, which means no Xen, or weir may not open it.
    pub fn open() -> io::Result<Self> {
        Ok(Self::new(OpenOptions::new().read(true).write(true).open("/dev/xen/xenbus")?))
    }
}

impl<S: AsFd> AsFd for Client<S> {
    /// Readable when [`Client::receive`] would not block.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl<S: Read + Write> Client<S> {
    /// A client on a stream that is a connection to xenstore.
    pub fn new(stream: S) -> Self {
        Self { stream, last_request: 0, fired: VecDeque::new() }
    }

    /// The value of `path`; `None` if there is no such node.
    ///
    /// # Errors
    /// As for all requests: refused, or the connection is out of use.
    pub fn read(&mut self, path: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.read_in(0, path)
    }

    /// Sets the value of `path`.
    pub fn write(&mut self, path: &str, value: &[u8]) -> Result<(), StoreError> {
        self.request(Kind::Write, 0, path, &[path], value).map(drop)
    }

    /// Names of the children of `path`; none if there is no such node.
    pub fn directory(&mut self, path: &str) -> Result<Vec<String>, StoreError> {
        match self.request(Kind::Directory, 0, path, &[path], &[]) {
            Ok(payload) => Ok(strings(Kind::Directory, &payload)?),
            Err(error) if error.is(ErrorName::Enoent) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Makes an empty node, if there is none.
    pub fn mkdir(&mut self, path: &str) -> Result<(), StoreError> {
        self.request(Kind::Mkdir, 0, path, &[path], &[]).map(drop)
    }

    /// Removes a node and all below it, if there is one.
    pub fn rm(&mut self, path: &str) -> Result<(), StoreError> {
        match self.request(Kind::Rm, 0, path, &[path], &[]) {
            Err(error) if !error.is(ErrorName::Enoent) => Err(error),
            _ => Ok(()),
        }
    }

    /// Who may do what with `path`: first its owner, with what everybody else may.
    pub fn permissions(&mut self, path: &str) -> Result<Vec<Permission>, StoreError> {
        let payload = self.request(Kind::GetPerms, 0, path, &[path], &[])?;
        let texts = strings(Kind::GetPerms, &payload)?;
        Ok(texts.iter().map(|text| Permission::parse(text)).collect::<Result<_, _>>()?)
    }

    /// Sets that.
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

    /// Asks for an event with `token` whenever `path` or a node below it changes, and for one at once.
    pub fn watch(&mut self, path: &str, token: &str) -> Result<(), StoreError> {
        self.request(Kind::Watch, 0, path, &[path, token], &[]).map(drop)
    }

    /// No more such events; those that wait are dropped.
    pub fn unwatch(&mut self, path: &str, token: &str) -> Result<(), StoreError> {
        self.request(Kind::Unwatch, 0, path, &[path, token], &[])?;
        self.fired.retain(|fired| fired != token);
        Ok(())
    }

    /// Runs `change` in a transaction: all of it happens or nothing, and what it read stood until the
    /// end. Where others wrote in between, it is run again.
    ///
    /// # Errors
    /// That of `change`, which drops the transaction; or those of [`read`](Self::read).
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
                    // The first error is the one to tell; the server drops what is left with the connection.
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

    /// The token of a watch that fired, by what has been read from the connection so far. Several events
    /// of one watch are told as one: what changed is to be looked at.
    pub fn next_fired(&mut self) -> Option<String> {
        self.fired.pop_front()
    }

    /// How many of them there are.
    pub fn fired(&self) -> usize {
        self.fired.len()
    }

    /// Reads one message, which must be an event, and keeps it for [`next_fired`](Self::next_fired).
    /// Blocks until one is there.
    ///
    /// # Errors
    /// The connection failed, or the server answers what nobody asked.
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
        // The kernel wants a request in one write: it collects parts of them from all writers.
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

/// Requests that happen together: see [`Client::transaction`].
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
