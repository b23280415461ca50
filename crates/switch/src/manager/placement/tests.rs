//! Placement of real threads on simulated machines. Time is passed in.

use std::path::Path;
use std::sync::mpsc;
use std::thread::JoinHandle;

use tempfile::TempDir;
use weir_config::{Config, Defaults, PortName, VifConfig};
use weir_engine::guest::{CallPolicy, GuestDevice};
use weir_engine::{PortCounters, QueueRef, Side};
use weir_fabric::{PortConfig, PortId};
use weir_policy::moderation::Kind;
use weir_policy::placement::{GuestLook, VcpuLook, WorkerLook};
use weir_port_vhost::{VhostOptions, VhostPort};
use weir_topology::testing;

use super::vcpus::tests::thread as write_stat;
use super::*;
use crate::control::{ControlHandler, Request, Response};
use crate::explain::PlacementExplanation;
use crate::helper::Hands;
use crate::switch::{Meeting, Switch};

/// The process of a simulated monitor.
const MONITOR: u32 = 7;

/// Processors 0 and 1 share a cache, as do 2 and 3.
const TWO_CACHES: &str = "devices/system/cpu/online = 0-3\n\
    devices/system/cpu/cpu{0-3}/cache/index0/level = 3\n\
    devices/system/cpu/cpu{0-1}/cache/index0/shared_cpu_list = 0-1\n\
    devices/system/cpu/cpu{2-3}/cache/index0/shared_cpu_list = 2-3\n";
const TWO_NODES: &str = "devices/system/cpu/online = 0-3\n\
    devices/system/node/online = 0-1\n\
    devices/system/node/node0/cpulist = 0-1\n\
    devices/system/node/node1/cpulist = 2-3\n";
/// Processors 0 and 1 are on one node, and processor 2 is slow and far away.
const FAR_AND_SLOW: &str = "devices/system/cpu/online = 0-2\n\
    devices/system/cpu/cpu{0-1}/cpu_capacity = 1024\n\
    devices/system/cpu/cpu2/cpu_capacity = 400\n\
    devices/system/node/online = 0-1\n\
    devices/system/node/node0/cpulist = 0-1\n\
    devices/system/node/node1/cpulist = 2\n";

/// True if this machine has processors 0 and 1, and the tests may use them.
fn has_two() -> bool {
    affinity::allowed(None).unwrap().is_superset(&[0, 1].into())
}

/// A thread that stands for a virtual processor. Dropping the value ends the thread.
struct Vcpu {
    id: u32,
    end: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Vcpu {
    fn start() -> Self {
        let (end, ended) = mpsc::channel::<()>();
        let (tell, told) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            tell.send(rustix::thread::gettid()).unwrap();
            let _ = ended.recv();
        });
        let id = told.recv().unwrap().as_raw_nonzero().get().unsigned_abs();
        Self { id, end: Some(end), thread: Some(thread) }
    }

    fn allowed(&self) -> BTreeSet<u16> {
        affinity::allowed(Some(self.id)).unwrap()
    }
}

impl Drop for Vcpu {
    fn drop(&mut self) {
        drop(self.end.take());
        self.thread.take().unwrap().join().unwrap();
    }
}

/// A switch with one worker and one interface, whose guest has one virtual processor.
struct Rig {
    engine: Arc<Engine>,
    port: PortId,
    dir: TempDir,
    vcpu: Vcpu,
    counters: PortCounters,
    name: PortName,
    placement: Placement,
    now_ns: u64,
}

impl Rig {
    fn new(machine: &str, allowed: &[u16], config: PlacementConfig) -> Self {
        let dir = tempfile::tempdir().unwrap();
        testing::expand(machine, &dir.path().join("sys")).unwrap();
        let vcpu = Vcpu::start();
        write_stat(&dir.path().join("proc"), MONITOR, vcpu.id, "CPU 0/KVM", 0, 0);
        let engine = Engine::start(1).unwrap();
        while engine.worker_threads() == [None] {
            std::thread::yield_now();
        }
        let calls = CallPolicy::within(Kind::Auto, 250_000);
        let options = VhostOptions {
            name: "web0".into(),
            queue_pairs: 1,
            calls,
            device: GuestDevice::default(),
        };
        let make = |id, counters| Arc::new(VhostPort::new(id, counters, &options));
        let (port, _) = engine.add_port(PortConfig::vif(), make).unwrap();
        let host = host(dir.path(), allowed);
        Self {
            engine,
            port,
            dir,
            vcpu,
            counters: PortCounters::default(),
            name: "web0".parse().unwrap(),
            placement: Placement::new(config, host, Arc::default()),
            now_ns: 0,
        }
    }

