//! The path that a frame would take through the switch, and the reasons. Nothing is counted, learned, charged or
//! delivered.
//!
//! The steps are those of [`Forwarder`](crate::switching::switch::Forwarder): both have their checks, and the order of
//! these, from one list (`checks_of_sender`, `checks_of_receiver`). Code that changes nothing is shared.

use weir_fabric::{
    DropReason as FabricDrop, EgressTag, Forward, FrameKey, PortId, PortSet, Thought, View,
};
use weir_groups::{Decision, Direction};
use weir_guestmem::HostBuffer;
use weir_wire::{Ethernet, Mac, TagProtocol, Tci, VnetHdr};

use crate::engine::Engine;
use crate::frames::burst::{Burst, FrameError, Pieces, Scratch, TakenChain};
use crate::frames::drop_reason::DropReason;
use crate::frames::flow::symmetric_hash;
use crate::frames::port::Outgoing;
use crate::switching::filter::{Action, Rules, Window};
use crate::switching::switch::{Ports, Slot, slot};
use crate::switching::{checks_of_receiver, checks_of_sender};
use crate::threads::clock;

/// One stage, and its decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The frame is taken from its sender.
    Taken {
        /// The frame's length without a tag.
        len: u32,
        /// The frame's tag as received.
        tag: Option<Tci>,
        /// True if the frame has further tags behind that one.
        still_tagged: bool,
    },
    /// The frame is invalid.
    Refused(FrameError),
    /// Packet filters of the port judge the frame.
    Filter {
        /// The port to which the filters belong.
        port: PortId,
        /// True if the port receives the frame; false if the port sends it.
        receives: bool,
        /// The index of the rule that matched, if one did.
        rule: Option<usize>,
        /// The number of rules.
        rules: usize,
        /// The action on the frame.
        action: Action,
    },
    /// Security groups of the port judge the frame.
    Groups {
        /// The port to which the groups belong.
        port: PortId,
        /// True if the port receives the frame; false if the port sends it.
        receives: bool,
        /// The decision on the frame, with its reason.
        decision: Decision,
    },
    /// The frame's length is compared with a port's MTU.
    Mtu {
        /// The port to which the MTU belongs.
        port: PortId,
        /// True if the port receives the frame; false if the port sends it.
        receives: bool,
        /// Bytes that a frame may have, Ethernet header included.
        len_max: u32,
        /// True if the frame, or a segment of it, is longer.
        over: bool,
    },
    /// The sender's source guard checks the addresses in the frame.
    SourceGuard(Option<FabricDrop>),
    /// VLAN, source address and destination are looked up.
    Fabric(Thought),
    /// Storm control counts a frame that is flooded.
    Storm {
        /// True if there is a limit for such frames.
        limited: bool,
        /// The reason of the drop, if the limit is exceeded.
        dropped: Option<DropReason>,
    },
    /// The frame is a question that this port of weir's own answers, and no other port gets it.
    Kept {
        /// The port.
        port: PortId,
    },
    /// By multicast snooping, these ports and not all of the VLAN get the frame.
    Members {
        /// The number of these ports.
        ports: usize,
    },
    /// A port that would get the frame.
    Receiver {
        /// The port.
        port: PortId,
        /// The tag with which the frame leaves by the port.
        tag: EgressTag,
        /// The receive queue, and the number of queues; `None` while the port receives nothing.
        queue: Option<Queue>,
    },
    /// The receiver, an overlay, answers a neighbour request in place of the requested station.
    Answered {
        /// The receiver.
        port: PortId,
        /// The MAC address in the answer.
        mac: Mac,
    },
    /// The receiver's rate limit is checked.
    Police {
        /// The receiver.
        port: PortId,
        /// True if the limit is exceeded.
        over: bool,
    },
    /// The frame is dropped.
    Dropped {
        /// The port that would count the drop.
        port: PortId,
        /// The reason.
        reason: DropReason,
    },
    /// The frame is delivered.
    Delivered {
        /// The receiver.
        port: PortId,
    },
}

