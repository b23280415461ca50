//! Interrupt identifiers: few for many guests, so a signalled guest may have no frames (Raj 2006
//! §4.3.1 and §7.1).

use super::Host;
use super::parts::Demux;
use super::parts::Side;
use crate::realization::Realization;

impl Realization {
    /// Iterates over the guests of a host of `len` guests that share `guest`'s identifier, in
    /// order.
    fn sharers(&self, guest: usize, len: usize, count: usize) -> impl Iterator<Item = usize> {
        let of_host = self.of_host(self.host_of(guest, len), len);
        let first = of_host.start;
        of_host.filter(move |other| (other - first) % count == (guest - first) % count)
    }
}

impl Host<'_> {
    /// Signals a guest, by its identifier if calls go through the controller.
    pub(super) fn signal(&mut self, guest: usize, side: Side) {
        let realization = &self.scenario.realization;
        let guests = self.guests.len();
        let host = realization.host_of(guest, guests);
        let Some(demux) = self.demuxes.get_mut(host) else { return self.call(guest, side) };
        let identifier = guest % (guests / realization.hosts()) % demux.count;
        let set = demux.pending.iter().skip(usize::from(!demux.left.is_empty()));
        if set.clone().any(|it| *it == (identifier, side)) {
            return;
        }
        demux.pending.push_back((identifier, side));
        if demux.pending.len() == 1 {
            let thread = demux.thread;
            self.demux_next(host);
            let work_ns = self.signal_ns(host);
            let latency_ns = self.delays.wakeup_ns();
            self.cpus.wake(&mut self.calendar, thread, work_ns, latency_ns);
        }
    }

    /// Handles the first pending identifier.
    fn demux_next(&mut self, host: usize) {
        let (realization, guests) = (&self.scenario.realization, self.guests.len());
        let demux = &mut self.demuxes[host];
        let Some((identifier, _)) = demux.pending.front() else { return };
        let first = realization.of_host(host, guests).start;
        demux.left = realization.sharers(first + identifier, guests, demux.count).collect();
        demux.spent_ns = 0;
    }

    /// Returns the cost of the next signal (ns).
    fn signal_ns(&self, host: usize) -> u64 {
        let Demux { left, cpu, .. } = &self.demuxes[host];
        let profile = &self.scenario.profile;
        let Some(guest) = left.front() else { return 0 };
        let theirs = self.cpus.last_cpu(self.guests[*guest].thread);
        match theirs.is_none_or(|theirs| theirs == *cpu) {
            true => profile.signal_ns,
            false => profile.signal_far_ns,
        }
    }

    /// Handles the end of a signal.
    pub(super) fn demux_done(&mut self, host: usize) {
        let ns = self.signal_ns(host);
        let demux = &mut self.demuxes[host];
        demux.spent_ns += ns;
        let thread = demux.thread;
        if let (Some(guest), Some(&(_, side))) = (demux.left.pop_front(), demux.pending.front()) {
            self.call(guest, side);
        }
        let demux = &mut self.demuxes[host];
        if demux.left.is_empty() {
            demux.spent.record(demux.spent_ns);
            demux.pending.pop_front();
            self.demux_next(host);
        }
        if self.demuxes[host].left.is_empty() {
            self.cpus.block(&mut self.calendar, thread);
        } else {
            let work_ns = self.signal_ns(host);
            self.cpus.go_on(&mut self.calendar, thread, work_ns);
        }
    }
}
