//! The verdict on whether traffic passes at a port, with reasons.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_config::Direction;
use weir_engine::DropReason;

use crate::stats::{BlockStats, PortState, RuleStats, Silence, SilentRing};

/// Drops that are normal in any network, or that do not indicate a fault.
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

/// The verdict reports that no frame has passed only after this many dropped frames. A ping that
/// gets no answer asks for the address three times.
const TELLING: u64 = 3;

/// Facts that show whether traffic passes at a port. Frames and drops count since the port was
/// added.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct TrafficExplanation {
    /// The port's state.
    pub state: PortState,
    /// The reason why the port stopped, or the error of the last session that weir ended.
    pub last_error: Option<String>,
    /// Seconds since that error, if it ended a session.
    pub last_error_s: Option<u64>,
    /// True if the port receives copies of other ports' frames, and nothing else.
    pub is_mirror: bool,
    /// The port's VLANs, in words.
    pub vlan: String,
    /// Other ports in its VLANs that can exchange frames with it.
    pub reaches: u32,
    /// Other ports in its VLANs without a running guest.
    pub silent: u32,
    /// Other ports in its VLANs that are isolated, as this port is.
    pub isolated: u32,
    /// Known stations behind the port.
    pub addresses: u64,
    /// Seconds since one of these stations was last heard.
    pub heard_s: Option<u32>,
    /// A conflict between the guest's ARP requests and its addresses, in a network in which weir has an address.
    pub astray: Option<String>,
    /// Received frames.
    pub rx_frames: u64,
    /// Sent frames.
    pub tx_frames: u64,
    /// Dropped frames of this port, by reason.
    pub drops: BTreeMap<String, u64>,
    /// The reason why no frame has passed since the port was added; set if the counts here cover a
    /// shorter time.
    #[serde(skip)]
    pub(crate) stopped: Option<(Direction, String, u64)>,
}

/// The verdict in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passes {
    /// Traffic passes.
    Yes,
    /// Nothing prevents traffic, but there is none.
    Idle,
    /// Traffic does not pass, or only a part of it.
    No,
}

/// The verdict on whether traffic passes, with reasons.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The verdict in one word.
    pub passes: Passes,
    /// The reasons, the most important first.
    pub because: Vec<String>,
}

impl TrafficExplanation {
    /// Counts frames and drops from `before` on.
    pub(super) fn since(&mut self, before: &Self) {
        let stops = |(reason, drops): (&String, &u64)| {
            let direction = stops_all(reason, *drops, self.rx_frames, self.tx_frames)?;
            Some((direction, reason.clone(), *drops))
        };
        self.stopped = self.drops.iter().find_map(stops);
        self.rx_frames = self.rx_frames.saturating_sub(before.rx_frames);
        self.tx_frames = self.tx_frames.saturating_sub(before.tx_frames);
        for (reason, frames) in &mut self.drops {
            *frames = frames.saturating_sub(before.drops.get(reason).copied().unwrap_or(0));
        }
    }

    /// The verdict. `is_guest` means that a guest is behind the port.
    pub(super) fn verdict(
        &self,
        name: &str,
        is_guest: bool,
        filter: &[RuleStats],
        silent: &[SilentRing],
        blocked: Option<&BlockStats>,
    ) -> Verdict {
        let mut no = self.state_says(name, is_guest);
        let waits = silent.iter().filter(|it| it.why.unanswered().is_some());
        if self.state == PortState::Connected && waits.clone().next().is_some() {
            no = waits.map(ring_says).collect();
        }
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
            if no.is_empty() {
                no.extend(self.stopped_says(name));
            }
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
        because.extend(self.dropped_too(name));
        because.extend(self.astray.clone());
        if is_guest && tx > 0 && rx == 0 && self.astray.is_none() {
            let to_see = "nothing comes to it: if it waits for answers, `ip addr` and `ip route` in the guest";
            because.push(to_see.into());
        }
        if self.isolated > 0 {
            because.push(format!(
                "other `isolated` guests, which it does not reach: {}",
                self.isolated
            ));
        }
        because.extend(self.heard(is_guest));
        Verdict { passes, because }
    }

