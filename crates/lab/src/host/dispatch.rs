//! Queues that move between workers by load: `engine/working/dispatcher.rs` around `weir_policy::dispatch`.
//!
//! A queue moves between two bursts. A burst in progress ends first. In the engine, workers wait
//! for the queue's lock.

use weir_policy::dispatch::{CORE, Move, Queue, Reason};

use super::Host;
use super::event::{Event, PortId};
use super::parts::{Dispatcher, Port};
use super::worker::Phase;

/// Interval of steps (ns), as in weir's manager.
const STEP_NS: u64 = 50_000_000;

impl Host<'_> {
    pub(super) fn start_dispatch(&mut self) {
        if self.dispatcher.policy.is_some() {
            self.calendar.after(STEP_NS, Event::Dispatch);
        }
    }

    /// Makes one step: assigns queues to workers by their load since the last step.
    pub(super) fn dispatch(&mut self) {
        let mut ports = Vec::new();
        let mut queues = Vec::new();
        for port in 0..self.dispatcher.ports.len() {
            let worker = self.owner(port);
            let Port { busy_ns, stays, .. } = &mut self.dispatcher.ports[port];
            let took_ns = std::mem::take(busy_ns);
            if took_ns > 0 {
                let load = (took_ns * u64::from(CORE) / STEP_NS).min(CORE.into());
                ports.push(port);
                let load = load as u32; // at most CORE
                queues.push(Queue { worker, load, stays: *stays, ..Queue::default() });
            }
        }
        let Dispatcher { policy: Some(policy), moves, .. } = &mut self.dispatcher else { return };
        policy.step(&mut queues, moves);
        for (&port, queue) in ports.iter().zip(&queues) {
            self.dispatcher.ports[port].stays = queue.stays;
        }
        for Move { queue, to, reason } in self.dispatcher.moves.clone() {
            // A second worker for one queue is not simulated.
            if matches!(reason, Reason::Helped | Reason::Alone) {
                continue;
            }
            let port = ports[queue];
            let from = self.owner(port);
            self.dispatcher.ports[port].next = Some(to);
            let burst =
                matches!(&self.workers[from].phase, Phase::Burst(burst) if burst.port == port);
            if !burst {
                self.hand_over(from, port);
            }
        }
        self.calendar.after(STEP_NS, Event::Dispatch);
    }

    /// Hands a queue of `from` to its next worker, if there is one.
    pub(super) fn hand_over(&mut self, from: usize, port: PortId) {
        let Some(to) = self.dispatcher.ports[port].next.take() else { return };
        self.dispatcher.ports[port].worker = Some(to);
        self.dispatcher.moved += 1;
        let since_ns = self.now_ns();
        let (kicked, stalled) = self.workers[from].forget_queue(port);
        self.workers[to].receive_queue(port, since_ns, kicked, stalled);
        self.set_kicks(port, false);
        let latency_ns = self.delays.wakeup_ns();
        self.wake(to, latency_ns);
    }
}
