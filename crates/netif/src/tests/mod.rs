//! Front end and back end in one process over a memfd, in place of two domains.

mod ctrl;
mod hostile;
mod pair;
mod tx;

use std::fs::File;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use weir_guestmem::{GuestMemory, RegionSpec, Window};
use weir_limits::XEN_PAGE_LEN;

use crate::*;

/// A page for a ring, which can be mapped repeatedly.
pub(crate) struct Page {
    memory: Arc<GuestMemory>,
}

impl Page {
    pub fn new() -> Self {
        Self::of(XEN_PAGE_LEN)
    }

    /// Returns memory of `bytes` zeros.
    pub fn of(bytes: usize) -> Self {
        let fd = memfd_create("netif-test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, bytes as u64).unwrap();
        let size = bytes as u64;
        let spec = RegionSpec { guest_address: 0, size, user_address: 0, mmap_offset: 0 };
        Self { memory: Arc::new(GuestMemory::map(&[(spec, File::from(fd))]).unwrap()) }
    }

    /// Maps the page for one side.
    pub fn window(&self) -> Window {
        self.part(0, self.memory.size_bytes() as usize)
    }

    pub fn part(&self, at: u64, len: usize) -> Window {
        self.memory.window(at, len).unwrap()
    }
}

pub(crate) fn segment(gref: u32, offset: u16, len: u16) -> Segment {
    Segment { gref, offset, len }
}