    fn state_says(&self, name: &str, is_guest: bool) -> Vec<String> {
        let error = self.last_error.as_deref();
        let ago = self.last_error_s.map_or_else(String::new, |seconds| format!(" {seconds} s ago"));
        let last = error.map(|error| format!("the last session ended{ago}: {error}"));
        let says = match (self.state, is_guest) {
            (PortState::Running, _) => return Vec::new(),
            (PortState::Waiting, _) => {
                format!("no VM is connected: start one with $(weir qemu-args {name})")
            }
            (PortState::Connected, _) => {
                "no receive ring runs: the VM was not started, its guest boots still, or its driver is off".into()
            }
            (PortState::Halted, _) => {
                "the VM has stopped the device: its monitor has paused it (cont), its link is off (set_link), or, with \
                 QEMU 7.2, its driver has gone"
                    .into()
            }
            (PortState::Stopped, true) => {
                return vec![format!("weir has stopped it: {}", error.unwrap_or("no reason is known"))];
            }
            (PortState::Stopped, false) => {
                return vec![format!("the way behind it is closed: {}", error.unwrap_or("no reason is known"))];
            }
        };
        [says].into_iter().chain(last).collect()
    }

    /// The reason, if no other port can receive the port's frames.
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

    /// The reason, if at least as many frames were dropped as the port sent or received.
    fn drops_say(&self, name: &str) -> Option<String> {
        let telling =
            self.drops.iter().filter(|(reason, _)| !USUAL_DROPS.contains(&reason.as_str()));
        let (reason, most) = telling.max_by_key(|(_, frames)| **frames)?;
        let all = self.rx_frames.max(self.tx_frames);
        (*most > 0 && *most >= all).then(|| {
            format!("all frames were dropped in this second: {reason} {most}; weir capture {name} --drops")
        })
    }

    /// Drops beside frames that have passed.
    fn dropped_too(&self, name: &str) -> Option<String> {
        let some = self.drops.iter().filter(|(_, frames)| **frames > 0);
        let telling = some.filter(|(reason, _)| !USUAL_DROPS.contains(&reason.as_str()));
        let all = telling.map(|(reason, frames)| format!("{reason} {frames}")).collect::<Vec<_>>();
        let all = Some(all.join(", ")).filter(|all| !all.is_empty())?;
        Some(format!("dropped in this second: {all}; weir capture {name} --drops"))
    }

    /// The reason, if no frame of one direction has ever passed.
    fn stopped_says(&self, name: &str) -> Option<String> {
        let (direction, reason, drops) = self.stopped.as_ref()?;
        let what = if *direction == Direction::Tx { "it has sent" } else { "has come for it" };
        Some(format!(
            "no frame that {what} since it was added has passed: {reason} {drops}; weir capture {name} --drops"
        ))
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
        Silence::NoTranslation { .. } => {
            let why = ring.why.unanswered().unwrap_or_default();
            return format!("ring {} waits: {why}", ring.ring);
        }
    };
    format!("ring {} serves nobody: {why}", ring.ring)
}

/// The direction in which no frame of a port has passed, because of the rule or the fault that `reason` names. The
/// counts are those since the port was added. A frame that the port may not send counts as sent; one that it may not
/// receive does not count as received.
pub fn stops_all(reason: &str, drops: u64, rx_frames: u64, tx_frames: u64) -> Option<Direction> {
    let reason = DropReason::all().find(|it| it.as_str() == reason)?;
    if drops < TELLING || USUAL_DROPS.contains(&reason.as_str()) {
        return None;
    }
    match reason {
        DropReason::Fabric(_)
        | DropReason::FilteredTx
        | DropReason::GroupOut
        | DropReason::OverMtuTx => (drops >= tx_frames).then_some(Direction::Tx),
        DropReason::FilteredRx
        | DropReason::GroupIn
        | DropReason::OverMtuRx
        | DropReason::PolicedRx
        | DropReason::RxBufferTooSmall
        | DropReason::OffloadUnsupported
        | DropReason::DeviceError => (rx_frames == 0).then_some(Direction::Rx),
        // Other drops come and go with buffers, or with single frames.
        _ => None,
    }
}

