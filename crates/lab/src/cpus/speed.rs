//! Speed of CPUs, and the work done so far.

use super::{Class, Cpu, CpuId, Cpus, Event, FULL_SPEED, WEIGHT_USUAL};
use crate::calendar::Calendar;

impl Cpus {
    /// Counts the work of the CPU's thread.
    pub(super) fn account(&mut self, now_ns: u64, cpu: CpuId) {
        let speed = self.speed(cpu);
        let Cpu { running, since_ns, .. } = &mut self.cpus[cpu];
        let elapsed_ns = now_ns.saturating_sub(std::mem::replace(since_ns, now_ns));
        let Some(thread) = *running else { return };
        let thread = &mut self.threads[thread];
        thread.work = thread.work.saturating_sub(elapsed_ns.saturating_mul(speed));
        thread.busy_ns += elapsed_ns;
        if let Class::Fair { weight } = thread.class {
            let passed = u128::from(elapsed_ns) * u128::from(WEIGHT_USUAL);
            thread.virtual_ns += (passed / u128::from(weight.max(1))) as u64; // not above elapsed * 1024
        }
    }

    pub(super) fn speed(&self, cpu: CpuId) -> u64 {
        let works = |other: CpuId| other != cpu && self.cpus[other].running.is_some();
        if self.topology.core_of(cpu).any(works) {
            u64::from(self.scheduling.smt_permille).clamp(1, FULL_SPEED)
        } else {
            FULL_SPEED
        }
    }

    /// Sets the end of the CPU's present work.
    pub(super) fn expect_end<E: From<Event>>(&mut self, calendar: &mut Calendar<E>, cpu: CpuId) {
        let speed = self.speed(cpu);
        let Cpu { running: Some(thread), run, .. } = &mut self.cpus[cpu] else { return };
        *run += 1;
        let left_ns = self.threads[*thread].work.div_ceil(speed);
        calendar.after(left_ns, Event::Done(cpu, *run));
    }

    /// Counts the siblings' work, before `cpu` starts or stops and their speed changes.
    pub(super) fn account_siblings(&mut self, now_ns: u64, cpu: CpuId) {
        for sibling in self.topology.core_of(cpu).filter(|sibling| *sibling != cpu) {
            self.account(now_ns, sibling);
        }
    }

    pub(super) fn retime_siblings<E: From<Event>>(
        &mut self,
        calendar: &mut Calendar<E>,
        cpu: CpuId,
    ) {
        for sibling in self.topology.core_of(cpu).filter(|sibling| *sibling != cpu) {
            self.expect_end(calendar, sibling);
        }
    }
}
