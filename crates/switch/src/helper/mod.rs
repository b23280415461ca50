//! A second process that does the privileged work of a confined weir, with the privileges that weir was started with.
//! It makes and removes sockets and the records of rings beside them, connects to front ends that listen, sets
//! interrupt coalescing of network cards, moves their interrupts, and pins vCPUs. [`serve`] has the details.
//!
//! [`Hands`] does the work: in this process without a sandbox, otherwise in the helper.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Component, Path, PathBuf};
use std::process::{Child, ExitCode};
use std::sync::{Arc, Mutex, Once};

use rustix::io::Errno;
use weir_config::{
    ConfigError, InterfaceName, NamePattern, Networks, SocketMode, SocketPath, UplinkConfig,
};
use weir_foreign::place::Place;
use weir_foreign::{Foreign, Party};
use weir_limits::HELPER_SOCKETS_TOGETHER_MAX;
use weir_port_vhost::Records;

use crate::explain::{InterruptPlaces, UplinkLayer};
use crate::manager::{Gathering, UplinkInterface, restore_left_over, set_affinity};
use crate::resolver;
use crate::unix_socket::{
    self, Access, Accounts, BoundListener, Directory, FileId, Left, Listed, ListenError, foreign_at,
};

mod fabric;
mod serve;
#[cfg(test)]
mod tests;
pub(crate) mod wire;

use fabric::Fabric;
pub(crate) use fabric::connect_to;
pub(crate) use wire::{Announcement, FrrDaemon, OwnerAnnouncement, Tasks, WantedSocket};
use wire::{Answer, Made, Request};

/// The first argument of a program that is to be a helper. Its weir is on standard input.
const ARGUMENT: &str = "helper-of-a-confined-weir";

/// Serves as a helper if this process was started as one, and returns the exit code. A program that confines itself
/// calls this first. `log` starts the helper's log.
pub fn run_if_asked(log: fn()) -> Option<ExitCode> {
    let asked = std::env::args_os().nth(1).is_some_and(|argument| argument == ARGUMENT);
    asked.then(|| match rustix::stdio::stdin().try_clone_to_owned() {
        Ok(socket) => serve::run(&socket, log),
        Err(_) => ExitCode::FAILURE,
    })
}

/// The file beside a socket that keeps records of rings across a restart of weir.
fn records_path(socket: &SocketPath) -> PathBuf {
    PathBuf::from(format!("{socket}.rings"))
}

fn remove_records(socket: &SocketPath) {
    let _ = Place::of(&records_path(socket)).and_then(|place| std::fs::remove_file(place.path()));
}

/// Connects to the keeper. A weir whose control socket is gone has lost its directory, perhaps to another weir, and
/// takes no keeper from it.
fn connect_keeper(path: &SocketPath, control: Option<&SocketPath>) -> io::Result<OwnedFd> {
    match control.filter(|control| !unix_socket::is_own_yet(control.as_path())) {
        None => weir_keeper::connect(path.as_path()),
        Some(control) => {
            let message =
                format!("nobody reaches this weir by {control}: it takes no other keeper");
            Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
        }
    }
}

fn take_place(control: &SocketPath) {
    restore_left_over(control);
    // The next program that binds the socket answers clients from now on.
    let _ = Place::of(control.as_path()).and_then(|place| std::fs::remove_file(place.path()));
}

/// True if weir may have a socket at `path`: one of the paths named at the start, or any path in the control socket's
/// directory.
fn may_use(control: Option<&SocketPath>, named: &BTreeSet<SocketPath>, path: &SocketPath) -> bool {
    let beside = control.and_then(|path| path.as_path().parent());
    let is_file = path.as_path().file_name().is_some();
    named.contains(path) || (beside.is_some() && path.as_path().parent() == beside && is_file)
}

/// True if `path` is below `dir`. The path is compared as it is written: symbolic links in it are
/// followed later, as everywhere.
fn is_below(dir: Option<&SocketPath>, path: &SocketPath) -> bool {
    let climbs = || path.as_path().components().any(|part| part == Component::ParentDir);
    dir.is_some_and(|dir| path != dir && path.as_path().starts_with(dir.as_path()) && !climbs())
}

