//! Filters of ports, while frames go through the switch.

use weir_fabric::{Vid, VlanMode, VlanSet};
use weir_filter::{Instruction, Program};
use weir_limits::{FILTER_INSTRUCTIONS_MAX, FILTER_RULES_MAX, FILTER_WINDOW_LEN};

use super::*;
use crate::switching::filter::{Action, PortRules, Rules, RulesError};

/// A port with its counters.
struct Filtered {
    port: Arc<FakePort>,
    counters: Arc<PortCounters>,
}

fn add_filtered(engine: &Engine, rules: &PortRules, vlan: VlanMode) -> Filtered {
    let config = PortConfig { mac_check: MacCheck::Off, vlan, ..PortConfig::vif() };
    let mut made = None;
    let make = |id, counters| {
        made = Some(counters);
        Arc::new(FakePort::new(id))
    };
    let (id, port) = engine.add_port(config, make).unwrap();
    engine.change_settings(id, |settings| settings.rules = rules.clone());
    engine.fabric().set_active(id, true).unwrap();
    Filtered { port, counters: made.unwrap() }
}

impl Filtered {
    fn dropped(&self) -> Vec<(&'static str, u64)> {
        self.counters.drops().collect()
    }
}

fn access() -> VlanMode {
    VlanMode::Access(Vid::DEFAULT)
}

fn trunk() -> VlanMode {
    VlanMode::Trunk { native: Some(Vid::DEFAULT), allowed: VlanSet::All }
}

