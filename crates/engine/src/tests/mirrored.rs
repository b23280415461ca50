//! Ports that get copies of others' frames.

use weir_fabric::{VlanMode, VlanSet};
use weir_limits::{CAPTURE_RING_LEN, MIRRORS_MAX, PORTS_MAX};

use super::*;
use crate::capture::CaptureError;
use crate::switching::switch::slot;

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
