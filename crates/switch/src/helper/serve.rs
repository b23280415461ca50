//! The helper's side. An attacker who controls weir can send any request, so anything outside [`Tasks`] is refused.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use miette::Diagnostic;
use rustix::io::Errno;
use weir_config::{InterfaceName, SocketPath, UplinkKind};
use weir_foreign::{Foreign, Party};
use weir_limits::HELPER_SOCKETS_TOGETHER_MAX;
use weir_port_vhost::Records;

use super::fabric::Fabric;
use super::wire::{self, Answer, Made, Request, Tasks, WantedSocket};
use super::{
    HELP_CONNECT, HELP_LOOK, connect_keeper, is_below, is_in, may_use, no_connection, no_look,
    records_path, take_place,
};
use crate::manager::{
    Gathering, UplinkInterface, is_virtual_processor, restore_left_over, set_affinity,
};
use crate::nat::Nat;
use crate::resolver;
use crate::unix_socket::{self, Access, Accounts, BoundFile, Directory, FileId};

const HELP_SOCKET: &str = "put the socket beside the control socket, or into the configuration that weir is started \
                           with; or start weir with --no-sandbox";

const HELP_ON_THE_WAY: &str = "front ends of the same user have more descriptors on their way than weir's limit: try \
                               again, or raise LimitNOFILE= in weir's unit";

/// Serves the weir at the other end of `socket` until it closes.
///
/// Sockets and interfaces then stay as they are: a weir that ends in order has restored them or has sent
/// [`Request::End`], and after a SIGKILL the next weir restores them.
pub(super) fn run(socket: &OwnedFd, log: fn()) -> ExitCode {
    let _ = rustix::thread::set_name(c"weir-helper");
    log();
    crate::leave_signals_to_weir();
    let mut helper = match wire::receive(socket.as_fd()) {
        Ok(Some((Request::Begin(tasks), _))) => Serving::new(tasks),
        _ => return ExitCode::FAILURE,
    };
    let mut answer = match helper.make_rules() {
        Ok(()) => Answer::Done,
        Err(error) => refused(format!("the rules for a way out: {error}"), None),
    };
    let (mut given, mut bound): (Vec<Given>, Vec<SocketPath>) = Default::default();
    loop {
        let lent: Vec<_> = given.iter().map(|it| it.as_fd()).collect();
        match wire::send_many(socket.as_fd(), &answer, &lent) {
            Ok(()) => {}
            // The kernel limits a user's descriptors in flight, and other processes of the user can use up that
            // limit.
            Err(error) if !lent.is_empty() => {
                bound.drain(..).for_each(|path| drop(helper.bound.remove(&path)));
                let message = format!("a socket or file cannot be handed over: {error}");
                answer = refused(message, Some(HELP_ON_THE_WAY.into()));
                given.clear();
                continue;
            }
            // A weir that does not wait for an answer may have sent [`Request::End`].
            Err(_) => {}
        }
        // The descriptors belong to weir alone from now on.
        given.clear();
        bound.clear();
        answer = match wire::receive(socket.as_fd()) {
            Ok(Some((Request::End, _))) => {
                helper.undo();
                break;
            }
            Ok(Some((Request::BindAll { all }, _))) => helper.bind_all(all, &mut given, &mut bound),
            Ok(Some((request, _))) => {
                if let Request::Bind { path, .. } = &request {
                    bound.push(path.clone());
                }
                let (answer, descriptor) = helper.answer(request);
                given.extend(descriptor);
                answer
            }
            Ok(None) => break,
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                refused(format!("not a request: {error}"), None)
            }
            Err(_) => break,
        };
    }
    // A TAP closes when the process that holds it has exited, and another weir may hold the TAP too.
    helper.fabric.leave();
    // The process exits without dropping anything, because sockets and interfaces stay as they are.
    std::process::exit(0)
}

/// A socket or a file for weir. The helper closes its own copy after sending, so that nobody listens on the socket
/// after weir has ended.
#[derive(Debug)]
pub(super) enum Given {
    Own(OwnedFd),
    /// The descriptor of a connection. The other end may already have sent descriptors over it. If
    /// weir is quick to end the connection, this copy is the last one, and its close can take as
    /// long as the other end likes.
    Foreign(Foreign<OwnedFd>),
}

impl Deref for Given {
    type Target = OwnedFd;

    fn deref(&self) -> &OwnedFd {
        match self {
            Self::Own(it) => it,
            Self::Foreign(it) => it,
        }
    }
}

impl From<OwnedFd> for Given {
    fn from(it: OwnedFd) -> Self {
        Self::Own(it)
    }
}

