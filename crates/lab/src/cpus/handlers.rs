//! Interrupt handlers: they run in any context, and give it back.

use super::{Class, Cpus, State, Thread, ThreadId};
use crate::topology::CpuId;

impl Cpus {
    /// Makes an interrupt handler, which runs on one CPU, before all threads and without a switch.
    pub fn spawn_handler(&mut self, cpu: CpuId) -> ThreadId {
        let thread = self.spawn(Class::Realtime { priority: u8::MAX }, &[cpu]);
        self.threads[thread].handler = true;
        thread
    }

    /// Returns the thread that a handler on `cpu` interrupted, and the rest of its slice (ns). The
    /// thread continues unless a newly ready thread would have preempted it.
    pub(super) fn interrupted(&mut self, now_ns: u64, cpu: CpuId) -> Option<(ThreadId, u64)> {
        let (interrupted, until_ns) = self.cpus[cpu].interrupted.take()?;
        let Thread { state, key, allowed, .. } = self.threads[interrupted];
        let may = |thread: ThreadId| self.threads[thread].allowed.contains(cpu);
        let (first, _) = self.ready.iter().find(|(_, thread)| may(*thread))?;
        let ahead_ns = key.virtual_ns.saturating_sub(first.virtual_ns);
        let goes_on = state == State::Ready
            && allowed.contains(cpu)
            && first.rank == key.rank
            && ahead_ns <= self.scheduling.granularity_ns;
        let left_ns = until_ns.saturating_sub(now_ns);
        (goes_on && left_ns > 0).then_some((interrupted, left_ns))
    }
}
