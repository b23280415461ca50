//! A way to call a guest, the cost of calls, and its limit.
//!
//! The front end sets the price: a call wakes all waiters of its descriptor one after the other, in the caller's
//! time. A call within [`CALL_NS_USUAL_MAX`] belongs to its burst. The called port pays for the excess, and its
//! next calls are measured by the thread's CPU clock, which excludes preemption. CPU time above [`CALL_NS_MAX`] per
//! call adds to a debt, time below pays it off; at [`CALL_DEBT_NS_MAX`] the port stops.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::{fmt, io};

use rustix::net::{
    AddressFamily, RecvFlags, Shutdown, SocketAddrAny, SocketAddrUnix, SocketType, getpeername,
    getsockname, recv, shutdown, sockopt,
};
use weir_limits::{CALL_DEBT_NS_MAX, CALL_NS_MAX, CALL_NS_USUAL_MAX, CALLS_WATCHED};

use crate::proxy::{Line, Proxy};
use crate::signal;

/// Reason why a call cannot be given, or failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// Calls cannot use this kind of descriptor.
    #[error("{0} cannot be called; an eventfd, a pipe and a Unix stream socket can")]
    Kind(Kind),
    /// The socket was connected by a path. It may be the front end's end of the very connection
    /// that it came over, and weir would never see that connection end.
    #[error("a socket with an address cannot be called; a socket of a pair can")]
    Named,
    /// The kernel refuses.
    #[error(transparent)]
    System(#[from] io::Error),
    /// The thread that writes this front end's calls to pipes and sockets is stuck in one of them.
    #[error(
        "the thread that writes this front end's calls has been stuck in its descriptor for {ms} ms"
    )]
    Stuck {
        /// Duration (ms).
        ms: u64,
    },
}

/// A descriptor for calls.
#[derive(Debug)]
pub enum Call {
    /// The kernel signals the descriptor.
    Eventfd(OwnedFd),
    /// A thread of this front end writes to the descriptor: it is no eventfd, or the kernel cannot
    /// signal it.
    Line(Line),
}

impl Call {
    /// Returns a way to `fd`, through `proxy` only if necessary.
    pub fn new(fd: OwnedFd, proxy: &Proxy) -> Result<Self, CallError> {
        let kind = Kind::of(fd.as_fd())?;
        match kind {
            Kind::Eventfd if signal::available().is_ok() => return Ok(Self::Eventfd(fd)),
            Kind::Other(_) => return Err(CallError::Kind(kind)),
            Kind::UnixStream => hold_nothing(&fd)?,
            Kind::Eventfd | Kind::Pipe => {}
        }
        proxy.line(fd, kind).map(Self::Line)
    }

    /// Gives a call. Never blocks.
    ///
    /// # Errors
    /// The call was not given, and will not be: [`CallError`].
    #[inline(always)]
    pub fn give(&self) -> Result<(), CallError> {
        match self {
            Self::Eventfd(fd) => Ok(signal::signal(fd.as_fd())?),
            Self::Line(line) => line.ring(),
        }
    }
}

/// Makes `socket` receive nothing from now on, and closes the descriptors that have arrived.
/// Descriptors in flight to a socket are open as long as the socket is: if the front end's end of
/// its own connection is among them, the session would never end.
fn hold_nothing(socket: &OwnedFd) -> Result<(), CallError> {
    let has_address = |address: SocketAddrAny| {
        SocketAddrUnix::try_from(address).is_ok_and(|unix| {
            let is_abstract = unix.abstract_name().is_some_and(|name| !name.is_empty());
            is_abstract || unix.path_bytes().is_some_and(|path| !path.is_empty())
        })
    };
    let other_end = getpeername(socket).ok().flatten();
    if getsockname(socket).ok().into_iter().chain(other_end).any(has_address) {
        return Err(CallError::Named);
    }
    // A socket whose other end is closed receives nothing either.
    let _ = shutdown(socket, Shutdown::Read);
    // Without room for descriptors the kernel closes them.
    while recv(socket, &mut [0; 4096], RecvFlags::DONTWAIT).is_ok_and(|(len, _)| len > 0) {}
    Ok(())
}

