//! Followed frames.

use weir_filter::Program;
use weir_limits::FOLLOWED_MAX;

use super::*;
use crate::capture::follow::{Did, Following, Way};
use crate::capture::{CaptureError, Wanted};
use crate::switching::switch::slot;

fn ways(following: &mut Following, count: usize) -> Vec<Way> {
    let mut ways = Vec::new();
    eventually("frames are followed", || {
        ways.extend(following.next_way());
        ways.len() >= count
    });
    ways
}

fn is_bare(engine: &Engine, port: &Arc<FakePort>) -> bool {
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
    let seen = ways(&mut following, 2);
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
    let way = ways(&mut following, 1).remove(0);
    let reason = weir_fabric::DropReason::ReservedGroupAddress.into();
    assert_eq!((way.parts[0].port, way.parts[0].did), (a.id, Did::Dropped(reason)));

    b.room.store(0, Ordering::SeqCst);
    send(&engine, &a, [frame(1, 2, 2)]);
    let way = ways(&mut following, 1).remove(0);
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
    assert!(!is_bare(&engine, &a) && !is_bare(&engine, &b));
    assert_eq!(engine.follow(b.id, None, 1).err(), Some(CaptureError::Follows));
    drop(following);
    assert!(is_bare(&engine, &a) && !is_bare(&engine, &b));
    send(&engine, &a, [frame(1, 0xff, 7)]);
    eventually("the capture has it", || {
        capture.read(|_, _| Ok::<_, std::convert::Infallible>(())) == Ok(1)
    });
    drop(capture);
    assert!(is_bare(&engine, &b));
    let gone = PortId::new(77).unwrap();
    assert_eq!(engine.follow(gone, None, 1).err(), Some(CaptureError::NoSuchPort(gone)));
    let following = engine.follow(a.id, None, u32::MAX).unwrap();
    assert_eq!(following.left(), FOLLOWED_MAX);
    engine.remove_port(a.id);
    drop(following);
    assert!(is_bare(&engine, &b), "whoever goes takes nobody along");
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
