//! Whether traffic passes at a port, and if not, why.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_config::Direction;

use crate::stats::{BlockStats, PortState, RuleStats, Silence, SilentRing};

/// Drops that every network has, or that say nothing of a fault.
pub const USUAL_DROPS: [&str; 8] = [
    "hairpin",
    "isolated",
    "multicast_unwanted",
    "port_inactive",
    "port_unknown",
    "reserved_group_address",
    "tx_stopped",
    "unknown_unicast",
];

/// What says whether traffic passes at a port. Frames and drops count since the port was added.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct TrafficExplanation {
    /// How far the port has come.
    pub state: PortState,
    /// Why it stopped, or what ended the last session that weir had to end.
    pub last_error: Option<String>,
    /// It gets copies of other ports' frames, and nothing else.
    pub is_mirror: bool,
    /// The VLANs that it is in, in words.
    pub vlan: String,
    /// Other ports in its VLANs that send and receive.
    pub reaches: u32,
    /// Others in its VLANs where nobody is.
    pub silent: u32,
    /// Others in its VLANs that are isolated, as it is.
    pub isolated: u32,
    /// Stations that are known behind it.
    pub addresses: u64,
    /// Seconds since the last one of them was heard.
    pub heard_s: Option<u32>,
    /// Frames that it received.
    pub rx_frames: u64,
    /// Frames that it sent.
    pub tx_frames: u64,
    /// Frames that were dropped on its account, by reason.
    pub drops: BTreeMap<String, u64>,
}

/// Whether traffic passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passes {
    /// It does.
    Yes,
    /// Nothing is in its way, and there is none.
    Idle,
    /// It does not, or not all of it.
    No,
}

/// Why something cannot pass, or what is to be known where it can.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// In a word.
    pub passes: Passes,
    /// The reasons, the weightiest first.
    pub because: Vec<String>,
}

impl TrafficExplanation {
    /// Counts frames and drops from `before` on.
    pub(super) fn since(&mut self, before: &Self) {
        self.rx_frames = self.rx_frames.saturating_sub(before.rx_frames);
        self.tx_frames = self.tx_frames.saturating_sub(before.tx_frames);
        for (reason, frames) in &mut self.drops {
            *frames = frames.saturating_sub(before.drops.get(reason).copied().unwrap_or(0));
        }
    }

    /// What it comes to. `is_guest` says that a guest is behind the port.
    pub(super) fn verdict(
        &self,
        name: &str,
        is_guest: bool,
        filter: &[RuleStats],
        silent: &[SilentRing],
        blocked: Option<&BlockStats>,
    ) -> Verdict {
        let mut no = self.state_says(name, is_guest);
        if self.state == PortState::Running {
            if self.is_mirror {
                let because =
                    vec!["it gets copies of other ports' frames, and sends nothing".into()];
                return Verdict { passes: Passes::Idle, because };
            }
            no.extend(blocked.map(|it| {
                let (with, retry_s) = (&it.with, it.retry_s);
                format!("it is blocked, as part of a loop with {with}, and is tried again in {retry_s:.0} s")
            }));
            no.extend(silent.iter().map(ring_says));
            no.extend(self.alone());
            no.extend(drops_all(filter).map(|direction| {
                let what = if direction == Direction::Tx { "sends" } else { "is to receive" };
                format!("a filter drops all that it {what}: weir filter list {name}")
            }));
            no.extend(self.drops_say(name));
        }
        if !no.is_empty() {
            return Verdict { passes: Passes::No, because: no };
        }
        let moved = self.rx_frames + self.tx_frames;
        let (rx, tx) = (self.rx_frames, self.tx_frames);
        let (passes, mut because) = match moved {
            0 => (
                Passes::Idle,
                vec!["nothing is in the way, and no frame came in this second".into()],
            ),
            _ => (Passes::Yes, vec![format!("{rx} frames/s to it, {tx} frames/s from it")]),
        };
        because.extend(self.heard(is_guest));
        Verdict { passes, because }
    }