/// Longest name shown for a refused descriptor.
const NAME_LEN_MAX: usize = 64;

/// Kind of a descriptor that another process has opened.
///
/// `fstat` would ask its file system, possibly a FUSE server of the same owner. `/proc/self/fdinfo` would ask its file,
/// whose answer may be long (an epoll set lists all it watches). The link's name comes from the kernel alone: a real
/// path begins with a slash, unlike the names below.
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

/// The account of one descriptor's calls. It outlives the descriptor, so that a fresh start pays no
/// debt.
#[derive(Debug, Default)]
pub struct Price {
    /// Number of calls that are still measured by the CPU clock.
    watched: u32,
    debt_ns: u64,
}

/// Result of a measured call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// Time that the called port must pay for (ns).
    pub beyond_ns: u64,
    /// The port gets no more calls.
    pub too_dear: bool,
}

impl Price {
    /// Returns whether to measure the next call by the CPU clock.
    #[inline]
    pub fn is_watched(&self) -> bool {
        self.watched > 0
    }

    /// Notes a call of unusual length by the wall clock, whose cause is not known yet.
    pub fn suspect(&mut self) {
        self.watched = CALLS_WATCHED;
    }

    /// Notes the CPU time of a call (ns).
    pub fn measured(&mut self, cpu_ns: u64) -> Verdict {
        self.debt_ns = self.debt_ns.saturating_add(cpu_ns).saturating_sub(CALL_NS_MAX);
        let beyond_ns = cpu_ns.saturating_sub(CALL_NS_USUAL_MAX);
        self.watched = match beyond_ns {
            0 if self.debt_ns == 0 => self.watched.saturating_sub(1),
            0 => self.watched,
            _ => CALLS_WATCHED,
        };
        let too_dear = self.debt_ns >= CALL_DEBT_NS_MAX;
        // A larger debt would only take longer to pay off.
        self.debt_ns = self.debt_ns.min(CALL_DEBT_NS_MAX);
        Verdict { beyond_ns, too_dear }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};
    use std::mem::MaybeUninit;
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::unix::net::{UnixDatagram, UnixStream};
    use std::sync::mpsc;
    use std::thread;
    use std::time::{Duration, Instant};

    use rustix::event::{EventfdFlags, epoll, eventfd};
    use rustix::fs::{MemfdFlags, memfd_create};
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    use rustix::pipe::{PipeFlags, pipe, pipe_with};

    use super::*;

    /// Longest wait of a test until it fails.
    const PATIENCE: Duration = Duration::from_secs(60);

    fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
        let end = Instant::now() + PATIENCE;
        while !holds() {
            assert!(Instant::now() < end, "never happened: {what}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn new_call(fd: OwnedFd, proxy: &Proxy) -> Result<Call, CallError> {
        Call::new(fd, proxy)
    }

    /// Runs `what` on a thread, which may block for ever. Returns whether it ends.
    fn ends(what: impl FnOnce() + Send + 'static) -> bool {
        let (done, wait) = mpsc::channel();
        thread::spawn(move || {
            what();
            let _ = done.send(());
        });
        wait.recv_timeout(PATIENCE).is_ok()
    }

    #[test]
    fn an_eventfd_whose_front_end_makes_it_block_again_does_not_block_a_call() {
        let theirs = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let call = new_call(theirs.try_clone().unwrap(), &Proxy::new("test")).unwrap();
        rustix::io::ioctl_fionbio(&theirs, false).unwrap();
        rustix::io::write(&theirs, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        assert!(ends(move || (0..10).for_each(|_| call.give().unwrap())));
    }

    #[test]
    fn pipes_and_unix_sockets_get_eight_bytes_a_call() {
        let proxy = Proxy::new("test");
        let (mut reader, writer) = UnixStream::pair().unwrap();
        let (pipe_reader, pipe_writer) = pipe().unwrap();
        let socket = new_call(writer.into(), &proxy).unwrap();
        let pipe = new_call(pipe_writer, &proxy).unwrap();
        for _ in 0..3 {
            let mut bytes = [0; 8];
            socket.give().unwrap();
            reader.read_exact(&mut bytes).unwrap();
            assert_eq!(u64::from_ne_bytes(bytes), 1);
            pipe.give().unwrap();
            assert_eq!(rustix::io::read(&pipe_reader, &mut bytes).unwrap(), 8);
            assert_eq!(u64::from_ne_bytes(bytes), 1);
        }
        drop((socket, pipe));
        assert_eq!(reader.read(&mut [0; 8]).unwrap(), 0, "closed with its line");
        eventually("the thread ends with its last line, and its eventfd", || !proxy.is_running());
    }

    #[test]
    fn a_full_pipe_and_a_full_socket_hold_up_nobody() {
        let proxy = Proxy::new("test");
        let (_reader, writer) = pipe_with(PipeFlags::NONBLOCK).unwrap();
        while rustix::io::write(&writer, &[0; 4096]).is_ok() {}
        rustix::io::ioctl_fionbio(&writer, false).unwrap();
        let (_socket, full) = UnixStream::pair().unwrap();
        full.set_nonblocking(true).unwrap();
        while rustix::io::write(&full, &[0; 4096]).is_ok() {}
        full.set_nonblocking(false).unwrap();
        let full = [new_call(writer, &proxy).unwrap(), new_call(full.into(), &proxy).unwrap()];
        let (mut reader, other) = UnixStream::pair().unwrap();
        reader.set_read_timeout(Some(PATIENCE)).unwrap();
        let other = new_call(other.into(), &proxy).unwrap();
        for _ in 0..3 {
            full.iter().for_each(|call| call.give().unwrap());
            other.give().unwrap();
            reader.read_exact(&mut [0; 8]).unwrap();
        }
    }

    #[test]
    fn what_cannot_be_called_is_named() {
        let null = std::fs::File::open("/dev/null").unwrap();
        let error = new_call(null.into(), &Proxy::new("test")).unwrap_err();
        assert!(error.to_string().starts_with("/dev/null cannot be called"), "{error}");
    }

    /// Returns a TCP socket whose close waits until its data has gone out, while `peer` does not
    /// read.
    fn lingering() -> (OwnedFd, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (peer, _) = listener.accept().unwrap();
        socket.set_nonblocking(true).unwrap();
        // Writes until nothing moves any more: written data may still be on its way to the reader's
        // buffer.
        let mut refused = 0;
        while refused < 5 {
            refused = if socket.write(&[0; 65536]).is_ok() { 0 } else { refused + 1 };
            thread::sleep(Duration::from_millis(if refused > 0 { 20 } else { 0 }));
        }
        socket.set_nonblocking(false).unwrap();
        rustix::net::sockopt::set_socket_linger(&socket, Some(PATIENCE)).unwrap();
        (socket.into(), peer)
    }

    /// Leaves `fd` in flight to the other end of `socket`. The kernel closes `fd` together with
    /// that end.
    fn send_along(socket: &UnixStream, fd: OwnedFd) {
        let fds = [fd.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        sendmsg(socket, &[io::IoSlice::new(&[0])], &mut control, SendFlags::empty()).unwrap();
    }

    #[test]
    fn a_descriptor_that_takes_long_to_close_holds_up_its_own_front_end_only() {
        let proxy = Proxy::new("test");
        let (theirs, ours) = UnixStream::pair().unwrap();
        let (socket, peer) = lingering();
        send_along(&theirs, socket);
        let (_other, kept) = UnixStream::pair().unwrap();
        let kept = new_call(kept.into(), &proxy).unwrap();
        // A call as `new_call` makes it would already have closed the descriptor in flight.
        let call = Call::Line(proxy.line(ours.into(), Kind::UnixStream).unwrap());
        assert!(ends(move || drop(call)), "not by whoever drops it");
        eventually("the thread is stuck", || proxy.stuck_ns().is_some());
        let ring_twice = kept.give().and_then(|()| kept.give());
        assert!(matches!(ring_twice, Err(CallError::Stuck { .. })), "{ring_twice:?}");
        let (_another, socket) = UnixStream::pair().unwrap();
        let refused = new_call(socket.into(), &proxy).unwrap_err();
        assert!(matches!(refused, CallError::Stuck { .. }), "no second thread: {refused}");
        drop(peer);
        eventually("it comes back", || proxy.stuck_ns().is_none());
        kept.give().unwrap();
    }

    #[test]
    fn a_socket_that_is_called_holds_no_descriptor_that_was_sent_along() {
        let proxy = Proxy::new("test");
        let (theirs, ours) = UnixStream::pair().unwrap();
        let (mut watched, sent) = UnixStream::pair().unwrap();
        watched.set_read_timeout(Some(PATIENCE)).unwrap();
        send_along(&theirs, sent.into());
        let call = new_call(ours.into(), &proxy).unwrap();
        assert_eq!(watched.read(&mut [0]).unwrap(), 0, "what came before is closed");
        let later = sendmsg(
            &theirs,
            &[io::IoSlice::new(&[0])],
            &mut SendAncillaryBuffer::default(),
            SendFlags::NOSIGNAL,
        );
        assert_eq!(later, Err(rustix::io::Errno::PIPE), "nothing comes later");
        call.give().unwrap();
        let mut theirs = theirs;
        theirs.read_exact(&mut [0; 8]).unwrap();
    }

    #[test]
    fn a_socket_with_an_address_is_not_called() {
        let folder = std::env::temp_dir().join(format!("weir-call-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let listener = std::os::unix::net::UnixListener::bind(folder.join("socket")).unwrap();
        let connected = UnixStream::connect(folder.join("socket")).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        let proxy = Proxy::new("test");
        for end in [connected, accepted] {
            let refused = new_call(end.into(), &proxy).unwrap_err();
            assert!(matches!(refused, CallError::Named), "{refused}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }

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

    const USUAL: u64 = 2_000;
    const DEAR: u64 = 2_000_000;

    /// Returns the number of calls of `cpu_ns` until the port gets no more.
    fn calls_until_too_dear(price: &mut Price, mut cpu_ns: impl FnMut(u64) -> u64) -> Option<u64> {
        (0..100_000).find(|call| price.measured(cpu_ns(*call)).too_dear)
    }

    #[test]
    fn calls_that_stay_dear_are_too_dear_soon() {
        let calls = calls_until_too_dear(&mut Price::default(), |_| DEAR).unwrap();
        assert!(calls < CALL_DEBT_NS_MAX / DEAR + 2, "{calls}");
    }

    #[test]
    fn every_other_call_is_enough() {
        let calls = |call: u64| if call.is_multiple_of(2) { DEAR } else { USUAL };
        assert!(calls_until_too_dear(&mut Price::default(), calls).is_some());
    }

    #[test]
    fn one_dear_call_in_many_is_not() {
        let calls = |call: u64| if call.is_multiple_of(64) { DEAR } else { USUAL };
        assert_eq!(calls_until_too_dear(&mut Price::default(), calls), None);
        assert_eq!(calls_until_too_dear(&mut Price::default(), |_| CALL_NS_MAX), None);
    }

    #[test]
    fn a_new_start_pays_nothing_off_and_cheap_calls_do() {
        let mut price = Price::default();
        calls_until_too_dear(&mut price, |_| DEAR);
        assert!(price.measured(DEAR).too_dear, "the next one at once");
        let mut calls = 0;
        while price.is_watched() {
            price.measured(USUAL);
            calls += 1;
        }
        assert!(calls >= CALL_DEBT_NS_MAX / CALL_NS_MAX, "{calls}");
        assert!(!price.measured(DEAR).too_dear);
    }

    #[test]
    fn what_is_usual_is_nobody_elses() {
        let mut price = Price::default();
        assert_eq!(price.measured(CALL_NS_USUAL_MAX), Verdict { beyond_ns: 0, too_dear: false });
        assert!(!price.is_watched());
        assert_eq!(price.measured(CALL_NS_USUAL_MAX + 7).beyond_ns, 7);
        assert!(price.is_watched());
    }
}