/// True if `path` is a file in one of these directories.
fn is_in(directories: &BTreeSet<SocketPath>, path: &SocketPath) -> bool {
    let parent = path.as_path().parent();
    let is_file = path.as_path().file_name().is_some();
    is_file && directories.iter().any(|it| parent == Some(it.as_path()))
}

const HELP_LOOK: &str = "name a directory below `client_dir` of [switch], or have it in the configuration that weir is \
                         started with; or start weir with --no-sandbox";

fn no_look(directory: &SocketPath) -> String {
    format!("a confined weir may not look into {directory}")
}

const HELP_CONNECT: &str = "put the socket beside the control socket, below `client_dir` of [switch], or into the \
                            configuration that weir is started with; or start weir with --no-sandbox";

fn no_connection(path: &SocketPath) -> String {
    format!("a confined weir may not connect to {path}")
}

/// The process that tells FRR which addresses are on this host.
#[derive(Debug)]
pub(crate) enum Teller {
    /// This process tells FRR.
    Own(Fabric),
    /// The helper tells FRR.
    Helper(Arc<Helper>),
}

impl Teller {
    /// Announces all addresses.
    ///
    /// # Errors
    /// The error of the first announcement that failed.
    pub(crate) fn announce(&mut self, all: Vec<Announcement>) -> Result<(), Errno> {
        match self {
            Self::Own(fabric) => fabric.announce(&all),
            Self::Helper(helper) => told(helper, &Request::Announce { all }),
        }
    }

    /// Announces the owners of IP addresses.
    ///
    /// # Errors
    /// The error of the first announcement that failed.
    pub(crate) fn announce_owners(&mut self, all: Vec<OwnerAnnouncement>) -> Result<(), Errno> {
        match self {
            Self::Own(fabric) => fabric.announce_owners(&all),
            Self::Helper(helper) => told(helper, &Request::AnnounceOwners { all }),
        }
    }

    /// A descriptor that closes when the FRR daemon ends; `None` if the daemon does not run.
    pub(crate) fn connect(&self, daemon: FrrDaemon) -> Option<OwnedFd> {
        match self {
            Self::Own(fabric) => fabric.connect(daemon).ok(),
            Self::Helper(helper) => helper.ask(&Request::ConnectFrr { daemon }).ok()?.1,
        }
    }

    /// Removes VNIs and adds them again, so that FRR sends everything about them again.
    ///
    /// # Errors
    /// The error of the first VNI that failed.
    pub(crate) fn renew(&mut self) -> Result<(), Errno> {
        match self {
            Self::Own(fabric) => fabric.renew(),
            Self::Helper(helper) => told(helper, &Request::RenewFabric),
        }
    }

    /// Removes the devices that FRR watches; their TAPs are closed.
    pub(crate) fn leave(&mut self) {
        match self {
            Self::Own(fabric) => fabric.leave(),
            Self::Helper(helper) => drop(helper.ask(&Request::LeaveFabric)),
        }
    }
}

/// A socket that the helper has connected, or the error.
fn connected((answer, socket): (Answer, Option<OwnedFd>)) -> io::Result<OwnedFd> {
    match answer {
        Answer::Errno(code) => Err(io::Error::from_raw_os_error(code)),
        _ => Ok(socket.ok_or_else(no_descriptor)?),
    }
}

fn told(helper: &Helper, request: &Request) -> Result<(), Errno> {
    match helper.ask(request) {
        Ok((Answer::Errno(code), _)) => Err(Errno::from_raw_os_error(code)),
        Ok(_) => Ok(()),
        Err(_) => Err(Errno::PIPE),
    }
}

/// The process that does work which takes a name in the file system, or a privilege.
#[derive(Clone, Debug, Default)]
pub enum Hands {
    /// This process does the work.
    #[default]
    Own,
    /// The helper does the work.
    Helper(Arc<Helper>),
}

impl Hands {
    /// Listens on `path`.
    pub fn bind(
        &self,
        path: &Path,
        access: impl Into<Access>,
    ) -> Result<BoundListener, ListenError> {
        match self {
            Self::Own => BoundListener::bind(path, access),
            Self::Helper(helper) => helper.bind(path, access.into()),
        }
    }

