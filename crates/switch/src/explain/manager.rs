//! What the manager makes of the latency budget, and what it knows of the guests' agents.

use std::fmt;

use serde::{Deserialize, Serialize};
use weir_config::{PortName, SocketPath};
use weir_text::{decimal, time};

use super::{DispatchExplanation, SteeringExplanation};

/// How an interface's budget is split between the uplinks and its calls (Dong 2011 Eq. 4), and from
/// which numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitExplanation {
    /// T_p: how long uplinks may gather frames, in nanoseconds.
    pub uplink_ns: u64,
    /// T_v: how long calls may be held, in nanoseconds.
    pub vif_ns: u64,
    /// For how long both have been so, in nanoseconds.
    pub stands_for_ns: u64,
    /// Why the uplinks have that much.
    pub reason: String,
    /// n: interfaces with traffic.
    pub vifs: u32,
    /// C_p: what an uplink's wake-up costs.
    pub uplink_cost: CostExplanation,
    /// C_v: what a call costs.
    pub call_cost: CostExplanation,
    /// Holds are shortened now and then, so that calls vary and what they cost shows.
    #[serde(default)]
    pub varies: bool,
}

/// What something costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CostExplanation {
    /// CPU time, in nanoseconds.
    pub ns: u64,
    /// The standard error of that, in nanoseconds, where it is an estimate of weir's.
    pub error_ns: Option<u64>,
    /// Who says so.
    pub source: CostSource,
}

/// Who says what something costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CostSource {
    /// The agent in the guest.
    Agent,
    /// Least squares over CPU times and counts.
    Regression,
    /// Nobody yet: a usual number.
    Default,
}

/// The agent of the virtual machine that an interface belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentExplanation {
    /// Where weir meets it.
    pub socket: SocketPath,
    /// Whether it is there.
    pub state: AgentState,
    /// Its release, while it is there.
    pub version: Option<String>,
    /// At what interval it has been asked to let the guest poll, in nanoseconds.
    pub asked_poll_ns: Option<u64>,
    /// At what interval the guest polls, as it says, in nanoseconds.
    pub poll_ns: Option<u64>,
    /// Interrupts of the interface in a second, as it says.
    pub interrupts_per_s: Option<u64>,
    /// Under `auto`: why the guest polls or does not.
    #[serde(default)]
    pub why: Option<String>,
    /// What went wrong last.
    pub error: Option<String>,
}

/// Whether an agent is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentState {
    /// The virtual machine has not opened the socket.
    Waiting,
    /// It has, and no agent speaks.
    Silent,
    /// An agent is there, and knows nothing of this interface.
    Elsewhere,
    /// An agent is there.
    Connected,
}

/// What an uplink does with the frames that come in on it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UplinkExplanation {
    /// The uplink.
    pub name: PortName,
    /// The interface of the host.
    pub interface: String,
    /// How long frames gather at it.
    pub layer: UplinkLayer,
    /// C_p: what a wake-up by it costs.
    pub cost: CostExplanation,
    /// Which workers serve its queues.
    #[serde(default)]
    pub dispatch: DispatchExplanation,
    /// How flows to it are spread over several queues; none where it has one.
    #[serde(default)]
    pub steering: Option<SteeringExplanation>,
}

/// How long frames gather at an uplink.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum UplinkLayer {
    /// A TAP has no interval to set: frames wait for a worker only.
    WorkerOnly,
    /// As the host had it set.
    AsFound,
    /// For T_p: weir has set it.
    Gathers {
        /// T_p, in nanoseconds, or what the card's driver made of it, which is no more.
        uplink_ns: u64,
        /// What of it.
        by: Gatherer,
    },
    /// It cannot be set.
    Refused {
        /// Why not.
        reason: String,
    },
}

/// What has frames wait at an uplink.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gatherer {
    /// The network card.
    RxUsecs {
        /// What weir found, in microseconds, and restores.
        found_usecs: u32,
    },
    /// The kernel's timer of the interface.
    NapiTimer {
        /// Why not the card.
        why: String,
    },
}

impl fmt::Display for Gatherer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RxUsecs { found_usecs } => write!(f, "rx-usecs, found: {found_usecs}"),
            Self::NapiTimer { why } => write!(f, "gro_flush_timeout; {why}"),
        }
    }
}

impl fmt::Display for SplitExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "split: {} for uplinks, {} for calls, for {}: {}",
            time(self.uplink_ns),
            time(self.vif_ns),
            time(self.stands_for_ns),
            self.reason
        )?;
        let Self { vifs, uplink_cost, call_cost, .. } = self;
        writeln!(
            f,
            "costs: wake-up {uplink_cost}, call {call_cost}; interfaces with traffic: {vifs}"
        )?;
        if self.varies {
            writeln!(f, "holds are shortened now and then, to find out what a call costs")?;
        }
        Ok(())
    }
}

impl fmt::Display for CostExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", time(self.ns))?;
        match (self.source, self.error_ns) {
            (CostSource::Agent, _) => write!(f, " (the agent says)"),
            (CostSource::Regression, Some(error_ns)) => write!(f, " +- {}", time(error_ns)),
            (CostSource::Regression, None) => Ok(()),
            (CostSource::Default, _) => write!(f, " (not known yet)"),
        }
    }
}

