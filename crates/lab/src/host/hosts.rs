//! The worker of each port, and a frame's next port. Between two hosts there is a wire.

use super::Host;
use super::event::PortId;
use crate::frame::Frame;

impl Host<'_> {
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
