//! Two workers that send from one queue, and two workers that fill one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::{Duration, Instant};

use weir_engine::burst::Scratch;
use weir_engine::guest::GuestPort;
use weir_engine::{Outgoing, Port, Take, clock, lock};
use weir_fabric::EgressTag;
use weir_limits::PARKED_NS_MAX;
use weir_netif::Status;
use weir_xen::testing::Host;
use weir_xen::{CopyPlace, CopySegment, EventChannel, EventPort, GrantMap, GrantRef, Hypervisor};

use super::copies::{fill, say_where};
use super::*;
use crate::XenPort;
use crate::testing::BUFFERS;

/// Number of frames sent before all of them must have arrived.
const WINDOW: u8 = 48;
/// Number of buffers that the receiver has left at times, so few that frames must wait for it.
const FEW: usize = 20;
/// Lengths of frames with payload only in their fronts, and of others.
const LENGTHS: [usize; 2] = [40, 3000];

/// A guest that sends by one queue, and its answers.
struct Sender {
    front: Netfront,
    /// Page of the next answer. Pages are used in a circle.
    next: u64,
}

impl Sender {
    fn send(&mut self, number: u8) {
        let payload = vec![number; LENGTHS[usize::from(number / 16) % 2]];
        eventually("there is room", || self.front.send(0, &frame(1, 2, &payload)));
        self.take_answers();
    }

    /// Asserts that each answer comes once, in the order of the requests.
    fn take_answers(&mut self) {
        for answer in self.front.queues[0].answers() {
            let expected = ((self.next % BUFFERS) as u16, Status::Okay as i16);
            assert_eq!((answer.id, answer.status), expected);
            self.next += 1;
        }
    }

    fn is_answered(&mut self) -> bool {
        self.take_answers();
        let ring = self.front.queues[0].tx.ring();
        ring.free() == ring.size()
    }
}

/// A guest that keeps buffers back at times.
struct Keeper {
    front: Netfront,
    kept: Vec<u16>,
}

impl Keeper {
    fn receive(&mut self) -> Option<Vec<u8>> {
        let queue = &mut self.front.queues[0];
        // Buffers that frames wait for are not kept back, or the frames would wait for ever.
        if self.kept.len() + FEW >= BUFFERS as usize {
            self.kept.drain(..).for_each(|id| queue.offer(id));
            queue.push_offers();
        }
        let got = self.front.receive_and_keep(0)?;
        assert!(!got.packet.damaged);
        self.kept.extend(got.packet.parts.iter().map(|(id, ..)| id).chain(&got.packet.unused));
        Some(got.frame)
    }
}

/// Makes two guests that know each other.
fn pair(bench: &Bench) -> (Sender, Keeper) {
    let (mut one, mut two) = bench.pair(Connect::default());
    say_where(&mut two, 2, &mut one, 1);
    (Sender { front: one, next: 0 }, Keeper { front: two, kept: Vec::new() })
}

/// Sends a window of frames and checks that they arrive once and in order, except those that waited too long for the
/// receiver.
fn send_and_receive(bench: &Bench, one: &mut Sender, two: &mut Keeper, first: u8) {
    let lost = || -> u64 {
        ["rx_waited_too_long", "rx_ring_full"]
            .map(|reason| bench.dropped(1, reason) + bench.dropped(2, reason))
            .iter()
            .sum()
    };
    let (start, lost_before) = (Instant::now(), lost());
    (0..WINDOW).for_each(|slot| one.send(first.wrapping_add(slot)));
    let (mut next, mut arrived) = (0, 0);
    eventually("each frame has its end", || {
        while let Some(bytes) = two.receive() {
            let (number, slot) = (bytes[14], bytes[14].wrapping_sub(first));
            assert!((next..WINDOW).contains(&slot), "{slot} behind {next}");
            assert!(bytes[14..].iter().all(|byte| *byte == number), "another frame's bytes");
            assert_eq!(bytes.len(), 14 + LENGTHS[usize::from(number / 16) % 2]);
            next = slot + 1;
            arrived += 1;
        }
        arrived + lost() - lost_before == u64::from(WINDOW)
    });
    eventually("all is answered", || one.is_answered());
    let waited = start.elapsed() >= Duration::from_nanos(PARKED_NS_MAX);
    assert!(lost() == lost_before || waited, "lost after {:?}", start.elapsed());
}

