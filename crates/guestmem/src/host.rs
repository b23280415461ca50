//! weir's own memory in the shape of a guest's: uplinks read frames into it, from file descriptors.
//!
//! The kernel takes addresses, so no reference into guest memory is needed, unlike with `std`'s `IoSliceMut`.

use std::cell::UnsafeCell;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use crate::slice::Slice;

/// A fixed buffer that hands out [`Slice`]s, so that frames from uplinks and from guests go the
/// same way.
pub struct HostBuffer {
    bytes: Box<[UnsafeCell<u8>]>,
}

// SAFETY: the bytes are only accessed through `Slice`, whose accesses tolerate concurrent ones.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    /// Allocates a zeroed buffer of `len` bytes. For a large one the kernel gives memory as it is
    /// used.
    pub fn new(len: usize) -> Self {
        let zeroed = Box::into_raw(vec![0_u8; len].into_boxed_slice());
        // SAFETY: it comes from a box, and `UnsafeCell<u8>` has the layout of `u8`.
        Self { bytes: unsafe { Box::from_raw(zeroed as *mut [UnsafeCell<u8>]) } }
    }

    /// Returns `len` bytes at `at`, if they are in the buffer.
    #[inline]
    pub fn slice(&self, at: usize, len: usize) -> Option<Slice<'_>> {
        let cells = self.bytes.get(at..at.checked_add(len)?)?;
        let start = NonNull::from(cells).cast::<u8>();
        // SAFETY: `cells` is in the buffer, which lives as long as the borrow of self and is
        // writable through `UnsafeCell`.
        Some(unsafe { Slice::new(start, len) })
    }

    /// Returns the length (bytes).
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns whether the buffer is empty.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

/// Reads once into `into`. Returns the number of bytes.
pub fn read(fd: BorrowedFd<'_>, into: &Slice<'_>) -> io::Result<usize> {
    // SAFETY: the slice is memory that is writable during the call.
    let read = unsafe { libc::read(fd.as_raw_fd(), into.as_ptr().cast(), into.len()) };
    usize::try_from(read).map_err(|_| io::Error::last_os_error())
}