    fn look(&mut self) -> PlacementExplanation {
        self.now_ns += LOOK_NS;
        let port = PortLook {
            name: &self.name,
            id: self.port,
            process: Some(MONITOR),
            queues: 1,
            counters: &self.counters,
        };
        self.placement.look(self.now_ns, &self.engine, &[port]);
        self.placement.explain()
    }

    /// Makes the worker busy: it wakes up until it has used a part of the time between looks.
    fn work(&self) {
        let cpu_ns = || self.engine.workers()[0].cpu_ns.unwrap();
        let queue = QueueRef { port: self.port, queue: 0, side: Side::Tx };
        let end_ns = cpu_ns() + LOOK_NS / 5;
        while cpu_ns() < end_ns {
            (0..100).for_each(|_| self.engine.nudge(queue));
        }
    }

    /// Looks often enough for any decision to be made and applied.
    fn settle(&mut self) -> PlacementExplanation {
        (0..40).map(|_| self.look()).last().unwrap()
    }

    fn worker_allowed(&self) -> BTreeSet<u16> {
        affinity::allowed(self.engine.worker_threads()[0]).unwrap()
    }

    fn switch_off(&mut self) {
        let host = self.placement.host.clone();
        self.placement.change(PlacementConfig::default(), host, &self.engine);
    }
}

fn host(dir: &Path, allowed: &[u16]) -> Host {
    let allowed = allowed.iter().copied().collect();
    Host {
        sysfs: dir.join("sys"),
        proc: dir.join("proc"),
        allowed: Some(allowed),
        hands: Hands::Own,
    }
}

fn config(mode: PlacementMode, pin_vcpus: bool) -> PlacementConfig {
    PlacementConfig { mode, pin_vcpus, ..PlacementConfig::default() }
}

#[test]
fn a_workers_affinity_follows_its_guests_virtual_processors() {
    if !has_two() {
        return;
    }
    let mut rig = Rig::new(TWO_CACHES, &[0, 1, 2, 3], config(PlacementMode::Static, false));
    for (vcpu, worker) in [(0, 1), (1, 0)] {
        affinity::set(rig.vcpu.id, &[vcpu].into()).unwrap();
        let explained = rig.settle();
        assert_eq!(rig.worker_allowed(), [worker].into());
        let place = &explained.workers[0];
        assert_eq!(place.cpu, Some(worker));
        assert_eq!(rig.placement.cpus_of(&rig.engine, rig.port, 1), [(0, worker)].into());
        assert_eq!(place.reason, "100% of its traffic is with this cache, cost 1.0");
        assert_eq!(place.ports, [rig.name.clone()]);
        assert!(place.rejected[0].ends_with("virtual processors run there"), "{place:?}");
        assert!(place.rejected[1].ends_with("far from the virtual processors"), "{place:?}");
        assert_eq!(explained.guests[0].reason, "pin_vcpus is off");
        assert_eq!(rig.vcpu.allowed(), [vcpu].into(), "without permission");
    }
    assert_eq!(rig.placement.counts().moves.get(), 2);
    rig.placement.config.move_irqs = false;
    assert!(rig.placement.cpus_of(&rig.engine, rig.port, 1).is_empty());
    rig.switch_off();
    assert_eq!(rig.worker_allowed(), affinity::allowed(None).unwrap());
    assert!(rig.placement.cpus_of(&rig.engine, rig.port, 1).is_empty());
}

#[test]
fn a_busy_worker_gets_a_core_beside_the_virtual_processor_that_runs() {
    if !has_two() {
        return;
    }
    const LOOKS_MAX: u64 = 40;
    let mut rig = Rig::new(TWO_NODES, &[0, 1, 2, 3], config(PlacementMode::Dynamic, false));
    let before = rig.worker_allowed();
    assert_eq!(rig.look().workers[0].cpu, None);
    let ticks = rustix::param::clock_ticks_per_second();
    let mut looks = 0;
    while rig.worker_allowed() == before {
        looks += 1;
        assert!(looks < LOOKS_MAX, "{:?}", rig.placement.explain());
        let proc = rig.dir.path().join("proc");
        write_stat(&proc, MONITOR, rig.vcpu.id, "CPU 0/KVM", looks * ticks, 0);
        rig.counters.tx[0].frames.add(1_000);
        rig.work();
        rig.look();
    }
    assert_eq!(rig.worker_allowed(), [1].into());
    let explained = rig.placement.explain();
    assert!(explained.workers[0].reason.starts_with("100% of"), "{explained:?}");
}