    /// Listens on several sockets and opens the records beside them, with one message to the
    /// helper. The result is empty if this process does the work itself, which needs no message, or
    /// if the helper fails.
    pub(crate) fn bind_all(&self, wanted: Vec<WantedSocket>) -> BTreeMap<SocketPath, Ahead> {
        match self {
            Self::Own => BTreeMap::new(),
            Self::Helper(helper) => helper.bind_all(wanted),
        }
    }

    /// Listens on the control socket at `path` for its owner, and for a group if one is given. A helper knows the
    /// group from its start and grants access to no other.
    pub fn bind_control(
        &self,
        path: &Path,
        group: Option<u32>,
    ) -> Result<BoundListener, ListenError> {
        let access = SocketMode::of_control(group.is_some()).into();
        match self {
            Self::Own => Directory::of(path)?.bind_for(path, &access, &Accounts::of_control(group)),
            Self::Helper(helper) => helper.bind(path, access),
        }
    }

    /// Takes over a listening socket of an earlier weir.
    pub(crate) fn adopt(
        &self,
        listener: Foreign<UnixListener>,
        path: &Path,
        file: FileId,
        access: &Access,
    ) -> Left {
        match self {
            Self::Own => BoundListener::adopt(listener, path, file, access),
            Self::Helper(helper) => helper.adopt(listener, path, file, access.clone()),
        }
    }

    /// Opens the file beside a socket that keeps records of rings across a restart of weir.
    ///
    /// # Errors
    /// The kernel's error, or an error if others have access to the file.
    pub(crate) fn open_records(&self, socket: &SocketPath) -> io::Result<Records> {
        match self {
            Self::Own => Records::open(&records_path(socket)),
            Self::Helper(helper) => {
                let (_, file) = helper.ask(&Request::OpenRecords { path: socket.clone() })?;
                file.map(Records::over).ok_or_else(|| io::Error::from(no_descriptor()))
            }
        }
    }

    pub(crate) fn remove_records(&self, socket: &SocketPath) {
        match self {
            Self::Own => remove_records(socket),
            Self::Helper(helper) => {
                drop(helper.ask(&Request::RemoveRecords { path: socket.clone() }));
            }
        }
    }

    /// True if weir may have a socket at `path`.
    pub(crate) fn may_use(&self, path: &SocketPath) -> bool {
        match self {
            Self::Own => true,
            Self::Helper(helper) => may_use(helper.control.as_ref(), &helper.sockets, path),
        }
    }

    /// # Errors
    /// weir cannot connect to a front end that listens at `path`, even if one comes.
    pub(crate) fn check_connect(&self, path: &SocketPath) -> Result<(), ListenError> {
        match self {
            Self::Helper(helper) if !self.may_use(path) => {
                let below =
                    is_below(helper.client_dir.as_ref(), path) || is_in(&helper.on_demand, path);
                let help = || Some(HELP_CONNECT.into());
                let refused =
                    || ListenError::Refused { message: no_connection(path), help: help() };
                below.then_some(()).ok_or_else(refused)
            }
            Self::Own | Self::Helper(_) => Ok(()),
        }
    }

    /// Opens the configuration file at `path`.
    ///
    /// # Errors
    /// [`ConfigError`]
    pub(crate) fn open_config(&self, path: &Path) -> Result<File, ConfigError> {
        let Self::Helper(helper) = self else { return weir_config::open_file(path) };
        let opened = helper.ask(&Request::OpenConfig);
        let file = opened.and_then(|(_, file)| file.ok_or_else(no_descriptor));
        file.map(File::from)
            .map_err(|error| ConfigError::Read { path: path.into(), source: error.into() })
    }

    /// The sockets of a directory that make interfaces on demand.
    ///
    /// # Errors
    /// The errors of [`unix_socket::sockets_in`].
    pub(crate) fn sockets_in(
        &self,
        directory: &SocketPath,
        pattern: &NamePattern,
    ) -> io::Result<Listed> {
        let Self::Helper(helper) = self else {
            return unix_socket::sockets_in(directory.as_path(), pattern);
        };
        let (directory, pattern) = (directory.clone(), pattern.clone());
        match helper.ask(&Request::LookFor { directory, pattern })? {
            (Answer::Listed(listed), _) => Ok(listed),
            (Answer::Errno(code), _) => Err(io::Error::from_raw_os_error(code)),
            _ => Err(no_descriptor().into()),
        }
    }

