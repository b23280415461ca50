//! The common part of guests' ports for any kind of ring: an interface's queues and its state.

mod interface;

use rustix::process::Pid;
use weir_fabric::PortId;
use weir_guestmem::Mapped;

use crate::frames::port::Port;

pub use interface::{AnyInterface, Interface, QueuePair};

pub use crate::calls::{
    Asked, CallPolicy, CallTimes, Completed, GuestRing, QueueDecision, ReceiveCalls, ReceiveRing,
    Received, TransmitCalls, TransmitRing,
};

/// The state of an interface.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum State {
    /// No front end is connected.
    #[default]
    Waiting,
    /// A front end is connected, no ring is running.
    Connected,
    /// Rings were running, and the front end has stopped them without a reset of the device.
    Halted,
    /// At least one ring is running.
    Running,
    /// The last session broke the rules; see the reason. A new session or a reset starts again.
    Stopped,
}

/// A snapshot of a guest's interface. A value that its kind of port does not have is 0, `None` or empty.
#[derive(Debug, Clone, Default)]
pub struct PortInfo {
    /// The interface's state.
    pub state: State,
    /// True if a front end is connected, and has sent something.
    pub is_met: bool,
    /// The reason of the interface's last stop that was not orderly, if there was one.
    pub stop_reason: Option<String>,
    /// The time of that stop; 0 if there was none.
    pub stopped_ns: u64,
    /// Front ends that connected since the interface was made.
    pub opened: u64,
    /// Front ends that disconnected in order.
    pub closed: u64,
    /// Front ends that could not be served, or broke a rule.
    pub failed: u64,
    /// Front ends that connected while another one was connected, and were turned away.
    pub turned_away: u64,
    /// The time at which the last one was turned away; 0 if none was.
    pub turned_away_ns: u64,
    /// Times at which a front end had to pause: it used too much time, or connected too often.
    pub throttled: u64,
    /// Messages about the interface that were not logged, because there were too many.
    pub log_lines_unsaid: u64,
    /// Acknowledged device features.
    pub features: u64,
    /// The MTU that the front end has set.
    pub mtu: Option<u16>,
    /// Bytes of guest memory in the table in use.
    pub memory_bytes: u64,
    /// Mapped memory, in whole pages, including the rest of older tables.
    pub memory_mapped: Mapped,
    /// Most bytes that a table can have.
    pub memory_max_bytes: u64,
    /// Queue pairs that were offered to the front end; `None` without one.
    pub session_queue_pairs: Option<usize>,
    /// Rings in service that serve no driver.
    pub silent: Vec<SilentRing>,
}

/// A ring that serves no driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SilentRing {
    /// The ring's number: even ones receive, odd ones transmit.
    pub ring: usize,
    /// The reason.
    pub why: Silence,
}

/// The reason why a ring does not work although it is in service and enabled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Silence {
    /// This number of kicks came, but the driver has never put a buffer where weir expects one: the driver probably
    /// uses another base, wrap counter or address.
    KicksWithoutBuffers(u64),
    /// The driver has put buffers into the ring, and the ring's kick descriptor has never been signalled.
    BuffersWithoutKick,
    /// Buffers were returned to a driver that wants calls, and there is no call descriptor.
    NoCallDescriptor,
    /// The ring waits for the virtual IOMMU's answers.
    NoTranslation {
        /// Questions that were asked a while ago.
        questions: u64,
        /// The time since the first of them (s).
        seconds: u64,
    },
}

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

    /// Offers this number of queue pairs to the next front end, if weir chooses the number. New
    /// pairs call the guest by `calls`.
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
