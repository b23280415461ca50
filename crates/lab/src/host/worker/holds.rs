//! The calls that a worker holds, as in `engine/working/holds.rs`: when to come back for them.

use std::cmp::Reverse;

use weir_policy::pace::Rest;

use super::{Host, Worker};
use crate::host::event::{PortId, Side};

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
