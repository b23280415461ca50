//! The port to the host: a virtio-serial port, vsock, or, for tests, a Unix socket or a terminal.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use rustix::io::Errno;
use rustix::termios::{OptionalActions, isatty, tcgetattr, tcsetattr};
use socket2::{Domain, SockAddr, Socket, Type};

/// Address of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Port {
    /// A virtio-serial port, or a replacement.
    Path(PathBuf),
    /// A vsock port of the host.
    Vsock(u32),
}

/// Reason why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The virtual machine has no such port.
    #[error(
        "no port {}: the virtual machine needs one, with QEMU -device virtio-serial \
         -chardev socket,id=agent,path=SOCKET,server=off,reconnect-ms=1000 \
         -device virtserialport,chardev=agent,name=org.weir.agent.0, \
         or with xl channel=['name=weir.agent,connection=socket,path=SOCKET'] and here --port /dev/hvc1",
        path.display()
    )]
    NoPort {
        /// The port.
        path: PathBuf,
    },
    /// Another program has the port.
    #[error("{} is in use by another program", path.display())]
    InUse {
        /// The port.
        path: PathBuf,
    },
    /// The guest has no vsock device.
    #[error(
        "no vsock device: the virtual machine needs one, with QEMU -device vhost-vsock-pci,guest-cid=CID"
    )]
    NoVsock,
    /// Nothing listens on the host.
    #[error("weir does not answer at {port}")]
    NoHost {
        /// The port.
        port: String,
    },
    /// Another error.
    #[error("{port}: {source}")]
    Io {
        /// The port.
        port: String,
        /// The error.
        source: io::Error,
    },
}

impl PortError {
    /// Returns true if the guest has the port, and only the host is missing.
    pub fn is_of_host(&self) -> bool {
        matches!(self, Self::NoHost { .. })
    }
}

impl std::fmt::Display for Port {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Path(path) => path.display().fmt(out),
            Self::Vsock(port) => write!(out, "vsock port {port} of the host"),
        }
    }
}

impl Port {
    /// Opens the port; the stream does not block. A virtio-serial port also opens without a peer on the host, and
    /// then reads as closed.
    pub(crate) fn open(&self) -> Result<File, PortError> {
        let opened = match self {
            Self::Path(path) => open_path(path),
            Self::Vsock(port) => connect_to_host(*port),
        };
        opened.and_then(not_blocking).map_err(|source| self.error(source))
    }

    fn error(&self, source: io::Error) -> PortError {
        let errno = source.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error);
        match (self, errno) {
            (Self::Path(path), Errno::NOENT | Errno::NXIO | Errno::NODEV) => {
                PortError::NoPort { path: path.clone() }
            }
            (Self::Path(path), Errno::BUSY) => PortError::InUse { path: path.clone() },
            (Self::Vsock(_), Errno::AFNOSUPPORT | Errno::NODEV | Errno::ADDRNOTAVAIL) => {
                PortError::NoVsock
            }
            (_, Errno::CONNREFUSED | Errno::CONNRESET | Errno::TIMEDOUT) => {
                PortError::NoHost { port: self.to_string() }
            }
            _ => PortError::Io { port: self.to_string(), source },
        }
    }
}

fn open_path(path: &PathBuf) -> io::Result<File> {
    if fs::metadata(path)?.file_type().is_socket() {
        return Ok(File::from(OwnedFd::from(UnixStream::connect(path)?)));
    }
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)?;
    if isatty(&file) {
        // A terminal would echo the messages, and cut them.
        let mut mode = tcgetattr(&file)?;
        mode.make_raw();
        tcsetattr(&file, OptionalActions::Now, &mode)?;
    }
    Ok(file)
}

/// Connects to a vsock port of the host. The kernel gives up after two seconds.
fn connect_to_host(port: u32) -> io::Result<File> {
    let socket = Socket::new(Domain::VSOCK, Type::STREAM, None)?;
    socket.connect(&SockAddr::vsock(libc::VMADDR_CID_HOST, port))?;
    Ok(File::from(OwnedFd::from(socket)))
}

fn not_blocking(file: File) -> io::Result<File> {
    let flags = rustix::fs::fcntl_getfl(&file)?;
    rustix::fs::fcntl_setfl(&file, flags | rustix::fs::OFlags::NONBLOCK)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_missing_port_says_what_qemu_needs() {
        let error = Port::Path("/nonexistent/org.weir.agent.0".into()).open().unwrap_err();
        assert!(error.to_string().contains("-device virtserialport"), "{error}");
        assert!(!error.is_of_host());
    }

    #[test]
    fn a_socket_that_nobody_listens_on_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("host.sock");
        drop(UnixListener::bind(&path).unwrap());
        assert!(Port::Path(path).open().unwrap_err().is_of_host());
    }

    #[test]
    fn a_terminal_carries_lines_as_they_are() {
        use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
        let host = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&host).unwrap();
        unlockpt(&host).unwrap();
        let name = ptsname(&host, Vec::new()).unwrap().into_string().unwrap();
        let mut host = File::from(host);
        let mut agent = Port::Path(name.into()).open().unwrap();
        let line = [b"x".repeat(4090), b"\n".to_vec()].concat();
        let mut read = vec![0; 100];
        assert_eq!(
            agent.read(&mut read).unwrap_err().kind(),
            io::ErrorKind::WouldBlock,
            "no blocking and no echo"
        );
        agent.write_all(b"{}\n").unwrap();
        assert_eq!(host.read(&mut read).unwrap(), 3);
        assert_eq!(&read[..3], b"{}\n");
        host.write_all(&line).unwrap();
        let mut arrived = Vec::new();
        while arrived.len() < line.len() {
            match agent.read(&mut read) {
                Ok(len) => arrived.extend_from_slice(&read[..len]),
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        }
        assert_eq!(arrived, line);
    }
}
