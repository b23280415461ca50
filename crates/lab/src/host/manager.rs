//! The manager's steps: budgets of latency, queues that move between workers, and places of workers and vCPUs.
//!
//! Budgets are `switch/manager/core.rs` around `weir_policy::{attempt, budget}`, for hosts whose guests all run `auto`.
//! Costs of wake-ups and calls come from the profile; the real manager measures them. Queues move as in
//! `engine/working/dispatcher.rs` around `weir_policy::dispatch`, between two bursts: a burst in progress ends first. In
//! the engine, workers wait for the queue's lock. `weir_policy::placement` is asked as `engine` and `topology` ask it.

use weir_policy::attempt::{Look, Traffic};
use weir_policy::budget::{Load, Split};
use weir_policy::dispatch::{CORE, Move, Queue, Reason};
use weir_policy::moderation::hold_ns_max;
use weir_policy::placement::{self, GuestLook, VcpuLook, WorkerLook};

use super::Host;
use super::parts::{Dispatcher, Port};
use super::parts::{Event, PortId};
use super::worker::Phase;
use crate::link::Frame;
use crate::scenario::Endpoint;
use crate::topology::{CpuId, Topology};

impl Host<'_> {
    pub(super) fn start_manager(&mut self) {
        if self.manager.is_some() {
            self.calendar.after(self.scenario.law.look_ns, Event::Budget);
        }
    }

    /// Takes one look. Until the next look, all queues are held together, or each by itself.
    pub(super) fn split_budget(&mut self) {
        let now_ns = self.now_ns();
        let mut totals = vec![(0, 0); self.guests.len()];
        for (load, spec) in self.loads.iter().zip(&self.scenario.loads) {
            for end in [spec.from, spec.to] {
                if let Endpoint::Guest(guest) = end {
                    totals[guest].0 += load.received;
                    totals[guest].1 += load.bytes;
                }
            }
        }
        let limits_ns =
            self.scenario.guests.iter().map(|it| hold_ns_max(it.calls.latency_budget_ns));
        let budget_ns = limits_ns.clone().min().unwrap_or(0);
        let Some(manager) = &mut self.manager else { return };
        let mut traffic = Vec::new();
        for (vif, (counted, (frames, bytes))) in (0..).zip(manager.guests.iter_mut().zip(totals)) {
            let new = frames - counted.frames;
            if new > 0 {
                counted.busy_until_ns = now_ns + self.scenario.law.traffic_ns();
            }
            if now_ns < counted.busy_until_ns {
                traffic.push(Traffic {
                    vif,
                    frames: new,
                    bytes: bytes.saturating_sub(counted.bytes),
                });
            }
            (counted.frames, counted.bytes) = (frames, bytes);
        }
        let elapsed_ns = now_ns - std::mem::replace(&mut manager.looked_ns, now_ns);
        let together = manager.together.look(&Look { elapsed_ns, budget_ns, traffic: &traffic });
        let profile = &self.scenario.profile;
        let load = Load {
            budget_ns,
            uplink_cost_ns: profile.uplink_interrupt_ns as f64,
            call_cost_ns: (profile.call_ns + profile.interrupt_ns) as f64,
            vifs: traffic.len() as u32, // fewer than ports
        };
        let found_ns = self.scenario.uplinks.iter().map(|it| it.hold_ns).max().unwrap_or(0);
        let longer_ns = match together {
            true => Split::beyond(found_ns, load).uplink_ns - found_ns,
            false => 0,
        };
        for (uplink, spec) in self.uplinks.iter_mut().zip(&self.scenario.uplinks) {
            uplink.hold_ns = spec.hold_ns + longer_ns;
        }
        for (guest, limit_ns) in self.guests.iter_mut().zip(limits_ns) {
            guest.rx_calls.hold(limit_ns - longer_ns, together);
            guest.tx_calls.set_hold_ns_max(limit_ns - longer_ns);
        }
        self.calendar.after(self.scenario.law.look_ns, Event::Budget);
    }
}

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

    pub(super) fn carries(&mut self, worker: usize, from: PortId, frames: &[Frame]) {
        if self.place.is_none() {
            return;
        }
        for frame in frames {
            for port in [from, self.next_port(from, frame)] {
                let guest = u32::try_from(port).ok().filter(|_| port < self.guests.len());
                if let (Some(guest), Some(place)) = (guest, &mut self.place) {
                    *place.carried[worker].entry(guest).or_default() += 1;
                }
            }
        }
    }

    /// Lets the placer look, and executes its decision.
    pub(super) fn look_at_places(&mut self) {
        let now_ns = self.now_ns();
        let Some(place) = &mut self.place else { return };
        let look_ns = place.look_ns;
        let mut load = |thread: usize| {
            let busy_ns = self.cpus.busy_ns(now_ns, thread);
            let before_ns = std::mem::replace(&mut place.busy_ns[thread], busy_ns);
            (busy_ns - before_ns) as f64 / look_ns as f64
        };
        let mut workers = Vec::new();
        for (worker, carried) in self.workers.iter().zip(&mut place.carried) {
            let carried = std::mem::take(carried).into_iter();
            let traffic = carried.map(|(guest, frames)| (guest, frames as f64)).collect();
            workers.push(WorkerLook { load: load(worker.thread), traffic });
        }
        let mut guests = Vec::new();
        for (id, (guest, spec)) in (0..).zip(self.guests.iter().zip(&self.scenario.guests)) {
            let last = self.cpus.last_cpu(guest.thread).unwrap_or(0);
            let may_run = |cpu: &u16| spec.cpus.is_empty() || spec.cpus.contains(&(*cpu).into());
            let vcpu = VcpuLook {
                last_cpu: u16::try_from(last).unwrap_or(u16::MAX),
                load: load(guest.thread),
                may_run: place.allowed.iter().copied().filter(may_run).collect(),
                movable: true,
            };
            guests.push(GuestLook { id, threads: vec![vcpu] });
        }
        let decision = place.placer.decide(&placement::Look {
            now_ns,
            cpus: &place.cpus,
            allowed: &place.allowed,
            workers: &workers,
            guests: &guests,
        });
        for (worker, decided) in decision.workers.iter().enumerate() {
            let cpus: Vec<CpuId> = decided.cpu.map_or_else(
                || allowed_anyway(&self.scenario.workers[worker].cpus, self.scenario.topology),
                |cpu| vec![cpu.into()],
            );
            self.cpus.allow(&mut self.calendar, self.workers[worker].thread, &cpus);
        }
        for (guest, decided) in (0..).zip(&self.guests).filter_map(|(id, guest)| {
            decision.guests.get(&id).map(|decided| ((id as usize, guest.thread), decided))
        }) {
            let cpus: Vec<CpuId> = match &decided.cpus {
                Some(cpus) => cpus.iter().map(|cpu| (*cpu).into()).collect(),
                None => allowed_anyway(&self.scenario.guests[guest.0].cpus, self.scenario.topology),
            };
            self.cpus.allow(&mut self.calendar, guest.1, &cpus);
        }
        self.calendar.after(look_ns, Event::Look);
    }
}

/// Returns the CPUs of a thread that the placer leaves alone.
fn allowed_anyway(spec: &[CpuId], topology: Topology) -> Vec<CpuId> {
    match spec.is_empty() {
        true => (0..topology.cpus().unwrap_or(1)).collect(),
        false => spec.to_vec(),
    }
}