    /// A descriptor that tells of changes in such a directory, and the directory's identity.
    ///
    /// # Errors
    /// The errors of [`unix_socket::watch`].
    pub(crate) fn watch(&self, directory: &SocketPath) -> io::Result<(OwnedFd, FileId)> {
        let Self::Helper(helper) = self else { return unix_socket::watch(directory.as_path()) };
        match helper.ask(&Request::Watch { directory: directory.clone() })? {
            (Answer::Watched { directory }, Some(notices)) => Ok((notices, directory)),
            (Answer::Errno(code), _) => Err(io::Error::from_raw_os_error(code)),
            _ => Err(no_descriptor().into()),
        }
    }

    /// The function by which interfaces connect to front ends that listen.
    pub(crate) fn dial(&self) -> weir_port_vhost::Dial {
        match self {
            Self::Own => Box::new(unix_socket::dial),
            Self::Helper(helper) => {
                let helper = Arc::clone(helper);
                Box::new(move |path, party| helper.connect(path, party))
            }
        }
    }

    /// The function by which weir connects to the host's resolvers for guests of these networks. A helper knows the
    /// networks from its start.
    pub(crate) fn dial_resolver(&self, networks: &Networks) -> weir_port_gateway::Dial {
        match self {
            Self::Own => {
                let own = resolver::task(networks).unwrap_or_default();
                Box::new(move |turn, means| resolver::connect(turn, means, &own))
            }
            Self::Helper(helper) => {
                let helper = Arc::clone(helper);
                Box::new(move |turn, means| {
                    connected(helper.ask(&Request::ConnectResolver { turn, means })?)
                })
            }
        }
    }

    /// The function by which the weir with this control socket connects to its keeper. A helper
    /// knows the control socket from its start.
    pub(crate) fn dial_keeper(&self, path: &SocketPath, control: &SocketPath) -> weir_keeper::Dial {
        let (path, control) = (path.clone(), control.clone());
        match self {
            Self::Own => Box::new(move || connect_keeper(&path, Some(&control))),
            Self::Helper(helper) => {
                let helper = Arc::clone(helper);
                Box::new(move || {
                    connected(helper.ask(&Request::ConnectKeeper { path: path.clone() })?)
                })
            }
        }
    }

    /// Restores everything that this weir has changed, and removes everything that it has made.
    /// Threads of weir may hold any lock meanwhile. A helper does this even after weir has ended.
    pub fn let_go(&self, control: Option<&SocketPath>) {
        match self {
            Self::Own => {
                control.into_iter().for_each(restore_left_over);
                unix_socket::remove_all();
            }
            Self::Helper(helper) => {
                drop(wire::send(helper.last_word.as_fd(), &Request::End, None));
            }
        }
    }

    /// Restores the changes of a killed weir with this control socket. A helper has done so at its start.
    pub(crate) fn restore_left_over(&self, control: &SocketPath) {
        if let Self::Own = self {
            restore_left_over(control);
        }
    }

    /// Removes the files of sockets that end together.
    pub(crate) fn remove_together(&self, sockets: impl IntoIterator<Item = BoundListener>) {
        let elsewhere = unix_socket::remove_together(sockets);
        let Self::Helper(helper) = self else { return };
        let paths: Vec<_> = elsewhere.iter().filter_map(|path| socket_path(path).ok()).collect();
        for paths in paths.chunks(HELPER_SOCKETS_TOGETHER_MAX) {
            // As for one socket.
            let _ = helper.ask(&Request::Remove { paths: paths.to_vec() });
        }
    }

    /// Removes the control socket of the weir that this one replaces, and restores its changes. That weir has
    /// stopped.
    pub(crate) fn take_place(&self, control: &SocketPath) {
        match self {
            Self::Own => take_place(control),
            Self::Helper(helper) => drop(helper.ask(&Request::TakePlace)),
        }
    }

