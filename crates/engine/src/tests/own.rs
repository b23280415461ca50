//! Frames that weir itself sends.

use weir_fabric::{Vid, VlanMode, VlanSet};

use super::*;

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