#[derive(Debug)]
pub(super) struct Serving {
    tasks: Tasks,
    /// Allowed sockets outside the control socket's directory.
    sockets: BTreeSet<SocketPath>,
    pub(super) confined: bool,
    bound: BTreeMap<SocketPath, BoundFile>,
    interfaces: BTreeMap<InterfaceName, UplinkInterface>,
    fabric: Fabric,
    /// Rules of networks with `nat`, which the kernel removes when this process ends.
    rules: Vec<Nat>,
    /// The parties at whose sockets this process has connections to close.
    pub(super) parties: BTreeMap<SocketPath, Party>,
}

impl Serving {
    pub(super) fn new(tasks: Tasks) -> Self {
        if let Some(control) = tasks.control.as_ref().filter(|_| !tasks.beside) {
            restore_left_over(control);
        }
        unix_socket::allow_links(tasks.allow_links);
        let (bound, interfaces) = (BTreeMap::new(), BTreeMap::new());
        let (sockets, fabric) = (BTreeSet::new(), Fabric::of(tasks.vnis.clone()));
        let (rules, parties) = (Vec::new(), BTreeMap::new());
        Self { tasks, sockets, confined: false, bound, interfaces, fabric, rules, parties }
    }

    /// Makes the rules of the helper's tasks.
    fn make_rules(&mut self) -> std::io::Result<()> {
        self.rules = self.tasks.nat.iter().map(Nat::start).collect::<Result<_, _>>()?;
        Ok(())
    }

    /// Restores and removes everything, on request of a weir that ends in order.
    pub(super) fn undo(&mut self) {
        self.interfaces.clear();
        unix_socket::remove_files(std::mem::take(&mut self.bound).into_values());
        self.rules.clear();
    }

    pub(super) fn answer(&mut self, request: Request) -> (Answer, Option<Given>) {
        match request {
            Request::Allow { paths } if !self.confined => {
                self.sockets.extend(paths);
                (Answer::Done, None)
            }
            Request::Name { accounts } if !self.confined => {
                self.tasks.accounts.extend(accounts);
                (Answer::Done, None)
            }
            Request::Confine if !self.confined => {
                match weir_sandbox::confine_helper(self.tasks.gives_away()) {
                    Ok(()) => {
                        self.confined = true;
                        crate::give_back_start();
                        (Answer::Done, None)
                    }
                    Err(error) => (refused(format!("cannot be confined: {error}"), None), None),
                }
            }
            Request::Begin(_)
            | Request::Allow { .. }
            | Request::Name { .. }
            | Request::Confine
            | Request::End => (refused("it has begun".into(), None), None),
            Request::BindAll { .. } => (refused("it is for several".into(), None), None),
            Request::Bind { path, access } => self.bind(path, &access),
            Request::Adopt { path, access, file } => (self.adopt(path, &access, file), None),
            Request::Remove { paths } => {
                let files = paths.iter().filter_map(|path| self.bound.remove(path));
                unix_socket::remove_files(files);
                (Answer::Done, None)
            }
            Request::OpenRecords { path } => self.open_records(&path, None),
            Request::RemoveRecords { path } => (self.remove_records(&path), None),
            Request::Connect { path } => self.connect(path),
            Request::LookFor { directory, pattern } => match self.may_look(&directory) {
                true => match unix_socket::sockets_in(directory.as_path(), &pattern) {
                    Ok(listed) => (Answer::Listed(listed), None),
                    Err(error) => (failed(&error), None),
                },
                false => (refused(no_look(&directory), Some(HELP_LOOK.into())), None),
            },
            Request::Watch { directory } => match self.may_look(&directory) {
                true => match unix_socket::watch(directory.as_path()) {
                    Ok((notices, directory)) => {
                        (Answer::Watched { directory }, Some(notices.into()))
                    }
                    Err(error) => (failed(&error), None),
                },
                false => (refused(no_look(&directory), Some(HELP_LOOK.into())), None),
            },
            Request::ConnectKeeper { path } => match self.may_use(&path) {
                true => made(connect_keeper(&path, self.tasks.control.as_ref()).map(Given::Own)),
                false => (refused(no_connection(&path), Some(HELP_CONNECT.into())), None),
            },
            Request::ConnectResolver { turn, means } => match &self.tasks.resolver {
                Some(own) => made(resolver::connect(turn, means, own).map(Given::Own)),
                None => (refused("no network asks the host's resolvers".into(), None), None),
            },
            Request::OpenConfig => self.open_config(),
            Request::TakePlace => {
                if std::mem::take(&mut self.tasks.beside)
                    && let Some(control) = &self.tasks.control
                {
                    take_place(control);
                }
                (Answer::Done, None)
            }
            Request::Gather { interface, uplink_ns } => (self.gather(interface, uplink_ns), None),
            Request::Follow { interface, cpus } => (self.follow(interface, &cpus), None),
            Request::Leave { interface } => {
                self.interfaces.remove(&interface);
                (Answer::Done, None)
            }
            Request::Announce { all } => (done(self.fabric.announce(&all)), None),
            Request::AnnounceOwners { all } => (done(self.fabric.announce_owners(&all)), None),
            Request::ConnectFrr { daemon } => match self.fabric.connect(daemon) {
                Ok(socket) => (Answer::Done, Some(socket.into())),
                Err(error) => (refused(error.to_string(), None), None),
            },
            Request::RenewFabric => (done(self.fabric.renew()), None),
            Request::LeaveFabric => {
                self.fabric.leave();
                (Answer::Done, None)
            }
            Request::Pin { thread, cpus } => (self.pin(thread, &cpus), None),
        }
    }

