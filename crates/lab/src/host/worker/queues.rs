//! The queues of a worker: their work, their kicks, and the calls that it holds for them, as in
//! `engine/working/holds.rs`: when to come back for them.

use std::cmp::Reverse;

use weir_limits::{BURST_MAX, TAP_BURST_MAX};
use weir_policy::pace::Rest;

use super::{Host, Queue, Worker};
use crate::host::parts::{PortId, Side};
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

impl Worker {
    /// Returns the next deadline (ns), for which there is a timer. A call for received frames
    /// counts `lead_ns` earlier.
    pub(super) fn deadline_ns(&self, lead_ns: u64) -> Option<u64> {
        let stalled_ns = self.stalled.iter().map(|(_, until_ns)| *until_ns).min();
        self.hold_ns(lead_ns).into_iter().chain(stalled_ns).min()
    }

    /// Returns the next deadline of held calls only (ns).
    pub(super) fn hold_ns(&self, lead_ns: u64) -> Option<u64> {
        match lead_ns {
            0 => self.holds.peek().map(|Reverse((until_ns, ..))| *until_ns),
            _ => self.holds.iter().map(|Reverse(hold)| ahead_ns(*hold, lead_ns)).min(),
        }
    }

    /// Takes out a held call that has ended. A call for received frames counts `lead_ns` earlier.
    pub(in crate::host) fn take_ended(
        &mut self,
        now_ns: u64,
        lead_ns: u64,
    ) -> Option<(u64, PortId, Side)> {
        let ended = |hold: &(u64, PortId, Side)| ahead_ns(*hold, lead_ns) <= now_ns;
        if lead_ns == 0 {
            self.holds.peek().filter(|Reverse(hold)| ended(hold))?;
            return self.holds.pop().map(|Reverse(hold)| hold);
        }
        // The heap's first entry need not be the first to end, since leads differ.
        let hold = self.holds.iter().map(|Reverse(hold)| *hold).filter(ended).min()?;
        self.holds.retain(|Reverse(other)| *other != hold);
        Some(hold)
    }

    /// Returns whether to set a timer before a sleep: always for a nap; for deadlines unless an
    /// earlier one is pending.
    pub(super) fn sets_timer(&self, rest: Rest, now_ns: u64, lead_ns: u64) -> bool {
        let wanted = self.deadline_ns(lead_ns);
        matches!(rest, Rest::Nap(_))
            || wanted.is_some_and(|at_ns| self.is_set(at_ns, now_ns).is_none())
    }

    fn is_set(&self, until_ns: u64, now_ns: u64) -> Option<u64> {
        self.set_ns.filter(|set_ns| now_ns < *set_ns && *set_ns <= until_ns)
    }

    /// Returns when a timer ends the coming sleep, if one does: a new timer, or one left from
    /// before.
    pub(super) fn fires_ns(
        &mut self,
        until_ns: Option<u64>,
        nap: bool,
        now_ns: u64,
    ) -> Option<u64> {
        let fires_ns = self.is_set(until_ns.unwrap_or(u64::MAX), now_ns).or(until_ns);
        if !nap {
            self.set_ns = fires_ns;
        }
        fires_ns
    }

    /// Notes the lateness of the timer that may have ended a sleep.
    pub(super) fn note_lateness(&mut self, now_ns: u64) {
        if let (Some(until_ns), true) = (self.timer_ns, self.timer_fired) {
            self.lateness.fired(now_ns.saturating_sub(until_ns));
        }
    }
}

/// Returns when to come back for a held call, `lead_ns` early for received frames (ns).
fn ahead_ns((until_ns, _, side): (u64, PortId, Side), lead_ns: u64) -> u64 {
    match side {
        Side::Rx => until_ns.saturating_sub(lead_ns),
        Side::Tx => until_ns,
    }
}

impl Host<'_> {
    /// Handles a fired timer of a worker, if the sleep's number still matches.
    pub(in crate::host) fn worker_timer(&mut self, worker: usize, sleep: u64) {
        if self.workers[worker].sleeps == sleep {
            self.workers[worker].timer_fired = true;
            self.wake(worker, 0);
        }
    }

    /// Returns how much earlier to ask about held calls for received frames if the worker may sleep
    /// (ns).
    pub(super) fn lead_ns(&self, worker: usize) -> u64 {
        match self.scenario.realization.timers_ahead {
            true => self.workers[worker].lateness.lead_ns(),
            false => 0,
        }
    }

    /// Returns the part of the lead that is for work, which also applies during busy-polling (ns).
    pub(super) fn work_ns(&self, worker: usize) -> u64 {
        match self.scenario.realization.timers_ahead {
            true => self.workers[worker].lateness.work_ns(),
            false => 0,
        }
    }

    /// Asks about calls that would end before the worker is back from a sleep.
    pub(super) fn expire_holds_before_sleep(&mut self, worker: usize) {
        if self.scenario.realization.timers_ahead {
            self.expire_holds(worker, self.lead_ns(worker));
        }
    }
}
