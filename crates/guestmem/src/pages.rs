//! Whole pages of weir's own: what the kernel is given to put packets into.

use std::io;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::slice::Slice;

/// Zeroed pages that hand out [`Slice`]s. They have a mapping of their own: the kernel may hold on to them for a
/// while after the unmapping, and its late writes then reach nobody, unlike writes into an allocator's memory.
pub struct HostPages {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the bytes are only accessed through `Slice`, whose accesses tolerate concurrent ones.
unsafe impl Send for HostPages {}
// SAFETY: as above.
unsafe impl Sync for HostPages {}

impl HostPages {
    /// At least `len` bytes.
    ///
    /// # Errors
    /// There is no memory, or `len` is 0.
    pub fn new(len: usize) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let start =
            unsafe { mmap_anonymous(std::ptr::null_mut(), len, access, MapFlags::PRIVATE) }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let pages = Self { start, len };
        // Frames of guests are in there.
        // SAFETY: advice about this mapping, which changes none of its bytes.
        unsafe { madvise(start.as_ptr().cast(), len, Advice::LinuxDontDump) }?;
        Ok(pages)
    }

    /// `len` bytes at `at`, if they are in these pages.
    #[inline]
    pub fn slice(&self, at: usize, len: usize) -> Option<Slice<'_>> {
        if at.checked_add(len)? > self.len {
            return None;
        }
        // SAFETY: `at + len` bytes are mapped for reading and writing (just checked) for as long as
        // the borrow of self.
        Some(unsafe { Slice::new(self.start.add(at), len) })
    }

    /// For system calls that take an address: where the bytes begin, at the start of a page.
    pub fn address(&self) -> usize {
        self.start.as_ptr() as usize
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// No bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for HostPages {
    fn drop(&mut self) {
        // SAFETY: this mapping is the one made in `new`; every slice of it has borrowed self and is
        // gone. It fails only for arguments that name no mapping.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_aligned_zeroed_and_bounded() {
        let pages = HostPages::new(8192).unwrap();
        assert!(pages.address().is_multiple_of(4096));
        let end = pages.slice(8190, 2).unwrap();
        assert_eq!(end.read_array::<2>(), Some([0, 0]));
        end.write(&[1, 2]);
        assert_eq!(pages.slice(8191, 1).unwrap().read_array::<1>(), Some([2]));
        assert!(pages.slice(8191, 2).is_none() && pages.slice(usize::MAX, 2).is_none());
        assert!(HostPages::new(0).is_err());
    }
}
