//! Captured, followed, mirrored and traced frames. A traced frame is then sent, too.

use weir_fabric::{FdbEntry, Vid, VlanMode, VlanSet};
use weir_filter::Program;
use weir_limits::{CAPTURE_RING_LEN, CAPTURES_MAX, FOLLOWED_MAX, MIRRORS_MAX, PORTS_MAX};

use super::*;
use crate::capture::follow::{Did, Following, Way};
use crate::capture::{Capture, CaptureError, Direction, Header, Wanted};
use crate::switching::filter::{Action, PortRules, Rules};
use crate::switching::switch::slot;
use crate::trace::Step;

type Seen = Vec<(Header, Vec<u8>)>;

fn read(capture: &mut Capture, into: &mut Seen) {
    let keep = |header: &Header, bytes: &[u8]| -> Result<(), std::convert::Infallible> {
        into.push((*header, bytes.to_vec()));
        Ok(())
    };
    let Ok(_) = capture.read(keep);
}

fn read_until(capture: &mut Capture, count: usize) -> Seen {
    let mut seen = Vec::new();
    eventually("the frames are copied", || {
        read(capture, &mut seen);
        seen.len() >= count
    });
    seen
}

fn ways(seen: &Seen) -> Vec<(u16, Direction, u8)> {
    seen.iter().map(|(header, bytes)| (header.port, header.direction, bytes[14])).collect()
}

/// True if the port itself is in the table.
fn is_bare(engine: &Engine, port: &Arc<FakePort>) -> bool {
    let bare: Arc<dyn Port> = Arc::clone(port) as _;
    let ports = engine.shared.ports.load();
    slot(&ports, port.id).is_some_and(|slot| Arc::ptr_eq(&slot.port, &bare))
}

#[test]
fn what_a_port_sends_and_receives_is_copied_and_others_frames_are_not() {
    let engine = Engine::start(1).unwrap();
    let [a, b, c] = [(); 3].map(|()| add(&engine, |_| {}));
    let mut capture = engine.capture(&[c.id, a.id], &Wanted::ALL).unwrap();
    send(&engine, &a, [frame(1, 0xff, 1)]);
    send(&engine, &b, [frame(2, 1, 2)]);
    let seen = read_until(&mut capture, 3);
    let (tx, rx) = (Direction::Tx, Direction::Rx);
    assert_eq!(ways(&seen), [(1, tx, 1), (0, rx, 1), (1, rx, 2)]);
    assert!(seen.iter().all(|(header, bytes)| header.len == 200 && bytes.len() == 200));
    assert_eq!(seen[0].1, frame(1, 0xff, 1));
    assert!(seen.is_sorted_by_key(|(header, _)| header.at_ns));
}

#[test]
fn a_snap_length_and_a_filter_choose_what_is_copied() {
    let engine = Engine::start(1).unwrap();
    let (a, b) = (add(&engine, |_| {}), add(&engine, |_| {}));
    // Byte 199 lies behind the part of a frame that workers copy in any case.
    let program = Arc::new(Program::compile("ether[199] = 2 or ether[14] = 3").unwrap());
    let wanted = Wanted { rx: false, filter: Some(program), snap_len: 40, ..Wanted::ALL };
    let mut capture = engine.capture(&[a.id], &wanted).unwrap();
    send(&engine, &a, (1..=4).map(|n| frame(1, 0xff, n)));
    eventually("b has them", || numbers(&b).len() == 4);
    let seen = read_until(&mut capture, 2);
    assert_eq!(ways(&seen), [(0, Direction::Tx, 2), (0, Direction::Tx, 3)]);
    assert!(seen.iter().all(|(header, bytes)| header.len == 200 && bytes.len() == 40));
    assert_eq!(seen[0].1, frame(1, 0xff, 2)[..40]);
    let counted = &capture.counted()[0];
    assert_eq!((counted.seen, counted.matched, counted.lost), (4, 2, 0));
}

