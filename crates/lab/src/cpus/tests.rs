use super::*;

/// Threads with given amounts of work, in virtual time.
struct Rig {
    cpus: Cpus,
    calendar: Calendar<Event>,
    ended: Vec<(u64, ThreadId)>,
}

impl Rig {
    fn new(topology: Topology, scheduling: Scheduling) -> Self {
        Self {
            cpus: Cpus::new(topology, scheduling),
            calendar: Calendar::default(),
            ended: Vec::new(),
        }
    }

    fn fair(&mut self, weight: u32) -> ThreadId {
        self.cpus.spawn(Class::Fair { weight }, &[])
    }

    fn wake(&mut self, thread: ThreadId, work_ns: u64) {
        self.cpus.wake(&mut self.calendar, thread, work_ns, 0);
    }

    fn run(&mut self, until_ns: u64) {
        while let Some(event) = self.calendar.next(until_ns) {
            if let Some(thread) = self.cpus.happen(&mut self.calendar, event) {
                self.ended.push((self.calendar.now_ns(), thread));
                self.cpus.block(&mut self.calendar, thread);
            }
        }
    }

    fn busy(&self, thread: ThreadId) -> u64 {
        self.cpus.busy_ns(self.calendar.now_ns(), thread)
    }
}

const SLICE_NS: u64 = 1_000;

#[test]
fn shares_of_a_cpu_follow_the_weights() {
    let mut rig = Rig::new(Topology::flat(1), Scheduling::ideal(SLICE_NS));
    let threads = [256, 1_024, 2_048].map(|weight| rig.fair(weight));
    threads.iter().for_each(|&thread| rig.wake(thread, u64::MAX / FULL_SPEED));
    rig.run(13_000_000);
    let shares = threads.map(|thread| rig.busy(thread).div_ceil(1_000_000));
    assert_eq!(shares, [1, 4, 8]);
}

#[test]
fn a_real_time_thread_preempts_and_the_preempted_loses_no_work() {
    let mut rig = Rig::new(Topology::flat(1), Scheduling::ideal(SLICE_NS));
    let fair = rig.fair(WEIGHT_USUAL);
    let [low, high] = [1, 2].map(|priority| rig.cpus.spawn(Class::Realtime { priority }, &[]));
    rig.wake(fair, 100);
    rig.run(10);
    rig.wake(low, 100);
    rig.run(20);
    rig.wake(high, 100);
    rig.run(1_000);
    assert_eq!(rig.ended, [(120, high), (210, low), (300, fair)]);
}

#[test]
fn equals_of_the_real_time_class_run_one_after_the_other() {
    let mut rig = Rig::new(Topology::flat(1), Scheduling::ideal(10));
    let threads: Vec<_> =
        (0..3).map(|_| rig.cpus.spawn(Class::Realtime { priority: 1 }, &[])).collect();
    for &thread in &threads {
        rig.wake(thread, 100);
    }
    rig.run(1_000);
    assert_eq!(rig.ended, [(100, threads[0]), (200, threads[1]), (300, threads[2])]);
}

#[test]
fn a_thread_slows_its_sibling_down_for_as_long_as_it_runs() {
    let smt = Topology { threads_per_core: 2, ..Topology::flat(1) };
    let mut rig = Rig::new(smt, Scheduling { smt_permille: 500, ..Scheduling::ideal(SLICE_NS) });
    let [long, short] = [0, 0].map(|_| rig.fair(WEIGHT_USUAL));
    rig.wake(long, 100);
    rig.run(10);
    rig.wake(short, 20);
    rig.run(1_000);
    // Both run at half speed from 10 on. After 40 ns the short one is done, and the other has 70 left.
    assert_eq!(rig.ended, [(50, short), (120, long)]);
}

#[test]
fn an_idle_core_comes_before_an_idle_sibling() {
    let smt = Topology { threads_per_core: 2, ..Topology::flat(2) };
    let mut rig = Rig::new(smt, Scheduling { smt_permille: 500, ..Scheduling::ideal(SLICE_NS) });
    let threads = [0, 0].map(|_| rig.fair(WEIGHT_USUAL));
    threads.iter().for_each(|&thread| rig.wake(thread, 100));
    rig.run(1_000);
    assert_eq!(threads.map(|thread| rig.cpus.last_cpu(thread)), [Some(0), Some(2)]);
}

