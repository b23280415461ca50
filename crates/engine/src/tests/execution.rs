//! Real-time threads, with and without permission.

use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use weir_fabric::Capacity;

use super::*;
use crate::threads::slice;

const RT_THREADS: Options = Options {
    execution: Execution::RtThreads,
    realization: Realization::Adaptive,
    schedule: weir_policy::schedule::Kind::Drr,
    workers: 1,
    cpu_clock: CpuClock::Thread,
    held: false,
    fdb: Capacity::MIN,
};

/// `SCHED_FIFO` of `linux/sched.h`.
const SCHED_FIFO: &str = "1";

/// The scheduling policy of a thread of this process: field 41 of its `stat` (proc(5)), the 39th after the
/// name.
fn policy_of(thread: u32) -> String {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    fields.split_whitespace().nth(38).unwrap().to_owned()
}

#[test]
fn real_time_threads_serve_pairs_of_queues_and_make_nobody_else_one() {
    let engine = match Engine::start_with(RT_THREADS) {
        // The other test covers this case.
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => return,
        started => started.unwrap(),
    };
    let (a, b) = (add(&engine, |_| {}), add(&engine, |_| {}));
    send(&engine, &a, [frame(1, 0xff, 7)]);
    eventually("it arrives", || numbers(&b) == [7]);
    let worker = engine.worker_threads()[0].unwrap();
    assert_eq!(policy_of(worker), SCHED_FIFO);
    let this = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
    assert_ne!(policy_of(this), SCHED_FIFO);
}

#[test]
fn real_time_threads_that_are_not_allowed_are_refused_at_the_start() {
    if getrlimit(Resource::Rtprio).current != Some(0) {
        return;
    }
    // Capabilities belong to a thread, and the threads that it starts inherit them.
    let started = std::thread::spawn(|| {
        let mut sets = capabilities(None).unwrap();
        sets.effective.remove(CapabilitySet::SYS_NICE);
        set_capabilities(None, sets).unwrap();
        Engine::start_with(RT_THREADS).map(drop)
    });
    let error = started.join().unwrap().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied, "{error}");
}

#[test]
fn workers_have_a_short_time_slice_and_nobody_else() {
    let engine = Engine::start(1).unwrap();
    eventually("a worker", || engine.worker_threads()[0].is_some());
    let worker = engine.worker_threads()[0].unwrap();
    let usual = slice::of(0).unwrap();
    // Before Linux 6.12 all threads have the same slice, and none is told.
    let short = if usual == 0 { 0 } else { slice::WORKER_NS };
    eventually("its slice", || slice::of(worker).unwrap() == short);
    assert!(usual == 0 || usual > slice::WORKER_NS);
    assert_eq!(slice::of(0).unwrap(), usual);
}
