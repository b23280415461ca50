//! `weir-keeper`: its arguments, the rights that it gives up, and its loop. It keeps the descriptors of one weir at a time,
//! and gives them to the next one, which can look at them before.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fmt, fs, io};

use clap::Parser;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, fchmod};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with,
};
use rustix::process::{Resource, Rlimit, Uid, geteuid, getrlimit, setrlimit};
use weir_foreign::place::Place;
use weir_foreign::{Party, reach};
use weir_limits::{DESCRIPTORS_MAX, KEPT_PER_OWNER_MAX};
use weir_sandbox::{Enforcement, Plan, Profile, SandboxError};

use crate::wire::{Received, Word, receive, send};

/// The reason why a descriptor is not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Full {
    /// The descriptor's owner has reached the limit, counting descriptors that are not closed yet.
    Owner,
    /// All owners together have reached the limit.
    Shelf,
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Owner => "its owner has as many descriptors as it may",
            Self::Shelf => "there are as many descriptors as there may be",
        })
    }
}

#[derive(Debug)]
struct Owner {
    held: usize,
    party: Party,
}

/// Descriptors by name. The part of a name before its first slash is its owner, an interface. Each
/// owner has its own limit, so that no tenant takes another one's room.
#[derive(Debug)]
pub(crate) struct Shelf {
    held: BTreeMap<String, OwnedFd>,
    owners: BTreeMap<String, Owner>,
    max: usize,
}

pub(crate) fn owner_of(name: &str) -> &str {
    name.split_once('/').map_or(name, |(owner, _)| owner)
}

impl Shelf {
    /// An empty shelf with room for `max` descriptors.
    pub(crate) fn new(max: usize) -> Self {
        Self { held: BTreeMap::new(), owners: BTreeMap::new(), max }
    }

    /// Keeps a descriptor, in place of an earlier one with this name.
    pub(crate) fn store(&mut self, name: String, descriptor: OwnedFd) -> Result<(), Full> {
        let open: usize = self.owners.values().map(|owner| owner.party.open()).sum();
        let shelf_is_full = self.held.len() + open >= self.max;
        let owner = owner_of(&name).to_owned();

        let new = Owner { held: 0, party: Party::new(&owner) };
        let owner = self.owners.entry(owner).or_insert(new);
        match self.held.entry(name) {
            Entry::Occupied(mut held) => owner.party.close(held.insert(descriptor)),
            Entry::Vacant(_) if owner.held + owner.party.open() >= KEPT_PER_OWNER_MAX => {
                owner.party.close(descriptor);
                return Err(Full::Owner);
            }
            Entry::Vacant(_) if shelf_is_full => {
                owner.party.close(descriptor);
                return Err(Full::Shelf);
            }
            Entry::Vacant(place) => {
                place.insert(descriptor);
                owner.held += 1;
            }
        }
        Ok(())
    }

    /// Closes the descriptor with this name.
    pub(crate) fn remove(&mut self, name: &str) {
        let Some(descriptor) = self.held.remove(name) else { return };
        if let Some(owner) = self.owners.get_mut(owner_of(name)) {
            owner.held -= 1;
            owner.party.close(descriptor);
        }
        self.owners.retain(|_, owner| owner.held > 0 || owner.party.open() > 0);
    }

    /// Closes all descriptors but the one with this name.
    pub(crate) fn remove_others(&mut self, kept: &str) {
        let kept = self.held.remove_entry(kept);
        for (name, descriptor) in std::mem::take(&mut self.held) {
            if let Some(owner) = self.owners.get_mut(owner_of(&name)) {
                owner.held -= 1;
                owner.party.close(descriptor);
            }
        }
        self.held.extend(kept);
        self.owners.retain(|_, owner| owner.held > 0 || owner.party.open() > 0);
    }

    /// All names.
    pub(crate) fn names(&self) -> impl Iterator<Item = &String> {
        self.held.keys()
    }