fn rules(texts: &[(&str, Action)]) -> Arc<Rules> {
    let compiled = texts.iter().map(|(text, action)| {
        let program = Program::compile(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        (Arc::new(program), *action)
    });
    Arc::new(Rules::new(compiled).unwrap())
}

fn tx(rules: &Arc<Rules>) -> PortRules {
    PortRules { tx: Some(Arc::clone(rules)), rx: None }
}

fn rx(rules: &Arc<Rules>) -> PortRules {
    PortRules { tx: None, rx: Some(Arc::clone(rules)) }
}

/// Packets and bytes of each rule.
fn counts(rules: &Rules) -> Vec<(u64, u64)> {
    rules.iter().map(|rule| (rule.packets.get(), rule.bytes.get())).collect()
}

#[test]
fn the_first_rule_that_matches_what_is_sent_decides_and_counts() {
    use Action::{Accept, Drop};
    let engine = Engine::start(1).unwrap();
    let rules = rules(&[
        ("ether[14] = 1", Drop),
        ("ether[14] < 3", Accept),
        ("ether[14] = 2 or ether[14] = 3", Drop),
    ]);
    let a = add_filtered(&engine, &tx(&rules), access());
    let b = add_filtered(&engine, &PortRules::default(), access());
    send(&engine, &a.port, (0..6).map(|n| frame(1, 0xff, n)));
    eventually("what passes is there", || numbers(&b.port) == [0, 2, 4, 5]);
    eventually("all is counted", || counts(&rules) == [(1, 200), (2, 400), (1, 200)]);
    assert_eq!(a.dropped(), [("filtered_tx", 2)]);
    assert_eq!(b.dropped(), []);
}

#[test]
fn a_filter_of_one_receiver_leaves_the_others_alone() {
    let engine = Engine::start(1).unwrap();
    let rules = rules(&[("ether[14] & 1 = 1", Action::Drop), ("", Action::Accept)]);
    let [a, b] = [(); 2].map(|()| add_filtered(&engine, &PortRules::default(), access()));
    let c = add_filtered(&engine, &rx(&rules), access());
    send(&engine, &c.port, [frame(3, 0xff, 100)]);
    eventually("c is known", || numbers(&a.port) == [100] && numbers(&b.port) == [100]);
    // Some frames are flooded and some sent to c alone, in one burst; only the latter may wait for room.
    c.port.room.store(2, Ordering::SeqCst);
    let to = |n| if n < 4 { 0xff } else { 3 };
    send(&engine, &a.port, (0..8).map(|n| frame(1, to(n), n)));
    eventually("b has what was flooded", || numbers(&b.port) == [100, 0, 1, 2, 3]);
    eventually("the rest of the even ones waits", || a.port.waiting.lock().unwrap().len() == 2);
    assert_eq!(numbers(&c.port), [0, 2]);
    assert_eq!(counts(&rules), [(4, 800), (2, 400)], "what waits is not counted yet");
    c.port.room.store(100, Ordering::SeqCst);
    engine.nudge(QueueRef { port: c.port.id, queue: 0, side: Side::Rx });
    eventually("all is there", || numbers(&c.port) == [0, 2, 4, 6]);
    eventually("and counted once", || counts(&rules) == [(4, 800), (4, 800)]);
    assert_eq!(c.dropped(), [("filtered_rx", 4)]);
    assert_eq!([a.dropped(), b.dropped()], [[], []]);
}

#[test]
fn what_waited_for_its_receiver_counts_once_at_its_sender() {
    let engine = Engine::start(1).unwrap();
    let rules = rules(&[("", Action::Accept)]);
    let a = add_filtered(&engine, &tx(&rules), access());
    let b = add_filtered(&engine, &PortRules::default(), access());
    send(&engine, &b.port, [frame(2, 0xff, 0)]);
    eventually("b is known", || numbers(&a.port) == [0]);
    b.port.room.store(3, Ordering::SeqCst);
    send(&engine, &a.port, (1..=10).map(|n| frame(1, 2, n)));
    eventually("the rest waits", || a.port.waiting.lock().unwrap().len() == 7);
    b.port.room.store(100, Ordering::SeqCst);
    engine.nudge(QueueRef { port: b.port.id, queue: 0, side: Side::Rx });
    eventually("all arrive", || numbers(&b.port).len() == 10);
    eventually("all is counted", || counts(&rules)[0].0 >= 10);
    assert_eq!(counts(&rules), [(10, 2000)]);
}

#[test]
fn nothing_is_learned_from_a_frame_that_may_not_be_sent() {
    let engine = Engine::start(1).unwrap();
    let drop_all = rules(&[("", Action::Drop)]);
    let a = add_filtered(&engine, &tx(&drop_all), access());
    let [b, c] = [(); 2].map(|()| add_filtered(&engine, &PortRules::default(), access()));
    send(&engine, &a.port, [frame(1, 0xff, 0)]);
    eventually("it is dropped", || a.dropped() == [("filtered_tx", 1)]);
    send(&engine, &b.port, [frame(2, 1, 1)]);
    eventually("it is looked for everywhere", || numbers(&c.port) == [1]);
    assert!(numbers(&b.port).is_empty());
}

#[test]
fn a_filter_sees_the_tag_that_a_frame_comes_and_leaves_with() {
    let engine = Engine::start(1).unwrap();
    let sees = [("vlan 10 and ether[18] = 7", Action::Accept), ("", Action::Accept)];
    let [sent, plain, tagged] = [(); 3].map(|()| rules(&sees));
    let a = add_filtered(&engine, &tx(&sent), trunk());
    let ten = VlanMode::Access(Vid::new(10).unwrap());
    let b = add_filtered(&engine, &rx(&plain), ten);
    let c = add_filtered(&engine, &rx(&tagged), trunk());
    let mut frame = frame(1, 0xff, 7);
    frame.splice(12..12, [0x81, 0, 0, 10]);
    send(&engine, &a.port, [frame.clone()]);
    eventually("both have it", || !numbers(&b.port).is_empty() && !numbers(&c.port).is_empty());
    eventually("the sender's tag is seen", || counts(&sent) == [(1, 200), (0, 0)]);
    assert_eq!(counts(&plain), [(0, 0), (1, 200)], "it leaves untagged");
    eventually("the receiver's too", || counts(&tagged) == [(1, 200), (0, 0)]);
    assert_eq!(c.port.got.lock().unwrap()[0].1, frame);
}

#[test]
fn content_is_matched_as_far_as_the_window_goes() {
    let engine = Engine::start(1).unwrap();
    let (within, beyond) = (FILTER_WINDOW_LEN - 1, FILTER_WINDOW_LEN);
    let texts = [within, beyond].map(|at| format!("ether[{at}] = 9"));
    // Bytes beyond the window neither match nor end the search.
    let rules =
        rules(&[(&texts[1], Action::Drop), (&texts[0], Action::Drop), ("len > 9", Action::Accept)]);
    let a = add_filtered(&engine, &tx(&rules), access());
    let b = add_filtered(&engine, &PortRules::default(), access());
    let long = |number, at: usize| {
        let mut long = frame(1, 0xff, number);
        long.resize(3000, 0);
        long[at] = 9;
        long
    };
    send(&engine, &a.port, [long(1, within), long(2, beyond), frame(1, 0xff, 3)]);
    eventually("what passes is there", || numbers(&b.port) == [2, 3]);
    eventually("all is counted", || counts(&rules) == [(0, 0), (1, 3000), (2, 3200)]);
}

#[test]
fn a_burst_meets_the_old_rules_or_the_new_ones_and_no_mixture() {
    const BURSTS: u8 = 200;
    let engine = Engine::start(1).unwrap();
    let a = add_filtered(&engine, &PortRules::default(), access());
    let b = add_filtered(&engine, &PortRules::default(), access());
    let sides = [0, 1].map(|kind| {
        let text = format!("ether[15] = {kind}");
        let only = rules(&[(&text, Action::Accept), ("", Action::Drop)]);
        tx(&only)
    });
    engine.change_settings(a.port.id, |settings| settings.rules = sides[0].clone());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stops = weir_testing::SetAtEnd(&stop);
        scope.spawn(|| {
            for side in (0..2).cycle() {
                engine.change_settings(a.port.id, |settings| settings.rules = sides[side].clone());
                if stop.load(Ordering::SeqCst) {
                    break;
                }
            }
        });
        for burst in 0..BURSTS {
            send(
                &engine,
                &a.port,
                (0..10).map(|n| {
                    let mut frame = frame(1, 0xff, burst);
                    frame[15] = n & 1;
                    frame
                }),
            );
            let arrived = usize::from(burst + 1) * 5;
            eventually("half of them arrive", || b.port.got.lock().unwrap().len() >= arrived);
        }
    });
    let got = b.port.got.lock().unwrap();
    assert_eq!(got.len(), usize::from(BURSTS) * 5);
    for burst in got.chunks(5) {
        let kinds = |(_, frame): &(usize, Vec<u8>)| (frame[14], frame[15]);
        assert!(burst.iter().all(|frame| kinds(frame) == kinds(&burst[0])), "{burst:?}");
    }
}

