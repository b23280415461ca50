//! The settings of a port.

use std::sync::Arc;

use weir_fabric::{PortId, SourceGuard};
use weir_groups::{GroupId, Policy};
use weir_policy::schedule::Share;

use crate::switching::filter::PortRules;
use crate::switching::groups::PortGroups;
use crate::switching::limits::FrameLenMax;
use crate::switching::limits::Police;
use crate::switching::limits::RateLimit;
use crate::switching::limits::{Storm, StormLimit};
use crate::switching::switch::Slot;
use crate::threads::clock;

/// The settings of a port that change while it is served. The default has no checks, no limits, and weight 1.
#[derive(Clone, Debug, Default)]
pub struct PortSettings {
    /// The filters.
    pub rules: PortRules,
    /// The connections that the port's security groups allow; `None` without groups, and then none
    /// is tracked.
    pub groups: Option<Policy>,
    /// The port's share of each worker.
    pub share: Share,
    /// The limit on the traffic that the port sends.
    pub send_limit: RateLimit,
    /// The limit on the traffic that the port receives. Excess frames are dropped and counted at the port
    /// ([`DropReason::PolicedRx`](crate::DropReason::PolicedRx)).
    pub receive_limit: RateLimit,
    /// The limit on flooded frames from the port.
    pub storm_limit: StormLimit,
    /// The MTU (bytes). Longer frames in either direction are dropped, and counted at the port. For a GSO frame, the
    /// length of its segments counts.
    pub mtu: Option<u16>,
    /// The addresses from which the port can send; `None` if they are not checked.
    pub guard: Option<Arc<SourceGuard>>,
    /// True if DHCP answers from the port are accepted. Those from an uplink always are.
    pub gives_leases: bool,
    /// The port of weir's own that serves this port. Flooded frames that it answers go to it alone.
    pub served_by: Option<PortId>,
    /// True if the port is isolated across hosts: overlays tell other hosts that it is isolated,
    /// and learn the same about the other hosts' ports.
    pub isolated_over_hosts: bool,
}

impl PortSettings {
    /// Applies the parts that differ from `before`. The others keep their state: the level of buckets, the counters of
    /// rules. Connections go on as far as the new groups allow.
    pub(crate) fn apply(&self, before: &Self, slot: &mut Slot) {
        slot.rules = self.rules.clone();
        slot.guard.clone_from(&self.guard);
        slot.gives_leases = self.gives_leases || slot.port.is_uplink();
        slot.isolated_over_hosts = self.isolated_over_hosts;
        slot.frame_len_max = FrameLenMax::of_mtu(self.mtu);
        slot.served_by = self.served_by;
        if self.receive_limit != before.receive_limit {
            slot.police = Police::new(self.receive_limit).map(Arc::new);
        }
        if self.storm_limit != before.storm_limit {
            slot.storm = Storm::new(self.storm_limit).map(Arc::new);
        }
        if self.groups != before.groups {
            let held = slot.groups.take();
            let new = |policy: &Policy| {
                Arc::new(PortGroups::new(policy.clone(), held.as_deref(), clock::now_ns()))
            };
            slot.groups = self.groups.as_ref().map(new);
        }
        slot.settle();
    }

    /// True if a change from `before` leaves the table of ports as it is. Workers get the share,
    /// and the limit on the traffic that the port sends, from elsewhere.
    pub(crate) fn leaves_the_table(&self, before: &Self) -> bool {
        let Self {
            rules,
            groups,
            share: _,
            send_limit: _,
            receive_limit,
            storm_limit,
            mtu,
            guard,
            gives_leases,
            served_by,
            isolated_over_hosts,
        } = before;
        is_same(&self.rules.tx, &rules.tx)
            && is_same(&self.rules.rx, &rules.rx)
            && is_same(&self.guard, guard)
            && self.groups == *groups
            && self.receive_limit == *receive_limit
            && self.storm_limit == *storm_limit
            && (self.mtu, self.gives_leases) == (*mtu, *gives_leases)
            && self.served_by == *served_by
            && self.isolated_over_hosts == *isolated_over_hosts
    }

    /// True if the port has left a group since `before`. A rule of another port may allow a connection for this group.
    pub(crate) fn has_left_a_group(&self, before: &Self) -> bool {
        let now = names(self.groups.as_ref());
        names(before.groups.as_ref()).iter().any(|name| !now.contains(name))
    }
}

/// True if both are the same value, or both are `None`.
fn is_same<T>(a: &Option<Arc<T>>, b: &Option<Arc<T>>) -> bool {
    a.as_ref().map(Arc::as_ptr) == b.as_ref().map(Arc::as_ptr)
}

fn names(policy: Option<&Policy>) -> &[GroupId] {
    policy.map_or(&[], |policy| &policy.groups)
}
