//! Variants of the switch and its host: polling workers, few interrupt identifiers, a placer, a
//! second host (Raj 2006 §3 and §7.1, Guo 2009).

use std::ops::Range;

use weir_limits::{LAB_CPUS_MAX, LAB_NS_MAX, PORTS_MAX};
use weir_policy::placement::Policy;

use crate::scenario::{Endpoint, Scenario, ScenarioError, within};
use crate::topology::CpuId;

/// The variants; by default there is one host, whose workers sleep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Realization {
    /// Workers busy-poll their queues once they had work (`realization = "dedicated"`).
    pub dedicated: bool,
    /// A host's last worker serves only its uplink, and the others only guests.
    pub uplink_apart: bool,
    /// Calls go through an interrupt controller with a limited number of identifiers.
    pub identifiers: Option<Identifiers>,
    /// Placement of workers, and with permission of vCPUs.
    pub placement: Option<Placement>,
    /// A woken thread goes to any idle CPU, whatever its caches (Xen's credit scheduler of Guo
    /// 2009).
    pub cache_blind: bool,
    /// vCPUs busy-poll their rings, and want no calls for received frames.
    pub guests_poll: bool,
    /// Guests' drivers want calls for sent frames only while their rings are full (Raj 2006 §4.3).
    pub tx_calls_when_full: bool,
    /// Guests are threads of weir's user-space driver. A sender at a rate sleeps by a late timer
    /// until its next frame, and then sends all due frames.
    pub guests_are_threads: bool,
    /// Workers set the timers of holds earlier by the timers' lateness (`weir_policy::lateness`).
    pub timers_ahead: bool,
    /// Workers also poll the queue that usually has work next, and wait awake for its answer
    /// ([`weir_policy::pace::Successors`]).
    pub awaits_answers: bool,
    /// The end of each hold is an interrupt of a timer that a hypercall has set, as of a host's NIC (Dong 2011 §4.1);
    /// weir's workers look at the clock.
    pub hold_timers: bool,
    /// weir's manager controls latency budgets if all guests run `auto`: it may hold all calls
    /// together, at the uplinks too (`weir_policy::attempt`).
    pub manager: bool,
    /// Threads of an uplink's peer. A thread writes a segment to each of its streams, or a datagram to each of its
    /// sockets, in turn, and waits for the one whose turn it is (Dong 2011 §5.1; Linux 2.6.18: `sock_wait_for_wmem`). 0:
    /// each has a thread of its own.
    pub client_threads: usize,
    /// Two hosts, with a wire between their uplinks: the first half of CPUs, workers, guests and uplinks is the
    /// first host's.
    pub twins: bool,
}

/// Interrupt identifiers (Raj 2006 §4.3.1). Guest i has identifier i modulo `count`, one each for
/// received and sent frames. The demultiplexer signals every guest of an identifier, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identifiers {
    /// Number of identifiers for each direction.
    pub count: usize,
    /// CPU of the demultiplexer; on a second host the corresponding CPU.
    pub cpu: CpuId,
}

/// A placer that asks `weir_policy::placement` in regular looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The policy.
    pub policy: Policy,
    /// Interval of looks (ns).
    pub look_ns: u64,
    /// Moves vCPUs too.
    pub pin_vcpus: bool,
}

impl Realization {
    pub(crate) const fn hosts(&self) -> usize {
        if self.twins { 2 } else { 1 }
    }

    /// Returns the part of `len` things that belongs to a host. The things are numbered over all
    /// hosts.
    pub(crate) const fn of_host(&self, host: usize, len: usize) -> Range<usize> {
        let each = len / self.hosts();
        host * each..(host + 1) * each
    }

    pub(crate) fn host_of(&self, at: usize, len: usize) -> usize {
        at * self.hosts() / len.max(1)
    }

    pub(crate) fn check(&self, scenario: &Scenario) -> Result<(), ScenarioError> {
        let of = "the realization";
        let cpus = scenario.topology.cpus().unwrap_or(0);
        let workers = scenario.workers.len() / self.hosts();
        if self.uplink_apart {
            within(of, "workers of a host", workers as u64, 2..=LAB_CPUS_MAX as u64)?;
        }
        if let Some(Identifiers { count, cpu }) = self.identifiers {
            within(of, "`identifiers.count`", count as u64, 1..=PORTS_MAX as u64)?;
            let of_a_host = cpus / self.hosts();
            if cpu >= of_a_host {
                let thread = "the interrupt controller".to_owned();
                return Err(ScenarioError::NoSuchCpu { thread, cpu, cpus: of_a_host });
            }
        }
        if let Some(Placement { look_ns, .. }) = self.placement {
            within(of, "`placement.look`", look_ns, 1_000_000..=LAB_NS_MAX)?;
            within(of, "hosts with a placer", self.hosts() as u64, 1..=1)?;
        }
        let given = [
            ("dispatch", scenario.dispatch.is_some()),
            ("first_worker", scenario.first_worker.is_some()),
        ];
        let apart = [
            (self.twins, "each of two hosts has its own"),
            (self.uplink_apart, "`uplink_apart` keeps a host's last one for its uplink"),
        ];
        if let Some((key, _)) = given.into_iter().find(|it| it.1)
            && let Some((_, whose)) = apart.into_iter().find(|it| it.0)
        {
            return Err(ScenarioError::AnyWorker { key, whose });
        }
        if self.twins {
            let counts = [
                scenario.workers.len(),
                scenario.guests.len(),
                scenario.topology.sockets,
                scenario.uplinks.len(),
            ];
            let peer = |it: &Endpoint| matches!(it, Endpoint::Peer(_));
            if counts.iter().any(|count| count % 2 != 0) {
                return Err(ScenarioError::Twins { what: "are alike" });
            } else if scenario.uplinks.len() != 2 {
                return Err(ScenarioError::Twins { what: "have an uplink each" });
            } else if scenario.loads.iter().any(|load| peer(&load.from) || peer(&load.to)) {
                return Err(ScenarioError::Twins { what: "have loads between guests only" });
            }
        }
        Ok(())
    }
}