    /// The descriptor with this name.
    pub(crate) fn get(&self, name: &str) -> Option<BorrowedFd<'_>> {
        self.held.get(name).map(AsFd::as_fd)
    }
}

/// The number of weirs that can wait until the one before has ended.
const BACKLOG: i32 = 8;
/// Descriptors that the keeper needs for itself.
const OWN_DESCRIPTORS: u64 = 64;

/// The reason why the keeper does not serve.
#[derive(Debug)]
pub enum ServeError {
    /// Another keeper serves there.
    InUse(PathBuf),
    /// A file that is no socket is there.
    NotASocket(PathBuf),
    /// A system call failed.
    Io(PathBuf, io::Error),
}

impl std::fmt::Display for ServeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::InUse(path) => write!(f, "another keeper serves {}", path.display()),
            Self::NotASocket(path) => write!(f, "{} exists and is not a socket", path.display()),
            Self::Io(path, error) => write!(f, "cannot listen on {}: {error}", path.display()),
        }
    }
}

impl std::error::Error for ServeError {}

/// The events to handle.
struct Found {
    listener: bool,
    weir: PollFlags,
    next: PollFlags,
}

/// A keeper.
#[derive(Debug)]
pub struct Server {
    listener: OwnedFd,
    shelf: Shelf,
    weir: Option<Weir>,
    /// The next weir, which can look at the descriptors before the first has ended.
    next: Option<Weir>,
    /// Owners for whom a refusal was logged.
    refused: BTreeSet<String>,
}

/// A weir.
#[derive(Debug)]
struct Weir {
    socket: OwnedFd,
    /// The number of weir's process as weir states it, or else of the process that has connected.
    process: u32,
    /// The weir has lost another keeper, and does not wait for the end of a weir.
    returns: bool,
    /// The words that are still to be sent to the weir. [`Word::Ready`] may be the last one.
    giving: VecDeque<Word>,
    /// The weir wants all descriptors, and waits for the end of the one before it.
    waits: bool,
}

impl Weir {
    /// True if the weir has ended its side, and nothing but unread messages is left.
    fn has_ended(&self) -> bool {
        let mut fds = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        let found = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        found.is_ok() && !fds[0].revents().is_empty()
    }

    /// Sends as many words as the socket takes.
    fn give(&mut self, shelf: &Shelf) {
        while let Some(word) = self.giving.front() {
            let descriptor = match word {
                // The descriptor may have been removed meanwhile.
                Word::Given(name) => shelf.get(name),
                _ => None,
            };
            let gone = matches!(word, Word::Given(_)) && descriptor.is_none();
            match gone || send(self.socket.as_fd(), word, descriptor).is_ok() {
                true => drop(self.giving.pop_front()),
                // The end of a weir is noticed when its words are read.
                false => return,
            }
        }
    }

    fn is_given_all(&mut self, shelf: &Shelf) {
        self.giving = shelf.names().cloned().map(Word::Given).collect();
        self.giving.extend([Word::RemovesOthers, Word::Ready]);
    }
}

impl Server {
    /// Listens at `path`, whose directory exists.
    ///
    /// # Errors
    /// [`ServeError`]
    pub fn listen(path: &Path) -> Result<Self, ServeError> {
        let io = |error: io::Error| ServeError::Io(path.into(), error);
        let place = Place::of(path).map_err(io)?;
        let at = place.path();
        match fs::symlink_metadata(&at) {
            Ok(found) if !found.file_type().is_socket() => {
                return Err(ServeError::NotASocket(path.into()));
            }
            Ok(_) => match reach::look_for_listener_as(SocketType::SEQPACKET, &place) {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    fs::remove_file(&at).map_err(io)?;
                }
                _ => return Err(ServeError::InUse(path.into())),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(io(error)),
        }
        let listener = listening(&at).map_err(|errno| io(errno.into()))?;
        let shelf = Shelf::new(raise_descriptor_limit());
        Ok(Self { listener, shelf, weir: None, next: None, refused: BTreeSet::new() })
    }

    /// Serves for ever.
    pub fn run(mut self) -> ! {
        loop {
            self.step();
        }
    }

