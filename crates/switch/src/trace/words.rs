//! The steps of a frame's path in words.

use std::collections::{BTreeMap, BTreeSet};

use weir_config::{Direction, PortName, VifGroups};
use weir_engine::burst::FrameError;
use weir_engine::filter::Action;
use weir_engine::guest::QueueDecision;
use weir_engine::trace::{Queue, Step};
use weir_fabric::fdb::Learned;
use weir_fabric::{DropReason, EgressTag, Forward, PortId, Thought};
use weir_limits::{FRAME_LEN_MAX, FRAME_LEN_MIN};
use weir_wire::{Ethernet, TagProtocol, Tci};

use super::{Trace, TraceRefused, TraceStep};
use crate::control::Response;
use crate::switch::Switch;

/// Named facts about a port.
struct Named {
    name: PortName,
    /// The rules that match, by direction and place.
    rules: BTreeMap<(bool, usize), String>,
    decisions: Vec<QueueDecision>,
    budget_ns: Option<u64>,
    isolated: bool,
    groups: VifGroups,
}

impl Switch {
    /// The path of a frame that `name` would send now. `frame` begins with the destination address. Nothing is
    /// counted, learned or delivered.
    ///
    /// # Errors
    /// [`TraceRefused`]
    pub fn trace(&self, name: &PortName, frame: &[u8]) -> Result<Trace, TraceRefused> {
        let id = self.port_id(name)?;
        let fits = u32::try_from(frame.len());
        if !fits.is_ok_and(|len| (FRAME_LEN_MIN..=FRAME_LEN_MAX).contains(&len)) {
            return Err(TraceRefused::Length(frame.len()));
        }
        let steps = self.engine().trace(id, frame);
        let ports = self.named_ports(&steps);
        let vlan = steps.iter().find_map(|step| match step {
            Step::Fabric(Thought { vid, .. }) => vid.map(|vid| self.vlan_name(vid)),
            _ => None,
        });
        let ethernet = Ethernet::parse(frame).ok();
        let overlay = self.overlay_id();
        let own = self.gateway_ids();
        let words = Words { switch: self, ports: &ports, sender: id, ethernet, vlan, overlay, own };
        let delivered = steps.iter().filter_map(|step| match step {
            Step::Delivered { port } => words.of(*port).map(|port| port.name.clone()),
            _ => None,
        });
        let delivered = delivered.collect();
        let mut queue = None;
        let mut told = Vec::new();
        for step in steps {
            if let Step::Receiver { queue: chosen, .. } = step {
                queue = chosen;
            }
            words.tell(&step, queue, &mut told);
        }
        Ok(Trace { steps: told, delivered })
    }

    /// The answer to a request for a trace.
    pub(crate) fn traced(&self, name: &PortName, frame: &[u8]) -> Response {
        match self.trace(name, frame) {
            Ok(trace) => Response::Traced { trace },
            Err(TraceRefused::NoSuchPort(absent)) => Response::from(&absent),
            Err(refused) => Response::error(refused.to_string()),
        }
    }

    /// Facts about all ports. Of rules and decisions, of which a thousand ports have many, only those that `steps` need.
    fn named_ports(&self, steps: &[Step]) -> BTreeMap<PortId, Named> {
        let groups = self.groups_of_ports();
        let (mut matched, mut delivered) = (BTreeMap::<_, Vec<_>>::new(), BTreeSet::new());
        for step in steps {
            match *step {
                Step::Filter { port, receives, rule: Some(place), .. } => {
                    matched.entry(port).or_default().push((receives, place));
                }
                Step::Delivered { port } => drop(delivered.insert(port)),
                _ => {}
            }
        }
        let ports = self.each_port(|id, name, rules, vif| {
            let text = |&(receives, place): &(bool, usize)| {
                let mut all = rules.iter().filter(|rule| rule.direction == direction(receives));
                Some(((receives, place), all.nth(place)?.to_string()))
            };
            let guest = vif.filter(|_| delivered.contains(&id));
            let named = Named {
                name: name.clone(),
                rules: matched.get(&id).into_iter().flatten().filter_map(text).collect(),
                decisions: guest.map(|vif| vif.0.interface().decisions()).unwrap_or_default(),
                budget_ns: vif.map(|vif| vif.1.ns()),
                isolated: self.engine().fabric().view().is_isolated(id),
                groups: groups.get(name).cloned().unwrap_or_default(),
            };
            (id, named)
        });
        ports.into_iter().collect()
    }
}

fn direction(receives: bool) -> Direction {
    if receives { Direction::Rx } else { Direction::Tx }
}

struct Words<'t> {
    switch: &'t Switch,
    ports: &'t BTreeMap<PortId, Named>,
    sender: PortId,
    ethernet: Option<Ethernet>,
    /// The name of the frame's VLAN for users.
    vlan: Option<String>,
    overlay: Option<PortId>,
    /// weir's own ports.
    own: Vec<PortId>,
}

