//! The queues of a worker: their work, and their kicks.

use weir_limits::{BURST_MAX, TAP_BURST_MAX};

use super::{Host, Queue, Worker};
use crate::host::event::{PortId, Side};
use crate::link::Frame;

impl Worker {
    /// Forgets a queue that another worker has now. Returns unseen kicks and the parked frames'
    /// deadline (ns).
    pub(in crate::host) fn forget_queue(
        &mut self,
        port: PortId,
    ) -> (Vec<(PortId, Side)>, Option<u64>) {
        self.ready.retain(|ready| ready.port != port);
        self.warm.retain(|warm| warm.port != port);
        let kicked = self.kicked.extract_if(.., |kicked| kicked.0 == port).collect();
        let stalled = self.stalled.iter().position(|stalled| stalled.0 == port);
        (kicked, stalled.map(|at| self.stalled.swap_remove(at).1))
    }

    /// Takes over a queue, which may have work.
    pub(in crate::host) fn receive_queue(
        &mut self,
        port: PortId,
        since_ns: u64,
        kicked: Vec<(PortId, Side)>,
        stalled: Option<u64>,
    ) {
        self.ready.push_back(Queue { port, since_ns });
        self.kicked.extend(kicked);
        self.stalled.extend(stalled.map(|until_ns| (port, until_ns)));
        self.retry |= stalled.is_some();
    }
}

impl Host<'_> {
    /// Handles new kicks.
    pub(super) fn look_at_kicks(&mut self, worker: usize) {
        let now_ns = self.now_ns();
        self.workers[worker].rounds = 0;
        for (port, side) in std::mem::take(&mut self.workers[worker].kicked) {
            let this = &mut self.workers[worker];
            match side {
                Side::Tx if !this.is_ready(port) => {
                    this.warm.retain(|warm| warm.port != port);
                    this.ready.push_back(Queue { port, since_ns: now_ns });
                }
                Side::Tx => {}
                // A receiver has buffers again: workers with frames for it retry them.
                Side::Rx => {
                    for other in 0..self.workers.len() {
                        if !self.workers[other].stalled.is_empty() {
                            self.workers[other].retry = true;
                            let latency_ns = self.delays.wakeup_ns();
                            self.wake(other, latency_ns);
                        }
                    }
                }
            }
        }
    }

    /// Returns whether a port's transmit queue has frames.
    pub(super) fn peek(&self, port: PortId) -> bool {
        match port.checked_sub(self.guests.len()) {
            Some(uplink) => self.uplinks[uplink].has_more(),
            None => self.guests[port].tx.has_more(),
        }
    }

    /// Turns a transmit queue's kicks on or off.
    pub(in crate::host) fn set_kicks(&mut self, port: PortId, wanted: bool) {
        match port.checked_sub(self.guests.len()) {
            Some(uplink) => self.uplinks[uplink].kick_wanted = wanted,
            None => self.guests[port].tx.kick_wanted = wanted,
        }
    }

    /// Polls every warm queue. A queue with work becomes ready. A queue without work for `keep_ns`
    /// gets its kicks on and one more look. `None`: no queue gets its kicks on.
    pub(super) fn look_at_warm(&mut self, worker: usize, keep_ns: Option<u64>) {
        let now_ns = self.now_ns();
        let Worker { warm, looked_ns, .. } = &mut self.workers[worker];
        let looked_ns = *looked_ns;
        for queue in std::mem::take(warm) {
            let Queue { port, since_ns } = queue;
            let cold = keep_ns.is_some_and(|keep_ns| now_ns.saturating_sub(since_ns) >= keep_ns);
            let work = self.peek(port);
            if !work && cold {
                self.set_kicks(port, true);
            }
            let this = &mut self.workers[worker];
            if work {
                this.ready.push_back(Queue { port, since_ns: looked_ns.max(since_ns) });
            } else if !cold {
                this.warm.push(queue);
            }
        }
    }

    /// Takes new frames, kicks off. They may have come since `since_ns`.
    pub(super) fn take_new(&mut self, port: PortId, since_ns: u64) -> Vec<Frame> {
        self.set_kicks(port, false);
        let arrived = |frame: Frame| Frame { arrived_ns: since_ns, ..frame };
        match port.checked_sub(self.guests.len()) {
            Some(uplink) => {
                let uplink = &mut self.uplinks[uplink];
                std::iter::from_fn(|| uplink.take()).take(TAP_BURST_MAX).map(arrived).collect()
            }
            None => {
                let now_ns = self.calendar.now_ns();
                let worker = self.owner(port);
                let waits = &mut self.workers[worker].did.waits;
                let tx = &mut self.guests[port].tx;
                let taken = std::iter::from_fn(|| tx.take()).take(BURST_MAX);
                taken
                    .inspect(|frame| waits.record(now_ns - frame.offered_ns))
                    .map(arrived)
                    .collect()
            }
        }
    }
}
