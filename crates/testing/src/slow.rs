//! Descriptors whose close takes long, and a function to send them.

use std::io::{self, IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// Time that the close of a [`lingering`] socket takes, unless its peer closes.
const LINGER: Duration = Duration::from_secs(600);

/// A socket whose close waits ten minutes for its peer, which reads nothing; and that peer.
///
/// # Panics
/// If loopback does not work.
#[must_use]
pub fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port of loopback");
    let address = listener.local_addr().expect("its address");
    let mut socket = TcpStream::connect(address).expect("a connection by loopback");
    let (reader, _) = listener.accept().expect("its other end");
    socket.set_nonblocking(true).expect("a flag");
    // Data of a full socket still moves on to the reader's buffer.
    let mut refused = 0;
    while refused < 5 {
        refused = if socket.write(&[0; 65536]).is_ok() { 0 } else { refused + 1 };
        std::thread::sleep(Duration::from_millis(if refused > 0 { 20 } else { 0 }));
    }
    socket.set_nonblocking(false).expect("a flag");
    set_socket_linger(&socket, Some(LINGER)).expect("an option");
    (socket, reader)
}

/// Sends `bytes` together with a descriptor. The receiver then has the only copy.
///
/// The caller never waits for that descriptor: a receiver that is quick leaves the last close of it to the sender.
///
/// # Errors
/// The errors of sendmsg(2).
pub fn send_with(
    stream: impl AsFd,
    bytes: &[u8],
    descriptor: impl Into<OwnedFd>,
) -> io::Result<()> {
    let descriptor = descriptor.into();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors: [BorrowedFd<'_>; 1] = [descriptor.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    std::thread::spawn(move || drop(descriptor));
    Ok(())
}
