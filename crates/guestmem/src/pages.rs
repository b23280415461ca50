//! Whole pages with their own mapping: weir's, for packets from the kernel, or another process's,
//! through a device file or a memfd.

use std::ffi::c_void;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::slice::Slice;

const ACCESS: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// Whole pages that hand out [`Slice`]s. The kernel, another domain or another process may write to
/// them at any time. They have a mapping of their own and are unmapped when dropped. The kernel may
/// still access the pages for a while after that. With memory of an allocator, the kernel could then
/// reach memory that has been reused.
///
/// The pages must stay backed for as long as they are mapped. Xen ensures it for grants (a mapped
/// page is not given to anybody else, even if its domain dies); a file must not be truncated.
pub struct MappedPages {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the bytes are only accessed through `Slice` and atomics, which tolerate concurrent writers.
unsafe impl Send for MappedPages {}
// SAFETY: as above.
unsafe impl Sync for MappedPages {}

impl MappedPages {
    /// Allocates at least `len` zeroed bytes of weir's own.
    ///
    /// # Errors
    /// There is no memory, or `len` is 0.
    pub fn new(len: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let start =
            unsafe { mmap_anonymous(std::ptr::null_mut(), len, ACCESS, MapFlags::PRIVATE) }?;
        let pages = Self::at(start, len)?;
        // The pages will contain guests' frames.
        pages.leave_out_of_dumps()?;
        Ok(pages)
    }

    /// Maps `len` bytes of `fd` from `offset` on, for reading and writing. Both are multiples of a
    /// page.
    ///
    /// # Errors
    /// The error of `mmap`; for a grant, Xen's refusal.
    pub fn map(fd: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let start =
            unsafe { mmap(std::ptr::null_mut(), len, ACCESS, MapFlags::SHARED, fd, offset) }?;
        let pages = Self::at(start, len)?;
        // A core dump must not contain guests' memory. The kernel may already leave out device
        // files.
        let _ = pages.leave_out_of_dumps();
        Ok(pages)
    }

    /// Maps the first page, and no other, as a write does. A read would map up to 16 pages that the file has in memory,
    /// and they would stay mapped. Does nothing on a kernel before Linux 5.14.
    pub fn bring_first(&self) {
        let len = rustix::param::page_size().min(self.len);
        // SAFETY: advice about this mapping, which changes none of its bytes.
        let _ = unsafe { madvise(self.start.as_ptr().cast(), len, Advice::LinuxPopulateWrite) };
    }

    /// Unmaps the pages of a file until they are next used. Their contents stay in the file. A page
    /// that belongs to weir itself would lose its contents.
    pub fn leave_to_file(&self) {
        // SAFETY: this mapping stays. Its bytes are those of the file, before and after.
        let _ = unsafe { madvise(self.start.as_ptr().cast(), self.len, Advice::LinuxDontNeed) };
    }

    /// Takes over a mapping of `len` bytes at `start`.
    fn at(start: *mut c_void, len: usize) -> io::Result<Self> {
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, len })
    }

    fn leave_out_of_dumps(&self) -> rustix::io::Result<()> {
        // SAFETY: advice about this mapping, which changes none of its bytes.
        unsafe { madvise(self.start.as_ptr().cast(), self.len, Advice::LinuxDontDump) }
    }

    /// Returns the length (bytes).
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the address and the length (bytes).
    #[cfg(not(loom))]
    pub(crate) fn span(&self) -> (NonNull<u8>, usize) {
        (self.start, self.len)
    }

    /// Returns the address of the first byte, at the start of a page, for system calls.
    pub fn address(&self) -> usize {
        self.start.as_ptr() as usize
    }

    /// Returns `len` bytes at `at`, if they are in these pages.
    #[inline]
    pub fn slice(&self, at: usize, len: usize) -> Option<Slice<'_>> {
        if at.checked_add(len)? > self.len {
            return None;
        }
        // SAFETY: `at + len` bytes are mapped for reading and writing (just checked) for as long as
        // the borrow of self.
        Some(unsafe { Slice::new(self.start.add(at), len) })
    }

    /// Returns the field at `at`. The caller ensures that `at` is a multiple of 4 and within the
    /// pages.
    #[inline]
    fn atomic(&self, at: usize) -> &AtomicU32 {
        let inside = at.checked_add(4).is_some_and(|end| end <= self.len);
        assert!(inside && at.is_multiple_of(4), "ring offset {at} of {}", self.len);
        // SAFETY: in bounds and aligned (just checked; pages begin at a multiple of their size),
        // mapped while self lives. An atomic is the one reference that may exist to memory which
        // others write.
        unsafe { AtomicU32::from_ptr(self.start.as_ptr().add(at).cast()) }
    }

    /// Reads a 32-bit field in the machine's byte order, which Xen's rings have. Later reads are
    /// not moved before it.
    #[inline]
    pub fn load_acquire(&self, at: usize) -> u32 {
        self.atomic(at).load(Ordering::Acquire)
    }

    /// Writes a 32-bit field in the machine's byte order. Earlier writes are not moved after it.
    #[inline]
    pub fn store_release(&self, at: usize, value: u32) {
        self.atomic(at).store(value, Ordering::Release);
    }
}

