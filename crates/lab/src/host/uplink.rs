//! The worker of each port, a frame's next port, and frames on the links of uplinks with their interrupts. Between two
//! hosts there is a wire.

use std::mem::take;

use super::Host;
use super::parts::Uplink;
use super::parts::{Direction, Event, PortId, Side};
use crate::link::{DropReason, Frame};

/// Shortest frame on an Ethernet, without its checksum (IEEE 802.3).
const WIRE_BYTES_MIN: u32 = 60;
/// Length of preamble, checksum and gap around a frame.
const WIRE_OVERHEAD_BYTES: u32 = 24;

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
        let left = self.uplinks[uplink].link(direction).last().map(|frame| frame.load);
        self.calendar.at(arrives_ns, Event::Arrived(uplink, direction));
        if let Some(next_ns) = next_ns {
            self.calendar.at(next_ns, Event::Served(uplink, direction));
        }
        if let Some(load) = left
            && self.left_host(load)
        {
            self.pump(load);
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
        let frame = Frame { cpu: None, parked: false, offered_ns: self.now_ns(), ..frame };
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

    pub(super) fn host_of(&self, port: PortId) -> usize {
        let (realization, guests) = (&self.scenario.realization, self.guests.len());
        match port.checked_sub(guests) {
            Some(uplink) => realization.host_of(uplink, self.uplinks.len()),
            None => realization.host_of(port, guests),
        }
    }

    /// Returns the worker that serves a port's queue. The workers of its host take turns.
    pub(super) fn owner(&self, port: PortId) -> usize {
        if let Some(worker) = self.dispatcher.worker(port) {
            return worker;
        }
        let realization = &self.scenario.realization;
        let host = self.host_of(port);
        let workers = realization.of_host(host, self.workers.len());
        if realization.uplink_apart {
            return match port < self.guests.len() {
                true => workers.start + port % (workers.len() - 1),
                false => workers.end - 1,
            };
        }
        workers.start + port % workers.len()
    }

    /// Returns the port for a frame from `from`: its receiver, or the uplink to the receiver's
    /// host.
    pub(super) fn next_port(&self, from: PortId, frame: &Frame) -> PortId {
        let to = self.port(self.receiver(frame));
        let host = self.host_of(from);
        if self.host_of(to) == host {
            return to;
        }
        self.guests.len() + self.scenario.realization.of_host(host, self.uplinks.len()).start
    }

    /// Returns the uplink at the other end of an uplink's wire; `None` if there is a peer.
    pub(super) fn other_end(&self, uplink: usize) -> Option<usize> {
        self.scenario.realization.twins.then_some(1 - uplink.min(1))
    }
}
