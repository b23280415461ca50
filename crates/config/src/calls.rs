//! The calls (interrupts) of an interface's guest: the policy of moderation, and the settings that it takes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use weir_engine::guest::CallPolicy;
use weir_policy::moderation::Kind;
use weir_text::time;

use super::error::Fault;
use super::section::from_toml_string;
use super::values::{ContainerBytes, LatencyBudget, RxUsecs, ValueError, serde_as_text};
use super::vif::VifConfig;

impl VifConfig {
    /// The call policy of the guest, within the latency budget `budget`.
    pub fn call_policy(&self, budget: LatencyBudget) -> CallPolicy {
        CallPolicy {
            rx_ns: self.rx_usecs.map(RxUsecs::ns),
            rx_frames: self.rx_frames.map(|frames| frames.get().into()),
            container_bytes: self.container_bytes.map(ContainerBytes::get),
            ..CallPolicy::within(self.moderation.0, budget.ns())
        }
    }

    /// Settings of the calls that do not fit the policy or the latency budget `budget`.
    pub(super) fn call_faults(&self, budget: LatencyBudget) -> Vec<Fault> {
        let moderation = self.moderation;
        type Takes = fn(Moderation) -> bool;
        let keys: [(_, _, Takes); 3] = [
            ("rx_usecs", self.rx_usecs.is_some(), Moderation::takes_rx_usecs),
            ("rx_frames", self.rx_frames.is_some(), Moderation::takes_rx_frames),
            ("container_bytes", self.container_bytes.is_some(), Moderation::takes_container_bytes),
        ];
        let unused = keys.into_iter().filter(|(_, has, takes)| *has && !takes(moderation));
        let mut faults: Vec<_> = unused
            .map(|(key, _, takes)| {
                let takers = Kind::ALL.iter().copied().map(Moderation).filter(|it| takes(*it));
                let takers: Vec<_> = takers.map(|it| it.to_string()).collect();
                Fault {
                    keys: [key, "moderation"],
                    reason: format!("`{key}` has no effect with moderation \"{moderation}\""),
                    help: format!(
                        "leave it out, or choose a policy that takes it: {}",
                        takers.join(", ")
                    ),
                }
            })
            .collect();
        if let Some(rx_usecs) =
            self.rx_usecs.filter(|it| moderation.takes_rx_usecs() && it.ns() > budget.ns())
        {
            let holds = time(self.call_policy(budget).hold_ns_max());
            faults.push(Fault {
                keys: ["rx_usecs", "latency_budget"],
                reason: format!(
                    "`rx_usecs` of {rx_usecs} exceeds the latency budget of {budget}: calls would be held for {holds}"
                ),
                help: "make it shorter, or `latency_budget` longer".into(),
            });
        }
        faults
    }

    /// A note for the user if the interface's policy can hold no calls within the latency budget `budget`.
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

/// The policy that decides when weir calls (interrupts) a guest.
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

    /// True if the policy uses `rx_usecs`.
    pub const fn takes_rx_usecs(self) -> bool {
        matches!(self.0, Kind::Backend | Kind::Aggregate | Kind::AggregateAdaptive)
    }

    /// True if the policy uses `rx_frames`.
    pub const fn takes_rx_frames(self) -> bool {
        self.takes_rx_usecs() || matches!(self.0, Kind::TwoLayer | Kind::Auto)
    }

    /// True if the policy uses `container_bytes`.
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

from_toml_string! {
    Moderation = "the name of a policy in quotes, such as \"immediate\"";
}
