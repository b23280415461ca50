//! The switch's realization and a host's extras: polling workers, few interrupt identifiers, a placer, a second
//! host (Raj 2006 §3 and §7.1, Guo 2009).

use std::ops::Range;

use weir_limits::{LAB_CPUS_MAX, LAB_NS_MAX, PORTS_MAX};
use weir_policy::placement::Policy;

use crate::scenario::{Endpoint, Scenario, ScenarioError, within};
use crate::topology::CpuId;

/// All of it; by default there is one host, whose workers sleep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Realization {
    /// Workers look at their queues all the time once they had work (`realization = "dedicated"`).
    pub dedicated: bool,
    /// A host's last worker serves its uplink and no guest, and the others no uplink.
    pub uplink_apart: bool,
    /// Calls go through an interrupt controller that can tell only so many guests apart.
    pub identifiers: Option<Identifiers>,
    /// Workers, and with permission vCPUs, are placed.
    pub placement: Option<Placement>,
    /// Who wakes up goes to any idle CPU, whatever its caches (Xen's credit scheduler of Guo 2009).
    pub cache_blind: bool,
    /// vCPUs look at their rings all the time, and want no calls for received frames.
    pub guests_poll: bool,
    /// Guests' drivers want calls for sent frames only while their rings are full (Raj 2006 §4.3).
    pub tx_calls_when_full: bool,
    /// Guests are threads of weir's user-space driver: a sender at a rate sleeps until its next frame by a late
    /// timer, and then sends all due frames.
    pub guests_are_threads: bool,
    /// Workers set the timers of holds ahead by what timers were late (`weir_policy::lateness`).
    pub timers_ahead: bool,
    /// weir's manager controls latency budgets, where all guests run `auto`: it may hold all calls together, at the
    /// uplinks too (`weir_policy::attempt`).
    pub manager: bool,
    /// Two hosts, with a wire between their uplinks: the first half of CPUs, workers, guests and uplinks is the
    /// first host's.
    pub twins: bool,
}

/// Interrupt identifiers (Raj 2006 §4.3.1): guest i has identifier i modulo `count`, one each for received and sent
/// frames. The demultiplexer signals every guest of an identifier, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identifiers {
    /// For each direction.
    pub count: usize,
    /// Where they are demultiplexed; on a second host the CPU that corresponds.
    pub cpu: CpuId,
}

/// A placer that asks `weir_policy::placement` in regular looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Which.
    pub policy: Policy,
    /// Between two looks (ns).
    pub look_ns: u64,
    /// It moves vCPUs too.
    pub pin_vcpus: bool,
}

impl Realization {
    pub(crate) const fn hosts(&self) -> usize {
        if self.twins { 2 } else { 1 }
    }

    /// Which of `len` things, numbered through, are of a host.
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
