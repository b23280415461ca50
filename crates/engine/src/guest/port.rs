//! A guest's port, with any kind of ring.

use rustix::process::Pid;
use weir_fabric::PortId;

use super::{AnyInterface, CallPolicy, PortInfo};
use crate::frames::port::Port;

/// The device's properties for the guest, if its front end leaves them to the switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GuestDevice {
    /// The interface's MAC address.
    pub mac: [u8; 6],
    /// The interface's MTU.
    pub mtu: u16,
    /// `VIRTIO_F_ACCESS_PLATFORM` is offered: the guest decides which part of its memory the device can access.
    pub access_platform: bool,
}

impl Default for GuestDevice {
    /// A device with Ethernet's MTU and without an address.
    fn default() -> Self {
        Self { mac: [0; 6], mtu: 1500, access_platform: false }
    }
}

/// A guest's port, as the switch sees it beside the data path.
pub trait GuestPort: Port {
    /// The port's number in the switch.
    fn id(&self) -> PortId;

    /// The port's queue pairs and calls.
    fn interface(&self) -> &dyn AnyInterface;

    /// A snapshot.
    fn info(&self) -> PortInfo;

    /// Notes that the guest polls its receive queues at this interval (ns), or no longer. It must be called again after
    /// [`set_moderation`](AnyInterface::set_moderation).
    fn set_guest_poll_ns(&self, poll_ns: Option<u64>);

    /// Offers so many queue pairs to the next front end, if weir chooses the number. New pairs call the guest by
    /// `calls`.
    fn set_queue_pairs(&self, _queue_pairs: usize, _calls: &CallPolicy) {}

    /// Sets the device's properties for the next front end and its guest.
    fn set_device(&self, _device: GuestDevice) {}

    /// Limits the memory of the port's front end to this number of bytes, from the next memory table on.
    fn set_memory_max(&self, _bytes: u64) {}

    /// The process of the virtual machine's monitor, if one is known.
    fn front_end(&self) -> Option<Pid> {
        None
    }

    /// Ends the port's service for good, unless the port exists only together with its guest.
    fn retire(&self, _reason: &str) {}
}