#[test]
fn virtual_processors_are_moved_with_permission_and_given_back() {
    if !has_two() {
        return;
    }
    let found = affinity::allowed(None).unwrap();
    let pinned = config(PlacementMode::Static, true);
    for by_drop in [false, true] {
        let mut rig = Rig::new(FAR_AND_SLOW, &[0, 1, 2], pinned);
        affinity::set(rig.vcpu.id, &[0, 1].into()).unwrap();
        let explained = rig.settle();
        assert_eq!((rig.worker_allowed(), rig.vcpu.allowed()), ([1].into(), [0].into()));
        assert_eq!(explained.guests[0].cpus.as_deref(), Some("0"));
        assert_eq!(explained.vcpu_moves, 1, "once");
        if by_drop {
            let Rig { placement, vcpu, .. } = rig;
            drop(placement);
            assert_eq!(vcpu.allowed(), [0, 1].into());
        } else {
            rig.switch_off();
            assert_eq!((rig.worker_allowed(), rig.vcpu.allowed()), (found.clone(), [0, 1].into()));
        }
    }
}

#[test]
fn a_virtual_processor_that_somebody_else_moves_is_left_alone() {
    if !has_two() {
        return;
    }
    let mut rig = Rig::new(FAR_AND_SLOW, &[0, 1, 2], config(PlacementMode::Static, true));
    affinity::set(rig.vcpu.id, &[0, 1].into()).unwrap();
    rig.settle();
    affinity::set(rig.vcpu.id, &[1].into()).unwrap();
    let explained = rig.settle();
    assert_eq!(rig.vcpu.allowed(), [1].into());
    let reason = &explained.guests[0].reason;
    assert!(reason.ends_with("1 that somebody else has moved are left alone"), "{reason}");
    rig.switch_off();
    assert_eq!(rig.vcpu.allowed(), [1].into());
}

#[test]
fn a_place_that_the_kernel_refuses_is_counted_once_and_explained() {
    let far = [92, 93, 94, 95];
    if affinity::allowed(None).unwrap().iter().any(|cpu| far.contains(cpu)) {
        return;
    }
    let mut rig = Rig::new(testing::AMD_CCX, &far, config(PlacementMode::Static, false));
    let before = rig.worker_allowed();
    let explained = rig.settle();
    assert_eq!(rig.worker_allowed(), before);
    assert_eq!((explained.moves, explained.refused), (0, 1));
    let refused = explained.workers[0].refused.as_deref().unwrap();
    assert!(refused.contains("has no such processor"), "{refused}");
}

#[test]
fn a_virtual_processor_that_has_ended_is_no_error() {
    let mut rig = Rig::new(FAR_AND_SLOW, &[0, 1, 2], config(PlacementMode::Static, true));
    let ended = Vcpu::start();
    write_stat(&rig.dir.path().join("proc"), MONITOR, ended.id, "CPU 1/KVM", 0, 0);
    rig.look();
    let thread = rig.placement.guests[0].threads.iter().find(|thread| thread.id == ended.id);
    let thread = *thread.unwrap();
    drop(ended);
    let explained = rig.settle();
    assert_eq!(explained.guests[0].vcpus, 1, "the other one");
    let outcome = rig.placement.pins.pin(thread, &[0].into());
    assert_eq!(outcome, Outcome::Refused(Errno::SRCH));
}