    /// The interface of an uplink, for the weir with this control socket.
    pub(crate) fn interface(
        &self,
        config: &UplinkConfig,
        control: &SocketPath,
    ) -> Box<dyn Gathering> {
        let name = config.interface.clone();
        match self {
            Self::Helper(helper) if config.kind.has_card() => {
                Box::new(HelpedInterface::new(Arc::clone(helper), name))
            }
            _ => Box::new(UplinkInterface::new(config.kind, name, control)),
        }
    }

    /// The process that announces addresses in these networks, given by their VNIs. A helper knows the networks from
    /// its start.
    pub(crate) fn teller(&self, vnis: BTreeSet<u32>) -> Teller {
        match self {
            Self::Own => Teller::Own(Fabric::of(vnis)),
            Self::Helper(helper) => Teller::Helper(Arc::clone(helper)),
        }
    }

    /// Lets another process's thread run on `cpus` only.
    ///
    /// # Errors
    /// The errors of sched_setaffinity(2).
    pub(crate) fn pin(&self, thread: u32, cpus: &BTreeSet<u16>) -> Result<(), Errno> {
        match self {
            Self::Own => set_affinity(thread, cpus),
            Self::Helper(helper) => helper.pin(thread, cpus),
        }
    }
}

/// The socket and the records of an interface, made before the interface's turn. Dropping the value removes the
/// socket's file.
#[derive(Debug)]
pub(crate) struct Ahead {
    pub(crate) bound: Result<BoundListener, ListenError>,
    pub(crate) records: io::Result<Records>,
}

/// The helper process. Dropping the last reference ends it.
#[derive(Debug)]
pub struct Helper {
    socket: Mutex<Option<OwnedFd>>,
    /// A duplicate of the socket, for a last message without an answer.
    last_word: OwnedFd,
    process: Child,
    /// Sockets are allowed beside the control socket, and at the paths in `sockets`; those of front ends that listen
    /// also below `client_dir`.
    control: Option<SocketPath>,
    sockets: BTreeSet<SocketPath>,
    client_dir: Option<SocketPath>,
    /// Directories of interfaces on demand, in which there are such sockets too.
    on_demand: BTreeSet<SocketPath>,
    /// The helper's absence is logged once.
    gone: Once,
}

/// A request that the helper did not carry out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HelperError {
    #[error("weir's helper does not answer")]
    Gone(#[source] io::Error),
    #[error("{message}")]
    Refused { message: String, help: Option<String> },
}

impl From<HelperError> for ListenError {
    fn from(error: HelperError) -> Self {
        match error {
            HelperError::Refused { message, help } => Self::Refused { message, help },
            gone @ HelperError::Gone(_) => Self::Refused { message: gone.to_string(), help: None },
        }
    }
}

impl From<HelperError> for io::Error {
    fn from(error: HelperError) -> Self {
        Self::other(error)
    }
}

impl Helper {
    /// Starts this program once more, as a helper for `tasks`. The helper first restores the changes of a killed
    /// weir.
    ///
    /// # Errors
    /// The helper cannot be started, or does not answer.
    pub(crate) fn start(
        tasks: Tasks,
        sockets: impl IntoIterator<Item = SocketPath>,
    ) -> io::Result<Self> {
        Self::start_program(wire::OWN, tasks, sockets)
    }

    fn start_program(
        program: &str,
        mut tasks: Tasks,
        sockets: impl IntoIterator<Item = SocketPath>,
    ) -> io::Result<Self> {
        let (ours, process) = wire::start(program, "weir-helper", &[ARGUMENT])?;
        let (control, sockets) = (tasks.control.clone(), sockets.into_iter().collect());
        let last_word = ours.try_clone()?;
        let socket = Mutex::new(Some(ours));
        let (client_dir, gone) = (tasks.client_dir.clone(), Once::new());
        let (on_demand, named) = (tasks.on_demand.clone(), tasks.accounts.take_named());
        let helper =
            Self { socket, last_word, process, control, sockets, client_dir, on_demand, gone };
        helper.ask(&Request::Begin(tasks))?;
        for accounts in named {
            helper.ask(&Request::Name { accounts })?;
        }
        let mut paths = helper.sockets.iter().cloned().peekable();
        while paths.peek().is_some() {
            let paths = paths.by_ref().take(HELPER_SOCKETS_TOGETHER_MAX).collect();
            helper.ask(&Request::Allow { paths })?;
        }
        helper.ask(&Request::Confine)?;
        Ok(helper)
    }