#[test]
fn a_frame_has_the_tag_that_it_has_on_its_port() {
    let engine = Engine::start(1).unwrap();
    let (trunk, access) = (add(&engine, |_| {}), add(&engine, |_| {}));
    let all = PortConfig { mac_check: MacCheck::Off, ..PortConfig::uplink() };
    engine.fabric().update_port(trunk.id, all).unwrap();
    let vlan = VlanMode::Access(weir_fabric::Vid::new(7).unwrap());
    let config = PortConfig { mac_check: MacCheck::Off, vlan, ..PortConfig::vif() };
    engine.fabric().update_port(access.id, config).unwrap();
    let mut capture = engine.capture(&[trunk.id, access.id], &Wanted::ALL).unwrap();
    let mut tagged = frame(1, 0xff, 1);
    tagged.splice(12..12, [0x81, 0, 0, 7]);
    send(&engine, &trunk, [tagged.clone()]);
    let seen = read_until(&mut capture, 2);
    assert_eq!(seen[0].1, tagged);
    assert_eq!(seen[1].1, frame(1, 0xff, 1));
    assert_eq!([seen[0].0.len, seen[1].0.len], [204, 200]);
}

#[test]
fn a_frame_that_waits_for_its_receiver_is_sent_once_and_received_when_it_is() {
    let engine = Engine::start(1).unwrap();
    let a = add(&engine, |_| {});
    let b = add(&engine, |port| port.room = AtomicUsize::new(0));
    send(&engine, &b, [frame(2, 0xff, 0)]);
    eventually("b is known", || numbers(&a) == [0]);
    let mut capture = engine.capture(&[a.id, b.id], &Wanted::ALL).unwrap();
    send(&engine, &a, [frame(1, 2, 1)]);
    let seen = read_until(&mut capture, 1);
    assert_eq!(ways(&seen), [(0, Direction::Tx, 1)]);
    eventually("it waits", || !a.waiting.lock().unwrap().is_empty());
    b.room.store(9, Ordering::SeqCst);
    engine.nudge(QueueRef { port: b.id, queue: 0, side: Side::Rx });
    assert_eq!(ways(&read_until(&mut capture, 1)), [(1, Direction::Rx, 1)]);
    assert_eq!(capture.counted()[0].seen, 1);
}

#[test]
fn a_reader_that_does_not_read_loses_frames_that_are_counted_and_holds_up_nobody() {
    const FRAMES: usize = CAPTURE_RING_LEN / 200 + 500;
    let engine = Engine::start(1).unwrap();
    let (a, b) = (add(&engine, |_| {}), add(&engine, |_| {}));
    let wanted = Wanted { rx: false, ..Wanted::ALL };
    let mut capture = engine.capture(&[a.id], &wanted).unwrap();
    send(&engine, &a, (0..FRAMES).map(|n| frame(1, 0xff, n as u8)));
    eventually("b has all", || b.got.lock().unwrap().len() == FRAMES);
    let counted = capture.counted().remove(0);
    assert_eq!(counted.seen, FRAMES as u64);
    assert!(counted.lost > 0);
    let kept = FRAMES - counted.lost as usize;
    let mut seen = read_until(&mut capture, kept);
    read(&mut capture, &mut seen);
    assert_eq!(seen.len(), kept);
    assert!(seen.iter().enumerate().all(|(n, (_, bytes))| bytes[14] == n as u8));
    // There is room again.
    send(&engine, &a, [frame(1, 0xff, 77)]);
    assert_eq!(read_until(&mut capture, 1)[0].1, frame(1, 0xff, 77));
}

#[test]
fn drops_are_copied_with_their_reasons_and_those_without_a_frame_are_counted() {
    let engine = Engine::start(1).unwrap();
    let (a, b) = (add(&engine, |_| {}), add(&engine, |port| port.rx_queues = AtomicUsize::new(0)));
    let wanted = Wanted { tx: false, rx: false, drops: true, ..Wanted::ALL };
    let mut capture = engine.capture(&[a.id, b.id], &wanted).unwrap();
    assert!(is_bare(&engine, &a), "what only shows drops costs other frames nothing");
    let mut to_bridges = frame(1, 0xff, 1);
    to_bridges[..6].copy_from_slice(&[0x01, 0x80, 0xc2, 0, 0, 0]);
    send(&engine, &a, [to_bridges.clone()]);
    let seen = read_until(&mut capture, 1);
    assert_eq!(seen[0].1, to_bridges);
    let reason = weir_fabric::DropReason::ReservedGroupAddress.into();
    assert_eq!((seen[0].0.dropped, seen[0].0.port), (Some(reason), 0));

    send(&engine, &b, [frame(2, 0xff, 2)]);
    eventually("b is known", || numbers(&a).len() == 1);
    send(&engine, &a, [frame(1, 2, 3)]);
    let (header, bytes) = read_until(&mut capture, 1).remove(0);
    assert_eq!((header.dropped, header.port), (Some(DropReason::RxNotReady), 1));
    assert_eq!((header.direction, bytes[14]), (Direction::Rx, 3));

    let ports = engine.shared.ports.load();
    slot(&ports, a.id).unwrap().counters.dropped(DropReason::TxStopped, 5);
    assert_eq!(capture.counted()[0].unseen_drops, [(DropReason::TxStopped, 5)]);
}

