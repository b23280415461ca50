//! What the switch does with a guest's interface, whether its rings are virtio's or Xen's.

use rustix::process::Pid;
use weir_engine::guest::{CallPolicy, QueueDecision, State};
use weir_engine::stats::TimesSummary;
use weir_engine::{Port, PortCounters};
use weir_fabric::PortId;
use weir_port_vhost::{VhostInfo, VhostPort};
use weir_port_xen::{XenInfo, XenPort};

use crate::stats::SilentRing;

/// A guest's interface.
pub trait GuestPort: Port {
    /// Its number in the switch.
    fn id(&self) -> PortId;

    /// Queue pairs that it has.
    fn queue_pairs(&self) -> usize;

    /// Offers so many to the next front end; guests are called by `calls` at those that are new.
    fn set_queue_pairs(&self, queue_pairs: usize, calls: &CallPolicy);

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

/// A snapshot of a guest's interface.
#[derive(Debug, Clone)]
pub struct PortInfo {
    /// How far it is.
    pub state: State,
    /// Why it stopped last, if it ever did otherwise than in order.
    pub stop_reason: Option<String>,
    /// Front ends that came.
    pub opened: u64,
    /// Those that went in order.
    pub closed: u64,
    /// Those that did not.
    pub failed: u64,
    /// Those that came while there was one, and were turned away.
    pub turned_away: u64,
    /// How often one had to pause.
    pub throttled: u64,
    /// Messages about it that were not logged.
    pub log_lines_unsaid: u64,
    /// Bytes of the memory table in use.
    pub memory_bytes: u64,
    /// Regions that are mapped, with those of older tables.
    pub memory_regions: usize,
    /// Bytes of its memory that are mapped.
    pub memory_mapped_bytes: u64,
    /// Bytes of it that may be.
    pub memory_max_bytes: u64,
    /// Queue pairs that the front end was offered; `None` without one, and for a Xen guest.
    pub session_queue_pairs: Option<usize>,
    /// Hold times: from frames being ready to the guest being told of them.
    pub hold: TimesSummary,
    /// Rings in service that serve nobody; of a Xen guest's that is not known.
    pub silent: Vec<SilentRing>,
}

impl From<VhostInfo> for PortInfo {
    fn from(info: VhostInfo) -> Self {
        let VhostInfo {
            state, stop_reason, opened, closed, failed, session_queue_pairs, hold, ..
        } = info;
        let VhostInfo { turned_away, throttled, log_lines_unsaid, .. } = info;
        let VhostInfo { memory_bytes, memory_mapped, memory_max_bytes, silent, .. } = info;
        Self {
            state,
            stop_reason,
            opened,
            closed,
            failed,
            turned_away,
            throttled,
            log_lines_unsaid,
            memory_bytes,
            memory_regions: memory_mapped.regions,
            memory_mapped_bytes: memory_mapped.bytes,
            memory_max_bytes,
            session_queue_pairs,
            hold,
            silent: silent.into_iter().map(Into::into).collect(),
        }
    }
}

impl From<XenInfo> for PortInfo {
    fn from(info: XenInfo) -> Self {
        let XenInfo { state, stop_reason, opened, closed, failed, hold, .. } = info;
        Self {
            state,
            stop_reason,
            opened,
            closed,
            failed,
            turned_away: 0,
            throttled: 0,
            log_lines_unsaid: 0,
            memory_bytes: 0,
            memory_regions: 0,
            memory_mapped_bytes: 0,
            memory_max_bytes: 0,
            session_queue_pairs: None,
            hold,
            silent: Vec::new(),
        }
    }
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
            self.info().into()
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

    /// It comes and goes with its domain.
    fn retire(&self, _: &str) {}
}
