//! The interface's own memory, which it shares with the back end: one sealed memfd.
//!
//! ```text
//! ring 0 | ring 1 | ...                 descriptor table, available and used ring of each
//! pair 0: receive buffers | indirect tables | transmit segments
//! pair 1: ...
//! ```

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use weir_guestmem::{GuestMemory, RegionSpec, Slice};
use weir_ring::{Addresses, area_sizes};
use weir_vhost_user::MemoryRegion;

use crate::error::VifError;

/// Guest-physical address of the memory. Not 0, so that a buffer address which was forgotten is
/// not one of ours.
const GUEST_BASE: u64 = 0x1_0000_0000;
/// "User address" of the memory: only a name that ring addresses are relative to, and different
/// from the guest address so that the two cannot be mistaken for each other.
const USER_BASE: u64 = 0x7000_0000_0000;

const PAGE: u64 = 4096;
const CACHE_LINE: u64 = 64;

/// Equal pieces of the memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slots {
    base: u64,
    stride: u64,
    bytes: u32,
    count: u32,
}

impl Slots {
    /// Guest-physical address of a slot.
    pub(crate) fn address(&self, slot: u32) -> u64 {
        self.base + u64::from(slot) * self.stride
    }

    /// Bytes of each slot.
    pub(crate) fn bytes(&self) -> u32 {
        self.bytes
    }

    pub(crate) fn count(&self) -> u32 {
        self.count
    }
}

/// Places things in memory that does not exist yet.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    len: u64,
}

impl Plan {
    fn reserve(&mut self, bytes: u64, align: u64) -> u64 {
        let at = self.len.next_multiple_of(align);
        self.len = at + bytes;
        at
    }

    /// A ring of `size` entries, at user addresses.
    pub(crate) fn ring(&mut self, size: u16) -> Addresses {
        let [descriptor, driver, device] =
            area_sizes(size).map(|bytes| USER_BASE + self.reserve(bytes as u64, PAGE));
        Addresses { descriptor, driver, device }
    }

    /// `count` slots of `bytes`.
    pub(crate) fn slots(&mut self, bytes: u32, count: u32) -> Slots {
        // An odd number of cache lines: slots that begin at multiples of a power of two would
        // share few sets of the cache, and small frames use only the beginning of theirs.
        let stride = (u64::from(bytes).div_ceil(CACHE_LINE) | 1) * CACHE_LINE;
        let base = GUEST_BASE + self.reserve(stride * u64::from(count), PAGE);
        Slots { base, stride, bytes, count }
    }

    /// Makes the memory: zeroed, and touched nowhere.
    pub(crate) fn build(self) -> Result<SharedMemory, VifError> {
        let size = self.len.next_multiple_of(PAGE);
        let os = |call| move |errno: rustix::io::Errno| VifError::Os { call, source: errno.into() };
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = memfd_create("weir-vif", flags).map_err(os("memfd_create"))?;
        ftruncate(&fd, size).map_err(os("ftruncate"))?;
        // The back end need not fear that the memory shrinks under it.
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fcntl_add_seals(&fd, seals).map_err(os("fcntl(F_ADD_SEALS)"))?;
        let file = File::from(fd);
        let spec =
            RegionSpec { guest_address: GUEST_BASE, size, user_address: USER_BASE, mmap_offset: 0 };
        let mut memory = GuestMemory::default();
        memory.add(spec, &file)?;
        Ok(SharedMemory { file, size, memory: Arc::new(memory) })
    }
}

/// The memory, mapped here and ready to be shared.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    file: File,
    size: u64,
    pub(crate) memory: Arc<GuestMemory>,
}

impl SharedMemory {
    pub(crate) fn region(&self) -> MemoryRegion {
        MemoryRegion {
            guest_address: GUEST_BASE,
            size: self.size,
            user_address: USER_BASE,
            mmap_offset: 0,
        }
    }

    /// Behind its last guest address.
    pub(crate) fn end(&self) -> u64 {
        GUEST_BASE + self.size
    }

    /// The guest address of what has a user address, as rings do.
    pub(crate) fn guest_address(&self, user_address: u64) -> u64 {
        user_address - USER_BASE + GUEST_BASE
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// `len` bytes at a place that a [`Plan`] made.
///
/// # Panics
/// If the place is outside the memory, which no plan gives.
#[inline]
pub(crate) fn own(memory: &GuestMemory, address: u64, len: u32) -> Slice<'_> {
    match memory.slice(address, len) {
        Some(slice) => slice,
        None => panic!("{len} bytes at {address:#x} are not in the interface's own memory"),
    }
}
