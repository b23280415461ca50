//! xenstored, and the kernel's device in front of it. The write of a request serves it, so that
//! tests need no threads.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use weir_limits::{XENSTORE_PAYLOAD_MAX, XENSTORE_REQUEST_MAX};

use crate::hypervisor::DomainId;
use crate::store::{Client, ErrorName, Header, Kind, Permission, strings};

use super::DOM0;

/// A value and its permissions; the first names the owner.
#[derive(Clone)]
struct Node {
    value: Vec<u8>,
    permissions: Vec<Permission>,
}

impl Node {
    fn allows(&self, domain: DomainId, write: bool) -> bool {
        let Some(owner) = self.permissions.first() else { return false };
        if domain == DOM0 || owner.domain == domain.0 {
            return true;
        }
        let entry = self.permissions.iter().skip(1).find(|entry| entry.domain == domain.0);
        let entry = entry.unwrap_or(owner);
        if write { entry.write } else { entry.read }
    }
}

/// Nodes by absolute path; the root is the empty path.
type Tree = BTreeMap<String, Node>;

struct Watch {
    path: String,
    as_given: String,
    token: String,
}

struct Peer {
    domain: DomainId,
    watches: Vec<Watch>,
    outgoing: VecDeque<u8>,
    ready: Arc<OwnedFd>,
}

impl Peer {
    fn send(&mut self, kind: Kind, request: u32, transaction: u32, payload: &[u8]) {
        let header = Header { kind, request, transaction, len: payload.len() };
        self.outgoing.extend(header.to_bytes());
        self.outgoing.extend(payload);
        rustix::io::write(&self.ready, &1_u64.to_ne_bytes()).expect("an eventfd");
    }

    fn home(&self) -> String {
        format!("/local/domain/{}", self.domain.0)
    }

    fn event(&mut self, at: usize, path: &str) {
        let home = self.home() + "/";
        let Some(watch) = self.watches.get(at) else { return };
        let relative = !watch.as_given.starts_with('/');
        let shown = if relative { path.strip_prefix(&home).unwrap_or(path) } else { path };
        let payload = format!("{shown}\0{}\0", watch.token);
        self.send(Kind::WatchEvent, 0, 0, payload.as_bytes());
    }
}

/// A change for watches: the path, and whether the node was removed with one above it.
type Change = (String, bool);

struct Open {
    peer: u64,
    tree: Tree,
    since: u64,
    changes: Vec<Change>,
}

#[derive(Default)]
struct State {
    tree: Tree,
    /// Counts changes.
    generation: u64,
    peers: BTreeMap<u64, Peer>,
    next_peer: u64,
    transactions: BTreeMap<u32, Open>,
    next_transaction: u32,
}

/// xenstored.
pub(super) struct Server {
    state: Mutex<State>,
}

impl Server {
    pub(super) fn new() -> Arc<Self> {
        let mut state = State { next_transaction: 1, ..State::default() };
        let nobody = Permission { domain: DOM0.0, read: false, write: false };
        state.tree.insert(String::new(), Node { value: Vec::new(), permissions: vec![nobody] });
        Arc::new(Self { state: Mutex::new(state) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn connect(self: &Arc<Self>, domain: DomainId) -> Client<Connection> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let ready = Arc::new(eventfd(0, flags).expect("a descriptor"));
        let mut state = self.lock();
        let id = state.next_peer;
        state.next_peer += 1;
        let outgoing = VecDeque::new();
        let peer = Peer { domain, watches: Vec::new(), outgoing, ready: Arc::clone(&ready) };
        state.peers.insert(id, peer);
        Client::new(Connection { server: Arc::clone(self), id, ready, partial: Vec::new() })
    }

    /// Breaks all connections of a domain. Their open requests are forgotten.
    pub(super) fn disconnect(&self, domain: DomainId) {
        let State { peers, transactions, .. } = &mut *self.lock();
        peers.retain(|_, peer| {
            let stays = peer.domain != domain;
            if !stays {
                // A waiting reader must notice.
                let _ = rustix::io::write(&*peer.ready, &1u64.to_ne_bytes());
            }
            stays
        });
        transactions.retain(|_, open| peers.contains_key(&open.peer));
    }
}

/// A connection, like `/dev/xen/xenbus`.
pub struct Connection {
    server: Arc<Server>,
    id: u64,
    ready: Arc<OwnedFd>,
    partial: Vec<u8>,
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut state = self.server.lock();
        state.peers.remove(&self.id);
        state.transactions.retain(|_, open| open.peer != self.id);
    }
}

impl Read for Connection {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let mut state = self.server.lock();
            let peer = state.peers.get_mut(&self.id).ok_or(io::ErrorKind::NotConnected)?;
            let read = peer.outgoing.read(buffer)?;
            if peer.outgoing.is_empty() {
                // Nothing is left to read. It is no error if the descriptor was not readable.
                let _ = rustix::io::read(&*self.ready, &mut [0; 8]);
            }
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            drop(state);
            poll(&mut [PollFd::new(&*self.ready, PollFlags::IN)], None)?;
        }
    }
}

