//! A traced frame, and then the same frame sent.

use weir_fabric::{FdbEntry, Vid, VlanMode};
use weir_filter::Program;

use super::*;
use crate::switching::filter::{Action, PortRules, Rules};
use crate::switching::switch::slot;
use crate::trace::Step;

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