#[test]
fn frames_stay_in_order_while_helpers_come_and_go() {
    let bench = Bench::new();
    let (mut one, mut two) = pair(&bench);
    let (stop, port) = (AtomicBool::new(false), bench.port(1));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let helper = [Some(1), None, Some(0), Some(1)][n % 4];
                assert!(bench.engine.set_helper(port.id(), 0, helper));
                bench.engine.assign(port.id(), 0, n / 8 % 2).unwrap();
                std::thread::sleep(Duration::from_micros(n as u64 % 7 * 50));
            }
        });
        let _stops = weir_testing::SetAtEnd(&stop);
        for round in 0..200_u32 {
            let first = (round * u32::from(WINDOW)) as u8;
            send_and_receive(&bench, &mut one, &mut two, first);
        }
    });
    let waited = port.counters().parked.get();
    assert!(waited > 0, "or it was not tried whether frames that wait are overtaken");
}

#[test]
fn both_workers_send_from_the_queue() {
    let bench = Bench::new();
    let (mut one, mut two) = pair(&bench);
    let id = bench.port(1).id();
    // The second worker must not be busy with the other pairs of queues.
    for domain in [1, 2] {
        bench.engine.assign(bench.port(domain).id(), 0, 0).unwrap();
    }
    let bursts = || bench.engine.workers().iter().map(|worker| worker.bursts).collect::<Vec<_>>();
    send_and_receive(&bench, &mut one, &mut two, 0);
    let before = bursts();
    send_and_receive(&bench, &mut one, &mut two, 0);
    assert_eq!(bursts()[1], before[1], "nobody helps yet");
    eventually("the second has its part", || {
        assert!(bench.engine.set_helper(id, 0, Some(1)));
        send_and_receive(&bench, &mut one, &mut two, 0);
        bursts().iter().zip(&before).all(|(now, before)| now - before >= 50)
    });
    assert!(bench.engine.set_helper(id, 0, None));
    eventually("nobody helps any more", || {
        let before = bursts();
        send_and_receive(&bench, &mut one, &mut two, 0);
        bursts()[1] == before[1]
    });
}

