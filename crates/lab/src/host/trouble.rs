//! Beginning and end of faults.

use super::Host;
use super::parts::Thief;
use super::parts::{Event, Owner};
use crate::cpus::Class;
use crate::faults::{Fault, Trouble};
use crate::topology::CpuId;

impl<'s> Host<'s> {
    /// Schedules faults.
    pub(super) fn expect_faults(&mut self, faults: &'s [Fault]) {
        self.faults = faults;
        for (at, fault) in faults.iter().enumerate() {
            if let Trouble::CpuTaken { cpu } = fault.trouble
                && self.thieves.iter().all(|thief| thief.cpu != cpu)
            {
                let thread = self.cpus.spawn(Class::Realtime { priority: u8::MAX }, &[cpu]);
                self.owners.push(Owner::Thief(self.thieves.len()));
                self.thieves.push(Thief { cpu, thread, works: false, more_ns: 0 });
            }
            self.calendar.at(fault.at_ns, Event::Fault(at));
        }
    }

    pub(super) fn fault(&mut self, at: usize) {
        let Fault { ns, trouble, .. } = self.faults[at];
        match trouble {
            Trouble::GuestStalls { guest } => self.stall(guest, ns),
            Trouble::NoBuffers { guest } => self.guests[guest].without_buffers += 1,
            Trouble::AgentLost { guest } => self.guests[guest].poll = None,
            Trouble::CpuTaken { cpu } => self.steal(cpu, ns),
            Trouble::LinkDown { uplink } => self.uplinks[uplink].down += 1,
            Trouble::Suspend => self.uplinks.iter_mut().for_each(|uplink| uplink.down += 1),
            Trouble::ClockJumps => {
                self.calendar.jump(ns);
                if let Some(watch) = &mut self.watch {
                    watch.jumped(ns);
                }
            }
        }
        self.calendar.after(ns, Event::FaultOver(at));
    }

    pub(super) fn fault_over(&mut self, at: usize) {
        match self.faults[at].trouble {
            Trouble::NoBuffers { guest } => {
                self.guests[guest].without_buffers -= 1;
                self.buffers_back(guest);
            }
            Trouble::AgentLost { guest } => {
                self.guests[guest].poll = self.scenario.guests[guest].poll;
            }
            Trouble::LinkDown { uplink } => self.uplinks[uplink].down -= 1,
            Trouble::Suspend => self.uplinks.iter_mut().for_each(|uplink| uplink.down -= 1),
            Trouble::GuestStalls { .. } | Trouble::CpuTaken { .. } | Trouble::ClockJumps => {}
        }
    }

    fn steal(&mut self, cpu: CpuId, ns: u64) {
        let Some(thief) = self.thieves.iter_mut().find(|thief| thief.cpu == cpu) else { return };
        if std::mem::replace(&mut thief.works, true) {
            thief.more_ns += ns;
        } else {
            self.cpus.wake(&mut self.calendar, thief.thread, ns, 0);
        }
    }

    pub(super) fn thief_done(&mut self, thief: usize) {
        let Thief { thread, works, more_ns, .. } = &mut self.thieves[thief];
        match std::mem::take(more_ns) {
            0 => {
                *works = false;
                self.cpus.block(&mut self.calendar, *thread);
            }
            ns => self.cpus.go_on(&mut self.calendar, *thread, ns),
        }
    }
}