impl Write for Connection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.partial.extend_from_slice(bytes);
        // The device's own limit.
        if self.partial.len() > XENSTORE_REQUEST_MAX {
            self.partial.clear();
            return Err(io::ErrorKind::InvalidInput.into());
        }
        while let Some(front) = self.partial.first_chunk() {
            let header = Header::from_bytes(*front).map_err(io::Error::other)?;
            let end = Header::LEN + header.len;
            if self.partial.len() < end {
                break;
            }
            // The bytes are consumed, whatever the result.
            let rest = self.partial.split_off(end);
            let message = std::mem::replace(&mut self.partial, rest);
            self.server.lock().serve(self.id, header, &message[Header::LEN..])?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl State {
    fn serve(&mut self, id: u64, header: Header, payload: &[u8]) -> io::Result<()> {
        let answer = match header.kind {
            // The kernel's device registers these requests itself, and reports a refusal from
            // `write`.
            Kind::Watch | Kind::Unwatch => {
                self.watch(id, header.kind, payload)?;
                let peer = self.peers.get_mut(&id).ok_or(io::ErrorKind::NotConnected)?;
                peer.send(header.kind, 0, 0, b"OK\0");
                return Ok(());
            }
            Kind::TransactionStart => Ok(self.start(id)),
            Kind::TransactionEnd => self.end(id, header.transaction, payload),
            _ => self.access(id, header, payload),
        };
        let peer = self.peers.get_mut(&id).ok_or(io::ErrorKind::NotConnected)?;
        let Header { kind, request, transaction, .. } = header;
        match answer {
            Ok(value) if value.len() <= XENSTORE_PAYLOAD_MAX => {
                peer.send(kind, request, transaction, &value);
            }
            Ok(_) => peer.send(Kind::Error, request, transaction, b"E2BIG\0"),
            Err(name) => {
                peer.send(Kind::Error, request, transaction, format!("{name}\0").as_bytes());
            }
        }
        Ok(())
    }

    fn watch(&mut self, id: u64, kind: Kind, payload: &[u8]) -> io::Result<()> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
        let given = strings(kind, payload).map_err(|_| invalid())?;
        let [as_given, token] = <[String; 2]>::try_from(given).map_err(|_| invalid())?;
        let peer = self.peers.get_mut(&id).ok_or(io::ErrorKind::NotConnected)?;
        let path = absolute(&peer.home(), &as_given).map_err(|_| invalid())?;
        let same = |watch: &Watch| watch.path == path && watch.token == token;
        if kind == Kind::Unwatch {
            peer.watches.retain(|watch| !same(watch));
            return Ok(());
        }
        if peer.watches.iter().any(same) {
            return Err(io::Error::from_raw_os_error(libc::EEXIST));
        }
        peer.watches.push(Watch { path: path.clone(), as_given, token });
        // The event comes at once, even before the reply.
        peer.event(peer.watches.len() - 1, &path);
        Ok(())
    }

    fn start(&mut self, peer: u64) -> Vec<u8> {
        let id = self.next_transaction;
        self.next_transaction += 1;
        let tree = self.tree.clone();
        let open = Open { peer, tree, since: self.generation, changes: Vec::new() };
        self.transactions.insert(id, open);
        format!("{id}\0").into_bytes()
    }

    fn end(&mut self, peer: u64, id: u32, payload: &[u8]) -> Result<Vec<u8>, ErrorName> {
        let mine = self.transactions.get(&id).is_some_and(|open| open.peer == peer);
        let open = self.transactions.remove(&id).filter(|_| mine).ok_or(ErrorName::Enoent)?;
        if payload == b"T\0" {
            if open.since != self.generation {
                return Err(ErrorName::Eagain);
            }
            self.tree = open.tree;
            self.tell(&open.changes);
        }
        Ok(b"OK\0".to_vec())
    }

    /// Handles a request about a node, in a transaction or not.
    fn access(&mut self, id: u64, header: Header, payload: &[u8]) -> Result<Vec<u8>, ErrorName> {
        let peer = self.peers.get(&id).ok_or(ErrorName::Eio)?;
        let (path, rest) = match payload.iter().position(|byte| *byte == 0) {
            Some(end) => (&payload[..end], &payload[end + 1..]),
            None => return Err(ErrorName::Einval),
        };
        let path = std::str::from_utf8(path).map_err(|_| ErrorName::Einval)?;
        let path = absolute(&peer.home(), path)?;
        let domain = peer.domain;
        if header.transaction == 0 {
            let mut changes = Vec::new();
            let answer = answer(&mut self.tree, domain, header.kind, &path, rest, &mut changes)?;
            self.tell(&changes);
            return Ok(answer);
        }
        let open = self.transactions.get_mut(&header.transaction);
        let open = open.filter(|open| open.peer == id).ok_or(ErrorName::Enoent)?;
        answer(&mut open.tree, domain, header.kind, &path, rest, &mut open.changes)
    }

    fn tell(&mut self, changes: &[Change]) {
        self.generation += changes.len() as u64;
        for (path, with_parent) in changes {
            for peer in self.peers.values_mut() {
                let seen = self.tree.get(path).is_none_or(|node| node.allows(peer.domain, false));
                for at in 0..peer.watches.len() {
                    let watch = &peer.watches[at].path;
                    let below = !with_parent
                        && path.strip_prefix(watch.as_str()).is_some_and(|r| r.starts_with('/'));
                    if seen && (watch == path || below) {
                        peer.event(at, path);
                    }
                }
            }
        }
    }
}

