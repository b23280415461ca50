//! Frames that wait for a receiver, multicast frames under snooping, and frames that weir itself sends.

use etherparse::PacketBuilder;
use weir_fabric::{Snooping, Vid, VlanMode, VlanSet};

use super::*;

fn kick_receiver(engine: &Engine, receiver: &FakePort) {
    engine.nudge(QueueRef { port: receiver.id, queue: 0, side: Side::Rx });
}

/// Two receivers without buffers, known to the others.
fn full_receivers(engine: &Engine) -> (Arc<FakePort>, Arc<FakePort>) {
    let (x, y) = (add(engine, |_| {}), add(engine, |_| {}));
    for (number, receiver) in [(8, &x), (9, &y)] {
        send(engine, receiver, [frame(number, 0xff, 0)]);
    }
    eventually("they are known", || numbers(&x) == [0] && numbers(&y) == [0]);
    x.room.store(0, Ordering::SeqCst);
    y.room.store(0, Ordering::SeqCst);
    (x, y)
}

fn waits(port: &FakePort) -> usize {
    port.waiting.lock().unwrap().len()
}

#[test]
fn a_receivers_kick_has_no_frames_tried_but_those_that_wait_for_it() {
    for workers in [1, 2, 3] {
        let options = Options { workers, realization: Realization::Shared, ..Options::default() };
        let engine = Engine::start_with(options).unwrap();
        let (x, y) = full_receivers(&engine);
        let senders: Vec<_> = (1..=6).map(|_| add(&engine, |_| {})).collect();
        // The first sender sends to both, interleaved; the others only to the second.
        send(&engine, &senders[0], (1..=20).map(|n| frame(1, 8 + n % 2, n)));
        for (number, sender) in senders.iter().enumerate().skip(1) {
            send(&engine, sender, [frame(number as u8 + 1, 9, 50)]);
        }
        eventually("all wait", || senders.iter().map(|sender| waits(sender)).sum::<usize>() == 25);
        x.room.store(100, Ordering::SeqCst);
        kick_receiver(&engine, &x);
        eventually("what is for it arrives", || numbers(&x).len() == 11);
        let even = (0..=20).filter(|n| n % 2 == 0).collect::<Vec<_>>();
        assert_eq!(numbers(&x), even);
        let tried = |sender: &FakePort| sender.tried_for.lock().unwrap().clone();
        eventually("it is said", || !tried(&senders[0]).is_empty());
        assert_eq!(tried(&senders[0]), [(Some(x.id), 10)], "{workers} workers");
        assert!(senders[1..].iter().all(|sender| tried(sender).is_empty()), "at their cost");

        y.room.store(100, Ordering::SeqCst);
        kick_receiver(&engine, &y);
        eventually("the others arrive", || senders.iter().all(|sender| waits(sender) == 0));
        let odd: Vec<_> = numbers(&y).into_iter().filter(|n| *n < 50).collect();
        assert_eq!(odd, [0].into_iter().chain((1..=20).filter(|n| n % 2 == 1)).collect::<Vec<_>>());
        eventually("it is said", || tried(&senders[5]) == [(Some(y.id), 1)]);
    }
}

