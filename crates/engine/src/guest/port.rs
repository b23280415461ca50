//! A guest's port, whatever its rings are.

use rustix::process::Pid;
use weir_fabric::PortId;

use super::{AnyInterface, CallPolicy, PortInfo};
use crate::port::Port;

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

    /// Lets its front end share so many bytes, from the next time on that it shares any.
    fn set_memory_max(&self, _bytes: u64) {}

    /// The process of the virtual machine's monitor, if one is known.
    fn front_end(&self) -> Option<Pid> {
        None
    }

    /// Ends its service for good, unless it comes and goes with its guest.
    fn retire(&self, _reason: &str) {}
}
