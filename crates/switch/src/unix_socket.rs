//! Listening on a Unix socket, with three guarantees: it never displaces another server, it never overwrites another
//! file, and its permissions are never too wide, even for a moment.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use miette::Diagnostic;
use rustix::fs::{
    AtFlags, FileType, FlockOperation, Gid, Mode, OFlags, Stat, Uid, chownat, fchmod, flock, fstat,
    open,
};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{getegid, geteuid};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use weir_config::{
    GroupName, NamePattern, OnDemandConfig, PortName, SocketMode, UserName, VifConfig,
};
use weir_foreign::place::{Links, Place};
use weir_foreign::reach::{self, Socket, Stamp};
use weir_foreign::{Foreign, Party};
use weir_limits::{ON_DEMAND_ENTRIES_MAX, ON_DEMAND_REFUSED_SHOWN, ON_DEMAND_SOCKETS_MAX};
use weir_sandbox::IdentityError;

/// Connections that can wait for `accept`.
const BACKLOG: i32 = 16;

/// The reason why a socket could not be made.
#[derive(Debug, Error, Diagnostic)]
pub enum ListenError {
    /// Another program listens on the socket.
    #[error("another program serves {}", path.display())]
    InUse {
        /// The socket.
        path: PathBuf,
        /// Advice on how to resolve it.
        #[help]
        help: &'static str,
    },
    /// The path is taken by a file that is no socket. weir does not delete it.
    #[error("{} exists and is not a socket", path.display())]
    #[diagnostic(help("move it away, or choose another socket"))]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// The lock file belongs to another user.
    #[error("{} is not a lock file of this user", path.display())]
    #[diagnostic(help(
        "another user made it; use a directory in which only this user can make files"
    ))]
    Lock {
        /// The lock file.
        path: PathBuf,
    },
    /// The helper of a confined weir refuses to make this socket.
    #[error("{message}")]
    Refused {
        /// The reason.
        message: String,
        /// Advice on how to resolve it.
        #[help]
        help: Option<String>,
    },
    /// This user has no right to a step.
    #[error("cannot {step} {}", path.display())]
    #[diagnostic(help(
        "this user may not make sockets there: set XDG_RUNTIME_DIR to a directory of this user, or name another place \
         with --control or `control` in [switch]"
    ))]
    NotAllowed {
        /// The step that failed.
        step: &'static str,
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A system call failed.
    #[error("cannot {step} {}", path.display())]
    Io {
        /// The step that failed.
        step: &'static str,
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl ListenError {
    /// Another program listens on a socket, and accepts connections.
    pub fn in_use(path: &Path) -> Self {
        Self::InUse { path: path.into(), help: "stop it first, or choose another socket" }
    }

    /// The program that made a socket has ended, and another one has it open; or nobody takes connections there.
    fn left_over(path: &Path) -> Self {
        let help = "the program that made it has ended, or takes no connection. If it was a weir, its keeper holds the \
                    socket: name this keeper by `keeper` in [switch] or by --keeper, or end it, which disconnects the \
                    guests (systemctl stop weir-keeper)";
        Self::InUse { path: path.into(), help }
    }

    /// The failure of a step.
    pub fn of(step: &'static str, path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::PermissionDenied => Self::NotAllowed { step, path, source },
            _ => Self::Io { step, path, source },
        }
    }
}

/// Who may open a socket. `Accounts` has the numbers of the names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Access {
    pub(crate) mode: SocketMode,
    pub(crate) user: Option<UserName>,
    pub(crate) group: Option<GroupName>,
}

impl From<SocketMode> for Access {
    fn from(mode: SocketMode) -> Self {
        Self { mode, user: None, group: None }
    }
}

impl Access {
    /// The access to the sockets that weir makes for an interface.
    pub(crate) fn of(vif: &VifConfig) -> Self {
        let (user, group) = (vif.socket_user.clone(), vif.socket_group.clone());
        let usual = SocketMode::of_control(group.is_some() || socket_group().is_some());
        Self { mode: vif.socket_mode.unwrap_or(usual), user, group }
    }
}

/// The owner of a socket's file: the numbers of a user and a group, where they are not the maker's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SocketOwner {
    user: Option<u32>,
    group: Option<u32>,
}

/// The accounts to which sockets may be given. A helper gets them before it is confined, from a weir that has served
/// nobody yet: later it cannot look up names that no file has, and whoever takes over weir names no other user.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Accounts {
    /// The group of sockets without one of their own.
    pub(crate) group: Option<u32>,
    pub(crate) users: BTreeMap<UserName, u32>,
    pub(crate) groups: BTreeMap<GroupName, u32>,
    /// True if other names may be looked up. No message says so.
    #[serde(skip)]
    pub(crate) is_open: bool,
}

impl Accounts {
    /// Those of a process that makes its own sockets.
    fn all(group: Option<u32>) -> Self {
        Self { group, is_open: true, ..Self::default() }
    }

    /// Those of the control socket, which only this group may open beside its owner.
    pub(crate) fn of_control(group: Option<u32>) -> Self {
        Self { group, ..Self::default() }
    }

