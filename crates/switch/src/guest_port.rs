//! What the switch does with a guest's interface, whether its rings are virtio's or Xen's.

use rustix::process::Pid;
use weir_engine::guest::{CallPolicy, PortInfo, QueueDecision};
use weir_engine::{Port, PortCounters};
use weir_fabric::PortId;
use weir_port_vhost::VhostPort;
use weir_port_xen::XenPort;

/// A guest's interface.
pub trait GuestPort: Port {
    /// Its number in the switch.
    fn id(&self) -> PortId;

    /// Queue pairs that it has.
    fn queue_pairs(&self) -> usize;

    /// Offers so many to the next front end; guests are called by `calls` at those that are new.
    fn set_queue_pairs(&self, queue_pairs: usize, calls: &CallPolicy);

    /// Lets its front end share so many bytes, from the next time on that it shares any.
    fn set_memory_max(&self, bytes: u64);

    /// The process of the virtual machine's monitor, if one is known.
    fn front_end(&self) -> Option<Pid>;

    /// What it counts.
    fn counters(&self) -> &PortCounters;

    /// Changes the moderation policy while traffic flows.
    fn set_moderation(&self, calls: &CallPolicy);

    /// Sets the limit of holds (ns) of one pair of queues, or of all.
    fn set_hold_ns_max(&self, queue: Option<usize>, hold_ns_max: u64);

    /// All interfaces are held together, or no longer.
    fn set_together(&self, together: bool);

    /// The guest polls at this interval (ns), or no longer, as its agent says.
    fn set_guest_poll_ns(&self, poll_ns: Option<u64>);

    /// What the policy of each receive queue does now.
    fn decisions(&self) -> Vec<QueueDecision>;

    /// A snapshot.
    fn info(&self) -> PortInfo;

    /// Ends its service for good.
    fn retire(&self, reason: &str);
}

/// The calls that a port has under the same names.
macro_rules! same_calls {
    () => {
        fn id(&self) -> PortId {
            self.id()
        }

        fn queue_pairs(&self) -> usize {
            self.queue_pairs()
        }

        fn counters(&self) -> &PortCounters {
            self.counters()
        }

        fn set_moderation(&self, calls: &CallPolicy) {
            self.set_moderation(calls);
        }

        fn set_hold_ns_max(&self, queue: Option<usize>, hold_ns_max: u64) {
            self.set_hold_ns_max(queue, hold_ns_max);
        }

        fn set_together(&self, together: bool) {
            self.set_together(together);
        }

        fn set_guest_poll_ns(&self, poll_ns: Option<u64>) {
            self.set_guest_poll_ns(poll_ns);
        }

        fn decisions(&self) -> Vec<QueueDecision> {
            self.decisions()
        }

        fn info(&self) -> PortInfo {
            self.info()
        }
    };
}

impl GuestPort for VhostPort {
    same_calls!();

    fn front_end(&self) -> Option<Pid> {
        self.front_end()
    }

    fn set_queue_pairs(&self, queue_pairs: usize, calls: &CallPolicy) {
        self.set_queue_pairs(queue_pairs, calls);
    }

    fn set_memory_max(&self, bytes: u64) {
        self.memory().set_max_bytes(bytes);
    }

    fn retire(&self, reason: &str) {
        self.retire(reason);
    }
}

impl GuestPort for XenPort {
    same_calls!();

    /// Xen's domains are no processes.
    fn front_end(&self) -> Option<Pid> {
        None
    }

    /// The number is in xenstore from the time on that the vif is attached.
    fn set_queue_pairs(&self, _: usize, _: &CallPolicy) {}

    /// Each page that weir maps is granted.
    fn set_memory_max(&self, _: u64) {}

    /// It comes and goes with its domain.
    fn retire(&self, _: &str) {}
}
