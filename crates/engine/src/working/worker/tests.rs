use std::cell::Cell;

use rustix::event::{EventfdFlags, eventfd};
use weir_policy::law::LAW;

use super::*;
use crate::working::crew::Options;
use crate::working::crew::WokenFor;
use crate::working::poller::{Wait, Woken};

thread_local! {
    /// The number of queue comparisons by this thread: a search through a list compares with each entry.
    static COMPARED: Cell<u64> = const { Cell::new(0) };
}

impl PartialEq for QueueRef {
    fn eq(&self, other: &Self) -> bool {
        COMPARED.set(COMPARED.get() + 1);
        (self.port, self.queue, self.side) == (other.port, other.queue, other.side)
    }
}

fn worker() -> Worker {
    let handle = Arc::new(WorkerHandle::new().unwrap());
    Worker::new(Arc::new(Shared::new(Options::default()).unwrap()), 0, handle)
}

#[test]
fn a_deadline_within_does_not_end_looking_on() {
    const WINDOW_NS: u64 = 2_000_000;
    let mut worker = worker();
    let start_ns = clock::now_ns();
    for until_ns in [start_ns + WINDOW_NS / 4, start_ns + WINDOW_NS / 2] {
        let port = PortId::new(0).unwrap();
        worker.holds.push(Hold { until_ns, port, queue: 0, side: Side::Rx });
    }
    assert_eq!(worker.look_on(start_ns, WINDOW_NS), None);
    assert!(clock::now_ns() >= start_ns + WINDOW_NS, "or it is taken for looking on in vain");
}

#[test]
fn before_a_sleep_holds_end_that_would_end_during_it() {
    let mut worker = worker();
    worker.lateness.fired(LAW.lead_ns_max);
    let port = PortId::new(0).unwrap();
    let soon_ns = clock::now_ns() + 1_000_000_000;
    for (until_ns, side) in [(clock::now_ns(), Side::Rx), (soon_ns, Side::Rx), (soon_ns, Side::Tx)]
    {
        worker.holds.push(Hold { until_ns, port, queue: 0, side });
    }
    worker.expire_holds(soon_ns - 50_000, 0);
    assert_eq!(worker.holds.wake_ns(0), Some(soon_ns), "awake it is back in time");
    worker.expire_holds(soon_ns - 50_000, worker.lateness.lead_ns());
    assert_eq!(worker.holds.wake_ns(u64::MAX), Some(soon_ns), "nobody waits for what was sent");
}

#[test]
fn between_bursts_holds_end_that_would_end_during_the_next_one() {
    let mut worker = worker();
    (worker.taken_ns, worker.burst_ns) = (1_000_000, 30_000);
    let port = PortId::new(0).unwrap();
    for until_ns in [1_030_000, 1_060_000, 1_060_001] {
        worker.holds.push(Hold { until_ns, port, queue: 0, side: Side::Rx });
    }
    worker.expire_holds_after_burst();
    assert_eq!(worker.holds.wake_ns(0), Some(1_060_001));
    worker.burst_ns = 10 * LAW.lead_ns_max;
    let until_ns = worker.taken_ns + worker.burst_ns + LAW.lead_ns_max + 1;
    worker.holds.push(Hold { until_ns, port, queue: 0, side: Side::Rx });
    worker.expire_holds_after_burst();
    assert_eq!(worker.holds.wake_ns(0), Some(until_ns), "one long burst ends not all of them");
}

#[test]
fn a_call_that_is_due_a_little_later_is_for_the_frames_that_are_there_too() {
    let mut worker = worker();
    worker.lateness.fired(40_000);
    worker.burst_ns = 10_000;
    let port = PortId::new(0).unwrap();
    let now_ns = clock::now_ns();
    for until_ns in [now_ns + 10_000, now_ns + 45_000] {
        worker.holds.push(Hold { until_ns, port, queue: 0, side: Side::Rx });
    }
    let queue = QueueRef { port, queue: 0, side: Side::Tx };
    worker.ready.wake(Ready { queue, since_ns: now_ns });
    worker.expire_holds_after_rest(now_ns);
    assert_eq!(worker.holds.wake_ns(0), Some(now_ns + 45_000), "but not past its end");
    let _ = worker.ready.next(now_ns);
    worker.expire_holds_after_rest(now_ns);
    assert_eq!(worker.holds.wake_ns(0), None, "it may sleep next");
}

#[test]
fn only_a_holds_end_is_woken_up_for_early() {
    let mut worker = worker();
    worker.lateness.fired(40_000);
    let port = PortId::new(0).unwrap();
    let queue = QueueRef { port, queue: 0, side: Side::Tx };
    let now_ns = clock::now_ns();
    worker.ready.wait(Ready { queue, since_ns: now_ns }, now_ns + 900_000);
    assert_eq!(worker.wake_ns(), Some(now_ns + 900_000), "or it would spin until then");
    let until_ns = now_ns + 800_000;
    worker.holds.push(Hold { until_ns, port, queue: 0, side: Side::Rx });
    assert_eq!(worker.wake_ns(), Some(now_ns + 800_000 - 50_000));
}

