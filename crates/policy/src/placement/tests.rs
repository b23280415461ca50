//! Placement on made-up machines, in virtual time.

use proptest::prelude::*;

use super::*;

const SECOND_NS: u64 = 1_000_000_000;

/// Builds a machine of `nodes` nodes with `caches` caches each, `cores` cores to a cache, `threads`
/// to a core. As on most machines, the second threads of all cores come after all first ones.
fn machine(nodes: u16, caches: u16, cores: u16, threads: u16) -> Vec<Cpu> {
    let all = nodes * caches * cores;
    let cpu = |id: u16| {
        let core = id % all;
        let cache = core / cores;
        Cpu { id, core, cache, node: cache / caches, efficiency: false }
    };
    (0..all * threads).map(cpu).collect()
}

fn every(cpus: &[Cpu]) -> BTreeSet<u16> {
    cpus.iter().map(|cpu| cpu.id).collect()
}

fn worker(load: f64, traffic: &[(GuestId, f64)]) -> WorkerLook {
    WorkerLook { load, traffic: traffic.iter().copied().collect() }
}

/// Builds a guest whose threads keep `cpus` busy and may run on all of `may_run`.
fn guest(id: GuestId, cpus: &[u16], may_run: &BTreeSet<u16>) -> GuestLook {
    let thread =
        |cpu: &u16| VcpuLook { last_cpu: *cpu, load: 0.8, may_run: may_run.clone(), movable: true };
    GuestLook { id, threads: cpus.iter().map(thread).collect() }
}

/// A host whose placer runs once a second.
struct Host {
    cpus: Vec<Cpu>,
    allowed: BTreeSet<u16>,
    placer: Placer,
    now_ns: u64,
}

impl Host {
    fn new(cpus: Vec<Cpu>, policy: Policy) -> Self {
        let allowed = every(&cpus);
        Self { cpus, allowed, placer: Placer::new(policy, true), now_ns: 0 }
    }

    fn look(&mut self, workers: &[WorkerLook], guests: &[GuestLook]) -> Decision {
        self.now_ns += SECOND_NS;
        let Self { cpus, allowed, placer, now_ns } = self;
        placer.decide(&Look { now_ns: *now_ns, cpus, allowed, workers, guests })
    }

    /// Looks until every pending change has happened.
    fn settle(&mut self, workers: &[WorkerLook], guests: &[GuestLook]) -> Decision {
        (0..30).map(|_| self.look(workers, guests)).last().unwrap()
    }

    fn cpu(&self, id: u16) -> Cpu {
        self.cpus[usize::from(id)]
    }

    fn place(&self, decision: &Decision, worker: usize) -> Cpu {
        self.cpu(decision.workers[worker].cpu.expect("a place"))
    }
}

#[test]
fn a_worker_goes_into_the_cache_of_its_guest_and_off_its_cores() {
    let mut host = Host::new(machine(2, 2, 3, 2), Policy::Dynamic);
    // The guest keeps two of three cores of the last cache busy, one by its second thread.
    let guests = [guest(7, &[9, 22], &every(&host.cpus))];
    let decision = host.settle(&[worker(0.9, &[(7, 1.0)])], &guests);
    assert_eq!(decision.workers[0].cpu, Some(11));
    assert_eq!(decision.workers[0].reason, Reason::NearVcpus { share: 1.0 });
    assert_eq!(decision.workers[0].rejected[0].cpu, 23, "the other thread of the same core");
    let far = &decision.workers[0].rejected[1..];
    assert!(far.iter().all(|place| place.why == Why::FarFromVcpus), "{far:?}");
    assert_eq!(host.cpu(far[0].cpu).node, 1, "the cheapest of them is on the same node");
}

