//! Descriptors that others have made, and the threads that close them.
//!
//! Closing a descriptor can take as long as its maker likes, and dropping a socket closes the descriptors that lie in
//! it unread. A thread that serves several parties therefore closes none of them: it holds them as [`Foreign`], which
//! hands them to a thread that serves their [`Party`] alone.
//!
//! [`place`] finds files in directories that others may change, and [`reach`] connects to sockets there.

#![deny(unsafe_code)]

mod party;
pub mod place;
pub mod reach;

use std::fmt;
use std::io::{self, IoSliceMut, Read, Write};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

pub use party::{Party, Stuck, hurry, is_left_to_exit, leave_to_exit, stuck};

/// Descriptors of one message: the most that the kernel takes.
const MESSAGE_MAX: usize = weir_limits::DESCRIPTORS_OF_AGENT as usize;

/// A descriptor of another party's, or a socket in which such descriptors can lie. The party's closer closes it.
pub struct Foreign<T: Into<OwnedFd>> {
    it: ManuallyDrop<T>,
    /// `None` once `it` was taken out.
    party: Option<Party>,
}

impl<T: Into<OwnedFd>> Foreign<T> {
    /// Makes `it` be closed at the expense of `party`.
    pub fn new(it: T, party: &Party) -> Self {
        Self { it: ManuallyDrop::new(it), party: Some(party.clone()) }
    }

    /// Takes the descriptor out, for a thread that serves its party alone.
    #[must_use]
    #[allow(unsafe_code)]
    pub fn release(mut self) -> T {
        self.party = None;
        // SAFETY: without a party `drop` leaves it alone, and `self` ends here.
        unsafe { ManuallyDrop::take(&mut self.it) }
    }
}

impl<T: Into<OwnedFd>> Foreign<T> {
    /// The same descriptor as another type.
    #[must_use]
    pub fn map<U: Into<OwnedFd>>(mut self, change: impl FnOnce(T) -> U) -> Foreign<U> {
        let party = self.party.take();
        Foreign { it: ManuallyDrop::new(change(self.release())), party }
    }
}

impl<T: Into<OwnedFd>> Drop for Foreign<T> {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        if let Some(party) = self.party.take() {
            // SAFETY: nobody uses it after `drop`, and `release` has not taken it out.
            let descriptor: OwnedFd = unsafe { ManuallyDrop::take(&mut self.it) }.into();
            party.close(descriptor);
        }
    }
}

impl<T: Into<OwnedFd>> Deref for Foreign<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.it
    }
}

impl<T: Into<OwnedFd> + fmt::Debug> fmt::Debug for Foreign<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.it.fmt(f)
    }
}

impl<T: Into<OwnedFd> + AsFd> AsFd for Foreign<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.it.as_fd()
    }
}

impl<T: Into<OwnedFd> + AsFd> AsRawFd for Foreign<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.it.as_fd().as_raw_fd()
    }
}

impl Foreign<UnixListener> {
    /// Another descriptor of the same listener: the last one to be closed ends the connections that wait there.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { it: ManuallyDrop::new(self.it.try_clone()?), party: self.party.clone() })
    }
}

impl Foreign<UnixStream> {
    /// True if the party may bring no more descriptors for now, because too many of its descriptors
    /// are still open.
    pub fn owes(&self) -> bool {
        self.party.as_ref().is_some_and(Party::is_full)
    }

    /// Reads bytes as `read` does. The party's closer closes the descriptors that came with them,
    /// so the reader need not.
    ///
    /// # Errors
    /// The errors of recvmsg(2).
    pub fn receive(&self, room: &mut [u8]) -> io::Result<usize> {
        let party = self.party.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        receive(&*self.it, room, party)
    }
}

/// Reads bytes of a party's socket as `read` does, and makes its closer close the descriptors that
/// came with them.
///
/// # Errors
/// The errors of recvmsg(2).
pub fn receive(socket: impl AsFd, room: &mut [u8], party: &Party) -> io::Result<usize> {
    take(socket, room, RecvFlags::empty(), |descriptor| party.close(descriptor))
}

