//! A driver and a device in one process over a memfd, like two processes.

mod deaths;
mod hostile;
mod moves;
mod packed_hostile;
mod packed_spec;
mod pair;

use std::fs::File;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use weir_guestmem::{GuestMemory, RegionSpec, Window};

use crate::*;

pub(crate) const MEMORY: u64 = 1 << 20;
/// Guest address of the buffers; the rings lie before it.
pub(crate) const BUFFERS: u64 = 0x8_0000;

pub(crate) fn memory() -> Arc<GuestMemory> {
    let fd = memfd_create("ring-test", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, MEMORY).unwrap();
    // The user address equals the guest address: one number less to think of in a test.
    let spec = RegionSpec { guest_address: 0, size: MEMORY, user_address: 0, mmap_offset: 0 };
    Arc::new(GuestMemory::map(&[(spec, File::from(fd))]).unwrap())
}

pub(crate) fn config(size: u16) -> RingConfig {
    RingConfig { size, event_idx: true, indirect: true, ..RingConfig::default() }
}

pub(crate) const AT: Addresses = Addresses { descriptor: 0, driver: 0x1_0000, device: 0x2_0000 };

/// A device, and raw access to everything that a guest can write.
pub(crate) struct Hostile {
    pub memory: Arc<GuestMemory>,
    pub device: DeviceRing,
    pub raw: Window,
}

impl Hostile {
    pub fn new(config: RingConfig) -> Self {
        let memory = memory();
        let device = DeviceRing::new(&memory, config, &AT, 0).unwrap();
        let raw = memory.window(0, MEMORY as usize).unwrap();
        Self { memory, device, raw }
    }

    pub fn descriptor(&self, at: u64, address: u64, len: u32, flags: u16, next: u16) {
        let at = at as usize;
        self.raw.write(at, address.to_le_bytes());
        self.raw.write(at + 8, len.to_le_bytes());
        self.raw.write(at + 12, flags.to_le_bytes());
        self.raw.write(at + 14, next.to_le_bytes());
    }

    /// Makes `heads` available.
    pub fn avail(&self, heads: &[u16]) {
        for (i, head) in heads.iter().enumerate() {
            self.raw.store(AT.driver as usize + 4 + 2 * i, *head);
        }
        self.raw.store_release(AT.driver as usize + 2, heads.len() as u16);
    }

    /// Takes the next chain as a transmit queue does.
    pub fn transmit(&mut self) -> Result<Option<Chain>, RingError> {
        self.device.refill()?;
        self.device.take(Direction::Readable, &self.memory, &mut Vec::new())
    }

    /// Takes the next chain as a receive queue does.
    pub fn receive(&mut self) -> Result<Option<Chain>, RingError> {
        self.device.refill()?;
        self.device.take(Direction::Writable, &self.memory, &mut Vec::new())
    }
}
