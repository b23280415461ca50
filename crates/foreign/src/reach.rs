//! Finds sockets in a directory that somebody else may change, and connects to them. The socket that was checked is the
//! one that is used.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, WatchFlags};
use rustix::fs::{Dir, FileType, Mode, OFlags, Stat, fstat, openat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with, sockopt};

use crate::place::{Links, Place, by_descriptor, is_ours, is_safe, look};
use crate::{Foreign, Party};

/// The reason why a socket is not connected to, although somebody may listen there.
#[derive(Debug, thiserror::Error)]
enum Unreachable {
    #[error("{} is not a socket", .0.display())]
    NotASocket(PathBuf),
    #[error(
        "{} belongs to user {socket}, in a directory that user {dir} can change: it must be that user's, root's or weir's",
        path.display()
    )]
    Foreign { path: PathBuf, socket: u32, dir: u32 },
    #[error("user {peer} listens on {}, which belongs to user {socket}", path.display())]
    Peer { path: PathBuf, peer: u32, socket: u32 },
    #[error("weir itself listens on {}", .0.display())]
    Own(PathBuf),
}

impl From<Unreachable> for io::Error {
    fn from(error: Unreachable) -> Self {
        Self::new(io::ErrorKind::PermissionDenied, error)
    }
}

/// Connects without waiting: a front end that listens but does not accept must not keep the caller from the others. The
/// administrator decides which `links` count on the way. `is_own` is true for a file, by device and inode, at which
/// weir itself listens. The other end may send descriptors at once, so `party` pays for closing the connection, also if
/// it is refused.
///
/// # Errors
/// Nobody listens there, or the listener's queue is full. [`io::ErrorKind::PermissionDenied`] if the way leads by a
/// link that somebody else could have put there, to a socket that is not the directory's owner's, or to weir.
pub fn connect(
    links: Links,
    path: &Path,
    party: &Party,
    is_own: impl FnOnce((u64, u64)) -> bool,
) -> io::Result<Foreign<UnixStream>> {
    let connected = connect_as(SocketType::STREAM, links, path, party, is_own);
    connected.map(|stream| stream.map(Into::into))
}

/// Connects to a socket of another type.
///
/// # Errors
/// The errors of [`connect`].
pub fn connect_as(
    kind: SocketType,
    links: Links,
    path: &Path,
    party: &Party,
    is_own: impl FnOnce((u64, u64)) -> bool,
) -> io::Result<Foreign<OwnedFd>> {
    let (socket, found) = find(links, path)?;
    if is_own((found.st_dev, found.st_ino)) {
        return Err(Unreachable::Own(path.into()).into());
    }
    let stream = Foreign::new(connect_to(kind, &socket)?, party);
    let (peer, owner) = (sockopt::socket_peercred(&stream)?.uid.as_raw(), found.st_uid);
    if !is_ours(peer) && peer != owner {
        return Err(Unreachable::Peer { path: path.into(), peer, socket: owner }.into());
    }
    Ok(stream)
}

/// Connects to a socket to see whether somebody listens.
///
/// # Errors
/// The errors of [`connect`], whoever is at the other end.
pub fn look_for_listener(path: &Path) -> io::Result<UnixStream> {
    connect_to(SocketType::STREAM, &find(Links::Own, path)?.0).map(Into::into)
}

/// Connects to a socket in a place to see whether somebody listens; the owner does not matter.
///
/// # Errors
/// Nobody listens there.
pub fn look_for_listener_as(kind: SocketType, place: &Place) -> io::Result<OwnedFd> {
    connect_to(kind, &place.look()?.0)
}

fn connect_to(kind: SocketType, socket: &OwnedFd) -> io::Result<OwnedFd> {
    // This path names the socket that was found, even if another file has its name by now.
    let this = format!("/proc/self/fd/{}", socket.as_raw_fd());
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let stream = socket_with(AddressFamily::UNIX, kind, flags, None)?;
    // EAGAIN (the listener's queue is full) is an error like any other: the caller tries again.
    rustix::net::connect(&stream, &SocketAddrUnix::new(this)?)?;
    Ok(stream)
}

/// True if no program has the socket open. Its program, if there is one, notices nothing: the kernel looks for a program
/// before it finds that a socket of another type asks.
fn is_dead(socket: &OwnedFd) -> bool {
    let asked = connect_to(SocketType::DGRAM, socket);
    asked.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// A descriptor of the socket that serves only to refer to it (`O_PATH`).
fn find(links: Links, path: &Path) -> io::Result<(OwnedFd, Stat)> {
    let place = Place::of_target_by(links, path)?;
    let (socket, found) = place.look()?;
    check(&place.dir()?, &found, || place.shown())?;
    Ok((socket, found))
}

/// Refuses a file in the directory `here` that is no socket, or whose owner weir does not expect there.
fn check(here: &Stat, found: &Stat, path: impl FnOnce() -> PathBuf) -> Result<(), Unreachable> {
    if FileType::from_raw_mode(found.st_mode) != FileType::Socket {
        return Err(Unreachable::NotASocket(path()));
    }
    let is_expected = found.st_uid == here.st_uid || is_ours(found.st_uid);
    match is_safe(here) || is_expected {
        true => Ok(()),
        false => {
            let (socket, dir) = (found.st_uid, here.st_uid);
            Err(Unreachable::Foreign { path: path(), socket, dir })
        }
    }
}

/// A file's inode and the time of its last change (ns): two sockets of one name differ in one of them.
pub type Stamp = (u64, i64);

/// A socket of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Socket {
    /// The file of the socket.
    pub stamp: Stamp,
    /// True if no program has it open: the program that made it has ended without removing the file.
    pub is_dead: bool,
}

