//! `weir explain`: what the policies of an interface do now, and why; what an uplink does; and where
//! workers run.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use weir_config::{Moderation, PortName};
use weir_text::{Table, decimal, ratio, time};

use crate::stats::{
    CallSettings, HoldTimes, PortState, QueuePairNumbers, RuleStats, SilentRing, by_reason,
    rules_table,
};

mod dispatch;
mod guard;
mod manager;
mod placement;
mod receiving;
mod sharing;
mod steering;

pub use dispatch::{DispatchExplanation, MovedPair};
pub use guard::{GuardExplanation, LeaseExplanation};
pub use manager::{
    AgentExplanation, AgentState, CostExplanation, CostSource, Gatherer, SplitExplanation,
    UplinkExplanation, UplinkLayer,
};
pub use placement::{GuestPlacement, MachineSummary, PlacementExplanation, WorkerPlacement};
pub use receiving::ReceivingExplanation;
pub use sharing::{PortShare, SharingExplanation};
pub use steering::{MoveExplanation, SteeringExplanation, SteeringQueue};

/// What a command explains.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Explanation {
    /// Of a guest's interface.
    Vif(Box<VifExplanation>),
    /// Of an uplink.
    Uplink(Box<UplinkExplanation>),
    /// Of where workers run.
    Placement(Box<PlacementExplanation>),
}

impl Explanation {
    /// Whether it counts something from one moment to another.
    #[must_use]
    pub fn counts(&self) -> bool {
        matches!(self, Self::Vif(_))
    }

    /// As [`VifExplanation::since`].
    #[must_use]
    pub fn since(self, before: &Self) -> Self {
        match (self, before) {
            (Self::Vif(now), Self::Vif(before)) => Self::Vif(Box::new(now.since(before))),
            (now, _) => now,
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vif(vif) => vif.fmt(f),
            Self::Uplink(uplink) => uplink.fmt(f),
            Self::Placement(placement) => placement.fmt(f),
        }
    }
}

/// An interface's policies at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VifExplanation {
    /// The interface.
    pub name: PortName,
    /// How far it has come.
    pub state: PortState,
    /// The longest time that a frame may be held in all, in nanoseconds.
    pub latency_budget_ns: u64,
    /// When the guest is called, as it is configured.
    pub calls: CallSettings,
    /// How often the guest was told of a frame later than the budget allows, by the reason's name, since
    /// the interface was added.
    pub budget_breaches: BTreeMap<String, u64>,
    /// How many queue pairs it has.
    #[serde(default)]
    pub queue_pairs: QueuePairNumbers,
    /// Each receive queue.
    pub queues: Vec<QueueExplanation>,
    /// What the manager makes of the budget; none for a policy that takes no part in the split.
    #[serde(default)]
    pub split: Option<SplitExplanation>,
    /// The agent in the guest; none where none is configured.
    #[serde(default)]
    pub agent: Option<AgentExplanation>,
    /// Its filter rules, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filter: Vec<RuleStats>,
    /// Which workers serve its queues.
    #[serde(default)]
    pub dispatch: DispatchExplanation,
    /// Its share of the workers' time, and what limits it as a sender.
    #[serde(default)]
    pub sharing: SharingExplanation,
    /// What it may receive, and what was dropped beyond that.
    #[serde(default)]
    pub receiving: ReceivingExplanation,
    /// From which addresses its guest may send; none where nobody asks.
    #[serde(default)]
    pub guard: Option<GuardExplanation>,
    /// How flows are spread over several receive queues; none where one is in use.
    #[serde(default)]
    pub steering: Option<SteeringExplanation>,
    /// Rings in service that serve nobody.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub silent: Vec<SilentRing>,
}

/// The policy of one receive queue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct QueueExplanation {
    /// Its number.
    pub queue: usize,
    /// The policy.
    pub moderation: Moderation,
    /// How long it would hold a frame that came now, in nanoseconds.
    pub hold_ns: u64,
    /// The limit of that: what the latency budget leaves for it, in nanoseconds.
    pub hold_ns_max: u64,
    /// Why so long.
    pub reason: String,
    /// Frames received.
    pub frames: u64,
    /// Interrupts given.
    pub calls: u64,
    /// Interrupts that the guest did not want: it was looking anyway.
    pub calls_suppressed: u64,
    /// How long calls were held, since the interface was added.
    pub held_ns: HoldTimes,
}

impl VifExplanation {
    /// Counts frames and calls from `before` on instead of from the beginning.
    #[must_use]
    pub fn since(mut self, before: &Self) -> Self {
        for (now, before) in self.queues.iter_mut().zip(&before.queues) {
            now.frames = now.frames.saturating_sub(before.frames);
            now.calls = now.calls.saturating_sub(before.calls);
            now.calls_suppressed = now.calls_suppressed.saturating_sub(before.calls_suppressed);
        }
        self.sharing.since(&before.sharing);
        self.receiving.since(&before.receiving);
        self
    }
}