/// The directions in which rules drop all frames: the rule without an expression drops frames, and the rules before
/// it have accepted none.
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
mod tests {
    use super::*;

    fn running() -> TrafficExplanation {
        TrafficExplanation {
            state: PortState::Running,
            vlan: "VLAN 7".into(),
            reaches: 2,
            addresses: 1,
            heard_s: Some(3),
            ..TrafficExplanation::default()
        }
    }

    fn of(it: &TrafficExplanation) -> (Passes, String) {
        let Verdict { passes, because } = it.verdict("web0", true, &[], &[], None);
        (passes, because.join("; "))
    }

    fn rules(texts: &[(&str, u64)]) -> Vec<RuleStats> {
        let rule = |(text, packets): &(&str, u64)| RuleStats {
            rule: text.parse().unwrap(),
            packets: *packets,
            bytes: 0,
        };
        texts.iter().map(rule).collect()
    }

    #[test]
    fn each_reason_why_nothing_passes_is_said() {
        let (passes, says) = of(&running());
        assert_eq!((passes, says.contains("was heard 3 s ago")), (Passes::Idle, true), "{says}");
        let mute = TrafficExplanation { addresses: 0, heard_s: None, ..running() };
        assert!(of(&mute).1.contains("its guest has not sent a frame"), "{:?}", of(&mute));
        let busy = TrafficExplanation { rx_frames: 7, tx_frames: 9, ..running() };
        assert_eq!(of(&busy).0, Passes::Yes);
        let failed = Some("ring 4 does not exist".to_owned());
        let dropped = [("src_mac_owned".to_owned(), 9)].into();
        for (it, says) in [
            (
                TrafficExplanation {
                    state: PortState::Waiting,
                    last_error: failed.clone(),
                    ..running()
                },
                "ring 4",
            ),
            (TrafficExplanation { state: PortState::Waiting, ..running() }, "weir qemu-args web0"),
            (TrafficExplanation { state: PortState::Connected, ..running() }, "boots still"),
            (TrafficExplanation { state: PortState::Halted, ..running() }, "paused"),
            (
                TrafficExplanation { state: PortState::Stopped, last_error: failed, ..running() },
                "stopped it: ring 4",
            ),
            (TrafficExplanation { reaches: 0, ..running() }, "no other port is in VLAN 7"),
            (TrafficExplanation { reaches: 0, silent: 2, ..running() }, "none of them runs"),
            (
                TrafficExplanation { reaches: 0, silent: 1, isolated: 2, ..running() },
                "it is isolated",
            ),
            (TrafficExplanation { tx_frames: 9, drops: dropped, ..running() }, "src_mac_owned 9"),
        ] {
            let (passes, said) = of(&it);
            assert!(passes == Passes::No && said.contains(says), "{says}: {said}");
        }
        let usual = [("reserved_group_address".to_owned(), 1)].into();
        let lldp = TrafficExplanation { tx_frames: 1, drops: usual, ..running() };
        assert_eq!(of(&lldp).0, Passes::Yes);
        let few = [("rx_ring_full".to_owned(), 1)].into();
        let some = TrafficExplanation { rx_frames: 100, drops: few, ..running() };
        assert_eq!(of(&some).0, Passes::Yes);
        assert!(of(&some).1.contains("dropped in this second: rx_ring_full 1;"), "{:?}", of(&some));
        // Frames go one way only.
        let unanswered = TrafficExplanation { tx_frames: 2, ..running() };
        assert!(of(&unanswered).1.contains("nothing comes to it"), "{:?}", of(&unanswered));
        assert!(!of(&busy).1.contains("nothing comes"), "{:?}", of(&busy));
        let astray = TrafficExplanation { astray: Some("its guest uses X".into()), ..unanswered };
        assert!(
            of(&astray).1.contains("from it; its guest uses X; its guest was"),
            "{:?}",
            of(&astray)
        );
        let isolated = TrafficExplanation { isolated: 1, ..running() };
        assert!(of(&isolated).1.contains("which it does not reach: 1"), "{:?}", of(&isolated));
        let ring = SilentRing { ring: 1, why: Silence::BuffersWithoutKick };
        let verdict = running().verdict("web0", true, &[], &[ring], None);
        assert!(verdict.because[0].contains("ring 1 serves nobody"), "{verdict:?}");
        let waits = Silence::NoTranslation { questions: 1, seconds: 7 };
        let waits = [SilentRing { ring: 0, why: waits }];
        let unknown = TrafficExplanation { state: PortState::Connected, ..running() };
        let verdict = unknown.verdict("web0", true, &[], &waits, None);
        let said =
            "ring 0 waits: the monitor has not answered a question about translations for 7 s";
        assert_eq!((verdict.passes, &*verdict.because), (Passes::No, &[said.to_owned()][..]));
        let filtered = busy.verdict("web0", true, &rules(&[("tx drop", 3)]), &[], None);
        assert!(filtered.because[0].contains("all that it sends"), "{filtered:?}");
        let block = BlockStats {
            with: "db0".parse().unwrap(),
            vlan: 7,
            seconds: 2.0,
            retry_s: 8.0,
            tries: 0,
        };
        let blocked = busy.verdict("web0", true, &[], &[], Some(&block));
        assert!(blocked.passes == Passes::No && blocked.because[0].contains("a loop with db0"));
        let mirror = TrafficExplanation { is_mirror: true, reaches: 0, ..running() };
        assert_eq!(of(&mirror).0, Passes::Idle);
    }