#[test]
fn on_real_machines_a_worker_is_near_its_guest_and_off_its_cores() {
    let machines = [
        (testing::AMD_CCX, vec![12, 13], Some(14)),
        // The worker's guest has the first threads of all but one of the cores at the worker's
        // cache, and one second thread.
        (testing::TWO_SOCKETS_SMT, vec![8, 9, 10, 11, 12, 13, 30], Some(15)),
        (testing::HYBRID, vec![2, 13], Some(4)),
        (testing::ONE_CACHE, vec![1], None),
        (testing::SMALL_VM, vec![1], None),
    ];
    for (fixture, vcpus, expected) in machines {
        let dir = tempfile::tempdir().unwrap();
        testing::expand(fixture, dir.path()).unwrap();
        let topology = Topology::read(dir.path()).unwrap();
        let all: Vec<u16> = topology.cpus.iter().map(|cpu| cpu.id).collect();
        let host = Host { sysfs: dir.path().into(), ..host(dir.path(), &all) };
        let machine = look_at(&host, Err(String::new())).unwrap();
        let may_run = &machine.allowed;
        let thread = |cpu: &u16| VcpuLook {
            last_cpu: *cpu,
            load: 0.8,
            may_run: may_run.clone(),
            movable: true,
        };
        let guests = [GuestLook { id: MONITOR, threads: vcpus.iter().map(thread).collect() }];
        let workers = [WorkerLook { load: 0.9, traffic: [(MONITOR, 1.0)].into() }];
        let mut placer = Placer::new(Policy::Dynamic, false);
        let decide = |second| {
            let (cpus, allowed) = (&machine.topology.cpus, &machine.allowed);
            let now_ns = second * LOOK_NS;
            placer.decide(&Look { now_ns, cpus, allowed, workers: &workers, guests: &guests })
        };
        let decision = (0..10).map(decide).last().unwrap();
        assert_eq!(decision.workers[0].cpu, expected, "{decision:?}");
    }
}

#[test]
fn a_machine_that_cannot_be_read_is_explained_and_nothing_is_moved() {
    let mut rig = Rig::new(
        "devices/system/cpu/online = 3-1\n",
        &[0, 1, 2, 3],
        config(PlacementMode::Static, true),
    );
    let explained = rig.settle();
    assert!(explained.workers.is_empty() && explained.moves == 0);
    let problem = explained.problem.unwrap();
    assert!(problem.contains("online") && problem.contains("ends before it begins"), "{problem}");
}

#[test]
fn two_processors_are_left_alone_and_that_is_said() {
    let mut rig = Rig::new(testing::SMALL_VM, &[0, 1], config(PlacementMode::Dynamic, true));
    let before = rig.worker_allowed();
    let explained = rig.settle();
    assert_eq!(rig.worker_allowed(), before);
    let machine = explained.machine.unwrap();
    assert_eq!((machine.cpus, machine.cores, &*machine.allowed), (2, 2, "0-1"));
    assert_eq!(
        (machine.caches, machine.caches_known, machine.nodes),
        (vec!["0-1".into()], false, 1)
    );
    let [worker] = &explained.workers[..] else { panic!("{:?}", explained.workers) };
    assert_eq!(worker.cpu, None);
    assert_eq!(worker.reason, "weir may use 2 processors: none can be kept for a worker");
    let [guest] = &explained.guests[..] else { panic!("{:?}", explained.guests) };
    assert_eq!((guest.process, guest.vcpus, &*guest.last_ran), (7, 1, "0"));
    assert_eq!((&guest.cpus, &*guest.reason), (&None, "no worker that serves it has a place"));
    assert_eq!((explained.moves, explained.vcpu_moves, explained.refused), (0, 0, 0));
}

#[test]
fn a_running_switch_explains_placement_unless_a_port_has_this_name() {
    let dir = tempfile::tempdir().unwrap();
    let control = dir.path().join("control.sock");
    let control = control.to_str().unwrap().parse().unwrap();
    let defaults = Defaults { control, control_named: true, keeper: None };
    let text = "[switch]\nworkers = 1\nplacement = \"dynamic\"\n";
    let switch = Switch::start(&Config::from_toml("weir.toml", text, &defaults).unwrap()).unwrap();
    let name: PortName = "placement".parse().unwrap();
    let explain = || switch.handle(Request::VifExplain { name: name.clone() });
    let Response::PlacementExplained { explanation } = explain() else {
        panic!("no explanation");
    };
    assert_eq!(explanation.mode, PlacementMode::Dynamic);
    assert_eq!(explanation.workers.len(), 1);
    assert_eq!(explanation.workers[0].cpu, None, "nothing is known of guests");
    let socket = dir.path().join("vif.sock").to_str().unwrap().parse().unwrap();
    switch.add_vif(VifConfig::new(name.clone(), socket), Meeting::Configured).unwrap();
    assert!(matches!(explain(), Response::Explained { .. }));
}
