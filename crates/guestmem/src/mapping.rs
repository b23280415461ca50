//! One shared region: mapped, checked, and unmapped.

use std::fs::File;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{FileType, fstat, fstatfs};
use rustix::mm::{
    Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap, mmap_anonymous, mremap_fixed, munmap,
};
use weir_limits::IOTLB_PIECES_MAX;

use crate::account::{Account, Bound, Charge};
use crate::fault::Registration;
use crate::file::{Refused, judge};
use crate::reaper;

/// A region as a front end announces it (vhost-user `SET_MEM_TABLE`, `ADD_MEM_REG`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionSpec {
    /// Guest-physical address of the first byte.
    pub guest_address: u64,
    /// Length (bytes).
    pub size: u64,
    /// Address of the first byte in the front end's own process; ring addresses use this address
    /// space.
    pub user_address: u64,
    /// Offset of the region in the file.
    pub mmap_offset: u64,
}

/// Reason why a region was refused.
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
    #[error("region at guest address {guest_address:#x}: its descriptor is not a memory file")]
    NotAFile {
        /// Guest-physical address.
        guest_address: u64,
    },
    /// The file's system is not allowed: a server in user space could make an access to the memory
    /// wait for as long as it likes.
    #[error(
        "region at guest address {guest_address:#x} is on a file system that is not allowed ({}); guest memory must be \
         on tmpfs (memfd) or hugetlbfs",
        file_system.as_deref().unwrap_or("unknown")
    )]
    FileSystem {
        /// Guest-physical address.
        guest_address: u64,
        /// Name of the file system, if known.
        file_system: Option<String>,
    },
    /// The region exceeds a bound.
    #[error("region at guest address {guest_address:#x}: {bound}")]
    Bound {
        /// Guest-physical address.
        guest_address: u64,
        /// The bound.
        bound: Bound,
    },
    /// `fstat`, `mmap`, or the preparation for the end of the file failed.
    #[error("region at guest address {guest_address:#x}: {call} failed: {source}")]
    Os {
        /// Guest-physical address.
        guest_address: u64,
        /// The system call.
        call: &'static str,
        /// The error of the system call.
        source: std::io::Error,
    },
}

/// Reason why pieces of memory cannot be mapped one after the other.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// There are more than [`IOTLB_PIECES_MAX`].
    #[error("an area of it has more than {IOTLB_PIECES_MAX} pieces")]
    TooMany,
    /// Only whole pages of this machine can be mapped.
    #[error("a piece begins or ends within a page of {} bytes", rustix::param::page_size())]
    WithinPage,
    /// No part of a huge page can be mapped.
    #[error("the VM's memory has huge pages (hugetlbfs)")]
    HugePages,
    /// A piece is in no region.
    #[error("a piece is not shared any more")]
    NotShared,
    /// The pieces exceed a bound.
    #[error(transparent)]
    Bound(#[from] Bound),
    /// A system call failed.
    #[error("{call} failed: {source}")]
    Os {
        /// The system call.
        call: &'static str,
        /// Its error.
        source: std::io::Error,
    },
}

impl RegionSpec {
    /// Checks addresses and sizes: all ends must fit in 64 bits.
    pub(crate) fn check(&self) -> Result<(), MapError> {
        let Self { guest_address, size, user_address, mmap_offset } = *self;
        if size == 0 {
            return Err(MapError::Empty { guest_address });
        }
        let ends = [guest_address, user_address, mmap_offset].map(|at| at.checked_add(size));
        match ends.contains(&None) {
            true => Err(MapError::Wraps { guest_address, size }),
            false => Ok(()),
        }
    }
}

/// A mapped region. Unmapped when dropped.
pub(crate) struct Mapping {
    pub(crate) spec: RegionSpec,
    /// First byte of the region (not of the mapping, which begins at a page boundary).
    start: NonNull<u8>,
    /// Device and inode of the region's file.
    file: [u64; 2],
    /// The file is one of hugetlbfs.
    has_huge_pages: bool,
    /// The mapping, present until the drop.
    held: Option<Held>,
}

