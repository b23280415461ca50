//! Replacement for memory that a front end took away.
//!
//! The replacement must be available without address space, private memory, or memory that the kernel has to commit. A
//! shared mapping of a file needs none of these (mm/mmap.c `may_expand_vm`, `accountable_mapping`), and takes over the
//! addresses of the replaced mapping.
//!
//! Two files, made in advance, have a part for each mapping, so no guest reads what another one wrote:
//! ```text
//! sparse   as long as the mapping may be    reads as zero; a touched page is allocated
//! last     one page, made in advance        for each place where no page can be allocated either
//! ```
//! Few pages are touched: the port stops at the end of the burst.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::OnceLock;

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use weir_limits::{MEM_REGIONS_TOTAL_MAX, MEMORY_MAX_MAX};

/// Longest mapping, since a table's bytes count in whole pages.
const PART_LEN: u64 = MEMORY_MAX_MAX;
const FILE_LEN: u64 = PART_LEN * MEM_REGIONS_TOTAL_MAX as u64;
const _: () = assert!(FILE_LEN < i64::MAX as u64 && PART_LEN.is_power_of_two());

/// The two files of spare memory.
pub(crate) struct Spare {
    pub(crate) sparse: OwnedFd,
    last: OwnedFd,
}

static SPARE: OnceLock<Spare> = OnceLock::new();

impl Spare {
    /// Returns the files, made at the first call.
    pub(crate) fn open() -> io::Result<&'static Self> {
        if SPARE.get().is_none() {
            let sparse = memfd_create("weir-spare", MemfdFlags::CLOEXEC)?;
            ftruncate(&sparse, FILE_LEN)?;
            let last = memfd_create("weir-spare-last", MemfdFlags::CLOEXEC)?;
            // The second of two concurrent calls closes its own files.
            let _ = SPARE.set(Self { sparse, last });
        }
        SPARE.get().ok_or_else(|| io::ErrorKind::Other.into())
    }

    /// Returns the files, for the handler: allocates nothing, takes no lock.
    pub(crate) fn opened() -> Option<&'static Self> {
        SPARE.get()
    }

    /// Prepares the part of mapping `number`.
    pub(crate) fn prepare(&self, number: usize) -> io::Result<()> {
        let page = page_len();
        Ok(fallocate(&self.last, FallocateFlags::empty(), number as u64 * page, page)?)
    }

    /// Wipes the used part of mapping `number`.
    pub(crate) fn wipe(&self, number: usize) -> io::Result<()> {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&self.sparse, hole, number as u64 * PART_LEN, PART_LEN)?;
        let page = page_len();
        Ok(fallocate(&self.last, hole, number as u64 * page, page)?)
    }

    /// Maps the sparse part of mapping `number` over it. Async-signal-safe.
    ///
    /// # Safety
    /// `len` bytes from `base` on must be a whole mapping, or whole pages of one, accessed only
    /// through pointers that tolerate any change.
    pub(crate) unsafe fn cover(&self, number: usize, base: usize, len: usize) -> bool {
        let offset = number as u64 * PART_LEN;
        // SAFETY: the caller's promise.
        len as u64 <= PART_LEN && unsafe { map_over(&self.sparse, offset, base, len) }
    }

    /// Does the same as [`cover`](Self::cover) with the page made in advance, for the page at
    /// `address`.
    ///
    /// # Safety
    /// As for [`cover`](Self::cover); the mapping there must have pages of the usual size.
    pub(crate) unsafe fn cover_page(&self, number: usize, address: usize) -> bool {
        let page = page_len();
        let base = address & !(page as usize - 1);
        // SAFETY: the caller's promise.
        unsafe { map_over(&self.last, number as u64 * page, base, page as usize) }
    }
}

/// # Safety
/// As for [`Spare::cover`].
unsafe fn map_over(file: &OwnedFd, offset: u64, base: usize, len: usize) -> bool {
    let start = base as *mut libc::c_void;
    // SAFETY: mmap(2) and madvise(2) are plain system calls, safe in a handler; the caller says that these
    // addresses may be mapped again.
    unsafe {
        let mapped = libc::mmap(
            start,
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE,
            file.as_raw_fd(),
            offset as libc::off_t, // FILE_LEN fits
        );
        if mapped == libc::MAP_FAILED {
            return false;
        }
        libc::madvise(start, len, libc::MADV_DONTDUMP);
    }
    true
}

fn page_len() -> u64 {
    rustix::param::page_size() as u64
}