/// The chosen receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    /// The queue's number.
    pub number: usize,
    /// The number of queues in use.
    pub of: usize,
    /// True if the receiver sends this flow on the queue of the same number; false if the indirection table chose the
    /// queue.
    pub follows: bool,
}

/// A frame that is traced.
struct Thinker<'t> {
    ports: &'t Ports,
    sender: PortId,
    burst: &'t Burst<'t>,
    window: Window,
    now_ns: u64,
    steps: Vec<Step>,
}

/// The end of the frame's path.
struct Ends;

/// The tag behind the one that was taken off.
type Inner = Option<TagProtocol>;

impl Engine {
    /// Traces a frame of `port` through the present switch. `bytes` begin with the destination address, and can have a
    /// tag.
    pub fn trace(&self, port: PortId, bytes: &[u8]) -> Vec<Step> {
        let buffer = HostBuffer::new(VnetHdr::LEN + bytes.len());
        let (mut scratch, ports) = (Scratch::default(), self.shared.ports.load());
        let mut burst = scratch.lend();
        let Some(whole) = buffer.slice(0, VnetHdr::LEN + bytes.len()) else { return Vec::new() };
        whole.write(&[0; VnetHdr::LEN]);
        whole.skip(VnetHdr::LEN).write(bytes);
        let len = u32::try_from(whole.len()).unwrap_or(u32::MAX);
        let chain = TakenChain { token: 0, len, pieces: Pieces::Only(whole) };
        let now_ns = clock::now_ns();
        if let Err(error) = burst.add(chain, VnetHdr::LEN, now_ns) {
            let ends = error.drop_reason().map(|reason| Step::Dropped { port, reason });
            return [Step::Refused(error)].into_iter().chain(ends).collect();
        }
        let view = self.shared.fabric.view();
        burst.settle_tag(0, view.tags(port));
        burst.settle_tags(view.tags(port));
        let window = Window::default();
        let mut thinker = Thinker {
            ports: &ports,
            sender: port,
            burst: &burst,
            window,
            now_ns,
            steps: Vec::new(),
        };
        // The last step shows where the path ends.
        let _ = thinker.think(&view);
        thinker.steps
    }
}