    /// Adds those of a configured socket.
    pub(crate) fn add(&mut self, access: &Access) -> io::Result<()> {
        // A name is looked up once.
        let was_open = std::mem::replace(&mut self.is_open, true);
        let found = self.owner(access);
        self.is_open = was_open;
        let SocketOwner { user, group } = found?;
        self.users.extend(access.user.clone().zip(user));
        self.groups.extend(access.group.clone().zip(group));
        Ok(())
    }

    /// Takes the names away, one for a message.
    pub(crate) fn take_named(&mut self) -> impl Iterator<Item = Self> + use<> {
        let (users, groups) = (std::mem::take(&mut self.users), std::mem::take(&mut self.groups));
        let users = users.into_iter().map(|it| Self { users: [it].into(), ..Self::default() });
        let groups = groups.into_iter().map(|it| Self { groups: [it].into(), ..Self::default() });
        users.chain(groups)
    }

    /// Adds the names of `others`.
    pub(crate) fn extend(&mut self, others: Self) {
        self.users.extend(others.users);
        self.groups.extend(others.groups);
    }

    /// True if there is an account that owns a socket.
    pub(crate) fn is_any(&self) -> bool {
        self.group.is_some() || !self.users.is_empty() || !self.groups.is_empty()
    }

    /// The owner of a socket with this `access`.
    pub(crate) fn owner(&self, access: &Access) -> io::Result<SocketOwner> {
        let user = |name: &UserName| match self.users.get(name) {
            Some(user) => Ok(*user),
            None if !self.is_open => Err(unnamed("user", name.as_str(), "")),
            None => match weir_sandbox::user(name.as_str()) {
                Ok(0) => Err(io::Error::other(IdentityError::Root(name.to_string()))),
                found => found.map_err(io::Error::other),
            },
        };
        let group = |name: &GroupName| match self.groups.get(name) {
            Some(group) => Ok(*group),
            // Whoever writes a number needs no look-up.
            None if !self.is_open && name.as_str().parse::<u32>().is_err() => {
                Err(unnamed("group", name.as_str(), ", or give the number of the group"))
            }
            None => weir_sandbox::group(name.as_str()).map_err(io::Error::other),
        };
        let own = access.group.as_ref().map(group).transpose()?;
        let user = access.user.as_ref().map(user).transpose()?;
        Ok(SocketOwner { user, group: own.or(self.group) })
    }
}

fn unnamed(what: &str, name: &str, or: &str) -> io::Error {
    io::Error::other(format!(
        "the configuration had no {what} {name} for a socket when weir started: name it in a template, and restart \
         weir{or}"
    ))
}

/// A listening socket. Dropping it removes its file, unless another program has replaced it.
#[derive(Debug)]
pub struct BoundListener {
    listener: Arc<Foreign<UnixListener>>,
    path: PathBuf,
    file: FileId,
    made: Made,
}

/// The state of a listener that an earlier weir left.
#[derive(Debug)]
pub(crate) enum Left {
    /// This weir listens on it, and removes its file.
    Adopted(BoundListener),
    /// Its file is not this weir's to change. It is closed, so that a new socket can replace it.
    Closed,
    /// Nothing has changed. Its path has another file, unless there is another reason.
    AsItWas { bound: BoundListener, why: Option<String> },
}

impl Left {
    /// The state after an error of [`BoundFile::adopt`].
    pub(crate) fn not_adopted(
        listener: Foreign<UnixListener>,
        path: &Path,
        file: FileId,
        error: &io::Error,
    ) -> Self {
        if error.kind() == io::ErrorKind::AlreadyExists {
            // This closes the keeper's copy, too.
            let _ = rustix::net::shutdown(&listener, rustix::net::Shutdown::Both);
            return Self::Closed;
        }
        let why = (error.kind() != io::ErrorKind::NotFound).then(|| error.to_string());
        let bound = BoundListener::of_another(listener, path, file, Box::new(|_| {}));
        Self::AsItWas { bound, why }
    }
}

/// Device and inode of a socket's file, which distinguish it from another file of the same name.
pub(crate) type FileId = (u64, u64);

/// The process that made a socket's file.
#[derive(Debug)]
enum Made {
    Here(BoundFile),
    Elsewhere { removes: Remover },
}

/// The files of this process's sockets, for an exit that waits for no lock holder.
static FILES: Mutex<Vec<(PathBuf, FileId)>> = Mutex::new(Vec::new());

/// Removes the files of all sockets that this process has made.
pub(crate) fn remove_all() {
    let files = std::mem::take(&mut *FILES.lock().unwrap_or_else(PoisonError::into_inner));
    let remove =
        |(path, file): &(PathBuf, FileId)| Place::of(path).map(|it| remove_if_in(&it, *file));
    files.iter().for_each(|it| drop(remove(it)));
}

/// A socket's file. Dropping it removes the file, unless another program has replaced it.
#[derive(Debug)]
pub(crate) struct BoundFile {
    /// Empty if the file is somebody else's to remove.
    path: PathBuf,
    file: FileId,
}

/// Makes another process remove a file when the value is dropped.
struct Remover {
    /// Empty if the file is somebody else's to remove.
    path: PathBuf,
    remove: Box<dyn Fn(&Path) + Send + Sync>,
}

