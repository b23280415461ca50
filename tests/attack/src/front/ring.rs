//! Virtqueues as memory, written without any rules.

use super::memory::Memory;

/// Flags of descriptors (virtio 1.2 §2.7.5, §2.8.2).
pub const NEXT: u16 = 1;
/// See [`NEXT`].
pub const WRITE: u16 = 2;
/// See [`NEXT`].
pub const INDIRECT: u16 = 4;
/// A flag of packed rings only.
pub const AVAIL: u16 = 1 << 7;
/// A flag of packed rings only.
pub const USED: u16 = 1 << 15;

/// Offset of the driver's part of a ring, which has space for 1024 entries.
pub const DRIVER: usize = 0x4000;
/// Offset of the device's part of a ring.
pub const DEVICE: usize = 0x5000;
/// Bytes of a ring.
pub const RING_LEN: usize = 0x8000;

/// A ring in a guest's memory.
#[derive(Clone, Copy, Debug)]
pub struct Ring<'m> {
    pub(super) memory: &'m Memory,
    pub(super) at: usize,
    /// Number of entries.
    pub size: u16,
}

/// The bytes of a descriptor in a split ring or in an indirect table of it.
pub fn descriptor(address: u64, len: u32, flags: u16, next: u16) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&address.to_le_bytes());
    bytes[8..12].copy_from_slice(&len.to_le_bytes());
    bytes[12..14].copy_from_slice(&flags.to_le_bytes());
    bytes[14..].copy_from_slice(&next.to_le_bytes());
    bytes
}

impl Ring<'_> {
    /// The offset of descriptor `slot` in memory.
    pub fn slot(&self, slot: u16) -> usize {
        self.at + 16 * usize::from(slot)
    }

    /// Writes a descriptor of a split ring.
    pub fn set(&self, slot: u16, address: u64, len: u32, flags: u16, next: u16) {
        self.memory.set(self.slot(slot), &descriptor(address, len, flags, next));
    }

    /// Writes a descriptor of a packed ring, with its flags last.
    pub fn set_packed(&self, slot: u16, address: u64, len: u32, id: u16, flags: u16) {
        let at = self.slot(slot);
        self.memory.set_u64(at, address);
        self.memory.set_u32(at + 8, len);
        self.memory.set_u16(at + 12, id);
        self.memory.set_u16(at + 14, flags);
    }

    /// The offset of entry `at` of the available ring.
    pub fn available_at(&self, at: u16) -> usize {
        self.at + DRIVER + 4 + 2 * usize::from(at % self.size.max(1))
    }

    /// The offset of the available index.
    pub fn index_at(&self) -> usize {
        self.at + DRIVER + 2
    }

    /// Writes an entry of the available ring.
    pub fn set_available(&self, at: u16, head: u16) {
        self.memory.set_u16(self.available_at(at), head);
    }

    /// Publishes the available index.
    pub fn set_index(&self, index: u16) {
        self.memory.set_u16(self.index_at(), index);
    }

    /// The used index.
    pub fn used(&self) -> u16 {
        self.memory.u16_at(self.at + DEVICE + 2)
    }

    /// True if the device has suppressed kicks.
    pub fn wants_no_kick(&self) -> bool {
        self.memory.u16_at(self.at + DEVICE) & 1 != 0
    }

    /// The offset of the driver's call suppression in both ring formats.
    pub fn driver_at(&self) -> usize {
        self.at + DRIVER
    }

    /// The offset of the device's part.
    pub fn device_at(&self) -> usize {
        self.at + DEVICE
    }

    /// Makes the descriptor `head` available as the next one.
    pub fn offer(&self, head: u16) {
        let index = self.memory.u16_at(self.index_at());
        self.set_available(index, head);
        self.set_index(index.wrapping_add(1));
    }
}