/// Takes a burst within the test. `told` gets the first frame's number and the receiver for which the frame waits. A
/// message of `go_on` continues the burst.
fn taken(
    port: &XenPort,
    what: Take,
    told: &mpsc::Sender<(u8, usize)>,
    go_on: &mpsc::Receiver<()>,
    then: impl Fn(&mut weir_engine::burst::Burst<'_>),
) -> weir_engine::Taken {
    port.take(0, what.at(clock::now_ns()), &mut Scratch::default(), &mut |burst| {
        told.send((burst.frames()[0].head.as_slice()[14], burst.room.blocked.len())).unwrap();
        go_on.recv().unwrap();
        then(burst);
    })
}

/// Returns a port whose ring no worker polls: its guest's events are off, and the test takes the frames.
fn left_to_the_test(bench: &Bench, one: &mut Sender) -> Arc<XenPort> {
    let port = bench.port(1);
    eventually("all is quiet", || one.is_answered());
    lock(&port.watches).clear();
    // A worker that polls the queue as one of its warm ones soon sleeps.
    let idle = || {
        let before = bench.engine.wakeups();
        std::thread::sleep(Duration::from_millis(20));
        bench.engine.wakeups() == before
    };
    eventually("the workers sleep", idle);
    assert!(port.share_tx(0, true));
    port
}

#[test]
fn while_one_worker_places_its_frames_the_next_takes_and_copies_and_answers_keep_their_order() {
    let bench = Bench::new();
    let (mut one, _two) = pair(&bench);
    let port = left_to_the_test(&bench, &mut one);
    let receiver = bench.port(2).id();
    let (told, hears) = mpsc::channel();
    one.front.send(0, &frame(1, 2, &[1; 40]));
    std::thread::scope(|scope| {
        let ((first_may, first_waits), (second_may, second_waits)) =
            (mpsc::channel(), mpsc::channel());
        let (port, told) = (&port, &told);
        let first = scope.spawn(move || {
            taken(port, Take::New, told, &first_waits, |burst| {
                assert!(burst.park(0, receiver));
                // The port behaves like a receiver with only copies left.
                burst.turn.unwrap().take().unwrap().park([receiver].into_iter());
                first_waits.recv().unwrap();
            })
        });
        assert_eq!(hears.recv().unwrap(), (1, 0));
        one.front.send(0, &frame(1, 2, &[2; 40]));
        let copied = bench.host.copied().calls;
        let second = scope.spawn(move || taken(port, Take::New, told, &second_waits, |_| {}));
        eventually("the second copies", || bench.host.copied().calls > copied);
        assert!(hears.try_recv().is_err(), "the first still has its turn");
        first_may.send(()).unwrap();
        assert_eq!(hears.recv().unwrap(), (2, 1), "a frame of the first waits");
        second_may.send(()).unwrap();
        assert_eq!(second.join().unwrap().frames, 1);
        one.take_answers();
        assert!(!one.is_answered(), "the first is not done yet");
        first_may.send(()).unwrap();
        let first = first.join().unwrap();
        assert_eq!((first.frames, first.parked), (1, 1));
    });
    assert_eq!(one.front.queues[0].answers(), [], "behind a frame that waits");
    // While the frame waits, only one worker at a time takes frames.
    let (may, waits) = mpsc::channel();
    may.send(()).unwrap();
    assert_eq!(taken(&port, Take::Parked(None), &told, &waits, |_| {}).frames, 1);
    eventually("both are answered", || one.is_answered());
}

#[test]
fn a_frame_waits_from_when_it_found_its_receiver_full_however_late_its_worker_was() {
    let bench = Bench::new();
    let (mut one, mut two) = pair(&bench);
    let port = left_to_the_test(&bench, &mut one);
    let receiver = bench.port(2).id();
    one.front.send(0, &frame(1, 2, &[1; 40]));
    let mut scratch = Scratch::default();
    // The worker has not polled since then.
    let long_ago_ns = clock::now_ns() - 2 * PARKED_NS_MAX;
    let taken = port.take(0, Take::New.at(long_ago_ns), &mut scratch, &mut |burst| {
        assert!(burst.park(0, receiver));
    });
    let now_ns = clock::now_ns();
    assert!(taken.parked_until.unwrap() > now_ns - PARKED_NS_MAX / 2);
    let mut tried = 0;
    let mut try_again = |now_ns: u64| {
        port.take(0, Take::Parked(None).at(now_ns), &mut scratch, &mut |burst| {
            // The frame's hold still counts from its possible arrival.
            assert_eq!(burst.frames()[0].arrived_ns, long_ago_ns);
            assert!(burst.park(0, receiver));
            tried += 1;
        })
    };
    let until_ns = taken.parked_until.unwrap();
    assert_eq!(
        try_again(until_ns - 1).parked_until,
        Some(until_ns),
        "to wait again is no new wait"
    );
    assert_eq!(try_again(until_ns).parked, 0);
    assert_eq!((tried, bench.dropped(1, "rx_waited_too_long")), (1, 1));
    assert_eq!(two.receive(), None);
    eventually("it is answered", || one.is_answered());
}

#[test]
fn a_receiver_is_not_taken_for_one_that_takes_nothing_since_workers_were_late() {
    let bench = Bench::new();
    let (mut one, _two) = pair(&bench);
    fill(&bench, &mut one.front);
    one.next = BUFFERS;
    let (port, receiver) = (left_to_the_test(&bench, &mut one), bench.port(2));
    one.front.send(0, &frame(1, 2, &[1; 40]));
    let long_ago_ns = clock::now_ns() - 2 * PARKED_NS_MAX;
    port.take(0, Take::New.at(long_ago_ns), &mut Scratch::default(), &mut |burst| {
        let frames = [Outgoing { frame: 0, tag: EgressTag::Untagged }];
        let start = Instant::now();
        for _ in 0..2 {
            let delivered = receiver.deliver(0, burst, &frames);
            let is_late = start.elapsed() >= Duration::from_nanos(PARKED_NS_MAX);
            assert_eq!(delivered.frames, 0, "it is full");
            assert!(delivered.worth_waiting || is_late);
        }
    });
}

#[test]
fn a_port_that_fails_amid_two_bursts_holds_nobody_up_and_serves_the_next_front_end() {
    let bench = Bench::new();
    let (mut one, mut two) = pair(&bench);
    let port = left_to_the_test(&bench, &mut one);
    let (told, hears) = mpsc::channel();
    one.front.send(0, &frame(1, 2, &[1; 40]));
    std::thread::scope(|scope| {
        let ((first_may, first_waits), (second_may, second_waits)) =
            (mpsc::channel(), mpsc::channel());
        let (port, told) = (&port, &told);
        let first = scope
            .spawn(move || taken(port, Take::New, told, &first_waits, |_| panic!("with the turn")));
        hears.recv().unwrap();
        one.front.send(0, &frame(1, 2, &[2; 40]));
        let second = scope.spawn(move || taken(port, Take::New, told, &second_waits, |_| {}));
        first_may.send(()).unwrap();
        assert!(first.join().is_err());
        assert_eq!(hears.recv().unwrap().0, 2, "its turn comes even so");
        // The port stops as after a worker's caught panic.
        port.fail("a panic");
        let closing = || one.front.back_state() == Some(XenbusState::Closing);
        eventually("the vif is closed", closing);
        second_may.send(()).unwrap();
        assert_eq!(second.join().unwrap(), weir_engine::Taken::default());
    });
    assert!(one.front.release(), "its pages are its own again");
    one.front.state(XenbusState::Closed);
    one.front.state(XenbusState::Initialising);
    bench.connect(&mut one.front, 1, Connect::default());
    assert!(one.front.send(0, &frame(1, 2, b"better")));
    assert_eq!(receive(&mut two.front, 0).frame, frame(1, 2, b"better"));
}

#[test]
fn a_guest_that_lies_while_two_workers_send_its_frames_loses_its_vif_and_can_begin_anew() {
    let bench = Bench::new();
    let (mut one, mut two) = bench.pair(Connect::default());
    for round in 0..20_u8 {
        say_where(&mut two, 2, &mut one, 1);
        assert!(bench.engine.set_helper(bench.port(1).id(), 0, Some(usize::from(round % 2))));
        for n in 0..BUFFERS as u8 {
            one.send(0, &frame(1, 2, &vec![n; 3000]));
        }
        let ring = one.guest.page(0).unwrap();
        ring.store_release(0, 100_000);
        one.queues[0].tx_events.notify().unwrap();
        eventually("the vif is closed", || one.back_state() == Some(XenbusState::Closing));
        drop(ring);
        assert!(one.release(), "its pages are its own again");
        one.state(XenbusState::Closed);
        one.state(XenbusState::Initialising);
        bench.connect(&mut one, 1, Connect::default());
        while two.receive(0).is_some() {}
    }
}

#[test]
fn a_vif_that_is_detached_amid_two_workers_has_answered_all_that_was_taken_and_leaves_nothing() {
    let bench = Bench::new();
    let mut two = bench.guest(2, Connect::default());
    let (mapped, bound) = (bench.host.mapped(), bench.host.bound());
    let mut one = Netfront::new(&bench.host, vif(1));
    for round in 0..30_u8 {
        bench.host.attach(DomainId(1), 0, "02:00:00:00:00:01", "br0");
        bench.connect(&mut one, 1, Connect::default());
        let port = bench.port(1);
        assert!(bench.engine.set_helper(port.id(), 0, Some(usize::from(round % 2))));
        let (stop, mut client) = (AtomicBool::new(false), one.guest.client());
        std::thread::scope(|scope| {
            let _stops = weir_testing::SetAtEnd(&stop);
            let one = &mut one;
            scope.spawn(|| {
                // The guest never stops sending, whatever xenstore says.
                while !stop.load(Ordering::Relaxed) {
                    one.send(0, &frame(1, 2, &vec![round; LENGTHS[usize::from(round) % 2]]));
                }
            });
            let sent = || port.counters().tx[0].frames.get();
            eventually("it is under way", || {
                while two.receive(0).is_some() {}
                sent() > 100
            });
            bench.host.ask_to_detach(DomainId(1), 0);
            // The guest's driver agrees to the removal, and still sends.
            client.write("device/vif/0/state", b"6").unwrap();
            eventually("weir has let go", || {
                (bench.host.mapped(), bench.host.bound()) == (mapped, bound)
            });
        });
        // Untaken requests are the guest's again; all others were answered, once and in order.
        let answers = one.queues[0].answers();
        let ids = answers.iter().map(|answer| u64::from(answer.id));
        assert!(ids.eq((0..).map(|n| n % BUFFERS).take(answers.len())));
        bench.host.remove(DomainId(1), 0);
        eventually("the port is gone", || !lock(&bench.ports).contains_key(&vif(1)));
        assert!(one.release(), "a page is mapped still");
        while two.receive(0).is_some() {}
    }
}

/// A Xen that can delay a copy into a guest.
struct Gate {
    host: Host,
    /// The guest whose next copy waits.
    closed: Mutex<Option<DomainId>>,
    /// Number of waiting copies, and of finished copies to that guest.
    state: Mutex<(usize, usize)>,
    opened: Condvar,
}

impl Gate {
    fn is_to(segments: &[CopySegment<'_>], domain: DomainId) -> bool {
        matches!(segments[0].to(), CopyPlace::Grant(grant) if grant.domain == domain)
    }
}

/// The guest of a [`Gate`].
const GATED: DomainId = DomainId(3);

impl Hypervisor for Gate {
    fn map(&self, domain: DomainId, reference: GrantRef) -> std::io::Result<GrantMap> {
        self.host.map(domain, reference)
    }

    fn copy(&self, segments: &mut [CopySegment<'_>]) -> std::io::Result<()> {
        if !Self::is_to(segments, GATED) {
            return self.host.copy(segments);
        }
        if self.closed.lock().unwrap().take().is_some() {
            let mut state = self.state.lock().unwrap();
            state.0 += 1;
            drop(self.opened.wait_while(state, |(waiting, _)| *waiting > 0).unwrap());
        }
        let copied = self.host.copy(segments);
        self.state.lock().unwrap().1 += 1;
        copied
    }

    fn bind(&self, domain: DomainId, remote: EventPort) -> std::io::Result<Box<dyn EventChannel>> {
        self.host.bind(domain, remote)
    }
}

#[test]
fn what_was_placed_first_is_seen_first_whoever_copies_faster() {
    let host = Host::new();
    let gate = Arc::new(Gate {
        host: host.clone(),
        closed: Mutex::default(),
        state: Mutex::default(),
        opened: Condvar::new(),
    });
    let calls = CallPolicy::within(Kind::Immediate, 250_000);
    let bench = Bench::through(host, Arc::clone(&gate) as _, calls);
    let (mut one, mut two) = bench.pair(Connect::default());
    let mut three = bench.guest(GATED.0, Connect::default());
    say_where(&mut three, 3, &mut one, 1);
    receive(&mut two, 0);
    bench.engine.assign(bench.port(1).id(), 0, 0).unwrap();
    bench.engine.assign(bench.port(2).id(), 0, 1).unwrap();
    let done = || gate.state.lock().unwrap().1;
    for damaged in [false, true] {
        let before = done();
        *gate.closed.lock().unwrap() = Some(GATED);
        assert!(one.send(0, &frame(1, 3, &[1; 3000])));
        eventually("one's copy waits", || gate.state.lock().unwrap().0 == 1);
        assert!(two.send(0, &frame(2, 3, &[2; 3000])));
        eventually("two's is done", || done() == before + 1);
        assert!(three.receive(0).is_none(), "what was placed before it has not arrived");
        // Each copy's result is in its own response, whatever the order of completion.
        bench.host.fail_copies(damaged);
        gate.state.lock().unwrap().0 = 0;
        gate.opened.notify_all();
        let first = receive(&mut three, 0);
        bench.host.fail_copies(false);
        assert_eq!(first.packet.damaged, damaged);
        assert!(damaged || first.frame == frame(1, 3, &[1; 3000]));
        assert_eq!(receive(&mut three, 0).frame, frame(2, 3, &[2; 3000]));
    }
}
