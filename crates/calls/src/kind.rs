//! The kind of a descriptor that another process has opened.
//!
//! `fstat` would ask its file system, possibly a FUSE server of the same owner; `/proc/self/fdinfo`
//! would ask its file, whose answer may be long (an epoll set lists all it watches). The link's
//! name comes from the kernel alone: a real path begins with a slash, unlike the names below.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::net::{AddressFamily, SocketType, sockopt};

/// Longest name shown for a refused descriptor.
const NAME_LEN_MAX: usize = 64;

/// Kind of a descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An eventfd.
    Eventfd,
    /// An end of a pipe that has no name in a file system.
    Pipe,
    /// A Unix stream socket.
    UnixStream,
    /// Another kind, by the kernel's name.
    Other(String),
}

impl Kind {
    /// Finds the kind of `fd` without a request to its file, so that the time depends only on the
    /// name's length.
    ///
    /// # Errors
    /// Without `/proc`.
    pub fn of(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let name = match rustix::fs::readlink(link, Vec::new()) {
            Ok(name) => name.to_string_lossy().into_owned(),
            Err(rustix::io::Errno::NAMETOOLONG) => "/...".to_owned(),
            Err(error) => return Err(error.into()),
        };
        Ok(match name.as_str() {
            "anon_inode:[eventfd]" => Self::Eventfd,
            name if name.starts_with("pipe:[") => Self::Pipe,
            name if name.starts_with("socket:[") && is_unix_stream(fd) => Self::UnixStream,
            _ => Self::Other(printable(&name)),
        })
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Eventfd => f.write_str("an eventfd"),
            Self::Pipe => f.write_str("a pipe"),
            Self::UnixStream => f.write_str("a Unix stream socket"),
            Self::Other(name) => f.write_str(name),
        }
    }
}

/// Returns whether the descriptor is a Unix stream socket, by the kernel's socket layer alone.
fn is_unix_stream(fd: impl AsFd) -> bool {
    sockopt::socket_domain(&fd) == Ok(AddressFamily::UNIX)
        && sockopt::socket_type(&fd) == Ok(SocketType::STREAM)
}

/// Makes a name safe for a log.
fn printable(name: &str) -> String {
    let letters = name.chars().map(|c| if c.is_control() { '?' } else { c });
    letters.take(NAME_LEN_MAX).collect()
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::net::{TcpListener, UdpSocket};
    use std::os::unix::net::{UnixDatagram, UnixStream};

    use rustix::event::{EventfdFlags, epoll, eventfd};
    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    #[test]
    fn what_a_call_may_go_to_is_known() {
        let event = eventfd(0, EventfdFlags::empty()).unwrap();
        assert_eq!(Kind::of(event.as_fd()).unwrap(), Kind::Eventfd);
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        assert_eq!(Kind::of(reader.as_fd()).unwrap(), Kind::Pipe);
        assert_eq!(Kind::of(writer.as_fd()).unwrap(), Kind::Pipe);
        let (stream, _other) = UnixStream::pair().unwrap();
        assert_eq!(Kind::of(stream.as_fd()).unwrap(), Kind::UnixStream);
    }

    #[test]
    fn everything_else_is_named() {
        let name = |fd: BorrowedFd<'_>| Kind::of(fd).unwrap().to_string();
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        assert_eq!(name(epoll.as_fd()), "anon_inode:[eventpoll]");
        assert_eq!(name(File::open("/dev/null").unwrap().as_fd()), "/dev/null");
        let memory = memfd_create("guest\n1", MemfdFlags::CLOEXEC).unwrap();
        assert_eq!(name(memory.as_fd()), "/memfd:guest?1 (deleted)");
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        let (datagram, _other) = UnixDatagram::pair().unwrap();
        for fd in [tcp.as_fd(), udp.as_fd(), datagram.as_fd()] {
            assert!(name(fd).starts_with("socket:["), "{}", name(fd));
        }
    }

    #[test]
    fn a_file_that_is_called_like_an_eventfd_is_none() {
        let folder = std::env::temp_dir().join(format!("weir-kind-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        for name in ["anon_inode:[eventfd]", "pipe:[1]"] {
            let path = folder.join(name);
            let file = File::create(&path).unwrap();
            assert!(matches!(Kind::of(file.as_fd()).unwrap(), Kind::Other(_)));
            drop(std::fs::remove_file(&path));
        }
        let fifo = folder.join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0)
            .unwrap();
        let open = File::options().read(true).write(true).open(&fifo).unwrap();
        assert!(
            matches!(Kind::of(open.as_fd()).unwrap(), Kind::Other(_)),
            "its file system has a say"
        );
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
