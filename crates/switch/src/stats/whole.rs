//! Facts of the whole switch: limits and their usage, workers and the costs of their stages, loops that block ports,
//! and groups of multicast behind ports.

use std::collections::BTreeMap;
use std::net::IpAddr;

use rustix::process::{Resource, getrlimit};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_config::PortName;
use weir_engine::stages::{self, Stage, StageCosts};

use crate::manager::PlacementCounts;

/// Counters of loop detection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LoopStats {
    /// Suspected loops for which probes were sent.
    pub suspected: u64,
    /// Loops that probes have confirmed. Each one blocked a port.
    pub found: u64,
}

/// A blocked port: frames that leave by it come back by another port, or the other way round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BlockStats {
    /// The port to which it is joined outside the switch; the port itself if its guest sends back the frames that it
    /// receives.
    pub with: PortName,
    /// The VLAN in which the loop was found, or 4096 plus a network's number.
    pub vlan: u16,
    /// Time since the port was blocked (s).
    pub seconds: f64,
    /// Time until weir probes the loop again (s).
    pub retry_s: f64,
    /// Probes of the loop since the port was blocked.
    pub tries: u64,
}

/// Multicast snooping in a VLAN, for one IP version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MulticastStats {
    /// The VLAN, or 4096 plus a network's number.
    pub vlan: u16,
    /// The IP version: 4 or 6.
    pub ip: u8,
    /// The querier's address; without one all groups are flooded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub querier: Option<IpAddr>,
    /// The port behind which the querier is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub querier_port: Option<PortName>,
    /// Memberships, in the order of groups: as many as an answer has room for.
    #[serde(default)]
    pub members: Vec<MemberStats>,
    /// Ports that get all groups, because they report more than they may.
    #[serde(default)]
    pub over: Vec<PortName>,
    /// The number of memberships and of such ports beyond those that the answer shows.
    #[serde(default)]
    pub unshown: u64,
}

/// A port that is a member of a multicast group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemberStats {
    /// The group.
    #[schema(value_type = String)]
    pub group: IpAddr,
    /// The port.
    pub port: PortName,
    /// Seconds until the membership ends without another report.
    pub left_s: u32,
}

/// Limits by name.
pub type Limits = BTreeMap<String, Limit>;

/// A limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Limit {
    /// The amount in use.
    pub used: u64,
    /// The greatest amount.
    pub max: u64,
}

impl Limit {
    /// `used` of `max`.
    pub fn new(used: impl TryInto<u64>, max: impl TryInto<u64>) -> Self {
        let number = |number: Option<u64>| number.unwrap_or(u64::MAX);
        Self { used: number(used.try_into().ok()), max: number(max.try_into().ok()) }
    }

    /// The usage in percent. It can exceed 100.
    pub fn percent(self) -> u64 {
        let Self { used, max } = self;
        // A limit of 0 counts as 1, so that nothing is divided by zero.
        let percent = u128::from(used) * 100 / u128::from(max.max(1));
        percent.try_into().unwrap_or(u64::MAX)
    }
}

/// Limits with their names.
pub fn limits<const N: usize>(named: [(&str, Limit); N]) -> Limits {
    named.map(|(name, limit)| (name.to_owned(), limit)).into()
}

/// Descriptors of this process; none if the kernel does not tell.
pub fn descriptors() -> Option<Limit> {
    let open = std::fs::read_dir("/proc/self/fd").ok()?.count();
    let max = getrlimit(Resource::Nofile).current;
    Some(Limit::new(open, max.unwrap_or(u64::MAX)))
}

/// Counters of placement, since the switch started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlacementStats {
    /// Moves of a worker to other CPUs.
    pub moves: u64,
    /// Moves of a virtual processor to other CPUs.
    pub vcpu_moves: u64,
    /// Moves that the kernel refused.
    pub refused: u64,
}

impl From<&PlacementCounts> for PlacementStats {
    fn from(counts: &PlacementCounts) -> Self {
        Self {
            moves: counts.moves.get(),
            vcpu_moves: counts.vcpu_moves.get(),
            refused: counts.refused.get(),
        }
    }
}

/// Costs of the stages in one worker, see [`weir_engine::stages`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StageStats {
    /// The worker's number.
    pub worker: u32,
    /// Bursts that were measured.
    pub bursts: u64,
    /// Frames in these bursts.
    pub frames: u64,
    /// The unit of the costs.
    pub unit: String,
    /// Total cost of these bursts, by the stage's name.
    pub cost: BTreeMap<String, u64>,
}

impl StageStats {
    /// The costs of all workers of this process, if stages are being measured.
    pub fn of_this_process() -> Vec<Self> {
        if stages::is_on() { stages::costs().map(Self::from).collect() } else { Vec::new() }
    }
}

/// Built from a worker's number and its costs.
impl From<(usize, StageCosts)> for StageStats {
    fn from((worker, costs): (usize, StageCosts)) -> Self {
        let cost = Stage::ALL.iter().zip(costs.ticks);
        Self {
            worker: u32::try_from(worker).unwrap_or(u32::MAX),
            bursts: costs.bursts,
            frames: costs.frames,
            unit: stages::UNIT.into(),
            cost: cost.map(|(stage, ticks)| (stage.as_str().to_owned(), ticks)).collect(),
        }
    }
}
