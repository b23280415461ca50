//! A ring that this process drives, of whatever format was negotiated.

use std::sync::Arc;

use weir_guestmem::GuestMemory;

use crate::error::SetupError;
use crate::layout::{Addresses, RingConfig};
use crate::packed::driver::PackedDriver;
use crate::split::driver::SplitDriver;

/// One buffer of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffer {
    /// Guest-physical address.
    pub address: u64,
    /// Bytes.
    pub len: u32,
    /// The device writes it.
    pub writable: bool,
}

/// A chain that came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Used {
    /// What `offer` returned for it.
    pub head: u16,
    /// Bytes that the device wrote.
    pub written: u32,
}

/// A ring that this process drives.
#[derive(Debug)]
pub enum DriverRing {
    /// A split ring.
    Split(SplitDriver),
    /// A packed ring (`VIRTIO_F_RING_PACKED`).
    Packed(PackedDriver),
}

/// The same call, whichever format.
macro_rules! each {
    ($self:expr, $ring:ident => $call:expr) => {
        match $self {
            DriverRing::Split($ring) => $call,
            DriverRing::Packed($ring) => $call,
        }
    };
}

impl DriverRing {
    /// An empty ring in zeroed memory at `at`.
    pub fn new(
        memory: &Arc<GuestMemory>,
        config: RingConfig,
        at: &Addresses,
    ) -> Result<Self, SetupError> {
        Ok(if config.packed {
            Self::Packed(PackedDriver::new(memory, config, at)?)
        } else {
            Self::Split(SplitDriver::new(memory, config, at)?)
        })
    }

    /// Whether descriptors are those of a packed ring, in indirect tables, too.
    pub fn is_packed(&self) -> bool {
        matches!(self, Self::Packed(_))
    }

    /// Descriptors that are free.
    pub fn free(&self) -> u16 {
        each!(self, ring => ring.free())
    }

    /// Chains that the device has not given back.
    pub fn in_flight(&self) -> u16 {
        each!(self, ring => ring.in_flight())
    }

    /// Offers a chain; the device sees it after [`publish`](Self::publish). `None` when the ring
    /// has too few free descriptors, or when there is no buffer.
    pub fn offer(&mut self, buffers: &[Buffer]) -> Option<u16> {
        each!(self, ring => ring.offer(buffers))
    }

    /// Offers a table of descriptors that the caller wrote at `address` (`VIRTIO_F_INDIRECT_DESC`).
    pub fn offer_indirect(&mut self, address: u64, table_bytes: u32) -> Option<u16> {
        each!(self, ring => ring.offer_indirect(address, table_bytes))
    }

    /// Shows the device what was offered, and says whether it wants a kick.
    pub fn publish(&mut self) -> bool {
        each!(self, ring => ring.publish())
    }

    /// Takes back the next chain that the device completed.
    pub fn take(&mut self) -> Option<Used> {
        each!(self, ring => ring.take())
    }

    /// Used elements that named no chain in flight, since this was last asked: mistakes of the
    /// device.
    pub fn skipped(&mut self) -> u64 {
        each!(self, ring => ring.skipped())
    }

    /// Whether the device has completed a chain that was not taken back. Does not touch what was asked
    /// of the device: for a driver that polls.
    pub fn has_used(&self) -> bool {
        each!(self, ring => ring.has_used())
    }

    /// Asks the device for no calls.
    pub fn suppress_calls(&mut self) {
        each!(self, ring => ring.suppress_calls());
    }

    /// Asks for a call at the next completed chain, and says whether one came in the meantime:
    /// only when not may the caller sleep.
    pub fn enable_calls(&mut self) -> bool {
        each!(self, ring => ring.enable_calls())
    }
}