/// More frames than are tried at once wait for one receiver, interleaved with frames for another that never has room.
/// At whatever point the receiver was last found full, its next kick retries its frames from the first on.
#[test]
fn no_kick_is_missed_while_frames_for_others_wait_among_those_for_its_receiver() {
    for kick_at in 0..6 {
        let engine = Arc::new(Engine::start(1).unwrap());
        let (x, y) = full_receivers(&engine);
        let a = add(&engine, |port| port.tries = 5);
        send(&engine, &a, (1..=40).map(|n| frame(1, 8 + n % 2, n)));
        eventually("all wait", || waits(&a) == 40);
        // Three buffers come; then buffers for all while the first frames are tried, or a little later.
        let (receiver, later) = (Arc::clone(&x), Arc::downgrade(&engine));
        let refill = move || {
            receiver.room.store(100, Ordering::SeqCst);
            kick_receiver(&later.upgrade().unwrap(), &receiver);
        };
        hook(&a, kick_at, Box::new(refill));
        x.room.store(3, Ordering::SeqCst);
        kick_receiver(&engine, &x);
        // A kick of the other receiver in between has no effect.
        kick_receiver(&engine, &y);
        for n in 0..kick_at {
            // Each kick causes at least one retry, which the hook counts, unless nothing is left to try.
            let before = a.tried_for.lock().unwrap().len();
            kick_receiver(&engine, if n % 2 == 0 { &y } else { &x });
            let tried = || a.tried_for.lock().unwrap().len() > before;
            eventually("a try", || tried() || (n % 2 == 1 && numbers(&x).len() == 21));
        }
        eventually("all arrive", || numbers(&x).len() == 21);
        assert_eq!(numbers(&x), (0..=40).filter(|n| n % 2 == 0).collect::<Vec<_>>());
        assert_eq!(waits(&a), 20, "the others wait");
    }
}

/// Makes `port` run `what` after this number of further tries.
fn hook(port: &Arc<FakePort>, after: usize, what: Box<dyn FnOnce() + Send>) {
    let again = Arc::downgrade(port);
    *port.tried.lock().unwrap() = Some(match after {
        0 => what,
        _ => Box::new(move || {
            if let Some(port) = again.upgrade() {
                hook(&port, after - 1, what);
            }
        }),
    });
}

#[test]
fn frames_that_a_helper_has_parked_are_tried_by_who_serves_their_queue_then() {
    let engine = Engine::start(2).unwrap();
    let a = add(&engine, |port| port.shares = true);
    let b = add(&engine, |_| {});
    send(&engine, &b, [frame(2, 0xff, 0)]);
    eventually("a has it", || numbers(&a) == [0]);
    b.room.store(0, Ordering::SeqCst);
    let worker = engine.worker_of(a.id, 0).unwrap();
    for round in 1..=50 {
        // A different worker from the one that parks them serves the queue when the kick comes.
        assert!(engine.set_helper(a.id, 0, Some(1 - worker)));
        send(&engine, &a, [frame(1, 2, 1)]);
        eventually("it waits", || waits(&a) == 1);
        engine.set_helper(a.id, 0, None);
        engine.assign(a.id, 0, round % 2).unwrap();
        b.room.store(1, Ordering::SeqCst);
        kick_receiver(&engine, &b);
        eventually("it arrives", || numbers(&b).len() == round);
    }
}

#[test]
fn a_frame_by_itself_whose_way_is_noted_waits_and_is_not_overtaken() {
    let engine = Engine::start(1).unwrap();
    let (a, b) = (add(&engine, |_| {}), add(&engine, |_| {}));
    send(&engine, &b, [frame(2, 0xff, 0)]);
    eventually("a has it", || numbers(&a) == [0]);
    for number in 1..=20 {
        // There are buffers for two frames: the way of the first may be looked up, and the second finds it noted.
        b.room.store(2, Ordering::SeqCst);
        let before = numbers(&b).len();
        for nth in 1..=4 {
            send(&engine, &a, [frame(1, 2, 4 * number + nth)]);
            let all = || numbers(&b).len() - before + waits(&a) == usize::from(nth);
            eventually("it arrives or waits", all);
        }
        assert_eq!(waits(&a), 2);
        b.room.store(100, Ordering::SeqCst);
        kick_receiver(&engine, &b);
        eventually("all arrive", || waits(&a) == 0);
    }
    assert_eq!(numbers(&b), (5..=84).collect::<Vec<_>>());
}

