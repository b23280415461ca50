//! A guest's memory: a file that both weir and this process map.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    ptr::NonNull,
    sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering},
};

use rustix::{
    fs::{MemfdFlags, ftruncate, memfd_create},
    mm::{MapFlags, ProtFlags, mmap, munmap},
};

use super::Strike;

/// A mapped memfd. Every access is checked and atomic, so that several threads may write while weir reads.
#[derive(Debug)]
pub struct Memory {
    file: OwnedFd,
    map: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to this value, and is accessed by atomics only.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

macro_rules! setters {
    ($($store:ident $atomic:ident $int:ident)+) => { $(
        /// Stores a number.
        pub fn $store(&self, at: usize, value: $int) {
            // SAFETY: `place` has checked bounds and alignment; the memory is mapped for as long as `self`.
            let place = unsafe { &*self.place(at, size_of::<$int>()).cast::<$atomic>() };
            place.store(value, Ordering::SeqCst);
        }
    )+ };
}

impl Memory {
    /// A memory of `len` zero bytes in its own file.
    pub fn new(len: usize) -> Strike<Self> {
        let file = memfd(len as u64)?;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address that the kernel chooses.
        let map = unsafe { mmap(std::ptr::null_mut(), len, protection, flags, &file, 0)? };
        let map = NonNull::new(map.cast()).ok_or(rustix::io::Errno::NOMEM)?;
        Ok(Self { file, map, len })
    }

    /// The file. A caller who truncates it must not access the memory any more.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The size in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    fn place(&self, at: usize, size: usize) -> *mut u8 {
        let end = at.checked_add(size).filter(|end| *end <= self.len);
        assert!(
            end.is_some() && at.is_multiple_of(size),
            "{size} bytes at {at:#x} of {:#x}",
            self.len
        );
        // SAFETY: within the mapping.
        unsafe { self.map.as_ptr().add(at) }
    }

    setters! {
        set_u8 AtomicU8 u8
        set_u16 AtomicU16 u16
        set_u32 AtomicU32 u32
        set_u64 AtomicU64 u64
    }

    /// Loads a number.
    pub fn u16_at(&self, at: usize) -> u16 {
        // SAFETY: as in `setters`.
        let place = unsafe { &*self.place(at, 2).cast::<AtomicU16>() };
        place.load(Ordering::SeqCst)
    }

    /// Stores bytes one by one.
    pub fn set(&self, at: usize, bytes: &[u8]) {
        for (i, byte) in bytes.iter().enumerate() {
            self.set_u8(at + i, *byte);
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, which nobody refers to any more.
        let _ = unsafe { munmap(self.map.as_ptr().cast(), self.len) };
    }
}

/// A file of zeros in memory.
pub fn memfd(len: u64) -> Strike<OwnedFd> {
    let file = memfd_create("attack", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, len)?;
    Ok(file)
}
