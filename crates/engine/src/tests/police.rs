//! What a port may receive in a second, while frames go through the switch. Rates are so low that nothing
//! comes while a test runs: what passes is the burst.

use super::*;
use crate::share::{Rate, RateLimit};

/// Bits of one of [`frame`]s.
const FRAME_BITS: u64 = 8 * 200;

fn packets(burst: u64) -> RateLimit {
    RateLimit { bits: None, packets: Some(Rate { per_s: 1, burst }) }
}

fn bits(burst: u64) -> RateLimit {
    RateLimit { bits: Some(Rate { per_s: 1, burst }), packets: None }
}

/// Two senders and a receiver, which is known to be there.
struct Bench {
    engine: Arc<Engine>,
    senders: [Arc<FakePort>; 2],
    receiver: Arc<FakePort>,
    counters: Arc<PortCounters>,
}

const RECEIVER: u8 = 9;

impl Bench {
    fn new(workers: usize, limit: RateLimit) -> Self {
        let engine = Engine::start(workers).unwrap();
        let senders = [add(&engine, |_| {}), add(&engine, |_| {})];
        let config = PortConfig { mac_check: MacCheck::Off, ..PortConfig::vif() };
        let mut made = None;
        let make = |id, counters| {
            made = Some(counters);
            Arc::new(FakePort::new(id))
        };
        let (id, receiver) = engine.add_port(config, make).unwrap();
        engine.fabric().set_active(id, true).unwrap();
        engine.set_receive_limit(id, limit);
        send(&engine, &receiver, [frame(RECEIVER, 0xff, 0)]);
        eventually("it is known", || senders.iter().all(|sender| numbers(sender) == [0]));
        Self { engine, senders, receiver, counters: made.unwrap() }
    }

    fn send(&self, sender: usize, numbers: std::ops::Range<u8>) {
        let from = sender as u8 + 1;
        let frames = numbers.map(|number| frame(from, RECEIVER, number));
        send(&self.engine, &self.senders[sender], frames);
    }

    /// What is refused is counted before what passed is in the ring.
    fn has_received(&self, wanted: &[u8]) {
        eventually("what passed arrives", || numbers(&self.receiver).len() >= wanted.len());
        assert_eq!(numbers(&self.receiver), wanted);
    }

    fn policed(&self) -> u64 {
        self.counters.dropped_for(DropReason::PolicedRx)
    }
}

#[test]
fn frames_beyond_the_rate_are_dropped_and_counted_at_the_receiver() {
    for limit in [packets(10), bits(10 * FRAME_BITS + 7)] {
        let bench = Bench::new(1, limit);
        bench.send(0, 1..41);
        eventually("all are judged", || bench.policed() == 30);
        bench.has_received(&(1..11).collect::<Vec<_>>());
        assert_eq!(bench.counters.drops().collect::<Vec<_>>(), [("policed_rx", 30)]);
        // A flood counts, and reaches the others.
        send(&bench.engine, &bench.senders[1], [frame(2, 0xff, 50)]);
        eventually("the flood", || numbers(&bench.senders[0]).last() == Some(&50));
        eventually("it is refused", || bench.policed() == 31);
        // And so does a new limit, or none.
        bench.engine.set_receive_limit(bench.receiver.id, RateLimit::NONE);
        bench.send(0, 60..100);
        eventually("all arrive", || numbers(&bench.receiver).len() == 50);
    }
}

#[test]
fn senders_on_all_workers_share_what_the_receiver_may_get() {
    let bench = Bench::new(2, packets(60));
    bench.engine.assign(bench.senders[1].id, 0, 1).unwrap();
    bench.send(0, 1..101);
    bench.send(1, 101..201);
    eventually("all are judged", || bench.policed() == 140);
    eventually("the rest arrives", || numbers(&bench.receiver).len() == 60);
}

#[test]
fn both_rates_hold_and_what_the_one_refuses_costs_nothing_of_the_other() {
    let limit = RateLimit { packets: packets(5).packets, ..bits(10 * FRAME_BITS) };
    let bench = Bench::new(1, limit);
    bench.send(0, 1..41);
    eventually("all are judged", || bench.policed() == 35);
    bench.has_received(&[1, 2, 3, 4, 5]);

    let limit = RateLimit { packets: packets(8).packets, ..bits(3 * FRAME_BITS) };
    let bench = Bench::new(1, limit);
    bench.send(0, 1..41);
    eventually("all are judged", || bench.policed() == 37);
    bench.has_received(&[1, 2, 3]);
}

#[test]
fn a_frame_that_waits_for_a_full_receiver_is_paid_for_once() {
    let bench = Bench::new(1, packets(10));
    bench.receiver.room.store(4, Ordering::SeqCst);
    bench.send(0, 1..11);
    for room in [0, 1, 1, 4] {
        eventually("it is full", || bench.receiver.room.load(Ordering::SeqCst) == 0);
        bench.receiver.room.store(room, Ordering::SeqCst);
        bench.engine.nudge(QueueRef { port: bench.receiver.id, queue: 0, side: Side::Rx });
        std::thread::sleep(Duration::from_millis(2));
    }
    eventually("all arrive", || numbers(&bench.receiver) == (1..11).collect::<Vec<_>>());
    assert_eq!(bench.policed(), 0);
    bench.receiver.room.store(10, Ordering::SeqCst);
    bench.send(0, 11..12);
    eventually("the burst is used up", || bench.policed() == 1);
}