#[test]
fn coming_back_later_than_foreseen_is_counted_whatever_ended_the_sleep() {
    const LATE_NS: u64 = 50_000_000;
    let mut worker = worker();
    worker.woken_ns = clock::now_ns();
    let until_ns = worker.woken_ns - LATE_NS;
    worker.note_lateness(until_ns, Woken::Event);
    assert_eq!(worker.handle.late_timers.get(), 1);
    assert_eq!(worker.lateness.lead_ns(), 0, "it was no timer that was late");
    worker.note_lateness(until_ns, Woken::Timer);
    assert_eq!(worker.handle.late_timers.get(), 2);
    let lead_ns = worker.handle.timer_lead_ns.load(Ordering::Relaxed);
    assert_eq!(lead_ns, LAW.lead_ns_max);
    worker.note_lateness(worker.woken_ns + LATE_NS, Woken::Event);
    assert_eq!(worker.handle.late_timers.get(), 2, "a sleep that ended in time");
}

#[test]
fn a_worker_that_polls_serves_what_it_has_seen_before_it_asks_the_kernel() {
    let options =
        Options { realization: crate::working::crew::Realization::Dedicated, ..Options::default() };
    let shared = Arc::new(Shared::new(options).unwrap());
    let mut worker = Worker::new(shared, 0, Arc::new(WorkerHandle::new().unwrap()));
    let port = Arc::new(crate::tests::FakePort::new(PortId::new(0).unwrap()));
    let slot = Slot::new(Arc::clone(&port) as _, Arc::default());
    slot.pairs[0].set_worker(0);
    worker.shared.ports.store(Arc::new(vec![Some(slot)]));
    // An event is in the epoll set.
    worker.handle.poller.nudge(queue(0));
    port.to_send.lock().unwrap().push_back(vec![0; 64]);
    worker.warm.insert(queue(0), 1);
    worker.rest();
    assert!(worker.ready.contains(queue(0)));
    assert_eq!(worker.handle.nudges.get(), 0, "the kernel was asked");
    let looks = clock::LOOKS.get();
    worker.begin_round();
    worker.serve_next();
    assert_eq!(*port.looks.lock().unwrap(), [looks], "the clock was read again");
    // Without work the kernel is asked.
    worker.warm.insert(queue(0), 1);
    worker.rest();
    assert_eq!(worker.handle.nudges.get(), 1);
}

#[test]
fn the_queue_that_had_work_next_is_polled_with_the_last_one() {
    // The second port can be polled, or cannot, or has another worker by now.
    for (peeks, worker_of_second, expected) in
        [(true, 0, true), (false, 0, false), (true, 1, false)]
    {
        let mut worker = worker();
        let ports = [(0, true), (1, peeks)].map(|(number, peeks)| {
            let mut port = crate::tests::FakePort::new(PortId::new(number).unwrap());
            port.peeks = peeks;
            Arc::new(port)
        });
        let slots = ports.each_ref().map(|port| {
            let slot = Slot::new(Arc::clone(port) as _, Arc::default());
            slot.pairs[0].set_worker(0);
            Some(slot)
        });
        worker.shared.ports.store(Arc::new(slots.into()));
        for number in [0, 1, 0] {
            ports[usize::from(number)].to_send.lock().unwrap().push_back(vec![0; 64]);
            worker.ready.wake(Ready { queue: queue(number), since_ns: clock::now_ns() });
            worker.serve_next();
        }
        worker.warm.remove(queue(1));
        let ports = worker.shared.ports.load();
        ports[1].as_ref().unwrap().pairs[0].set_worker(worker_of_second);
        worker.warm_successor(clock::now_ns());
        assert_eq!(worker.warm.contains(queue(1)), expected, "{peeks}, {worker_of_second}");
        assert!(worker.warm.contains(queue(0)) && worker.ready.is_empty());
    }
}

/// A worker with `ports` ports, whose queues it serves if they are `its`.
fn worker_of(ports: u16, its: bool) -> Worker {
    let worker = worker();
    let slots = (0..ports).map(|number| {
        let port = Arc::new(crate::tests::FakePort::new(PortId::new(number).unwrap()));
        let slot = Slot::new(port, Arc::default());
        slot.pairs[0].set_worker(usize::from(!its));
        Some(slot)
    });
    worker.shared.ports.store(Arc::new(slots.collect()));
    worker
}

fn queue(port: u16) -> QueueRef {
    QueueRef { port: PortId::new(port).unwrap(), queue: 0, side: Side::Tx }
}