/// The table that `weir explain` prints, about frames and calls of one second.
impl fmt::Display for VifExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CallSettings { moderation, rx_usecs, rx_frames, container_bytes } = self.calls;
        let budget = time(self.latency_budget_ns);
        write!(f, "{}: {}, moderation {moderation}, budget {budget}", self.name, self.state)?;
        if let Some(rx_usecs) = rx_usecs {
            write!(f, ", rx_usecs {rx_usecs}")?;
        }
        if let Some(rx_frames) = rx_frames {
            write!(f, ", rx_frames {rx_frames}")?;
        }
        if let Some(container_bytes) = container_bytes {
            write!(f, ", container_bytes {container_bytes}")?;
        }
        let mut table = Table::new(&[
            "QUEUE",
            "HOLDS",
            "LIMIT",
            "FRAMES/S",
            "CALLS/S",
            "UNWANTED/S",
            "FRAMES/CALL",
            "HELD P50",
            "P99",
            "MAX",
            "<BECAUSE",
        ]);
        for queue in &self.queues {
            table.row(vec![
                queue.queue.to_string(),
                time(queue.hold_ns),
                time(queue.hold_ns_max),
                decimal(queue.frames),
                decimal(queue.calls),
                decimal(queue.calls_suppressed),
                ratio(queue.frames, queue.calls),
                time(queue.held_ns.p50),
                time(queue.held_ns.p99),
                time(queue.held_ns.max),
                queue.reason.clone(),
            ]);
        }
        write!(
            f,
            "\n\n{table}{}{}{}{}",
            self.queue_pairs, self.dispatch, self.sharing, self.receiving
        )?;
        for silent in &self.silent {
            writeln!(f, "{silent}; {}", silent.advice())?;
        }
        if let Some(guard) = &self.guard {
            write!(f, "{guard}")?;
        }
        if let Some(steering) = &self.steering {
            write!(f, "{steering}")?;
        }
        if let Some(split) = &self.split {
            write!(f, "{split}")?;
        }
        match &self.agent {
            Some(agent) => write!(f, "{agent}")?,
            None => writeln!(f, "agent: none is configured")?,
        }
        let breaches = by_reason(&self.budget_breaches);
        if !breaches.is_empty() {
            writeln!(f, "told too late: {breaches}")?;
        }
        rules_table(f, [(self.name.as_str(), self.filter.as_slice())])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Silence;

    fn sample(frames: u64, calls: u64) -> VifExplanation {
        let queue = |queue| QueueExplanation {
            queue,
            moderation: "backend".parse().unwrap(),
            hold_ns: 200_000,
            hold_ns_max: 930_000,
            reason: "rx-usecs".into(),
            frames,
            calls,
            calls_suppressed: 0,
            held_ns: HoldTimes { p50: 150_000, p99: 201_000, max: 240_000 },
        };
        VifExplanation {
            name: "web0".parse().unwrap(),
            state: PortState::Running,
            latency_budget_ns: 1_000_000,
            calls: CallSettings {
                moderation: "backend".parse().unwrap(),
                rx_usecs: Some(200.try_into().unwrap()),
                rx_frames: None,
                container_bytes: None,
            },
            budget_breaches: BTreeMap::from([("asked_late".into(), 2)]),
            queue_pairs: QueuePairNumbers { configured: 4, session: Some(2), in_use: 2 },
            queues: vec![queue(0), queue(1)],
            split: None,
            agent: None,
            filter: Vec::new(),
            dispatch: DispatchExplanation {
                workers: vec![Some(1), None],
                moves: vec![MovedPair {
                    ago_ns: 3_000_000_000,
                    queue: 0,
                    from: 0,
                    to: 1,
                    load: 0.42,
                    reason: "its worker was busier".into(),
                }],
            },
            sharing: SharingExplanation {
                own: PortShare { weight: 2, worker_ns: 10_000 * frames },
                workers: 1,
                elapsed_ns: 20_000 * frames,
                rate_waits: calls,
                ..SharingExplanation::default()
            },
            receiving: ReceivingExplanation::default(),
            guard: None,
            steering: None,
            silent: vec![SilentRing { ring: 1, why: Silence::BuffersWithoutKick }],
        }
    }

    #[test]
    fn explanation_for_people() {
        let explanation = sample(51_000, 5_100).since(&sample(1_000, 100));
        insta::assert_snapshot!(explanation.to_string(), @r"
        web0: running, moderation backend, budget 1 ms, rx_usecs 200

        QUEUE   HOLDS   LIMIT  FRAMES/S  CALLS/S  UNWANTED/S  FRAMES/CALL  HELD P50     P99     MAX  BECAUSE
            0  200 us  930 us    50,000    5,000           0       10.000    150 us  201 us  240 us  rx-usecs
            1  200 us  930 us    50,000    5,000           0       10.000    150 us  201 us  240 us  rx-usecs
        queue pairs: 2 in use of 2; `queues` is 4 now: that is offered when the front end connects again
        workers, by queue: 1, none yet
        3 s ago: queue 0, 42% of a core, from worker 0 to 1: its worker was busier
        share: 100% of the workers' time (500 ms), entitled to 100% (weight 2 of 2 of those that sent); limited by its rate (waits: 5,000)
        ring 1 (tx of queue 0) is never served: there are buffers in it, and a kick never came; the descriptor of SET_VRING_KICK is not the one that the guest's notification ends in: look at the monitor's ioeventfd
        agent: none is configured
        told too late: asked_late 2
        ");
    }

    #[test]
    fn explanation_survives_json() {
        let json = serde_json::to_string(&sample(1, 2)).unwrap();
        assert_eq!(serde_json::from_str::<VifExplanation>(&json).unwrap(), sample(1, 2));
    }
}