/// Reads bytes that have come, without waiting for more, and leaves the descriptors that came with
/// them to the caller: a worker may not start a thread that closes them.
///
/// # Errors
/// The errors of recvmsg(2).
pub fn receive_now(
    socket: impl AsFd,
    room: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    take(socket, room, RecvFlags::DONTWAIT, |descriptor| descriptors.push(descriptor))
}

fn take(
    socket: impl AsFd,
    room: &mut [u8],
    flags: RecvFlags,
    mut each: impl FnMut(OwnedFd),
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MESSAGE_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut room = [IoSliceMut::new(room)];
    let received = recvmsg(socket, &mut room, &mut control, flags | RecvFlags::CMSG_CLOEXEC)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            rights.for_each(&mut each);
        }
    }
    Ok(received.bytes)
}

impl Read for Foreign<UnixStream> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.receive(room)
    }
}

impl Write for Foreign<UnixStream> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self.it).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The stream of a party that has nothing else.
impl From<UnixStream> for Foreign<UnixStream> {
    fn from(stream: UnixStream) -> Self {
        Self::new(stream, &Party::new("a peer"))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    use weir_testing::slow::{lingering, send_with};

    use crate::{Foreign, Party, stuck};

    const MINUTE: Duration = Duration::from_secs(60);

    fn eventually(holds: impl Fn() -> bool) {
        let until = Instant::now() + MINUTE;
        while !holds() {
            assert!(Instant::now() < until, "not within a minute");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_socket_with_a_slow_descriptor_ends_at_its_partys_expense_and_in_bounded_time() {
        let began = Instant::now();
        let party = Party::new("slow");
        let mut readers = Vec::new();
        for way in 0..4 {
            let (socket, reader) = lingering();
            readers.push(reader);
            let (ours, theirs) = UnixStream::pair().unwrap();
            let mut ours = Foreign::new(ours, &party);
            match way {
                // The descriptor was read.
                0 => {
                    send_with(&theirs, b"x", socket).unwrap();
                    assert_eq!(ours.read(&mut [0; 9]).unwrap(), 1);
                }
                // The descriptor is unread.
                1 => send_with(&theirs, b"x", socket).unwrap(),
                // The descriptor is in a socket in a socket.
                2 => {
                    let (inner, other) = UnixStream::pair().unwrap();
                    send_with(&other, b"x", socket).unwrap();
                    send_with(&theirs, b"x", inner).unwrap();
                }
                // The descriptor is in a listener's queue.
                _ => {
                    let dir = tempfile::tempdir().unwrap();
                    let path = dir.path().join("s.sock");
                    let listener = Foreign::new(UnixListener::bind(&path).unwrap(), &party);
                    let client = UnixStream::connect(&path).unwrap();
                    send_with(&client, b"x", socket).unwrap();
                    drop((client, listener));
                }
            }
            drop((ours, theirs));
        }
        // Another party's descriptors are closed meanwhile, and then these, long before they would close by themselves.
        let quick = Party::new("quick");
        drop(Foreign::new(UnixStream::pair().unwrap().0, &quick));
        eventually(|| quick.open() == 0);
        eventually(|| party.open() == 0);
        assert!(began.elapsed() < MINUTE, "cut short: a close would take ten minutes");
    }

    #[test]
    fn a_party_whose_descriptor_no_signal_closes_is_named_while_it_does_not() {
        struct Waits(mpsc::Receiver<()>);
        impl Drop for Waits {
            fn drop(&mut self) {
                let _ = self.0.recv();
            }
        }
        let party = Party::new("whose server is gone");
        let named = || stuck().into_iter().find(|it| it.party == "whose server is gone");
        let (end, waits) = mpsc::channel();
        party.close(Waits(waits));
        party.close(());
        eventually(|| named().is_some());
        assert_eq!(named().unwrap().open, 2);
        drop(end);
        eventually(|| named().is_none() && party.open() == 0);
    }
}
