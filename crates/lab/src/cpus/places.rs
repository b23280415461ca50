//! Placement of threads beyond [`Cpus`]' own rules: placers, and schedulers that ignore caches.

use super::{Cpus, Event, FULL_SPEED, State, Thread, ThreadId};
use crate::calendar::Calendar;
use crate::random::Random;
use crate::topology::{CpuId, CpuSet};

impl Cpus {
    /// Makes woken threads go to any idle CPU at random from now on.
    pub fn ignore_caches(&mut self, random: Random) {
        self.blind = Some(random);
    }

    /// Restricts a thread to the CPUs `allowed`. It leaves its present CPU at once if necessary.
    pub fn allow<E: From<Event>>(
        &mut self,
        calendar: &mut Calendar<E>,
        thread: ThreadId,
        allowed: &[CpuId],
    ) {
        self.threads[thread].allowed = CpuSet::new(allowed);
        let cpu = match self.threads[thread].state {
            State::On(cpu) if !self.threads[thread].allowed.contains(cpu) => cpu,
            State::Ready => return self.find_cpu(calendar, thread),
            State::On(_) | State::Blocked | State::Waking => return,
        };
        self.account(calendar.now_ns(), cpu);
        self.put_back(cpu);
        self.find_cpu(calendar, thread);
        self.take_up(calendar, cpu);
    }

    /// Returns whether another thread is on the last CPU of this sleeping thread.
    pub fn is_taken(&self, thread: ThreadId) -> bool {
        let cpu = self.threads[thread].last.and_then(|cpu| self.cpus.get(cpu));
        cpu.is_some_and(|cpu| cpu.running.is_some_and(|running| running != thread))
    }

    /// Returns the present or last idle time of a thread's last CPU (ns).
    pub fn idle_ns(&self, now_ns: u64, thread: ThreadId) -> u64 {
        let cpu = self.threads[thread].last.and_then(|cpu| self.cpus.get(cpu));
        cpu.map_or(u64::MAX, |cpu| match cpu.running {
            None => now_ns.saturating_sub(cpu.idle_from_ns),
            Some(_) => cpu.idle_ns,
        })
    }

    /// Returns whether another thread waits for this thread's CPU.
    pub fn is_wanted(&self, thread: ThreadId) -> bool {
        match self.threads[thread].state {
            State::On(cpu) => self.waits_for(cpu),
            _ => false,
        }
    }

    /// Returns an idle CPU for the thread: nearest to its last one, on an idle core if possible; a
    /// random one if caches are ignored.
    pub(super) fn idle_cpu(&mut self, thread: ThreadId) -> Option<CpuId> {
        let Thread { allowed, last, .. } = self.threads[thread];
        let idle = self.cpus.iter().enumerate().filter(|(_, cpu)| cpu.running.is_none());
        let idle = idle.map(|(cpu, _)| cpu).filter(|&cpu| allowed.contains(cpu));
        if let Some(random) = &mut self.blind {
            let idle: Vec<CpuId> = idle.collect();
            let any = random.below(idle.len().max(1) as u64) as usize; // below its length
            return idle.get(any).copied();
        }
        idle.min_by_key(|&cpu| {
            let busy_core = self.speed(cpu) < FULL_SPEED;
            (self.distance(last, Some(cpu)), busy_core, Some(cpu) != last, cpu)
        })
    }
}