impl Words<'_> {
    fn of(&self, id: PortId) -> Option<&Named> {
        self.ports.get(&id)
    }

    fn name(&self, id: PortId) -> String {
        self.of(id).map_or_else(|| format!("port {id}"), |port| port.name.to_string())
    }

    /// Puts `step` into words. `queue` is the receive queue that was chosen last.
    fn tell(&self, step: &Step, queue: Option<Queue>, told: &mut Vec<TraceStep>) {
        let mut say = |stage: &'static str, port: PortId, says: String| {
            let port = self.name(port);
            told.push(TraceStep { stage: stage.into(), port, says, dropped: None });
        };
        match *step {
            Step::Taken { len, tag, still_tagged } => {
                let more = if still_tagged { ", with another tag behind that" } else { "" };
                say("taken", self.sender, format!("{len} bytes, {}{more}", tagged(tag)));
            }
            Step::Refused(error) => say("taken", self.sender, refused(&error)),
            Step::Filter { port, receives, rule, rules, action } => {
                say("filter", port, self.filter(port, receives, rule, rules, action));
            }
            Step::Groups { port, receives, decision } => {
                let none = VifGroups::default();
                let groups = self.of(port).map_or(&none, |port| &port.groups);
                say("groups", port, self.switch.group_words(groups, receives, decision));
            }
            Step::Mtu { port, receives, len_max, over } => {
                let verb = if receives { "receive" } else { "send" };
                let is = if over { "longer" } else { "not longer" };
                say(
                    "mtu",
                    port,
                    format!("may {verb} frames of {len_max} bytes: the frame is {is}"),
                );
            }
            Step::SourceGuard(refused) => say("source_guard", self.sender, guard(refused)),
            Step::Fabric(thought) => self.fabric(&thought, &mut say),
            Step::Storm { limited, dropped } => {
                let says = match (limited, dropped) {
                    (false, _) => "has no limit for frames that go to everybody",
                    (true, None) => "is within its limit for frames that go to everybody",
                    (true, Some(_)) => "has had more such frames flooded than it may",
                };
                say("storm_control", self.sender, says.into());
            }
            Step::Kept { port } => {
                say("kept", port, "answers such a question, and no other port gets it".into());
            }
            Step::Members { ports } => {
                let says = format!("goes to members and multicast routers only: {ports}");
                say("multicast", self.sender, says);
            }
            Step::Receiver { port, tag, queue } => {
                let leaves = match tag {
                    _ if self.overlay == Some(port) => "for other hosts of its network".into(),
                    EgressTag::Untagged => "without a tag".into(),
                    EgressTag::Tagged(tag) => tagged(Some(tag)),
                };
                say("egress", port, format!("leaves {leaves}"));
                say("queue", port, receive_queue(queue));
            }
            Step::Answered { port, mac } => {
                let whose = format!("of {mac}, which is behind another host");
                say(
                    "answered",
                    port,
                    format!("weir answers in place {whose}: nobody else is asked there"),
                );
            }
            Step::Police { port, over } => {
                let is = if over { "beyond" } else { "within" };
                say(
                    "receive_rate",
                    port,
                    format!("the frame is {is} what the port may receive now"),
                );
            }
            Step::Delivered { port } => say("delivered", port, self.delivered(port, queue)),
            Step::Dropped { port, reason } => {
                let reason = reason.as_str();
                let says = format!("the frame ends here, counted as {reason}");
                let (stage, port) = ("dropped".into(), self.name(port));
                told.push(TraceStep { stage, port, says, dropped: Some(reason.into()) });
            }
        }
    }

    fn filter(
        &self,
        port: PortId,
        receives: bool,
        rule: Option<usize>,
        rules: usize,
        action: Action,
    ) -> String {
        let direction = direction(receives);
        let Some(place) = rule else {
            return format!("none of {rules} {direction} rules matches: the frame passes");
        };
        let text = self.of(port).and_then(|port| port.rules.get(&(receives, place)));
        let text = text.map(|rule| format!(", `{rule}`,")).unwrap_or_default();
        let does = if action == Action::Drop { "drops" } else { "accepts" };
        format!("{direction} rule {} of {rules}{text} matches and {does} the frame", place + 1)
    }

    fn fabric(&self, thought: &Thought, say: &mut impl FnMut(&'static str, PortId, String)) {
        let sender = self.sender;
        let (src, dst) = match &self.ethernet {
            Some(Ethernet { src, dst, .. }) => (src.to_string(), *dst),
            None => return,
        };
        match (thought.vid, thought.forward) {
            (Some(vid), _) => {
                let vlan = self.vlan.clone().unwrap_or_else(|| format!("VLAN {vid}"));
                say("vlan", sender, format!("is in {vlan}"));
            }
            (None, Err(reason)) => {
                say("vlan", sender, in_words(reason).into());
                return;
            }
            (None, Ok(_)) => {}
        }
        let Some(learned) = thought.learned else {
            if let Err(reason) = thought.forward {
                say("source_mac", sender, format!("{src}: {}", in_words(reason)));
            }
            return;
        };
        let source = match learned {
            Learned::Known => "is known behind this port".into(),
            Learned::New => "would be learned behind this port".into(),
            Learned::Moved { from } => format!("would move here from {}", self.name(from)),
            Learned::Owned { by } => format!("belongs to {}", self.name(by)),
            Learned::PortLimit => "is not learned: the port has as many addresses as it may".into(),
            Learned::BucketFull => "is not learned: its part of the table is full".into(),
            Learned::Told => "is not learned: in this network FRR says who is where".into(),
            Learned::Multicast => "is a group address".into(),
            Learned::NetworkLimit => {
                "is not learned: its network has as many as it may have".into()
            }
        };
        say("source_mac", sender, format!("{src} {source}"));
        let goes = match thought.forward {
            Ok(Forward::Unicast { port, .. }) => format!("is behind {}", self.name(port)),
            Ok(Forward::Flood { .. }) => {
                let is = if dst.is_multicast() { "is for everybody" } else { "is not known" };
                let isolated = self.of(sender).is_some_and(|port| port.isolated);
                let but = if isolated { ", but to no other isolated interface" } else { "" };
                format!("{is}: flooded{but}")
            }
            Err(DropReason::SrcMacOwned) => return,
            Err(reason) => in_words(reason).into(),
        };
        say("destination", sender, format!("{dst} {goes}"));
    }

    fn delivered(&self, port: PortId, queue: Option<Queue>) -> String {
        if self.overlay == Some(port) {
            return "the hosts of the network get the frame".into();
        }
        if self.own.contains(&port) {
            return "weir itself gets the frame, for the network's gateway".into();
        }
        let Some(port) = self.of(port) else { return "the port gets the frame".into() };
        let (Some(budget_ns), Some(queue)) = (port.budget_ns, queue) else {
            return "the interface of the host gets the frame".into();
        };
        let Some(now) = port.decisions.get(queue.number) else {
            return "the guest gets the frame".into();
        };
        let (us, budget_us) = (now.decision.hold_ns / 1000, budget_ns / 1000);
        let call = match us {
            0 => "is called at once".into(),
            us => format!("is called within {us} us"),
        };
        format!(
            "the guest gets the frame and {call} ({}: {}; latency budget {budget_us} us)",
            weir_config::Moderation(now.kind),
            now.decision.reason
        )
    }
}