    fn ask(&self, request: &Request) -> Result<(Answer, Option<OwnedFd>), HelperError> {
        self.ask_for_many(request).map(|(answer, mut descriptors)| (answer, descriptors.pop()))
    }

    fn ask_for_many(&self, request: &Request) -> Result<(Answer, Vec<OwnedFd>), HelperError> {
        let socket = self.socket.lock().unwrap_or_else(|e| e.into_inner());
        let socket = socket.as_ref().map(AsFd::as_fd);
        let answer = socket.ok_or(Errno::NOTCONN.into()).and_then(|socket| {
            wire::send(socket, request, None)?;
            wire::receive_many(socket)?.ok_or(io::ErrorKind::UnexpectedEof.into())
        });
        match answer {
            Ok((Answer::Refused { message, help }, _)) => {
                Err(HelperError::Refused { message, help })
            }
            Ok(answer) => Ok(answer),
            Err(error) => {
                self.gone.call_once(|| {
                    tracing::error!(%error, "weir's helper is gone: weir cannot make sockets or set network cards until \
                        weir is started again; guests keep running");
                });
                Err(HelperError::Gone(error))
            }
        }
    }

    fn bind(self: &Arc<Self>, path: &Path, access: Access) -> Result<BoundListener, ListenError> {
        let path = socket_path(path)?;
        let (answer, socket) = self.ask(&Request::Bind { path: path.clone(), access })?;
        let listener = socket.map(UnixListener::from).ok_or_else(no_descriptor)?;
        let Answer::Bound { file } = answer else { return Err(no_descriptor().into()) };
        Ok(self.bound(foreign_at(listener, path.as_path()), &path, file))
    }

    fn bind_all(self: &Arc<Self>, wanted: Vec<WantedSocket>) -> BTreeMap<SocketPath, Ahead> {
        let request = Request::BindAll { all: wanted.clone() };
        let Ok((Answer::Each { all }, descriptors)) = self.ask_for_many(&request) else {
            return BTreeMap::new();
        };
        let mut descriptors = descriptors.into_iter();
        let mut next = || descriptors.next().ok_or_else(no_descriptor);
        let made = wanted.into_iter().zip(all).map(|(WantedSocket { path, .. }, made)| {
            let Made { bound, records } = made;
            let bound = match bound {
                Answer::Bound { file } => next().map(|socket| {
                    self.bound(foreign_at(socket.into(), path.as_path()), &path, file)
                }),
                Answer::Refused { message, help } => Err(HelperError::Refused { message, help }),
                _ => Err(no_descriptor()),
            };
            let records = match records {
                Some(Answer::Done) => next().map(Records::over),
                Some(Answer::Refused { message, help }) => {
                    Err(HelperError::Refused { message, help })
                }
                _ => Err(no_descriptor()),
            };
            let ahead =
                Ahead { bound: bound.map_err(Into::into), records: records.map_err(Into::into) };
            (path, ahead)
        });
        made.collect()
    }

    fn adopt(
        self: &Arc<Self>,
        listener: Foreign<UnixListener>,
        path: &Path,
        file: FileId,
        access: Access,
    ) -> Left {
        let asked = socket_path(path).and_then(|path| {
            let (answer, _) = self.ask(&Request::Adopt { path: path.clone(), access, file })?;
            Ok((path, answer))
        });
        let error = match asked {
            Ok((path, Answer::Done)) => return Left::Adopted(self.bound(listener, &path, file)),
            Ok((_, Answer::Errno(errno))) => io::Error::from_raw_os_error(errno),
            Ok(_) => no_descriptor().into(),
            Err(error) => error.into(),
        };
        Left::not_adopted(listener, path, file, &error)
    }

    fn bound(
        self: &Arc<Self>,
        listener: Foreign<UnixListener>,
        path: &SocketPath,
        file: FileId,
    ) -> BoundListener {
        let helper = Arc::clone(self);
        let remove = move |path: &Path| {
            // If the helper does not answer, the next start replaces a stale socket.
            let _ = socket_path(path)
                .and_then(|path| helper.ask(&Request::Remove { paths: vec![path] }));
        };
        BoundListener::of_another(listener, path.as_path(), file, Box::new(remove))
    }

