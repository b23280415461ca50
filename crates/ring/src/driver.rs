//! A ring that this process drives, in the negotiated format.

use std::collections::VecDeque;
use std::sync::Arc;

use weir_guestmem::GuestMemory;

use crate::error::SetupError;
use crate::layout::{Addresses, RingConfig, Site};
use crate::packed::driver::PackedDriver;
use crate::split::driver::SplitDriver;

/// One buffer of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffer {
    /// Guest-physical address.
    pub address: u64,
    /// Bytes.
    pub len: u32,
    /// True if the device writes it.
    pub writable: bool,
}

/// A chain that the device gave back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Used {
    /// The value that `offer` returned for it.
    pub head: u16,
    /// Bytes that the device wrote.
    pub written: u32,
}

/// Chains that the device gives back. With `VIRTIO_F_IN_ORDER` one used element stands for all chains up to the one
/// that it names, and the others were not written to (virtio 1.2 §2.7.9, §2.8.8).
#[derive(Debug)]
pub(crate) struct Batches {
    /// Chains in flight in their order, with `VIRTIO_F_IN_ORDER`.
    order: Option<VecDeque<u16>>,
    /// The used element whose chains are being taken.
    end: Option<Used>,
}

impl Batches {
    pub(crate) fn new(in_order: bool) -> Self {
        Self { order: in_order.then(VecDeque::new), end: None }
    }

    /// Notes an offered chain.
    pub(crate) fn offered(&mut self, head: u16) {
        if let Some(order) = &mut self.order {
            order.push_back(head);
        }
    }

    /// True if the last read element stands for more chains.
    pub(crate) fn has_more(&self) -> bool {
        self.end.is_some()
    }

    /// Begins an element that was read: it stands for the chains up to `end`.
    pub(crate) fn begin(&mut self, end: Used) {
        self.end = Some(end);
    }

    /// The next chain of the last read element.
    pub(crate) fn next(&mut self) -> Option<Used> {
        let end = self.end?;
        let head = match &mut self.order {
            Some(order) => order.pop_front()?,
            None => end.head,
        };
        if head == end.head {
            self.end = None;
            return Some(end);
        }
        Some(Used { head, written: 0 })
    }
}

/// A ring that this process drives.
#[derive(Debug)]
pub struct DriverRing(Format);

#[derive(Debug)]
enum Format {
    Split(SplitDriver),
    /// `VIRTIO_F_RING_PACKED`.
    Packed(PackedDriver),
}

/// Makes the same call on the ring of either format.
macro_rules! each {
    ($self:expr, $ring:ident => $call:expr) => {
        match $self {
            Format::Split($ring) => $call,
            Format::Packed($ring) => $call,
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
        let site = Site { memory, config, at };
        Ok(Self(if config.packed {
            Format::Packed(PackedDriver::new(site)?)
        } else {
            Format::Split(SplitDriver::new(site)?)
        }))
    }

    /// True if descriptors have the packed format, also in indirect tables.
    pub fn is_packed(&self) -> bool {
        matches!(self.0, Format::Packed(_))
    }

    /// The number of free descriptors.
    pub fn free(&self) -> u16 {
        each!(&self.0, ring => ring.free())
    }

    /// The number of chains that the device has not given back.
    pub fn in_flight(&self) -> u16 {
        each!(&self.0, ring => ring.in_flight())
    }

    /// Offers a chain; the device sees it after [`publish`](Self::publish). `None` if the ring has too few free
    /// descriptors, or if there is no buffer.
    pub fn offer(&mut self, buffers: &[Buffer]) -> Option<u16> {
        each!(&mut self.0, ring => ring.offer(buffers))
    }

    /// Offers a table of descriptors that the caller wrote at `address` (`VIRTIO_F_INDIRECT_DESC`).
    pub fn offer_indirect(&mut self, address: u64, table_bytes: u32) -> Option<u16> {
        each!(&mut self.0, ring => ring.offer_indirect(address, table_bytes))
    }

    /// Shows the device the offered chains, and returns true if it wants a kick.
    pub fn publish(&mut self) -> bool {
        each!(&mut self.0, ring => ring.publish())
    }

    /// Takes back the next chain that the device completed.
    pub fn take(&mut self) -> Option<Used> {
        each!(&mut self.0, ring => ring.take())
    }

    /// The number of used elements since the last call that named no chain in flight: mistakes of the device.
    pub fn skipped(&mut self) -> u64 {
        each!(&mut self.0, ring => ring.skipped())
    }

    /// True if the device has completed a chain that was not taken back. Leaves requests to the device as they are: for
    /// a driver that polls.
    pub fn has_used(&self) -> bool {
        each!(&self.0, ring => ring.has_used())
    }

    /// Asks the device for no calls.
    pub fn suppress_calls(&mut self) {
        each!(&mut self.0, ring => ring.suppress_calls());
    }

    /// Asks for a call at the next completed chain, and returns true if one came in the meantime: only after `false`
    /// may the caller sleep.
    pub fn enable_calls(&mut self) -> bool {
        each!(&mut self.0, ring => ring.enable_calls())
    }
}
