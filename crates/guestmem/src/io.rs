//! Reading from a file descriptor into foreign memory.
//!
//! The kernel takes addresses, so no reference into guest memory is needed, unlike with `std`'s
//! `IoSliceMut`.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::slice::Slice;

/// Reads once into `into`. Returns the number of bytes.
pub fn read(fd: BorrowedFd<'_>, into: &Slice<'_>) -> io::Result<usize> {
    // SAFETY: the slice is memory that is writable during the call.
    let read = unsafe { libc::read(fd.as_raw_fd(), into.as_ptr().cast(), into.len()) };
    usize::try_from(read).map_err(|_| io::Error::last_os_error())
}