impl AsRef<Self> for MappedPages {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl Drop for MappedPages {
    fn drop(&mut self) {
        // SAFETY: this mapping is the one made in `new` or `map`; every slice of it has borrowed self and is
        // gone. It fails only for arguments that name no mapping.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;
    use crate::unused::tests::resident;

    #[test]
    fn pages_are_aligned_zeroed_and_bounded() {
        let pages = MappedPages::new(8192).unwrap();
        assert!(pages.address().is_multiple_of(4096));
        let end = pages.slice(8190, 2).unwrap();
        assert_eq!(end.read_array::<2>(), Some([0, 0]));
        end.write(&[1, 2]);
        assert_eq!(pages.slice(8191, 1).unwrap().read_array::<1>(), Some([2]));
        assert!(pages.slice(8191, 2).is_none() && pages.slice(usize::MAX, 2).is_none());
        assert!(MappedPages::new(0).is_err());
    }

    #[test]
    fn the_first_page_comes_in_alone_and_all_go_to_their_file() {
        let file = memfd_create("pages", MemfdFlags::CLOEXEC).unwrap();
        // All pages of the file are in memory.
        rustix::io::write(&file, &[7; 8 * 4096]).unwrap();
        for brings_first in [true, false] {
            let pages = MappedPages::map(file.as_fd(), 0, 8 * 4096).unwrap();
            if brings_first {
                pages.bring_first();
            }
            assert_eq!(pages.slice(0, 1).unwrap().read_array::<1>(), Some([7]));
            // The kernel maps some of the pages around, if not all.
            assert_eq!(resident(pages.address()) == 4096, brings_first);
            pages.slice(1, 1).unwrap().write(&[8]);
            pages.leave_to_file();
            assert_eq!(resident(pages.address()), 0);
            assert_eq!(pages.slice(0, 2).unwrap().read_array::<2>(), Some([7, 8]));
            pages.slice(1, 1).unwrap().write(&[7]);
        }
    }

    #[test]
    fn two_mappings_of_one_file_see_each_other_and_end_where_they_end() {
        let file = memfd_create("pages", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 8192).unwrap();
        let whole = MappedPages::map(file.as_fd(), 0, 8192).unwrap();
        let second = MappedPages::map(file.as_fd(), 4096, 4096).unwrap();
        whole.store_release(4096 + 8, 0x0102_0304);
        assert_eq!(second.load_acquire(8), 0x0102_0304);
        second.slice(4094, 2).unwrap().write(&[5, 6]);
        assert_eq!(whole.slice(8190, 2).unwrap().read_array(), Some([5, 6]));
        assert!(second.slice(4095, 2).is_none() && second.slice(usize::MAX, 2).is_none());
    }

    #[cfg(not(loom))]
    #[test]
    fn a_window_keeps_the_pages_that_it_is_over() {
        use std::sync::Arc;

        let file = memfd_create("pages", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 4096).unwrap();
        let other = MappedPages::map(file.as_fd(), 0, 4096).unwrap();
        let owner = Arc::new(MappedPages::map(file.as_fd(), 0, 4096).unwrap());
        let window = crate::Window::over(Arc::clone(&owner));
        assert_eq!((window.len(), Arc::strong_count(&owner)), (4096, 2));
        let weak = Arc::downgrade(&owner);
        drop(owner);
        window.store32_release(4092, 7_u32.to_le());
        assert_eq!(other.load_acquire(4092), 7);
        drop(window);
        assert!(weak.upgrade().is_none());
    }
}
