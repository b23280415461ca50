//! Scatter-gather I/O between a file descriptor and foreign memory.
//!
//! The kernel takes addresses, so no reference into guest memory is needed (`std`'s `IoSlice` would
//! be one).

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::slice::Slice;

/// Most buffers of one call (`UIO_FASTIOV` is 8, `IOV_MAX` 1024); a guest's chain has at most
/// [`weir_limits::CHAIN_LEN_MAX`], plus a header.
const IOVECS_MAX: usize = weir_limits::CHAIN_LEN_MAX + 4;

/// Writes `head` and then `body` with one `writev`. A `body` of more than the bound is refused
/// with `EINVAL`.
pub fn writev(fd: BorrowedFd<'_>, head: &[&[u8]], body: &[Slice<'_>]) -> io::Result<usize> {
    let mut iovecs = Iovecs::new();
    for bytes in head {
        iovecs.push(bytes.as_ptr().cast_mut(), bytes.len())?;
    }
    for slice in body {
        iovecs.push(slice.as_ptr(), slice.len())?;
    }
    // SAFETY: the first `count` iovecs are filled in, and each names memory that is readable
    // during the call: borrowed bytes or a checked slice.
    let written = unsafe {
        libc::writev(fd.as_raw_fd(), iovecs.entries.as_ptr().cast(), iovecs.count as i32)
    };
    usize::try_from(written).map_err(|_| io::Error::last_os_error())
}

/// Reads into `head` and then `body` with one `readv`.
pub fn readv(fd: BorrowedFd<'_>, head: &mut [u8], body: &[Slice<'_>]) -> io::Result<usize> {
    let mut iovecs = Iovecs::new();
    iovecs.push(head.as_mut_ptr(), head.len())?;
    for slice in body {
        iovecs.push(slice.as_ptr(), slice.len())?;
    }
    // SAFETY: the first `count` iovecs are filled in, and each names memory that is writable
    // during the call: `head` is borrowed mutably, a slice is writable foreign memory.
    let read =
        unsafe { libc::readv(fd.as_raw_fd(), iovecs.entries.as_ptr().cast(), iovecs.count as i32) };
    usize::try_from(read).map_err(|_| io::Error::last_os_error())
}

/// What [`recvmsg`] received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Bytes of the message.
    pub len: usize,
    /// Bytes of control messages (`struct cmsghdr` and what follows it, cmsg(3)).
    pub control_len: usize,
}

/// Receives one message into `body` and its control messages into `control`.
pub fn recvmsg(fd: BorrowedFd<'_>, body: &[Slice<'_>], control: &mut [u8]) -> io::Result<Message> {
    let mut iovecs = Iovecs::new();
    for slice in body {
        iovecs.push(slice.as_ptr(), slice.len())?;
    }
    // SAFETY: `msghdr` is a C struct of integers and pointers; zero bytes are a value of it.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = iovecs.entries.as_mut_ptr().cast();
    header.msg_iovlen = iovecs.count as _;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = control.len() as _;
    // SAFETY: the first `msg_iovlen` iovecs are filled in, and each names memory that is writable
    // during the call, a checked slice of foreign memory; `control` is borrowed mutably.
    let received = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut header, 0) };
    let len = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    let control_len = control.len().min(header.msg_controllen as _);
    Ok(Message { len, control_len })
}

struct Iovecs {
    /// Only the first `count` are filled in: clearing 4 KiB would cost more than a small write.
    entries: [MaybeUninit<libc::iovec>; IOVECS_MAX],
    count: usize,
}

impl Iovecs {
    fn new() -> Self {
        Self { entries: [const { MaybeUninit::uninit() }; IOVECS_MAX], count: 0 }
    }

    fn push(&mut self, start: *mut u8, len: usize) -> io::Result<()> {
        let Some(entry) = self.entries.get_mut(self.count) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        entry.write(libc::iovec { iov_base: start.cast(), iov_len: len });
        self.count += 1;
        Ok(())
    }
}
