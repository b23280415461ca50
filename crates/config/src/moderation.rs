//! When a guest is called: the policy, what a user may set of it, and what goes together.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use weir_engine::guest::CallPolicy;
use weir_policy::moderation::Kind;
use weir_text::time;

use super::VifConfig;
use super::values::{ContainerBytes, LatencyBudget, RxUsecs, ValueError, serde_as_text};

/// How weir decides when to call (interrupt) a guest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Moderation(pub Kind);

impl Moderation {
    /// The words of the configuration: the policies' own names.
    pub const WORDS: &'static [&'static str] = &Self::words();

    const fn words() -> [&'static str; Kind::ALL.len()] {
        let mut words = [""; Kind::ALL.len()];
        let mut i = 0;
        while i < words.len() {
            words[i] = Kind::ALL[i].as_str();
            i += 1;
        }
        words
    }

    /// The policy makes something of `rx_usecs`.
    pub const fn takes_rx_usecs(self) -> bool {
        matches!(self.0, Kind::Backend | Kind::Aggregate | Kind::AggregateAdaptive)
    }

    /// The policy makes something of `rx_frames`.
    pub const fn takes_rx_frames(self) -> bool {
        self.takes_rx_usecs() || matches!(self.0, Kind::TwoLayer | Kind::Auto)
    }

    /// The policy makes something of `container_bytes`.
    pub const fn takes_container_bytes(self) -> bool {
        matches!(self.0, Kind::Aggregate | Kind::AggregateAdaptive)
    }
}

impl FromStr for Moderation {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let not_a_choice = |_| ValueError::NotAChoice { value: text.into(), choices: Self::WORDS };
        text.parse().map(Self).map_err(not_a_choice)
    }
}

impl fmt::Display for Moderation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

serde_as_text!(Moderation);

/// Settings of one interface's calls that do not go together.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CallsError {
    /// `rx_usecs`, and a policy that makes nothing of it.
    #[error("`rx_usecs` has no effect with moderation \"{0}\"")]
    RxUsecsUnused(Moderation),
    /// `rx_frames`, and a policy that makes nothing of it.
    #[error("`rx_frames` has no effect with moderation \"{0}\"")]
    RxFramesUnused(Moderation),
    /// `container_bytes`, and a policy that makes nothing of it.
    #[error("`container_bytes` has no effect with moderation \"{0}\"")]
    ContainerBytesUnused(Moderation),
    /// `rx_usecs` beyond the budget.
    #[error(
        "`rx_usecs` of {rx_usecs} exceeds the latency budget of {budget}: calls would be held \
         for {}",
        time(*.hold_ns_max)
    )]
    RxUsecsTooLong {
        /// The setting.
        rx_usecs: RxUsecs,
        /// The interface's budget.
        budget: LatencyBudget,
        /// What would hold instead (ns).
        hold_ns_max: u64,
    },
}

impl CallsError {
    /// The key to change.
    pub const fn key(&self) -> &'static str {
        match self {
            Self::RxUsecsUnused(_) | Self::RxUsecsTooLong { .. } => "rx_usecs",
            Self::RxFramesUnused(_) => "rx_frames",
            Self::ContainerBytesUnused(_) => "container_bytes",
        }
    }

    /// What to do about it.
    pub fn help(&self) -> String {
        let takers = |takes: fn(Moderation) -> bool| {
            let kinds = Kind::ALL.iter().map(|kind| Moderation(*kind)).filter(|m| takes(*m));
            let names: Vec<_> = kinds.map(|moderation| moderation.to_string()).collect();
            format!("leave it out, or choose a policy that takes it: {}", names.join(", "))
        };
        match self {
            Self::RxUsecsUnused(_) => takers(Moderation::takes_rx_usecs),
            Self::RxFramesUnused(_) => takers(Moderation::takes_rx_frames),
            Self::ContainerBytesUnused(_) => takers(Moderation::takes_container_bytes),
            Self::RxUsecsTooLong { .. } => "make it shorter, or `latency_budget` longer".into(),
        }
    }
}

impl VifConfig {
    /// When to call the guest, under a budget of `budget`.
    pub fn call_policy(&self, budget: LatencyBudget) -> CallPolicy {
        CallPolicy {
            rx_ns: self.rx_usecs.map(RxUsecs::ns),
            rx_frames: self.rx_frames.map(|frames| frames.get().into()),
            container_bytes: self.container_bytes.map(ContainerBytes::get),
            ..CallPolicy::within(self.moderation.0, budget.ns())
        }
    }

    /// Whether the settings of its calls go together, under a budget of `budget`.
    ///
    /// # Errors
    /// [`CallsError`] for the first that does not.
    pub fn check_calls(&self, budget: LatencyBudget) -> Result<(), CallsError> {
        let moderation = self.moderation;
        if let Some(rx_usecs) = self.rx_usecs {
            if !moderation.takes_rx_usecs() {
                return Err(CallsError::RxUsecsUnused(moderation));
            }
            if rx_usecs.ns() > budget.ns() {
                let hold_ns_max = self.call_policy(budget).hold_ns_max();
                return Err(CallsError::RxUsecsTooLong { rx_usecs, budget, hold_ns_max });
            }
        }
        if self.rx_frames.is_some() && !moderation.takes_rx_frames() {
            return Err(CallsError::RxFramesUnused(moderation));
        }
        if self.container_bytes.is_some() && !moderation.takes_container_bytes() {
            return Err(CallsError::ContainerBytesUnused(moderation));
        }
        Ok(())
    }

    /// What a user should know about a budget of `budget` for this interface, if its policy then holds no calls.
    pub fn calls_note(&self, budget: LatencyBudget) -> Option<String> {
        let (name, moderation) = (&self.name, self.moderation);
        if matches!(moderation.0, Kind::Immediate | Kind::Frontend) {
            return None;
        }
        match budget.ns() {
            0 => Some(format!(
                "vif.{name}: with a latency budget of 0 moderation \"{moderation}\" holds no call"
            )),
            _ if self.call_policy(budget).hold_ns_max() == 0 => Some(format!(
                "vif.{name}: a latency budget of {budget} is finer than timers are: moderation \
                 \"{moderation}\" holds no call"
            )),
            _ => None,
        }
    }
}