#[test]
fn a_nudge_of_weirs_own_is_no_kick() {
    let engine = Engine::start(1).unwrap();
    let (a, b) = (add(&engine, |_| {}), add(&engine, |_| {}));
    for n in 1..=10 {
        send(&engine, &a, [frame(1, 0xff, n)]);
        kick_receiver(&engine, &a);
        eventually("it arrives", || numbers(&b).len() == usize::from(n));
    }
    engine.assign(a.id, 0, 0).unwrap();
    assert_eq!(a.kicks.load(Ordering::SeqCst), 0);
    let kick = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    let queue = QueueRef { port: a.id, queue: 0, side: Side::Tx };
    let _watch = engine.watch(queue, kick.try_clone().unwrap()).unwrap();
    rustix::io::write(&kick, &1u64.to_ne_bytes()).unwrap();
    eventually("this is one", || a.kicks.load(Ordering::SeqCst) == 1);
}

fn own(number: u8) -> Vec<u8> {
    frame(9, 0xff, number)
}

#[test]
fn a_frame_of_weirs_own_goes_out_of_its_port_only_and_teaches_the_switch_nothing() {
    let engine = Engine::start(1).unwrap();
    let [a, b] = [(); 2].map(|()| add(&engine, |_| {}));
    assert!(engine.send_out_of(a.id, Vid::DEFAULT, &own(1)));
    assert_eq!(a.got.lock().unwrap()[0].1, own(1));
    assert!(numbers(&b).is_empty() && engine.fabric().fdb().is_empty());
}

#[test]
fn it_leaves_with_its_ports_tag_and_by_a_blocked_port_too() {
    let engine = Engine::start(1).unwrap();
    let trunk = add(&engine, |_| {});
    let allowed = VlanSet::Only([Vid::new(7).unwrap()].into_iter().collect());
    let vlan = VlanMode::Trunk { native: None, allowed };
    engine.fabric().update_port(trunk.id, PortConfig { vlan, ..PortConfig::uplink() }).unwrap();
    engine.fabric().set_blocked(trunk.id, true).unwrap();
    assert!(engine.send_out_of(trunk.id, Vid::new(7).unwrap(), &own(1)));
    let mut tagged = own(1);
    tagged.splice(12..12, [0x81, 0, 0, 7]);
    assert_eq!(trunk.got.lock().unwrap()[0].1, tagged);
    assert!(!engine.send_out_of(trunk.id, Vid::DEFAULT, &own(2)), "a VLAN that it does not carry");
}

#[test]
fn a_port_without_room_or_without_anybody_says_that_it_has_not_taken_it() {
    let engine = Engine::start(1).unwrap();
    let full = add(&engine, |port| port.room = AtomicUsize::new(0));
    let absent = add(&engine, |port| port.rx_queues = AtomicUsize::new(0));
    let fails = add(&engine, |port| port.panics_on_delivery = true);
    for port in [&full, &absent] {
        assert!(!engine.send_out_of(port.id, Vid::DEFAULT, &own(1)));
        assert!(port.got.lock().unwrap().is_empty());
    }
    engine.send_out_of(fails.id, Vid::DEFAULT, &own(1));
    assert!(fails.failed.load(Ordering::Relaxed), "its panic is its own");
    engine.remove_port(full.id);
    assert!(!engine.send_out_of(full.id, Vid::DEFAULT, &own(1)), "nobody is there");
    assert!(!engine.send_out_of(absent.id, Vid::DEFAULT, &[0; 5]), "and this is no frame");
}

#[test]
fn a_call_that_is_held_for_it_is_given_when_it_is_due() {
    let engine = Engine::start(1).unwrap();
    let holds = add(&engine, |port| port.hold = Some(Duration::from_millis(2)));
    assert!(engine.send_out_of(holds.id, Vid::DEFAULT, &own(1)));
    assert_eq!(*holds.expired_side.lock().unwrap(), Some(Side::Rx));
}

/// A message of IGMP for `group`, padded.
fn igmp(from: u8, to: [u8; 4], kind: u8, code: u8, group: [u8; 4]) -> Vec<u8> {
    let mut message = [&[kind, code, 0, 0][..], &group].concat();
    let mut sum = weir_wire::Sum::new();
    sum.add(&message);
    message[2..4].copy_from_slice(&sum.finish().to_be_bytes());
    ip(from, to, 2, &message)
}