    /// Waits for something to do, and does it.
    pub(crate) fn step(&mut self) {
        let Found { listener, weir, next } = self.wait();
        if listener {
            self.accept();
        }
        if let Some(it) = self.weir.as_mut().filter(|_| weir.intersects(PollFlags::OUT)) {
            it.give(&self.shelf);
        }
        if let Some(it) = self.next.as_mut().filter(|_| next.intersects(PollFlags::OUT)) {
            it.give(&self.shelf);
        }
        // The end is handled only after the words: the last words of a weir that has ended count.
        if weir.intersects(!PollFlags::OUT) {
            if !self.listen_to_weir() {
                self.weir = self.next.take();
                self.end_waiting();
            }
        } else if next.intersects(!PollFlags::OUT) && !self.listen_to_next() {
            // The next weir's words are read only once the one before it has no more.
            self.next = None;
        }
    }

    /// Waits for something to do.
    fn wait(&self) -> Found {
        let wants = |weir: &Weir| match weir.giving.is_empty() {
            true => PollFlags::IN,
            false => PollFlags::IN | PollFlags::OUT,
        };
        let sockets =
            [&self.weir, &self.next].map(|weir| weir.as_ref().map(|it| (&it.socket, wants(it))));
        // If both weirs are connected, no other is accepted.
        let listener =
            sockets.iter().any(Option::is_none).then_some((&self.listener, PollFlags::IN));
        let all = [listener, sockets[0], sockets[1]];
        let mut fds: Vec<_> =
            all.iter().flatten().map(|(fd, events)| PollFd::new(*fd, *events)).collect();
        // EINTR only means one more turn of the loop.
        let _ = poll(&mut fds, None);
        let mut found = fds.iter().map(PollFd::revents);
        let [listener, weir, next] = all.map(|asked| match asked {
            Some(_) => found.next().unwrap_or(PollFlags::empty()),
            None => PollFlags::empty(),
        });
        Found { listener: !listener.is_empty(), weir, next }
    }

    #[cfg(test)]
    pub(crate) fn names(&self) -> Vec<String> {
        self.shelf.names().cloned().collect()
    }

    /// Accepts only a weir of root or of the user that runs the keeper.
    fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let Ok(socket) = accept_with(&self.listener, flags) else { return };
        let Ok(peer) = socket_peercred(&socket) else { return };
        if peer.uid != geteuid() && peer.uid != Uid::ROOT {
            return;
        }
        let process = peer.pid.as_raw_nonzero().get().unsigned_abs();
        let place = if self.weir.is_none() { &mut self.weir } else { &mut self.next };
        let giving = VecDeque::new();
        *place = Some(Weir { socket, process, returns: false, giving, waits: false });
    }

    /// Reads one packet of the present weir; `false` if it has ended.
    fn listen_to_weir(&mut self) -> bool {
        let Some(weir) = &mut self.weir else { return true };
        match receive(&weir.socket) {
            Ok(Received::Word(Word::Process(process), _)) => weir.process = process,
            Ok(Received::Word(Word::Take | Word::Look, _)) => weir.is_given_all(&self.shelf),
            Ok(Received::Word(Word::Store(name), Some(descriptor))) => {
                if let Err(full) = self.shelf.store(name.clone(), descriptor) {
                    self.say_refused(&name, &full);
                }
            }
            Ok(Received::Word(Word::Remove(name), _)) => self.shelf.remove(&name),
            Ok(Received::Word(Word::RemoveOthers(name), _)) => self.shelf.remove_others(&name),
            Ok(Received::Word(..) | Received::Unknown | Received::Nothing) => {}
            Ok(Received::End) | Err(_) => return false,
        }
        true
    }

    /// Reads one packet of the next weir, which cannot change anything yet; `false` if it has ended.
    fn listen_to_next(&mut self) -> bool {
        let Some(next) = &mut self.next else { return true };
        match receive(&next.socket) {
            Ok(Received::Word(Word::Look, _)) => next.is_given_all(&self.shelf),
            Ok(Received::Word(Word::Process(process), _)) => next.process = process,
            Ok(Received::Word(Word::Return, _)) => next.returns = true,
            Ok(Received::Word(Word::Take, _)) => {
                // A weir that has just left, or was killed, is not named: its end is handled next.
                if let Some(first) = self.weir.as_ref().filter(|weir| !weir.has_ended()) {
                    let _ = send(next.socket.as_fd(), &Word::Busy(first.process), None);
                    // Such a weir must not wait: a weir that starts after the end of the first one would find it here.
                    if next.returns {
                        return false;
                    }
                }
                next.waits = true;
            }
            Ok(Received::Word(..) | Received::Unknown | Received::Nothing) => {}
            Ok(Received::End) | Err(_) => return false,
        }
        true
    }

    /// Gives all descriptors to a weir that has waited for the end of another.
    fn end_waiting(&mut self) {
        if let Some(weir) = self.weir.as_mut().filter(|weir| weir.waits) {
            weir.waits = false;
            weir.is_given_all(&self.shelf);
        }
    }

    fn say_refused(&mut self, name: &str, why: &impl std::fmt::Display) {
        if self.refused.len() < 64 && self.refused.insert(name.into()) {
            eprintln!("weir-keeper: {name} is not kept: {why}");
        }
    }
}

