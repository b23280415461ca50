//! One shared region: mapped, checked, and unmapped.

use std::fs::File;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use rustix::fs::{FileType, fstat, fstatfs};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::fault::Registration;

/// `linux/magic.h`.
const FUSE_SUPER_MAGIC: i64 = 0x6573_5546;

/// A region as a front end announces it (vhost-user `SET_MEM_TABLE`, `ADD_MEM_REG`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionSpec {
    /// Guest-physical address of the first byte.
    pub guest_address: u64,
    /// Bytes.
    pub size: u64,
    /// Address of the first byte in the front end's own process; ring addresses are given so.
    pub user_address: u64,
    /// Where the region begins in the file.
    pub mmap_offset: u64,
}

/// Why a region was refused.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// `size` is 0.
    #[error("region at guest address {guest_address:#x} is empty")]
    Empty {
        /// Guest-physical address.
        guest_address: u64,
    },
    /// An address or offset plus `size` does not fit in 64 bits.
    #[error("region at guest address {guest_address:#x} of {size:#x} bytes ends beyond 2^64")]
    Wraps {
        /// Guest-physical address.
        guest_address: u64,
        /// Announced size, bytes.
        size: u64,
    },
    /// The file ends before the region does.
    #[error(
        "region at guest address {guest_address:#x} needs {needed:#x} bytes of its file, which has {file:#x}"
    )]
    FileTooShort {
        /// Guest-physical address.
        guest_address: u64,
        /// `mmap_offset + size`, bytes.
        needed: u64,
        /// Size of the file, bytes.
        file: u64,
    },
    /// The descriptor is not a regular file (memfd, hugetlbfs and tmpfs files are).
    #[error("region at guest address {guest_address:#x}: its file descriptor is no memory file")]
    NotAFile {
        /// Guest-physical address.
        guest_address: u64,
    },
    /// A file of a file system in user space: whoever serves that could make an access to the
    /// memory wait for as long as it likes.
    #[error("region at guest address {guest_address:#x} is in a FUSE file system")]
    Fuse {
        /// Guest-physical address.
        guest_address: u64,
    },
    /// `fstat` or `mmap` failed.
    #[error("region at guest address {guest_address:#x}: {call} failed: {source}")]
    Os {
        /// Guest-physical address.
        guest_address: u64,
        /// The system call.
        call: &'static str,
        /// Its error.
        source: std::io::Error,
    },
}

/// A mapped region. Unmapped when dropped.
pub(crate) struct Mapping {
    pub(crate) spec: RegionSpec,
    /// First byte of the region (not of the mapping, which begins at a page boundary).
    start: NonNull<u8>,
    map_base: *mut libc::c_void,
    map_len: usize,
    registration: Registration,
}

// SAFETY: the mapping is owned, never moves, and is only accessed through `Slice`, whose accesses
// are raw and tolerate concurrent writers (the guest is one).
unsafe impl Send for Mapping {}
// SAFETY: as above; no method hands out a reference into the memory.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(crate) fn new(spec: RegionSpec, file: &File) -> Result<Self, MapError> {
        let RegionSpec { guest_address, size, user_address, mmap_offset } = spec;
        if size == 0 {
            return Err(MapError::Empty { guest_address });
        }
        let wraps = || MapError::Wraps { guest_address, size };
        guest_address.checked_add(size).ok_or_else(wraps)?;
        user_address.checked_add(size).ok_or_else(wraps)?;
        let needed = mmap_offset.checked_add(size).ok_or_else(wraps)?;
        let os = |call, source: rustix::io::Errno| MapError::Os {
            guest_address,
            call,
            source: source.into(),
        };

        let stat = fstat(file.as_fd()).map_err(|e| os("fstat", e))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(MapError::NotAFile { guest_address });
        }
        if fstatfs(file.as_fd()).map_err(|e| os("fstatfs", e))?.f_type == FUSE_SUPER_MAGIC {
            return Err(MapError::Fuse { guest_address });
        }
        let file_len = u64::try_from(stat.st_size).unwrap_or(0);
        if file_len < needed {
            return Err(MapError::FileTooShort { guest_address, needed, file: file_len });
        }

        // mmap wants offset and length in units of the file's page size; for hugetlbfs that is
        // the huge page, which is also the file's block size.
        let page = u64::try_from(stat.st_blksize)
            .ok()
            .filter(|size| size.is_power_of_two())
            .unwrap_or(0)
            .max(rustix::param::page_size() as u64);
        let map_offset = mmap_offset & !(page - 1);
        let lead = (mmap_offset - map_offset) as usize;
        let map_len =
            usize::try_from((needed - map_offset).next_multiple_of(page)).map_err(|_| wraps())?;
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing.
        let map_base = unsafe {
            mmap(
                std::ptr::null_mut(),
                map_len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
                file,
                map_offset,
            )
        }
        .map_err(|e| os("mmap", e))?;
        // SAFETY: lead < map_len: the region has at least one byte after it.
        let start = unsafe { map_base.cast::<u8>().add(lead) };
        let Some(start) = NonNull::new(start) else {
            unreachable!("mmap without MAP_FIXED never returns null")
        };
        let registration = Registration::new(map_base as usize, map_len);
        Ok(Self { spec, start, map_base, map_len, registration })
    }

    /// Where the region's first byte is mapped.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Address of the byte `offset` bytes into the region, if `len` bytes from there are in it.
    #[inline]
    pub(crate) fn at(&self, offset: u64, len: u64) -> Option<NonNull<u8>> {
        if offset.checked_add(len)? > self.spec.size {
            return None;
        }
        // SAFETY: offset <= size, and `size` bytes from `start` are mapped for as long as self lives.
        Some(unsafe { self.start.add(offset as usize) })
    }

    /// The file was truncated below what the region needs, and an access noticed.
    pub(crate) fn poisoned(&self) -> bool {
        self.registration.poisoned()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // First, so that the handler never touches an address range that is somebody else's.
        self.registration.retire();
        // SAFETY: made by mmap in `new` with this length; every `Slice` and `Window` borrows or
        // holds the `GuestMemory` that owns this mapping, so none is left.
        // A failure leaves an unused mapping behind.
        let _ = unsafe { munmap(self.map_base, self.map_len) };
    }
}