#[test]
fn a_worker_follows_the_guest_with_most_of_its_traffic() {
    let mut host = Host::new(machine(2, 1, 4, 1), Policy::Dynamic);
    let guests = |cpus| [guest(1, &[0, 1], cpus), guest(2, &[4, 5], cpus)];
    let guests = guests(&every(&host.cpus));
    let decision = host.settle(&[worker(1.0, &[(1, 10.0), (2, 1.0)])], &guests);
    assert_eq!(host.place(&decision, 0).node, 0);
    let decision = host.settle(&[worker(1.0, &[(1, 1.0), (2, 10.0)])], &guests);
    assert_eq!(host.place(&decision, 0).node, 1);
}

#[test]
fn a_worker_follows_the_virtual_processors_that_move() {
    let mut host = Host::new(machine(1, 4, 3, 1), Policy::Dynamic);
    let workers = [worker(0.7, &[(1, 1.0)])];
    let all = every(&host.cpus);
    for cpu in [0, 6, 3, 9] {
        let decision = host.settle(&workers, &[guest(1, &[cpu], &all)]);
        assert_eq!(host.place(&decision, 0).cache, host.cpu(cpu).cache);
        assert_ne!(decision.workers[0].cpu, Some(cpu));
    }
}

#[test]
fn workers_of_one_cache_take_different_cores() {
    for policy in [Policy::Static, Policy::Dynamic] {
        let mut host = Host::new(machine(1, 2, 4, 2), policy);
        let first: BTreeSet<u16> = (0..4).chain(8..12).collect();
        let workers = [(); 3].map(|()| worker(0.8, &[(1, 1.0)]));
        let decision = host.settle(&workers, &[guest(1, &[0], &first)]);
        let cores: BTreeSet<u16> =
            (0..3).map(|worker| host.place(&decision, worker).core).collect();
        assert_eq!(cores.len(), 3, "{policy:?}: {decision:?}");
    }
}

#[test]
fn the_busiest_worker_chooses_first() {
    let mut host = Host::new(machine(1, 2, 4, 1), Policy::Dynamic);
    let guests = [guest(1, &[4, 5, 6], &every(&host.cpus))];
    let decision = host.settle(&[worker(0.1, &[(1, 1.0)]), worker(0.9, &[(1, 1.0)])], &guests);
    assert_eq!(decision.workers[1].cpu, Some(7));
    assert_ne!(decision.workers[0].cpu, Some(7));
}

#[test]
fn a_worker_that_gains_nothing_stays_when_another_moves() {
    let mut host = Host::new(machine(1, 3, 4, 1), Policy::Dynamic);
    let all = every(&host.cpus);
    let workers = [worker(0.9, &[(1, 1.0)]), worker(0.9, &[(2, 1.0)])];
    host.settle(&workers, &[guest(1, &[1], &all), guest(2, &[4], &all)]);
    // Processor 1, the lowest of the first cache after processor 0, is from now on as good as 2.
    let before = host.settle(&workers, &[guest(1, &[0], &all), guest(2, &[4], &all)]);
    assert_eq!(before.workers[0].cpu, Some(2));
    let after = host.settle(&workers, &[guest(1, &[0], &all), guest(2, &[8], &all)]);
    assert_eq!(host.place(&after, 1).cache, 2);
    assert_eq!(after.workers[0].cpu, Some(2));
}

#[test]
fn one_cache_is_left_to_the_kernel_by_dynamic_and_parted_by_static() {
    let cpus = machine(1, 1, 4, 1);
    let all = every(&cpus);
    let workers = [worker(0.9, &[(1, 1.0)])];
    let guests = [guest(1, &[2], &all)];
    let mut host = Host::new(cpus.clone(), Policy::Dynamic);
    let decision = host.settle(&workers, &guests);
    assert_eq!(decision.workers[0].reason, Reason::KernelAsGood);
    assert_eq!(decision.workers[0].cpu, None);
    assert_eq!(decision.guests[&1].reason, GuestReason::NoWorkerPlaced);
    let mut host = Host::new(cpus, Policy::Static);
    let decision = host.look(&workers, &guests);
    let place = decision.workers[0].cpu.unwrap();
    let apart: BTreeSet<u16> = all.iter().copied().filter(|cpu| *cpu != place).collect();
    assert_eq!(decision.guests[&1].cpus, Some(apart));
}