/// An IPv4 packet for a group, with the number in its last byte.
fn ip(from: u8, to: [u8; 4], protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mac = [0x01, 0x00, 0x5e, to[1] & 0x7f, to[2], to[3]];
    let builder =
        PacketBuilder::ethernet2([2, 0, 0, 0, 0, from], mac).ipv4([10, 0, 0, from], to, 1);
    let mut frame = Vec::new();
    builder.write(&mut frame, protocol.into(), payload).unwrap();
    frame
}

/// The last byte of each frame that the port got.
fn numbers(port: &FakePort) -> Vec<u8> {
    port.got.lock().unwrap().iter().filter_map(|(_, frame)| frame.last().copied()).collect()
}

#[test]
fn a_group_goes_to_its_members_and_a_forged_query_to_nobody() {
    const GROUP: [u8; 4] = [239, 1, 2, 3];
    let engine = Engine::start(1).unwrap();
    engine.fabric().snoop(Snooping::new([Vid::DEFAULT].into_iter()).unwrap());
    let open = PortConfig { mac_check: MacCheck::Off, ..PortConfig::vif() };
    let router = PortConfig { multicast_router: true, ..open.clone() };
    let mut all_counters = Vec::new();
    let ports = [router, open.clone(), open.clone(), open].map(|config| {
        let make = |id, counters| {
            all_counters.push(counters);
            Arc::new(FakePort::new(id))
        };
        let (id, port) = engine.add_port(config, make).unwrap();
        engine.fabric().set_active(id, true).unwrap();
        port
    });
    // The worker serves receivers in this order: once the member has a frame, the others have it too.
    let [router, other, guest, member] = &ports;
    let number = |number: u8| ip(1, GROUP, 17, &[0, 0, 0, 0, 0, 8, 0, 0, number]);
    let last = |port: &FakePort| numbers(port).last().copied();
    // A query that gives 0.1 s for answers: the switch waits for the rest of this second and one more.
    send(&engine, router, [igmp(1, [224, 0, 0, 1], 0x11, 1, [0; 4])]);
    eventually("the query is for all", || ports[1..].iter().all(|port| numbers(port).len() == 1));
    send(&engine, member, [igmp(2, GROUP, 0x16, 0, GROUP)]);
    eventually("the report is for the router", || numbers(router).len() == 1);
    eventually("who has not answered gets nothing any more", || {
        let [before, had] = [other, member].map(|port| numbers(port).len());
        send(&engine, router, [number(7)]);
        eventually("the member gets it", || numbers(member).len() > had);
        send(&engine, member, [igmp(2, GROUP, 0x16, 0, GROUP)]);
        numbers(other).len() == before
    });
    let (of_other, of_guest) = (numbers(other).len(), numbers(guest).len());
    send(&engine, router, [number(8)]);
    eventually("the member gets it", || last(member) == Some(8));
    let thought = engine.trace(router.id, &number(9));
    assert!(thought.iter().any(|step| matches!(step, crate::trace::Step::Members { ports: 1 })));
    // A guest would like to be a router.
    send(&engine, guest, [igmp(4, [224, 0, 0, 1], 0x11, 1, [0; 4])]);
    eventually("its query is dropped", || {
        all_counters[2].drops().collect::<Vec<_>>() == [("multicast_query", 1)]
    });
    let drops = engine.trace(guest.id, &igmp(4, [224, 0, 0, 1], 0x11, 1, [0; 4]));
    let dropped = |step: &crate::trace::Step| matches!(step, crate::trace::Step::Dropped { .. });
    assert!(drops.iter().any(dropped));
    // A frame for all stations still goes to all: this is the first frame since then that the other ports get.
    send(&engine, router, [ip(1, [224, 0, 0, 251], 17, &[0, 0, 0, 0, 0, 8, 0, 0, 10])]);
    for port in [member, other, guest] {
        eventually("it arrives", || last(port) == Some(10));
    }
    assert_eq!(numbers(other).len(), of_other + 1);
    assert_eq!(numbers(guest).len(), of_guest + 1);
}