/// Wraps a new listener: its waiting connections end with its last descriptor.
pub(crate) fn foreign_at(listener: UnixListener, path: &Path) -> Foreign<UnixListener> {
    Foreign::new(listener, &Party::new(path.display().to_string()))
}

impl BoundListener {
    /// Listens on `path` for those who have `access`. Creates a missing directory, and replaces a stale socket of a
    /// killed program.
    pub fn bind(path: &Path, access: impl Into<Access>) -> Result<Self, ListenError> {
        Directory::of(path)?.bind_for(path, &access.into(), &Accounts::all(socket_group()))
    }

    fn new(listener: Foreign<UnixListener>, path: &Path, file: FileId, made: Made) -> Self {
        Self { listener: Arc::new(listener), path: path.into(), file, made }
    }

    /// A listener that another process has made. On drop, `remove` makes that process remove its
    /// file.
    pub(crate) fn of_another(
        listener: Foreign<UnixListener>,
        path: &Path,
        file: FileId,
        remove: Box<dyn Fn(&Path) + Send + Sync>,
    ) -> Self {
        let made = Made::Elsewhere { removes: Remover { path: path.into(), remove } };
        Self::new(listener, path, file, made)
    }

    /// Takes over a listener that an earlier weir left.
    pub(crate) fn adopt(
        listener: Foreign<UnixListener>,
        path: &Path,
        file: FileId,
        access: &Access,
    ) -> Left {
        match BoundFile::adopt(path, file, access, &Accounts::all(socket_group())) {
            Ok(made) => Left::Adopted(Self::new(listener, path, file, Made::Here(made))),
            Err(error) => Left::not_adopted(listener, path, file, &error),
        }
    }

    /// The identity of the socket's file.
    pub(crate) fn file(&self) -> FileId {
        self.file
    }

    /// The socket and its file, separately, so that the socket can be given to another process. A file that another
    /// process has made stays with that process.
    pub(crate) fn into_parts(self) -> (Arc<Foreign<UnixListener>>, Option<BoundFile>) {
        let file = match self.made {
            Made::Here(file) => Some(file),
            Made::Elsewhere { .. } => None,
        };
        (self.listener, file)
    }

    /// The socket, for `accept`.
    pub fn listener(&self) -> &Arc<Foreign<UnixListener>> {
        &self.listener
    }

    /// The socket's file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// The administrator allows links of other users in paths to front ends that listen.
static ANY_LINKS: AtomicBool = AtomicBool::new(false);

/// See [`SwitchConfig::allow_symlinks`](weir_config::SwitchConfig::allow_symlinks).
pub(crate) fn allow_links(any: bool) {
    ANY_LINKS.store(any, Ordering::Relaxed);
}

/// The group of interfaces' sockets.
static SOCKET_GROUP: OnceLock<u32> = OnceLock::new();

/// See [`SwitchConfig::socket_group`](weir_config::SwitchConfig::socket_group). It is set once, before any socket is
/// made.
pub(crate) fn sockets_are_for(group: u32) {
    let _ = SOCKET_GROUP.set(group);
}

pub(crate) fn socket_group() -> Option<u32> {
    SOCKET_GROUP.get().copied()
}

fn links() -> Links {
    if ANY_LINKS.load(Ordering::Relaxed) { Links::Any } else { Links::Own }
}

/// The files of a directory whose names make them sockets of one pattern.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Listed {
    /// The directory.
    pub(crate) directory: FileId,
    /// Sockets to which weir would connect, by the names of their interfaces.
    pub(crate) sockets: BTreeMap<PortName, Stamp>,
    /// Sockets whose programs have ended without removing them.
    pub(crate) dead: BTreeMap<PortName, Stamp>,
    /// Some of the files to which weir would not connect: the reasons.
    pub(crate) refused: Vec<String>,
    /// The number of all such files.
    pub(crate) refused_all: usize,
    /// True if these are all files.
    pub(crate) is_whole: bool,
}

/// Looks into a directory for sockets of `pattern`.
///
/// # Errors
/// The errors of [`reach::sockets_in`].
pub(crate) fn sockets_in(directory: &Path, pattern: &NamePattern) -> io::Result<Listed> {
    let stem = |file: &str| file.strip_suffix(OnDemandConfig::SUFFIX).map(str::to_owned);
    let wanted = |file: &str| stem(file).is_some_and(|name| pattern.matches(&name));
    let (entries, most) = (ON_DEMAND_ENTRIES_MAX, ON_DEMAND_SOCKETS_MAX);
    let found = reach::sockets_in(links(), directory, entries, most, wanted)?;
    let (directory, is_whole) = (found.directory, found.is_whole);
    let mut listed = Listed { directory, is_whole, ..Listed::default() };
    for (file, found) in found.files {
        let name = pattern.name(&stem(&file).unwrap_or_default());
        let why = match (name, found) {
            (Ok(name), Ok(Socket { stamp, is_dead })) => {
                let sockets = if is_dead { &mut listed.dead } else { &mut listed.sockets };
                sockets.insert(name, stamp);
                continue;
            }
            (Ok(_), Err(error)) => error.to_string(),
            (Err(error), _) => error.to_string(),
        };
        listed.refused_all += 1;
        if listed.refused.len() < ON_DEMAND_REFUSED_SHOWN {
            listed.refused.push(why);
        }
    }
    Ok(listed)
}

