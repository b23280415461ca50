//! Frames that filter rules or the limit of a receiver refuse.

use etherparse::PacketBuilder;
use weir_fabric::{Vid, VlanMode, VlanSet};
use weir_filter::{Instruction, Program};
use weir_limits::{FILTER_INSTRUCTIONS_MAX, FILTER_RULES_MAX, FILTER_WINDOW_LEN};
use weir_wire::vnet;

use super::*;
use crate::switching::filter::{Action, PortRules, Rules, RulesError};
use crate::switching::limits::StormLimit;
use crate::switching::limits::{Rate, RateLimit};

const FRAME_BITS: u64 = 8 * 200;

fn packets(burst: u64) -> RateLimit {
    RateLimit { bits: None, packets: Some(Rate { per_s: 1, burst }) }
}

fn bits(burst: u64) -> RateLimit {
    RateLimit { bits: Some(Rate { per_s: 1, burst }), packets: None }
}

/// Two senders and a known receiver.
struct Bench {
    engine: Arc<Engine>,
    senders: [Arc<FakePort>; 2],
    receiver: Arc<FakePort>,
    counters: Arc<PortCounters>,
    limited_since: Instant,
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
        let limited_since = Instant::now();
        engine.change_settings(id, |settings| settings.receive_limit = limit);
        send(&engine, &receiver, [frame(RECEIVER, 0xff, 0)]);
        eventually("it is known", || senders.iter().all(|sender| numbers(sender) == [0]));
        Self { engine, senders, receiver, counters: made.unwrap(), limited_since }
    }

    fn send(&self, sender: usize, numbers: std::ops::Range<u8>) {
        let from = sender as u8 + 1;
        let frames = numbers.map(|number| frame(from, RECEIVER, number));
        send(&self.engine, &self.senders[sender], frames);
    }

    /// Refused frames are counted before passing frames are in the ring.
    fn has_received(&self, wanted: &[u8]) {
        eventually("what passed arrives", || numbers(&self.receiver).len() >= wanted.len());
        assert_eq!(numbers(&self.receiver), wanted);
    }

    fn policed(&self) -> u64 {
        self.counters.dropped_for(DropReason::PolicedRx)
    }

    /// Checks that no more than `burst` of `sent` frames arrive, and one more for each second
    /// since.
    fn has_received_no_more_than(&self, burst: u64, sent: u64) {
        let received = || numbers(&self.receiver).len() as u64;
        eventually("each frame has its end", || received() + self.policed() == sent);
        let may = burst..=burst + self.limited_since.elapsed().as_secs();
        assert!(may.contains(&received()), "{} of {may:?}", received());
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
        // A flood also counts, and reaches the other ports.
        eventually("a flood is refused", || {
            let arrived = numbers(&bench.senders[0]).len();
            send(&bench.engine, &bench.senders[1], [frame(2, 0xff, 50)]);
            eventually("the flood", || numbers(&bench.senders[0]).len() > arrived);
            bench.policed() > 30
        });
        // A new limit, or none, also takes effect.
        bench.engine.change_settings(bench.receiver.id, |settings| {
            settings.receive_limit = RateLimit::NONE
        });
        bench.send(0, 60..100);
        eventually("the last arrives", || numbers(&bench.receiver).last() == Some(&99));
        assert!(numbers(&bench.receiver).ends_with(&(60..100).collect::<Vec<_>>()));
    }
}

#[test]
fn senders_on_all_workers_share_what_the_receiver_may_get() {
    let bench = Bench::new(2, packets(60));
    bench.engine.assign(bench.senders[1].id, 0, 1).unwrap();
    bench.send(0, 1..101);
    bench.send(1, 101..201);
    bench.has_received_no_more_than(60, 200);
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
    bench.has_received_no_more_than(10, 11);
}

