//! What a phase runs on: a switch with two guests.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::figures::{Latency, Sample, Trouble};
use super::guest::{Guest, IdleGuest};
use super::traffic::{Role, Traffic};
use super::{DemoError, Phase};
use crate::config::{
    Config, LatencyBudget, PortName, SocketPath, SwitchConfig, VifConfig, Workers,
};
use crate::stats::{PortState, PortStats, SwitchStats};
use crate::switch::Switch;

/// How long a guest's interface may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(5);
/// How often it is looked at meanwhile.
const START_POLL: Duration = Duration::from_millis(1);

/// A switch with two guests, and traffic between them.
pub(super) struct Rig {
    // Dropped in this order: guests hang up before their switch is gone.
    sender: Guest,
    receiver: Guest,
    switch: Arc<Switch>,
    traffic: Traffic,
    started: Instant,
}

impl Rig {
    /// Starts everything; sockets are made in `dir`.
    pub(super) fn start(phase: Phase, dir: &Path) -> Result<Self, DemoError> {
        let switch = Switch::start(&config(phase, dir)?)?;
        let connect = |role| IdleGuest::connect(role, socket(dir, role.name())?.as_path());
        let sender = connect(Role::Sender)?;
        let receiver = connect(Role::Receiver)?;
        for role in [Role::Sender, Role::Receiver] {
            wait_until(&switch, role, |port| port.state == PortState::Running)?;
        }
        let receiver = receiver.start(phase.traffic)?;
        // Until the receiver has said where it is, frames to it are flooded, and floods don't wait
        // for room.
        wait_until(&switch, Role::Receiver, |port| port.tx.frames > 0)?;
        let sender = sender.start(phase.traffic)?;
        Ok(Self { sender, receiver, switch, traffic: phase.traffic, started: Instant::now() })
    }

    /// Time since the traffic began.
    pub(super) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Whether a guest has given up; [`finish`](Self::finish) says why.
    pub(super) fn has_failed(&self) -> bool {
        self.sender.has_failed() || self.receiver.has_failed()
    }

    /// The counters as they are now.
    pub(super) fn sample(&self) -> Sample {
        let guests = [&self.sender, &self.receiver];
        let measured = match self.traffic.latency_at() {
            Role::Sender => &self.sender,
            Role::Receiver => &self.receiver,
        };
        let latency = measured.stats.latency();
        let latency = (!latency.is_empty()).then(|| Latency {
            p50_ns: latency.value_at_quantile(0.5),
            p99_ns: latency.value_at_quantile(0.99),
        });
        let at = self.elapsed();
        let stats = self.switch.stats();
        let receiver = port(&stats, Role::Receiver);
        let rx = receiver.map(|port| port.rx).unwrap_or_default();
        let loads = guests.map(|guest| guest.stats.snapshot());
        let sum = |counter: fn(&weir_vif::load::LoadSnapshot) -> u64| {
            loads.iter().map(counter).sum::<u64>()
        };
        Sample {
            at,
            frames: rx.frames,
            bytes: rx.bytes,
            calls: rx.calls,
            hold: receiver.map(|port| port.hold_ns).unwrap_or_default(),
            latency,
            lost: sum(|load| load.lost),
            reordered: sum(|load| load.reordered),
            trouble: Trouble {
                retransmitted: sum(|load| load.retransmitted),
                invalid: sum(|load| load.invalid),
                dropped: drops(&stats),
            },
            switch_cpu_ns: stats.workers.iter().map(|worker| worker.cpu_ns).sum(),
            guests_cpu_ns: guests.map(Guest::cpu_ns).iter().sum(),
        }
    }

    /// Ends the traffic and everything else.
    ///
    /// # Errors
    /// [`DemoError::Load`] if a guest had given up.
    pub(super) fn finish(self) -> Result<(), DemoError> {
        self.sender.stop();
        self.receiver.stop();
        self.sender.finish().and(self.receiver.finish())
    }
}

/// A configuration as `weir run` reads one from a file.
fn config(phase: Phase, dir: &Path) -> Result<Config, DemoError> {
    let vif = |role: Role| {
        let mut vif = VifConfig::new(port_name(role), socket(dir, role.name())?);
        vif.moderation = phase.moderation;
        Ok::<_, DemoError>(vif)
    };
    Ok(Config {
        switch: SwitchConfig {
            workers: Workers::Auto,
            latency_budget: LatencyBudget::DEFAULT,
            control: socket(dir, "control")?,
        },
        uplinks: Vec::new(),
        vifs: vec![vif(Role::Sender)?, vif(Role::Receiver)?],
    })
}

fn port_name(role: Role) -> PortName {
    let name = role.name().parse();
    name.expect("a constant that is a valid name")
}

fn socket(dir: &Path, name: &str) -> Result<SocketPath, DemoError> {
    let path = dir.join(name).with_extension("sock");
    SocketPath::try_from(path.as_path()).map_err(|source| DemoError::SocketPath { path, source })
}

fn port(stats: &SwitchStats, role: Role) -> Option<&PortStats> {
    let mut ports = stats.ports.iter();
    ports.find(|port| port.name.as_str() == role.name())
}

/// Dropped frames by the reason's name, of both ports.
fn drops(stats: &SwitchStats) -> BTreeMap<String, u64> {
    let mut drops = BTreeMap::new();
    for (reason, count) in stats.ports.iter().flat_map(|port| &port.drops) {
        *drops.entry(reason.clone()).or_default() += count;
    }
    drops
}

/// Waits until a guest's interface is `ready`: what is sent to it before is lost, as with any
/// machine that boots.
fn wait_until(switch: &Switch, role: Role, ready: fn(&PortStats) -> bool) -> Result<(), DemoError> {
    let start = Instant::now();
    loop {
        let stats = switch.stats();
        let port = port(&stats, role);
        if port.is_some_and(ready) {
            return Ok(());
        }
        let state = port.map(|port| port.state).unwrap_or_default();
        if state == PortState::Stopped || start.elapsed() > START_TIMEOUT {
            let reason = port.and_then(|port| port.stopped_reason.clone());
            return Err(DemoError::NotReady {
                guest: role.name(),
                reason: reason.unwrap_or_else(|| format!("the port is {state}")),
            });
        }
        thread::sleep(START_POLL);
    }
}