/// See [`reach::watch`].
pub(crate) fn watch(directory: &Path) -> io::Result<(OwnedFd, FileId)> {
    reach::watch(links(), directory)
}

/// Connects to a front end that listens, but never to a socket of weir itself.
///
/// # Errors
/// The errors of [`reach::connect`].
pub(crate) fn dial(path: &Path, party: &Party) -> io::Result<Foreign<UnixStream>> {
    reach::connect(links(), path, party, |file| {
        let files = FILES.lock().unwrap_or_else(PoisonError::into_inner);
        files.iter().any(|(_, own)| *own == file)
    })
}

/// False if this process has listened on `path` and the file there is another one, or none: nobody reaches this weir
/// there, and another weir may have been started in its place.
pub(crate) fn is_own_yet(path: &Path) -> bool {
    let files = FILES.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((_, own)) = files.iter().find(|(made, _)| made == path) else { return true };
    Place::of(path).and_then(|place| file_id(&place.path())).is_ok_and(|found| found == *own)
}

impl BoundFile {
    fn new(path: &Path, file: FileId) -> Self {
        let mut files = FILES.lock().unwrap_or_else(PoisonError::into_inner);
        files.push((path.into(), file));
        Self { path: path.into(), file }
    }

    /// The file that an earlier weir made, with its present owners.
    ///
    /// # Errors
    /// [`NotFound`](io::ErrorKind::NotFound): the path has another file, or none.
    /// [`AlreadyExists`](io::ErrorKind::AlreadyExists): the file belongs to another user, or has a second name. Any
    /// other error: it cannot be given to its owners.
    pub(crate) fn adopt(
        path: &Path,
        file: FileId,
        access: &Access,
        accounts: &Accounts,
    ) -> io::Result<Self> {
        // Its path holds as long as it is there.
        let place = Place::of(path).map_err(|_| Errno::NOENT)?;
        let at = place.path();
        if file_id(&at).ok() != Some(file) {
            return Err(Errno::NOENT.into());
        }
        let mut owner = accounts.owner(access)?;
        let (socket, found) = own_socket(&at, owner.user)?;
        if (found.st_dev, found.st_ino) != file {
            return Err(Errno::NOENT.into());
        }
        // The keys of the earlier weir may have named others.
        owner.group = Some(owner.group.map_or_else(|| usual_group(&at), Ok)?);
        give(&socket, &found, owner)?;
        set_mode(&socket, &found, access.mode)?;
        Ok(Self::new(path, file))
    }
}

/// A directory in which sockets are made, open and locked: two programs that start at once must not both take an old
/// socket for stale and remove each other's new one. Nothing that [removes](BoundFile) a socket there may be dropped
/// while the value exists: it would wait for the lock.
#[derive(Debug)]
pub(crate) struct Directory {
    parent: PathBuf,
    lock: Lock,
}

impl Directory {
    /// The directory of the file `path`. It is made if it is missing.
    ///
    /// # Errors
    /// [`ListenError`]
    pub(crate) fn of(path: &Path) -> Result<Self, ListenError> {
        let parent = path.parent().unwrap_or(Path::new("/"));
        let place = Place::make(path)
            .map_err(|source| ListenError::of("use the directory", parent, source))?;
        Ok(Self { parent: parent.into(), lock: Lock::take(place)? })
    }

    /// The place of the file `path`, if the path names a file in this directory by the same way.
    pub(crate) fn place_of(&self, path: &Path) -> Option<Place> {
        let name = path.file_name().filter(|_| path.parent() == Some(self.parent.as_path()))?;
        Some(self.lock.place.beside(name))
    }

    /// Listens on `path`, which is in this directory, as [`BoundListener::bind`] does.
    ///
    /// # Errors
    /// [`ListenError`]
    pub(crate) fn bind_for(
        &self,
        path: &Path,
        access: &Access,
        accounts: &Accounts,
    ) -> Result<BoundListener, ListenError> {
        let io_error = |source: io::Error| ListenError::of("listen on", path, source);
        let place = self.place_of(path).ok_or_else(|| io_error(Errno::INVAL.into()))?;
        let owner = accounts.owner(access).map_err(io_error)?;
        remove_stale(path, &place)?;
        let (listener, file) = bind(&place.path(), access.mode, owner).map_err(io_error)?;
        let made = Made::Here(BoundFile::new(path, file));
        Ok(BoundListener::new(foreign_at(listener, path), path, file, made))
    }
}

/// The right to make and remove sockets in a directory: a lock file that only its owner can open and lock. (Any
/// reader could lock the directory itself, for any time.)
#[derive(Debug)]
struct Lock {
    /// A file in the directory.
    place: Place,
    /// The lock file.
    path: PathBuf,
    file: File,
}

impl Lock {
    const NAME: &'static str = ".weir.lock";
    /// Attempts to lock the file. It can vanish before it is locked: its holder removes it, and so can the
    /// directory's owner.
    const TRIES: usize = 1000;

