//! The calls (interrupts) of an interface's guest: their policy for the engine, and the checks that its settings fit.

use weir_engine::guest::CallPolicy;
use weir_policy::moderation::Kind;
use weir_text::time;

use super::error::Fault;
use super::moderation::Moderation;
use super::values::{ContainerBytes, LatencyBudget, RxUsecs};
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
