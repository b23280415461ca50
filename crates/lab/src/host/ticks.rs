//! Interrupts of any running thread, above all the kernel's tick.
//!
//! The times and lengths of these interrupts are random. Some real ones are periodic, but never in step with the
//! interrupted work, as two events in virtual time could be.

use super::{Event, Host};
use crate::cpus::{Cpus, ThreadId};
use crate::random::Random;
use crate::scenario::Scenario;

/// The ticks of a host.
#[derive(Debug)]
pub(super) struct Ticks {
    /// Handlers by CPU, if the profile has ticks.
    handlers: Vec<ThreadId>,
    random: Random,
}

impl Ticks {
    pub(super) fn new(cpus: &mut Cpus, scenario: &Scenario, random: Random) -> Self {
        let there_are = scenario.profile.tick_ns > 0 && scenario.profile.tick_every_ns > 0;
        let count = scenario.topology.cpus().filter(|_| there_are).unwrap_or(0);
        Self { handlers: (0..count).map(|cpu| cpus.spawn_handler(cpu)).collect(), random }
    }

    pub(super) fn len(&self) -> usize {
        self.handlers.len()
    }

    fn exponential_ns(&mut self, mean_ns: u64) -> u64 {
        (-libm::log(self.random.unit()) * mean_ns as f64) as u64
    }
}

impl Host<'_> {
    pub(super) fn start_ticks(&mut self) {
        (0..self.ticks.len()).for_each(|cpu| self.expect_tick(cpu));
    }

    fn expect_tick(&mut self, cpu: usize) {
        let ns = self.ticks.exponential_ns(self.scenario.profile.tick_every_ns);
        self.calendar.after(ns, Event::Tick(cpu));
    }

    pub(super) fn tick(&mut self, cpu: usize) {
        self.expect_tick(cpu);
        let Some(&handler) = self.ticks.handlers.get(cpu) else { return };
        // A tick that is still running absorbs the next one.
        if self.cpus.sleeps(handler) {
            let ns = self.ticks.exponential_ns(self.scenario.profile.tick_ns);
            self.cpus.wake(&mut self.calendar, handler, ns, 0);
        }
    }
}