/// The sockets of a directory.
#[derive(Debug)]
pub struct Sockets {
    /// The directory's device and inode.
    pub directory: (u64, u64),
    /// Wanted files by name: those that weir would connect to, and the others with the reason.
    pub files: Vec<(String, io::Result<Socket>)>,
    /// True if these are all.
    pub is_whole: bool,
}

/// The files of the directory `dir` with `wanted` names, at most `most` of them, found among the
/// first `entries`. A link is no socket, wherever it leads. On the way to the directory `links`
/// count.
///
/// # Errors
/// The directory does not exist or cannot be read, or the way leads by a link that somebody else could have put there.
pub fn sockets_in(
    links: Links,
    dir: &Path,
    entries: usize,
    most: usize,
    wanted: impl Fn(&str) -> bool,
) -> io::Result<Sockets> {
    let (at, here) = Place::dir_by(links, dir)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = openat(&at, ".", flags, Mode::empty())?;
    let (mut files, mut is_whole) = (Vec::new(), true);
    for (nth, entry) in Dir::new(open)?.enumerate() {
        if nth == entries || files.len() == most {
            is_whole = false;
            break;
        }
        let entry = entry?;
        let Ok(name) = entry.file_name().to_str() else { continue };
        if !wanted(name) {
            continue;
        }
        let file = match look(&at, name.as_ref()) {
            Ok(file) => file,
            // The file has gone since.
            Err(Errno::NOENT) => continue,
            Err(errno) => return Err(errno.into()),
        };
        let found = fstat(&file)?;
        let nanoseconds = i64::try_from(found.st_ctime_nsec).unwrap_or_default();
        let changed = found.st_ctime.saturating_mul(1_000_000_000).saturating_add(nanoseconds);
        let checked = check(&here, &found, || dir.join(name));
        let socket = |()| Socket { stamp: (found.st_ino, changed), is_dead: is_dead(&file) };
        files.push((name.to_owned(), checked.map(socket).map_err(io::Error::from)));
    }
    Ok(Sockets { directory: (here.st_dev, here.st_ino), files, is_whole })
}

/// A descriptor that is readable when files of the directory `dir` have come, gone or changed, and the directory's
/// device and inode.
///
/// # Errors
/// The errors of [`sockets_in`], or the user has too many watches already.
pub fn watch(links: Links, dir: &Path) -> io::Result<(OwnedFd, (u64, u64))> {
    let (at, here) = Place::dir_by(links, dir)?;
    let notices = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
    let what = WatchFlags::CREATE
        | WatchFlags::DELETE
        | WatchFlags::MOVE
        | WatchFlags::ATTRIB
        | WatchFlags::DELETE_SELF
        | WatchFlags::ONLYDIR;
    inotify::add_watch(&notices, by_descriptor(&at), what)?;
    Ok((notices, (here.st_dev, here.st_ino)))
}