#[test]
fn a_port_stands_for_itself_again_whichever_capture_of_it_ends_first() {
    let engine = Engine::start(1).unwrap();
    let (a, b) = (add(&engine, |_| {}), add(&engine, |_| {}));
    for first in [0, 1] {
        assert!(is_bare(&engine, &a));
        let begin = || engine.capture(&[a.id], &Wanted::ALL).unwrap();
        let mut captures = vec![begin(), begin()];
        let before = b.got.lock().unwrap().len();
        captures.remove(first);
        send(&engine, &a, [frame(1, 0xff, 9)]);
        eventually("b has it", || b.got.lock().unwrap().len() > before);
        assert_eq!(ways(&read_until(&mut captures[0], 1)), [(0, Direction::Tx, 9)]);
    }
    assert!(is_bare(&engine, &a));
}

#[test]
fn a_port_that_goes_takes_nobody_along() {
    let engine = Engine::start(1).unwrap();
    let (a, b) = (add(&engine, |_| {}), add(&engine, |_| {}));
    let mut capture = engine.capture(&[a.id, b.id], &Wanted::ALL).unwrap();
    engine.remove_port(a.id);
    let next = add(&engine, |_| {});
    send(&engine, &b, [frame(2, 0xff, 4)]);
    eventually("it arrives", || numbers(&next) == [4]);
    assert_eq!(ways(&read_until(&mut capture, 1)), [(1, Direction::Tx, 4)]);
    drop(capture);
    assert!(is_bare(&engine, &next) && is_bare(&engine, &b));
}

#[test]
fn captures_are_few_and_of_ports_that_are_there() {
    let engine = Engine::start(1).unwrap();
    let a = add(&engine, |_| {});
    let gone = PortId::new(77).unwrap();
    let begin = |ports: &[PortId]| engine.capture(ports, &Wanted::ALL);
    assert_eq!(begin(&[]).err(), Some(CaptureError::Ports(0)));
    assert_eq!(begin(&[a.id, gone]).err(), Some(CaptureError::NoSuchPort(gone)));
    let mut captures: Vec<_> = (0..CAPTURES_MAX).map(|_| begin(&[a.id]).unwrap()).collect();
    assert_eq!(begin(&[a.id]).err(), Some(CaptureError::TooMany));
    captures.pop();
    assert!(begin(&[a.id]).is_ok());
}

fn followed_ways(following: &mut Following, count: usize) -> Vec<Way> {
    let mut followed_ways = Vec::new();
    eventually("frames are followed", || {
        followed_ways.extend(following.next_way());
        followed_ways.len() >= count
    });
    followed_ways
}

fn is_unfollowed(engine: &Engine, port: &Arc<FakePort>) -> bool {
    let bare: Arc<dyn Port> = Arc::clone(port) as _;
    let ports = engine.shared.ports.load();
    slot(&ports, port.id).is_some_and(|slot| Arc::ptr_eq(&slot.port, &bare))
}

