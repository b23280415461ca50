//! The workers' traffic for each guest, and the CPUs of the guest's virtual processors.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use weir_config::PortName;
use weir_engine::{Engine, PortCounters};
use weir_fabric::PortId;
use weir_policy::placement::{GuestLook, VcpuLook, WorkerLook};

use super::pins::Pins;
use super::vcpus::{Thread, Vcpus};

/// A port of the switch.
pub(in crate::manager) struct PortLook<'a> {
    pub(in crate::manager) name: &'a PortName,
    pub(in crate::manager) id: PortId,
    /// The process of the virtual machine's monitor, if there is one.
    pub(in crate::manager) process: Option<u32>,
    /// The greatest number of queue pairs.
    pub(in crate::manager) queues: usize,
    pub(in crate::manager) counters: &'a PortCounters,
}

/// A guest at the last look.
#[derive(Debug)]
pub(super) struct GuestSight {
    pub(super) look: GuestLook,
    /// The threads of `look`, in its order.
    pub(super) threads: Vec<Thread>,
    pub(super) ports: Vec<PortName>,
}

/// The state at the last look.
#[derive(Debug, Default)]
pub(super) struct Sight {
    vcpus: Vcpus,
    looked_ns: Option<u64>,
    /// Each worker's CPU time (ns).
    cpu_ns: Vec<Option<u64>>,
    /// Frames of each transmit queue and all receive queues of a port.
    frames: BTreeMap<PortId, (Vec<u64>, u64)>,
    /// Each worker's load, and the ports whose queues it serves.
    pub(super) workers: Vec<(f64, Vec<PortName>)>,
}

impl Sight {
    /// The load of each worker since the last look.
    ///
    /// A transmit queue is served by its own worker, which also writes into the receivers' memory. The frames that
    /// each worker wrote into each receiver are not counted separately: with `by_traffic`, a port's received frames
    /// are divided in the proportions of all sent frames.
    pub(super) fn workers(
        &mut self,
        now_ns: u64,
        engine: &Engine,
        ports: &[PortLook<'_>],
        by_traffic: bool,
    ) -> Vec<WorkerLook> {
        let since_ns =
            self.looked_ns.replace(now_ns).map(|looked_ns| now_ns.saturating_sub(looked_ns));
        let cpu_ns: Vec<_> = engine.workers().iter().map(|worker| worker.cpu_ns).collect();
        let count = cpu_ns.len();
        let before = std::mem::replace(&mut self.cpu_ns, cpu_ns);
        let mut workers = vec![WorkerLook::default(); count];
        for ((worker, now), before) in workers.iter_mut().zip(&self.cpu_ns).zip(before) {
            if let (Some(now), Some(before), Some(since_ns)) = (now, before, since_ns) {
                let part = now.saturating_sub(before) as f64 / since_ns.max(1) as f64;
                worker.load = part.min(1.0);
            }
        }
        self.workers = workers.iter().map(|worker| (worker.load, Vec::new())).collect();

        let mut sent = vec![0.0; count];
        let mut received: Vec<(u32, u64)> = Vec::new();
        let known = std::mem::take(&mut self.frames);
        for port in ports {
            let tx: Vec<u64> = port.counters.tx.iter().map(|queue| queue.frames.get()).collect();
            let rx = port.counters.rx.iter().map(|queue| queue.frames.get()).sum();
            let (tx_before, rx_before) = known.get(&port.id).unwrap_or(&(tx.clone(), rx)).clone();
            let guest = port.process.filter(|process| is_guest(*process));
            for (queue, (tx, before)) in tx.iter().zip(tx_before).enumerate().take(port.queues) {
                let Some(worker) = engine.worker_of(port.id, queue) else { continue };
                let frames = tx.saturating_sub(before) as f64;
                if let Some(sent) = sent.get_mut(worker) {
                    *sent += frames;
                }
                if let (Some(guest), Some(look)) = (guest, workers.get_mut(worker)) {
                    *look.traffic.entry(guest).or_default() += frames;
                }
                if let Some((_, names)) = self.workers.get_mut(worker)
                    && names.last() != Some(port.name)
                {
                    names.push(port.name.clone());
                }
            }
            received.extend(guest.map(|guest| (guest, rx.saturating_sub(rx_before))));
            self.frames.insert(port.id, (tx, rx));
        }
        let all: f64 = sent.iter().sum();
        if by_traffic && all > 0.0 {
            for (worker, sent) in workers.iter_mut().zip(&sent).filter(|(_, sent)| **sent > 0.0) {
                for (guest, frames) in &received {
                    *worker.traffic.entry(*guest).or_default() += *frames as f64 * sent / all;
                }
            }
        }
        workers
    }

    /// The load of each guest's virtual processors since the last look.
    pub(super) fn guests(
        &mut self,
        now_ns: u64,
        proc: &Path,
        ports: &[PortLook<'_>],
        pins: &mut Pins,
    ) -> Vec<GuestSight> {
        let mut names: BTreeMap<u32, Vec<PortName>> = BTreeMap::new();
        for port in ports {
            if let Some(process) = port.process.filter(|process| is_guest(*process)) {
                names.entry(process).or_default().push(port.name.clone());
            }
        }
        let processes: BTreeSet<u32> = names.keys().copied().collect();
        pins.forget_others(&processes);
        let mut found = self.vcpus.look(proc, &processes, now_ns);
        let guests = names.into_iter().map(|(id, ports)| {
            let vcpus = found.remove(&id).unwrap_or_default().into_iter();
            let known = vcpus.filter_map(|vcpu| {
                let look = VcpuLook {
                    last_cpu: vcpu.last_cpu,
                    load: vcpu.load,
                    may_run: pins.may_run(vcpu.thread)?,
                    movable: vcpu.named && !pins.is_others(vcpu.thread),
                };
                Some((vcpu.thread, look))
            });
            let (threads, looks) = known.unzip();
            GuestSight { look: GuestLook { id, threads: looks }, threads, ports }
        });
        guests.collect()
    }
}

/// True for a virtual machine. A front end in weir's own process, as in `weir demo`, is no virtual machine.
fn is_guest(process: u32) -> bool {
    process != std::process::id()
}
