//! Which worker serves which port, and where a frame goes next: with two hosts the wire is between.

use super::{Host, PortId};
use crate::frame::Frame;

impl Host<'_> {
    pub(super) fn host_of(&self, port: PortId) -> usize {
        let (realization, guests) = (&self.scenario.realization, self.guests.len());
        match port.checked_sub(guests) {
            Some(uplink) => realization.host_of(uplink, self.uplinks.len()),
            None => realization.host_of(port, guests),
        }
    }

    /// The worker that serves a port's queue: those of its host in turn.
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

    /// The port into which a frame from `from` is put: its receiver's, or the uplink to that one's host.
    pub(super) fn next_port(&self, from: PortId, frame: &Frame) -> PortId {
        let to = self.port(self.receiver(frame));
        let host = self.host_of(from);
        if self.host_of(to) == host {
            return to;
        }
        self.guests.len() + self.scenario.realization.of_host(host, self.uplinks.len()).start
    }

    /// The uplink at the other end of an uplink's wire; `None` where a peer is.
    pub(super) fn other_end(&self, uplink: usize) -> Option<usize> {
        self.scenario.realization.twins.then_some(1 - uplink.min(1))
    }
}