    fn take(place: Place) -> Result<Self, ListenError> {
        let path = place.beside(Self::NAME.as_ref()).path();
        let io_error = |step| {
            let path = place.shown().with_file_name(Self::NAME);
            move |errno: Errno| ListenError::of(step, &path, errno.into())
        };
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        for _ in 0..Self::TRIES {
            let file = open(&path, flags, Mode::RUSR | Mode::WUSR)
                .map_err(io_error("open the lock file"))?;
            let found = fstat(&file).map_err(io_error("look at the lock file"))?;
            // In a directory that others can write, another user's file could stay locked for ever.
            if found.st_uid != geteuid().as_raw() || found.st_mode & 0o177 != 0 {
                break;
            }
            flock(&file, FlockOperation::LockExclusive).map_err(io_error("lock"))?;
            // If the holder removed the file before it was locked here, others lock a newer file.
            let file = File::from(file);
            let opened = file.metadata().map(|found| (found.dev(), found.ino())).ok();
            if opened.is_some() && opened == file_id(&path).ok() {
                return Ok(Self { place, path, file });
            }
        }
        Err(ListenError::Lock { path: place.shown().with_file_name(Self::NAME) })
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // The file is removed while it is still locked, so that no newer lock file is removed.
        let _ = fs::remove_file(&self.path);
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

impl Drop for BoundFile {
    fn drop(&mut self) {
        let path = std::mem::take(&mut self.path);
        if !path.as_os_str().is_empty() {
            remove([(path, self.file)].into());
        }
    }
}

/// Removes files that end together.
pub(crate) fn remove_files(files: impl IntoIterator<Item = BoundFile>) {
    let taken = |mut it: BoundFile| (std::mem::take(&mut it.path), it.file);
    remove(files.into_iter().map(taken).collect());
}

/// Removes the files of sockets that end together, and returns the paths of those that another process has to remove.
pub(crate) fn remove_together(all: impl IntoIterator<Item = BoundListener>) -> Vec<PathBuf> {
    let (mut here, mut elsewhere) = (Vec::new(), Vec::new());
    for bound in all {
        match bound.made {
            Made::Here(file) => here.push(file),
            Made::Elsewhere { mut removes } => elsewhere.push(std::mem::take(&mut removes.path)),
        }
    }
    remove_files(here);
    elsewhere
}

/// Removes files. A way is walked and a directory locked once for all files in it.
fn remove(all: BTreeSet<(PathBuf, FileId)>) {
    let mut files = FILES.lock().unwrap_or_else(PoisonError::into_inner);
    files.retain(|it| !all.contains(it));
    drop(files);
    let mut last: Option<(Option<&Path>, _, _)> = None;
    for (path, file) in &all {
        let (parent, Some(name)) = (path.parent(), path.file_name()) else { continue };
        if last.as_ref().is_none_or(|(it, ..)| *it != parent) {
            // No process holds two locks. If a lock or a way fails, the next start replaces the stale socket.
            drop(last.take());
            let lock = |place: &Place| Lock::take(place.beside(Lock::NAME.as_ref()));
            last = Place::of(path).ok().map(|place| (parent, lock(&place), place));
        }
        if let Some((.., place)) = &last {
            remove_if_in(&place.beside(name), *file);
        }
    }
}

fn remove_if_in(place: &Place, file: FileId) {
    let path = place.path();
    if file_id(&path).is_ok_and(|found| found == file) {
        let _ = fs::remove_file(path);
    }
}

impl Drop for Remover {
    fn drop(&mut self) {
        if !self.path.as_os_str().is_empty() {
            (self.remove)(&self.path);
        }
    }
}

impl std::fmt::Debug for Remover {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Remover").field("path", &self.path).finish_non_exhaustive()
    }
}

fn file_id(path: &Path) -> io::Result<FileId> {
    fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}

fn remove_stale(path: &Path, place: &Place) -> Result<(), ListenError> {
    let io_error = |step| move |source| ListenError::of(step, path, source);
    let at = place.path();
    let stale = match fs::symlink_metadata(&at) {
        Ok(found) if found.file_type().is_socket() => (found.dev(), found.ino()),
        Ok(_) => return Err(ListenError::NotASocket { path: path.into() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(io_error("look at")(error)),
    };
    match server_at(place) {
        Ok(Some(Server::Present)) => Err(ListenError::in_use(path)),
        Ok(Some(Server::Ended)) => Err(ListenError::left_over(path)),
        Ok(None) => match file_id(&at) {
            // A file that another program has put there in the meantime is not removed.
            Ok(found) if found != stale => Err(ListenError::in_use(path)),
            Ok(_) => fs::remove_file(at).map_err(io_error("remove the stale socket")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(io_error("look at")(error)),
        },
        Err(error) => Err(io_error("see whether anybody serves")(error)),
    }
}

/// True if a program listens on the socket at `path`. For a process that serves nobody yet: it closes what that program
/// may already have sent by itself, and starts no thread for it.
///
/// # Errors
/// The errors of [`Place::of`] and of the system, except for those that mean no listener.
pub fn is_served(path: &Path) -> io::Result<bool> {
    look_for_listener(&Place::of(path)?).map(|found| found.is_some())
}

/// The program that has made a listener.
enum Server {
    Present,
    Ended,
}

fn server_at(place: &Place) -> io::Result<Option<Server>> {
    let Some(found) = look_for_listener(place)? else { return Ok(None) };
    // The server may already have sent descriptors, whose close this thread must not wait for.
    let found = found.map(Foreign::from);
    let made_by = found.map(|stream| socket_peercred(&stream).map(|peer| peer.pid));
    let has_ended = match made_by {
        Some(Ok(process)) => {
            // A process that has ended has no program, even before its parent has asked how it
            // ended.
            let program = |process: &str| fs::read_link(format!("/proc/{process}/exe"));
            let error = program(&process.as_raw_nonzero().to_string()).err();
            error.is_some_and(|it| it.kind() == io::ErrorKind::NotFound) && program("self").is_ok()
        }
        // A keeper accepts nobody.
        None => true,
        Some(Err(_)) => false,
    };
    Ok(Some(if has_ended { Server::Ended } else { Server::Present }))
}

/// A connection to a listener; `Some(None)` if the listener has no room for one.
fn look_for_listener(place: &Place) -> io::Result<Option<Option<UnixStream>>> {
    // Connecting must not block: a listener that never accepts would block the caller.
    match reach::look_for_listener_as(SocketType::STREAM, place) {
        Ok(stream) => Ok(Some(Some(stream.into()))),
        Err(error) => match error.kind() {
            io::ErrorKind::WouldBlock => Ok(Some(None)),
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => Ok(None),
            _ => Err(error),
        },
    }
}

/// The file has its permissions, or fewer by the umask, from the moment when it appears. It has all of them before
/// `listen`, and until then nobody can connect. No step uses a path at which another user could have put another
/// file.
fn bind(path: &Path, mode: SocketMode, owner: SocketOwner) -> io::Result<(UnixListener, FileId)> {
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    // The file gets the socket's permissions, less the umask (unix(7)).
    fchmod(&socket, Mode::from_raw_mode(mode.bits()))?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    let (file, found) = own_socket(path, None)?;
    let given = give(&file, &found, owner).and_then(|()| set_mode(&file, &found, mode));
    if let Err(error) = given {
        // Nobody will listen there.
        fs::remove_file(path)?;
        return Err(error);
    }
    rustix::net::listen(&socket, BACKLOG)?;
    Ok((UnixListener::from(socket), (found.st_dev, found.st_ino)))
}

/// Gives a socket's file, which was `found` with another owner, to its own.
fn give(file: &OwnedFd, found: &Stat, owner: SocketOwner) -> io::Result<()> {
    let user = owner.user.filter(|user| *user != found.st_uid).map(Uid::from_raw);
    let group = owner.group.filter(|group| *group != found.st_gid).map(Gid::from_raw);
    if user.is_none() && group.is_none() {
        return Ok(());
    }
    chownat(file, "", user, group, AtFlags::EMPTY_PATH).map_err(|error| match error {
        Errno::PERM => io::Error::other(
            "weir may not give it to another user or group: a weir that root has started may, if a `socket_user` or \
             `socket_group` of its file says so",
        ),
        error => error.into(),
    })
}

/// The group that the kernel gives to a file that this process makes at `path`.
fn usual_group(path: &Path) -> io::Result<u32> {
    let directory = fs::metadata(path.parent().unwrap_or(Path::new("/")))?;
    let of_directory = directory.mode() & Mode::SGID.bits() != 0;
    Ok(if of_directory { directory.gid() } else { getegid().as_raw() })
}

/// The file of a socket that belongs to this user, or to `user`. It has no other name: whoever can make names in a
/// directory must not have another program's socket given away.
fn own_socket(path: &Path, user: Option<u32>) -> io::Result<(OwnedFd, Stat)> {
    let file = open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let found = fstat(&file)?;
    let is_socket = FileType::from_raw_mode(found.st_mode) == FileType::Socket;
    let is_own = found.st_uid == geteuid().as_raw() || Some(found.st_uid) == user;
    match is_socket && is_own && found.st_nlink == 1 {
        true => Ok((file, found)),
        false => Err(Errno::EXIST.into()),
    }
}

/// Sets the permissions of a socket's file, which was `found` with others.
fn set_mode(file: &OwnedFd, found: &Stat, mode: SocketMode) -> io::Result<()> {
    if found.st_mode & 0o777 != mode.bits() {
        let this = format!("/proc/self/fd/{}", file.as_raw_fd());
        fs::set_permissions(this, fs::Permissions::from_mode(mode.bits()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(text: &str) -> SocketMode {
        text.parse().unwrap()
    }

    #[test]
    fn a_place_that_this_user_may_not_use_comes_with_the_way_to_another() {
        let error = |errno: Errno| ListenError::of("lock", Path::new("/run/weir"), errno.into());
        let help = |errno| error(errno).help().map(|help| help.to_string());
        assert!(help(Errno::ACCESS).is_some_and(|help| help.contains("XDG_RUNTIME_DIR")));
        assert!(help(Errno::IO).is_none());
    }

    #[test]
    fn weir_does_not_connect_to_itself_by_any_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        let bound = BoundListener::bind(&path, SocketMode::OWNER).unwrap();
        fs::hard_link(&path, dir.path().join("b.sock")).unwrap();
        std::os::unix::fs::symlink("a.sock", dir.path().join("c.sock")).unwrap();
        let party = Party::new("them");
        for name in ["a.sock", "b.sock", "c.sock"] {
            let error = dial(&dir.path().join(name), &party).unwrap_err();
            assert!(error.to_string().contains("weir itself listens"), "{name}: {error}");
        }
        drop(bound);
        let _other = UnixListener::bind(&path).unwrap();
        dial(&path, &party).unwrap();
    }

    #[test]
    fn no_socket_is_made_or_removed_behind_a_link_of_somebody_else() {
        use std::os::unix::fs::symlink;
        let (theirs, own) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::set_permissions(theirs.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let at = |name: &str| theirs.path().join(name);
        let stale = own.path().join("web0.sock");
        drop(UnixListener::bind(&stale).unwrap());
        symlink(own.path(), at("link")).unwrap();
        for name in ["link/web0.sock", "link/new.sock", "link/new/web0.sock"] {
            let error = BoundListener::bind(&at(name), SocketMode::OWNER).unwrap_err();
            let cause =
                std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            assert!(cause.contains("is a link in a directory"), "{name}: {error}: {cause}");
        }
        let left: Vec<_> = fs::read_dir(own.path()).unwrap().map(|it| it.unwrap().path()).collect();
        assert_eq!(left, [stale], "nothing is made or removed");

        // The directory is replaced by a link to another one, in which the same socket has the same name.
        let bound = BoundListener::bind(&at("dir/a.sock"), SocketMode::OWNER).unwrap();
        UnixStream::connect(at("dir/a.sock")).unwrap();
        let other = own.path().join("a.sock");
        fs::hard_link(at("dir/a.sock"), &other).unwrap();
        fs::rename(at("dir"), at("moved")).unwrap();
        symlink(own.path(), at("dir")).unwrap();
        drop(bound);
        assert!(other.exists(), "removed behind a link");
    }

    #[test]
    fn stale_socket_is_replaced_and_gets_its_permissions() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.sock");
        // std's listener leaves its file behind, as a killed program does.
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());

        let _bound = BoundListener::bind(&path, mode("0660")).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn whoever_locks_the_directory_keeps_nobody_waiting_and_no_lock_file_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.sock");
        let theirs = File::open(dir.path()).unwrap();
        flock(&theirs, FlockOperation::LockExclusive).unwrap();
        let bound = BoundListener::bind(&path, SocketMode::OWNER).unwrap();
        let files = || fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(files(), 1);
        drop(bound);
        assert_eq!(files(), 0);
    }

    #[test]
    fn a_lock_file_that_others_can_open_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let lock = dir.path().join(Lock::NAME);
        fs::write(&lock, "").unwrap();
        fs::set_permissions(&lock, fs::Permissions::from_mode(0o666)).unwrap();
        let bound = BoundListener::bind(&dir.path().join("s.sock"), SocketMode::OWNER);
        assert!(matches!(bound, Err(ListenError::Lock { .. })), "{bound:?}");
        fs::remove_file(&lock).unwrap();
        // A link to a file that another user wants made is not followed either.
        std::os::unix::fs::symlink(dir.path().join("made"), &lock).unwrap();
        assert!(BoundListener::bind(&dir.path().join("s.sock"), SocketMode::OWNER).is_err());
        assert!(!dir.path().join("made").exists());
    }

    #[test]
    fn missing_directories_are_made() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b/s.sock");
        let _bound = BoundListener::bind(&path, SocketMode::OWNER).unwrap();
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn socket_in_use_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.sock");
        let _bound = BoundListener::bind(&path, SocketMode::OWNER).unwrap();
        let second = BoundListener::bind(&path, SocketMode::OWNER);
        assert!(matches!(second, Err(ListenError::InUse { .. })));
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn socket_of_one_who_accepts_nobody_is_in_use_and_holds_up_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.sock");
        let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
        let listener = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::bind(&listener, &rustix::net::SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let waiting: Vec<_> = std::iter::repeat_with(|| reach::look_for_listener(&path))
            .take_while(Result::is_ok)
            .collect();
        assert!(!waiting.is_empty());
        let second = BoundListener::bind(&path, SocketMode::OWNER);
        assert!(matches!(second, Err(ListenError::InUse { .. })));
    }

    #[test]
    fn file_that_is_no_socket_is_never_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notes.txt");
        fs::write(&path, "keep me").unwrap();
        let bound = BoundListener::bind(&path, SocketMode::OWNER);
        assert!(matches!(bound, Err(ListenError::NotASocket { .. })));
        assert_eq!(fs::read_to_string(&path).unwrap(), "keep me");
    }

    #[test]
    fn drop_removes_its_own_file_and_nobody_elses() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.sock");
        drop(BoundListener::bind(&path, SocketMode::OWNER).unwrap());
        assert!(!path.exists());

        let old = BoundListener::bind(&path, SocketMode::OWNER).unwrap();
        fs::remove_file(&path).unwrap();
        let _new = BoundListener::bind(&path, SocketMode::OWNER).unwrap();
        drop(old);
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn a_socket_that_outlives_its_weir_is_gone_on_with_while_its_file_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.sock");
        let old = BoundListener::bind(&path, SocketMode::OWNER).unwrap();
        let (file, kept) = (old.file(), old.listener().try_clone().unwrap());
        // The listener is forgotten, as if the program were killed.
        std::mem::forget(old);
        let again = kept.try_clone().unwrap();
        // The earlier weir has given it to a group, which the present one does not name. Only root can.
        let _ = std::os::unix::fs::chown(&path, None, Some(4711));
        let Left::Adopted(bound) = BoundListener::adopt(kept, &path, file, &mode("0660").into())
        else {
            panic!("it is weir's")
        };
        let found = fs::metadata(&path).unwrap();
        assert_eq!((found.mode() & 0o777, found.gid()), (0o660, getegid().as_raw()));
        let _front_end = UnixStream::connect(&path).unwrap();
        bound.listener().accept().unwrap();
        drop(bound);
        assert!(!path.exists());
        let _others = BoundListener::bind(&path, SocketMode::OWNER).unwrap();
        let left = BoundListener::adopt(again, &path, file, &SocketMode::OWNER.into());
        assert!(matches!(left, Left::AsItWas { why: None, .. }), "{left:?}");
    }

    #[test]
    fn root_a_kept_socket_belongs_to_whom_the_keys_name_now() {
        if !weir_testing::is_root("to give files away") {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.sock");
        let mut listener = None;
        let mut keeps = |user: Option<&str>, group: Option<&str>| {
            let user = user.map(|it| it.parse().unwrap());
            let group = group.map(|it| it.parse().unwrap());
            let access = Access { mode: mode("0660"), user, group };
            let bound = match listener.take() {
                None => BoundListener::bind(&path, access).unwrap(),
                Some((listener, file)) => {
                    match BoundListener::adopt(listener, &path, file, &access) {
                        Left::Adopted(bound) => bound,
                        left => panic!("{left:?}"),
                    }
                }
            };
            listener = Some((bound.listener().try_clone().unwrap(), bound.file()));
            std::mem::forget(bound);
            let found = fs::metadata(&path).unwrap();
            (found.uid(), found.gid())
        };
        let own = (geteuid().as_raw(), getegid().as_raw());
        assert_eq!(keeps(None, Some("54322")), (own.0, 54_322));
        assert_eq!(keeps(None, None), own, "the key is gone");
        assert_eq!(keeps(Some("54321"), None), (54_321, own.1));
        assert_eq!(keeps(Some("54321"), Some("54322")), (54_321, 54_322));
        // A group of the directory's is the usual one.
        std::os::unix::fs::chown(dir.path(), None, Some(54_323)).unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o2755)).unwrap();
        assert_eq!(keeps(Some("54321"), None), (54_321, 54_323));
        // A socket with a second name may be anybody's, and one of another user is: neither changes, and a new one
        // takes the place of weir's own.
        let (socket, file) = listener.unwrap();
        let adopt = |access: Access| {
            BoundListener::adopt(socket.try_clone().unwrap(), &path, file, &access)
        };
        let link = dir.path().join("link");
        fs::hard_link(&path, &link).unwrap();
        let user = Some("54321".parse().unwrap());
        let closed = adopt(Access { mode: mode("0666"), user, group: None });
        assert!(matches!(closed, Left::Closed), "{closed:?}");
        fs::remove_file(&link).unwrap();
        let closed = adopt(mode("0666").into());
        assert!(matches!(closed, Left::Closed), "it is another user's: {closed:?}");
        let look = || fs::metadata(&path).map(|it| (it.uid(), it.mode() & 0o777)).unwrap();
        assert_eq!(look(), (54_321, 0o660));
        drop(BoundListener::bind(&path, mode("0640")).unwrap());
        // A socket that its directory's owner has put in the place of weir's.
        let _theirs = UnixListener::bind(&path).unwrap();
        std::os::unix::fs::chown(&path, Some(54_321), None).unwrap();
        let before = look();
        let left = adopt(mode("0666").into());
        assert!(matches!(left, Left::AsItWas { why: None, .. }), "{left:?}");
        let bound = BoundListener::bind(&path, SocketMode::OWNER);
        assert!(matches!(bound, Err(ListenError::InUse { .. })), "{bound:?}");
        assert_eq!(look(), before);
    }

    #[test]
    fn of_many_that_start_at_once_over_a_stale_socket_exactly_one_serves() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.sock");
        for _ in 0..20 {
            drop(UnixListener::bind(&path).unwrap());
            let bound: Vec<_> = std::thread::scope(|scope| {
                let starts: Vec<_> = (0..4)
                    .map(|_| scope.spawn(|| BoundListener::bind(&path, SocketMode::OWNER)))
                    .collect();
                starts.into_iter().map(|start| start.join().unwrap()).collect()
            });
            assert_eq!(bound.iter().filter(|bound| bound.is_ok()).count(), 1);
            UnixStream::connect(&path).unwrap();
        }
    }
}