#[test]
fn static_spreads_workers_before_there_are_guests_and_does_not_follow_load() {
    let mut host = Host::new(machine(2, 1, 4, 2), Policy::Static);
    let idle = [worker(0.0, &[]), worker(0.0, &[])];
    let decision = host.look(&idle, &[]);
    let places = [0, 1].map(|worker| host.place(&decision, worker));
    assert_ne!(places[0].cache, places[1].cache);
    assert!(places.iter().all(|place| place.core != 0), "processor 0 has work of its own");
    assert_eq!(decision.workers[0].reason, Reason::OwnCore);
    let all = every(&host.cpus);
    let busy = [worker(1.0, &[(1, 9.0)]), worker(0.1, &[(1, 1.0)])];
    for cpu in [1, 2, 5, 6] {
        let now = host.settle(&busy, &[guest(1, &[cpu], &all)]);
        assert_eq!([0, 1].map(|worker| host.place(&now, worker)), places);
    }
}

#[test]
fn static_goes_where_the_guests_processors_may_run() {
    let mut host = Host::new(machine(2, 2, 4, 1), Policy::Static);
    let pinned: BTreeSet<u16> = [8, 9, 10].into();
    let decision = host.look(&[worker(0.0, &[(1, 0.0)])], &[guest(1, &[8, 9], &pinned)]);
    assert_eq!(decision.workers[0].cpu, Some(11));
    // A place outside `may_run` is not used.
    assert_eq!(decision.guests[&1].cpus, Some(pinned));
}

#[test]
fn performance_cores_come_first_and_nearness_before_them() {
    let mut cpus = machine(1, 1, 8, 1);
    for cpu in &mut cpus[4..] {
        cpu.efficiency = true;
    }
    let workers = [worker(1.0, &[(1, 1.0)])];
    let mut host = Host::new(cpus.clone(), Policy::Dynamic);
    let decision = host.settle(&workers, &[guest(1, &[0], &every(&cpus))]);
    assert!(!host.place(&decision, 0).efficiency);
    for cpu in &mut cpus[4..] {
        cpu.cache = 1;
        cpu.node = 1;
    }
    let mut host = Host::new(cpus.clone(), Policy::Dynamic);
    let decision = host.settle(&workers, &[guest(1, &[5], &every(&cpus))]);
    assert!(host.place(&decision, 0).efficiency);
}

#[test]
fn small_machines_are_left_alone() {
    for policy in [Policy::Static, Policy::Dynamic] {
        let mut host = Host::new(machine(2, 1, 1, 1), policy);
        let guests = [guest(1, &[1], &every(&host.cpus))];
        let decision = host.settle(&[worker(1.0, &[(1, 1.0)])], &guests);
        assert_eq!(decision.workers[0].reason, Reason::FewCpus { cpus: 2 });
        assert_eq!((decision.workers[0].cpu, &decision.guests[&1].cpus), (None, &None));
        // Four threads of two cores: two workers would leave none for guests.
        let mut host = Host::new(machine(1, 1, 2, 2), policy);
        let decision = host.settle(&[worker(1.0, &[]), worker(1.0, &[])], &[]);
        assert_eq!(decision.workers[0].reason, Reason::FewCores { cores: 2 });
    }
}

#[test]
fn only_allowed_processors_are_used_and_one_that_is_taken_away_is_left_at_once() {
    let mut host = Host::new(machine(1, 2, 4, 1), Policy::Dynamic);
    host.allowed = [1, 5, 6, 7].into();
    let workers = [worker(1.0, &[(1, 1.0)])];
    let guests = [guest(1, &[4], &every(&host.cpus))];
    let decision = host.settle(&workers, &guests);
    assert_eq!(decision.workers[0].cpu, Some(5));
    host.allowed = [0, 1, 2, 6].into();
    let decision = host.look(&workers, &guests);
    assert_eq!(decision.workers[0].cpu, Some(6));
}