#[test]
fn the_next_frames_of_a_filter_are_followed_to_everybody_who_gets_them() {
    let engine = Engine::start(1).unwrap();
    let [a, b, c] = [(); 3].map(|()| add(&engine, |_| {}));
    let odd = Arc::new(Program::compile("ether[14] & 1 = 1").unwrap());
    let mut following = engine.follow(a.id, Some(odd), 2).unwrap();
    send(&engine, &b, [frame(2, 0xff, 1)]);
    eventually("b is known", || numbers(&a) == [1]);
    send(&engine, &a, (0..6).map(|n| frame(1, if n == 1 { 0xff } else { 2 }, n)));
    eventually("b has all", || numbers(&b).len() == 6);
    let seen = followed_ways(&mut following, 2);
    assert_eq!([seen[0].front[14], seen[1].front[14]], [1, 3]);
    let ports = |way: &Way| way.parts.iter().map(|part| part.port).collect::<Vec<_>>();
    assert_eq!((ports(&seen[0]), ports(&seen[1])), (vec![b.id, c.id], vec![b.id]));
    for way in &seen {
        assert_eq!(way.len, 200);
        assert!(way.begun_ns <= way.taken_ns && way.taken_ns <= way.returned_ns);
        for part in &way.parts {
            let Did::Delivered { done_ns, queue: 0, .. } = part.did else { panic!("{part:?}") };
            assert!(
                way.taken_ns <= part.at_ns && part.at_ns <= done_ns && done_ns <= way.returned_ns
            );
        }
    }
    assert_eq!((following.left(), following.next_way()), (0, None), "no more than were asked for");
}

#[test]
fn a_frame_that_is_dropped_or_waits_says_so() {
    let engine = Engine::start(1).unwrap();
    let (a, b) = (add(&engine, |_| {}), add(&engine, |_| {}));
    send(&engine, &b, [frame(2, 0xff, 0)]);
    eventually("b is known", || numbers(&a) == [0]);
    let mut following = engine.follow(a.id, None, 9).unwrap();
    let mut to_bridges = frame(1, 0xff, 1);
    to_bridges[..6].copy_from_slice(&[0x01, 0x80, 0xc2, 0, 0, 0]);
    send(&engine, &a, [to_bridges]);
    let way = followed_ways(&mut following, 1).remove(0);
    let reason = weir_fabric::DropReason::ReservedGroupAddress.into();
    assert_eq!((way.parts[0].port, way.parts[0].did), (a.id, Did::Dropped(reason)));

    b.room.store(0, Ordering::SeqCst);
    send(&engine, &a, [frame(1, 2, 2)]);
    let way = followed_ways(&mut following, 1).remove(0);
    assert_eq!((way.parts[0].port, way.parts[0].did), (b.id, Did::Waits));
    // The frame is delivered later, and does not count as another frame.
    b.room.store(9, Ordering::SeqCst);
    engine.nudge(QueueRef { port: b.id, queue: 0, side: Side::Rx });
    eventually("it arrives", || numbers(&b) == [2]);
    assert_eq!(following.left(), 7);
}

#[test]
fn every_port_stands_for_itself_before_and_after_and_captures_go_on() {
    let engine = Engine::start(1).unwrap();
    let (a, b) = (add(&engine, |_| {}), add(&engine, |_| {}));
    let mut capture = engine.capture(&[b.id], &Wanted::ALL).unwrap();
    let following = engine.follow(a.id, None, 1).unwrap();
    assert!(!is_unfollowed(&engine, &a) && !is_unfollowed(&engine, &b));
    assert_eq!(engine.follow(b.id, None, 1).err(), Some(CaptureError::Follows));
    drop(following);
    assert!(is_unfollowed(&engine, &a) && !is_unfollowed(&engine, &b));
    send(&engine, &a, [frame(1, 0xff, 7)]);
    eventually("the capture has it", || {
        capture.read(|_, _| Ok::<_, std::convert::Infallible>(())) == Ok(1)
    });
    drop(capture);
    assert!(is_unfollowed(&engine, &b));
    let gone = PortId::new(77).unwrap();
    assert_eq!(engine.follow(gone, None, 1).err(), Some(CaptureError::NoSuchPort(gone)));
    let following = engine.follow(a.id, None, u32::MAX).unwrap();
    assert_eq!(following.left(), FOLLOWED_MAX);
    engine.remove_port(a.id);
    drop(following);
    assert!(is_unfollowed(&engine, &b), "whoever goes takes nobody along");
}

#[test]
fn whoever_does_not_read_holds_up_nobody() {
    let engine = Engine::start(2).unwrap();
    let (a, b) = (add(&engine, |_| {}), add(&engine, |_| {}));
    let following = engine.follow(a.id, None, FOLLOWED_MAX).unwrap();
    send(&engine, &a, (0..5000).map(|n| frame(1, 0xff, n as u8)));
    eventually("b has all", || b.got.lock().unwrap().len() == 5000);
    assert_eq!(following.left(), 0);
}