#[test]
fn who_comes_from_behind_another_cache_pays_for_it() {
    let topology =
        Topology { sockets: 2, llcs_per_socket: 1, cores_per_llc: 1, threads_per_core: 1 };
    let scheduling =
        Scheduling { socket_refill_ns: 30, switch_ns: 5, ..Scheduling::ideal(SLICE_NS) };
    let mut rig = Rig::new(topology, scheduling);
    let [moving, pinned] =
        [&[][..], &[0]].map(|cpus| rig.cpus.spawn(Class::Realtime { priority: 0 }, cpus));
    rig.wake(moving, 10);
    rig.run(100);
    rig.wake(pinned, 1_000);
    rig.wake(moving, 10);
    rig.run(10_000);
    // The pinned thread takes over another thread's CPU (5 ns), the other moves to another socket
    // (30 ns).
    assert_eq!(rig.ended, [(10, moving), (140, moving), (1_105, pinned)]);
}

/// With a footprint of a whole cache, each other thread leaves 1/e of what a thread had there.
#[test]
fn who_comes_back_pays_for_what_others_have_displaced_since() {
    let scheduling = Scheduling {
        cold_refill_ns: 1_000,
        footprint_permille: 1_000,
        ..Scheduling::ideal(SLICE_NS)
    };
    let mut rig = Rig::new(Topology::flat(1), scheduling);
    let threads = [0; 3].map(|_| rig.fair(WEIGHT_USUAL));
    let mut until_ns = 0;
    let mut took = |order: &[usize]| -> Vec<u64> {
        let mut run = |&at: &usize| {
            let before = rig.busy(threads[at]);
            rig.wake(threads[at], 10);
            until_ns += 10_000;
            rig.run(until_ns);
            rig.busy(threads[at]) - before - 10
        };
        order.iter().map(&mut run).collect()
    };
    took(&[0, 1, 2]);
    assert_eq!(took(&[2, 2]), [0, 0], "nobody ran in between");
    assert_eq!(took(&[1, 2, 0, 2]), [632, 632, 981, 632], "1 - 1/e, and after four 1 - 1/e^4");
}

/// Cores with two CPUs each. A thread on the sibling displaces memory as well, and another core's
/// cache has nothing.
#[test]
fn siblings_share_a_cache_and_cores_do_not() {
    let topology = Topology { threads_per_core: 2, ..Topology::flat(2) };
    let scheduling = Scheduling {
        cold_refill_ns: 1_000,
        footprint_permille: 1_000,
        ..Scheduling::ideal(SLICE_NS)
    };
    let mut rig = Rig::new(topology, scheduling);
    let [here, sibling, elsewhere] =
        [0, 1, 2].map(|cpu| rig.cpus.spawn(Class::Fair { weight: WEIGHT_USUAL }, &[cpu]));
    let mut until_ns = 0;
    let mut took = |rig: &mut Rig, thread: ThreadId| {
        let before = rig.busy(thread);
        rig.wake(thread, 10);
        until_ns += 10_000;
        rig.run(until_ns);
        rig.busy(thread) - before - 10
    };
    let took = [here, elsewhere, here, sibling, here].map(|thread| took(&mut rig, thread));
    assert_eq!(took, [1_000, 1_000, 0, 1_000, 632], "new ones have nothing, and siblings share");
    rig.wake(here, 5_000);
    let before = rig.busy(here);
    rig.wake(sibling, 10);
    rig.run(90_000);
    assert_eq!(rig.busy(here) - before, 5_632, "who runs pays for what its sibling displaces");
    rig.cpus.allow(&mut rig.calendar, here, &[3]);
    let before = rig.busy(here);
    rig.wake(here, 10);
    rig.run(100_000);
    assert_eq!(rig.busy(here) - before, 1_010, "nothing of it is in the other core's cache");
}

#[test]
fn a_sleeper_that_is_behind_preempts_and_one_that_is_not_waits() {
    let scheduling = Scheduling { granularity_ns: 100, ..Scheduling::ideal(1_000) };
    let mut rig = Rig::new(Topology::flat(1), scheduling);
    let [busy, sleeper] = [0, 0].map(|_| rig.fair(WEIGHT_USUAL));
    rig.wake(busy, 10_000);
    rig.run(50);
    rig.wake(sleeper, 10);
    rig.run(900);
    assert_eq!(rig.ended, [], "50 ns behind is no reason to preempt");
    rig.run(1_500);
    assert_eq!(rig.ended, [(1_010, sleeper)], "but the end of a slice is");
    rig.wake(sleeper, 10);
    rig.run(1_600);
    assert_eq!(rig.ended.last(), Some(&(1_510, sleeper)));
}