    /// True for sockets that were named at the start, and for any in the control socket's directory.
    fn may_use(&self, path: &SocketPath) -> bool {
        may_use(self.tasks.control.as_ref(), &self.sockets, path)
    }

    /// True for directories of interfaces on demand, which the configuration has or may have.
    fn may_look(&self, directory: &SocketPath) -> bool {
        let below = is_below(self.tasks.client_dir.as_ref(), directory);
        below || self.tasks.on_demand.contains(directory)
    }

    fn bind(&mut self, path: SocketPath, access: &Access) -> (Answer, Option<Given>) {
        let (answer, socket, made) = self.make_socket(&path, access, &mut None);
        self.bound.extend(made.map(|made| (path, made)));
        (answer, socket)
    }

    /// Makes a socket. If its directory differs from `last`, the new directory replaces `last`. The socket's file comes
    /// beside the answer.
    fn make_socket(
        &self,
        path: &SocketPath,
        access: &Access,
        last: &mut Option<Directory>,
    ) -> (Answer, Option<Given>, Option<BoundFile>) {
        if !self.may_use(path) {
            let message = format!("a confined weir may not listen on {path}");
            return (refused(message, Some(HELP_SOCKET.into())), None, None);
        }
        let is_control = self.tasks.control.as_ref() == Some(path);
        let of_control = is_control.then(|| Accounts::of_control(self.tasks.group));
        let accounts = of_control.as_ref().unwrap_or(&self.tasks.accounts);
        let path = path.as_path();
        // No process holds two locks: two processes that take the same locks in opposite order would wait for ever.
        drop(last.take_if(|it| it.place_of(path).is_none()));
        let directory = last.take().map_or_else(|| Directory::of(path), Ok);
        let bound = directory.and_then(|it| last.insert(it).bind_for(path, access, accounts));
        match bound {
            Ok(bound) => {
                let file = bound.file();
                let (listener, made) = bound.into_parts();
                let socket = Arc::into_inner(listener);
                let socket = socket.map(|it| OwnedFd::from(it.release()).into());
                (Answer::Bound { file }, socket, made)
            }
            Err(error) => {
                let help = error.help().map(|help| help.to_string());
                (refused(with_cause(&error), help), None, None)
            }
        }
    }

    /// Makes sockets, and opens the records beside those that are made. Adds the descriptors to `given`, and the paths
    /// of the sockets to `bound`.
    pub(super) fn bind_all(
        &mut self,
        all: Vec<WantedSocket>,
        given: &mut Vec<Given>,
        bound: &mut Vec<SocketPath>,
    ) -> Answer {
        if all.len() > HELPER_SOCKETS_TOGETHER_MAX {
            return refused(format!("{} sockets are too many at once", all.len()), None);
        }
        // Most sockets are in one directory. The files are noted when it is no longer locked.
        let (mut directory, mut files) = (None, Vec::with_capacity(all.len()));
        let make = |WantedSocket { path, access }| {
            let (answer, socket, made) = self.make_socket(&path, &access, &mut directory);
            let Some(socket) = socket else { return Made { bound: answer, records: None } };
            let (records, file) = self.open_records(&path, directory.as_ref());
            given.push(socket);
            given.extend(file);
            files.extend(made.map(|made| (path.clone(), made)));
            bound.push(path);
            Made { bound: answer, records: Some(records) }
        };
        let all = all.into_iter().map(make).collect();
        drop(directory);
        self.bound.extend(files);
        Answer::Each { all }
    }

    fn adopt(&mut self, path: SocketPath, access: &Access, file: FileId) -> Answer {
        if !self.may_use(&path) {
            return refused(format!("a confined weir may not listen on {path}"), None);
        }
        match BoundFile::adopt(path.as_path(), file, access, &self.tasks.accounts) {
            Ok(made) => {
                self.bound.insert(path, made);
                Answer::Done
            }
            Err(error) => failed(&error),
        }
    }