fn tagged(tag: Option<Tci>) -> String {
    match tag {
        None => "untagged".into(),
        Some(tag) if tag.protocol() == TagProtocol::Dot1ad => {
            format!("with an 802.1ad tag of VLAN {}", tag.vid())
        }
        Some(tag) => format!("with a tag of VLAN {}", tag.vid()),
    }
}

fn refused(error: &FrameError) -> String {
    match error.drop_reason() {
        Some(_) => format!("is no frame: {error}"),
        None => format!("is no frame, and a driver that sends it is stopped: {error}"),
    }
}

fn guard(refused: Option<DropReason>) -> String {
    match refused {
        None => "nothing forbids the addresses in the frame".into(),
        Some(reason) => in_words(reason).into(),
    }
}

fn receive_queue(queue: Option<Queue>) -> String {
    match queue {
        None => "no receive queue runs".into(),
        Some(Queue { number, of: 1, .. }) => format!("receive queue {number}, the only one"),
        Some(Queue { number, of, follows: true }) => {
            format!("receive queue {number} of {of}: the guest sends this flow on that queue")
        }
        Some(Queue { number, of, follows: false }) => {
            format!("receive queue {number} of {of}, by the hash of the flow")
        }
    }
}

/// The meaning of a drop reason of the fabric.
fn in_words(reason: DropReason) -> &'static str {
    match reason {
        DropReason::PortUnknown => "the port has gone",
        DropReason::PortInactive => {
            "the port is not in service: its guest has not started its rings"
        }
        DropReason::Loop => {
            "the port is part of a loop, and blocked: `weir explain` says with which port"
        }
        DropReason::VlanTaggedOnAccess => "an access port takes no frame with a VLAN's tag",
        DropReason::VlanStillTagged => {
            "behind its tag the frame has another, which would then count"
        }
        DropReason::VlanReservedVid => "VLAN 4095 is reserved",
        DropReason::VlanUntaggedOnTrunk => {
            "this trunk has no native VLAN, and the frame has no tag"
        }
        DropReason::VlanNotAllowed => "this trunk does not carry the VLAN of the tag",
        DropReason::SrcMacMulticast => "a group address sends nothing",
        DropReason::SrcMacZero => "all zeros are no address",
        DropReason::SrcMacSpoofed => "the port is held to another address",
        DropReason::SrcMacOwned => "another port in the VLAN has this address",
        DropReason::ReservedGroupAddress => "a bridge keeps frames for this group to itself",
        DropReason::SourceGuardIp => "the IP source is not one of the guest's addresses",
        DropReason::SourceGuardArp => "the sender in the ARP packet is not the guest",
        DropReason::SourceGuardNd => "neighbour discovery about an address that is not the guest's",
        DropReason::SourceGuardOther => {
            "the guest is held to its addresses, and this is no IP and no ARP"
        }
        DropReason::Hairpin => "is behind the port that the frame came from",
        DropReason::Isolated => "is behind an isolated interface, and so is the sender",
        DropReason::MulticastQuery => "only a multicast router may ask for groups",
    }
}
