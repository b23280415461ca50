//! An uplink: a link each way, a peer at its end, and the host's queue for its workers.

use std::collections::VecDeque;
use std::mem::take;

use super::{Event, Host, Side};
use crate::frame::{DropReason, Frame};
use crate::link::Link;
use crate::scenario;

/// Shortest frame on an Ethernet, without its checksum (IEEE 802.3).
const WIRE_BYTES_MIN: u32 = 60;
/// Length of preamble, checksum and gap around a frame.
const WIRE_OVERHEAD_BYTES: u32 = 24;

/// One link of an uplink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// To the peer.
    Out,
    /// From the peer.
    In,
}

#[derive(Debug)]
pub(super) struct Uplink {
    out: Link<Frame>,
    into: Link<Frame>,
    /// Frames that have arrived and are not visible to the host yet.
    gathering: VecDeque<Frame>,
    /// Frames for a worker.
    ring: VecDeque<Frame>,
    ring_max: usize,
    /// Time for which frames gather (ns), from the scenario or the manager.
    pub(super) hold_ns: u64,
    /// Number of faults that keep the link down.
    pub(super) down: u32,
    /// The worker wants a wake-up for the next frame.
    pub(super) kick_wanted: bool,
}

impl Uplink {
    pub(super) fn new(spec: &scenario::Uplink) -> Self {
        let link = || Link::new(spec.bits_per_s, spec.delay_ns, spec.queue_max);
        Self {
            out: link(),
            into: link(),
            gathering: VecDeque::new(),
            ring: VecDeque::new(),
            ring_max: spec.ring,
            hold_ns: spec.hold_ns,
            down: 0,
            kick_wanted: true,
        }
    }

    pub(super) fn frames(&self) -> impl Iterator<Item = &Frame> {
        self.out.items().chain(self.into.items()).chain(&self.gathering).chain(&self.ring)
    }

    /// Takes the next frame for a worker.
    pub(super) fn take(&mut self) -> Option<Frame> {
        self.ring.pop_front()
    }

    pub(super) fn has_more(&self) -> bool {
        !self.ring.is_empty()
    }

    /// Returns the next frame, without taking it.
    pub(super) fn first(&self) -> Option<&Frame> {
        self.ring.front()
    }

    fn link(&mut self, direction: Direction) -> &mut Link<Frame> {
        match direction {
            Direction::Out => &mut self.out,
            Direction::In => &mut self.into,
        }
    }
}

impl Host<'_> {
    pub(super) fn link_send(&mut self, uplink: usize, direction: Direction, frame: Frame) {
        if self.uplinks[uplink].down > 0 {
            return self.drop_frame(&frame, DropReason::LinkDown);
        }
        let now_ns = self.now_ns();
        let bytes = u64::from(frame.bytes.max(WIRE_BYTES_MIN) + WIRE_OVERHEAD_BYTES);
        match self.uplinks[uplink].link(direction).send(now_ns, bytes, frame) {
            Ok(Some(at_ns)) => self.calendar.at(at_ns, Event::Served(uplink, direction)),
            Ok(None) => {}
            Err(frame) => self.drop_frame(&frame, DropReason::LinkQueueFull),
        }
    }

    pub(super) fn link_served(&mut self, uplink: usize, direction: Direction) {
        let now_ns = self.now_ns();
        let (arrives_ns, next_ns) = self.uplinks[uplink].link(direction).served(now_ns);
        self.calendar.at(arrives_ns, Event::Arrived(uplink, direction));
        if let Some(next_ns) = next_ns {
            self.calendar.at(next_ns, Event::Served(uplink, direction));
        }
    }

    pub(super) fn link_arrived(&mut self, uplink: usize, direction: Direction) {
        let Some(frame) = self.uplinks[uplink].link(direction).arrived() else { return };
        if self.uplinks[uplink].down > 0 {
            return self.drop_frame(&frame, DropReason::LinkDown);
        }
        let uplink = match (direction, self.other_end(uplink)) {
            (Direction::Out, None) => return self.read(frame),
            (Direction::Out, Some(other)) => other,
            (Direction::In, _) => uplink,
        };
        // The other host's CPUs have no part in the frame any more.
        let frame = Frame { cpu: None, parked: false, ..frame };
        let Uplink { gathering, ring, ring_max, hold_ns, .. } = &mut self.uplinks[uplink];
        if gathering.len() + ring.len() >= *ring_max {
            self.drop_frame(&frame, DropReason::UplinkRingFull);
            return;
        }
        gathering.push_back(frame);
        if *hold_ns == 0 {
            self.gathered(uplink);
        } else if gathering.len() == 1 {
            self.calendar.after(*hold_ns, Event::Gathered(uplink));
        }
    }

    /// Shows gathered frames to the host, and interrupts it if its worker wants that.
    pub(super) fn gathered(&mut self, uplink: usize) {
        let Uplink { gathering, ring, kick_wanted, .. } = &mut self.uplinks[uplink];
        ring.append(gathering);
        if take(kick_wanted) {
            let port = self.guests.len() + uplink;
            let worker = self.owner(port);
            self.workers[worker].debt_ns += self.scenario.profile.uplink_interrupt_ns;
            self.kicked(port, Side::Tx);
        } else {
            self.appeared(self.guests.len() + uplink);
        }
    }
}
