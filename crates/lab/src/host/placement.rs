//! Places of workers and vCPUs: `weir_policy::placement`, asked as `engine` and `topology` ask it.

use weir_policy::placement::{GuestLook, Look, VcpuLook, WorkerLook};

use super::Host;
use super::event::{Event, PortId};
use crate::frame::Frame;
use crate::topology::{CpuId, Topology};

impl Host<'_> {
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
        let decision = place.placer.decide(&Look {
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