/// A port from which the fabric accepts no frames and to which it sends none.
fn apart(engine: &Engine, change: impl FnOnce(&mut FakePort)) -> Arc<FakePort> {
    let port = add(engine, change);
    let vlan = VlanMode::Trunk { native: None, allowed: VlanSet::Only([].into_iter().collect()) };
    let config = PortConfig { mac_check: MacCheck::Off, vlan, ..PortConfig::vif() };
    engine.fabric().update_port(port.id, config).unwrap();
    port
}

fn dropped(engine: &Engine, port: &FakePort) -> Vec<(&'static str, u64)> {
    let ports = engine.shared.ports.load();
    slot(&ports, port.id).unwrap().counters.drops().filter(|(_, n)| *n > 0).collect()
}

#[test]
fn a_mirror_gets_what_its_ports_send_and_receive_and_nothing_else() {
    let engine = Engine::start(1).unwrap();
    let [a, b, c] = [(); 3].map(|()| add(&engine, |_| {}));
    let m = apart(&engine, |_| {});
    let mirror = engine.mirror(&[a.id], m.id).unwrap();
    send(&engine, &b, [frame(2, 0xff, 1)]);
    eventually("what a receives is copied", || numbers(&m) == [1]);
    send(&engine, &a, [frame(1, 2, 2)]);
    eventually("what a sends is copied", || numbers(&m) == [1, 2]);
    send(&engine, &b, [frame(2, 0xff, 3)]);
    eventually("c has it", || numbers(&c) == [1, 3]);
    eventually("a too, and the mirror", || numbers(&m) == [1, 2, 3]);
    assert_eq!(m.got.lock().unwrap()[1].1, frame(1, 2, 2), "a copy is the frame");
    drop(mirror);
    send(&engine, &a, [frame(1, 0xff, 4)]);
    eventually("c has it", || numbers(&c) == [1, 3, 4]);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(numbers(&m), [1, 2, 3], "a mirror that has ended copies nothing");
}

#[test]
fn what_a_mirror_sends_goes_nowhere() {
    let engine = Engine::start(1).unwrap();
    let (a, b) = (add(&engine, |_| {}), add(&engine, |_| {}));
    let m = apart(&engine, |_| {});
    let _mirror = engine.mirror(&[a.id, b.id], m.id).unwrap();
    let mut tagged = frame(3, 0xff, 7);
    tagged.splice(12..12, [0x81, 0, 0, 1]);
    send(&engine, &m, [frame(3, 0xff, 7), frame(3, 1, 7), tagged]);
    eventually("all are dropped", || dropped(&engine, &m).iter().map(|(_, n)| n).sum::<u64>() == 3);
    assert!(numbers(&a).is_empty() && numbers(&b).is_empty());
    assert!(numbers(&m).is_empty(), "nor is it copied");
}

#[test]
fn a_tag_stays_with_the_copy() {
    let engine = Engine::start(1).unwrap();
    let trunk = add(&engine, |_| {});
    let all = PortConfig { mac_check: MacCheck::Off, ..PortConfig::uplink() };
    engine.fabric().update_port(trunk.id, all).unwrap();
    let m = apart(&engine, |_| {});
    let _mirror = engine.mirror(&[trunk.id], m.id).unwrap();
    let mut tagged = frame(1, 0xff, 1);
    tagged.splice(12..12, [0x81, 0, 0, 7]);
    send(&engine, &trunk, [tagged.clone()]);
    eventually("it is copied", || !m.got.lock().unwrap().is_empty());
    assert_eq!(m.got.lock().unwrap()[0].1, tagged);
}

#[test]
fn a_mirror_without_buffers_holds_up_nobody_and_each_copy_is_there_or_counted() {
    const FRAMES: usize = CAPTURE_RING_LEN / 200 + 500;
    let engine = Engine::start(1).unwrap();
    let (a, b) = (add(&engine, |_| {}), add(&engine, |_| {}));
    let m = apart(&engine, |port| port.room = AtomicUsize::new(5));
    let _mirror = engine.mirror(&[a.id], m.id).unwrap();
    send(&engine, &a, (0..FRAMES).map(|n| frame(1, 0xff, n as u8)));
    eventually("b has all", || b.got.lock().unwrap().len() == FRAMES);
    let counted = || dropped(&engine, &m).iter().map(|(_, n)| *n as usize).sum::<usize>();
    eventually("no copy is unsaid", || counted() + m.got.lock().unwrap().len() == FRAMES);
    assert_eq!(numbers(&m), [0, 1, 2, 3, 4]);
    assert!(dropped(&engine, &m).iter().any(|(reason, _)| *reason == "rx_ring_full"));
}

