//! The place of a file, in directories that somebody else may change.
//!
//! A user who can write a directory can put a link there, or another file, at any moment. So the way to a file is
//! walked with descriptors, and the file that was checked is the one that is used. A link counts only where nobody but
//! root and weir's own user could have put it.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, fstat, ftruncate, open, openat, readlinkat};
use rustix::io::Errno;
use rustix::process::geteuid;

/// The number of links that the kernel follows.
const LINKS_MAX: usize = 40;

/// The reason why a file is not used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    #[error(
        "{} is a link in a directory that user {owner} can change: weir follows links only where nobody but root and its \
         own user can make one; name the file itself",
        path.display()
    )]
    Link { path: PathBuf, owner: u32 },
    #[error("{} is no directory", .0.display())]
    NotADirectory(PathBuf),
    #[error("{} names no file", .0.display())]
    NoName(PathBuf),
    #[error(
        "{} is no file of this user's alone, in a directory that user {owner} can change: name one in a directory of your own",
        path.display()
    )]
    Foreign { path: PathBuf, owner: u32 },
}

impl From<Refused> for io::Error {
    fn from(error: Refused) -> Self {
        Self::new(io::ErrorKind::PermissionDenied, error)
    }
}

/// The directory of a file, open, and the file's name in it.
#[derive(Debug)]
pub struct Place {
    dir: Arc<OwnedFd>,
    name: OsString,
    /// The file's path without links, if nobody else can change its meaning.
    path: Option<PathBuf>,
    /// The path along all links.
    pub(crate) walked: PathBuf,
}

/// The links that count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// Links that nobody but root and this user can make.
    Own,
    /// All links, by an administrator's decision.
    Any,
}

/// The meaning of a last name that is a link: the link itself, or its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Last {
    Itself,
    Target,
}

pub(crate) fn is_ours(user: u32) -> bool {
    user == 0 || user == geteuid().as_raw()
}

/// True if nobody but root and this user can put something into a directory.
pub(crate) fn is_safe(dir: &Stat) -> bool {
    is_ours(dir.st_uid) && dir.st_mode & 0o022 == 0
}

/// True if nobody but root and this user can replace `found` in a directory, for example their own directory in `/tmp`.
fn stays(dir: &Stat, found: &Stat) -> bool {
    const STICKY: u32 = 0o1000;
    let keeps = dir.st_mode & STICKY != 0 && is_ours(dir.st_uid) && is_ours(found.st_uid);
    is_safe(dir) || keeps
}

fn kind(of: &Stat) -> FileType {
    FileType::from_raw_mode(of.st_mode)
}

fn parts(path: &Path) -> impl DoubleEndedIterator<Item = OsString> + '_ {
    let named = |part: &Component<'_>| !matches!(part, Component::RootDir | Component::CurDir);
    path.components().filter(named).map(|part| part.as_os_str().to_owned())
}