impl fmt::Display for AgentExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let poll =
            |ns: Option<u64>| ns.map_or("no timer".into(), |ns| format!("{} timer", time(ns)));
        match (self.state, &self.version) {
            (AgentState::Waiting, _) => write!(f, "agent: nobody on {}", self.socket)?,
            (AgentState::Silent, _) => write!(f, "agent: none speaks on {}", self.socket)?,
            (AgentState::Elsewhere, _) => {
                write!(
                    f,
                    "agent: connected, and the guest has no interface with this MAC address"
                )?;
            }
            (AgentState::Connected, version) => {
                let version = version.as_deref().unwrap_or("of unknown release");
                write!(f, "agent: {version}, guest polls by {}", poll(self.poll_ns))?;
                if self.asked_poll_ns != self.poll_ns {
                    write!(f, " (asked for {})", poll(self.asked_poll_ns))?;
                }
                if let Some(interrupts) = self.interrupts_per_s {
                    write!(f, ", {} interrupts/s", decimal(interrupts))?;
                }
                if let Some(why) = &self.why {
                    write!(f, "; {why}")?;
                }
            }
        }
        match &self.error {
            Some(error) => writeln!(f, "; last error: {error}"),
            None => writeln!(f),
        }
    }
}

impl fmt::Display for UplinkExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: interface {}, ", self.name, self.interface)?;
        match &self.layer {
            UplinkLayer::WorkerOnly => {
                writeln!(f, "a TAP: frames wait for a worker only, no interval can be set")?;
            }
            UplinkLayer::AsFound => writeln!(f, "interrupts as the host has them set")?,
            UplinkLayer::Gathers { uplink_ns, by } => {
                writeln!(f, "gathers frames for {} ({by})", time(*uplink_ns))?;
            }
            UplinkLayer::Refused { reason } => writeln!(f, "no interval can be set: {reason}")?,
        }
        writeln!(f, "costs: wake-up {}", self.cost)?;
        self.dispatch.fmt(f)?;
        self.steering.as_ref().map_or(Ok(()), |steering| steering.fmt(f))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(state: AgentState) -> AgentExplanation {
        AgentExplanation {
            socket: "/run/weir/web0.agent".parse().unwrap(),
            state,
            version: Some("0.1.0".into()),
            asked_poll_ns: Some(625_000),
            poll_ns: None,
            interrupts_per_s: Some(2_800),
            why: Some("it is being tried".into()),
            error: Some("read-only".into()),
        }
    }

    #[test]
    fn split_and_costs_for_people() {
        let cost = |source, error_ns| CostExplanation { ns: 4_200, error_ns, source };
        let split = SplitExplanation {
            uplink_ns: 300_000,
            vif_ns: 630_000,
            stands_for_ns: 12_000_000_000,
            reason: "what costs least".into(),
            vifs: 3,
            uplink_cost: cost(CostSource::Regression, Some(310)),
            call_cost: cost(CostSource::Agent, None),
            varies: false,
        };
        let varies = SplitExplanation { varies: true, ..split.clone() }.to_string();
        assert!(varies.starts_with(&split.to_string()) && varies.contains("shortened"), "{varies}");
        insta::assert_snapshot!(split.to_string(), @r"
        split: 300 us for uplinks, 630 us for calls, for 12 s: what costs least
        costs: wake-up 4.2 us +- 310 ns, call 4.2 us (the agent says); interfaces with traffic: 3
        ");
        let unknown = cost(CostSource::Default, None);
        let uplink = |layer| {
            let (name, interface) = ("lan".parse().unwrap(), "eth0".into());
            let dispatch = DispatchExplanation { workers: vec![Some(0)], moves: Vec::new() };
            UplinkExplanation { name, interface, layer, cost: unknown, dispatch, steering: None }
                .to_string()
        };
        let gathers = |by| uplink(UplinkLayer::Gathers { uplink_ns: 300_000, by });
        insta::assert_snapshot!(gathers(Gatherer::RxUsecs { found_usecs: 3 }), @r"
        lan: interface eth0, gathers frames for 300 us (rx-usecs, found: 3)
        costs: wake-up 4.2 us (not known yet)
        workers, by queue: 0
        ");
        let timer = gathers(Gatherer::NapiTimer { why: "the driver has no rx-usecs".into() });
        assert!(timer.contains("(gro_flush_timeout; the driver has no rx-usecs)"), "{timer}");
        assert!(uplink(UplinkLayer::WorkerOnly).contains("no interval can be set"));
        assert!(uplink(UplinkLayer::Refused { reason: "EPERM".into() }).contains("EPERM"));
    }

    #[test]
    fn agents_for_people() {
        let lines = [AgentState::Waiting, AgentState::Silent, AgentState::Elsewhere]
            .map(|state| AgentExplanation { error: None, ..agent(state) }.to_string());
        insta::assert_snapshot!(lines.concat() + &agent(AgentState::Connected).to_string(), @r"
        agent: nobody on /run/weir/web0.agent
        agent: none speaks on /run/weir/web0.agent
        agent: connected, and the guest has no interface with this MAC address
        agent: 0.1.0, guest polls by no timer (asked for 625 us timer), 2,800 interrupts/s; it is being tried; last error: read-only
        ");
    }
}