#[test]
fn work_that_is_cut_ends_sooner_and_work_that_goes_on_keeps_the_cpu() {
    let mut rig = Rig::new(Topology::flat(1), Scheduling::ideal(SLICE_NS));
    let [first, second] = [0, 0].map(|_| rig.cpus.spawn(Class::Realtime { priority: 0 }, &[]));
    rig.wake(first, 500);
    rig.wake(second, 10);
    rig.run(100);
    rig.cpus.cut(&mut rig.calendar, first, 20);
    let mut done = None;
    while done.is_none() {
        let event = rig.calendar.next(10_000).unwrap();
        done = rig.cpus.happen(&mut rig.calendar, event);
    }
    assert_eq!((done, rig.calendar.now_ns()), (Some(first), 120));
    rig.cpus.go_on(&mut rig.calendar, first, 30);
    rig.run(10_000);
    assert_eq!(rig.ended, [(150, first), (160, second)]);
}

#[test]
fn a_handler_preempts_for_its_work_alone() {
    let scheduling = Scheduling { switch_ns: 50, ..Scheduling::ideal(SLICE_NS) };
    let mut rig = Rig::new(Topology::flat(1), scheduling);
    let fair = rig.fair(WEIGHT_USUAL);
    let handler = rig.cpus.spawn_handler(0);
    rig.wake(fair, 100);
    rig.run(10);
    rig.wake(handler, 20);
    rig.run(1_000);
    assert_eq!(rig.ended, [(30, handler), (120, fair)]);
}

#[test]
fn a_thread_goes_where_it_may_at_once_and_leaves_its_cpu_to_who_waits() {
    let mut rig = Rig::new(Topology::flat(2), Scheduling::ideal(SLICE_NS));
    let fair = |rig: &mut Rig| rig.cpus.spawn(Class::Fair { weight: WEIGHT_USUAL }, &[0]);
    let (first, second) = (fair(&mut rig), fair(&mut rig));
    rig.wake(first, 100);
    rig.wake(second, 100);
    rig.run(10);
    rig.cpus.allow(&mut rig.calendar, first, &[1]);
    rig.run(SLICE_NS);
    assert_eq!(rig.ended, [(100, first), (110, second)]);
    // A waiting thread takes an idle CPU as soon as it may.
    rig.ended.clear();
    rig.cpus.allow(&mut rig.calendar, first, &[0]);
    rig.wake(first, 100);
    rig.wake(second, 100);
    rig.run(SLICE_NS + 10);
    rig.cpus.allow(&mut rig.calendar, second, &[1]);
    rig.run(2 * SLICE_NS);
    assert_eq!(rig.ended, [(SLICE_NS + 100, first), (SLICE_NS + 110, second)]);
}

#[test]
fn whom_a_handler_interrupted_goes_on_with_its_slice() {
    let scheduling = Scheduling { switch_ns: 100, ..Scheduling::ideal(SLICE_NS) };
    let mut rig = Rig::new(Topology::flat(1), scheduling);
    let [first, second] = [0, 1].map(|_| rig.fair(WEIGHT_USUAL));
    let handler = rig.cpus.spawn_handler(0);
    rig.wake(first, 900);
    rig.wake(second, 900);
    for at_ns in [300, 600] {
        rig.run(at_ns);
        rig.wake(handler, 10);
    }
    rig.run(SLICE_NS * 10);
    let ends = rig.ended.iter().filter(|end| end.1 != handler).copied().collect::<Vec<_>>();
    assert_eq!(ends, [(920, first), (1_920, second)], "one switch, which takes 100");

    // The first thread's slice does not restart each time, so the second gets its turn.
    let mut rig = Rig::new(Topology::flat(1), scheduling);
    let [first, second] = [0, 1].map(|_| rig.fair(WEIGHT_USUAL));
    let handler = rig.cpus.spawn_handler(0);
    rig.wake(first, 100_000);
    rig.wake(second, 100);
    for at_ns in (300..SLICE_NS * 2).step_by(300) {
        rig.run(at_ns);
        rig.wake(handler, 10);
    }
    assert!(rig.ended.contains(&(SLICE_NS + 200, second)), "{:?}", rig.ended);
}