pub(crate) fn listening(path: &Path) -> Result<OwnedFd, Errno> {
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK);
    let socket = socket_with(AddressFamily::UNIX, kind, flags, None)?;
    // unix(7): the file's permissions are those of the socket, less the umask.
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Raises the limit of descriptors as far as possible; returns how many of them are for the shelf.
fn raise_descriptor_limit() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(u64::MAX).min(DESCRIPTORS_MAX);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(most), ..limit });
    let now = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX).min(DESCRIPTORS_MAX);
    usize::try_from(now.saturating_sub(OWN_DESCRIPTORS)).unwrap_or(usize::MAX)
}

/// Keep the descriptors of a weir that may be killed, so that the next one goes on with its guests
///
/// weir is told of it by `keeper` of its configuration, or by `weir run --keeper`. Only root and the user that runs the
/// keeper are served, one weir at a time. What is kept is gone when the keeper ends; weir then fills the next one.
#[derive(Debug, Parser)]
#[command(name = "weir-keeper", version)]
pub struct Args {
    /// Where it listens, in a directory that is there
    #[arg(value_name = "SOCKET", default_value = "/run/weir/keeper.sock")]
    socket: PathBuf,
    /// Keep every privilege that it is started with
    #[arg(long)]
    no_sandbox: bool,
}

/// The program: serves until it is ended.
pub fn main() -> ExitCode {
    let args = Args::parse();
    let server = match Server::listen(&args.socket) {
        Ok(server) => server,
        Err(error) => {
            eprintln!(
                "weir-keeper: {error}; choose a SOCKET in a directory of this user, such as /run/weir/keeper.sock"
            );
            return ExitCode::FAILURE;
        }
    };
    // The message comes before the confinement, after which this process gets no socket any more.
    if let Err(error) = sd_notify::notify(&[sd_notify::NotifyState::Ready]) {
        eprintln!("weir-keeper: the service manager was not told that this serves: {error}");
    }
    if let Err(error) = confine(args.no_sandbox) {
        eprintln!("weir-keeper: {error}; where the kernel lacks what this takes, use --no-sandbox");
        return ExitCode::FAILURE;
    }
    eprintln!("weir-keeper: serves on {}", args.socket.display());
    server.run()
}

/// Confines the process: from now on it can open no file, and make no process.
fn confine(no_sandbox: bool) -> Result<(), SandboxError> {
    if no_sandbox {
        return Ok(());
    }
    let plan = Plan {
        identity: None,
        readable: &[],
        writable: &[],
        profile: Profile::Keeper,
        enforcement: Enforcement::Kill,
    };
    weir_sandbox::confine(&plan).map(drop)
}