// SAFETY: the mapping is owned, never moves, and is only accessed through `Slice`, whose accesses
// are raw and tolerate concurrent writers (the guest is one).
unsafe impl Send for Mapping {}
// SAFETY: as above; no method hands out a reference into the memory.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a region that was [checked](RegionSpec::check), for a table that has `others` bytes
    /// already.
    pub(crate) fn new(
        spec: RegionSpec,
        file: &File,
        account: &Arc<Account>,
        others: u64,
    ) -> Result<Self, MapError> {
        let RegionSpec { guest_address, mmap_offset, .. } = spec;
        let extent = Extent::of(&spec, file, account.file_systems())?;
        let os = |call, source| MapError::Os { guest_address, call, source };
        let charge = account
            .charge(extent.len as u64, others)
            .map_err(|bound| MapError::Bound { guest_address, bound })?;
        reaper::start().map_err(|e| os("thread", e))?;
        let registration = Registration::new().map_err(|e| os("memfd", e))?;
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                extent.len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
                file,
                extent.offset,
            )
        }
        .map_err(|e| os("mmap", e.into()))?;
        let held = Held { base, len: extent.len, registration, charge };
        held.registration.guard(base as usize, extent.len);
        // A core dump must not contain guests' memory. SAFETY: advice about this mapping, which
        // changes none of its bytes.
        unsafe { madvise(base, extent.len, Advice::LinuxDontDump) }
            .map_err(|e| os("madvise", e.into()))?;
        let lead = (mmap_offset - extent.offset) as usize;
        // SAFETY: lead < len: the region has at least one byte after it.
        let start = unsafe { base.cast::<u8>().add(lead) };
        let Some(start) = NonNull::new(start) else {
            unreachable!("mmap without MAP_FIXED never returns null")
        };
        let Extent { file, has_huge_pages, .. } = extent;
        Ok(Self { spec, start, file, has_huge_pages, held: Some(held) })
    }

    /// Maps parts of other mappings a second time, one after the other: of each its mapping, and its offset and length
    /// there. The result is at `user_address`.
    pub(crate) fn join(
        user_address: u64,
        parts: &[(&Arc<Self>, u64, u64)],
        account: &Arc<Account>,
    ) -> Result<Self, JoinError> {
        if parts.len() > IOTLB_PIECES_MAX {
            return Err(JoinError::TooMany);
        }
        if parts.iter().any(|(mapping, ..)| mapping.has_huge_pages) {
            return Err(JoinError::HugePages);
        }
        let page = rustix::param::page_size();
        // Whole pages: where they are mapped, where they will be, and their length.
        let (mut pages, mut lead, mut end) = (Vec::new(), 0, 0);
        for (nth, (mapping, offset, len)) in parts.iter().enumerate() {
            let start = mapping.at(*offset, *len).ok_or(JoinError::NotShared)?;
            let within = start.addr().get() % page;
            match nth {
                0 => (lead, end) = (within, within),
                _ if within != 0 || end % page != 0 => return Err(JoinError::WithinPage),
                _ => {}
            }
            // The page of the first byte is mapped, too.
            let first = start.as_ptr().wrapping_sub(within);
            let len = *len as usize; // mapped
            pages.push((first, end - within, (within + len).next_multiple_of(page)));
            end += len;
        }
        let Some((first, ..)) = parts.first() else { return Err(JoinError::NotShared) };
        let os = |call, source| JoinError::Os { call, source };
        let len = end.next_multiple_of(page);
        let charge = account.charge_pieces(parts.len())?;
        let registration = Registration::new().map_err(|e| os("memfd", e))?;
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing.
        let base = unsafe {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::empty(), flags)
        }
        .map_err(|e| os("mmap", e.into()))?;
        let held = Held { base, len, registration, charge };
        for (from, to, len) in pages {
            // An old length of 0 maps the same pages of the file a second time (mremap(2)).
            // SAFETY: `len` bytes from `from` on are whole pages of a shared mapping that lives, of pages of the usual
            // size. They go to a part of the mapping above, which nobody else knows.
            unsafe { mremap_fixed(from.cast(), 0, len, MremapFlags::MAYMOVE, base.byte_add(to)) }
                .map_err(|e| os("mremap", e.into()))?;
        }
        // Beside spare memory lies that of other guests.
        if parts.iter().any(|(mapping, ..)| mapping.poisoned()) {
            return Err(JoinError::NotShared);
        }
        held.registration.guard(base as usize, len);
        // SAFETY: lead < len.
        let start = unsafe { base.cast::<u8>().add(lead) };
        let Some(start) = NonNull::new(start) else {
            unreachable!("mmap without MAP_FIXED never returns null")
        };
        let size = (end - lead) as u64;
        let spec = RegionSpec { guest_address: 0, size, user_address, mmap_offset: 0 };
        Ok(Self { spec, start, file: first.file, has_huge_pages: false, held: Some(held) })
    }

    /// Returns the number of mapped bytes, in whole pages.
    pub(crate) fn mapped_bytes(&self) -> u64 {
        self.held.as_ref().map_or(0, |held| held.len as u64)
    }

    /// Returns device and inode of the region's file.
    pub(crate) fn file(&self) -> [u64; 2] {
        self.file
    }

    /// Returns the address of the region's first byte.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Returns the address of the byte at `offset`, if `len` bytes from there are in the region.
    #[inline]
    pub(crate) fn at(&self, offset: u64, len: u64) -> Option<NonNull<u8>> {
        if offset.checked_add(len)? > self.spec.size {
            return None;
        }
        // SAFETY: offset <= size, and `size` bytes from `start` are mapped for as long as self lives.
        Some(unsafe { self.start.add(offset as usize) })
    }

    /// Returns whether the file was truncated below the region's end, and an access noticed.
    pub(crate) fn poisoned(&self) -> bool {
        self.held.as_ref().is_some_and(|held| held.registration.poisoned())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            reaper::unmap(held);
        }
    }
}

