//! Guests that are threads of weir's user-space driver (`weir_vif`): senders at a rate sleep by a timer. Also the
//! costs of a wake-up, and of any guest turning busy and idle, where others share its CPU.

use super::Host;
use super::guest::Program;
use crate::cpus::ThreadId;
use crate::profile::Profile;
use crate::scenario::Endpoint;

/// Frames between two looks at the clock of a sender with a rate (`weir_vif::load`).
const SEND_BURST: u32 = 32;

impl Host<'_> {
    /// Returns the cost of an interrupt by a call (ns).
    pub(super) fn interrupt_ns(&self, guest: usize) -> u64 {
        let profile = &self.scenario.profile;
        let thread = self.guests[guest].thread;
        let interrupt_ns = self.after_idle_ns(thread, profile.interrupt_ns);
        or_busy(self.cpus.is_taken(thread), interrupt_ns, profile.interrupt_busy_ns)
    }

    /// Returns the cost of a call to a guest (ns). A guest that is awake, or whose CPU another
    /// thread uses, needs no wake-up of the CPU.
    pub(super) fn call_ns(&self, guest: usize) -> u64 {
        let profile = &self.scenario.profile;
        let thread = self.guests[guest].thread;
        let busy = !self.cpus.sleeps(thread) || self.cpus.is_taken(thread);
        or_busy(busy, profile.call_ns, profile.call_busy_ns)
    }

    /// Returns the cost of a guest's kick (ns).
    pub(super) fn kick_ns(&self, guest: usize) -> u64 {
        let profile = &self.scenario.profile;
        let thread = self.workers[self.owner(guest)].thread;
        let busy = !self.cpus.sleeps(thread) || self.cpus.is_taken(thread);
        or_busy(busy, profile.kick_ns, profile.kick_busy_ns)
    }

    /// Returns the cost of an empty look and of going idle (ns).
    pub(super) fn poll_end_ns(&self, guest: usize) -> u64 {
        let profile = &self.scenario.profile;
        let thread = self.guests[guest].thread;
        let poll_end_ns = self.after_idle_ns(thread, profile.poll_end_ns);
        or_busy(self.cpus.is_wanted(thread), poll_end_ns, profile.poll_end_busy_ns)
    }

    /// Returns the part of a sleep's cost for a thread (ns), by how long its CPU was idle.
    pub(super) fn after_idle_ns(&self, thread: ThreadId, cost_ns: u64) -> u64 {
        let idle_ns = self.cpus.idle_ns(self.now_ns(), thread);
        self.scenario.profile.after_idle_ns(cost_ns, idle_ns)
    }

    /// Handles the fired timer of a sender, whose thread returns from its sleep.
    pub(super) fn pace(&mut self, guest: usize, load: usize) {
        let profile = &self.scenario.profile;
        let taken = self.cpus.is_taken(self.guests[guest].thread);
        let back_ns = or_busy(taken, profile.guest_timer_ns, profile.interrupt_busy_ns);
        self.guests[guest].programs.push_back(Program::Pace(back_ns, load));
        self.rouse_in(guest, 0);
    }

    /// Sends a burst of due frames and looks again. Without due frames the thread sets a timer and falls asleep. The
    /// timer is set even if it expires before the thread sleeps.
    pub(super) fn send_due(&mut self, guest: usize, load: usize) {
        let program = match self.due_datagrams(load, SEND_BURST) {
            0 => {
                // An empty look also ends a poll.
                let timer_set_ns = match self.another_is_due_first(guest, load) {
                    true => 0,
                    false => self.scenario.profile.timer_set_ns,
                };
                Program::Lull(self.poll_end_ns(guest) + timer_set_ns, load)
            }
            _ => Program::Pace(0, load),
        };
        self.guests[guest].programs.push_back(program);
    }

    /// Returns whether the sender's CPU has another sender's timer before its own, so that no timer
    /// has to be set.
    fn another_is_due_first(&self, guest: usize, load: usize) -> bool {
        let Some(own_ns) = self.next_due_ns(load) else { return false };
        let before = self.now_ns()..own_ns;
        let cpu = self.cpus.last_cpu(self.guests[guest].thread);
        (0..self.loads.len()).any(|other| {
            let Endpoint::Guest(sender) = self.scenario.loads[other].from else { return false };
            let is_first = self.next_due_ns(other).is_some_and(|due_ns| before.contains(&due_ns));
            is_first && self.cpus.last_cpu(self.guests[sender].thread) == cpu
        })
    }

    /// Handles a sender that has set its timer. If the timer has fired meanwhile, the sender
    /// continues without having left its CPU.
    pub(super) fn lulled(&mut self, guest: usize, load: usize) {
        if self.next_due_ns(load).is_some_and(|due_ns| due_ns <= self.now_ns()) {
            let Profile { guest_timer_ns, timer_missed_ns, .. } = self.scenario.profile;
            let back_ns = if timer_missed_ns > 0 { timer_missed_ns } else { guest_timer_ns };
            self.guests[guest].programs.push_back(Program::Pace(back_ns, load));
        } else {
            self.sleep_until_due(load);
        }
    }
}

/// Returns a cost (ns), or `busy_ns` if the CPU is `busy` and that cost is known.
fn or_busy(busy: bool, ns: u64, busy_ns: u64) -> u64 {
    if busy && busy_ns > 0 { busy_ns } else { ns }
}