    #[test]
    fn rules_drop_all_where_one_drops_the_rest_and_none_has_let_a_frame_through() {
        let all = |texts: &[(&str, u64)]| drops_all(&rules(texts)).collect::<Vec<_>>();
        assert_eq!(all(&[("tx drop", 1)]), [Direction::Tx]);
        assert_eq!(all(&[("rx accept arp", 0), ("rx drop", 4)]), [Direction::Rx]);
        assert_eq!(
            all(&[("tx drop ip", 2), ("tx drop", 0), ("rx drop", 1)]),
            [Direction::Tx, Direction::Rx]
        );
        for passes in [
            &[("rx accept arp", 1), ("rx drop", 4)][..],
            &[("tx drop tcp", 9)],
            &[("tx drop", 0)],
            &[],
        ] {
            assert_eq!(all(passes), [], "{passes:?}");
        }
    }

    #[test]
    fn what_never_passed_is_said_when_nothing_is_sent_any_more() {
        let of_all = |reason: &str, drops, rx_frames, tx_frames| {
            let drops = [(reason.to_owned(), drops)].into();
            let then = TrafficExplanation { rx_frames, tx_frames, drops, ..running() };
            let mut now = then.clone();
            now.since(&then);
            of(&now)
        };
        // Broadcasts of others still come.
        for (reason, rx, tx, says) in [
            (
                "src_mac_spoofed",
                900,
                5,
                "it has sent since it was added has passed: src_mac_spoofed 5",
            ),
            ("vlan_untagged_on_trunk", 900, 5, "it has sent"),
            ("filtered_rx", 0, 7, "has come for it"),
            ("group_in", 0, 0, "has come for it"),
        ] {
            let (passes, said) = of_all(reason, 5, rx, tx);
            assert!(passes == Passes::No && said.contains(says), "{says}: {said}");
        }
        for (reason, drops, rx, tx) in [
            ("src_mac_spoofed", 5, 0, 6),
            ("src_mac_spoofed", 2, 0, 2),
            ("filtered_rx", 5, 1, 0),
            ("unknown_unicast", 5, 0, 5),
            ("rx_not_ready", 5, 0, 0),
            ("frame_too_short", 5, 0, 5),
        ] {
            assert_eq!(of_all(reason, drops, rx, tx).0, Passes::Idle, "{reason}");
        }
    }
}