/// Waits at most `patience` until the other end has said something or has ended, however many signals come meanwhile.
///
/// # Errors
/// [`io::ErrorKind::TimedOut`], and the errors of poll(2).
pub fn await_readable(socket: impl AsFd, patience: Duration) -> io::Result<()> {
    let end = Instant::now() + patience;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(|_| io::ErrorKind::InvalidInput)?;
        match poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&left)) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;

    use rustix::fs::{CWD, Mode};

    use super::*;

    fn why(path: &Path) -> String {
        connect(Links::Own, path, &Party::new("them"), |_| true).unwrap_err().to_string()
    }

    /// A directory that anybody can change, as a tenant's directory is for root.
    pub(crate) fn open_to_all() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o777)).unwrap();
        dir
    }

    #[test]
    fn a_link_counts_where_nobody_else_can_make_one() {
        let (own, theirs) = (tempfile::tempdir().unwrap(), open_to_all());
        let target = own.path().join("target.sock");
        let _listener = UnixListener::bind(&target).unwrap();
        for dir in [&own, &theirs] {
            symlink(&target, dir.path().join("last")).unwrap();
            symlink(own.path(), dir.path().join("middle")).unwrap();
            // This link leads to another link, whose owner counts too.
            symlink("last", dir.path().join("chain")).unwrap();
        }
        for name in ["last", "middle/target.sock", "chain"] {
            // The way is good; the reason is that weir itself listens there.
            assert!(why(&own.path().join(name)).contains("weir itself listens"), "{name}");
            let refused = why(&theirs.path().join(name));
            assert!(refused.contains("is a link in a directory"), "{name}: {refused}");
        }
        symlink("round", own.path().join("round")).unwrap();
        let error = look_for_listener(&own.path().join("round")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::LOOP.raw_os_error()));
    }

    #[test]
    fn links_of_others_count_where_an_administrator_says_so_and_lead_to_no_socket_of_weirs() {
        let (own, theirs) = (tempfile::tempdir().unwrap(), open_to_all());
        let (target, link) = (own.path().join("target.sock"), theirs.path().join("link"));
        let _listener = UnixListener::bind(&target).unwrap();
        symlink(&target, &link).unwrap();
        let party = Party::new("them");
        assert!(connect(Links::Any, &link, &party, |_| false).is_ok());
        let own = connect(Links::Any, &link, &party, |_| true).unwrap_err().to_string();
        assert!(own.contains("weir itself listens"), "{own}");
    }

    #[test]
    fn what_is_no_socket_is_not_opened() {
        let dir = open_to_all();
        let at = |name: &str| dir.path().join(name);
        rustix::fs::mknodat(CWD, at("fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        fs::write(at("file"), "").unwrap();
        fs::create_dir(at("dir")).unwrap();
        for name in ["fifo", "file", "dir"] {
            assert!(why(&at(name)).contains("is not a socket"), "{name}");
        }
        assert!(why(&at("file/x")).contains("is no directory"));
        assert_eq!(look_for_listener(&at("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
        drop(UnixListener::bind(at("stale")).unwrap());
        let stale = look_for_listener(&at("stale")).unwrap_err();
        assert_eq!(stale.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn of_a_directory_its_sockets_are_known_and_no_link_or_file_and_no_more_than_so_many() {
        let dir = open_to_all();
        let at = |name: &str| dir.path().join(name);
        let (notices, identity) = watch(Links::Own, dir.path()).unwrap();
        let told = || rustix::io::read(&notices, &mut [0; 4096]).is_ok();
        assert!(!told());
        let look = |entries, most| {
            let wanted = |name: &str| name.starts_with("vm-");
            sockets_in(Links::Own, dir.path(), entries, most, wanted).unwrap()
        };
        let good = |listed: &Sockets| -> Vec<_> {
            let good = listed.files.iter().filter_map(|(name, it)| Some((name, it.as_ref().ok()?)));
            good.map(|(name, socket)| (name.clone(), *socket)).collect()
        };
        let listener = UnixListener::bind(at("vm-1")).unwrap();
        assert!(told(), "a socket comes");
        let first = good(&look(9, 9));
        assert!(matches!(first[..], [(_, Socket { is_dead: false, .. })]));
        let nobody = await_readable(&listener, Duration::ZERO).unwrap_err();
        assert_eq!(nobody.kind(), io::ErrorKind::TimedOut, "a look is no connection");
        fs::write(at("vm-2"), "").unwrap();
        symlink(at("vm-1"), at("vm-3")).unwrap();
        let _other = UnixListener::bind(at("other")).unwrap();
        let all = look(9, 9);
        assert_eq!((good(&all), all.files.len(), all.is_whole), (first.clone(), 3, true));
        assert_eq!(all.directory, identity);
        for (_, refused) in all.files.iter().filter(|(name, _)| name != "vm-1") {
            let why = refused.as_ref().unwrap_err().to_string();
            assert!(why.contains("is not a socket"), "{why}");
        }
        assert!(!look(3, 9).is_whole, "entries that are not wanted count");
        assert!(!look(9, 2).is_whole);
        while told() {}
        drop(listener);
        let [(_, left)] = good(&look(9, 9))[..] else { panic!("its file is still there") };
        assert_eq!(left, Socket { is_dead: true, ..first[0].1 });
        fs::remove_file(at("vm-1")).unwrap();
        assert!(told(), "a socket goes");
        // A file system may give the inode again. Its clock ticks a few times in this while.
        std::thread::sleep(Duration::from_millis(30));
        let _listener = UnixListener::bind(at("vm-1")).unwrap();
        assert_ne!(good(&look(9, 9)), first, "another socket of the name");
        symlink(dir.path(), at("way")).unwrap();
        let refused = sockets_in(Links::Own, &at("way"), 9, 9, |_| true).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        let missing = watch(Links::Own, &at("none")).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn root_another_users_socket_is_not_connected_to_in_a_tenants_directory() {
        if !weir_testing::is_root("sockets of other users") {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("a.sock");
        let _listener = UnixListener::bind(&at).unwrap();
        let give = |path: &Path, user| {
            rustix::fs::chown(path, Some(rustix::fs::Uid::from_raw(user)), None).unwrap();
        };
        give(dir.path(), 1001);
        give(&at, 1002);
        assert!(why(&at).contains("belongs to user 1002, in a directory that user 1001"));
        give(&at, 1001);
        assert!(why(&at).contains("weir itself listens"));
        let party = Party::new("them");
        assert!(
            connect(Links::Own, &at, &party, |_| false).is_ok(),
            "root listens, and may anywhere"
        );
    }
}
