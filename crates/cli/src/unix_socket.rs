//! Listening on a Unix socket: never beside another server, never over somebody's file, and never
//! open to more users for a moment than it is meant to be.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use miette::Diagnostic;
use rustix::fs::{FlockOperation, flock};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use thiserror::Error;

use crate::config::SocketMode;

/// Connections that may wait for `accept`.
const BACKLOG: i32 = 16;

/// Why a socket could not be made.
#[derive(Debug, Error, Diagnostic)]
pub enum ListenError {
    /// Somebody answers on it.
    #[error("another program serves {}", path.display())]
    #[diagnostic(help("stop it first, or choose another socket"))]
    InUse {
        /// The socket.
        path: PathBuf,
    },
    /// The path is taken by something that is no socket; weir does not delete it.
    #[error("{} exists and is not a socket", path.display())]
    #[diagnostic(help("move it away, or choose another socket"))]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// A system call failed.
    #[error("cannot {step} {}", path.display())]
    Io {
        /// What was tried.
        step: &'static str,
        /// With which path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// A socket that is listening. Dropping it removes its file, unless another program has put its own
/// there.
#[derive(Debug)]
pub struct BoundListener {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the file, which tell it from another one of the same name.
    file: (u64, u64),
}

impl BoundListener {
    /// Listens on `path` with permissions `mode`. A missing directory is made; a socket on which
    /// nobody answers is left over from a program that was killed, and is replaced.
    ///
    /// # Errors
    /// [`ListenError`]
    pub fn bind(path: &Path, mode: SocketMode) -> Result<Self, ListenError> {
        let io_error = |step, path: &Path| {
            let path = path.to_owned();
            move |source| ListenError::Io { step, path, source }
        };
        let parent = path.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(parent).map_err(io_error("make the directory", parent))?;
        // Two programs that start at once must not both take the old socket for a stale one and
        // remove each other's new one. The lock ends when `dir` is closed.
        let dir = File::open(parent).map_err(io_error("open the directory", parent))?;
        flock(&dir, FlockOperation::LockExclusive)
            .map_err(|errno| io_error("lock the directory", parent)(errno.into()))?;

        remove_stale(path)?;
        let listener = bind(path, mode).map_err(io_error("listen on", path))?;
        let file = file_id(path).map_err(io_error("look at", path))?;
        Ok(Self { listener, path: path.into(), file })
    }

    /// The socket, for `accept`.
    pub fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// The socket's file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for BoundListener {
    fn drop(&mut self) {
        if file_id(&self.path).is_ok_and(|file| file == self.file) {
            // Nothing is left to do if it fails: the next start replaces a stale socket.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn file_id(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}

fn remove_stale(path: &Path) -> Result<(), ListenError> {
    let io_error = |step| move |source| ListenError::Io { step, path: path.to_owned(), source };
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => {}
        Ok(_) => return Err(ListenError::NotASocket { path: path.into() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(io_error("look at")(error)),
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(ListenError::InUse { path: path.into() }),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(io_error("remove the stale socket"))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(io_error("see whether anybody serves")(error)),
    }
}

/// The permissions are set between `bind` and `listen`: until then nobody can connect.
fn bind(path: &Path, mode: SocketMode) -> io::Result<UnixListener> {
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode.bits()))?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(UnixListener::from(socket))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(text: &str) -> SocketMode {
        text.parse().unwrap()
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
