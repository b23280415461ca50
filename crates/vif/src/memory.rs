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

/// Guest-physical address of the memory. It is not 0, so that an unset buffer address lies outside.
const GUEST_BASE: u64 = 0x1_0000_0000;
/// "User address" of the memory, only a base for ring addresses. It differs from the guest address,
/// so that a mix-up of the two fails.
const USER_BASE: u64 = 0x7000_0000_0000;
/// Both addresses of the same memory as a second region, below 4 GiB. There it is at most as long as the first, so that
/// the first is the largest region.
const LOW_GUEST_BASE: u64 = 0x1000_0000;
const LOW_USER_BASE: u64 = 0x6000_0000_0000;

const PAGE: u64 = 4096;
const CACHE_LINE: u64 = 64;

/// Pieces of the memory, of equal size.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slots {
    base: u64,
    stride: u64,
    /// Size of each even slot, and of each odd one.
    bytes: [u32; 2],
    count: u32,
    /// The distance by which odd slots lie below their place in the first region.
    low: u64,
}

impl Slots {
    /// Returns the guest-physical address of a slot.
    pub(crate) fn address(&self, slot: u32) -> u64 {
        let low = if slot.is_multiple_of(2) { 0 } else { self.low };
        self.base + u64::from(slot) * self.stride - low
    }

    /// Returns the size of a slot (bytes).
    pub(crate) fn bytes(&self, slot: u32) -> u32 {
        self.bytes[(slot % 2) as usize]
    }

    pub(crate) fn count(&self) -> u32 {
        self.count
    }
}

/// The layout of a memory that does not exist yet.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    len: u64,
    has_low: bool,
}

impl Plan {
    /// A plan of a memory that is shared once, or a second time below 4 GiB.
    pub(crate) fn new(has_low: bool) -> Self {
        Self { len: 0, has_low }
    }

    fn reserve(&mut self, bytes: u64, align: u64) -> u64 {
        let at = self.len.next_multiple_of(align);
        self.len = at + bytes;
        at
    }

    /// Places a ring of `size` entries, at user addresses.
    pub(crate) fn ring(&mut self, size: u16) -> Addresses {
        let [descriptor, driver, device] =
            area_sizes(size).map(|bytes| USER_BASE + self.reserve(bytes as u64, PAGE));
        Addresses { descriptor, driver, device }
    }

    /// Places `count` slots of `bytes`, all even ones of the first size and all odd ones of the second.
    pub(crate) fn slots(&mut self, bytes: [u32; 2], count: u32) -> Slots {
        // An odd number of cache lines: slots at multiples of a power of two would share few cache
        // sets, and small frames use only the beginning of their slot.
        let most = u64::from(bytes[0].max(bytes[1]));
        let stride = (most.div_ceil(CACHE_LINE) | 1) * CACHE_LINE;
        let base = GUEST_BASE + self.reserve(stride * u64::from(count), PAGE);
        let low = if self.has_low { GUEST_BASE - LOW_GUEST_BASE } else { 0 };
        Slots { base, stride, bytes, count, low }
    }

    /// Allocates the memory, zeroed and not touched.
    pub(crate) fn build(self) -> Result<SharedMemory, VifError> {
        let size = self.len.next_multiple_of(PAGE);
        let os = |call| move |errno: rustix::io::Errno| VifError::Os { call, source: errno.into() };
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = memfd_create("weir-vif", flags).map_err(os("memfd_create"))?;
        ftruncate(&fd, size).map_err(os("ftruncate"))?;
        // The seals assure the back end that the memory does not shrink.
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fcntl_add_seals(&fd, seals).map_err(os("fcntl(F_ADD_SEALS)"))?;
        let file = File::from(fd);
        let mut regions = vec![region(GUEST_BASE, USER_BASE, size)];
        if self.has_low {
            regions.push(region(LOW_GUEST_BASE, LOW_USER_BASE, size));
        }
        let mut memory = GuestMemory::default();
        for &MemoryRegion { guest_address, size, user_address, mmap_offset } in &regions {
            memory.add(RegionSpec { guest_address, size, user_address, mmap_offset }, &file)?;
        }
        Ok(SharedMemory { file, size, regions, memory: Arc::new(memory) })
    }
}

fn region(guest_address: u64, user_address: u64, size: u64) -> MemoryRegion {
    MemoryRegion { guest_address, size, user_address, mmap_offset: 0 }
}

/// The memory, mapped here and ready for sharing.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    file: File,
    size: u64,
    /// The regions that the back end gets, all of them in `file`.
    pub(crate) regions: Vec<MemoryRegion>,
    pub(crate) memory: Arc<GuestMemory>,
}

impl SharedMemory {
    /// Returns the end of the guest addresses, exclusive.
    pub(crate) fn end(&self) -> u64 {
        GUEST_BASE + self.size
    }

    /// Translates a user address, as rings have it, into a guest address.
    pub(crate) fn guest_address(&self, user_address: u64) -> u64 {
        user_address - USER_BASE + GUEST_BASE
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Returns `len` bytes at an address from a [`Plan`].
///
/// # Panics
/// If the range is outside the memory, which no plan produces.
#[inline]
pub(crate) fn own(memory: &GuestMemory, address: u64, len: u32) -> Slice<'_> {
    match memory.slice(address, len) {
        Some(slice) => slice,
        None => panic!("{len} bytes at {address:#x} are not in the interface's own memory"),
    }
}