fn open_dir(path: &str) -> io::Result<OwnedFd> {
    Ok(openat(CWD, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// A descriptor of the file with this name. It serves only to refer to the file (`O_PATH`).
pub(crate) fn look(dir: &OwnedFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    openat(dir, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

pub(crate) fn by_descriptor(dir: &OwnedFd) -> PathBuf {
    // A confined helper's calls need a path.
    format!("/proc/self/fd/{}", dir.as_raw_fd()).into()
}

impl Place {
    /// The place of the file `path`, which need not exist.
    ///
    /// # Errors
    /// A directory does not exist, or the way leads by a link that somebody else could have put there.
    pub fn of(path: &Path) -> io::Result<Self> {
        Self::walk(path, Last::Itself, false, Links::Own)
    }

    /// As [`Place::of`], and makes the directories that are missing.
    ///
    /// # Errors
    /// The errors of [`Place::of`].
    pub fn make(path: &Path) -> io::Result<Self> {
        Self::walk(path, Last::Itself, true, Links::Own)
    }

    /// The place of the file `path`, or of its target if it is a link.
    ///
    /// # Errors
    /// The errors of [`Place::of`].
    pub fn of_target(path: &Path) -> io::Result<Self> {
        Self::of_target_by(Links::Own, path)
    }

    /// The directory `path`, open for [`openat`], and its identity.
    pub(crate) fn dir_by(links: Links, path: &Path) -> io::Result<(Arc<OwnedFd>, Stat)> {
        let place = Self::walk(&path.join("file"), Last::Itself, false, links)?;
        let found = place.dir()?;
        Ok((place.dir, found))
    }

    pub(crate) fn of_target_by(links: Links, path: &Path) -> io::Result<Self> {
        Self::walk(path, Last::Target, false, links)
    }

    fn walk(path: &Path, last: Last, makes: bool, count: Links) -> io::Result<Self> {
        let start = if path.is_absolute() { "/" } else { "." };
        let (mut dir, mut walked) = (open_dir(start)?, PathBuf::from(start));
        let mut left: VecDeque<_> = parts(path).collect();
        let (mut links, mut is_steady) = (0, true);
        let found = |dir, name: OsString, walked: PathBuf, links, is_steady: bool| {
            let meant = if links == 0 { path.to_owned() } else { walked.join(&name) };
            Self { dir: Arc::new(dir), name, walked, path: is_steady.then_some(meant) }
        };
        while let Some(name) = left.pop_front() {
            let here = fstat(&dir)?;
            if left.is_empty() && last == Last::Itself {
                return Ok(found(dir, name, walked, links, is_steady && is_safe(&here)));
            }
            let next = match look(&dir, &name) {
                Err(Errno::NOENT) if left.is_empty() => {
                    return Ok(found(dir, name, walked, links, is_steady && is_safe(&here)));
                }
                Err(Errno::NOENT) if makes => {
                    match fs::create_dir(by_descriptor(&dir).join(&name)) {
                        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                            return Err(error);
                        }
                        _ => look(&dir, &name)?,
                    }
                }
                looked => looked?,
            };
            let stat = fstat(&next)?;
            let named = walked.join(&name);
            is_steady &= stays(&here, &stat);
            match kind(&stat) {
                FileType::Symlink => {
                    links += 1;
                    if links > LINKS_MAX {
                        return Err(Errno::LOOP.into());
                    }
                    if count == Links::Own && !is_safe(&here) {
                        return Err(Refused::Link { path: named, owner: here.st_uid }.into());
                    }
                    let target = readlinkat(&next, "", Vec::new())?.into_bytes();
                    let target = PathBuf::from(OsString::from_vec(target));
                    if target.is_absolute() {
                        (dir, walked) = (open_dir("/")?, PathBuf::from("/"));
                    }
                    parts(&target).rev().for_each(|part| left.push_front(part));
                }
                _ if left.is_empty() => {
                    return Ok(found(dir, name, walked, links, is_steady && is_safe(&here)));
                }
                FileType::Directory => (dir, walked) = (next, named),
                _ => return Err(Refused::NotADirectory(named).into()),
            }
        }
        Err(Refused::NoName(walked).into())
    }

    /// A path of the file, for this process as long as the value exists. It is made of names alone if nobody else can
    /// change their meaning.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.path.clone().unwrap_or_else(|| by_descriptor(&self.dir).join(&self.name))
    }

    /// The place of another file in the same directory. The way there is not walked again.
    #[must_use]
    pub fn beside(&self, name: &OsStr) -> Self {
        let (dir, name, walked) = (Arc::clone(&self.dir), name.to_owned(), self.walked.clone());
        let path = self.path.as_ref().map(|path| path.with_file_name(&name));
        Self { dir, name, path, walked }
    }

    /// The path along all links, for people.
    #[must_use]
    pub fn shown(&self) -> PathBuf {
        self.walked.join(&self.name)
    }

    /// The directory.
    ///
    /// # Errors
    /// The kernel's error.
    pub(crate) fn dir(&self) -> io::Result<Stat> {
        Ok(fstat(&self.dir)?)
    }

    /// The file, or the link itself, by a descriptor that serves only to refer to it (`O_PATH`).
    pub(crate) fn look(&self) -> io::Result<(OwnedFd, Stat)> {
        let file = look(&self.dir, &self.name)?;
        let found = fstat(&file)?;
        Ok((file, found))
    }
}

/// Opens a file of weir's own for reading. A special file, or somebody else's, is refused before it can block the open.
///
/// # Errors
/// The kernel's error, those of [`Place::of`], or [`io::ErrorKind::PermissionDenied`].
pub fn open_own(path: &Path) -> io::Result<File> {
    let place = Place::of(path)?;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = open(place.path(), flags, Mode::empty())?;
    let found = fstat(&file)?;
    match kind(&found) == FileType::RegularFile && found.st_uid == geteuid().as_raw() {
        true => Ok(file.into()),
        false => Err(Refused::Foreign { path: path.into(), owner: place.dir()?.st_uid }.into()),
    }
}

/// Opens a file for reading and writing, or makes it, and the directories that are missing. In a directory that
/// somebody else can change the file is a new one, or one of this user's alone.
///
/// # Errors
/// The kernel's error, those of [`Place::make`], or [`io::ErrorKind::PermissionDenied`].
pub fn open_or_make(path: &Path) -> io::Result<File> {
    let place = Place::make(path)?;
    let here = place.dir()?;
    let flags =
        OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = open(place.path(), flags, Mode::RUSR | Mode::WUSR)?;
    let found = fstat(&file)?;
    match kind(&found) == FileType::RegularFile && (is_safe(&here) || is_alone(&found)) {
        true => Ok(file.into()),
        false => Err(Refused::Foreign { path: path.into(), owner: here.st_uid }.into()),
    }
}

/// True if a file is this user's, and has only one name.
fn is_alone(found: &Stat) -> bool {
    found.st_uid == geteuid().as_raw() && found.st_nlink == 1
}

/// Makes a file, or empties the existing one. In a directory that somebody else can change the file is a new one, or
/// one of this user's alone.
///
/// # Errors
/// The kernel's error, those of [`Place::of`], or [`io::ErrorKind::PermissionDenied`].
pub fn create(path: &Path) -> io::Result<File> {
    let place = Place::of_target(path)?;
    let here = place.dir()?;
    if is_safe(&here) {
        return File::create(place.path());
    }
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match open(place.path(), flags, Mode::empty()) {
        Ok(file) => {
            let found = fstat(&file)?;
            if !(is_alone(&found) && kind(&found) == FileType::RegularFile) {
                return Err(Refused::Foreign { path: path.into(), owner: here.st_uid }.into());
            }
            ftruncate(file.as_fd(), 0)?;
            Ok(file.into())
        }
        // A file that somebody makes meanwhile is not overwritten.
        Err(Errno::NOENT) => File::create_new(place.path()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use crate::reach::tests::open_to_all;

    #[test]
    fn a_file_is_where_its_directory_was_whatever_has_the_name_later() {
        let (theirs, other) = (open_to_all(), tempfile::tempdir().unwrap());
        let at = |name: &str| theirs.path().join(name);
        let place = Place::make(&at("a/b/file")).unwrap();
        fs::rename(at("a"), at("moved")).unwrap();
        symlink(other.path(), at("a")).unwrap();
        fs::write(place.path(), "x").unwrap();
        assert!(
            at("moved/b/file").exists() && fs::read_dir(other.path()).unwrap().next().is_none()
        );
        let refused = Place::of(&at("a/file")).unwrap_err().to_string();
        assert!(refused.contains("is a link in a directory"), "{refused}");
        let made = Place::make(&at("a/new/file")).unwrap_err().to_string();
        assert!(made.contains("is a link in a directory"), "{made}");
        assert!(fs::read_dir(other.path()).unwrap().next().is_none(), "made behind a link");
        fs::write(place.beside(OsStr::new("next")).path(), "x").unwrap();
        assert!(at("moved/b/next").exists());
    }

    #[test]
    fn a_path_that_nobody_else_can_change_stays_as_it_was_named() {
        let own = tempfile::tempdir().unwrap();
        let path = own.path().join("x.sock");
        let place = Place::of(&path).unwrap();
        assert_eq!(place.path(), path);
        assert_eq!(place.beside(OsStr::new("y.sock")).path(), own.path().join("y.sock"));
        fs::set_permissions(own.path(), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(Place::of(&path).unwrap().path().starts_with("/proc/self/fd"));
        assert_eq!(Place::of(Path::new("x.sock")).unwrap().shown(), Path::new("./x.sock"));
    }

    #[test]
    fn a_file_is_made_in_a_strangers_directory_but_none_of_theirs_is_written() {
        let (theirs, own) = (open_to_all(), tempfile::tempdir().unwrap());
        let at = |name: &str| theirs.path().join(name);
        let target = own.path().join("target");
        fs::write(&target, "mine").unwrap();
        symlink(&target, at("link")).unwrap();
        fs::hard_link(&target, at("hard")).unwrap();
        rustix::fs::mknodat(CWD, at("fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        fs::create_dir(at("dir")).unwrap();
        for name in ["link", "hard", "fifo", "dir"] {
            assert!(create(&at(name)).is_err(), "{name}");
            assert!(open_or_make(&at(name)).is_err(), "{name}");
        }
        symlink(own.path(), at("way")).unwrap();
        assert!(open_or_make(&at("way/file")).is_err() && !own.path().join("file").exists());
        for _ in 0..2 {
            io::Write::write_all(&mut open_or_make(&at("kept/file")).unwrap(), b"x").unwrap();
            assert_eq!(fs::metadata(at("kept/file")).unwrap().permissions().mode() & 0o777, 0o600);
        }
        assert_eq!(fs::read(&target).unwrap(), b"mine");
        for _ in 0..2 {
            io::Write::write_all(&mut create(&at("new")).unwrap(), b"x").unwrap();
            assert_eq!(fs::read(at("new")).unwrap(), b"x");
        }
        // A link in this user's own directory counts as this user's.
        symlink(&target, own.path().join("link")).unwrap();
        let link = own.path().join("link");
        assert_eq!(Place::of(&link).unwrap().path(), link);
        assert_eq!(Place::of_target(&link).unwrap().path(), target);
        drop(create(&link).unwrap());
        assert_eq!(fs::read(&target).unwrap(), b"");
    }

    #[test]
    fn what_is_no_file_of_ones_own_is_not_opened_and_keeps_nobody_waiting() {
        let theirs = open_to_all();
        let at = |name: &str| theirs.path().join(name);
        fs::write(at("own"), "x").unwrap();
        symlink(at("own"), at("link")).unwrap();
        // Opening a FIFO would wait for a writer.
        rustix::fs::mknodat(CWD, at("fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        assert!(open_own(&at("own")).is_ok());
        for name in ["link", "fifo", "none"] {
            assert!(open_own(&at(name)).is_err(), "{name}");
        }
    }
}