#[test]
fn each_wake_up_says_what_it_was_for() {
    let mut worker = worker_of(1, true);
    let poller = Arc::clone(&worker.handle.poller);
    let mut expected = [0; WokenFor::ALL.len()];
    let mut wakes = |worker: &mut Worker, how_long, what: WokenFor| {
        worker.wait(clock::now_ns(), how_long);
        expected[what as usize] += 1;
        assert_eq!(worker.handle.woken_for.each_ref().map(|it| it.get()), expected, "{what:?}");
    };
    for (side, what) in [(Side::Tx, WokenFor::Kick), (Side::Rx, WokenFor::Buffers)] {
        let kick = eventfd(1, EventfdFlags::NONBLOCK).unwrap();
        let _watch = poller.watch(kick, QueueRef { side, ..queue(0) }).unwrap();
        wakes(&mut worker, Wait::ForEvents, what);
    }
    poller.nudge(queue(0));
    wakes(&mut worker, Wait::ForEvents, WokenFor::Told);
    wakes(&mut worker, Wait::For(std::time::Duration::from_micros(1)), WokenFor::Nap);
    poller.set_timer(1).unwrap();
    wakes(&mut worker, Wait::ForEvents, WokenFor::Nothing);
    for (side, what) in [(Side::Tx, WokenFor::SentHold), (Side::Rx, WokenFor::ReceivedHold)] {
        let QueueRef { port, queue, .. } = queue(0);
        worker.holds.push(Hold { until_ns: clock::now_ns(), port, queue, side });
        poller.set_timer(1).unwrap();
        wakes(&mut worker, Wait::ForEvents, what);
    }
    let ready = Ready { queue: queue(0), since_ns: 0 };
    let mut worker = worker_of(1, true);
    worker.ready.wait(ready, clock::now_ns());
    worker.handle.poller.set_timer(1).unwrap();
    worker.wait(clock::now_ns(), Wait::ForEvents);
    assert_eq!(worker.handle.woken_for[WokenFor::Waited as usize].get(), 1);
}

#[test]
fn tokens_of_a_queue_that_has_moved_are_given_back() {
    let mut worker = worker_of(1, false);
    let rate = crate::switching::limits::Rate { per_s: 1, burst: 10 };
    let limit = crate::switching::limits::RateLimit { bits: None, packets: Some(rate) };
    let port = PortId::new(0).unwrap();
    worker.shared.shares.set(port, weir_policy::schedule::Share::default(), limit);
    let shared = Arc::clone(&worker.shared);
    worker.ready.refresh(&shared.shares, clock::now_ns);
    for _ in 0..3 {
        worker.ready.wake(Ready { queue: queue(0), since_ns: clock::now_ns() });
        worker.serve_next();
        assert!(worker.ready.is_empty(), "it is another worker's");
    }
    let left = worker.ready.turn(port, clock::now_ns());
    assert!(left.frames_max() >= 10, "{left:?}");
}

#[test]
fn a_kick_costs_as_much_among_a_thousand_busy_queues_as_among_two() {
    let cost = |ports: u16| {
        let mut worker = worker_of(ports, true);
        // Some have work, some had work, and some wait for their rate.
        for number in 0..ports {
            let ready = Ready { queue: queue(number), since_ns: 1 };
            match number % 3 {
                0 => worker.ready.wake(ready),
                1 => worker.warm.insert(queue(number), 1),
                _ => worker.ready.wait(ready, u64::MAX),
            }
        }
        let (waiting, before) = (worker.ready.len(), COMPARED.get());
        for round in 0..3 {
            worker.kicked.extend((0..ports).map(queue).map(Event::Kick));
            worker.take_up_kicks(Some(round));
        }
        let warm = (usize::from(ports) + 1) / 3;
        assert_eq!(worker.ready.len(), waiting + warm, "each once");
        assert!(worker.warm.is_empty());
        (COMPARED.get() - before) / (3 * u64::from(ports))
    };
    assert_eq!([2, 30, 1_000].map(cost), [0; 3], "comparisons of queues for each kick");
}

#[test]
fn whoever_is_told_of_buffers_and_does_not_serve_the_sender_any_more_tells_who_does() {
    let mut worker = worker_of(1, false);
    let handles = [(); 2].map(|()| worker.shared.crew.add().unwrap().unwrap().1);
    let receiver = PortId::new(5).unwrap();
    worker.stalls.note(queue(0), Some(u64::MAX));
    worker.stalls.waits(queue(0), receiver);
    worker.retries.push(Retry::Receiver(receiver));
    worker.retry_stalled();
    assert!(worker.stalls.is_empty());
    assert!(handles[1].is_told() && !handles[0].is_told());
    let mut told = Vec::new();
    handles[1].take_told(&mut told);
    assert_eq!(told, [Retry::Sender(queue(0))]);
}

#[test]
fn a_receivers_kick_costs_nothing_where_nobody_waits_for_it() {
    let mut worker = worker_of(1_000, true);
    let other = PortId::new(999).unwrap();
    for number in 0..998 {
        worker.stalls.note(queue(number), Some(u64::MAX));
        worker.stalls.waits(queue(number), other);
    }
    let before = COMPARED.get();
    let receiver = QueueRef { side: Side::Rx, ..queue(998) };
    worker.kicked.push(Event::Kick(receiver));
    worker.take_up_kicks(None);
    worker.retry_stalled();
    assert_eq!((COMPARED.get() - before, worker.handle.bursts.get()), (0, 0));
    assert!(worker.retries.is_empty());
}