#[test]
fn what_exceeds_a_storm_budget_is_dropped_and_counted_at_its_sender() {
    // At this rate, practically no token is added while the test runs.
    let rate = |burst| Some(Rate { per_s: 1, burst });
    let limit = StormLimit { broadcast: rate(3), multicast: rate(2), unknown: rate(1) };
    let engine = Engine::start(1).unwrap();
    let receiver = add(&engine, |_| {});
    let mut made = None;
    let config = PortConfig { mac_check: MacCheck::Off, ..PortConfig::vif() };
    let (id, sender) = engine
        .add_port(config, |id, counters| {
            made = Some(counters);
            Arc::new(FakePort::new(id))
        })
        .unwrap();
    engine.fabric().set_active(id, true).unwrap();
    engine.change_settings(id, |settings| settings.storm_limit = limit);
    let counters = made.unwrap();
    let multicast = |number| {
        let mut frame = frame(9, 0xff, number);
        frame[..6].copy_from_slice(&[0x01, 0, 0x5e, 0, 0, 1]);
        frame
    };
    let started = Instant::now();
    send(&engine, &receiver, [frame(8, 9, 0)]);
    send(&engine, &sender, (1..=10).map(|number| frame(9, 0xff, number)));
    send(&engine, &sender, (11..=20).map(multicast));
    send(&engine, &sender, (21..=30).map(|number| frame(9, 7, number)));
    // Frames for a known station are not limited.
    send(&engine, &sender, (31..=40).map(|number| frame(9, 8, number)));
    eventually("the last one arrives", || numbers(&receiver).last() == Some(&40));
    let drops = [DropReason::StormBroadcast, DropReason::StormMulticast, DropReason::StormUnknown]
        .map(|reason| counters.dropped_for(reason));
    let came = numbers(&receiver).len() as u64;
    assert_eq!(came + drops.iter().sum::<u64>(), 40);
    let late = started.elapsed().as_secs();
    for (dropped, expected) in drops.into_iter().zip([7, 8, 9]) {
        assert!((expected - late.min(expected)..=expected).contains(&dropped), "{drops:?}");
    }
}

/// The kind of a GSO frame's segments.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Tcp4,
    Tcp6,
    Udp4,
    Udp6,
}

const KINDS: [Kind; 4] = [Kind::Tcp4, Kind::Tcp6, Kind::Udp4, Kind::Udp6];
const ALL_CAPS: [OffloadCaps; 2] = [OffloadCaps::NONE, every_cap()];

const fn every_cap() -> OffloadCaps {
    let tcp = OffloadCaps::CSUM.union(OffloadCaps::TSO4).union(OffloadCaps::TSO6);
    tcp.union(OffloadCaps::USO)
}

/// A GSO frame to `to` (0xff is broadcast), and its virtio-net header.
fn gso(kind: Kind, to: u8, payload: usize, gso_size: u16) -> (Vec<u8>, VnetHdr) {
    let dst = if to == 0xff { [0xff; 6] } else { [2, 0, 0, 0, 0, to] };
    let ethernet = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], dst);
    let ip = match kind {
        Kind::Tcp4 | Kind::Udp4 => ethernet.ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64),
        Kind::Tcp6 | Kind::Udp6 => ethernet.ipv6([1; 16], [2; 16], 64),
    };
    let payload = vec![0; payload];
    let mut frame = Vec::new();
    let is_tcp = matches!(kind, Kind::Tcp4 | Kind::Tcp6);
    match is_tcp {
        true => ip.tcp(1, 2, 3, 4).write(&mut frame, &payload).unwrap(),
        false => ip.udp(1, 2).write(&mut frame, &payload).unwrap(),
    }
    let transport = if is_tcp { 20 } else { 8 };
    let vnet = VnetHdr {
        flags: vnet::F_NEEDS_CSUM,
        gso_type: match kind {
            Kind::Tcp4 => vnet::GSO_TCPV4,
            Kind::Tcp6 => vnet::GSO_TCPV6,
            Kind::Udp4 | Kind::Udp6 => vnet::GSO_UDP_L4,
        },
        hdr_len: 0,
        gso_size,
        csum_start: (frame.len() - payload.len() - transport) as u16,
        csum_offset: if is_tcp { 16 } else { 6 },
        num_buffers: 0,
    };
    (frame, vnet)
}

/// A sender, and a receiver with these capabilities, and their counters.
struct Pair {
    engine: Arc<Engine>,
    ports: [(Arc<FakePort>, Arc<PortCounters>); 2],
}

impl Pair {
    fn new(caps: OffloadCaps) -> Self {
        let engine = Engine::start(1).unwrap();
        let config = PortConfig { mac_check: MacCheck::Off, ..PortConfig::vif() };
        let ports = [OffloadCaps::NONE, caps].map(|caps| {
            let mut made = None;
            let make = |id, counters| {
                made = Some(counters);
                Arc::new(FakePort { caps, ..FakePort::new(id) })
            };
            let (id, port) = engine.add_port(config.clone(), make).unwrap();
            engine.fabric().set_active(id, true).unwrap();
            (port, made.unwrap())
        });
        Self { engine, ports }
    }