#[test]
fn mirrors_are_few_and_of_others_and_outlive_their_ports() {
    let engine = Engine::start(1).unwrap();
    let a = add(&engine, |_| {});
    let m = apart(&engine, |_| {});
    assert_eq!(engine.mirror(&[a.id, m.id], m.id).err(), Some(CaptureError::Itself));
    let mut mirrors: Vec<_> =
        (0..MIRRORS_MAX).map(|_| engine.mirror(&[a.id], m.id).unwrap()).collect();
    assert_eq!(engine.mirror(&[a.id], m.id).err(), Some(CaptureError::TooManyMirrors));
    assert!(engine.capture(&[a.id], &crate::capture::Wanted::ALL).is_ok(), "captures count apart");
    mirrors.pop();
    let last = engine.mirror(&[a.id], m.id).unwrap();
    assert!(last.is_whole());
    engine.remove_port(m.id);
    assert!(!last.is_whole());
    // The next port with its number gets no copies.
    let mut all = (0..PORTS_MAX).map(|_| add(&engine, |_| {}));
    let next = all.find(|port| {
        let is_it = port.id == m.id;
        if !is_it {
            engine.remove_port(port.id);
        }
        is_it
    });
    let next = next.expect("numbers are used again");
    engine.fabric().set_active(next.id, false).unwrap();
    send(&engine, &a, [frame(1, 0xff, 1)]);
    std::thread::sleep(Duration::from_millis(30));
    assert!(numbers(&next).is_empty());
    engine.remove_port(a.id);
    drop((mirrors, last));
}