#[test]
fn virtual_processors_come_to_their_worker_but_never_to_another_node() {
    let mut host = Host::new(machine(2, 2, 4, 1), Policy::Dynamic);
    let all = every(&host.cpus);
    // Most of the traffic is the first guest's, in cache 0; the second is in cache 1, the third on node 1.
    let guests = [guest(1, &[0], &all), guest(2, &[4], &all), guest(3, &[8], &all)];
    let decision = host.settle(&[worker(1.0, &[(1, 10.0), (2, 1.0), (3, 1.0)])], &guests);
    let place = host.place(&decision, 0);
    assert_eq!(place.cache, 0);
    let beside: BTreeSet<u16> = (0..4).filter(|cpu| *cpu != place.id).collect();
    for id in [1, 2] {
        assert_eq!(decision.guests[&id].cpus.as_ref(), Some(&beside));
        assert_eq!(decision.guests[&id].reason, GuestReason::BesideWorker(0));
    }
    assert_eq!(decision.guests[&3].reason, GuestReason::OtherNode);
}

#[test]
fn a_guest_that_does_not_fit_is_left_alone() {
    let mut host = Host::new(machine(1, 2, 4, 1), Policy::Dynamic);
    let all = every(&host.cpus);
    let guests = [guest(1, &[0, 0, 1, 1], &all)];
    let decision = host.settle(&[worker(1.0, &[(1, 1.0)])], &guests);
    assert_eq!(decision.guests[&1].reason, GuestReason::NoRoom { threads: 4, cpus: 3 });
    let mut unnamed = guest(1, &[0, 1], &all);
    unnamed.threads.iter_mut().for_each(|thread| thread.movable = false);
    let decision = host.settle(&[worker(1.0, &[(1, 1.0)])], &[unnamed]);
    assert_eq!(decision.guests[&1].reason, GuestReason::NoneNamed);
}

#[test]
fn guests_keep_their_places_while_workers_stay() {
    let mut host = Host::new(machine(1, 2, 4, 1), Policy::Dynamic);
    let all = every(&host.cpus);
    let two = [guest(1, &[0, 0], &all), guest(2, &[1, 1], &all)];
    let workers = [worker(1.0, &[(1, 2.0), (2, 1.0)])];
    let decision = host.settle(&workers, &two);
    assert!(decision.guests[&1].cpus.is_some());
    assert_eq!(decision.guests[&2].reason, GuestReason::NoRoom { threads: 2, cpus: 1 });
    // The second guest has more traffic now; there is still room for only one of them.
    let decision = host.settle(&[worker(1.0, &[(1, 1.0), (2, 2.0)])], &two);
    assert!(decision.guests[&1].cpus.is_some() && decision.guests[&2].cpus.is_none());
}

#[test]
fn nothing_known_is_left_to_the_kernel() {
    let mut host = Host::new(machine(2, 2, 4, 1), Policy::Dynamic);
    let decision = host.settle(&[worker(1.0, &[(1, 1.0)])], &[]);
    assert_eq!(decision.workers[0].reason, Reason::NothingKnown);
    assert_eq!(decision.workers[0].cpu, None);
}

#[test]
fn a_better_plan_waits_until_it_has_stayed_better() {
    let mut host = Host::new(machine(1, 2, 4, 1), Policy::Dynamic);
    let all = every(&host.cpus);
    let workers = [worker(1.0, &[(1, 1.0)])];
    let guests = [guest(1, &[0], &all)];
    let first = host.look(&workers, &guests);
    assert_eq!(first.workers[0].cpu, None);
    assert!(first.settling.is_some());
    let looks = (1..).take_while(|_| host.look(&workers, &guests).workers[0].cpu.is_none()).count();
    assert_eq!(looks as u64 + 1, SETTLE_NS / SECOND_NS);
}

