//! Guests that are threads of weir's own user-space driver (`weir_vif`): who sends at a rate sleeps by a timer. And
//! what it costs to wake somebody up, and any guest to become busy and idle, where others share its CPU.

use super::Host;
use super::guest::Program;

/// Frames that a sender with a rate sends before it looks at the clock (`weir_vif::load`).
const SEND_BURST: u32 = 32;

impl Host<'_> {
    /// An interrupt by a call (ns).
    pub(super) fn interrupt_ns(&self, guest: usize) -> u64 {
        let profile = &self.scenario.profile;
        let taken = self.cpus.is_taken(self.guests[guest].thread);
        or_busy(taken, profile.interrupt_ns, profile.interrupt_busy_ns)
    }

    /// Giving a guest a call (ns): one that is awake, or whose CPU is another's, needs no CPU woken up.
    pub(super) fn call_ns(&self, guest: usize) -> u64 {
        let profile = &self.scenario.profile;
        let thread = self.guests[guest].thread;
        let busy = !self.cpus.sleeps(thread) || self.cpus.is_taken(thread);
        or_busy(busy, profile.call_ns, profile.call_busy_ns)
    }

    /// A guest's kick (ns).
    pub(super) fn kick_ns(&self, guest: usize) -> u64 {
        let profile = &self.scenario.profile;
        let thread = self.workers[self.owner(guest)].thread;
        let busy = !self.cpus.sleeps(thread) || self.cpus.is_taken(thread);
        or_busy(busy, profile.kick_ns, profile.kick_busy_ns)
    }

    /// Finding nothing more, and becoming idle (ns).
    pub(super) fn poll_end_ns(&self, guest: usize) -> u64 {
        let profile = &self.scenario.profile;
        let wanted = self.cpus.is_wanted(self.guests[guest].thread);
        or_busy(wanted, profile.poll_end_ns, profile.poll_end_busy_ns)
    }

    /// The timer of a sender has fired; its thread comes back from its sleep.
    pub(super) fn pace(&mut self, guest: usize, load: usize) {
        let profile = &self.scenario.profile;
        let taken = self.cpus.is_taken(self.guests[guest].thread);
        let back_ns = or_busy(taken, profile.guest_timer_ns, profile.interrupt_busy_ns);
        self.guests[guest].programs.push_back(Program::Pace(back_ns, load));
        self.rouse_in(guest, 0);
    }

    /// Sends a burst of what is due, looks again if there was any, and falls asleep otherwise, by a timer that is set
    /// even if it becomes due meanwhile.
    pub(super) fn send_due(&mut self, guest: usize, load: usize) {
        let program = match self.due_datagrams(load, SEND_BURST) {
            0 => {
                // To find nothing more is what ends a poll, too.
                let end_ns = self.poll_end_ns(guest) + self.scenario.profile.timer_set_ns;
                Program::Lull(end_ns, load)
            }
            _ => Program::Pace(0, load),
        };
        self.guests[guest].programs.push_back(program);
    }
}

/// A cost (ns), or another where the CPU is `busy` and that is known.
fn or_busy(busy: bool, ns: u64, busy_ns: u64) -> u64 {
    if busy && busy_ns > 0 { busy_ns } else { ns }
}