/// Reasons of drops, with the number of frames.
type Drops = Vec<(&'static str, u64)>;

/// The entries and the counters of the switch.
fn state(engine: &Engine, ports: &[&Arc<FakePort>]) -> (Vec<FdbEntry>, Vec<Drops>) {
    let table = engine.shared.ports.load();
    let counters = |port: &&Arc<FakePort>| &slot(&table, port.id).unwrap().counters;
    let drops = ports.iter().map(|port| counters(port).drops().collect()).collect();
    let mut entries = engine.fabric().fdb().entries(0);
    entries.iter_mut().for_each(|entry| entry.age_secs = 0);
    entries.sort_by_key(|entry| (entry.vid.get(), entry.mac.0));
    (entries, drops)
}

fn receivers(steps: &[Step]) -> Vec<PortId> {
    let delivered = steps.iter().filter_map(|step| match step {
        Step::Delivered { port } => Some(*port),
        _ => None,
    });
    delivered.collect()
}

fn drops(steps: &[Step]) -> Vec<(PortId, &'static str)> {
    let dropped = steps.iter().filter_map(|step| match step {
        Step::Dropped { port, reason } => Some((*port, reason.as_str())),
        _ => None,
    });
    dropped.collect()
}

#[test]
fn what_is_thought_is_what_then_happens_and_changes_nothing_before() {
    let engine = Engine::start(1).unwrap();
    let [a, b, c, d] = [(); 4].map(|()| add(&engine, |_| {}));
    let e = add(&engine, |port| port.rx_queues = AtomicUsize::new(0));
    let all = [&a, &b, &c, &d, &e];
    let program = |text| Arc::new(Program::compile(text).unwrap());
    let rules = |text| Some(Arc::new(Rules::new([(program(text), Action::Drop)]).unwrap()));
    engine.change_settings(a.id, |settings| {
        settings.rules = PortRules { tx: rules("ether[14] = 3"), rx: None }
    });
    engine.change_settings(c.id, |settings| {
        settings.rules = PortRules { tx: None, rx: rules("ether[199] = 4") }
    });
    engine.change_settings(d.id, |settings| settings.mtu = Some(150));
    let vlan = VlanMode::Access(Vid::new(7).unwrap());
    let other = PortConfig { mac_check: MacCheck::Off, vlan, ..PortConfig::vif() };
    engine.fabric().update_port(b.id, other).unwrap();
    let mut tagged = frame(1, 0xff, 6);
    tagged.splice(12..12, [0x81, 0, 0, 7]);
    let mut reserved = frame(1, 0xff, 7);
    reserved[..6].copy_from_slice(&[1, 0x80, 0xc2, 0, 0, 0]);
    let mut short = frame(1, 0xff, 8);
    short.truncate(100);
    let frames = [
        (&a, frame(1, 0xff, 1)),
        (&c, frame(3, 1, 2)),
        (&a, frame(1, 0xff, 3)),
        (&a, frame(1, 3, 4)),
        (&a, frame(1, 1, 5)),
        (&a, tagged),
        (&a, reserved),
        (&d, frame(4, 1, 9)),
        (&d, short),
        (&e, frame(5, 0xff, 10)),
        (&a, frame(1, 5, 11)),
        (&b, frame(2, 0xff, 12)),
        (&a, frame(1, 9, 13)),
    ];
    for (sender, frame) in frames {
        let before = state(&engine, &all);
        let got = |port: &&Arc<FakePort>| port.got.lock().unwrap().len();
        let got_before: Vec<_> = all.iter().map(got).collect();
        let steps = engine.trace(sender.id, &frame);
        assert_eq!(engine.trace(sender.id, &frame), steps);
        assert_eq!(state(&engine, &all), before, "{steps:?}");

        // Kicks are asked for once the burst is over.
        let armed = sender.armed.load(Ordering::SeqCst);
        send(&engine, sender, [frame]);
        eventually("it is taken", || sender.to_send.lock().unwrap().is_empty());
        eventually("and dealt with", || sender.armed.load(Ordering::SeqCst) > armed);
        let more = all.iter().zip(&got_before).filter(|(port, before)| got(port) > **before);
        assert_eq!(
            more.map(|(port, _)| port.id).collect::<Vec<_>>(),
            receivers(&steps),
            "{steps:?}"
        );
        let (_, after) = state(&engine, &all);
        for ((port, before), after) in all.iter().zip(&before.1).zip(&after) {
            let new =
                after.iter().filter(|count| !before.contains(count)).map(|(reason, _)| *reason);
            let thought = drops(&steps).into_iter().filter(|(at, _)| *at == port.id);
            let thought: Vec<_> = thought.map(|(_, reason)| reason).collect();
            assert_eq!(new.collect::<Vec<_>>(), thought, "{steps:?}");
        }
    }
}

#[test]
fn limits_are_looked_at_and_not_paid() {
    let engine = Engine::start(1).unwrap();
    let (a, b) = (add(&engine, |_| {}), add(&engine, |_| {}));
    let one = Some(Rate { per_s: 1, burst: 1 });
    engine.change_settings(b.id, |settings| {
        settings.receive_limit = RateLimit { packets: one, ..RateLimit::NONE }
    });
    engine.change_settings(a.id, |settings| {
        settings.storm_limit = StormLimit { broadcast: one, ..StormLimit::default() }
    });
    for _ in 0..3 {
        let steps = engine.trace(a.id, &frame(1, 0xff, 1));
        assert_eq!(receivers(&steps), [b.id], "{steps:?}");
    }
    send(&engine, &a, [frame(1, 0xff, 1)]);
    eventually("b has it", || numbers(&b) == [1]);
    let stormy = engine.trace(a.id, &frame(1, 0xff, 1));
    assert_eq!(drops(&stormy), [(a.id, "storm_broadcast")]);
    let policed = engine.trace(a.id, &frame(1, 2, 1));
    assert_eq!(drops(&policed), [(b.id, "policed_rx")]);
}

#[test]
fn what_is_no_frame_ends_at_once() {
    let engine = Engine::start(1).unwrap();
    let a = add(&engine, |_| {});
    let steps = engine.trace(a.id, &[0; 13]);
    assert_eq!(drops(&steps), [(a.id, "frame_too_short")]);
    let gone = PortId::new(9).unwrap();
    let steps = engine.trace(gone, &frame(1, 2, 3));
    assert_eq!(drops(&steps), [(gone, "port_unknown")]);
}