    /// Opens the records beside a socket, which can be in this directory.
    fn open_records(
        &self,
        path: &SocketPath,
        directory: Option<&Directory>,
    ) -> (Answer, Option<Given>) {
        if !self.may_use(path) && !is_in(&self.tasks.on_demand, path) {
            let message = format!("a confined weir may keep no records beside {path}");
            return (refused(message, Some(HELP_SOCKET.into())), None);
        }
        let path = records_path(path);
        let place = directory.and_then(|it| it.place_of(&path));
        match place.map_or_else(|| Records::open(&path), |place| Records::open_at(&place)) {
            Ok(records) => (Answer::Done, Some(records.into_file().into())),
            Err(error) => (refused(error.to_string(), None), None),
        }
    }

    fn remove_records(&self, path: &SocketPath) -> Answer {
        if self.may_use(path) || is_in(&self.tasks.on_demand, path) {
            super::remove_records(path);
        }
        Answer::Done
    }

    fn connect(&mut self, path: SocketPath) -> (Answer, Option<Given>) {
        let below =
            is_below(self.tasks.client_dir.as_ref(), &path) || is_in(&self.tasks.on_demand, &path);
        if !below && !self.may_use(&path) {
            return (refused(no_connection(&path), Some(HELP_CONNECT.into())), None);
        }
        self.parties.retain(|_, party| !party.is_forgotten());
        let party = self.parties.entry(path.clone());
        let party = party.or_insert_with_key(|path| Party::new(path.to_string()));
        if party.is_full() {
            return (Answer::Errno(Errno::AGAIN.raw_os_error()), None);
        }
        let socket = unix_socket::dial(path.as_path(), party);
        made(socket.map(|socket| Given::Foreign(socket.map(Into::into))))
    }

    fn open_config(&self) -> (Answer, Option<Given>) {
        let Some(path) = &self.tasks.config else {
            return (refused("weir was started without a file".into(), None), None);
        };
        match weir_config::open_file(path) {
            Ok(file) => (Answer::Done, Some(OwnedFd::from(file).into())),
            Err(error) => (refused(with_cause(&error), None), None),
        }
    }

    fn interface(&mut self, name: InterfaceName) -> Result<&mut UplinkInterface, Answer> {
        let Some(control) = &self.tasks.control else {
            return Err(refused("it has no control socket".into(), None));
        };
        if !self.tasks.interfaces.contains(&name) {
            return Err(refused(format!("{name} is no uplink's interface"), None));
        }
        Ok(self.interfaces.entry(name).or_insert_with_key(|name| {
            UplinkInterface::new(UplinkKind::AfPacket, name.clone(), control)
        }))
    }

    fn gather(&mut self, name: InterfaceName, uplink_ns: u64) -> Answer {
        let gathers = self.interface(name).map(|interface| {
            interface.set(uplink_ns);
            let (layer, found_ns) = (interface.layer().clone(), interface.found_ns());
            Answer::Interface { layer, found_ns }
        });
        gathers.unwrap_or_else(|refused| refused)
    }

    fn follow(&mut self, name: InterfaceName, cpus: &BTreeMap<u16, u16>) -> Answer {
        let follows = self.interface(name).map(|interface| {
            interface.follow(cpus);
            Answer::Interrupts(interface.interrupts().clone())
        });
        follows.unwrap_or_else(|refused| refused)
    }

    fn pin(&self, thread: u32, cpus: &BTreeSet<u16>) -> Answer {
        if !self.tasks.pin_vcpus || !is_virtual_processor(Path::new("/proc"), thread) {
            return refused("it may tell only virtual processors where to run".into(), None);
        }
        match set_affinity(thread, cpus) {
            Ok(()) => Answer::Done,
            Err(errno) => Answer::Errno(errno.raw_os_error()),
        }
    }
}

fn with_cause(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

fn made(socket: std::io::Result<Given>) -> (Answer, Option<Given>) {
    match socket {
        Ok(socket) => (Answer::Done, Some(socket)),
        Err(error) => (failed(&error), None),
    }
}

/// The caller needs the error number: it treats a missing listener, or directory, in its own way.
fn failed(error: &std::io::Error) -> Answer {
    match error.raw_os_error() {
        Some(errno) => Answer::Errno(errno),
        None => refused(error.to_string(), None),
    }
}

fn done(told: Result<(), rustix::io::Errno>) -> Answer {
    told.map_or_else(|errno| Answer::Errno(errno.raw_os_error()), |()| Answer::Done)
}

fn refused(message: String, help: Option<String>) -> Answer {
    Answer::Refused { message, help }
}