    fn receiver(&self) -> PortId {
        self.ports[1].0.id
    }

    /// Sends `count` such frames, and waits until each was delivered or dropped. Returns the number of frames that
    /// passed, of `segments` segments each.
    fn send(&self, (frame, vnet): &(Vec<u8>, VnetHdr), count: usize, segments: usize) -> usize {
        let [(sender, _), (receiver, _)] = &self.ports;
        receiver.got.lock().unwrap().clear();
        let dropped = || -> u64 {
            let counters = self.ports.iter().flat_map(|(_, counters)| counters.drops());
            counters.map(|(_, frames)| frames).sum()
        };
        let before = dropped();
        *sender.vnet.lock().unwrap() = *vnet;
        send(&self.engine, sender, std::iter::repeat_n(frame.clone(), count));
        let whole = receiver.caps != OffloadCaps::NONE;
        let each = if whole { 1 } else { segments };
        eventually("each frame has its end", || {
            let arrived = receiver.got.lock().unwrap().len();
            arrived % each == 0 && arrived / each + (dropped() - before) as usize == count
        });
        receiver.got.lock().unwrap().len() / each
    }
}

#[test]
fn a_gso_frame_costs_its_receiver_a_packet_for_each_segment_whether_it_is_cut_or_not() {
    for caps in ALL_CAPS {
        for kind in KINDS {
            let pair = Pair::new(caps);
            pair.engine.change_settings(pair.receiver(), |settings| {
                settings.receive_limit = packets(1_050)
            });
            // The frame limit would pass 64 at once; the packet limit passes 10.
            let passed = pair.send(&gso(kind, 0xff, 10_000, 100), 64, 100);
            assert_eq!(passed, 10, "{kind:?} {caps}");
        }
    }
}

#[test]
fn the_headers_of_each_segment_count_as_bits() {
    for (kind, headers) in KINDS.into_iter().zip([54, 74, 42, 62]) {
        let pair = Pair::new(every_cap());
        let frame = 8 * (10 * headers + 1_000);
        pair.engine.change_settings(pair.receiver(), |settings| {
            settings.receive_limit = bits(7 * frame + frame / 2)
        });
        assert_eq!(pair.send(&gso(kind, 0xff, 1_000, 100), 20, 10), 7, "{kind:?}");
    }
}

#[test]
fn a_gso_frame_beyond_the_packet_burst_passes_where_nothing_is_owed_and_is_owed_whole() {
    let pair = Pair::new(every_cap());
    pair.engine.change_settings(pair.receiver(), |settings| settings.receive_limit = packets(10));
    assert_eq!(pair.send(&gso(Kind::Tcp4, 0xff, 60_000, 1), 20, 60_000), 1);
    // 60,000 seconds of the rate are owed: not one frame of a single segment passes while a test runs.
    assert_eq!(pair.send(&gso(Kind::Tcp4, 0xff, 100, 100), 20, 1), 0);
}

#[test]
fn a_flooded_gso_frame_counts_as_its_segments_and_one_beyond_the_burst_is_never_flooded() {
    let rate = |burst| Some(Rate { per_s: 1, burst });
    for caps in ALL_CAPS {
        for kind in KINDS {
            for dst in [[0xff; 6], [0x01, 0, 0x5e, 0, 0, 1], [2, 0, 0, 0, 0, 77]] {
                let pair = Pair::new(caps);
                let limit = StormLimit {
                    broadcast: rate(1_050),
                    multicast: rate(1_050),
                    unknown: rate(1_050),
                };
                pair.engine
                    .change_settings(pair.ports[0].0.id, |settings| settings.storm_limit = limit);
                let to = |(mut frame, vnet): (Vec<u8>, VnetHdr)| {
                    frame[..6].copy_from_slice(&dst);
                    (frame, vnet)
                };
                let beyond = to(gso(kind, 0xff, 1_100, 1));
                assert_eq!(pair.send(&beyond, 5, 1_100), 0, "{kind:?} {caps} {dst:x?}");
                let hundred = to(gso(kind, 0xff, 10_000, 100));
                assert_eq!(pair.send(&hundred, 64, 100), 10, "{kind:?} {caps} {dst:x?}");
            }
        }
    }
}

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

/// A guest leaves to its device a checksum that lies in the bytes which a filter reads.
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