    fn state_says(&self, name: &str, is_guest: bool) -> Vec<String> {
        let error = self.last_error.as_deref();
        let last = error.map(|error| format!("the last session ended: {error}"));
        let says = match (self.state, is_guest) {
            (PortState::Running, _) => return Vec::new(),
            (PortState::Waiting, _) => {
                format!("no VM is connected: start one with $(weir qemu-args {name})")
            }
            (PortState::Connected, _) => {
                "no receive ring runs: the VM was not started, its guest boots still, or its driver is off".into()
            }
            (PortState::Halted, _) => {
                "the VM has stopped the device: its monitor has paused it (cont), or its link is off (set_link)".into()
            }
            (PortState::Stopped, true) => {
                return vec![format!("weir has stopped it: {}", error.unwrap_or("no reason is known"))];
            }
            (PortState::Stopped, false) => {
                return vec![format!("its interface is closed: {}", error.unwrap_or("no reason is known"))];
            }
        };
        [says].into_iter().chain(last).collect()
    }

    /// Where nobody could get its frames.
    fn alone(&self) -> Option<String> {
        if self.reaches > 0 {
            return None;
        }
        let vlan = &self.vlan;
        Some(match (self.isolated, self.silent) {
            (0, 0) => format!("no other port is in {vlan}"),
            (0, silent) => {
                format!(
                    "nobody is there to reach: other ports in {vlan}: {silent}, and none of them runs"
                )
            }
            (isolated, _) => {
                format!("it is isolated, and so is everybody in {vlan}: {isolated}")
            }
        })
    }

    /// Where as many frames were dropped as it sent or received.
    fn drops_say(&self, name: &str) -> Option<String> {
        let telling =
            self.drops.iter().filter(|(reason, _)| !USUAL_DROPS.contains(&reason.as_str()));
        let (reason, most) = telling.max_by_key(|(_, frames)| **frames)?;
        let all = self.rx_frames.max(self.tx_frames);
        (*most > 0 && *most >= all).then(|| {
            format!("all frames were dropped in this second: {reason} {most}; weir capture {name} --drops")
        })
    }

    fn heard(&self, is_guest: bool) -> Option<String> {
        let who = if is_guest { "its guest" } else { "somebody behind it" };
        match (self.heard_s, self.addresses) {
            (Some(age_s), _) => Some(format!("{who} was heard {age_s} s ago")),
            (None, 0) => Some(format!("{who} has not sent a frame since it came")),
            (None, _) => None,
        }
    }
}

fn ring_says(ring: &SilentRing) -> String {
    let why = match ring.why {
        Silence::KicksWithoutBuffers { .. } => "kicks come, and no buffer is where weir looks",
        Silence::BuffersWithoutKick => "buffers are in it, and a kick never came",
        Silence::NoCallDescriptor => "its driver cannot be told of frames",
    };
    format!("ring {} serves nobody: {why}", ring.ring)
}

/// The directions in which rules drop all frames: one of them drops whatever comes to it, and those before let none
/// through.
pub fn drops_all(rules: &[RuleStats]) -> impl Iterator<Item = Direction> {
    [Direction::Tx, Direction::Rx].into_iter().filter(|direction| {
        let of = || rules.iter().filter(|it| it.rule.direction == *direction);
        let is_drop = |it: &&RuleStats| it.rule.action == weir_config::FilterAction::Drop;
        let drops_rest = of().any(|it| is_drop(&it) && it.rule.expression.is_empty());
        let dropped: u64 = of().filter(is_drop).map(|it| it.packets).sum();
        let accepted: u64 = of().filter(|it| !is_drop(it)).map(|it| it.packets).sum();
        drops_rest && dropped > 0 && accepted == 0
    })
}

#[cfg(test)]
mod tests;