impl Thinker<'_> {
    fn think(&mut self, view: &View<'_>) -> Result<(), Ends> {
        let frame = &self.burst.frames()[0];
        let still_tagged = self.burst.still_tagged != 0;
        self.steps.push(Step::Taken { len: frame.len, tag: frame.tag, still_tagged });
        let sender = slot(self.ports, self.sender).cloned();
        let Some(sender) = sender else {
            return self.drop(self.sender, FabricDrop::PortUnknown.into());
        };
        self.filter(self.sender, sender.rules.tx.as_deref(), frame.tag, false)?;
        let now_secs = clock::secs(self.now_ns);
        let inner = self.burst.begins_with(0).filter(|_| still_tagged);
        macro_rules! explain {
            ($($check:ident)*) => { $(self.$check(&sender, view, inner)?;)* };
        }
        checks_of_sender!(explain);
        let Ok(Ethernet { src, dst, .. }) = Ethernet::parse(frame.head.as_slice()) else {
            return self.drop(self.sender, DropReason::FrameTooShort);
        };
        let key = FrameKey { src, dst, tag: frame.tag };
        let thought = view.would_forward(self.sender, &key, now_secs);
        self.steps.push(Step::Fabric(thought));
        let kept = sender.kept_by(self.ports, dst, frame.head.as_slice());
        let (vid, receivers) = match (thought.forward, kept) {
            (Err(reason), _) => return self.drop(self.sender, reason.into()),
            (Ok(Forward::Unicast { port, vid }), _) => (vid, vec![port]),
            (Ok(Forward::Flood { vid }), Some(port)) => {
                self.steps.push(Step::Kept { port });
                (vid, vec![port])
            }
            (Ok(Forward::Flood { vid }), None) => {
                self.storm(&sender, dst)?;
                let members = self.members(&sender, view, vid, dst)?;
                let is_one = |port: &PortId| members.is_none_or(|members| members.contains(*port));
                let all: Vec<_> = view.flood_ports(self.sender, vid, dst).filter(is_one).collect();
                if members.is_some() {
                    self.steps.push(Step::Members { ports: all.len() });
                }
                if all.is_empty() && !dst.is_multicast() {
                    return self.drop(self.sender, DropReason::UnknownUnicast);
                }
                (vid, all)
            }
        };
        let unicast = matches!(thought.forward, Ok(Forward::Unicast { .. }));
        for port in receivers {
            if let Some(tag) = view.egress(port, vid, frame.tag) {
                // Even if this receiver drops the frame, the other receivers get it.
                let keeps = inner.is_none_or(|inner| view.gives_still_tagged(port, tag, inner));
                let _ = self.receiver(port, tag, !keeps, unicast);
            }
        }
        Ok(())
    }

    fn receiver(
        &mut self,
        port: PortId,
        tag: EgressTag,
        is_mistaken: bool,
        unicast: bool,
    ) -> Result<(), Ends> {
        let Some(receiver) = slot(self.ports, port).cloned() else { return Err(Ends) };
        let queue = queue_of(&receiver, self.burst.frames()[0].head.as_slice());
        self.steps.push(Step::Receiver { port, tag, queue });
        if is_mistaken {
            return self.drop(self.sender, FabricDrop::VlanStillTagged.into());
        }
        if queue.is_none() {
            // A flood reaches the ports that can receive now, so a port that cannot is no loss.
            return if unicast { self.drop(port, DropReason::RxNotReady) } else { Err(Ends) };
        }
        let outgoing = Outgoing { frame: 0, tag };
        macro_rules! explain {
            ($($check:ident)*) => { $(self.$check(port, &receiver, &outgoing)?;)* };
        }
        checks_of_receiver!(explain);
        if let Some(police) = receiver.police.as_deref() {
            let over = police.would_refuse(&self.burst.frames()[0], self.now_ns);
            self.steps.push(Step::Police { port, over });
            if over {
                return self.drop(port, DropReason::PolicedRx);
            }
        }
        let head = self.burst.frames()[0].head.as_slice();
        if let (EgressTag::Tagged(network), Some(overlay)) = (tag, receiver.port.overlay())
            && let Some(mac) = overlay.answers(head, network.bits())
        {
            self.steps.push(Step::Answered { port, mac });
            return Err(Ends);
        }
        self.steps.push(Step::Delivered { port });
        Ok(())
    }

    fn tags(&mut self, _: &Slot, view: &View<'_>, inner: Inner) -> Result<(), Ends> {
        match inner.is_some_and(|tag| !view.takes_still_tagged(self.sender, tag)) {
            true => self.drop(self.sender, FabricDrop::VlanTaggedOnAccess.into()),
            false => Ok(()),
        }
    }

    fn sent_mtu(&mut self, sender: &Slot, _: &View<'_>, _: Inner) -> Result<(), Ends> {
        self.mtu(self.sender, sender, false)
    }

    fn guard(&mut self, sender: &Slot, _: &View<'_>, _: Inner) -> Result<(), Ends> {
        let Some(guard) = sender.guard.as_deref() else { return Ok(()) };
        let (frame, now_secs) = (&self.burst.frames()[0], clock::secs(self.now_ns));
        let refused = guard.check(frame.head.as_slice(), frame.len, None, now_secs).err();
        self.steps.push(Step::SourceGuard(refused));
        refused.map_or(Ok(()), |reason| self.drop(self.sender, reason.into()))
    }

    /// A traced frame of another host does not say that its sender is isolated.
    fn isolation(&mut self, _: PortId, _: &Slot, _: &Outgoing) -> Result<(), Ends> {
        Ok(())
    }

    fn got_mtu(&mut self, port: PortId, receiver: &Slot, _: &Outgoing) -> Result<(), Ends> {
        self.mtu(port, receiver, true)
    }

    fn got_filter(&mut self, port: PortId, receiver: &Slot, way: &Outgoing) -> Result<(), Ends> {
        let tag = if let EgressTag::Tagged(tag) = way.tag { Some(tag) } else { None };
        self.filter(port, receiver.rules.rx.as_deref(), tag, true)
    }

    fn filter(
        &mut self,
        port: PortId,
        rules: Option<&Rules>,
        tag: Option<Tci>,
        receives: bool,
    ) -> Result<(), Ends> {
        let Some(rules) = rules else { return Ok(()) };
        let rule = rules.would_decide(tag, self.burst, &mut self.window);
        let action = rule.and_then(|rule| rules.iter().nth(rule));
        let action = action.map_or(Action::Accept, |rule| rule.action);
        let count = rules.iter().count();
        self.steps.push(Step::Filter { port, receives, rule, rules: count, action });
        let reason = if receives { DropReason::FilteredRx } else { DropReason::FilteredTx };
        if action == Action::Drop { self.drop(port, reason) } else { Ok(()) }
    }

    fn groups(&mut self, port: PortId, receiver: &Slot, outgoing: &Outgoing) -> Result<(), Ends> {
        let Some(sender) = slot(self.ports, self.sender).cloned() else { return Err(Ends) };
        let ends = [(self.sender, &sender, receiver), (port, receiver, &sender)];
        for (receives, (whose, own, other)) in [false, true].into_iter().zip(ends) {
            let Some(groups) = own.groups.as_deref() else { continue };
            let direction = if receives { Direction::In } else { Direction::Out };
            let decision =
                groups.would_judge(direction, outgoing, self.burst, other.peer(), self.now_ns);
            self.steps.push(Step::Groups { port: whose, receives, decision });
            if let Decision::Refused(_) = decision {
                let reason = if receives { DropReason::GroupIn } else { DropReason::GroupOut };
                return self.drop(whose, reason);
            }
        }
        Ok(())
    }

    fn mtu(&mut self, port: PortId, slot: &Slot, receives: bool) -> Result<(), Ends> {
        let Some(len_max) = slot.frame_len_max.get() else { return Ok(()) };
        let over = slot.frame_len_max.exceeded_by(self.burst) != 0;
        self.steps.push(Step::Mtu { port, receives, len_max, over });
        let reason = if receives { DropReason::OverMtuRx } else { DropReason::OverMtuTx };
        if over { self.drop(port, reason) } else { Ok(()) }
    }

    fn storm(&mut self, sender: &Slot, dst: weir_wire::Mac) -> Result<(), Ends> {
        let storm = sender.storm.as_deref();
        let dropped =
            storm.and_then(|storm| storm.would_refuse(dst, &self.burst.frames()[0], self.now_ns));
        self.steps.push(Step::Storm { limited: storm.is_some(), dropped });
        dropped.map_or(Ok(()), |reason| self.drop(self.sender, reason))
    }

    /// The ports that get a flooded frame by multicast snooping; `None` for all.
    fn members(
        &mut self,
        sender: &Slot,
        view: &View<'_>,
        vid: weir_fabric::Vid,
        dst: Mac,
    ) -> Result<Option<PortSet>, Ends> {
        let Some(snooping) = sender.snooping().filter(|_| dst.is_multicast()) else {
            return Ok(None);
        };
        let head = self.burst.frames()[0].head.as_slice();
        let frame = self.window.fill(head, 0, self.burst);
        let judged =
            snooping.would_judge(view, (self.sender, vid), frame, clock::secs(self.now_ns));
        judged.or_else(|reason| self.drop(self.sender, reason.into()).map(|()| None))
    }

    fn drop(&mut self, port: PortId, reason: DropReason) -> Result<(), Ends> {
        self.steps.push(Step::Dropped { port, reason });
        Err(Ends)
    }
}

/// The receive queue for a frame that begins with `head`.
fn queue_of(receiver: &Slot, head: &[u8]) -> Option<Queue> {
    let of = receiver.port.rx_queues();
    let steering = if of > 1 { receiver.port.steering() } else { None };
    let (number, follows) = match steering {
        None => (0, false),
        Some(steering) if steering.is_given() => {
            steering.would_be_queue_for(receiver.port.flow_hash(head))
        }
        Some(steering) => steering.would_be_queue_for(symmetric_hash(head)),
    };
    (of > 0).then_some(Queue { number, of, follows })
}