/// Smallest number of bytes unmapped at once, which takes some tens of microseconds if every page was
/// touched.
const UNMAP_LEN_MIN: usize = 2 << 20;
/// Most bytes unmapped at once, if few pages were touched: a sparse file may have a terabyte.
const UNMAP_LEN_MAX: usize = 64 << 20;
/// Time after which the thread yields to threads that wait for its CPU. The kernel would let them
/// wait for some milliseconds.
const UNMAP_TURN: Duration = Duration::from_micros(100);

/// True if the process is about to exit, which unmaps everything.
static LEFT_TO_EXIT: AtomicBool = AtomicBool::new(false);

/// From now on, memory stays mapped until the process exits, which must be soon: to unmap what a hundred front ends may
/// share takes a second.
pub fn leave_memory_to_exit() {
    LEFT_TO_EXIT.store(true, Ordering::Relaxed);
}

/// The mapped part of a file.
struct Extent {
    /// Offset of the part's beginning in the file.
    offset: u64,
    len: usize,
    /// Device and inode of the file.
    file: [u64; 2],
    has_huge_pages: bool,
}

/// The number of hugetlbfs among file systems (statfs(2)).
const HUGETLBFS: i64 = 0x9584_58f6;

impl Extent {
    /// Returns the part of its file that a region needs, in whole pages of that file.
    fn of(spec: &RegionSpec, file: &File, file_systems: &[String]) -> Result<Self, MapError> {
        let RegionSpec { guest_address, size, mmap_offset, .. } = *spec;
        let wraps = || MapError::Wraps { guest_address, size };
        let needed = mmap_offset.checked_add(size).ok_or_else(wraps)?;
        judge(file, file_systems).map_err(|Refused { file_system }| MapError::FileSystem {
            guest_address,
            file_system,
        })?;
        let stat = fstat(file.as_fd()).map_err(|source| MapError::Os {
            guest_address,
            call: "fstat",
            source: source.into(),
        })?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(MapError::NotAFile { guest_address });
        }
        let file_len = u64::try_from(stat.st_size).unwrap_or(0);
        if file_len < needed {
            return Err(MapError::FileTooShort { guest_address, needed, file: file_len });
        }
        // mmap requires offset and length in units of the file's page size. For hugetlbfs that is
        // the huge page, which is also the file's block size.
        let page = u64::try_from(stat.st_blksize)
            .ok()
            .filter(|size| size.is_power_of_two())
            .unwrap_or(0)
            .max(rustix::param::page_size() as u64);
        // A file of tmpfs may state the length of a huge page, too, and is mapped in any pages.
        let has_huge_pages = page > rustix::param::page_size() as u64
            && fstatfs(file.as_fd()).map_or(true, |system| system.f_type == HUGETLBFS);
        let offset = mmap_offset & !(page - 1);
        let end = needed.checked_next_multiple_of(page).ok_or_else(wraps)?;
        let len = usize::try_from(end - offset).map_err(|_| wraps())?;
        Ok(Self { offset, len, file: [stat.st_dev, stat.st_ino], has_huge_pages })
    }
}

/// Mapped addresses, with the charge for them. Unmapped when dropped.
pub(crate) struct Held {
    base: *mut libc::c_void,
    len: usize,
    registration: Registration,
    /// The charge is released last.
    pub(crate) charge: Charge,
}

// SAFETY: an address range that this alone owns; any thread may unmap it.
unsafe impl Send for Held {}

impl Drop for Held {
    fn drop(&mut self) {
        // First, so that the handler never touches an address range that has a new owner.
        self.registration.retire();
        let (mut start, mut len, mut since) = (0, UNMAP_LEN_MIN, Instant::now());
        while start < self.len && !LEFT_TO_EXIT.load(Ordering::Relaxed) {
            let (piece, began) = (len.min(self.len - start), Instant::now());
            // SAFETY: made by mmap in `Mapping` with this length; every `Slice` and `Window` borrows or
            // holds the `GuestMemory` that owned this mapping, so none is left.
            // A failure leaves an unused mapping behind.
            let unmap = |len| unsafe { munmap(self.base.byte_add(start), len) };
            // Pages may be larger than a piece (hugetlbfs). Then all is unmapped at once.
            if unmap(piece).is_err() {
                let _ = unmap(self.len - start);
                break;
            }
            start += piece;
            if began.elapsed() < UNMAP_TURN / 4 {
                len = UNMAP_LEN_MAX.min(2 * len);
            } else if began.elapsed() > UNMAP_TURN {
                len = UNMAP_LEN_MIN.max(len / 2);
            }
            if since.elapsed() > UNMAP_TURN {
                rustix::thread::sched_yield();
                since = Instant::now();
            }
        }
    }
}