fn absolute(home: &str, path: &str) -> Result<String, ErrorName> {
    let whole = if path.starts_with('/') { path.to_owned() } else { format!("{home}/{path}") };
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-/_@".contains(&byte);
    let form = !whole.ends_with('/') && !whole.contains("//") && whole.bytes().all(plain);
    if form && !path.is_empty() { Ok(whole) } else { Err(ErrorName::Einval) }
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

fn below<'t>(tree: &'t Tree, path: &str) -> impl Iterator<Item = &'t String> {
    let first = format!("{path}/");
    let prefix = first.clone();
    tree.range(first..).map(|(path, _)| path).take_while(move |path| path.starts_with(&prefix))
}

fn node<'t>(
    tree: &'t mut Tree,
    domain: DomainId,
    path: &str,
    write: bool,
) -> Result<&'t mut Node, ErrorName> {
    let node = tree.get_mut(path).ok_or(ErrorName::Enoent)?;
    if node.allows(domain, write) { Ok(node) } else { Err(ErrorName::Eacces) }
}

/// Makes `path` and its missing parents, with the permissions of the nearest existing node.
fn make(
    tree: &mut Tree,
    domain: DomainId,
    path: &str,
    changes: &mut Vec<Change>,
) -> Result<(), ErrorName> {
    if tree.contains_key(path) {
        return Ok(());
    }
    let above = parent(path);
    if tree.contains_key(above) {
        node(tree, domain, above, true)?;
    } else {
        make(tree, domain, above, changes)?;
    }
    let mut permissions = tree.get(above).ok_or(ErrorName::Enoent)?.permissions.clone();
    if let Some(owner) = permissions.first_mut().filter(|_| domain != DOM0) {
        owner.domain = domain.0;
    }
    tree.insert(path.to_owned(), Node { value: Vec::new(), permissions });
    changes.push((path.to_owned(), false));
    Ok(())
}

fn answer(
    tree: &mut Tree,
    domain: DomainId,
    kind: Kind,
    path: &str,
    rest: &[u8],
    changes: &mut Vec<Change>,
) -> Result<Vec<u8>, ErrorName> {
    let done = || Ok(b"OK\0".to_vec());
    match kind {
        Kind::Read => node(tree, domain, path, false).map(|node| node.value.clone()),
        Kind::Directory => {
            node(tree, domain, path, false)?;
            let children = below(tree, path).filter(|child| parent(child) == path);
            let names = children.filter_map(|child| child.rsplit('/').next());
            Ok(names.flat_map(|name| name.bytes().chain([0])).collect())
        }
        Kind::GetPerms => {
            let node = node(tree, domain, path, false)?;
            let texts = node.permissions.iter().map(|entry| format!("{entry}\0"));
            Ok(texts.collect::<String>().into_bytes())
        }
        Kind::Write => {
            make(tree, domain, path, changes)?;
            node(tree, domain, path, true)?.value = rest.to_vec();
            changes.push((path.to_owned(), false));
            done()
        }
        Kind::Mkdir => {
            make(tree, domain, path, changes)?;
            done()
        }
        Kind::Rm => {
            node(tree, domain, path, true)?;
            let gone: Vec<String> = below(tree, path).cloned().collect();
            tree.remove(path);
            changes.push((path.to_owned(), false));
            for path in gone {
                tree.remove(&path);
                changes.push((path, true));
            }
            done()
        }
        Kind::SetPerms => {
            let texts = strings(kind, rest).map_err(|_| ErrorName::Einval)?;
            let entries: Result<Vec<_>, _> =
                texts.iter().map(|text| Permission::parse(text)).collect();
            let entries = entries.map_err(|_| ErrorName::Einval)?;
            let node = node(tree, domain, path, true)?;
            let owner = node.permissions.first().map(|owner| owner.domain);
            if entries.is_empty() || (domain != DOM0 && owner != Some(domain.0)) {
                return Err(ErrorName::Eacces);
            }
            node.permissions = entries;
            changes.push((path.to_owned(), false));
            done()
        }
        _ => Err(ErrorName::Enosys),
    }
}