    fn connect(&self, path: &Path, party: &Party) -> io::Result<Foreign<UnixStream>> {
        let answer = self.ask(&Request::Connect { path: socket_path(path)? })?;
        connected(answer).map(|socket| Foreign::new(socket.into(), party))
    }

    fn pin(&self, thread: u32, cpus: &BTreeSet<u16>) -> Result<(), Errno> {
        match self.ask(&Request::Pin { thread, cpus: cpus.clone() }) {
            Ok((Answer::Errno(code), _)) => Err(Errno::from_raw_os_error(code)),
            Ok(_) => Ok(()),
            Err(HelperError::Refused { .. }) => Err(Errno::PERM),
            Err(HelperError::Gone(_)) => Err(Errno::PIPE),
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // The helper ends when the other end is closed.
        let _ = rustix::net::shutdown(&self.last_word, rustix::net::Shutdown::Both);
        let _ = self.process.wait();
    }
}

fn socket_path(path: &Path) -> Result<SocketPath, HelperError> {
    let refused = |error: weir_config::ValueError| HelperError::Refused {
        message: error.to_string(),
        help: None,
    };
    SocketPath::try_from(path).map_err(refused)
}

fn no_descriptor() -> HelperError {
    HelperError::Gone(io::Error::other("it sent no descriptor"))
}

/// An uplink's interface that the helper sets. Dropping it has the original settings restored.
#[derive(Debug)]
struct HelpedInterface {
    helper: Arc<Helper>,
    name: InterfaceName,
    layer: UplinkLayer,
    found_ns: u64,
    /// The last requested interval (ns).
    asked_ns: u64,
    interrupts: InterruptPlaces,
    /// The last requested processors of interrupts, by queue.
    asked_cpus: BTreeMap<u16, u16>,
}

impl HelpedInterface {
    fn new(helper: Arc<Helper>, name: InterfaceName) -> Self {
        let (layer, interrupts) = (UplinkLayer::AsFound, InterruptPlaces::AsFound);
        let asked_cpus = BTreeMap::new();
        let mut this =
            Self { helper, name, layer, found_ns: 0, asked_ns: 0, interrupts, asked_cpus };
        this.ask(0);
        this
    }

    fn ask(&mut self, uplink_ns: u64) {
        let request = Request::Gather { interface: self.name.clone(), uplink_ns };
        match self.helper.ask(&request) {
            Ok((Answer::Interface { layer, found_ns }, _)) => {
                // As for this process's own interfaces: if the interface is at its original setting, the next call asks
                // the helper again.
                self.asked_ns = if layer == UplinkLayer::AsFound { 0 } else { uplink_ns };
                (self.layer, self.found_ns) = (layer, found_ns);
            }
            Ok(_) => {}
            Err(error) => self.layer = UplinkLayer::Refused { reason: error.to_string() },
        }
    }
}

impl Gathering for HelpedInterface {
    fn layer(&self) -> &UplinkLayer {
        &self.layer
    }

    fn found_ns(&self) -> u64 {
        self.found_ns
    }

    fn set(&mut self, uplink_ns: u64) {
        if self.is_settable() && self.asked_ns != uplink_ns {
            self.ask(uplink_ns);
        }
    }

    fn follow(&mut self, cpus: &BTreeMap<u16, u16>) {
        if self.asked_cpus == *cpus {
            return;
        }
        self.asked_cpus.clone_from(cpus);
        let request = Request::Follow { interface: self.name.clone(), cpus: cpus.clone() };
        match self.helper.ask(&request) {
            Ok((Answer::Interrupts(places), _)) => self.interrupts = places,
            Ok(_) => {}
            Err(error) => {
                self.interrupts = InterruptPlaces::LeftAlone { reason: error.to_string() };
            }
        }
    }

    fn interrupts(&self) -> &InterruptPlaces {
        &self.interrupts
    }
}

impl Drop for HelpedInterface {
    fn drop(&mut self) {
        let _ = self.helper.ask(&Request::Leave { interface: self.name.clone() });
    }
}
