//! A guest's port, whatever its rings are.

use rustix::process::Pid;
use weir_fabric::PortId;

use super::{AnyInterface, CallPolicy, PortInfo};
use crate::port::Port;

/// What a guest is told of its device, where its front end leaves that to the switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GuestDevice {
    /// Its MAC address.
    pub mac: [u8; 6],
    /// Its MTU.
    pub mtu: u16,
    /// `VIRTIO_F_ACCESS_PLATFORM` is offered: the guest decides which of its memory the device may reach.
    pub access_platform: bool,
}

impl Default for GuestDevice {
    /// A device of Ethernet's MTU without an address.
    fn default() -> Self {
        Self { mac: [0; 6], mtu: 1500, access_platform: false }
    }
}

/// A guest's port, as the switch sees it beside the data path.
pub trait GuestPort: Port {
    /// Its number in the switch.
    fn id(&self) -> PortId;

    /// Its queue pairs and how its guest is called.
    fn interface(&self) -> &dyn AnyInterface;

    /// A snapshot.
    fn info(&self) -> PortInfo;

    /// The guest polls its receive queues at this interval (ns), or no longer. Call it again after
    /// [`set_moderation`](AnyInterface::set_moderation).
    fn set_guest_poll_ns(&self, poll_ns: Option<u64>);

    /// Offers so many queue pairs to the next front end, where the number is weir's to say. Guests are called by
    /// `calls` at pairs that are new.
    fn set_queue_pairs(&self, _queue_pairs: usize, _calls: &CallPolicy) {}

    /// Has the next front end, and its guest, told this of the device.
    fn set_device(&self, _device: GuestDevice) {}

    /// Lets its front end share so many bytes, from the next time on that it shares any.
    fn set_memory_max(&self, _bytes: u64) {}

    /// The process of the virtual machine's monitor, if one is known.
    fn front_end(&self) -> Option<Pid> {
        None
    }

    /// Ends its service for good, unless it comes and goes with its guest.
    fn retire(&self, _reason: &str) {}
}
