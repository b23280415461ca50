//! Captured frames.

use weir_fabric::VlanMode;
use weir_filter::Program;
use weir_limits::{CAPTURE_RING_LEN, CAPTURES_MAX};

use super::*;
use crate::capture::{Capture, CaptureError, Direction, Header, Wanted};
use crate::switching::switch::slot;

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

/// True if the port itself stands in the table.
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