#[test]
fn rules_cost_a_frame_no_more_than_the_limit() {
    let rule = |text| (Arc::new(Program::compile(text).unwrap()), Action::Accept);
    let many = vec![rule("ip"); FILTER_RULES_MAX + 1];
    assert!(Rules::new(many[1..].to_vec()).is_ok());
    assert_eq!(Rules::new(many).unwrap_err(), RulesError::TooMany(FILTER_RULES_MAX + 1));
    // `ld #0`, many times, and `ret #0`.
    let instruction = |code| Instruction { code, jt: 0, jf: 0, k: 0 };
    let mut long = vec![instruction(0); FILTER_INSTRUCTIONS_MAX / 2 - 1];
    long.push(instruction(6));
    let half = (Arc::new(Program::new(&long).unwrap()), Action::Drop);
    assert!(Rules::new([half.clone(), half.clone()]).is_ok());
    let error = Rules::new([half.clone(), half, rule("")]).unwrap_err();
    assert_eq!(error, RulesError::TooLong(FILTER_INSTRUCTIONS_MAX + 1));
}

/// A guest leaves a checksum to its device that lies in the bytes that a filter reads.
#[test]
fn a_filter_judges_the_checksum_that_weir_fills_in() {
    use crate::frames::burst::tests::{asks, completed};
    let start = 40;
    for (at, rule) in [(50, "ether[50:2] = 0x50"), (200, "ether[200:2] = 0x50")] {
        let of = |field: u16| {
            let mut frame = frame(1, 0xff, 0);
            frame.resize(300, 0);
            frame[at..at + 2].copy_from_slice(&field.to_be_bytes());
            frame
        };
        let filled = |frame: &[u8]| completed(frame, start, at - start)[at..at + 2] == [0, 0x50];
        let becomes = (0..=u16::MAX).map(of).find(|frame| filled(frame)).unwrap();
        let sends = [of(0x50), becomes];
        assert!(!filled(&sends[0]));
        for is_sender in [true, false] {
            let engine = Engine::start(1).unwrap();
            let (none, rules) = (PortRules::default(), rules(&[(rule, Action::Drop)]));
            let of_sender = if is_sender { &tx(&rules) } else { &none };
            let of_receiver = if is_sender { &none } else { &rx(&rules) };
            let a = add_filtered(&engine, of_sender, access());
            let b = add_filtered(&engine, of_receiver, access());
            *a.port.vnet.lock().unwrap() = asks(start, at - start);
            send(&engine, &a.port, sends.clone());
            let one = || counts(&rules).iter().map(|(packets, _)| packets).sum::<u64>() == 1;
            eventually("one is dropped", one);
            eventually("the other one arrives", || b.port.got.lock().unwrap().len() == 1);
            assert_ne!(b.port.got.lock().unwrap()[0].1[at..at + 2], [0, 0x50]);
        }
    }
}