/// Generates a load of three workers and three guests of two processors each, on a machine of
/// `cpus` processors.
fn load(cpus: u16) -> impl Strategy<Value = (Vec<WorkerLook>, Vec<GuestLook>)> {
    let traffic = proptest::collection::btree_map(0u32..3, 0.0..1e6, 0..4);
    let worker = (0.0..=1.0, traffic).prop_map(|(load, traffic)| WorkerLook { load, traffic });
    let thread = (0..cpus, 0.0..=1.0, proptest::collection::btree_set(0..cpus, 0..8))
        .prop_map(|(last_cpu, load, may_run)| VcpuLook { last_cpu, load, may_run, movable: true });
    let threads = proptest::collection::vec(thread, 0..4);
    let guests = proptest::collection::vec(threads, 3).prop_map(|guests| {
        (0..).zip(guests).map(|(id, threads)| GuestLook { id, threads }).collect()
    });
    (proptest::collection::vec(worker, 3), guests)
}

fn policy() -> impl Strategy<Value = Policy> {
    prop_oneof![Just(Policy::Static), Just(Policy::Dynamic)]
}

/// Returns the visible part of a decision.
fn places(decision: &Decision) -> (Vec<Option<u16>>, Vec<Option<BTreeSet<u16>>>) {
    let workers = decision.workers.iter().map(|place| place.cpu).collect();
    (workers, decision.guests.values().map(|place| place.cpus.clone()).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn constant_inputs_move_workers_once_at_most(
        policy in policy(), before in load(24), (workers, guests) in load(24)
    ) {
        let mut host = Host::new(machine(2, 2, 3, 2), policy);
        host.settle(&before.0, &before.1);
        // The averages need a while to settle too; from then on there is at most one change.
        (0..60).for_each(|_| drop(host.look(&workers, &guests)));
        let seen: Vec<_> = (0..60).map(|_| places(&host.look(&workers, &guests)).0).collect();
        let changes = seen.windows(2).filter(|pair| pair[0] != pair[1]).count();
        prop_assert!(changes <= 1, "{changes}");
    }

    #[test]
    fn a_new_host_with_constant_inputs_changes_once_at_most(
        policy in policy(), (workers, guests) in load(24)
    ) {
        let mut host = Host::new(machine(2, 2, 3, 2), policy);
        let mut before = vec![None; workers.len()];
        let mut changes = 0;
        for _ in 0..60 {
            let now = places(&host.look(&workers, &guests)).0;
            changes += usize::from(now != before);
            before = now;
        }
        prop_assert!(changes <= 1, "{changes}");
    }

    #[test]
    fn noise_moves_workers_and_guests_six_times_a_minute_at_most(
        policy in policy(), looks in proptest::collection::vec(load(24), 60)
    ) {
        let mut host = Host::new(machine(2, 2, 3, 2), policy);
        let seen: Vec<_> =
            looks.iter().map(|(workers, guests)| places(&host.look(workers, guests)).0).collect();
        let changes = seen.windows(2).filter(|pair| pair[0] != pair[1]).count();
        prop_assert!(changes as u64 <= 60 * SECOND_NS / STAY_NS, "{changes}");
    }

    #[test]
    fn places_are_allowed_and_never_shared_and_off_limits_for_guests(
        policy in policy(),
        allowed in proptest::collection::btree_set(0u16..24, 0..24),
        looks in proptest::collection::vec(load(24), 20)
    ) {
        let mut host = Host::new(machine(2, 2, 3, 2), policy);
        host.allowed = allowed;
        for (workers, guests) in &looks {
            let decision = host.look(workers, guests);
            let taken: Vec<u16> = decision.workers.iter().filter_map(|place| place.cpu).collect();
            prop_assert!(taken.iter().all(|cpu| host.allowed.contains(cpu)));
            let cores: BTreeSet<u16> = taken.iter().map(|cpu| host.cpu(*cpu).core).collect();
            // Each worker has its own core, or none has a place.
            prop_assert_eq!(cores.len(), taken.len());
            for (id, place) in &decision.guests {
                let threads = &guests[*id as usize].threads;
                for cpu in place.cpus.iter().flatten() {
                    prop_assert!(!cores.contains(&host.cpu(*cpu).core));
                    prop_assert!(threads.iter().all(|thread| thread.may_run.contains(cpu)));
                }
            }
        }
    }
}
